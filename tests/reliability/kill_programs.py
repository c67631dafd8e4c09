"""What is killed at every system call: programs that do one thing each, and the folders in which they begin.

A scene is the folder's maker, what is done before strace takes hold, the program, and which of its threads is killed.
All of it runs in child processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reliability.life import World, begin
from reliability.marks import mark_appends
from reliability.repeatable import repeat_alike, set_clock

from intentlog import Applied, AsyncLog, Durability, InDoubt
from intentlog.core.records import Dispatched
from intentlog.log.engine import Engine
from intentlog.log.values import Settings
from intentlog.observe import LoggingObserver
from intentlog.run import batches
from intentlog.run.duty import Duty
from intentlog.store import making, sqlite
from intentlog.store.clock import SystemClock
from intentlog.store.connection import connection as open_connection

WAL_BYTES = 64 * 1024  # so that room is grown ahead too, in few calls
RENEWED = "UNSAFE-returned#1/effect"
VALUELESS = "UNSAFE-ambiguous#1/effect"


class Open(NamedTuple):
    """A world with its log open, and what else a program needs."""

    world: World
    log: Any
    more: Any = None


def world_in(folder: str, stage: int = 1) -> World:
    """The world of a child, whose every run is alike."""
    repeat_alike(Path(folder), stage)
    world = World(Path(folder), first=False)
    mark_appends(world.marks)
    return world


def opened(folder: str) -> Open:
    """Before a program: the log is open."""
    world = world_in(folder)
    return Open(world, world.open(wal_bytes=WAL_BYTES))


# --- the folders in which programs begin ---------------------------------------------------------------------------


def nothing(folder: str) -> None:
    """A folder without a log."""
    Path(folder, "log").mkdir()
    set_clock(Path(folder))


def empty(folder: str) -> None:
    """A log without records, closed."""
    nothing(folder)
    world_in(folder, 0).open(wal_bytes=WAL_BYTES).close()


def lived(folder: str) -> None:
    """A log with all classes and all endings, closed."""
    nothing(folder)
    world = world_in(folder, 0)
    world.first = True
    begin(world)


def valueless(folder: str) -> None:
    """A log with an effect that was decided to have landed, without its value."""
    lived(folder)
    world = World(Path(folder))
    with world.open() as log:
        log.resolve(VALUELESS, Applied(), by="ada", why="looked")


def left(folder: str) -> None:
    """A log whose owner was killed: doubts of each class, calls under way that landed or did not, a bare Pending."""
    nothing(folder)
    world = world_in(folder, 0)
    world.first = True
    log = world.open(wal_bytes=WAL_BYTES)
    for kind in ("IDEMPOTENT", "KEYED", "QUERYABLE", "UNSAFE"):
        attempt = log.attempt(f"{kind}-ambiguous").__enter__()
        with suppress(InDoubt):
            attempt.call(world.tools[kind], f"{kind}-ambiguous", amount=1999)
    inner = iter(["KEYED-returned", "UNSAFE-returned"])
    happen, append = world._happen, Duty.append

    def nested(call: Any, branch: str) -> str:
        value = happen(call, branch) if branch != "QUERYABLE-rejected" else ""  # it dies before that one's effect
        begin_effect(next(inner))
        return value

    def begin_effect(branch: str) -> None:
        with log.attempt(branch) as attempt:
            attempt.call(world.tools[branch.partition("-")[0]], branch, amount=1999)

    def until_dispatched(self: Duty, entry: Any) -> Any:
        if isinstance(entry.record, Dispatched) and entry.branch == "UNSAFE-returned":
            os.kill(threading.get_native_id(), signal.SIGKILL)
        return append(self, entry)

    world._happen, Duty.append = nested, until_dispatched  # type: ignore[method-assign] # in a child process
    begin_effect("QUERYABLE-rejected")


# --- programs ------------------------------------------------------------------------------------------------------


def open_and_close(folder: str) -> None:
    """Open, close."""
    world_in(folder).open(wal_bytes=WAL_BYTES).close()


def reopen(folder: str) -> None:
    """What comes after a first kill: open, recover, close."""
    world = world_in(folder, 2)
    with world.open(wal_bytes=WAL_BYTES) as log:
        world.recover(log)


def recover(at: Open) -> None:
    """Recover, with probes that answer."""
    at.world.recover(at.log)


def recovered(folder: str) -> Open:
    """Before a person decides."""
    at = opened(folder)
    at.world.recover(at.log)
    return at


def resolve(at: Open) -> None:
    """A person decides every doubt."""
    at.world.resolve(at.log)


def renew(at: Open) -> None:
    """A person wants it once more."""
    at.log.renew(RENEWED, by="ada", why="once more")


def supply(at: Open) -> None:
    """A person gives the value."""
    at.log.supply(VALUELESS, "looked up", by="ada", why="found it")


def in_attempt(folder: str) -> Open:
    """Before a cancellation: an attempt is open."""
    at = opened(folder)
    return at._replace(more=at.log.attempt("UNSAFE-returned").__enter__())


def cancel(at: Open) -> None:
    """A person cancels it."""
    at.log.cancel("UNSAFE-returned", by="ada", why="not wanted")


def checkpoint(at: Open) -> None:
    """One record, and the upkeep after it."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = at.log._engine.store._frames_limit = 1
    at.log.append("events", "approved", {"by": "ada"}, durability=Durability.IMMEDIATE)
    assert at.log._engine.store._frames == 0, "there was no checkpoint"


