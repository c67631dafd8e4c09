"""THE transition table: which record may follow which state. Nothing else decides a transition.

Theory of operation
    One external effect is three durable records, each its own commit: Pending, Dispatched, then the outcome
    (Committed). The call is made between the second and the third. So a restart that finds a lone Pending knows that
    nothing was sent, and one that finds Dispatched without an outcome knows that something may have been.

    An *intent* is (branch, attempt, step). An *operation* is (branch, step, generation): what is meant to happen
    once, whichever attempt tries it. Its dispatches are counted through all attempts. Doubt belongs to the operation
    and sticks: an outcome speaks only for its own dispatch, and while an earlier dispatch has none, the operation
    may have been sent.

    `apply` takes the branch and the operation as they stand, under the branch's lock, and a record that somebody
    wants to append. It answers either what both become, or a `Refusal`. A store appends nothing that was refused.
    That is the fence: a zombie's Dispatched meets a raised attempt number here, inside the commit that would carry it.

Invariants (tests, checks and docs cite these numbers)
    I1  A call is made only after its Dispatched record is durable; Dispatched only after its Pending is durable
        (READ excepted).
    I2  NEVER_SENT is reported only if no call can have been made, and none can be made later (the fence).
    I3  An operation with RETURNED, REJECTED or APPLIED is never called again (unless renewed).
    I4  An UNSAFE operation is dispatched again only if every earlier dispatch was NOT_SENT, suspended, or settled
        NOT_APPLIED by a person.
    I5  An acknowledged IMMEDIATE record is never lost. An EVENTUAL one is durable no later than its branch's next
        Pending or close.
    I6  `request_id` and arguments' digest are equal in all records of an operation; other arguments are an error.
    I7  At most one record of an effect in any one commit.
    I8  After a commit whose fate is unknown nothing more is acknowledged, and no call made, until it is learnt.
    I9  A decision is itself in the log: classification, probe answer, resolution, renewal, cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from intentlog.core import fold
from intentlog.core import records as r
from intentlog.core.effects import REPEATABLE, EffectKind
from intentlog.core.recovery import key_remembered
from intentlog.core.state import Branch, Fate, Operation, State
from intentlog.core.words import Word

# `Settled.by` where no person decided. No person's name may begin so (`restart.resolve`).
RESERVED = "intentlog:"
OWNER = "intentlog:owner"
RESTART = "intentlog:restart"
PROBE = "intentlog:probe"


class Reason(Word):
    """Why a record was refused."""

    FENCED = "FENCED"  # not the branch's current attempt, or it is closed
    CANCELLED = "CANCELLED"  # the attempt was asked to stop
    DECIDED = "DECIDED"  # the operation has its outcome
    RENEWED = "RENEWED"  # another generation is current
    DRIFT = "DRIFT"  # other arguments, tool or request id (I6)
    CALLING = "CALLING"  # an earlier call has not been seen to end
    IN_DOUBT = "IN_DOUBT"  # the class does not permit a call beside an open one (I4)
    STALE = "STALE"  # `expect_seq` does not hold
    NOT_IN_DOUBT = "NOT_IN_DOUBT"  # there is nothing to decide
    NO_TRANSITION = "NO_TRANSITION"  # the table has no such cell
    NUMBER = "NUMBER"  # not the next attempt or dispatch, or an unknown one


class Refusal(Struct, frozen=True, gc=False):
    """A record that may not be appended, and why."""

    reason: Reason
    detail: str


class Change(Struct, frozen=True, gc=False):
    """What branch and operations become when the record is appended."""

    branch: Branch
    operations: tuple[Operation, ...]  # the one spoken for; at a renewal also the new generation


class Situation(Struct, frozen=True, gc=False):
    """What a guard may look at: branch and operation under the branch's lock, the record, and the store's stamp."""

    branch: Branch
    operation: Operation | None
    record: r.Record
    at: r.Instant


Guard: TypeAlias = Callable[[Situation], Refusal | None]


class Event(Word):
    """The table's columns: the kinds of record, told apart where their rules differ."""

    PENDING = "Pending"
    DISPATCHED = "Dispatched"
    COMMITTED = "Committed"
    READ_COMMITTED = "Committed of a READ"
    CALL_ENDED = "CallEnded"
    SUSPENDED = "Suspended"
    PROBE_ANSWERED = "ProbeAnswered"
    NEVER_SENT = "Settled(NEVER_SENT)"
    ANSWERED = "Settled(APPLIED or NOT_APPLIED)"
    SUPERSEDED = "Settled(SUPERSEDED)"
    CLASSIFIED = "Classified"
    RENEWED = "Renewed"
    SUPPLIED = "Supplied"


