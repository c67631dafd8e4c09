"""What is done is answered from the record, without a turn of its step, a driver or a commit: as driven (I3)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from intentlog import READ, UNSAFE, ArgumentDrift, AsyncLog, Log, OutcomeUnavailable, Rejected, tool
from intentlog.run.aio import AioDriver
from intentlog.run.sync import SyncDriver
from intentlog.store import rows

CALLS: list[str] = []
ENTERED, GO_ON = threading.Event(), threading.Event()


class No(Exception):
    """The receiver's definite no."""


@tool(effect=UNSAFE, name="replays-pay", rejects=No)
def pay(what: str) -> str:
    CALLS.append(what)
    if what == "refused":
        raise No
    if what == "slow":
        ENTERED.set()
        GO_ON.wait(10)
    return f"paid {what}"


@tool(effect=UNSAFE, name="replays-strange")
def strange() -> object:
    CALLS.append("strange")
    return object()


@tool(effect=READ, name="replays-look")
def look(what: str) -> str:
    CALLS.append(what)
    return f"saw {what}"


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()
    ENTERED.clear()
    GO_ON.clear()


@pytest.fixture
def path(quick_folder: Path) -> Path:
    """A log whose branch has come to every kind of end."""
    path = quick_folder / "log.db"
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.step("first").call(pay, "first") == "paid first"
        assert [attempt.call(pay, what) for what in ("a", "b")] == ["paid a", "paid b"]
        assert attempt.call(look, "x") == "saw x"
        with pytest.raises(Rejected):
            attempt.step("no").call(pay, "refused")
        attempt.step("strange").call(strange)
    CALLS.clear()
    return path


def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which scripts a driver runs from now on."""
    said: list[str] = []
    run = SyncDriver.run

    def counted(self: SyncDriver, script, hands=None):  # type: ignore[no-untyped-def] # stands before any script's type
        said.append(script.__qualname__)
        return run(self, script, hands) if hands is not None else run(self, script)

    monkeypatch.setattr(SyncDriver, "run", counted)
    return said


def test_what_is_done_needs_no_driver(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: named and unnamed steps, and reads, come back as they were, call nothing, commit nothing, drive nothing."""
    with Log.open(path) as log, log.attempt("order") as attempt:
        commits, said = log.counters.commits, driven(monkeypatch)
        first = attempt.step("first").perform(pay, "first")
        assert (first.value, first.replayed, first.intent_id) == ("paid first", True, "order#2/first")
        assert [attempt.call(pay, what) for what in ("a", "b")] == ["paid a", "paid b"]
        assert attempt.call(look, "x") == "saw x"
        assert CALLS == []
        assert said == []
        assert log.counters.commits == commits


def test_what_is_done_needs_no_driver_control(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: what is not done is driven, and seen to be."""
    with Log.open(path) as log, log.attempt("order") as attempt:
        said = driven(monkeypatch)
        assert attempt.step("new").call(pay, "new") == "paid new"
        assert said == ["Prepared._watched"]
        assert CALLS == ["new"]


@pytest.mark.parametrize("is_replaying", [True, False], ids=["read through", "driven"])
def test_what_is_told_is_the_same(path: Path, is_replaying: bool) -> None:
    """I6: what takes an error is driven, and raised with what belongs to it; an unnamed call keeps its occurrence."""
    with Log.open(path) as log, log.attempt("order") as attempt:

        def told(act: object) -> str:
            attempt._state.is_replaying = is_replaying
            assert callable(act)
            try:
                return repr(act())
            except (ArgumentDrift, OutcomeUnavailable, Rejected) as error:
                return f"{type(error).__name__} {error.intent_id} {error.effect_ran} {error.message}"

        acts = (
            lambda: attempt.step("first").call(pay, "other"),
            lambda: attempt.step("no").call(pay, "refused"),
            lambda: attempt.step("strange").call(strange),
            lambda: attempt.call(pay, "a"),
            lambda: attempt.call(pay, "b"),
            lambda: attempt.call(look, "x"),
        )
        assert [told(act) for act in acts] == [
            "ArgumentDrift order#2/first yes the step was recorded with other arguments: what differ",
            "Rejected order#2/no no rejected: No",
            "OutcomeUnavailable order#2/strange yes it is done, but its value was not recorded",
            "'paid a'",
            "'paid b'",
            "'saw x'",
        ]
    assert CALLS == []


def test_a_call_that_runs_is_waited_for(path: Path) -> None:
    """I3: the second call of a step that is being called is no replay yet: it waits for what the first records."""
    with Log.open(path) as log, log.attempt("order") as attempt:
        ended: list[str] = []
        calls = [
            threading.Thread(target=lambda: ended.append(attempt.step("slow").call(pay, "slow"))) for _ in range(2)
        ]
        calls[0].start()
        assert ENTERED.wait(10)
        attempt._state.is_replaying = True
        calls[1].start()
        assert attempt.step("first").call(pay, "first") == "paid first"
        assert ended == []
        GO_ON.set()
        for call in calls:
            call.join(10)
        assert ended == ["paid slow"] * 2
        assert CALLS == ["slow"]


def test_a_read_that_waits_to_be_written_is_found(path: Path) -> None:
    """I5: the record of a READ may still wait in memory: its step is then no step to be read through."""
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.step("y").call(look, "y") == "saw y"
        attempt._state.is_replaying = True
        assert attempt.step("y").call(look, "y") == "saw y"
    assert CALLS == ["y"]


def test_on_a_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: the same on an event loop; and who only replays lets others have their turn."""

    async def main() -> None:
        async with AsyncLog.open(path) as log, log.attempt("order") as attempt:
            said: list[object] = []
            run = AioDriver.run

            async def counted(self, script, *rest):  # type: ignore[no-untyped-def] # stands before any script's type
                said.append(script)
                return await run(self, script, *rest)

            monkeypatch.setattr(AioDriver, "run", counted)
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beside = asyncio.ensure_future(other())
            for _ in range(200):
                assert await attempt.step("first").call(pay, "first") == "paid first"
            beside.cancel()
            assert said == []
            assert 2 < turns < 100, "others have their turn, and not after each step"

    asyncio.run(main())
    assert CALLS == []


def test_more_steps_than_are_remembered(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: a writer that does not know a branch's steps by heart looks each of them up, and calls none again."""
    monkeypatch.setattr(rows, "STEPS_MAX", 3)
    with Log.open(quick_folder / "log.db") as log:
        for _ in range(2):
            with log.attempt("order") as attempt:
                assert [attempt.step(f"s{n}").call(pay, f"{n}") for n in range(8)] == [f"paid {n}" for n in range(8)]
        assert log.verify().ok
    assert [str(number) for number in range(8)] == CALLS
