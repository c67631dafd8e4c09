"""Kills a scene at every system call, looks at what each kill left, and kills the recovery from it again.

strace counts each kind of call by itself, so that a place to be killed at is a name and a number.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from reliability import attached, oracle
from reliability.kill_programs import VALUELESS, Scene, keep, nothing, reopen
from reliability.life import World, finish
from reliability.repeatable import state_of

from intentlog import NotInDoubt, UnknownIntent

TRIES = 3  # for a place that a run did not come to
# How often a program asks for memory, or threads meet, is not the same in every run: a place may not be reached again.
UNSTEADY = frozenset(
    {"brk", "mmap", "munmap", "mremap", "madvise", "futex", "sched_yield", "epoll_wait", "rt_sigreturn"}
)
# What can change a file, or make, name or remove one: between two of these a kill leaves the same.
CHANGES = frozenset({"write", "pwrite64", "ftruncate", "openat", "rename", "unlink", "mkdir", "fchmod", "sendto"})
REOPENING = Scene(nothing, reopen)
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\(", re.MULTILINE)


class Place(NamedTuple):
    """Where a run is killed: at the entry of the nth call of a name."""

    call: str
    number: int


class Left(NamedTuple):
    """A state that a kill left.

    Attributes:
        folder: holds it; nobody has opened it since.
        places: where the run was killed, the first one and then the second, if there is one.
    """

    folder: Path
    places: tuple[Place, ...]


def places_in(trace: Path) -> list[Place]:
    """Every system call of a run, in order, but for the first: in that it waited for strace, and it is begun anew."""
    counts: Counter[str] = Counter()
    places = []
    for call in _CALL.findall(trace.read_text(encoding="utf-8", errors="replace")):
        counts[call] += 1
        places.append(Place(call, counts[call]))
    return places[1:]


class Keeper:
    """A process that keeps the log beside a run."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @classmethod
    @contextmanager
    def beside(cls, folder: Path) -> Iterator[Keeper]:
        """It has the log open while the block runs."""
        with attached.beside(keep, str(folder)) as (pipe, _):
            assert pipe.recv() == "open"
            yield cls(pipe)

    def go_on(self) -> None:
        """Let it make an effect of its own, and close."""
        self._pipe.send("go on")
        assert self._pipe.recv() == "done"


class Run(NamedTuple):
    """A run that has ended, before anybody looked at what it left."""

    ended: attached.Ended
    folder: Path
    trace: Path
    keeper: Keeper | None


class NotReached(AssertionError):
    """A run was to be killed at a call, and ended before it."""


