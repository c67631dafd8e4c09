"""Each branch with all that a SQLite log has of it, of one moment: what `verify` reads.

A page of branches shares one snapshot, unless they are long: a snapshot keeps the writer from beginning its WAL anew,
so that it is let go after a page of records, but never within a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
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

    @cached_property
    def row(self) -> Branch:
        """See `core.check.Whole`."""
        with reading(self._path):
            return codec.decode_branch(self._state)

    def records(self) -> Iterator[tuple[Stored, bytes]]:
        """See `core.check.Whole`."""
        for row in pages.records_back(self._read, self.row.head_seq):
            self.records_read += 1
            yield pages.stored_of(row), row[6].encode()

    def operation(self, key: Key) -> Operation | None:
        """See `core.check.Whole`."""
        if self._all_operations is not None:
            found = self._all_operations.get(key)
            return found and found.operation
        rows = self._read(schema.OPERATION, (self.name, *key))
        with reading(self._path):
            return codec.decode_operation(rows[0][0]) if rows else None

    def operations(self) -> Iterator[OperationRow]:
        """See `core.check.Whole`."""
        if self._all_operations is not None:
            yield from self._all_operations.values()
            return
        for row in pages.by_key(self._read, schema.OPERATION_ROWS, (self.name,), schema.FIRST_STEP):
            yield self._operation_row(row)

    @cached_property
    def _all_operations(self) -> dict[Key, OperationRow] | None:
        """Those of most branches; None if they are more than a page."""
        rows = self._read(schema.OPERATION_ROWS, (self.name, *schema.FIRST_STEP, pages.PAGE_ROWS))
        if len(rows) == pages.PAGE_ROWS:
            return None
        found = map(self._operation_row, rows)
        return {one.key: one for one in found}

    def _operation_row(self, row: pages.Row) -> OperationRow:
        step, generation, is_open, state = row
        with reading(self._path):
            return OperationRow((step, generation), bool(is_open), codec.decode_operation(state))

    def _read(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        with reading(self._path):
            return self._connection.execute(query, values).fetchall()
