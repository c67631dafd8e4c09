"""Closing what has no outcome: by a probe, by a later return, by the knowledge that it was never sent."""

from __future__ import annotations

from intentlog.core import records as r
from intentlog.core import recovery
from intentlog.core.actions import Append, Appended, IntentId, Probe, Probed, Refused, Script, View
from intentlog.core.effects import Declaration
from intentlog.core.machine import PROBE
from intentlog.core.records import Answer, Settlement
from intentlog.core.recovery import Next
from intentlog.core.state import Operation


def ask(
    intent: IntentId, view: View, operation: Operation, declaration: Declaration, grace_ns: int, *, certain: bool
) -> Script[tuple[Next, int, Operation, r.Instant]]:
    """Ask the probe; record what it answered and what that settles.

    Returns:
        What follows, how long until a NOT_APPLIED will count (ns, 0 where that is not the matter), the operation
        after it, and the clocks.
    """
    last = operation.dispatches[-1]
    attempt = operation.open_dispatches[-1].attempt
    probed: Probed = yield Probe(operation.tool, intent, operation.request_id, last.number, operation.first_seq)
    counts, wait_ns = recovery.trust(operation, declaration, view.branch, probed.started, grace_ns, certain=certain)
    verdict = recovery.after_probe(
        probed.answer,
        counts=counts,
        key=recovery.lever(operation, declaration, view.branch, probed.started) is recovery.Lever.PROBE_AND_KEY,
        rejected=operation.decided is not None,
    )
    if operation.last_answer is not probed.answer:
        answered = r.ProbeAnswered(
            attempt=attempt,
            step=operation.step,
            generation=operation.generation,
            answer=probed.answer,
            expect_seq=operation.last_seq,
            dispatch_no=last.number,
            error=probed.error,
        )
        reply: Appended | Refused = yield Append(intent.branch, answered)
        if isinstance(reply, Refused):
            return Next.SETTLE_NOT_APPLIED, 0, operation, probed.started
        operation = known(reply.view.operation)
    if verdict in (Next.SETTLE_APPLIED, Next.SETTLE_NOT_APPLIED):
        applied = verdict is Next.SETTLE_APPLIED
        settled = r.Settled(
            attempt=attempt,
            step=operation.step,
            generation=operation.generation,
            settlement=Settlement.APPLIED if applied else Settlement.NOT_APPLIED,
            by=PROBE,
            why=f"the probe answered {probed.answer}",
            expect_seq=operation.last_seq,
            value_recorded=applied and probed.value is not None,
        )
        reply = yield Append(intent.branch, settled, probed.value if applied else None)
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


def superseded(operation: Operation, attempt: int, number: int, by: str) -> r.Settled:
    """The record that closes an earlier intent, after dispatch `number` returned."""
    return r.Settled(
        attempt=attempt,
        step=operation.step,
        generation=operation.generation,
        settlement=Settlement.SUPERSEDED,
        by=by,
        why=f"dispatch {number} returned",
        superseded_by=number,
    )


def known(operation: Operation | None) -> Operation:
    """The operation that a store owes to the record of an intent."""
    if operation is None:
        msg = "the store answered an intent's record without its operation"
        raise AssertionError(msg)
    return operation
