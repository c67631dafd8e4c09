"""The reading half of a SQLite log. What cannot be read is `LogDamaged`, whatever raised it."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

import apsw
import msgspec

from intentlog.core import codec
from intentlog.core.actions import BranchView, View
from intentlog.core.records import Instant, Stored
from intentlog.core.state import Branch, Operation
from intentlog.errors import LogClosed, LogDamaged, LogPoisoned, LogUnavailable, WrongProcess
from intentlog.ports import BranchRows, Clock
from intentlog.store import opening, schema
from intentlog.store.connection import Connection

_HISTORY_PAGE = 1_000
_DAMAGE = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.SQLError,
    apsw.MismatchError,
    msgspec.MsgspecError,
    OverflowError,
    TypeError,
    UnicodeDecodeError,
)


def damage_of(path: Path, error: Exception) -> Exception:
    """The error that a damaged file deserves; any other as it is."""
    if isinstance(error, _DAMAGE):
        return LogDamaged(f"{path} is damaged: {type(error).__name__}: {error}")
    if isinstance(error, apsw.Error):
        return LogUnavailable(f"{path} cannot be used now; nothing was written: {error}", remedy="try again.")
    return error


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Raise `LogDamaged` for what a sound file cannot cause."""
    try:
        yield
    except _DAMAGE as error:
        raise damage_of(path, error) from error
    except (apsw.BusyError, apsw.IOError, apsw.CantOpenError) as error:
        raise LogUnavailable(f"{path} cannot be read: {error}", remedy="check the disk.") from error


