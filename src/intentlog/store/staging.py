"""How every store appends: read under the lock, let the machine decide, chain, write. Stores bring only their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from intentlog.core import codec, machine
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused, View
from intentlog.core.records import Instant, Stored
from intentlog.core.state import Branch, Operation


class Rows(Protocol):
    """One transaction's view of a store's tables, with the lock held."""

    def next_seq(self) -> int:
        """The place that the next record takes."""
        ...

    def branch(self, branch: str) -> Branch | None:
        """The branch's row."""
        ...

    def operation(self, branch: str, step: str, generation: int) -> Operation | None:
        """One operation's row."""
        ...

    def write(self, stored: Stored, record: bytes, branch: Branch, operations: Sequence[Operation]) -> None:
        """Write the record, its branch's row, and the rows of the operations that it changed."""
        ...


def stage(rows: Rows, entries: Sequence[Append], at: Instant) -> list[Appended | Refused]:
    """Admit and write each entry in turn; what is refused is left out.

    Raises:
        AssertionError: two entries speak for one effect (I7).
    """
    effects = [(e.branch, e.record.step) for e in entries if isinstance(e.record, r.INTENT_RECORDS)]
    if len(effects) != len(set(effects)):
        msg = "two records of one effect in one commit (I7)"
        raise AssertionError(msg)
    return [_stage_one(rows, entry, at) for entry in entries]


def _stage_one(rows: Rows, entry: Append, at: Instant) -> Appended | Refused:
    record = entry.record
    before = rows.branch(entry.branch) or Branch()
    operation = None
    if isinstance(record, r.INTENT_RECORDS):
        operation = rows.operation(entry.branch, record.step, record.generation)
    seq = rows.next_seq()
    change = machine.apply(before, operation, record, seq, at)
    if isinstance(change, machine.Refusal):
        return Refused(change, View(before, operation, at))
    kept = at if isinstance(record, r.BOUNDS_A_CALL) else Instant(at.wall_ns, "", 0)
    body = codec.encode_record(record)
    chain = codec.chain(before.head_chain, seq, entry.branch, kept, body, entry.payload)
    branch = replace(change.branch, head_seq=seq, head_chain=chain)
    stored = Stored(seq, entry.branch, kept, record, entry.payload, before.head_seq, chain)
    rows.write(stored, body, branch, change.operations)
    return Appended(seq, View(branch, change.operations[0] if change.operations else None, at))
