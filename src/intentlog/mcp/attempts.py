"""The attempts that a guard has open: one for each branch, from its first call until it ends or needs the room."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Lock
from weakref import WeakValueDictionary

from intentlog.errors import BranchBusy, Fenced, IntentLogError
from intentlog.log.sync import Attempt, Log

OPEN_MAX = 1000
"""Sessions come and go. The attempt of one that was not heard of for longest is closed, and opened again if need be."""


class Attempts:
    """Open attempts by branch. Safe from any thread.

    Args:
        log: the log.
        wait: how long to wait for a branch that a living owner holds: another guard that is just being ended.
    """

    def __init__(self, log: Log, wait: timedelta) -> None:
        self._log = log
        self._wait = wait
        self._open: OrderedDict[str, Attempt] = OrderedDict()
        self._used: Counter[str] = Counter()
        self._busy: dict[str, tuple[float, BranchBusy]] = {}  # when a branch was found to be held
        self._opening: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._lock = Lock()

    @contextmanager
    def of(self, branch: str) -> Generator[Attempt]:
        """The open attempt of a branch, opened now if it is the first call there.

        Raises:
            BranchBusy: a living owner holds it. And what the log raises.
        """
        attempt = self._taken(branch)
        if attempt is None:
            asked_s = time.monotonic()
            with self._lock:
                turn = self._opening.setdefault(branch, Lock())
            with turn:  # of this branch's calls alone: others do not wait
                attempt = self._taken(branch) or self._opened(branch, asked_s)
        try:
            yield attempt
        except Fenced:  # for good: its branch can be opened again, if nobody has it
            self._drop(branch, attempt)
            raise
        finally:
            with self._lock:
                self._used[branch] -= 1

    def _drop(self, branch: str, attempt: Attempt) -> None:
        with self._lock:
            if self._open.get(branch) is not attempt:
                return
            del self._open[branch]
        with suppress(IntentLogError):  # that it was overtaken is known
            attempt.__exit__(None, None, None)

    def _taken(self, branch: str) -> Attempt | None:
        """The attempt of a branch, if it is open, counted as used."""
        with self._lock:
            if branch not in self._open:
                return None
            self._open.move_to_end(branch)
            self._used[branch] += 1
            return self._open[branch]

    def _opened(self, branch: str, asked_s: float) -> Attempt:
        found_s, busy = self._busy.get(branch, (0.0, None))
        if busy is not None and found_s > asked_s:  # another call has waited meanwhile, in vain
            raise busy
        try:
            attempt = self._log.attempt(branch, wait=self._wait, revisits=False).__enter__()
        except BranchBusy as error:
            self._busy[branch] = time.monotonic(), error
            raise
        self._busy.pop(branch, None)
        with self._lock:
            self._open[branch] = attempt
            self._used[branch] += 1
            self._make_room()
        return attempt

    def is_open(self, branch: str) -> bool:
        """Whether the attempt of a branch is open here."""
        with self._lock:
            return branch in self._open

    def _make_room(self) -> None:
        if len(self._open) > OPEN_MAX:
            unused = next((branch for branch in self._open if not self._used[branch]), None)
            if unused is not None:
                del self._used[unused]
                self._open.pop(unused).__exit__(None, None, None)

    def close(self) -> list[IntentLogError]:
        """Close them all. What kept one from being closed, its next opening finds out by itself; it is told."""
        found: list[IntentLogError] = []
        with self._lock:
            attempts = list(self._open.values())
            self._open.clear()
        for attempt in attempts:
            try:
                attempt.__exit__(None, None, None)
            except IntentLogError as error:
                found.append(error)
        return found
