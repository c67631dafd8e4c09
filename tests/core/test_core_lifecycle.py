"""The lifecycle of one effect, driven by hand: which actions follow each other, for each class and each ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_player import BRANCH, SECOND, Player, Stop, crashed

from intentlog.core import records as r
from intentlog.core.actions import Append, Call, NotMade
from intentlog.core.machine import Reason
from intentlog.core.records import Answer
from intentlog.errors import (
    ArgumentDrift,
    AttemptCancelled,
    Fenced,
    InDoubt,
    IntentLogError,
    LogPoisoned,
    LogUnavailable,
    NotSent,
    OutcomeNotRecorded,
    OutcomeUnavailable,
    Rejected,
    Suspended,
)

RESET = ConnectionError("reset")
CLASSES = ("IDEMPOTENT", "KEYED", "QUERYABLE", "UNSAFE")
NOT_APPLIED, APPLIED, UNKNOWN = (Answer.NOT_APPLIED, None), (Answer.APPLIED, b'"found"'), (Answer.UNKNOWN, None)


@pytest.fixture
def player() -> Player:
    return Player().opens()


# --- endings, live and replayed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
def test_three_records_and_the_call_between(player: Player, kind: str) -> None:
    """I1: Pending, Dispatched, call, outcome, whatever the class; then the outcome is replayed without a call (I3)."""
    outcome = player.performs({"a": 1}, kind=kind)
    assert player.did == ["Pending", "Dispatched", "call", "RETURNED"]
    assert (outcome.value, outcome.replayed) == ({"a": 1}, False)
    called = next(action for action in player.seen if isinstance(action, Call))
    assert (called.dispatch_no, called.request_id, called.grace_ns) == (1, outcome.request_id, 10 * SECOND)
    again = player.performs(kind=kind)
    assert again == outcome._replace(replayed=True)
    assert player.dies().opens().performs(kind=kind).value == {"a": 1}
    assert player.is_sound()


@pytest.mark.parametrize(
    ("error", "recorded", "raised", "ran"),
    [
        (Rejected("no"), "REJECTED", Rejected, "no"),
        (NotSent("refused"), "NOT_SENT", NotSent, "no"),
        (Suspended("later"), "Suspended", Suspended, "no"),
        (RESET, "CallEnded", InDoubt, "unknown"),
    ],
)
def test_what_an_error_proves(player: Player, error: Exception, recorded: str, raised: type, ran: str) -> None:
    """Live errors: a definite no, never sent, suspended, or nothing at all; the tool's own error is the cause."""
    found = player.raises(raised, error)
    assert player.did == ["Pending", "Dispatched", "call", recorded]
    assert (found.effect_ran, found.intent_id, found.__cause__) == (ran, "order-1#1/charge", error)
    assert player.is_sound()


def test_a_rejection_replays_as_one(player: Player) -> None:
    """Live and replayed both raise Rejected, told apart by `.replayed`; it is never called again (I3)."""
    assert not player.raises(Rejected, Rejected("no")).replayed
    later = player.dies().opens()
    found = later.raises(Rejected)
    assert (found.replayed, found.error_type, found.effect_ran) == (True, "Rejected", "no")
    assert later.did == []


@pytest.mark.parametrize("error", [NotSent("refused"), Suspended("later")])
def test_going_on_in_the_same_attempt(player: Player, error: Exception) -> None:
    """After NOT_SENT or Suspended: the same intent, a Pending anew, the next dispatch_no, the same request id (I6)."""
    player.raises(type(error), error, kind="UNSAFE")
    player.did.clear()
    player.performs("paid")
    assert player.did == ["Pending", "Dispatched", "call", "RETURNED"]
    one, two = (action for action in player.seen if isinstance(action, Call))
    assert (two.dispatch_no, two.request_id) == (2, one.request_id)
    assert player.is_sound()


def test_a_permission_that_grew_old_is_not_used(player: Player) -> None:
    """NotMade: the call was not made, the record says NOT_SENT, the caller may call again."""
    found = player.raises(NotSent, NotMade("1 s too late"))
    assert player.did == ["Pending", "Dispatched", "call", "NOT_SENT"]
    assert "1 s too late" in str(found.__cause__)
    assert found.effect_ran == "no"


def test_a_signal_in_a_call_goes_on_its_way(player: Player) -> None:
    """A cancellation proves nothing: CallEnded is recorded, then it is raised as it is, Retry or not."""
    stop = Stop()
    assert player.raises(Stop, stop, kind="IDEMPOTENT", retry_times=3) is stop
    assert player.did[-2:] == ["call", "CallEnded"]


