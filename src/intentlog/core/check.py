"""The invariants as functions over a branch's whole history, and a rebuild of what is folded from it.

Two oracles that do not share their code: the refold runs every record through `machine.apply` again, and I1, I3, I4 and
I6 are stated here anew, from the records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from intentlog.core import codec, machine
from intentlog.core import records as r
from intentlog.core.effects import EffectKind
from intentlog.core.machine import PROBE
from intentlog.core.records import OutcomeKind, Settlement, Stored
from intentlog.core.state import Branch, Operation


class Finding(NamedTuple):
    """What is wrong, and at which record (0: at none)."""

    seq: int
    text: str


Key: TypeAlias = tuple[str, int]  # step and generation


def check_branch(
    branch: str, row: Branch, history: Iterable[Stored], operations: Mapping[Key, Operation], salt: bytes | None = None
) -> list[Finding]:
    """Hold a branch's history against its chain, the table, the invariants, and the rows folded from it.

    Args:
        branch: the branch.
        row: its row, with the chain's head.
        history: its records, oldest first, as far as the chain could be walked back.
        operations: its operations' rows.
        salt: the log's secret: request ids are derived again from it; not, if it is left out.
    """
    findings: list[Finding] = []
    folded, found = Branch(), dict[Key, Operation]()
    records = list(history)
    for stored in records:
        findings.extend(_check_link(branch, folded, stored))
        if salt is not None:
            findings.extend(_check_request_id(branch, stored, salt))
        change = _refold(folded, found, stored)
        if isinstance(change, machine.Refusal):
            findings.append(Finding(stored.seq, f"the rules refuse this record: {change.reason}: {change.detail}"))
            continue
        folded = replace(change.branch, head_seq=stored.seq, head_chain=stored.chain)
        found.update({(o.step, o.generation): o for o in change.operations})
    if folded != row:
        findings.append(Finding(folded.head_seq, "the branch's row is not what its records fold to"))
    findings.extend(
        Finding(0, f"the row of operation {key[0]!r} is not what its records fold to")
        for key in sorted(found.keys() | operations.keys())
        if found.get(key) != operations.get(key)
    )
    for number, invariant in INVARIANTS.items():
        findings.extend(Finding(seq, f"{number}: {text}") for seq, text in invariant(records))
    return findings


def _check_link(branch: str, folded: Branch, stored: Stored) -> list[Finding]:
    findings: list[Finding] = []
    if stored.branch != branch:
        findings.append(Finding(stored.seq, f"it says that it belongs to branch {stored.branch!r}"))
    if stored.previous_seq != folded.head_seq:
        findings.append(Finding(stored.seq, f"records are missing before it (after {folded.head_seq})"))
    body = codec.encode_record(stored.record)
    expected = codec.chain(folded.head_chain, stored.seq, branch, stored.at, body, stored.payload)
    if expected != stored.chain:
        findings.append(Finding(stored.seq, "its digest does not fit: it, or one before it, was changed"))
    return findings


def _check_request_id(branch: str, stored: Stored, salt: bytes) -> list[Finding]:
    record = stored.record
    said = record.read if isinstance(record, r.Committed) else record
    if not isinstance(record, r.Pending | r.Committed) or not isinstance(said, r.Pending | r.ReadHeader):
        return []
    derived = codec.request_id(salt, branch, record.step, record.generation)
    return [] if said.request_id == derived else [Finding(stored.seq, "its request id is not that of this log")]


def _refold(folded: Branch, found: Mapping[Key, Operation], stored: Stored) -> machine.Change | machine.Refusal:
    record = stored.record
    operation = found.get((record.step, record.generation)) if isinstance(record, r.INTENT_RECORDS) else None
    return machine.apply(folded, operation, record, stored.seq, stored.at)


# --- the invariants, from the records alone --------------------------------------------------------------------------

_Broken: TypeAlias = list[tuple[int, str]]


def i1_pending_before_dispatched(records: Sequence[Stored]) -> _Broken:
    """I1: Dispatched follows a Pending of the same intent."""
    pending = set[tuple[str, int, int]]()
    broken: _Broken = []
    for stored in records:
        match stored.record:
            case r.Pending() as p:
                pending.add((p.step, p.generation, p.attempt))
            case r.Dispatched() as d if (d.step, d.generation, d.attempt) not in pending:
                broken.append((stored.seq, f"{d.step} was dispatched without a Pending"))
            case _:
                pass
    return broken


def i2_never_sent_is_final(records: Sequence[Stored]) -> _Broken:
    """I2: after a restart said NEVER_SENT of an intent, no Dispatched of that intent follows."""
    never = set[tuple[str, int, int]]()
    broken: _Broken = []
    for stored in records:
        match stored.record:
            case r.Classified(classification=r.Verdict.NEVER_SENT) as c:
                never.add((c.step, c.generation, c.attempt))
            case r.Dispatched() as d if (d.step, d.generation, d.attempt) in never:
                broken.append((stored.seq, f"{d.step} was dispatched after it was reported as never sent"))
            case _:
                pass
    return broken


def i3_done_is_never_called_again(records: Sequence[Stored]) -> _Broken:
    """I3: no Dispatched of an operation after RETURNED, REJECTED or APPLIED."""
    done = set[Key]()
    broken: _Broken = []
    for stored in records:
        match stored.record:
            case r.Committed(outcome=OutcomeKind.RETURNED | OutcomeKind.REJECTED) as c:
                done.add((c.step, c.generation))
            case r.Settled(settlement=Settlement.APPLIED) as s:
                done.add((s.step, s.generation))
            case r.Dispatched() as d if (d.step, d.generation) in done:
                broken.append((stored.seq, f"{d.step} was dispatched after it was done"))
            case _:
                pass
    return broken


def i4_unsafe_is_repeated_only_when_it_was_not_applied(records: Sequence[Stored]) -> _Broken:
    """I4: an UNSAFE operation is dispatched again only if no earlier dispatch of it may have landed."""
    unsafe, doubtful = set[Key](), dict[Key, set[int]]()
    broken: _Broken = []
    for stored in records:
        match stored.record:
            case r.Pending() as p:
                if p.declaration.kind is EffectKind.UNSAFE:
                    unsafe.add((p.step, p.generation))
            case r.Dispatched() as d:
                beside = doubtful.setdefault((d.step, d.generation), set())
                if beside and (d.step, d.generation) in unsafe:
                    broken.append((stored.seq, f"{d.step} is UNSAFE and was dispatched beside a doubt"))
                beside.add(d.dispatch_no)
            case r.Committed(outcome=OutcomeKind.NOT_SENT) | r.Suspended() as e:
                doubtful.setdefault((e.step, e.generation), set()).discard(e.dispatch_no)
            case r.Settled(settlement=Settlement.NOT_APPLIED) as s if (
                s.by != PROBE or (s.step, s.generation) not in unsafe
            ):
                doubtful.pop((s.step, s.generation), None)
            case _:
                pass
    return broken


def i6_one_operation_one_call(records: Sequence[Stored]) -> _Broken:
    """I6: request id, arguments and tool are equal in every Pending and READ of an operation."""
    first = dict[Key, tuple[str, str, str]]()
    broken: _Broken = []
    for stored in records:
        record = stored.record
        header = record.read if isinstance(record, r.Committed) else record
        if isinstance(record, r.Pending | r.Committed) and isinstance(header, r.Pending | r.ReadHeader):
            said = (header.request_id, header.digest, header.tool)
            if first.setdefault((record.step, record.generation), said) != said:
                broken.append((stored.seq, f"{record.step} was declared with another request id, arguments or tool"))
    return broken


INVARIANTS: Mapping[str, Callable[[Sequence[Stored]], _Broken]] = {
    "I1": i1_pending_before_dispatched,
    "I2": i2_never_sent_is_final,
    "I3": i3_done_is_never_called_again,
    "I4": i4_unsafe_is_repeated_only_when_it_was_not_applied,
    "I6": i6_one_operation_one_call,
}
