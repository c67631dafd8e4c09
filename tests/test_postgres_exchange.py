"""The two round trips of an append, beneath psycopg: batches of any size, errors, and connections to a pooler."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from group_bench import dispatched, opened, pending, returned
from postgres_servers import Server

from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.observe import LoggingObserver
from intentlog.store import postgres_arrays, postgres_opening
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore
from intentlog.store.postgres_address import address_of
from intentlog.store.postgres_arrays import Bigints, Blobs, Flags, Names
from intentlog.store.postgres_exchange import Statement, exchange, prepare, row_of
from intentlog.store.postgres_opening import Link


@pytest.fixture
def link(postgres: Server) -> Iterator[Link]:
    made, _ = postgres_opening.connect(address_of(postgres.url()))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Blobs([b"a\0'\\", None, b""]), "bytea[]"),
        (Blobs([None, None]), "bytea[]"),
        (Blobs(), "bytea[]"),
        (Bigints([0, -1, 2**62, None]), "bigint[]"),
        (Names(["a b", "o'x\"{},", "日本🙂", "NULL", ""]), "text[]"),
        (Flags([True, False]), "boolean[]"),
        (2**40, "bigint"),
        ("é", "text"),
    ],
)
def test_values_arrive_as_they_are(link: Link, value: postgres_arrays.Value, kind: str) -> None:
    """In the binary form: whatever is in them."""
    statement = Statement(b"echo", f"SELECT $1::{kind}".encode(), postgres_arrays.encoded([value]))
    prepare(link, statement)
    [result] = exchange(link, statement)
    [found] = row_of(link, result)
    assert found == (list(value) if isinstance(value, tuple) else value)


def test_an_error_is_raised_and_the_connection_goes_on(link: Link) -> None:
    """What stands behind it is not executed."""
    one, broken, two = (Statement(n, t) for n, t in ((b"a", b"SELECT 1"), (b"b", b"SELECT 1/0"), (b"c", b"SELECT 2")))
    prepare(link, one, broken, two)
    with pytest.raises(psycopg.errors.DivisionByZero):
        exchange(link, one, broken, two)
    assert [row_of(link, result) for result in exchange(link, one, two)] == [(1,), (2,)]
    assert link.execute("SELECT 3").fetchall() == [(3,)]


def test_a_lost_connection_is_told(link: Link, postgres: Server) -> None:
    """Not waited for: and it is closed for whoever looks."""
    statement = Statement(b"a", b"SELECT 1")
    prepare(link, statement)
    postgres.sql("SELECT pg_terminate_backend(%s)", [link.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        exchange(link, statement)
    assert link.closed


def test_a_batch_larger_than_any_buffer(postgres_log_url: str) -> None:
    """What the server answers while it is still being sent is taken: nobody waits for the other."""
    store = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    payload = b'"' + b"x" * 100_000 + b'"'
    batch = [Append(f"b{number}", r.ApplicationEvent(attempt=1, name="n"), payload) for number in range(200)]
    assert {type(reply) for reply in store.append(batch)} == {Appended}
    assert [stored.payload for stored in store.history(None)] == [payload] * 200
    store.close()


def test_behind_a_pooler_nothing_is_prepared(postgres_log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the server's process is not that which the connection was told: as behind PgBouncer."""
    facts = postgres_opening._FACTS
    monkeypatch.setattr(postgres_opening, "_FACTS", facts.replace(b"pg_backend_pid()", b"pg_backend_pid() + 1"))
    store = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    assert isinstance(store.append([opened("order", owner=f"{store.owner}.1")])[0], Appended)
    for entry in (pending("order"), dispatched("order"), returned("order")):
        assert isinstance(store.append([entry])[0], Appended)
    assert isinstance(store.append([dispatched("order")])[0], Refused)
    link, _ = store._connected()
    assert link.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]
    assert len(list(store.history("order"))) == 4
    store.close()
    monkeypatch.setattr(postgres_opening, "_FACTS", facts)
    direct = PostgresStore(postgres_log_url, SystemClock(), LoggingObserver())
    link, _ = direct._connected()
    names = {name for (name,) in link.execute("SELECT name FROM pg_prepared_statements").fetchall()}
    assert {"intentlog_take", "intentlog_put"} <= names
    direct.close()
