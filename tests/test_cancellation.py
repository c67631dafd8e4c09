"""Cancelling an effect, at each of its records and during its call (DESIGN 6). The records decide, not the path.

The asyncio cases hold the store inside the commit in question until the caller has been cancelled; the sync ones raise
KeyboardInterrupt where a signal handler would.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock

from intentlog import AsyncLog, InDoubt, Log, Settings, ToolMisdefined, tool
from intentlog.core.actions import Append, Appended, Call, Refused
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.run.sync import SyncDriver
from intentlog.store.memory import MemoryDisk, MemoryStore
from intentlog.store.sqlite import SqliteStore

KINDS = ["Pending", "Dispatched", "Committed"]


class GatedStore(MemoryStore):
    """Stops inside the append of one kind of record until it is let on."""

    def __init__(self, disk: MemoryDisk, kind: str) -> None:
        super().__init__(disk, FakeClock())
        self.kind = kind
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        if type(entries[-1].record).__name__ == self.kind:
            self.inside.set()
            assert self.go_on.wait(10)
        return super().append(entries)


def engine(store: Any) -> Engine:
    return Engine(store, Settings(), FakeClock(), LoggingObserver())


def kinds(disk: MemoryDisk) -> list[str]:
    found = []
    for stored in disk.durable.events.values():
        record = stored.record
        detail = getattr(record, "outcome", None) or getattr(record, "settlement", None) or getattr(record, "end", None)
        found.append(type(record).__name__ + (f" {detail}" if detail else ""))
    return found


EXPECTED = {
    "Pending": ["AttemptOpened", "Pending", "Settled NEVER_SENT", "AttemptClosed CANCELLED"],
    "Dispatched": ["AttemptOpened", "Pending", "Dispatched", "Committed NOT_SENT", "AttemptClosed CANCELLED"],
    "Committed": ["AttemptOpened", "Pending", "Dispatched", "Committed RETURNED", "AttemptClosed CANCELLED"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_inside_a_commit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fate is learnt first: before the call nothing is sent and the record says so; after it the outcome lands."""
    monkeypatch.setattr(
        "intentlog.run.batches.INLINE_RECORDS_MAX", 0
    )  # on the writer's thread: else nothing comes between
    disk, calls = MemoryDisk(), list[int]()
    store = GatedStore(disk, kind)

    @tool
    async def effect(number: int) -> int:
        calls.append(number)
        return number

    async def main() -> None:
        async with AsyncLog(lambda: engine(store)) as log:

            async def work() -> None:
                async with log.attempt("order") as attempt:
                    await attempt.call(effect, 1)

            task = asyncio.create_task(work())
            await asyncio.to_thread(store.inside.wait, 10)
            for _ in range(3):  # impatient callers change nothing
                task.cancel()
                await asyncio.sleep(0)
            store.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert kinds(disk) == EXPECTED[kind]
    assert calls == ([1] if kind == "Committed" else [])


def test_cancelled_during_an_async_call() -> None:
    """The call ended, nobody knows how: CallEnded, the attempt is INDETERMINATE, and it is in doubt (field case 11)."""
    disk = MemoryDisk()

    async def main() -> None:
        begun = asyncio.Event()

        @tool
        async def effect() -> None:
            begun.set()
            await asyncio.sleep(60)

        async with AsyncLog(lambda: engine(MemoryStore(disk, FakeClock()))) as log:

            async def work() -> None:
                async with log.attempt("order") as attempt:
                    await attempt.call(effect)

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (intent,) = await log.open_intents()
            assert intent.in_doubt

    asyncio.run(main())
    assert kinds(disk) == ["AttemptOpened", "Pending", "Dispatched", "CallEnded", "AttemptClosed INDETERMINATE"]


async def cancelled_in_its_thread(log: AsyncLog, effect: Any, begun: threading.Event) -> None:
    """Call a plain tool in an attempt, and cancel the caller while the tool's thread runs."""

    async def work() -> None:
        async with log.attempt("order") as attempt:
            await attempt.call(effect)

    task = asyncio.create_task(work())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelled_while_a_plain_tool_runs_in_its_thread() -> None:
    """The caller goes at once; the branch stays busy; the thread's late outcome is recorded (field case 11)."""
    disk, begun, go_on = MemoryDisk(), threading.Event(), threading.Event()

    @tool
    def effect() -> str:
        begun.set()
        assert go_on.wait(10)
        return "late"

    async def main() -> None:
        async with AsyncLog(lambda: engine(MemoryStore(disk, FakeClock()))) as log:
            await cancelled_in_its_thread(log, effect, begun)
            (intent,) = await log.open_intents()
            assert not intent.in_doubt, "it is still being called"
            assert await log.recover() == []
            with pytest.raises(Exception, match="held by"):
                await log.attempt("order").__aenter__()
            go_on.set()
            async with log.attempt("order", wait=timedelta(seconds=10)) as attempt:
                assert (await attempt.perform(effect)).replayed

    asyncio.run(main())
    assert kinds(disk)[:5] == [
        "AttemptOpened",
        "Pending",
        "Dispatched",
        "AttemptClosed INDETERMINATE",
        "Committed RETURNED",
    ]


