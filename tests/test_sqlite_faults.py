"""What SQLite's errors mean for an effect (DESIGN 9, I8): poison, no call, an outcome never lost silently.

The errors come from a VFS, at the very xSync or xWrite of the commit in question.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import apsw
import pytest
from counting_vfs import CountingVFS

from intentlog import (
    Applied,
    InDoubt,
    Log,
    LogPoisoned,
    LogUnavailable,
    OutcomeNotRecorded,
    Settings,
    Verdict,
    tool,
)
from intentlog.crash import Witness
from intentlog.log.engine import open_engine
from intentlog.store import opening
from intentlog.store.locks import Locks, lives, note_of
from intentlog.store.wal import wal_of

_names = count()


class Bench:
    """A log on a VFS that can fail, and an UNSAFE tool with its witness."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.db"
        self.vfs = CountingVFS(f"faults-{next(_names)}")
        self.witness = Witness(folder / "witness")
        witness = self.witness

        @tool
        def effect(number: int) -> int:
            witness.record(str(number))
            return number

        self.effect = effect

    def open(self) -> Log:
        return Log(open_engine(self.path, Settings(), read_only=False, vfs=self.vfs.name))

    def fail(self, what: str, after: int, code: int) -> None:
        """From the call after the next `after` ones on, calls of this kind fail."""
        done = self.vfs.calls[what, "-wal"]
        self.vfs.fail_at[what, "-wal"] = (done + after + 1, code)

    def mend(self) -> None:
        self.vfs.fail_at.clear()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.mend()


@pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR])
@pytest.mark.parametrize("commit", [0, 1])
def test_a_failed_sync_before_the_call_means_no_call(bench: Bench, commit: int, code: int) -> None:
    """I8: Pending's or Dispatched's sync fails: LogPoisoned, no call; everything after it is refused too."""
    with pytest.raises(LogPoisoned), bench.open() as log, log.attempt("order") as attempt:
        bench.fail("xSync", commit, code)
        try:
            attempt.call(bench.effect, 1)
        finally:
            assert bench.witness.lines() == []
            bench.mend()
            for use in (lambda: attempt.call(bench.effect, 2), log.recover):
                with pytest.raises(LogPoisoned):
                    use()
            assert bench.witness.lines() == []
    with bench.open() as log:
        classified = log.recover()
        assert {c.intent_id.step for c in classified} <= {"effect"}
        assert log.verify().ok
        # The failed record may be there after a reopen: either answer is true, and neither says that it was called.
        assert all(c.classification is not Verdict.DONE for c in classified)


def test_a_failed_sync_of_the_outcome_hands_it_to_the_caller(bench: Bench) -> None:
    """Field case 8: the effect landed and its record could not be written: OutcomeNotRecorded, effect ran: yes."""
    with bench.open() as log:
        with pytest.raises(OutcomeNotRecorded) as caught, log.attempt("order") as attempt:
            bench.fail("xSync", 2, apsw.SQLITE_IOERR_FSYNC)
            attempt.call(bench.effect, 41)
        assert caught.value.outcome == 41
        assert caught.value.effect_ran == "yes"
        assert caught.value.intent_id == "order#1/effect"
        assert bench.witness.lines() == ["41"]
        bench.mend()
    with bench.open() as log, log.attempt("order") as attempt:
        try:
            assert attempt.call(bench.effect, 41) == 41, "the record was there after all"
        except InDoubt:
            log.resolve("order#1/effect", Applied(41), by="test", why="witness")
    assert bench.witness.lines() == ["41"], "in no case a second call"


def test_no_room_at_pending_is_no_poison(bench: Bench) -> None:
    """SQLITE_FULL before the sync: nothing was written, no call; with room again the same log goes on (I1)."""
    with bench.open() as log, log.attempt("order") as attempt:
        bench.fail("xWrite", 0, apsw.SQLITE_FULL)
        with pytest.raises(LogUnavailable, match="no room") as caught:
            attempt.call(bench.effect, 1)
        assert caught.value.remedy
        assert bench.witness.lines() == []
        bench.mend()
        assert attempt.call(bench.effect, 1) == 1
    assert bench.witness.lines() == ["1"]


