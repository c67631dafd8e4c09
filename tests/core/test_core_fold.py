"""What the records of an operation fold to: doubt per operation, which sticks, and what outcomes make of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import pytest
from core_histories import World, applied, at, build, grown, record_of

from intentlog.core import fold, machine
from intentlog.core import records as r
from intentlog.core.effects import EffectKind
from intentlog.core.records import OutcomeKind, Verdict
from intentlog.core.state import Branch, Fate, Intent, State

ONCE = "open, pending 1, dispatched 1.1"
TWICE = f"{ONCE}, open, pending 2, dispatched 2.2"


def fates(world: World) -> list[str]:
    return [str(dispatch.fate) for dispatch in world.operation().dispatches]


def summary(world: World) -> tuple[str, str, str | None]:
    """Verdict, whether the effect ran, and what it came to."""
    operation = world.operation()
    return str(operation.verdict), operation.effect_ran, str(operation.decided.fate) if operation.decided else None


# --- every constellation of up to three dispatches ------------------------------------------------------------------

ENDINGS = ("calls on", "ended", "suspended", "not_sent", "rejected", "returned")
DECISIONS = ("undecided", "applied", "not_applied")


def orders(count: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every interleaving of `count` dispatches, in order, with their endings, each after its own dispatch."""
    events = [(what, number) for number in range(1, count + 1) for what in ("dispatched", "ends")]
    for order in permutations(events):
        starts = [number for what, number in order if what == "dispatched"]
        sound = all(order.index(("dispatched", n)) < order.index(("ends", n)) for n in starts)
        if sound and starts == sorted(starts):
            yield order


class Oracle:
    """The rules' own words, over what happened to each dispatch, without a line of the code that they judge."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.calling: set[int] = set()
        self.returned = self.applied = self.rejected = False

    @property
    def decided(self) -> bool:
        return self.returned or self.applied or self.rejected

    def tell(self, what: str, number: int) -> None:
        if what == "dispatched":
            self.open.add(number)
            self.calling.add(number)
            return
        self.calling.discard(number)
        if what in ("calls on", "ended"):
            return
        self.open.discard(number)
        if what == "returned":
            self.returned = True
            closed = {other for other in self.open if other < number}  # only RETURNED supersedes, and only older ones
            self.open -= closed
            self.calling -= closed
        self.rejected = self.rejected or what == "rejected"

    def decide(self, decision: str) -> None:
        self.open.clear()
        self.applied = self.applied or decision == "applied"

    def summary(self) -> tuple[str, str]:
        if self.returned or self.applied:
            return "DONE", "yes"
        if self.open:
            return "MAY_HAVE_BEEN_SENT", "unknown"
        return ("DONE" if self.rejected else "NEVER_SENT"), "no"


def put(world: World, text: str, *, admitted: bool) -> World:
    """Put one record to the machine, which is expected to admit it or not."""
    record = record_of(text, world)
    reply = applied(world, record)
    assert isinstance(reply, machine.Change) is admitted, f"{text}: {reply}"
    return grown(world, record, reply) if admitted else world


def play(order: tuple[tuple[str, int], ...], endings: tuple[str, ...]) -> tuple[World, Oracle]:
    """One sequence: dispatch n is made by attempt n; the class is IDEMPOTENT, so that the machine permits a repeat."""
    world, oracle = World(), Oracle()
    for what, number in order:
        if what == "dispatched":
            world = put(world, "open", admitted=True)
            if oracle.decided:
                put(world, f"pending {number}", admitted=False)  # never called again (I3)
                continue
            world = put(world, f"pending {number}", admitted=True)
            count = len(world.operation().dispatches) + 1
            world = put(world, f"dispatched {number}.{count}", admitted=True)
            oracle.tell("dispatched", number)
        elif number in {d.attempt for d in world.operation().dispatches}:
            ending = endings[number - 1]
            if ending == "calls on":
                continue
            admitted = number in oracle.calling or ending not in ("ended", "suspended")
            world = put(world, f"{ending} {number}.{number}", admitted=admitted)
            if admitted:
                oracle.tell(ending, number)
        assert summary(world)[:2] == oracle.summary(), (order, endings)
    return world, oracle


@pytest.mark.parametrize("count", [1, 2, 3])
def test_verdict_and_effect_ran_in_every_constellation(count: int) -> None:
    """Up to three dispatches, each ending, in each order, then each decision: the verdict is the oracle's (I2, I3)."""
    seen = set()
    for order in orders(count):
        for endings in product(ENDINGS, repeat=count):
            world, oracle = play(order, endings)
            seen.add(oracle.summary())
            if not oracle.open or oracle.returned:
                continue
            attempt = max(oracle.open)
            world = put(world, "fence", admitted=True)
            for decision in DECISIONS[1:]:
                settled = put(world, f"{decision} {attempt}", admitted=True)
                later = Oracle()
                later.__dict__.update({**oracle.__dict__, "open": set(oracle.open)})
                later.decide(decision)
                assert summary(settled)[:2] == later.summary()
                assert not settled.operation().open_dispatches, "settling closes every open dispatch"
                assert not settled.operation().is_open
    assert seen == {("DONE", "yes"), ("DONE", "no"), ("NEVER_SENT", "no"), ("MAY_HAVE_BEEN_SENT", "unknown")}


