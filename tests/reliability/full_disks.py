"""The programs that meet a full disk, a limit or a read-only file system, in a child process."""

from __future__ import annotations

import itertools
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from reliability.fillers import Filler
from reliability.marks import Marks
from reliability.trouble import PATIENCE, Troubled, at_moment, closed, persist

from intentlog import IntentLogError, Log
from intentlog.store import opening, sqlite

FREE_OF_LIMIT = resource.RLIM_INFINITY
AS_SET = sqlite.CHECKPOINT_FRAMES, sqlite.WAL_FRAMES_MAX  # before a test lowers them
BLOCK = 4_120  # about a frame


def makes_a_log(world: Troubled) -> None:
    """A log with records in its WAL, closed."""
    with world.open() as log:
        for branch in ("KEYED-returned", "UNSAFE-ambiguous", "READ-returned"):
            world.effect(log, branch)


def dies_with_a_log(world: Troubled) -> None:
    """The same, left by a death."""
    log = world.open()
    for branch in ("KEYED-returned", "UNSAFE-ambiguous", "READ-returned"):
        world.effect(log, branch)
    os.kill(os.getpid(), signal.SIGKILL)


def looks(world: Troubled) -> None:
    """Open for reading: what is there is shown whole, or it is refused in words."""
    try:
        with Log.open(world.path, read_only=True) as log:
            kinds = [entry.kind for entry in log.history("KEYED-returned")]
            assert kinds.count("Committed") == 1, kinds
            assert log.verify().ok
            log.open_intents()
            log.unfinished()
            world.marks.tell("looked")
    except IntentLogError as error:
        world.tell(error, "", "open for reading")


def opens(world: Troubled, unchecked: bool = False, wal_bytes: int = 0) -> None:
    """Open for writing, do one effect, close."""
    if unchecked:  # a control
        opening.check_room = lambda path, *, reader: None  # type: ignore[assignment]
    try:
        log = world.open(wal_bytes=wal_bytes)
    except IntentLogError as error:
        world.tell(error, "", "open")
        return
    try:
        world.effect(log, "KEYED-rejected")
        world.effect(log, "IDEMPOTENT-returned")
        world.marks.tell("opened")
    except IntentLogError:
        pass  # told
    closed(world, log)


def fills(world: Troubled, disk: str, moment: int) -> None:
    """The disk is full from the nth append or upkeep on, until somebody makes room."""
    filler = Filler(Path(disk))
    at_moment(moment, filler.fill)
    persist(world, filler.release)


def limited(world: Troubled, limit: int, from_the_start: bool) -> None:
    """No file may grow beyond a limit (the marks may), until that is lifted."""
    original = Marks.tell

    def tell(self: Marks, kind: str, *words: object) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FREE_OF_LIMIT, before[1]))
        original(self, kind, *words)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    Marks.tell = tell  # type: ignore[method-assign] # in a child process

    def limit_now() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, FREE_OF_LIMIT))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FREE_OF_LIMIT, FREE_OF_LIMIT))

    if from_the_start:
        limit_now()
    else:
        at_moment(5, limit_now)
    persist(world, lift)


def outlasts(world: Troubled) -> None:
    """Whatever the disk does and nobody mends it: every branch is tried, every error told.

    The WAL is grown ahead, and checkpointed, as the library does it unless a test says otherwise.
    """
    world.wal_bytes = opening.WAL_BYTES
    sqlite.CHECKPOINT_FRAMES, sqlite.WAL_FRAMES_MAX = AS_SET
    persist(world, lambda: None, patience=1 << 30)


def works(world: Troubled, rounds: int, snapshot: bool) -> None:
    """Effect after effect while somebody else takes the room of the disk and gives it back."""
    log: Log | None = None
    held: Any = None
    done = 0
    for number in range(rounds):
        branch = f"KEYED-returned-{number}"
        try:
            log = log or world.open()
            if snapshot and held is None:
                held = log._engine.store.whole_branches()
                next(held, None)
            world.effect(log, branch)
            done += 1
        except IntentLogError as error:
            if log is None:
                world.tell(error, branch, "open")
            else:
                if held is not None:
                    held.close()
                    held = None
                closed(world, log)
                log = None
    if held is not None:
        held.close()
    if log is not None:
        closed(world, log)
    world.marks.tell("worked", done)


