"""How every store appends: read under the lock, let the machine decide, chain, write. Stores bring only their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from intentlog.core import codec, machine
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused, View
from intentlog.core.records import Instant, Stored
from intentlog.core.state import Branch, Operation

OperationKey: TypeAlias = tuple[str, str, int]  # branch, step, generation


class Rows(Protocol):
    """One transaction's view of a store's tables, with the lock held."""

    def places(self, count: int) -> Sequence[int]:
        """The places that so many records would take, rising: each is above every place of its branch."""
        ...

    def branch(self, branch: str) -> Branch | None:
        """The branch's row."""
        ...

    def operation(self, key: OperationKey) -> Operation | None:
        """One operation's row."""
        ...


class Staged(Struct, frozen=True):
    """What one commit answers and writes. A row that several of its records change is written once, as it ends.

    Attributes:
        replies: one for each entry, in their order.
        events: the records, with their encoding.
        branches: the rows of their branches.
        operations: the rows of the operations that they change.
    """

    replies: list[Appended | Refused]
    events: list[tuple[Stored, bytes]]
    branches: dict[str, Branch]
    operations: dict[OperationKey, Operation]


NOTHING = Staged([], [], {}, {})


def stage(rows: Rows, entries: Sequence[Append], at: Instant) -> Staged:
    """Admit each entry in turn, as if those before it were written; what is refused is left out.

    Raises:
        AssertionError: two entries speak for one effect (I7).
    """
    if len(entries) > 1:
        effects = [(e.branch, e.record.step) for e in entries if isinstance(e.record, r.OfIntent)]
        if len(effects) != len(set(effects)):
            msg = "two records of one effect in one commit (I7)"
            raise AssertionError(msg)
    staged = Staged([], [], {}, {})
    places = rows.places(len(entries))
    wall_alone = Instant(at.wall_ns, "", 0)
    for entry in entries:
        kept = at if type(entry.record) in r.BOUNDS_A_CALL else wall_alone
        staged.replies.append(_stage_one(rows, staged, entry, places[len(staged.events)], at, kept))
    return staged


def _stage_one(rows: Rows, staged: Staged, entry: Append, seq: int, at: Instant, kept: Instant) -> Appended | Refused:
    name, record = entry.branch, entry.record
    before = staged.branches.get(name) or rows.branch(name) or Branch()
    operation = None
    if isinstance(record, r.OfIntent):
        key = (name, record.step, record.generation)
        operation = staged.operations.get(key) or rows.operation(key)
    change = machine.apply(before, operation, record, seq, at)
    if isinstance(change, machine.Refusal):
        return Refused(change, View(before, operation, at))
    body = entry.body or codec.encode_record(record)
    chain = codec.chain(before.head_chain, seq, name, kept, body, entry.payload)
    branch = replace(change.branch, head_seq=seq, head_chain=chain)
    staged.events.append((Stored(seq, name, kept, record, entry.payload, before.head_seq, chain), body))
    staged.branches[name] = branch
    for one in change.operations:
        staged.operations[name, one.step, one.generation] = one
    return Appended(seq, View(branch, change.operations[0] if change.operations else None, at))
