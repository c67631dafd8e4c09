"""Clocks that jump in a running process while a call is in doubt (I4, DESIGN "Time"), by libfaketime.

A key is not sent again where its window may have passed, by whichever clock; a probe's "not applied" counts only when
so much time has passed for certain, by the boot clock. Records stay in their order, and the log is sound. libfaketime
moves the boot clock too, unless it is told not to: both are tried. Where the boot clock itself is moved ahead, what it
says is believed: that is what the library rests on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reliability.conftest import Lab

HARNESS = "clocks that jump"
PROGRAM = Path(__file__).parent / "clock_programs.py"
LIBRARIES = ("lib/*/faketime/libfaketimeMT.so.1", "local/lib/faketime/libfaketimeMT.so.1")
JUMPS = {"+30d": 30 * 86_400, "-1h": -3_600, "+0": 0}
SCENES = ("keyed", "keyed-retry", "queryable")


@pytest.fixture(scope="module")
def library() -> str:
    found = [str(path) for pattern in LIBRARIES for path in Path("/usr").glob(pattern)]
    if not found:
        pytest.skip("libfaketime is not installed (apt package faketime)")
    return found[0]


def played(library: str, folder: Path, scene: str, by: str, *, boot: bool, control: str = "") -> dict[str, Any]:
    """What a process came to whose clocks jumped.

    Args:
        library: libfaketime.
        folder: for the log.
        scene: which tool, and when the clocks jump.
        by: how far.
        boot: whether the boot clock jumps too.
        control: which protection is taken away.
    """
    folder.mkdir()
    stamp = folder / "faketime"
    stamp.write_text("+0\n")
    environment = os.environ | {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "0" if boot else "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "0" if boot else "1",
    }
    command = [sys.executable, str(PROGRAM), str(folder), scene, by, control]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert abs(told["wall_s"] - JUMPS[by]) < 60, f"the wall clock did not jump: {told}"
    assert abs(told["boot_s"] - (JUMPS[by] if boot else 0)) < 60, f"the boot clock: {told}"
    return told


def wrongs(told: dict[str, Any], scene: str, by: str, *, boot: bool) -> list[str]:
    """What must not have come of it."""
    wrong = []
    if scene != "queryable" and by != "+0" and told["calls"] != 1:
        wrong.append("the key was sent again when its window may have passed")
    believed = "NOT_APPLIED" in told["settled"]
    if scene == "queryable" and believed and not (boot and by == "+30d"):
        wrong.append("not applied was believed too early")
    wrong += [] if told["sound"] else ["verify"]
    wrong += [] if told["ordered"] else ["the records are out of order"]
    return wrong


@pytest.mark.parametrize("scene", SCENES)
def test_clocks_jump_while_a_call_is_in_doubt(lab: Lab, quick_folder: Path, library: str, scene: str) -> None:
    """Ahead of any window, and back; with the boot clock and without; in the call's own retry, and after it."""
    wrong: list[str] = []
    states = [(by, boot) for by in ("+30d", "-1h") for boot in (False, True)]
    for number, (by, boot) in enumerate(states):
        told = played(library, quick_folder / str(number), scene, by, boot=boot)
        wrong += [f"{by}, boot={boot}: {one}: {told}" for one in wrongs(told, scene, by, boot=boot)]
    lab.seen(len(states), wrong)


@pytest.mark.parametrize("scene", ["keyed", "keyed-retry"])
def test_without_a_jump_the_key_is_sent_again(quick_folder: Path, library: str, scene: str) -> None:
    """So that the silence of the tests above has a reason."""
    assert played(library, quick_folder / "log", scene, "+0", boot=True)["calls"] == 2


@pytest.mark.parametrize(("scene", "by", "control"), [("keyed", "+30d", "keys"), ("queryable", "+30d", "wall")])
def test_control_of_the_clocks(lab: Lab, quick_folder: Path, library: str, scene: str, by: str, control: str) -> None:
    """A window that is not asked about, a settle time that goes by the wall clock: each is seen."""
    told = played(library, quick_folder / "log", scene, by, boot=False, control=control)
    lab.control(f"without: {control}", 1, len(wrongs(told, scene, by, boot=False)))
