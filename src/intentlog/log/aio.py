"""The log on an event loop: `AsyncLog`, `AsyncAttempt`, `AsyncStep`. The same as `log.sync`, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from intentlog.core.actions import IntentId, Outcome
from intentlog.core.effects import nanoseconds
from intentlog.core.records import Durability
from intentlog.core.restart import Classification
from intentlog.errors import BranchBusy, IntentLogError, LogClosed, WrongProcess
from intentlog.log.declare import AnyTool, AsyncTool, Tool
from intentlog.log.engine import AttemptState, Engine, open_engine
from intentlog.log.naming import check_name
from intentlog.log.recovering import telling
from intentlog.log.values import (
    Applied,
    Cancelled,
    Entry,
    NotApplied,
    OpenIntent,
    Progress,
    Recovered,
    Report,
    Settings,
    Unfinished,
)
from intentlog.ports import Counters
from intentlog.run.aio import AioDriver, until_done
from intentlog.run.turns import Turns

P = ParamSpec("P")
R = TypeVar("R")
BUSY_POLL_S = 0.05


class AsyncLog:
    """A log of intents on an event loop. Use `async with AsyncLog.open(...)`. For any number of tasks of one loop."""

    def __init__(self, opener: Callable[[], Engine]) -> None:
        self._opener = opener
        self._engine_or_none: Engine | None = None
        self._driver_or_none: AioDriver | None = None
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    def open(cls, path: str | Path, *, settings: Settings | None = None, read_only: bool = False) -> AsyncLog:
        """The log at `path`; it is opened by `async with`. Arguments and errors as of `Log.open`."""
        return cls(partial(open_engine, path, Settings() if settings is None else settings, read_only=read_only))

    def attempt(self, branch: str, *, wait: timedelta | None = None) -> AsyncAttempt:
        """The next attempt at a branch, to be used in `async with`. See `Log.attempt`."""
        return AsyncAttempt(self._engine, self._driver, check_name("branch", branch, slash=True), wait)

    async def run(
        self, branch: str, work: Callable[[AsyncAttempt], Awaitable[R]], *, wait: timedelta | None = None
    ) -> R:
        """Open an attempt, await `work(attempt)` in it, close it, and return what `work` returned."""
        async with self.attempt(branch, wait=wait) as attempt:
            return await work(attempt)

    async def recover(self, told: Callable[[Recovered], object] | None = None) -> list[Classification]:
        """See `Log.recover`."""
        hands = self._engine.recovery_hands()
        found: list[Classification] = []
        for branch in await self._driver.store(self._engine.to_recover):
            with telling(branch, told) as noted:
                noted.concluded = await self._driver.run(self._engine.recovering(branch, noted), hands)
                found.extend(noted.concluded)
        return found

    async def recoverable(self) -> list[str]:
        """See `Log.recoverable`."""
        return await self._driver.store(self._engine.recoverable)

    async def unfinished(self) -> list[Unfinished]:
        """See `Log.unfinished`."""
        return await self._driver.store(self._engine.unfinished)

    async def open_intents(self) -> list[OpenIntent]:
        """See `Log.open_intents`."""
        return await self._driver.store(self._engine.open_intents)

    async def contradictions(self) -> list[IntentId]:
        """See `Log.contradictions`."""
        return await self._driver.store(self._engine.contradictions)

    async def history(self, branch: str, *, after: int = 0) -> list[Entry]:
        """The records of a branch, oldest first; with `after`, those that stand after this `seq`."""
        return await self._driver.store(lambda: list(self._engine.history(branch, after)))

    async def resolve(
        self, intent_id: str, answer: Applied[Any] | NotApplied, *, by: str, why: str, expect_seq: int | None = None
    ) -> None:
        """See `Log.resolve`."""
        script = await self._driver.store(self._engine.resolving, intent_id, answer, by, why, expect_seq)
        await self._driver.run(script)

    async def supply(self, intent_id: str, value: object, *, by: str, why: str) -> None:
        """See `Log.supply`."""
        await self._driver.run(await self._driver.store(self._engine.supplying, intent_id, value, by, why))

    async def renew(self, intent_id: str, *, by: str, why: str, expect_seq: int | None = None) -> None:
        """See `Log.renew`."""
        await self._driver.run(self._engine.renewing(intent_id, by, why, expect_seq))

    async def cancel(self, branch: str, *, by: str, why: str) -> Cancelled:
        """See `Log.cancel`. No task is cancelled by it; its next effect is refused."""
        done = await self._driver.run(self._engine.cancelling(branch, by, why))
        return await self._driver.store(self._engine.cancelled, branch, done)

    async def append(
        self, branch: str, kind: str, payload: object = None, *, durability: Durability = Durability.EVENTUAL
    ) -> None:
        """See `Log.append`."""
        await self._driver.run(self._engine.noting(branch, kind, payload, durability))

    async def tail(self, count: int = 10, *, after: int | None = None) -> list[Entry]:
        """See `Log.tail`."""
        return await self._driver.store(self._engine.tail, count, after)

    async def verify(self, progress: Progress | None = None) -> Report:
        """See `Log.verify`. `progress` is called in another thread than the event loop's."""
        return await self._driver.store(self._engine.verify, progress)

    @property
    def counters(self) -> Counters:
        """How many commits and syncs were made for records."""
        return self._engine.counters

    async def close(self) -> None:
        """Wait for running calls, write what waits, and let go. Idempotent. Raises as `Log.close` does.

        However often it is cancelled meanwhile, it closes first and is cancelled then.
        """
        if self._closing is None:
            if self._engine_or_none is None or self._driver_or_none is None:
                return
            try:
                self._engine_or_none.store.check_process()
            except WrongProcess:
                return  # a forked child has nothing of it to let go
            self._engine_or_none.check_not_inside_a_tool()
            self._engine_or_none.is_closing = True
            self._closing = asyncio.ensure_future(self._close(self._engine_or_none, self._driver_or_none))
        cancelled = await until_done(self._closing)
        self._engine_or_none = None
        self._closing.result()
        if cancelled is not None:
            raise cancelled

    async def _close(self, engine: Engine, driver: AioDriver) -> None:
        waiting = asyncio.ensure_future(driver.wait_for_calls())
        await until_done(waiting)
        try:
            await driver.store(engine.duty.close)
        finally:
            await driver.store(engine.store.close)
            driver.close()

    @property
    def _engine(self) -> Engine:
        if self._engine_or_none is None:
            raise LogClosed("the log is not open: use `async with AsyncLog.open(...) as log`")
        return self._engine_or_none

    @property
    def _driver(self) -> AioDriver:
        if self._driver_or_none is None or self._engine_or_none is None:
            raise LogClosed("the log is not open: use `async with AsyncLog.open(...) as log`")
        return self._driver_or_none

    async def __aenter__(self) -> Self:
        if self._closing is not None:
            raise LogClosed("an AsyncLog is entered once", remedy="open another: AsyncLog.open(...).")
        # A bare future: a loop that ends cancels every task, and what a thread opens must be closed all the same.
        opening = asyncio.get_running_loop().run_in_executor(None, self._opener)
        cancelled = await until_done(opening)
        engine = opening.result()
        if cancelled is not None:  # given up while it opened: nobody would close it
            engine.store.close()
            raise cancelled
        self._engine_or_none = engine
        self._driver_or_none = AioDriver(engine.duty, engine.clock, engine.settings.threads_max)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except IntentLogError:
            if error is None:
                raise  # with an error on its way, that one tells more


