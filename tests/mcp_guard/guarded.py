"""A client of a guarded server, over real pipes, for tests: asks, waits for its answer, dies when it is told to."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

SERVER = Path(__file__).with_name("witness_server.py")
LIMIT_S = 30.0


class NoAnswer(Exception):
    """The guard ended, or did not answer in time."""


class Guarded:
    """A guard over the witness server.

    Args:
        folder: holds log and witness.
        options: of `intentlog mcp`.
        crash_at: the failpoint at which the guard is killed.
    """

    def __init__(self, folder: Path, *options: str, crash_at: str = "", command: Sequence[str] = ()) -> None:
        self.witness = folder / "witness"
        own = [sys.executable, str(SERVER), str(self.witness)]
        guard = [sys.executable, "-m", "intentlog", "mcp", "--log", str(folder / "log.db"), "--server", "witness"]
        environment = {**os.environ, "INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at}
        if not crash_at:
            del environment["INTENTLOG_CRASH_AT"]
        self.process = subprocess.Popen(
            [*guard, *options, "--", *(command or own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout.fileno()
        self._rest = bytearray()
        self._numbers = iter(range(1, 1 << 30))
        self.heard: list[Any] = []

    def write(self, line: bytes) -> None:
        self._in.write(line)

    def ask(self, method: str, params: Mapping[str, Any], id_: Any = None) -> Any:
        """Ask, without waiting. The id."""
        id_ = next(self._numbers) if id_ is None else id_
        self.write(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode() + b"\n")
        return id_

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def read_line(self, limit_s: float = LIMIT_S) -> bytes:
        """The next line.

        Raises:
            NoAnswer: none comes.
        """
        until_s = time.monotonic() + limit_s
        chunk = bytes(self._rest)
        while b"\n" not in chunk:
            if not select.select([self._out], [], [], max(0.0, until_s - time.monotonic()))[0]:
                raise NoAnswer("in time")
            chunk = os.read(self._out, 1 << 20)
            if not chunk:
                raise NoAnswer("it ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return bytes(line)

    def read(self, limit_s: float = LIMIT_S) -> Any:
        """The next message. Raises NoAnswer if none comes."""
        return json.loads(self.read_line(limit_s))

    def answer(self, id_: Any, limit_s: float = LIMIT_S) -> Any:
        """The answer to this id; what else comes meanwhile is kept in `heard`."""
        while True:
            message = self.read(limit_s)
            if isinstance(message, dict) and message.get("id") == id_ and "method" not in message:
                return message
            self.heard.append(message)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, key: str = "", **meta: Any) -> Any:
        """Call a tool, and wait for the answer."""
        members = {**meta, **({"io.intentlog/step": key} if key else {})}
        params = {"name": tool, "arguments": arguments or {}, **({"_meta": members} if members else {})}
        return self.answer(self.ask("tools/call", params))

    def calls(self) -> list[dict[str, Any]]:
        """What the witness saw."""
        return [json.loads(line) for line in self.witness.read_text().splitlines()] if self.witness.exists() else []

    def wait_for_calls(self, number: int) -> None:
        """Until the witness saw so many."""
        until_s = time.monotonic() + LIMIT_S
        while len(self.calls()) < number:
            assert time.monotonic() < until_s, "it was not called"
            time.sleep(0.01)

    def close(self) -> None:
        """Close the client's end."""
        self._in.close()

    def everything(self) -> bytes:
        """All that comes until the guard ends."""
        found = bytes(self._rest)
        while chunk := os.read(self._out, 1 << 16):
            found += chunk
        return found

    def end(self) -> int:
        """Close the client's end; the guard's exit code."""
        self._in.close()
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)
