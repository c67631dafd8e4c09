"""What an admitted record makes of its branch and its operation. `machine` decides; this only folds."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from intentlog.core import records as r
from intentlog.core.effects import stricter
from intentlog.core.records import OutcomeKind
from intentlog.core.state import OPEN_FATES, Branch, Decided, Dispatch, Fate, Intent, Operation, State

# Late evidence that says other than what was taken for true: (the dispatch's fate, the outcome that came late).
CONTRADICTIONS = frozenset(
    {
        (Fate.NOT_SENT, OutcomeKind.RETURNED),
        (Fate.SUSPENDED, OutcomeKind.RETURNED),
        (Fate.REJECTED, OutcomeKind.RETURNED),
        (Fate.NOT_APPLIED, OutcomeKind.RETURNED),
        (Fate.RETURNED, OutcomeKind.REJECTED),
        (Fate.APPLIED, OutcomeKind.REJECTED),
        (Fate.RETURNED, OutcomeKind.NOT_SENT),
        (Fate.APPLIED, OutcomeKind.NOT_SENT),
    },
)

# Which answer stands for the operation: a value that was returned before one that was found, before a refusal.
_RANK = {Fate.REJECTED: 1, Fate.APPLIED: 2, Fate.RETURNED: 3}


def branch(before: Branch, record: r.BranchRecord, at: r.Instant) -> Branch:
    """The branch after one of its own records."""
    latest = max(before.latest_wall_ns, at.wall_ns)
    match record:
        case r.AttemptOpened():
            return Branch(
                attempt=record.attempt,
                owner=record.owner,
                latest_wall_ns=latest,
                fenced_at=_fence(before, at),
                head_seq=before.head_seq,
                head_chain=before.head_chain,
            )
        case r.AttemptFenced():
            return replace(before, fenced=True, fenced_at=_fence(before, at), dispatched=False, latest_wall_ns=latest)
        case r.AttemptClosed():
            return replace(before, end=record.end, latest_wall_ns=latest)
        case r.CancelRequested():
            return replace(before, cancelled=True, latest_wall_ns=latest)
        case r.ApplicationEvent():
            return replace(before, latest_wall_ns=latest)
        case _:
            assert_never(record)


def _fence(before: Branch, at: r.Instant) -> r.Instant:
    """A fence that finds nothing new dispatched moves no bound: the earlier one stands."""
    return before.fenced_at if before.fenced_at and not before.dispatched else at


def operation(
    before: Operation | None, record: r.IntentRecord, to: State | None, seq: int, at: r.Instant
) -> tuple[Operation, ...]:
    """The operation after a record that the table sends to state `to` (None: it stays), with its new generation."""
    if isinstance(record, r.Pending):
        return (_pending(before, record, to or State.PENDING, seq),)
    if isinstance(record, r.Committed) and record.read:
        return (_read(before, record, record.read, to or State.COMMITTED, seq),)
    if isinstance(record, r.Dispatched):
        return (_dispatched(_known(before, record), record, to, seq, at),)
    now = replace(_known(before, record), last_seq=seq)
    match record:
        case r.Committed():
            now = _outcome(now, record, seq)
        case r.CallEnded():
            now = _with_fate(now, record.dispatch_no, Fate.ENDED, at)
        case r.Suspended():
            now = _with_fate(now, record.dispatch_no, Fate.SUSPENDED)
        case r.ProbeAnswered():
            now = replace(now, last_answer=record.answer)
        case r.Settled():
            now = _settled(now, record, to, seq)
        case r.Classified():
            return (_with_classification(now, record),)
        case r.Renewed():
            return replace(now, renewed=True, contradicts=False), _next_generation(now, seq)
        case r.Supplied():
            return (replace(now, decided=now.decided and replace(now.decided, value_seq=seq)),)
        case _:
            assert_never(record)
    return (_moved(now, record, to),)


def _known(before: Operation | None, record: r.IntentRecord) -> Operation:
    if before is None:
        msg = f"{type(record).__name__} without an operation was admitted"
        raise AssertionError(msg)
    return before


def _pending(before: Operation | None, record: r.Pending, to: State, seq: int) -> Operation:
    intent = Intent(record.attempt, to)
    if before is None or not before.intents:
        return Operation(
            step=record.step,
            generation=record.generation,
            tool=record.tool,
            declaration=record.declaration,
            request_id=record.request_id,
            digest=record.digest,
            first_seq=seq,
            last_seq=seq,
            intents=(intent,),
        )
    others = tuple(i for i in before.intents if i.attempt != record.attempt)
    declaration = stricter(before.declaration, record.declaration)
    return replace(before, last_seq=seq, declaration=declaration, intents=(*others, intent))


def _dispatched(before: Operation, record: r.Dispatched, to: State | None, seq: int, at: r.Instant) -> Operation:
    dispatch = Dispatch(record.dispatch_no, record.attempt, at, Fate.CALLING)
    dispatches = (*before.dispatches, dispatch)
    intents = _with_state(before.intents, record.attempt, to or State.DISPATCHED)
    return replace(before, last_seq=seq, dispatches=dispatches, last_answer=None, intents=intents)


def _with_state(intents: tuple[Intent, ...], attempt: int, to: State) -> tuple[Intent, ...]:
    return tuple([replace(one, state=to) if one.attempt == attempt else one for one in intents])


def _read(before: Operation | None, record: r.Committed, header: r.ReadHeader, to: State, seq: int) -> Operation:
    fate = Fate.RETURNED if record.outcome is OutcomeKind.RETURNED else Fate.REJECTED
    return Operation(
        step=record.step,
        generation=record.generation,
        tool=header.tool,
        declaration=header.declaration,
        request_id=header.request_id,
        digest=header.digest,
        first_seq=seq,
        last_seq=seq,
        intents=(*(before.intents if before else ()), Intent(record.attempt, to)),
        decided=Decided(fate, seq, None if record.value_missing else seq),
    )


def _outcome(now: Operation, record: r.Committed, seq: int) -> Operation:
    """The first outcome of a dispatch gives its fate; a later one is evidence, and loud where it contradicts."""
    dispatch = now.dispatch(record.dispatch_no)
    fate = Fate(record.outcome)
    if dispatch is not None and dispatch.fate in OPEN_FATES:
        now = _with_fate(now, record.dispatch_no, fate)
    elif dispatch is not None and (dispatch.fate, record.outcome) in CONTRADICTIONS:
        now = replace(now, contradicts=True)
    if record.outcome is OutcomeKind.NOT_SENT:
        return now
    if record.outcome is OutcomeKind.RETURNED:
        now = _supersede(now, record.dispatch_no)
    return _decide(now, Decided(fate, seq, None if record.value_missing else seq))


def _settled(now: Operation, record: r.Settled, to: State | None, seq: int) -> Operation:
    """APPLIED and NOT_APPLIED speak for the whole operation: they close every open dispatch."""
    if to is None:
        return replace(now, contradicts=False)  # nothing was open: a person has looked at both outcomes
    if record.settlement is r.Settlement.NEVER_SENT:
        return now
    fate = Fate(record.settlement)
    if fate is Fate.SUPERSEDED:
        return _supersede(now, now.dispatches[-1].number + 1, record.attempt)
    now = replace(
        now,
        dispatches=tuple(replace(d, fate=fate) if d.fate in OPEN_FATES else d for d in now.dispatches),
        intents=tuple(replace(i, state=to) if i.state is State.DISPATCHED else i for i in now.intents),
    )
    if fate is Fate.NOT_APPLIED:
        return now
    return _decide(now, Decided(fate, seq, seq if record.value_recorded else None))


def _decide(now: Operation, decided: Decided) -> Operation:
    stands = now.decided
    if stands and _RANK[stands.fate] >= _RANK[decided.fate]:
        return now
    if stands and decided.value_seq is None:  # a better answer without a value takes none away
        decided = replace(decided, value_seq=stands.value_seq)
    return replace(now, decided=decided)


def _supersede(now: Operation, before_number: int, attempt: int | None = None) -> Operation:
    """Close the open dispatches before this number, of every attempt or of one."""
    if len(now.dispatches) == 1 and now.dispatches[0].number >= before_number:  # by far the commonest: nothing
        return now
    return replace(
        now,
        dispatches=tuple(
            replace(d, fate=Fate.SUPERSEDED)
            if d.fate in OPEN_FATES and d.number < before_number and attempt in (None, d.attempt)
            else d
            for d in now.dispatches
        ),
    )


def _with_fate(now: Operation, number: int, fate: Fate, ended_at: r.Instant | None = None) -> Operation:
    dispatches = [replace(d, fate=fate, ended_at=ended_at) if d.number == number else d for d in now.dispatches]
    return replace(now, dispatches=tuple(dispatches))


def _with_classification(now: Operation, record: r.Classified) -> Operation:
    return replace(
        now,
        intents=tuple(
            replace(i, classified=record.classification, resolution=record.resolution)
            if i.attempt == record.attempt
            else i
            for i in now.intents
        ),
    )


def _moved(now: Operation, record: r.IntentRecord, to: State | None) -> Operation:
    """Move the record's own intent, unless one of its dispatches is still open."""
    if to is None or record.attempt in [d.attempt for d in now.dispatches if d.fate in OPEN_FATES]:
        return now
    return replace(now, intents=_with_state(now.intents, record.attempt, to))


def _next_generation(now: Operation, seq: int) -> Operation:
    """An empty operation of the next generation: its first Pending fills it."""
    return Operation(
        step=now.step,
        generation=now.generation + 1,
        tool=now.tool,
        declaration=now.declaration,
        request_id="",
        digest=now.digest,
        first_seq=seq,
        last_seq=seq,
    )
