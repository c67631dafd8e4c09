"""Opening a SQLite log: what is checked before, who checkpoints, and in which order (DESIGN 9).

Roles: a *reader* opens the file read-only. The first writer is the *keeper*: it alone checkpoints and pre-grows the
WAL. Every later writer is a *guest*. None of them checkpoints at close: a connection that does deletes a WAL that
another may be about to write.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from pathlib import Path

import apsw

from intentlog.core.codec import APPLICATION_ID, FORMAT_VERSION
from intentlog.errors import FormatTooNew, LogDamaged, LogUnavailable
from intentlog.store import schema, trust
from intentlog.store.connection import Connection
from intentlog.store.connection import connection as open_connection
from intentlog.store.locks import write_all
from intentlog.store.wal import bytes_of, frames_of, wal_of

BUSY_POLL_S = 0.01
BUSY_LIMIT_MS = 10_000
WAL_BYTES = 4 * 1024 * 1024  # about 1,000 frames; written zeros, since a growing file doubles a commit's cost
BALLAST_BYTES = 256 * 1024
SALT_BYTES = 32
FREE_BYTES_MIN = 1024 * 1024  # a full disk under the mapped -shm file would kill the process with SIGBUS
INDEX_FRAMES_LOOKED_AT = 2_000  # a WAL that has fewer is far from a second page of its index
_INDEX_FRAMES_FIRST = 4_062  # what the first page of the -shm file covers; every other one _INDEX_FRAMES
_INDEX_FRAMES = 4_096
_INDEX_FRAMES_NEAR = 1_400  # more than a batch writes
_PAGE_BYTES = 4096
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs"}
)


Identity = tuple[int, int]  # of a file: device and inode


def identity_of(path: Path) -> Identity | None:
    """Which file it is, whatever its name; None if it is not there."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def check_place(path: Path, *, reader: bool) -> None:
    """Refuse a place where a log cannot be kept, before anything is touched.

    Raises:
        LogUnavailable: no such folder, a network file system, no room, not a regular file, a second name of a file; to
            a writer also one that it may not write, or that others may.
        LogDamaged: the file is not a log.
    """
    folder = path.parent
    if not folder.is_dir():
        raise LogUnavailable(f"the folder {folder} does not exist", remedy="make it, or name another path.")
    if not path.exists() and reader:
        raise LogUnavailable(f"there is no log at {path}", remedy="check the path.")
    kind = file_system(folder)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise LogUnavailable(
            f"{folder} is on a network file system ({kind}), where SQLite's locks and syncs cannot be trusted",
            remedy="keep the log on a local disk, or use PostgreSQL.",
        )
    if path.exists():
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise LogUnavailable(f"{path} is not a regular file", remedy="name another path.")
        if found.st_nlink > 1:  # its WAL and locks stand beside one name only
            raise LogUnavailable(f"{path} has a second name (a hard link)", remedy="keep one name of it.")
        if reader and not found.st_size:  # SQLite would remove a WAL that is left beside it
            raise LogUnavailable(f"{path} is an empty file, not yet a log", remedy="a writer makes it one.")
        if 0 < found.st_size < _PAGE_BYTES:  # SQLite would take it for empty
            raise LogDamaged(f"{path} is not a log: it has {found.st_size} bytes")
    if not reader:
        check_writable(path)
        trust.check_owned(path, path.with_name(path.name + ".d"))
    check_room(path, reader=reader)


def check_room(path: Path, *, reader: bool) -> None:
    """Refuse a disk so full that the mapped -shm file could not be made: that would kill the process with SIGBUS.

    A writer that finds less releases its ballast first; a reader needs no room where the -shm file is there.
    """

    def free() -> int:
        room = os.statvfs(path.parent)
        return room.f_bavail * room.f_frsize

    shared = path.with_name(path.name + "-shm")
    if reader and shared.exists() and shared.stat().st_size:
        return
    needed = FREE_BYTES_MIN // 16 if path.exists() else FREE_BYTES_MIN
    if not reader and free() < needed:
        (path.with_name(path.name + ".d") / "ballast").unlink(missing_ok=True)
    if free() < needed:
        raise LogUnavailable(f"no room on the disk of {path.parent}", remedy=f"free at least {needed // 1024} KiB.")