# --- each rule by name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["not_sent", "rejected"])
def test_an_outcome_speaks_for_its_own_dispatch_alone(outcome: str) -> None:
    """NOT_SENT and REJECTED beside an open dispatch: it still may have been sent, and a restart looks at it."""
    world = build(f"{TWICE}, {outcome} 2.2")
    assert fates(world) == ["CALLING", outcome.upper()]
    assert summary(world)[:2] == ("MAY_HAVE_BEEN_SENT", "unknown")
    assert (world.state(1), world.state(2)) == ("DISPATCHED", "COMMITTED")
    assert world.operation().is_open


def test_only_returned_supersedes_older_open_dispatches() -> None:
    """RETURNED closes older open dispatches at once, for itself and everybody; their records come later (I7)."""
    world = build(f"{TWICE}, returned 2.2")
    assert fates(world) == ["SUPERSEDED", "RETURNED"]
    assert summary(world) == ("DONE", "yes", "RETURNED")
    assert world.state(1) == "DISPATCHED", "until Settled(SUPERSEDED) is a record of its own"
    closed = build(f"{TWICE}, returned 2.2, superseded 1")
    assert (closed.state(1), closed.operation().is_open) == ("SETTLED", False)


def test_a_late_return_leaves_newer_dispatches_open() -> None:
    """A RETURNED of an older dispatch is the operation's outcome; the newer call is not known to have ended by it."""
    world = build(f"{TWICE}, returned 1.1")
    assert fates(world) == ["RETURNED", "CALLING"]
    assert summary(world) == ("DONE", "yes", "RETURNED")
    assert world.state(2) == "DISPATCHED"


def test_one_attempt_with_an_open_and_a_closed_dispatch_stays_dispatched() -> None:
    """An intent leaves DISPATCHED only when none of its dispatches is open."""
    for ending in ("not_sent 1.2", "rejected 1.2", "suspended 1.2"):
        world = build(f"{ONCE}, ended 1.1, dispatched 1.2, {ending}")
        assert world.state(1) == "DISPATCHED"
        assert summary(world)[0] == "MAY_HAVE_BEEN_SENT"


def test_settling_closes_every_open_dispatch_of_every_attempt() -> None:
    """APPLIED and NOT_APPLIED speak for the operation: each open dispatch, each intent (I9)."""
    for decision, verdict in (("applied", "DONE"), ("not_applied", "NEVER_SENT")):
        world = build(f"{TWICE}, ended 2.2, dispatched 2.3, fence, {decision} 1")
        assert fates(world) == [decision.upper()] * 3
        assert (world.state(1), world.state(2)) == ("SETTLED", "SETTLED")
        assert summary(world)[0] == verdict


