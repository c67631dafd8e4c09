"""The tables of a SQLite log inside a write transaction, with what this connection knows of them kept in memory."""

from __future__ import annotations

from typing import TypeAlias

from intentlog.core import codec
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.store import schema
from intentlog.store.connection import Connection
from intentlog.store.staging import OperationKey, Staged

Row: TypeAlias = tuple[object, ...]

REMEMBERED_MAX = 8_192  # rows of each table
ROOM_BYTES = 96  # what a dispatch and its outcome add to the row of an operation
STEPS_MAX = 10_000  # of a branch, while which of them are there is known
STEPS_OF_ALL_MAX = 100_000


class SqliteRows:
    """Reads and writes rows. Used by one thread at a time, inside `BEGIN IMMEDIATE`; but for `is_new`.

    What was read or written stays true until another connection commits, which SQLite tells by its data version, or a
    transaction of this one ends otherwise than by `keep`. Only rows of attempts and operations that are open are kept,
    and which steps the branches have whose attempts were opened here.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._version = 0
        self._is_known = False  # whether what is kept is what stands in the tables
        self._next_seq = 0
        self._branches: dict[str, Branch] = {}
        self._operations: dict[OperationKey, Operation] = {}
        self._sizes: dict[OperationKey, int] = {}  # of the rows of these, with their room
        self._steps: dict[str, set[str] | None] = {}  # None: too many
        self._steps_count = 0

    def begin(self) -> None:
        """Forget what another connection may have changed. To be called first in each transaction."""
        if not self._is_known or self._connection.data_version() != self._version:
            self._forget()
            self._next_seq = int(self._execute(schema.NEXT_SEQ).get)
        self._is_known = False  # until `keep`

    def places(self, count: int) -> range:
        """See `staging.Rows`."""
        return range(self._next_seq, self._next_seq + count)

    def branch(self, branch: str) -> Branch | None:
        """See `staging.Rows`."""
        found = self._branches.get(branch)
        if found is None:
            state = self._execute(schema.BRANCH, (branch,)).get
            found = None if state is None else codec.decode_branch(state)
        return found

    def operation(self, key: OperationKey) -> Operation | None:
        """See `staging.Rows`."""
        found = self._operations.get(key)
        if found is None and self.is_new(key[0], key[1]) is None:
            state = self._execute(schema.OPERATION, key).get
            found = None if state is None else codec.decode_operation(state)
        return found

    def is_new(self, branch: str, step: str) -> Branch | None:
        """The branch, if it is known to have no operation of this step. Safe from any thread.

        It is what stood when this connection last committed or began to. Whether a record may be appended is decided
        in its own commit.
        """
        steps = self._steps.get(branch)
        return None if steps is None or step in steps else self._branches.get(branch)

    def write(self, staged: Staged) -> None:
        """Write what was staged, each row by the statement that touches the fewest pages."""
        rows = [(schema.INSERT_EVENT, _event(stored, body)) for stored, body in staged.events]
        rows += [self._branch_row(name, branch) for name, branch in staged.branches.items()]
        rows += [self._operation_row(key, operation) for key, operation in staged.operations.items()]
        if len(staged.events) == 1:
            for statement, row in rows:
                self._execute(statement, row)
        else:
            together: dict[str, list[Row]] = {}
            for statement, row in rows:
                together.setdefault(statement, []).append(row)
            for statement, of_it in together.items():
                self._connection.executemany(statement, of_it)
        for name, branch in staged.branches.items():
            if name not in self._steps and branch.is_open:
                self._learn_steps(name)

    def _branch_row(self, name: str, branch: Branch) -> tuple[str, Row]:
        known, state = self._branches.get(name), codec.encode_state(branch)
        if known is not None and branch.is_open:  # all that are remembered are open, and so unfinished
            return schema.SET_BRANCH, (name, state)
        return schema.PUT_BRANCH, (name, branch.is_unfinished, state)

    def _operation_row(self, key: OperationKey, operation: Operation) -> tuple[str, Row]:
        state, is_listed = codec.encode_state(operation), operation.is_listed
        size = self._sizes.get(key) or self._sizes.setdefault(key, len(state) + ROOM_BYTES)
        room = bytes(max(0, size - len(state)))
        if is_listed and key in self._operations:  # all that are remembered are open, and so listed
            return schema.SET_OPERATION, (*key, state, room)
        return schema.PUT_OPERATION, (*key, is_listed, state, room)

    def _learn_steps(self, branch: str) -> None:
        """Which steps a branch has: none but the few of an attempt that begins, so that a new one needs no look."""
        if self._steps_count >= STEPS_OF_ALL_MAX:
            return
        found = self._execute(schema.STEPS_OF, (branch, STEPS_MAX + 1)).fetchall()
        self._steps[branch] = {step for (step,) in found} if len(found) <= STEPS_MAX else None
        self._steps_count += len(self._steps[branch] or ())

    def keep(self, staged: Staged) -> None:
        """The transaction was committed, with this in it."""
        branches, operations = self._branches, self._operations
        if len(branches) > REMEMBERED_MAX or len(operations) > REMEMBERED_MAX:
            self._forget()
        for name, branch in staged.branches.items():
            if branch.is_open:
                branches[name] = branch
            else:
                branches.pop(name, None)
                self._steps_count -= len(self._steps.pop(name, None) or ())
        for key, operation in staged.operations.items():
            if key in operations:
                if operation.is_open:
                    operations[key] = operation
                else:
                    del operations[key]
                    self._sizes.pop(key, None)
            else:
                if operation.is_open:
                    operations[key] = operation
                else:
                    self._sizes.pop(key, None)
                self._add_step(key[0], key[1])
        self._next_seq += len(staged.events)
        self._version = self._connection.data_version()
        self._is_known = True

    def _add_step(self, branch: str, step: str) -> None:
        steps = self._steps.get(branch)
        if steps is None or step in steps:
            return
        if len(steps) >= STEPS_MAX:  # from now on each is looked up
            self._steps_count -= len(steps)
            self._steps[branch] = None
            return
        steps.add(step)
        self._steps_count += 1

    def _forget(self) -> None:
        self._branches.clear()
        self._operations.clear()
        self._sizes.clear()
        self._steps.clear()
        self._steps_count = 0


def _event(stored: Stored, body: bytes) -> Row:
    at = stored.at
    boot_id, boot_ns = (bytes.fromhex(at.boot_id), at.boot_ns) if at.boot_id else (None, None)
    place = (stored.seq, stored.branch, stored.previous_seq, at.wall_ns, boot_id, boot_ns)
    return (*place, body.decode(), stored.payload, stored.chain)
