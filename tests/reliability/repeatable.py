"""Makes a child's run repeatable to the byte, and says of two folders whether they hold the same state of a log.

So the nth system call of a run is the nth of every other, and a state that many kills leave is looked at once.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from intentlog.core.records import Instant
from intentlog.store.clock import SystemClock, boot_id

_CLOCK = "clock"  # beside the log: from when on its runs take place
_SECONDS_BACK = 20  # every run takes place before now: who looks at the log afterwards reads a later clock
_WAL_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096

# Loaded before a child is forked: how a module is looked for depends on what was looked for before.
codecs.lookup("ascii")
boot_id()


def set_clock(folder: Path) -> None:
    """Let the runs in this folder, and in its copies, take place from now on, one second apart."""
    back_ns = _SECONDS_BACK * 10**9
    boot_ns = time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    (folder / _CLOCK).write_text(f"{time.time_ns() - back_ns} {boot_ns - back_ns}", encoding="ascii")


def repeat_alike(folder: Path, stage: int) -> None:
    """From now on this process reads a clock, draws chance and has a number as every run of this stage does."""
    wall_ns, boot_ns = (int(word) + stage * 10**9 for word in (folder / _CLOCK).read_text(encoding="ascii").split())
    ticks, drawn, boot = itertools.count(1), itertools.count(1), boot_id()

    def now(self: SystemClock) -> Instant:
        passed_ns = next(ticks) * 1000
        return Instant(wall_ns + passed_ns, boot, boot_ns + passed_ns)

    def token_bytes(size: int = 32) -> bytes:
        return hashlib.shake_128(f"{stage} {next(drawn)}".encode()).digest(size)

    time.monotonic_ns = lambda: next(ticks) * 1000  # what is as new as that is not looked at again
    SystemClock.now = now  # type: ignore[method-assign] # in a child process
    secrets.token_bytes = token_bytes  # type: ignore[assignment] # the same
    secrets.token_hex = lambda size=32: token_bytes(size).hex()  # type: ignore[assignment] # the same
    os.getpid = lambda: 4242  # the same


def state_of(folder: Path, *, shared: bool = False) -> str:
    """A digest of all files and of their names.

    Of a WAL all counts but the chance in it: the salts, and the checksums that follow from them. The -shm is made anew
    by whoever opens the log alone; where another has it open (`shared`), what counts of it are its marks.
    """
    digest = hashlib.sha256()
    for path, content in _files(folder):
        if path.name.endswith("-shm"):
            digest.update(content[16:24] + content[96:136] if shared else b"")
            continue
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
        digest.update(_without_chance(content) if path.name.endswith("-wal") else content)
    return digest.hexdigest()


def committed_in(folder: Path) -> str:
    """A digest of what whoever recovers this state builds on: of a WAL, the commits in it, and whether more follows."""
    digest = hashlib.sha256()
    for path, content in _files(folder):
        if path.name.endswith("-shm"):
            continue
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(_commits(content) if path.name.endswith("-wal") else content)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file and its content; of a draft's rollback journal, which nobody reads again, only how long it is.

    Of the notes in lock files the WAL's salts are left out.
    """
    for path in sorted(folder.rglob("*")):
        if path.name.endswith("-journal"):
            yield path, b"%d" % path.stat().st_size
        elif path.suffix == ".lock":
            yield path, b" ".join(path.read_bytes().split()[:2])
        elif not path.is_dir():
            yield path, path.read_bytes()


def _frames(wal: bytes) -> Iterator[tuple[bytes, bool, bytes]]:
    """The frames of a WAL: page number and commit mark, whether it is of the present round, and the page."""
    for start in range(_WAL_HEADER_BYTES, len(wal), _FRAME_HEADER_BYTES + _PAGE_BYTES):
        header = wal[start : start + _FRAME_HEADER_BYTES]
        page = wal[start + _FRAME_HEADER_BYTES : start + _FRAME_HEADER_BYTES + _PAGE_BYTES]
        yield header[:8], header[8:16] == wal[16:24], page


def _without_chance(wal: bytes) -> bytes:
    return b"".join([wal[:16], *(mark + b"%d" % now + page for mark, now, page in _frames(wal))])


def _commits(wal: bytes) -> bytes:
    parts: list[bytes] = []
    waiting: list[bytes] = []
    for mark, now, page in _frames(wal):
        if not now or len(page) < _PAGE_BYTES:
            break
        waiting.append(mark + page)
        if mark[4:] != b"\0\0\0\0":  # the size of the database after a commit
            parts += waiting
            waiting = []
    return b"".join([*parts, b"%d" % bool(waiting)])
