"""The errors of the core: what each says of the effect, which intent it names, and what to do next (DESIGN 13)."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

import pytest
from core_histories import build, declared
from core_player import INTENT, Player
from msgspec.structs import replace

from intentlog.core import answers
from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.effects import EffectKind
from intentlog.core.machine import Reason, Refusal
from intentlog.core.records import ErrorText, OutcomeKind
from intentlog.core.state import Operation
from intentlog.errors import ArgumentDrift, AttemptCancelled, Fenced, InDoubt, LogUnavailable

ONCE = "open, pending 1, dispatched 1.1"
NEVER = build("open, pending 1").operation()
DOUBTFUL = build(f"{ONCE}, ended 1.1").operation()
DONE = build(f"{ONCE}, returned 1.1").operation()
KNOWN = [
    (None, "no"),
    (NEVER, "no"),
    (DOUBTFUL, "unknown"),
    (DONE, "yes"),
]  # what is known, and the error's word for it
PLAN = Player().opens().plan()

# --- in doubt -------------------------------------------------------------------------------------------------------


def classed(kind: EffectKind, *, probe: bool = False) -> Operation:
    return replace(DOUBTFUL, declaration=declared(kind, probe=probe))


@pytest.mark.parametrize(
    ("operation", "extra", "remedy"),
    [
        (classed(EffectKind.UNSAFE), {}, "look whether it happened, then say so: "),
        (classed(EffectKind.UNSAFE, probe=True), {}, "look whether it happened, then say so: "),
        (classed(EffectKind.IDEMPOTENT, probe=True), {}, "look whether it happened, then say so: "),
        (classed(EffectKind.QUERYABLE), {}, "look whether it happened, then say so: "),
        (
            classed(EffectKind.QUERYABLE, probe=True),
            {},
            "call the step or run recover again, so that its probe can tell",
        ),
        (classed(EffectKind.KEYED, probe=True), {}, "call the step or run recover again, so that its probe can tell"),
        (classed(EffectKind.KEYED), {"repeatable": True}, "call the step again, which its class makes harmless"),
        (
            classed(EffectKind.QUERYABLE, probe=True),
            {"not_before_ns": 1_700_000_000_400_000_000},
            "call the step or run recover again after 2023-11-14 22:13:21 UTC; or decide: ",
        ),
        (
            classed(EffectKind.UNSAFE),
            {"not_before_ns": 1_700_000_000_400_000_000},
            "look whether it happened (it may still land until 2023-11-14 22:13:21 UTC), then say so: ",
        ),
    ],
)
def test_a_doubt_says_what_to_do_next(operation: Operation, extra: dict[str, Any], remedy: str) -> None:
    """What helps is named, what cannot help is not, and the command is there in any case, ready to be pasted."""
    error = answers.in_doubt("my orders.db", INTENT, operation, "its owner died", **extra)
    assert error.remedy.startswith(remedy)
    words = shlex.split(error.remedy[error.remedy.index("intentlog resolve") :])
    assert words[:4] == ["intentlog", "resolve", "my orders.db", "order-1#1/charge"]
    assert (error.effect_ran, error.intent_id) == ("unknown", INTENT)
    assert error.message == "may have been sent; its owner died"


def test_a_doubt_says_until_when_a_call_may_still_land() -> None:
    """`.not_before`; printed, it is rounded up, so that who waits for it and then looks is not too early."""
    error = answers.in_doubt("log", INTENT, DOUBTFUL, "", 1_700_000_000_500_000_000)
    assert error.not_before == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert "2023-11-14 22:13:21 UTC" in error.remedy
    assert answers.in_doubt("log", INTENT, DOUBTFUL, "").not_before is None


@pytest.mark.parametrize(
    ("history", "attempt"),
    [
        (f"{ONCE}, ended 1.1", 1),
        (f"{ONCE}, open, pending 2", 1),
        (f"{ONCE}, open, pending 2, dispatched 2.2", 2),
        (f"{ONCE}, open, pending 2, dispatched 2.2, not_sent 2.2", 1),
        (f"{ONCE}, returned 1.1", 7),
    ],
)
def test_the_intent_that_a_person_is_asked_about(history: str, attempt: int) -> None:
    """The newest that may have been sent, whichever attempt asks; where none is open, the one that asked."""
    asking = IntentId.of("order-1", 7, "charge")
    assert answers.doubted_intent(asking, build(history).operation()) == f"order-1#{attempt}/charge"


# --- the others -----------------------------------------------------------------------------------------------------


def test_a_rejection_says_whether_the_effect_ran() -> None:
    """I3: a definite no; beside a call that may have landed it does not speak for that one, and says so."""
    said = ErrorText("CardDeclined", "limit")
    alone = answers.rejected(INTENT, build(f"{ONCE}, rejected 1.1").operation(), said, replayed=True)
    assert (alone.effect_ran, alone.error_type, alone.replayed, alone.remedy) == ("no", "CardDeclined", True, "")
    assert alone.message == "rejected: limit"
    beside = build(f"{ONCE}, open, pending 2, dispatched 2.2, rejected 2.2").operation()
    open_ = answers.rejected(INTENT, beside, said, replayed=False)
    assert (open_.effect_ran, open_.replayed) == ("unknown", False)
    assert "may have landed: resolve it" in open_.remedy


@pytest.mark.parametrize(
    ("error", "message"),
    [(None, "rejected: Rejected"), (ErrorText("Declined", ""), "rejected: Declined")],
)
def test_a_rejection_without_a_text_has_a_name(error: ErrorText | None, message: str) -> None:
    """Of a READ, or of an error that says nothing: the type's name stands for it."""
    found = answers.rejected(INTENT, None, error, replayed=False)
    assert (found.message, found.effect_ran) == (message, "no")


