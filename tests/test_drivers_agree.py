"""One fault table through both drivers: sync and asyncio leave the same log, make the same calls, raise the same.

The store is in memory and fails at the nth I/O operation, which is a write or a sync of any of the commits, from the
opening of the attempt to its close. What the two drivers leave must be equal, live (after kill -9) and durable (after
a power cut), and must satisfy the invariants whatever failed (I1, I2, I8).
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from crash_programs import CLASSES
from fake_clock import FakeClock

from intentlog import (
    Applied,
    AsyncLog,
    Call,
    IntentLogError,
    Log,
    NotApplied,
    NotSent,
    Rejected,
    Retry,
    Settings,
    Suspended,
    Unknown,
    tool,
)
from intentlog.core import records as r
from intentlog.core.records import Stored
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store.memory import MemoryDisk, MemoryStore

ENDINGS = ["returned", "ambiguous", "not_sent", "rejected", "suspended", "returned-after-retry"]
FAULTS = [None, *range(13)]  # after so many good I/O operations the disk fails; an attempt with one effect has 10


class Left(NamedTuple):
    """What a run leaves behind."""

    live: list[Stored]
    durable: list[Stored]
    calls: list[str]
    ended: list[str]


class World:
    """A disk, a clock, and a tool that ends as it is told."""

    def __init__(self, kind: str, ending: str, fault: int | None) -> None:
        self.disk = MemoryDisk()
        self.clock = FakeClock()
        self.ending = ending
        self.calls: list[str] = []
        self.ended: list[str] = []
        self.disk.io_until_failure = fault
        retry = Retry(times=2, backoff=timedelta(0)) if ending == "returned-after-retry" else None
        declared: Any = tool(effect=CLASSES[kind], name="effect", time_limit=timedelta(milliseconds=1), retry=retry)

        @declared
        def effect(call: Call, amount: int) -> int:
            self.calls.append(f"{call.intent_id} {call.dispatch_no}")
            assert self.disk.durable.events, "I1: a call is made only after its records are durable"
            if kind != "READ":
                last = list(self.disk.durable.events.values())[-1].record
                assert isinstance(last, r.Dispatched), "I1: the newest durable record permits this call"
            if self.ending == "returned-after-retry" and len(self.calls) < 3:
                raise TimeoutError("lost")
            errors = {"not_sent": NotSent, "rejected": Rejected, "suspended": Suspended, "ambiguous": TimeoutError}
            if self.ending in errors:
                raise errors[self.ending](self.ending)
            return amount

        if kind == "QUERYABLE":

            @effect.probe
            def happened(call: Call, amount: int) -> Applied[int] | NotApplied | Unknown:
                del call, amount
                return NotApplied()

        self.tool = effect

    def engine(self) -> Engine:
        store = MemoryStore(self.disk, self.clock)
        return Engine(store, Settings(), self.clock, LoggingObserver())

    def left(self) -> Left:
        return Left(
            list(self.disk.live.events.values()), list(self.disk.durable.events.values()), self.calls, self.ended
        )


def run_sync(world: World) -> Left:
    """Two attempts: the second meets what the first left."""
    try:
        with Log(world.engine()) as log:
            for _ in range(2):
                try:
                    with log.attempt("order") as attempt:
                        for _ in range(2):
                            world.ended.append(repr(attempt.call(world.tool, 7)))
                except (IntentLogError, TimeoutError) as error:
                    world.ended.append(f"{type(error).__name__} {getattr(error, 'effect_ran', '')}")
    except IntentLogError as error:
        world.ended.append(f"close: {type(error).__name__}")
    return world.left()


def run_asyncio(world: World) -> Left:
    """The same, awaited."""

    async def main() -> None:
        async with AsyncLog(world.engine) as log:
            for _ in range(2):
                try:
                    async with log.attempt("order") as attempt:
                        for _ in range(2):
                            world.ended.append(repr(await attempt.call(world.tool, 7)))
                except (IntentLogError, TimeoutError) as error:
                    world.ended.append(f"{type(error).__name__} {getattr(error, 'effect_ran', '')}")

    try:
        asyncio.run(main())
    except IntentLogError as error:
        world.ended.append(f"close: {type(error).__name__}")
    return world.left()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", CLASSES)
def test_both_drivers_leave_the_same_log(kind: str, ending: str) -> None:
    """For each class, each ending and each fault: records, payloads, chains, calls and errors are equal."""
    for fault in FAULTS:
        by_sync = run_sync(World(kind, ending, fault))
        by_asyncio = run_asyncio(World(kind, ending, fault))
        assert by_sync == by_asyncio, f"fault after {fault} I/O operations"
        assert by_sync.ended, "something was answered"


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "READ"])
def test_after_a_failed_commit_no_call_is_made(kind: str) -> None:
    """I8: whatever I/O operation fails, from then on there is no call, and every use says so; the restart is true."""
    for fault in range(16):  # two effects: 1 + 3 + 3 + 1 commits of a write and a sync each
        world = World(kind, "returned", fault)
        left = run_sync(world)
        permitted = (fault >= 6) + (fault >= 12)  # the I/O operations up to and with each Dispatched commit
        assert len(left.calls) == permitted, f"fault after {fault}"
        assert left.ended[-1].startswith(("LogPoisoned", "OutcomeNotRecorded")), f"fault after {fault}"
        for image in ("live", "durable"):
            disk = MemoryDisk()
            disk.live = disk.durable = getattr(world.disk, image)
            with Log(
                Engine(MemoryStore(disk, world.clock, "after"), Settings(), world.clock, LoggingObserver())
            ) as log:
                never = {c.intent_id for c in log.recover() if c.classification == "NEVER_SENT"}
                called = {call.split()[0] for call in left.calls}
                assert not never & called, "never sent is never said of a call that was made"
                assert log.verify().ok


def test_control_a_log_without_its_dispatched_record_is_seen_to_differ() -> None:
    """Control: the comparison is not blind: the logs of two different endings are not equal."""
    assert run_sync(World("UNSAFE", "returned", None)) != run_asyncio(World("UNSAFE", "ambiguous", None))
