"""Processes that tests talk to by lines: the workers of `worker_programs`, and commands that run until they are ended.

A test waits for a line, never for a time; what does not come within a minute fails the test.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

PATIENCE_S = 60.0
LEASE_S = 1  # the shortest: a test that kills a worker waits for its end
END = ""


class Spoken:
    """A process whose lines are read as they come.

    Args:
        command: what is run.
        variables: of its environment, beside ours.
        folder: where it runs.

    Attributes:
        pid: its process.
    """

    def __init__(self, command: Sequence[str], variables: dict[str, str], folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INTENTLOG_", "PG"))}
        listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=kept | {"INTENTLOG_LEASE_S": str(LEASE_S)} | variables,
            text=True,
            preexec_fn=listening,  # noqa: PLW1509 - it starts no thread before the exec
        )
        self.pid = self._process.pid
        self._lines: dict[str, queue.SimpleQueue[str]] = {}
        self._readers = []
        for name in ("stdout", "stderr"):
            self._lines[name] = queue.SimpleQueue()
            reader = threading.Thread(target=self._read, args=(name,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, name: str) -> None:
        with getattr(self._process, name) as stream:
            for line in stream:
                self._lines[name].put(line)
        self._lines[name].put(END)

    def says(self, name: str = "stdout") -> str:
        """Its next line; END when there is none more."""
        try:
            return self._lines[name].get(timeout=PATIENCE_S).rstrip("\n")
        except queue.Empty:
            raise AssertionError(f"{self._process.args} said nothing for {PATIENCE_S:.0f} s") from None

    def does(self, *words: str) -> Self:
        """Tell it to do something."""
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self

    def asks(self, *words: str) -> str:
        """Tell it to do something; what it says to that."""
        return self.does(*words).says()

    def ends(self, number: int | None = None) -> tuple[int, str, str]:
        """Send it a signal, or none; wait for its end. Its exit code, and what it said that nobody has taken."""
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        self._process.stdin.close()
        return code, self.said("stdout"), self.said("stderr")

    def said(self, name: str = "stdout") -> str:
        """What it said that nobody has taken; what it says later is not waited for."""
        found = []
        while not self._lines[name].empty():
            found.append(self._lines[name].get())
        return "".join(found)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.ends(signal.SIGKILL)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self.kill()


class Bench:
    """Starts processes over one log, and ends them all.

    Attributes:
        place: the log.
        folder: where they run, with what they import.
        witness: the file in which tools tell what they did.
    """

    def __init__(self, place: str, folder: Path) -> None:
        self.place = place
        self.folder = folder
        self.witness = folder / "witness"
        self.witness.touch()
        self._started: list[Spoken] = []

    def worker(self, face: str = "sync") -> Spoken:
        """A worker that is ready."""
        program = str(Path(__file__).with_name("worker_programs.py"))
        worker = self._start([sys.executable, program, face, self.place])
        assert worker.says() == "ready", worker.ends()
        return worker

    def command(self, *arguments: str, **variables: str) -> Spoken:
        """`intentlog` with these arguments; the programs of the workers can be imported."""
        return self._start([sys.executable, "-m", "intentlog", *arguments], **variables)

    def _start(self, command: list[str], **variables: str) -> Spoken:
        paths = {"WITNESS": str(self.witness), "PYTHONPATH": str(Path(__file__).parent)}
        self._started.append(Spoken(command, paths | variables, self.folder))
        return self._started[-1]

    def done(self) -> list[str]:
        """What the tools told."""
        return self.witness.read_text(encoding="utf-8").splitlines()

    def close(self) -> None:
        """End whatever runs."""
        for one in self._started:
            one.close()


@contextmanager
def bench(place: str, folder: Path) -> Iterator[Bench]:
    """A bench, whose processes end with the block."""
    made = Bench(place, folder)
    try:
        yield made
    finally:
        made.close()