def test_superseded_closes_one_attempts_dispatches() -> None:
    """Settled(SUPERSEDED) speaks for its own attempt: the other's running call is not touched."""
    third = f"{TWICE}, open, pending 3, dispatched 3.3, returned 1.1, superseded 2"
    assert fates(build(third)) == ["RETURNED", "SUPERSEDED", "CALLING"]
    assert build(third).state(3) == "DISPATCHED"


# A dispatch's fate, and the history that gives it to dispatch 1.
WITH_FATE = {
    Fate.RETURNED: f"{ONCE}, returned 1.1",
    Fate.REJECTED: f"{ONCE}, rejected 1.1",
    Fate.NOT_SENT: f"{ONCE}, not_sent 1.1",
    Fate.SUSPENDED: f"{ONCE}, suspended 1.1",
    Fate.APPLIED: f"{ONCE}, ended 1.1, applied 1",
    Fate.NOT_APPLIED: f"{ONCE}, ended 1.1, not_applied 1",
    Fate.SUPERSEDED: f"{TWICE}, returned 2.2",
    Fate.CALLING: ONCE,
    Fate.ENDED: f"{ONCE}, ended 1.1",
}
# What contradicts: it was taken for not having happened and did, or the other way round.
CONTRADICTING = {
    "RETURNED": {"NOT_SENT", "SUSPENDED", "REJECTED", "NOT_APPLIED"},
    "REJECTED": {"RETURNED", "APPLIED"},
    "NOT_SENT": {"RETURNED", "APPLIED"},
}


def check_late(fate: Fate, late: OutcomeKind) -> None:
    """One pair: what the dispatch came to, and whether the operation contradicts."""
    before = build(WITH_FATE[fate])
    assert before.operation().dispatch(1).fate is fate
    after = put(before, f"{late.lower()} 1.1", admitted=True)
    assert after.operation().contradicts is (str(fate) in CONTRADICTING[late])
    still = fate in (Fate.CALLING, Fate.ENDED)
    assert after.operation().dispatch(1).fate == (str(late) if still else fate)
    assert ((fate, late) in fold.CONTRADICTIONS) is after.operation().contradicts
    if late is OutcomeKind.RETURNED:
        assert summary(after)[:2] == ("DONE", "yes")


