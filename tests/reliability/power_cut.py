"""From a recording to verdicts: every state that a power cut can leave (`cuts`) is laid out, opened and judged."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from reliability import oracle
from reliability.conftest import repeated
from reliability.cuts import cuts
from reliability.disk import ROOT, Disk, File, Note, Operation, Sync
from reliability.marks import Mark, parsed

Left = dict[str, tuple[File, tuple[int, ...]] | None]
_Key = frozenset[tuple[str, int | None]]


def seed() -> int:
    """What the choices of this run follow from: INTENTLOG_LAB_SEED, or by chance."""
    return int(os.environ.get("INTENTLOG_LAB_SEED", "") or secrets.randbits(32))


def repeat(number: int, node: str) -> str:
    """The command that makes the same choices again, in the test of this node id."""
    module, _, test = node.rpartition("/")[2].partition(".py::")
    return repeated("INTENTLOG_LAB_SEED", number, f"{module}.py and {test}")


class State(NamedTuple):
    """A state of the disk, and in which part of the trace a crash can leave it."""

    left: Left
    first: int
    last: int
    name: str

    def lay_out(self, folder: Path) -> None:
        """Make an empty folder this state."""
        for path, file in self.left.items():  # a folder stands before what is in it
            if file is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(file[0].content(file[1]))


class Judged(NamedTuple):
    """What a run of the states came to.

    Attributes:
        raw: choices looked at.
        distinct: different states of the disk among them.
        states: how many of these were opened.
        guilty: how many broke a promise.
        violations: which promise, and where.
    """

    raw: int
    distinct: int
    states: int
    guilty: int
    violations: list[str]


def states_of(operations: Sequence[Operation], number: int, *, effort: int, since: int = 0) -> tuple[list[State], int]:
    """The distinct states that a crash can leave, each with all of the trace in which it can, and the choices made.

    Args:
        operations: the trace.
        number: the seed.
        effort: how much is tried by chance at each point.
        since: how much of the trace is passed over.
    """
    found: dict[_Key, State] = {}
    raw = 0
    for disk, focus in _points(operations):
        if disk.at < since:
            continue
        names: dict[tuple[tuple[int, int], ...], tuple[dict[str, int | None], int]] = {}
        contents: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}
        whole = {node: file.everything for node, file in disk.files.items()}
        for place, cut in enumerate(cuts(disk, focus, Random(f"{number}/{disk.at}/{focus}"), effort=effort)):
            raw += 1
            if (asked := tuple(cut.names.items())) not in names:
                names[asked] = disk.paths(cut.names)
            paths, first = names[asked]
            kept = {path: (node, cut.files.get(node, whole[node])) for path, node in paths.items() if node is not None}
            for choice in kept.values():
                if choice not in contents:
                    file = disk.files[choice[0]]
                    contents[choice] = hash(file.content(choice[1])), file.first(choice[1])
            first = max([first, *(contents[choice][1] for choice in kept.values())])
            key = frozenset((path, contents[kept[path]][0] if path in kept else None) for path in paths)
            old = found.get(key)
            if old is None:
                left = {path: (disk.files[kept[path][0]], kept[path][1]) if path in kept else None for path in paths}
                name = f"seed {number}, operation {disk.at}, file {focus}, choice {place}"
                found[key] = State(left, first, disk.at, name)
            else:
                found[key] = old._replace(first=min(old.first, first), last=disk.at)
    return list(found.values()), raw


def _points(operations: Sequence[Operation]) -> Iterator[tuple[Disk, int]]:
    """The disk right before each sync that had something to do, with what is synced; and at the end, with the rest."""
    disk = Disk()
    for operation in operations:
        if isinstance(operation, Sync) and disk.pending(operation.node):
            yield disk, operation.node
        disk.apply(operation)
    for node in [node for node in [*disk.files, *disk.folders()] if disk.pending(node)] or [ROOT]:
        yield disk, node


Noted = Sequence[tuple[int, Mark]]
"""The marks of a trace, each with its place in it."""


def noted_in(operations: Sequence[Operation]) -> Noted:
    """What was seen while a trace was taken."""
    return [
        (at, parsed(operation.text.encode())[0])
        for at, operation in enumerate(operations)
        if isinstance(operation, Note)
    ]


def marks_of(noted: Noted, state: State) -> list[Mark]:
    """What is held against a state: all that was seen up to its last moment, but only what was tried by its first.

    A crash at any moment in between leaves it. What was acknowledged, called or reported is held against it the later
    the more, and what it may contain is the less the earlier.
    """
    return [mark for at, mark in noted if at < state.last and (mark.kind != "try" or at < state.first)]


def judge(
    operations: Sequence[Operation],
    folder: Path,
    number: int,
    *,
    effort: int,
    opened_max: int,
    caught_max: int = 0,
    since: int = 0,
) -> Judged:
    """Open the states, or a sample of them, and say which promise each breaks.

    Args:
        operations: the trace.
        folder: where each state is laid out in its turn.
        number: the seed.
        effort: see `states_of`.
        opened_max: how many states are opened at most, chosen by the seed.
        caught_max: end after so many guilty ones; 0 for no limit.
        since: see `states_of`.
    """
    states, raw = states_of(operations, number, effort=effort, since=since)
    chosen = Random(number).sample(states, min(opened_max, len(states)))
    noted, violations = noted_in(operations), list[str]()
    opened = guilty = 0
    for state in chosen:
        place = folder / "state"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        state.lay_out(place)
        marks = marks_of(noted, state)
        found = oracle.violations(place / "log.db", marks, made_whole=bool(marks))
        opened += 1
        guilty += bool(found)
        violations += [f"{state.name}: {one}" for one in found]
        if caught_max and guilty >= caught_max:
            break
    return Judged(raw, len(states), opened, guilty, violations)
