"""KeyboardInterrupt and SystemExit at each line of the library: real signals, whose handlers raise (I1-I4, I8).

A trace function sends the process a signal when the nth line of the library is reached within a guarded call; n goes
through all of them. After each, the log is held against a witness outside it, and the program goes on.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from fake_clock import FakeClock

import intentlog
from intentlog import READ, UNSAFE, InDoubt, Log, NotApplied, NotSent, Outcome, Rejected, Settings, tool
from intentlog.core import records as r
from intentlog.core.effects import Effect
from intentlog.core.records import OutcomeKind
from intentlog.log.declare import AnyTool
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.run.signals import Signals
from intentlog.store.memory import MemoryDisk, MemoryStore

SOURCE = str(Path(intentlog.__file__).parent)
CLASSES = {"READ": READ, "UNSAFE": UNSAFE}
# Where a signal makes the log more careful than it need be: the call was permitted and the tool not entered, or entered
# and its answer not yet in the box. Only here may a doubt stand where nothing was called.
ENTERING = {"call_into"}


def ctrl_c(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(3)


HANDLERS: dict[str, tuple[signal.Signals, Callable[..., None], type[BaseException]]] = {
    "KeyboardInterrupt": (signal.SIGINT, ctrl_c, KeyboardInterrupt),
    "SystemExit": (signal.SIGTERM, terminated, SystemExit),
}


class Struck(NamedTuple):
    """Where the signal came, and what the program saw."""

    function: str
    line: str
    saw: type[BaseException] | None
    outcome: Outcome[str] | None


@contextmanager
def strike_at(nth: int, number: signal.Signals, where: list[str]) -> Iterator[None]:
    """Send the signal when the nth line of the library is reached; say where that was."""
    left = nth

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                where.append(frame.f_code.co_name)
                where.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                signal.raise_signal(number)
                return None
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def effect_of(kind: Effect, calls: list[str], ending: str) -> Any:
    @tool(effect=kind, name="struck")
    def struck(amount: int) -> str:
        if ending == "rejected":
            raise Rejected("no")
        if ending == "not_sent":
            raise NotSent("refused")
        calls.append("call")
        if ending == "ambiguous":
            raise TimeoutError
        return "receipt"

    return struck


def struck_at(nth: int, log: Log, branch: str, handle: AnyTool, number: signal.Signals) -> Struck | None:
    """Make the call in an attempt of its own, with a signal at the nth line; None if it has not so many."""
    where: list[str] = []
    saw: type[BaseException] | None = None
    outcome: Outcome[str] | None = None
    chosen: Any = handle
    try:
        with log.attempt(branch) as attempt, strike_at(nth, number, where):
            outcome = attempt.perform(chosen, 1999)
    except (KeyboardInterrupt, SystemExit, InDoubt, Rejected, NotSent, TimeoutError) as error:
        saw = type(error)
    return Struck(where[0], where[1], saw, outcome) if where else None


def opened(store: str, folder: Path) -> Log:
    """A log in a file, or in memory, where the store's own lines are few and fast."""
    if store == "sqlite":
        return Log.open(folder / "log.db")
    return Log(Engine(MemoryStore(MemoryDisk(), FakeClock()), Settings(), FakeClock(), LoggingObserver()))


@pytest.fixture
def raising(request: pytest.FixtureRequest) -> Iterator[tuple[signal.Signals, type[BaseException]]]:
    number, handler, error = HANDLERS[request.param]
    before = signal.signal(number, handler)
    yield number, error
    assert signal.getsignal(number) is handler, "the program's handlers are in their place again"
    signal.signal(number, before)


SCENARIOS = [
    ("KeyboardInterrupt", "UNSAFE", "returned", "sqlite"),
    ("KeyboardInterrupt", "UNSAFE", "ambiguous", "memory"),
    ("KeyboardInterrupt", "UNSAFE", "not_sent", "memory"),
    ("KeyboardInterrupt", "READ", "rejected", "memory"),
    ("SystemExit", "READ", "returned", "memory"),
]