def check_index_room(path: Path, frames: int, record_bytes: int) -> None:
    """Refuse a commit that may make the mapped -shm file longer on a disk so full that this would end in SIGBUS.

    A page of it covers some 4,000 frames, more than a WAL has but for a reader whose snapshot postpones checkpoints.

    Args:
        path: the log.
        frames: how many the WAL has.
        record_bytes: what the commit is about to write, generously.
    """
    if (_INDEX_FRAMES_FIRST - frames) % _INDEX_FRAMES > _INDEX_FRAMES_NEAR:
        return
    needed = FREE_BYTES_MIN + record_bytes
    for release in (True, False):
        room = os.statvfs(path.parent)
        if room.f_bavail * room.f_frsize >= needed:
            return
        if release:
            (path.with_name(path.name + ".d") / "ballast").unlink(missing_ok=True)
    raise LogUnavailable(
        f"no room on the disk of {path} for the index of its WAL; nothing was written",
        remedy=f"free at least {needed // 1024} KiB, or end what reads the log for so long, and go on.",
    )


def failure_of(path: Path, error: BaseException) -> BaseException:
    """What an opening that failed is told as, whatever raised it."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError() | apsw.SQLError() | UnicodeDecodeError() | TypeError():
            return LogDamaged(f"{path} is not a sound log: {error}")
        case apsw.Error():
            return LogUnavailable(f"{path} cannot be opened: {error}", remedy=busy_remedy(path, error))
        case OSError() | ValueError():
            return LogUnavailable(f"{path} cannot be opened: {error}", remedy="check the path and the disk.")
        case _:
            return error


def check_writable(path: Path) -> None:
    """Refuse a file or folder that this user cannot write.

    Raises:
        LogUnavailable: it cannot be written.
    """
    for place in (path.parent, *([path] if path.exists() else [])):
        if not os.access(place, os.W_OK):
            raise LogUnavailable(f"{place} cannot be written", remedy="check its permissions and its owner.")


def file_system(folder: Path) -> str:
    """The type of the file system that holds the folder, or "" where that cannot be told."""
    if sys.platform != "linux":
        return ""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = ""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            found = right.split()[0]
    return found


def sync_folder(folder: Path) -> None:
    """Make a new name in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, *, reader: bool, vfs: str | None) -> Connection:
    """A connection with every setting that the log relies on, read back.

    Raises:
        LogDamaged: the file is not a database.
        LogUnavailable: a setting did not take, or the file is held.
    """
    flags = apsw.SQLITE_OPEN_READONLY if reader else apsw.SQLITE_OPEN_READWRITE
    try:
        connection = open_connection(path, flags, vfs)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)  # whoever wrote the file runs nothing here
        connection.set_busy_timeout(BUSY_LIMIT_MS)
        if not reader:
            connection.pragma("journal_mode", "WAL")
            connection.pragma("wal_autocheckpoint", 0)
        for name, value in _SETTINGS.items():
            connection.pragma(name, value)
        took = {name: connection.pragma(name) for name in _REQUIRED}
    except apsw.NotADBError as error:
        raise LogDamaged(f"{path} is not a log: {error}") from error
    except (apsw.BusyError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError, apsw.FullError) as error:
        raise LogUnavailable(f"{path} cannot be opened: {error}", remedy=busy_remedy(path, error)) from error
    if not reader and took != _REQUIRED:
        connection.close()
        raise LogUnavailable(f"the settings of {path} did not take: wanted {_REQUIRED}, got {took}")
    return connection


_SETTINGS = {
    "synchronous": "FULL",
    "journal_size_limit": -1,
    "mmap_size": 0,
    "cache_size": -16_000,
    "fullfsync": 1,
    "checkpoint_fullfsync": 1,
    "foreign_keys": 0,
}
_REQUIRED = {"journal_mode": "wal", "synchronous": 2, "mmap_size": 0}


def busy_remedy(path: Path, error: apsw.Error) -> str:
    """What to do about a log that does not open or write; the processes that hold it, if it is busy."""
    if not isinstance(error, apsw.BusyError):
        return "check the disk and the file's permissions."
    holders = ", ".join(str(pid) for pid in holding_processes(path)) or "not found"
    return f"another process holds it (pid {holders}): wait, or end it if it is stopped inside a commit."


def holding_processes(path: Path) -> list[int]:
    """The other processes that have the log open, where the system tells."""
    if sys.platform == "darwin":
        import subprocess

        command = ["/usr/sbin/lsof", "-t", "--", str(path)]
        output = subprocess.run(command, check=False, capture_output=True, text=True).stdout  # noqa: S603 - fixed
        return [int(pid) for pid in output.split() if int(pid) != os.getpid()]
    try:
        target = path.stat()
    except OSError:
        return []  # of a dead disk: there is another error on its way, which tells more
    holders: set[int] = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found = descriptor.stat()
        except OSError:
            continue  # it ended, or is another user's
        if (found.st_dev, found.st_ino) == (target.st_dev, target.st_ino):
            holders.add(int(descriptor.parts[2]))
    return sorted(holders - {os.getpid()})