# --- guards: each answers None, or why not ----------------------------------------------------------------------


def fenced(s: Situation) -> Refusal | None:
    """Only the branch's current, open, uncancelled attempt (I2)."""
    if s.record.attempt != s.branch.attempt or not s.branch.is_open:
        return Refusal(Reason.FENCED, _past(s))
    return Refusal(Reason.CANCELLED, f"attempt {s.record.attempt}") if s.branch.cancelled else None


def same_call(s: Situation) -> Refusal | None:
    """Tool, arguments and request id are those of the operation (I6)."""
    said = s.record.read if isinstance(s.record, r.Committed) else s.record
    if s.operation is None or not s.operation.intents or not isinstance(said, r.Pending | r.ReadHeader):
        return None
    for name in ("tool", "digest", "request_id"):
        if getattr(said, name) != getattr(s.operation, name):
            return Refusal(Reason.DRIFT, f"{name} was {getattr(s.operation, name)}, is {getattr(said, name)}")
    return None


def undecided(s: Situation) -> Refusal | None:
    """No RETURNED, REJECTED or APPLIED yet, late evidence included (I3)."""
    decided = s.operation and s.operation.decided
    return Refusal(Reason.DECIDED, decided.fate) if decided else None


def current_generation(s: Situation) -> Refusal | None:
    """The operation was not renewed."""
    return Refusal(Reason.RENEWED, "another generation is current") if s.operation and s.operation.renewed else None


def next_dispatch(s: Situation) -> Refusal | None:
    """Dispatches are numbered without a gap."""
    last = s.operation.dispatches[-1].number if s.operation and s.operation.dispatches else 0
    number = s.record.dispatch_no if isinstance(s.record, r.Dispatched) else 0
    return None if number == last + 1 else Refusal(Reason.NUMBER, f"dispatch {number} after {last}")


def call_ended(s: Situation) -> Refusal | None:
    """No call of this attempt still runs."""
    calling = s.operation is not None and s.operation.calling(s.record.attempt)
    return Refusal(Reason.CALLING, "the earlier call has not ended") if calling else None


def class_permits(s: Situation) -> Refusal | None:
    """Beside a dispatch without outcome, only where the class makes a repeat harmless, now (I4).

    Of a key that is judged here, inside the commit that permits: between a look and its commit a process can be
    stopped for as long as it takes the receiver to forget.
    """
    if s.operation is None or not s.operation.open_dispatches:
        return None
    declaration = s.operation.declaration
    if declaration.kind not in REPEATABLE:
        return Refusal(Reason.IN_DOUBT, f"{declaration.kind} may have been sent already")
    forgotten = declaration.kind is EffectKind.KEYED and not key_remembered(s.operation, declaration, s.branch, s.at)
    return Refusal(Reason.IN_DOUBT, "the receiver may have forgotten the key") if forgotten else None


def known_dispatch(s: Situation) -> Refusal | None:
    """The record speaks for a dispatch of its own attempt."""
    number = getattr(s.record, "dispatch_no", 0)
    dispatch = s.operation.dispatch(number) if s.operation else None
    known = dispatch is not None and dispatch.attempt == s.record.attempt
    return None if known else Refusal(Reason.NUMBER, f"attempt {s.record.attempt} has no dispatch {number}")


