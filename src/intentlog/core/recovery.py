"""The recovery table: what is to be done about an operation, from its verdict, its class, and the clock.

One table, total, without a default: every cell is written down. Time enters through two bounds:

* A probe's NOT_APPLIED counts only when a write could be seen by now: a *lower* bound of the time from the latest
  moment at which the call can have begun to the probe's start must reach `time_limit + settle`. What a call began (a
  child process, a request on its way) outlives its owner, so that the owner's death shortens nothing but that moment:
  it is `dispatch_grace` after Dispatched, or the call's end, or the fence that found the owner dead.
* A receiver remembers a key for a window: an *upper* bound of the time from the first open dispatch, plus the call
  still to come (which begins within `dispatch_grace` of its permission), must stay inside it.
"""

from __future__ import annotations

from typing import NamedTuple

from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import Answer, Instant, Resolution, Verdict
from intentlog.core.state import Branch, Dispatch, Operation, State
from intentlog.core.words import Word

KEY_MARGIN_NS = 60 * 1_000_000_000  # a re-send must fit into the window with this to spare


class Doubt(Word):
    """The table's rows: the verdict over the operation, with REJECTED beside an open dispatch told apart."""

    NEVER_SENT = "NEVER_SENT"
    MAY_HAVE_BEEN_SENT = "MAY_HAVE_BEEN_SENT"
    REJECTED_BESIDE_OPEN = "REJECTED_BESIDE_OPEN"  # may have been sent; never called again (I3)
    DONE = "DONE"


class Lever(Word):
    """The table's columns: what could still tell. For KEYED: whether the key is still remembered."""

    PROBE_AND_KEY = "PROBE_AND_KEY"
    PROBE = "PROBE"
    KEY = "KEY"
    NOTHING = "NOTHING"


_RETRY, _RECALL, _PROBE, _ASK, _REPLAY = tuple(Resolution)


def _cells(both: Resolution, probe: Resolution, key: Resolution, nothing: Resolution) -> dict[Lever, Resolution]:
    return {Lever.PROBE_AND_KEY: both, Lever.PROBE: probe, Lever.KEY: key, Lever.NOTHING: nothing}


# fmt: off
TABLE: dict[Doubt, dict[EffectKind, dict[Lever, Resolution]]] = {
    Doubt.NEVER_SENT: {
        #                             probe+key  probe     key       nothing
        EffectKind.READ:       _cells(_RETRY,   _RETRY,   _RETRY,   _RETRY),
        EffectKind.IDEMPOTENT: _cells(_RETRY,   _RETRY,   _RETRY,   _RETRY),
        EffectKind.KEYED:      _cells(_RETRY,   _RETRY,   _RETRY,   _RETRY),
        EffectKind.QUERYABLE:  _cells(_RETRY,   _RETRY,   _RETRY,   _RETRY),
        EffectKind.UNSAFE:     _cells(_RETRY,   _RETRY,   _RETRY,   _RETRY),
    },
    Doubt.MAY_HAVE_BEEN_SENT: {
        EffectKind.READ:       _cells(_RECALL,  _RECALL,  _RECALL,  _RECALL),
        EffectKind.IDEMPOTENT: _cells(_RECALL,  _RECALL,  _RECALL,  _RECALL),
        EffectKind.KEYED:      _cells(_PROBE,   _PROBE,   _RECALL,  _ASK),
        EffectKind.QUERYABLE:  _cells(_PROBE,   _PROBE,   _ASK,     _ASK),
        EffectKind.UNSAFE:     _cells(_ASK,     _ASK,     _ASK,     _ASK),
    },
    Doubt.REJECTED_BESIDE_OPEN: {
        EffectKind.READ:       _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
        EffectKind.IDEMPOTENT: _cells(_ASK,     _ASK,     _ASK,     _ASK),
        EffectKind.KEYED:      _cells(_PROBE,   _PROBE,   _ASK,     _ASK),
        EffectKind.QUERYABLE:  _cells(_PROBE,   _PROBE,   _ASK,     _ASK),
        EffectKind.UNSAFE:     _cells(_ASK,     _ASK,     _ASK,     _ASK),
    },
    Doubt.DONE: {
        EffectKind.READ:       _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
        EffectKind.IDEMPOTENT: _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
        EffectKind.KEYED:      _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
        EffectKind.QUERYABLE:  _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
        EffectKind.UNSAFE:     _cells(_REPLAY,  _REPLAY,  _REPLAY,  _REPLAY),
    },
}
# fmt: on


def resolution(operation: Operation, declaration: Declaration, branch: Branch, now: Instant) -> Resolution:
    """What is to be done about the operation now.

    Args:
        operation: the operation as the log has it.
        declaration: the stricter of the recorded and the present declaration.
        branch: its branch, for the latest wall clock seen in it.
        now: the clocks now.
    """
    return TABLE[doubt(operation)][declaration.kind][lever(operation, declaration, branch, now)]


def resolution_untold(operation: Operation, branch: Branch, now: Instant) -> Resolution:
    """The same, by who does not have the tool, and so does not know its present declaration.

    A restart of a program that has it may have recorded that a person has to decide, because the tool is stricter by
    now than what the call was declared as: that stands.
    """
    asked = any(i.resolution is Resolution.ASK_PERSON and i.state is State.DISPATCHED for i in operation.intents)
    return Resolution.ASK_PERSON if asked else resolution(operation, operation.declaration, branch, now)


