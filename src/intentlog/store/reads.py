"""The reading half of a SQLite log. What cannot be read is `LogDamaged`, whatever raised it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import apsw
import msgspec

from intentlog.core import codec
from intentlog.core.actions import BranchView, View
from intentlog.core.records import Instant, Stored
from intentlog.core.state import Branch, Operation
from intentlog.errors import LogDamaged, LogUnavailable
from intentlog.ports import Clock
from intentlog.store import schema
from intentlog.store.connection import Connection

_HISTORY_PAGE = 1_000
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError, msgspec.MsgspecError, TypeError)


def damage_of(path: Path, error: Exception) -> Exception:
    """The error that a damaged file deserves; any other as it is."""
    if isinstance(error, _DAMAGE):
        return LogDamaged(f"{path} is damaged: {type(error).__name__}: {error}")
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
    """Reads of one log. Safe from several threads: each holds the store's lock."""

    _path: Path
    _lock: RLock
    _clock: Clock

    @abstractmethod
    def _connected(self) -> Connection:
        """The connection, if the log may be used."""

    @abstractmethod
    def _lives(self, owner: str) -> bool:
        """Whether the owner's process still has the log open."""

    def view(self, branch: str, step: str) -> View:
        """See `ports.Store.view`."""
        with self._lock, reading(self._path):
            connection = self._connected()
            row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
            state = connection.execute(schema.NEWEST_OPERATION, (branch, step)).get
            return View(row, None if state is None else codec.decode_operation(state), self._clock.now())

    def branch_view(self, branch: str) -> BranchView:
        """See `ports.Store.branch_view`. Both reads see one snapshot."""
        with self._lock, reading(self._path):
            connection = self._connected()
            connection.execute("SAVEPOINT view")
            try:
                row = _branch(connection.execute(schema.BRANCH, (branch,)).get)
                operations = tuple(operation for _, operation in self.operations(branch, open_only=True))
            finally:
                connection.execute("RELEASE view")
            return BranchView(row, operations, self._lives(row.owner), self._clock.now())

    def record(self, seq: int) -> Stored | None:
        """See `ports.Store.record`."""
        rows = self._rows(schema.EVENT, (seq,))
        return _stored(rows[0]) if rows else None

    def history(self, branch: str | None) -> Iterator[Stored]:
        """See `ports.Store.history`. A branch is walked back along its chain, then read forwards."""
        if branch is None:
            yield from self._all_history()
            return
        with self._lock, reading(self._path):
            connection = self._connected()
            seq = _branch(connection.execute(schema.BRANCH, (branch,)).get).head_seq
            places: list[int] = []
            while seq:
                places.append(seq)
                previous = connection.execute(schema.PREVIOUS_SEQ, (seq,)).get
                if previous is None or previous >= seq:
                    break  # a hole or an edit: `verify` says which
                seq = previous
        for place in reversed(places):
            stored = self.record(place)
            if stored is not None:
                yield stored

    def _all_history(self) -> Iterator[Stored]:
        after = 0
        while True:
            rows = self._rows(schema.EVENTS_AFTER, (after, _HISTORY_PAGE))
            for row in rows:
                yield _stored(row)
            if len(rows) < _HISTORY_PAGE:
                return
            after = rows[-1][0]

    def count(self) -> int:
        """See `ports.Store.count`."""
        return int(self._rows(schema.COUNT)[0][0])

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
        """See `ports.Store.integrity`: SQLite's own check, indexes included."""
        try:
            rows = self._rows("PRAGMA integrity_check")
        except LogDamaged as damage:
            return [damage.message]
        return [str(text) for (text,) in rows if text != "ok"]

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        with self._lock, reading(self._path):
            return self._connected().execute(query, values).fetchall()


def _branch(state: bytes | None) -> Branch:
    return Branch() if state is None else codec.decode_branch(state)


def _stored(row: tuple[Any, ...]) -> Stored:
    seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain = row
    try:
        at = Instant(wall_ns, boot_id.hex() if boot_id else "", boot_ns or 0)
        return Stored(seq, branch, at, codec.decode_record(record), payload, previous_seq, chain)
    except (ValueError, TypeError, AttributeError) as error:
        raise LogDamaged(f"record {seq} cannot be read: {error}") from error
