"""Retry, and what comes twice or too late in the lifecycle of one effect: a second cancellation, a second failure."""

from __future__ import annotations

import pytest
from core_player import RESET, UNKNOWN, Player, Stop, crashed

from intentlog.core.actions import Call, NotMade
from intentlog.errors import InDoubt, IntentLogError, LogUnavailable, NotSent, OutcomeNotRecorded, Rejected, Suspended


@pytest.fixture
def player() -> Player:
    return Player().opens()


# --- Retry ------------------------------------------------------------------------------------------------------------


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


# --- twice, or beside an earlier call ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "calls"),
    [("Dispatched", "NOT_SENT", ()), ("Pending", "Settled(NEVER_SENT)", ()), ("RETURNED", "RETURNED", ("paid",))],
)
def test_interrupted_twice(player: Player, first: str, second: str, calls: tuple[str, ...]) -> None:
    """A second cancellation, while the first is being recorded, is a cancellation as well: the caller sees one."""
    fate = "interrupted" if first == "RETURNED" else "landed"
    player.befalls[first] = (lambda: player.befalls.update({second: "landed"}), fate)
    player.raises(Stop, *calls)


def test_interrupted_and_then_the_outcome_cannot_be_written(player: Player) -> None:
    """Not landed, and the second try fails: the outcome is still handed to the caller."""
    full = LogUnavailable("full")
    player.befalls["RETURNED"] = (lambda: player.befalls.update({"RETURNED": full}), "interrupted")
    assert player.raises(OutcomeNotRecorded, "paid").outcome == "paid"


@pytest.mark.parametrize("at", ["Pending", "Dispatched"])
def test_a_failed_commit_does_not_deny_an_earlier_call(at: str) -> None:
    """An error's `.effect_ran` folds the operation: with an earlier dispatch open it is not "no"."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.befalls[at] = LogUnavailable("full")
    assert player.raises(LogUnavailable, kind="IDEMPOTENT").effect_ran == "unknown"


def test_an_unwritten_refusal_does_not_speak_for_an_earlier_dispatch() -> None:
    """NOT_SENT that could not be recorded, beside an open dispatch: whether the effect ran is unknown."""
    player = crashed("IDEMPOTENT", "RETURNED", "lost").opens()
    player.befalls["NOT_SENT"] = LogUnavailable("full")
    assert player.raises(OutcomeNotRecorded, NotSent("refused"), kind="IDEMPOTENT").effect_ran == "unknown"


def test_a_probe_of_a_call_not_seen_to_end_does_not_spin(player: Player) -> None:
    """The same with a probe: the machine refuses its answer while a call may run, and asking again cannot end that."""
    player.befalls["CallEnded"] = LogUnavailable("full")
    player.raises(InDoubt, RESET, kind="QUERYABLE", probe=True)
    player.probes = [UNKNOWN] * 50
    player.raises(InDoubt, kind="QUERYABLE", probe=True)
    assert player.did.count("probe") <= 1


def test_a_fenced_owner_is_told_of_a_newer_attempts_doubt() -> None:
    """Its own call was refused before it left; a newer attempt's may have landed: "effect ran" is unknown."""
    player = Player().opens()
    newer = Player(player.disk, "b", player.clock)

    def meanwhile(call: Call) -> Exception:
        player.disk.owners.discard("a")
        newer.opens().raises(InDoubt, RESET, kind="IDEMPOTENT")
        return NotSent("refused")

    assert player.raises(NotSent, meanwhile, kind="IDEMPOTENT").effect_ran == "unknown"


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
