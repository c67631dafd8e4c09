"""Three processes over one log, killed at random moments and replaced: what is left is whole, and tells the truth."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from reliability import oracle
from reliability.children import Child
from reliability.conftest import Lab
from reliability.marks import Marks
from reliability.wal_storm import storm

HARNESS = "processes and the WAL, killed at random"
KILLS = 12  # of one log


def round_of(folder: Path, seed: int) -> list[str]:
    """Three processes, one after another killed. What was wrong."""
    chance = random.Random(seed)
    found: list[str] = []
    children = [Child(storm, str(folder), chance.randrange(1 << 30)) for _ in range(3)]
    try:
        for _ in range(KILLS):
            time.sleep(chance.random() * 0.06)  # at any moment
            victim = chance.randrange(3)
            end = children[victim].kill()
            found += [f"a process ended by itself: {end.raised}"] if end.raised else []
            children[victim] = Child(storm, str(folder), chance.randrange(1 << 30))
    finally:
        ends = [child.kill() for child in children]
    found += [f"a process ended by itself: {end.raised}" for end in ends if end.raised]
    return found + oracle.violations(folder / "log" / "log.db", Marks(folder / "marks").read())


def test_random_kills(lab: Lab, long: bool, quick_folder: Path) -> None:
    """I1 to I5: SIGKILL at random moments of three processes that open, write, checkpoint, pre-grow, read and close."""
    found, kills = [], 0
    for seed in range(60 if long else 3):
        folder = quick_folder / str(seed)
        folder.mkdir()
        found += [f"seed {seed}: {one}" for one in round_of(folder, seed)]
        kills += KILLS + 3
        shutil.rmtree(folder)
    lab.seen(kills, found)
