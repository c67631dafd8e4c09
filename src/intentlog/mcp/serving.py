"""Serves the guard's application on a port, until it is told to end."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

import uvicorn

from intentlog.errors import IntentLogError
from intentlog.mcp.guard import Guard
from intentlog.mcp.http import Application
from intentlog.mcp.upstream import Upstream

GRACE_S = 5
"""How long the calls that are being made are waited for once the guard is told to end."""
KEEP_ALIVE_S = 75
"""Longer than a client keeps a connection that it does not use: one that was just closed would lose its request."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class PortUnusable(IntentLogError):
    """The port cannot be listened on. Nothing was started."""

    code = "port_unusable"
    default_remedy = "name another: --http [HOST:]PORT."


class _Server(uvicorn.Server):
    def __init__(self, application: Application) -> None:
        config = uvicorn.Config(
            application,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        super().__init__(config)
        self._application = application

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams as well that would not end by themselves."""
        self._application.end()
        super().handle_exit(sig, frame)


def serve(guard: Guard, address: str, url: str) -> None:
    """Guard a server over HTTP, until SIGTERM or SIGINT.

    Args:
        guard: guards its calls.
        address: where to listen: `[HOST:]PORT`; on this machine alone unless a host is named.
        url: the server's address.

    Raises:
        PortUnusable, UpstreamUnusable: nothing was started.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        listening = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError, OverflowError) as error:
        raise PortUnusable(f"cannot listen on {address!r}: {error}") from error
    number: int = listening.getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    names = {f"{one}:{number}".lower() for one in (named, *_LOOPBACK)}
    is_private = named in _LOOPBACK
    upstream = Upstream(url, names)
    application = Application(guard, upstream, names if is_private else None)
    sys.stderr.write(f"intentlog mcp: {url} is guarded at http://{named}:{number}{upstream.path}\n")
    sys.stderr.flush()
    before = {one: signal.signal(one, _told_already) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(application).run(sockets=[listening])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _told_already(number: int, frame: FrameType | None) -> None:
    """The server raises a signal again once it has ended by it."""
    del number, frame
