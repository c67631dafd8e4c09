"""What a person decides, driven by hand: resolve, supply, renew, cancel, note (DESIGN 3, 5, 6; I9)."""

from __future__ import annotations

from typing import Any

import pytest
from core_player import (
    BRANCH,
    INTENT,
    RESET,
    Player,
    contradicted,
    crashed,
    decides,
    late,
    nothing,
)

from intentlog.core import records as r
from intentlog.core.actions import Call, IntentId
from intentlog.core.decisions import Cancelled, cancel, check_person, note, renew, resolve, supply
from intentlog.core.records import Durability, End, Resolution, Settlement, Verdict
from intentlog.core.restart import close_attempt
from intentlog.core.state import Branch
from intentlog.errors import (
    ArgumentDrift,
    ArgumentsNotRecordable,
    AttemptCancelled,
    InDoubt,
    NotInDoubt,
    NotSent,
    OutcomeUnavailable,
    StaleDecision,
    UnknownIntent,
)


def renews(player: Player, intent: IntentId = INTENT, by: str = "ann") -> None:
    player.run(renew("orders.db", intent, by, "again"))


def supplies(player: Player, payload: bytes = b'"by hand"', intent: IntentId = INTENT) -> None:
    player.run(supply(intent, payload, "ann", "known"))


def cancels(player: Player, branch: str = BRANCH) -> Cancelled:
    return player.run(cancel(branch, "ann", "stop", nothing))


def branch_of(player: Player) -> Branch:
    return player.store.branch_view(BRANCH).branch


def person(player: Player) -> Player:
    """Somebody at the command line, on the same log."""
    return Player(player.disk, "p", player.clock)


DECISIONS = {
    "resolve": lambda by, intent: resolve(intent, Settlement.APPLIED, None, by, "why", None),
    "supply": lambda by, intent: supply(intent, b"1", by, "why"),
    "renew": lambda by, intent: renew("orders.db", intent, by, "why"),
    "cancel": lambda by, intent: cancel(intent.branch, by, "why", nothing),
}


@pytest.mark.parametrize("name", list(DECISIONS))
def test_nobody_passes_for_a_part_of_the_library(name: str) -> None:
    """I9: `by` is who decided; a name that begins as the library's own parts' do is refused, and nothing is written."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    for by in ("intentlog:probe", "intentlog:"):
        with pytest.raises(ArgumentsNotRecordable, match="the library's own"):
            player.run(DECISIONS[name](by, INTENT))
    assert player.did == []
    check_person("intentlog")


@pytest.mark.parametrize("name", ["resolve", "supply", "renew"])
@pytest.mark.parametrize("intent", ["order-1#7/charge", "order-1#1/refund", "order-9#1/charge"])
def test_what_the_log_does_not_have_is_not_decided(name: str, intent: str) -> None:
    """UnknownIntent: another attempt, step or branch than any in the log; nothing is written."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    with pytest.raises(UnknownIntent):
        player.run(DECISIONS[name]("ann", IntentId(intent)))
    assert player.did == []


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_a_person_settles_what_a_dead_owner_left() -> None:
    """Fenced first, then settled: not applied, and it is called; applied with a value, and it is replayed (I9)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    decides(player, "NOT_APPLIED", expect_seq=player.operation.last_seq)
    assert player.did == ["AttemptFenced", "Settled(NOT_APPLIED)"]
    assert player.opens().performs("paid").value == "paid"
    assert player.is_sound()
    other = crashed("UNSAFE", "RETURNED", "lost")
    decides(other, "APPLIED", payload=b'"by hand"')
    assert other.opens().performs().value == "by hand"


def test_a_decision_is_refused_where_none_is_due() -> None:
    """NotInDoubt, StaleDecision: nothing is settled."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    with pytest.raises(StaleDecision, match="prepared at seq 1"):
        decides(player, "APPLIED", expect_seq=1)
    decides(player, "APPLIED")
    with pytest.raises(NotInDoubt, match="DONE") as raised:
        decides(player, "NOT_APPLIED")
    assert raised.value.effect_ran == "yes"
    with pytest.raises(NotInDoubt, match="NEVER_SENT"):
        decides(crashed("UNSAFE", "Dispatched"), "APPLIED")


