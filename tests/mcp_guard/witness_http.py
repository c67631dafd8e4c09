"""The witness server over HTTP: what it does is what `witness_server` does, and a test says in which dress it answers.

    python witness_http.py WITNESS PORT-FILE [--stream] [--sessions]

`--stream`: answers in streams of events, a notification before each. `--sessions`: with sessions, in which a stream
that breaks can be taken up again. Further tools: `cut` (takes effect, ends the stream without a reply, which comes
where the stream is taken up), `accept` (takes effect, and replies in the session's own stream, in an array if it is
told so, with those that it was told to hold), `status` (answers with
a status of HTTP, without an effect), `gone` (the same, behind one), `say` (takes effect, and answers with the body and
content type that it is given).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvicorn

STREAMS, SESSIONS = "--stream" in sys.argv, "--sessions" in sys.argv
_witness = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
NOTICE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"it works"}}'
KEEP = ("host", "origin", "authorization", "mcp-session-id", "idempotency-key", "cookie")
TOOLS = {"act": {}, "look": {"readOnlyHint": True}}
later: dict[str, list[bytes]] = defaultdict(list)
held: list[bytes] = []
waiting: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


def happens(params: dict[str, Any], headers: dict[str, str]) -> None:
    line = {
        "tool": params["name"],
        "arguments": params.get("arguments", {}),
        "request_id": params.get("_meta", {}).get("io.intentlog/request-id"),
        "headers": {name: headers[name] for name in KEEP if name in headers},
    }
    os.write(_witness, (json.dumps(line) + "\n").encode())


def text(of: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": of}]}


def reply(id_: Any, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, **members}).encode()


async def answer(send: Any, status: int, body: bytes, *headers: tuple[str, str]) -> None:
    named = list({"content-type": "application/json", **dict(headers)}.items())
    encoded = [(name.encode(), value.encode()) for name, value in named]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def event(send: Any, message: bytes, id_: str = "") -> None:
    named = f"id: {id_}\n".encode() if id_ else b""
    await send({"type": "http.response.body", "body": named + b"data: " + message + b"\n\n", "more_body": True})


async def call(id_: Any, params: dict[str, Any], headers: dict[str, str], send: Any) -> None:
    name, arguments = params["name"], params.get("arguments", {})
    session = headers.get("mcp-session-id", "")
    if name not in {"look", "status"}:
        happens(params, headers)
    if name in ("status", "gone"):
        place = arguments.get("location", "")
        said = reply(id_, error={"code": arguments["code"], "message": "no"}) if "code" in arguments else b"{}"
        await answer(send, arguments["status"], said, *([("location", place)] if place else []))
        return
    if name == "say":
        await asyncio.sleep(arguments.get("after", 0))
        await answer(send, 200, arguments["body"].encode(), ("content-type", arguments["type"]))
        return
    if name == "accept":
        said = reply(id_, result=text("accepted"))
        if arguments.get("held"):  # until another one is accepted
            held.append(said)
        else:
            array = b"[" + b",".join([NOTICE, *held, said]) + b"]"
            later[session].append(array if arguments.get("in_array") else said)
            waiting[session].set()
        await answer(send, 202, b"")
        return
    if name == "cut":
        await stream(send)
        await event(send, b"", "e-1")
        later[session].append(reply(id_, result=text("cut")))
        waiting[session].set()
        await send({"type": "http.response.body", "body": b""})
        return
    if name == "slow":
        if STREAMS:
            await stream(send)
            await event(send, NOTICE)
        await asyncio.sleep(arguments["seconds"])
    said = reply(id_, result=text(f"{name} {arguments.get('what', '')}"))
    if arguments.get("again"):  # for one who takes the stream up again
        later[session].append(said)
        waiting[session].set()
    if name == "fail":
        said = reply(id_, error={"code": -32603, "message": "it broke"})
    if name == "die":
        os._exit(3)
    if not STREAMS:
        await answer(send, 200, said)
        return
    if name != "slow":
        await stream(send)
        await event(send, NOTICE)
    await event(send, said, "e-2")
    await send({"type": "http.response.body", "body": b""})


async def listen(session: str, send: Any) -> None:
    """The session's own stream."""
    await stream(send)
    while True:
        while later[session]:
            await event(send, later[session].pop(0), "e-3")
        waiting[session].clear()
        await waiting[session].wait()


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    session = headers.get("mcp-session-id", "")
    body = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    if scope["path"] != "/mcp":
        await answer(send, 307, b"", ("location", f"http://{headers['host']}/mcp"))
        return
    if scope["method"] == "GET":
        await listen(session, send)
        return
    if scope["method"] == "DELETE":
        await answer(send, 200, b"{}")
        return
    message = json.loads(body)
    id_, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if id_ is None or method is None:
        await answer(send, 202, b"")
    elif method == "tools/call":
        await call(id_, params, headers, send)
    elif method == "initialize":
        info = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "w", "version": ""},
        }
        await answer(send, 200, reply(id_, result=info), *([("mcp-session-id", "s-1")] if SESSIONS else []))
    elif method == "tools/list":
        tools = [{"name": n, "inputSchema": {"type": "object"}, "annotations": a} for n, a in TOOLS.items()]
        await answer(send, 200, reply(id_, result={"tools": tools}), ("set-cookie", "a=b"))
    else:
        await answer(send, 200, reply(id_, result={}))


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[2]).write_text(str(listening.getsockname()[1]))
    config = uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
