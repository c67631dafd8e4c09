"""A fork while the log is open: the child may not use it, and the parent does not notice (I5, I8).

SQLite's locks do not survive a fork, and a child has copies of the parent's half-written state. In the control, without
the check, both commit the transaction that was open at the fork: an acknowledged record is gone.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reliability import forked
from reliability.conftest import Lab
from reliability.life import World
from reliability.marks import mark_appends
from reliability.oracle import violations

from intentlog import Durability, Log, WrongProcess
from intentlog.core import records as r
from intentlog.core.actions import Append
from intentlog.store import sqlite

HARNESS = "forks with the log open"

USES: dict[str, Callable[[Any, Any], object]] = {
    "append": lambda log, world: log.append("child", "noted", {}, durability=Durability.IMMEDIATE),
    "attempt": lambda log, world: world.effect(log, "UNSAFE-returned"),
    "recover": lambda log, world: log.recover(),
    "history": lambda log, world: list(log.history("one")),
    "verify": lambda log, world: log.verify(),
    "open intents": lambda log, world: log.open_intents(),
    "open again": lambda log, world: world.open(),
    "read again": lambda log, world: Log.open(world.path, read_only=True),
}


def refused(use: Callable[[Any, Any], object], log: Any, world: World) -> None:
    """The body of a child: it must be refused."""
    try:
        use(log, world)
    except WrongProcess:
        return
    raise AssertionError("a child used its parent's log")


def with_os_fork(body: Callable[[], None]) -> None:
    forked.Child(body).ends_well()


def with_multiprocessing(body: Callable[[], None]) -> None:
    child = multiprocessing.get_context("fork").Process(target=body)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def in_own_process(body: Callable[[], None]) -> None:
    """The parent of all this is a child itself: a log that is open here would be there for every later fork."""
    ended = forked.run(body)
    assert ended == (0, ""), ended


@pytest.mark.parametrize("fork", [with_os_fork, with_multiprocessing])
def test_a_child_is_refused_and_its_parent_goes_on(lab: Lab, quick_folder: Path, fork: Callable[..., None]) -> None:
    """Whatever it does with the open log: WrongProcess; the parent's records before and after it are there."""
    world = World(quick_folder)

    def parent() -> None:
        mark_appends(world.marks)
        with world.open() as log:
            for use in USES.values():
                log.append("one", "noted", {}, durability=Durability.IMMEDIATE)
                fork(lambda use=use: refused(use, log, world))
                log.append("one", "noted", {}, durability=Durability.IMMEDIATE)
            world.effect(log, "UNSAFE-returned")

    in_own_process(parent)
    lab.seen(len(USES), violations(world.path, world.marks.read()))


def test_a_child_that_ends_as_python_does_leaves_the_log_alone(lab: Lab, quick_folder: Path) -> None:
    """It closes nothing of its parent's: with `sys.exit`, destructors and `atexit`, and a killed one neither."""
    world = World(quick_folder)

    def parent() -> None:
        mark_appends(world.marks)
        with world.open() as log:
            for number in range(4):
                log.append("one", "noted", {}, durability=Durability.IMMEDIATE)
                child = multiprocessing.get_context("fork").Process(target=log.close if number % 2 else int)
                child.start()
                child.join(60)
                assert child.exitcode is not None
                log.append("one", "noted", {}, durability=Durability.IMMEDIATE)
            with Log.open(world.path, read_only=True) as reader:
                assert sum(1 for _ in reader.history("one")) == 8

    in_own_process(parent)
    lab.seen(4, violations(world.path, world.marks.read()))


def test_forks_in_a_thread_during_commits(lab: Lab, long: bool, quick_folder: Path) -> None:
    """One thread commits all the time, and another forks: each child is refused at once, and none hangs or harms."""
    world = World(quick_folder)
    forks = 200 if long else 25

    def parent() -> None:
        mark_appends(world.marks)
        over = threading.Event()
        with world.open() as log:

            def commit() -> None:
                while not over.is_set():
                    log.append("one", "noted", {}, durability=Durability.IMMEDIATE)

            committer = threading.Thread(target=commit)
            committer.start()
            try:
                uses = list(USES.values())
                for number in range(forks):
                    with_os_fork(lambda number=number: refused(uses[number % len(uses)], log, world))
            finally:
                over.set()
                committer.join()

    in_own_process(parent)
    lab.seen(forks, violations(world.path, world.marks.read()))


def test_control_without_the_check(lab: Lab, quick_folder: Path) -> None:
    """A child that goes on with the transaction it inherited, as its parent does: an acknowledged record is gone."""
    world = World(quick_folder)
    in_own_process(lambda: both_commit(world))
    marks = world.marks.read()
    acknowledged = {m.words[1] for m in marks if m.kind == "ack"}
    assert acknowledged == {"one", "two"}
    wrong: list[str] = []

    def judge() -> None:
        with world.open() as log:
            missing = [name for name in ("one", "two") if len(list(log.history(name))) < (3 if name == "one" else 1)]
        (quick_folder / "found").write_text("\n".join([*missing, *violations(world.path, marks)]))

    ended = forked.run(judge)
    wrong = (quick_folder / "found").read_text().splitlines() if ended.code == 0 else ["it cannot be read"]
    lab.control("no check against forks", 1, len(wrong))


def both_commit(world: World) -> None:
    """A fork between BEGIN and COMMIT: the child commits a record of its own, and then the parent its own."""
    mark_appends(world.marks)
    staging = sqlite.stage
    times = itertools.count()
    log = world.open()
    connection = log._engine.store._connection

    def stage(tables: Any, entries: Any, at: Any) -> Any:
        if next(times) == 2:
            forked.Child(commit_own, tables, at).ends_well()
        return staging(tables, entries, at)

    def commit_own(tables: Any, at: Any) -> None:
        entry = Append("two", r.ApplicationEvent(attempt=0, name="noted"))
        staged = staging(tables, [entry], at)
        world.marks.tell("try", "two", "ApplicationEvent")
        tables.write(staged)
        connection.execute("COMMIT")
        world.marks.tell("ack", staged.replies[0].seq, "two", "ApplicationEvent")

    sqlite.stage = stage
    for _ in range(3):
        log.append("one", "noted", {}, durability=Durability.IMMEDIATE)
    log.close()
