"""What an effect costs, counted and never timed: a guard against regress (DESIGN 9 and 11).

Commits, syncs, statements, pages and threads, for a lone effect, for 64 at once, and for a replayed step. The bounds of
statements and pages are what was counted when they were written: fewer is fine, more is a regress.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest
from counting_vfs import CountingVFS
from group_bench import Callers, GatedSqlite, async_log_of, engine_of, log_of, result_of

from intentlog import AsyncLog, Log, tool
from intentlog.core.actions import Append, Appended, Refused

EFFECTS = 64
_names = count()

# For each of the three records: BEGIN, the event, the branch's row, the operation's row, COMMIT.
STATEMENTS_MAX = {"Pending": 5, "Dispatched": 5, "Committed": 5}
PAGES_MAX = {"Pending": 4, "Dispatched": 3, "Committed": 4}  # frames that one commit adds to the WAL, as a rule
PAGES_OF_A_SPLIT_MAX = 4  # and more now and then, where a leaf of a tree is full
PAGES_OF_64_MAX = 24  # of a commit of 64 records: rows that stand together share pages
STATEMENTS_REPLAYED_MAX = 1  # of each of many: they are read ahead, several at a time
LOOKS_MAX = 0  # statements of the reading connection in a whole new effect, while its attempt is open here


@tool
def effect(number: int) -> int:
    return number


@tool
async def effect_async(number: int) -> int:
    return number


class Counted(GatedSqlite):
    """A store that counts, for each of its commits, statements and frames of the WAL.

    Attributes:
        statements: of the writing connection, in each append.
        frames: that each append added to the WAL.
        looks: statements of the reading connection, all in all.
    """

    def __init__(self, folder: Path) -> None:
        self.vfs = CountingVFS(f"costs-{next(_names)}")
        self.statements: list[tuple[str, int]] = []
        self.frames: list[tuple[str, int]] = []
        self.looks: list[str] = []
        self._seen: list[str] = []
        super().__init__(folder / "log.db", vfs=self.vfs.name)
        self._trace(self._connection, self._seen)
        self._trace(self._reads, self.looks)

    def _trace(self, connection: Any, into: list[str]) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: into.append(event["sql"]))

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        frames = self._frames
        self._seen.clear()
        replies = super().append(entries)
        kind = type(entries[0].record).__name__
        self.statements.append((kind, len(self._seen)))
        self.frames.append((kind, self._frames - frames))
        return replies

    def forget(self) -> None:
        """Count from here."""
        for counted in (self.statements, self.frames, self.looks, self.batches, self.threads):
            counted.clear()


@pytest.fixture
def store(quick_folder: Path) -> Iterator[Counted]:
    made = Counted(quick_folder)
    yield made
    made.close()


@contextmanager
def no_thread_started() -> Iterator[None]:
    """Fail if a thread is started meanwhile, or if another than this one runs a line of ours."""
    hops: list[str] = []

    def entered(frame: FrameType, event: str, argument: object) -> None:
        hops.append(f"{threading.current_thread().name}: {frame.f_code.co_qualname}")

    before = set(threading.enumerate())
    threading.setprofile(entered)  # of threads that begin from now on
    try:
        yield
    finally:
        threading.setprofile(None)
    assert hops == []
    assert set(threading.enumerate()) == before


# --- a lone effect ---------------------------------------------------------------------------------------------------


def check_lone(store: Counted, before: tuple[int, ...], syncs: int) -> None:
    kinds = ["Pending", "Dispatched", "Committed"]
    assert store.kinds() == [[kind] for kind in kinds]
    counters = store.counters
    assert (counters.commits - before[0], counters.syncs - before[1]) == (3, 3)
    assert counters.upkeep_commits == before[2]
    assert store.vfs.calls["xSync", "-wal"] - syncs == 3, "no timer, no batch, no checkpoint: three syncs of the WAL"
    for (kind, statements), (_, frames) in zip(store.statements, store.frames, strict=True):
        assert statements <= STATEMENTS_MAX[kind], f"{kind}: {statements} statements, {store._seen}"
        assert 0 < frames <= PAGES_MAX[kind] + PAGES_OF_A_SPLIT_MAX, f"{kind}: {frames} pages"
    assert len(store.looks) <= LOOKS_MAX, store.looks


def test_a_lone_effect(store: Counted) -> None:
    """3 commits, 3 syncs of the WAL, none of the file; on the caller's own thread; statements and pages bounded."""
    with Log(engine_of(store)) as log, log.attempt("order") as attempt:
        attempt.step("warm").call(effect, 0)
        pages: dict[str, list[int]] = {kind: [] for kind in PAGES_MAX}
        for number in range(5):
            store.forget()
            counters, syncs = store.counters, store.vfs.calls.copy()
            with no_thread_started():
                attempt.step(f"e{number}").call(effect, number)
            check_lone(store, counters, syncs["xSync", "-wal"])
            assert store.vfs.calls["xSync", "log"] == syncs["xSync", "log"]
            assert set(store.threads) == {threading.get_ident()}
            for kind, frames in store.frames:
                pages[kind].append(frames)
        for kind, found in pages.items():
            assert sorted(found)[2] <= PAGES_MAX[kind], f"{kind}: {found} pages"


def test_a_lone_effect_control_of_the_threads(store: Counted) -> None:
    """Control: what is done in a thread of its own is noticed."""
    with pytest.raises(AssertionError), no_thread_started():
        thread = threading.Thread(target=store.view, args=("order", "e"))
        thread.start()
        thread.join()


