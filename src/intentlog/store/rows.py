"""The tables of a SQLite log inside a write transaction, with what this connection knows of them kept in memory."""

from __future__ import annotations

from intentlog.core import codec
from intentlog.core.state import Branch, Operation
from intentlog.store import schema
from intentlog.store.connection import Connection
from intentlog.store.staging import OperationKey, Staged

REMEMBERED_MAX = 8_192  # rows of each table


class SqliteRows:
    """Reads and writes rows. Used by one thread at a time, inside `BEGIN IMMEDIATE`.

    What was read or written stays true until another connection commits, which SQLite tells by `data_version`, or a
    transaction of this one ends otherwise than by `keep`. Only rows of attempts and operations that are open are kept.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._version = 0
        self._is_known = False  # whether what is kept is what stands in the tables
        self._next_seq = 0
        self._branches: dict[str, Branch] = {}
        self._operations: dict[OperationKey, Operation] = {}

    def begin(self) -> None:
        """Forget what another connection may have changed. To be called first in each transaction."""
        version = self._execute(schema.DATA_VERSION).get
        if version != self._version or not self._is_known:
            self._branches.clear()
            self._operations.clear()
            self._next_seq = int(self._execute(schema.NEXT_SEQ).get)
            self._version = version
        self._is_known = False  # until `keep`

    def next_seq(self) -> int:
        """See `staging.Rows`."""
        return self._next_seq

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
        if found is None:
            state = self._execute(schema.OPERATION, key).get
            found = None if state is None else codec.decode_operation(state)
        return found

    def write(self, staged: Staged) -> None:
        """Write what was staged."""
        events: list[tuple[object, ...]] = []
        for stored, body in staged.events:
            at = stored.at
            boot = (bytes.fromhex(at.boot_id), at.boot_ns) if at.boot_id else (None, None)
            row = (stored.seq, stored.branch, stored.previous_seq, at.wall_ns, *boot)
            events.append((*row, body.decode(), stored.payload, stored.chain))
        branches = [(name, one.is_unfinished, codec.encode_state(one)) for name, one in staged.branches.items()]
        operations = [(*key, one.is_open, codec.encode_state(one)) for key, one in staged.operations.items()]
        for statement, rows in (
            (schema.INSERT_EVENT, events),
            (schema.PUT_BRANCH, branches),
            (schema.PUT_OPERATION, operations),
        ):
            if len(rows) == 1:
                self._execute(statement, rows[0])
            elif rows:
                self._connection.executemany(statement, rows)

    def keep(self, staged: Staged) -> None:
        """The transaction was committed, with this in it."""
        if len(self._branches) > REMEMBERED_MAX or len(self._operations) > REMEMBERED_MAX:
            self._branches.clear()
            self._operations.clear()
        for name, branch in staged.branches.items():
            if branch.is_open:
                self._branches[name] = branch
            else:
                self._branches.pop(name, None)
        for key, operation in staged.operations.items():
            if operation.is_open:
                self._operations[key] = operation
            else:
                self._operations.pop(key, None)
        self._next_seq += len(staged.events)
        self._is_known = True
