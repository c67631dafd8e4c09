"""Threads that take turns in reading: the one that reads a call makes it, while the next one reads on.

So a call waits for no other thread between its reading and its sending: that would cost it more than all that the guard
does itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Generic, TypeVar

from intentlog.mcp.lines import complain

CallT = TypeVar("CallT")


class Turns(Generic[CallT]):
    """Reads lines, and makes the calls in them, on threads of its own.

    Args:
        lines: read by one thread at a time.
        take: takes a line, on the thread that reads; answers the calls that it begins.
        make: makes one, on a thread that nothing else needs.
        making_max: how many are made at once; further ones wait for a thread.
    """

    def __init__(
        self,
        lines: Iterator[bytes],
        take: Callable[[bytes], list[CallT]],
        make: Callable[[CallT], None],
        making_max: int,
    ) -> None:
        self._lines = lines
        self._take = take
        self._make = make
        self._making_max = making_max
        self._making = 0
        self._lock = Lock()
        self._all_read = Future[None]()
        self._pool = ThreadPoolExecutor(making_max + 1, "intentlog-mcp-call")  # and one that reads

    def read(self) -> None:
        """Read until the lines end. Raises what the reading raises; calls may still be under way."""
        self.do(self._read)
        self._all_read.result()

    def do(self, what: Callable[..., None], *arguments: Any) -> None:
        """Do something else, on a thread of its own."""
        self._pool.submit(what, *arguments).add_done_callback(_told_if_failed)

    def wait(self) -> None:
        """Wait until all that was begun has ended."""
        self._pool.shutdown()

    def _read(self) -> None:
        own: CallT | None = None
        try:
            for line in self._lines:
                own = self._begin(self._take(line))
                if own is not None:
                    self.do(self._read)
                    break
            else:
                self._all_read.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised where the reading is waited for
            self._all_read.set_exception(error)
        if own is not None:
            self._make_one(own)

    def _begin(self, calls: list[CallT]) -> CallT | None:
        """Give calls to threads; answers the one that this thread is to make, if another one is there to read on."""
        if not calls:
            return None
        with self._lock:
            self._making += len(calls)
            has_reader = self._making <= self._making_max
        for call in calls[has_reader:]:
            self.do(self._make_one, call)
        return calls[0] if has_reader else None

    def _make_one(self, call: CallT) -> None:
        try:
            self._make(call)
        finally:
            with self._lock:
                self._making -= 1


def _told_if_failed(done: Future[None]) -> None:
    """What should not be is told: a client may wait for an answer."""
    if (error := done.exception()) is not None:
        complain(f"internal: {type(error).__name__}: {error}")