def test_other_arguments_are_an_error(player: Player) -> None:
    """I6: another digest or tool is ArgumentDrift, never a replay, and `effect_ran` is what is known."""
    player.performs("paid")
    for change in ({"digest": "1:ff"}, {"tool": "refund"}):
        found = player.raises(ArgumentDrift, **change)
        assert found.effect_ran == "yes"
    player.store.append([Append(BRANCH, r.Renewed(attempt=1, step="charge", by="ann", why="again"))])
    assert player.performs("paid", digest="1:ff").replayed is False, "a renewed operation is another one"
    assert player.raises(ArgumentDrift).effect_ran == "yes"


def test_values_that_cannot_be_kept_or_read(player: Player) -> None:
    """Done without a value: the first caller gets what the tool returned, a replay OutcomeUnavailable."""
    value = object()
    assert player.performs(value).value is value
    assert player.raises(OutcomeUnavailable).effect_ran == "yes"
    assert player.store.record(4).record.value_missing

    def unfit(payload: bytes) -> Any:
        raise ValueError(payload)

    other = Player().opens()
    assert other.performs("paid", decode=unfit).value == "paid", "what will not be read back is handed out as it came"
    assert "cannot be read as the tool's type" in str(other.raises(OutcomeUnavailable, decode=unfit))


# --- refusals -----------------------------------------------------------------------------------------------------


def takes_over(player: Player) -> Callable[[], None]:
    def take() -> None:
        player.store.append([Append(BRANCH, r.AttemptOpened(attempt=2, owner="z.1"))])

    return take


def cancels(player: Player) -> Callable[[], None]:
    def cancel() -> None:
        player.store.append([Append(BRANCH, r.CancelRequested(attempt=1, by="ann", why="stop"))])

    return cancel


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_a_zombie_makes_no_call(player: Player, at: str) -> None:
    """I2: overtaken before Pending or before Dispatched, it is refused and raises Fenced; nothing was sent."""
    player.befalls[at] = takes_over(player)
    assert player.raises(Fenced).effect_ran == "no"
    assert "call" not in player.did
    assert player.is_sound()


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_a_cancelled_attempt_makes_no_call(player: Player, at: str) -> None:
    """DESIGN 6: a cancel stops what was not dispatched, and a Pending that stands is withdrawn."""
    player.befalls[at] = cancels(player)
    player.raises(AttemptCancelled)
    assert player.did == ["Pending", "Dispatched", "Settled(NEVER_SENT)"][: 1 if at == "Pending" else 3]
    assert player.is_sound()


@pytest.mark.parametrize(
    ("reason", "raised"),
    [
        (Reason.FENCED, Fenced),
        (Reason.CANCELLED, AttemptCancelled),
        (Reason.DRIFT, ArgumentDrift),
        (Reason.CALLING, InDoubt),
        (Reason.STALE, InDoubt),
        (Reason.NOT_IN_DOUBT, InDoubt),
        (Reason.NO_TRANSITION, InDoubt),
        (Reason.DECIDED, None),
        (Reason.RENEWED, None),
        (Reason.IN_DOUBT, None),
        (Reason.NUMBER, None),
    ],
)
@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_each_refusal(player: Player, at: str, reason: Reason, raised: type | None) -> None:
    """Overtaken by others' records: look again and go on; anything else is an error, and no call is made."""
    player.befalls[at] = reason
    if raised is None:
        assert player.performs("paid").value == "paid"
        assert player.did.count("call") == 1
        assert player.did.count("Settled(NEVER_SENT)") == (at == "Dispatched"), "its Pending is withdrawn"
    else:
        player.raises(raised)
        assert "call" not in player.did
        withdrawn = at == "Dispatched" and reason is not Reason.FENCED
        assert (player.did[-1] == "Settled(NEVER_SENT)") is withdrawn
    assert player.is_sound()


def test_late_evidence_is_replayed_instead_of_a_call() -> None:
    """A zombie's RETURNED between Pending and Dispatched: the caller gets that, its Pending is NEVER_SENT (I3)."""
    player = crashed("IDEMPOTENT", "RETURNED", "late").opens()
    late = r.Committed(attempt=1, step="charge", outcome=r.OutcomeKind.RETURNED)
    player.befalls["Dispatched"] = lambda: player.store.append([Append(BRANCH, late, b'"late"')])
    outcome = player.performs(kind="IDEMPOTENT")
    assert (outcome.value, outcome.replayed) == ("late", True)
    assert player.did == ["Pending", "Dispatched", "Settled(NEVER_SENT)"]
    assert player.is_sound()


# --- Interrupted and store errors at each append ---------------------------------------------------------------------

