"""Power cuts by replay: what strace saw a worker do to its disk, and every state that a crash in between can leave.

The promise: after a power cut at any moment every acknowledged record is there (I5), nothing is there that nobody
appended, "never sent" is said of nothing whose call began (I2), and `verify` is clean.

The trace is that of a real worker: a new log, its WAL grown ahead or not, every class with every ending, checkpoints,
two attempts, recover, resolve, cancel, renew, closing. `disk` says what a disk may do, `cuts` which of its states are
looked at. In the quick form a sample of them is opened, in the full form nearly all. A fence that is left out is no
control here: whether a zombie is stopped does not depend on what the disk keeps (`tests/model`, and the harness of
processes that are stopped and go on).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability import attached, life
from reliability.conftest import LONG, Lab
from reliability.power_cut import judge, repeat, seed
from reliability.power_cut_scenarios import BROKEN, EFFORT, GROWN, is_caught, lived
from reliability.recording_strace import record

HARNESS = "power cut, by strace"
OPENED_MAX, OPENED_MIN = (5_200, 5_000) if LONG else (400, 390)  # of each of ten traces


@pytest.fixture(scope="module", autouse=True)
def strace() -> None:
    """These tests need it; those of `test_power_cut_vfs` do not."""
    if why := attached.why_not():
        pytest.skip(why)


@pytest.mark.parametrize("wal_bytes", [0, GROWN], ids=["growing", "grown"])
@pytest.mark.parametrize("kind", life.CLASSES)
def test_a_power_cut_loses_nothing(
    kind: str, wal_bytes: int, lab: Lab, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    """I2, I5: each state that a power cut can leave of a whole life tells the truth."""
    number = seed()
    judged = judge(
        lived(record, quick_folder, f"{kind}-", wal_bytes), quick_folder, number, effort=EFFORT, opened_max=OPENED_MAX
    )
    lab.seen(judged.states, judged.violations, repeat=repeat(number, request.node.nodeid))
    assert judged.states >= OPENED_MIN, judged[:4]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_log_is_caught(broken: str, lab: Lab, quick_folder: Path) -> None:
    """The controls: a log that syncs too little, and one without Dispatched, must be found out."""
    is_caught(record, broken, lab, quick_folder)
