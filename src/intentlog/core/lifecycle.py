"""The lifecycle of one guarded effect: Pending, Dispatched, the call, its outcome. Written once.

Drivers, the crash harness and the model drive this same generator. Each append is a commit of its own (I7); the call
stands between the second and the third (I1).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple, assert_never

from intentlog.core import answers, recovery
from intentlog.core import records as r
from intentlog.core.actions import (
    Append,
    Appended,
    Call,
    ErrorKind,
    Interrupted,
    Load,
    NotMade,
    Outcome,
    Plan,
    Raised,
    Refused,
    Returned,
    Script,
    View,
    Wait,
)
from intentlog.core.codec import request_id
from intentlog.core.effects import EffectKind, stricter, wait_before_repeat_ns
from intentlog.core.machine import OWNER, Reason
from intentlog.core.reading import is_read, read
from intentlog.core.records import ErrorText, OutcomeKind, Resolution
from intentlog.core.recovery import Next
from intentlog.core.replay import as_replayed, check_same_call, encoded, replay, with_digest_of
from intentlog.core.settling import ask, known, never_sent, superseded
from intentlog.core.state import Operation, State
from intentlog.errors import IntentLogError, LogDamaged, LogPoisoned, LogUnavailable, NotSent, Suspended


class Ended(NamedTuple):
    """A call that came back without a value: what its error proves, and the operation after that was recorded."""

    kind: ErrorKind
    error: BaseException
    operation: Operation
    note: str = ""
    made: bool = True  # whether the tool was called at all


def perform(plan: Plan) -> Script[Outcome[Any]]:
    """Take one effect through its records, from wherever the log says that it stands.

    Returns:
        The outcome, called now or replayed.

    Raises:
        InDoubt, Rejected, NotSent, Suspended, ArgumentDrift, OutcomeUnavailable, OutcomeNotRecorded, Fenced,
        AttemptCancelled, and what the store raises.
    """
    try:
        return (yield from _perform(plan))
    except (LogDamaged, LogPoisoned, LogUnavailable) as failure:
        if failure.intent_id is None:  # of a read: what was done before cannot be seen
            failure.intent_id, failure.effect_ran = plan.intent_id, "unknown"
        raise


def _perform(plan: Plan) -> Script[Outcome[Any]]:
    view: View = yield Load(plan.intent_id.branch, plan.intent_id.step)
    plan = with_digest_of(plan, view.operation)
    if plan.declaration.kind is EffectKind.READ and is_read(view.operation):
        return (yield from read(plan, view))
    view = yield from _end_own_call(plan, view)
    repeats = 0
    called = False
    cause: BaseException | None = None
    while True:
        yield from check_same_call(plan, view.operation)
        match _todo(plan, view), view.operation:
            case Resolution.REPLAY, Operation() as operation:
                return (yield from replay(plan, operation, replayed=not called))
            case Resolution.ASK_PERSON, Operation() as operation:
                return (yield from _unsettled(plan, operation, cause, _may_land_until(plan, view)))
            case Resolution.PROBE, Operation() as operation:
                verdict, view = yield from _ask(plan, view, operation, cause)
                if verdict is not Next.RECALL:
                    continue
            case _:
                pass  # RETRY and RECALL: call
        ended = yield from _dispatch(plan, view)
        if isinstance(ended, Outcome):
            return ended
        called = called or (ended is not None and ended.made)
        ended, view = yield from _look_after(plan, ended)
        if isinstance(ended, Ended) and not _overtaken(plan, ended, view):
            if repeats >= plan.retry_times or _todo(plan, view) is Resolution.ASK_PERSON:
                raise _error_of(plan, ended, _todo(plan, view), _may_land_until(plan, view)) from ended.error
            cause = ended.error
            yield Wait(wait_before_repeat_ns(plan.retry_backoff_ns, repeats))
            repeats += 1
            view = yield Load(plan.intent_id.branch, plan.intent_id.step)


def _look_after(plan: Plan, ended: Ended | None) -> Script[tuple[Ended | None, View]]:
    """Read again after a call. What other attempts did meanwhile belongs to what its caller is told of the effect."""
    try:
        view: View = yield Load(plan.intent_id.branch, plan.intent_id.step)
    except IntentLogError:
        if ended is None:
            raise
        raise _error_of(plan, ended, Resolution.ASK_PERSON) from ended.error  # what is known of the call comes first
    now = view.operation
    if ended and now and now.generation == ended.operation.generation:
        ended = ended._replace(operation=now)
    return ended, view


def _overtaken(plan: Plan, ended: Ended, view: View) -> bool:
    """Whether the operation is done by another's call, so that it is replayed. Raises what is never repeated."""
    if ended.kind in (ErrorKind.REJECTED, ErrorKind.SUSPENDED):
        raise _error_of(plan, ended, Resolution.REPLAY) from ended.error
    return _todo(plan, view) is Resolution.REPLAY