class AsyncAttempt:
    """One try at a branch. Use `AsyncLog.attempt` in `async with`. For any number of tasks while it is open."""

    def __init__(self, engine: Engine, driver: AioDriver, branch: str, wait: timedelta | None) -> None:
        self._engine = engine
        self._driver = driver
        self._branch = branch
        self._wait_s = nanoseconds(wait) / 1e9 if wait is not None else 0.0
        self._opened: AttemptState | None = None
        self._turns: Turns | None = None
        self.classifications: list[Classification] = []

    @property
    def number(self) -> int:
        """Which attempt of its branch it is, from 1."""
        return self._state.number

    async def call(self, tool: Tool[P, R] | AsyncTool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a tool under the guard; a plain one in a thread. Raises as `Attempt.call` does.

        Cancelled meanwhile: before the call, nothing is sent and the record says so; during it, the effect may have
        been sent, and a plain tool's thread still gets its outcome recorded when it ends.
        """
        value: R = (await self._perform(tool, None, args, kwargs)).value
        return value

    async def perform(self, tool: Tool[P, R] | AsyncTool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Like `call`, but answers the whole `Outcome`: value, replayed, intent_id, request_id."""
        return await self._perform(tool, None, args, kwargs)

    def step(self, name: str) -> AsyncStep:
        """Name the step of the next call: `await attempt.step("refund-1").call(refund, ...)`."""
        return AsyncStep(self._perform, check_name("step", name, slash=False))

    async def _perform(
        self, tool: AnyTool, step: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome[Any]:
        driver = self._driver
        loop = driver.check()
        prepared = self._engine.prepare(self._state, tool, step, args, kwargs, is_async=True)
        outcome = None if self._engine.store.is_remote else prepared.replayed(self._engine.duty)
        if outcome is not None:
            await driver.give_way()
            return outcome
        if self._turns is None or self._turns.loop is not loop:
            self._turns = Turns(loop)
        turns, step = self._turns, prepared.step
        if not turns.takes(step):
            try:
                await turns.wait(step)
            except BaseException:
                prepared.withdraw()
                raise
        return await driver.run(prepared.script(), prepared.hands(), lambda: turns.give(step))

    @property
    def _state(self) -> AttemptState:
        if self._opened is None:
            raise LogClosed("the attempt is not open: use `async with log.attempt(...) as attempt`")
        return self._opened

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise LogClosed("an attempt is entered once; ask the log for another")
        self._driver.check()
        deadline_s = time.monotonic() + self._wait_s
        while not await self._try():
            if time.monotonic() >= deadline_s:
                raise BranchBusy(f"branch {self._branch!r} is held by a living owner")
            await asyncio.sleep(BUSY_POLL_S)
        return self

    async def _try(self) -> bool:
        """Try once to open the attempt. False: the branch is busy, and there is time to wait."""
        state = self._engine.new_attempt(self._branch)
        try:
            opened = await self._driver.run(self._engine.opening(self._branch, state.owner))
            state.number = opened.attempt
            state.is_replaying = opened.attempt > 1
            self.classifications = opened.classifications
            self._opened = state
        except BranchBusy:
            if self._wait_s <= 0:
                raise
        finally:
            state.left = self._opened is None
        return self._opened is not None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state, engine, driver = self._state, self._engine, self._driver
        try:
            end = await driver.run(engine.closing(state, error))
            await driver.store(engine.unvisited, state, end)
        except IntentLogError:
            if error is None:
                raise  # with an error on its way, that one tells more
        finally:
            state.left = True


class AsyncStep:
    """A named step of an attempt."""

    def __init__(
        self, perform: Callable[[AnyTool, str, tuple[Any, ...], dict[str, Any]], Awaitable[Outcome[Any]]], name: str
    ) -> None:
        self._perform = perform
        self._name = name

    async def call(self, tool: Tool[P, R] | AsyncTool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `AsyncAttempt.call`."""
        value: R = (await self._perform(tool, self._name, args, kwargs)).value
        return value

    async def perform(self, tool: Tool[P, R] | AsyncTool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """See `AsyncAttempt.perform`."""
        return await self._perform(tool, self._name, args, kwargs)
