"""One call between pipes, while it is made."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock

from intentlog.mcp.calls import ToolCall
from intentlog.mcp.sending import Reply, Sending


class InFlight:
    """A call from when it was read until its client is answered."""

    def __init__(self, call: ToolCall, answer: Callable[[bytes], None]) -> None:
        self.call = call
        self.answer = answer
        self.replies: SimpleQueue[Reply | str] = SimpleQueue()  # the reply, or why there will be none
        self.lock = Lock()
        self.ended = Event()
        self.is_sent = False
        self.is_cancelled = False
        self.way: Sending | None = None
        self.is_given_up = False  # its client is answered without a reply


class Once:
    """Does something when it is called for the first time."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what: Callable[[], None] | None = what

    def __call__(self) -> None:
        """Do it, if it was not done."""
        what, self._what = self._what, None
        if what is not None:
            what()
