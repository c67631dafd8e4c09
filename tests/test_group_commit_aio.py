"""Group commit on an event loop: a queue that the loop owns, one batch in flight, one wake-up for it (DESIGN 9).

Each test runs on asyncio's own loop and on uvloop. The store is held inside a commit where a test has to know what
shares it; nothing is timed.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from group_bench import PATIENCE_S, AnyGated, GatedMemory, GatedSqlite, async_log_of, names_of, opened, until

from intentlog import AsyncLog, Durability, Fenced, LogPoisoned, OutcomeNotRecorded, tool
from intentlog.core.actions import Append
from intentlog.run import batches
from intentlog.run.aio import READS_IN_A_ROW
from intentlog.store.memory import MemoryDisk

KINDS = ["Pending", "Dispatched", "Committed"]
N = 64
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a new loop of either kind."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def on_a_loop(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, PATIENCE_S * 4))

    return on_a_loop


class Work:
    """An async tool, and attempts in which to call it."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        calls = self.calls

        @tool(step="effect")
        async def effect(number: int) -> int:
            calls.append(number)
            return number

        self.effect = effect

    async def open(self, log: AsyncLog, count: int) -> list[Any]:
        attempts = [log.attempt(f"b{n}") for n in range(count)]
        await asyncio.gather(*(attempt.__aenter__() for attempt in attempts))
        return attempts

    def start(self, attempts: Sequence[Any], first: int = 0) -> list[asyncio.Task[int]]:
        return [asyncio.ensure_future(a.call(self.effect, n)) for n, a in enumerate(attempts, first)]


async def inside(store: AnyGated) -> None:
    """Wait until the store is inside the commit that it was to stop in."""
    assert await asyncio.to_thread(store.inside.wait, PATIENCE_S)


async def ends_of(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def check_one_batch_in_flight(run: Run, store: AnyGated) -> None:
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, N)
            store.batches.clear()
            store.park("Pending")
            tasks = work.start(attempts[:4])
            await inside(store)
            tasks += work.start(attempts[4:], 4)
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(store.batches) == 1, "who comes meanwhile waits"
            store.go_on.set()
            assert await ends_of(tasks) == list(range(N))
            assert log.counters.commits == log.counters.syncs

    run(main())
    assert [len(batch) for batch in store.batches[:2]] == [4, N], "all who waited, in one commit"
    for batch in store.batches:
        assert len({entry.branch for entry in batch}) == len(batch), "never two records of an effect (I7)"
    assert not store.overlapped
    assert sorted(work.calls) == list(range(N))


def test_one_batch_in_flight(run: Run, store: AnyGated) -> None:
    """60 who come while four are being committed share the next commit with the four's next records."""
    check_one_batch_in_flight(run, store)


