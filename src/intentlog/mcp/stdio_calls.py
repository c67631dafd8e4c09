"""The calls between pipes while they are made, and who waits for which reply."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock

from msgspec import UNSET

from intentlog.mcp.batches import Batch, Tell
from intentlog.mcp.calls import ToolCall
from intentlog.mcp.messages import LIST, Frame, KnownBy, known_by, members_of, text_of
from intentlog.mcp.sending import Reply, Sending
from intentlog.mcp.tasks import CANCEL, GET, RESULT

CALLS_MAX = 1024  # threads; further calls wait for one
LEFT_MAX = 10_000

Answer = Callable[[bytes | None, Tell], None]
"""Answers a call's client, or lets it be known that it is not answered; and tells whether it was."""


class InFlight:
    """A call from when it was read until its client is answered."""

    def __init__(self, call: ToolCall, answer: Answer) -> None:
        self.call = call
        self.answer = answer
        self.replies: SimpleQueue[Reply | str] = SimpleQueue()  # the reply, or why there will be none
        self.lock = Lock()
        self.ended = Event()
        self.is_sent = False
        self.is_cancelled = False
        self.way: Sending | None = None
        self.is_given_up = False  # its client is answered without a reply


class Waiting:
    """Who waits for which reply of the server.

    Attributes:
        calls: those that are being made, and those that were given up and may still be answered.
        passed: requests that are no calls, which were passed on and may still be answered.
        batched: the batch of the client's that a request stood in.
        lists: which requests ask for a page of tools, and whether it begins the list.
        told: which ask for a task, and what.
        asked: who waits for the answer to a request of the guard's own.
    """

    def __init__(self) -> None:
        self.calls: dict[KnownBy, InFlight] = {}
        self.passed: dict[KnownBy, bool] = {}
        self.batched: dict[KnownBy, Batch] = {}
        self.lists: dict[KnownBy, bool] = {}
        self.told: dict[KnownBy, tuple[str, str]] = {}
        self.asked: dict[str, SimpleQueue[Frame]] = {}

    @property
    def anything(self) -> bool:
        """Whether a reply is waited for that has to be recorded, or is the guard's own."""
        return bool(self.calls or self.asked or self.told)

    def pass_by(self, request: Frame) -> None:
        """A request passes that is no call. Note what the answer to it will tell of tools and tasks."""
        if request.method is UNSET:  # the answer to a request of the server's
            return
        self.passed[known_by(request.id)] = True
        if len(self.passed) > LEFT_MAX:
            self.passed.pop(next(iter(self.passed)), None)
        if request.method == LIST:
            self.lists[known_by(request.id)] = "cursor" not in members_of(request.params)
        elif request.method in (GET, RESULT, CANCEL):
            task = text_of(members_of(request.params).get("taskId"))
            if task is not None:
                self.told[known_by(request.id)] = task, request.method

    def make_room(self) -> None:
        """Of calls that were given up, and that the server may still answer, so many are remembered."""
        if len(self.calls) > CALLS_MAX + LEFT_MAX:
            oldest = next((key for key, flight in list(self.calls.items()) if flight.is_given_up), None)
            if oldest is not None:
                self.calls.pop(oldest, None)

    def is_for(self, id_: object) -> bool:
        """Whether somebody waits for a reply with this id."""
        key = known_by(id_)
        return key in self.told or (key[0] and key[1] in self.asked) or self.flight_like(id_) is not None

    def flight_like(self, id_: object) -> InFlight | None:
        """The call that a reply with this id could be for: there are clients to which `"1"` is `1`."""
        sent = (flight for flight in list(self.calls.values()) if flight.is_sent)
        return next((flight for flight in sent if str(flight.call.id) == str(id_)), None)


class Once:
    """Does something when it is called for the first time."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what: Callable[[], None] | None = what

    def __call__(self) -> None:
        """Do it, if it was not done."""
        what, self._what = self._what, None
        if what is not None:
            what()