def test_no_room_after_the_call_releases_the_ballast(bench: Bench) -> None:
    """The disk fills between Dispatched and Committed: the ballast goes, the append is made again (I5)."""
    ballast = bench.path.with_name("log.db.d") / "ballast"
    full_once: list[bool] = []

    @tool
    def fills_the_disk(number: int) -> int:
        assert ballast.stat().st_size > 0
        done = bench.vfs.calls["xWrite", "-wal"]
        bench.vfs.fail_at["xWrite", "-wal"] = (done + 1, apsw.SQLITE_FULL)
        full_once.append(True)
        return number

    original = bench.vfs.reached

    def reached(what: str, suffix: str) -> None:
        if not ballast.exists():
            bench.mend()  # the room that the ballast held
        original(what, suffix)

    bench.vfs.reached = reached  # type: ignore[method-assign] # stands for the disk
    with bench.open() as log, log.attempt("order") as attempt:
        assert attempt.call(fills_the_disk, 7) == 7
        assert full_once
        assert not ballast.exists()
        assert attempt.step("again").perform(bench.effect, 8).value == 8
    with bench.open() as log, log.attempt("order") as attempt:
        assert ballast.stat().st_size > 0, "the next opening reserves it again"
        assert attempt.perform(fills_the_disk, 7).replayed


def test_no_room_between_pending_and_dispatched_means_no_call(bench: Bench) -> None:
    """The disk is full at Dispatched: no call, the Pending stands; the attempt may go on when there is room (I1)."""
    with bench.open() as log, log.attempt("order") as attempt:
        writes: list[int] = []
        original = bench.vfs.reached

        def reached(what: str, suffix: str) -> None:
            original(what, suffix)
            if (what, suffix) == ("xSync", "-wal"):
                writes.append(1)
                if len(writes) == 1:  # Pending is durable: from here on the disk is full
                    bench.fail("xWrite", 0, apsw.SQLITE_FULL)

        bench.vfs.reached = reached  # type: ignore[method-assign] # stands for the disk
        with pytest.raises(LogUnavailable):
            attempt.call(bench.effect, 1)
        assert bench.witness.lines() == []
        assert [e.kind for e in log.history("order")] == ["AttemptOpened", "Pending"]
        bench.mend()
        assert attempt.call(bench.effect, 1) == 1
        assert [e.kind for e in log.history("order")] == ["AttemptOpened", "Pending", "Dispatched", "Committed"]


def test_a_failed_checkpoint_poisons_what_comes_after_not_what_was(bench: Bench) -> None:
    """A sync that fails inside upkeep: acknowledged records stand, the next append is refused (I5, I8)."""
    with pytest.raises(LogPoisoned), bench.open() as log, log.attempt("order") as attempt:
        done = 0
        for number in range(400):
            bench.vfs.fail_at["xSync", "log"] = (bench.vfs.calls["xSync", "log"] + 1, apsw.SQLITE_IOERR_FSYNC)
            attempt.step(f"s{number}").call(bench.effect, number)
            done += 1
    bench.mend()
    with bench.open() as log:
        committed = [e for e in log.history("order") if e.kind == "Committed"]
        assert len(committed) == len(bench.witness.lines()) == done > 50
        assert log.verify().ok


# --- errors of the library's own calls, found by an error at every system call (tests/reliability) -----------------


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_lock_file_that_cannot_be_removed_does_not_hold_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing: an error of unlink left the library as OSError, and this process could not open the log any more."""
    log = bench.open()
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", refuse)
        log.close()
    left_behind = list(bench.path.with_name("log.db.d").glob("owner-*.lock"))
    assert len(left_behind) == 1
    with bench.open() as log, log.attempt("order") as attempt:
        assert attempt.call(bench.effect, 1) == 1
        assert not left_behind[0].exists(), "the next opening sweeps it"


def test_a_ballast_that_cannot_be_released_is_told_as_no_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk on which unlink fails: OSError came out of the call, with no intent and no word of the effect."""
    with bench.open() as log, log.attempt("order") as attempt:
        bench.fail("xWrite", 0, apsw.SQLITE_FULL)
        with monkeypatch.context() as failing:
            failing.setattr(Path, "unlink", refuse)
            with pytest.raises(LogUnavailable, match="no room") as caught:
                attempt.call(bench.effect, 1)
        assert (caught.value.intent_id, caught.value.effect_ran) == ("order#1/effect", "no")
        assert bench.witness.lines() == []
        bench.mend()


def test_a_lock_that_cannot_be_asked_for_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an owner lives: an error of flock left the library as OSError, out of opening an attempt."""
    owner = Locks(bench.path.parent).owner_file
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LogUnavailable, match="cannot be seen") as caught:
        lives(bench.path.parent, owner.stem.removeprefix("owner-"))
    assert caught.value.remedy


def test_what_is_written_in_part_is_written_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write a part: the ballast was too small then, and the note of the WAL's length named less."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(1, len(data) // 2)], at))
    monkeypatch.setattr(os, "write", lambda fd, data, real=os.write: real(fd, data[: max(1, len(data) // 2)]))
    with bench.open():
        folder = bench.path.with_name("log.db.d")
        assert (folder / "ballast").stat().st_size == opening.BALLAST_BYTES
        [owner] = folder.glob("owner-*.lock")
        assert note_of(owner).wal_bytes == wal_of(bench.path).stat().st_size
