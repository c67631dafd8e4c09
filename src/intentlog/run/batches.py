"""What the tasks of an event loop append, committed in batches: the loop owns the queue.

One batch is committed at a time, by one writer's thread, which wakes the loop once for all of it. A batch of one or two
records is committed on the loop itself, as long as such a commit takes less than a millisecond.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from intentlog.run.duty import Duty
from intentlog.run.group import Member, size_of, take
from intentlog.run.signals import held_back

QUEUE_MAX = 16_384  # records that wait for a commit; who comes then waits for room
INLINE_RECORDS_MAX = 2
INLINE_COMMIT_S = 0.001  # as long may the loop stand still; two wake-ups cost a fifth to a half of it
TAKEN_FOR_SLOW_S = 0.004  # what a slower commit counts for: one burst must not keep the loop from trying again


class Batches:
    """The queue of one event loop. Used on its thread."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intentlog-writer")
        self._commit_s = 0.0  # how long a small commit takes: a moving mean
        self._queue: deque[Member] = deque()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Belong to the running loop. The tasks of the one before are gone; what was acknowledged to them waits on."""
        self._loop = asyncio.get_running_loop()
        self._duty.give_back([*self._queue])
        self._queue.clear()
        self._is_committing = False  # a batch is under way, or about to be taken
        self._room = asyncio.Event()
        self._room.set()

    def close(self) -> None:
        """Let the writer's thread go."""
        self._writer.shutdown(wait=False)

    @property
    def is_full(self) -> bool:
        """Whether who comes has to wait for room."""
        return len(self._queue) >= QUEUE_MAX

    async def room(self) -> None:
        """Wait until the queue has room."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def join(self, member: Member) -> None:
        """Let a member into the next batch."""
        self._queue.append(member)
        if not self._is_committing:
            self._is_committing = True
            self._loop.call_soon(self._launch, self._loop)

    def landing(self, member: Member) -> asyncio.Future[None]:
        """Done when a member that has joined is committed; if it is cancelled with who waits for it, to be had anew."""
        if member.landing is None or member.landing.done():
            member.landing = self._loop.create_future()
        return member.landing

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit what waits: here, if that is quick, else on the writer's thread."""
        if loop is not self._loop:
            return  # left over by a loop that is gone
        batch = take(self._queue)
        is_small = size_of(batch) <= INLINE_RECORDS_MAX and not self._duty.store.is_remote
        is_quick = is_small and self._commit_s <= INLINE_COMMIT_S
        self._room.set()
        if not batch:
            self._is_committing = False
        elif is_quick and not self._duty.store.upkeep_due:
            try:
                with held_back():
                    self._commit(batch)
            finally:
                self._landed(batch)
        else:
            self._writer.submit(self._commit_and_wake, batch, self._loop)

    def _commit(self, batch: list[Member]) -> None:
        started = time.perf_counter()
        try:
            self._duty.commit(batch)
        except BaseException as error:  # noqa: BLE001 - each waiter is told; here is nobody to raise it to
            for member in batch:
                if not member.is_done:
                    member.error = error
        if size_of(batch) <= INLINE_RECORDS_MAX:
            took_s = min(time.perf_counter() - started, TAKEN_FOR_SLOW_S)
            self._commit_s += (took_s - self._commit_s) / 8

    def _commit_and_wake(self, batch: list[Member], loop: asyncio.AbstractEventLoop) -> None:
        self._commit(batch)
        with suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            loop.call_soon_threadsafe(self._landed, batch)
        self._duty.upkeep()  # nobody waits for it but the next batch

    def _landed(self, batch: list[Member]) -> None:
        """Wake all who wait for the batch, and take the next one when they had their turn."""
        for member in batch:
            if member.landing is not None and not member.landing.done():
                member.landing.set_result(None)
        self._loop.call_soon(self._launch, self._loop)