def being_called(s: Situation) -> Refusal | None:
    """The dispatch that it speaks for has not been seen to end."""
    dispatch = s.operation.dispatch(getattr(s.record, "dispatch_no", 0)) if s.operation else None
    calling = dispatch is not None and dispatch.fate is Fate.CALLING
    return None if calling else Refusal(Reason.NO_TRANSITION, "that call has ended already")


def expected_seq(s: Situation) -> Refusal | None:
    """Nothing was recorded for the operation since the decision was prepared."""
    expect = getattr(s.record, "expect_seq", None)
    last = s.operation.last_seq if s.operation else 0
    return None if expect == last else Refusal(Reason.STALE, f"prepared at seq {expect}, the operation is at {last}")


def nobody_calling(s: Situation) -> Refusal | None:
    """Doubt begins when nobody calls any more: the attempt is fenced or closed, or its call was seen to end."""
    current = s.branch.attempt
    live = s.branch.is_open and s.operation is not None and s.operation.calling(current)
    return Refusal(Reason.NOT_IN_DOUBT, "its call is running") if live else None


def doubtful(s: Situation) -> Refusal | None:
    """There is a dispatch to settle."""
    may = s.operation is not None and s.operation.verdict is r.Verdict.MAY_HAVE_BEEN_SENT
    return None if may else Refusal(Reason.NOT_IN_DOUBT, "nothing of it is in doubt")


def may_settle(s: Situation) -> Refusal | None:
    """A probe settles only what was declared to have one; UNSAFE is for persons (I4)."""
    by_probe = isinstance(s.record, r.Settled) and s.record.by == PROBE
    kind = s.operation.declaration.kind if s.operation else EffectKind.UNSAFE
    return Refusal(Reason.IN_DOUBT, f"no probe settles {kind}") if by_probe and kind is EffectKind.UNSAFE else None


def sendable_no_more(s: Situation) -> Refusal | None:
    """Said of a fenced attempt, or by its own owner: no call can be made later (I2)."""
    own = isinstance(s.record, r.Settled) and s.record.by == OWNER
    live = s.record.attempt == s.branch.attempt and s.branch.is_open
    return Refusal(Reason.NOT_IN_DOUBT, "its attempt is open") if live and not own else None


def unconcluded(s: Situation) -> Refusal | None:
    """No restart has recorded the same conclusion: of two at once, one does."""
    same = s.operation is not None and isinstance(s.record, r.Classified) and s.operation.says(s.record)
    return Refusal(Reason.NOT_IN_DOUBT, "that was concluded already") if same else None


def returned(s: Situation) -> Refusal | None:
    """The operation is done, so that this dispatch is superseded."""
    done = s.operation is not None and s.operation.verdict is r.Verdict.DONE
    return None if done else Refusal(Reason.NO_TRANSITION, "no dispatch of it returned")


def closed(s: Situation) -> Refusal | None:
    """Nothing of the operation is open."""
    is_open = s.operation is not None and s.operation.is_open
    return Refusal(Reason.NO_TRANSITION, "the operation is open") if is_open else None


def never_dispatched(s: Situation) -> Refusal | None:
    """A READ's single record stands alone: of what was once declared otherwise it could hide a doubt."""
    touched = s.operation is not None and (s.operation.dispatches or s.operation.is_open)
    return Refusal(Reason.NO_TRANSITION, "it was dispatched under another class") if touched else None


def valueless(s: Situation) -> Refusal | None:
    """It is done, and its value is not there."""
    decided = s.operation.decided if s.operation else None
    missing = decided and decided.fate is not Fate.REJECTED and decided.value_seq is None
    return None if missing else Refusal(Reason.NO_TRANSITION, "it has a value, or none is due")