def test_a_running_call_is_not_in_doubt() -> None:
    """A living owner that may still be calling is not decided about; after its call ended, it is."""
    player = Player().opens()
    person = Player(player.disk, "p", player.clock)

    def meanwhile(_: Call) -> Exception:
        with pytest.raises(NotInDoubt, match="still be calling"):
            decides(person, "APPLIED")
        return RESET

    player.raises(InDoubt, meanwhile)
    decides(player, "APPLIED", payload=b'"by hand"')
    assert player.did[-1] == "Settled(APPLIED)", "its attempt goes on, and is not fenced"
    assert player.performs().value == "by hand"


@pytest.mark.parametrize("name", ["probe", "owner", "restart"])
def test_a_person_may_have_any_name(name: str) -> None:
    """`by` is who decided: a person called as one of the library's own parts decides like any other (I4)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    decides(player, "NOT_APPLIED", by=name)


def test_a_decision_about_an_older_attempt_is_not_one_about_a_newer() -> None:
    """Who looked at the first attempt's call has not looked at the second's: named anew, or with `expect_seq` (I9)."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    with pytest.raises(StaleDecision, match="order-1#2/charge"):
        decides(player, "NOT_APPLIED")
    assert player.operation.effect_ran == "unknown"
    decides(player, "NOT_APPLIED", intent=IntentId.of(BRANCH, 2, "charge"))
    assert player.operation.effect_ran == "no"
    assert player.is_sound()


def test_a_contradiction_is_closed_by_a_person() -> None:
    """I3: it is done; a person who has seen both outcomes says so, and the value that was returned stays."""
    player = contradicted()
    decides(player, "APPLIED", expect_seq=player.operation.last_seq)
    assert player.did == ["AttemptFenced", "Settled(APPLIED)"]
    assert not player.operation.contradicts
    assert player.opens().performs().value == "late"
    with pytest.raises(NotInDoubt, match="DONE"):
        decides(player, "APPLIED")
    assert player.is_sound()


def test_a_contradiction_is_closed_by_the_newest_attempts_name() -> None:
    """Two attempts were closed; the record speaks for the operation, through the one that the log calls newest (I9)."""
    player = Player().opens()
    for owner in ("b", "c"):
        player.raises(NotSent, NotSent("refused"))
        player = player.dies(owner).opens()
    late(player, 1, 1, "RETURNED")
    decides(player, "APPLIED")
    [*_, stored] = player.store.history(BRANCH)
    assert (stored.record.attempt, stored.record.by) == (2, "ann")


@pytest.mark.parametrize(
    ("settlement", "fields", "why"),
    [
        ("NOT_APPLIED", {}, "if it shall happen once more, renew it"),
        ("APPLIED", {"payload": b'"by hand"'}, "it has its outcome; none can be given"),
        ("NOT_APPLIED", {"payload": b'"by hand"'}, "it has its outcome; none can be given"),
    ],
)
def test_a_contradiction_is_not_argued_away(settlement: str, fields: dict[str, Any], why: str) -> None:
    """I3: what returned cannot be said not to have happened, nor to have returned something else."""
    player = contradicted()
    with pytest.raises(NotInDoubt, match=why) as raised:
        decides(player, settlement, **fields)
    assert raised.value.effect_ran == "yes"
    assert player.operation.contradicts
    with pytest.raises(StaleDecision):
        decides(player, settlement, **fields, expect_seq=1)


# --- supply -----------------------------------------------------------------------------------------------------------


