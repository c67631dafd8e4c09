"""The lifecycle of one effect, driven by hand: which actions follow each other, for each class and each ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_player import APPLIED, BRANCH, NOT_APPLIED, RESET, SECOND, UNKNOWN, Player, Stop, crashed, decides, late

from intentlog.core import records as r
from intentlog.core.actions import Append, Call, NotMade
from intentlog.core.lifecycle import perform
from intentlog.core.machine import Reason
from intentlog.errors import (
    ArgumentDrift,
    AttemptCancelled,
    Fenced,
    InDoubt,
    IntentLogError,
    LogDamaged,
    LogPoisoned,
    LogUnavailable,
    NotSent,
    OutcomeNotRecorded,
    Rejected,
    Suspended,
)

CLASSES = ("IDEMPOTENT", "KEYED", "QUERYABLE", "UNSAFE")


@pytest.fixture
def player() -> Player:
    return Player().opens()


# --- endings, live and replayed ---------------------------------------------------------------------------------------


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


def test_a_doubt_says_which_declaration_decides(player: Player) -> None:
    """Called as IDEMPOTENT, and UNSAFE by now: the stricter one decides, and the error says so (I4)."""
    player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    found = player.dies().opens().raises(InDoubt, kind="UNSAFE")
    assert "UNSAFE of charge cannot settle it" in str(found)
    assert "it was called as IDEMPOTENT, and the stricter declaration decides" in str(found)
    assert player.did.count("call") == 1, "the first attempt's"


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


def test_a_read_takes_the_short_way(player: Player) -> None:
    """DESIGN 4: nothing outside changes, so nothing is written before the call (I1's one exception)."""
    assert player.performs("seen", kind="READ").value == "seen"
    assert player.did == ["call", "RETURNED"]
    other = Player().opens()
    other.raises(NotSent, NotSent("refused"), kind="UNSAFE")
    assert other.performs("seen", kind="READ").value == "seen", "what was once declared otherwise takes the long one"
    assert other.did[-4:] == ["Pending", "Dispatched", "call", "RETURNED"]


@pytest.mark.parametrize(
    ("kind", "answer", "did"),
    [
        ("UNSAFE", None, []),
        ("QUERYABLE", UNKNOWN, ["probe", "ProbeAnswered(UNKNOWN)"]),
        ("QUERYABLE", NOT_APPLIED, ["probe", "ProbeAnswered(NOT_APPLIED)"]),
        ("QUERYABLE", APPLIED, ["probe", "ProbeAnswered(APPLIED)", "Settled(APPLIED)"]),
        ("KEYED", UNKNOWN, ["probe", "ProbeAnswered(UNKNOWN)", "Pending", "Dispatched", "call", "RETURNED"]),
        ("IDEMPOTENT", None, ["Pending", "Dispatched", "call", "RETURNED", "Settled(SUPERSEDED)"]),
    ],
)
def test_what_may_have_been_sent_goes_by_its_class(kind: str, answer: Any, did: list[str]) -> None:
    """I4: a person, a probe, or once more, after a restart; in doubt it is neither called nor written of."""
    player = crashed(kind, "RETURNED", "lost", probe=answer is not None).opens()
    player.probes = [answer]
    if answer == APPLIED or "call" in did:
        assert player.performs("again", kind=kind, probe=answer is not None).value in ("found", "again")
    else:
        player.raises(InDoubt, kind=kind, probe=answer is not None)
    assert player.did[: len(did)] == did
    assert player.did.count("call") == did.count("call")
    assert player.is_sound()


def test_superseded_records_are_each_an_append_of_their_own() -> None:
    """I7: three attempts died calling; the fourth returns, and closes them one by one, after its own outcome."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost")
    for owner in "cd":
        player.opens()
        script = perform(player.plan("IDEMPOTENT"))
        action = next(script)
        while not isinstance(action, Call):
            action = script.send(player._do(action))
        script.close()
        player = player.dies(owner)
    player.opens().performs("paid", kind="IDEMPOTENT")
    assert player.did == ["Pending", "Dispatched", "call", "RETURNED", *["Settled(SUPERSEDED)"] * 3]
    assert not player.operation.is_open
    assert player.is_sound()


def test_a_store_that_fails_after_the_outcome_does_not_hide_it() -> None:
    """The outcome is durable; that its older intents' closing is not cannot make the caller lose it."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.befalls["Settled(SUPERSEDED)"] = LogUnavailable("full")
    assert player.performs("paid", kind="IDEMPOTENT").value == "paid"


def test_a_key_that_is_forgotten_is_not_used() -> None:
    """KEYED past its window: in doubt; with a probe: asked."""
    player = crashed("KEYED", "RETURNED", "lost", window_s=80)
    player.clock.ns += 20 * SECOND
    player.opens().raises(InDoubt, kind="KEYED", window_s=80)
    assert player.did == []


def rejected_beside_open(kind: str = "IDEMPOTENT", **plan: Any) -> Player:
    player = crashed(kind, "RETURNED", "lost", **plan).opens()
    found = player.raises(Rejected, Rejected("no"), kind=kind, **plan)
    assert (found.effect_ran, found.replayed) == ("unknown", False)
    player.did.clear()
    return player


def test_rejected_beside_an_open_dispatch_is_never_called_again() -> None:
    """I3: the caller gets Rejected with `effect_ran` unknown, live and replayed, until somebody settles it."""
    player = rejected_beside_open()
    found = player.raises(Rejected, kind="IDEMPOTENT")
    assert (found.effect_ran, found.replayed, player.did) == ("unknown", True, [])
    assert "resolve it" in found.remedy
    decides(player, "NOT_APPLIED")
    assert player.raises(Rejected, kind="IDEMPOTENT").effect_ran == "no"
    other = rejected_beside_open()
    decides(other, "APPLIED", payload=b'"by hand"')
    assert other.performs(kind="IDEMPOTENT").value == "by hand"
    assert other.is_sound()


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


# --- refusals ---------------------------------------------------------------------------------------------------------


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


# --- Interrupted and store errors at each append ----------------------------------------------------------------------

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


@pytest.mark.parametrize("error", [LogPoisoned("disk"), LogUnavailable("full")])
@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_no_call_after_a_commit_that_failed(player: Player, at: str, error: Exception) -> None:
    """I1, I8: what is not known to be durable permits no call; the store's error is the caller's."""
    player.befalls[at] = error
    assert player.raises(type(error), "never") is error
    assert "call" not in player.did


@pytest.mark.parametrize("error", [LogPoisoned("disk"), LogUnavailable("dead"), LogDamaged("torn")])
def test_a_read_that_fails_cannot_deny_an_earlier_call(player: Player, error: IntentLogError) -> None:
    """Before the first record, and between two calls of a `Retry`: what was done before cannot be seen."""
    script = perform(player.plan())
    next(script)
    with pytest.raises(type(error)) as raised:
        script.throw(error)
    assert raised.value is error
    assert (error.effect_ran, error.intent_id) == ("unknown", "order-1#1/charge")


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


def test_an_outcome_that_the_log_refuses_is_handed_out(player: Player) -> None:
    """No rule refuses an owner its outcome; if one did, the caller would have it all the same, and hear of it (I5)."""
    player.befalls["RETURNED"] = Reason.NUMBER
    found = player.raises(OutcomeNotRecorded, "paid")
    assert (found.outcome, found.effect_ran) == ("paid", "yes")


def gone(*_: str) -> Any:
    """A look at a log whose disk was taken away."""
    raise LogUnavailable("the disk is gone")


@pytest.mark.parametrize(("error", "raised"), [(RESET, InDoubt), (NotSent("refused"), NotSent)])
def test_what_is_known_of_a_call_comes_before_the_logs_trouble(player: Player, error: Exception, raised: type) -> None:
    """A log that fails at the look after the call: the caller hears what the call proved, and no repeat is made."""

    def meanwhile(_: Call) -> Exception:
        player.store.view = gone
        return error

    assert player.raises(raised, meanwhile, kind="IDEMPOTENT", retry_times=3).__cause__ is error
    assert player.did.count("call") == 1


def test_the_logs_trouble_is_told_where_no_call_was_made() -> None:
    """A record was refused, and the log then fails: nothing is to be known of a call, so the store's error is told."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()

    def overtaken() -> None:
        late(player, 1, 1, "RETURNED")
        player.store.view = gone

    player.befalls["Pending"] = overtaken
    player.raises(LogUnavailable, kind="IDEMPOTENT")
    assert "call" not in player.did


def test_an_end_that_cannot_be_recorded_is_said(player: Player) -> None:
    """InDoubt tells of it; the step's next call first says that it is over, and goes on as the class permits."""
    player.befalls["CallEnded"] = LogUnavailable("full")
    found = player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    assert "could not be recorded (full)" in found.message
    before = len(player.did)
    assert player.performs("paid", kind="IDEMPOTENT").value == "paid"
    assert player.did[before:] == ["CallEnded", "Dispatched", "call", "RETURNED"]
