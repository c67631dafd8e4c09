"""What scripts ask and are told: intents' names, who holds a branch, what an append came to (DESIGN 2, 5)."""

from __future__ import annotations

import copy
import pickle

import pytest
from core_histories import at, build
from core_player import Player
from msgspec.structs import replace

from intentlog.core.actions import (
    Appended,
    BranchView,
    ErrorKind,
    IntentId,
    Interrupted,
    Raised,
    Refused,
    View,
)
from intentlog.core.machine import Reason, Refusal
from intentlog.errors import NotSent, Rejected, Suspended


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("order-1042#2/charge", ("order-1042", 2, "charge")),
        ("a/b#12/charge~2", ("a/b", 12, "charge~2")),
        ("a#1/b#2/charge", ("a#1/b", 2, "charge")),
        ("a#1#2/c", ("a#1", 2, "c")),
        ("a#1/c#3", ("a", 1, "c#3")),
        (" #1/ ", (" ", 1, " ")),
        ("ä#1/ö", ("ä", 1, "ö")),
    ],
)
def test_an_intents_name_is_parsed_from_the_right(text: str, parts: tuple[str, int, str]) -> None:
    """`order-1042#2/charge`: a branch may hold `/` and `#`, a step no `/`; a name is text, and read as it was made."""
    intent = IntentId(text)
    assert (intent.branch, intent.attempt, intent.step) == parts
    assert IntentId.of(*parts) == text == str(intent)
    for again in (pickle.loads(pickle.dumps(intent)), copy.deepcopy(intent)):
        assert (type(again), again, again.branch, again.attempt, again.step) == (IntentId, text, *parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b",
        "a#1",
        "a#1/",
        "#1/b",
        "a#/b",
        "a#x/b",
        "a#-1/b",
        "a#1.0/b",
        "a#²/b",
        "a#\u0661/b",
        "a# 1/b",
        "a1/b",
    ],
)
def test_a_malformed_name_is_refused(text: str) -> None:
    """ValueError says the form."""
    with pytest.raises(ValueError, match="BRANCH#ATTEMPT/STEP"):
        IntentId(text)


@pytest.mark.parametrize(
    ("history", "busy"),
    [
        ("open", True),
        ("open, pending 1, dispatched 1.1", True),
        ("open, pending 1, dispatched 1.1, close", True),
        ("open, pending 1, dispatched 1.1, ended 1.1, close", False),
        ("open, pending 1, dispatched 1.1, fence", True),
        ("open, close", False),
        ("open, fence", False),
        ("open, cancel", True),
    ],
)
def test_who_holds_a_branch(history: str, busy: bool) -> None:
    """A living owner with an open attempt or a running call holds its branch; a dead one holds nothing (I2)."""
    world = build(history)
    view = BranchView(world.branch, world.operations, owner_lives=True, now=at(99))
    assert view.busy is busy
    assert not view._replace(owner_lives=False).busy


def test_a_call_of_an_earlier_attempt_holds_nothing() -> None:
    """What an earlier attempt left calling does not keep a later one, which was closed, from being over."""
    world = build("open, pending 1, dispatched 1.1, open, close")
    assert not BranchView(world.branch, world.operations, owner_lives=True, now=at(99)).busy


def test_what_an_interrupted_append_came_to() -> None:
    """The reply to the newest record of the append: those before it waited for it; None where nothing was written."""
    world = build("open")
    view = View(world.branch, None, at(1))
    first, newest = Appended(1, view), Refused(Refusal(Reason.FENCED, ""), view)
    stop = KeyboardInterrupt()
    assert Interrupted([first, newest], stop).reply is newest
    assert Interrupted([first], stop).cause is stop
    assert Interrupted(None, stop).reply is None


def test_a_plan_shows_neither_salt_nor_arguments() -> None:
    """DESIGN 10: it stands in the frames that error reports show: the intent and the tool are enough there."""
    assert repr(Player().opens().plan()) == "Plan(order-1#1/charge, charge)"


@pytest.mark.parametrize(
    ("error", "proved", "at_limit"),
    [
        (TimeoutError(), ErrorKind.NOT_SENT, ErrorKind.AMBIGUOUS),
        (NotSent(), ErrorKind.NOT_SENT, ErrorKind.NOT_SENT),
        (Rejected(), ErrorKind.REJECTED, ErrorKind.REJECTED),
        (Suspended(), ErrorKind.SUSPENDED, ErrorKind.SUSPENDED),
    ],
)
def test_at_its_time_limit_a_call_proves_nothing(error: Exception, proved: ErrorKind, at_limit: ErrorKind) -> None:
    """I4: whatever is declared of a time-out: the guard made it. What a tool says in the library's own words stands."""
    plan = replace(Player().opens().plan(), kind_of=lambda _: proved)
    assert plan.proved_by(Raised(error)) is proved
    assert plan.proved_by(Raised(error, at_limit=True)) is at_limit
