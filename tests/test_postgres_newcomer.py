"""What somebody found who knew the README alone, on PostgreSQL: each fault as a test (docs/track-record.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from group_bench import dispatched, opened, pending
from postgres_servers import Server

from intentlog import Log, LogDamaged, LogUnavailable
from intentlog.core.actions import Append, Appended
from intentlog.errors import BranchHeld
from intentlog.observe import LoggingObserver
from intentlog.run.group import Member, commit_together
from intentlog.store import postgres_reads, postgres_rows
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore


@pytest.fixture
def store(postgres_log_url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    yield made
    made.close()


@pytest.fixture
def holder(postgres_log_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction of another program."""
    address, _, schema = postgres_log_url.partition("?schema=")
    with psycopg.connect(address, options=f"-c search_path={schema}") as connection:
        yield connection


def test_a_branch_that_is_held_fails_no_other(
    store: PostgresStore, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that succeeded elsewhere was told that its outcome could not be written, as somebody held another branch.

    I8: each member of a batch is answered for its own branch: those that can be written are, the one that is held is
    told so, and nothing of it was written.
    """
    monkeypatch.setattr(postgres_rows, "LOCK_TIMEOUT_MS", 300)
    monkeypatch.setattr(postgres_rows, "LOCK_TOGETHER_MS", 100)
    branches = ["a", "b", "held", "c", "d"]
    store.append([opened(branch, owner=f"{store.owner}.1") for branch in branches])
    holder.execute("SELECT FROM branches WHERE branch = 'held' FOR UPDATE")

    def together(make: Any) -> dict[str, Member]:
        members = [Member(branch, [make(branch)]) for branch in [*branches, "held"][: len(branches)]]
        commit_together(store.append, members)
        return {member.branch: member for member in members}

    for make in (pending, dispatched):
        found = together(make)
        assert type(found["held"].error) is BranchHeld
        others = [found[branch] for branch in branches if branch != "held"]
        assert [member.error for member in others] == [None] * 4
        assert all(isinstance((member.replies or [None])[0], Appended) for member in others)
        assert store.branch_view("held").operations == ()
    holder.rollback()
    assert isinstance(store.append([pending("held")])[0], Appended)


def test_several_of_a_held_branch_wait_together(
    store: PostgresStore, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried in one commit, not each for its own ten seconds; each has an error of its own."""
    monkeypatch.setattr(postgres_rows, "LOCK_TIMEOUT_MS", 200)
    store.append([opened("held", owner=f"{store.owner}.1")])
    holder.execute("SELECT FROM branches WHERE branch = 'held' FOR UPDATE")
    tried: list[int] = []

    def commit(entries: Any) -> Any:
        tried.append(len(entries))
        return store.append(entries)

    members = [Member("held", [pending("held", f"s{number}")]) for number in range(5)]
    commit_together(commit, members)
    assert tried == [5]
    assert len({id(member.error) for member in members}) == 5
    assert {type(member.error) for member in members} == {BranchHeld}


def test_a_connection_that_is_lost_while_it_is_prepared_is_made_anew(
    store: PostgresStore, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raw error of psycopg came out of the call, whose outcome was lost by it: nothing was written, so once more."""
    prepare, ended = store._rows_of_writer.prepare, list[int]()

    def lost(link: Any) -> None:
        if not ended:
            ended.append(link.info.backend_pid)
            postgres.sql(f"SELECT pg_terminate_backend({ended[0]}, 10000)")
        prepare(link)

    monkeypatch.setattr(store._rows_of_writer, "prepare", lost)
    store._discard()
    entry: Append = opened("order", owner=f"{store.owner}.1")
    assert isinstance(store.append([entry])[0], Appended)
    assert len(ended) == 1


def test_an_at_sign_in_a_password_shows_nothing_of_it() -> None:
    """libpq takes what follows the first @ for the host, and would name it: such a URL is not given to it."""
    with pytest.raises(LogUnavailable) as refused:
        Log.open("postgresql://orders:p@ssw0rd@127.0.0.1:1/orders")
    assert "ssw0rd" not in str(refused.value)
    assert "%40" in refused.value.remedy


def test_a_format_that_is_no_number_is_damage(postgres_log_url: str, holder: psycopg.Connection[Any]) -> None:
    Log.open(postgres_log_url).close()
    holder.execute("UPDATE meta SET value = '\\xff' WHERE key = 'format'")
    holder.commit()
    with pytest.raises(LogDamaged):
        Log.open(postgres_log_url)


def test_a_record_that_cannot_be_written_beside_a_held_branch(store: PostgresStore) -> None:
    """I8: where each is tried alone and one of them is held, what was written before it is not tried again."""
    tried: list[str] = []

    def commit(entries: Any) -> Any:
        if len(entries) > 1:
            msg = "one of them is damaged"
            raise ValueError(msg)
        branch = entries[0].branch
        tried.append(branch)
        if branch == "held":
            msg = "held"
            raise BranchHeld(msg)
        return store.append(entries)

    members = [Member(name, [opened(name, owner=f"{store.owner}.1")]) for name in ("a", "held", "b")]
    commit_together(commit, members)
    assert tried == ["a", "held", "b"]
    assert [type((one.replies or [one.error])[0]) for one in members] == [Appended, BranchHeld, Appended]


def test_all_connections_for_reads_are_in_use(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is exhausted is told as such, in time, with what to look for; nothing is poisoned by it."""
    monkeypatch.setattr(postgres_reads, "POOL_TIMEOUT_S", 0.2)
    store.append([opened("order", owner=f"{store.owner}.1")])
    with ExitStack() as taken:
        for _ in range(postgres_reads.READS_MAX):
            taken.enter_context(store._pool.connection())
        with pytest.raises(LogUnavailable, match="all 4 connections for reads were in use"):
            store.record(1)
    assert store.record(1) is not None