def test_one_batch_in_flight_control(run: Run, store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: where each batch is of one record, the check fails."""
    monkeypatch.setattr("intentlog.run.group.BATCH_RECORDS_MAX", 1)
    monkeypatch.setattr(batches, "INLINE_RECORDS_MAX", 0)  # on the writer's thread: the store stops there, not the loop
    with pytest.raises(AssertionError):
        check_one_batch_in_flight(run, store)


AFTER_CANCEL = {
    "Pending": ["AttemptOpened", "Pending", "Settled"],
    "Dispatched": ["AttemptOpened", "Pending", "Dispatched", "Committed"],
    "Committed": ["AttemptOpened", "Pending", "Dispatched", "Committed"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_64_is_cancelled_inside_a_batch(run: Run, store: AnyGated, kind: str) -> None:
    """DESIGN 9: cancelling a waiter does not withdraw its record, and the others do not notice (I1, I5)."""
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, N)
            store.park(kind)
            tasks = work.start(attempts)
            await inside(store)
            for _ in range(3):
                tasks[20].cancel()
                await asyncio.sleep(0)
            assert not tasks[20].done(), "the record's fate comes first"
            store.go_on.set()
            ends = await ends_of(tasks)
            assert isinstance(ends.pop(20), asyncio.CancelledError)
            assert ends == [n for n in range(N) if n != 20]
            assert names_of(store, "b20") == AFTER_CANCEL[kind]
            assert (await log.verify()).ok

    run(main())
    assert (20 in work.calls) == (kind == "Committed")
    assert len(work.calls) == N - (kind != "Committed")


def test_all_of_a_batch_are_cancelled(run: Run, store: AnyGated) -> None:
    """A whole batch of waiters gives up: every record lands, every call is withdrawn, and the queue goes on."""
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 8)
            store.park("Dispatched")
            tasks = work.start(attempts)
            await inside(store)
            for task in tasks:
                task.cancel()
            store.go_on.set()
            assert {type(end) for end in await ends_of(tasks)} == {asyncio.CancelledError}
            assert work.calls == []
            assert {names_of(store, f"b{n}")[-1] for n in range(8)} == {"Committed"}, "NOT_SENT, each of them"
            assert await ends_of(work.start(attempts)) == list(range(8)), "and may be called again"

    run(main())


def test_the_queue_is_bounded(run: Run, store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure: who comes to a full queue waits for room; all get their turn, and nothing is lost."""
    monkeypatch.setattr(batches, "QUEUE_MAX", 4)
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, N)
            store.park("Pending")
            tasks = work.start(attempts)
            await inside(store)
            queue = log._driver._batches._queue
            assert len(queue) == 4
            tasks[-1].cancel()  # it waits for room
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert tasks[-1].done(), "nothing of it is in the queue: it need not wait"
            store.go_on.set()
            ends = await ends_of(tasks)
            assert isinstance(ends.pop(), asyncio.CancelledError)
            assert ends == list(range(N - 1))
            assert names_of(store, f"b{N - 1}") == ["AttemptOpened"]
            assert max(len(batch) for batch in store.batches) <= 4

    run(main())
    assert sorted(work.calls) == list(range(N - 1))


def test_an_outcome_waits_for_room_however_often_it_is_cancelled(
    run: Run, store: AnyGated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is cancelled while its outcome waits for room in a full queue: the outcome is recorded (I5)."""
    monkeypatch.setattr(batches, "INLINE_RECORDS_MAX", 0)  # on the writer's thread: the store stops there, not the loop
    work = Work()
    called = asyncio.Event()

    @tool
    async def slow(number: int) -> int:
        await called.wait()
        return number

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 8)
            late = asyncio.ensure_future(attempts[0].call(slow, 0))
            await asyncio.to_thread(until, lambda: "Dispatched" in [kind for kinds in store.kinds() for kind in kinds])
            await asyncio.sleep(0)
            monkeypatch.setattr(batches, "QUEUE_MAX", 2)
            store.park("Pending")
            tasks = work.start(attempts[1:], 1)
            await inside(store)
            called.set()
            for _ in range(4):
                await asyncio.sleep(0)
            late.cancel()
            await asyncio.sleep(0)
            store.go_on.set()
            assert await ends_of(tasks) == list(range(1, 8))
            assert isinstance((await ends_of([late]))[0], asyncio.CancelledError)
            assert names_of(store, "b0")[-1] == "Committed"

    run(main())


# --- where a batch is committed --------------------------------------------------------------------------------------

# A network is never waited for on the loop (`test_postgres_program`).
ON_THIS_MACHINE = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)


@ON_THIS_MACHINE
def test_a_lone_effect_is_committed_on_the_loop(run: Run, store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one or two, while the disk is quick: on the loop's thread. With a slow disk: on the writer's."""
    monkeypatch.setattr(batches, "INLINE_COMMIT_S", 1e9)  # however loaded this machine is
    work = Work()

    async def main() -> None:
        here = threading.get_ident()
        async with async_log_of(store) as log:
            attempts = await work.open(log, 4)
            await ends_of(work.start(attempts[:1]))
            assert set(store.threads[-3:]) == {here}
            await ends_of(work.start(attempts[1:3], 1))
            assert set(store.threads[-3:]) == {here}, "two share it"
            assert [len(batch) for batch in store.batches[-3:]] == [2, 2, 2]
            log._driver._batches._commit_s = 2e9  # the disk is slow
            await attempts[3].call(work.effect, 3)
            assert here not in store.threads[-3:]

    run(main())


@ON_THIS_MACHINE
def test_who_found_the_disk_slow_tries_again(run: Run, store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """One burst of slow commits does not keep lone effects off the loop for ever."""
    monkeypatch.setattr(batches.time, "perf_counter", lambda: 0.0)  # from now on each commit takes no time
    work = Work()

    async def main() -> None:
        here = threading.get_ident()
        async with async_log_of(store) as log:
            attempts = await work.open(log, 8)
            log._driver._batches._commit_s = batches.TAKEN_FOR_SLOW_S
            store.threads.clear()
            for number, attempt in enumerate(attempts):
                await attempt.call(work.effect, number)
            assert store.threads[0] != here
            assert store.threads[-1] == here

    run(main())


def test_many_go_to_the_writer(run: Run, store: AnyGated) -> None:
    """A batch of more than two never blocks the loop."""
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 8)
            store.batches.clear()
            store.threads.clear()
            await ends_of(work.start(attempts))
            assert [len(batch) for batch in store.batches] == [8, 8, 8], "in lock step"
            assert len(set(store.threads)) == 1
            assert threading.get_ident() not in store.threads

    run(main())


def test_a_read_burst_goes_to_the_writer(run: Run, store: AnyGated) -> None:
    """INLINE_RECORDS_MAX counts records: one that takes many reads along is not committed on the loop."""
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 1)
            for number in range(50):
                await log.append("b0", f"note-{number}")
            store.threads.clear()
            await attempts[0].call(work.effect, 0)
            assert len(store.batches[-3]) == 51
            assert store.threads[0] != threading.get_ident()

    run(main())


