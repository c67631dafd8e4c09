"""What every harness of the lab owes: its count, its controls, the command that repeats a failure, its line at the end.

Each module names its harness in `HARNESS`. `INTENTLOG_LAB` is the form: "quick" if it is not set, "nightly" (`make
nightly`), or "full" (`make lab-full`), in which no sweep leaves a place out, and which takes hours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import pytest

FORM = os.environ.get("INTENTLOG_LAB") or "quick"
LONG = FORM != "quick"
T = TypeVar("T")
_SHOWN_MAX = 12


def at_most(quick: int, nightly: int) -> int:
    """How many places of a sweep this form takes. In full: all."""
    return by_form(quick, nightly, sys.maxsize)


def by_form(quick: T, nightly: T, full: T) -> T:
    """What of these is this form's."""
    return {"quick": quick, "nightly": nightly, "full": full}[FORM]


def repeated(variable: str, seed: int, selects: str) -> str:
    """The command that makes the choices of this run again."""
    form = f"INTENTLOG_LAB={FORM} " if LONG else ""
    return f"{form}{variable}={seed} make test-reliability PYTEST_ARGS='-k \"{selects}\"'"


class Row(NamedTuple):
    """What one test came to. Sent between processes as a plain tuple."""

    states: int
    violations: int
    control: str  # "" for no control
    caught: int


class Lab:
    """The record of one test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def seen(self, states: int, violations: Sequence[str], *, repeat: str = "") -> None:
        """Count the states or runs that were looked at, and fail where one of them broke a promise.

        Args:
            states: how many; 0 fails, for then nothing was tested.
            violations: what was false, each with what is needed to find it again (a seed, a cut, a call's number).
            repeat: the command that repeats it; by default the one that runs this test.
        """
        self._note(Row(states, len(violations), "", 0))
        assert states > 0, "nothing was tested"
        listing = "\n  ".join(violations[:_SHOWN_MAX])
        command = repeat or f"make test-reliability PYTEST_ARGS='-k {self._item.name}'"
        assert not violations, f"{len(violations)} of {states}:\n  {listing}\nrepeat: {command}"

    def control(self, name: str, states: int, caught: int) -> None:
        """Count where a control, which breaks the promise on purpose, was caught: nowhere means a blind harness."""
        self._note(Row(states, 0, name, caught))
        assert caught, f"{name}: in {states} states or runs nothing was found: this harness sees nothing"

    def _note(self, row: Row) -> None:
        self._item.user_properties.append(("lab", tuple(row)))


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Lab:
    """The record of this test, for the table at the end."""
    return Lab(request.node)


@pytest.fixture
def long() -> bool:
    """Whether this is a long form: nightly or full."""
    return LONG


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let each report say which harness it belongs to, a skipped one too."""
    harness = getattr(getattr(item, "module", None), "HARNESS", None)
    if harness is not None:
        item.user_properties.append(("harness", harness))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits longest begins first: at the end nothing else would be left to do meanwhile."""
    items.sort(key=lambda item: "test_stopped_at_every_point" not in item.name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table: harness, states or runs, violations, controls caught, skipped and why."""
    rows: dict[str, list[Row]] = {}
    skipped: dict[str, list[str]] = {}
    every = [one for reports in terminalreporter.stats.values() for one in reports]
    for report in [one for one in every if isinstance(one, pytest.TestReport)]:  # deselected tests are among them
        properties = dict(report.user_properties)
        if "harness" not in properties or not (report.when == "call" or report.skipped):
            continue
        found = rows.setdefault(properties["harness"], [])
        found += [Row(*value) for name, value in report.user_properties if name == "lab"]
        if report.skipped:
            skipped.setdefault(properties["harness"], []).append(str(report.longrepr[2]).removeprefix("Skipped: "))
    if not rows:
        return
    terminalreporter.section("the lab")
    for line in _table(rows, skipped):
        terminalreporter.write_line(line)


def _table(rows: dict[str, list[Row]], skipped: dict[str, list[str]]) -> list[str]:
    lines = [f"{'harness':<38}{'states or runs':>15}{'violations':>12}{'controls caught':>17}  skipped"]
    for harness, found in sorted(rows.items()):
        controls = [row for row in found if row.control]
        caught = f"{sum(bool(row.caught) for row in controls)} of {len(controls)}" if controls else "-"
        states = sum(row.states for row in found if not row.control)
        why = skipped.get(harness, [])
        text = f"{len(why)}: {'; '.join(sorted(set(why)))}" if why else "none"
        violations = sum(row.violations for row in found)
        lines.append(f"{harness:<38}{states:>15,}{violations:>12}{caught:>17}  {text}")
    return lines
