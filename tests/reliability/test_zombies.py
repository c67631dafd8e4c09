"""SIGSTOP at every failpoint, another process takes over, SIGCONT: the zombie is fenced, and never calls (I2, I3, I9).

Its Dispatched is refused; what it had called before, it may tell however late, and that is kept. The stopped owner
lives by its lock, so that the other one is told otherwise: by a hint that says "dead", or because its lock
file is gone.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from reliability import forked, zombies
from reliability.conftest import Lab
from reliability.life import CLASSES
from reliability.zombies import TAKERS, Scene, Stage, Taker, effect, effect_async, scenes, stopped_meanwhile

from intentlog import BranchBusy, Durability, Log, LogUnavailable, failpoints
from intentlog.store import opening
from intentlog.store.rows import SqliteRows

BRANCH = "QUERYABLE-returned"
HARNESS = "stopped at each failpoint"
TRIES = 5
ONLY = os.environ.get("INTENTLOG_STATE", "")  # "SCENE POINT TAKER": this one alone


def surely(folder: Path, *state: Any, **options: Any) -> list[str]:
    """A state, tried anew where its point was not reached."""
    for turn in range(TRIES):
        try:
            return stopped_meanwhile(stage_at(folder / str(turn)), *state, **options)
        except zombies.NotReached as missed:
            why = missed
    return [f"it did not stop in {TRIES} tries: {why}"]


def stage_at(folder: Path) -> Stage:
    folder.mkdir(parents=True)
    return Stage(folder)


def states(kind: str, folder: Path, *, long: bool) -> list[tuple[Scene, str, Taker]]:
    """Each scene at each point, with one of the takers in turn; in the long form with two of them, and more scenes."""
    found = []
    takers = itertools.cycle(TAKERS)
    for number, scene in enumerate(scenes(kind)):
        if not (long or is_telling(scene)):
            continue
        points = zombies.points_of(stage_at(folder / f"trace-{number}"), scene)
        found += [(scene, point, next(takers)) for point in points]
    return [one for one in found if ONLY in ("", " ".join(map(str, one)))]


def is_telling(scene: Scene) -> bool:
    """What the quick form keeps: each program, each ending of one class, first runs of all, asyncio of one effect."""
    kind, _, ending = scene.branch.partition("-")
    if scene.stopped in (zombies.effect_async, zombies.recover_async):
        return scene.branch == "UNSAFE-returned" and not scene.before
    return kind == "UNSAFE" or (ending == "returned" and (kind == "QUERYABLE" or not scene.before))


@pytest.mark.parametrize("kind", CLASSES)
def test_stopped_at_every_point_while_another_takes_over(lab: Lab, long: bool, quick_folder: Path, kind: str) -> None:
    """I2, I3, I5: no call and no record behind the fence, none that was acknowledged is lost, witness and log agree."""
    wrong: list[str] = []
    found = states(kind, quick_folder, long=long)
    for number, (scene, point, taker) in enumerate(found):
        folder = quick_folder / str(number)
        wrong += [f"{scene} {point} {taker}: {one}" for one in surely(folder, scene, point, taker)]
        shutil.rmtree(folder)
    command = f"make test-reliability PYTEST_ARGS='-k \"every_point and {kind}\"'"
    lab.seen(len(found), wrong, repeat=f"INTENTLOG_STATE='SCENE POINT TAKER' {command}")


def test_every_point_of_the_source_is_one_of_them(quick_folder: Path) -> None:
    """The scenes reach all that `failpoints` has."""
    reached: set[str] = set()
    for number, scene in enumerate(one for kind in CLASSES for one in scenes(kind)):
        if scene.stopped not in (zombies.effect_async, zombies.recover_async):
            reached |= {p.partition(":")[0] for p in zombies.points_of(stage_at(quick_folder / str(number)), scene)}
    assert reached == failpoints.POINTS


@pytest.mark.parametrize("blind", [False, True], ids=["fence", "any state"])
def test_control_no_fence(lab: Lab, quick_folder: Path, blind: bool) -> None:
    """Without the fence the zombie appends behind its end, and calls what was said to be never sent."""
    fence_out = partial(zombies.without_fence, blind=blind)
    points = ("before_pending:1", "after_pending:1", "before_dispatched:1")
    caught = []
    all_states = list(itertools.product((effect, effect_async), points, TAKERS[::2]))
    for number, (program, point, taker) in enumerate(all_states):
        scene = Scene((), program, "UNSAFE-returned")
        found = surely(quick_folder / str(number), scene, point, taker, fence_out=fence_out)
        caught.append([one for one in found if one.startswith(("no fence", "a lie", "twice"))])
    lab.control("no fence" + (", in any state" if blind else ""), len(all_states), sum(map(bool, caught)))
    if blind:
        assert any(one.startswith("a lie") for found in caught for one in found), caught


def test_a_stopped_owner_is_left_alone_while_its_lock_stands(lab: Lab, quick_folder: Path) -> None:
    """No hint that it is dead: BranchBusy for who wants its branch, and nothing is classified."""
    wrong = []
    scene = Scene((), effect, "UNSAFE-returned")
    points = zombies.points_of(stage_at(quick_folder / "trace"), scene)
    for number, point in enumerate(points):
        stage = stage_at(quick_folder / str(number))
        with forked.running(zombies.acting, stage, effect, scene.branch, f"{point}:stop") as zombie:
            assert zombie.stops()
            with stage.open() as log:
                wrong += [f"{point}: classified"] if log.recover() else []
                if point not in ("before_opened:1", "after_closed:1"):
                    try:
                        stage.effect(log, scene.branch)
                        wrong.append(f"{point}: its branch was taken")
                    except BranchBusy:
                        pass
            zombie.go_on()
            zombie.ends_well()
        wrong += [f"{point}: {one}" for one in stage.violations()]
    lab.seen(len(points), wrong)


def test_stopped_inside_a_commit(lab: Lab, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the write lock: LogUnavailable names its pid; readers go on; SIGKILL frees the log."""
    monkeypatch.setattr(opening, "BUSY_LIMIT_MS", 200)
    stage = stage_at(quick_folder / "stage")
    forked.Child(zombies.acting, stage, zombies.event, "events").ends_well()
    for ending in (signal.SIGCONT, signal.SIGKILL):
        with forked.running(zombies.acting, stage, zombies.event, "events", "", stops_in_its_commit) as zombie:
            assert zombie.stops()
            with Log.open(stage.path, read_only=True) as log:
                before = len(list(log.history("events")))
            with pytest.raises(LogUnavailable, match=str(zombie.pid)):
                append_elsewhere(stage)
            zombie.signal(ending)
            assert zombie.ends().code == (0 if ending == signal.SIGCONT else -signal.SIGKILL)
        append_elsewhere(stage)
        with Log.open(stage.path, read_only=True) as log:
            assert len(list(log.history("events"))) == before + (3 if ending == signal.SIGCONT else 1)
    lab.seen(2, stage.violations())


