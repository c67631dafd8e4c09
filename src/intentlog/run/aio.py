"""The driver on an event loop. What it appends goes into batches (`run.batches`); plain tools run in threads.

Reads are made on the loop: they are of indexed rows, and no writer is waited for. Those that wait for a network are
made in threads.

Cancellation never leaves a record's fate unknown: an append that was begun is waited for, and the script is told what
became of it. A call in a thread cannot be stopped: the caller gets the cancellation at once, and the script goes on
behind it until the thread ends, so that a late outcome is still recorded.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from intentlog import failpoints
from intentlog.core.actions import (
    Action,
    Append,
    Appended,
    Call,
    Deferred,
    Fetch,
    Interrupted,
    Load,
    NotMade,
    Probe,
    Probed,
    Raised,
    Refused,
    ResultT,
    Returned,
    Script,
    Wait,
)
from intentlog.errors import IntentLogError, LogClosed, ToolMisdefined, one_line
from intentlog.ports import Clock
from intentlog.run.batches import Batches
from intentlog.run.duty import Duty, StoreAction
from intentlog.run.group import Member
from intentlog.run.hands import Found, Hands, Made, NoHands, hindrance, its_own, made, probed
from intentlog.run.limits import Limits

NO_HANDS = NoHands()
logger = logging.getLogger("intentlog")

READS_IN_A_ROW = 32
READ_THREADS = 4  # for reads that wait for a network


class _StillCalling(BaseException):
    """The caller was cancelled while a plain tool runs in its thread."""

    def __init__(self, thread: asyncio.Future[Any], cause: BaseException) -> None:
        super().__init__()
        self.thread = thread
        self.cause = cause


class AioDriver:
    """Drives scripts to their end on the running loop. Any number of tasks may drive scripts at once."""

    def __init__(self, duty: Duty, clock: Clock, threads_max: int) -> None:
        self._duty = duty
        self._clock = clock
        self._is_remote = duty.store.is_remote
        self._batches = Batches(duty)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intentlog-reader")
        self._lookers = ThreadPoolExecutor(max_workers=READ_THREADS, thread_name_prefix="intentlog-look")
        self._callers = ThreadPoolExecutor(max_workers=threads_max, thread_name_prefix="intentlog-call")
        self._loop = asyncio.get_running_loop()
        self._limits = Limits(self._loop)
        self._reads = 0
        self._tails: set[asyncio.Task[None]] = set()
        self._active = 0  # scripts being driven for a caller
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(
        self, script: Script[ResultT], hands: Hands = NO_HANDS, ended: Callable[[], None] | None = None
    ) -> ResultT:
        """Drive a script and return its result. Raises what the script raises.

        Args:
            script: the script.
            hands: the tool that it may call.
            ended: called when the script has ended, which may be after a cancelled caller has gone.
        """
        try:
            self.check()
        except IntentLogError:
            script.close()
            if ended:
                ended()
            raise
        loop = self._loop
        self._active += 1
        self._idle.clear()
        try:
            result = await self._drive(script, next, hands)
        except _StillCalling as still:
            tail = asyncio.ensure_future(self._finish(script, still.thread, hands, ended))
            self._tails.add(tail)
            tail.add_done_callback(self._tails.discard)
            raise still.cause from None
        except BaseException:
            if ended:
                ended()
            raise
        finally:
            if loop is self._loop:  # else it was forgotten, with its loop
                self._active -= 1
                if self._active == 0:
                    self._idle.set()
        if ended:
            ended()
        return result

    async def store(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run what may take long in a thread that no commit waits for; a cancellation waits for it.

        It sees what was acknowledged before: what waits, or is on its way in this loop's queue, is written first.
        """
        self.check()
        await self._flush(None)
        future = asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)
        return await _to_its_end(future)

    async def give_way(self) -> None:
        """Count a read, and let others have their turn now and then: a task that only replays would let none."""
        self._reads += 1
        if self._reads % READS_IN_A_ROW == 0:
            await asyncio.sleep(0)

    def check(self) -> asyncio.AbstractEventLoop:
        """The running loop. Refuse what would wait for ever: a closed log, a forked child, a second loop beside one."""
        self._duty.store.check_process()
        if self._closed:
            raise LogClosed("the log was closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop and self._loop.is_running():
            raise ToolMisdefined("an AsyncLog is for the tasks of one event loop", remedy="open it in that loop.")
        if loop is not self._loop:  # the tasks of the one before are gone, and whatever they waited for
            self._loop = loop
            self._limits = Limits(loop)
            self._batches.begin_anew()
            self._active = 0
            self._tails.clear()
            self._idle = asyncio.Event()
            self._idle.set()
        return loop

    async def wait_for_calls(self) -> None:
        """Wait for running calls, and for those that run on after their callers were cancelled."""
        while self._active or self._tails:
            try:
                await self._idle.wait()
                if self._tails:
                    await asyncio.wait(set(self._tails))
            except asyncio.CancelledError:
                continue  # a loop that ends cancels every task, this one too: calls are waited for all the same

    def close(self) -> None:
        """Let the threads go."""
        self._closed = True
        self._callers.shutdown(wait=False)
        self._reader.shutdown(wait=False)
        self._lookers.shutdown(wait=False)
        self._batches.close()

    async def _drive(
        self, script: Script[ResultT], begin: Callable[[Script[ResultT]], Action], hands: Hands
    ) -> ResultT:
        try:
            action = begin(script)
            while True:
                try:
                    if isinstance(action, Append):
                        reply = await self._append(action)
                    elif isinstance(action, Load) and self._reads_at_once(action):
                        reply = self._duty.do(action)
                    else:
                        reply = await self._do(action, hands)
                except _StillCalling:
                    raise
                except BaseException as error:  # noqa: BLE001 - the script decides what an error means
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except Interrupted as interrupted:  # a script that has nothing to add to it
            raise interrupted.cause from None
        except _StillCalling:
            raise
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # a script's result type is checked where it is written
        except BaseException:
            script.close()
            raise

    async def _finish(
        self, script: Script[ResultT], thread: asyncio.Future[Any], hands: Hands, ended: Callable[[], None] | None
    ) -> None:
        """Go on with a script whose caller was cancelled, once its tool's thread has ended.

        A loop that ends cancels this task too: it goes on all the same, or the outcome would be lost.
        """
        await until_done(thread)
        reply = _thread_reply(thread)
        try:
            await self._drive(script, lambda s: s.send(reply), hands)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - there is no caller left to raise it to
            logger.warning("a call ended after its caller was cancelled: %s", one_line(str(error)))
        finally:
            if ended:
                ended()

    async def _do(self, action: Action, hands: Hands) -> Any:
        match action:
            case Call():
                return await self._call(action, hands)
            case Probe():
                return await self._probe(action, hands)
            case Wait(duration_ns):
                return await asyncio.sleep(duration_ns / 1e9)
            case Append():
                return await self._append(action)
            case _:
                return await self._store_action(action)

    # --- the store ---------------------------------------------------------------------------------------------

    def _reads_at_once(self, action: Load) -> bool:
        """Count a read, and say whether it waits for nothing: neither for others' turn, nor for its own records."""
        self._reads += 1
        if self._is_remote or self._reads % READS_IN_A_ROW == 0:
            return False
        return not self._duty.waits(action.branch, action.step)

    async def _store_action(self, action: StoreAction) -> Any:
        if isinstance(action, Load):
            if self._reads % READS_IN_A_ROW == 0:
                await asyncio.sleep(0)
            if self._duty.waits(action.branch, action.step):
                await self._flush(action.branch)
        if not self._is_remote:
            return self._duty.do(action)
        if isinstance(action, Load) and action.generation is None:
            view = self._duty.store.remembered(action.branch, action.step)
            if view is not None:
                return view
        return await _to_its_end(asyncio.get_running_loop().run_in_executor(self._lookers, self._duty.do, action))

    async def _flush(self, branch: str | None) -> None:
        """Write the EVENTUAL records of one branch, or of all. Raises what keeps them from being written."""
        members = self._duty.flushing(branch, self._batches.join)
        cancelled = [await self._landed(member) for member in members]
        for error in cancelled:
            if error is not None:
                raise error
        for member in members:
            member.result()

    async def _landed(self, member: Member) -> asyncio.CancelledError | None:
        """Wait until a member is committed, however often the waiter is cancelled: a record's fate comes first.

        Returns:
            The last cancellation, if there was one.
        """
        cancelled: asyncio.CancelledError | None = None
        while not member.is_done:
            try:
                await self._batches.landing(member)
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    async def _append(self, entry: Append) -> Appended | Refused | Deferred:
        cancelled: asyncio.CancelledError | None = None
        if self._batches.is_full:
            try:
                await self._batches.room()
            except asyncio.CancelledError as error:
                raise Interrupted(None, error) from None
        if self._duty.meets(entry):
            await self._flush(entry.branch)
        member = self._duty.admit(entry, self._batches.join)
        if member is None:
            return Deferred()
        self._reads = 0  # others have their turn now; who reads before each append must not fall behind its batch
        try:
            await self._batches.landing(member)
        except asyncio.CancelledError as error:
            cancelled = await self._landed(member) or error
        reply = self._duty.reply(entry, member)
        if cancelled is not None:
            raise Interrupted([reply] if isinstance(reply, Appended | Refused) else None, cancelled) from None
        return reply

    async def _call(self, action: Call, hands: Hands) -> Returned | Raised | NotMade:
        if not hands.is_async:
            return await self._call_in_thread(action, hands)
        hindered = hindrance(action, self._clock, self._duty.store)
        if hindered:
            return hindered
        limit = self._limits.begin(hands.time_limit_s)
        try:
            value = await hands.call_async(action)
        except BaseException as error:  # noqa: BLE001 - whatever ended the call is the reply
            reply: Returned | Raised = Raised(its_own(limit.told(error)), at_limit=limit.is_exceeded)
        else:
            limit.over()
            reply = Returned(value)
        failpoints.reached(failpoints.AFTER_CALL)
        return reply

    async def _call_in_thread(self, action: Call, hands: Hands) -> Returned | Raised | NotMade:
        def call() -> Any:
            hindered = hindrance(action, self._clock, self._duty.store)
            if hindered:
                return hindered
            box, raised = Made(), None
            try:
                hands.call(action, box)
            except BaseException as error:  # noqa: BLE001 - whatever ended the call is the reply
                raised = error
            failpoints.reached(failpoints.AFTER_CALL)
            return made(action, box, raised)

        context = contextvars.copy_context()
        thread = asyncio.get_running_loop().run_in_executor(self._callers, context.run, call)
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError as cancelled:
            raise _StillCalling(thread, cancelled) from None
        return _thread_reply(thread)

    async def _probe(self, action: Probe, hands: Hands) -> Probed:
        recorded = await self._store_action(Fetch(action.arguments_seq))
        started = self._clock.now()
        asked = asyncio.get_running_loop().run_in_executor(self._callers, hands.probe, action, recorded)
        try:
            found = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(_close_unawaited)
            raise
        answer: Found = await found if inspect.iscoroutine(found) else found
        return probed(answer, started)


def _close_unawaited(asked: asyncio.Future[Any]) -> None:
    """Close the coroutine of an async probe that nobody waits for any more."""
    if not asked.cancelled() and asked.exception() is None and inspect.iscoroutine(asked.result()):
        asked.result().close()


def _thread_reply(thread: asyncio.Future[Any]) -> Returned | Raised | NotMade:
    error = thread.exception()
    if error is not None:
        return Raised(error)
    reply: Returned | NotMade = thread.result()
    return reply


async def until_done(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for a future however often the waiter is cancelled; answers the last cancellation, if there was one."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def _learnt(future: asyncio.Future[Any]) -> Any:
    """A future's result, however often the waiter is cancelled. Raises what it raises."""
    await until_done(future)
    return future.result()


async def _to_its_end(future: asyncio.Future[ResultT]) -> ResultT:
    """A future's result; a cancellation is raised only after it has ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _learnt(future)
        raise
