"""The reading half of a SQLite log. What cannot be read is `LogDamaged`, whatever raised it."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import RLock

import apsw

from intentlog.core import codec
from intentlog.core.actions import BranchView, View
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.errors import LogClosed, LogDamaged, LogPoisoned, LogUnavailable, WrongProcess
from intentlog.ports import Clock
from intentlog.store import opening, pages, schema, whole
from intentlog.store.connection import Connection
from intentlog.store.damage import Reading, reading
from intentlog.store.recall import Recall


class SqliteReads(ABC):
    """Reads of one log, on a connection of their own: no writer is waited for. Safe from several threads in turn."""

    _path: Path
    _clock: Clock
    _lock: RLock
    _pid: int
    is_inherited: bool  # this is a forked child of the process that opened it
    _poison: str | None
    _connection: Connection | None
    _reads: Connection | None
    _read_lock: RLock
    _recall: Recall
    _vfs: str | None

    @abstractmethod
    def _lives(self, owner: str) -> bool:
        """Whether the owner's process still has the log open."""

    # --- whose turn it is ----------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """See `ports.Store.check_process`."""
        if self.is_inherited:  # told at the fork: to ask the kernel each time is a system call
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
            held = self._recall.view(connection, branch, step) if generation is None else None
            if held is not None:
                return View(*held, self._clock.now())
            row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
            operation = _operation(connection.execute(schema.OPERATION, (branch, step, generation or 1)).get)
            if generation is None and operation is not None and operation.renewed:
                operation = _operation(connection.execute(schema.NEWEST_OPERATION, (branch, step)).get)
            elif generation is None and operation is not None and operation.decided:
                self._recall.read_ahead(connection, branch, step)  # a program that replays one step replays more
            return View(row, operation, self._clock.now())

    def payload(self, seq: int) -> bytes | None:
        """See `ports.Store.payload`."""
        with self._read_turn(), reading(self._path):
            connection = self._entered(self._reads)
            held = self._recall.payload(seq)
            payload: bytes | None = held[0] if held else connection.execute(schema.PAYLOAD, (seq,)).get
            return payload

    def branch_view(self, branch: str) -> BranchView:
        """See `ports.Store.branch_view`. One statement, so that it is of one snapshot."""
        with self._read_turn(), reading(self._path):
            found = self._entered(self._reads).execute(schema.BRANCH_AND_LISTED, (branch,)).fetchall()
            row = _branch(found[0][0] if found else None)
            listed = [codec.decode_operation(state) for _, state in found if state is not None]
            operations = tuple([one for one in listed if one.is_open])
            return BranchView(row, operations, self._lives(row.owner), self._clock.now())

    def whole_branches(self) -> Iterator[whole.WholeBranch]:
        """See `ports.Store.whole_branches`. Each is of one snapshot, on a connection of its own: it takes long."""
        connection = self._connected_anew()
        try:
            for one in whole.branches(_Snapshots(connection, self._path), schema.WHOLE):
                self._usable(self._reads)
                yield one
        finally:
            connection.close()

    def record(self, seq: int) -> Stored | None:
        """See `ports.Store.record`."""
        rows = self._rows(schema.EVENT, (seq,))
        return pages.stored_of(rows[0]) if rows else None

    def history(self, branch: str | None, *, after: int = 0) -> Iterator[Stored]:
        """See `ports.Store.history`. Each page of it is of one snapshot."""
        if branch is None:
            rows = pages.by_key(self._rows, schema.EVENTS_FROM, (), (after,))
        else:
            states = self._rows(schema.BRANCH, (branch,))
            with reading(self._path):
                head = codec.decode_branch(states[0][0]).head_seq if states else 0
            rows = pages.records_back(self._rows, schema.WALK, head, after)
        return map(pages.stored_of, rows)

    def newest_seq(self) -> int:
        """See `ports.Store.newest_seq`."""
        return int(self._rows(schema.NEXT_SEQ)[0][0]) - 1

    def count(self, after: int, to: int) -> int:
        """See `ports.Store.count`. Places have no gaps, unless the file is damaged, which `integrity` tells."""
        self._usable(self._reads)
        return to - after

    def branches(self, *, unfinished_only: bool) -> Iterator[tuple[str, Branch]]:
        """See `ports.Store.branches`."""
        query = schema.UNFINISHED_BRANCHES if unfinished_only else schema.BRANCHES
        for branch, state in pages.by_key(self._rows, query, (), ("",)):
            with reading(self._path):
                row = codec.decode_branch(state)
            yield branch, row

    def operations(self, branch: str | None, *, open_only: bool) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.operations`."""
        every, of_one = schema.LISTED if open_only else schema.ALL
        if branch is None:
            rows = pages.by_key(self._rows, every, (), schema.NO_OPERATION)
        else:
            rows = pages.by_key(self._rows, of_one, (branch,), schema.NO_STEP)
        for row in rows:
            with reading(self._path):
                operation = codec.decode_operation(row[-1])
            if operation.is_open or not open_only:
                yield row[0] if branch is None else branch, operation

    def contradictions(self) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.contradictions`."""
        for row in pages.by_key(self._rows, schema.LISTED[0], (), schema.NO_OPERATION):
            with reading(self._path):
                operation = codec.decode_operation(row[-1])
            if operation.contradicts:
                yield row[0], operation

    def integrity(self) -> list[str]:
        """See `ports.Store.integrity`: SQLite's own check, the tables themselves, and rows that belong to nothing.

        It may take minutes, so that it has a connection of its own.
        """
        try:
            connection = self._connected_anew()
            try:
                with reading(self._path):
                    return _integrity(connection)
            finally:
                connection.close()
        except (LogDamaged, LogUnavailable) as damage:
            return [damage.message]

    def _connected_anew(self) -> Connection:
        """A connection for what takes long, so that no other read waits for it."""
        self.check_process()
        self._usable(self._reads)
        return opening.connect(self._path, reader=True, vfs=self._vfs)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[pages.Row]:
        with self._read_turn(), reading(self._path):
            return self._entered(self._reads).execute(query, values).fetchall()


class _Snapshots:
    """See `whole.Snapshots`."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def begin(self) -> None:
        self._connection.execute("BEGIN")

    def end(self) -> None:
        self._connection.execute("ROLLBACK")

    def rows(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        return self._connection.execute(query, values).fetchall()

    def reading(self) -> Reading:
        return reading(self._path)


def _integrity(connection: Connection) -> list[str]:
    found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check").fetchall() if text != "ok"]
    tables = frozenset((str(name), str(sql)) for name, sql in connection.execute(schema.TABLES).fetchall())
    if tables != schema.expected_tables():
        found.append("its tables, indexes or triggers are not those of a log")
    for query, text in schema.STRAYS:
        found.extend(text.format(*row) for row in connection.execute(query).fetchall())
    return found


_ON_THE_WAY_IN = frozenset({"_interrupted", "_entered", "_writable"})
_TRANSACTIONS = frozenset({"append", "view"})  # the methods that hold a transaction open


def _branch(state: bytes | None) -> Branch:
    return Branch() if state is None else codec.decode_branch(state)


def _operation(state: bytes | None) -> Operation | None:
    return None if state is None else codec.decode_operation(state)