@pytest.mark.parametrize(("operation", "ran"), KNOWN)
@pytest.mark.parametrize(
    ("reason", "kind"),
    [(Reason.FENCED, Fenced), (Reason.CANCELLED, AttemptCancelled), (Reason.DRIFT, ArgumentDrift)],
)
def test_a_refusal_is_an_error_of_its_own(reason: Reason, kind: type, operation: Operation | None, ran: str) -> None:
    """Fenced, cancelled, other arguments: told apart, with what is known of the effect so far (I2, I6)."""
    error = answers.refused(PLAN, Refusal(reason, "attempt 1 is past"), operation)
    assert type(error) is kind
    assert (error.effect_ran, error.intent_id) == (ran, "order-1#1/charge")
    assert error.message == f"{reason.lower()}: attempt 1 is past"


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.FENCED, Reason.CANCELLED, Reason.DRIFT}))
def test_any_other_refusal_is_a_doubt(reason: Reason) -> None:
    """What a caller cannot act upon is the most careful answer, and never a permission."""
    error = answers.refused(PLAN, Refusal(reason, "why"), DOUBTFUL)
    assert (type(error), error.effect_ran) == (InDoubt, "unknown")
    assert "resolve" in error.remedy
    nothing_known = answers.refused(PLAN, Refusal(reason, "why"), None)
    assert (type(nothing_known), nothing_known.effect_ran) == (InDoubt, "no")


@pytest.mark.parametrize(("operation", "ran"), KNOWN)
def test_a_stores_error_is_told_of_the_intent(operation: Operation | None, ran: str) -> None:
    """This call was not made (I1); an earlier one may have been, and the error does not deny it."""
    failure = LogUnavailable("full")
    assert answers.about(failure, INTENT, operation) is failure
    assert (failure.intent_id, failure.effect_ran) == (INTENT, ran)


@pytest.mark.parametrize(
    ("outcome", "history", "ran"),
    [
        ("RETURNED", ONCE, "yes"),
        ("REJECTED", ONCE, "no"),
        ("NOT_SENT", ONCE, "no"),
        ("REJECTED", f"{ONCE}, ended 1.1, dispatched 1.2", "unknown"),
        ("NOT_SENT", f"{ONCE}, ended 1.1, dispatched 1.2", "unknown"),
        ("RETURNED", f"{ONCE}, ended 1.1, dispatched 1.2", "yes"),
    ],
)
def test_an_outcome_that_was_not_recorded_is_in_the_error(outcome: str, history: str, ran: str) -> None:
    """The caller gets what the tool gave, and whether the effect ran, with the earlier calls in view."""
    operation = build(history).operation()
    number = operation.dispatches[-1].number
    record = r.Committed(attempt=1, step="charge", outcome=OutcomeKind(outcome), dispatch_no=number)
    error = answers.not_recorded(INTENT, operation, record, {"paid": 1}, "the disk is full")
    assert (error.outcome, error.effect_ran, error.intent_id) == ({"paid": 1}, ran, INTENT)
    assert outcome in error.message
    assert "the disk is full" in error.message


def unsealed(payload: bytes) -> bytes:
    if payload[:1] != b"\0":
        msg = "not sealed"
        raise ValueError(msg)
    return payload[1:]


@pytest.mark.parametrize(
    ("recorded", "plan", "message"),
    [
        (b'{"cents":2}', {}, "the step was recorded with other arguments: cents differ"),
        (b'{"cents":2,"to":"a"}', {}, "the step was recorded with other arguments: cents, to differ"),
        (b'{"cents":1}', {}, "the step was recorded with other arguments"),
        (None, {}, "the step was recorded with other arguments"),
        (b'\0{"cents":2}', {"opened": unsealed}, "the step was recorded with other arguments"),
        (
            b'\0{"cents":2}',
            {"opened": unsealed, "arguments": b'\0{"cents":1}'},
            "the step was recorded with other arguments: cents differ",
        ),
        (b'{"cents":2}', {"tool": "refund"}, "the step was recorded for tool 'charge', it is called with 'refund'"),
    ],
)
def test_a_drift_says_what_differs(recorded: bytes | None, plan: dict[str, Any], message: str) -> None:
    """I6: the tool, or the arguments by name, opened first where they are sealed; their values are never shown."""
    error = answers.drift(replace(PLAN, **plan), DONE, recorded)
    assert (error.message, error.effect_ran, error.intent_id) == (message, "yes", "order-1#1/charge")
