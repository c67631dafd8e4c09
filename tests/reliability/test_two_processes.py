"""Two processes over one log, on the same branches and on different ones, both killed at random (I1 to I5)."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from crash_programs import two_records_only
from reliability import forked
from reliability.conftest import Lab
from reliability.life import World
from reliability.marks import mark_appends
from reliability.oracle import of_calls, violations

from intentlog import BranchBusy, Fenced

HARNESS = "two processes, killed at random"
KINDS = ("UNSAFE", "KEYED", "QUERYABLE", "IDEMPOTENT", "READ")
KILLS = 12
BETWEEN_S = (0.001, 0.03)


def names(owner: str) -> list[str]:
    return [f"{kind}-returned-{owner}{number}" for number in range(12) for kind in KINDS]


def labour(world: World, branches: list[str], seed: float, control: bool) -> None:
    """Recover what others left, then run branches over and over, opening the log anew now and then."""
    mark_appends(world.marks)
    if control:
        two_records_only()
    chance = random.Random(seed)
    while True:
        with world.open() as log:
            world.recover(log)
            for branch in chance.sample(branches, 15):
                with suppress(BranchBusy, Fenced):
                    world.effect(log, branch)


def storm(folder: Path, seed: int, *, same: bool, control: bool = False) -> list[str]:
    """Both work, and each is killed again and again; then nobody works, and log and witness have to agree."""
    folder.mkdir()
    world = World(folder)
    chance = random.Random(seed)
    shares = [names("x"), names("x")] if same else [names("a"), names("b")]
    workers = [forked.Child(labour, world, share, chance.random(), control) for share in shares]
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(*BETWEEN_S))
            number = chance.randrange(2)
            workers[number].kill()
            ended = workers[number].ended
            assert control or ended == (-signal.SIGKILL, ""), ended
            workers[number] = forked.Child(labour, world, shares[number], chance.random(), control)
        time.sleep(BETWEEN_S[1])
    finally:
        for worker in workers:
            worker.kill()
    wrong = violations(world.path, world.marks.read())
    with world.open() as log:
        world.recover(log)
        world.resolve(log)
        begun = {entry.branch for entry in log.tail(1_000_000)}
        wrong += [f"{branch} cannot be finished" for branch in sorted(begun) if not world.effect(log, branch)]
        wrong += [str(problem) for problem in log.verify().problems]
    return wrong + of_calls(world.marks.read())


@pytest.mark.parametrize("same", [True, False], ids=["same branches", "different branches"])
def test_two_processes_that_are_killed(lab: Lab, long: bool, quick_folder: Path, same: bool) -> None:
    """No acknowledged record is lost, no call follows "never sent", nothing that may not be is called again."""
    first = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    rounds = 25 if long else 3
    wrong = [
        f"seed {seed}: {one}"
        for seed in range(first, first + rounds)
        for one in storm(quick_folder / str(seed), seed, same=same)
    ]
    command = "make test-reliability PYTEST_ARGS='-k two_processes_that_are_killed'"
    lab.seen(rounds * KILLS, wrong, repeat=f"SEED={first} {command}")


def test_control_two_records(lab: Lab, quick_folder: Path) -> None:
    """Without Dispatched records somebody is told "never sent" of what was called."""
    for seed in range(1, 15):
        if any(
            "a lie" in one or "twice" in one for one in storm(quick_folder / str(seed), seed, same=True, control=True)
        ):
            lab.control("two records", seed * KILLS, 1)
            return
    lab.control("two records", 14 * KILLS, 0)
