"""The field cases of a call that still runs: several that want it, a cancelled caller, a process told to stop.

See `test_field_cases.py`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from field_case_programs import (
    BRANCH,
    EFFECTS,
    ENDINGS,
    KINDS,
    MODES,
    PATIENCE_S,
    Bench,
    InFlight,
    again,
    attempt_at,
    call_once,
    check_busy,
    ends_well,
    field_tool,
    history_of,
    names,
    opened,
    records,
    results,
    run_deliveries,
    run_interrupted,
    running,
    settled,
    started,
    until,
)

from intentlog import (
    BranchBusy,
    End,
    Log,
    NotApplied,
    NotInDoubt,
)
from intentlog.crash import Witness


@pytest.fixture(params=MODES)
def bench(quick_folder: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(quick_folder, str(request.param))


# --- a call in flight: cases 3, 6, 7 and 11 ---------------------------------------------------------------------------


def threads_in(function: str) -> int:
    """How many threads stand in a function of this name, itself and not what it calls: at a lock, for instance."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - the only way to see where threads are
    return sum(frame.f_code.co_name == function for frame in frames.values())


@pytest.mark.parametrize("kind", KINDS)
def test_case_03_a_second_worker_in_one_process_is_told_that_it_is_busy(bench: Bench, kind: str) -> None:
    """Case 3: a call that takes minutes: BranchBusy for who opens its branch, and then the recorded outcome (I3).

    Threads and tasks of one process; two processes and the owner's death stand with the kills.
    """
    flight = InFlight(bench, kind)

    async def main() -> None:
        async with opened(bench.mode, bench.path) as log:
            async with attempt_at(log) as attempt:
                task = await flight.begins(attempt)
                with pytest.raises(BranchBusy):
                    async with attempt_at(log):
                        pass
                flight.let_on()
                assert (await task).value == "did 1042"
            async with attempt_at(log) as attempt:
                assert (await settled(attempt.step("act").perform(flight.tool, "1042"))).replayed

    asyncio.run(main())
    assert len(bench.witness.lines()) == 1


