"""The field cases of several workers, over PostgreSQL: 3, 6, 7, 22 and 23; see `test_field_cases.py`.

What a lock file tells on one machine at once, that its owner is dead, a lease tells when it has run out; and a worker
that only stood still is taken for dead as well. So the fence decides, and who takes over waits.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crash_programs import in_child
from field_case_programs import (
    BRANCH,
    EFFECTS,
    KINDS,
    UNREACHABLE,
    Bench,
    InFlight,
    attempt_at,
    call_once,
    check_busy,
    ends_well,
    field_tool,
    is_stopped,
    names,
    opened,
    raised,
    records,
    results,
    run_deliveries,
    run_slow,
    run_step,
    running,
    settled,
    started,
    until,
)
from postgres_programs import LEASE_S, holds, leased
from postgres_proxy import Act, Proxy
from postgres_servers import Server

from intentlog import Applied, BranchBusy, Call, Fenced, InDoubt, Log, NotApplied, NotInDoubt, Verdict, failpoints
from intentlog.crash import Witness

DOUBT = Verdict.MAY_HAVE_BEEN_SENT
PATIENCE = timedelta(seconds=30)
ROUNDS = 5


@pytest.fixture
def place(postgres: Server, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose log is an empty database."""
    monkeypatch.setenv("INTENTLOG_LEASE_S", str(LEASE_S))
    database = postgres.fresh_database()
    (quick_folder / "url").write_text(postgres.url(database=database))
    yield quick_folder
    postgres.drop_database(database)


def database_of(folder: Path) -> str:
    return (folder / "url").read_text().rpartition("/")[2]


def leases(server: Server, folder: Path) -> list[Any]:
    """Until when each worker's lease is good."""
    return [end for (end,) in server.sql("SELECT lease_until FROM intentlog.owners", database=database_of(folder))]


def outlive_a_lease(server: Server, folder: Path) -> None:
    """Wait until whoever lives has renewed a lease that would have run out by now."""
    first = max(leases(server, folder))
    until(lambda: min(leases(server, folder)) > first + timedelta(seconds=LEASE_S), "a lease that was renewed")


def believed_dead(server: Server, folder: Path) -> None:
    """Wait until every lease has run out: of workers that died, or stand still."""
    over = "SELECT bool_and(lease_until < clock_timestamp()) FROM intentlog.owners"
    until(lambda: server.sql(over, database=database_of(folder)) == [(True,)], "the end of a lease")


def unlock(server: Server, database: str) -> None:
    """Take the lock on the branch's row out, as a control needs it."""
    [(text,)] = server.sql("SELECT pg_get_functiondef('intentlog.take'::regproc)", database=database)
    assert "FOR UPDATE" in text
    server.sql(text.replace("FOR UPDATE", ""), database=database)


# --- case 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", ["sync", "asyncio"])
def test_case_03_a_branch_is_busy_while_its_owner_renews_its_lease(
    postgres: Server, place: Path, owner: str, kind: str
) -> None:
    """Case 3: a call that outlasts leases: BranchBusy for another worker; killed: may have been sent (I2, I4).

    Afterwards a second call only where the class permits one, with the same key.
    """
    bench = Bench(place, owner)

    def said(call: Call, item: str) -> str:
        bench.witness.record(f"{call.request_id} {call.dispatch_no} again")
        return f"did {item}"

    async def main() -> None:
        async with opened(owner, bench.path) as log:
            with running(leased, LEASE_S, run_slow, str(bench.folder), kind, owner):
                until(bench.witness.lines, "the call")
                await check_busy(log, bench.witness)
                await asyncio.to_thread(outlive_a_lease, postgres, place)
                await check_busy(log, bench.witness)
            async with attempt_at(log, wait=PATIENCE) as attempt:
                found = [one.classification for one in attempt.classifications]
                assert found == ([] if kind == "READ" else [DOUBT])
                error = await raised(attempt.step("act").call, field_tool(kind, said, owner, Applied("found")), "1042")
                assert type(error) is (InDoubt if kind == "UNSAFE" else type(None))

    asyncio.run(main())
    first, *others = bench.witness.lines()
    number = 0 if kind == "READ" else 2
    assert others == ([f"{first.split()[0]} {number} again"] if kind in ("READ", "IDEMPOTENT", "KEYED") else [])


