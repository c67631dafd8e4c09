"""Something that is done once nothing else was for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Thread


class WhenQuiet:
    """Does something on a thread of its own, once it was not asked for again for a while. Safe from any thread.

    Args:
        what: is done; raises nothing.
        quiet_s: for how long nothing was asked for, in seconds.
    """

    def __init__(self, what: Callable[[], None], quiet_s: float) -> None:
        self._what = what
        self._quiet_s = quiet_s
        self._due: float | None = None
        self._is_closed = False
        self._changed = Condition()
        self._thread: Thread | None = None

    def ask(self) -> None:
        """Let it be done, unless it is asked for again before."""
        with self._changed:
            is_idle, self._due = self._due is None, time.monotonic() + self._quiet_s
            if self._thread is None:
                self._thread = Thread(target=self._run, name="intentlog-mcp-quiet", daemon=True)
                self._thread.start()
            elif is_idle:
                self._changed.notify()

    def close(self) -> None:
        """Do it no more. What is being done is waited for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._is_due():
            self._what()

    def _is_due(self) -> bool:
        """Wait until it is to be done. False: it is to be done no more."""
        with self._changed:
            while not self._is_closed:
                left_s = None if self._due is None else self._due - time.monotonic()
                if left_s is not None and left_s <= 0:
                    self._due = None
                    return True
                self._changed.wait(left_s)
            return False
