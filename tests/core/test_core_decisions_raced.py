"""Decisions beside living owners and other persons, and decisions that die half way (DESIGN 3, 5, 6; I9)."""

from __future__ import annotations

from typing import Any

import pytest
from core_player import (
    APPLIED,
    BRANCH,
    INTENT,
    RESET,
    Player,
    Stop,
    contradicted,
    crashed,
    decides,
    here,
    interrupted_after,
    late,
    nothing,
)

from intentlog.core.actions import Append, Call, IntentId, Interrupted
from intentlog.core.decisions import Cancelled, cancel, renew, resolve
from intentlog.core.lifecycle import perform
from intentlog.core.machine import Reason
from intentlog.core.records import End, Settlement
from intentlog.core.restart import close_attempt, recover_branch
from intentlog.core.state import Branch
from intentlog.errors import AttemptCancelled, InDoubt, NotInDoubt, NotSent, StaleDecision, UnknownIntent


def branch_of(player: Player) -> Branch:
    return player.store.branch_view(BRANCH).branch


def cancels(player: Player) -> Cancelled:
    return player.run(cancel(BRANCH, "ann", "stop", nothing))


def renews(player: Player) -> None:
    player.run(renew("orders.db", INTENT, "ann", "again"))


def person(player: Player) -> Player:
    """Somebody at the command line, on the same log."""
    return Player(player.disk, "p", player.clock)


# --- beside a living owner --------------------------------------------------------------------------------------------


def test_a_living_owner_is_asked_to_stop() -> None:
    """DESIGN 6: only the record; its owner sends nothing more, and closes its attempt as cancelled."""
    player = Player().opens()
    player.performs("paid")
    somebody = person(player)
    assert cancels(somebody) == Cancelled(End.CANCELLED, [])
    assert somebody.did == ["CancelRequested"]
    player.did.clear()
    assert player.performs().replayed, "what is done is still answered"
    player.raises(AttemptCancelled, attempt=1, intent_id=IntentId.of(BRANCH, 1, "refund"))
    assert "call" not in player.did
    assert player.run(close_attempt(BRANCH, 1, End.FAILED, None)) is End.CANCELLED
    assert player.is_sound()


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_what_was_not_dispatched_is_not_sent_any_more(at: str) -> None:
    """Cancelled before Pending or before Dispatched: refused, withdrawn, never called (I2)."""
    player = Player().opens()
    player.befalls[at] = lambda: cancels(person(player))
    assert player.raises(AttemptCancelled).effect_ran == "no"
    assert player.did[1:] == ([] if at == "Pending" else ["Dispatched", "Settled(NEVER_SENT)"])
    assert cancels(person(player)).verdict is End.CANCELLED
    assert player.is_sound()


@pytest.mark.parametrize(("answer", "end"), [("paid", End.CANCELLED), (RESET, End.INDETERMINATE)])
def test_a_running_call_is_not_ended_by_it(answer: Any, end: End) -> None:
    """Its outcome is still recorded, and its caller gets it; while it has none, the branch is not cleanly cancelled."""
    player = Player().opens()

    def meanwhile(_: Call) -> Any:
        assert cancels(person(player)).verdict is End.INDETERMINATE
        return answer

    if answer is RESET:
        player.raises(InDoubt, meanwhile)
    else:
        assert player.performs(meanwhile).value == "paid"
        assert player.operation.decided.fate == "RETURNED"
    assert cancels(person(player)).verdict is end
    assert player.run(close_attempt(BRANCH, 1, End.COMPLETED, None)) is end
    assert player.is_sound()


def test_an_attempt_that_ended_in_doubt_is_given_up() -> None:
    """INDETERMINATE: a supervisor would run it again; cancelled, it would not, and its doubt is still to be settled."""
    player = Player().opens()
    player.raises(InDoubt, RESET)
    player.run(close_attempt(BRANCH, 1, End.FAILED, None))
    assert branch_of(player).is_unfinished
    player = player.dies()
    assert cancels(player).verdict is End.INDETERMINATE
    assert not branch_of(player).is_unfinished
    assert player.did == ["CancelRequested", "Classified"]
    decides(player, "APPLIED")
    assert cancels(player).verdict is End.CANCELLED
    assert player.is_sound()