# --- case 6 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.0, 20.0], ids=["refused", "waits"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_06_one_id_delivered_to_two_workers_at_once_is_called_once(place: Path, kind: str, wait_s: float) -> None:
    """Case 6: two workers are given the same call id at the same moment: one call; its outcome, or BranchBusy (I3).

    The log is new, so that they make its tables at the same moment too.
    """
    together = multiprocessing.get_context("forkserver").Barrier(2)
    start = partial(running, run_deliveries, str(place), kind, wait_s, together, ROUNDS)
    with start("sync") as one, start("asyncio") as other:
        ends_well(one)
        ends_well(other)
    calls = [line.split()[0] for line in Witness(place / "witness").lines()]
    assert sorted(calls) == [f"id-{number}" for number in range(ROUNDS)]
    for number in range(ROUNDS):
        said = sorted(line.split(maxsplit=1)[1] for line in results(place) if line.startswith(f"id-{number} "))
        assert said in ([f"called did id-{number}", f"replayed did id-{number}"], ["busy", f"called did id-{number}"])
        assert said[0] != "busy" or wait_s == 0


# --- case 7 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "asyncio", "thread"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_07_what_triggers_a_running_step_again_dispatches_nothing(
    postgres: Server, place: Path, kind: str, mode: str
) -> None:
    """Case 7: its first try still runs, beyond a lease: the same step again here, and all that another worker can do:
    recover, resolve, a new attempt: no dispatch (I3, I4)."""
    bench = Bench(place, mode)
    flight = InFlight(bench, kind)

    async def main() -> tuple[Any, Any, list[Any]]:
        async with opened(mode, bench.path) as log, opened("asyncio", bench.path) as other:
            async with attempt_at(log) as attempt:
                first = await flight.begins(attempt)
                again = started(attempt.step("act").perform, flight.tool, "1042")
                await asyncio.to_thread(outlive_a_lease, postgres, place)
                for one in (log, other):
                    assert await settled(one.recover()) == []
                    assert await settled(one.unfinished()) == []
                    assert not any(intent.in_doubt for intent in await settled(one.open_intents()))
                    if kind != "READ":
                        with pytest.raises(NotInDoubt):
                            await settled(one.resolve(f"{BRANCH}#1/act", NotApplied(), by="ann", why="impatient"))
                    with pytest.raises(BranchBusy):
                        async with attempt_at(one):
                            pass
                assert len(bench.witness.lines()) == 1
                assert not again.done()
                flight.let_on()
                found = await first, await again
            return *found, await records(log)

    one, two, history = asyncio.run(main())
    assert (one.replayed, two.replayed, two.value) == (False, True, "did 1042")
    assert len(bench.witness.lines()) == 1
    assert names(history).count("Dispatched") == (kind != "READ")
    assert names(history).count("Committed") == 1


