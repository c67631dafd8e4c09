"""The processes of the demonstration: the payment sandbox, the worker, the command line. None outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from intentlog.cli.demo_witness import Place
from intentlog.errors import IntentLogError

POLL_S = 0.002
PATIENCE_S = 30.0  # for a child to end; each is done in a second or two


class DemoFailed(IntentLogError):
    """A part of the demonstration did not do what it is there for. Says nothing about any effect."""

    code = "demo_failed"


class Moment(NamedTuple):
    """When to kill a worker.

    Attributes:
        lines: after it printed so many lines, one for each order,
        delay_s: and so many seconds.
    """

    lines: int
    delay_s: float

    def __str__(self) -> str:
        after = f"after order {self.lines}" if self.lines else "from its start"
        return f"{self.delay_s * 1000:.0f} ms {after}"


class Children:
    """The processes of the demonstration. None of them outlives it.

    Args:
        place: where they work.
        examples: the folder with their programs.
    """

    def __init__(self, place: Place, examples: Path) -> None:
        self._place = place
        self._examples = examples
        # Nobody's git configuration or hook's variables, and no crash point from outside.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "INTENTLOG_"))}
        path = os.pathsep.join(filter(None, (str(examples), kept.get("PYTHONPATH"))))
        self._environment = {**kept, "PYTHONPATH": path, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        self._shop = ""

    def make_repositories(self) -> None:
        """Make the two bare repositories."""
        for repository in (self._place.remote, self._place.source):
            command = ["git", "init", "--quiet", "--bare", str(repository)]
            subprocess.run(command, check=True, env=self._environment)  # noqa: S603 - our own words

    @contextmanager
    def shop(self) -> Generator[None]:
        """Run the payment sandbox. It stops when its standard input ends, and so even if we are killed."""
        command = [str(self._examples / "payment_sandbox.py"), "--stop-with-stdin"]
        command += ["--ledger", str(self._place.ledger), "--requests", str(self._place.requests)]
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        with _ended(process):
            self._shop = process.stdout.readline().strip() if process.stdout else ""
            if not self._shop:
                raise DemoFailed("the payment sandbox did not start")
            yield

    def work(self, orders: list[str], crash_at: str = "", kill_at: Moment | None = None) -> int:
        """Run the worker over some orders. Returns its exit code, -SIGKILL if it was killed."""
        place = self._place
        command = [str(self._examples / "orders.py"), "--log", str(place.log), "--shop", self._shop]
        command += ["--source", str(place.source), "--remote", str(place.remote), "--mail", str(place.mail), *orders]
        lines_before = self._lines()
        with place.output.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._armed(crash_at),
                start_new_session=True,
            )
        with _ended(process):
            if kill_at is not None:
                self._wait_until(process, kill_at, lines_before)
                process.kill()  # the worker alone, and not the git that it may be running
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"the worker did not end within {PATIENCE_S} s") from None
        if code not in (0, 3, -signal.SIGKILL):
            output_end = place.output.read_text(encoding="utf-8", errors="replace")[-2_000:]
            raise DemoFailed(f"the worker ended with {code}:\n{output_end}")
        return code

    def command(self, *arguments: str, crash_at: str = "") -> tuple[int, str, str]:
        """Run `intentlog` with these arguments. Returns its exit code and what it printed."""
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "intentlog", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._armed(crash_at),
            start_new_session=True,
        )
        with _ended(process):
            try:
                output, errors = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"intentlog {arguments[0]} did not end within {PATIENCE_S} s") from None
            return process.returncode, output, errors

    def _wait_until(self, process: subprocess.Popen[bytes], moment: Moment, lines_before: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self._lines() < lines_before + moment.lines and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment.delay_s)

    def _lines(self) -> int:
        output = self._place.output
        return output.read_bytes().count(b"\n") if output.exists() else 0

    def _armed(self, crash_at: str) -> dict[str, str]:
        hooks = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at} if crash_at else {}
        return self._environment | hooks


@contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Generator[None]:
    """Leave with the process ended, and with it whatever runs in its session."""
    try:
        yield
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