def with_reads(folder: str) -> Open:
    """Before a log is closed: an event waits to be written."""
    at = opened(folder)
    at.log.append("events", "planned", {"by": "ada"})
    return at


def close(at: Open) -> None:
    """Close the log."""
    at.log.close()


def effect(kind: str, at: Open) -> None:
    """One guarded effect of a class."""
    assert at.world.effect(at.log, f"{kind}-returned")


# --- the same on an event loop -------------------------------------------------------------------------------------


class Looped(NamedTuple):
    """A world with its log open on an event loop."""

    world: World
    log: AsyncLog
    loop: asyncio.AbstractEventLoop
    threads: dict[str, int]


def opened_on_loop(folder: str) -> Looped:
    """Before an effect on an event loop whose commits are its writer's thread's: all threads have begun."""
    batches.INLINE_RECORDS_MAX = 0
    world = world_in(folder)
    loop = asyncio.new_event_loop()

    def engine() -> Engine:
        store = sqlite.SqliteStore(world.path, SystemClock(), LoggingObserver(), wal_bytes=WAL_BYTES)
        return Engine(store, Settings(), store._clock, LoggingObserver())

    log = loop.run_until_complete(AsyncLog(engine).__aenter__())
    driver = log._driver
    threads = {
        "loop": threading.get_native_id(),
        "writer": driver._batches._writer.submit(threading.get_native_id).result(),
        "caller": driver._callers.submit(threading.get_native_id).result(),
    }
    return Looped(world, log, loop, threads)


def opened_inline(folder: str) -> Looped:
    """The same, whose commits are the loop's own."""
    at = opened_on_loop(folder)
    batches.INLINE_RECORDS_MAX, batches.INLINE_COMMIT_S = 2, 3600.0
    return at


def thread_of(name: str, at: Looped) -> int:
    """The number of one of its threads."""
    return at.threads[name]


def effect_on_loop(kind: str, at: Looped) -> None:
    """One guarded effect of a class, on the event loop."""

    async def main() -> None:
        branch = f"{kind}-returned"
        async with at.log.attempt(branch) as attempt:
            outcome = await attempt.perform(at.world.tools[kind], branch, amount=1999)
            at.world.marks.tell("got", outcome.intent_id, outcome.value)

    at.loop.run_until_complete(main())


# --- a guest beside a living keeper ----------------------------------------------------------------------------------


