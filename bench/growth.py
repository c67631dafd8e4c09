"""Whether a commit's cost, and a restart's, grow with the log: logs of different length, all open, taken in turn."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench import biglog
from bench.biglog import BigLog
from bench.effects import CENTS, Missing, Round, alternating, charge
from bench.floor import SYNCS_PER_EFFECT, Floor, p50_us, p99_us
from bench.measures import Growth, Restart, spread
from intentlog import Attempt, Log
from intentlog.store.wal import wal_of

QUICK_RECORDS = (10_000, 100_000)
FULL_RECORDS = (10_000, 1_000_000, 5_000_000)
BRANCHES = 16  # that effects are added to, spread over the log, so that a commit meets pages old and new
_WAL_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoint, two salts, two checksums
_FRAME_HEADER = struct.Struct(">IIIIII")  # page, pages of the database after a commit else 0, two salts, two checksums


class Frames(NamedTuple):
    """What a WAL holds since it was last restarted."""

    frames: int
    commits: int


def frames_of(wal: Path) -> Frames:
    """Count the frames and commits of a WAL. Only read, by name; the log's own files are not opened here."""
    frames = commits = 0
    with wal.open("rb") as file:
        _, _, page_bytes, _, *salts_and_sums = _WAL_HEADER.unpack(file.read(_WAL_HEADER.size))
        salts = salts_and_sums[:2]
        while len(header := file.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
            _, pages_after, *rest = _FRAME_HEADER.unpack(header)
            if rest[:2] != salts:
                break
            frames += 1
            commits += pages_after != 0
            file.seek(page_bytes, os.SEEK_CUR)
    return Frames(frames, commits)


class _Subject:
    """One of the logs, open, with attempts at branches spread over it."""

    def __init__(self, big: BigLog, stack: ExitStack) -> None:
        self.big = big
        log = stack.enter_context(Log.open(big.path))
        stride = max(len(big.closed) // BRANCHES, 1)
        branches = big.closed[stride // 2 :: stride][:BRANCHES]
        self._attempts: list[Attempt] = [stack.enter_context(log.attempt(branch)) for branch in branches]
        self._numbers = count(biglog.EFFECTS_PER_BRANCH)
        for attempt in self._attempts:  # as a program that is run again: it comes by what is done
            for order in range(biglog.EFFECTS_PER_BRANCH):
                attempt.call(charge, str(order), cents=CENTS)
        self.rounds: list[Round] = []
        self.frames: list[Frames] = []

    def effect(self) -> None:
        number = next(self._numbers)
        self._attempts[number % len(self._attempts)].call(charge, str(number), cents=CENTS)

    def round(self, floor: Floor, times: int) -> None:
        self.rounds.append(alternating(self.effect, floor, times))
        self.frames.append(frames_of(wal_of(self.big.path)))

    def figures(self) -> Growth:
        took = [one for r in self.rounds for one in r.effects_ns]
        ratios = [p50_us(r.effects_ns) / p50_us(r.syncs_ns) / SYNCS_PER_EFFECT for r in self.rounds]
        commits = sum(one.commits for one in self.frames)
        return Growth(
            records=self.big.records,
            file_mib=round(self.big.path.stat().st_size / 2**20, 1),
            effect_p50_us=p50_us(took),
            effect_p99_us=p99_us(took),
            x_three_syncs=spread(ratios),
            pages_per_commit=sum(one.frames for one in self.frames) / commits,
        )


def measure(logs: list[BigLog], folder: Path, *, quick: bool) -> list[Growth]:
    """Effects in each log, round by round in turn, so that a slower moment of the disk meets all of them."""
    rounds, times = (5, 30) if quick else (15, 200)
    with ExitStack() as stack:
        floor = stack.enter_context(Floor(folder))
        subjects = [_Subject(big, stack) for big in logs]
        for subject in subjects:
            alternating(subject.effect, floor, times)
        for number in range(rounds):
            turn = number % len(subjects)
            for subject in subjects[turn:] + subjects[:turn]:
                subject.round(floor, times)
        return [subject.figures() for subject in subjects]


def make_logs(folder: Path, *, quick: bool, tell: Callable[[str], None]) -> Iterator[BigLog]:
    """The logs, from the shortest to the longest; the shortest is verified whole."""
    sizes = QUICK_RECORDS if quick else FULL_RECORDS
    for records in sizes:
        started = time.perf_counter()
        big = biglog.make(folder / f"big-{records}.db", records)
        tell(f"a log of {big.records:,} records, made in {time.perf_counter() - started:.0f} s")
        if records == sizes[0]:
            with Log.open(big.path) as log:
                report = log.verify()
            if not report.ok:
                raise Missing(f"the log that was made is not sound: {report.problems[:3]}")
        yield big


# --- restart ---------------------------------------------------------------------------------------------------------


def _open_in_child(path: Path, *, recover: bool = False) -> dict[str, float]:
    """Open the log in a process that is killed afterwards, so that the next one finds what a kill leaves."""
    command = [sys.executable, "-m", "bench.reopened", str(path), *(["--recover"] if recover else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not done.stdout:
        raise Missing(f"the log was not opened again: {done.stderr[-500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    if found["open_intents"] != biglog.OPEN_INTENTS:
        raise Missing(f"{found['open_intents']} intents are open, {biglog.OPEN_INTENTS} were left so")
    return found


def _drop_from_cache(path: Path) -> None:
    """Let the kernel forget the log's pages, as far as the system can be asked to."""
    for part in (path, wal_of(path)):
        if part.exists() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def restart(big: BigLog, *, quick: bool) -> Restart:
    """Open the log again and again, as after a kill; then with its pages dropped; at last recover it."""
    times = 5 if quick else 15
    _open_in_child(big.path)
    warm = [_open_in_child(big.path) for _ in range(times)]
    cold: list[dict[str, float]] = []
    for _ in range(times):
        _drop_from_cache(big.path)
        cold.append(_open_in_child(big.path))
    recovered = _open_in_child(big.path, recover=True)
    return Restart(
        records=big.records,
        open_intents=biglog.OPEN_INTENTS,
        warm_open_ms=spread([one["open_ms"] for one in warm]),
        warm_scan_ms=spread([one["scan_ms"] for one in warm]),
        warm_total_ms=spread([one["open_ms"] + one["scan_ms"] for one in warm]),
        cold_total_ms=spread([one["open_ms"] + one["scan_ms"] for one in cold]),
        recover_ms=recovered["recover_ms"],
    )
