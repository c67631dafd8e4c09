"""A first file of rules, from what a server lists of its tools."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from threading import Timer
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from intentlog.errors import IntentLogError
from intentlog.mcp import messages
from intentlog.mcp.lines import lines_of
from intentlog.mcp.messages import Frame
from intentlog.mcp.rules import Hints

LIST_LIMIT_S = 60.0
"""In which a server starts and lists its tools: what comes by npx is fetched first."""
_VERSION = "2025-06-18"
_OPENS = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": {"name": "intentlog", "version": "1"}}


class NoList(IntentLogError):
    """The server did not list its tools. Nothing of it was called."""

    code = "no_list"
    default_remedy = "run the command by itself, and look what it prints."


class _Tool(Struct):
    name: str
    annotations: Hints | None = None


class _Page(Struct, rename="camel"):
    tools: list[_Tool]
    next_cursor: str | None = None


def suggestion(command: Sequence[str]) -> str:
    """The file, as text. The server is started, asked for its tools, and ended; none is called.

    Raises:
        NoList: it did not answer.
    """
    try:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 - the operator's
    except OSError as error:
        raise NoList(f"cannot start {command[0]!r}: {error}") from error
    is_over = Timer(LIST_LIMIT_S, server.kill)
    with server:
        try:
            is_over.start()
            tools = {tool.name: tool for tool in _listed(server)}.values()
        finally:
            is_over.cancel()
            server.kill()
    lines = [
        "# What intentlog may assume of this server's tools. Each line that is not a comment is yours to answer for:",
        "# a class that is too loose lets a call be made twice. The hints are the server's own word.",
        "",
    ]
    for tool in tools:
        lines += _lines(tool)
    return "\n".join(lines)


def _lines(tool: _Tool) -> list[str]:
    hints = tool.annotations or Hints()
    said = [name for name in ("readOnlyHint", "idempotentHint") if getattr(hints, name)]
    hinted = "READ" if hints.readOnlyHint else "IDEMPOTENT" if hints.idempotentHint else "UNSAFE"
    about = f"# the server says: {', '.join(said)}" if said else "# the server says nothing of it"
    key = json.dumps(tool.name).replace("\x7f", "\\u007f")  # what TOML and JSON both read
    mark = "" if hinted == "UNSAFE" else "# "
    return [f"[tools.{key}]", about, f'{mark}effect = "{hinted}"', ""]


def _listed(server: subprocess.Popen[bytes]) -> Iterator[_Tool]:
    """Every tool of a server, page by page; with a handshake, or without one where it takes none."""
    asked = Exchange(server)
    answer = asked.ask("initialize", _OPENS)
    meta: dict[str, Any] = {}
    if answer.error is UNSET:
        asked.tell("notifications/initialized")
    else:
        meta = {"_meta": messages.stateless_meta()}
    cursor: str | None = None
    seen = set[str]()
    while True:
        answer = asked.ask("tools/list", meta | ({"cursor": cursor} if cursor else {}))
        try:
            page = msgspec.json.decode(answer.result if answer.result is not UNSET else b"null", type=_Page)
        except msgspec.MsgspecError as error:
            why = bytes(answer.error).decode("utf-8", "replace") if answer.error is not UNSET else str(error)
            raise NoList(f"it did not list its tools: {why}") from error
        yield from page.tools
        if not page.next_cursor or page.next_cursor in seen:
            return
        cursor = page.next_cursor
        seen.add(cursor)


class Exchange:
    """Asks a server, one question after another."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        if server.stdin is None or server.stdout is None:
            raise AssertionError(server)
        self._to = server.stdin
        self._lines = lines_of(server.stdout.fileno())
        self._number = 0

    def ask(self, method: str, params: dict[str, Any]) -> Frame:
        """Ask, and wait for the answer; what else the server says meanwhile is left unheard."""
        self._number += 1
        self._write(messages.request(self._number, method, msgspec.Raw(msgspec.json.encode(params))))
        for line in self._lines:
            try:
                read = messages.read_frame(line)
            except messages.Unreadable as error:
                raise NoList(f"what it prints is no message: {line[:200]!r}") from error
            if isinstance(read, Frame) and read.is_reply and read.id == self._number:
                return read
        raise NoList(f"it ended before it answered, or took longer than {LIST_LIMIT_S:.0f} s")

    def tell(self, method: str) -> None:
        """Tell it something."""
        self._write(msgspec.json.encode({"jsonrpc": "2.0", "method": method}))

    def _write(self, message: bytes) -> None:
        try:
            self._to.write(message + b"\n")
        except OSError as error:
            raise NoList(f"it takes nothing: {error}") from error
