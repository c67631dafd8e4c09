"""The official conformance suite, the server it is run against, and what may stand between them: all real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mcp_real.environment import JS, NODE, V2

HERE = Path(__file__).parent
SUITE = JS / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
BEGIN_S, SUITE_S = 60.0, 180.0


class Found(NamedTuple):
    """What a run of the suite found.

    Attributes:
        checks: how often each check of a scenario had which status: (scenario, its id, its name, status). What is only
            said for information depends on how the bytes of a stream come, and is left out.
        total: the suite's own count of what passed and what failed.
        scenarios: those that were run.
    """

    checks: Counter[tuple[str, str, str, str]]
    total: tuple[int, int]
    scenarios: frozenset[str]

    def of(self, status: str) -> int:
        return sum(number for check, number in self.checks.items() if check[3] == status)

    def scenarios_unlike(self, other: Found) -> set[str]:
        return {check[0] for check in (self.checks - other.checks) + (other.checks - self.checks)}


def run_suite(url: str, folder: Path, *options: str) -> Found:
    """Run it against an address; `folder` is made, for its results."""
    folder.mkdir()
    command = [str(NODE), str(SUITE), "server", "--url", url, *options, "--output-dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_S, check=False)
    totals = re.findall(r"^Total: (\d+) passed, (\d+) failed", ended.stdout, re.MULTILINE)
    assert len(totals) == 1, ended.stdout + ended.stderr
    checks: Counter[tuple[str, str, str, str]] = Counter()
    scenarios = set()
    for path in folder.glob("*/checks.json"):
        named = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", path.parent.name)
        assert named is not None, path
        scenarios.add(named[1])
        of_scenario = ((named[1], one["id"], one["name"], one["status"]) for one in json.loads(path.read_text()))
        checks.update(check for check in of_scenario if check[3] != "INFO")
    return Found(checks, (int(totals[0][0]), int(totals[0][1])), frozenset(scenarios))


class Everything(NamedTuple):
    """The suite's server, and the witness of which calls reached its tools."""

    url: str
    witness: Path

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.witness.read_text().splitlines()] if self.witness.exists() else []


@contextmanager
def everything(folder: Path) -> Iterator[Everything]:
    """The server, listening, in a folder of its own, which is made."""
    folder.mkdir()
    server = Everything("", folder / "witness")
    script = [str(V2), "-W", "ignore", str(HERE / "conformance_server.py"), str(folder / "port"), str(server.witness)]
    with running(script, folder / "stderr") as process:
        yield server._replace(url=f"http://127.0.0.1:{in_time(folder / 'port', process)}/mcp")


@contextmanager
def guarded(log: Path, url: str, *options: str) -> Iterator[str]:
    """Where a guard is reached that stands before a server. That it complained of anything is an error."""
    said = log.with_name(log.name + ".stderr")
    command = [sys.executable, "-m", "intentlog", "mcp", "--log", str(log), "--http", "0", "--upstream", url, *options]
    with running(command, said) as process:
        yield in_time(said, process).split()[-1]
        process.terminate()
        assert process.wait(BEGIN_S) == 0
    assert said.read_text().count("\n") == 1, said.read_text()


@contextmanager
def dropping(folder: Path, url: str) -> Iterator[str]:
    """Where a proxy is reached that loses the notifications of a server."""
    folder.mkdir()
    script = [sys.executable, str(HERE / "dropping_proxy.py"), str(folder / "port"), url]
    with running(script, folder / "stderr") as process:
        yield f"http://127.0.0.1:{in_time(folder / 'port', process)}/mcp"


@contextmanager
def running(command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process, whose stderr goes to a file; killed at the end."""
    with said.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def in_time(file: Path, process: subprocess.Popen[bytes]) -> str:
    """The first line that a process writes to a file."""
    until_s = time.monotonic() + BEGIN_S
    while not file.exists() or "\n" not in file.read_text():
        assert process.poll() is None, f"it ended: {process.args!r}"
        assert time.monotonic() < until_s, f"it did not begin: {process.args!r}"
        time.sleep(0.02)
    return file.read_text().splitlines()[0]


def records(log: Path) -> list[dict[str, Any]]:
    """What stands in a log, oldest first."""
    command = [sys.executable, "-m", "intentlog", "tail", str(log), "--lines", "100000", "--json"]
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    )
    return found