@pytest.mark.parametrize(
    ("raising", "kind", "ending", "store"), SCENARIOS, ids=["-".join(one) for one in SCENARIOS], indirect=["raising"]
)
def test_a_signal_at_each_line_of_a_guarded_call(
    kind: str, ending: str, store: str, raising: tuple[signal.Signals, type[BaseException]], quick_folder: Path
) -> None:
    """Whatever line it meets: the program sees it, the log says what the witness says, and the next run goes on."""
    number, error = raising
    calls: list[str] = []
    handle = effect_of(CLASSES[kind], calls, ending)
    nth, missed = 0, []
    with opened(store, quick_folder) as shared:
        while True:
            nth += 1
            log = shared if store == "sqlite" else opened(store, quick_folder)
            before, branch = len(calls), f"branch-{nth}"
            struck = struck_at(nth, log, branch, handle, number)
            if struck is None:
                break
            made = len(calls) - before
            # What is met first may be the call's own end: a signal that came after it was told is raised by the script.
            missed += [] if struck.saw is error else [struck]
            check_said(log, branch, struck, made, ending if kind != "READ" else "")
            check_goes_on(log, branch, struck, kind, ending, calls)
            assert store == "sqlite" or log.verify().ok
        assert shared.verify().ok
    assert nth > 100, "the lines of a guarded call are many"
    assert missed == [], "every signal reached the program"


def check_said(log: Log, branch: str, struck: Struck, made: int, ending: str) -> None:
    """What the log says of a call that was interrupted, held against what was called (I1, I2)."""
    records = [entry.record for entry in log.history(branch)]
    kinds = [type(record).__name__ for record in records]
    outcomes = [record.outcome for record in records if isinstance(record, r.Committed)]
    if not ending:
        return
    if made:
        assert "Dispatched" in kinds, struck
        known = {"returned": [OutcomeKind.RETURNED], "ambiguous": []}[ending]
        assert outcomes == known, struck
        assert ending == "returned" or "CallEnded" in kinds, struck
    elif ending in ("returned", "ambiguous") and "Dispatched" in kinds:
        assert outcomes == [OutcomeKind.NOT_SENT] or struck.function in ENTERING, struck
    doubts = [one.intent_id for one in log.open_intents() if one.intent_id.branch == branch]
    assert not doubts or "Dispatched" in kinds, struck


def check_goes_on(log: Log, branch: str, struck: Struck, kind: str, ending: str, calls: list[str]) -> None:
    """The program runs again, and the effect happens once, unless its class makes a repeat harmless (I3, I4)."""
    if ending != "returned":
        return
    again = effect_of(CLASSES[kind], calls, "returned")
    before = len(calls)
    with log.attempt(branch) as attempt:
        try:
            assert attempt.call(again, 1999) == "receipt"
        except InDoubt as doubt:
            assert struck.function in ENTERING, struck
            log.resolve(str(doubt.intent_id), NotApplied(), by="test", why="the witness")
            assert attempt.call(again, 1999) == "receipt"
    repeated = len(calls) - before
    assert repeated <= 1, struck


@pytest.mark.parametrize("first", ["SIGUSR1", "SIGUSR2"])
def test_each_signal_that_waited_has_its_turn(first: str) -> None:
    """Two came while they were held, and the handler of one raises: the other's is run all the same."""
    ran: list[int] = []

    def noted(number: int, frame: FrameType | None) -> None:
        ran.append(number)
        raise KeyboardInterrupt

    numbers = [signal.SIGUSR1, signal.SIGUSR2] if first == "SIGUSR1" else [signal.SIGUSR2, signal.SIGUSR1]
    before = [signal.signal(number, noted) for number in numbers]
    held = Signals()
    try:
        held.hold()
        for number in numbers:
            signal.raise_signal(number)
        assert ran == []
        with pytest.raises(KeyboardInterrupt):
            held.release()
        assert sorted(ran) == sorted(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
