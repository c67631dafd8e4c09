"""The effect classes: what is refused at declaration, and which of two declarations is the stricter (DESIGN 4)."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from intentlog.core import effects
from intentlog.core.effects import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    REPEATABLE,
    UNSAFE,
    Declaration,
    EffectKind,
    nanoseconds,
    stricter,
    wait_before_repeat_ns,
)
from intentlog.errors import ToolMisdefined

SECOND = timedelta(seconds=1)
LINE = ("READ", "IDEMPOTENT", "KEYED", "UNSAFE")  # loosest first; QUERYABLE stands beside KEYED

# Of two classes, whichever was recorded first: the one that decides. KEYED and QUERYABLE: with both probes, else.
STRICTER = {
    **{(a, b): LINE[max(i, j)] for i, a in enumerate(LINE) for j, b in enumerate(LINE)},
    **{pair: "QUERYABLE" for a in ("READ", "IDEMPOTENT", "QUERYABLE") for pair in ((a, "QUERYABLE"), ("QUERYABLE", a))},
    ("UNSAFE", "QUERYABLE"): "UNSAFE",
    ("QUERYABLE", "UNSAFE"): "UNSAFE",
}
MIXED = {("KEYED", "QUERYABLE"), ("QUERYABLE", "KEYED")}


def declared(kind: str, *, probe: bool, size: int = 1) -> Declaration:
    window_ns = 1000 * size if kind == "KEYED" else 0
    return Declaration(
        kind=EffectKind(kind),
        time_limit_ns=10 * size,
        window_ns=window_ns,
        settle_ns=3 * size,
        probe=probe,
        grace_ns=7 * size,
    )


def check_pair(one: EffectKind, other: EffectKind) -> None:
    """One pair, with and without probes: the class, the shorter window, the longer limits, the probe of both."""
    for probe, other_probe, sizes in product((True, False), (True, False), ((1, 2), (2, 1), (1, 1))):
        first = declared(one, probe=probe, size=sizes[0])
        second = declared(other, probe=other_probe, size=sizes[1])
        both = probe and other_probe
        kind = ("QUERYABLE" if both else "UNSAFE") if (one, other) in MIXED else STRICTER[one, other]
        found = stricter(first, second)
        assert found.kind == kind
        assert found.probe is both
        assert found.time_limit_ns == 10 * max(sizes)
        assert found.settle_ns == 3 * max(sizes)
        assert found.grace_ns == 7 * max(sizes)
        windows = [d.window_ns for d in (first, second) if d.kind is EffectKind.KEYED]
        assert found.window_ns == (min(windows) if kind == "KEYED" else 0)
        assert found == stricter(second, first), "it does not matter which was recorded"
        assert stricter(found, found) == found
        assert stricter(found, first) == found, "what was tightened stays so"


@pytest.mark.parametrize(("one", "other"), list(product(EffectKind, repeat=2)))
def test_the_stricter_of_every_pair(one: EffectKind, other: EffectKind) -> None:
    """DESIGN 4: of two declarations both are kept: what either forbids is not done (I4)."""
    check_pair(one, other)


@pytest.mark.parametrize("kind", list(EffectKind))
def test_every_mutation_of_the_strictness_is_caught(kind: EffectKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rank a class is given instead of its own, or if it has none, some pair with it is judged wrongly."""
    ranks = effects._STRICTNESS
    assert set(ranks) == set(EffectKind)
    for other in {-1, *ranks.values(), max(ranks.values()) + 1} - {ranks[kind]}:
        outermost = {EffectKind.READ: -1, EffectKind.UNSAFE: 4}
        if outermost.get(kind) == other:
            continue  # looser than the loosest, stricter than the strictest: the same order
        with monkeypatch.context() as patch:
            patch.setitem(ranks, kind, other)
            with pytest.raises(AssertionError):
                for pair in product(EffectKind, repeat=2):
                    check_pair(*pair)
    monkeypatch.delitem(ranks, kind)
    with pytest.raises(KeyError):
        check_pair(kind, EffectKind.READ)


