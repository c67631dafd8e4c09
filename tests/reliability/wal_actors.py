"""Processes over one log, driven step by step: each does one thing at a time, and can be held in the middle of it.

A command is a word, and goes to the actor's pipe; its answer comes back on it:

    open [GAP]   open the log for writing, and stop in a gap of the opening, if it comes there
    effect       a whole effect, on a branch of its own
    call         an effect that is held inside the tool: Dispatched is there, the outcome is not
    upkeep       the keeper's checkpoint, whether it is due or not
    restart      the same, held when the WAL was checkpointed and the next commit has not restarted it
    close        close the log
    keeper       say "keeper" or "guest"
    look         open a reader, and hold a snapshot
    let_go       read the rest in that snapshot, and let it go
    go           go on from where it is held

Answers: "done", "held", or ("refused", the error's name, its text) of a typed error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw
from reliability.life import World
from reliability.marks import mark_appends
from reliability.oracle import quick_open

from intentlog import Call, IntentLogError, Log
from intentlog.store import connection as connections
from intentlog.store import locks, opening, sqlite
from intentlog.store.wal import wal_of

GAPS = ("role", "kept", "checkpointed", "growing")
BUSY_MS = 20
WAL_BYTES = 96 << 10  # 23 frames: less than two effects, so that the WAL grows beyond it
FRAMES = 12
Answer = str | tuple[str, str, str]


class Actor:
    """The body of one process. It lives for many logs, one after another, until it is killed."""

    def __init__(self, pipe: Connection, name: str, broken: str) -> None:
        self._pipe = pipe
        self._name = name
        self._gap = ""  # where it is to be held
        self._world: World | None = None
        self._log: Log | None = None
        self._snapshot: tuple[Log, Iterator[Any]] | None = None
        self._numbers = itertools.count()
        self._marked = False
        self.stale_bytes = 0
        opening.BUSY_LIMIT_MS = BUSY_MS
        sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = FRAMES
        if broken:
            BREAKS[broken](self)
        self._install_gaps()

    @property
    def world(self) -> World:
        """Where it works."""
        assert self._world is not None
        return self._world

    @property
    def log(self) -> Log:
        """What it has open."""
        assert self._log is not None
        return self._log

    def serve(self) -> None:
        """Do what is asked, until the pipe is closed."""
        while True:
            try:
                word, *arguments = self._pipe.recv()
            except EOFError:
                return
            try:
                answer: Answer = getattr(self, f"do_{word}")(*arguments) or "done"
            except IntentLogError as error:
                answer = ("refused", type(error).__name__, f"{error} / remedy: {error.remedy}")
            except Exception as error:
                answer = ("foreign", type(error).__name__, str(error))
            self._gap = ""
            self._pipe.send(answer)

    def reached(self, gap: str) -> None:
        """Be held here, if it was asked for."""
        if self._gap == gap:
            self._gap = ""
            self._pipe.send("held")
            assert self._pipe.recv() == ("go",)

    def do_begin(self, folder: str) -> None:
        """Work in another world from now on."""
        self._world = World(Path(folder))
        self._happen = self._world._happen
        self._world._happen = self._happens  # type: ignore[method-assign] # to be held inside it
        if not self._marked:
            self._marked = True
            mark_appends(_OfTheWorld(self))  # type: ignore[arg-type] # marks, seen from there

    def _happens(self, call: Call, branch: str) -> str:
        value = self._happen(call, branch)
        self.reached("call")
        return value

    def do_open(self, gap: str = "") -> None:
        self._gap = gap
        self._log = self.world.open(wal_bytes=WAL_BYTES)

    def do_effect(self, gap: str = "") -> None:
        self._gap = gap
        branch = f"UNSAFE-returned-{self._name}{os.getpid()}-{next(self._numbers)}"
        self.log.append(branch, "planned", {})
        self.world.marks.tell("noted", branch, "ApplicationEvent")
        assert self.world.effect(self.log, branch)

    def do_call(self) -> None:
        self.do_effect("call")

    def do_upkeep(self, gap: str = "") -> None:
        self._gap = gap
        self.log._engine.store.upkeep()

    def do_restart(self) -> None:
        self.do_upkeep("restart")

    def do_keeper(self) -> str:
        held: locks.Locks = self.log._engine.store._locks  # type: ignore[attr-defined] # a SQLite store's
        return "keeper" if held.is_keeper else "guest"

    def do_close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def do_look(self) -> None:
        log = quick_open(self.world.path, read_only=True)
        branches = log._engine.store.whole_branches()
        next(branches, None)
        self._snapshot = (log, branches)

    def do_let_go(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            log, branches = snapshot
            for whole in branches:
                assert [one for one, _ in whole.records()], "a branch without records"
            log.close()

    def _install_gaps(self) -> None:
        """Each a place between two steps of the library, where another process may come in."""
        become_keeper = locks.Locks.become_keeper
        checkpoint, grow, restart = opening._checkpoint, opening.grow, sqlite.SqliteStore._restart_wal

        def becoming(this: locks.Locks) -> bool:
            self.reached("role")
            return become_keeper(this)

        def checkpointing(connection: connections.Connection) -> None:
            self.reached("kept")
            checkpoint(connection)
            self.reached("checkpointed")

        def growing(path: Path, size_bytes: int) -> None:
            grow(path, size_bytes)
            self.reached("growing")

        def restarting(this: sqlite.SqliteStore, connection: connections.Connection, tables: Any) -> None:
            restart(this, _Held(connection, self), tables)  # type: ignore[arg-type] # it is one, seen from there

        locks.Locks.become_keeper = becoming  # type: ignore[method-assign] # here and below: in a child process
        opening._checkpoint = checkpointing
        opening.grow = growing
        sqlite.SqliteStore._restart_wal = restarting  # type: ignore[method-assign]


class _OfTheWorld:
    """The marks of the world that an actor works in now."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def tell(self, kind: str, *words: object) -> None:
        self._actor.world.marks.tell(kind, *words)


