"""What a person or a program in one's name decides, each decision a record with name and reason (I9)."""

from __future__ import annotations

from typing import NamedTuple

from intentlog.core import answers
from intentlog.core import records as r
from intentlog.core.actions import (
    Append,
    Appended,
    BranchView,
    Deferred,
    IntentId,
    Load,
    LoadBranch,
    Refused,
    Script,
    View,
)
from intentlog.core.machine import RESERVED, Reason
from intentlog.core.records import Durability, End, Settlement, Verdict
from intentlog.core.restart import Classification, Present, classify_open, close_cancelled, fence
from intentlog.core.state import OPEN_STATES, Operation
from intentlog.errors import ArgumentsNotRecordable, EffectRan, NotInDoubt, StaleDecision, UnknownIntent


def resolve(
    intent: IntentId, settlement: Settlement, payload: bytes | None, by: str, why: str, expect_seq: int | None
) -> Script[None]:
    """Record whether an operation in doubt happened; or, where outcomes contradict, that it did.

    Raises:
        ArgumentsNotRecordable, UnknownIntent, NotInDoubt, StaleDecision.
    """
    check_person(by)
    operation = yield from _operation_of(intent, contradicting=True)
    whole: BranchView = yield LoadBranch(intent.branch)
    doubtful = operation.verdict is Verdict.MAY_HAVE_BEEN_SENT
    if not doubtful and not operation.contradicts:
        raise NotInDoubt(f"its verdict is {operation.verdict}", intent_id=intent, effect_ran=operation.effect_ran)
    if whole.owner_lives and operation.calling(whole.branch.attempt):
        raise NotInDoubt("its owner lives and may still be calling", intent_id=intent, effect_ran="unknown")
    _check_fresh(intent, operation, expect_seq)
    newest = answers.doubted_intent(intent, operation)
    if doubtful and expect_seq is None and newest != intent:
        raise StaleDecision(f"a newer attempt may have sent it too ({newest})", intent_id=intent)
    if payload is not None and not doubtful:
        raise NotInDoubt("it has its outcome; none can be given", intent_id=intent, effect_ran=operation.effect_ran)
    if not whole.owner_lives:
        yield from fence(intent.branch, whole)
    record = r.Settled(
        attempt=operation.open_dispatches[-1].attempt if doubtful else _closed_attempt(operation),
        step=operation.step,
        generation=operation.generation,
        settlement=settlement,
        by=by,
        why=why,
        expect_seq=operation.last_seq,
        value_recorded=payload is not None,
    )
    reply: Appended | Refused = yield Append(intent.branch, record, payload)
    if isinstance(reply, Refused):
        kind = StaleDecision if reply.refusal.reason is Reason.STALE else NotInDoubt
        raise kind(reply.refusal.detail, intent_id=intent, effect_ran=_ran(reply, operation))


def supply(intent: IntentId, payload: bytes, by: str, why: str) -> Script[None]:
    """Record the value of an operation that is done without one.

    Raises:
        ArgumentsNotRecordable, UnknownIntent, NotInDoubt.
    """
    check_person(by)
    operation = yield from _operation_of(intent)
    newest = operation.intents[-1].attempt  # the value is the operation's; any of its intents names it
    record = r.Supplied(attempt=newest, step=operation.step, generation=operation.generation, by=by, why=why)
    reply: Appended | Refused = yield Append(intent.branch, record, payload)
    if isinstance(reply, Refused):
        ran = _ran(reply, operation)
        raise NotInDoubt(f"it needs no value: {reply.refusal.detail}", intent_id=intent, effect_ran=ran)


def renew(log: str, intent: IntentId, by: str, why: str, expect_seq: int | None = None) -> Script[None]:
    """Record that the operation shall happen once more: its next call is a new operation, with a key of its own.

    Args:
        log: how commands name the log.
        intent: any intent of the operation.
        by: who decides.
        why: on what grounds.
        expect_seq: the operation's newest record that the decision was prepared at, or None.

    Raises:
        ArgumentsNotRecordable, UnknownIntent, StaleDecision.
        InDoubt: it may have been sent; that is settled first.
        NotInDoubt: it is about to be called.
    """
    check_person(by)
    operation = yield from _operation_of(intent)
    if operation.verdict is Verdict.MAY_HAVE_BEEN_SENT:
        raise answers.in_doubt(log, intent, operation, "what may have been sent is settled before it is renewed")
    _check_fresh(intent, operation, expect_seq)
    record = r.Renewed(
        attempt=operation.intents[-1].attempt,
        step=operation.step,
        generation=operation.generation,
        by=by,
        why=why,
        expect_seq=operation.last_seq,
    )
    reply: Appended | Refused = yield Append(intent.branch, record)
    if isinstance(reply, Refused):
        kind = StaleDecision if reply.refusal.reason is Reason.STALE else NotInDoubt
        ran = _ran(reply, operation)
        raise kind(f"it cannot be renewed now: {reply.refusal.detail}", intent_id=intent, effect_ran=ran)


