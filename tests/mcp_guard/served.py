"""A guard over HTTP before the witness server, and a client of it, for tests. Both are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2

SERVER = Path(__file__).with_name("witness_http.py")
LIMIT_S = 30.0
BOTH = "application/json, text/event-stream"


class Upstream:
    """The witness server, listening.

    Args:
        folder: holds the witness.
        options: of the server.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.witness = folder / "witness"
        port = folder / "port"
        port.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, str(SERVER), str(self.witness), str(port), *options])
        until_s = time.monotonic() + LIMIT_S
        while not port.exists() or not port.read_text():
            assert time.monotonic() < until_s, "the server did not begin"
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{port.read_text()}/mcp"

    def calls(self) -> list[dict[str, Any]]:
        """What the witness saw."""
        return [json.loads(line) for line in self.witness.read_text().splitlines()] if self.witness.exists() else []

    def wait_for_calls(self, number: int) -> None:
        """Until the witness saw so many."""
        until_s = time.monotonic() + LIMIT_S
        while len(self.calls()) < number:
            assert time.monotonic() < until_s, "it was not called"
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)


class Served:
    """A guard over HTTP, and its client.

    Args:
        folder: holds the log.
        url: the server's address.
        options: of `intentlog mcp`.
        crash_at: the failpoint at which the guard is killed.
    """

    def __init__(self, folder: Path, url: str, *options: str, crash_at: str = "") -> None:
        guard = [sys.executable, "-m", "intentlog", "mcp", "--log", str(folder / "log.db"), "--server", "witness"]
        environment = {**os.environ, "INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at}
        if not crash_at:
            del environment["INTENTLOG_CRASH_AT"]
        self.process = subprocess.Popen(
            [*guard, "--http", "0", "--upstream", url, *options], stderr=subprocess.PIPE, env=environment, text=True
        )
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        self.url = self.said.split()[-1]
        self.http = httpx2.Client(timeout=LIMIT_S)
        self._numbers = iter(range(1, 1 << 30))

    def post(self, message: object, **headers: str) -> httpx2.Response:
        """Send a message, or bytes."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        named = {"accept": BOTH, "content-type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(self.url, content=body, headers=named)

    def request(self, method: str, params: Mapping[str, Any], id_: Any = None) -> dict[str, Any]:
        """A request, to be sent."""
        id_ = next(self._numbers) if id_ is None else id_
        return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, key: str = "", **headers: str) -> Any:
        """Call a tool, and wait for the answer."""
        meta = {"_meta": {"io.intentlog/step": key}} if key else {}
        asked = self.request("tools/call", {"name": tool, "arguments": arguments or {}, **meta})
        return messages(self.post(asked, **headers))[-1]

    @contextmanager
    def listening(self, session: str) -> Iterator[Iterator[Any]]:
        """The messages of a session's own stream."""
        headers = {"accept": "text/event-stream", "mcp-session-id": session}
        with self.http.stream("GET", self.url, headers=headers) as response:
            yield (json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:"))

    def end(self) -> int:
        """Tell it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.process.kill()
        self.process.__exit__(None, None, None)


def messages(response: httpx2.Response) -> list[Any]:
    """The messages in an answer, whatever its dress."""
    if response.headers["content-type"] == "application/json":
        return [response.json()]
    return [
        json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:") and line[5:].strip()
    ]