def _end_own_call(plan: Plan, view: View) -> Script[View]:
    """Say of a call of this very step and attempt, whose end could not be recorded, that it is over.

    Calls of one step take turns, so that none of them runs now.
    """
    operation, attempt = view.operation, plan.intent_id.attempt
    if operation is None or not operation.calling(attempt):
        return view
    number = max(d.number for d in operation.open_dispatches if d.attempt == attempt)
    error = ErrorText("NotRecorded", "how the call ended could not be recorded")
    record = r.CallEnded(
        attempt=attempt, step=operation.step, generation=operation.generation, dispatch_no=number, error=error
    )
    reply: Appended | Refused = yield Append(plan.intent_id.branch, record)
    return reply.view


# --- the three records ----------------------------------------------------------------------------------------------


def _dispatch(plan: Plan, view: View) -> Script[Outcome[Any] | Ended | None]:
    """Pending, Dispatched, call, outcome. None says: a record was refused, look again."""
    intent = view.operation.intent(plan.intent_id.attempt) if view.operation else None
    if intent is None or intent.state not in (State.PENDING, State.DISPATCHED):
        reply = yield from _declare(plan, view.operation)
        if isinstance(reply, Refused):
            _look_again(plan, reply)
            return None
        view = reply.view
    operation = known(view.operation)
    number = operation.dispatches[-1].number + 1 if operation.dispatches else 1
    reply = yield from _permit(plan, operation, number)
    if isinstance(reply, Refused):
        if reply.refusal.reason is not Reason.FENCED:
            yield from _withdraw(plan, reply.view.operation, f"refused: {reply.refusal.reason}")
        _look_again(plan, reply)
        return None
    operation = known(reply.view.operation)
    called = yield Call(plan.intent_id, operation.request_id, number, reply.view.now, plan.declaration.grace_ns)
    if isinstance(called, Returned):
        return (yield from _returned(plan, operation, number, called.value))
    return (yield from _ended(plan, operation, number, called))


def _declare(plan: Plan, before: Operation | None) -> Script[Appended | Refused]:
    """Append Pending. Interrupted meanwhile: it is settled as never sent, and no call is made."""
    branch, attempt, step = plan.intent_id.branch, plan.intent_id.attempt, plan.intent_id.step
    generation = before.generation if before else 1
    known = before is not None and bool(before.intents)
    record = r.Pending(
        attempt=attempt,
        step=step,
        generation=generation,
        tool=plan.tool,
        declaration=plan.declaration,
        request_id=before.request_id if before and known else request_id(plan.salt, branch, step, generation),
        digest=plan.digest,
    )
    try:
        reply: Appended | Refused = yield Append(branch, record, None if known else plan.arguments)
    except IntentLogError as failure:
        raise answers.about(failure, plan.intent_id, before) from failure.__cause__
    except Interrupted as stop:
        if stop.reply:
            yield from _withdraw(plan, stop.reply.view.operation, "interrupted before dispatch")
        raise stop.cause from None
    return reply


def _permit(plan: Plan, operation: Operation, number: int) -> Script[Appended | Refused]:
    """Append Dispatched. Interrupted meanwhile: no call is made, and the record says so."""
    record = r.Dispatched(
        attempt=plan.intent_id.attempt, step=operation.step, generation=operation.generation, dispatch_no=number
    )
    try:
        reply: Appended | Refused = yield Append(plan.intent_id.branch, record)
    except IntentLogError as failure:
        raise answers.about(failure, plan.intent_id, operation) from failure.__cause__
    except Interrupted as stop:
        if isinstance(stop.reply, Appended):
            error = ErrorText(type(stop.cause).__name__, "interrupted before the call")
            outcome = _committed(plan, operation, number, OutcomeKind.NOT_SENT, error)
            yield Append(plan.intent_id.branch, outcome)
        else:
            yield from _withdraw(plan, operation, "interrupted before dispatch")
        raise stop.cause from None
    return reply


