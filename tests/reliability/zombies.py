"""A process that is stopped at a failpoint while another takes its place, and then goes on as if nothing had been.

A scene is what was done before, and the program of the one that is stopped; a taker is the program of the other. The
other takes the stopped owner for dead, though it lives: by its word alone (`by_hint`), as a lease that ran out would
say, or because the owner's lock file was removed. Liveness is a hint, and the fence is the guarantee.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from reliability import forked
from reliability.life import BRANCHES, World
from reliability.marks import mark_appends
from reliability.oracle import of_calls, violations

from intentlog import (
    Applied,
    AsyncLog,
    Durability,
    InDoubt,
    IntentLogError,
    Log,
    NotSent,
    Rejected,
    Settings,
    Suspended,
    failpoints,
)
from intentlog.core import machine
from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore

GRACE = timedelta(milliseconds=30)  # a call begins so soon after its permission, or not at all
BETWEEN = ("after_dispatched", "before_call")  # where the one that goes on may still call, but for the grace


class Stage(World):
    """The world, with a short grace, and its log in a file."""

    store: Any = SqliteStore
    grace = GRACE

    def engine(self) -> Engine:
        store = SqliteStore(self.path, SystemClock(), LoggingObserver(), wal_bytes=0)
        return Engine(store, Settings(dispatch_grace=self.grace), store._clock, LoggingObserver())

    def open(self, *, wal_bytes: int = 0) -> Log:
        return Log(self.engine())

    def violations(self) -> list[str]:
        """What is false of the log, by what was marked."""
        return violations(self.path, self.marks.read())

    def wait_for_death(self) -> None:
        """Until whoever was killed is known to be dead: at once."""


class NotReached(Exception):
    """The point was not reached: on a slow machine a call may come too late after its permission, and is not made."""


Program = Callable[[Stage, str], None]


# --- what is stopped ----------------------------------------------------------------------------------------------


def effect(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        stage.effect(log, branch)


def effect_async(stage: Stage, branch: str) -> None:
    """The same on a loop; the tool runs in a thread, the appends in others."""
    handle = stage.tools[branch.partition("-")[0]]

    async def main() -> None:
        async with AsyncLog(stage.engine) as log, log.attempt(branch) as attempt:
            outcome = await attempt.perform(handle, branch, amount=1999)
            stage.marks.tell("got", outcome.intent_id, outcome.value)

    with suppress(InDoubt, NotSent, Suspended, TimeoutError, Rejected):
        asyncio.run(main())


def recover(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        stage.recover(log)


def recover_async(stage: Stage, branch: str) -> None:
    async def main() -> None:
        async with AsyncLog(stage.engine) as log:
            for one in await log.recover():
                stage.marks.tell("said", one.intent_id, one.classification.name)

    asyncio.run(main())


def resolve(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        stage.resolve(log)


def resolve_bare(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        log.resolve(f"{branch}#1/effect", Applied(), by="ada", why="looked")


def supply(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        log.supply(f"{branch}#1/effect", "receipt", by="ada", why="looked")


def renew(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        log.renew(f"{branch}#1/effect", by="ada", why="once more")


def cancel(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        log.cancel(branch, by="ada", why="not wanted")


def event(stage: Stage, branch: str) -> None:
    with stage.open() as log:
        log.append(branch, "planned", {"n": 1})
        log.append(branch, "approved", {"n": 2}, durability=Durability.IMMEDIATE)


class Scene(NamedTuple):
    """What was done before, each killed at a point or not at all, and what is stopped."""

    before: tuple[tuple[Program, str], ...]
    stopped: Program
    branch: str

    def __str__(self) -> str:
        done = "".join(f"{program.__name__}@{point or 'end'}-" for program, point in self.before)
        return f"{self.branch}-{done}{self.stopped.__name__}"


def scenes(kind: str) -> list[Scene]:
    """First runs with every ending; second ones and recoveries after a kill in window B; of UNSAFE also decisions."""
    endings = [b for b in BRANCHES if b.startswith(f"{kind}-")]
    found = [Scene((), one, b) for b in endings for one in (effect, effect_async)]
    branch = f"{kind}-returned"
    for landed in ("before_call", "before_committed") if kind != "READ" else ():
        found += [Scene(((effect, landed),), one, branch) for one in (effect, effect_async, recover, recover_async)]
    if kind == "UNSAFE":
        in_b = ((effect, "before_committed"),)
        found += [Scene(in_b, one, branch) for one in (resolve, cancel)]
        found.append(Scene((*in_b, (resolve_bare, "")), supply, branch))
        found += [Scene(((effect, ""),), one, branch) for one in (renew, event)]
        found.append(Scene(((effect, "before_dispatched"),), cancel, branch))
    return found


# --- what takes its place -----------------------------------------------------------------------------------------


def take_over(stage: Stage, branch: str) -> None:
    """A recovery says what it finds, and a new attempt goes on."""
    stage.first = False
    with stage.open() as log:
        stage.recover(log)
        stage.effect(log, branch)


def decide(stage: Stage, branch: str) -> None:
    """A person looks at the receiver, and decides every doubt and once more what is done."""
    with stage.open() as log:
        stage.recover(log)
        stage.resolve(log)
        with suppress(IntentLogError):
            log.renew(f"{branch}#1/effect", by="ada", why="once more")


class Taker(NamedTuple):
    """A program, and how the owner is taken for dead: "hint", "lock", "lease"; "" where the fence needs no death."""

    program: Program
    dead: str

    def __str__(self) -> str:
        return f"{self.program.__name__}-{self.dead or 'beside'}"


TAKERS = (
    Taker(take_over, "hint"),
    Taker(take_over, "lock"),
    Taker(recover, "hint"),
    Taker(decide, "hint"),
    Taker(decide, "lock"),
    Taker(cancel, ""),
)


def by_hint() -> None:
    """In a child: whoever is not this one is dead. Only a hint, and so not certain."""
    SqliteStore._lives = lambda self, owner: bool(owner) and owner.partition(".")[0] == self.owner
    SqliteStore.death_is_certain = False


def remove_locks(stage: Stage) -> None:
    """The owners' lock files are gone, by whatever hand."""
    for lock in stage.path.with_name("log.db.d").glob("owner-*.lock"):
        lock.unlink()


