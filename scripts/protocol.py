#!/usr/bin/env python3
"""Make docs/protocol.md from the tables themselves: the transitions, the recovery, the invariants and their tests.

The tables are imported from `core/machine.py` and `core/recovery.py`, the invariants' texts are read from machine's
header, and the tests are found by what their docstrings cite: `I4`, or a range, `I1-I4` or `I1 to I9`. A module's
docstring speaks for the module as a whole; in tests/model, where scenarios stand beside tests, every docstring counts.
A paragraph that begins with "Not" says what is not held, and cites nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from intentlog.core import check, machine, recovery
from intentlog.core.effects import EffectKind
from intentlog.core.machine import Event, Guard, Reason
from intentlog.core.records import Answer, Resolution
from intentlog.core.recovery import Doubt, Lever, Next
from intentlog.core.state import State

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "protocol.md"
TESTS = ROOT / "tests"

INVARIANT = re.compile(r"^ +(I\d+) +(\S.*(?:\n {8,}\S.*)*)$", re.MULTILINE)
CITED = re.compile(r"\bI(\d+)\b(?: ?(?:-|\.\.|to) ?I(\d+)\b)?")
LEVERS = {
    Lever.PROBE_AND_KEY: "a probe and the key",
    Lever.PROBE: "a probe",
    Lever.KEY: "the key",
    Lever.NOTHING: "nothing",
}

INTRO = """\
# The protocol

Made by `make protocol` from the code that decides, and from the tests. Do not edit it: `tests/test_protocol_page.py`
fails where it is not what the command makes now.

* A **record** is one line of the log: one append, in a commit of its own. The same record can mean different things
  (a `Settled` may say "never sent" or "applied"), so that the table's rows are **events**: records, told apart where
  their rules differ.
* An **intent** is one attempt at one step of a branch. Its state is what its records so far have made of it.
* A **guard** is a condition that is checked under the branch's lock, in the commit that would carry the record. It
  answers nothing, or a reason. A record that is refused is not written.

How to read a cell: *PENDING, if 1 2* means that the record is admitted if guards 1 and 2 have nothing against it, and
that the intent is PENDING then; *stays* means that the record is kept and the intent's state is as it was.
"""


class Held(NamedTuple):
    """What holds an invariant in one file."""

    path: str
    names: tuple[str, ...]  # its tests, in the file's order
    whole: bool  # the module's docstring cites it


# --- reading the code -----------------------------------------------------------------------------------------------


def invariants() -> dict[str, str]:
    """Number -> text, from the header of machine.py.

    Raises:
        ValueError: the numbers are not I1, I2, ... without a gap.
    """
    _, _, header = (machine.__doc__ or "").partition("\nInvariants")
    found = {number: " ".join(text.split()) for number, text in INVARIANT.findall(header)}
    if not found or list(found) != [f"I{place}" for place in range(1, len(found) + 1)]:
        msg = f"machine.py's header numbers its invariants {list(found)}"
        raise ValueError(msg)
    return found


def guards() -> dict[Guard, int]:
    """Every guard of both tables, and its number: in the order of their first use."""
    rules = (rule for row in machine.TABLE.values() for rule in row.values())
    used = [
        *(guard for rule in rules for guard in rule.guards),
        *(g for row in machine.BRANCH_TABLE.values() for g in row),
    ]
    return {guard: number for number, guard in enumerate(dict.fromkeys(used), 1)}


def reasons(guard: Guard) -> list[Reason]:
    """What a guard may refuse with: by itself, or by another that it asks."""
    found: set[str] = set()
    pending, seen = [guard.__name__], set[str]()
    while pending:
        name = pending.pop()
        seen.add(name)
        for node in ast.walk(ast.parse(dedent(inspect.getsource(vars(machine)[name])))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                found.add(node.attr)
            asked = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if asked not in seen and inspect.isfunction(vars(machine).get(asked)):
                pending.append(asked)
    return [reason for reason in Reason if reason.name in found]


def comments(words: type[StrEnum]) -> dict[str, str]:
    """What the code says beside each word of an enumeration."""
    return dict(re.findall(r'^ +(\w+) = "\w+" +# (.+)$', inspect.getsource(words), re.MULTILINE))


def first_sentence(documented: object) -> str:
    """The docstring's first sentence, in one line."""
    text = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


# --- reading the tests ----------------------------------------------------------------------------------------------


