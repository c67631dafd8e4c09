"""A log that may be damaged, looked at from every side: what a child process does with it, and what that came to.

`look` never raises: whatever leaves the library that is none of its own errors is told in `Look.wrong`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reliability import life
from reliability.life import World
from reliability.marks import mark_appends
from reliability.oracle import quick_open

from intentlog import IntentLogError, Log
from intentlog.cli import main
from intentlog.store import sqlite, sqlite_checkup

WAL_BYTES = 1 << 18
EXIT_CODES = (0, 1, 2, 3, 4)


class Content(NamedTuple):
    """Everything that a log says: each record with its place, its time and its payload, and the rows folded from them.

    Attributes:
        records: one text for each.
        rows: one text for each.
    """

    records: tuple[str, ...]
    rows: tuple[str, ...]


class Look(NamedTuple):
    """What came of a look.

    Attributes:
        wrong: what must never be, whatever the damage: an error that is none of the library's, a wrong exit code.
        accepted: what a `verify` that found nothing wrong had before it, by who asked: "reader", "writer", and a "later
            reader", after the writer has gone on.
        verdicts: what each `verify` said, in turn; None where it could not be asked.
    """

    wrong: list[str]
    accepted: dict[str, Content]
    verdicts: list[bool | None]


def content_of(log: Log) -> Content:
    """What a log says, read through the library."""
    store = log._engine.store
    records = tuple(repr(stored) for stored in store.history(None))
    rows = (*store.branches(unfinished_only=False), *store.operations(None, open_only=False))
    return Content(records, tuple(repr(row) for row in rows))


def look(folder: str, branches: Sequence[str], commands: Sequence[str]) -> Look:
    """Open the log of a world for reading, for writing, and by the command, and do with it all that there is to do.

    Args:
        folder: the world's.
        branches: those that are shown, and that are run on.
        commands: the commands that are given it, with what they take.
    """
    world = World(Path(folder), first=False)
    one = _Looking(world, branches)
    one.try_all("doctor", lambda: sqlite_checkup.examine(world.path))
    one.read()
    for command in commands:
        if command.startswith("recover"):
            continue
        code = one.command(command)
        if command == "verify" and (code == 0) is not bool(one.verdicts[0]):
            one.wrong.append(f"`verify` ended with {code}, and log.verify() said {one.verdicts[0]}")
    one.write()
    for command in commands:
        if command.startswith("recover"):
            one.command(command)
    return Look(one.wrong, one.accepted, one.verdicts)


class _Looking:
    def __init__(self, world: World, branches: Sequence[str]) -> None:
        self._world = world
        self._branches = branches
        self.wrong: list[str] = []
        self.accepted: dict[str, Content] = {}
        self.verdicts: list[bool | None] = []

    def try_all(self, name: str, *acts: Callable[[], Any]) -> Any:
        """Do each; what the last one answered, or None."""
        answer = None
        for act in acts:
            answer = None
            try:
                answer = act()
            except IntentLogError:
                pass
            except BaseException as error:
                self.wrong.append(f"{name} raised {type(error).__name__}: {error}"[:600])
        return answer

    def command(self, command: str) -> int:
        """Run a command on the log."""
        name, *more = command.split(" ")
        code, out, err = run_command([name, str(self._world.path), *more], {})
        if code not in EXIT_CODES or "internal" in out + err or "Traceback" in out + err:
            self.wrong.append(f"`{command}` ended with {code}: {out[-200:]} {err[-400:]}")
        return code

    def read(self) -> None:
        log = self.try_all("open to read", lambda: quick_open(self._world.path, read_only=True))
        if log is None:
            self.verdicts.append(None)
            return
        self._ask(log)
        self._verify(log, "reader")
        self.try_all("close", log.close)

    def write(self) -> None:
        log = self.try_all("open to write", lambda: self._world.open(wal_bytes=WAL_BYTES))
        if log is None:
            self.verdicts.append(None)
            return
        self._verify(log, "writer")
        self._ask(log)
        self.try_all("recover", lambda: self._world.recover(log))
        self.try_all("run a branch on", *(lambda b=b: self._world.effect(log, b) for b in self._branches))
        self.try_all("close", log.close)
        log = self.try_all("open again", lambda: quick_open(self._world.path, read_only=True))
        if log is not None:
            self._verify(log, "later reader")
            self.try_all("close again", log.close)

    def _ask(self, log: Log) -> None:
        self.try_all("status", log.open_intents, log.contradictions)
        self.try_all("unfinished", log.unfinished, log.recoverable)
        self.try_all("show", *(lambda b=b: list(log.history(b)) for b in self._branches))
        self.try_all("tail", lambda: log.tail(10))

    def _verify(self, log: Log, who: str) -> None:
        ok = self.try_all("verify", lambda: log.verify().ok)
        self.verdicts.append(ok)
        if ok:
            self.accepted[who] = self.try_all("read all", lambda: content_of(log)) or Content((), ())


def run_command(arguments: Sequence[str], variables: dict[str, str]) -> tuple[int, str, str]:
    """The command's real entry point, in this process: its exit code, its stdout, its stderr."""
    environment = dict(os.environ)
    os.environ.update(variables)
    kept = sys.stdout, sys.stderr, sys.argv
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    sys.stdout, sys.stderr, sys.argv = out, err, ["intentlog", *arguments]
    try:
        code = main()
    finally:
        sys.stdout, sys.stderr, sys.argv = kept
        os.environ.clear()
        os.environ.update(environment)
    return code, *(stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in (out, err))


