"""SIGSTOP at every failpoint on PostgreSQL: the lease lapses, another takes over, SIGCONT: the zombie is fenced (I2).

Here the takeover is the real one, with no hint given: the stopped process renews no lease. Many are stopped at once,
each with a log of its own in a schema of its own, so that they share the time that a lease takes.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from postgres_servers import Server
from reliability import forked, zombies
from reliability.conftest import Lab, at_most, by_form
from reliability.kill_sweep import spread
from reliability.life import CLASSES
from reliability.oracle import violations_of
from reliability.zombies import Scene, Stage, Taker, effect, scenes

from intentlog import Settings
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore

HARNESS = "stopped at each failpoint, PostgreSQL"
LEASE = timedelta(seconds=1)
AT_ONCE = 22
TRIES = 4
TAKERS = (Taker(zombies.take_over, "lease"), Taker(zombies.recover, "lease"), Taker(zombies.decide, "lease"))
ONLY = os.environ.get("INTENTLOG_STATE", "")  # "SCENE POINT TAKER": this one alone
_schemas = itertools.count()
State = tuple[Scene, str, Taker]


class SharedStage(Stage):
    """The world, with its log in a schema of a server."""

    store = PostgresStore
    grace = timedelta(milliseconds=500)  # shorter than the lease

    def __init__(self, folder: Path, server: Server) -> None:
        folder.mkdir()
        super().__init__(folder)
        self._server = server
        self._schema = f"zombie_{os.getpid()}_{next(_schemas)}"

    def engine(self) -> Engine:
        url = f"{self._server.url()}?schema={self._schema}"
        store = PostgresStore(url, SystemClock(), LoggingObserver(), lease_s=LEASE.total_seconds())
        return Engine(store, Settings(dispatch_grace=self.grace, lease=LEASE), store.clock, LoggingObserver())

    def violations(self) -> list[str]:
        with self.open() as log:
            return violations_of(log, self.marks.read())

    def wait_for_death(self) -> None:
        """Until no lease holds: whoever was killed or stopped renews none."""
        held = f"SELECT count(*) FROM {self._schema}.owners WHERE lease_until >= clock_timestamp()"
        until_s = time.monotonic() + 30
        while self._server.sql(held) != [(0,)]:
            assert time.monotonic() < until_s, "a lease does not lapse"
            time.sleep(0.01)

    def remove(self) -> None:
        self._server.sql(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")


def points_of(scene: Scene, folder: Path, server: Server) -> list[str]:
    stage = SharedStage(folder, server)
    try:
        return zombies.points_of(stage, scene)
    finally:
        stage.remove()


def is_telling(scene: Scene) -> bool:
    """What the quick form keeps: two first runs, and a recovery that asks a probe."""
    if scene.stopped is zombies.recover:
        return scene.branch == "QUERYABLE-returned"
    first = scene.stopped is effect and not scene.before
    return first and scene.branch in ("UNSAFE-returned", "KEYED-ambiguous")


def states(folder: Path, server: Server, *, long: bool) -> Iterator[State]:
    """Each scene at each point, with one of the takers in turn; nightly all scenes of two classes, in full all."""
    takers = itertools.cycle(TAKERS)
    kinds = by_form(tuple(CLASSES), ("UNSAFE", "QUERYABLE"), tuple(CLASSES))
    for number, scene in enumerate(one for kind in kinds for one in scenes(kind)):
        if long or is_telling(scene):
            for point in points_of(scene, folder / f"trace-{number}", server):
                taker = next(takers)
                if ONLY in ("", f"{scene} {point} {taker}"):
                    yield scene, point, taker


def together(
    found: list[State], folder: Path, server: Server, *, fence_out: Callable[[], None] | None = None
) -> list[str]:
    """What is false of each state; one whose point was not reached is tried anew with the next ones."""
    wrong: list[str] = []
    left = [(state, 0) for state in found]
    while left:
        batch, left = left[:AT_ONCE], left[AT_ONCE:]
        problems, missed = at_once([state for state, _ in batch], folder, server, fence_out)
        wrong += problems
        tries = {id(state): number + 1 for state, number in batch}
        left += [(state, tries[id(state)]) for state in missed if tries[id(state)] < TRIES]
        wrong += [f"{' '.join(map(str, state))}: it did not stop" for state in missed if tries[id(state)] >= TRIES]
    return wrong


def at_once(
    found: list[State], folder: Path, server: Server, fence_out: Callable[[], None] | None
) -> tuple[list[str], list[State]]:
    """Stop them all, let their leases lapse, let them all be overtaken, wake them: what is false, who did not stop."""
    stages: list[Any] = [SharedStage(folder / f"{number}-{next(_schemas)}", server) for number in range(len(found))]
    wrong: list[str] = []
    missed: list[State] = []
    try:
        with ExitStack() as running:
            asleep = []
            for stage, (scene, point, _) in zip(stages, found, strict=True):
                zombies.prepare(stage, scene)
                body = partial(zombies.acting, stage, scene.stopped, scene.branch, f"{point}:stop", fence_out)
                asleep.append(running.enter_context(forked.running(body)))
            stopped = [zombie.stops() for zombie in asleep]
            for stage, state, zombie, stops in zip(stages, found, asleep, stopped, strict=True):
                if not stops:
                    missed.append(state)
                    continue
                scene, point, taker = state
                stage.wait_for_death()
                problems = zombies.overtaken(stage, scene, taker, zombie)
                problems += zombies.judged(stage, scene, point, taker)
                wrong += [f"{scene} {point} {taker}: {one}" for one in problems]
    finally:
        for stage in stages:
            stage.remove()
    return wrong, missed


def test_stopped_at_every_point_through_a_lease(lab: Lab, long: bool, quick_folder: Path, postgres: Server) -> None:
    """I2, I3, I5: no record and no call behind the fence, none that was acknowledged is lost, witness and log agree."""
    found = spread(list(states(quick_folder, postgres, long=long)), at_most(70, 160), random.random)
    wrong = together(found, quick_folder, postgres)
    command = "make test-reliability PYTEST_ARGS='-k through_a_lease'"
    lab.seen(len(found), wrong, repeat=f"INTENTLOG_STATE='SCENE POINT TAKER' {command}")


@pytest.mark.parametrize("blind", [False, True], ids=["fence", "any state"])
def test_control_no_fence(lab: Lab, quick_folder: Path, postgres: Server, blind: bool) -> None:
    """Without the fence in its process the zombie appends behind its end, and calls."""
    scene = Scene((), effect, "UNSAFE-returned")
    points = ("before_pending:1", "after_pending:1", "before_dispatched:1")
    found = [(scene, point, taker) for point in points for taker in TAKERS[:2]]
    wrong = together(found, quick_folder, postgres, fence_out=partial(zombies.without_fence, blind=blind))
    caught = {
        one.partition(": ")[0] for one in wrong if any(f": {what}" in one for what in ("no fence", "a lie", "twice"))
    }
    lab.control("no fence" + (", in any state" if blind else ""), len(found), len(caught))