# --- outcomes that contradict -----------------------------------------------------------------------------------------


def test_a_probe_says_nothing_of_a_contradiction() -> None:
    """Recovery asks about doubts; an operation whose outcomes contradict waits for its person (I9)."""
    player = contradicted()
    assert player.run(recover_branch(BRANCH, here("QUERYABLE", probe=True), certain=True)) == []
    assert player.operation.contradicts


def test_a_contradiction_is_closed_by_renewing() -> None:
    """Loud until somebody decides: that it shall happen once more is a decision, too (I9)."""
    player = contradicted()
    player.run(renew("orders.db", INTENT, "ann", "the customer wants two"))
    assert not any(o.contradicts for _, o in player.store.operations(BRANCH, open_only=False))
    assert player.opens().performs("paid").replayed is False
    assert player.is_sound()


def test_a_contradiction_from_before_a_renewal_is_closed() -> None:
    """A renewed operation's call turns out to have returned: its person confirms it by its own intent's name (I9)."""
    player = Player().opens()
    player.raises(NotSent, NotSent("refused"))
    renews(player)
    late(player, 1, 1, "RETURNED")
    player = player.dies()
    first = player.store.view(BRANCH, "charge", 1).operation
    assert first.contradicts
    player.run(resolve(INTENT, Settlement.APPLIED, None, "ann", "both were paid", first.last_seq))
    assert not any(o.contradicts for _, o in player.store.operations(BRANCH, open_only=False))
    with pytest.raises(NotInDoubt, match="renewed"):
        player.run(resolve(INTENT, Settlement.APPLIED, None, "ann", "again", None))
    player.opens().performs("paid")
    with pytest.raises(UnknownIntent, match="renewed"):
        renews(player)  # by the name of an intent from before
    assert player.is_sound()


# --- others are faster ------------------------------------------------------------------------------------------------


def test_two_persons_renew_at_once() -> None:
    """The table has the last word: one of them renewed, the other hears it, and it happens once more only (I3)."""
    player = Player().opens()
    player.performs("paid")
    other = Player(player.disk, "q", player.clock)
    player.befalls["Renewed"] = lambda: other.run(renew("orders.db", INTENT, "bob", "again"))
    with pytest.raises(NotInDoubt, match="another generation is current"):
        player.run(renew("orders.db", INTENT, "ann", "again"))
    assert player.operation.generation == 2


@pytest.mark.parametrize("raced", [False, True], ids=["named", "raced"])
def test_a_renewal_that_was_prepared_before_a_call_is_stale(*, raced: bool) -> None:
    """A person saw a refusal; meanwhile it was called and paid: "once more" was not said of that (I3)."""
    player = Player().opens()
    player.raises(NotSent, NotSent("refused"))
    somebody, seen = person(player), player.operation.last_seq
    if raced:
        somebody.befalls["Renewed"] = lambda: player.performs("paid")
    else:
        player.performs("paid")
    with pytest.raises(StaleDecision) as stale:
        somebody.run(renew("orders.db", INTENT, "ann", "again", seen))
    assert stale.value.intent_id == INTENT
    assert player.performs().replayed, "nothing was recorded"
    renews(somebody)
    assert player.operation.generation == 2


def test_an_attempt_that_is_opened_right_after_a_cancellation_is_another_one() -> None:
    """DESIGN 6: a cancel fences its attempt, and not one that is opened between its record and its next look."""
    player = crashed("UNSAFE", "Dispatched")
    script = cancel(BRANCH, "ann", "stop", nothing)
    action = next(script)
    while not isinstance(action, Append):
        action = script.send(player._do(action))
    reply = player._do(action)
    Player(player.disk, "c", player.clock).opens()
    with pytest.raises(StopIteration) as stop:
        while True:
            action = script.send(reply)
            reply = player._do(action)
    assert stop.value.value.verdict is End.CANCELLED
    assert branch_of(player).attempt == 2
    assert not branch_of(player).cancelled


