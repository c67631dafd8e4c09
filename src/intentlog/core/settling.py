"""Closing what has no outcome: by a probe, by a later return, by the knowledge that it was never sent."""

from __future__ import annotations

from intentlog.core import records as r
from intentlog.core import recovery
from intentlog.core.actions import Append, Appended, IntentId, Probe, Probed, Refused, Script, View
from intentlog.core.effects import Declaration
from intentlog.core.machine import PROBE
from intentlog.core.records import Answer, Settlement
from intentlog.core.recovery import Next
from intentlog.core.state import Fate, Operation


def ask(
    intent: IntentId, view: View, operation: Operation, declaration: Declaration, *, certain: bool
) -> Script[tuple[Next, int, Operation, r.Instant]]:
    """Ask the probe; record what it answered and what that settles.

    Returns:
        What follows, how long until a NOT_APPLIED will count (ns, 0 where that is not the matter), the operation
        after it, and the clocks.
    """
    doubtful = operation.open_dispatches[-1]
    probed: Probed = yield Probe(operation.tool, intent, operation.request_id, doubtful.number, operation.first_seq)
    counts, wait_ns = recovery.trust(operation, declaration, view.branch, probed.started, certain=certain)
    verdict = recovery.after_probe(
        probed.answer,
        counts=counts,
        key=recovery.lever(operation, declaration, view.branch, probed.started) is recovery.Lever.PROBE_AND_KEY,
        rejected=operation.decided is not None,
    )
    if operation.last_answer is not probed.answer:
        answered = r.ProbeAnswered(
            attempt=doubtful.attempt,
            step=operation.step,
            generation=operation.generation,
            answer=probed.answer,
            expect_seq=operation.last_seq,
            dispatch_no=doubtful.number,
            error=probed.error,
        )
        reply: Appended | Refused = yield Append(intent.branch, answered)
        if isinstance(reply, Refused):
            return _overtaken(operation, reply), 0, operation, probed.started
        operation = known(reply.view.operation)
    if verdict in (Next.SETTLE_APPLIED, Next.SETTLE_NOT_APPLIED):
        applied = verdict is Next.SETTLE_APPLIED
        settled = r.Settled(
            attempt=doubtful.attempt,
            step=operation.step,
            generation=operation.generation,
            settlement=Settlement.APPLIED if applied else Settlement.NOT_APPLIED,
            by=PROBE,
            why=f"the probe answered {probed.answer}",
            expect_seq=operation.last_seq,
            value_recorded=applied and probed.value is not None,
        )
        reply = yield Append(intent.branch, settled, probed.value if applied else None)
        if isinstance(reply, Refused):
            return _overtaken(operation, reply), 0, operation, probed.started
        operation = known(reply.view.operation)
    wait_ns = wait_ns if probed.answer is Answer.NOT_APPLIED else 0
    return verdict, wait_ns, operation, probed.started


def never_sent(operation: Operation, attempt: int, by: str, why: str) -> r.Settled:
    """The record that settles a Pending which can no more be dispatched."""
    return r.Settled(
        attempt=attempt,
        step=operation.step,
        generation=operation.generation,
        settlement=Settlement.NEVER_SENT,
        by=by,
        why=why,
    )


def _overtaken(before: Operation, reply: Refused) -> Next:
    """Somebody recorded something since the probe was asked: look again. Otherwise its answer settles nothing."""
    after = reply.view.operation
    moved = after is not None and after.last_seq != before.last_seq
    return Next.LOOK_AGAIN if moved else Next.IN_DOUBT


def superseded(operation: Operation, attempt: int, by: str) -> r.Settled:
    """The record that closes an intent of an operation that is done."""
    number = next((d.number for d in operation.dispatches if d.fate is Fate.RETURNED), None)
    return r.Settled(
        attempt=attempt,
        step=operation.step,
        generation=operation.generation,
        settlement=Settlement.SUPERSEDED,
        by=by,
        why=f"dispatch {number} returned" if number else "the operation is done",
        superseded_by=number,
    )


def known(operation: Operation | None) -> Operation:
    """The operation that a store owes to the record of an intent."""
    if operation is None:
        msg = "the store answered an intent's record without its operation"
        raise AssertionError(msg)
    return operation