def keep(folder: str, pipe: Any) -> None:
    """A keeper, until it is told to end: then it makes an effect of its own, and closes."""
    world = World(Path(folder), first=False)
    mark_appends(world.marks)
    with world.open(wal_bytes=WAL_BYTES) as log:
        pipe.send("open")
        pipe.recv()
        done = world.effect(log, "UNSAFE-not_sent")
    pipe.send("done" if done else "not done")


class Scene(NamedTuple):
    """One thing to be killed in: see the module."""

    folder: Callable[[str], None]
    program: Callable[[Any], None]
    before: Callable[[str], Any] | None = None
    thread: Callable[[Any], int] | None = None
    has_keeper: bool = False


SCENES = {
    "open-new": Scene(nothing, open_and_close),
    "open-existing": Scene(left, open_and_close),
    "open-guest": Scene(left, open_and_close, has_keeper=True),
    "guest-effect": Scene(left, partial(effect, "KEYED"), opened, has_keeper=True),
    **{f"effect-{k}": Scene(empty, partial(effect, k), opened) for k in ("READ", "IDEMPOTENT", "KEYED", "QUERYABLE")},
    "effect-UNSAFE": Scene(empty, partial(effect, "UNSAFE"), opened),
    "aio-inline": Scene(empty, partial(effect_on_loop, "KEYED"), opened_inline, partial(thread_of, "loop")),
    "aio-loop": Scene(empty, partial(effect_on_loop, "UNSAFE"), opened_on_loop, partial(thread_of, "loop")),
    "aio-writer": Scene(empty, partial(effect_on_loop, "UNSAFE"), opened_on_loop, partial(thread_of, "writer")),
    "aio-caller": Scene(empty, partial(effect_on_loop, "KEYED"), opened_on_loop, partial(thread_of, "caller")),
    "recover": Scene(left, recover, opened),
    "resolve": Scene(left, resolve, recovered),
    "renew": Scene(lived, renew, opened),
    "supply": Scene(valueless, supply, opened),
    "cancel": Scene(empty, cancel, in_attempt),
    "checkpoint": Scene(lived, checkpoint, opened),
    "close": Scene(lived, close, with_reads),
}


# --- controls --------------------------------------------------------------------------------------------------------


def with_two_records(folder: str) -> Open:
    """Control: a protocol without Dispatched."""
    from crash_programs import two_records_only

    two_records_only()
    return opened(folder)


def open_in_place(folder: str) -> None:
    """Control: a log that has its name before it is whole."""

    def create(path: Path, drafts: Path) -> None:
        if not making._is_made(path):
            path.touch(0o600)
            making._fill(path)

    making.create_log = create  # type: ignore[assignment] # in a child process
    open_and_close(folder)


def open_before_wal_mode(folder: str) -> None:
    """Control: a log that is put into WAL mode after it has its name, as it once was."""

    def fill(draft: Path) -> None:
        connection = open_connection(draft, sqlite.apsw.SQLITE_OPEN_READWRITE, None)
        connection.pragma("synchronous", "FULL")
        making.create_tables(connection)
        connection.close()

    making._fill = fill  # in a child process
    open_and_close(folder)


def effect_told_early(at: Open) -> None:
    """Control: "done" is recorded before the call."""
    happen, intents = at.world._happen, []
    append = Duty.append

    def later(call: Any, branch: str) -> str:
        intents.append((call, branch))
        return f"receipt-{call.request_id}"

    def then_call(self: Duty, entry: Any) -> Any:
        reply = append(self, entry)
        while intents and type(entry.record).__name__ == "Committed":
            happen(*intents.pop())
        return reply

    at.world._happen, Duty.append = later, then_call  # type: ignore[method-assign] # in a child process
    effect("UNSAFE", at)


CONTROLS = {
    "two records": Scene(empty, partial(effect, "UNSAFE"), with_two_records),
    "a log is made in place": Scene(nothing, open_in_place),
    "WAL mode after the name": Scene(nothing, open_before_wal_mode),
    "done before the call": Scene(empty, effect_told_early, opened),
}