def _returned(plan: Plan, operation: Operation, number: int, value: object) -> Script[Outcome[Any]]:
    """Append Committed(RETURNED), then one Settled(SUPERSEDED) for each older intent that this return closes."""
    payload, missing = encoded(plan, value)
    record = _committed(plan, operation, number, OutcomeKind.RETURNED, None, missing)
    after = yield from _record_outcome(plan, operation, record, payload, value)
    with suppress(IntentLogError):  # the outcome stands; the next restart writes what is missing here
        for intent in after.intents:
            if intent.state is State.DISPATCHED and not after.open_dispatches:
                yield Append(plan.intent_id.branch, superseded(after, intent.attempt, OWNER))
    value = as_replayed(plan, payload, value)
    return Outcome(value, replayed=False, intent_id=plan.intent_id, request_id=operation.request_id)


def _ended(plan: Plan, operation: Operation, number: int, called: Raised | NotMade) -> Script[Ended]:
    """Record a call that brought no value, as what its error proves: nothing, unless it is declared to."""
    if isinstance(called, NotMade):
        error: BaseException = NotSent(f"the call was not made: {called.why}")
        kind = ErrorKind.NOT_SENT
    else:
        error, kind = called.error, plan.proved_by(called)
    text = plan.describe(error)
    attempt, step, generation = plan.intent_id.attempt, operation.step, operation.generation
    if kind in (ErrorKind.NOT_SENT, ErrorKind.REJECTED):
        record = _committed(plan, operation, number, OutcomeKind(kind), text)
        operation = yield from _record_outcome(plan, operation, record, None, error)
        return Ended(kind, error, operation, made=not isinstance(called, NotMade))
    evidence: r.Record = r.CallEnded(attempt=attempt, step=step, generation=generation, dispatch_no=number, error=text)
    if kind is ErrorKind.SUSPENDED:
        evidence = r.Suspended(attempt=attempt, step=step, generation=generation, dispatch_no=number, reason=text.text)
    note = ""
    try:
        reply: Appended | Refused = yield Append(plan.intent_id.branch, evidence)
        operation = known(reply.view.operation)
    except Interrupted as stop:
        raise stop.cause from error
    except IntentLogError as failure:
        note = f"; that it ended could not be recorded ({failure.message})"
    if not isinstance(error, Exception):
        raise error  # a cancellation or a signal goes on its way, now that the record tells of it
    return Ended(kind, error, operation, note)


def _record_outcome(
    plan: Plan, before: Operation, record: r.Committed, payload: bytes | None, outcome: object
) -> Script[Operation]:
    """Append the outcome. What cannot be written is handed to the caller, never lost silently."""
    append = Append(plan.intent_id.branch, record, payload)
    try:
        try:
            reply: Appended | Refused = yield append
        except Interrupted as stop:
            if stop.reply is None:
                yield append
            raise stop.cause from None
    except Exception as failure:
        why = failure.message if isinstance(failure, IntentLogError) else f"{type(failure).__name__}: {failure}"
        raise answers.not_recorded(plan.intent_id, before, record, outcome, why) from failure
    if isinstance(reply, Refused):
        raise answers.not_recorded(plan.intent_id, before, record, outcome, reply.refusal.detail)
    return known(reply.view.operation)


def _withdraw(plan: Plan, operation: Operation | None, why: str) -> Script[None]:
    """Settle this attempt's Pending, if it stands: its owner will not dispatch it."""
    intent = operation.intent(plan.intent_id.attempt) if operation else None
    if operation is None or intent is None or intent.state is not State.PENDING:
        return
    yield Append(plan.intent_id.branch, never_sent(operation, plan.intent_id.attempt, OWNER, why))


# --- answers from the record, from the world, and reads -----------------------------------------------------------