def contradicting(s: Situation) -> Refusal | None:
    """A late outcome says other than what was taken for true, and nothing is in doubt beside it."""
    shown = s.operation is not None and s.operation.contradicts and not s.operation.open_dispatches
    return None if shown else Refusal(Reason.NOT_IN_DOUBT, "nothing of it is in doubt, and nothing contradicts")


def confirmed_by_person(s: Situation) -> Refusal | None:
    """A contradiction is closed by a person who says that it is done; what shall happen once more is renewed (I3)."""
    ok = isinstance(s.record, r.Settled) and s.record.settlement is r.Settlement.APPLIED and s.record.by != PROBE
    return None if ok else Refusal(Reason.DECIDED, "it is done; if it shall happen once more, renew it")


def next_attempt(s: Situation) -> Refusal | None:
    """Attempts are numbered without a gap; who comes second meets a raised number."""
    wanted = s.branch.attempt + 1
    return None if s.record.attempt == wanted else Refusal(Reason.NUMBER, f"the next attempt is {wanted}")


def open_attempt(s: Situation) -> Refusal | None:
    """The branch's current attempt, and open; being cancelled does not matter."""
    ok = s.record.attempt == s.branch.attempt and s.branch.is_open
    return None if ok else Refusal(Reason.FENCED, _past(s))


def unclosed(s: Situation) -> Refusal | None:
    """The branch's newest attempt, which has not ended for good: one that is fenced or INDETERMINATE could go on."""
    ok = s.record.attempt == s.branch.attempt and s.branch.attempt > 0 and s.branch.end in (None, r.End.INDETERMINATE)
    return None if ok else Refusal(Reason.FENCED, _past(s))


def closable(s: Situation) -> Refusal | None:
    """An open attempt; or one that was cancelled and whose owner is dead, so that a restart fenced it."""
    fenced_and_cancelled = s.record.attempt == s.branch.attempt and s.branch.cancelled and s.branch.end is None
    return None if fenced_and_cancelled else open_attempt(s)


def told(s: Situation) -> Refusal | None:
    """Who cancelled was told that the attempt ends CANCELLED or INDETERMINATE, so that it ends as nothing else."""
    end = s.record.end if isinstance(s.record, r.AttemptClosed) else None
    wrong = s.branch.cancelled and end not in (r.End.CANCELLED, r.End.INDETERMINATE)
    return Refusal(Reason.CANCELLED, f"attempt {s.record.attempt} was cancelled, it is not {end}") if wrong else None


def _past(s: Situation) -> str:
    if s.record.attempt == s.branch.attempt:
        return f"attempt {s.record.attempt} is {'fenced by a restart' if s.branch.fenced else 'closed'}"
    return f"attempt {s.record.attempt} is past, the branch is at {s.branch.attempt}"


# --- the table ------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """Where the intent goes (None: it stays), and what must hold."""

    to: State | None
    guards: tuple[Guard, ...]


_N, _P, _D, _S, _C, _X = tuple(State)  # NONE PENDING DISPATCHED SUSPENDED COMMITTED SETTLED

_PENDING = Rule(_P, (fenced, same_call, current_generation, undecided))
_DISPATCHED = Rule(_D, (fenced, current_generation, undecided, call_ended, class_permits, next_dispatch))
_LATE = Rule(None, (known_dispatch,))
_ANSWERED = Rule(_X, (doubtful, nobody_calling, may_settle, expected_seq))
_CLASSIFIED = Rule(None, (sendable_no_more, unconcluded))
_RENEWED = Rule(None, (current_generation, closed, expected_seq))
_SUPPLIED = Rule(None, (valueless,))
_CONFIRMED = Rule(None, (contradicting, confirmed_by_person, expected_seq))