def fills_after_the_call(world: Troubled, disk: str) -> None:
    """The disk is full between Dispatched and Committed: the ballast makes room for the outcome."""
    filler = Filler(Path(disk))
    happen = world._happen
    ballast = world.path.with_name("log.db.d") / "ballast"

    def happens(call: Any, branch: str) -> str:
        value = happen(call, branch)
        if branch == "UNSAFE-returned":
            filler.fill()
            assert ballast.stat().st_size == opening.BALLAST_BYTES
        return value

    world._happen = happens  # type: ignore[method-assign] # in a child process
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 10_000
    with world.open() as log:
        assert world.effect(log, "KEYED-returned")
        assert world.effect(log, "UNSAFE-returned"), "its outcome was recorded"
        kinds = [entry.kind for entry in log.history("UNSAFE-returned")]
        assert kinds[-2:] == ["Committed", "AttemptClosed"], kinds
        assert not ballast.exists()
        refused = 0
        for number in range(40):  # until what the ballast held is used up too
            try:
                world.effect(log, f"UNSAFE-returned-{number}")
            except IntentLogError:
                refused += 1
        assert refused > PATIENCE, "the disk was not full"
        filler.release()
        assert world.effect(log, "UNSAFE-returned-after"), "with room again the same log goes on"


def fills_at_a_checkpoint(world: Troubled, disk: str) -> None:
    """The disk is full when the WAL shall go into the main file: that waits, and nothing that has room suffers."""
    filler = Filler(Path(disk))
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 10_000
    wal = world.path.with_name("log.db-wal")
    with world.open(wal_bytes=4 << 20) as log:
        for number in range(20):
            assert world.effect(log, f"KEYED-returned-{number}")
        main = world.path.stat().st_size
        filler.fill()
        before = log.counters.upkeep_commits
        log._engine.store.upkeep()
        assert log.counters.upkeep_commits == before, "the checkpoint found room: the disk was not full"
        for number in range(20):
            assert world.effect(log, f"UNSAFE-returned-{number}"), "the WAL has its room"
        filler.release()
        log._engine.store.upkeep()
        assert world.path.stat().st_size > main, "with room again the checkpoint is made"
        assert world.effect(log, "UNSAFE-returned-after")
        assert wal.stat().st_size >= 4 << 20


def looks_at_any(world: Troubled) -> None:
    """Open for reading, whatever there is."""
    try:
        with Log.open(world.path, read_only=True) as log:
            log.verify()
            log.open_intents()
    except IntentLogError as error:
        world.tell(error, "", "open for reading")


def outgrows_the_index(world: Troubled, disk: str, leave_bytes: int) -> None:
    """The WAL, which nobody can restart, comes to the end of its first index page on a disk that is nearly full."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 1 << 30
    filler = Filler(Path(disk))
    log = world.open()
    for number in itertools.count():
        world.effect(log, f"KEYED-returned-{number}")
        if log._engine.store._frames >= 4_040:  # type: ignore[attr-defined] # a SQLite store's
            break
    world.path.with_name("log.db.d").joinpath("ballast").unlink()
    filler.fill(leave_bytes)
    for number in range(12):
        with suppress(IntentLogError):
            world.effect(log, f"UNSAFE-returned-{number}")
    filler.release()
    assert world.effect(log, "UNSAFE-returned-after"), "with room again the same log goes on"
    closed(world, log)


def appends(path: str, told: str, size_bytes: int) -> None:
    """Nothing but write and sync: blocks one behind the other, and a byte into `told` for each that was synced."""
    file, out = os.open(path, os.O_CREAT | os.O_RDWR, 0o600), os.open(told, os.O_CREAT | os.O_WRONLY, 0o600)
    os.pwrite(file, bytes(size_bytes), 0)
    opening.sync_folder(Path(path).parent)
    os.fsync(file)
    with suppress(OSError):  # the file system is read-only now
        for number in range(1_000):
            os.pwrite(file, block(number), number * BLOCK)
            os.fdatasync(file)
            os.write(out, b".")


def block(number: int) -> bytes:
    return bytes([number % 251 + 1]) * BLOCK