NEVER, BOTH = ["Settled(NEVER_SENT)"], ["Pending", "Dispatched"]


@pytest.mark.parametrize(
    ("at", "fate", "did"),
    [
        ("Pending", "interrupted", ["Pending"]),
        ("Pending", "landed", ["Pending", *NEVER]),
        ("Dispatched", "interrupted", [*BOTH, *NEVER]),
        ("Dispatched", "landed", [*BOTH, "NOT_SENT"]),
        ("RETURNED", "interrupted", [*BOTH, "call", "RETURNED", "RETURNED"]),
        ("RETURNED", "landed", [*BOTH, "call", "RETURNED"]),
    ],
)
def test_interrupted_at_each_append(player: Player, at: str, fate: str, did: list[str]) -> None:
    """DESIGN 6: the fate is learnt first; no call after it; an outcome lands; the caller sees the cancellation."""
    player.befalls[at] = fate
    player.raises(Stop, "paid")
    assert player.did == did
    assert player.is_sound()
    assert player.operation is None or player.operation.effect_ran == ("yes" if at == "RETURNED" else "no")


@pytest.mark.parametrize("fate", ["interrupted", "landed"])
def test_interrupted_while_an_ambiguous_end_is_recorded(player: Player, fate: str) -> None:
    """The cancellation is raised, from the call's own error."""
    player.befalls["CallEnded"] = fate
    assert player.raises(Stop, RESET).__cause__ is RESET
    assert player.operation.effect_ran == "unknown"


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_interrupted_by_a_refusal(player: Player, at: str) -> None:
    """A refusal that was learnt with the cancellation: a Pending that stands is withdrawn all the same."""
    player.befalls[at] = (cancels(player), "landed")
    player.raises(Stop)
    assert player.did == (["Pending"] if at == "Pending" else [*BOTH, *NEVER])


@pytest.mark.parametrize(
    ("first", "second", "calls"),
    [("Dispatched", "NOT_SENT", ()), ("Pending", "Settled(NEVER_SENT)", ()), ("RETURNED", "RETURNED", ("paid",))],
)
def test_interrupted_twice(player: Player, first: str, second: str, calls: tuple[str, ...]) -> None:
    """A second cancellation, while the first is being recorded, is a cancellation as well: the caller sees one."""
    fate = "interrupted" if first == "RETURNED" else "landed"
    player.befalls[first] = (lambda: player.befalls.update({second: "landed"}), fate)
    player.raises(Stop, *calls)


@pytest.mark.parametrize("error", [LogPoisoned("disk"), LogUnavailable("full")])
@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_no_call_after_a_commit_that_failed(player: Player, at: str, error: Exception) -> None:
    """I1, I8: what is not known to be durable permits no call; the store's error is the caller's."""
    player.befalls[at] = error
    assert player.raises(type(error), "never") is error
    assert "call" not in player.did


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_a_failed_commit_does_not_deny_an_earlier_call(at: str) -> None:
    """An error's `.effect_ran` folds the operation: with an earlier dispatch open it is not "no"."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.befalls[at] = LogUnavailable("full")
    assert player.raises(LogUnavailable, kind="IDEMPOTENT").effect_ran == "unknown"


@pytest.mark.parametrize("error", [LogPoisoned("disk"), LogUnavailable("full")])
def test_an_outcome_that_cannot_be_written_is_handed_out(player: Player, error: Exception) -> None:
    """OutcomeNotRecorded carries what the tool returned or raised, and says whether the effect ran."""
    player.befalls["RETURNED"] = error
    found = player.raises(OutcomeNotRecorded, {"paid": 1})
    assert (found.outcome, found.effect_ran, found.__cause__) == ({"paid": 1}, "yes", error)
    for refusal in (Rejected("no"), NotSent("refused")):
        other = Player().opens()
        other.befalls[str(type(refusal).__name__).upper().replace("NOTSENT", "NOT_SENT")] = error
        found = other.raises(OutcomeNotRecorded, refusal)
        assert (found.outcome, found.effect_ran) == (refusal, "no")


def test_an_unwritten_refusal_does_not_speak_for_an_earlier_dispatch() -> None:
    """NOT_SENT that could not be recorded, beside an open dispatch: whether the effect ran is unknown."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.befalls["NOT_SENT"] = LogUnavailable("full")
    assert player.raises(OutcomeNotRecorded, NotSent("refused"), kind="IDEMPOTENT").effect_ran == "unknown"