def without_fence(*, blind: bool) -> None:
    """The control, in the zombie's process: Pending and Dispatched do not ask whose branch it is.

    Args:
        blind: nor does Dispatched ask in what state its intent is.
    """
    for column in (machine.Event.PENDING, machine.Event.DISPATCHED):
        table = machine.TABLE[column]
        for state, rule in table.items():
            guards = tuple(one for one in rule.guards if one is not machine.fenced)
            table[state] = rule._replace(guards=guards)
    if blind:
        table = machine.TABLE[machine.Event.DISPATCHED]
        for state in machine.State:
            table.setdefault(state, machine.Rule(machine.State.DISPATCHED, (machine.next_dispatch,)))


# --- one state ------------------------------------------------------------------------------------------------------


def points_of(stage: Stage, scene: Scene) -> list[str]:
    """The points that the stopped program reaches, with their count."""
    prepare(stage, scene)

    def traced() -> None:
        failpoints.reached = lambda name: stage.marks.tell("point", name)
        failpoints.are_armed = lambda: True
        scene.stopped(stage, scene.branch)

    forked.Child(traced).ends_well()
    seen: Counter[str] = Counter()
    points = []
    for name in [mark.words[0] for mark in stage.marks.read() if mark.kind == "point"]:
        seen[name] += 1
        points.append(f"{name}:{seen[name]}")
    return points


def prepare(stage: Stage, scene: Scene) -> None:
    """Do what was done before, and let those who were killed be known to be dead."""
    for program, point in scene.before:
        child = forked.Child(acting, stage, program, scene.branch, point)
        assert child.ends().code == (-signal.SIGKILL if point else 0), (scene, point, child.ended)
        if point:
            stage.wait_for_death()
    stage.marks.tell("scene")


def acting(
    stage: Stage, program: Program, branch: str, point: str = "", setup: Callable[[], None] | None = None
) -> None:
    """The body of a child: what it appends is marked, and it dies or stops at a point."""
    mark_appends(stage.marks, stage.store)
    if setup:
        setup()
    if point:
        failpoints._armed = failpoints._parse(point)
    try:
        program(stage, branch)
    except IntentLogError as error:
        stage.marks.tell("raised", type(error).__name__)


def stopped_meanwhile(
    stage: Stage, scene: Scene, point: str, taker: Taker, *, fence_out: Callable[[], None] | None = None
) -> list[str]:
    """Stop it at a point, let the other take its place, let it go on; what is false then and in the end."""
    prepare(stage, scene)
    with forked.running(acting, stage, scene.stopped, scene.branch, f"{point}:stop", fence_out) as zombie:
        if not zombie.stops():
            raise NotReached(zombie.ended)
        if point.partition(":")[0] in BETWEEN:
            wait_out(stage.grace)
        wrong = overtaken(stage, scene, taker, zombie)
    return wrong + judged(stage, scene, point, taker)


