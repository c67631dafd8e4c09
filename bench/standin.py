"""The least program of the same duties: what Python, SQLite, this CPU and this disk leave any guard that has them.

An effect is three records in three commits, of the library's own types, in its own tables (their rows, the chain of a
branch, the index of what is open), with the request id, the digest and the fence; their order stands in one generator,
and tasks share commits through one writer's thread. What is left out is all that makes it a library: admission by
rules, refusals, errors, replays, recovery, cancellation, signals, time limits, secrets, tools and their signatures.
No figure of it says anything of safety: it is a floor of the CPU, as raw syncs are one of the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.effects import (
    CENTS,
    FULL,
    QUICK,
    TASKS,
    WARM_WORKERS,
    Amount,
    Missing,
    alternating,
    of_rounds,
    task_round,
    within,
)
from bench.floor import Floor
from bench.measures import Effects
from intentlog.core import records as r
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import OutcomeKind
from intentlog.ports import Counters
from intentlog.store import making, opening, schema
from intentlog.store.connection import Connection
from intentlog.store.rows import ROOM_BYTES, Row
from intentlog.store.sqlite import CHECKPOINT_FRAMES

BATCH_MAX = 256
_DECLARATION = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=60_000_000_000, grace_ns=5_000_000_000)
_SALT = b"\x5a" * 16
_as_json = msgspec.json.Encoder().encode
_as_state = msgspec.msgpack.Encoder().encode
_ROOM = bytes(ROOM_BYTES)


class State(msgspec.Struct, gc=False, array_like=True):
    """An operation's row."""

    step: str
    declaration: Declaration
    request_id: str
    digest: str
    seq: int = 0
    dispatched_ns: int = 0
    outcome: str = ""


class Record(NamedTuple):
    """What is appended."""

    branch: str
    body: bytes
    payload: bytes | None
    state: State
    is_first: bool = False
    is_open: bool = True


def effect(branch: str, order: str) -> Generator[Record | None, object, None]:
    """Three records; between the second and the third it asks for the call, by yielding None."""
    step, arguments = f"charge-{order}", _as_json({"cents": CENTS, "order_id": order})
    digest = blake2b(arguments, digest_size=16).hexdigest()
    key = blake2b(f"{branch}\0{step}\0001".encode(), key=_SALT, digest_size=16).hexdigest()
    state = State(step, _DECLARATION, key, digest)
    pending = r.Pending(attempt=1, step=step, tool="charge", declaration=_DECLARATION, request_id=key, digest=digest)
    yield Record(branch, _as_json(pending), arguments, state, is_first=True)
    state.dispatched_ns = time.time_ns()
    yield Record(branch, _as_json(r.Dispatched(attempt=1, step=step)), None, state)
    value = yield None
    state.outcome = "RETURNED"
    outcome = r.Committed(attempt=1, step=step, outcome=OutcomeKind.RETURNED)
    yield Record(branch, _as_json(outcome), _as_json(value), state, is_open=False)


