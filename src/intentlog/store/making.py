"""Making a log: whole, under a draft's name, and only then under its own."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path

import apsw

from intentlog.core.codec import APPLICATION_ID, FORMAT_VERSION
from intentlog.errors import LogDamaged, LogUnavailable
from intentlog.store import schema, trust, wal
from intentlog.store.connection import Connection
from intentlog.store.connection import connection as open_connection
from intentlog.store.opening import BUSY_LIMIT_MS, BUSY_POLL_S, SALT_BYTES, sync_folder


def create_log(path: Path, drafts: Path) -> None:
    """Make a whole empty log and only then give it its name, so that a crash leaves a log or nothing.

    It is in WAL mode before it has its name: a kill while an existing file changes its mode leaves a journal that only
    a writer may play back, and a log is looked at by a reader first.

    Args:
        path: the log; left alone if it is there and not empty.
        drafts: a folder on the same file system.

    Raises:
        LogUnavailable: another process has been making it for 10 s.
        LogDamaged: there was one, and its WAL is still there.
    """
    if _is_made(path):
        return
    turn = trust.create(drafts / "making.lock", os.O_RDWR)
    try:
        _wait_for_turn(turn, path)  # one at a time: a rename would put a second log over the first
        if _is_made(path):
            return
        _check_nothing_is_left(path)
        draft = drafts / f"draft-{secrets.token_hex(6)}"
        try:
            os.close(trust.create(draft, os.O_EXCL | os.O_RDWR))
            _fill(draft)
            draft.rename(path)
        finally:
            for left in drafts.glob("draft-*"):  # also those of makers that died
                left.unlink(missing_ok=True)
        sync_folder(path.parent)
    finally:
        os.close(turn)


def _is_made(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _check_nothing_is_left(path: Path) -> None:
    """Refuse to make a log beside the WAL of another: SQLite would play that one's pages into it."""
    left = wal.wal_of(path)
    if left.exists() and left.stat().st_size:
        raise LogDamaged(
            f"{path} is gone, and its WAL is there: {left}",
            remedy="bring the file back, or restore a backup. To begin a new log, which knows of nothing that is done, "
            "remove the WAL too.",
        )


def _wait_for_turn(turn: int, path: Path) -> None:
    deadline_s = time.monotonic() + BUSY_LIMIT_MS / 1000
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise LogUnavailable(
                    f"another process is making {path}, and has not ended in {BUSY_LIMIT_MS // 1000} s",
                    remedy="end it if it is stopped, and try again.",
                ) from None
            time.sleep(BUSY_POLL_S)
        else:
            return


def _fill(draft: Path) -> None:
    """Make an empty file a log, all of it in the main file and synced there."""
    connection = open_connection(draft, apsw.SQLITE_OPEN_READWRITE, None)
    try:
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "FULL")
        connection.pragma("checkpoint_fullfsync", 1)
        create_tables(connection)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()


def create_tables(connection: Connection) -> None:
    """Make an empty database a log, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(schema.CREATE)
        salt = secrets.token_bytes(SALT_BYTES)
        connection.execute("INSERT INTO meta VALUES ('salt', ?), ('upkeep', 0)", (salt,))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", FORMAT_VERSION)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
