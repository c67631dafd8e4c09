"""Opening, closing and recovering a branch, driven by hand: what becomes of what a dead owner left (DESIGN 5, 6)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from core_player import (
    APPLIED,
    BRANCH,
    INTENT,
    NOT_APPLIED,
    RESET,
    SECOND,
    UNKNOWN,
    Player,
    Stop,
    crashed,
    decides,
    here,
    late,
    nothing,
)

from intentlog.core import records as r
from intentlog.core.actions import Append, Interrupted, Probe
from intentlog.core.decisions import cancel, resolve
from intentlog.core.lifecycle import perform
from intentlog.core.machine import Reason
from intentlog.core.records import End, Resolution, Settlement, Verdict
from intentlog.core.restart import close_attempt, close_cancelled, known_intent, open_attempt, recover_branch
from intentlog.errors import BranchBusy, Fenced, InDoubt

# --- opening and closing ----------------------------------------------------------------------------------------------


def test_a_living_owner_keeps_its_branch() -> None:
    """BranchBusy: its attempt is open, or it was closed while a call of it still runs; nothing is written."""
    player = Player().opens()
    other = Player(player.disk, "b", player.clock)
    with pytest.raises(BranchBusy, match="held by a"):
        other.opens()
    script = perform(player.plan())
    action = next(script)
    for _ in range(3):
        action = script.send(player._do(action))
    player.run(close_attempt(BRANCH, 1, End.CANCELLED, None))
    with pytest.raises(BranchBusy):
        other.opens()
    assert other.did == []
    late(player, 1, 1, "RETURNED")
    assert other.opens().attempt == 2


def test_the_second_of_two_openers_hears_that_it_is_busy() -> None:
    """Both saw the same attempt; the table refuses the number that was taken."""
    player = Player()
    player.befalls["AttemptOpened"] = Reason.NUMBER
    with pytest.raises(BranchBusy, match="at the same moment"):
        player.opens()


@pytest.mark.parametrize(
    ("error", "wanted", "end"),
    [
        (None, "COMPLETED", "COMPLETED"),
        (None, "CANCELLED", "CANCELLED"),
        (RESET, "COMPLETED", "INDETERMINATE"),
        (RESET, "CANCELLED", "INDETERMINATE"),
    ],
)
def test_the_records_decide_how_an_attempt_ends(error: Exception | None, wanted: str, end: str) -> None:
    """DESIGN 6: INDETERMINATE if any dispatch has no outcome, whatever was wished for."""
    player = Player().opens()
    if error:
        player.raises(InDoubt, error)
    else:
        player.performs("paid")
    assert player.run(close_attempt(BRANCH, 1, End(wanted), None)) == end
    with pytest.raises(Fenced, match="cannot be closed"):
        player.run(close_attempt(BRANCH, 1, End.COMPLETED, None))


@pytest.mark.parametrize("wanted", [End.COMPLETED, End.FAILED, End.CANCELLED])
def test_what_was_asked_to_stop_ends_cancelled(wanted: End) -> None:
    """DESIGN 6: whichever way its block ended; beside a dispatch without outcome, INDETERMINATE (I9)."""
    player = Player().opens()
    player.performs("paid")
    player.run(cancel(BRANCH, "ann", "stop", nothing))
    assert player.run(close_attempt(BRANCH, 1, wanted, None)) is End.CANCELLED
    assert player.store.branch_view(BRANCH).branch.end is End.CANCELLED
    doubtful = Player().opens()
    doubtful.raises(InDoubt, RESET)
    doubtful.run(cancel(BRANCH, "ann", "stop", nothing))
    assert doubtful.run(close_attempt(BRANCH, 1, wanted, None)) is End.INDETERMINATE


def test_an_owner_that_closes_hears_of_a_cancellation_in_between() -> None:
    """DESIGN 6: who cancelled was told CANCELLED; the owner looked before that, and does not end it as COMPLETED."""
    player = Player().opens()
    player.performs("paid")
    player.befalls["AttemptClosed"] = lambda: player.run(cancel(BRANCH, "ann", "stop", nothing))
    assert player.run(close_attempt(BRANCH, 1, End.COMPLETED, None)) is End.CANCELLED
    assert player.is_sound()


def test_only_what_was_cancelled_is_closed_for_its_owner() -> None:
    """A dead owner's attempt that nobody cancelled stays unfinished, so that a supervisor runs it again."""
    player = crashed("UNSAFE", "Dispatched")
    player.run(recover_branch(BRANCH, nothing, certain=True))
    player.run(close_cancelled(BRANCH))
    assert player.did[-1] == "Settled(NEVER_SENT)"
    assert player.store.branch_view(BRANCH).branch.is_unfinished


def test_recover_closes_what_was_cancelled_before_its_owner_died() -> None:
    """DESIGN 6: cancelled while its owner lived, which then died: recovery ends it, and nobody runs it again (I9)."""
    player = Player().opens()
    player.performs("paid")
    player.run(cancel(BRANCH, "ann", "stop", nothing))
    player = player.dies()
    assert player.run(recover_branch(BRANCH, nothing, certain=True)) == []
    assert player.did == ["AttemptFenced", "AttemptClosed"]
    branch = player.store.branch_view(BRANCH).branch
    assert (branch.end, branch.is_unfinished) == (End.CANCELLED, False)
    assert player.run(recover_branch(BRANCH, nothing, certain=True)) == []
    assert len(player.did) == 2, "once"
    assert player.is_sound()


