"""The tables of a PostgreSQL log inside one append's transaction: two round trips, and what the writer remembers.

The first locks the branches' rows and reads, the second writes and commits (`postgres_schema`: `take`, `put`). Each
statement in them has a snapshot of its own (READ COMMITTED), so that what is read behind the lock is what stands under
it (I2). No lock outlives the transaction, and no state the session: a pooler may stand in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import InternalError

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import Append
from intentlog.core.state import Branch, Operation
from intentlog.store.postgres_arrays import Bigints, Blobs, Flags, Names, encoded
from intentlog.store.postgres_exchange import Statement, exchange, prepare, row_of
from intentlog.store.postgres_opening import Link
from intentlog.store.postgres_schema import Texts
from intentlog.store.staging import OperationKey, Staged

LOCK_TIMEOUT_MS = 10_000  # how long another transaction's hold on a branch is waited for
LOCK_TOGETHER_MS = 500  # and in a batch: then its branches are tried in smaller ones (`run.group.commit_together`)
# A process that is stopped between its two round trips holds its branches' rows: the server ends its session then, and
# with it a transaction of which COMMIT was not sent.
IDLE_TIMEOUT_MS = 10_000
TRANSACTION_TIMEOUT_MS = 30_000  # the same, wherever in the two it was stopped; from PostgreSQL 17 on
REMEMBERED_MAX = 8_192  # branches
STEPS_MAX = 1_000  # of a branch, while which of them are there is known
_LIMITS = (f"{IDLE_TIMEOUT_MS}ms", f"{TRANSACTION_TIMEOUT_MS}ms")
_BEGIN = Statement(b"intentlog_begin", b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_ROLLBACK = Statement(b"intentlog_rollback", b"ROLLBACK")
_COMMIT = Statement(b"intentlog_commit", b"COMMIT")


class Remembered:
    """What this writer knows of a branch whose attempt is open: true as long as the branch's row is as it left it.

    Attributes:
        state: the branch's row, encoded: whoever appends to the branch changes it.
        branch: the same, decoded.
        operations: those that are open.
        steps: every step that it has operations of; None where that is not known, or they are too many.
    """

    __slots__ = ("branch", "operations", "state", "steps")

    def __init__(self, state: bytes, branch: Branch, steps: set[str] | None) -> None:
        self.state = state
        self.branch = branch
        self.operations: dict[tuple[str, int], Operation] = {}
        self.steps = steps

    def knows(self, step: str, generation: int) -> bool:
        """Whether it is known how this operation stands, be it that there is none."""
        return (step, generation) in self.operations or (self.steps is not None and step not in self.steps)


class Standing(NamedTuple):
    """What the server says, with the locks held.

    Attributes:
        now_ns: its wall clock.
        xid: the transaction; pid: the server process that it is in.
        places: what its records may take, in no order.
        fsync, synchronous_commit: whether a commit is durable.
        meta: the log's format and salt: whether the tables are those that were opened.
    """

    now_ns: int
    xid: str
    pid: int
    places: list[int]
    fsync: str
    synchronous_commit: str
    meta: list[bytes]


class PostgresRows:
    """Reads and writes rows. Used by one thread at a time; but for `is_new`.

    Args:
        texts: the statements.
        horizon_key: the first half of the advisory lock's key (see `postgres_schema`).
    """

    def __init__(self, texts: Texts, horizon_key: int) -> None:
        self._operations_query = texts.operations.encode()
        self._take = Statement(b"intentlog_take", texts.take.encode())
        self._put = Statement(b"intentlog_put", texts.put.encode())
        self._horizon_key = horizon_key
        self._remembered: dict[str, Remembered] = {}
        self._places: list[int] = []
        self._branches: dict[str, tuple[bytes, Branch]] = {}  # of this transaction, as they were read under their locks
        self._operations: dict[OperationKey, Operation] = {}
        self._steps: dict[str, set[str] | None] = {}
        self._inserted: set[str] = set()  # branches that may have been new

    def prepare(self, link: Link) -> None:
        """Fit a new connection to its use here.

        Raises:
            psycopg.Error: it cannot be.
        """
        prepare(link, _BEGIN, self._take, self._put, _COMMIT, _ROLLBACK)

    # --- the first round trip ----------------------------------------------------------------------------------------

    def read(self, link: Link, entries: Sequence[Append]) -> Standing:
        """Begin a transaction, lock the entries' branches in the order of their names, and read what is decided on.

        Raises:
            psycopg.Error: nothing was written.
        """
        names = sorted({entry.branch for entry in entries}, key=str.encode)
        self._inserted = {name for name in names if name not in self._remembered}
        keys = {_key(entry) for entry in entries if isinstance(entry.record, r.OfIntent)}
        unknown = [key for key in keys if not self._knows(key)]
        opening = {e.branch for e in entries if isinstance(e.record, r.AttemptOpened)}
        values = (
            Names(names),
            Names([name for name in names if name in self._inserted]),
            *_columns(unknown),
            Names(opening),
            STEPS_MAX + 1,
            len(entries),
            self._horizon_key,
            f"{LOCK_TIMEOUT_MS if len(names) == 1 else LOCK_TOGETHER_MS}ms",
            *_LIMITS,
        )
        _, taken = exchange(link, _BEGIN, self._take._replace(values=encoded(values)))
        row = row_of(link, taken)
        known = len(Standing._fields)
        standing = Standing(*row[:known])
        locked, states, *found, step_branches, steps = (column or () for column in row[known:])
        self._branches = {}
        for name, state in zip(locked, states, strict=True):
            self._take_branch(name, state)
        self._operations = {}
        self._take_operations(zip(*found, strict=True))
        stale = [key for key in keys - set(unknown) if key[0] not in self._remembered]
        if stale:  # somebody else has written to these branches since
            again = link.execute(self._operations_query, _columns(stale), binary=True)
            self._take_operations(again.fetchall())
        of_each: dict[str, set[str]] = {name: set() for name in opening}
        for name, step in zip(step_branches, steps, strict=True):
            of_each[name].add(step)
        self._steps = {name: of_it if len(of_it) <= STEPS_MAX else None for name, of_it in of_each.items()}
        self._places = sorted(standing.places)
        return standing

    def _knows(self, key: OperationKey) -> bool:
        held = self._remembered.get(key[0])
        return held is not None and held.knows(key[1], key[2])

    def _take_branch(self, name: str, state: bytes) -> None:
        held = self._remembered.get(name)
        if held is not None and held.state == state:
            self._branches[name] = state, held.branch
            return
        self._remembered.pop(name, None)
        self._branches[name] = state, codec.decode_branch(state) if state else Branch()

    def _take_operations(self, rows: Iterable[tuple[str, str, int, bytes]]) -> None:
        for name, step, generation, state in rows:
            self._operations[name, step, generation] = codec.decode_operation(state)

    # --- what is decided on: `staging.Rows` --------------------------------------------------------------------------

    def places(self, count: int) -> Sequence[int]:
        """See `staging.Rows`."""
        del count  # they were taken for the entries that were read for
        return self._places

    def branch(self, branch: str) -> Branch | None:
        """See `staging.Rows`."""
        return self._branches[branch][1]

    def operation(self, key: OperationKey) -> Operation | None:
        """See `staging.Rows`."""
        held = self._remembered.get(key[0])
        remembered = held.operations.get((key[1], key[2])) if held else None
        return remembered or self._operations.get(key)

    def is_new(self, branch: str, step: str) -> Branch | None:
        """The branch, if it is known to have no operation of this step. Safe from any thread.

        It is what stood when this writer last committed to the branch. Whether a record may be appended is decided in
        its own commit.
        """
        held = self._remembered.get(branch)
        return held.branch if held and held.steps is not None and step not in held.steps else None

    # --- the second round trip ---------------------------------------------------------------------------------------

    def write(self, link: Link, staged: Staged) -> None:
        """Write what was staged, and commit. Whatever is raised, COMMIT may have been sent.

        Raises:
            psycopg.Error: see above; with the connection alive, nothing was written.
        """
        empty = [n for n in self._inserted if n not in staged.branches and not self._branches[n][0]]
        values = (*_event_columns(staged), *_branch_columns(staged), *_operation_columns(staged), Names(empty))
        _, committed = exchange(link, self._put._replace(values=encoded(values)), _COMMIT)
        if committed.command_status != b"COMMIT":  # a transaction that had failed is rolled back by COMMIT
            raise InternalError(f"COMMIT was answered by {committed.command_status!r}")

    @staticmethod
    def roll_back(link: Link) -> None:
        """End the transaction, with nothing in it. Not by psycopg, which then lets go of every prepared statement."""
        exchange(link, _ROLLBACK)

    def keep(self, staged: Staged) -> None:
        """The transaction was committed, with this in it."""
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.clear()
        for name, branch in staged.branches.items():
            if not branch.is_open:
                self._remembered.pop(name, None)
                continue
            held = self._remembered.get(name)
            if held is None:
                held = self._remembered[name] = Remembered(b"", branch, self._steps.get(name))
            held.state, held.branch = codec.encode_state(branch), branch
        for (name, step, generation), operation in staged.operations.items():
            held = self._remembered.get(name)
            if held is None:
                continue
            if operation.is_open:
                held.operations[step, generation] = operation
            else:
                held.operations.pop((step, generation), None)
            if held.steps is not None:
                held.steps.add(step)
                if len(held.steps) > STEPS_MAX:
                    held.steps = None

    def forget(self) -> None:
        """What is in the tables may be something else."""
        self._remembered.clear()


def _key(entry: Append) -> OperationKey:
    record = entry.record
    if not isinstance(record, r.OfIntent):
        raise TypeError(entry)
    return entry.branch, record.step, record.generation


def _event_columns(staged: Staged) -> tuple[Any, ...]:
    events = [stored for stored, _ in staged.events]
    return (
        Bigints([one.seq for one in events]),
        Names([one.branch for one in events]),
        Bigints([one.previous_seq for one in events]),
        Bigints([one.at.wall_ns for one in events]),
        Blobs([bytes.fromhex(one.at.boot_id) if one.at.boot_id else None for one in events]),
        Bigints([one.at.boot_ns if one.at.boot_id else None for one in events]),
        Blobs([body for _, body in staged.events]),
        Blobs([one.payload for one in events]),
        Blobs([one.chain for one in events]),
    )


def _branch_columns(staged: Staged) -> tuple[Any, ...]:
    rows = staged.branches.values()
    return (
        Names(staged.branches),
        Flags([one.is_unfinished for one in rows]),
        Names([one.owner.partition(".")[0] for one in rows]),
        Blobs([codec.encode_state(one) for one in rows]),
    )


def _operation_columns(staged: Staged) -> tuple[Any, ...]:
    rows = staged.operations.values()
    states = Blobs([codec.encode_state(one) for one in rows])
    return (*_columns(staged.operations), Flags([one.is_listed for one in rows]), states)


def _columns(keys: Collection[OperationKey]) -> tuple[Names, Names, Bigints]:
    """Operations' keys, as columns."""
    return Names([key[0] for key in keys]), Names([key[1] for key in keys]), Bigints([key[2] for key in keys])
