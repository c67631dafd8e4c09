"""The server behind a guard over HTTP: one request to it at a time, and what an answer of HTTP proves.

A request's headers pass as they came, but for those that are a connection's own. `Host` and `Origin` are the server's
where the client named the guard by them, and pass as they came where it named something else: the server's check
against DNS rebinding judges what the client was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec
from msgspec import Struct

from intentlog.errors import IntentLogError
from intentlog.mcp.events import CONTENT_TYPE
from intentlog.mcp.rules import NOT_SENT_HEADERS, OF_A_CONNECTION
from intentlog.mcp.sending import NotReached, Unanswered

Headers = Sequence[tuple[bytes, bytes]]
CONNECT_LIMIT_S = 10.0
IDLE_LIMIT_S = 2.0
"""How long an unused connection is kept: shorter than any server keeps it. One that the server is just closing would
swallow a call, and leave it in doubt."""
NOT_TAKEN = frozenset({307, 308, 400, 401, 403, 404, 405, 406, 407, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431})
"""Statuses by which a server of HTTP says that it has not taken a request up (RFC 9110, RFC 6585; the session's end in
MCP). 408, 409, 422 and every 5xx may come from the middle of it, or from a gateway that cannot know."""
_DECODED = frozenset({"gzip", "x-gzip", "deflate"})  # which come so though they were not asked for
_OF_ITS_CODING = frozenset({b"content-length", b"content-encoding"})


class UpstreamUnusable(IntentLogError):
    """The upstream's address is none. Nothing was started."""

    code = "upstream_unusable"
    default_remedy = "give the server's address as the client would be given it: --upstream http://HOST:PORT/mcp."


class LedPast(Exception):
    """The server redirects to a place where nothing would be guarded."""

    def __init__(self, status: int, place: str) -> None:
        super().__init__(f"the server redirects to {place}, past the guard: name that as --upstream")
        self.status = status


class Asked(Struct, frozen=True):
    """A request of HTTP, as it came from a client.

    Attributes:
        method: GET, POST and so on.
        target: path and query, as they came.
        headers: as they came, names in lower case.
        body: what it brought.
    """

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """A header's first value, or None."""
        return next((value for key, value in self.headers if key == name), None)


class Upstream:
    """A server that is reached by HTTP. Used by one event loop.

    Args:
        url: its address.
        names: what the guard itself is called in `Host`; in lower case.

    Raises:
        UpstreamUnusable: it is no address.
    """

    def __init__(self, url: str, names: Iterable[str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment or parts.query:
            raise UpstreamUnusable(f"{url!r} is not the address of a server")
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._base = httpx2.URL(url)
        self._own = frozenset(names)
        self.path = parts.path or "/"
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_LIMIT_S),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=IDLE_LIMIT_S),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # a client's are no other's
            follow_redirects=False,
        )
        self._client.headers.clear()

    @asynccontextmanager
    async def answering(self, asked: Asked) -> AsyncGenerator[httpx2.Response]:
        """Make a request; its answer has begun, and is read from within the block.

        Raises:
            NotReached: nothing has left.
            Unanswered: it may have arrived, and no answer began.
        """
        try:
            url = self._base.copy_with(raw_path=asked.target)
            request = self._client.build_request(
                asked.method, url, headers=self._sent(asked), content=asked.body or None
            )
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise NotReached(f"it cannot be passed on: {error}") from error
        try:
            response = await self._client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.LocalProtocolError) as error:
            raise NotReached(f"the server cannot be reached: {str(error) or type(error).__name__}") from error
        except httpx2.HTTPError as error:
            raise Unanswered(f"the connection to the server broke: {str(error) or type(error).__name__}") from error
        try:
            yield response
        except httpx2.HTTPError as error:
            raise Unanswered(f"the connection to the server broke: {str(error) or type(error).__name__}") from error
        finally:
            await response.aclose()

    async def tell(self, asked: Asked, message: bytes) -> None:
        """Send a notification in the session of a request. It is not told whether it arrived."""
        with suppress(NotReached, Unanswered, TimeoutError):
            async with asyncio.timeout(CONNECT_LIMIT_S), self.answering(msgspec.structs.replace(asked, body=message)):
                pass

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _sent(self, asked: Asked) -> list[tuple[bytes, bytes]]:
        named = OF_A_CONNECTION | {word.strip().lower() for word in (asked.header(b"connection") or b"").split(b",")}
        sent = [(name, value) for name, value in asked.headers if name not in NOT_SENT_HEADERS | named]
        sent += [(b"host", self._named(asked.header(b"host") or b"")), (b"accept-encoding", b"identity")]
        origin = asked.header(b"origin")
        if origin is not None:
            scheme, _, host = origin.partition(b"://")
            own = scheme == b"http" and host.decode("latin-1").lower() in self._own
            sent.append((b"origin", self._origin.encode() if own else origin))
        return sent

    def _named(self, host: bytes) -> bytes:
        own = not host or host.decode("latin-1").lower() in self._own
        return urlsplit(self._origin).netloc.encode() if own else host

    def told(self, response: httpx2.Response) -> list[tuple[bytes, bytes]]:
        """The headers of an answer, for the client. A redirection to the server leads to the guard.

        Raises:
            LedPast: it leads elsewhere, past the guard.
        """
        left = OF_A_CONNECTION
        if response.headers.get("content-encoding", "").strip().lower() in _DECODED:
            left |= _OF_ITS_CODING
        if "transfer-encoding" in response.headers:  # it says how long the answer is, whatever else does (RFC 9112)
            left |= {b"content-length"}
        told = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in left]
        place = next((value for name, value in told if name == b"location"), None)
        if place is None:
            return told
        try:
            absolute = urlsplit(urljoin(str(response.request.url), place.decode("latin-1")))
        except ValueError as error:
            raise LedPast(response.status_code, f"{place!r}, which is no place") from error
        if f"{absolute.scheme}://{absolute.netloc}" != self._origin:
            raise LedPast(response.status_code, f"{absolute.scheme}://{absolute.netloc}{absolute.path}")
        inside = absolute._replace(scheme="", netloc="").geturl()
        return [pair for pair in told if pair[0] != b"location"] + [(b"location", inside.encode("latin-1"))]


def is_stream(response: httpx2.Response) -> bool:
    """Whether an answer is a stream of events."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == CONTENT_TYPE
