"""Opening, closing and recovering a branch: the same four steps wherever a restart begins.

(1) refuse while a living owner holds the branch; (2) raise the fence; (3) in a read begun after the fence is durable,
take every open intent; (4) append what is concluded of each (I2, I9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from intentlog.core import records as r
from intentlog.core import recovery
from intentlog.core.actions import Append, Appended, BranchView, IntentId, Load, LoadBranch, Refused, Script, View
from intentlog.core.effects import Declaration, stricter
from intentlog.core.machine import RESTART, Reason
from intentlog.core.records import End, IntentState, Resolution, Verdict
from intentlog.core.settling import ask, known, never_sent, superseded
from intentlog.core.state import OPEN_STATES, Branch, Intent, Operation, State
from intentlog.errors import BranchBusy, Fenced

Present: TypeAlias = Callable[[str], Declaration | None]  # a tool's present declaration by name, if this program has it


class Classification(NamedTuple):
    """What a restart says of one open intent.

    Attributes:
        intent_id: the intent.
        last_state: its last state in the log.
        classification: never sent, may have been sent, or done.
        resolution: what is to be done about it now.
        seq: the operation's newest record: give it to `resolve` as `expect_seq`.
    """

    intent_id: IntentId
    last_state: IntentState
    classification: Verdict
    resolution: Resolution
    seq: int


class Opened(NamedTuple):
    """A new attempt, and what opening it concluded of the earlier ones."""

    attempt: int
    classifications: list[Classification]


def open_attempt(branch: str, owner: str, present: Present) -> Script[Opened]:
    """Open the branch's next attempt, which fences every earlier one, and classify what they left open.

    Raises:
        BranchBusy: a living owner holds it, or another took it first.
    """
    view: BranchView = yield LoadBranch(branch)
    if view.busy:
        raise BranchBusy(f"branch {branch!r} is held by {view.branch.owner}")
    attempt = view.branch.attempt + 1
    reply: Appended | Refused = yield Append(branch, r.AttemptOpened(attempt=attempt, owner=owner))
    if isinstance(reply, Refused):
        raise BranchBusy(f"branch {branch!r} was opened by another at the same moment")
    return Opened(attempt, (yield from classify_open(branch, present)))


def close_attempt(branch: str, attempt: int, wanted: End, error: r.ErrorText | None) -> Script[End]:
    """Close the attempt. The records decide: with a dispatch that has no outcome it ends INDETERMINATE.

    Else one that was asked to stop is CANCELLED, whichever way its owner left it.

    Raises:
        Fenced: a later attempt has the branch.
    """
    view: BranchView = yield LoadBranch(branch)
    end = _end(view, wanted)
    reply: Appended | Refused = yield Append(branch, r.AttemptClosed(attempt=attempt, end=end, error=error))
    if isinstance(reply, Refused) and reply.refusal.reason is Reason.CANCELLED:  # since it was looked at
        view = yield LoadBranch(branch)
        end = _end(view, End.CANCELLED)
        reply = yield Append(branch, r.AttemptClosed(attempt=attempt, end=end, error=error))
    if isinstance(reply, Refused):
        raise Fenced(f"attempt {attempt} of branch {branch!r} cannot be closed: {reply.refusal.detail}")
    return end


def close_cancelled(branch: str) -> Script[None]:
    """Close an attempt that was cancelled and whose dead owner cannot: nobody shall run it again."""
    view: BranchView = yield LoadBranch(branch)
    if view.branch.cancelled and view.branch.end is None:
        end = _end(view, End.CANCELLED)
        yield Append(branch, r.AttemptClosed(attempt=view.branch.attempt, end=end))


def _end(view: BranchView, wanted: End) -> End:
    if any(operation.open_dispatches for operation in view.operations):
        return End.INDETERMINATE
    return End.CANCELLED if view.branch.cancelled else wanted


def recover_branch(branch: str, present: Present, *, certain: bool) -> Script[list[Classification]]:
    """Conclude what a dead owner left open, without opening an attempt and without calling any tool but probes.

    Args:
        branch: the branch.
        present: tools that this program has, whose probes may answer.
        certain: whether a dead owner is known to be dead (a lock), or only believed so (a lease).
    """
    view: BranchView = yield LoadBranch(branch)
    if view.busy:
        return []
    yield from fence(branch, view)
    concluded: list[Classification] = []
    for one in (yield from classify_open(branch, present)):
        probed = yield from _probed(one, present, certain=certain)
        concluded.append(probed)
    yield from close_cancelled(branch)
    return concluded


# --- the steps ------------------------------------------------------------------------------------------------------


def fence(branch: str, view: BranchView) -> Script[None]:
    """Fence the attempt of a dead owner, once."""
    if view.branch.is_open:
        yield Append(branch, r.AttemptFenced(attempt=view.branch.attempt))


def classify_open(branch: str, present: Present) -> Script[list[Classification]]:
    """Read every open intent of fenced attempts, and append what is concluded of each, once."""
    view: BranchView = yield LoadBranch(branch)
    concluded: list[Classification] = []
    for before in view.operations:
        operation = before
        first = len(concluded)
        for intent in before.intents:
            own = intent.attempt == view.branch.attempt and view.branch.is_open
            if intent.state in OPEN_STATES and not own:
                operation = yield from _conclude(branch, view, operation, intent, present)
                after = known_intent(operation, intent.attempt)
                if after.classified and after.resolution:
                    identity, last = IntentId.of(branch, intent.attempt, operation.step), IntentState(intent.state)
                    concluded.append(Classification(identity, last, after.classified, after.resolution, 0))
        concluded[first:] = [one._replace(seq=operation.last_seq) for one in concluded[first:]]
    return concluded


def _conclude(
    branch: str, view: BranchView, operation: Operation, intent: Intent, present: Present
) -> Script[Operation]:
    """Append the classification of one open intent if it is new, and settle what it already settles."""
    never = intent.state is State.PENDING
    classification = Verdict.NEVER_SENT if never else Verdict.MAY_HAVE_BEEN_SENT
    todo = _todo(operation, present, view.branch, view.now)
    if (intent.classified, intent.resolution) != (classification, todo):
        record = r.Classified(
            attempt=intent.attempt,
            step=operation.step,
            generation=operation.generation,
            last_state=IntentState(intent.state),
            classification=classification,
            resolution=todo,
        )
        operation = yield from _appended(branch, record, operation)
    if never:
        settled = never_sent(operation, intent.attempt, RESTART, "classified as never sent")
        operation = yield from _appended(branch, settled, operation)
    elif operation.decided and operation.verdict is Verdict.DONE:
        settled = superseded(operation, intent.attempt, RESTART)
        operation = yield from _appended(branch, settled, operation)
    return operation


def _probed(one: Classification, present: Present, *, certain: bool) -> Script[Classification]:
    """Let the probe of a known tool answer for one doubt, and say what is to be done after it."""
    if one.resolution is not Resolution.PROBE:
        return one
    view: View = yield Load(one.intent_id.branch, one.intent_id.step)
    operation = known(view.operation)
    if present(operation.tool) is not None and operation.verdict is Verdict.MAY_HAVE_BEEN_SENT:
        yield from ask(one.intent_id, view, operation, _declared(operation, present), certain=certain)
    view = yield Load(one.intent_id.branch, one.intent_id.step)
    operation = known(view.operation)
    todo = _todo(operation, present, view.branch, view.now)
    return one._replace(resolution=todo, seq=operation.last_seq)


def _appended(branch: str, record: r.IntentRecord, before: Operation) -> Script[Operation]:
    """Append; where another restart was faster, the operation as that one left it."""
    reply: Appended | Refused = yield Append(branch, record)
    return reply.view.operation or before


def _todo(operation: Operation, present: Present, branch: Branch, now: r.Instant) -> Resolution:
    if present(operation.tool) is None:
        return recovery.resolution_untold(operation, branch, now)
    return recovery.resolution(operation, _declared(operation, present), branch, now)


def _declared(operation: Operation, present: Present) -> Declaration:
    now = present(operation.tool)
    return stricter(operation.declaration, now) if now else operation.declaration


def known_intent(operation: Operation, attempt: int) -> Intent:
    """The operation's intent of this attempt, which is known to be there."""
    intent = operation.intent(attempt)
    if intent is None:
        msg = f"operation {operation.step!r} has no intent of attempt {attempt}"
        raise AssertionError(msg)
    return intent
