"""Opening a log in PostgreSQL: what is made, by whom, and what is refused, with the remedy in the message."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from group_bench import opened
from postgres_pair import Pair
from postgres_servers import Server

from intentlog import FormatTooNew, Log, LogDamaged, LogUnavailable
from intentlog.log import engine
from intentlog.observe import LoggingObserver
from intentlog.store import postgres_opening, postgres_schema
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore
from intentlog.store.postgres_address import address_of
from intentlog.store.postgres_errors import connect_failure

SECRET = "p/w?d@:%25x"


def opened_store(url: str, **others: bool) -> PostgresStore:
    return PostgresStore(url, SystemClock(), LoggingObserver(), **others)


# --- the tables ------------------------------------------------------------------------------------------------------


def test_many_workers_that_start_at_once_make_one_log(postgres_log_url: str) -> None:
    """One makes the tables, the others wait for it: one salt, and nobody fails."""
    stores: list[PostgresStore] = []
    errors: list[BaseException] = []
    begin = threading.Barrier(8)

    def start() -> None:
        begin.wait()
        try:
            stores.append(opened_store(postgres_log_url))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({store.salt for store in stores}) == 1
    assert len({store.owner for store in stores}) == 8
    for number, store in enumerate(stores):
        store.append([opened(f"b{number}")])
        store.close()


def test_a_role_that_owns_its_schema_needs_no_more(postgres: Server) -> None:
    """Rights on one schema of somebody else's database; none to make another."""
    database = postgres.fresh_database()
    postgres.sql("CREATE ROLE plain LOGIN")
    with pytest.raises(LogUnavailable, match="may not create the schema intentlog") as refused:
        opened_store(postgres.url(database=database, user="plain"))
    assert 'CREATE SCHEMA "intentlog" AUTHORIZATION "plain"' in refused.value.remedy
    postgres.sql("CREATE SCHEMA intentlog AUTHORIZATION plain", database=database)
    store = opened_store(postgres.url(database=database, user="plain"))
    store.append([opened("order", owner=f"{store.owner}.1")])
    assert store.branch_view("order").owner_lives
    assert store.integrity() == []
    assert store.newest_seq() == 1
    store.close()
    postgres.drop_database(database)
    postgres.sql("DROP ROLE plain")


def test_a_stranger_is_told_what_right_it_lacks(postgres: Server, postgres_log_url: str) -> None:
    """The schema is there, and somebody else's."""
    opened_store(postgres_log_url).close()
    postgres.sql("CREATE ROLE stranger LOGIN")
    for reader in (True, False):
        with pytest.raises(LogUnavailable, match="lacks a right"):
            opened_store(postgres_log_url.replace("postgres@", "stranger@"), reader=reader)
    postgres.sql("DROP ROLE stranger")


def test_a_reader_makes_nothing(postgres: Server, postgres_log_url: str) -> None:
    """It is refused where there is no log, and appends to none."""
    with pytest.raises(LogUnavailable, match="there is no log in schema"):
        opened_store(postgres_log_url, reader=True)
    opened_store(postgres_log_url).close()
    reader = opened_store(postgres_log_url, reader=True)
    assert reader.owner == ""
    with pytest.raises(LogUnavailable, match="for reading only"):
        reader.append([opened("order")])
    reader.close()
    schema = postgres_log_url.rpartition("=")[2]
    assert postgres.sql(f"SELECT count(*) FROM {schema}.owners") == [(0,)]