def check_format(connection: Connection, path: Path) -> bool:
    """Whether the file is a log already; False for an empty one.

    Raises:
        LogDamaged: it is another program's database.
        FormatTooNew: a newer intentlog wrote it.
    """
    try:
        connection.execute("BEGIN")  # of one moment: another process may be making it a log
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
        empty = connection.pragma("schema_version") == 0
        connection.execute("ROLLBACK")
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise LogDamaged(f"{path} is not a log: {error}") from error
    if empty and application == 0:
        return False
    if application != APPLICATION_ID:
        raise LogDamaged(f"{path} is a database of another program", remedy="name another path.")
    if not isinstance(version, int) or version < 1:
        raise LogDamaged(f"{path} has format {version}, which never was")
    if version > FORMAT_VERSION:
        raise FormatTooNew(f"{path} has format {version}, this intentlog writes {FORMAT_VERSION}")
    return True


def salt_of(connection: Connection, path: Path) -> bytes:
    """The log's secret.

    Raises:
        LogDamaged: it is not what was written.
    """
    salt = connection.execute(schema.SALT).get
    if not isinstance(salt, bytes) or len(salt) != SALT_BYTES:
        raise LogDamaged(f"{path} is damaged: its salt is not {SALT_BYTES} bytes")
    return salt


def take_over_wal(connection: Connection, path: Path, wal_bytes: int) -> None:
    """The keeper's duty before the first acknowledgement: make what it found durable, checkpoint it, grow the WAL.

    A failed sync before a restart can leave a hole in the WAL that the page cache hides. Without the checkpoint
    everything acknowledged after it would be lost at a power cut. Unless the WAL is whole again before that, a power
    cut during the checkpoint would leave old frames over newer pages: a damaged log. The WAL is grown only past its
    end, only inside a write transaction, right after the checkpoint: zeroing from a stale size destroys records.

    Raises:
        LogUnavailable: a reader or a stopped process prevents the checkpoint.
    """
    try:
        _write_anew(connection, path)
        _checkpoint(connection)
        connection.execute("BEGIN IMMEDIATE")
        grow(wal_of(path), wal_bytes)
        sync_folder(path.parent)  # SQLite ignores it if the sync of the WAL's new name fails
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'upkeep'")
        connection.execute("COMMIT")
    except apsw.BusyError as error:
        raise LogUnavailable(f"{path} cannot be checkpointed", remedy=busy_remedy(path, error)) from error
    except (apsw.IOError, apsw.FullError, OSError) as error:
        raise LogUnavailable(f"{path} cannot be made durable: {error}", remedy="check the disk.") from error


def _write_anew(connection: Connection, path: Path) -> None:
    """Make the WAL durable as it is read here: after a failed sync a page is clean until it is written once more.

    A guest may have restarted the WAL since its frames were counted; what is written is what stands there, and no other
    process writes meanwhile.
    """
    end = bytes_of(frames_of(connection) or 0)
    if not end:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        write_again(wal_of(path), end)
    finally:
        connection.execute("ROLLBACK")


def write_again(path: Path, size_bytes: int) -> None:
    """Write a file's first `size_bytes` once more, as they are, and sync it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        done = 0
        while found := os.pread(descriptor, min(size_bytes - done, 1 << 20), done):
            done += os.pwrite(descriptor, found, done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checkpoint(connection: Connection) -> None:
    """Complete a checkpoint. While another process makes one, SQLite answers busy at once: that is waited for here."""
    deadline_s = time.monotonic() + BUSY_LIMIT_MS / 1000
    while True:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(BUSY_POLL_S)
        else:
            return


def grow(path: Path, size_bytes: int) -> None:
    """Extend a file to `size_bytes` with written zeros, never touching what it holds, and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        end = os.fstat(descriptor).st_size
        while end < size_bytes:
            end += os.pwrite(descriptor, bytes(min(size_bytes - end, 1 << 20)), end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_ballast(path: Path) -> None:
    """Reserve room that can be released when the disk is full, so that an outcome can still be written."""
    if path.exists() and path.lstat().st_size == BALLAST_BYTES:
        return
    descriptor = trust.create(path, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(descriptor, secrets.token_bytes(BALLAST_BYTES), 0)  # not zeros: a compressing disk would keep no room
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
