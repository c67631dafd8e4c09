"""What the promise of a log in a file hangs on. Nothing is written; the file is opened by SQLite alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw

from intentlog.core.codec import FORMAT_VERSION
from intentlog.errors import LogUnavailable
from intentlog.store import opening, trust, wal
from intentlog.store.findings import Finding, Verdict, counted, judged
from intentlog.store.locks import keeper_lives, left_by_dead

WAL_BYTES_MAX = 64 << 20
ROOM_BYTES_MIN = 64 << 20


def examine(path: Path) -> list[Finding]:
    """Look at a log in a file.

    Raises:
        LogUnavailable, LogDamaged, FormatTooNew: it is not there, cannot be kept there, or is no log.
    """
    folder = path.with_name(path.name + ".d")
    try:
        opening.check_place(path, reader=True)
        wal.check_size(path, folder)
        connection = opening.connect(path, reader=True, vfs=None)
        try:
            if not opening.check_format(connection, path):
                raise LogUnavailable(f"{path} is an empty file, not yet a log", remedy="a writer makes it one.")
            wal.check_whole(path, connection, folder)
            version = int(str(connection.pragma("user_version")))
        finally:
            connection.close()
        return [*_file(path, version), *_processes(path, folder)]
    except Exception as error:
        failure = opening.failure_of(path, error)
        if failure is error:
            raise
        raise failure from error


def _file(path: Path, version: int) -> Iterator[Finding]:
    kind = opening.file_system(path.parent)
    yield Finding("file system", kind or "cannot be told", "a local one", Verdict.OK if kind else Verdict.NOTE)
    yield Finding("SQLite", apsw.sqlite_lib_version(), "-", Verdict.OK)
    yield Finding("format", str(version), f"up to {FORMAT_VERSION}", Verdict.OK)
    mode = stat.S_IMODE(path.stat().st_mode)
    remedy = "chmod 600: arguments and results stand in it."
    yield judged("permissions", f"{mode:04o}", "0600", remedy, ok=not mode & 0o077, bad=Verdict.WEAK)
    owner = trust.owner_name(path.stat().st_uid)
    remedy = f"only its owner appends to a log: workers run as {owner}."
    yield judged("owner", owner, "who runs this", remedy, ok=path.stat().st_uid == os.geteuid())
    everybodys = trust.is_everybodys(path.parent)
    found, remedy = "everybody" if everybodys else "not everybody", f"chmod o-w {path.parent}"
    yield judged("its folder", f"{found} may write it", "not everybody", remedy, ok=not everybodys)
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    yield judged("may be written", "yes" if writable else "no", "yes", "check its owner.", ok=writable)
    room = os.statvfs(path.parent)
    free = room.f_bavail * room.f_frsize
    bad = Verdict.WRONG if free < opening.FREE_BYTES_MIN else Verdict.WEAK
    good = free >= ROOM_BYTES_MIN
    yield judged("room on its disk", _size(free), f"over {_size(ROOM_BYTES_MIN)}", "free some.", ok=good, bad=bad)
    size = wal.wal_of(path).stat().st_size if wal.wal_of(path).exists() else 0
    remedy = "a reader has been reading for long, or the keeper is stopped: see who has it open."
    good = size < WAL_BYTES_MAX
    yield judged("WAL", _size(size), f"under {_size(WAL_BYTES_MAX)}", remedy, ok=good, bad=Verdict.WEAK)


def _processes(path: Path, folder: Path) -> Iterator[Finding]:
    dead = len(left_by_dead(folder))
    alive = len(list(folder.glob("owner-*.lock"))) - dead
    yield Finding("owners", f"{alive} alive, {dead} dead with the log open")
    holders = ", ".join(str(pid) for pid in opening.holding_processes(path))
    yield Finding("open in", f"pid {holders}" if holders else "no process that can be seen")
    found = "alive" if keeper_lives(folder) else "none"
    remedy = "the WAL grows until one of them takes the role over, at its next commit."
    good = found == "alive" or not alive
    yield judged("keeper", found, "alive, while there are owners", remedy, ok=good, bad=Verdict.WEAK)
    if dead:
        text = f"{counted(dead, 'worker')} died: intentlog recover."
        yield Finding("dead owners", str(dead), "-", Verdict.NOTE, text)


def _size(number: int) -> str:
    return f"{number / (1 << 20):.1f} MiB" if number < 1 << 30 else f"{number / (1 << 30):.1f} GiB"
