"""Makes a long log in little time: by copying what the library itself recorded, through the library's own staging.

A template branch is written by a real `Log`: an attempt with some effects. Its records are then appended for one new
branch after the other: `staging.stage` admits and chains each of them, as it does for every store. Only the disk is
spared: without journal and sync, which nobody needs while the log is being made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import apsw
from msgspec.structs import replace

from bench.effects import CENTS, Missing, charge
from intentlog import Log
from intentlog.core import codec
from intentlog.core.actions import Append, Appended
from intentlog.core.records import AttemptClosed, Committed, Pending, Record, Stored
from intentlog.core.state import Branch, Operation
from intentlog.store import schema
from intentlog.store.clock import SystemClock
from intentlog.store.connection import Connection
from intentlog.store.connection import connection as open_connection
from intentlog.store.staging import stage

EFFECTS_PER_BRANCH = 10
OPEN_INTENTS = 100
_BRANCHES_PER_TRANSACTION = 2_000
_TEMPLATE = "template"


class BigLog(NamedTuple):
    """A log that was made.

    Attributes:
        path: the log.
        records: how many it has.
        closed: its branches whose attempt is closed, in the order in which they were written.
    """

    path: Path
    records: int
    closed: list[str]


def event_row(stored: Stored, record: bytes) -> tuple[object, ...]:
    """The row of a record, as `schema.INSERT_EVENT` takes it."""
    at = stored.at
    boot = (bytes.fromhex(at.boot_id), at.boot_ns) if at.boot_id else (None, None)
    row = (stored.seq, stored.branch, stored.previous_seq, at.wall_ns, *boot)
    return (*row, record.decode(), stored.payload, stored.chain)


class RowsInMemory:
    """A store's rows in memory, to be written to a log in one go."""

    def __init__(self, first_seq: int) -> None:
        self._seq = first_seq
        self._events: list[tuple[object, ...]] = []
        self._branches: dict[str, Branch] = {}
        self._operations: dict[tuple[str, str, int], Operation] = {}

    def next_seq(self) -> int:
        """See `staging.Rows`, as for the next three."""
        return self._seq

    def branch(self, branch: str) -> Branch | None:  # noqa: D102 - see next_seq
        return self._branches.get(branch)

    def operation(self, branch: str, step: str, generation: int) -> Operation | None:  # noqa: D102 - see next_seq
        return self._operations.get((branch, step, generation))

    def write(  # noqa: D102 - see next_seq
        self, stored: Stored, record: bytes, branch: Branch, operations: Sequence[Operation]
    ) -> None:
        self._events.append(event_row(stored, record))
        self._branches[stored.branch] = branch
        for one in operations:
            self._operations[stored.branch, one.step, one.generation] = one
        self._seq += 1

    def flush(self, connection: Connection) -> None:
        """Write them all, in one transaction."""
        branches = ((name, one.is_unfinished, codec.encode_state(one)) for name, one in self._branches.items())
        operations = ((*key, one.is_open, codec.encode_state(one)) for key, one in self._operations.items())
        connection.execute("BEGIN")
        for statement, values in (
            (schema.INSERT_EVENT, self._events),
            (schema.PUT_BRANCH, branches),
            (schema.PUT_OPERATION, operations),
        ):
            for row in values:
                connection.execute(statement, row)
        connection.execute("COMMIT")
        self._events.clear()
        self._branches.clear()
        self._operations.clear()


def _template(path: Path) -> list[tuple[Record, bytes | None]]:
    """What one whole branch is, as the library wrote it; this makes the log, too."""
    with Log.open(path) as log:
        with log.attempt(_TEMPLATE) as attempt:
            for order in range(EFFECTS_PER_BRANCH):
                attempt.call(charge, str(order), cents=CENTS)
        entries = list(log.history(_TEMPLATE))
    payloads = [None if one.payload is None else codec.encode_value(one.payload, 1 << 20) for one in entries]
    return [(one.record, payload) for one, payload in zip(entries, payloads, strict=True)]


def _left_open(template: list[tuple[Record, bytes | None]]) -> list[tuple[Record, bytes | None]]:
    """The same without its end: the last effect was sent, its owner was killed."""
    if not isinstance(template[-1][0], AttemptClosed) or not isinstance(template[-2][0], Committed):
        raise Missing("the library records an attempt otherwise than this was written for")
    return template[:-2]


def make(path: Path, records: int) -> BigLog:
    """Make a log of about so many records, of which OPEN_INTENTS, spread over it, were left open by a killed owner."""
    template = _template(path)
    open_template = _left_open(template)
    branches = max(records // len(template), OPEN_INTENTS + 1)
    stride = branches // OPEN_INTENTS
    left_open = {number * stride + stride // 2 for number in range(OPEN_INTENTS)}
    connection = open_connection(path, apsw.SQLITE_OPEN_READWRITE, None)
    connection.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000")
    salt: bytes = connection.execute(schema.SALT).get
    first: int = connection.execute(schema.NEXT_SEQ).get
    rows, closed = RowsInMemory(first), list[str]()
    at = SystemClock().now()
    for number in range(branches):
        branch = f"order-{number:08d}"
        is_open = number in left_open
        closed += [] if is_open else [branch]
        for record, payload in open_template if is_open else template:
            own = record
            if isinstance(record, Pending):
                own = replace(record, request_id=codec.request_id(salt, branch, record.step, record.generation))
            reply = stage(rows, [Append(branch, own, payload)], at)[0]
            if not isinstance(reply, Appended):
                raise Missing(f"the library refused a copied record: {json.dumps(reply.refusal.detail)}")
        if number % _BRANCHES_PER_TRANSACTION == 0:
            rows.flush(connection)
    rows.flush(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return BigLog(path, rows.next_seq() - 1, closed)