@pytest.mark.parametrize("late", list(OutcomeKind))
@pytest.mark.parametrize("fate", list(Fate))
def test_late_outcomes_contradict_or_not(fate: Fate, late: OutcomeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair: late evidence is kept, loud where it contradicts; the first outcome of a dispatch stands.

    And CONTRADICTIONS may lose none of its pairs and win no other.
    """
    check_late(fate, late)
    monkeypatch.setattr(fold, "CONTRADICTIONS", fold.CONTRADICTIONS ^ {(fate, late)})
    with pytest.raises(AssertionError):
        check_late(fate, late)


def test_a_contradiction_stays_known() -> None:
    """Loud until a person has said what it came to: that it is done, or that it shall happen once more."""
    contradiction = f"{ONCE}, not_sent 1.1, returned 1.1, returned 1.1"
    assert build(f"{contradiction}, open, note").operation().contradicts
    for decision in ("applied 1", "renewed 1"):
        assert not build(f"{contradiction}, {decision}").operation().contradicts
    assert build(f"{contradiction}, applied 1").operation().verdict is Verdict.DONE, "what is done stays done (I3)"
    assert build(f"{contradiction}, applied 1, returned 1.1").operation().contradicts, "and the next one is heard"


def value_seq(text: str) -> int | None:
    return build(text).operation().decided.value_seq


def test_where_the_value_stands() -> None:
    """The replayed value: returned before found; the first of its kind; filled by a late return or by a person."""
    found = f"{ONCE}, ended 1.1, applied 1"
    assert value_seq(f"{ONCE}, returned 1.1") == 4
    assert value_seq(f"{ONCE}, returned 1.1 valueless") is None
    assert value_seq(found) == 5
    assert value_seq(f"{found} valueless") is None
    assert value_seq(f"{found} valueless, returned 1.1") == 6, "APPLIED, then a late RETURNED fills the value"
    assert value_seq(f"{found}, returned 1.1") == 6
    assert value_seq(f"{found} valueless, supplied 1") == 6
    assert value_seq(f"{ONCE}, returned 1.1 valueless, supplied 1") == 5
    assert value_seq(f"{ONCE}, returned 1.1, returned 1.1") == 4, "the first outcome of a dispatch wins"


@pytest.mark.parametrize("how", ["applied 1", "applied 1 valueless, supplied 1"])
def test_a_late_return_without_a_value_takes_none_away(how: str) -> None:
    """A recorded value is not lost: a late RETURNED that could not store its own leaves the one that stands."""
    found = f"{ONCE}, ended 1.1, {how}"
    assert value_seq(found) is not None
    assert value_seq(f"{found}, returned 1.1 valueless") is not None


def test_a_renewed_operation_is_two() -> None:
    """Renewed ends one generation and begins an empty next one, which its own Pending fills (I9)."""
    world = build(f"{ONCE}, returned 1.1, renewed 1")
    old, new = world.operation(1), world.operation(2)
    assert (old.renewed, old.verdict, old.decided.value_seq) == (True, Verdict.DONE, 4)
    assert (new.generation, new.intents, new.dispatches, new.decided) == (2, (), (), None)
    assert (new.verdict, new.effect_ran, new.request_id) == (Verdict.NEVER_SENT, "no", "")
    assert (new.step, new.tool, new.digest) == (old.step, old.tool, old.digest)
    again = build(f"{ONCE}, returned 1.1, renewed 1, pending 1 g2 UNSAFE, dispatched 1.1 g2")
    assert again.operation(2).declaration.kind is EffectKind.UNSAFE, "declared anew"
    assert again.operation(2).request_id == "id-g2"
    assert again.operation(1) == old, "records speak for their own generation"


def test_declarations_fold_to_the_stricter() -> None:
    """A later Pending may tighten the class, never loosen it (DESIGN 4)."""
    tightened = build(f"{ONCE}, not_sent 1.1, open, pending 2 UNSAFE, dispatched 2.2")
    assert tightened.operation().declaration.kind is EffectKind.UNSAFE
    loosened = build("open, pending 1 UNSAFE, open, pending 2 READ")
    assert loosened.operation().declaration.kind is EffectKind.UNSAFE


def test_probes_and_classifications_leave_the_verdict() -> None:
    """Evidence is remembered and decides nothing; a new dispatch makes an old answer worthless."""
    probed = build(f"{ONCE}, ended 1.1, probed 1.1 NOT_APPLIED")
    assert (probed.operation().last_answer, probed.operation().verdict) == ("NOT_APPLIED", "MAY_HAVE_BEEN_SENT")
    assert build(f"{ONCE}, ended 1.1, probed 1.1, dispatched 1.2").operation().last_answer is None
    classified = build(f"{TWICE}, classified 1").operation()
    assert classified.intents == (
        Intent(1, State.DISPATCHED, Verdict.MAY_HAVE_BEEN_SENT, r.Resolution.RECALL),
        Intent(2, State.DISPATCHED),
    )


def test_a_read_is_done_by_its_one_record() -> None:
    """READ: no dispatch, and decided: RETURNED or REJECTED."""
    for text, fate in (("read 1", "RETURNED"), ("read 1 rejected", "REJECTED")):
        world = build(f"open, {text}")
        assert summary(world) == ("DONE", "yes" if fate == "RETURNED" else "no", fate)
        assert (world.operation().dispatches, world.state(1)) == ((), "COMMITTED")


def test_the_branch_folds() -> None:
    """A new attempt begins uncancelled, unfenced, open; the latest wall clock of the branch never falls."""
    assert build("open, cancel, fence").branch.cancelled
    fresh = build("open, cancel, fence, open").branch
    assert (fresh.attempt, fresh.cancelled, fresh.fenced, fresh.is_open) == (2, False, False, True)
    for text, is_open, unfinished in (
        ("open", True, True),
        ("open, close", False, False),
        ("open, close INDETERMINATE", False, True),
        ("open, fence", False, True),
    ):
        assert (build(text).branch.is_open, build(text).branch.is_unfinished) == (is_open, unfinished)
    earlier = fold.branch(Branch(attempt=1, latest_wall_ns=10**18), r.AttemptFenced(attempt=1), at(0))
    assert earlier.latest_wall_ns == 10**18


def test_a_record_without_its_operation_is_a_fault_of_the_table() -> None:
    """fold trusts machine: what it cannot have admitted breaks loudly."""
    with pytest.raises(AssertionError, match="without an operation"):
        fold.operation(None, r.Dispatched(attempt=1, step="s"), State.DISPATCHED, 1, at(1))


def test_the_better_answer_stands_whichever_came_first() -> None:
    """A value that was returned goes before one that was found, and that before a refusal (I3); no order changes it."""
    beside = f"{TWICE}, ended 2.2"
    for text, fate in (
        (f"{beside}, rejected 1.1, applied 2", "APPLIED"),
        (f"{beside}, rejected 1.1, returned 2.2", "RETURNED"),
        (f"{beside}, returned 2.2, rejected 1.1", "RETURNED"),
        (f"{beside}, applied 2, rejected 1.1", "APPLIED"),
        (f"{beside}, applied 2, returned 1.1", "RETURNED"),
        (f"{beside}, rejected 1.1, rejected 2.2", "REJECTED"),
    ):
        assert build(text).operation().decided.fate == fate, text


def test_a_fence_that_finds_nothing_new_moves_no_bound() -> None:
    """A probe's settle time runs from the first fence after the newest dispatch; later ones do not put it off (I2)."""
    fenced = build(f"{ONCE}, fence")
    assert fenced.branch.fenced_at == at(4)
    for text, second in (
        ("open", 1),
        ("open, open", 1),
        (f"{ONCE}, fence, open", 4),
        (f"{ONCE}, fence, open, pending 2, dispatched 2.2, ended 2.2, fence", 9),
        (f"{ONCE}, open, open, fence", 4),
        (f"{ONCE}, fence, open, pending 2, dispatched 2.2, fence", 8),
        (f"{ONCE}, fence, open, pending 2, fence", 4),
    ):
        assert build(text).branch.fenced_at == at(second), text


def test_a_pending_that_is_withdrawn_takes_no_doubt_along() -> None:
    """NEVER_SENT closes its own intent; what an earlier attempt may have sent stays as it was (I2)."""
    before = build(f"{ONCE}, open, pending 2")
    for how in ("withdrawn 2", "open, never_sent 2"):
        after = build(f"{ONCE}, open, pending 2, {how}")
        assert (after.state(1), after.state(2)) == ("DISPATCHED", "SETTLED")
        assert after.operation().dispatches == before.operation().dispatches
        assert summary(after) == ("MAY_HAVE_BEEN_SENT", "unknown", None)


def test_a_settled_dispatch_is_not_settled_again() -> None:
    """I9: a decision speaks for what was open when it was made, and rewrites no earlier outcome."""
    world = build(f"{ONCE}, not_sent 1.1, pending 1, dispatched 1.2, ended 1.2, applied 1")
    assert fates(world) == ["NOT_SENT", "APPLIED"]
