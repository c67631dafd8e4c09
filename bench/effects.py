"""Guarded effects: one at a time, by threads, by tasks of an event loop. The tool does nothing; the guard does its all.

Each worker has a branch of its own with one attempt, which stays open. Between any two rounds, and for a lone effect
between any two effects, raw syncs are taken on the same disk, with the log open.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from bench.floor import SYNCS_PER_EFFECT, Floor, Raw, p50_us, p99_us
from bench.measures import Effects, spread
from intentlog import UNSAFE, AsyncAttempt, AsyncLog, Attempt, Entry, Log, tool
from intentlog.ports import Counters

CENTS = 1999
FLOOR_SYNCS = 60  # raw syncs between two rounds
WARM_WORKERS = 64  # so many workers make an effect each before any is timed
THREADS = (1, 8, 64)
TASKS = (1, 8, 64, 512, 4096)
TaskEffect: TypeAlias = Callable[[str], Awaitable[object]]


@tool(effect=UNSAFE, step="charge-{order_id}")
def charge(order_id: str, cents: int) -> str:
    """An effect without an effect."""
    return f"receipt-{order_id}-{cents}"


@tool(effect=UNSAFE, step="charge-{order_id}")
async def charge_async(order_id: str, cents: int) -> str:
    """The same for an event loop."""
    return f"receipt-{order_id}-{cents}"


class Amount(NamedTuple):
    """How much of it: rounds, effects of each worker in a round, and after how long no further round is begun."""

    rounds: int
    per_worker: int
    budget_s: float


QUICK = {1: Amount(5, 60, 2.0), 8: Amount(3, 12, 2.0), 64: Amount(3, 4, 2.0), 512: Amount(3, 1, 2.0)}
FULL = {
    1: Amount(9, 400, 30.0),
    8: Amount(7, 250, 15.0),
    64: Amount(7, 60, 15.0),
    512: Amount(7, 16, 15.0),
    4096: Amount(5, 4, 15.0),
}


class Round(NamedTuple):
    """One round: what each effect took its worker, what all took together, and raw syncs around it (nanoseconds)."""

    effects_ns: list[int]
    elapsed_ns: int
    syncs_ns: list[int]


class Missing(AssertionError):
    """The log does not hold what the bench did, or the counters do not add up: the figures would mean nothing."""


def of_rounds(key: str, at_once: int, rounds: list[Round], before: Counters, after: Counters) -> Effects:
    """The figures of a scenario."""
    took = [one for r in rounds for one in r.effects_ns]
    syncs = [one for r in rounds for one in r.syncs_ns]
    return Effects(
        key=key,
        at_once=at_once,
        effects=len(took),
        effects_per_s=spread([len(r.effects_ns) / r.elapsed_ns * 1e9 for r in rounds]),
        effect_p50_us=p50_us(took),
        effect_p99_us=p99_us(took),
        x_three_syncs=spread([_ratio(r, at_once) for r in rounds]),
        sync_p50_us=p50_us(syncs),
        commits_per_effect=(after.commits - before.commits) / len(took),
        syncs_per_effect=(after.syncs - before.syncs) / len(took),
    )


def _ratio(one: Round, at_once: int) -> float:
    """A lone effect by its median; many at once by the time that they took together."""
    three = SYNCS_PER_EFFECT * median(one.syncs_ns)
    return (median(one.effects_ns) if at_once == 1 else one.elapsed_ns / len(one.effects_ns)) / three


def within(amount: Amount) -> Iterator[int]:
    """Count the rounds, until there are enough or their time is up; there is always one."""
    deadline_s = time.monotonic() + amount.budget_s
    for number in range(amount.rounds):
        if number and time.monotonic() >= deadline_s:
            return
        yield number


def check_there(entries: Iterable[Entry], expected: int, where: str) -> None:
    """Hold a branch's history against what was done in it.

    Raises:
        Missing: effects are not there.
    """
    found = sum(entry.kind == "Committed" for entry in entries)
    if found != expected:
        raise Missing(f"{where}: {found} effects are in the log, {expected} were made")


# --- one at a time ---------------------------------------------------------------------------------------------------


def alternating(effect: Callable[[], object], floor: Raw, times: int) -> Round:
    """So many times: one effect, then three raw syncs."""
    effects, threes = list[int](), list[int]()
    for _ in range(times):
        started = time.perf_counter_ns()
        effect()
        effects.append(time.perf_counter_ns() - started)
        threes.append(floor.three())
    return Round(effects, sum(effects), [three // SYNCS_PER_EFFECT for three in threes])


def lone_sync(folder: Path, amount: Amount) -> Effects:
    """One effect after the other on the main thread."""
    with Floor(folder) as floor:
        return lone("sync", folder / "lone.db", floor, amount)


def lone(key: str, where: Path | str, floor: Raw, amount: Amount) -> Effects:
    """The same in any log, held against any floor."""
    numbers = count()
    with Log.open(where) as log, log.attempt("order-0") as attempt:

        def effect() -> None:
            attempt.call(charge, str(next(numbers)), cents=CENTS)

        alternating(effect, floor, amount.per_worker // 2)
        before = log.counters
        taken = [alternating(effect, floor, amount.per_worker) for _ in within(amount)]
        after = log.counters
        check_there(log.history("order-0"), next(numbers), key)
    return of_rounds(key, 1, taken, before, after)


def attempt_each(folder: Path, amount: Amount) -> Effects:
    """The same, with an attempt opened and closed for each effect: two records and two syncs more."""
    numbers = count()
    with Floor(folder) as floor, Log.open(folder / "each.db") as log:

        def effect() -> None:
            order = str(next(numbers))
            log.run(f"order-{order}", lambda attempt: attempt.call(charge, order, cents=CENTS))

        alternating(effect, floor, amount.per_worker // 2)
        before = log.counters
        taken = [alternating(effect, floor, amount.per_worker) for _ in within(amount)]
        after = log.counters
        for order in range(next(numbers)):
            check_there(log.history(f"order-{order}"), 1, f"order-{order}")
    return of_rounds("sync-attempt-each", 1, taken, before, after)


# --- threads ---------------------------------------------------------------------------------------------------------


def _thread_round(attempts: list[Attempt], per_worker: int, numbers: count[int], floor: Floor) -> Round:
    took: list[list[int]] = [[] for _ in attempts]
    began, ended = [0] * len(attempts), [0] * len(attempts)
    failed: list[Exception] = []
    ready = threading.Barrier(len(attempts))

    def work(worker: int, orders: list[str]) -> None:
        attempt, mine = attempts[worker], took[worker]
        ready.wait()
        began[worker] = time.perf_counter_ns()
        try:
            for order in orders:
                started = time.perf_counter_ns()
                attempt.call(charge, order, cents=CENTS)
                mine.append(time.perf_counter_ns() - started)
        except Exception as error:  # noqa: BLE001 - raised by who waits for this thread
            failed.append(error)
        ended[worker] = time.perf_counter_ns()

    orders = [[str(next(numbers)) for _ in range(per_worker)] for _ in attempts]
    threads = [threading.Thread(target=work, args=(worker, mine)) for worker, mine in enumerate(orders)]
    syncs = floor.take(FLOOR_SYNCS)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    syncs += floor.take(FLOOR_SYNCS)
    return Round([one for mine in took for one in mine], max(ended) - min(began), syncs)


def threads(folder: Path, at_once: int, amount: Amount) -> Effects:
    """So many threads, each with a branch of its own."""
    numbers: count[int] = count()
    with Floor(folder) as floor, Log.open(folder / f"threads-{at_once}.db") as log, ExitStack() as stack:
        branches = [f"order-{worker}" for worker in range(at_once)]
        attempts = [stack.enter_context(log.attempt(branch)) for branch in branches]
        _thread_round(attempts, 1, numbers, floor)
        before = log.counters
        taken = [_thread_round(attempts, amount.per_worker, numbers, floor) for _ in within(amount)]
        after = log.counters
        for branch in branches:
            check_there(log.history(branch), 1 + len(taken) * amount.per_worker, branch)
    return of_rounds(f"threads-{at_once}", at_once, taken, before, after)


# --- an event loop ---------------------------------------------------------------------------------------------------


async def task_round(effects: list[TaskEffect], per_worker: int, numbers: count[int], floor: Raw) -> Round:
    """So many effects by each worker, which is given the order's number; raw syncs before and after."""
    took: list[list[int]] = [[] for _ in effects]

    async def work(worker: int, orders: list[str]) -> None:
        effect, mine = effects[worker], took[worker]
        for order in orders:
            started = time.perf_counter_ns()
            await effect(order)
            mine.append(time.perf_counter_ns() - started)

    orders = [[str(next(numbers)) for _ in range(per_worker)] for _ in effects]
    syncs = floor.take(FLOOR_SYNCS)
    began = time.perf_counter_ns()
    await asyncio.gather(*(work(worker, mine) for worker, mine in enumerate(orders)))
    elapsed = time.perf_counter_ns() - began
    syncs += floor.take(FLOOR_SYNCS)
    return Round([one for mine in took for one in mine], elapsed, syncs)


