"""The lifecycle of a READ: the call, then one record. Nothing outside changes, so nothing is written before it."""

from __future__ import annotations

from typing import Any

from intentlog.core import answers
from intentlog.core import records as r
from intentlog.core.actions import (
    Append,
    Appended,
    Call,
    Deferred,
    ErrorKind,
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
from intentlog.core.effects import EffectKind, wait_before_repeat_ns
from intentlog.core.machine import Reason
from intentlog.core.records import OutcomeKind
from intentlog.core.replay import as_replayed, check_same_call, encoded, replay
from intentlog.core.state import Operation


def is_read(operation: Operation | None) -> bool:
    """Whether the operation goes by a READ's single record."""
    if operation is None or not operation.intents:
        return True
    touched = operation.dispatches or operation.is_open  # it was declared otherwise once, and that may have been sent
    return operation.declaration.kind is EffectKind.READ and not touched


def read(plan: Plan, view: View) -> Script[Outcome[Any]]:
    """A READ: call, then one record. Nothing outside changes, so an error that decides nothing is just raised."""
    operation = view.operation
    yield from check_same_call(plan, operation)
    if operation and operation.decided:
        return (yield from replay(plan, operation))
    branch, attempt, step = plan.intent_id.branch, plan.intent_id.attempt, plan.intent_id.step
    generation = operation.generation if operation else 1
    key = request_id(plan.salt, branch, step, generation)
    header = r.ReadHeader(tool=plan.tool, declaration=plan.declaration, request_id=key, digest=plan.digest)
    repeats = 0
    called: Returned | Raised = yield Call(plan.intent_id, key, 0, view.now, None)
    while isinstance(called, Raised) and plan.proved_by(called) is not ErrorKind.REJECTED:
        suspended = plan.proved_by(called) is ErrorKind.SUSPENDED
        if suspended or repeats >= plan.retry_times or not isinstance(called.error, Exception):
            raise called.error
        yield Wait(wait_before_repeat_ns(plan.retry_backoff_ns, repeats))
        repeats += 1
        called = yield Call(plan.intent_id, key, 0, view.now, None)
    value, rejection = (called.value, None) if isinstance(called, Returned) else (None, called.error)
    payload, missing = (None, "") if rejection else encoded(plan, value)
    error = plan.describe(rejection) if rejection else None
    record = r.Committed(
        attempt=attempt,
        step=step,
        generation=generation,
        dispatch_no=0,
        outcome=OutcomeKind.REJECTED if error else OutcomeKind.RETURNED,
        error=error,
        value_missing=missing,
        read=header,
    )
    reply: Appended | Refused | Deferred = yield Append(branch, record, payload, plan.read_durability)
    if isinstance(reply, Refused):
        twin = reply.view.operation
        if twin is None or not twin.decided or reply.refusal.reason not in (Reason.DECIDED, Reason.NO_TRANSITION):
            raise answers.refused(plan, reply.refusal, twin)
        return (yield from replay(plan, twin))
    if error:
        raise answers.rejected(plan.intent_id, None, error, replayed=False) from rejection
    value = as_replayed(plan, payload, value)
    return Outcome(value, replayed=False, intent_id=plan.intent_id, request_id=key)
