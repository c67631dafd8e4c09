"""One of several processes that do everything over one log until they are killed."""

from __future__ import annotations

import os
import random
from pathlib import Path

from reliability.life import BRANCHES, World
from reliability.marks import mark_appends
from reliability.oracle import quick_open
from reliability.wal_actors import FRAMES, WAL_BYTES

from intentlog import BranchBusy, IntentLogError, Log, LogUnavailable
from intentlog.store import sqlite


def storm(folder: str, seed: int) -> None:
    """Open, recover, do effects, checkpoint, look through a reader, close, again and again."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = FRAMES
    world = World(Path(folder))
    mark_appends(world.marks)
    chance = random.Random(seed)
    while True:
        try:
            with world.open(wal_bytes=WAL_BYTES) as log:
                if chance.random() < 0.3:
                    world.recover(log)
                for _ in range(chance.randrange(1, 8)):
                    _do(world, log, chance)
        except LogUnavailable as error:
            world.marks.tell("refused", error)


def _do(world: World, log: Log, chance: random.Random) -> None:
    own = f"{chance.choice(BRANCHES)}-{os.getpid()}-{chance.randrange(1 << 30)}"
    shared = f"{chance.choice(BRANCHES)}-shared{chance.randrange(6)}"
    match chance.randrange(8):
        case 0:
            log._engine.store.upkeep()
        case 1:
            with quick_open(world.path, read_only=True) as reader:
                assert reader.verify().ok, reader.verify().problems
        case 2 | 3:
            try:
                world.effect(log, shared)
            except BranchBusy:
                world.marks.tell("busy", shared)
            except IntentLogError as error:  # another's, that is done without a value, or overtaken
                world.marks.tell("other", type(error).__name__)
                if not error.intent_id:
                    raise
        case _:
            log.append(own, "planned", {})
            world.marks.tell("noted", own, "ApplicationEvent")
            world.effect(log, own)
