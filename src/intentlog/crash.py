"""The kill -9 harness: a real child process, killed at a named point, and a witness outside the log.

A crash here is a SIGKILL that a real process meets: no destructor runs, nothing is flushed. Whether a call happened is
read from a `Witness`, a file that the tool itself appends to, never from the log.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class NotKilled(AssertionError):
    """The child was to die at a point, and did not: the point was never reached, so nothing was tested."""


class Ended(NamedTuple):
    """How a child process ended.

    Attributes:
        returncode: its exit code, or minus the signal that ended it.
        stdout: what it wrote.
        stderr: what it wrote there.
    """

    returncode: int
    stdout: str
    stderr: str

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.returncode == -signal.SIGKILL


class Witness:
    """A file outside the log that a tool appends to, so that "did the call happen" does not rest on the log's word.

    Args:
        path: the file; made at the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __eq__(self, other: object) -> bool:
        """Two of one file are the same witness."""
        return isinstance(other, Witness) and other.path == self.path

    def __hash__(self) -> int:
        """By its file."""
        return hash(self.path)

    def record(self, line: str) -> None:
        """Append one line, durable when this returns. Safe from any process."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lines(self) -> list[str]:
        """What was recorded, oldest first."""
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


def armed(crash_at: str | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which a process dies at this point (`NAME[:nth[:stop]]`), or at none."""
    given = {name: value for name, value in (environment or os.environ).items() if name != "INTENTLOG_CRASH_AT"}
    if crash_at is not None:
        given |= {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at}
    return given


def run(command: Sequence[str], crash_at: str | None = None, timeout_s: float = 60.0) -> Ended:
    """Run a command to its end.

    Args:
        command: program and arguments.
        crash_at: the point at which it shall die, or None.
        timeout_s: how long it may take, in seconds; after that it is killed and `TimeoutExpired` raised.

    Raises:
        NotKilled: it was to die at a point, and ended in another way.
    """
    child = subprocess.run(  # noqa: S603 - the caller's own command
        list(command), check=False, capture_output=True, text=True, timeout=timeout_s, env=armed(crash_at)
    )
    ended = Ended(child.returncode, child.stdout, child.stderr)
    if crash_at is not None and not ended.was_killed:
        msg = f"{crash_at} was not reached: the child ended with {ended.returncode}\n{ended.stderr}"
        raise NotKilled(msg)
    return ended
