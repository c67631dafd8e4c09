"""Opening, closing and recovering a branch, and a person's decision, driven by hand (DESIGN 5, 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_player import BRANCH, SECOND, Player, Stop, crashed
from msgspec.structs import replace

from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Call, IntentId, Interrupted, Probe
from intentlog.core.decisions import resolve
from intentlog.core.effects import Declaration
from intentlog.core.lifecycle import perform
from intentlog.core.machine import Reason
from intentlog.core.records import Answer, End, Resolution, Settlement
from intentlog.core.replay import replay
from intentlog.core.restart import close_attempt, known_intent, open_attempt, recover_branch
from intentlog.core.settling import known
from intentlog.errors import BranchBusy, Fenced, InDoubt, NotInDoubt, StaleDecision, UnknownIntent

RESET = ConnectionError("reset")
NOT_APPLIED, APPLIED, UNKNOWN = (Answer.NOT_APPLIED, None), (Answer.APPLIED, b'"found"'), (Answer.UNKNOWN, None)
INTENT = IntentId.of(BRANCH, 1, "charge")


def nothing(_: str) -> None:
    """The tools of a program that has none."""


def here(kind: str, **fields: Any) -> Callable[[str], Declaration]:
    """The tools of a program that has this one."""
    return lambda _: Player().plan(kind, **fields).declaration


def decides(player: Player, settlement: str, **fields: Any) -> None:
    fields = {"intent": INTENT, "payload": None, "by": "ann", "why": "looked", "expect_seq": None, **fields}
    player.run(resolve(settlement=Settlement(settlement), **fields))


def late(player: Player, attempt: int, number: int, outcome: str) -> None:
    record = r.Committed(attempt=attempt, step="charge", dispatch_no=number, outcome=r.OutcomeKind(outcome))
    assert isinstance(player.store.append([Append(BRANCH, record, b'"late"')])[0], Appended)


# --- opening and closing ------------------------------------------------------------------------------------------


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


# --- classification -------------------------------------------------------------------------------------------------


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
    assert player.kinds().count("Settled(NEVER_SENT)") == 1
    assert player.is_sound()


def test_an_intent_that_nobody_classified_is_not_told_of() -> None:
    """Where the record of a conclusion was refused and nobody else's stands, the restart concluded nothing (I9)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    player.befalls["Classified"] = Reason.NOT_IN_DOUBT
    assert player.run(recover_branch(BRANCH, nothing, certain=True)) == []


# --- a person's decision ---------------------------------------------------------------------------------------------


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
    """UnknownIntent, NotInDoubt, StaleDecision: nothing is settled."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    for name in ("order-1#7/charge", "order-1#1/refund"):
        with pytest.raises(UnknownIntent):
            decides(player, "APPLIED", intent=IntentId(name))
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


@pytest.mark.parametrize(("reason", "error"), [(Reason.STALE, StaleDecision), (Reason.NOT_IN_DOUBT, NotInDoubt)])
def test_a_decision_that_was_overtaken(reason: Reason, error: type) -> None:
    """The table has the last word, under the lock."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    player.befalls["Settled(APPLIED)"] = reason
    with pytest.raises(error):
        decides(player, "APPLIED")


@pytest.mark.parametrize("name", ["probe", "owner", "restart"])
def test_a_person_may_have_any_name(name: str) -> None:
    """`by` is who decided: a person called as one of the library's own parts decides like any other (I4)."""
    player = crashed("UNSAFE", "RETURNED", "lost")
    decides(player, "NOT_APPLIED", by=name)


# --- what a store owes --------------------------------------------------------------------------------------------


def test_a_store_that_answers_without_what_it_owes() -> None:
    """The scripts' own assertions are loud."""
    player = Player().opens()
    player.performs("paid")
    with pytest.raises(AssertionError, match="without its operation"):
        known(None)
    with pytest.raises(AssertionError, match="no intent of attempt 9"):
        known_intent(player.operation, 9)
    with pytest.raises(AssertionError, match="without an outcome"):
        next(replay(player.plan(), replace(player.operation, decided=None)))