class SqliteReads(ABC):
    """Reads of one log, on a connection of their own: no writer is waited for. Safe from several threads in turn."""

    _path: Path
    _clock: Clock
    _lock: RLock
    _pid: int
    _poison: str | None
    _connection: Connection | None
    _reads: Connection | None
    _read_lock: RLock
    _vfs: str | None

    @abstractmethod
    def _lives(self, owner: str) -> bool:
        """Whether the owner's process still has the log open."""

    # --- whose turn it is ----------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """See `ports.Store.check_process`."""
        if os.getpid() != self._pid:
            raise WrongProcess(f"{self._path} was opened in process {self._pid}, this is its child {os.getpid()}")

    def _turn(self) -> RLock:
        """The lock; not in a forked child, where a thread that is not there may hold it."""
        self.check_process()
        return self._lock

    def _read_turn(self) -> RLock:
        """The same, for reads."""
        self.check_process()
        return self._read_lock

    def _entered(self, connection: Connection | None) -> Connection:
        """The connection, outside any transaction, if the log may be used. The caller has its turn."""
        connection = self._usable(connection)
        if connection.in_transaction:
            if self._interrupted():
                raise LogUnavailable(
                    f"{self._path} is in use by the code that this signal handler interrupted; nothing was written",
                    remedy="let the handler set a flag, and use the log outside it.",
                )
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")  # what an interrupted read left open
        return connection

    def _usable(self, connection: Connection | None) -> Connection:
        if connection is None:
            raise LogClosed(f"{self._path} was closed")
        if self._poison is not None:  # what a read would show may not be what a reopen will
            raise LogPoisoned(f"an earlier commit of {self._path} failed, its fate is unknown: {self._poison}")
        return connection

    def _interrupted(self) -> bool:
        """Whether this thread is inside the store already: then a signal handler has come in between."""
        mine: list[str] = []
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_locals.get("self") is self and frame.f_code.co_name not in _ON_THE_WAY_IN:
                mine.append(frame.f_code.co_name)
            frame = frame.f_back
        return any(name in _TRANSACTIONS for name in mine[1:])  # the first is the one that asks

    # --- reads -----------------------------------------------------------------------------------------------------

    def view(self, branch: str, step: str, generation: int | None = None) -> View:
        """See `ports.Store.view`."""
        with self._read_turn(), reading(self._path):
            connection = self._entered(self._reads)
            row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
            operation = _operation(connection.execute(schema.OPERATION, (branch, step, generation or 1)).get)
            if generation is None and operation is not None and operation.renewed:
                operation = _operation(connection.execute(schema.NEWEST_OPERATION, (branch, step)).get)
            return View(row, operation, self._clock.now())

    def branch_view(self, branch: str) -> BranchView:
        """See `ports.Store.branch_view`. Both reads see one snapshot."""
        with self._read_turn(), reading(self._path):
            connection = self._entered(self._reads)
            try:
                connection.execute("BEGIN")
                row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
                rows = connection.execute(schema.OPEN[1], (branch,)).fetchall()
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            operations = tuple(codec.decode_operation(state) for _, state in rows)
            return BranchView(row, operations, self._lives(row.owner), self._clock.now())

    def branch_rows(self, branch: str) -> BranchRows:
        """See `ports.Store.branch_rows`. All of it is of one snapshot."""
        with self._read_turn(), reading(self._path):
            connection = self._entered(self._reads)
            try:
                connection.execute("BEGIN")
                row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
                places = _places(connection, row.head_seq)
                records = [connection.execute(schema.EVENT, (place,)).fetchall() for place in places]
                operations = connection.execute(schema.ALL[1], (branch,)).fetchall()
                columns = connection.execute(schema.COLUMNS, (branch,)).fetchall()
                unfinished = connection.execute(schema.UNFINISHED, (branch,)).get
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            folded = [codec.decode_operation(state) for _, state in operations]
            sound = [(o.step, o.generation, int(o.is_open)) for o in folded] == [tuple(c) for c in columns]
            sound = sound and unfinished == row.is_unfinished
            return BranchRows(row, [_stored(found[0]) for found in records if found], folded, columns_agree=sound)

    def record(self, seq: int) -> Stored | None:
        """See `ports.Store.record`."""
        rows = self._rows(schema.EVENT, (seq,))
        return _stored(rows[0]) if rows else None

    def history(self, branch: str | None, *, after: int = 0) -> Iterator[Stored]:
        """See `ports.Store.history`. A branch is walked back along its chain, then read forwards."""
        if branch is None:
            yield from self._all_history(after)
            return
        with self._read_turn(), reading(self._path):
            connection = self._entered(self._reads)
            places = _places(connection, _branch(connection.execute(schema.BRANCH, (branch,)).get).head_seq)
        for place in places:
            stored = self.record(place) if place > after else None
            if stored is not None:
                yield stored

    def newest_seq(self) -> int:
        """See `ports.Store.newest_seq`."""
        return int(self._rows(schema.NEXT_SEQ)[0][0]) - 1

    def _all_history(self, after: int) -> Iterator[Stored]:
        while True:
            rows = self._rows(schema.EVENTS_AFTER, (after, _HISTORY_PAGE))
            for row in rows:
                yield _stored(row)
            if len(rows) < _HISTORY_PAGE:
                return
            after = rows[-1][0]

    def branches(self, *, unfinished_only: bool) -> Iterator[tuple[str, Branch]]:
        """See `ports.Store.branches`."""
        for branch, state in self._rows(schema.UNFINISHED_BRANCHES if unfinished_only else schema.BRANCHES):
            with reading(self._path):
                row = codec.decode_branch(state)
            yield branch, row

    def operations(self, branch: str | None, *, open_only: bool) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.operations`."""
        every, of_one = schema.OPEN if open_only else schema.ALL
        query, values = (every, ()) if branch is None else (of_one, (branch,))
        for of_branch, state in self._rows(query, values):
            with reading(self._path):
                operation = codec.decode_operation(state)
            yield of_branch, operation

    def integrity(self) -> list[str]:
        """See `ports.Store.integrity`: SQLite's own check, the tables themselves, and rows that belong to nothing.

        It may take minutes, so that it has a connection of its own.
        """
        self.check_process()
        self._usable(self._reads)
        try:
            connection = opening.connect(self._path, reader=True, vfs=self._vfs)
            try:
                with reading(self._path):
                    return _integrity(connection)
            finally:
                connection.close()
        except (LogDamaged, LogUnavailable) as damage:
            return [damage.message]

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        with self._read_turn(), reading(self._path):
            return self._entered(self._reads).execute(query, values).fetchall()


def _integrity(connection: Connection) -> list[str]:
    found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check").fetchall() if text != "ok"]
    tables = frozenset((str(name), str(sql)) for name, sql in connection.execute(schema.TABLES).fetchall())
    if tables != schema.expected_tables():
        found.append("its tables, indexes or triggers are not those of a log")
    for query, text in schema.STRAYS:
        found.extend(text.format(*row) for row in connection.execute(query).fetchall())
    return found


_ON_THE_WAY_IN = frozenset({"_interrupted", "_entered", "_writable"})
_TRANSACTIONS = frozenset({"append", "branch_view", "branch_rows"})  # the methods that hold a transaction open


def _places(connection: Connection, seq: int) -> list[int]:
    """Where the records of a branch stand, oldest first, walked back from its head."""
    places: list[int] = []
    while seq:
        places.append(seq)
        previous = connection.execute(schema.PREVIOUS_SEQ, (seq,)).get
        if previous is None or previous >= seq:
            break  # a hole or an edit: `verify` says which
        seq = previous
    return places[::-1]


def _branch(state: bytes | None) -> Branch:
    return Branch() if state is None else codec.decode_branch(state)


def _operation(state: bytes | None) -> Operation | None:
    return None if state is None else codec.decode_operation(state)


def _stored(row: tuple[Any, ...]) -> Stored:
    seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain = row
    try:
        at = Instant(wall_ns, boot_id.hex() if boot_id else "", boot_ns or 0)
        return Stored(seq, branch, at, codec.decode_record(record), payload, previous_seq, chain)
    except (ValueError, TypeError, AttributeError) as error:
        raise LogDamaged(f"record {seq} cannot be read: {error}") from error
