"""Makes a long log in little time: by copying what the library itself recorded, through the library's own staging.

A template branch is written by a real `Log`: an attempt with some effects. Its records are then appended for one new
branch after the other: `staging.stage` admits and chains each of them, as it does for every store. Only the disk is
spared: without journal and sync, which nobody needs while the log is being made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import apsw
from msgspec.structs import replace

from bench.effects import CENTS, Missing, charge
from intentlog import Log
from intentlog.core import codec
from intentlog.core.actions import Append
from intentlog.core.records import AttemptClosed, Committed, Instant, Pending, Record
from intentlog.core.state import Branch, Operation
from intentlog.store import schema
from intentlog.store.clock import SystemClock
from intentlog.store.connection import connection as open_connection
from intentlog.store.rows import SqliteRows
from intentlog.store.staging import OperationKey, Staged, stage

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


class RowsInMemory:
    """What was staged and is not in any table yet, as the rows that the next record is staged on.

    Attributes:
        staged: all of it, as one commit would write it.
    """

    def __init__(self, first_seq: int) -> None:
        self._first_seq = first_seq
        self.staged = Staged([], [], {}, {})

    def places(self, count: int) -> range:
        """See `staging.Rows`."""
        first = self.next_seq
        return range(first, first + count)

    @property
    def next_seq(self) -> int:
        """The place behind all that was staged."""
        return self._first_seq + len(self.staged.events)

    def branch(self, branch: str) -> Branch | None:
        """See `staging.Rows`."""
        return self.staged.branches.get(branch)

    def operation(self, key: OperationKey) -> Operation | None:
        """See `staging.Rows`."""
        return self.staged.operations.get(key)

    def append(self, entry: Append, at: Instant) -> None:
        """Stage one record after the others.

        Raises:
            Missing: the library refuses it.
        """
        staged = stage(self, [entry], at)
        if not staged.events:
            raise Missing(f"the library refused a copied record: {entry.record}")
        self.staged.events.extend(staged.events)
        self.staged.branches.update(staged.branches)
        self.staged.operations.update(staged.operations)


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
    rows, tables = RowsInMemory(connection.execute(schema.NEXT_SEQ).get), SqliteRows(connection)
    closed, at = list[str](), SystemClock().now()
    for number in range(branches):
        branch = f"order-{number:08d}"
        is_open = number in left_open
        closed += [] if is_open else [branch]
        for record, payload in open_template if is_open else template:
            own = record
            if isinstance(record, Pending):
                own = replace(record, request_id=codec.request_id(salt, branch, record.step, record.generation))
            rows.append(Append(branch, own, payload), at)
        if number % _BRANCHES_PER_TRANSACTION == 0 or number == branches - 1:
            connection.execute("BEGIN")
            tables.write(rows.staged)
            connection.execute("COMMIT")
            rows = RowsInMemory(rows.next_seq)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return BigLog(path, rows.next_seq - 1, closed)