class Writer:
    """The tables. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        making.create_log(path, path.parent)
        self._path = path
        self._connection: Connection = opening.connect(path, reader=False, vfs=None)
        opening.take_over_wal(self._connection, path, opening.WAL_BYTES)
        self._connection.set_wal_hook(self._count_frames)
        self._frames = self._seq = self.commits = 0
        self._version = self._connection.data_version()
        self._heads: dict[str, tuple[int, bytes]] = {}  # of each branch: its last record, and the chain there

    def _count_frames(self, connection: object, database: str, frames: int) -> int:
        del connection, database
        self._frames = frames
        return 0

    def append(self, records: Sequence[Record]) -> None:
        """Write them in one commit."""
        now_ns, events, branches = time.time_ns(), list[Row](), dict[str, Row]()
        put, updated = list[Row](), list[Row]()
        self._connection.execute("BEGIN IMMEDIATE")
        if self._connection.data_version() != self._version:  # the fence: nobody else has written since
            raise Missing("another connection has written")
        for branch, body, payload, state, is_first, is_open in records:
            previous, chain = self._heads.get(branch, (0, b""))
            self._seq = state.seq = seq = self._seq + 1
            chain = blake2b(b"".join((chain, b"%d %d" % (seq, now_ns), body, payload or b"")), digest_size=16).digest()
            self._heads[branch] = seq, chain
            events.append((seq, branch, previous, now_ns, None, None, body.decode(), payload, chain))
            branches[branch] = branch, True, chain
            if is_first or not is_open:
                put.append((branch, state.step, 1, is_open, _as_state(state), _ROOM))
            else:
                updated.append((branch, state.step, 1, _as_state(state), _ROOM))
        self._connection.executemany(schema.INSERT_EVENT, events)
        self._connection.executemany(schema.PUT_BRANCH, [*branches.values()])
        self._connection.executemany(schema.PUT_OPERATION, put)
        self._connection.executemany(schema.SET_OPERATION, updated)
        self._connection.execute("COMMIT")
        self._version = self._connection.data_version()
        self.commits += 1

    def upkeep(self) -> None:
        """Restart the WAL before it grows, between two commits."""
        if self._frames >= CHECKPOINT_FRAMES:
            opening.take_over_wal(self._connection, self._path, opening.WAL_BYTES)
            self._version, self._frames = self._connection.data_version(), 0

    def close(self, effects: int) -> Counters:
        """Look whether all is there, and let go."""
        found = self._connection.execute("SELECT count(*) FROM operations WHERE NOT is_listed").get
        self._connection.close()
        if found != effects:
            raise Missing(f"the stand-in: {found} effects are in the log, {effects} were made")
        return Counters(self.commits, self.commits, 0)


def lone(folder: Path, amount: Amount) -> Effects:
    """One effect after the other on one thread."""
    orders, writer = count(), Writer(folder / "standin-lone.db")

    def one() -> None:
        script = effect("order-0", str(next(orders)))
        for action in script:
            if action is not None:
                writer.append([action])
        writer.upkeep()

    with Floor(folder) as floor:
        alternating(one, floor, amount.per_worker // 2)
        before = writer.commits
        taken = [alternating(one, floor, amount.per_worker) for _ in within(amount)]
    after = writer.close(next(orders))
    return of_rounds("sync", 1, taken, Counters(before, before, 0), after)


class _Tasks:
    """Tasks of one loop: a queue, one batch in flight, one wake-up for each batch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._queue: deque[tuple[Record, asyncio.Future[None]]] = deque()
        self._is_committing = False

    async def effect(self, branch: str, order: str) -> None:
        """One effect."""
        script = effect(branch, order)
        action = next(script)
        try:
            while True:
                if action is None:
                    action = script.send(await self._call(order))
                else:
                    await self._append(action)
                    action = next(script)
        except StopIteration:
            return

    async def _call(self, order: str) -> str:
        return f"receipt-{order}-{CENTS}"

    async def _append(self, record: Record) -> None:
        landing: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((record, landing))
        if not self._is_committing:
            self._is_committing = True
            self._loop.call_soon(self._launch)
        await landing

    def _launch(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
        self._is_committing = bool(batch)
        if batch:
            self._thread.submit(self._commit, batch)

    def _commit(self, batch: list[tuple[Record, asyncio.Future[None]]]) -> None:
        self._writer.append([record for record, _ in batch])
        self._loop.call_soon_threadsafe(self._landed, batch)
        self._writer.upkeep()

    def _landed(self, batch: list[tuple[Record, asyncio.Future[None]]]) -> None:
        for _, landing in batch:
            landing.set_result(None)
        self._loop.call_soon(self._launch)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown()


async def at_once(folder: Path, tasks: int, amount: Amount) -> Effects:
    """So many tasks, each with a branch of its own."""
    orders, writer = count(), Writer(folder / f"standin-{tasks}.db")
    driver = _Tasks(writer)
    with Floor(folder) as floor:
        workers = [partial(driver.effect, f"order-{worker}") for worker in range(max(tasks, WARM_WORKERS))]
        await task_round(list(workers[:WARM_WORKERS]), 1, orders, floor)
        before = writer.commits
        taken = [await task_round(list(workers[:tasks]), amount.per_worker, orders, floor) for _ in within(amount)]
    driver.close()
    after = writer.close(next(orders))
    return of_rounds(f"asyncio-{tasks}", tasks, taken, Counters(before, before, 0), after)


def measure(folder: Path, *, quick: bool) -> Iterator[Effects]:
    """Every scenario, as soon as it is measured; the keys are those of the library's own."""
    amounts = QUICK if quick else FULL
    yield lone(folder, amounts[1])
    for tasks in TASKS:
        if tasks in amounts and tasks >= WARM_WORKERS:
            yield asyncio.run(at_once(folder, tasks, amounts[tasks]))
