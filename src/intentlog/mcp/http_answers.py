"""How a call over HTTP is answered: in the stream that its server began, or in one piece."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from intentlog.log.values import Call
from intentlog.mcp import messages
from intentlog.mcp.events import CONTENT_TYPE, data_of, event_of
from intentlog.mcp.guard import Guard
from intentlog.mcp.http_calls import Flight, Head, Streams, events_of, frame_in
from intentlog.mcp.messages import Frame
from intentlog.mcp.sending import Reply, Unanswered
from intentlog.mcp.upstream import Asked, Upstream, is_stream

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

ASK_LIMIT_S = 30.0
DELIVERY_LIMIT_S = 1.0  # of an answer in doubt, to a client that may have gone
ENDED = "the guard was ended"
CALLS_MAX = 1024  # threads; further calls wait for one


class Calls:
    """Has calls made by the guard, and answers them. Used by one event loop.

    Args:
        guard: guards them.
        upstream: the server.
        streams: what comes in its streams.
    """

    def __init__(self, guard: Guard, upstream: Upstream, streams: Streams) -> None:
        self._guard = guard
        self._upstream = upstream
        self._streams = streams
        self._pool = ThreadPoolExecutor(CALLS_MAX, "intentlog-mcp-call")

    async def answer(self, flight: Flight, receive: Receive, send: Send) -> None:
        """Let a call be made, and answer it. Where its client leaves, it is recorded all the same."""
        loop = asyncio.get_running_loop()
        performing = loop.run_in_executor(self._pool, self._perform, flight, loop)
        performing.add_done_callback(lambda _: self._streams.ended(flight))
        delivering = asyncio.ensure_future(self._deliver(flight, performing, send))
        left = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({delivering, left}, return_when=asyncio.FIRST_COMPLETED)
            if not delivering.done():
                delivering.cancel()
                flight.leave()
                if flight.way is not None:
                    await asyncio.to_thread(self._guard.leave, flight.way)
                if flight.session is None:  # in a session, what breaks can be taken up again
                    flight.cancel("its client closed the stream")
        except asyncio.CancelledError:
            flight.cancel(ENDED)
        left.cancel()
        await self._recorded(flight, performing)
        await asyncio.wait({delivering}, timeout=DELIVERY_LIMIT_S if flight.is_given_up else None)
        if not delivering.done():
            delivering.cancel()
            await asyncio.wait({delivering})
        told = not delivering.cancelled() and delivering.exception() is None
        if flight.way is not None:
            await asyncio.to_thread(self._guard.was_told, flight.way, told=told)
        if not told:
            self._streams.keep(flight)

    async def _recorded(self, flight: Flight, performing: asyncio.Future[bytes]) -> None:
        """Wait until what became of a call is recorded; when the guard is ended, that is a doubt."""
        while not performing.done():
            try:
                await asyncio.wait({performing})
            except asyncio.CancelledError:
                flight.cancel(ENDED)

    async def close(self) -> None:
        """Wait for the calls that are being made."""
        await asyncio.to_thread(self._pool.shutdown)

    def _perform(self, flight: Flight, loop: asyncio.AbstractEventLoop) -> bytes:
        """Let the guard make a call. Runs in a thread."""

        def send(message: bytes, headers: Mapping[str, str], about: Call) -> Reply:
            asked = _with(flight.asked, message, headers)
            exchange = flight.exchange(self._upstream, self._streams, asked, about)
            return asyncio.run_coroutine_threadsafe(exchange, loop).result()

        def ask(method: str, params: dict[str, Any]) -> Frame:
            asking = asyncio.wait_for(asked_of(self._upstream, flight.asked, method, params), ASK_LIMIT_S)
            try:
                return asyncio.run_coroutine_threadsafe(asking, loop).result()
            except TimeoutError as error:
                raise Unanswered(f"the server does not answer {method}") from error

        flight.way = way = self._guard.way(flight.call, send, ask)
        way.is_left = way.is_alone = flight.is_left
        branch = None if flight.session is None else blake2b(flight.session, digest_size=12).hexdigest()
        return self._guard.answer(way, branch)

    async def _deliver(self, flight: Flight, performing: asyncio.Future[bytes], send: Send) -> None:
        """Tell the client, as the server does."""
        begun: set[asyncio.Future[Any]] = {flight.head, performing}
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        if not flight.head.done():
            await self._deliver_whole(flight, await performing, send)
            return
        await send(start(flight.head.result()))
        while not performing.done():
            event = asyncio.ensure_future(flight.events.get())
            next_one: set[asyncio.Future[Any]] = {event, performing}
            try:
                await asyncio.wait(next_one, return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    await send(more(event.result()))
            finally:
                event.cancel()
        while not flight.events.empty():
            await send(more(flight.events.get_nowait()))
        flight.pass_nothing_on()
        await send(more(self._end_of(flight, performing.result()), last=True))

    def _end_of(self, flight: Flight, answer: bytes) -> bytes:
        """What a stream ends with."""
        if flight.last is not None:
            return flight.last
        if flight.is_elsewhere or (flight.is_given_up and flight.is_resumable):
            return b""
        flight.is_answered = True
        return event_of(answer)

    async def _deliver_whole(self, flight: Flight, answer: bytes, send: Send) -> None:
        whole = flight.whole
        if whole is not None and not flight.is_given_up:
            await send(start(whole.head))
            await send(more(whole.body, last=True))
            return
        flight.is_answered = True
        accepted = flight.asked.header(b"accept") or b"application/json"
        if b"json" in accepted or b"*/*" in accepted:
            await tell(send, 200, answer)
        else:
            await send(start(Head(200, [(b"content-type", CONTENT_TYPE.encode())])))
            await send(more(event_of(answer), last=True))


def _with(asked: Asked, message: bytes, headers: Mapping[str, str]) -> Asked:
    """The request, with another body and headers set besides."""
    named = {name.lower().encode(): value.encode() for name, value in headers.items()}
    kept = [
        (name, _but(value, named) if name == b"connection" else value)
        for name, value in asked.headers
        if name not in named
    ]
    return msgspec.structs.replace(asked, headers=[*kept, *named.items()], body=message)


def _but(words: bytes, named: Mapping[bytes, bytes]) -> bytes:
    """What a client says of its connection, but for the headers that are the guard's: they are not the connection's."""
    return b",".join(word for word in words.split(b",") if word.strip().lower() not in named)


async def asked_of(upstream: Upstream, asked: Asked, method: str, params: dict[str, Any]) -> Frame:
    """Ask the server something of the guard's own, as the client of a request would.

    Raises:
        NotReached, Unanswered: it did not answer.
    """
    message = messages.request(f"intentlog:{secrets.token_hex(8)}", method, Raw(msgspec.json.encode(params)))
    named = {"Mcp-Method": method, "Mcp-Name": params["taskId"]} if asked.header(b"mcp-method") else {}
    async with upstream.answering(_with(asked, message, named)) as response:
        if not is_stream(response):
            frame = frame_in(await response.aread())
            if frame is not None and frame.is_reply:
                return frame
            raise Unanswered(f"HTTP {response.status_code}")
        async for event in events_of(response):
            frame = frame_in(data_of(event))
            if frame is not None and frame.is_reply:
                return frame
    raise Unanswered(f"no reply to {method}")


async def gone(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def start(head: Head) -> dict[str, Any]:
    """How an answer begins."""
    return {"type": "http.response.start", "status": head.status, "headers": list(head.headers)}


def more(body: bytes, *, last: bool = False) -> dict[str, Any]:
    """A piece of an answer."""
    return {"type": "http.response.body", "body": body, "more_body": not last}


async def tell(send: Send, status: int, message: bytes) -> None:
    """Answer with a message of the guard's own."""
    await send(start(Head(status, [(b"content-type", b"application/json")])))
    await send(more(message, last=True))
