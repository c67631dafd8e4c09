"""Power cuts by replay where there is no strace and no root: SQLite's calls seen by a VFS, the library's in Python.

The same promises, states, controls and judge as in `test_power_cut`; never skipped. SQLite's own sync of the folder of
a new WAL is not seen here, so that the library's must do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability.conftest import LONG, Lab
from reliability.power_cut import judge, repeat, seed
from reliability.power_cut_scenarios import BROKEN, EFFORT, GROWN, is_caught, lived
from reliability.recording_vfs import record

HARNESS = "power cut, by a VFS"
OPENED_MAX, OPENED_MIN = (1_200, 1_200) if LONG else (200, 200)


@pytest.mark.parametrize(("kind", "wal_bytes"), [("KEYED", GROWN), ("UNSAFE", 0), ("QUERYABLE", 0)])
def test_a_power_cut_loses_nothing(
    kind: str, wal_bytes: int, lab: Lab, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    """I2, I5: each state that a power cut can leave of a whole life tells the truth."""
    number = seed()
    trace = lived(record, quick_folder, f"{kind}-", wal_bytes)
    judged = judge(trace, quick_folder, number, effort=EFFORT, opened_max=OPENED_MAX)
    lab.seen(judged.states, judged.violations, repeat=repeat(number, request.node.nodeid))
    assert judged.states >= OPENED_MIN, judged[:4]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_log_is_caught(broken: str, lab: Lab, quick_folder: Path) -> None:
    """The controls: a log that syncs too little, and one without Dispatched, must be found out."""
    is_caught(record, broken, lab, quick_folder)