def _charging(attempt: AsyncAttempt) -> TaskEffect:
    return lambda order: attempt.call(charge_async, order, cents=CENTS)


async def _alternating_task(attempt: AsyncAttempt, per_round: int, numbers: count[int], floor: Raw) -> Round:
    effects, threes = list[int](), list[int]()
    for _ in range(per_round):
        order = str(next(numbers))
        started = time.perf_counter_ns()
        await attempt.call(charge_async, order, cents=CENTS)
        effects.append(time.perf_counter_ns() - started)
        threes.append(floor.three())
    return Round(effects, sum(effects), [three // SYNCS_PER_EFFECT for three in threes])


async def tasks(folder: Path, at_once: int, amount: Amount) -> Effects:
    """So many tasks of one event loop, each with a branch of its own."""
    with Floor(folder) as floor:
        return await together(f"asyncio-{at_once}", folder / f"asyncio-{at_once}.db", floor, at_once, amount)


async def together(key: str, where: Path | str, floor: Raw, at_once: int, amount: Amount) -> Effects:
    """The same in any log, held against any floor."""
    numbers: count[int] = count()
    async with AsyncLog.open(where) as log, AsyncExitStack() as stack:
        branches = [f"{key}-{worker}" for worker in range(at_once)]
        attempts = await asyncio.gather(*(stack.enter_async_context(log.attempt(branch)) for branch in branches))
        workers = [_charging(attempt) for attempt in attempts]
        await task_round(workers[:WARM_WORKERS], 1, numbers, floor)
        before, taken = log.counters, list[Round]()
        for _ in within(amount):
            one = (
                _alternating_task(attempts[0], amount.per_worker, numbers, floor)
                if at_once == 1
                else task_round(workers, amount.per_worker, numbers, floor)
            )
            taken.append(await one)
        after = log.counters
        for worker, branch in enumerate(branches):
            made = (worker < WARM_WORKERS) + len(taken) * amount.per_worker
            check_there(await log.history(branch), made, branch)
    return of_rounds(key, at_once, taken, before, after)


def measure(folder: Path, *, quick: bool) -> Iterable[Effects]:
    """Every scenario, as soon as it is measured."""
    amounts = QUICK if quick else FULL
    yield lone_sync(folder, amounts[1])
    yield attempt_each(folder, amounts[1])
    for at_once in THREADS:
        yield threads(folder, at_once, amounts[at_once])
    for at_once in TASKS:
        if at_once in amounts:
            yield asyncio.run(tasks(folder, at_once, amounts[at_once]))
