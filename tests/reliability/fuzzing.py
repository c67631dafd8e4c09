"""How this lab uses Hypothesis: one property, a count of examples, and on failure the command that repeats it.

The quick form always makes the same examples. The full form makes others each time, from a seed that is printed with
the failure; `INTENTLOG_FUZZ_SEED` makes them again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from reliability.conftest import LONG, Lab, repeated

SEED_VARIABLE = "INTENTLOG_FUZZ_SEED"


class Found(AssertionError):
    """An example broke the property."""


def examples(quick: int, long: int) -> int:
    """How many examples this form makes."""
    return long if LONG else quick


def search(
    strategy: SearchStrategy[Any], broken: Callable[[Any], list[str]], number: int, *, shrink: bool = True
) -> tuple[int, list[str], int]:
    """Make examples until one breaks the property, or there are so many.

    Args:
        strategy: makes them.
        broken: what is wrong with one; nothing, if the property holds.
        number: how many at most.
        shrink: whether to look for the smallest one that breaks it: not for a control.

    Returns:
        How many were made, what the smallest one broke, and the seed.
    """
    number_seed = int(os.environ.get(SEED_VARIABLE) or (secrets.randbelow(1 << 32) if LONG else 0))
    made = 0
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @seed(number_seed)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(example: Any) -> None:
        nonlocal made
        made += 1
        if wrong := broken(example):
            raise Found(f"{example!r}: {'; '.join(wrong)}"[:4_000])

    try:
        each()
    except Found as found:
        return made, [str(found)], number_seed
    return made, [], number_seed


def hold(
    lab: Lab, strategy: SearchStrategy[Any], broken: Callable[[Any], list[str]], number: int, *, selects: str
) -> None:
    """The property holds of every example; else the test fails with the smallest, and the command that repeats it.

    Args:
        lab: counts.
        strategy: makes examples.
        broken: what is wrong with one.
        number: how many.
        selects: the `-k` that selects this test.
    """
    made, violations, number_seed = search(strategy, broken, number)
    lab.seen(made, violations, repeat=repeated(SEED_VARIABLE, number_seed, selects))


def caught(
    lab: Lab, name: str, strategy: SearchStrategy[Any], broken: Callable[[Any], list[str]], number: int
) -> list[str]:
    """A control: with the library broken on purpose, the same search finds it."""
    made, violations, _ = search(strategy, broken, number, shrink=False)
    lab.control(name, made, len(violations))
    return violations
