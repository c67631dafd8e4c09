"""A client that speaks JSON-RPC in lines with a server, or with a guard before it: asks, waits, hears what comes.

It is started alike for both, so that what it sees can be compared.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

LIMIT_S = 60.0
STEP = "io.intentlog/step"
"""The member of `_meta` by which a client names a call."""

Answering = Callable[[str, Mapping[str, Any]], Any]
"""What a client answers a request of the server's: the result, by method and params."""


class NoAnswer(Exception):
    """The other end ended, or did not answer in time."""


def guarded(log: Path, command: Sequence[str], *options: str) -> list[str]:
    """The command that stands for another one, with the guard before it."""
    return [sys.executable, "-m", "intentlog", "mcp", "--log", str(log), *options, "--", *command]


class Wire:
    """A session with a server.

    Args:
        command: starts it.
        environment: what its environment has in addition.
        answering: answers what the server asks; without it nothing is answered.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], answering: Answering | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}, bufsize=0
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError(command)
        self._in, self._out = self.process.stdin, self.process.stdout.fileno()
        self._rest = b""
        self._numbers = iter(range(1, 1 << 30))
        self._answers: dict[Any, Any] = {}
        self._answering = answering
        self.heard: list[Any] = []

    def write(self, message: Mapping[str, Any]) -> None:
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Ask, without waiting. The id."""
        id_ = next(self._numbers)
        self.write({"id": id_, "method": method, "params": params or {}})
        return id_

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.write({"method": method, "params": params or {}})

    def answer(self, id_: int, limit_s: float = LIMIT_S) -> Any:
        """The answer to this id, whenever it came; what else comes is heard, and answered if the server asks.

        Raises:
            NoAnswer: there is none.
        """
        until_s = time.monotonic() + limit_s
        while id_ not in self._answers:
            self._hear(until_s)
        return self._answers.pop(id_)

    def has_answer(self, id_: int) -> bool:
        """Whether one has come so far."""
        return id_ in self._answers

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.answer(self.send(method, params))

    def call(self, tool: str, arguments: Mapping[str, Any], key: str = "", **further: Any) -> Any:
        """Call a tool, and wait for the answer."""
        meta = {"_meta": {STEP: key}} if key else {}
        return self.ask("tools/call", {"name": tool, "arguments": arguments, **meta, **further})

    def begin(self, capabilities: Mapping[str, Any] | None = None, version: str = "2025-11-25") -> Any:
        """Shake hands. What the server says of itself."""
        client = {"name": "wire", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": client}
        answer = self.ask("initialize", params)
        self.tell("notifications/initialized")
        return answer

    def wait_for(self, method: str, number: int = 1, limit_s: float = LIMIT_S) -> list[Any]:
        """So many messages of this method, whenever they came."""
        until_s = time.monotonic() + limit_s
        while len(found := [one for one in self.heard if one.get("method") == method]) < number:
            self._hear(until_s)
        return found

    def _hear(self, until_s: float) -> None:
        message = json.loads(self._line(until_s))
        if "method" not in message:
            self._answers[message["id"]] = message
            return
        self.heard.append(message)
        if "id" in message and self._answering is not None:
            self.write({"id": message["id"], "result": self._answering(message["method"], message.get("params", {}))})

    def _line(self, until_s: float) -> bytes:
        while b"\n" not in self._rest:
            if not self._more(until_s):
                raise NoAnswer("it ended")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _more(self, until_s: float) -> bool:
        """Read on; False at the end."""
        if not select.select([self._out], [], [], max(0.0, until_s - time.monotonic()))[0]:
            raise NoAnswer("in time")
        chunk = os.read(self._out, 1 << 20)
        self._rest += chunk
        return bool(chunk)

    def end(self, signal_number: int = 0) -> int:
        """Close the client's end, and send a signal if one is named. The exit code.

        Raises:
            NoAnswer: it does not end in time.
        """
        self._in.close()
        if signal_number:
            self.process.send_signal(signal_number)
        until_s = time.monotonic() + LIMIT_S
        while self._more(until_s):
            pass
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)
