"""KeyboardInterrupt and SystemExit at the lines of opening, entering, leaving, recovering, deciding and closing.

As `test_interrupts` does it for a guarded call: a real signal, whose handler raises, at the nth line of the library.
Wherever it comes, the program goes on: nothing is written twice, nothing is held for ever.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bad_input import SAID, lost, note
from test_interrupts import HANDLERS, opened, strike_at

from intentlog import InDoubt, IntentLogError, Log, LogInUse, NotApplied
from intentlog.store import in_process
from intentlog.store.sqlite import SqliteStore

NEEDED = 40  # lines at the least: less would say that nothing was traced
WAL_BYTES = 1 << 16  # so that an opening costs little
BOTH = pytest.mark.parametrize("number", list(HANDLERS), indirect=True)
CTRL_C = pytest.mark.parametrize("number", ["KeyboardInterrupt"], indirect=True)
TERMINATED = pytest.mark.parametrize("number", ["SystemExit"], indirect=True)


@pytest.fixture
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose handler raises; the handler is in its place again afterwards, whatever was interrupted."""
    sent, handler, _ = HANDLERS[request.param]
    before = signal.signal(sent, handler)
    yield sent
    assert signal.getsignal(sent) is handler
    signal.signal(sent, before)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small WALs; and what a signal leaves claimed or locked in this process is not left to other tests."""
    monkeypatch.setitem(SqliteStore.__init__.__kwdefaults__, "wal_bytes", WAL_BYTES)
    monkeypatch.setattr(in_process, "writers", type(in_process.writers)())
    monkeypatch.setattr(in_process, "writers_lock", threading.RLock())


def struck(nth: int, number: signal.Signals, act: Callable[[], Any]) -> tuple[str, bool] | None:
    """Where the signal came, and whether the program saw it; None if there are not so many lines."""
    where: list[str] = []
    saw = False
    gc.disable()  # what Python calls while it collects, may raise nothing: a signal that came there would be lost
    try:
        with strike_at(nth, number, where):
            act()
    except (KeyboardInterrupt, SystemExit):
        saw = True
    finally:
        gc.enable()
    return (" ".join(where), saw) if where else None


def each_line(
    number: signal.Signals, prepare: Callable[[int], Callable[[], Any]], every: int = 1
) -> Iterator[tuple[int, str]]:
    """Strike at one line after the other; the caller looks at what is left. Every signal reaches the program."""
    nth, missed = 0, []
    while True:
        nth += every
        came = struck(nth, number, prepare(nth))
        if came is None:
            break
        missed += [] if came[1] else [came[0]]
        yield nth, came[0]
    assert nth > NEEDED
    assert missed == []


# --- opening ------


def opens_elsewhere(path: Path) -> bool:
    """Whether another process opens the log, finds it sound, and writes it."""
    gc.collect()  # a log that nobody has any more is still open until it is found
    child = os.fork()
    if child == 0:
        try:
            with Log.open(path) as log, log.attempt("order") as attempt:
                attempt.call(note, "x")
                os._exit(7 if log.verify().ok else 1)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def removed(path: Path) -> None:
    """The log with everything beside it: hundreds of them would fill a folder in memory."""
    for beside in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(beside) if beside.is_dir() else beside.unlink()


@CTRL_C
def test_while_a_log_is_opened(quick_folder: Path, number: signal.Signals) -> None:
    """A new log or none: whatever is left, another process opens it and finds a sound one."""
    for nth, where in each_line(number, lambda nth: lambda: Log.open(quick_folder / f"{nth}.db"), 9):
        path = quick_folder / f"{nth}.db"
        assert nth % 27 or opens_elsewhere(path), where
        removed(path)


class Left(NamedTuple):
    """Where an interrupted opening left the log claimed, and where it left the lock of all openings held."""

    claimed: list[str]
    locked: list[str]


_left: list[Left] = []


@pytest.fixture
def left(quick_folder: Path, number: signal.Signals) -> Left:
    """What the signal leaves behind at each line of an opening; found out one time for both tests."""
    if _left:
        return _left[0]
    found = Left([], [])
    for nth, where in each_line(number, lambda nth: lambda: Log.open(quick_folder / f"{nth}.db"), 4):
        path, lock, free = quick_folder / f"{nth}.db", in_process.writers_lock, list[bool]()
        thread = threading.Thread(target=lambda one=lock, answers=free: answers.append(one.acquire(blocking=False)))
        thread.start()
        thread.join()
        if free != [True]:
            found.locked.append(where)
        in_process.writers_lock = threading.RLock()
        try:
            Log.open(path).close()
        except LogInUse:
            found.claimed.append(where)
        removed(path)
    _left.append(found)
    return found


@TERMINATED
def test_a_log_whose_opening_was_interrupted_can_be_opened(left: Left) -> None:
    """By the same process, which has no Log to close: no LogInUse for ever."""
    assert left.claimed == []


@TERMINATED
def test_an_interrupted_opening_leaves_no_lock_held(left: Left) -> None:
    """This thread may have it again; any other, so every AsyncLog, would wait for it for ever."""
    assert left.locked == []


# --- what an open log does ------


def each_line_of(
    number: signal.Signals, prepare: Callable[[Log], Callable[[], Any]], every: int = 1
) -> Iterator[tuple[Log, str]]:
    """Strike at each line, on a log of its own, in memory: a SQLite store's lines are struck in `test_interrupts`."""
    logs: list[Log] = []

    def prepared(nth: int) -> Callable[[], Any]:
        logs.append(opened("memory", Path()))
        return prepare(logs[-1])

    for _, where in each_line(number, prepared, every):
        yield logs[-1], where
        assert logs[-1].verify().ok, where
        logs[-1].close()


