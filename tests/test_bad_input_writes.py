"""Bad input: writing where nothing can be written: a read-only log, a full disk. The table is in `test_bad_input`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import apsw
import pytest
from bad_input import CALLED, EVERYTHING, MODES, READS, SAID, WRITES, Face, filled, in_fork, note, opened, refused
from counting_vfs import CountingVFS

from intentlog import (
    IntentLogError,
    Log,
    LogUnavailable,
    NotApplied,
    NotInDoubt,
    Settings,
    UnknownIntent,
    tool,
)
from intentlog.log.engine import open_engine

# --- read-only ------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(WRITES.keys() - {"append EVENTUAL"}))
def test_a_writing_method_on_a_read_only_log(quick_folder: Path, mode: str, name: str) -> None:
    """LogUnavailable says that it was opened for reading; nothing is appended, and it reads on."""
    path = quick_folder / "log.db"
    filled(path)
    crashed(path)  # something for `recover` to fence
    with opened(path, mode, read_only=True) as face:
        before = face.records()
        with pytest.raises(IntentLogError, match="opened for reading only") as caught:
            face.do(WRITES[name])
        assert (type(caught.value), caught.value.effect_ran) == (LogUnavailable, "no")
        assert face.records() == before
        for read in READS.values():
            face.do(read)
    with opened(path, mode) as again:
        again.goes_on()


def crashed(path: Path) -> None:
    """Leave an attempt open, its owner dead."""

    def die() -> None:
        Log.open(path).attempt("dead").__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(die) == -signal.SIGKILL


@pytest.mark.parametrize("mode", MODES)
def test_an_event_on_a_read_only_log(quick_folder: Path, mode: str) -> None:
    """Refused at once; it must not be accepted, then lost, and break every read and the close meanwhile."""
    path = quick_folder / "log.db"
    filled(path)
    face = Face(path, mode, read_only=True).open()
    try:
        with pytest.raises(LogUnavailable, match="opened for reading only"):
            face.do(WRITES["append EVENTUAL"])
        face.do(READS["history"])
    finally:
        try:
            face.close()
        except LogUnavailable:
            face.log = None


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_on_a_read_only_log_is_the_same(quick_folder: Path, mode: str) -> None:
    """What would be refused anyway says why, not that the log is read-only."""
    filled(quick_folder / "log.db")
    with opened(quick_folder / "log.db", mode, read_only=True) as face:
        with refused(face, NotInDoubt, "its verdict is DONE", ran="yes", intent="order#1/s"):
            face.do(lambda log: log.resolve("order#1/s", NotApplied(), **SAID))
        with refused(face, UnknownIntent, "no such intent", intent="order#1/other"):
            face.do(lambda log: log.renew("order#1/other", **SAID))


# --- a full disk ------

_names = count()


class Disk:
    """A log on a disk that can be full."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.vfs = CountingVFS(f"bad-input-{next(_names)}")
        self.ballast = folder / "log.db.d" / "ballast"
        self.face = Face(folder / "log.db", mode)
        opener = partial(open_engine, folder / "log.db", Settings(), read_only=False, vfs=self.vfs.name)
        self.face.open(opener)

    def fill(self, after: int = 0) -> None:
        """From the write after the next `after` ones on there is no room."""
        self.vfs.fail_at["xWrite", "-wal"] = (self.vfs.calls["xWrite", "-wal"] + 1 + after, apsw.SQLITE_FULL)

    def free(self) -> None:
        self.vfs.fail_at.clear()


@pytest.fixture(params=MODES)
def disk(quick_folder: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(quick_folder, request.param)
    yield made
    made.free()
    made.face.close()


def test_a_full_disk_at_each_kind_of_write(disk: Disk) -> None:
    """LogUnavailable, nothing appended, no call; with room again the same log and attempt go on."""
    face = disk.face
    face.doubt("doubtful")
    face.call("order", "s")
    uses = [WRITES[name] for name in ("resolve", "renew", "append", "attempt", "run")]
    with face.attempt("open") as attempt:
        before, called = face.records(), len(CALLED)
        for use in (*uses, lambda log: attempt.step("a").call(note, "x")):
            disk.fill()
            with pytest.raises(IntentLogError, match="no room on the disk") as caught:
                face.do(use)
            disk.free()
            assert (type(caught.value), caught.value.effect_ran, bool(caught.value.remedy)) == (
                LogUnavailable,
                "no",
                True,
            )
        assert (face.records(), len(CALLED)) == (before, called)
        assert face.wait(attempt.step("a").call(note, "x")) == "x"
    face.goes_on()


def test_a_disk_that_fills_during_the_call(disk: Disk) -> None:
    """The ballast goes, the outcome is recorded, the caller gets its value; the next opening reserves it again."""

    @tool(name="bad-input-fills")
    def fills(text: str) -> str:
        assert disk.ballast.stat().st_size > 0
        disk.fill()
        return text

    whole = disk.vfs.reached

    def reached(what: str, suffix: str) -> None:
        if not disk.ballast.exists():
            disk.free()
        whole(what, suffix)

    disk.vfs.reached = reached  # type: ignore[method-assign] # stands for the disk
    face = disk.face
    assert face.call("order", "s", fills, "value") == "value"
    assert not disk.ballast.exists()
    kinds = [one.kind for one in face.do(lambda log: log.tail(EVERYTHING))]
    assert kinds == ["AttemptOpened", "Pending", "Dispatched", "Committed", "AttemptClosed"]
    face.goes_on()
    face.wait(face.log.close())
    with opened(face.path, face.mode) as again:
        assert disk.ballast.stat().st_size > 0
        assert again.call("order", "s", fills, "value") == "value"