def test_only_harmless_classes_repeat() -> None:
    """I4: beside an open dispatch, READ, IDEMPOTENT and KEYED may be called again; QUERYABLE and UNSAFE never."""
    assert set(REPEATABLE) == {"READ", "IDEMPOTENT", "KEYED"}


@pytest.mark.parametrize("window", [timedelta(0), -SECOND, timedelta(microseconds=-1)])
def test_a_window_must_be_positive(window: timedelta) -> None:
    """KEYED(window): a key that is remembered for no time is none."""
    with pytest.raises(ToolMisdefined, match="positive window"):
        KEYED(window)


@pytest.mark.parametrize("settle", [-SECOND, timedelta(microseconds=-1), timedelta.min])
def test_a_settle_time_must_not_be_negative(settle: timedelta) -> None:
    """QUERYABLE(settle): zero is an honest answer of a receiver that shows at once."""
    with pytest.raises(ToolMisdefined, match="zero or more"):
        QUERYABLE(settle)


def test_classes_carry_their_times() -> None:
    """The five names of the public face."""
    assert KEYED(timedelta(microseconds=1)) == effects.Effect(EffectKind.KEYED, window_ns=1000)
    assert QUERYABLE(timedelta(0)) == effects.Effect(EffectKind.QUERYABLE)
    assert QUERYABLE(5 * SECOND).settle_ns == 5_000_000_000
    assert [effect.kind for effect in (READ, IDEMPOTENT, UNSAFE)] == ["READ", "IDEMPOTENT", "UNSAFE"]


@pytest.mark.parametrize(
    ("duration", "ns"),
    [
        (timedelta(microseconds=1), 1_000),
        (timedelta(days=1, seconds=2, microseconds=3), 86_402_000_003_000),
        (timedelta(days=36500, microseconds=1), 36500 * 86_400 * 10**9 + 1_000),
        (timedelta(seconds=-1), -1_000_000_000),
    ],
)
def test_durations_are_whole_nanoseconds(duration: timedelta, ns: int) -> None:
    """Without the rounding of total_seconds, at any length."""
    assert nanoseconds(duration) == ns


@pytest.mark.parametrize("duration", [5, 5.0, None, "5s"])
def test_a_time_is_given_as_a_timedelta(duration: object) -> None:
    """A number has no unit; it is refused at the declaration, before anything is recorded."""
    with pytest.raises(ToolMisdefined, match="given as a timedelta"):
        nanoseconds(duration)


def test_a_time_that_64_bits_do_not_hold_is_refused() -> None:
    """The longest one is recorded and read back; a microsecond more is an error at the declaration."""
    longest = timedelta(days=100_000)
    assert nanoseconds(longest) < 1 << 63
    with pytest.raises(ToolMisdefined, match="too long: at most 100000 days"):
        nanoseconds(longest + timedelta(microseconds=1))


def test_the_wait_before_a_repeat_doubles() -> None:
    """Retry's backoff: doubled with each repeat that was made, an hour at most, however often and from whatever."""
    hour = 3600 * 10**9
    assert [wait_before_repeat_ns(10**9, repeats) for repeats in range(4)] == [10**9, 2 * 10**9, 4 * 10**9, 8 * 10**9]
    assert [wait_before_repeat_ns(10**9, repeats) for repeats in (11, 12, 43, 10**6)] == [2048 * 10**9, *[hour] * 3]
    assert [wait_before_repeat_ns(0, repeats) for repeats in (0, 10**6)] == [0, 0]
    assert [wait_before_repeat_ns(1, repeats) for repeats in (41, 42, 10**6)] == [1 << 41, hour, hour]


def test_a_probe_settles_two_classes() -> None:
    """I4: no probe settles what is UNSAFE; READ and IDEMPOTENT need none."""
    assert {"KEYED", "QUERYABLE"} == effects.PROBED
