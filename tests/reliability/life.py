"""The guarded worker that the lab takes power, disk and life from: all classes, all endings, all that a person decides.

A branch's name says what is done in it: `KEYED-ambiguous` is one KEYED effect whose answer is lost the first time. So
whoever finds a log can carry any of its branches to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from reliability.marks import Marks, mark_appends

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    Call,
    Durability,
    Log,
    NotApplied,
    NotSent,
    OutcomeUnavailable,
    Rejected,
    Suspended,
    UnknownIntent,
    tool,
)
from intentlog.errors import AttemptCancelled, InDoubt
from intentlog.log.engine import Engine
from intentlog.log.values import Settings
from intentlog.observe import LoggingObserver
from intentlog.store import sqlite
from intentlog.store.clock import SystemClock

CLASSES = {
    "READ": READ,
    "IDEMPOTENT": IDEMPOTENT,
    "KEYED": KEYED(window=timedelta(hours=24)),
    "QUERYABLE": QUERYABLE(settle=timedelta(0)),
    "UNSAFE": UNSAFE,
}
ENDINGS = ("returned", "ambiguous", "not_sent", "rejected", "suspended")
BRANCHES = tuple(f"{kind}-{ending}" for kind, ending in itertools.product(CLASSES, ENDINGS))
SOON = timedelta(microseconds=1)  # lets a probe's "not applied" count at once
_RAISED = {"not_sent": NotSent, "rejected": Rejected, "suspended": Suspended}


class World:
    """The receiver of the effects, and the tools that reach it. Its memory is the file of marks.

    Args:
        folder: the log is `log/log.db` in it, the marks are beside it: what happens to a disk leaves them alone.
        first: whether the endings of the branches' names come true; else everything returns.
        branches: what is done.
        wal_bytes: how far the WAL is grown ahead.
    """

    def __init__(
        self, folder: Path, *, first: bool = True, branches: tuple[str, ...] = BRANCHES, wal_bytes: int = 0
    ) -> None:
        self.marks: Marks | None = None
        self.move_to(folder)
        self.first = first
        self.branches = branches
        self.wal_bytes = wal_bytes
        self.tools: dict[str, Any] = {kind: self._tool(kind) for kind in CLASSES}

    def move_to(self, folder: Path) -> None:
        """From now on, be the world of this folder: two in one process would have tools of the same names."""
        (folder / "log").mkdir(exist_ok=True)
        self.path = folder / "log" / "log.db"
        if self.marks is not None:
            self.marks.close()
        self.marks = Marks(folder / "marks")

    def _tool(self, kind: str) -> Any:
        limit = SOON if kind == "QUERYABLE" else timedelta(minutes=5)

        @tool(effect=CLASSES[kind], name=f"do_{kind}", step="effect", time_limit=limit, durability=Durability.IMMEDIATE)
        def effect(call: Call, branch: str, amount: int) -> str:
            del amount
            return self._happen(call, branch)

        if kind == "QUERYABLE":

            @effect.probe
            def found(call: Call, branch: str, amount: int) -> Applied[str] | NotApplied:
                del branch, amount
                return Applied(f"receipt-{call.request_id}") if self.marks.calls(call.request_id) else NotApplied()

        return effect

    def _happen(self, call: Call, branch: str) -> str:
        ending = branch.split("-")[1] if self.first else "returned"
        if ending in _RAISED:
            raise _RAISED[ending](f"was {ending}")
        self.marks.tell("call", call.intent_id, call.request_id, call.dispatch_no)
        if ending == "ambiguous":
            msg = "the answer was lost"
            raise TimeoutError(msg)
        return f"receipt-{call.request_id}"

    def open(self, *, wal_bytes: int | None = None) -> Log:
        """The log, with as much room that is grown ahead as this world has, unless another measure is given."""
        grown = self.wal_bytes if wal_bytes is None else wal_bytes
        store = sqlite.SqliteStore(self.path, SystemClock(), LoggingObserver(), wal_bytes=grown)
        return Log(Engine(store, Settings(), store._clock, LoggingObserver()))

    def effect(self, log: Log, branch: str) -> bool:
        """One attempt at a branch. True if its effect is done, or refused for good."""
        try:
            with log.attempt(branch) as attempt:
                outcome = attempt.perform(self.tools[branch.partition("-")[0]], branch, amount=1999)
                self.marks.tell("got", outcome.intent_id, outcome.value)
        except (InDoubt, NotSent, Suspended, TimeoutError):
            return False
        except (Rejected, AttemptCancelled):
            return True
        return True

    def recover(self, log: Log) -> None:
        """Recover, and let it be known what was said of each intent."""
        for one in log.recover():
            self.marks.tell("said", one.intent_id, one.classification.name)

    def resolve(self, log: Log) -> None:
        """A person looks at the receiver, and decides every doubt by what is there."""
        landed = {m.words[0] for m in self.marks.calls()}
        for intent in log.open_intents():
            if intent.in_doubt:
                applied = intent.intent_id in landed
                answer: Applied[str] | NotApplied = Applied("looked up") if applied else NotApplied()
                log.resolve(intent.intent_id, answer, by="ada", why="looked", expect_seq=intent.seq)


def begin(world: World) -> None:
    """First runs: every class with every ending, events of both durabilities."""
    with world.open() as log:
        for branch in world.branches:
            log.append(branch, "planned", {"branch": branch})
            world.marks.tell("noted", branch, "ApplicationEvent")
            world.effect(log, branch)
        log.append("events", "approved", {"by": "ada"}, durability=Durability.IMMEDIATE)


def go_on(world: World) -> None:
    """A restart: recover, decide, cancel, renew, and run every branch to its end."""
    world.first = False
    with world.open() as log:
        world.recover(log)
        world.resolve(log)
        with suppress(AttemptCancelled), log.attempt("UNSAFE-cancelled") as attempt:
            log.cancel("UNSAFE-cancelled", by="ada", why="not wanted")
            attempt.call(world.tools["UNSAFE"], "UNSAFE-cancelled", amount=1999)
        for branch in world.branches:
            with suppress(OutcomeUnavailable):
                world.effect(log, branch)
        if "UNSAFE-returned" in world.branches:
            world.marks.tell("renewed", "UNSAFE-returned")
            _renew(log, "UNSAFE-returned")
            world.effect(log, "UNSAFE-returned")


def _renew(log: Log, branch: str) -> None:
    for attempt in (1, 2):  # the first one's effect may not have been reached
        with suppress(UnknownIntent):
            log.renew(f"{branch}#{attempt}/effect", by="ada", why="once more")
            return


def whole_life(world: World, *, checkpoint_frames: int = 24) -> None:
    """Both, with checkpoints in between."""
    checkpoint_each(checkpoint_frames)
    begin(world)
    go_on(world)


def checkpoint_each(frames: int) -> None:
    """Checkpoint whenever the WAL has so many frames, from now on in this process."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = frames


def finish(world: World) -> list[str]:
    """Carry what was begun, and a new branch, to their ends after a crash, and say what went wrong.

    Nothing happens twice on the way.
    """
    world.first = False
    with world.open() as log:
        is_new = {branch: next(log.history(branch), None) is None for branch in world.branches}
        one_new = next((branch for branch in world.branches if is_new[branch]), None)
        carried = [branch for branch in world.branches if branch == one_new or not is_new[branch]]
        for _ in range(4):
            world.recover(log)
            world.resolve(log)
            left = [branch for branch in carried if not world.effect(log, branch)]
            if not left:
                break
        else:
            return [f"not done after four attempts: {left}"]
        return [] if log.verify().ok else ["verify"]


def run(program: Callable[..., None], folder: str, *arguments: Any) -> None:
    """Run a program over the world in a folder, with its appends marked: the body of a child process."""
    world = World(Path(folder))
    mark_appends(world.marks)
    program(world, *arguments)
