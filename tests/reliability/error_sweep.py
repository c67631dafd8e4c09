"""Fails the system calls that a client's log makes, one at a time or from one on, and looks at what came of it.

strace fails only calls that have to do with the log's files (`-P`), so that the client can always write its marks.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reliability import attached, oracle
from reliability.error_programs import client
from reliability.error_rules import lies, untold
from reliability.kill_sweep import carry_on
from reliability.life import World
from reliability.marks import Mark, parsed
from reliability.repeatable import state_of

CALLS = ("pwrite64", "write", "fdatasync", "fsync", "ftruncate", "openat", "unlink", "rename", "mkdir", "flock")
ERRORS = ("EIO", "ENOSPC", "EINTR")
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)$")
_MARK = re.compile(r'"(?:try|ack|failed|noted|call|got|said|phase|error)\\t')


class Fault(NamedTuple):
    """Which calls fail, and how.

    Attributes:
        call: the kind of call.
        error: the error that it answers.
        number: the first of them that does, counted among those that have to do with the log's files.
        on: whether later ones do too: all of them, but for EINTR, after which a call is made again: every second one.
    """

    call: str
    error: str
    number: int
    on: bool

    @property
    def option(self) -> str:
        """What strace is told."""
        every = {(False, True): "+", (True, True): "+2"}.get(
            (self.error == "EINTR" and not self._is_final, self.on), ""
        )
        return f"inject={self.call}:error={self.error}:when={self.number}{every}"

    @property
    def _is_final(self) -> bool:
        """Whether nobody makes the call again after EINTR: then it may be answered for ever."""
        return self.call == "fdatasync"


class Place(NamedTuple):
    """A call of the undisturbed run: what it is about, and the last mark before it."""

    about: str
    mark: int


class ErrorSweep:
    """The faults of one client in one folder.

    Attributes:
        runs: how often the client was run with a fault that struck.
        checks: distinct states that were opened again.
        violations: what was false, with the fault.
        told: the errors that the client was told, by their types.
    """

    def __init__(self, folder: Path, made: Callable[[str], None]) -> None:
        self.runs = self.checks = 0
        self.violations: list[str] = []
        self.told: Counter[str] = Counter()
        self._folder = folder
        self._run = folder / "run"
        self._template = folder / "template"
        self._template.mkdir()
        attached.forked(made, str(self._template))
        marks = self._template / "marks"
        self._before = parsed(marks.read_bytes()) if marks.exists() else []
        self._world: World | None = None
        self._seen: set[str] = set()
        self._paths: list[str] = []
        self.places = self._listen()

    def _listen(self) -> dict[str, list[Place]]:
        """The calls about the log's files, in an undisturbed run, which must be sound."""
        trace = self._folder / "trace"
        listed = ["-o", str(trace), "-s", "8", "-e", "trace=" + ",".join(CALLS)]
        self._once("", client, listed)
        assert not self.violations, self.violations
        assert set(self.told) <= {"InDoubt"}, self.told  # of the effect whose answer is lost
        text = trace.read_text(encoding="utf-8", errors="replace")
        found = set(re.findall(rf'"({re.escape(str(self._run))}/log[^"]*)"', text))
        own = [
            str(self._run / "log"),
            *found,
            *(f"{path}{end}" for path in found for end in ("-wal", "-shm", "-journal")),
        ]
        self._paths = [word for path in sorted(set(own)) for word in ("-P", path)]
        self._once("", client, [*listed, "-y", *self._paths, "-P", str(self._run / "marks")])
        places: dict[str, list[Place]] = {call: [] for call in CALLS}
        mark = len(self._before) - 1
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
            matched = _LINE.match(line)
            if matched is None:
                continue
            call, rest = matched.groups()
            if f"<{self._run}/marks>" in rest and call == "write":
                mark += 1
            elif f"{self._run}/marks" not in rest:
                places[call].append(Place(rest, mark - len(self._before)))
        return places

    def faults(self, call: str, errors: Sequence[str] = ERRORS) -> list[Fault]:
        """Every fault of a kind of call."""
        numbers = range(1, len(self.places[call]) + 1)
        return [Fault(call, error, number, on) for number in numbers for error in errors for on in (False, True)]

    def fail(self, fault: Fault, program: Callable[..., None] = client) -> None:
        """Run the client with a fault, and look at what came of it."""
        trace = self._folder / "trace"
        options = ["-o", str(trace), "-e", f"trace={fault.call}", *self._paths, "-e", fault.option]
        marks = self._once(str(fault), program, options)
        assert "(INJECTED)" in trace.read_text(encoding="utf-8", errors="replace"), f"{fault} did not strike"
        place = self.places[fault.call][fault.number - 1]
        is_of_commit = 0 <= place.mark < len(marks) and marks[place.mark].kind == "try"
        if fault.call == "fdatasync" and "-wal>" in place.about and is_of_commit:
            self.violations += [f"{fault}: {one}" for one in untold(marks, place.mark)]

    def shorten(self, program: Callable[..., None], *arguments: Any) -> bool:
        """Run a client whose writes are done in part. Whether one was."""
        self._once(f"{program.__name__}{arguments}", program, ["-o", "/dev/null", "-e", "trace=none"], *arguments)
        return self._was_shortened

    def _once(self, what: str, program: Callable[..., None], options: Sequence[str], *arguments: Any) -> list[Mark]:
        shutil.copytree(self._template, self._run)
        try:
            ended = attached.traced(program, str(self._run), *arguments, options=options)
            marks = parsed((self._run / "marks").read_bytes())
            new = marks[len(self._before) :]
            self.runs += 1
            self.told.update(mark.words[0] for mark in new if mark.kind == "error")
            found = [] if ended.code == 0 else [f"it ended with {ended}"]
            found += lies(self._before, new)
            self._was_shortened = (self._run / "shortened").exists()
            state = state_of(self._run)
            if state not in self._seen:
                self._seen.add(state)
                found += self._reopened()
            self.violations += [f"{what}: {one}" for one in found]
            return new
        finally:
            shutil.rmtree(self._run)

    def _reopened(self) -> list[str]:
        """What is false when the log is opened again, without faults, and carried to its end."""
        self.checks += 1
        if self._world is None:
            self._world = World(self._run)
        self._world.move_to(self._run)
        found = oracle.violations(self._world.path, self._world.marks.read())
        try:
            return found or carry_on(self._world)
        except Exception as error:
            return [f"it cannot be carried on: {type(error).__name__}: {error}"]