@pytest.mark.parametrize(
    "script",
    [
        lambda _: open_attempt(BRANCH, "b.1", nothing),
        lambda _: recover_branch(BRANCH, nothing, certain=True),
        lambda _: resolve(INTENT, Settlement.APPLIED, None, "ann", "saw it", None),
    ],
    ids=["open", "recover", "resolve"],
)
def test_a_cancellation_is_not_turned_into_the_drivers_word(script: Any) -> None:
    """Interrupted is between driver and script; the caller of a restart sees its own cancellation."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    player.befalls.update({"AttemptOpened": "landed", "AttemptFenced": "landed"})
    with pytest.raises((Stop, Interrupted)) as raised:
        player.run(script(player))
    assert type(raised.value) is Stop


# --- the two windows, for each class ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["IDEMPOTENT", "KEYED", "QUERYABLE", "UNSAFE"])
def test_window_a_was_never_sent(kind: str) -> None:
    """Died with a lone Pending: NEVER_SENT, each conclusion an append of its own (I7, I9); then it is called."""
    player = crashed(kind, "Dispatched")
    opened = player.run(open_attempt(BRANCH, "b.1", nothing))
    assert player.did == ["AttemptOpened", "Classified", "Settled(NEVER_SENT)"]
    [one] = opened.classifications
    assert one[:4] == (INTENT, "PENDING", Verdict.NEVER_SENT, Resolution.RETRY)
    assert one.seq == player.operation.last_seq
    player.attempt = 2
    assert player.performs("paid", kind=kind).value == "paid"
    assert player.is_sound()


@pytest.mark.parametrize(
    ("kind", "resolution"),
    [("IDEMPOTENT", "RECALL"), ("KEYED", "RECALL"), ("QUERYABLE", "PROBE"), ("UNSAFE", "ASK_PERSON")],
)
def test_window_b_may_have_been_sent(kind: str, resolution: str) -> None:
    """Died calling, or before its outcome: MAY_HAVE_BEEN_SENT, settled by the class (I4)."""
    player = crashed(kind, "RETURNED", "lost", probe=kind == "QUERYABLE")
    opened = player.run(open_attempt(BRANCH, "b.1", nothing))
    assert opened.classifications[0][:4] == (INTENT, "DISPATCHED", Verdict.MAY_HAVE_BEEN_SENT, resolution)
    assert player.did == ["AttemptOpened", "Classified"]
    player.attempt = 2
    player.did.clear()
    if resolution == "ASK_PERSON":
        found = player.raises(InDoubt, kind=kind)
        lands_by = datetime.fromtimestamp((10**18 + player.clock.ns + 15 * SECOND) / 1e9, UTC)
        assert (found.intent_id, found.not_before) == (INTENT, lands_by)
        assert "intentlog resolve orders.db 'order-1#1/charge'" in found.remedy
        assert player.did == []
    elif resolution == "PROBE":
        player.probes = [APPLIED]
        outcome = player.performs(kind=kind, probe=True)
        assert (outcome.value, outcome.replayed) == ("found", True)
        assert player.did == ["probe", "ProbeAnswered(APPLIED)", "Settled(APPLIED)"]
    else:
        assert player.performs("again", kind=kind).value == "again"
        assert player.did == ["Pending", "Dispatched", "call", "RETURNED", "Settled(SUPERSEDED)"]
    assert player.is_sound()


# --- classification ---------------------------------------------------------------------------------------------------


def test_a_restart_concludes_nothing_twice() -> None:
    """recover: fenced once, classified once; it appends nothing when nothing changed, and lists the doubt each time."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    first = player.run(recover_branch(BRANCH, nothing, certain=True))
    assert player.did == ["AttemptFenced", "Classified"]
    second = player.run(recover_branch(BRANCH, nothing, certain=True))
    assert (second, len(player.did)) == (first, 2)
    assert first[0].seq == player.operation.last_seq
    assert player.is_sound()


def test_a_decision_that_time_changes_is_recorded_anew() -> None:
    """I9: the key was remembered, then forgotten: two classifications."""
    player = crashed("KEYED", "RETURNED", "lost", window_s=80)
    assert player.run(recover_branch(BRANCH, nothing, certain=True))[0].resolution is Resolution.RECALL
    player.clock.ns += 60 * SECOND
    assert player.run(recover_branch(BRANCH, nothing, certain=True))[0].resolution is Resolution.ASK_PERSON
    assert player.did == ["AttemptFenced", "Classified", "Classified"]


def test_recover_leaves_a_living_owner_alone() -> None:
    """Nothing is concluded, nothing appended."""
    player = Player().opens()
    assert player.run(recover_branch(BRANCH, nothing, certain=True)) == []
    assert player.did == []