def test_a_log_waits_for_the_threads_of_cancelled_callers() -> None:
    """Closing right after a cancellation: the outcome's path stays until the thread has ended."""
    disk, begun, go_on = MemoryDisk(), threading.Event(), threading.Event()

    @tool
    def effect() -> str:
        begun.set()
        assert go_on.wait(10)
        return "late"

    async def main() -> None:
        async with AsyncLog(lambda: engine(MemoryStore(disk, FakeClock()))) as log:
            await cancelled_in_its_thread(log, effect, begun)
            asyncio.get_running_loop().call_later(0.05, go_on.set)

    asyncio.run(main())
    assert kinds(disk)[-1] == "Committed RETURNED"


def test_a_log_waits_for_the_calls_of_other_tasks() -> None:
    """Leaving `async with` while another task calls: its outcome is recorded, not lost to a closed log."""
    disk = MemoryDisk()

    async def main() -> None:
        begun = asyncio.Event()

        @tool
        async def effect() -> str:
            begun.set()
            await asyncio.sleep(0.05)
            return "in time"

        async def work(log: AsyncLog) -> str:
            async with log.attempt("order") as attempt:
                return await attempt.call(effect)

        async with AsyncLog(lambda: engine(MemoryStore(disk, FakeClock()))) as log:
            task = asyncio.create_task(work(log))
            await begun.wait()
        assert await task == "in time"

    asyncio.run(main())
    assert "Committed RETURNED" in kinds(disk)


def test_a_tool_that_closes_its_own_log_is_told_so() -> None:
    """It would wait for itself: refused, on both faces, and the log goes on."""
    with Log(engine(MemoryStore(MemoryDisk(), FakeClock()))) as log:

        @tool
        def closes() -> None:
            log.close()

        with log.attempt("order") as attempt, pytest.raises(InDoubt) as caught:
            attempt.call(closes)
        assert isinstance(caught.value.__cause__, ToolMisdefined)
        assert log.verify().ok


def test_time_limit_of_an_async_tool_is_enforced() -> None:
    """At the limit the call is cancelled, which proves nothing: InDoubt with the time-out as its cause."""
    disk = MemoryDisk()

    @tool(time_limit=timedelta(milliseconds=20))
    async def effect() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with AsyncLog(lambda: engine(MemoryStore(disk, FakeClock()))) as log, log.attempt("order") as attempt:
            with pytest.raises(InDoubt) as caught:
                await attempt.call(effect)
            assert isinstance(caught.value.__cause__, TimeoutError)

    asyncio.run(main())


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_a_signal_inside_a_plain_tool(signal: type[BaseException]) -> None:
    """KeyboardInterrupt in the call goes on its way; the record says that the call ended and nothing is known."""
    disk = MemoryDisk()

    @tool
    def effect() -> None:
        raise signal

    with Log(engine(MemoryStore(disk, FakeClock()))) as log, pytest.raises(signal), log.attempt("order") as attempt:
        attempt.call(effect)
    assert kinds(disk) == ["AttemptOpened", "Pending", "Dispatched", "CallEnded", "AttemptClosed INDETERMINATE"]


class Interrupting:
    """A connection that raises KeyboardInterrupt just before or just after a COMMIT, as a signal handler does."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.when: tuple[int, str] | None = None
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statements: str, bindings: Any = None) -> Any:
        commit = statements == "COMMIT"
        self.commits += commit
        if commit and self.when == (self.commits, "before"):
            raise KeyboardInterrupt
        result = self._connection.execute(statements, bindings)
        if commit and self.when == (self.commits, "after"):
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_inside_a_commit(tmp_path: Path, kind: str, when: str) -> None:
    """The store learns whether the record landed; the script records what follows; an outcome is never lost by it."""
    calls: list[int] = []

    @tool
    def effect(number: int) -> int:
        calls.append(number)
        return number

    store = SqliteStore(tmp_path / "log.db", FakeClock(), LoggingObserver())
    interrupting = Interrupting(store._connection)
    store._connection = interrupting
    with Log(engine(store)) as log:
        with pytest.raises(KeyboardInterrupt), log.attempt("order") as attempt:
            interrupting.when = (interrupting.commits + 1 + KINDS.index(kind), when)
            attempt.call(effect, 1)
        found = [e.kind for e in log.history("order")]
        assert calls == ([1] if kind == "Committed" else [])
        landed = kind == "Committed" or when == "after"
        assert (kind in found) == landed
        assert not any(i.in_doubt for i in log.open_intents())
        assert log.verify().ok
        with log.attempt("order") as attempt:
            assert attempt.call(effect, 1) == 1
    assert calls == [1]


def test_a_signal_between_two_actions_leaves_nothing_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the driver itself, between the call and its record: the log closes, it does not hang."""
    disk = MemoryDisk()

    @tool
    def effect(number: int) -> int:
        return number

    original = SyncDriver._do

    def interrupted(self: Any, action: Any, *others: Any) -> Any:
        reply = original(self, action, *others)
        if isinstance(action, Call):
            monkeypatch.setattr(SyncDriver, "_do", raises_outside)
        return reply

    class Stop(BaseException):
        """Raised where the driver does not look: thrown into its thread from another one, say."""

    def raises_outside(self: Any, action: Any, *others: Any) -> Any:
        raise Stop

    monkeypatch.setattr(SyncDriver, "_do", interrupted)
    with pytest.raises(Stop), Log(engine(MemoryStore(disk, FakeClock()))) as log, log.attempt("order") as attempt:
        try:
            attempt.call(effect, 1)
        finally:
            monkeypatch.undo()
    assert kinds(disk) == ["AttemptOpened", "Pending", "Dispatched", "AttemptClosed INDETERMINATE"]
