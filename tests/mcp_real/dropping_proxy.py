"""A proxy that is not transparent: it loses the notifications in a server's streams of events. A test's control.

python dropping_proxy.py PORT-FILE URL
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

_URL = httpx2.URL(sys.argv[2])
_OWN = (b"content-length", b"transfer-encoding", b"connection")
_client = httpx2.AsyncClient(timeout=60)


def kept(event: bytes) -> bool:
    return b'"method":"notifications/' not in event.replace(b" ", b"")


async def application(scope: Any, receive: Any, send: Any) -> None:
    body, is_more = b"", True
    while is_more:
        part = await receive()
        body += part.get("body", b"")
        is_more = part.get("more_body", False)
    headers = [(name, value) for name, value in scope["headers"] if name not in _OWN]
    async with _client.stream(scope["method"], _URL, headers=headers, content=body) as response:
        told = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _OWN]
        await send({"type": "http.response.start", "status": response.status_code, "headers": told})
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            await send({"type": "http.response.body", "body": await response.aread()})
            return
        rest = b""
        async for chunk in response.aiter_bytes():
            *events, rest = (rest + chunk.replace(b"\r\n", b"\n")).split(b"\n\n")
            for event in filter(kept, events):
                await send({"type": "http.response.body", "body": event + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": rest})


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    port = Path(sys.argv[1])
    written = port.with_suffix(".new")
    written.write_text(f"{listening.getsockname()[1]}\n")
    written.replace(port)
    config = uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