def test_a_value_is_supplied_once() -> None:
    """DESIGN 10: done without a value; whoever knows it gives it, and every later replay has it (I9)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    decides(player, "APPLIED")
    player.opens().raises(OutcomeUnavailable)
    supplies(player)
    assert player.performs().value == "by hand"
    with pytest.raises(NotInDoubt, match="it needs no value: it has a value") as raised:
        supplies(player, b"2")
    assert raised.value.effect_ran == "yes"
    assert player.is_sound()


@pytest.mark.parametrize("at", ["call", "Dispatched"])
def test_what_is_not_done_gets_no_value(at: str) -> None:
    """A value does not settle a doubt, nor make done what was never sent."""
    player = crashed("UNSAFE", at)
    with pytest.raises(NotInDoubt, match="needs no value"):
        supplies(player)
    assert player.operation.decided is None


# --- renew ------------------------------------------------------------------------------------------------------------


def test_what_is_renewed_happens_once_more() -> None:
    """DESIGN 3: a new operation, with a key of its own (I6); the first keeps its outcome and its record (I9)."""
    player = Player().opens()
    first = player.performs("paid")
    assert player.performs().replayed
    player.did.clear()
    renews(player)
    assert player.did == ["Renewed"]
    second = player.performs("paid again")
    assert (second.value, second.replayed, second.intent_id) == ("paid again", False, first.intent_id)
    assert second.request_id != first.request_id
    assert player.dies().opens().performs().value == "paid again"
    assert player.is_sound()


@pytest.mark.parametrize("change", [{"digest": "1:ff", "arguments": b'{"cents":2}'}, {"tool": "refund"}])
def test_what_is_renewed_may_be_another_call(change: dict[str, Any]) -> None:
    """I6 holds within an operation: the new one may have other arguments or another tool, and then keeps to them."""
    player = Player().opens()
    player.performs("paid")
    renews(player)
    assert player.performs("other", **change).value == "other"
    assert player.performs(**change).replayed
    player.raises(ArgumentDrift)
    assert player.is_sound()


@pytest.mark.parametrize("error", [NotSent("refused"), RESET])
def test_what_is_closed_may_be_renewed(error: Exception) -> None:
    """Never sent, or settled as not applied: renewed as well, under a new key, in the same attempt."""
    player = Player().opens()
    with pytest.raises((NotSent, InDoubt)):
        player.performs(error)
    if error is RESET:
        decides(player, "NOT_APPLIED")
    before = player.operation.request_id
    renews(player)
    assert player.performs("paid").request_id != before
    assert player.operation.generation == 2
    assert player.is_sound()


def test_a_doubt_is_settled_before_it_is_renewed() -> None:
    """I4: else it might happen twice without anybody having said so; the error names the intent to resolve."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    with pytest.raises(InDoubt, match="settled before it is renewed") as raised:
        renews(player)
    assert "intentlog resolve orders.db 'order-1#1/charge'" in raised.value.remedy
    assert (raised.value.intent_id, raised.value.effect_ran) == (INTENT, "unknown")
    assert player.did == []
    decides(player, "APPLIED", payload=b"1")
    renews(player)
    assert player.opens().performs("paid").replayed is False


def test_a_declared_intent_is_not_renewed() -> None:
    """PENDING: its owner is about to call it; after a restart has closed it, it may be (I2)."""
    player = crashed("UNSAFE", "Dispatched")
    with pytest.raises(NotInDoubt, match="cannot be renewed now") as raised:
        renews(player)
    assert raised.value.effect_ran == "no"
    player.opens()
    renews(player)
    assert player.operation.generation == 2
    assert player.is_sound()


def test_an_operation_is_renewed_once_for_each_call() -> None:
    """Twice in a row is once: a person who asks again hears it. After its next call it may be renewed again."""
    player = Player().opens()
    keys = {player.performs("paid").request_id}
    for generation in (2, 3):
        renews(player)
        for decide in DECISIONS["renew"], DECISIONS["resolve"], DECISIONS["supply"]:
            with pytest.raises(NotInDoubt, match="renewed, and not called since"):
                player.run(decide("ann", INTENT))
        keys.add(player.performs("paid").request_id)
        assert player.operation.generation == generation
    assert len(keys) == 3
    assert player.is_sound()