def test_a_lone_effect_control_of_the_counts(store: Counted) -> None:
    """Control: one statement more in a commit than was counted is noticed."""
    store.meddle = lambda _: store._connection.execute("SELECT 1").fetchall()
    with Log(engine_of(store)) as log, log.attempt("order") as attempt:
        attempt.step("warm").call(effect, 0)
        store.forget()
        counters, of_wal = store.counters, store.vfs.calls["xSync", "-wal"]
        attempt.call(effect, 1)
        with pytest.raises(AssertionError, match="statements"):
            check_lone(store, counters, of_wal)


def test_a_lone_effect_on_a_loop(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on an event loop, while the disk is quick: committed on the loop's thread, no other is woken."""
    monkeypatch.setattr("intentlog.run.batches.INLINE_COMMIT_S", sys.float_info.max)  # however loaded this machine is

    async def main() -> None:
        async with async_log_of(store) as log, log.attempt("order") as attempt:
            await attempt.step("warm").call(effect_async, 0)
            for number in range(5):
                store.forget()
                counters, of_wal = store.counters, store.vfs.calls["xSync", "-wal"]
                with no_thread_started():
                    await attempt.step(f"e{number}").call(effect_async, number)
                check_lone(store, counters, of_wal)
                assert set(store.threads) == {threading.get_ident()}

    asyncio.run(main())


# --- many at once ----------------------------------------------------------------------------------------------------


async def _at_once(log: AsyncLog, attempts: list[Any]) -> list[int]:
    return await asyncio.gather(*(attempt.call(effect_async, n) for n, attempt in enumerate(attempts)))


def check_64_on_a_loop(store: Counted) -> None:
    async def main() -> None:
        async with async_log_of(store) as log:
            attempts = [log.attempt(f"order-{n}") for n in range(EFFECTS)]
            await asyncio.gather(*(attempt.__aenter__() for attempt in attempts))
            store.forget()
            before, of_wal = store.counters, store.vfs.calls["xSync", "-wal"]
            wake_ups: list[Any] = []
            loop = asyncio.get_running_loop()
            threadsafe = loop.call_soon_threadsafe

            def counted(*arguments: Any, **context: Any) -> Any:
                wake_ups.append(arguments)
                return threadsafe(*arguments, **context)

            loop.call_soon_threadsafe = counted  # type: ignore[method-assign] # counts
            assert await _at_once(log, attempts) == list(range(EFFECTS))
            del loop.call_soon_threadsafe
            assert store.counters.commits - before.commits == 3, "three commits for 64 effects in lock step"
            assert store.vfs.calls["xSync", "-wal"] - of_wal == 3
            assert [len(batch) for batch in store.batches] == [EFFECTS] * 3
            assert len(wake_ups) == 3, "one wake-up for each batch"
            for _, statements in store.statements:
                assert statements <= 2 + 3 * EFFECTS, "BEGIN, COMMIT, and three rows for each record"
            for kind, frames in store.frames:
                assert frames <= PAGES_OF_64_MAX, f"{kind}: {frames} pages"
            await asyncio.gather(*(attempt.__aexit__(None, None, None) for attempt in attempts))

    asyncio.run(main())


def test_64_effects_at_once_on_a_loop(store: Counted) -> None:
    """DESIGN 9: in lock step 64 effects are 3 commits, 3 syncs and 3 wake-ups of the loop."""
    check_64_on_a_loop(store)


def test_64_effects_at_once_on_a_loop_control(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: where records go one by one, it is noticed."""
    monkeypatch.setattr("intentlog.run.group.BATCH_RECORDS_MAX", 1)
    with pytest.raises(AssertionError, match="three commits"):
        check_64_on_a_loop(store)


def test_64_effects_at_once_on_threads(store: Counted) -> None:
    """At most as many commits as effects; those 63 who wait for the first one's commit need one more, not 63."""
    log = log_of(store)
    attempts = [log.attempt(f"order-{n}").__enter__() for n in range(EFFECTS)]
    store.forget()
    before, of_wal = store.counters, store.vfs.calls["xSync", "-wal"]
    with Callers(store, log._engine.duty) as callers:
        led = [callers.lead(attempts[0].call, effect, 0)]
        led += [callers.follow(attempts[n].call, effect, n) for n in range(1, EFFECTS)]
        callers.let_go()
        assert [result_of(one) for one in led] == list(range(EFFECTS))
    commits = store.counters.commits - before.commits
    assert commits == store.counters.syncs - before.syncs == store.vfs.calls["xSync", "-wal"] - of_wal
    assert store.kinds()[1].count("Pending") == EFFECTS - 1
    assert commits <= EFFECTS, "of three records each"
    for attempt in attempts:
        attempt.__exit__(None, None, None)


# --- a replay --------------------------------------------------------------------------------------------------------


def test_replayed_steps(store: Counted) -> None:
    """What is done costs no commit, no sync, and few statements, however it is asked for."""
    with Log(engine_of(store)) as log:
        with log.attempt("order") as attempt:
            for number in range(EFFECTS):
                attempt.step(f"e{number}").call(effect, number)
        with log.attempt("order") as attempt:
            store.forget()
            before, syncs = store.counters, store.vfs.syncs()
            for number in range(EFFECTS):
                assert attempt.step(f"e{number}").perform(effect, number).replayed
            assert (store.counters, store.vfs.syncs(), store.batches) == (before, syncs, [])
            assert len(store.looks) <= EFFECTS * STATEMENTS_REPLAYED_MAX, store.looks
            with no_thread_started():
                assert attempt.step("e0").perform(effect, 0).replayed