def test_a_task_that_only_replays_lets_others_have_their_turn(run: Run, store: AnyGated) -> None:
    """What is answered from the record waits for nothing: the loop is let go on all the same, now and then."""
    work = Work()

    async def main() -> None:
        turns: list[int] = []
        async with async_log_of(store) as log, log.attempt("b") as attempt:
            for number in range(8):
                await attempt.step(f"s{number}").call(work.effect, number)

            async def replays() -> None:
                for number in range(200):
                    assert (await attempt.step(f"s{number % 8}").perform(work.effect, number % 8)).replayed

            replaying = asyncio.ensure_future(replays())
            while not replaying.done():
                turns.append(1)
                await asyncio.sleep(0)
        assert len(turns) >= 200 // READS_IN_A_ROW

    run(main())


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_refused_member_on_a_loop(run: Run, store: AnyGated) -> None:
    """One of a batch was fenced by another process: it is told so and not called, the others are (I2)."""
    work = Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 8)

            def overtake(entries: Sequence[Append]) -> None:
                if type(entries[0].record).__name__ == "Dispatched":
                    store.meddle = None
                    store.unseen(opened("b3", attempt=2, owner="other.1"))

            store.meddle = overtake
            ends = await ends_of(work.start(attempts))
            assert isinstance(ends.pop(3), Fenced)
            assert ends == [0, 1, 2, 4, 5, 6, 7]

    run(main())
    assert sorted(work.calls) == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("io", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_batch_poisons_on_a_loop(run: Run, kind: str, io: int) -> None:
    """I8: 64 waiters of a batch whose write or sync failed: each has its own LogPoisoned, and nothing is called."""
    disk = MemoryDisk()
    store, work = GatedMemory(disk), Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, N)

            def breaks(entries: Sequence[Append]) -> None:
                if type(entries[0].record).__name__ == kind:
                    disk.io_until_failure = io

            store.meddle = breaks
            ends = await ends_of(work.start(attempts))
            if kind == "Committed":
                assert {type(end) for end in ends} == {OutcomeNotRecorded}
                assert [(end.outcome, end.effect_ran) for end in ends] == [(n, "yes") for n in range(N)]
                ends = [end.__cause__ for end in ends]
            else:
                assert {end.effect_ran for end in ends} == {"no"}
                assert [end.intent_id for end in ends] == [f"b{n}#1/effect" for n in range(N)]
            assert {type(end) for end in ends} == {LogPoisoned}
            assert len({id(end) for end in ends}) == N
            again = await ends_of([asyncio.ensure_future(a.step("again").call(work.effect, 9)) for a in attempts])
            assert {type(end) for end in again} == {LogPoisoned}, "nothing more is acknowledged"

    run(main())
    assert len(work.calls) == (N if kind == "Committed" else 0)