def doubt(operation: Operation) -> Doubt:
    """The table's row for the operation."""
    if operation.verdict is Verdict.MAY_HAVE_BEEN_SENT and operation.decided:
        return Doubt.REJECTED_BESIDE_OPEN
    return Doubt(operation.verdict)


def lever(operation: Operation, declaration: Declaration, branch: Branch, now: Instant) -> Lever:
    """The table's column for the operation."""
    key = declaration.kind is EffectKind.KEYED and key_remembered(operation, declaration, branch, now)
    if declaration.probe:
        return Lever.PROBE_AND_KEY if key else Lever.PROBE
    return Lever.KEY if key else Lever.NOTHING


def key_remembered(operation: Operation, declaration: Declaration, branch: Branch, now: Instant) -> bool:
    """Whether a call permitted now ends while the receiver still remembers the key of the first open dispatch.

    A clock that reads earlier than any time in the branch tells nothing: the key counts as forgotten.
    """
    open_dispatches = operation.open_dispatches
    if not open_dispatches:
        return True
    if now.wall_ns < branch.latest_wall_ns:
        return False
    elapsed_ns = elapsed_at_most_ns(open_dispatches[0].at, now)
    call_ns = declaration.grace_ns + declaration.time_limit_ns
    return elapsed_ns + call_ns + KEY_MARGIN_NS <= declaration.window_ns


def elapsed_at_least_ns(since: Instant, now: Instant, *, one_machine: bool = True) -> int:
    """A lower bound of the time between two readings: the boot clock's, or this boot's uptime after a reboot.

    Where several machines append to one log, another boot may be another machine's, and the uptime of this one bounds
    nothing: then it is the difference of the wall clocks, which both are the database's.
    """
    if since.boot_id == now.boot_id:
        return max(0, now.boot_ns - since.boot_ns)
    return now.boot_ns if one_machine else max(0, now.wall_ns - since.wall_ns)


def elapsed_at_most_ns(since: Instant, now: Instant) -> int:
    """An upper bound of the time between two readings: the larger of the wall clock's and the boot clock's."""
    wall_ns = now.wall_ns - since.wall_ns
    return max(wall_ns, now.boot_ns - since.boot_ns) if since.boot_id == now.boot_id else wall_ns


class Trust(NamedTuple):
    """Whether a probe's NOT_APPLIED counts, and how long it still takes until one will."""

    counts: bool
    wait_ns: int


def trust(operation: Operation, declaration: Declaration, branch: Branch, started: Instant, *, certain: bool) -> Trust:
    """Hold a probe's start against the latest moment at which a call of the operation can have begun.

    Args:
        operation: the operation that was asked about.
        declaration: the stricter declaration.
        branch: its branch.
        started: the clocks when the probe began.
        certain: whether whoever raised the fence knew the earlier owner for dead: by a lock, which is of this machine.
            A lease may be another machine's.
    """

    def since(moment: Instant) -> int:
        return elapsed_at_least_ns(moment, started, one_machine=certain)

    def since_begun(dispatch: Dispatch) -> int:
        bounds = [since(dispatch.at) - declaration.grace_ns]
        if dispatch.ended_at is not None:
            bounds.append(since(dispatch.ended_at))
        fenced = branch.attempt > dispatch.attempt or branch.fenced
        if certain and fenced and branch.fenced_at is not None:
            bounds.append(since(branch.fenced_at))
        return max(bounds)

    since_begun_ns = min(since_begun(d) for d in (*operation.open_dispatches, operation.dispatches[-1]))
    missing_ns = declaration.time_limit_ns + declaration.settle_ns - since_begun_ns
    return Trust(missing_ns <= 0, max(0, missing_ns))


class Next(Word):
    """What follows from a probe's answer."""

    LOOK_AGAIN = "LOOK_AGAIN"  # somebody was faster
    SETTLE_APPLIED = "SETTLE_APPLIED"
    SETTLE_NOT_APPLIED = "SETTLE_NOT_APPLIED"
    RECALL = "RECALL"  # unanswered, but the key is still remembered: a repeat is harmless
    IN_DOUBT = "IN_DOUBT"  # ask again later, or a person


# (answer, NOT_APPLIED counts by now) -> with the key remembered and no REJECTED beside it, otherwise
AFTER_PROBE: dict[tuple[Answer, bool], tuple[Next, Next]] = {
    (Answer.APPLIED, True): (Next.SETTLE_APPLIED, Next.SETTLE_APPLIED),
    (Answer.APPLIED, False): (Next.SETTLE_APPLIED, Next.SETTLE_APPLIED),
    (Answer.NOT_APPLIED, True): (Next.SETTLE_NOT_APPLIED, Next.SETTLE_NOT_APPLIED),
    (Answer.NOT_APPLIED, False): (Next.RECALL, Next.IN_DOUBT),
    (Answer.UNKNOWN, True): (Next.RECALL, Next.IN_DOUBT),
    (Answer.UNKNOWN, False): (Next.RECALL, Next.IN_DOUBT),
}


def after_probe(answer: Answer, *, counts: bool, key: bool, rejected: bool) -> Next:
    """What follows from a probe's answer."""
    with_key, without_key = AFTER_PROBE[answer, counts]
    return with_key if key and not rejected else without_key
