"""Leases: who is believed alive, in whose time, and what a worker that was stopped through its own must learn."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from group_bench import dispatched, engine_of, opened, pending
from postgres_servers import Server

from intentlog import IDEMPOTENT, BranchBusy, Fenced, Log, Settings, ToolMisdefined, tool
from intentlog.core import records as r
from intentlog.core.actions import Appended, Call, IntentId, NotMade
from intentlog.core.records import Instant
from intentlog.observe import LoggingObserver
from intentlog.run.hands import hindrance
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore

HOUR_NS = 3_600 * 10**9


class Moved(SystemClock):
    """This machine's clocks, and how far they are off or were moved on."""

    def __init__(self, wall_ns: int = 0) -> None:
        super().__init__()
        self.wall_ns, self.boot_ns = wall_ns, 0

    def now(self) -> Instant:
        now = super().now()
        return Instant(now.wall_ns + self.wall_ns, now.boot_id, now.boot_ns + self.boot_ns)


@pytest.fixture
def moved() -> Moved:
    return Moved()


@pytest.fixture
def store(postgres_log_url: str, moved: Moved) -> Iterator[PostgresStore]:
    made = PostgresStore(postgres_log_url, moved, LoggingObserver(), lease_s=1_000)
    yield made
    made.close()


def run_out(server: Server, url: str) -> None:
    """Every lease of the log ends, as the others see it."""
    schema = url.rpartition("=")[2]
    server.sql(f"UPDATE {schema}.owners SET lease_until = clock_timestamp() - interval '1 second'")


def test_an_owner_lives_as_long_as_its_lease(store: PostgresStore, postgres: Server, postgres_log_url: str) -> None:
    """In the database's time, whoever asks; and one that goes on takes a new one."""
    other = PostgresStore(postgres_log_url, Moved(wall_ns=50 * HOUR_NS), LoggingObserver(), reader=True)
    store.append([opened("order", owner=f"{store.owner}.1")])
    assert other.branch_view("order").owner_lives
    run_out(postgres, postgres_log_url)
    assert not other.branch_view("order").owner_lives
    store._lease.renew()
    assert other.branch_view("order").owner_lives
    other.close()


def test_a_store_that_was_stopped_through_its_lease_learns_of_it(store: PostgresStore, moved: Moved) -> None:
    """What was permitted before is worth nothing, even when the lease was taken anew in between."""
    given_ns = moved.now().boot_ns
    assert store.gone(given_ns=given_ns) == ""
    moved.boot_ns += 1_001 * 10**9
    assert "ran out" in store.gone(given_ns=given_ns)
    store._lease.renew()
    assert "in between" in store.gone(given_ns=given_ns)
    assert store.gone(given_ns=moved.now().boot_ns) == ""


def test_no_call_is_made_on_a_permission_from_before_a_lapse(store: PostgresStore, moved: Moved) -> None:
    """Asked before each call, and without a look at the server (`run.hands.hindrance`)."""
    store.append([opened("order", owner=f"{store.owner}.1")])
    store.append([pending("order")])
    [reply] = store.append([dispatched("order")])
    assert isinstance(reply, Appended)
    call = Call(IntentId("order#1/charge"), "id", 1, reply.view.now, 10 * HOUR_NS)
    assert hindrance(call, store.clock, store) is None
    moved.boot_ns += 1_001 * 10**9
    hindered = hindrance(call, store.clock, store)
    assert isinstance(hindered, NotMade)
    assert "lease" in hindered.why


def test_an_append_takes_the_lease_anew_first(store: PostgresStore, moved: Moved) -> None:
    """A worker that was not missed goes on; one whose branch was taken over meets the fence."""
    store.append([opened("order", owner=f"{store.owner}.1")])
    moved.boot_ns += 1_001 * 10**9
    assert store.gone()
    assert isinstance(store.append([pending("order")])[0], Appended)
    assert store.gone() == ""


