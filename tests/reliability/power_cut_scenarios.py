"""The traces whose power is cut: a whole life, and a life whose disk failed a sync before.

Either recorder makes them (`recording_strace`, `recording_vfs`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from reliability import power_cut_programs as programs
from reliability.conftest import Lab, by_form
from reliability.disk import FailedSync, Note, Operation
from reliability.power_cut import Judged, judge, seed
from reliability.recording import Recording

GROWN = 64 * 1024
EFFORT = by_form(5, 8, 8)  # choices by chance at each point
BROKEN = ("synchronous=NORMAL", "synchronous=OFF", "two records")  # what syncs too little, and what lacks Dispatched


class Recorder(Protocol):
    """`record` of one of the recorders."""

    def __call__(
        self, recording: Recording, program: Any, *arguments: Any, fail_at: int = 0
    ) -> tuple[Recording, str]: ...


def begun(folder: Path) -> Recording:
    """The recording of an empty folder."""
    world = folder / "world"
    shutil.rmtree(world, ignore_errors=True)
    (world / "log").mkdir(parents=True)
    return Recording(world / "log", world / "marks")


def lived(record: Recorder, folder: Path, branches: str, wal_bytes: int = 0, broken: str = "") -> list[Operation]:
    """The trace of a whole life with the branches that begin with these letters."""
    recording, raised = record(begun(folder), programs.live, str(folder / "world"), branches, wal_bytes, broken)
    assert broken or not raised, raised
    assert any(isinstance(one, Note) for one in recording.operations), "the witness saw nothing"
    return recording.operations


def syncs(record: Recorder, folder: Path, branches: str) -> list[int]:
    """Which syncs of a life's first half are of the log or its WAL: what can be failed, in order."""
    recording, raised = record(begun(folder), programs.begin, str(folder / "world"), branches, 0, "")
    assert not raised, raised
    return [number for number, path in enumerate(recording.data_synced, 1) if path.name in ("log.db", "log.db-wal")]


def judged_after_failed_sync(
    record: Recorder,
    folder: Path,
    branches: str,
    number: int,
    *,
    fail_at: int,
    opened_max: int,
    broken: str = "",
    caught_max: int = 0,
) -> Judged:
    """A sync fails, the process ends, another one goes on from what the cache has, and then the power is cut.

    Half of the states that are opened are from before the second process acknowledged anything.

    Args:
        record: the recorder.
        folder: where it happens.
        branches: what their names begin with.
        number: the seed.
        fail_at: which sync, of `syncs`.
        opened_max: how many states are opened at most.
        broken: how the second process is broken on purpose.
        caught_max: see `judge`; of each half.
    """
    world = str(folder / "world")
    recording, _ = record(begun(folder), programs.begin, world, branches, 0, "", fail_at=fail_at)
    since = len(recording.operations)
    assert any(isinstance(one, FailedSync) for one in recording.operations), f"sync {fail_at} did not fail"
    recording, raised = record(recording, programs.go_on, world, branches, 0, broken)
    assert not raised, raised
    trace = recording.operations
    tried = (at for at, one in enumerate(trace) if at > since and isinstance(one, Note) and one.text.startswith("try"))
    parts = (trace[: next(tried)], trace)  # fails where the witness saw nothing
    found = [
        judge(part, folder, number, effort=EFFORT, opened_max=opened_max // 2, caught_max=caught_max, since=since)
        for part in parts
    ]
    labelled = [f"sync {fail_at} failed, {one}" for judged in found for one in judged.violations]
    return Judged(*(sum(numbers) for numbers in zip(*(judged[:4] for judged in found), strict=True)), labelled)


def is_caught(record: Recorder, broken: str, lab: Lab, folder: Path) -> None:
    """A control: of the life of a log that is broken so, the states that a cut leaves must be found out."""
    judged = judge(
        lived(record, folder, "UNSAFE-re", broken=broken), folder, seed(), effort=EFFORT, opened_max=200, caught_max=3
    )
    lab.control(broken, judged.states, judged.guilty)