def test_the_stricter_declaration_decides() -> None:
    """DESIGN 4: recorded IDEMPOTENT, now UNSAFE: a person is asked; recorded UNSAFE, now IDEMPOTENT: too."""
    for was, now in (("IDEMPOTENT", "UNSAFE"), ("UNSAFE", "IDEMPOTENT")):
        player = crashed(was, "RETURNED", "lost")
        assert player.run(recover_branch(BRANCH, here(now), certain=True))[0].resolution is Resolution.ASK_PERSON


def test_recover_lets_probes_answer() -> None:
    """It never calls; a tool that this program lacks is not asked."""
    player = crashed("QUERYABLE", "RETURNED", "lost", probe=True)
    assert player.run(recover_branch(BRANCH, nothing, certain=True))[0].resolution is Resolution.PROBE
    player.probes = [UNKNOWN, NOT_APPLIED, APPLIED]
    present = here("QUERYABLE", probe=True)
    for todo in (Resolution.PROBE, Resolution.PROBE, Resolution.REPLAY):
        [one] = player.run(recover_branch(BRANCH, present, certain=True))
        assert (one.resolution, one.seq) == (todo, player.operation.last_seq)
    assert "call" not in player.did
    asked = next(action for action in player.seen if isinstance(action, Probe))
    assert asked[:2] == ("charge", INTENT)
    assert asked.arguments_seq == 2, "where the recorded arguments stand"
    assert player.is_sound()


def twice_dispatched(kind: str, **plan: Any) -> Player:
    """Two attempts that died calling."""
    player = crashed(kind, "RETURNED", "lost", **plan).opens()
    player.probes = [UNKNOWN]
    script = perform(player.plan(kind, **plan))
    action = next(script)
    while not (isinstance(action, Append) and isinstance(action.record, r.Dispatched)):
        action = script.send(player._do(action))
    player._do(action)
    script.close()
    return player.dies("c")


def test_each_classification_carries_the_seq_that_a_decision_needs() -> None:
    """`.seq`: the operation's newest record: give it to `resolve` as `expect_seq`; also where two intents are open."""
    player = twice_dispatched("IDEMPOTENT")
    found = player.run(recover_branch(BRANCH, here("UNSAFE"), certain=True))
    assert [one.intent_id for one in found] == [INTENT, "order-1#2/charge"]
    for one in found:
        assert one.seq == player.operation.last_seq
    decides(player, "APPLIED", expect_seq=found[0].seq)


def test_one_answer_is_told_of_every_intent_that_it_settles() -> None:
    """Two intents of one operation, one probe: both are to be replayed afterwards."""
    player = twice_dispatched("KEYED", probe=True)
    player.probes = [APPLIED]
    found = player.run(recover_branch(BRANCH, here("KEYED", probe=True), certain=True))
    assert player.probes == []
    assert {one.resolution for one in found} == {Resolution.REPLAY}


def test_superseded_names_the_dispatch_that_returned() -> None:
    """A late RETURNED of the first dispatch closes the second attempt's: its record says which one returned."""
    player = twice_dispatched("IDEMPOTENT")
    late(player, 1, 1, "RETURNED")
    player.opens()
    settled = [s.record for s in player.store.history(BRANCH) if isinstance(s.record, r.Settled)]
    assert [(one.attempt, one.superseded_by) for one in settled] == [(2, 1)]
    assert player.is_sound()


def test_what_a_faster_restart_concluded_is_taken() -> None:
    """Two restarts at once: the slower one's records are refused, and it reports what stands."""
    player = crashed("UNSAFE", "Dispatched")
    other = Player(player.disk, "c", player.clock)
    player.befalls["Classified"] = lambda: other.run(recover_branch(BRANCH, nothing, certain=True))
    player.run(recover_branch(BRANCH, nothing, certain=True))
    assert (player.kinds().count("Settled(NEVER_SENT)"), player.kinds().count("Classified")) == (1, 1)
    assert player.is_sound()


def test_two_restarts_at_once_classify_once() -> None:
    """The conclusion of the slower one is refused, since it stands already; both report it (I9)."""
    player = crashed("UNSAFE", "Dispatched", "lost")
    other = Player(player.disk, "c", player.clock)
    faster: list[object] = []
    player.befalls["Classified"] = lambda: faster.extend(other.run(recover_branch(BRANCH, nothing, certain=True)))
    slower = player.run(recover_branch(BRANCH, nothing, certain=True))
    assert player.kinds().count("Classified") == 1
    assert slower == faster != []
    assert player.is_sound()


def test_an_intent_that_nobody_classified_is_not_told_of() -> None:
    """Where the record of a conclusion was refused and nobody else's stands, the restart concluded nothing (I9)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    player.befalls["Classified"] = Reason.NOT_IN_DOUBT
    assert player.run(recover_branch(BRANCH, nothing, certain=True)) == []


def test_an_intent_that_the_store_does_not_owe() -> None:
    """A restart's own assertion is loud: nothing is concluded of an intent that is not there (I9)."""
    player = Player().opens()
    player.performs("paid")
    with pytest.raises(AssertionError, match="no intent of attempt 9"):
        known_intent(player.operation, 9)