class Sweep:
    """The kills of one scene.

    Attributes:
        kills: runs that were killed.
        checks: distinct states that were looked at.
        not_reached: places of `UNSTEADY` calls that a run did not come to.
        violations: what was false, and where the runs had been killed.
        calls: how often a run was killed at each kind of call.
        states: what each kill left, as a digest.
    """

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.kills = self.checks = self.not_reached = 0
        self.violations: list[str] = []
        self.calls: Counter[str] = Counter()
        self.states: dict[tuple[Place, ...], str] = {}
        self._folder = folder
        self._scene = scene
        self._template = folder / "template"
        self._template.mkdir()
        attached.forked(scene.folder, str(self._template))
        self._seen: set[str] = set()
        self._numbers = iter(range(10**9))
        self._world: World | None = None

    def places(self, *, sound: bool = True) -> list[Place]:
        """Where the scene can be killed: the calls of a run that is let be; which is sound, but for a control's."""
        with self._run(self._template, self._scene) as run:
            if sound:
                assert run.ended.code == 0, f"unharmed it ended with {run.ended}"
                self._look(run, ())
            return places_in(run.trace)

    def second_places(self, left: Left) -> list[Place]:
        """Where the recovery from a first kill can be killed."""
        with self._run(left.folder, REOPENING) as run:
            assert run.ended.code == 0, f"the recovery from {left.places} ended with {run.ended}"
            return places_in(run.trace)

    def kill_first(self, places: Sequence[Place]) -> list[Left]:
        """Kill the scene at each of these; answers the distinct states that are left."""
        return [left for place in places if (left := self._kill(self._template, self._scene, (place,)))]

    def kill_again(self, left: Left, places: Sequence[Place]) -> None:
        """Kill the recovery from a first kill at each of these."""
        for place in places:
            again = self._kill(left.folder, REOPENING, (*left.places, place))
            if again:
                shutil.rmtree(again.folder)

    def _kill(self, origin: Path, scene: Scene, places: tuple[Place, ...]) -> Left | None:
        """Kill one run. Answers the state that it left, if it is a new one; it was looked at then.

        A run that ends without coming to the place, on a busy machine, is made again.
        """
        for _ in range(TRIES - 1):
            with suppress(NotReached):
                return self._kill_once(origin, scene, places)
        return self._kill_once(origin, scene, places)

    def _kill_once(self, origin: Path, scene: Scene, places: tuple[Place, ...]) -> Left | None:
        call, number = places[-1]
        options = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
        with self._run(origin, scene, options) as run:
            if not run.ended.was_killed:
                if call not in UNSTEADY:
                    raise NotReached(f"{places} was not reached: {run.ended}")
                self.not_reached += 1
                return None
            self.kills += 1
            self.calls[call] += 1
            state = self.states[places] = state_of(run.folder, shared=scene.has_keeper)
            if state in self._seen:
                return None
            self._seen.add(state)
            if run.keeper:
                run.keeper.go_on()
            kept = self._folder / f"left-{next(self._numbers)}"
            shutil.copytree(run.folder, kept)
            self._look(run, places)
            return Left(kept, places)

    @contextmanager
    def _run(self, origin: Path, scene: Scene, options: Sequence[str] = ()) -> Iterator[Run]:
        folder, trace = self._folder / "run", self._folder / "trace"
        shutil.copytree(origin, folder)
        try:
            with Keeper.beside(folder) if scene.has_keeper else nullcontext() as keeper:
                listed = ["-o", "/dev/null" if options else str(trace), *options]
                ended = attached.traced(
                    scene.program, str(folder), options=listed, before=scene.before, thread=scene.thread
                )
                if keeper and not options:
                    keeper.go_on()
                yield Run(ended, folder, trace, keeper)
        finally:
            shutil.rmtree(folder)

    def _look(self, run: Run, places: tuple[Place, ...]) -> None:
        """What is false of the log that a run left: at once, and when all of it is carried to its end."""
        self.checks += 1
        world = self._world_in(run.folder)
        found = oracle.violations(world.path, world.marks.read())
        if not found:
            try:
                found = carry_on(world)
            except Exception as error:
                found = [f"it cannot be carried on: {type(error).__name__}: {error}"]
        where = ", then ".join(f"{call} number {number}" for call, number in places) or "not killed"
        self.violations += [f"{where}: {one}" for one in found]

    def _world_in(self, folder: Path) -> World:
        """The one world of this process, moved: a second one's tools would have the first one's names."""
        if self._world is None:
            self._world = World(folder)
        self._world.move_to(folder)
        return self._world


def carry_on(world: World) -> list[str]:
    """Carry every branch to its end, and say what was false on the way, or happened twice."""
    if not world.path.exists():
        return []
    with world.open() as log:
        world.recover(log)
        with suppress(UnknownIntent, NotInDoubt):  # what a person would have supplied
            log.supply(VALUELESS, "looked up", by="ada", why="found it")
    found = [*finish(world), *oracle.of_calls(world.marks.read()), *charges(world)]
    called = {_branch_of(mark.words[0]) for mark in world.marks.calls()}
    got = {_branch_of(mark.words[0]) for mark in world.marks.read() if mark.kind == "got"}
    return [*found, *(f"invented: {branch} is done, and never took place" for branch in sorted(got - called))]


def _branch_of(intent: str) -> str:
    return intent.partition("#")[0]


def charges(world: World) -> list[str]:
    """A receiver that honours keys was asked for one charge of each, whatever repeats it saw."""
    keys: dict[str, set[str]] = {}
    for mark in world.marks.calls():
        keys.setdefault(_branch_of(mark.words[0]), set()).add(mark.words[1])
    return [f"two charges: {b} used {len(k)} keys" for b, k in keys.items() if len(k) > 1 and b.startswith("KEYED")]


def after_changes(places: Sequence[Place]) -> list[Place]:
    """Of places in order, the first and those before which a file may have changed: the others leave what these do."""
    return [place for n, place in enumerate(places) if n == 0 or places[n - 1].call in CHANGES]


def changed_between(places: Sequence[Place], states: dict[tuple[Place, ...], str]) -> list[str]:
    """Where `after_changes` would be wrong: kills with no change between them that left different states."""
    stretch, first, found = 0, dict[int, str](), []
    for n, place in enumerate(places):
        stretch += n > 0 and places[n - 1].call in CHANGES
        state = states.get((place,))
        if state is not None and first.setdefault(stretch, state) != state:
            found.append(f"before {place.call} number {place.number} something changed")
    return found


def spread(places: Sequence[Any], at_most: int, chance: Callable[[], float]) -> list[Any]:
    """So many of them, one of each stretch of equal length, at random; all, if there are no more."""
    if len(places) <= at_most:
        return list(places)
    step = len(places) / at_most
    return [places[int((n + chance()) * step)] for n in range(at_most)]