def append_elsewhere(stage: Stage) -> None:
    with stage.open() as log:
        stage.marks.tell("try", "events", "ApplicationEvent")
        log.append("events", "noted", {}, durability=Durability.IMMEDIATE)


def stops_in_its_commit() -> None:
    """In a child: stop between BEGIN and COMMIT of the first append, with the write lock held."""
    written: Callable[..., None] = SqliteRows.write
    times = itertools.count()

    def write(self: SqliteRows, staged: object) -> None:
        written(self, staged)
        if next(times) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    SqliteRows.write = write


def test_stopped_and_woken_over_and_over(lab: Lab, long: bool, quick_folder: Path) -> None:
    """Two owners that overtake each other at random points: each is fenced in turn, and no effect happens twice."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    chance = random.Random(seed)
    points = [f"{one}:1" for one in ("before_pending", "before_dispatched", "before_call", "before_committed")]
    rounds = 40 if long else 5
    wrong = []
    for number in range(rounds):
        stage = stage_at(quick_folder / str(number))
        asleep = []
        try:
            for _ in range(4):
                asleep.append(one := owner(stage, chance.choice(points)))
                if one.stops():
                    zombies.wait_out(zombies.GRACE)
            chance.shuffle(asleep)
            for one in asleep:
                one.go_on()
            wrong += [str(one.ended) for one in asleep if one.ends() != (0, "")]
        finally:
            for one in asleep:
                one.kill()
        entries = zombies.history(stage, BRANCH)
        wrong += stage.violations() + zombies.fence_problems(entries)
        wrong += zombies.unheard(stage, entries) + zombies.finished(stage, BRANCH)
    lab.seen(rounds, [f"seed {seed}: {one}" for one in wrong], repeat=f"SEED={seed} make test-reliability")


def owner(stage: Stage, point: str) -> forked.Child:
    return forked.Child(zombies.acting, stage, zombies.take_over, BRANCH, f"{point}:stop", zombies.by_hint)