def test_a_newer_format_is_refused(postgres: Server, postgres_log_url: str) -> None:
    """At opening; and by a worker that had it open when a newer one brought it forward."""
    store = opened_store(postgres_log_url)
    schema = postgres_log_url.rpartition("=")[2]
    postgres.sql(f"UPDATE {schema}.meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(LogDamaged, match="not those that were opened"):
        store.append([opened("order")])
    store.close()
    for reader in (True, False):
        with pytest.raises(FormatTooNew, match=r"format 99\.1"):
            opened_store(postgres_log_url, reader=reader)


def test_a_log_is_brought_forward_by_one(postgres_log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations run once each, in order, in one transaction: one that fails leaves the format as it was."""
    opened_store(postgres_log_url).close()
    steps = (*postgres_schema.MIGRATIONS, "CREATE TABLE {s}.later (x int)", "CREATE TABLE {s}.broken (x nonsense)")
    monkeypatch.setattr(postgres_opening, "MIGRATIONS", steps)
    monkeypatch.setattr(postgres_opening, "FORMAT", 3)
    with pytest.raises(LogDamaged, match="nonsense"):
        opened_store(postgres_log_url)
    monkeypatch.setattr(postgres_opening, "MIGRATIONS", steps[:2])
    monkeypatch.setattr(postgres_opening, "FORMAT", 2)
    address = address_of(postgres_log_url)
    link, _ = postgres_opening.connect(address)
    assert postgres_opening.format_of(link, address) == 1
    postgres_opening.create_tables(link, address)
    postgres_opening.create_tables(link, address)
    assert postgres_opening.format_of(link, address) == 2
    link.close()


def test_tables_of_somebody_else_are_left_alone(postgres: Server, postgres_log_url: str) -> None:
    """A schema of that name with an `events` of its own."""
    schema = postgres_log_url.rpartition("=")[2]
    postgres.sql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.events (mine int)")
    with pytest.raises(LogDamaged, match="name another schema"):
        opened_store(postgres_log_url)
    assert postgres.sql(f"SELECT count(*) FROM {schema}.events") == [(0,)]


# --- what a server must not be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("synchronous_commit = off", "synchronous_commit is off"),
        ("synchronous_commit = local", "synchronous_commit is local"),
        ("default_transaction_read_only = on", "default_transaction_read_only is on"),
    ],
)
def test_a_role_whose_commits_are_weak_is_refused(
    postgres: Server, postgres_log_url: str, setting: str, words: str
) -> None:
    """At opening, before anything is made; nothing is set right silently."""
    postgres.sql("CREATE ROLE weak LOGIN SUPERUSER")
    postgres.sql(f"ALTER ROLE weak SET {setting}")
    with pytest.raises(LogUnavailable, match=words) as refused:
        opened_store(postgres_log_url.replace("postgres@", "weak@"))
    assert "ALTER ROLE" in refused.value.remedy
    postgres.sql("DROP ROLE weak")


def test_what_is_weakened_later_is_met_in_the_next_append(own_postgres: Server) -> None:
    """Settings can change under an open log: they are asked for again in each transaction, before it writes."""
    store = opened_store(own_postgres.url())
    store.append([opened("order")])
    own_postgres.configure(synchronous_commit="off")
    until_told(store, "synchronous_commit is off; nothing was written|synchronous_commit is off: a crash")
    own_postgres.configure(synchronous_commit="on", fsync="off")
    until_told(store, "fsync is off")
    store.close()
    own_postgres.restart(fsync="off")
    with pytest.raises(LogUnavailable, match="fsync is off"):
        opened_store(own_postgres.url())


def until_told(store: PostgresStore, words: str) -> None:
    """A reload reaches a session when it is idle next: so that it may take another append."""
    for number in range(100):
        try:
            store.append([opened(f"{words}{number}")])
        except LogUnavailable as refused:
            if words.partition("|")[0].partition(";")[0] in str(refused):
                return
    pytest.fail(f"never told: {words}")


def test_a_standby_is_refused_and_remote_write_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A writer needs the primary; a reader too: who decides must not do so on what is behind."""
    with Pair("remote_write") as pair:
        store = opened_store(pair.primary.url())
        assert "remote_write" in caplog.text
        store.append([opened("order")])
        with pytest.raises(LogUnavailable, match="it is a standby") as refused:
            opened_store(pair.standby.url())
        assert "primary" in refused.value.remedy
        with pytest.raises(LogUnavailable, match="may lack what was acknowledged"):
            opened_store(pair.standby.url(), reader=True)
        store.close()


# --- the URL, and what is secret in it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ann:%70w@db:5433/orders", "postgresql://ann@db:5433/orders"),
        ("postgres://ann:a%40b@db/orders?sslmode=require", "postgresql://ann@db/orders?sslmode=require"),
        ("postgresql://ann@db/orders?password=pw&schema=x", "postgresql://ann@db/orders?schema=x"),
        ("postgresql://ann:pw@one:1,two:2/orders", "postgresql://ann@one:1,two:2/orders"),
        ("postgresql:///orders?host=/run/pg&password=pw", "postgresql:///orders?host=%2Frun%2Fpg"),
        ("postgresql://db", "postgresql://db"),
    ],
)
def test_the_name_of_a_log_shows_no_password(url: str, name: str) -> None:
    """What commands print and errors say; it can be given to a command again."""
    address = address_of(url)
    assert address.name == name
    assert "password" not in address.parameters or address.parameters["password"] not in name
    assert address_of(name).name == name


