"""I5 and I8 on PostgreSQL: what became of a commit whose answer did not come is learnt, or nothing goes on.

A proxy cuts the connection before or after the COMMIT has reached the server; servers are killed and replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from group_bench import dispatched, opened, pending, until
from postgres_pair import Pair
from postgres_proxy import Act, Proxy
from postgres_servers import Server

from intentlog import LogPoisoned, LogUnavailable
from intentlog.core.actions import Appended, Refused
from intentlog.core.check import check_branch
from intentlog.observe import LoggingObserver
from intentlog.store import postgres as postgres_store
from intentlog.store import postgres_fate, postgres_rows
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore


def opened_store(url: str) -> PostgresStore:
    return PostgresStore(url, SystemClock(), LoggingObserver())


def prepared(store: PostgresStore) -> None:
    store.append([opened("order", owner=f"{store.owner}.1")])
    store.append([pending("order")])


def kinds(store: PostgresStore) -> list[str]:
    return [type(stored.record).__name__ for stored in store.history("order")]


def is_sound(store: PostgresStore) -> bool:
    return [found for one in store.whole_branches() for found in check_branch(one)] == []


def is_dispatch(sent: bytes) -> bool:
    return b"Dispatched" in sent


@pytest.fixture
def store(postgres_log_url: str, postgres_proxy: Proxy) -> Iterator[PostgresStore]:
    made = opened_store(f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}")
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be learnt is given up soon."""
    learn = postgres_fate.learn
    monkeypatch.setattr(postgres_fate, "learn", lambda *given: learn(*given, limit_s=0.2))


CUTS = [Act.CUT_BEFORE, Act.CUT_AFTER, Act.CUT_IN_FLIGHT, Act.HALF_CLOSE_BEFORE, Act.HALF_CLOSE_AFTER]


@pytest.mark.parametrize("act", CUTS, ids=lambda act: act.name)
def test_a_cut_at_commit_is_learnt(store: PostgresStore, postgres_proxy: Proxy, act: Act) -> None:
    """Whether the COMMIT had arrived or not: the record stands in the log once, and the caller is told so (I5)."""
    prepared(store)
    trap = postgres_proxy.at_commit(act, matching=is_dispatch)
    [reply] = store.append([dispatched("order")])
    trap.wait()
    assert isinstance(reply, Appended)
    assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]
    assert store.record(reply.seq) is not None
    assert is_sound(store)
    assert store.counters.commits == 3


@pytest.mark.parametrize("act", CUTS, ids=lambda act: act.name)
@pytest.mark.usefixtures("impatient")
def test_what_cannot_be_learnt_poisons(
    store: PostgresStore, postgres_proxy: Proxy, postgres_log_url: str, act: Act
) -> None:
    """I8: nobody answers any more. Nothing is acknowledged until the log is opened again, which shows what is there."""
    prepared(store)
    postgres_proxy.at_commit(act, matching=is_dispatch, refuse=True)
    with pytest.raises(LogPoisoned) as poisoned:
        store.append([dispatched("order")])
    assert poisoned.value.effect_ran == "unknown"
    for use in (lambda: store.append([pending("order", "other")]), lambda: store.view("order", "charge")):
        with pytest.raises(LogPoisoned):
            use()
    again = opened_store(postgres_log_url)
    until(lambda: ("Dispatched" in kinds(again)) or not act.passes_commit)
    assert ("Dispatched" in kinds(again)) == act.passes_commit
    again.close()


def test_a_connection_that_died_while_it_was_idle_costs_nothing(store: PostgresStore, postgres_proxy: Proxy) -> None:
    """Nothing was sent over it: the append is made over another, reads too."""
    prepared(store)
    postgres_proxy.cut()
    assert isinstance(store.append([dispatched("order")])[0], Appended)
    postgres_proxy.cut()
    assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]


def test_an_unreachable_server_is_told_and_the_next_append_connects_anew(
    store: PostgresStore, postgres_proxy: Proxy
) -> None:
    """Nothing was written, and the store is not poisoned by it."""
    prepared(store)
    with postgres_proxy.refusing():
        postgres_proxy.cut()
        with pytest.raises(LogUnavailable, match="nobody listens there"):
            store.append([dispatched("order")])
        with pytest.raises(LogUnavailable):
            kinds(store)
    assert isinstance(store.append([dispatched("order")])[0], Appended)
    assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]