# --- programs that make the logs -------------------------------------------------------------------------------------


def die_in_an_effect(world: World) -> None:
    """Leave everything that a worker can leave that is killed: records in the WAL alone, an owner, a call in flight."""
    life.begin(world)
    world.first = False
    with world.open(wal_bytes=WAL_BYTES) as log:
        world.recover(log)
        for branch in ("IDEMPOTENT-ambiguous", "KEYED-not_sent", "UNSAFE-suspended", "KEYED-returned"):
            world.effect(log, branch)
        world._happen = lambda call, branch: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        world.effect(log, "UNSAFE-killed")


def live_and_close(world: World) -> None:
    """A log whose worker closed it, its WAL begun anew several times."""
    life.whole_life(world, checkpoint_frames=60)


def made_by(program: Callable[[World], None], folder: str) -> None:
    """Run a program that makes a log, and that may kill itself."""
    sqlite.CHECKPOINT_FRAMES = sqlite.WAL_FRAMES_MAX = 900
    life.BRANCHES = (*life.BRANCHES[::3], "KEYED-returned", "UNSAFE-returned")  # a look takes half as long
    world = World(Path(folder))
    mark_appends(world.marks)
    program(world)


def read_content(folder: str) -> Content:
    """What an undamaged log says."""
    with quick_open(World(Path(folder)).path, read_only=True) as log:
        assert log.verify().ok
        return content_of(log)


def warm() -> None:
    """Load what the command loads when it is first used, for every task to come."""
    run_command(["verify", "--help"], {})


# --- controls: the library broken on purpose, in the process that watches ---------------------------------------------


def without_chain() -> None:
    """`verify` that leaves the chain out."""
    warm()
    from intentlog.core import check

    def unchecked(self: Any, stored: Any, body: bytes) -> None:
        self._head_seq, self._head_chain = stored.seq, stored.chain

    check._Look._check_link = unchecked  # type: ignore[method-assign]


def without_translation() -> None:
    """Reads that let through what a damaged file makes SQLite or a decoder raise."""
    warm()
    from intentlog.store import damage, reads

    class Nothing(damage.Reading):
        def __exit__(self, *_: object) -> None:
            return None

    reads.reading = Nothing  # type: ignore[assignment]


def end_badly(how: str) -> None:
    """End as nothing of the library may."""
    match how:
        case "exit":
            os._exit(3)
        case "hang":
            signal.pause()
        case "raise":
            msg = "on purpose"
            raise ValueError(msg)
        case _:
            os.kill(os.getpid(), signal.Signals[how])
