"""The raw floor: 1 KiB written over a file that is there already, and one sync. Nothing durable is faster here.

Only the standard library is used: the peers' environments hold nothing else of ours.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Protocol, Self

RECORD_BYTES = 1024
FILE_BYTES = 4 * 1024 * 1024  # as much as the log grows its WAL to
SYNCS_PER_EFFECT = 3
RECORD = b"\x5a" * RECORD_BYTES


def _sync(descriptor: int) -> None:
    """The cheapest call that this system has for making written bytes durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


class Raw(Protocol):
    """What an effect is held against: its three commits, and nothing else."""

    def three(self) -> int:
        """Three commits in a row, in nanoseconds."""
        ...

    def take(self, count: int) -> list[int]:
        """So many commits, each in nanoseconds."""
        ...


class Floor:
    """A file of zeros on the log's disk, to be written over and synced.

    Args:
        folder: where; it must be on the disk of what is measured.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "floor"
        self._offset = 0
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        for start in range(0, FILE_BYTES, 1 << 20):  # zeros that are written: a file with holes is slower
            os.pwrite(self._descriptor, bytes(1 << 20), start)
        os.fsync(self._descriptor)

    def one(self) -> int:
        """Write and sync once; how long that took, in nanoseconds."""
        self._offset = (self._offset + RECORD_BYTES) % FILE_BYTES
        started = time.perf_counter_ns()
        os.pwrite(self._descriptor, RECORD, self._offset)
        _sync(self._descriptor)
        return time.perf_counter_ns() - started

    def three(self) -> int:
        """What an effect needs at the least: three in a row, in nanoseconds."""
        return sum(self.one() for _ in range(SYNCS_PER_EFFECT))

    def take(self, count: int) -> list[int]:
        """So many, each in nanoseconds."""
        return [self.one() for _ in range(count)]

    def close(self) -> None:
        """Remove the file."""
        os.close(self._descriptor)
        self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def percentile(values: list[int], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))])


def p50_us(values_ns: list[int]) -> float:
    """The median, in microseconds."""
    return median(values_ns) / 1e3


def p99_us(values_ns: list[int]) -> float:
    """The 99th percentile, in microseconds."""
    return percentile(values_ns, 99) / 1e3
