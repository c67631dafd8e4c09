"""A log in one SQLite file. What may fail, and what is then known, stands in `append`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from weakref import finalize

import apsw

from intentlog.core.actions import Append, Appended, Interrupted, Refused, View
from intentlog.core.records import Dispatched, Pending
from intentlog.errors import LogDamaged, LogPoisoned, LogUnavailable
from intentlog.ports import Clock, Counters, Observer
from intentlog.store import in_process, making, opening, trust, wal
from intentlog.store.connection import Connection
from intentlog.store.damage import damage_of
from intentlog.store.locks import Locks, lives
from intentlog.store.presence import Present
from intentlog.store.reads import SqliteReads
from intentlog.store.recall import Recall
from intentlog.store.rows import SqliteRows
from intentlog.store.sole_access import SoleAccess
from intentlog.store.staging import NOTHING, stage

CHECKPOINT_FRAMES = 900  # below what the pre-grown WAL holds, so that no commit ever grows the file
WAL_FRAMES_MAX = 1_000  # between the records of one effect no checkpoint falls, unless the WAL is about to grow
_ROW_BYTES = 32 * 1024  # what one record makes a commit write, its payload not counted, at most
_BEGINNINGS = frozenset({Pending, Dispatched})  # more of the effect is to come


class SqliteStore(SqliteReads):
    """A log in one SQLite file. Safe from several threads: each call holds the store's lock.

    Args:
        path: the file; made if it is missing and this is a writer.
        clock: stamps the records.
        observer: is told when the log is poisoned.
        reader: open read-only; `append` is refused.
        vfs: the SQLite VFS, for tests that count or fail its calls.
        wal_bytes: how far the keeper grows the WAL.
    """

    death_is_certain = True
    is_remote = False

    def __init__(
        self,
        path: Path,
        clock: Clock,
        observer: Observer,
        *,
        reader: bool = False,
        vfs: str | None = None,
        wal_bytes: int = opening.WAL_BYTES,
    ) -> None:
        self._path = path
        self._clock = clock
        self._observer = observer
        self._lock = RLock()
        self._read_lock = RLock()
        self._recall = Recall()
        self._dead: set[str] = set()
        self._vfs = vfs
        self._pid = os.getpid()
        self.is_inherited = False
        self._poison: str | None = None
        self._commits = self._syncs = self._upkeep_commits = 0
        self._frames = 0
        self._frames_limit = CHECKPOINT_FRAMES
        self._wal_bytes, self._salts = 0, ""  # what is noted of the WAL
        self._locks: Locks | None = None
        self._lost: finalize[..., SqliteStore] | None = None
        self._connection: Connection | None = None
        self._reads: Connection | None = None
        self._tables: SqliteRows | None = None
        self._identity: opening.Identity | None = None
        self._access: SoleAccess | None = None
        self._present: tuple[Present, ...] = ()
        self._looked_ns = -1  # when they were last seen to be there
        self._folder = path.with_name(path.name + ".d")
        self.mapped: opening.Identity | None = None  # the file whose -shm this process has mapped
        try:
            opening.check_place(path, reader=reader)
            in_process.enter(self, path)
            if reader:
                self._open_reader(vfs)
            else:
                self._open_writer(vfs, wal_bytes)
            self._salt = opening.salt_of(self._usable(self._reads), path)
        except BaseException as error:
            self.close()
            failure = opening.failure_of(path, error)
            if failure is error:
                raise
            raise failure from error

    def _open_reader(self, vfs: str | None) -> None:
        wal.check_size(self._path, self._folder)
        self._access = SoleAccess(self._path)
        self._reads = opening.connect(self._path, reader=True, vfs=vfs)
        self._access.look()
        if not opening.check_format(self._reads, self._path):
            raise LogUnavailable(f"{self._path} is an empty file, not yet a log", remedy="a writer makes it one.")
        wal.check_whole(self._path, self._reads, self._folder)

    def _open_writer(self, vfs: str | None, wal_bytes: int) -> None:
        path = self._path
        trust.make_folder(self._folder)
        making.create_log(path, self._folder)
        self._identity = in_process.claim(self, path)
        self._locks = Locks(self._folder)
        self._lost = finalize(self, self._locks.release)  # a log that is lost before anybody could close it
        self._lost.atexit = False
        wal.check_size(path, self._folder)
        self._access = SoleAccess(path)
        self._reads = opening.connect(path, reader=True, vfs=vfs)
        self._access.look()
        if not opening.check_format(self._reads, path):  # before a writer's settings touch another program's file
            raise LogDamaged(f"{path} is an empty database, not a log", remedy="remove it, or name another path.")
        wal.check_whole(path, self._reads, self._folder)
        self._locks.sweep()
        self._connection = opening.connect(path, reader=False, vfs=vfs)
        self._tables = SqliteRows(self._connection)
        opening.make_ballast(self._folder / "ballast")
        self._connection.set_wal_hook(self._count_frames)
        if self._locks.become_keeper():
            opening.take_over_wal(self._connection, path, wal_bytes)
            self._upkeep_commits += 1
        self._wal_bytes = wal.wal_of(path).stat().st_size
        self._note(wal.frames_of(self._reads) or 0)
        self._present = (
            Present(path.with_name(f"{path.name}-shm"), "its index (-shm), without which it is not one log,"),
            Present(path, "the log"),
            Present(wal.wal_of(path), "its WAL"),
            Present(self._locks.owner_file, "the lock that tells that its owner lives"),
        )

    # --- what a driver asks ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def owner(self) -> str:
        """Who appends through this store; "" for a reader."""
        return self._locks.owner if self._locks else ""

    @property
    def salt(self) -> bytes:
        """The log's secret."""
        return self._salt

    @property
    def counters(self) -> Counters:
        """Commits and syncs so far; one sync each, as WAL with synchronous=FULL makes them."""
        return Counters(self._commits, self._syncs, self._upkeep_commits)

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        """See `ports.Store.append`.

        Until COMMIT is reached every failure is rolled back and harmless. A COMMIT that finds no room has synced
        nothing: the ballast is released and the append made once more. Any other failure of COMMIT leaves its fate
        unknown: the record may be there after a reopen, so the store refuses everything from then on (I8).
        """
        with self._turn():
            connection, tables = self._connection, self._tables
            if connection is None or tables is None or self._poison is not None or connection.in_transaction:
                connection, tables = self._writable()
            gone = self._index_gone()
            if gone:  # who writes by an index that others do not have writes over their frames
                raise self._poisoned(LogDamaged(f"{gone}; nothing was written"))
            if self._frames > opening.INDEX_FRAMES_LOOKED_AT:
                self._check_index_room(entries)
            try:
                replies = self._append(connection, tables, entries)
            except apsw.FullError:
                replies = self._append_with_ballast(connection, tables, entries)
            kinds = {type(entry.record) for entry in entries}
            gone = self.gone() if Dispatched in kinds else ""
            if gone:
                raise self._poisoned(LogDamaged(gone))
            self._recall.touch([entry.branch for entry in entries])
            self._frames_limit = CHECKPOINT_FRAMES if kinds.isdisjoint(_BEGINNINGS) else WAL_FRAMES_MAX
            return replies

    def _index_gone(self) -> str:
        return self._present[0].gone() if self._present else ""

    def _check_index_room(self, entries: Sequence[Append]) -> None:
        size = sum(_ROW_BYTES + 2 * len(entry.payload or b"") for entry in entries)
        with suppress(OSError):  # of a dead disk: the commit itself meets that
            opening.check_index_room(self._path, self._frames, size)

    def _append(
        self, connection: Connection, tables: SqliteRows, entries: Sequence[Append]
    ) -> list[Appended | Refused]:
        replies: list[Appended | Refused] | None = None
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            tables.begin()
            staged = stage(tables, entries, self._clock.now())
            tables.write(staged)
            replies = staged.replies
            committing = written = bool(staged.events)
            connection.execute("COMMIT" if written else "ROLLBACK")
            tables.keep(staged)
        except apsw.FullError:
            self._roll_back(connection)
            raise
        except apsw.BusyError as error:  # only BEGIN can meet it
            self._roll_back(connection)
            raise LogUnavailable(
                f"{self._path} is busy; nothing was written", remedy=opening.busy_remedy(self._path, error)
            ) from error
        except apsw.Error as error:
            if committing or isinstance(error, apsw.IOError):
                raise self._poisoned(error) from error
            self._roll_back(connection)  # before COMMIT nothing can have landed
            raise damage_of(self._path, error) from error
        except Exception as error:  # not the disk: a damaged row, or a mistake of our own; nothing was written
            self._roll_back(connection)
            raise damage_of(self._path, error) from error
        except BaseException as signal:
            # COMMIT raises its own errors: out of the transaction, after staging, it went through.
            landed = replies is not None and not connection.in_transaction
            self._roll_back(connection)
            raise Interrupted(replies if landed else None, signal) from signal
        self._commits += written
        self._syncs += written
        return replies

    def _append_with_ballast(
        self, connection: Connection, tables: SqliteRows, entries: Sequence[Append]
    ) -> list[Appended | Refused]:
        with suppress(OSError):  # then there is no room still, and that is told
            (self._folder / "ballast").unlink(missing_ok=True)
        try:
            return self._append(connection, tables, entries)
        except apsw.FullError as error:
            raise LogUnavailable(
                f"no room on the disk of {self._path}; nothing was written", remedy="free some room and go on."
            ) from error

    def _roll_back(self, connection: Connection) -> None:
        if connection.in_transaction:
            with suppress(apsw.Error):  # the caller raises what made it roll back
                connection.execute("ROLLBACK")

    def gone(self, *, age_max_ns: int = 0, given_ns: int | None = None) -> str:
        """See `ports.Store.gone`. A file that was taken away does not come back, so that `given_ns` adds nothing."""
        del given_ns
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns <= age_max_ns:
            return ""
        for one in self._present:
            gone = one.gone()
            if gone:
                return gone
        self._looked_ns = now_ns
        return ""

    def _poisoned(self, error: Exception) -> LogPoisoned:
        """No retry: after a failed sync the kernel may call pages clean that it never wrote."""
        self._poison = f"{type(error).__name__}: {error}"
        if self._connection is not None:
            self._roll_back(self._connection)
        if self._locks:
            self._locks.give_up_keeper()
        self._observer.poisoned(self.name, self._poison)
        return LogPoisoned(f"a commit of {self._path} failed, its fate is unknown: {self._poison}")

    def view(self, branch: str, step: str, generation: int | None = None) -> View:
        """See `ports.Store.view`."""
        return self.remembered(branch, step) or super().view(branch, step, generation)

    def remembered(self, branch: str, step: str) -> View | None:
        """See `ports.Store.remembered`: of a step that its branch does not have."""
        known = self._tables.is_new(branch, step) if self._tables and self._poison is None else None
        if known is None:
            return None
        self.check_process()
        return View(known, None, self._clock.now())

    # --- upkeep: between commits, never inside one ---------------------------------------------------------------

    def _count_frames(self, connection: object, database: str, frames: int) -> int:
        del connection, database
        if frames <= self._frames:  # it was begun anew
            self._salts = ""
        self._frames = frames
        self._note(frames)
        return 0

    def _note(self, frames: int) -> None:
        """Note how far the WAL reaches, for whoever opens the log after this process: see `store.wal`."""
        self._salts = self._salts or wal.salts_at(self._path, frames)
        self._wal_bytes = max(self._wal_bytes, wal.bytes_of(frames))
        if self._locks is not None:
            self._locks.note(self._wal_bytes, frames, self._salts)

    @property
    def upkeep_due(self) -> bool:
        """See `ports.Store.upkeep_due`. Between the records of one effect, only when the WAL is about to grow."""
        return self._frames >= self._frames_limit and self._poison is None

    def upkeep(self) -> None:
        """See `ports.Store.upkeep`: the keeper restarts the WAL; a reader's snapshot only postpones it."""
        with self._turn():
            if self._connection is None or self._tables is None or self._locks is None or self._poison is not None:
                return
            try:
                if not self._index_gone() and self._locks.become_keeper():
                    self._restart_wal(self._connection, self._tables)
            except Exception as error:  # noqa: BLE001 - what was acknowledged stands; the next use is refused
                self._poisoned(error)

    def _restart_wal(self, connection: Connection, tables: SqliteRows) -> None:
        try:
            connection.set_busy_timeout(0)  # a reader's snapshot is not waited for: the next commit tries again
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            connection.execute("BEGIN IMMEDIATE")
            tables.begin()
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'upkeep'")  # takes the header's sync
            connection.execute("COMMIT")
            tables.keep(NOTHING)  # so that what is known of the tables stays known
            self._frames = 0
            self._upkeep_commits += 1
        except (apsw.BusyError, apsw.FullError):
            self._roll_back(connection)  # nothing was lost; if there is no room, the next append meets it and says so
        finally:
            connection.set_busy_timeout(opening.BUSY_LIMIT_MS)

    # --- life ------------------------------------------------------------------------------------------------------

    def _lives(self, owner: str) -> bool:
        holder = owner.partition(".")[0]
        if holder in self._dead:
            return False
        alive = self._locks.lives(holder) if self._locks else lives(self._folder, holder)
        if not alive:
            self._dead.add(holder)  # for good: an owner's name is its own
        return alive

    def close(self) -> None:
        """See `ports.Store.close`. The keeper leaves the records in the main file too, if nobody is in the way."""
        with self._turn():
            try:
                self._close_connections()
            finally:
                self._let_go()

    def _close_connections(self) -> None:
        """What closing them cannot do on a dead disk is not told: what was acknowledged needs nothing of it."""
        with self._read_lock:
            reads, self._reads = self._reads, None
            if reads is not None:
                with suppress(apsw.Error):
                    reads.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(apsw.Error):
                if self._locks is not None and self._poison is None and self._locks.is_keeper:
                    connection.set_busy_timeout(0)
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                    frames = wal.frames_of(connection) or 0
                    self._locks.note_as_keeper(wal.bytes_of(frames), frames, wal.salts_at(self._path, frames))
            with suppress(apsw.Error):
                connection.close()

    def _let_go(self) -> None:
        """Of the locks, and of the log's name in this process: whatever the disk says, or nobody here could reopen."""
        if self._access is not None:
            self._access.give_up()
        if self._locks is not None:
            self._locks.release()
        if self._lost is not None:
            self._lost.detach()
        if self._identity is not None:
            in_process.release(self._identity)
            self._identity = None
        self.mapped = None

    def _writable(self) -> tuple[Connection, SqliteRows]:
        if self._connection is None and self._reads is not None:
            raise LogUnavailable(f"{self._path} was opened for reading only", remedy="open it without read_only.")
        connection = self._entered(self._connection)
        if self._tables is None:
            msg = "a connection that writes, without its tables"
            raise AssertionError(msg)
        return connection, self._tables