def test_an_operation_that_is_declared_meanwhile_is_not_renewed() -> None:
    """Between the look and the record its owner declared it again, and is about to call it (I2)."""
    player = Player().opens()
    player.raises(NotSent, NotSent("refused"))
    somebody = Player(player.disk, "p", player.clock)
    somebody.befalls["Renewed"] = lambda: interrupted_after(player, perform(player.plan()), 1)
    with pytest.raises(NotInDoubt, match="cannot be renewed now"):
        somebody.run(renew("orders.db", INTENT, "ann", "again"))


def test_an_attempt_that_is_closed_meanwhile_is_not_cancelled() -> None:
    """Between the look and the record its owner ended it for good: there is nothing to cancel any more."""
    player = crashed("UNSAFE", "Dispatched")
    player.befalls["CancelRequested"] = Reason.FENCED
    with pytest.raises(NotInDoubt, match="nothing to cancel"):
        player.run(cancel(BRANCH, "ann", "stop", nothing))


def test_a_doubt_names_the_intent_that_has_it() -> None:
    """Asked by the first attempt's name, in doubt by the second's call: that one is to be resolved."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    with pytest.raises(InDoubt) as raised:
        renews(player)
    assert raised.value.intent_id == "order-1#2/charge"


@pytest.mark.parametrize(("reason", "error"), [(Reason.STALE, StaleDecision), (Reason.NOT_IN_DOUBT, NotInDoubt)])
def test_a_decision_that_was_overtaken(reason: Reason, error: type) -> None:
    """The table has the last word, under the lock."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    player.befalls["Settled(APPLIED)"] = reason
    with pytest.raises(error):
        decides(player, "APPLIED")


# --- a person's program dies, or is stopped ---------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["Dispatched", "call"])
@pytest.mark.parametrize("appends", [1, 2, 3])
def test_recovery_finishes_a_cancellation(at: str, appends: int) -> None:
    """Dead after any of its records: the next recovery ends the branch as the cancellation would have (I9)."""
    whole = crashed("UNSAFE", at)
    whole.run(cancel(BRANCH, "ann", "stop", nothing))
    player = interrupted_after(crashed("UNSAFE", at), cancel(BRANCH, "ann", "stop", nothing), appends)
    assert branch_of(player).is_unfinished
    player.run(recover_branch(BRANCH, nothing, certain=True))
    assert branch_of(player).end is branch_of(whole).end is (End.INDETERMINATE if at == "call" else End.CANCELLED)
    assert not branch_of(player).is_unfinished
    assert player.kinds() == whole.kinds()
    assert player.is_sound()


def test_a_probe_answers_before_a_cancelled_branch_is_closed() -> None:
    """Recovery of a cancelled branch settles what it can: then nothing is in doubt, and it ends CANCELLED."""
    player = interrupted_after(crashed("QUERYABLE", "call", probe=True), cancel(BRANCH, "ann", "stop", nothing), 1)
    player.probes = [APPLIED]
    player.run(recover_branch(BRANCH, here("QUERYABLE", probe=True), certain=True))
    assert branch_of(player).end is End.CANCELLED
    assert player.is_sound()


def test_a_program_that_is_run_again_goes_on_after_a_cancellation_that_died() -> None:
    """DESIGN 6: a cancel fences its attempt, and not the one that somebody opens after it."""
    player = interrupted_after(crashed("UNSAFE", "Dispatched"), cancel(BRANCH, "ann", "stop", nothing), 1)
    assert player.opens().performs("paid").value == "paid"
    assert not branch_of(player).cancelled


@pytest.mark.parametrize("fate", ["landed", "interrupted"])
@pytest.mark.parametrize("name", ["CancelRequested", "Renewed"])
def test_a_person_who_stops_a_decision_sees_that_it_stopped(name: str, fate: str) -> None:
    """Interrupted is between driver and script; written or not, the decision is one record (I7)."""
    player = Player().opens()
    player.performs("paid")
    player.befalls[name] = fate
    script = cancel(BRANCH, "ann", "w", nothing) if name == "CancelRequested" else renew("log", INTENT, "ann", "w")
    with pytest.raises((Stop, Interrupted)) as raised:
        player.run(script)
    assert type(raised.value) is Stop
    kinds = [type(stored.record).__name__ for stored in player.store.history(BRANCH)]
    assert kinds.count(name) == (fate == "landed")