def test_a_read_is_renewed_and_read_again() -> None:
    """What was read is replayed for ever, until somebody wants to see it anew."""
    read = {"kind": "READ", "read_durability": Durability.IMMEDIATE}
    player = Player().opens()
    first = player.performs("old", **read)
    renews(player)
    second = player.performs("new", **read)
    assert (second.value, second.replayed) == ("new", False)
    assert second.request_id != first.request_id
    assert player.is_sound()


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "end", "verdict", "todo", "settled"),
    [
        ("Dispatched", End.CANCELLED, Verdict.NEVER_SENT, Resolution.RETRY, ["Settled(NEVER_SENT)"]),
        ("call", End.INDETERMINATE, Verdict.MAY_HAVE_BEEN_SENT, Resolution.ASK_PERSON, []),
    ],
)
def test_a_dead_owners_branch_is_closed(
    at: str, end: End, verdict: Verdict, todo: Resolution, settled: list[str]
) -> None:
    """Fenced, what it left open classified, closed by the records (I2, I9); asked again, nothing more is written."""
    player = crashed("UNSAFE", at)
    found = cancels(player)
    assert player.did == ["CancelRequested", "AttemptFenced", "Classified", *settled, "AttemptClosed"]
    assert found.verdict is end
    [one] = found.classifications
    assert one[:4] == (INTENT, "DISPATCHED" if at == "call" else "PENDING", verdict, todo)
    assert one.seq == player.operation.last_seq
    assert branch_of(player).end is end
    assert not branch_of(player).is_unfinished
    before = len(player.did)
    assert cancels(player).verdict is end
    assert player.did[before:] == []
    assert player.is_sound()


def test_there_may_be_nothing_to_cancel() -> None:
    """Ended for good: NotInDoubt; never begun: UnknownIntent, with the name in it. Nothing is written."""
    player = Player().opens()
    player.run(close_attempt(BRANCH, 1, End.COMPLETED, None))
    with pytest.raises(NotInDoubt, match="nothing to cancel"):
        cancels(person(player))
    with pytest.raises(UnknownIntent, match="no attempt at branch 'order-9'"):
        cancels(person(player), "order-9")
    assert not branch_of(player).cancelled


def test_whoever_opens_meanwhile_is_cancelled() -> None:
    """A new attempt between the look and the record: the one that is current is cancelled, not the one that is past."""
    player = crashed("UNSAFE", "Dispatched")
    somebody = person(player)
    somebody.befalls["CancelRequested"] = player.opens
    assert cancels(somebody).verdict is End.CANCELLED
    assert somebody.did == ["CancelRequested", "CancelRequested"]
    assert (branch_of(player).attempt, branch_of(player).cancelled) == (2, True)
    player.raises(AttemptCancelled)


# --- note -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["nothing", "open", "closed", "cancelled"])
def test_a_note_is_taken_whoever_owns_the_branch(text: str) -> None:
    """A program's own event: of the current attempt, whatever its state; it changes nothing else (I5)."""
    player = Player()
    if text != "nothing":
        player.opens()
    if text == "closed":
        player.run(close_attempt(BRANCH, 1, End.COMPLETED, None))
    if text == "cancelled":
        cancels(player)
    before = branch_of(player)
    somebody = person(player)
    assert somebody.run(note(BRANCH, "seen", b'{"by":"ann"}', Durability.IMMEDIATE)) is None
    [*_, stored] = player.store.history(BRANCH)
    assert stored.record == r.ApplicationEvent(attempt=before.attempt, name="seen")
    assert stored.payload == b'{"by":"ann"}'
    after = branch_of(player)
    assert (after.attempt, after.end, after.cancelled) == (before.attempt, before.end, before.cancelled)


def test_a_note_may_wait() -> None:
    """I5: EVENTUAL, it is durable no later than its branch's next Pending or close."""
    player = Player().opens()
    player.run(note(BRANCH, "seen", b"1", Durability.EVENTUAL))
    assert [entry.record.name for entry in player.waiting] == ["seen"]
    player.performs("paid")
    kinds = [type(stored.record).__name__ for stored in player.store.history(BRANCH)]
    assert kinds == ["AttemptOpened", "ApplicationEvent", "Pending", "Dispatched", "Committed"]
