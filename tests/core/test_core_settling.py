"""Probes, driven by hand: what their answers settle, beside what is known, and when they are too early (DESIGN 4)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from core_histories import build
from core_player import (
    APPLIED,
    BRANCH,
    NOT_APPLIED,
    SECOND,
    UNKNOWN,
    Player,
    crashed,
    decides,
)

from intentlog.core import records as r
from intentlog.core.machine import OWNER, RESTART, Reason
from intentlog.core.records import Answer
from intentlog.core.settling import known, never_sent, superseded
from intentlog.errors import InDoubt, NotSent, OutcomeUnavailable, Rejected

SETTLED_BY_PROBE = ["probe", "ProbeAnswered(APPLIED)", "Settled(APPLIED)"]


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
    assert player.operation.decided.value_seq is None, "so that it can be supplied"


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


@pytest.mark.parametrize("at", ["ProbeAnswered(APPLIED)", "Settled(APPLIED)"])
def test_an_answer_that_is_refused_settles_nothing(at: str) -> None:
    """Refused though nobody was faster: in doubt, not asked again without end, and settled by no record (I9)."""
    player = queryable()
    player.probes = [APPLIED] * 9
    player.befalls[at] = Reason.NOT_IN_DOUBT
    player.raises(InDoubt, kind="QUERYABLE", probe=True)
    assert player.did.count("probe") == 1
    assert player.operation.effect_ran == "unknown"


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


# --- the records that close an intent ---------------------------------------------------------------------------------


def test_a_pending_that_is_withdrawn_says_so() -> None:
    """I9: who settled it, and why; it speaks for its own attempt and generation alone."""
    operation = build("open, pending 1, withdrawn 1, open, pending 2").operation()
    record = never_sent(operation, 2, OWNER, "interrupted before dispatch")
    assert record == r.Settled(
        attempt=2,
        step="charge",
        settlement=r.Settlement.NEVER_SENT,
        by="intentlog:owner",
        why="interrupted before dispatch",
    )


@pytest.mark.parametrize(
    ("history", "number", "why"),
    [
        ("open, pending 1, dispatched 1.1, open, pending 2, dispatched 2.2, returned 2.2", 2, "dispatch 2 returned"),
        ("open, pending 1, dispatched 1.1, ended 1.1, applied 1", None, "the operation is done"),
    ],
)
def test_superseded_says_by_what(history: str, number: int | None, why: str) -> None:
    """The dispatch that returned; where none did, that the operation is done is known in another way."""
    record = superseded(build(history).operation(), 1, RESTART)
    assert (record.settlement, record.superseded_by, record.why) == (r.Settlement.SUPERSEDED, number, why)
    assert record.by == "intentlog:restart"


def test_a_store_owes_the_operation_of_a_record() -> None:
    """Answered without it, a script does not go on with a guess."""
    with pytest.raises(AssertionError, match="without its operation"):
        known(None)
    operation = build("open, pending 1").operation()
    assert known(operation) is operation