# --- loops that end --------------------------------------------------------------------------------------------------


def test_a_second_loop_after_the_first_ended(run: Run, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that one loop left open serves the next one, back-pressure included."""
    monkeypatch.setattr(batches, "QUEUE_MAX", 4)
    store, work = GatedMemory(), Work()
    log = async_log_of(store)

    async def first() -> None:
        await log.__aenter__()
        attempts = await work.open(log, 16)
        assert await ends_of(work.start(attempts)) == list(range(16))

    async def second() -> None:
        attempts = [log.attempt(f"c{n}") for n in range(16)]
        await asyncio.gather(*(attempt.__aenter__() for attempt in attempts))
        assert await ends_of(work.start(attempts, 16)) == list(range(16, 32))
        await log.close()

    run(first())
    run(second())
    assert sorted(work.calls) == list(range(32))


def test_a_loop_that_ends_takes_no_event_with_it(run: Run, store: AnyGated) -> None:
    """I5: an event was acknowledged, and its carrier was in the queue when its loop was closed: it is still written."""
    work = Work()
    log = async_log_of(store)

    async def first() -> None:
        await log.__aenter__()
        (attempt,) = await work.open(log, 1)
        await log.append("b0", "noted")
        log._driver._batches._is_committing = True  # as while a batch is under way
        work.start([attempt])
        await asyncio.sleep(0)
        assert len(log._driver._batches._queue) == 1

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # it is abandoned on purpose
        del task
    loop.close()

    async def second() -> None:
        assert "ApplicationEvent" in [entry.kind for entry in await log.history("b0")]
        await log.close()  # waits for nobody of the loop that is gone

    run(second())
    gc.collect()  # the task that was abandoned goes now, and disturbs nobody


# --- EVENTUAL records ------------------------------------------------------------------------------------------------


def test_what_is_on_its_way_is_seen_by_who_asks(run: Run, quick_folder: Path) -> None:
    """An event that was acknowledged and travels in a batch under way is in the history that is asked for now (I5)."""
    store, work = GatedSqlite(quick_folder / "log.db"), Work()

    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = await work.open(log, 4)
            await log.append("b0", "noted", durability=Durability.EVENTUAL)
            store.park("Pending")
            tasks = work.start(attempts)
            await inside(store)
            asked = asyncio.ensure_future(log.history("b0"))
            for _ in range(5):
                await asyncio.sleep(0)
            threading.Timer(0.05, store.go_on.set).start()  # only lets it end; what it must show does not depend on it
            names = [entry.kind for entry in await asked]
            assert "ApplicationEvent" in names
            await ends_of(tasks)

    run(main())


# --- upkeep ----------------------------------------------------------------------------------------------------------


def test_who_waits_for_a_batch_does_not_wait_for_the_upkeep(run: Run) -> None:
    """A checkpoint falls between two commits, and those of the first have their answer before it begins."""
    store, go_on, begun = GatedMemory(), threading.Event(), threading.Event()

    def upkeep() -> None:
        begun.set()
        assert go_on.wait(20)

    store.upkeep_due, store.upkeep = True, upkeep  # type: ignore[method-assign] # a checkpoint that takes long

    async def main() -> None:
        async with async_log_of(store) as log:
            try:
                await asyncio.wait_for(log.append("b0", "noted", durability=Durability.IMMEDIATE), 10)
                assert begun.wait(10), "control: the upkeep was under way"
            finally:
                go_on.set()

    run(main())
