"""Answering from the record, and bringing a value into the form in which a replay would answer it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from intentlog.core import answers
from intentlog.core.actions import Fetch, FetchError, Outcome, Plan, Script
from intentlog.core.codec import NotRecordable, StaysSealed
from intentlog.core.effects import EffectKind
from intentlog.core.records import ErrorText
from intentlog.core.state import Fate, Operation
from intentlog.errors import OutcomeUnavailable

WITH_ITS_CODEC = "open the log with its codec: Settings(codec=...)."


def replay(plan: Plan, operation: Operation, *, replayed: bool = True) -> Script[Outcome[Any]]:
    """Answer from the record; nothing is called. `replayed` is what its outcome says of that."""
    decided = operation.decided
    if decided is None:
        msg = "a replay of an operation without an outcome"
        raise AssertionError(msg)
    intent = plan.intent_id
    if decided.fate is Fate.REJECTED:
        error: ErrorText | None = yield FetchError(decided.seq)
        raise answers.rejected(intent, operation, error, replayed=True)
    payload = plan.implied_value if decided.value_seq is None else (yield Fetch(decided.value_seq))
    if payload is None:
        raise OutcomeUnavailable("it is done, but its value was not recorded", intent_id=intent)
    try:
        value = plan.decode(payload)
    except StaysSealed as sealed:
        why = f"it is done, but its recorded value cannot be had: {sealed}"
        raise OutcomeUnavailable(why, intent_id=intent, remedy=WITH_ITS_CODEC) from sealed
    except ValueError as unfit:
        raise OutcomeUnavailable(
            f"it is done, but its recorded value cannot be read as the tool's type: {unfit}",
            intent_id=intent,
            remedy="let the tool's type read the recorded value again: intentlog show has it.",
        ) from unfit
    return Outcome(value, replayed=replayed, intent_id=intent, request_id=operation.request_id)


def with_digest_of(plan: Plan, operation: Operation | None) -> Plan:
    """The plan, with the digest in the version in which the operation was recorded: a log may get a codec later."""
    recorded = operation is not None and bool(operation.intents)  # a renewed one takes over its digest, not its calls
    older = operation is not None and recorded and plan.unkeyed_digest and operation.digest.startswith("1:")
    return replace(plan, digest=plan.unkeyed_digest) if older else plan


def check_same_call(plan: Plan, operation: Operation | None) -> Script[None]:
    """Refuse a call under a step that was recorded for another tool or with other arguments (I6).

    Raises:
        ArgumentDrift: it names what differs.
        OutcomeUnavailable: its digest is keyed by the log's codec, which is not here: nothing can be held against it.
    """
    if operation is None or not operation.intents:
        return  # a renewed operation is a new one: its first call says what it is
    if (plan.tool, plan.digest) == (operation.tool, operation.digest):
        return
    if operation.digest.startswith("2:") and plan.digest.startswith("1:"):
        why = "its arguments are sealed, and the log was opened without its codec"
        raise OutcomeUnavailable(why, intent_id=plan.intent_id, effect_ran=operation.effect_ran, remedy=WITH_ITS_CODEC)
    recorded = None if operation.declaration.kind is EffectKind.READ else (yield Fetch(operation.first_seq))
    raise answers.drift(plan, operation, recorded)


def encoded(plan: Plan, value: object) -> tuple[bytes | None, str]:
    """The value as bytes; or None, and why it cannot be stored."""
    try:
        return plan.encode(value), ""
    except NotRecordable as error:
        return None, str(error)


def as_replayed(plan: Plan, payload: bytes | None, value: object) -> object:
    """What a replay would return; where there will be none, what the tool returned."""
    try:
        return value if payload is None else plan.decode(payload)
    except ValueError:
        return value