def kinds(log: Log, branch: str = "order") -> list[str]:
    return [entry.kind for entry in log.history(branch)]


@CTRL_C
def test_while_an_attempt_is_entered(number: signal.Signals) -> None:
    """Opened or not, nobody holds the branch: the program's next attempt is at work at once."""
    for log, where in each_line_of(number, lambda log: lambda: log.attempt("order").__enter__(), 2):
        assert kinds(log) in ([], ["AttemptOpened"]), where
        with log.attempt("order") as attempt:
            assert attempt.call(note, "x") == "x"


@TERMINATED
def test_while_an_attempt_is_left(number: signal.Signals) -> None:
    """Closed or not, and never twice: what was done is replayed by the next."""

    def leave(log: Log) -> Callable[[], Any]:
        attempt = log.attempt("order")
        attempt.__enter__()
        attempt.call(note, "x")
        return lambda: attempt.__exit__(None, None, None)

    for log, where in each_line_of(number, leave, 2):
        assert kinds(log).count("AttemptClosed") <= 1, where
        with log.attempt("order") as attempt:
            assert attempt.perform(note, "x").replayed


def abandoned(log: Log) -> None:
    """A doubt whose owner has gone without closing its attempt."""
    attempt = log.attempt("order")
    attempt.__enter__()
    with pytest.raises(InDoubt):
        attempt.step("s").call(lost, "x")
    state: Any = attempt._opened
    state.left = True


@CTRL_C
def test_while_a_log_is_recovered(number: signal.Signals) -> None:
    """Recovered again, it comes to the same, and no record is there twice."""

    def recover(log: Log) -> Callable[[], Any]:
        abandoned(log)
        return log.recover

    for log, where in each_line_of(number, recover, 5):
        (found,) = log.recover()
        assert found.intent_id == "order#1/s", where
        assert kinds(log)[3:] == ["CallEnded", "AttemptFenced", "Classified"], where


@TERMINATED
def test_while_a_doubt_is_decided(number: signal.Signals) -> None:
    """The decision stands or does not; decided again where it does not, it stands one time."""

    def resolve(log: Log) -> Callable[[], Any]:
        abandoned(log)
        return lambda: log.resolve("order#1/s", NotApplied(), **SAID)

    for log, where in each_line_of(number, resolve, 5):
        decided = "Settled" in kinds(log)
        assert decided == (not log.open_intents()), where
        if not decided:
            log.resolve("order#1/s", NotApplied(), **SAID)
        assert kinds(log)[3:] == ["CallEnded", "AttemptFenced", "Settled"], where


@CTRL_C
def test_while_an_event_is_added(number: signal.Signals) -> None:
    """It waits, or it does not; the next record takes it along, one time."""
    for log, where in each_line_of(number, lambda log: lambda: log.append("order", "event")):
        with log.attempt("order"):
            pass
        assert kinds(log)[-2:] == ["AttemptOpened", "AttemptClosed"], where
        assert kinds(log)[:-2] in ([], ["ApplicationEvent"]), where


def each_line_of_closing(
    folder: Path, number: signal.Signals, event: str, every: int
) -> Iterator[tuple[Path, Log, str]]:
    logs: dict[int, Log] = {}

    def close(nth: int) -> Callable[[], Any]:
        log = logs[nth] = Log.open(folder / f"{nth}.db")
        if event:
            log.append("order", event)
        return log.close

    for nth, where in each_line(number, close, every):
        yield folder / f"{nth}.db", logs.pop(nth), where
        removed(folder / f"{nth}.db")


@BOTH
def test_while_a_log_is_closed(quick_folder: Path, number: signal.Signals) -> None:
    """Closed again, it is closed, and the same process opens it."""
    for path, log, where in each_line_of_closing(quick_folder, number, "", 3):
        log.close()
        try:
            Log.open(path).close()
        except IntentLogError as error:
            pytest.fail(f"{where}: {error}")


@CTRL_C
def test_while_a_log_with_an_event_is_closed(quick_folder: Path, number: signal.Signals) -> None:
    """Closed again, what waited is written; the second close, too, raises nothing."""
    for path, log, where in each_line_of_closing(quick_folder, number, "event", 4):
        try:
            log.close()
            with Log.open(path) as again:
                assert kinds(again) == ["ApplicationEvent"], where
        except IntentLogError as error:
            pytest.fail(f"{where}: {error}")
