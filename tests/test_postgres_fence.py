"""I2 on PostgreSQL: whoever appends to a branch waits for who is about to, and decides on what that one left.

Two workers on one branch; one is stopped between its writes and its COMMIT, by a proxy that withholds the COMMIT. The
control takes `FOR UPDATE` out of both, and must come to what the lock prevents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from group_bench import log_of, opened, pending, until
from postgres_proxy import Act, Proxy
from postgres_servers import Server

from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.core.check import Finding, check_branch
from intentlog.core.machine import Reason
from intentlog.observe import LoggingObserver
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore

BRANCH = "order"


@pytest.fixture
def workers(postgres_log_url: str, postgres_proxy: Proxy) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """A, whose way leads through the proxy, and B."""
    through = f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}"
    first = PostgresStore(through, SystemClock(), LoggingObserver())
    second = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    yield first, second
    postgres_proxy.cut()  # whoever is still held, in a test that failed
    first.close()
    second.close()


def unlock(server: Server, url: str) -> None:
    """Take the lock out, as the control needs it."""
    schema = url.rpartition("=")[2]
    [(text,)] = server.sql(f"SELECT pg_get_functiondef('{schema}.take'::regproc)")
    assert "FOR UPDATE" in text
    server.sql(text.replace("FOR UPDATE", ""))


def in_thread(function: Callable[..., Any], *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function(*arguments)), daemon=True)
    thread.start()
    return thread, answers


def waits_for_a_lock(server: Server) -> bool:
    return bool(server.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'take|put'"))


def is_dead(server: Server, url: str, store: PostgresStore) -> None:
    """Let the store's lease have run out, as the others see it."""
    schema = url.rpartition("=")[2]
    server.sql(f"UPDATE {schema}.owners SET lease_until = clock_timestamp() - interval '1 second'")


def problems(store: PostgresStore) -> list[Finding]:
    """What is wrong with the log; its made-up request ids are not looked at."""
    return [found for one in store.whole_branches() for found in check_branch(one)]


def dispatched(attempt: int = 1) -> Append:
    return Append(BRANCH, r.Dispatched(attempt=attempt, step="charge"))


def test_a_takeover_waits_for_a_dispatch_that_is_being_committed(
    workers: tuple[PostgresStore, PostgresStore], postgres: Server, postgres_proxy: Proxy, postgres_log_url: str
) -> None:
    """I2: A stands between Dispatched and its COMMIT. B, which takes over, must see it: may have been sent."""
    first, second = workers
    for entry in (opened(BRANCH, owner=f"{first.owner}.1"), pending(BRANCH)):
        first.append([entry])
    trap = postgres_proxy.at_commit(Act.HOLD_BEFORE, matching=lambda sent: b"Dispatched" in sent)
    a, of_a = in_thread(first.append, [dispatched()])
    trap.wait()
    is_dead(postgres, postgres_log_url, first)
    log = log_of(second)
    b, of_b = in_thread(log.recover)
    until(lambda: waits_for_a_lock(postgres))
    assert (of_a, of_b) == ([], [])
    trap.release()
    a.join()
    b.join()
    assert isinstance(of_a[0][0], Appended)
    [classified] = of_b[0]
    assert classified.classification is r.Verdict.MAY_HAVE_BEEN_SENT
    assert problems(second) == []


def test_a_dispatch_waits_for_a_takeover_that_is_being_committed(
    workers: tuple[PostgresStore, PostgresStore], postgres: Server, postgres_proxy: Proxy
) -> None:
    """I2: the other way round, the zombie's Dispatched meets the raised attempt number."""
    taker, zombie = workers
    zombie.append([opened(BRANCH, owner=f"{zombie.owner}.1")])
    zombie.append([pending(BRANCH)])
    trap = postgres_proxy.at_commit(Act.HOLD_BEFORE, matching=lambda sent: b"AttemptOpened" in sent)
    a, of_a = in_thread(taker.append, [opened(BRANCH, attempt=2, owner=f"{taker.owner}.1")])
    trap.wait()
    b, of_b = in_thread(zombie.append, [dispatched()])
    until(lambda: waits_for_a_lock(postgres))
    trap.release()
    a.join()
    b.join()
    assert isinstance(of_a[0][0], Appended)
    assert isinstance(of_b[0][0], Refused)
    assert of_b[0][0].refusal.reason is Reason.FENCED
    assert problems(zombie) == []


def test_without_the_lock_a_zombie_is_let_through(
    workers: tuple[PostgresStore, PostgresStore], postgres: Server, postgres_proxy: Proxy, postgres_log_url: str
) -> None:
    """Control: the test above would tell. The zombie reads the attempt that is just being ended, and may call."""
    taker, zombie = workers
    unlock(postgres, postgres_log_url)
    zombie.append([opened(BRANCH, owner=f"{zombie.owner}.1")])
    zombie.append([pending(BRANCH)])
    trap = postgres_proxy.at_commit(Act.HOLD_BEFORE, matching=lambda sent: b"AttemptOpened" in sent)
    a, of_a = in_thread(taker.append, [opened(BRANCH, attempt=2, owner=f"{taker.owner}.1")])
    trap.wait()
    b, of_b = in_thread(zombie.append, [dispatched()])
    until(lambda: of_b or waits_for_a_lock(postgres))  # its UPDATE may wait, when the machine has long decided
    trap.release()
    a.join()
    b.join()
    assert isinstance(of_a[0][0], Appended)
    assert isinstance(of_b[0][0], Appended), "the zombie's Dispatched stands behind the fence"
    assert len(list(zombie.history(BRANCH))) == 3, "and one of the two is in no chain"
    assert zombie.count(0, zombie.newest_seq()) == 4


def test_batches_that_share_branches_do_not_deadlock(
    workers: tuple[PostgresStore, PostgresStore], postgres: Server
) -> None:
    """Each takes its branches' rows in the order of their names, new branches included: nobody waits in a ring."""
    names = [f"b{number}" for number in range(20)]
    failures: list[BaseException] = []

    def work(store: PostgresStore, order: list[str], letter: str) -> None:
        try:
            for turn in range(10):
                store.append([Append(n, r.ApplicationEvent(attempt=1, name=f"{letter}{turn}")) for n in order])
        except BaseException as error:
            failures.append(error)

    first, second = workers
    threads = [
        threading.Thread(target=work, args=(first, names, "a")),
        threading.Thread(target=work, args=(second, names[::-1], "b")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert problems(first) == []
    assert all(len(list(first.history(name))) == 20 for name in names)
