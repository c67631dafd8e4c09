"""The guard between a client and a server over HTTP: every request passes, but for calls, which the guard sends.

An application of ASGI. Any POST may bring a call, whatever its path: one that no reader of JSON could take for a call
passes, and one that only some would take for one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import UNSET

from intentlog.mcp import messages
from intentlog.mcp.calls import Malformed, ToolCall
from intentlog.mcp.events import data_of, type_of
from intentlog.mcp.guard import Guard
from intentlog.mcp.http_answers import Calls, Receive, Scope, Send, gone, more, start, tell
from intentlog.mcp.http_calls import BYTES_MAX, Flight, Head, Streams, events_of, frame_in
from intentlog.mcp.lines import complain
from intentlog.mcp.messages import CALL, CANCELLED, LIST, Frame, Unreadable, members_of, text_of
from intentlog.mcp.sending import NotReached, Unanswered
from intentlog.mcp.tasks import CANCEL as CANCEL_TASK
from intentlog.mcp.tasks import GET, RESULT
from intentlog.mcp.upstream import Asked, LedPast, Upstream, is_stream

SESSION = b"mcp-session-id"
_TELLING = (LIST, GET, RESULT, CANCEL_TASK)
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_WIDE = (b"\xfe\xff", b"\xff\xfe")  # how UTF-16 and UTF-32 begin
_MARKS = b"\xef\xbb\xbf \t\r\n"
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")
"""What a POST may bring besides JSON: where a client asks for a token."""


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, code: int, why: str, id_: object = None) -> None:
        super().__init__(why)
        self.id = id_
        self.status = status
        self.code = code


class Application:
    """Answers a server's clients in its place. Used by one event loop.

    Args:
        guard: guards the calls.
        upstream: the server.
        hosts: what `Host` may be, in lower case; None for anything.
    """

    def __init__(self, guard: Guard, upstream: Upstream, hosts: Iterable[str] | None) -> None:
        self._guard = guard
        self._upstream = upstream
        self._hosts = None if hosts is None else frozenset(hosts)
        self._streams = Streams(guard)
        self._calls = Calls(guard, upstream, self._streams)
        self._open: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; or begin and end with the process."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            asked = await self._asked(scope, receive)
            frame = self._judged(asked)
        except _Refused as refused:
            await tell(send, refused.status, messages.failure(refused.id, refused.code, str(refused)))
            return
        if frame is not None and frame.method == CALL:
            await self._take(frame, asked, receive, send)
        else:
            await self._while_there(self._pass(frame, asked, send), receive)

    def end(self) -> None:
        """End the streams that would last as long as their clients."""
        for task in list(self._open):
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._calls.close()
        await self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})

    # --- what a request is -----------------------------------------------------------------------------------------

    async def _asked(self, scope: Scope, receive: Receive) -> Asked:
        """The request, whole.

        Raises:
            _Refused: it is not one that is passed on.
        """
        target: bytes = scope["raw_path"] or quote(scope["path"]).encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        if target[:7].lower() == b"http://":  # as to a proxy
            target = b"/" + target[7:].partition(b"/")[2]
        if not target.startswith(b"/") or b"#" in target:
            raise _Refused(400, messages.INVALID_REQUEST, "the request's target is no path")
        asked = Asked(scope["method"], target, [(name.lower(), value) for name, value in scope["headers"]])
        host = (asked.header(b"host") or b"").decode("latin-1").lower()
        if self._hosts is not None and host not in self._hosts:
            raise _Refused(403, messages.INVALID_REQUEST, f"the guard is not called {host!r}")
        if asked.method not in _METHODS:
            raise _Refused(405, messages.INVALID_REQUEST, f"{asked.method} is not passed on")
        if (asked.header(b"content-encoding") or b"identity").strip().lower() not in (b"", b"identity"):
            raise _Refused(415, messages.INVALID_REQUEST, "the guard reads no compressed requests")
        body = bytearray()
        is_more = True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, messages.INVALID_REQUEST, "the client left in the middle of it")
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
            if len(body) > BYTES_MAX:
                raise _Refused(413, messages.INVALID_REQUEST, f"more than {BYTES_MAX} bytes")
        if body and asked.method != "POST":
            raise _Refused(400, messages.INVALID_REQUEST, f"a {asked.method} brings nothing")
        return msgspec.structs.replace(asked, body=bytes(body))

    def _judged(self, asked: Asked) -> Frame | None:
        """The message that a request brings, or None if it brings none.

        Raises:
            _Refused: a reader could take it for a call that this one does not see.
        """
        if not asked.body:
            return None
        form = (asked.header(b"content-type") or b"").partition(b";")[0].strip().lower() in _FORMS
        is_elsewhere = asked.target.partition(b"?")[0].decode("latin-1") != self._upstream.path
        is_wide = b"\0" in asked.body[:4] or asked.body.startswith(_WIDE)  # where JSON may be written so
        if form and is_elsewhere and not is_wide and not asked.body.lstrip(_MARKS).startswith((b"{", b"[")):
            return None  # no reader of JSON finds anything in it
        try:
            read = messages.read_frame(asked.body)
            if not isinstance(read, list):
                return read
            inner = [messages.read_frame(bytes(part)) for part in read]
            if any(isinstance(one, list) or (one is not None and one.method == CALL) for one in inner):
                raise _Refused(400, messages.INVALID_REQUEST, "send each tools/call by itself, not in a batch")
            for one in inner:
                if isinstance(one, Frame) and one.method == CANCELLED:
                    self._cancel(asked.header(SESSION), one)
        except Unreadable as error:
            raise _Refused(400, messages.PARSE_ERROR, f"Parse error: {error}", messages.id_in(asked.body)) from error
        return None

    async def _take(self, frame: Frame, asked: Asked, receive: Receive, send: Send) -> None:
        """Let a call be made. One that could not be answered is not made; one that reads passes."""
        if frame.id is UNSET or frame.id is None:
            why = "a tools/call without an id is not sent: nobody could be told what became of it"
            await tell(send, 400, messages.failure(None, messages.INVALID_REQUEST, why))
            return
        try:
            call = ToolCall(frame)
        except Malformed as error:
            await tell(send, 200, messages.failure(frame.id, messages.INVALID_PARAMS, f"Invalid params: {error}"))
            return
        if self._guard.passes(call):
            read = msgspec.structs.replace(asked, body=call.as_it_came())
            await self._while_there(self._pass(frame, read, send), receive)
            return
        flight = Flight(call, asked, asked.header(SESSION))
        if not self._streams.begun(flight):
            why = "a call with this id is under way"
            await tell(send, 200, messages.failure(frame.id, messages.INVALID_REQUEST, why))
            return
        await self._calls.answer(flight, receive, send)

    # --- what passes -----------------------------------------------------------------------------------------------

    async def _pass(self, frame: Frame | None, asked: Asked, send: Send) -> None:
        """Pass a request on, and its answer back."""
        session = asked.header(SESSION)
        if frame is not None and frame.method == CANCELLED:
            self._cancel(session, frame)
        begun = False
        try:
            async with self._upstream.answering(asked) as response:
                await send(start(Head(response.status_code, self._upstream.told(response))))
                begun = True
                if is_stream(response):
                    async for event in events_of(response):
                        if asked.method == "GET" and type_of(event) == b"endpoint":
                            complain("HTTP+SSE of 2024-11-05 is not guarded: name the server's streamable address")
                            break
                        heard = await self._streams.heard(session, event)
                        if heard.passes:
                            await self._learn(frame, data_of(event))
                            await send(more(event))
                        for flight in heard.flights if heard.passes else ():
                            await self._streams.told(flight)
                else:
                    await self._pass_whole(frame, response, send)
                await send(more(b"", last=True))
        except (NotReached, Unanswered, LedPast) as error:
            if begun:
                return  # what was begun is not ended: the client hears the break, as it would from the server
            await tell(
                send,
                502,
                messages.failure(
                    frame.id if frame is not None and frame.id is not UNSET else None,
                    messages.INTERNAL_ERROR,
                    str(error),
                ),
            )
        if asked.method == "DELETE" and session is not None:
            self._streams.close(session)

    async def _pass_whole(self, frame: Frame | None, response: httpx2.Response, send: Send) -> None:
        if frame is not None and frame.method in _TELLING:
            body = await response.aread()
            await self._learn(frame, body)
            await send(more(body))
            return
        async for chunk in response.aiter_bytes():
            await send(more(chunk))

    async def _learn(self, asked: Frame | None, text: bytes) -> None:
        """What the answer to a request tells of tools and tasks."""
        if asked is None or asked.method not in _TELLING:
            return
        reply = frame_in(text) or next((frame for frame, _ in messages.replies_in(text)), None)
        if reply is None or not reply.is_reply or reply.result is UNSET:
            return
        members = members_of(asked.params)
        if asked.method == LIST:
            self._guard.catalog.listed(reply.result, is_first="cursor" not in members)
        elif task := text_of(members.get("taskId")):
            await asyncio.to_thread(self._guard.tasks.heard, task, asked.method, reply)

    def _cancel(self, session: bytes | None, cancel: Frame) -> None:
        part = members_of(cancel.params).get("requestId")
        flight = self._streams.of(session, messages.value_of(part)) if part is not None else None
        if flight is not None:
            flight.cancel("the client cancelled it")

    async def _while_there(self, passing: Awaitable[None], receive: Receive) -> None:
        """Do it as long as the client is there: where it is gone, the server is hung up on."""
        task = asyncio.ensure_future(passing)
        left = asyncio.ensure_future(gone(receive))
        self._open.add(task)
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(task)
            left.cancel()
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()
