"""What the crash tests of group commit run in child processes, and kill: 64 effects at once, each in its own branch."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from counting_vfs import CountingVFS

from intentlog import AsyncLog, Log, Settings, tool
from intentlog.crash import Witness
from intentlog.log.engine import open_engine

EFFECTS = 64


def branch_of(number: int) -> str:
    return f"order-{number}"


def told(witness: Witness, number: int) -> int:
    """The effect itself: a line in a file that the log knows nothing of."""
    witness.record(branch_of(number))
    return number


def run_at_once(folder: str, mode: str, strike: str = "") -> None:
    """Open 64 attempts, then make an UNSAFE effect in each of them, all at once.

    Args:
        folder: where log and witness are.
        mode: sync (64 threads), or asyncio (64 tasks).
        strike: "xWrite:n", "xSync:n": die inside the nth such call on the WAL after the attempts were opened.
    """
    witness = Witness(Path(folder, "witness"))
    vfs = Striking(strike) if strike else None
    path, vfs_name = Path(folder, "log.db"), vfs.name if vfs else None

    def opener() -> Any:
        return open_engine(path, Settings(), read_only=False, vfs=vfs_name)

    if mode == "asyncio":
        asyncio.run(_tasks(AsyncLog(opener), witness, vfs))
    else:
        _threads(Log(opener()), witness, vfs)


def _threads(log: Log, witness: Witness, vfs: Striking | None) -> None:
    @tool(step="effect")
    def effect(number: int) -> int:
        return told(witness, number)

    start = threading.Barrier(EFFECTS + 1)
    attempts = [log.attempt(branch_of(number)).__enter__() for number in range(EFFECTS)]

    def work(number: int) -> None:
        start.wait()
        attempts[number].call(effect, number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(EFFECTS)]
    for thread in threads:
        thread.start()
    if vfs:
        vfs.arm()
    start.wait()
    for thread in threads:
        thread.join()
    for attempt in attempts:
        attempt.__exit__(None, None, None)
    log.close()


async def _tasks(opened: AsyncLog, witness: Witness, vfs: Striking | None) -> None:
    @tool(step="effect")
    async def effect(number: int) -> int:
        return told(witness, number)

    async with opened as log:
        attempts = [log.attempt(branch_of(number)) for number in range(EFFECTS)]
        await asyncio.gather(*(attempt.__aenter__() for attempt in attempts))
        if vfs:
            vfs.arm()
        await asyncio.gather(*(attempt.call(effect, number) for number, attempt in enumerate(attempts)))
        await asyncio.gather(*(attempt.__aexit__(None, None, None) for attempt in attempts))


class Striking(CountingVFS):
    """Dies inside the nth call of one kind on the WAL: before it for a sync, half-way through for a write."""

    def __init__(self, strike: str) -> None:
        self._what, _, nth = strike.partition(":")
        self._left = int(nth)
        self._armed = False
        super().__init__("striking")

    def arm(self) -> None:
        self._armed = True

    def reached(self, what: str, suffix: str) -> None:
        super().reached(what, suffix)
        if self._armed and (what, suffix) == (self._what, "-wal"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()