def test_interrupted_and_then_the_outcome_cannot_be_written(player: Player) -> None:
    """Not landed, and the second try fails: the outcome is still handed to the caller."""
    full = LogUnavailable("full")
    player.befalls["RETURNED"] = (lambda: player.befalls.update({"RETURNED": full}), "interrupted")
    assert player.raises(OutcomeNotRecorded, "paid").outcome == "paid"


def test_an_end_that_cannot_be_recorded_is_said(player: Player) -> None:
    """InDoubt tells of it; the step's next call first says that it is over, and goes on as the class permits."""
    player.befalls["CallEnded"] = LogUnavailable("full")
    found = player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    assert "could not be recorded (full)" in found.message
    before = len(player.did)
    assert player.performs("paid", kind="IDEMPOTENT").value == "paid"
    assert player.did[before:] == ["CallEnded", "Dispatched", "call", "RETURNED"]


def test_a_probe_of_a_call_not_seen_to_end_does_not_spin(player: Player) -> None:
    """The same with a probe: the machine refuses its answer while a call may run, and asking again cannot end that."""
    player.befalls["CallEnded"] = LogUnavailable("full")
    player.raises(InDoubt, RESET, kind="QUERYABLE", probe=True)
    player.probes = [UNKNOWN] * 50
    player.raises(InDoubt, kind="QUERYABLE", probe=True)
    assert player.did.count("probe") <= 1


def test_what_became_of_the_operation_meanwhile_is_told() -> None:
    """A zombie's call that ends ambiguously after the newer attempt's returned: the effect did run."""
    player = Player().opens()
    newer = Player(player.disk, "b", player.clock)

    def meanwhile(call: Call) -> Exception:
        player.disk.owners.discard("a")
        newer.opens().performs("paid", kind="IDEMPOTENT")
        return RESET

    try:
        effect_ran = player.performs(meanwhile, kind="IDEMPOTENT") and "yes"
    except IntentLogError as error:
        effect_ran = error.effect_ran
    assert effect_ran == "yes"


# --- Retry --------------------------------------------------------------------------------------------------------


def test_retry_repeats_where_the_class_permits(player: Player) -> None:
    """Each repeat waits twice as long, is a Dispatched of its own, and sends the same request id (I6, I7)."""
    player.performs(RESET, NotSent("refused"), RESET, "paid", kind="IDEMPOTENT", retry_times=3)
    calls = ["CallEnded", "NOT_SENT", "CallEnded", "RETURNED"]
    waits = [["wait 1"], ["wait 2"], ["wait 4"], []]
    rest = [["Dispatched", "call", end, *wait] for end, wait in zip(calls, waits, strict=True)]
    assert player.did == ["Pending", *(name for part in rest for name in part)]
    assert len({action.request_id for action in player.seen if isinstance(action, Call)}) == 1
    assert [d.fate for d in player.operation.dispatches] == ["SUPERSEDED", "NOT_SENT", "SUPERSEDED", "RETURNED"]
    assert player.is_sound()


def test_retry_ends(player: Player) -> None:
    """After `times` repeats the caller gets what the last one proved, of the operation as a whole."""
    found = player.raises(InDoubt, RESET, RESET, RESET, kind="IDEMPOTENT", retry_times=2)
    assert (player.did.count("call"), found.__cause__) == (3, RESET)
    other = Player().opens()
    assert other.raises(NotSent, RESET, NotSent("no"), kind="KEYED", retry_times=1).effect_ran == "unknown"


@pytest.mark.parametrize("kind", ["UNSAFE", "QUERYABLE"])
def test_retry_does_not_repeat_what_may_have_landed(player: Player, kind: str) -> None:
    """I4: an ambiguous end of these is a doubt, with the call's error as its cause; only NOT_SENT is repeated."""
    assert player.raises(InDoubt, RESET, kind=kind, retry_times=3).__cause__ is RESET
    assert player.did.count("call") == 1
    other = Player().opens()
    assert other.performs(NotSent("no"), NotMade("too late"), "paid", kind=kind, retry_times=3).value == "paid"
    assert other.is_sound()


def test_retry_does_not_wait_for_nothing(player: Player) -> None:
    """Where no repeat is permitted, the caller hears InDoubt at once, not after the backoff."""
    player.raises(InDoubt, RESET, kind="UNSAFE", retry_times=3)
    assert not [name for name in player.did if name.startswith("wait")]


@pytest.mark.parametrize("error", [Rejected("no"), Suspended("later")])
def test_retry_leaves_other_answers(player: Player, error: Exception) -> None:
    """A definite no, and a tool that waits for something, are not repeated."""
    player.raises(type(error), error, kind="IDEMPOTENT", retry_times=3)
    assert player.did.count("call") == 1