def test_several_hosts_are_asked_for_the_primary() -> None:
    """After a failover the writer finds it, wherever it has gone."""
    assert address_of("postgresql://one,two/db").parameters["target_session_attrs"] == "primary"
    assert address_of("postgresql://one,two/db?target_session_attrs=any").parameters["target_session_attrs"] == "any"
    assert "target_session_attrs" not in address_of("postgresql://one/db").parameters


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/orders",
        f"postgresql://ann:{SECRET}@127.0.0.1:notaport/orders",
        f"postgresql://ann:{SECRET}@127.0.0.1:1/orders?schema=Not%20One",
        f"postgresql://ann:{SECRET}@127.0.0.1:1/orders?nonsense=1",
        "postgresql://ann@127.0.0.1:1/orders?password=p%2Fw%3Fd",
    ],
)
def test_no_error_shows_the_password(url: str) -> None:
    """Whatever is wrong: neither in its text nor in those that it comes from."""
    with pytest.raises(LogUnavailable) as refused:
        Log.open(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in str(error)
        assert "p/w?d" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('FATAL:  password authentication failed for user "ann"', "the password is wrong"),
        ("fe_sendauth: no password supplied", "PGPASSWORD"),
        ("server does not support SSL, but SSL was required", "no TLS"),
        ("SSL error: certificate verify failed", "sslrootcert"),
        ('could not translate host name "db" to address: Name or service not known', "no such host"),
        ("FATAL:  sorry, too many clients already", "PgBouncer"),
        ("FATAL:  remaining connection slots are reserved", "PgBouncer"),
        ("FATAL:  the database system is starting up", "wait for it"),
        ("FATAL:  the database system is shutting down", "shutting down"),
        ('FATAL:  database "nowhere" does not exist', "create it"),
        ("connection timeout expired", "firewall"),
        ("etwas anderes, mit pw", "check that it runs"),
    ],
)
def test_why_no_connection_was_made_is_told_with_the_remedy(said: str, words: str) -> None:
    """libpq's own text stays beside it, without the password."""
    told = str(connect_failure(address_of("postgresql://ann:pw@db/orders"), psycopg.OperationalError(said)))
    assert words in told
    assert said.replace("pw", "***").partition(":")[2].strip() in told
    assert "pw" not in told


def test_errors_of_real_servers(postgres: Server) -> None:
    """As libpq of today says them."""
    for url, words in (
        (postgres.url(database="nowhere"), "no such database"),
        (postgres.url(user="nobody_known"), "no such database or role"),
        (f"{postgres.url()}?sslmode=require", "no TLS"),
        ("postgresql://no-such-host.invalid/db", "no such host"),
        ("postgresql:///db?host=/nowhere/at/all", "no such socket"),
    ):
        with pytest.raises(LogUnavailable, match=words):
            Log.open(url)


def test_another_kind_of_url_is_refused() -> None:
    """Without its password."""
    with pytest.raises(LogUnavailable, match="in PostgreSQL") as refused:
        Log.open("mysql://ann:pw@db/orders")
    assert "pw" not in str(refused.value)


# --- without the client ----------------------------------------------------------------------------------------------


def test_psycopg_is_imported_for_a_url_only(tmp_path: Path) -> None:
    """`import intentlog`, the command line, and a log in a file need nothing of it."""
    code = (
        "import sys, intentlog, intentlog.cli; intentlog.Log.open(sys.argv[1]).close();"
        "sys.exit(any(name.startswith('psycopg') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "log.db"], check=False).returncode == 0


def test_without_psycopg_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error, not an ImportError."""
    monkeypatch.setitem(sys.modules, "intentlog.store.postgres", None)
    with pytest.raises(LogUnavailable, match="psycopg") as refused:
        engine.postgres_store("postgresql://db")
    assert refused.value.remedy == "install intentlog with its extra `postgres`: pip install '.[postgres]'"