# --- case 22 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takeover", ["attempt", "recover"])
@pytest.mark.parametrize(("mode", "kind"), [*(("sync", kind) for kind in EFFECTS), ("asyncio", "UNSAFE")])
def test_case_22_a_worker_that_stood_still_through_its_lease_never_calls(
    postgres: Server, place: Path, mode: str, kind: str, takeover: str
) -> None:
    """Case 22: stopped after Pending: BranchBusy until its lease has run out; then NEVER_SENT, and it holds.

    When it wakes, its Dispatched is refused, it raises Fenced and has not called (I1, I2).
    """
    bench = Bench(place, mode)

    def act(call: Call, item: str) -> str:
        bench.witness.record(f"the other {call.dispatch_no}")
        return f"did {item}"

    handle = field_tool(kind, act, mode, UNREACHABLE)

    async def main() -> None:
        async with opened(mode, bench.path) as log:
            with running(leased, LEASE_S, run_step, str(place), kind, mode, stop_at="after_pending") as worker:
                until(partial(is_stopped, worker), "the worker's stop")
                os.kill(worker.pid, signal.SIGSTOP)  # its other threads too
                await check_busy(log, bench.witness)
                if takeover == "recover":
                    await asyncio.to_thread(until_dead, log)
                    found = await settled(log.recover())
                else:
                    async with attempt_at(log, wait=PATIENCE) as attempt:
                        found = attempt.classifications
                        assert await settled(attempt.step("act").call(handle, "1042")) == "did 1042"
                assert [one.classification for one in found] == [Verdict.NEVER_SENT]
                os.kill(worker.pid, signal.SIGCONT)
                ends_well(worker)

    def until_dead(log: Any) -> None:
        owner = "SELECT count(*) FROM intentlog.owners WHERE lease_until > clock_timestamp()"
        until(lambda: postgres.sql(owner, database=database_of(place)) == [(1,)], "the end of its lease")

    asyncio.run(main())
    assert asyncio.run(call_once(bench, handle)) == "did 1042"
    assert results(place) == ["attempt 1", "Fenced"]
    assert bench.witness.lines() == ["the other 1"]


@pytest.mark.parametrize("mode", ["sync", "asyncio"])
def test_case_22_a_worker_that_stood_still_inside_its_commit_never_calls(
    postgres: Server, postgres_proxy: Proxy, place: Path, mode: str
) -> None:
    """Case 22: stopped while Dispatched waits for its COMMIT: who takes over waits for it, and does not say NEVER_SENT.

    The worker wakes with a permission that is older than the end of its lease, and does not use it (I1, I2).
    """
    direct = (place / "url").read_text()
    (place / "url").write_text(postgres_proxy.url(database=database_of(place)))
    bench = Bench(place, mode)
    trap = postgres_proxy.at_commit(Act.HOLD_BEFORE, matching=holds("Dispatched"))
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with running(leased, LEASE_S, run_step, str(place), "UNSAFE", mode) as worker:
        trap.wait()
        os.kill(worker.pid, signal.SIGSTOP)
        believed_dead(postgres, place)

        async def main() -> None:
            async with opened(mode, direct) as log:
                takeover = started(log.recover)
                await asyncio.to_thread(until, lambda: postgres.sql(waits, [database_of(place)]), "a wait for a lock")
                assert not takeover.done()
                trap.release()
                (found,) = await takeover
                assert found.classification is DOUBT
                assert "Dispatched" in names(await records(log))

        asyncio.run(main())
        os.kill(worker.pid, signal.SIGCONT)
        ends_well(worker)
    assert results(place)[0] == "attempt 1"
    assert results(place)[1:] in (["NotSent"], ["Fenced"])
    assert bench.witness.lines() == []


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "control-unlocked"])
@pytest.mark.parametrize("takeover", ["attempt", "recover"])
def test_case_22_a_worker_that_is_being_overtaken_meets_the_fence(
    postgres: Server,
    postgres_proxy: Proxy,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    takeover: str,
    locked: bool,
) -> None:
    """Case 22: its Dispatched comes while the takeover waits for its COMMIT: it waits, is refused, never calls (I2).

    It has not noticed that its lease was over. The control takes the lock on the branch's row out: it reads the attempt
    that is just being ended, and calls, whatever the other says meanwhile.
    """
    monkeypatch.setenv("INTENTLOG_LEASE_S", "60")  # nobody renews it during the test
    database = database_of(place)
    at_gate, gate = threading.Event(), threading.Event()

    def reached(name: str) -> None:
        if name == "before_dispatched" and not at_gate.is_set():
            at_gate.set()
            assert gate.wait(PATIENCE.total_seconds())

    monkeypatch.setattr(failpoints, "reached", reached)
    monkeypatch.setattr(failpoints, "are_armed", lambda: True)
    bench = Bench(place, "sync")
    handle = field_tool("UNSAFE", lambda _, item: bench.witness.record("called") or f"did {item}")
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"

    def overtaken(log: Log) -> None:
        with log.attempt(BRANCH) as attempt:
            attempt.step("act").call(handle, "1042")

    def takes_over(log: Log) -> list[Any]:
        if takeover == "recover":
            return log.recover()
        with log.attempt(BRANCH) as attempt:
            return attempt.classifications

    with (
        Log.open(bench.path) as slow,
        Log.open(postgres_proxy.url(database=database)) as quick,
        ThreadPoolExecutor(2) as threads,
    ):
        if not locked:
            unlock(postgres, database)
        first = threads.submit(overtaken, slow)
        assert at_gate.wait(PATIENCE.total_seconds())
        postgres.sql("UPDATE intentlog.owners SET lease_until = clock_timestamp()", database=database)
        record = "AttemptFenced" if takeover == "recover" else "AttemptOpened"
        trap = postgres_proxy.at_commit(Act.HOLD_BEFORE, matching=holds(record))
        second = threads.submit(takes_over, quick)
        trap.wait()
        gate.set()
        until(lambda: postgres.sql(waits, [database]), "a wait for a lock")
        trap.release()
        errors = [first.exception(), second.exception()]
        if locked:
            assert [type(error) for error in errors] == [Fenced, type(None)]
            assert [one.classification for one in second.result()] == [Verdict.NEVER_SENT]
    assert bench.witness.lines() == ([] if locked else ["called"])