def _ask(plan: Plan, view: View, operation: Operation, cause: BaseException | None) -> Script[tuple[Next, View]]:
    """Let the probe answer, record it, and settle what it settles. Raises InDoubt where it settles nothing."""
    declaration = stricter(operation.declaration, plan.declaration)
    answered = yield from ask(plan.intent_id, view, operation, declaration, certain=plan.death_is_certain)
    verdict, wait_ns, operation, now = answered
    if verdict is Next.IN_DOUBT:
        yield from _unsettled(plan, operation, cause, now.wall_ns + wait_ns if wait_ns else None)
    if verdict is Next.RECALL:
        return verdict, View(view.branch, operation, now)
    return verdict, (yield Load(plan.intent_id.branch, plan.intent_id.step))


def _unsettled(
    plan: Plan, operation: Operation, cause: BaseException | None, not_before_ns: int | None = None
) -> Script[Outcome[Any]]:
    """Raise InDoubt; beside a REJECTED, that, with `effect_ran` unknown."""
    if operation.decided:
        return (yield from replay(plan, operation))
    recorded, kind = operation.declaration.kind, stricter(operation.declaration, plan.declaration).kind
    why = f"{kind} of {operation.tool} cannot settle it{' yet' if not_before_ns else ''}"
    if kind is EffectKind.KEYED:
        why += ": the receiver may have forgotten the key"
    elif kind is not recorded:
        why += f" (it was called as {recorded}, and the stricter declaration decides)"
    raise answers.in_doubt(plan.log, plan.intent_id, operation, why, not_before_ns) from cause


# --- small things ---------------------------------------------------------------------------------------------------


def _committed(
    plan: Plan, operation: Operation, number: int, kind: OutcomeKind, error: ErrorText | None, missing: str = ""
) -> r.Committed:
    return r.Committed(
        attempt=plan.intent_id.attempt,
        step=operation.step,
        generation=operation.generation,
        outcome=kind,
        dispatch_no=number,
        error=error,
        value_missing=missing,
    )


def _todo(plan: Plan, view: View) -> Resolution:
    if view.operation is None:
        return Resolution.RETRY
    declaration = stricter(view.operation.declaration, plan.declaration)
    return recovery.resolution(view.operation, declaration, view.branch, view.now)


def _may_land_until(plan: Plan, view: View) -> int | None:
    """Until when a call of the operation may still land (wall clock, ns); None if that is past."""
    operation = view.operation
    if operation is None or not operation.open_dispatches:
        return None
    declaration = stricter(operation.declaration, plan.declaration)
    wait_ns = recovery.trust(operation, declaration, view.branch, view.now, certain=plan.death_is_certain).wait_ns
    return view.now.wall_ns + wait_ns if wait_ns else None


def _look_again(plan: Plan, reply: Refused) -> None:
    """What a refusal permits: to look again, if the record was overtaken; else it is an error."""
    if reply.refusal.reason not in (Reason.DECIDED, Reason.RENEWED, Reason.IN_DOUBT, Reason.NUMBER):
        raise answers.refused(plan, reply.refusal, reply.view.operation)


def _error_of(plan: Plan, ended: Ended, todo: Resolution, not_before_ns: int | None = None) -> IntentLogError:
    """What the caller gets for a call that came back without a value and is not repeated."""
    ran, text = ended.operation.effect_ran, plan.describe(ended.error)
    match ended.kind:
        case ErrorKind.REJECTED:
            return answers.rejected(plan.intent_id, ended.operation, text, replayed=False)
        case ErrorKind.NOT_SENT:
            return NotSent(f"not sent: {text.text}", intent_id=plan.intent_id, effect_ran=ran)
        case ErrorKind.SUSPENDED:
            return Suspended(f"suspended: {text.text}", intent_id=plan.intent_id, effect_ran=ran)
        case ErrorKind.AMBIGUOUS:
            why = f"the call ended with {text.type}, which proves nothing{ended.note}"
            repeatable = todo is Resolution.RECALL
            return answers.in_doubt(
                plan.log, plan.intent_id, ended.operation, why, not_before_ns, repeatable=repeatable
            )
        case _:
            assert_never(ended.kind)