@pytest.mark.parametrize("door", ["one-attempt", "an-attempt-each"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_06_one_id_delivered_to_several_at_once_is_called_once(bench: Bench, kind: str, door: str) -> None:
    """Case 6: the same call id at the same moment: one call; the others get its outcome, or BranchBusy (I3, I4)."""
    flight = InFlight(bench, kind)

    async def delivered(log: Any) -> Any:
        async with attempt_at(log, wait=timedelta(seconds=PATIENCE_S)) as attempt:
            return await settled(attempt.step("act").perform(flight.tool, "1042"))

    async def main() -> list[Any]:
        async with opened(bench.mode, bench.path) as log:
            if door == "an-attempt-each":
                threads = bench.mode == "sync"
                work = [started(asyncio.run, delivered(log)) if threads else started(delivered, log) for _ in range(2)]
                assert await asyncio.to_thread(flight.begun.wait, PATIENCE_S)
                with pytest.raises(BranchBusy):
                    async with attempt_at(log):
                        pass
                flight.let_on()
                return await asyncio.gather(*work)
            async with attempt_at(log) as attempt:
                work = [started(attempt.step("act").perform, flight.tool, "1042") for _ in range(6)]
                assert await asyncio.to_thread(flight.begun.wait, PATIENCE_S)
                flight.let_on()
                return await asyncio.gather(*work)

    outcomes = asyncio.run(main())
    assert {one.value for one in outcomes} == {"did 1042"}
    assert sum(not one.replayed for one in outcomes) == 1
    assert len({one.request_id for one in outcomes}) == 1
    assert len(bench.witness.lines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_case_07_what_triggers_a_running_step_again_dispatches_nothing(bench: Bench, kind: str) -> None:
    """Case 7: its first try still runs: the same step again, recover, resolve, a new attempt: no dispatch (I3, I4)."""
    flight = InFlight(bench, kind)

    async def main() -> tuple[Any, Any, list[Any]]:
        async with opened(bench.mode, bench.path) as log:
            async with attempt_at(log) as attempt:
                first = await flight.begins(attempt)
                again = started(attempt.step("act").perform, flight.tool, "1042")
                if bench.mode == "sync":
                    await asyncio.to_thread(until, lambda: threads_in("_perform") == 1, "the second at the lock")
                for _ in range(3):
                    await asyncio.sleep(0)  # the task has come as far as it can
                assert await settled(log.recover()) == []
                assert await settled(log.unfinished()) == []
                assert not any(one.in_doubt for one in await settled(log.open_intents()))
                if kind != "READ":
                    with pytest.raises(NotInDoubt):
                        await settled(log.resolve(f"{BRANCH}#1/act", NotApplied(), by="ann", why="impatient"))
                with pytest.raises(BranchBusy):
                    async with attempt_at(log):
                        pass
                assert len(bench.witness.lines()) == 1
                assert not again.done()
                flight.let_on()
                found = await first, await again
            return *found, await records(log)

    one, two, history = asyncio.run(main())
    assert (one.replayed, two.replayed, two.value) == (False, True, "did 1042")
    assert len(bench.witness.lines()) == 1
    assert names(history).count("Dispatched") == (kind != "READ")
    assert names(history).count("Committed") == 1


def cancelled_task(task: asyncio.Task[Any]) -> Awaitable[Any]:
    """An impatient user."""
    task.cancel()
    return task


def timed_out(task: asyncio.Task[Any]) -> Awaitable[Any]:
    """A time limit around the run."""
    return asyncio.wait_for(task, 0)


async def sibling_fails(task: asyncio.Task[Any]) -> None:
    """Another task of its group fails."""

    async def fails() -> None:
        raise ValueError

    async with asyncio.TaskGroup() as group:
        group.create_task(settled(task))
        group.create_task(fails())


CANCELS: dict[str, Callable[[asyncio.Task[Any]], Awaitable[Any]]] = {
    "cancelled": cancelled_task,
    "timed-out": timed_out,
    "sibling-fails": sibling_fails,
}


@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.parametrize(
    ("mode", "how", "ending"),
    [
        *((mode, how, "returned") for mode in ("asyncio", "thread") for how in CANCELS),
        *(("thread", "cancelled", ending) for ending in ENDINGS),
    ],
)
def test_case_11_a_cancelled_run_with_a_call_in_flight_is_indeterminate(
    quick_folder: Path, mode: str, kind: str, how: str, ending: str
) -> None:
    """Case 11: cancelled with a call in flight: INDETERMINATE, not CANCELLED; a late end is still recorded (I5, I9).

    Whatever cancels it, and however the tool's thread ends later. A process told to stop stands with the kills.
    """
    bench = Bench(quick_folder, mode)
    flight = InFlight(bench, kind, ending)

    async def main() -> list[Any]:
        async with opened(mode, bench.path) as log:

            async def work() -> None:
                async with attempt_at(log) as attempt:
                    await attempt.step("act").call(flight.tool, "1042")

            task = asyncio.create_task(work())
            assert await asyncio.to_thread(flight.begun.wait, PATIENCE_S)
            with suppress(asyncio.CancelledError, TimeoutError, ExceptionGroup):
                await CANCELS[how](task)
            assert task.cancelled()
            closed = await records(log)
            assert closed[-1].end is End.INDETERMINATE
            assert "Committed" not in names(closed)
            flight.let_on()
            if mode == "thread":
                with pytest.raises(BranchBusy):
                    async with attempt_at(log):
                        pass
        async with opened(mode, bench.path) as log:
            return await records(log)

    history = asyncio.run(main())
    late = {"returned": ["Committed"], "rejected": ["Committed"], "not_sent": ["Committed"], "ambiguous": ["CallEnded"]}
    if mode == "thread":
        assert names(history)[3:] == ["AttemptClosed", *late[ending]]
        assert ending == "ambiguous" or history[-1].outcome == ending.upper()
    else:
        assert names(history)[3:] == ["CallEnded", "AttemptClosed"]
    assert len(bench.witness.lines()) == 1


# --- case 6 -----------------------------------------------------------------------------------------------------------

ROUNDS = 5


@pytest.mark.parametrize("wait_s", [0.0, 20.0], ids=["refused", "waits"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_06_one_id_delivered_to_two_processes_at_once_is_called_once(
    quick_folder: Path, kind: str, wait_s: float
) -> None:
    """Case 6: two workers are given the same call id at the same moment: one call; its outcome, or BranchBusy (I3)."""
    together = multiprocessing.get_context("forkserver").Barrier(2)
    start = partial(running, run_deliveries, str(quick_folder), kind, wait_s, together, ROUNDS)
    with Log.open(quick_folder / "log.db"), start("sync") as one, start("asyncio") as other:
        ends_well(one)
        ends_well(other)
    calls = [line.split()[0] for line in Witness(quick_folder / "witness").lines()]
    assert sorted(calls) == [f"id-{number}" for number in range(ROUNDS)]
    for number in range(ROUNDS):
        said = sorted(line.split(maxsplit=1)[1] for line in results(quick_folder) if line.startswith(f"id-{number} "))
        assert said in ([f"called did id-{number}", f"replayed did id-{number}"], ["busy", f"called did id-{number}"])
        assert said[0] != "busy" or wait_s == 0


def test_case_05_a_call_that_outlives_its_attempt_gives_its_only_answer(quick_folder: Path) -> None:
    """Case 5: interrupted, and nobody may answer for a call that still runs: its own late outcome is the one (I2, I4).

    SIGINT ends an agent's run while a plain tool runs in a thread: also case 11, with a whole process told to stop.
    """
    bench = Bench(quick_folder, "thread")
    with running(run_interrupted, str(bench.folder)) as child:
        until(bench.witness.lines, "the call")
        os.kill(child.pid, signal.SIGINT)
        with Log.open(bench.path) as log:
            until(lambda: "AttemptClosed" in [entry.kind for entry in log.history(BRANCH)], "the attempt's close")
            asyncio.run(check_busy(log, bench.witness))
            (bench.folder / "go").touch()
            ends_well(child)
            history = history_of(log)
    assert names(history)[-2:] == ["AttemptClosed", "Committed"]
    assert history[-2].end is End.INDETERMINATE
    assert history[-1].outcome == "RETURNED"
    assert asyncio.run(call_once(bench, field_tool("UNSAFE", again, "thread"))) == "did 1042"
    assert len(bench.witness.lines()) == 1