# --- case 23 ----------------------------------------------------------------------------------------------------------

KILLS: dict[str, list[str]] = {
    "after_opened": [],
    "after_pending": ["NEVER_SENT"],
    "before_call": [str(DOUBT.value)],
    "before_committed": [str(DOUBT.value)],
}


@pytest.mark.parametrize("crash_at", list(KILLS))
@pytest.mark.parametrize(
    ("kind", "mode"),
    [("IDEMPOTENT", "sync"), ("KEYED", "thread"), ("QUERYABLE", "sync"), ("UNSAFE", "asyncio")],
)
def test_case_23_the_log_counts_the_attempts_of_a_task_that_is_delivered_again(
    place: Path, kind: str, mode: str, crash_at: str
) -> None:
    """Case 23: delivered again after kill -9 with the same id and no retry counted: the log tells (I2, I4).

    It says which attempt it is and what is open, and lets only that be called again which may be. A delivery within
    the dead worker's lease is BranchBusy, for the queue to come again.
    """
    program: Callable[..., None] = partial(leased, LEASE_S, run_step)
    arguments = (str(place), kind, mode)
    in_child(program, *arguments, crash_at=crash_at)
    first_calls = Witness(place / "witness").lines()
    for _ in range(2):
        deliver = partial(in_child, program, *arguments)
        until(lambda deliver=deliver: deliver() == 0 and results(place)[-1] != "BranchBusy", "the end of a lease")
    doubtful = KILLS[crash_at] == [DOUBT.value]
    stands = doubtful and kind in ("QUERYABLE", "UNSAFE")
    second = " ".join(["attempt 2", *KILLS[crash_at]])
    third = f"attempt 3{f' {DOUBT.value}' if stands else ''}"
    answers = ["InDoubt", "InDoubt"] if stands else ["did 1042 called", "did 1042 replayed"]
    said = [line for line in results(place) if line not in ("attempt 1", "BranchBusy")]
    assert said == [second, answers[0], third, answers[1]]
    calls = [line.split()[1] for line in Witness(place / "witness").lines()[len(first_calls) :]]
    assert calls == ([] if stands else ["2" if doubtful else "1"])
    with Log.open((place / "url").read_text()) as log:
        assert log.verify().ok
