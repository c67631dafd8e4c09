"""The invariants over a branch's history, record by record, and a rebuild of what is folded from it.

Two oracles that do not share their code: the refold runs every record through `machine.apply` again, and I1, I2, I3, I4
and I6 are stated here anew, from the records alone. Each holds within one operation, so that it is held against the
records of one, in turn.

What memory it takes. A branch can have a million records, and as many operations. An operation is kept while its
records come: up to the one that its row names as its newest. If it has then become what the row says, it is forgotten,
but for 16 bytes; the row itself says what it was. The row is only believed about when to compare. If it lied, and more
records of the operation come, the branch is looked at once more with this operation kept to the end. So what is kept is
what is open at any one time, unless rows are damaged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from intentlog.core import codec, machine
from intentlog.core import records as r
from intentlog.core.effects import EffectKind
from intentlog.core.machine import PROBE
from intentlog.core.records import OutcomeKind, Settlement, Stored
from intentlog.core.state import Branch, Operation

LIARS_MAX = 1_000  # operations that a second look keeps to the end: of more it says only that their rows are wrong


class Finding(NamedTuple):
    """What is wrong, and at which record (0: at none)."""

    seq: int
    text: str


Key: TypeAlias = tuple[str, int]  # step and generation


class OperationRow(NamedTuple):
    """An operation's row.

    Attributes:
        key: its step and generation, as they are indexed.
        is_listed: whether the index of what needs a look has it.
        operation: the row itself.
    """

    key: Key
    is_listed: bool
    operation: Operation


class Whole(Protocol):
    """Everything that a store has of one branch, of one moment. What it iterates can be read again."""

    @property
    def name(self) -> str:
        """The branch."""
        ...

    @property
    def row(self) -> Branch:
        """Its row."""
        ...

    @property
    def is_unfinished(self) -> bool:
        """Whether it is indexed as unfinished."""
        ...

    def records(self) -> Iterator[tuple[Stored, bytes]]:
        """Its records, oldest first, as far as its chain can be walked back; each as it is encoded, too."""
        ...

    def operation(self, key: Key) -> Operation | None:
        """The row of one operation."""
        ...

    def operations(self) -> Iterator[OperationRow]:
        """The rows of its operations, by key."""
        ...


class Held:
    """A branch that is in memory already."""

    def __init__(self, name: str, row: Branch, history: Iterable[Stored], operations: Mapping[Key, Operation]) -> None:
        self.name = name
        self.row = row
        self._history = tuple(history)
        self._operations = operations

    @property
    def is_unfinished(self) -> bool:
        """See `Whole`: here nothing is indexed."""
        return self.row.is_unfinished

    def records(self) -> Iterator[tuple[Stored, bytes]]:
        """See `Whole`."""
        return ((stored, codec.encode_record(stored.record)) for stored in self._history)

    def operation(self, key: Key) -> Operation | None:
        """See `Whole`."""
        return self._operations.get(key)

    def operations(self) -> Iterator[OperationRow]:
        """See `Whole`."""
        return (OperationRow(key, one.is_listed, one) for key, one in sorted(self._operations.items()))


def check_branch(
    whole: Whole, salt: bytes | None = None, passed: Callable[[int], object] | None = None
) -> list[Finding]:
    """Hold a branch's history against its chain, the table, the invariants, and the rows folded from it.

    Args:
        whole: the branch.
        salt: the log's secret: request ids are derived again from it; not, if it is left out.
        passed: is told the place of each record that was read.
    """
    look = _Look(whole, salt, frozenset())
    for stored, body in whole.records():
        look.take(stored, body)
        if passed is not None:
            passed(stored.seq)
    if look.liars:
        look = _Look(whole, salt, look.liars)
        for stored, body in whole.records():
            look.take(stored, body)
    return look.findings_at_end()


class _Watched:
    """An operation whose records come: what they made of it, its row, and what the invariants have to remember."""

    __slots__ = ("folded", "row", "seen")

    def __init__(self, row: Operation | None) -> None:
        self.row = row
        self.folded: Operation | None = None
        self.seen: Seen | None = Seen()


class _Look:
    """One reading of a branch. The operations `kept` are not forgotten before its end."""

    def __init__(self, whole: Whole, salt: bytes | None, kept: AbstractSet[Key]) -> None:
        self.liars = set[Key]()  # their rows name a newest record, and it is not the newest
        self._whole = whole
        self._branch = whole.name
        self._salt = salt
        self._kept = kept
        self._folded = Branch()  # but for its head, which is:
        self._head_seq, self._head_chain = 0, b""
        self._watched: dict[Key, _Watched] = {}
        self._agreed = _Agreed()
        self._findings: list[Finding] = []

    def take(self, stored: Stored, body: bytes) -> None:
        """The next record, and its encoding."""
        record, seq, of = stored.record, stored.seq, None
        self._check_link(stored, body)
        if isinstance(record, r.OfIntent):
            if self._salt is not None:
                self._check_request_id(seq, record, self._salt)
            of = self._watch((record.step, record.generation), seq)
            if of.seen is not None:
                for number, invariant in _INVARIANTS:
                    if broken := invariant(of.seen, record):
                        self._found(seq, f"{number}: {record.step} {broken}")
        change = machine.apply(self._folded, of.folded if of else None, record, seq, stored.at)
        if isinstance(change, machine.Refusal):
            self._found(seq, f"the rules refuse this record: {change.reason}: {change.detail}")
            return
        self._folded = change.branch
        for operation in change.operations:
            key = (operation.step, operation.generation)
            self._fold(self._watched.get(key) or self._watch(key, seq), key, operation, seq)

    def findings_at_end(self) -> list[Finding]:
        """Whatever is wrong, once every record was taken: the rows are held against what was folded."""
        row = self._whole.row
        columns_agree = self._whole.is_unfinished == row.is_unfinished
        if replace(self._folded, head_seq=self._head_seq, head_chain=self._head_chain) != row:
            self._found(self._head_seq, "the branch's row is not what its records fold to")
        for key, is_listed, operation in self._whole.operations():
            columns_agree &= (key, is_listed) == ((operation.step, operation.generation), operation.is_listed)
            watched = self._watched.pop(key, None)
            if not (watched.folded == operation if watched else self._agreed.holds(operation.last_seq, key)):
                self._found(0, f"the row of operation {key[0]!r} is not what its records fold to")
        for key in sorted(self._watched):
            if self._watched[key].folded is not None:
                self._found(0, f"operation {key[0]!r} has no row")
        if not columns_agree:
            self._found(0, "the indexed columns do not say what the rows do")
        return self._findings

    def _found(self, seq: int, text: str) -> None:
        self._findings.append(Finding(seq, text))

    def _watch(self, key: Key, seq: int) -> _Watched:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(self._whole.operation(key))
            row = watched.row
            if row is not None and row.last_seq < seq and self._agreed.holds(row.last_seq, key):
                watched.folded = row  # which is what had come of it
                watched.seen = None  # what was seen of it is gone, until the second look
                if len(self.liars) < LIARS_MAX:
                    self.liars.add(key)
        return watched

    def _fold(self, watched: _Watched, key: Key, operation: Operation, seq: int) -> None:
        watched.folded, row = operation, watched.row
        if row is not None and row.last_seq == seq and row == operation and key not in self._kept:
            self._agreed.add(seq, key)
            del self._watched[key]

    def _check_link(self, stored: Stored, body: bytes) -> None:
        seq = stored.seq
        if stored.branch != self._branch:
            self._found(seq, f"it says that it belongs to branch {stored.branch!r}")
        if stored.previous_seq != self._head_seq:
            self._found(seq, f"records are missing before it (after {self._head_seq})")
        if codec.chain(self._head_chain, seq, self._branch, stored.at, body, stored.payload) != stored.chain:
            self._found(seq, "its digest does not fit: it, or one before it, was changed")
        self._head_seq, self._head_chain = seq, stored.chain

    def _check_request_id(self, seq: int, record: r.IntentRecord, salt: bytes) -> None:
        said = _declared(record)
        if said and said.request_id != codec.request_id(salt, self._branch, record.step, record.generation):
            self._found(seq, "its request id is not that of this log")


def _declared(record: r.IntentRecord) -> r.Pending | r.ReadHeader | None:
    """What a record says of its operation's call, if it does."""
    if isinstance(record, r.Pending):
        return record
    return record.read if isinstance(record, r.Committed) else None


