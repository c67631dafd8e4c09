"""Each branch with all that a log's tables have of it, of one moment: what `verify` reads.

A page of branches shares one snapshot, unless they are long: a snapshot keeps the server from clearing away what is
old, and SQLite's writer from beginning its WAL anew, so that it is let go after a page of records, but never within a
branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from intentlog.core import codec
from intentlog.core.check import Key, OperationRow
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.store import pages

BRANCHES_AT_ONCE = 250  # a page of records, if they are as short as most


class Statements(NamedTuple):
    """What reads a store's tables.

    Attributes:
        walk: the records of a branch.
        branches: (branch, unfinished, state) behind a branch: so many at most.
        operation: the state of one operation, by branch, step and generation.
        operations: (step, generation, is_listed, state) of a branch behind a step and generation: so many at most.
        no_step: a step and generation below all others.
    """

    walk: pages.Walk
    branches: str
    operation: str
    operations: str
    no_step: tuple[str, int]


class Snapshots(Protocol):
    """A connection that nobody else reads from meanwhile."""

    def begin(self) -> None:
        """What is read from now on is of one moment."""
        ...

    def end(self) -> None:
        """Let the snapshot go."""
        ...

    def rows(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        """The rows of one statement."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A block in which what cannot be read is told in the library's words."""
        ...


def branches(snapshots: Snapshots, statements: Statements) -> Iterator[WholeBranch]:
    """Every branch, by name. Each is good until the next is asked for."""
    last = ""
    while True:
        with snapshots.reading():
            snapshots.begin()
            rows = snapshots.rows(statements.branches, (last, BRANCHES_AT_ONCE))
        records = 0
        for name, is_unfinished, state in rows:
            whole = WholeBranch(snapshots, statements, name, bool(is_unfinished), state)
            yield whole
            last = name
            records += whole.records_read
            if records >= pages.PAGE_ROWS:
                break
        with snapshots.reading():
            snapshots.end()
        if not rows:
            return


class WholeBranch:
    """See `core.check.Whole`."""

    def __init__(
        self,
        snapshots: Snapshots,
        statements: Statements,
        name: str,
        is_unfinished: bool,  # noqa: FBT001 - a column
        state: bytes,
    ) -> None:
        self.name = name
        self.is_unfinished = is_unfinished
        self.records_read = 0
        self._snapshots = snapshots
        self._statements = statements
        self._state = state
        self._row: Branch | None = None
        self._operations: dict[Key, OperationRow] | None = None  # where they are no more than a page
        self._operations_are_known = False

    @property
    def row(self) -> Branch:
        """See `core.check.Whole`."""
        if self._row is None:
            with self._snapshots.reading():
                self._row = codec.decode_branch(self._state)
        return self._row

    def records(self) -> Iterator[tuple[Stored, bytes]]:
        """See `core.check.Whole`."""
        head = self.row.head_seq
        with self._snapshots.reading():
            for row in pages.records_back(self._snapshots.rows, self._statements.walk, head):
                self.records_read += 1
                yield pages.stored_of(row), pages.body_of(row)

    def operation(self, key: Key) -> Operation | None:
        """See `core.check.Whole`."""
        if not self._operations_are_known:
            self._look_at_operations()
        if self._operations is not None:
            found = self._operations.get(key)
            return found.operation if found else None
        with self._snapshots.reading():
            rows = self._snapshots.rows(self._statements.operation, (self.name, *key))
            return codec.decode_operation(rows[0][0]) if rows else None

    def operations(self) -> Iterator[OperationRow]:
        """See `core.check.Whole`."""
        if not self._operations_are_known:
            self._look_at_operations()
        if self._operations is not None:
            yield from self._operations.values()
            return
        with self._snapshots.reading():
            for row in pages.by_key(
                self._snapshots.rows, self._statements.operations, (self.name,), self._statements.no_step
            ):
                yield _operation_row(row)

    def _look_at_operations(self) -> None:
        with self._snapshots.reading():
            rows = self._snapshots.rows(
                self._statements.operations, (self.name, *self._statements.no_step, pages.PAGE_ROWS)
            )
            if len(rows) < pages.PAGE_ROWS:
                self._operations = {one.key: one for one in map(_operation_row, rows)}
        self._operations_are_known = True


def _operation_row(row: pages.Row) -> OperationRow:
    step, generation, is_listed, state = row
    return OperationRow((step, generation), bool(is_listed), codec.decode_operation(state))
