"""The errors that a lifecycle answers with, each naming the intent, what is known, and the next command."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from intentlog import errors
from intentlog.core.actions import IntentId
from intentlog.core.codec import different_names
from intentlog.core.effects import PROBED
from intentlog.core.machine import Reason, Refusal
from intentlog.core.records import OutcomeKind

if TYPE_CHECKING:
    from intentlog.core.actions import Plan
    from intentlog.core.records import Committed, ErrorText
    from intentlog.core.state import Operation


def in_doubt(
    log: str,
    intent: IntentId,
    operation: Operation,
    why: str,
    not_before_ns: int | None = None,
    *,
    repeatable: bool = False,
) -> errors.InDoubt:
    """It may have been sent.

    Args:
        log: how commands name the log.
        intent: the intent that was called.
        operation: its operation.
        why: why that cannot be settled.
        not_before_ns: until when (wall clock) a call may still land, so that a look that finds nothing tells nothing.
        repeatable: its class makes a repeat harmless now.
    """
    doubtful = doubted_intent(intent, operation)
    not_before = None if not_before_ns is None else datetime.fromtimestamp(not_before_ns / 1e9, UTC)
    command = f'intentlog resolve {shlex.quote(log)} {shlex.quote(doubtful)} --landed|--not-landed --by YOU --why "..."'
    probed = operation.declaration.probe and operation.declaration.kind in PROBED
    until = "" if not_before is None else f"{not_before + timedelta(seconds=1):%Y-%m-%d %H:%M:%S} UTC"
    if repeatable:
        remedy = f"call the step again, which its class makes harmless; or decide: {command}"
    elif probed:
        when = f" after {until}" if until else ", so that its probe can tell"
        remedy = f"call the step or run recover again{when}; or decide: {command}"
    else:
        late = f" (it may still land until {until})" if until else ""
        remedy = f"look whether it happened{late}, then say so: {command}"
    return errors.InDoubt(
        f"may have been sent; {why}",
        intent_id=doubtful,
        effect_ran="unknown",
        remedy=remedy,
        not_before=not_before,
    )


def doubted_intent(intent: IntentId, operation: Operation) -> IntentId:
    """The newest intent of the operation with an open dispatch: the one that a person is asked about."""
    attempts = [d.attempt for d in operation.open_dispatches]
    return IntentId.of(intent.branch, max(attempts), intent.step) if attempts else intent


def rejected(
    intent: IntentId, operation: Operation | None, error: ErrorText | None, *, replayed: bool
) -> errors.Rejected:
    """The receiver's definite no; beside an open dispatch it does not speak for that one."""
    ran = operation.effect_ran if operation else "no"
    text = error.text if error else ""
    name = error.type if error else "Rejected"
    return errors.Rejected(
        f"rejected: {text or name}",
        intent_id=intent,
        effect_ran=ran,
        replayed=replayed,
        error_type=name,
        remedy="an earlier call may have landed: resolve it." if ran == "unknown" else "",
    )


def refused(plan: Plan, refusal: Refusal, operation: Operation | None) -> errors.IntentLogError:
    """The error for a record that the machine refused and that going on cannot mend."""
    kinds: dict[Reason, type[errors.IntentLogError]] = {
        Reason.FENCED: errors.Fenced,
        Reason.CANCELLED: errors.AttemptCancelled,
        Reason.DRIFT: errors.ArgumentDrift,
    }
    kind = kinds.get(refusal.reason)
    if kind is None and operation is not None:
        return in_doubt(plan.log, plan.intent_id, operation, refusal.detail)
    ran = operation.effect_ran if operation else "no"
    text = f"{refusal.reason.lower()}: {refusal.detail}"
    return (kind or errors.InDoubt)(text, intent_id=plan.intent_id, effect_ran=ran)


def about(failure: errors.IntentLogError, intent: IntentId, before: Operation | None) -> errors.IntentLogError:
    """A store's error before the call, told of the intent: this call was not made, an earlier one may have been."""
    failure.intent_id = intent
    failure.effect_ran = before.effect_ran if before else "no"
    return failure


def not_recorded(
    intent: IntentId, before: Operation, record: Committed, outcome: object, why: str
) -> errors.OutcomeNotRecorded:
    """A call ended and that could not be written: the outcome goes to the caller."""
    beside = any(d.number != record.dispatch_no for d in before.open_dispatches)
    ran: errors.EffectRan = "unknown" if beside else "no"
    return errors.OutcomeNotRecorded(
        f"the call ended ({record.outcome}), and that could not be recorded: {why}",
        outcome=outcome,
        intent_id=intent,
        effect_ran="yes" if record.outcome is OutcomeKind.RETURNED else ran,
    )


def drift(plan: Plan, operation: Operation, recorded: bytes | None) -> errors.ArgumentDrift:
    """The step was recorded with another tool or other arguments (I6); which of them differ, where that is known."""
    if plan.tool != operation.tool:
        what = f"the step was recorded for tool {operation.tool!r}, it is called with {plan.tool!r}"
    else:
        try:
            names = different_names(plan.opened(recorded or b""), plan.opened(plan.arguments))
        except ValueError:
            names = []  # sealed, and not to be opened here
        what = f"the step was recorded with other arguments{': ' + ', '.join(names) + ' differ' if names else ''}"
    return errors.ArgumentDrift(what, intent_id=plan.intent_id, effect_ran=operation.effect_ran)
