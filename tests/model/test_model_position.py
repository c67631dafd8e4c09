"""The model may take two scripts for one only if they do the same from now on: what `position` and `liveness` claim."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from model.liveness import live_after
from model.position import position
from model.scopes import LOCK, scope
from model.search import Search
from model.steps import Scope

from intentlog.core.effects import EffectKind


def walks(items: list[int]) -> Generator[Any, Any, None]:
    for item in items:
        yield from asks(item)


def asks(item: int) -> Generator[str, int, int]:
    before = yield "first"
    after = yield "second"
    return item + after + (before if after else 0)


def keeps(first: int) -> Generator[str, int, int]:
    total = first
    return total + (yield "on the stack") + len([one for one in (1, 2) if one < total])


def after(script: Generator[Any, Any, Any], *replies: Any) -> Any:
    next(script)
    for reply in replies:
        script.send(reply)
    return position(script)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        pytest.param(lambda: after(walks([7, 7])), lambda: after(walks([7, 7])), True, id="same"),
        pytest.param(lambda: after(walks([7, 7])), lambda: after(walks([7, 7]), 1, 1), False, id="place-in-a-list"),
        pytest.param(lambda: after(walks([7, 8])), lambda: after(walks([7, 9])), False, id="rest-of-a-list"),
        pytest.param(lambda: after(asks(1), 5), lambda: after(asks(1), 6), False, id="variable-still-read"),
        pytest.param(lambda: after(asks(1)), lambda: after(asks(2)), False, id="argument-still-read"),
        pytest.param(lambda: after(keeps(1)), lambda: after(keeps(2)), False, id="only-on-the-stack"),
    ],
)
def test_positions_tell_apart_what_goes_on_differently(
    one: Callable[[], Any], other: Callable[[], Any], equal: bool
) -> None:
    assert (one() == other()) is equal


def test_a_variable_is_live_until_it_was_read_last() -> None:
    """Also where only a handler reads it."""

    def script(first: int, second: int) -> Generator[Any, Any, int]:
        try:
            yield first
        except ValueError:
            return second
        return 0

    running: Any = script(1, 2)
    next(running)
    assert live_after(running.gi_code, running.gi_frame.f_lasti) == {"second"}


@pytest.mark.parametrize(
    "searched",
    [
        pytest.param(s, id=s.name)
        for s in (
            scope("AB", EffectKind.UNSAFE, LOCK, 1),
            scope("AB", EffectKind.KEYED, LOCK, 1, probe=True),
            scope("Ar", EffectKind.QUERYABLE, LOCK, 2, probe=True),
        )
    ],
)
def test_positions_lose_nothing(searched: Scope) -> None:
    """By position and by every reply that was sent: the same logs, receivers and situations, and the same ends."""
    by_position, by_replies = Search(searched), Search(searched, by_position=False)
    one, other = by_position.run(), by_replies.run()
    assert not one.broken
    assert not other.broken
    assert one.states < other.states
    assert one.situations.keys() == other.situations.keys()
    assert worlds(by_position, list(by_position.states)) == worlds(by_replies, list(by_replies.states))
    assert worlds(by_position, by_position.finals()) == worlds(by_replies, by_replies.finals())


def worlds(search: Search, states: list[Any]) -> set[Any]:
    model = search.model
    return {(state.now, model.log(state).identity(), model.receiver(state)) for state in states}