def test_without_asking_the_record_would_be_there_twice(
    store: PostgresStore, postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: who takes a lost answer for a lost commit is told that the record was refused; and there it stands."""
    nothing = postgres_fate.Learnt(landed=False, why="taken for lost")
    monkeypatch.setattr(postgres_fate, "learn", lambda *given: nothing)
    prepared(store)
    postgres_proxy.at_commit(Act.CUT_AFTER, matching=is_dispatch)
    [reply] = store.append([dispatched("order")])
    assert not isinstance(reply, Appended)
    assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]


# --- what a server answers with an error ------------------------------------------------------------------------------


def test_a_full_disk_of_the_server_is_no_poison(store: PostgresStore, postgres: Server, postgres_log_url: str) -> None:
    """The server says so, and rolls back: nothing was written, it is told, and the log goes on when there is room."""
    prepared(store)
    schema = postgres_log_url.rpartition("=")[2]
    full = f"""CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"""
    postgres.sql(full)
    postgres.sql(f"CREATE TRIGGER full_disk AFTER INSERT ON {schema}.events EXECUTE FUNCTION {schema}.full()")
    with pytest.raises(LogUnavailable, match="the server's disk is full; nothing was written") as refused:
        store.append([dispatched("order")])
    assert "free some room" in refused.value.remedy
    postgres.sql(f"DROP TRIGGER full_disk ON {schema}.events")
    assert kinds(store) == ["AttemptOpened", "Pending"]
    assert isinstance(store.append([dispatched("order")])[0], Appended)
    assert is_sound(store)


def test_a_branch_that_another_transaction_holds_is_waited_for_and_told(
    store: PostgresStore, postgres: Server, postgres_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written, and no other branch is held up."""
    monkeypatch.setattr(postgres_rows, "LOCK_TIMEOUT_MS", 100)
    prepared(store)
    schema = postgres_log_url.rpartition("=")[2]
    with postgres.connect() as other, other.transaction():
        other.execute(f"SELECT FROM {schema}.branches FOR UPDATE")
        with pytest.raises(LogUnavailable, match="holds the branch"):
            store.append([dispatched("order")])
        assert isinstance(store.append([opened("another")])[0], Appended)
    assert isinstance(store.append([dispatched("order")])[0], Appended)


def test_a_worker_that_is_stopped_inside_a_commit_lets_go_of_its_branch(
    store: PostgresStore, postgres_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the server ends its transaction, another takes over; and when it goes on, it meets the fence."""
    prepared(store)
    other = opened_store(postgres_log_url)
    staging = postgres_store.stage

    def stopped(rows: Any, entries: Any, at: Any) -> Any:
        staged = staging(rows, entries, at)
        monkeypatch.setattr(postgres_store, "stage", staging)
        assert isinstance(other.append([opened("order", attempt=2)])[0], Appended)
        return staged

    monkeypatch.setattr(postgres_rows, "_LIMITS", ("100ms", "10s"))
    monkeypatch.setattr(postgres_store, "stage", stopped)
    [reply] = store.append([dispatched("order")])
    assert isinstance(reply, Refused)
    assert kinds(store) == ["AttemptOpened", "Pending", "AttemptOpened"]
    assert is_sound(store)
    other.close()


# --- servers that die ------------------------------------------------------------------------------------------------


def in_thread(function: Callable[..., Any], *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(function(*arguments))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER], ids=lambda act: act.name)
def test_a_server_that_is_killed_at_commit_and_comes_back(own_postgres: Server, act: Act) -> None:
    """kill -9 of the server, before or after its commit: asked again when it is back, by the transaction's id."""
    with Proxy(own_postgres) as proxy:
        store = opened_store(proxy.url())
        prepared(store)
        trap = proxy.at_commit(act, matching=is_dispatch)
        thread, answers = in_thread(store.append, [dispatched("order")])
        trap.wait()
        own_postgres.kill()
        proxy.cut()
        own_postgres.start()
        thread.join()
        assert isinstance(answers[0][0], Appended)
        assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]
        assert is_sound(store)
        store.close()


@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER], ids=lambda act: act.name)
def test_a_standby_that_takes_over_at_commit(act: Act) -> None:
    """The server was replaced: the transaction's id means nothing there, so that the records are looked for."""
    with Pair() as pair, Proxy(pair.primary) as proxy:
        store = opened_store(proxy.url())
        prepared(store)
        trap = proxy.at_commit(act, matching=is_dispatch)
        thread, answers = in_thread(store.append, [dispatched("order")])
        trap.wait()
        pair.primary.kill()
        proxy.lead_to(pair.promote())
        proxy.cut()
        thread.join()
        assert isinstance(answers[0][0], Appended)
        assert kinds(store) == ["AttemptOpened", "Pending", "Dispatched"]
        assert is_sound(store)
        store.close()


def test_a_wait_for_a_standby_that_is_given_up_poisons() -> None:
    """I8: PostgreSQL says "committed", and warns that the standby may not have it. That is no commit to go on from."""
    with Pair() as pair:
        store = opened_store(pair.primary.url())
        prepared(store)
        pair.standby.pause()
        thread, answers = in_thread(store.append, [dispatched("order")])
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: pair.primary.sql(waiting))
        pair.primary.sql(f"SELECT pg_cancel_backend(({waiting}))")
        thread.join()
        pair.standby.resume()
        assert isinstance(answers[0], LogPoisoned)
        assert "standby" in str(answers[0])
        with pytest.raises(LogPoisoned):
            store.append([pending("order", "other")])
        store.close()


def test_a_standby_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and whatever time limits the role or the transaction has: they would give the wait up."""
    monkeypatch.setattr(postgres_rows, "_LIMITS", ("10s", "300ms"))
    with Pair() as pair:
        pair.primary.sql("ALTER ROLE postgres SET statement_timeout = '300ms'")
        store = opened_store(pair.primary.url())
        prepared(store)
        pair.standby.pause()
        thread, answers = in_thread(store.append, [dispatched("order")])
        waits = "wait_event = 'SyncRep' AND now() - xact_start > interval '1 second'"
        until(lambda: pair.primary.sql(f"SELECT 1 FROM pg_stat_activity WHERE {waits}"))
        pair.standby.resume()
        thread.join()
        assert isinstance(answers[0][0], Appended)
        store.close()


def test_a_server_that_lost_what_was_acknowledged_is_not_gone_on_with(own_postgres: Server) -> None:
    """I5, I8: a successor without the newest records (a standby that was not waited for) poisons the store."""
    store = opened_store(own_postgres.url())
    prepared(store)
    dispatch = "DELETE FROM intentlog.events WHERE seq = 2"
    own_postgres.sql(dispatch)  # as a successor would lack it
    own_postgres.restart()
    with pytest.raises(LogPoisoned, match="acknowledged"):
        store.append([dispatched("order")])
    store.close()