class _Agreed:
    """Which operations became what their rows say, and at which records: 16 bytes for each."""

    def __init__(self) -> None:
        self._seqs = array("q")  # rising
        self._keys = array("q")

    def add(self, seq: int, key: Key) -> None:
        """It did, at this record, which is not before any that was added."""
        self._seqs.append(seq)
        self._keys.append(hash(key))

    def holds(self, seq: int, key: Key) -> bool:
        """Whether it did, at this record."""
        first = bisect_left(self._seqs, seq)
        beside = self._keys[first : bisect_left(self._seqs, seq + 1, lo=first)]  # two, where one was renewed
        return hash(key) in beside


# --- the invariants, from the records alone: each answers what a record of an operation breaks, or "" ----------------


class Seen:
    """What the invariants remember of the earlier records of one operation; each has its own."""

    __slots__ = ("i1_pending", "i2_never", "i3_done", "i4_doubtful", "i4_unsafe", "i6_said")

    def __init__(self) -> None:
        self.i1_pending: tuple[int, ...] = ()  # attempts
        self.i2_never: tuple[int, ...] = ()  # attempts
        self.i3_done = False
        self.i4_unsafe = False
        self.i4_doubtful: tuple[int, ...] = ()  # dispatches
        self.i6_said: tuple[str, str, str] | None = None