def test_a_lease_that_others_saw_run_out_is_known_to_have(
    store: PostgresStore, moved: Moved, postgres: Server, postgres_log_url: str
) -> None:
    """What counts is the database's time: this machine's clock need not have noticed anything."""
    given_ns = moved.now().boot_ns
    run_out(postgres, postgres_log_url)
    assert store.gone(given_ns=given_ns) == ""
    store._lease.renew()
    assert "in between" in store.gone(given_ns=given_ns)


@pytest.mark.parametrize("off_ns", [-HOUR_NS, HOUR_NS])
def test_records_are_stamped_by_the_database(postgres: Server, postgres_log_url: str, off_ns: int) -> None:
    """DESIGN 4: a worker whose wall clock is an hour off writes the same time as the others."""
    query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
    store = PostgresStore(postgres_log_url, Moved(wall_ns=off_ns), LoggingObserver())
    [(before_ns,)] = postgres.sql(query)
    store.append([opened("order", owner=f"{store.owner}.1")])
    [stored] = store.history("order")
    seen = [store.view("order", "s").now, store.branch_view("order").now, engine_of(store).clock.now()]
    [(after_ns,)] = postgres.sql(query)
    assert before_ns <= stored.at.wall_ns <= after_ns
    assert all(abs(now.wall_ns - stored.at.wall_ns) < HOUR_NS / 2 for now in seen)
    assert seen[-1].wall_ns <= after_ns, "an estimate is a lower bound"
    store.close()


@tool(effect=IDEMPOTENT)
def set_price(cents: int) -> int:
    return cents


def test_two_workers_of_one_branch(postgres_log_url: str, postgres: Server) -> None:
    """Exactly one owns it: the second is told that it is busy, until the first closes or its lease runs out."""
    with Log.open(postgres_log_url) as first, Log.open(postgres_log_url) as second:
        with first.attempt("order") as attempt:
            attempt.call(set_price, 1)
            with pytest.raises(BranchBusy), second.attempt("order"):
                pass
        with second.attempt("order") as attempt:
            assert attempt.call(set_price, 1) == 1


def test_a_takeover_after_the_lease_fences_the_first(postgres_log_url: str, postgres: Server) -> None:
    """I2: the first one is alive after all; its next record is refused."""
    with Log.open(postgres_log_url) as first, Log.open(postgres_log_url) as second:
        with pytest.raises(Fenced), first.attempt("order") as attempt:
            attempt.call(set_price, 1)
            run_out(postgres, postgres_log_url)
            with second.attempt("order") as later:
                later.step("other").call(set_price, 2)
            attempt.step("third").call(set_price, 3)
        assert second.verify().ok
        ends = [e.record.end for e in second.history("order") if isinstance(e.record, r.AttemptClosed)]
        assert ends == [r.End.COMPLETED]


def test_the_lease_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program, or by the environment."""
    monkeypatch.setenv("INTENTLOG_LEASE_S", "7.5")
    assert Settings().lease.total_seconds() == 7.5
    assert Settings(lease=timedelta(seconds=9)).lease.total_seconds() == 9
    monkeypatch.setenv("INTENTLOG_LEASE_S", "soon")
    with pytest.raises(ToolMisdefined, match="INTENTLOG_LEASE_S"):
        Settings()
    with pytest.raises(ToolMisdefined, match="lease"):
        Settings(lease=timedelta(0))


def test_a_lease_is_given_back_over_a_new_connection(
    store: PostgresStore, postgres: Server, postgres_log_url: str
) -> None:
    """A log that is closed lets its branches go at once, also where the lease's connection had died unnoticed."""
    lease = store._lease
    assert lease is not None
    assert lease._link is not None
    postgres.sql(f"SELECT pg_terminate_backend({lease._link.info.backend_pid}, 10000)")
    store.append([opened("order", owner=f"{store.owner}.1")])
    store.close()
    with Log.open(postgres_log_url, read_only=True) as log:
        assert not log._engine.store.branch_view("order").owner_lives