class _Held:
    """A connection on which a checkpoint can be told from the commit after it."""

    mode = 0  # a control's

    def __init__(self, connection: connections.Connection, actor: Actor) -> None:
        self._connection = connection
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def wal_checkpoint(self, mode: int) -> tuple[int, int]:
        found = self._connection.wal_checkpoint(mode=self.mode or mode)
        self._actor.reached("restart")
        return found


# --- what a control breaks ------------------------------------------------------------------------------------------


def _stale_size(actor: Actor) -> None:
    """The WAL is grown from the size that it had before the checkpoint and the write transaction."""
    take_over = opening.take_over_wal

    def taking_over(connection: connections.Connection, path: Path, wal_bytes: int) -> None:
        actor.stale_bytes = wal_of(path).stat().st_size if wal_of(path).exists() else 0
        take_over(connection, path, wal_bytes)

    def growing(path: Path, size_bytes: int) -> None:
        descriptor = os.open(path, os.O_WRONLY)
        os.pwrite(descriptor, bytes(max(0, size_bytes - actor.stale_bytes)), actor.stale_bytes)
        os.close(descriptor)

    opening.take_over_wal = taking_over
    opening.grow = growing


def _checkpoints_at_close(actor: Actor) -> None:
    """Whoever closes last checkpoints and deletes the WAL: NO_CKPT_ON_CLOSE is left out."""
    del actor
    connect = opening.connect

    def connecting(path: Path, *, reader: bool, vfs: str | None) -> connections.Connection:
        connection = connect(path, reader=reader, vfs=vfs)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        return connection

    opening.connect = connecting


def _truncates(actor: Actor) -> None:
    """The keeper's checkpoint cuts the WAL short under the others."""
    del actor
    _Held.mode = apsw.SQLITE_CHECKPOINT_TRUNCATE


def _two_keepers(actor: Actor) -> None:
    """Every process takes the role."""
    del actor

    def become_keeper(this: locks.Locks) -> bool:
        this._keeper = os.open("/dev/null", os.O_RDONLY) if this._keeper is None else this._keeper
        return True

    locks.Locks.become_keeper = become_keeper  # type: ignore[method-assign]


BREAKS = {
    "stale size": _stale_size,
    "checkpoint at close": _checkpoints_at_close,
    "truncate": _truncates,
    "two keepers": _two_keepers,
}


def act(pipe: Connection, name: str, broken: str) -> None:
    """The body of an actor's process."""
    Actor(pipe, name, broken).serve()
