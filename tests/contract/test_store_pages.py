"""Reads of any length: in pages, none skipped or doubled, by the indexes, and with what is appended meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from postgres_servers import Server

from intentlog import Log
from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import Append
from intentlog.core.effects import Declaration, EffectKind
from intentlog.observe import LoggingObserver
from intentlog.ports import Store
from intentlog.store import pages, schema, whole
from intentlog.store.clock import SystemClock
from intentlog.store.memory import MemoryDisk, MemoryStore
from intentlog.store.postgres import PostgresStore
from intentlog.store.postgres_schema import texts_of
from intentlog.store.sqlite import SqliteStore

LENGTHS = (0, 1, 2, 6, 7, 8, 29, 30, 31, 200)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "log.db", SystemClock(), LoggingObserver())
    yield store
    store.close()


@pytest.fixture
def postgres_store(postgres_log_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    yield store
    store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, small_pages: None) -> Store:
    if request.param == "memory":
        return MemoryStore(MemoryDisk(), SystemClock())
    return request.getfixturevalue("sqlite" if request.param == "sqlite" else "postgres_store")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of seven rows, so that a few hundred records are many of them."""
    monkeypatch.setattr(pages, "PAGE_ROWS", 7)
    monkeypatch.setattr(pages, "NEWEST_ROWS", 3)
    monkeypatch.setattr(whole, "BRANCHES_AT_ONCE", 2)


def noted(branch: str, text: str) -> Append:
    return Append(branch, r.ApplicationEvent(attempt=1, name=text))


def opened(branch: str, attempt: int = 1) -> Append:
    return Append(branch, r.AttemptOpened(attempt=attempt, owner="nobody.1"))


def effect(salt: bytes, branch: str, step: str) -> list[Append]:
    declaration = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=1)
    request_id = codec.request_id(salt, branch, step, 1)
    pending = r.Pending(
        attempt=1,
        step=step,
        tool="t",
        declaration=declaration,
        request_id=request_id,
        digest=codec.arguments_digest(b"{}"),
    )
    committed = r.Committed(attempt=1, step=step, outcome=r.OutcomeKind.RETURNED)
    dispatched = Append(branch, r.Dispatched(attempt=1, step=step))
    return [Append(branch, pending, b"{}"), dispatched, Append(branch, committed, b"1")]


def write(store: Store, *entries: Append) -> None:
    for entry in entries:
        [reply] = store.append([entry])
        assert getattr(reply, "seq", 0), reply


