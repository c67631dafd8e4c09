"""What meets an error at every system call: a client of a few effects that writes down what it is told, and lies of its
library that must be found out. All of it runs in child processes.

Marks beside those of `marks`:

    phase NAME                     what the client does next: open, effect, event, recover, cancel, close
    failed BRANCH KIND ERROR       the store did not acknowledge a record
    error TYPE INTENT RAN REMEDY VALUE   what the client was told, each word as `repr`
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from reliability.kill_programs import WAL_BYTES, world_in
from reliability.life import World

from intentlog import Durability
from intentlog.core import machine
from intentlog.core.actions import Append, Appended, View
from intentlog.core.records import Committed, Dispatched
from intentlog.run.duty import Duty
from intentlog.store import sqlite
from intentlog.store.sqlite import SqliteStore

EFFECTS = ("KEYED-returned", "UNSAFE-returned", "IDEMPOTENT-ambiguous")


def client(folder: str) -> None:
    """Open, recover, a few effects with a checkpoint between them, close; whatever happens, go on with the next."""
    world = world_in(folder)
    mark_failures(world)
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 30
    log = None
    with told(world, "open"):
        log = world.open(wal_bytes=WAL_BYTES)
    if log is None:
        return
    with told(world, "recover"):
        world.recover(log)
    for branch in EFFECTS:
        world.first = True
        with told(world, "attempt"), log.attempt(branch) as attempt:
            kind = branch.partition("-")[0]
            with told(world, "effect"):
                outcome = attempt.perform(world.tools[kind], branch, amount=1999)
                world.marks.tell("got", outcome.intent_id, outcome.value)
            world.marks.tell("phase", "leave")
    with told(world, "event"):
        log.append("events", "approved", {"by": "ada"}, durability=Durability.IMMEDIATE)
    with told(world, "close"):
        log.close()


@contextmanager
def told(world: World, phase: str) -> Iterator[None]:
    """Write down what the client is told in this phase."""
    world.marks.tell("phase", phase)
    try:
        yield
    except Exception as error:
        names = ("intent_id", "effect_ran", "remedy", "outcome")
        world.marks.tell("error", type(error).__name__, *(repr(getattr(error, name, None)) for name in names), phase)


def mark_failures(world: World) -> None:
    """Mark what the store raises, beside what it is given and acknowledges."""
    original = SqliteStore.append

    def append(self: SqliteStore, entries: Sequence[Any]) -> list[Any]:
        try:
            return original(self, entries)
        except BaseException as error:
            for entry in entries:
                world.marks.tell("failed", entry.branch, type(entry.record).__name__, type(error).__name__)
            raise

    SqliteStore.append = append  # type: ignore[method-assign] # in a child process


# --- writes that the kernel does in part ----------------------------------------------------------------------------


def shortened(folder: str, call: str, number: int, on: bool) -> None:
    """The client, with the nth write of a kind (and, if so, all after it) really done in part."""
    written = 0

    def share(size: int) -> int:
        nonlocal written
        written += 1
        due = written == number or (on and written > number)
        if due:
            Path(folder, "shortened").touch()
        return max(1, size // 2) if due else size

    kept = [_shorten_sqlite(call, share)] if call in ("pwrite", "write") else _shorten_python(call, share, folder)
    client(folder)
    del kept


def _shorten_sqlite(call: str, share: Callable[[int], int]) -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    real = getattr(libc, call)
    real.restype = ctypes.c_ssize_t
    offset = [ctypes.c_int64] if call == "pwrite" else []
    real.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, *offset]

    def some(descriptor: int, data: int, size: int, *where: int) -> int:
        return int(real(descriptor, data, share(size), *where))

    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, *offset, use_errno=True)
    made = kind(some)
    vfs = apsw.VFS("shortened", "unix")
    pointer = ctypes.cast(made, ctypes.c_void_p).value
    names = [f"{call}64", call] if call == "pwrite" else [call]
    for name in names:
        try:
            vfs.xSetSystemCall(name, pointer)
        except apsw.NotFoundError:
            continue
    return made, vfs


def _shorten_python(call: str, share: Callable[[int], int], folder: str) -> None:
    real = getattr(os, call.removeprefix("os."))

    def some(descriptor: int, data: bytes, *where: int) -> int:
        own = str(Path(folder, "log"))
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(own):
            return int(real(descriptor, data, *where))  # the marks
        return int(real(descriptor, data[: share(len(data))], *where))

    setattr(os, call.removeprefix("os."), some)


def limited(folder: str, limit_bytes: int) -> None:
    """The client, where no file may grow beyond a limit: the kernel writes up to it, and then refuses."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    client(folder)


# --- controls --------------------------------------------------------------------------------------------------------


def acknowledges_after(folder: str) -> None:
    """Control: no poison. A commit that failed is told, and the store goes on."""
    original = SqliteStore._poisoned

    def poisoned(self: SqliteStore, error: Exception) -> Any:
        failure = original(self, error)
        self._poison = None
        return failure

    SqliteStore._poisoned = poisoned  # type: ignore[method-assign] # in a child process
    client(folder)


def syncs_again(folder: str) -> None:
    """Control: a commit that failed is made again, and acknowledged."""
    original = SqliteStore._append

    def again(self: SqliteStore, *arguments: Any) -> Any:
        try:
            return original(self, *arguments)
        except Exception:
            self._poison = None
            return original(self, *arguments)

    SqliteStore._append = again  # type: ignore[method-assign] # in a child process
    client(folder)


def _swallowing(kind: type) -> Callable[[str], None]:
    def swallowed(folder: str) -> None:
        original = Duty.append

        def append(self: Duty, entry: Append) -> Any:
            before: View = self.store.view(entry.branch, entry.record.step) if isinstance(entry.record, kind) else None
            try:
                return original(self, entry)
            except Exception:
                if not isinstance(entry.record, kind):
                    raise
                change = machine.apply(before.branch, before.operation, entry.record, 0, before.now)
                return Appended(0, View(change.branch, change.operations[0], before.now))

        Duty.append = append  # type: ignore[method-assign] # in a child process
        client(folder)

    return swallowed


_dispatched, _committed = _swallowing(Dispatched), _swallowing(Committed)


def dispatched_swallowed(folder: str) -> None:
    """Control: that Dispatched was not written is not told, and the call is made."""
    _dispatched(folder)


def outcome_swallowed(folder: str) -> None:
    """Control: that the outcome was not written is not told."""
    _committed(folder)


CONTROLS = {
    "no poison": acknowledges_after,
    "a failed sync is made again": syncs_again,
    "Dispatched's error is swallowed": dispatched_swallowed,
    "the outcome's error is swallowed": outcome_swallowed,
}
