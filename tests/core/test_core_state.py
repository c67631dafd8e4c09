"""What the folded rows answer: doubt, verdict, who calls, what is unfinished (DESIGN 2, 3, 5, 6)."""

from __future__ import annotations

import pytest
from core_histories import at, build
from msgspec.structs import replace

from intentlog.core.records import Classified, End, IntentState, Resolution, Verdict
from intentlog.core.state import OPEN_FATES, OPEN_STATES, Branch, Decided, Dispatch, Fate, Intent, State

OPERATION = build("open, pending 1").operation()


def dispatched(*fates: Fate) -> tuple[Dispatch, ...]:
    return tuple(Dispatch(number, number, at(number), fate) for number, fate in enumerate(fates, 1))


@pytest.mark.parametrize("beside", [(), (Fate.ENDED,), (Fate.CALLING,)], ids=str)
@pytest.mark.parametrize("decided", [None, Fate.RETURNED, Fate.APPLIED, Fate.REJECTED])
def test_the_verdict_over_an_operation(decided: Fate | None, beside: tuple[Fate, ...]) -> None:
    """Doubt sticks: REJECTED does not speak for an open dispatch beside it; RETURNED and APPLIED do (I2, I3)."""
    came_to = Decided(decided, 9, 9) if decided else None
    operation = replace(OPERATION, dispatches=dispatched(Fate.NOT_SENT, *beside), decided=came_to)
    done = decided in (Fate.RETURNED, Fate.APPLIED) or (decided is Fate.REJECTED and not beside)
    open_ = Verdict.MAY_HAVE_BEEN_SENT if beside else Verdict.NEVER_SENT
    assert operation.verdict is (Verdict.DONE if done else open_)
    ran = "yes" if decided in (Fate.RETURNED, Fate.APPLIED) else "unknown" if beside else "no"
    assert operation.effect_ran == ran


@pytest.mark.parametrize("fate", list(Fate))
def test_what_of_a_dispatch_is_open(fate: Fate) -> None:
    """Without an outcome: being called, or ended ambiguously. Nothing else may have been sent (I2)."""
    operation = replace(OPERATION, dispatches=dispatched(Fate.NOT_SENT, fate))
    assert (len(operation.open_dispatches) == 1) is (fate in ("CALLING", "ENDED"))
    assert {str(one) for one in OPEN_FATES} == {"CALLING", "ENDED"}


@pytest.mark.parametrize("state", list(State))
def test_what_of_an_intent_is_open(state: State) -> None:
    """PENDING and DISPATCHED: a restart looks at them. A suspended one waits for its program, and is not looked at."""
    operation = replace(OPERATION, intents=(Intent(1, State.COMMITTED), Intent(2, state)))
    assert operation.is_open is (state in ("PENDING", "DISPATCHED"))
    alone = replace(operation, intents=operation.intents[1:])
    assert alone.is_open is operation.is_open
    assert operation.is_listed is operation.is_open
    assert replace(operation, contradicts=True).is_listed, "a person has to look at it"
    assert {str(one) for one in OPEN_STATES} == {"PENDING", "DISPATCHED"}


def test_who_is_calling() -> None:
    """A call belongs to its attempt; one that was seen to end, however, is nobody's (I2)."""
    operation = replace(OPERATION, dispatches=dispatched(Fate.CALLING, Fate.ENDED, Fate.RETURNED))
    assert [operation.calling(attempt) for attempt in (1, 2, 3, 4)] == [True, False, False, False]


def test_a_conclusion_that_stands_already() -> None:
    """Only the newest one, of the same attempt, with the same verdict and the same thing to do, is the same (I9)."""
    known = Intent(1, State.DISPATCHED, Verdict.MAY_HAVE_BEEN_SENT, Resolution.PROBE)
    operation = replace(OPERATION, intents=(known, Intent(2, State.PENDING)))

    def said(attempt: int, verdict: Verdict, todo: Resolution) -> bool:
        fields = {"step": "charge", "last_state": IntentState.DISPATCHED, "classification": verdict, "resolution": todo}
        return operation.says(Classified(attempt=attempt, **fields))

    assert said(1, Verdict.MAY_HAVE_BEEN_SENT, Resolution.PROBE)
    assert not said(1, Verdict.MAY_HAVE_BEEN_SENT, Resolution.ASK_PERSON)
    assert not said(1, Verdict.NEVER_SENT, Resolution.PROBE)
    assert not said(2, Verdict.MAY_HAVE_BEEN_SENT, Resolution.PROBE), "of that intent nothing was concluded"
    assert not said(3, Verdict.MAY_HAVE_BEEN_SENT, Resolution.PROBE), "that intent is not there"


def test_intents_and_dispatches_by_their_number() -> None:
    """The one that is asked for, or None: a record that names another speaks for nothing."""
    operation = replace(
        OPERATION,
        intents=(Intent(1, State.SETTLED), Intent(3, State.PENDING)),
        dispatches=dispatched(Fate.NOT_SENT, Fate.CALLING),
    )
    assert [operation.intent(attempt) for attempt in (1, 2, 3)] == [operation.intents[0], None, operation.intents[1]]
    assert [operation.dispatch(number) for number in (1, 2, 3)] == [*operation.dispatches, None]


@pytest.mark.parametrize(
    ("branch", "is_open", "unfinished"),
    [
        (Branch(), False, False),
        (Branch(attempt=1), True, True),
        (Branch(attempt=1, cancelled=True), True, True),
        (Branch(attempt=1, fenced=True), False, True),
        (Branch(attempt=1, fenced=True, cancelled=True), False, True),
        (Branch(attempt=1, end=End.COMPLETED), False, False),
        (Branch(attempt=1, end=End.FAILED), False, False),
        (Branch(attempt=1, end=End.CANCELLED, cancelled=True), False, False),
        (Branch(attempt=1, end=End.INDETERMINATE), False, True),
        (Branch(attempt=1, end=End.INDETERMINATE, cancelled=True), False, False),
    ],
)
def test_what_is_open_and_what_is_unfinished(branch: Branch, is_open: bool, unfinished: bool) -> None:
    """DESIGN 5, 6: a cancelled attempt is somebody's until it is closed; one that ended in doubt is then not wanted."""
    assert (branch.is_open, branch.is_unfinished) == (is_open, unfinished)