# An intent leaves DISPATCHED only when none of its dispatches is open: an outcome speaks for its own dispatch alone.
TABLE: dict[Event, dict[State, Rule]] = {
    Event.PENDING: {_N: _PENDING, _C: _PENDING, _X: _PENDING, _S: _PENDING},
    Event.DISPATCHED: {_P: _DISPATCHED, _D: _DISPATCHED},
    Event.COMMITTED: {_D: Rule(_C, (known_dispatch,)), _P: _LATE, _C: _LATE, _X: _LATE, _S: _LATE},
    Event.READ_COMMITTED: {_N: Rule(_C, (fenced, same_call, current_generation, undecided, never_dispatched))},
    Event.CALL_ENDED: {_D: Rule(None, (known_dispatch, being_called))},
    Event.SUSPENDED: {_D: Rule(_S, (known_dispatch, being_called))},
    Event.PROBE_ANSWERED: {_D: Rule(None, (known_dispatch, doubtful, nobody_calling, expected_seq))},
    Event.NEVER_SENT: {_P: Rule(_X, (sendable_no_more,))},
    Event.ANSWERED: {_D: _ANSWERED, _C: _CONFIRMED, _X: _CONFIRMED, _S: _CONFIRMED},
    Event.SUPERSEDED: {_D: Rule(_X, (returned,))},
    Event.CLASSIFIED: {_P: _CLASSIFIED, _D: _CLASSIFIED},
    Event.RENEWED: {_S: _RENEWED, _C: _RENEWED, _X: _RENEWED},
    Event.SUPPLIED: {_C: _SUPPLIED, _X: _SUPPLIED},
}

BRANCH_TABLE: dict[type[r.BranchRecord], tuple[Guard, ...]] = {
    r.AttemptOpened: (next_attempt,),
    r.AttemptFenced: (open_attempt,),
    r.AttemptClosed: (closable, told),
    r.CancelRequested: (unclosed,),
    r.ApplicationEvent: (),
}

_SETTLED = {
    r.Settlement.NEVER_SENT: Event.NEVER_SENT,
    r.Settlement.APPLIED: Event.ANSWERED,
    r.Settlement.NOT_APPLIED: Event.ANSWERED,
    r.Settlement.SUPERSEDED: Event.SUPERSEDED,
}
_EVENTS = {one: Event(one.__name__) for one in r.INTENT_RECORDS if one is not r.Settled}


def event_of(record: r.IntentRecord) -> Event:
    """Which column of the table a record belongs to."""
    if isinstance(record, r.Settled):
        return _SETTLED[record.settlement]
    if isinstance(record, r.Committed) and record.read is not None:
        return Event.READ_COMMITTED
    return _EVENTS[type(record)]


def apply(branch: Branch, operation: Operation | None, record: r.Record, seq: int, at: r.Instant) -> Change | Refusal:
    """Decide whether `record` may be appended, and what it makes of branch and operation.

    Args:
        branch: the branch as it stands, read under its lock.
        operation: the operation that the record speaks for (its generation), or None where there is none.
        record: what is to be appended.
        seq: the place in the log that it would take.
        at: the store's stamp for it.
    """
    situation = Situation(branch, operation, record, at)
    if isinstance(record, r.OfBranch):
        refusal = _first_refusal(BRANCH_TABLE[type(record)], situation)
        return refusal or Change(fold.branch(branch, record, at), ())
    event = event_of(record)
    intent = operation.intent(record.attempt) if operation else None
    state = intent.state if intent else State.NONE
    rule = TABLE[event].get(state)
    if rule is None:
        fence = fenced(situation) if event in (Event.PENDING, Event.DISPATCHED) else None
        return fence or Refusal(Reason.NO_TRANSITION, f"{event} does not follow {state}")
    if refusal := _first_refusal(rule.guards, situation):
        return refusal
    operations = fold.operation(operation, record, rule.to, seq, at)
    dispatched = branch.dispatched or event is Event.DISPATCHED
    latest = max(branch.latest_wall_ns, at.wall_ns)
    return Change(replace(branch, latest_wall_ns=latest, dispatched=dispatched), operations)


def _first_refusal(guards: tuple[Guard, ...], situation: Situation) -> Refusal | None:
    for guard in guards:
        if refusal := guard(situation):
            return refusal
    return None
