"""One call over HTTP: in which stream its reply comes, and how it is passed to its client once it is recorded.

Everything here runs in one event loop; the guard itself runs in a thread for each call.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import httpx2
from msgspec import UNSET, Raw, Struct

from intentlog.log.values import Call
from intentlog.mcp import messages
from intentlog.mcp.calls import ToolCall
from intentlog.mcp.events import Events, data_of, has_id
from intentlog.mcp.guard import Guard
from intentlog.mcp.lines import complain
from intentlog.mcp.messages import Frame, KnownBy, Unreadable, known_by
from intentlog.mcp.sending import CONTRADICTORY, NotReached, Reply, Sending, Unanswered, code_of
from intentlog.mcp.upstream import NOT_TAKEN, Asked, Headers, LedPast, Upstream, is_stream

BYTES_MAX = 128 << 20
"""Of one message."""
ACCEPTED = 202
SESSION_OVER = (404, -32001)
"""How servers say that they do not know the session, some of them with the id of the request."""
_HELD_MAX = 64  # events that a slow client has not taken yet
_LEFT_MAX = 10_000  # calls that were given up and may still be answered


class Head(Struct, frozen=True):
    """How an answer of HTTP begins."""

    status: int
    headers: Headers


class Whole(Struct, frozen=True):
    """An answer of HTTP in one piece."""

    head: Head
    body: bytes


class Flight:
    """A call, from when it was read until what became of it is recorded.

    Args:
        call: the call.
        asked: the request that it came in.
        session: its session's id, or None.

    Attributes:
        way: its way through the guard.
        reply: its reply; or NotReached or Unanswered.
        head: how the stream begins in which its answer comes, once that is known.
        events: what is to be passed on before the reply.
        last: the event that the reply is.
        whole: the answer, if it is no stream.
        ended: what became of it is recorded.
        is_elsewhere: its reply came in another stream, and is passed on there.
        is_resumable: the stream of its answer can be taken up again.
        is_answered: its client was told something in place of a reply.
        is_left: its client is gone.
    """

    def __init__(self, call: ToolCall, asked: Asked, session: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        self.call = call
        self.asked = asked
        self.session = session
        self.way: Sending | None = None
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self.head: asyncio.Future[Head] = loop.create_future()
        self.events: asyncio.Queue[bytes] = asyncio.Queue(_HELD_MAX)
        self.last: bytes | None = None
        self.whole: Whole | None = None
        self.ended = asyncio.Event()
        self.is_elsewhere = self.is_resumable = self.is_answered = self.is_left = False
        self._is_passed_on = True
        self._reading: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[bytes | None, KnownBy]:
        """What it is known by among its session's."""
        return self.session, known_by(self.call.id)

    @property
    def is_sent(self) -> bool:
        """Whether it may have reached the server."""
        return self._reading is not None

    @property
    def is_given_up(self) -> bool:
        """Whether it was sent, and its reply is waited for no more."""
        return self.reply.done() and isinstance(self.reply.exception(), Unanswered)

    def ends_with(self, error: NotReached | Unanswered) -> None:
        """No reply will come, or it is waited for no more. Changes nothing if one has come."""
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # perhaps nobody asks
            if self.way is not None:
                self.way.is_given_up = self.is_given_up

    def cancel(self, why: str) -> None:
        """It is not sent any more; if it was, its reply is waited for no more."""
        self.ends_with(Unanswered(why) if self.is_sent else NotReached(why))
        if self.session is None:
            self._hang_up()

    def leave(self) -> None:
        """Its client is gone."""
        self.is_left = True
        if self.way is not None:
            self.way.is_left = True
        self.pass_nothing_on()

    def pass_nothing_on(self) -> None:
        """Its client takes no events any more."""
        self._is_passed_on = False
        while not self.events.empty():
            self.events.get_nowait()

    async def exchange(self, upstream: Upstream, streams: Streams, asked: Asked, about: Call) -> Reply:
        """Send it, and wait for its reply.

        Args:
            upstream: the server.
            streams: what else comes in the stream of its answer is for them.
            asked: the request, with the guard's own members.
            about: says when its time is over.

        Raises:
            NotReached, Unanswered: as `Send` has it.
        """
        if not self.reply.done():
            self._reading = asyncio.create_task(self._read(upstream, streams, asked))
        try:
            async with asyncio.timeout(max(0.0, about.deadline - time.monotonic())):
                return await asyncio.shield(self.reply)
        except TimeoutError:
            error = Unanswered("no reply within its time limit")
            self.ends_with(error)
            if self.session is None:
                self._hang_up()
            else:
                said = messages.cancelled(self.call.id, "its time limit is over")
                self._telling = asyncio.create_task(upstream.tell(asked, said))  # a server that hangs takes its time
            raise error from None

    def _hang_up(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, upstream: Upstream, streams: Streams, asked: Asked) -> None:
        try:
            async with upstream.answering(asked) as response:
                head = Head(response.status_code, upstream.told(response))
                if is_stream(response):
                    await self._read_stream(streams, response, head)
                else:
                    await self._read_whole(streams, response, head)
        except (NotReached, Unanswered) as error:
            self.ends_with(error)
        except LedPast as error:
            self.ends_with((NotReached if error.status in NOT_TAKEN else Unanswered)(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, a call waits for its end
            complain(f"internal: {type(error).__name__}: {error}")
        finally:
            self.ends_with(Unanswered("the server's answer ended without a reply"))

    async def _read_whole(self, streams: Streams, response: httpx2.Response, head: Head) -> None:
        body = await response.aread()
        self.whole = Whole(head, body)
        reply = self._reply_in(body)
        is_over = reply is not None and (head.status, code_of(reply.frame)) == SESSION_OVER
        if reply is not None and not is_over:  # whatever the status, it says more
            await streams.came(self, reply)
        elif head.status in NOT_TAKEN:
            self.ends_with(NotReached(f"the server did not take it up: HTTP {head.status}"))
        elif head.status == ACCEPTED and self.session is not None:
            await asyncio.wait({self.reply})  # it comes in another stream of the session
        else:
            self.ends_with(Unanswered(f"the server's answer was HTTP {head.status}, and no reply"))

    async def _read_stream(self, streams: Streams, response: httpx2.Response, head: Head) -> None:
        self.head.set_result(head)
        async for event in events_of(response):
            self.is_resumable |= self.session is not None and has_id(event)
            reply = self._reply_in(data_of(event))
            if reply is not None:
                await streams.heard(self.session, event, but=self)  # in an array other calls' can stand beside it
                if reply.frame.is_contradictory:
                    self.is_resumable = False  # nothing further comes: its client is told here
                else:
                    self.last = event
                await streams.came(self, reply)
                return
            if (await streams.heard(self.session, event)).passes and self._is_passed_on:
                await self.events.put(event)

    def _reply_in(self, text: bytes) -> Reply | None:
        """The reply that a text is, or that some reader could take it for."""
        frame = frame_in(text)
        if frame is not None and frame.method is not UNSET and frame.result is UNSET and frame.error is UNSET:
            return None
        found = [frame] if frame is not None and frame.is_reply else [one for one, _ in messages.replies_in(text)]
        its = next((one for one in found if str(one.id) == str(self.call.id)), None)
        return Reply(its, text) if its is not None else None


class Heard(NamedTuple):
    """What came in a stream.

    Attributes:
        passes: whether it is to be passed on.
        flights: the calls that it replies to, if their clients could not be told of it before.
    """

    passes: bool
    flights: Sequence[Flight] = ()


class Streams:
    """What comes in a server's streams, and which calls it is for.

    Args:
        guard: hears of replies that come after their call was given up, and of lists that have changed.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._flights: OrderedDict[tuple[bytes | None, KnownBy], Flight] = OrderedDict()

    def begun(self, flight: Flight) -> bool:
        """A call begins. False if one of its id is under way in its session."""
        if flight.session is None:
            return True
        known = self._flights.get(flight.key)
        if known is not None and not known.ended.is_set():
            return False
        self._flights[flight.key] = flight
        self._flights.move_to_end(flight.key)
        return True

    def ended(self, flight: Flight) -> None:
        """What became of a call is recorded. If that is a doubt, its reply can still come."""
        flight.ended.set()
        if not flight.is_given_up and self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        while len(self._flights) > _LEFT_MAX and next(iter(self._flights.values())).ended.is_set():
            self._flights.popitem(last=False)

    def keep(self, flight: Flight) -> None:
        """The client of a call was gone before it could be told: perhaps it takes the stream up again."""
        if flight.session is not None and not flight.is_given_up:
            self._flights.setdefault(flight.key, flight)

    def of(self, session: bytes | None, id_: object) -> Flight | None:
        """The call of this id in a session, if it is under way or was given up."""
        return self._flights.get((session, known_by(id_))) if session is not None else None

    def close(self, session: bytes) -> None:
        """A session has ended: no reply can come in it any more."""
        for key in [key for key, flight in self._flights.items() if key[0] == session and flight.ended.is_set()]:
            del self._flights[key]

    async def came(self, flight: Flight, reply: Reply) -> None:
        """The reply to a call has come. When this returns it is recorded, and may be passed on."""
        if reply.frame.is_contradictory:
            flight.ends_with(Unanswered(CONTRADICTORY))
        elif not flight.reply.done():
            flight.reply.set_result(reply)
        await flight.ended.wait()
        if flight.is_given_up and flight.way is not None:
            await asyncio.to_thread(self._guard.late, flight.way, reply)
            self._flights.pop(flight.key, None)

    async def heard(self, session: bytes | None, event: bytes, *, but: Flight | None = None) -> Heard:
        """An event has come in a session. It is to be passed on, unless its client was told something else.

        Args:
            session: the session.
            event: the event.
            but: a call whose own stream it came in, and which has its reply from it already.
        """
        text = data_of(event)
        frame = frame_in(text)
        if b"list_changed" in text and messages.says(_read(text), messages.LIST_CHANGED):
            self._guard.catalog.changed()
        if session is None or (frame is not None and not frame.is_reply):
            return Heard(passes=True)
        replies = [(frame, text)] if frame is not None else messages.replies_in(text)
        flights: list[Flight] = []
        for reply, part in replies:
            flight = self.of(session, reply.id)
            if flight is None or not flight.is_sent or flight is but:  # a reply to what was not sent is another's
                continue
            flight.is_elsewhere = not reply.is_contradictory
            await self.came(flight, Reply(reply, part))
            flights.append(flight)
        untold = [one for one in flights if one.is_elsewhere and not one.is_answered]
        return Heard(not flights or bool(untold), untold)

    async def told(self, flight: Flight) -> None:
        """The client of a call took the stream up again, and has its reply now."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        if flight.way is not None:
            self._guard.has_it(flight.way)  # before its client can call again
            await asyncio.to_thread(self._guard.was_told, flight.way, told=True)


def frame_in(text: bytes) -> Frame | None:
    """The one message that a text is, or None."""
    read = _read(text)
    return read if isinstance(read, Frame) else None


def _read(text: bytes) -> Frame | list[Raw] | None:
    try:
        return messages.read_frame(text) if text else None
    except Unreadable:
        return None


async def events_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The events of a stream, as they came; what is left at its end too."""
    events = Events(BYTES_MAX)
    async for chunk in response.aiter_bytes():
        for event in events.feed(chunk):
            yield event
    if rest := events.rest():
        yield rest