class Cancelled(NamedTuple):
    """What a cancellation came to.

    Attributes:
        verdict: CANCELLED, or INDETERMINATE while a dispatch has no outcome.
        classifications: what was concluded of a dead owner's open intents.
    """

    verdict: End
    classifications: list[Classification]


def cancel(branch: str, by: str, why: str, present: Present) -> Script[Cancelled]:
    """Record that the branch's attempt shall send nothing more; close it, if its owner is dead.

    It ends no call: a running one still gets its outcome recorded, by its owner, who also closes the attempt.

    Raises:
        ArgumentsNotRecordable, UnknownIntent.
        NotInDoubt: its last attempt has ended, with nothing in doubt.
    """
    check_person(by)
    view: BranchView = yield LoadBranch(branch)
    while not view.branch.cancelled:
        attempt = view.branch.attempt
        reply: Appended | Refused = yield Append(branch, r.CancelRequested(attempt=attempt, by=by, why=why))
        view = yield LoadBranch(branch)
        if isinstance(reply, Appended):
            break  # an attempt that was opened meanwhile is another one
        if view.branch.attempt == attempt:
            if attempt == 0:
                raise UnknownIntent(f"the log has no attempt at branch {branch!r}", remedy="check its name.")
            raise NotInDoubt(f"branch {branch!r}: there is nothing to cancel: {reply.refusal.detail}")
    classifications: list[Classification] = []
    if not view.owner_lives:
        yield from fence(branch, view)
        classifications = yield from classify_open(branch, present)
        yield from close_cancelled(branch)
    after: BranchView = yield LoadBranch(branch)
    doubtful = any(operation.open_dispatches for operation in after.operations)
    return Cancelled(End.INDETERMINATE if doubtful else End.CANCELLED, classifications)


def note(branch: str, name: str, payload: bytes, durability: Durability) -> Script[None]:
    """Record a program's own event in a branch, whoever owns it."""
    view: BranchView = yield LoadBranch(branch)
    record = r.ApplicationEvent(attempt=view.branch.attempt, name=name)
    _: Appended | Deferred = yield Append(branch, record, payload, durability)


def check_person(by: str) -> None:
    """Refuse a person's name that could be taken for one of the library's parts."""
    if by.startswith(RESERVED):
        raise ArgumentsNotRecordable(f"a decision by {by!r}: names that begin with {RESERVED!r} are the library's own")


def _operation_of(intent: IntentId, *, contradicting: bool = False) -> Script[Operation]:
    """The operation that the intent belongs to, in its present generation, or an older one that contradicts."""
    view: View = yield Load(intent.branch, intent.step)
    operation = view.operation
    if operation is not None and contradicting:
        operation = yield from _contradicting_before(intent, operation)
    if operation is not None and not operation.intents:
        raise NotInDoubt("it was renewed, and not called since: run the program", intent_id=intent)
    if operation is None or operation.intent(intent.attempt) is None:
        renewed = operation is not None and operation.generation > 1
        why = "it was renewed; name an intent that stands after that" if renewed else "no such intent in the log"
        raise UnknownIntent(why, intent_id=intent)
    return operation


def _contradicting_before(intent: IntentId, newest: Operation) -> Script[Operation]:
    """The operation itself; or, if nothing is the matter with it, a renewed one before it that contradicts."""
    generations = range(newest.generation - 1, 0, -1)
    if newest.contradicts or newest.verdict is Verdict.MAY_HAVE_BEEN_SENT:
        return newest
    for generation in generations:
        view: View = yield Load(intent.branch, intent.step, generation)
        if view.operation is not None and view.operation.contradicts:
            return view.operation
    return newest


def _ran(reply: Refused, before: Operation) -> EffectRan:
    """What is known of the effect by now, where others were faster than a decision."""
    return (reply.view.operation or before).effect_ran


def _check_fresh(intent: IntentId, operation: Operation, expect_seq: int | None) -> None:
    if expect_seq is not None and expect_seq != operation.last_seq:
        raise StaleDecision(f"prepared at seq {expect_seq}, the operation is at {operation.last_seq}", intent_id=intent)


def _closed_attempt(operation: Operation) -> int:
    """The newest attempt whose intent is closed: it is the one to speak of an operation whose outcomes contradict."""
    return max(i.attempt for i in operation.intents if i.state not in OPEN_STATES)
