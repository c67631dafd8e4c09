"""What must hold in every state, and the situations that a search has to have met to prove anything."""

from __future__ import annotations

from model.programs import Told
from model.world import Log, Receiver

from intentlog.core import records as r
from intentlog.core.actions import Appended, Refused
from intentlog.core.effects import EffectKind
from intentlog.core.state import OPEN_FATES, Fate, Operation

DENIED = (Fate.NOT_SENT, Fate.REJECTED, Fate.SUSPENDED, Fate.NOT_APPLIED)


def named(record: r.Record) -> str:
    """A record in words."""
    number = getattr(record, "dispatch_no", None)
    suffix = f" of attempt {record.attempt}" + (f", dispatch {number}" if number else "")
    match record:
        case r.Committed(outcome=outcome):
            return f"Committed({outcome}){suffix}"
        case r.Settled(settlement=settlement, by=by):
            return f"Settled({settlement}, by {by}){suffix}"
        case r.ProbeAnswered(answer=answer):
            return f"ProbeAnswered({answer}){suffix}"
        case r.Classified(classification=classification, resolution=todo):
            return f"Classified({classification}, {todo}){suffix}"
        case _:
            return type(record).__name__ + suffix


# --- promises -------------------------------------------------------------------------------------------------------


def broken_in(log: Log, receiver: Receiver, kind: EffectKind) -> list[str]:
    """What does not hold between log and world: the witness outside, and the truth of what is recorded."""
    found: list[str] = []
    if receiver.effects > 1 and kind is not EffectKind.IDEMPOTENT:
        found.append(f"witness: {kind} happened {receiver.effects} times")
    found.extend(
        f"I2: attempt {attempt} is recorded as never sent, and its call is on its way or landed"
        for attempt in sorted(log.never_sent() & receiver.attempts())
    )
    return found + (_untrue(log.operation, receiver) if log.operation else [])


def _untrue(operation: Operation, receiver: Receiver) -> list[str]:
    found: list[str] = []
    landed = bool(receiver.landings)
    if operation.verdict is r.Verdict.NEVER_SENT and landed:
        found.append("truth: its verdict is NEVER_SENT, and it landed")
    if operation.decided and operation.decided.fate in (Fate.RETURNED, Fate.APPLIED) and not landed:
        found.append(f"truth: it is recorded as {operation.decided.fate}, and it did not land")
    found.extend(
        f"truth: dispatch {one.number} is recorded as {one.fate}, and it landed"
        for one in operation.dispatches
        if one.fate in DENIED and receiver.has_landed(one.number)
    )
    return found


def broken_by_call(log: Log, attempt: int, number: int) -> tuple[str, ...]:
    """I1 and I2, at the moment at which a call begins."""
    found: list[str] = []
    if not log.permits(attempt, number):
        found.append(f"I1: the call of dispatch {number} begins, and no Dispatched after a Pending permits it")
    if attempt in log.never_sent():
        found.append(f"I2: a call of attempt {attempt} begins, which is recorded as never sent")
    return tuple(found)


def broken_by_telling(told: Told, receiver: Receiver) -> list[str]:
    """The truth of what a caller is told of the effect.

    A fenced owner cannot be told what later attempts do: "no" speaks for its own attempt and the earlier ones.
    """
    if told.ran == "no" and any(attempt <= told.attempt for attempt in receiver.attempts()):
        return [f"truth: a caller is told {told.what}, effect ran: no, and its call is on its way or landed"]
    if told.ran == "yes" and not receiver.landings:
        return [f"truth: a caller is told {told.what}, effect ran: yes, and it did not land"]
    return []


# --- situations -----------------------------------------------------------------------------------------------------


def situations_of(before: Log, record: r.Record, reply: Appended | Refused) -> tuple[str, ...]:
    """The noteworthy in one append."""
    if isinstance(reply, Refused):
        return (f"{type(record).__name__} refused: {reply.refusal.reason}",)
    found: list[str] = []
    operation, after = before.operation, reply.view.operation
    match record:
        case r.Committed(dispatch_no=number, attempt=attempt) if operation is not None:
            dispatch = operation.dispatch(number)
            if dispatch is not None and dispatch.fate not in OPEN_FATES:
                found.append("a late outcome after its dispatch was settled")
            if attempt != before.branch.attempt or not before.branch.is_open:
                found.append("a fenced owner's outcome is taken")
        case r.Settled(settlement=settlement, by=by):
            found.append(f"settled: {settlement} by {by}")
        case r.Classified(classification=classification, resolution=todo):
            found.append(f"classified: {classification}, {todo}")
        case r.ProbeAnswered(answer=answer):
            found.append(f"probe: {answer}")
        case r.AttemptClosed(end=end):
            found.append(f"closed: {end}")
        case _:
            pass
    if after is not None and after.contradicts and not (operation is not None and operation.contradicts):
        found.append("contradiction")
    return tuple(found)


def situations_of_call(log: Log, attempt: int) -> tuple[str, ...]:
    """The noteworthy in the begin of a call."""
    found: list[str] = []
    operation = log.operation
    if any(earlier < attempt for earlier in log.never_sent()):
        found.append("called after an earlier attempt was never sent")
    if operation is not None and len(operation.open_dispatches) > 1:
        found.append("called beside a doubt")
    if operation is not None and any(d.fate is Fate.NOT_APPLIED for d in operation.dispatches):
        found.append("called after NOT_APPLIED")
    if attempt != log.branch.attempt or not log.branch.is_open:
        found.append("a fenced owner calls within its grace")
    return tuple(found)


def situations_of_telling(told: Told, kind: EffectKind) -> tuple[str, ...]:
    """The noteworthy in what a caller is told."""
    found = [f"told: {told.what}"]
    if told.later:
        found.append("a probe is not trusted yet")
    if told.what == "InDoubt" and kind is EffectKind.KEYED:
        found.append("the key may be forgotten")
    return tuple(found)
