"""Restart and probes, driven by hand: what becomes of what a dead owner left, class by class (DESIGN 4, 5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from core_player import BRANCH, SECOND, Player, crashed

from intentlog.core import records as r
from intentlog.core.actions import Call, IntentId
from intentlog.core.decisions import resolve
from intentlog.core.effects import Declaration
from intentlog.core.lifecycle import perform
from intentlog.core.records import Answer, Resolution, Settlement, Verdict
from intentlog.core.restart import open_attempt
from intentlog.errors import (
    InDoubt,
    LogUnavailable,
    NotSent,
    OutcomeUnavailable,
    Rejected,
)

RESET = ConnectionError("reset")
NOT_APPLIED, APPLIED, UNKNOWN = (Answer.NOT_APPLIED, None), (Answer.APPLIED, b'"found"'), (Answer.UNKNOWN, None)
INTENT = IntentId.of(BRANCH, 1, "charge")
SETTLED_BY_PROBE = ["probe", "ProbeAnswered(APPLIED)", "Settled(APPLIED)"]


def nothing(_: str) -> None:
    """The tools of a program that has none."""


def here(kind: str, **fields: Any) -> Callable[[str], Declaration]:
    """The tools of a program that has this one."""
    return lambda _: Player().plan(kind, **fields).declaration


def decides(player: Player, settlement: str, **fields: Any) -> None:
    fields = {"intent": INTENT, "payload": None, "by": "ann", "why": "looked", "expect_seq": None, **fields}
    player.run(resolve(settlement=Settlement(settlement), **fields))


# --- the two windows, for each class ------------------------------------------------------------------------------


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
        assert (found.intent_id, found.not_before) == (INTENT, None)
        assert "intentlog resolve orders.db 'order-1#1/charge'" in found.remedy
        assert player.did == []
    elif resolution == "PROBE":
        player.probes = [APPLIED]
        outcome = player.performs(kind=kind, probe=True)
        assert (outcome.value, outcome.replayed, player.did) == ("found", True, SETTLED_BY_PROBE)
    else:
        assert player.performs("again", kind=kind).value == "again"
        assert player.did == ["Pending", "Dispatched", "call", "RETURNED", "Settled(SUPERSEDED)"]
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


# --- REJECTED beside an open dispatch -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(("answer", "value"), [(UNKNOWN, None), (NOT_APPLIED, None), (APPLIED, "found")])
def test_a_probe_settles_beside_a_rejection(answer: Any, value: str | None) -> None:
    """KEYED with a probe: asked, and never called again, key or not (I3)."""
    player = crashed("KEYED", "RETURNED", "lost", probe=True).opens()
    player.probes = [UNKNOWN, answer]
    player.raises(Rejected, Rejected("no"), kind="KEYED", probe=True)
    if value:
        assert player.performs(kind="KEYED", probe=True).value == value
    else:
        assert player.raises(Rejected, kind="KEYED", probe=True).effect_ran == "unknown"
    assert player.did.count("call") == 1
    assert player.probes == []
    assert player.is_sound()


# --- probes -------------------------------------------------------------------------------------------------------


def queryable() -> Player:
    return crashed("QUERYABLE", "RETURNED", "lost", probe=True).opens()


def test_not_applied_counts_after_its_time() -> None:
    """Too early: InDoubt says from when on; then it settles, and the step is called."""
    player = queryable()
    player.probes = [NOT_APPLIED]
    found = player.raises(InDoubt, kind="QUERYABLE", probe=True)
    assert found.not_before == datetime.fromtimestamp((10**18 + player.clock.ns + 15 * SECOND) / 1e9, UTC)
    assert "run recover again after" in found.remedy
    assert player.did == ["probe", "ProbeAnswered(NOT_APPLIED)"]
    player.clock.ns += 15 * SECOND
    player.probes = [NOT_APPLIED]
    assert player.performs("paid", kind="QUERYABLE", probe=True).value == "paid"
    assert player.did[2:] == ["probe", "Settled(NOT_APPLIED)", "Pending", "Dispatched", "call", "RETURNED"]
    assert player.is_sound()


def test_an_owner_that_may_live_has_its_grace() -> None:
    """Where death is only believed, the grace is added."""
    player = queryable()
    player.clock.ns += 15 * SECOND
    player.probes = [NOT_APPLIED]
    found = player.raises(InDoubt, kind="QUERYABLE", probe=True, death_is_certain=False)
    assert found.not_before == datetime.fromtimestamp((10**18 + player.clock.ns + 10 * SECOND) / 1e9, UTC)


def test_an_unknown_answer_settles_nothing() -> None:
    """UNKNOWN: recorded once, in doubt without a time; an equal repeated answer is not recorded again."""
    player = queryable()
    player.probes = [UNKNOWN, UNKNOWN]
    for _ in range(2):
        assert player.raises(InDoubt, kind="QUERYABLE", probe=True).not_before is None
    assert player.did == ["probe", "ProbeAnswered(UNKNOWN)", "probe"]


def test_applied_without_a_value() -> None:
    """Done, and its value is not there: OutcomeUnavailable."""
    player = queryable()
    player.probes = [(Answer.APPLIED, None)]
    player.raises(OutcomeUnavailable, kind="QUERYABLE", probe=True)
    assert player.did == SETTLED_BY_PROBE


def test_a_person_settles_between_a_probe_and_its_record() -> None:
    """Raced: `expect_seq` refuses the probe's record, and what the person said stands."""
    for at in ("ProbeAnswered(APPLIED)", "Settled(APPLIED)"):
        player = queryable()
        player.probes = [APPLIED]
        person = Player(player.disk, "p", player.clock)
        player.befalls[at] = lambda person=person: decides(person, "APPLIED", payload=b'"by hand"')
        assert player.performs(kind="QUERYABLE", probe=True).value == "by hand"
        assert player.kinds().count("Settled(APPLIED)") == 1
        assert player.is_sound()


@pytest.mark.parametrize("answer", [UNKNOWN, NOT_APPLIED])
def test_a_key_that_is_remembered_helps_an_unanswered_probe(answer: Any) -> None:
    """KEYED with a probe: asked first, then called again with the same key."""
    player = crashed("KEYED", "RETURNED", "lost", probe=True).opens()
    player.probes = [answer]
    assert player.performs("paid", kind="KEYED", probe=True).value == "paid"
    assert player.did[:4] == ["probe", f"ProbeAnswered({answer[0]})", "Pending", "Dispatched"]
    assert player.is_sound()


def test_an_answer_names_a_dispatch_of_its_own_attempt() -> None:
    """Evidence carries (generation, dispatch_no) and speaks only for that dispatch (DESIGN 3)."""
    player = crashed("KEYED", "RETURNED", "lost", probe=True).opens()
    player.probes = [UNKNOWN, APPLIED]
    player.raises(NotSent, NotSent("refused"), kind="KEYED", probe=True)
    player.performs(kind="KEYED", probe=True)
    for answer in (s.record for s in player.store.history(BRANCH) if isinstance(s.record, r.ProbeAnswered)):
        assert player.operation.dispatch(answer.dispatch_no).attempt == answer.attempt
