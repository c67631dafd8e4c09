"""docs/protocol.md is what `make protocol` makes now, and every invariant has tests that say that they hold it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from intentlog.core import check, machine, recovery
from intentlog.core.machine import Event, Reason

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "protocol.py"
MENTIONED = re.compile(r"\bI([0-9]{1,2})\b")  # with more digits it is something else


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


protocol = load()
NUMBERS = list(protocol.invariants())


def test_the_page_is_what_the_script_makes_now() -> None:
    """Tables, guards, invariants and tests change; the page changes with them."""
    if protocol.PAGE.read_text(encoding="utf-8") != protocol.page():
        pytest.fail("docs/protocol.md is not what the code says now: run make protocol", pytrace=False)


def test_the_page_is_stable() -> None:
    """The same whenever it is made: no set's order, no clock, no folder's order is in it."""
    assert load().page() == protocol.page()


@pytest.mark.parametrize("number", NUMBERS)
def test_every_invariant_is_held_by_a_test(number: str) -> None:
    """At least one test that cites it by itself, and not only a module as a whole."""
    assert any(one.names for one in protocol.citations().get(number, ()))


def sources() -> Iterator[Path]:
    """What cites invariants: code, tests and pages; not this file and its script, which speak of citations."""
    folders = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    yield from (path for path in (*folders, *ROOT.glob("*.md")) if path != Path(__file__))


def test_no_citation_is_of_an_invariant_that_does_not_exist() -> None:
    """A number that was mistyped, or whose invariant is gone, is found in whatever text it stands."""
    found = [
        f"{path.relative_to(ROOT)}: I{number}"
        for path in sources()
        for number in MENTIONED.findall(path.read_text(encoding="utf-8"))
        if f"I{number}" not in NUMBERS
    ]
    assert found == []
    assert set(protocol.citations()) <= set(NUMBERS)


def test_every_cell_is_on_the_page() -> None:
    """The page leaves nothing out: each event, guard, reason and row, and each function that checks a history."""
    text = protocol.page()
    rows = {line.split(" | ")[0] for line in text.splitlines()}
    assert {f"| **{event}**" for event in Event} <= rows
    assert {f"| **{doubt}**" for doubt in recovery.TABLE} <= rows
    assert {f"| **{kind.__name__}**" for kind in machine.BRANCH_TABLE} <= rows
    guards = {g for row in machine.TABLE.values() for rule in row.values() for g in rule.guards}
    for name in (*(guard.__name__ for guard in guards), *Reason, *(i.__name__ for i in check.INVARIANTS.values())):
        assert f"`{name}`" in text
    admitted = sum(len(row) for row in machine.TABLE.values())
    table = text.partition("## What may follow what")[2].partition("## ")[0]
    assert table.count("refused |") == len(Event) * 6 - admitted


@pytest.mark.parametrize("guard", list(protocol.guards()), ids=lambda guard: guard.__name__)
def test_every_guard_says_why_it_refuses(guard: machine.Guard) -> None:
    """A guard that asks another one refuses with the other's reasons as well."""
    assert protocol.reasons(guard)
    assert protocol.reasons(machine.closable) == protocol.reasons(machine.open_attempt) == [Reason.FENCED]
    assert protocol.reasons(machine.fenced) == [Reason.FENCED, Reason.CANCELLED]


def test_citations_are_read_from_words() -> None:
    """Single, in a range, in a row; not from a paragraph that says what is not held, nor from a longer word."""
    assert protocol.cited("Holds (I2, I4).") == {"I2", "I4"}
    assert protocol.cited("All of I1-I3, and I8.") == protocol.cited("I1 to I3; I8") == {"I1", "I2", "I3", "I8"}
    assert protocol.cited("It holds I1.\n\nNot in this world: I5, I8.") == {"I1"}
    assert protocol.cited("AI2, I2C and i3 are other things.") == set()
    assert protocol.cited(None) == set()