def cited(docstring: str | None) -> set[str]:
    """The invariants that a docstring cites, ranges spelt out."""
    found: set[str] = set()
    for paragraph in (docstring or "").split("\n\n"):
        if not paragraph.lstrip().startswith("Not "):
            for first, last in CITED.findall(paragraph):
                found |= {f"I{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def files_of_tests() -> list[Path]:
    """Every file of the tests, in order."""
    return sorted(TESTS.rglob("*.py"), key=lambda path: path.relative_to(ROOT).parts)


def documented(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Each function and class below a node, by its dotted name, and its docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            yield name, ast.get_docstring(child)
            yield from documented(child, f"{name}.")


def citations() -> dict[str, list[Held]]:
    """Invariant -> the files that hold it, each with its tests."""
    found: dict[str, list[Held]] = {}
    for path in files_of_tests():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_model = "model" in path.relative_to(TESTS).parts
        whole = cited(ast.get_docstring(tree)) if is_model or path.name.startswith("test_") else set[str]()
        names: dict[str, list[str]] = {number: [] for number in whole}
        for name, docstring in documented(tree):
            if is_model or name.rpartition(".")[2].startswith("test_"):
                for number in cited(docstring):
                    names.setdefault(number, []).append(name)
        where = path.relative_to(ROOT).as_posix()
        for number, tests in names.items():
            found.setdefault(number, []).append(Held(where, tuple(tests), number in whole))
    return found


# --- writing the page -----------------------------------------------------------------------------------------------


def page() -> str:
    """The whole page."""
    parts = (INTRO, *transitions(), *recoveries(), *promises())
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def transitions() -> Iterator[str]:
    """What may follow what, the guards, the branch's own records, and the reasons."""
    numbers = guards()

    def conditions(row: Iterable[Guard]) -> str:
        said = " ".join(str(numbers[guard]) for guard in row)
        return f", if {said}" if said else ""

    def cell(event: Event, state: State) -> str:
        rule = machine.TABLE[event].get(state)
        return f"{rule.to or 'stays'}{conditions(rule.guards)}" if rule else "refused"

    yield "## What may follow what\n\nDown: the record. Across: the state of the intent that it speaks for, before it."
    header = ("record", *("no intent yet" if state is State.NONE else str(state) for state in State))
    yield table(header, ((f"**{event}**", *(cell(event, state) for state in State)) for event in Event))
    yield (
        "Guards are asked in the order in which they stand. *Refused* is `NO_TRANSITION`; but a Pending or "
        f"Dispatched of an attempt that may append no more hears what guard {numbers[machine.fenced]} says, so that a "
        "zombie stops instead of looking again. An intent leaves DISPATCHED only when none of its dispatches is open: "
        "an outcome speaks for its own dispatch alone."
    )
    yield "## The branch's own records\n\nThey change no intent."
    yield table(
        ("record", "what it says", "admitted"),
        (
            (f"**{kind.__name__}**", first_sentence(kind), conditions(row).removeprefix(", ") or "always")
            for kind, row in machine.BRANCH_TABLE.items()
        ),
    )
    yield "## The guards"
    yield table(
        ("", "guard", "what must hold", "else"),
        (
            (str(number), f"`{guard.__name__}`", first_sentence(guard), ", ".join(reasons(guard)))
            for guard, number in numbers.items()
        ),
    )
    yield "## The reasons"
    meanings = comments(Reason)
    yield table(("reason", "what it means"), ((f"`{reason}`", meanings[reason]) for reason in Reason))


def recoveries() -> Iterator[str]:
    """The recovery table, and what follows from a probe's answer."""
    yield (
        "## What is done about an operation\n\n"
        "Down: what is known of the operation, over all its dispatches, and its class (the stricter of what was "
        "recorded and what the program declares now).\nAcross: what could still tell. A key counts while its receiver "
        "still remembers it; only KEYED has one."
    )
    yield table(("known", "class", *LEVERS.values()), decisions())
    meanings = {**comments(Resolution), **comments(Doubt)}
    words = (*Resolution, Doubt.REJECTED_BESIDE_OPEN)
    yield "\n".join(f"* `{word}`: {meanings[word]}." for word in words)
    yield (
        "## After a probe\n\n"
        '"Counts" is whether enough time has passed for a write to be seen. The last column is for a key that is '
        "forgotten, for a class that has none, and for a REJECTED beside the doubt, which is never called again."
    )
    rows = ((answer, counts) for answer in Answer for counts in (True, False))
    yield table(
        ("answer", "counts", "while the key is remembered", "else"),
        (
            (f"**{answer}**", "yes" if counts else "no", *map(str, recovery.AFTER_PROBE[answer, counts]))
            for answer, counts in rows
        ),
    )
    said = comments(Next)
    yield "\n".join(f"* `{word}`: {said[word]}." for word in Next if word in said)


def decisions() -> Iterator[tuple[str, ...]]:
    """The rows of the recovery table; one for all classes, where none differs."""
    for doubt in Doubt:
        rows = {kind: tuple(str(recovery.TABLE[doubt][kind][lever]) for lever in LEVERS) for kind in EffectKind}
        if len(set(rows.values())) == 1:
            yield f"**{doubt}**", "any", *rows[EffectKind.UNSAFE]
        else:
            yield from ((f"**{doubt}**", str(kind), *cells) for kind, cells in rows.items())


def promises() -> Iterator[str]:
    """The invariants, and what holds each."""
    held = citations()
    yield (
        "## The invariants\n\n"
        "A test holds an invariant if its docstring cites it. A file in bold does so as a whole: the docstring of the "
        "module cites it. What can be seen in a branch's records alone is checked of any log by `intentlog verify` "
        "as well."
    )
    yield table(
        ("", "invariant", "seen by `verify`", "tests", "files"),
        (
            (
                f"[{number}](#{number.lower()})",
                text,
                "yes" if number in check.INVARIANTS else "no",
                str(sum(len(one.names) for one in held.get(number, ()))),
                str(len(held.get(number, ()))),
            )
            for number, text in invariants().items()
        ),
    )
    for number, text in invariants().items():
        yield f"### {number}\n\n{text}"
        function = check.INVARIANTS.get(number)
        if function:
            words = first_sentence(function).removeprefix(f"{number}: ")
            yield f"Over a history: `core/check.py`, `{function.__name__}`: {words}"
        yield "\n".join(map(line, held.get(number, ())))


def line(one: Held) -> str:
    """One file, and its tests."""
    path = f"**{one.path}**" if one.whole else one.path
    names = ", ".join(f"`{name}`" for name in one.names)
    return f"* {path}::{names}" if names else f"* {path}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