def test_a_history_is_whole_at_any_length(store: Store) -> None:
    """Two branches whose records stand between each other's: each is given from its first to its last."""
    wanted: dict[str, list[str]] = {f"b{length}": [str(n) for n in range(length)] for length in LENGTHS}
    texts = [(branch, text) for branch, names in wanted.items() for text in names]
    random.Random(7).shuffle(texts)
    given: dict[str, list[str]] = {branch: [] for branch in wanted}
    for branch, _ in texts:
        text = wanted[branch][len(given[branch])]
        given[branch].append(text)
        store.append([noted(branch, text)])
    for branch, names in wanted.items():
        records = list(store.history(branch))
        assert [stored.record.name for stored in records] == names
        for after in {0, *(stored.seq for stored in records[:: max(1, len(records) // 5)])}:
            assert list(store.history(branch, after=after)) == [one for one in records if one.seq > after]
    assert [stored.seq for stored in store.history(None)] == list(range(1, len(texts) + 1))
    assert [stored.seq for stored in store.history(None, after=11)] == list(range(12, len(texts) + 1))


def test_a_page_ends_with_its_bytes(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large payloads are not read a thousand at a time."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 3_000)
    monkeypatch.setattr(pages, "NEWEST_ROWS", 2)
    for number in range(40):
        sqlite.append([Append("b", r.ApplicationEvent(attempt=1, name=str(number)), b'"' + b"x" * 1_000 + b'"')])
    read: list[int] = []

    def rows(query: str, values: tuple[object, ...]) -> list[pages.Row]:
        found = sqlite._rows(query, values)
        read.append(len(found))
        return found

    given = [row[0] for row in pages.records_back(rows, schema.WALK, 40)]
    assert given == list(range(1, 41))
    assert max(read) == 3


def test_what_is_appended_while_a_history_is_read_does_no_harm(store: Store) -> None:
    """No record is skipped or given twice."""
    for number in range(40):
        store.append([noted("b", str(number))])
    found = []
    for stored in store.history("b"):
        found.append(stored.record.name)
        store.append([noted("b", f"later {len(found)}")])
        if len(found) == 60:
            break
    assert found[:40] == [str(number) for number in range(40)]
    assert found[40:] == [f"later {number}" for number in range(1, len(found) - 39)]


def test_branches_and_operations_come_in_pages(store: Store) -> None:
    """By key, each once, whichever of them are asked for; steps and generations that sort oddly too."""
    branches = [f"b{number:02}" for number in range(15)] + ["b", "é", "\U0001f642", "a\u0001"]
    steps = [f"s~{number}" for number in range(9)]
    for branch in branches:
        write(store, opened(branch))
    for step in steps:
        write(store, *effect(store.salt, "b03", step))
        for branch in branches[:4]:
            if branch != "b03":
                write(store, *effect(store.salt, branch, step)[:2])
    write(store, Append("b03", r.AttemptClosed(attempt=1, end=r.End.COMPLETED)))
    in_order = sorted(branches, key=str.encode)
    assert [name for name, _ in store.branches(unfinished_only=False)] == in_order
    assert [name for name, _ in store.branches(unfinished_only=True)] == [b for b in in_order if b != "b03"]
    assert [one.name for one in store.whole_branches()] == in_order
    of_all = [(branch, step) for branch in branches[:4] for step in steps]
    assert [(b, o.step) for b, o in store.operations(None, open_only=False)] == of_all
    assert [(b, o.step) for b, o in store.operations(None, open_only=True)] == of_all[: 3 * len(steps)]
    assert [(b, o.step) for b, o in store.operations("b03", open_only=False)] == of_all[3 * len(steps) :]
    assert list(store.operations("b03", open_only=True)) == []


def test_generations_of_a_step_come_in_pages(store: Store) -> None:
    """More of them than a page holds: the key goes on within the step."""
    write(store, opened("b"), *effect(store.salt, "b", "s"))
    for generation in range(1, 20):
        newest = list(store.operations("b", open_only=False))[-1][1]
        renewed = r.Renewed(
            attempt=1, step="s", generation=generation, by="someone", why="again", expect_seq=newest.last_seq
        )
        declaration = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=1)
        pending = r.Pending(
            attempt=1,
            step="s",
            generation=generation + 1,
            tool="t",
            declaration=declaration,
            request_id=codec.request_id(store.salt, "b", "s", generation + 1),
            digest="1:00",
        )
        settled = r.Settled(
            attempt=1,
            step="s",
            generation=generation + 1,
            settlement=r.Settlement.NEVER_SENT,
            by="intentlog:owner",
            why="-",
        )
        write(store, Append("b", renewed), Append("b", pending, b"{}"), Append("b", settled))
    assert [o.generation for _, o in store.operations("b", open_only=False)] == list(range(1, 21))
    assert [o.generation for _, o in store.operations(None, open_only=False)] == list(range(1, 21))


# --- by the indexes ---------------------------------------------------------------------------------------------------


def plan(path: Path, query: str) -> str:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    values = tuple("" for _ in range(query.count("?")))
    return "; ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (schema.UNFINISHED_BRANCHES, "unfinished_branches"),
        (schema.LISTED[0], "listed_operations"),
        (schema.LISTED[1], "listed_operations"),
        (schema.BRANCH_AND_LISTED, "listed_operations"),
    ],
)
def test_a_restart_reads_only_what_is_open(sqlite: SqliteStore, tmp_path: Path, query: str, index: str) -> None:
    """No table is scanned, and nothing is sorted: a partial index holds what is open, in the order that is wanted."""
    steps = plan(tmp_path / "log.db", query)
    assert index in steps, steps
    assert "SCAN" not in steps, steps
    assert "TEMP B-TREE" not in steps, steps


@pytest.mark.parametrize(
    "query",
    [schema.BRANCHES, schema.BRANCH_ROWS, *schema.ALL, schema.OPERATION_ROWS, schema.EVENTS_FROM, schema.EVENT],
)
def test_a_page_begins_where_the_last_one_ended(sqlite: SqliteStore, tmp_path: Path, query: str) -> None:
    """By the primary key: what was read before is not read again."""
    steps = plan(tmp_path / "log.db", query)
    assert "SEARCH" in steps, steps
    assert "SCAN" not in steps, steps
    assert "TEMP B-TREE" not in steps, steps


TEXTS = texts_of("log")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (TEXTS.unfinished, "unfinished_branches"),
        (TEXTS.all_listed, "listed_operations"),
        (TEXTS.listed_of, "listed_operations"),
        (TEXTS.branches, "branches_pkey"),
        (TEXTS.branch_rows, "branches_pkey"),
        (TEXTS.all_operations, "operations_pkey"),
        (TEXTS.operations_of, "operations_pkey"),
        (TEXTS.operation_rows, "operations_pkey"),
        (TEXTS.events_after, "events_pkey"),
        (TEXTS.event, "events_pkey"),
        (TEXTS.walk_back, "events_pkey"),
        (TEXTS.view_newest, "operations_pkey"),
    ],
)
def test_postgres_reads_by_its_indexes(
    postgres: Server, postgres_store: PostgresStore, postgres_log_url: str, query: str, index: str
) -> None:
    """The same there: an index gives what is wanted in the order in which it is wanted, from where a page begins."""
    asked = query.replace('"log"', postgres_log_url.rpartition("=")[2])
    with postgres.connect() as connection:
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE asked AS {asked}")
        values = ", ".join(["NULL"] * max(int(number) for number in re.findall(r"\$(\d)", asked)))
        steps = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE asked({values})"))
    assert index in steps, steps
    assert "Seq Scan" not in steps, steps
    assert query == TEXTS.walk_back or "Sort" not in steps, steps


USES: dict[str, Callable[[Log], object]] = {
    "recover": lambda log: log.recover(),
    "unfinished": lambda log: log.unfinished(),
    "open_intents": lambda log: log.open_intents(),
    "contradictions": lambda log: log.contradictions(),
}


@pytest.mark.parametrize("use", list(USES))
def test_a_restart_asks_nothing_that_grows_with_the_log(tmp_path: Path, use: str) -> None:
    """Whatever statements these make, none scans a table."""
    with Log.open(tmp_path / "log.db") as log:
        store = log._engine.store
        for number in range(30):
            write(store, opened(f"b{number}"), *effect(store.salt, f"b{number}", "s")[: 3 if number % 3 else 2])
        asked: set[str] = set()

        def trace(_cursor: object, statement: str, _bindings: object) -> bool:
            asked.add(statement)
            return True

        for connection in (store._reads, store._connection):
            connection.exec_trace = trace
        USES[use](log)
    queries = [one for one in asked if one.lstrip().startswith(("SELECT", "WITH"))]
    assert queries
    plans = {query: plan(tmp_path / "log.db", query) for query in queries}
    assert {query: steps for query, steps in plans.items() if "SCAN" in steps} == {}
    assert not set(schema.ALL) & asked
