"""The guarded worker while its disk is in trouble, and what may be said to whom meanwhile.

To the marks comes what each error said:

    told NAME RAN BRANCH STEP WHERE TEXT    an error left the library: its `effect_ran`, of which effect, at what
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reliability import life
from reliability.life import BRANCHES, World, whole_life
from reliability.marks import Mark, mark_appends

from intentlog import (
    AttemptCancelled,
    InDoubt,
    IntentLogError,
    Log,
    LogDamaged,
    LogPoisoned,
    NotSent,
    Rejected,
    Suspended,
)
from intentlog.store import opening, sqlite

PATIENCE = 6  # errors, until somebody mends the disk
_SAID_BY_THE_TOOL = (Rejected, NotSent, Suspended, AttemptCancelled)


class Troubled(World):
    """The world of `life`, in which every error that leaves the library is told to the marks, and none may be foreign.

    Attributes:
        errors: how many were told that the disk caused.
    """

    errors = 0

    def effect(self, log: Log, branch: str) -> bool:
        """One attempt at a branch. True if its effect is done, or refused for good. Raises what the disk causes."""
        inside = False
        try:
            with log.attempt(branch) as attempt:
                inside = True
                try:
                    outcome = attempt.perform(self.tools[branch.partition("-")[0]], branch, amount=1999)
                    self.marks.tell("got", outcome.intent_id, outcome.value)
                except IntentLogError as error:
                    self.tell(error, branch, "perform")
                    raise
                inside = False
        except (InDoubt, NotSent, Suspended, TimeoutError):
            return False
        except (Rejected, AttemptCancelled):
            return True
        except IntentLogError as error:
            if not inside:
                self.tell(error, branch, "attempt")
            raise
        return True

    def tell(self, error: IntentLogError, branch: str, where: str) -> None:
        """Mark an error, which must say what to do."""
        assert error.remedy or isinstance(error, _SAID_BY_THE_TOOL), f"no remedy: {error!r}"
        step = (error.intent_id or "").rpartition("/")[2]
        text = " ".join(str(error).split())
        self.marks.tell("told", type(error).__name__, error.effect_ran, branch, step, where, text)


def persist(world: Troubled, mend: Callable[[], None], patience: int = PATIENCE) -> None:
    """Try every branch whatever the disk does; after some errors it is mended, and everything has to go on."""
    log: Log | None = None
    mended = False
    for branch in BRANCHES:
        for _ in range(3):
            try:
                log = log or world.open()
                log.append(branch, "planned", {"branch": branch})
                world.effect(log, branch)
                break
            except IntentLogError as error:
                if mended and not isinstance(error, LogPoisoned | LogDamaged):
                    msg = f"mended, and then: {error!r}"
                    raise AssertionError(msg) from error
                log = _let_go(world, log, branch, error)
                world.errors += 1
                if world.errors >= patience and not mended:
                    mended = True
                    mend()
    if log is not None:
        closed(world, log)


def _let_go(world: Troubled, log: Log | None, branch: str, error: IntentLogError) -> Log | None:
    if log is None:
        world.tell(error, branch, "open")
    elif isinstance(error, LogPoisoned | LogDamaged):
        closed(world, log)
        return None
    return log


def closed(world: Troubled, log: Log) -> None:
    """Close a log on a disk that may be gone."""
    try:
        log.close()
    except IntentLogError as error:
        world.tell(error, "", "close")


def at_moment(number: int, happens: Callable[[], None]) -> None:
    """Let something happen before the nth append or upkeep of this process."""
    passed = 0
    for name in ("append", "upkeep"):
        original: Any = getattr(sqlite.SqliteStore, name)

        def reached(self: sqlite.SqliteStore, *arguments: Any, original: Any = original) -> Any:
            nonlocal passed
            passed += 1
            if passed == number:
                happens()
            return original(self, *arguments)

        setattr(sqlite.SqliteStore, name, reached)  # in a child process


def run(program: Callable[..., Any], folder: str, *arguments: Any) -> None:
    """Run a program over the world in a folder, with its appends marked: the body of a child process."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 24
    try:
        world = Troubled(Path(folder))
    except OSError:
        return  # the disk was gone before the worker began
    mark_appends(world.marks)
    program(world, *arguments)


def live(world: Troubled, synchronous: str = "FULL") -> None:
    """A whole life, up to the first error of the disk, if there is one."""
    if synchronous != "FULL":  # what the library refuses, and a control needs
        opening._SETTINGS["synchronous"] = synchronous
        opening._REQUIRED["synchronous"] = {"OFF": 0, "NORMAL": 1}[synchronous]
    with suppress(IntentLogError):
        whole_life(world)


def of_errors(marks: Sequence[Mark]) -> list[str]:
    """What an error said of its effect, against the witness: "no" only before any call of it, "yes" only after one."""
    found = []
    called: set[str] = set()
    for mark in marks:
        if mark.kind == "call":
            called.add(mark.words[0].rpartition("#")[0])
        elif mark.kind == "renewed":
            called.discard(mark.words[0])
        elif mark.kind == "told":
            name, ran, branch, step, where, text = mark.words
            if (where != "perform" and not step) or branch.startswith("READ"):
                continue  # it speaks of no effect, or of one that changes nothing outside
            if ran == "no" and branch in called:
                found.append(f"a lie: {name} at {where} of {branch} says that it did not run, and it did: {text}")
            elif ran == "yes" and branch not in called:
                found.append(f"a lie: {name} at {where} of {branch} says that it ran, and it did not: {text}")
    return found


def finish(world: Troubled) -> None:
    """Everything is brought to its end on a sound disk, and the log is sound."""
    assert not (problems := life.finish(world)), problems
