"""What runs in the children whose disk loses its power: the worker, and the ways in which it is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crash_programs import two_records_only
from reliability import life
from reliability.marks import mark_appends

from intentlog.store import opening

CHECKPOINT_FRAMES = 24


def synchronous(word: str, number: int) -> None:
    """A control: SQLite syncs less than the library asks."""
    opening._SETTINGS["synchronous"] = word
    opening._REQUIRED["synchronous"] = number


def no_checkpoint() -> None:
    """A control: the keeper acknowledges before it made anything durable of what it found.

    Writing it anew is left out too: by itself it already makes up for the failed sync.
    """
    opening._checkpoint = lambda connection: None
    not_written_anew()


def not_written_anew() -> None:
    """A control: the keeper checkpoints what it found before that is durable."""
    opening._write_anew = lambda connection, path: None


BROKEN: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "synchronous=NORMAL": lambda: synchronous("NORMAL", 1),
    "synchronous=OFF": lambda: synchronous("OFF", 0),
    "two records": two_records_only,
    "checkpoint left out": no_checkpoint,
    "what was found not written anew": not_written_anew,
}


def world_of(folder: str, letters: str, wal_bytes: int, broken: str) -> life.World:
    """The world of the branches that begin with these letters, its appends marked, broken in one of these ways."""
    BROKEN[broken]()
    branches = tuple(branch for branch in life.BRANCHES if branch.startswith(letters))
    world = life.World(Path(folder), branches=branches, wal_bytes=wal_bytes)
    mark_appends(world.marks)
    return world


def live(folder: str, letters: str, wal_bytes: int, broken: str) -> None:
    """A whole life of the worker: a new log, two attempts at each branch, checkpoints, decisions, two closings."""
    life.whole_life(world_of(folder, letters, wal_bytes, broken), checkpoint_frames=CHECKPOINT_FRAMES)


def begin(folder: str, letters: str, wal_bytes: int, broken: str) -> None:
    """Its first half."""
    life.checkpoint_each(CHECKPOINT_FRAMES)
    life.begin(world_of(folder, letters, wal_bytes, broken))


def go_on(folder: str, letters: str, wal_bytes: int, broken: str) -> None:
    """Its second half."""
    life.checkpoint_each(CHECKPOINT_FRAMES)
    life.go_on(world_of(folder, letters, wal_bytes, broken))