def i1_pending_before_dispatched(seen: Seen, record: r.IntentRecord) -> str:
    """I1: Dispatched follows a Pending of the same intent."""
    if isinstance(record, r.Pending):
        if record.attempt not in seen.i1_pending:
            seen.i1_pending += (record.attempt,)
    elif isinstance(record, r.Dispatched) and record.attempt not in seen.i1_pending:
        return "was dispatched without a Pending"
    return ""


def i2_never_sent_is_final(seen: Seen, record: r.IntentRecord) -> str:
    """I2: after a restart said NEVER_SENT of an intent, no Dispatched of that intent follows."""
    if isinstance(record, r.Classified):
        if record.classification is r.Verdict.NEVER_SENT and record.attempt not in seen.i2_never:
            seen.i2_never += (record.attempt,)
    elif isinstance(record, r.Dispatched) and record.attempt in seen.i2_never:
        return "was dispatched after it was reported as never sent"
    return ""


def i3_done_is_never_called_again(seen: Seen, record: r.IntentRecord) -> str:
    """I3: no Dispatched of an operation after RETURNED, REJECTED or APPLIED."""
    if isinstance(record, r.Committed):
        seen.i3_done = seen.i3_done or record.outcome is not OutcomeKind.NOT_SENT
    elif isinstance(record, r.Settled):
        seen.i3_done = seen.i3_done or record.settlement is Settlement.APPLIED
    elif isinstance(record, r.Dispatched) and seen.i3_done:
        return "was dispatched after it was done"
    return ""


def i4_unsafe_is_repeated_only_when_it_was_not_applied(seen: Seen, record: r.IntentRecord) -> str:
    """I4: an UNSAFE operation is dispatched again only if no earlier dispatch of it may have landed."""
    if isinstance(record, r.Pending):
        seen.i4_unsafe = seen.i4_unsafe or record.declaration.kind is EffectKind.UNSAFE
    elif isinstance(record, r.Dispatched):
        broken = seen.i4_unsafe and seen.i4_doubtful
        seen.i4_doubtful += (record.dispatch_no,)
        return "is UNSAFE and was dispatched beside a doubt" if broken else ""
    elif isinstance(record, r.Suspended) or (
        isinstance(record, r.Committed) and record.outcome is OutcomeKind.NOT_SENT
    ):
        seen.i4_doubtful = tuple(no for no in seen.i4_doubtful if no != record.dispatch_no)
    elif isinstance(record, r.Settled) and record.settlement is Settlement.NOT_APPLIED:
        by_probe = record.by == PROBE
        seen.i4_doubtful = seen.i4_doubtful if by_probe and seen.i4_unsafe else ()
    return ""


def i6_one_operation_one_call(seen: Seen, record: r.IntentRecord) -> str:
    """I6: request id, arguments and tool are equal in every Pending and READ of an operation."""
    header = _declared(record)
    if header is not None:
        said = (header.request_id, header.digest, header.tool)
        seen.i6_said = seen.i6_said or said
        return "" if said == seen.i6_said else "was declared with another request id, arguments or tool"
    return ""


Invariant: TypeAlias = Callable[[Seen, r.IntentRecord], str]
INVARIANTS: Mapping[str, Invariant] = {
    "I1": i1_pending_before_dispatched,
    "I2": i2_never_sent_is_final,
    "I3": i3_done_is_never_called_again,
    "I4": i4_unsafe_is_repeated_only_when_it_was_not_applied,
    "I6": i6_one_operation_one_call,
}
_INVARIANTS = tuple(INVARIANTS.items())
