"""Processes over one log, in every order: keeper and guests that open, write, checkpoint, pre-grow, close and die.

A reader holds a snapshot of the library's own (that of `verify`). The schedules are all there are of a length, each
process held in the middle of its opening, its checkpoint or its call as well as between them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from reliability.conftest import LONG, Lab, at_most
from reliability.kill_sweep import spread
from reliability.wal_schedules import Cast, Play, Schedule, all_of, parsed, random_one, text_of

HARNESS = "processes and the WAL, in every order"
SEED = int(os.environ.get("INTENTLOG_LAB_SEED") or (random.SystemRandom().randrange(1_000_000) if LONG else 8))
SCHEDULE = os.environ.get("INTENTLOG_LAB_SCHEDULE", "")


def played(schedules: Iterable[Schedule], folder: Path, names: str = "AB", broken: str = "") -> tuple[int, list[str]]:
    """How many were played, and what was wrong, each with the schedule."""
    found: list[str] = []
    number = 0
    cast = Cast(names, broken)
    try:
        for number, schedule in enumerate(schedules, 1):
            own = folder / str(number)
            own.mkdir()
            wrong = Play(cast, own).play(schedule)
            found += [f"{one}, in: {text_of(schedule)}" for one in wrong[:1]]
            shutil.rmtree(own)
            if wrong:
                cast.end()
                cast = Cast(names, broken)
    finally:
        cast.end()
    return number, found


def repeat(name: str) -> str:
    return f"INTENTLOG_LAB_SCHEDULE='...' make test-reliability PYTEST_ARGS='-k {name}'"


def test_one_schedule(lab: Lab, quick_folder: Path) -> None:
    """The schedule of the environment, to repeat a failure; by default one with a death at pre-growing."""
    text = SCHEDULE or "A.open.growing B.open A.die B.effect B.upkeep A.open A.effect"
    states, found = played([parsed(text)], quick_folder, "ABC")
    lab.seen(states, found)


@pytest.mark.parametrize("half", [0, 1])
def test_every_short_schedule(lab: Lab, quick_folder: Path, half: int) -> None:
    """I5: no acknowledged record is lost and none invented, at each step by a reader and at the end; every process goes
    on or is refused in words and for a reason; `verify` is clean. In full, all schedules of four steps."""
    schedules = spread(list(all_of(4))[half::2], at_most(36, 300), random.Random(SEED + half).random)
    lab.seen(*played(schedules, quick_folder), repeat=repeat("test_one_schedule"))


@pytest.mark.parametrize("names", ["AB", "ABC"])
def test_long_schedules(lab: Lab, long: bool, quick_folder: Path, names: str) -> None:
    """The same over twelve steps by chance, with two writers and with three."""
    chance = random.Random(SEED)
    schedules = [random_one(chance, 12, names) for _ in range(120 if long else 16)]
    lab.seen(*played(schedules, quick_folder, names), repeat=repeat("test_one_schedule"))


CONTROLS = {
    "stale size": "A.open.checkpointed B.open B.effect A.go",
    "checkpoint at close": "A.open B.open A.die B.close",
    "truncate": "A.open B.open A.upkeep B.effect",
    "two keepers": "A.open B.open A.effect B.effect",
}


@pytest.mark.parametrize("broken", CONTROLS)
def test_control(lab: Lab, long: bool, quick_folder: Path, broken: str) -> None:
    """Controls, must fail, each in a schedule of four steps: the WAL is grown from a stale size, which destroys what
    others appended meanwhile; the last one to close deletes the WAL, or a checkpoint cuts it short; there are two
    keepers (which destroys nothing here: SQLite's own locks hold; it is caught by asking who is the keeper)."""
    schedules = [parsed(CONTROLS[broken])]
    assert schedules[0] in set(all_of(4))
    schedules += random.Random(SEED).sample(list(all_of(4)), 60 if long else 4)
    states, found = played(schedules, quick_folder, broken=broken)
    print(*found, sep="\n")
    lab.control(broken, states, len(found))