def overtaken(stage: Stage, scene: Scene, taker: Taker, zombie: forked.Child) -> list[str]:
    """Let the other take the place of a stopped one, and then that one go on."""
    if taker.dead == "lock":
        remove_locks(stage)
    hint = by_hint if taker.dead == "hint" else None
    with forked.running(acting, stage, taker.program, scene.branch, "", hint) as other:
        ends = [other.ends()]
    stage.marks.tell("woken")
    zombie.go_on()
    ends.append(zombie.ends())
    return [str(one) for one in ends if one != (0, "")]


def judged(stage: Stage, scene: Scene, point: str, taker: Taker) -> list[str]:
    """What is false of log and witness, now and when everything was decided and run to its end."""
    entries = history(stage, scene.branch)
    wrong = stage.violations() + fence_problems(entries)
    if taker.dead != "lock":  # which poisons the zombie's log: what it would say has nowhere to go
        wrong += unheard(stage, entries)
    wrong += not_fenced(stage, scene, point, taker)
    wrong += finished(stage, scene.branch)
    return [*dict.fromkeys(wrong + of_calls(stage.marks.read()))]


def wait_out(time_s: timedelta) -> None:
    """Until this time has passed for certain, by the clock that the library goes by."""
    until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(time_s / timedelta(microseconds=1)) * 1000
    while (left_ns := until_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) >= 0:
        time.sleep(left_ns / 1e9 + 1e-4)


def finished(stage: Stage, branch: str) -> list[str]:
    """Carry the branch to its end, deciding as the witness has it; what went wrong."""
    stage.first = False
    try:
        with stage.open() as log:
            for _ in range(4):
                stage.recover(log)
                stage.resolve(log)
                if stage.effect(log, branch):
                    return [str(problem) for problem in log.verify().problems]
    except IntentLogError as error:
        return [f"it cannot be finished: {error}"]
    return ["not done after four attempts"]


def history(stage: Stage, branch: str) -> Sequence[Any]:
    with stage.open() as log:
        return list(log.history(branch))


def fence_problems(entries: Sequence[Any]) -> list[str]:
    """I2, read from the records alone: no Pending and no Dispatched of an attempt behind what ended it."""
    wrong = []
    ended: set[int] = set()
    for entry in entries:
        match entry.record:
            case r.AttemptOpened(attempt=number):
                ended |= set(range(number))
            case r.AttemptFenced(attempt=number) | r.CancelRequested(attempt=number):
                ended.add(number)
            case r.Pending(attempt=number) | r.Dispatched(attempt=number) if number in ended:
                wrong.append(f"no fence: {entry.kind} of {entry.branch}#{number} at {entry.seq}")
            case _:
                pass
    return wrong


def unheard(stage: Stage, entries: Sequence[Any]) -> list[str]:
    """Calls whose end is in no record, though whoever made them lived on: what is known must not be lost.

    An ambiguous end tells nothing of what a probe or a person has settled meanwhile.
    """
    heard = {
        (str(IntentId.of(entry.branch, entry.record.attempt, entry.record.step)), entry.record.dispatch_no)
        for entry in entries
        if isinstance(entry.record, r.Committed | r.CallEnded)
    }
    settled = {
        str(IntentId.of(entry.branch, entry.record.attempt, entry.record.step))
        for entry in entries
        if isinstance(entry.record, r.Settled)
    }
    marks = stage.marks.read()
    begun = max([0, *(n for n, m in enumerate(marks) if m.kind == "scene")])  # who called before that was killed
    return [
        f"unheard: dispatch {m.words[2]} of {m.words[0]} was called, and its end is not recorded"
        for m in marks[begun:]
        if m.kind == "call"
        and m.words[0].split("-")[0] != "READ"
        and (m.words[0], int(m.words[2])) not in heard
        and not ("-ambiguous" in m.words[0] and m.words[0] in settled)
    ]


def not_fenced(stage: Stage, scene: Scene, point: str, taker: Taker) -> list[str]:
    """Whoever was overtaken before its permission is told so by an error of its own."""
    overtaken = (
        taker.program in (take_over, recover)
        and taker.dead in ("hint", "lease")
        and scene.stopped in (effect, effect_async)
    )
    before = point in ("before_pending:1", "after_pending:1", "before_dispatched:1")
    marks = stage.marks.read()
    told = [m.words[0] for m in marks[[m.kind for m in marks].index("woken") :] if m.kind == "raised"]
    wrong = overtaken and before and told != ["Fenced"]
    return [f"not told that it was overtaken: {told}"] if wrong else []
