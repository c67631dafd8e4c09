"""Time limits of the calls on one event loop. A timer of its own for each call is what `asyncio.timeout` costs.

Calls of one limit end it in the order in which they began: one timer, for the oldest of them, serves them all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Limit:
    """The time limit of one call: `over` when it has ended, `told` for what it raised."""

    __slots__ = ("_asked_before", "_others", "deadline_s", "is_exceeded", "task")

    def __init__(self, task: asyncio.Task[object], deadline_s: float, others: OrderedDict[Limit, None]) -> None:
        self.task = task
        self.deadline_s = deadline_s  # of the loop's clock
        self.is_exceeded = False
        self._asked_before = task.cancelling()
        self._others = others
        others[self] = None

    def over(self) -> None:
        """The call has returned; a cancellation by this limit that came just then is taken back."""
        if self.is_exceeded:
            self.task.uncancel()
        else:
            del self._others[self]

    def told(self, error: BaseException) -> BaseException:
        """The call has raised: the error, or `TimeoutError` where this limit's cancellation is all that came out."""
        if not self.is_exceeded:
            del self._others[self]
            return error
        if self.task.uncancel() > self._asked_before or not isinstance(error, asyncio.CancelledError):
            return error  # somebody else cancelled it too, or it said something of its own
        exceeded = TimeoutError()
        exceeded.__cause__ = error
        return exceeded


class Limits:
    """The calls that run, by their limit. Used on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: dict[float, OrderedDict[Limit, None]] = {}

    def begin(self, limit_s: float) -> Limit:
        """Begin a call of the running task: when so many seconds are over, its task is cancelled."""
        task = asyncio.current_task(self._loop)
        if task is None:
            msg = "a call outside a task"
            raise AssertionError(msg)
        running = self._running.get(limit_s)
        if running is None:
            running = self._running[limit_s] = OrderedDict()
            self._loop.call_later(limit_s, self._exceed, limit_s)
        return Limit(task, self._loop.time() + limit_s, running)

    def _exceed(self, limit_s: float) -> None:
        """Cancel those whose time is up, and come again for the oldest of the others."""
        running = self._running[limit_s]
        while running:
            oldest = next(iter(running))
            if oldest.deadline_s > self._loop.time():
                self._loop.call_at(oldest.deadline_s, self._exceed, limit_s)
                return
            del running[oldest]
            oldest.is_exceeded = True
            oldest.task.cancel()
        del self._running[limit_s]
