"""Several worker processes over one log in PostgreSQL, struck at random: log and witness agree for each effect.

Zero duplicates of what may not be repeated, zero lost, zero misclassified (I1 to I5). Killed and stopped workers, a
server that is killed, a standby that is promoted, a clock that is set back. The long forms (`INTENTLOG_STORM_S`, how
many seconds each is to last; `make nightly`) go on over new branches, each round with chances of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from crash_programs import in_child
from postgres_pair import Pair, PgBouncer
from postgres_programs import LEASE_S, STEPS, Ground, Judged, Storm, finish, judge, worker
from postgres_proxy import Proxy
from postgres_servers import Server, installed, pgbouncer

from intentlog import Log, Verdict

LONG_S = float(os.environ.get("INTENTLOG_STORM_S", "0"))
WORKERS = 8 if LONG_S else 4
BRANCHES = 200 if LONG_S else 60
CALLS_BETWEEN = 12  # about so many calls from one strike to the next
Strike = Callable[[Storm], None]


def rounds(folder: Path, place: Callable[[int], str]) -> Iterator[tuple[int, Ground]]:
    """One round, or as many as the long form has time for."""
    until_s = time.monotonic() + LONG_S
    number = 0
    while number == 0 or time.monotonic() < until_s:
        number += 1
        under = folder / str(number)
        under.mkdir()
        yield number, Ground(place(number), str(under))


def weather(storm: Storm, strikes: Mapping[str, Strike], wanted: int) -> None:
    """Strike the workers at random, each kind at least once, and let them finish."""
    left = [*strikes]
    struck = 0
    while storm.wait_for_calls(storm.chance.randint(1, 2 * CALLS_BETWEEN)) and (struck < wanted or LONG_S):
        strikes[left.pop(0) if left else storm.chance.choice([*strikes])](storm)
        struck += 1
    assert not left, "the work was over before each had struck"
    storm.wait_until_finished()


def check(storm: Storm) -> Judged:
    """Log and witness agree now, and still do when every doubt was decided and every branch run to its end."""
    with Log.open(storm.ground.place) as log:
        found = judge(log, storm.ground.witness, storm.ground.returned.lines())
    verdicts = ", ".join(f"{found.count(verdict)} {verdict.value}" for verdict in Verdict)
    print(f"{storm.kills} kills, {storm.pauses} pauses, {sum(found.called.values())} calls: {verdicts}")
    finish(storm.ground, storm.branches)
    return found


def pause_through_a_lease(storm: Storm) -> None:
    """One is stopped beyond its lease, while others take its branches over; then all the stopped go on."""
    storm.resume_workers()
    storm.pause_worker()


WORKER_STRIKES: dict[str, Strike] = {"kill": Storm.kill_worker, "pause": pause_through_a_lease}


@pytest.mark.parametrize("modes", [("sync",), ("asyncio",), ("sync", "asyncio")], ids="-".join)
def test_workers_are_killed_and_stopped_at_random(postgres: Server, quick_folder: Path, modes: tuple[str, ...]) -> None:
    """SIGKILL, and SIGSTOP through a lease with SIGCONT after the takeover: the zombie is fenced, and never calls."""
    databases: list[str] = []

    def place(_: int) -> str:
        databases.append(postgres.fresh_database())
        return postgres.url(database=databases[-1])

    for number, ground in rounds(quick_folder, place):
        with Storm(ground, branches=BRANCHES, workers=WORKERS, seed=number, modes=modes) as storm:
            weather(storm, WORKER_STRIKES, wanted=8)
        check(storm)
    for database in databases:
        postgres.drop_database(database)


def test_one_worker_has_its_clock_an_hour_back(postgres: Server, quick_folder: Path) -> None:
    """Time between machines is the database's: leases, windows and settle times do not go by a worker's clock."""
    database = postgres.fresh_database()
    ground = Ground(postgres.url(database=database), str(quick_folder))
    with Storm(ground, branches=BRANCHES // 2, workers=3, odd={"clock_back_s": 3600}) as storm:
        weather(storm, {"kill": Storm.kill_worker}, wanted=3)
    check(storm)
    [(spread,)] = postgres.sql(
        "SELECT (max(wall_ns) - min(wall_ns)) / 1000000000 FROM intentlog.events", database=database
    )
    assert spread < 600, "no record was stamped by the worker's own clock"
    postgres.drop_database(database)


def test_the_server_is_killed_in_the_middle_of_commits(own_postgres: Server, quick_folder: Path) -> None:
    """SIGKILL of the server with all its processes, and a restart: no acknowledged record is lost (I5)."""

    def strike(storm: Storm) -> None:
        own_postgres.kill()
        own_postgres.start()

    for number, ground in rounds(quick_folder, lambda _: own_postgres.url(database=own_postgres.fresh_database())):
        with Storm(ground, branches=BRANCHES, workers=WORKERS, seed=number) as storm:
            weather(storm, {"server": strike, "kill": Storm.kill_worker}, wanted=5)
        check(storm)


@pytest.mark.parametrize("synchronous_commit", ["on", "remote_apply"])
def test_the_standby_is_promoted_in_the_middle_of_work(quick_folder: Path, synchronous_commit: str) -> None:
    """SIGKILL of the primary; its name leads to the promoted standby: no acknowledged record is lost (I5)."""
    for number, folder in rounds(quick_folder, str):
        with Pair(synchronous_commit) as pair, Proxy(pair.primary) as proxy:
            ground = Ground(proxy.url(), folder.folder)

            def strike(storm: Storm, pair: Pair = pair, proxy: Proxy = proxy) -> None:
                if not pair.primary.running:
                    storm.kill_worker()
                    return
                pair.primary.kill()
                proxy.lead_to(pair.promote())
                proxy.cut()

            with Storm(ground, branches=BRANCHES // 2, workers=WORKERS, seed=number) as storm:
                weather(storm, {"failover": strike}, wanted=2)
            check(storm)
            assert not pair.primary.running
            assert pair.standby.sql("SELECT pg_is_in_recovery()") == [(False,)]


# -- what the system has installed


@pytest.mark.parametrize("what", ["PostgreSQL 15", "PgBouncer"])
def test_over_what_the_system_has(postgres: Server, quick_folder: Path, what: str) -> None:
    """An older server; and a pooler in transaction mode, in which no lock and no setting of a session holds."""
    programs = installed(15)
    if (programs if what == "PostgreSQL 15" else pgbouncer()) is None:
        pytest.skip(f"{what} is not installed")
    with Server(programs=programs) if what == "PostgreSQL 15" else PgBouncer(postgres) as front:
        server = front if isinstance(front, Server) else postgres
        database = server.fresh_database()
        ground = Ground(front.url(database=database), str(quick_folder))
        with Storm(ground, branches=BRANCHES // 2, workers=3) as storm:
            weather(storm, WORKER_STRIKES, wanted=3)
        check(storm)
        server.drop_database(database)


# -- controls


@pytest.mark.parametrize("point", ["after_call:1", "before_committed:4"])
def test_control_a_worker_without_dispatched_records(postgres_url: str, quick_folder: Path, point: str) -> None:
    """The control of the storms: over a protocol of two records the judge finds what was called and not classified."""
    ground = Ground(postgres_url, str(quick_folder))
    traits: dict[str, Any] = {"lease_s": LEASE_S}
    in_child(worker, ground, ["order-1", "order-2"], 1, "sync", traits, crash_at=point, two_records=True)
    with (
        Log.open(ground.place) as log,
        pytest.raises(AssertionError, match="misclassified: never sent, says the log, and it was witnessed"),
    ):
        judge(log, ground.witness, ground.returned.lines())


def test_control_a_record_that_is_lost(postgres: Server, quick_folder: Path) -> None:
    """The control of the judge: each acknowledged outcome that is taken out of the log is missed."""
    database = postgres.fresh_database()
    ground = Ground(postgres.url(database=database), str(quick_folder))
    in_child(worker, ground, ["order-1"], 1, "sync", {})
    with Log.open(ground.place) as log:
        found = judge(log, ground.witness, ground.returned.lines())
        assert found.count(Verdict.DONE) == len(STEPS)
        lost = "DELETE FROM intentlog.events WHERE convert_from(record, 'UTF8') LIKE '%Committed%charge%'"
        postgres.sql(lost, database=database)
        with pytest.raises(AssertionError, match="order-1/charge: lost: it was acknowledged"):
            judge(log, ground.witness, ground.returned.lines())
    postgres.drop_database(database)
