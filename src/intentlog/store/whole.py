"""Each branch with all that a SQLite log has of it, of one moment: what `verify` reads.

A page of branches shares one snapshot, unless they are long: a snapshot keeps the writer from beginning its WAL anew,
so that it is let go after a page of records, but never within a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from intentlog.core import codec
from intentlog.core.check import Key, OperationRow
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.store import pages, schema
from intentlog.store.connection import Connection
from intentlog.store.damage import reading

BRANCHES_AT_ONCE = 250  # a page of records, if they are as short as most


def branches(connection: Connection, path: Path) -> Iterator[SqliteWhole]:
    """Every branch, by name. Each is good until the next is asked for.

    Args:
        connection: read by nobody else meanwhile.
        path: the log, for errors.
    """
    begin = ""
    while True:
        with reading(path):
            connection.execute("BEGIN")
            rows = connection.execute(schema.BRANCH_ROWS, (begin, BRANCHES_AT_ONCE)).fetchall()
        records = 0
        for name, is_unfinished, state in rows:
            whole = SqliteWhole(connection, path, name, bool(is_unfinished), state)
            yield whole
            begin = name + "\0"
            records += whole.records_read
            if records >= pages.PAGE_ROWS:
                break
        connection.execute("ROLLBACK")
        if not rows:
            return


class SqliteWhole:
    """See `core.check.Whole`."""

    def __init__(self, connection: Connection, path: Path, name: str, is_unfinished: bool, state: bytes) -> None:  # noqa: FBT001 - a column
        self.name = name
        self.is_unfinished = is_unfinished
        self.records_read = 0
        self._connection = connection
        self._path = path
        self._state = state
        self._row: Branch | None = None
        self._operations: dict[Key, OperationRow] | None = None  # where they are no more than a page
        self._operations_are_known = False

    @property
    def row(self) -> Branch:
        """See `core.check.Whole`."""
        if self._row is None:
            with reading(self._path):
                self._row = codec.decode_branch(self._state)
        return self._row

    def records(self) -> Iterator[tuple[Stored, bytes]]:
        """See `core.check.Whole`."""
        head = self.row.head_seq
        with reading(self._path):
            for row in pages.records_back(self._read, head):
                self.records_read += 1
                yield pages.stored_of(row), row[6].encode()

    def operation(self, key: Key) -> Operation | None:
        """See `core.check.Whole`."""
        if not self._operations_are_known:
            self._look_at_operations()
        if self._operations is not None:
            found = self._operations.get(key)
            return found.operation if found else None
        with reading(self._path):
            state = self._connection.execute(schema.OPERATION, (self.name, *key)).get
            return None if state is None else codec.decode_operation(state)

    def operations(self) -> Iterator[OperationRow]:
        """See `core.check.Whole`."""
        if not self._operations_are_known:
            self._look_at_operations()
        if self._operations is not None:
            yield from self._operations.values()
            return
        with reading(self._path):
            for row in pages.by_key(self._read, schema.OPERATION_ROWS, (self.name,), schema.FIRST_STEP):
                yield _operation_row(row)

    def _look_at_operations(self) -> None:
        with reading(self._path):
            rows = self._read(schema.OPERATION_ROWS, (self.name, *schema.FIRST_STEP, pages.PAGE_ROWS))
            if len(rows) < pages.PAGE_ROWS:
                self._operations = {one.key: one for one in map(_operation_row, rows)}
        self._operations_are_known = True

    def _read(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        return self._connection.execute(query, values).fetchall()


def _operation_row(row: pages.Row) -> OperationRow:
    step, generation, is_listed, state = row
    return OperationRow((step, generation), bool(is_listed), codec.decode_operation(state))
