"""The servers and the proxy that the tests of PostgreSQL rest on do what they are taken for.

They hold no promise of the library by themselves: they are what I5 (an acknowledged record is never lost) and I8 (after
a commit whose fate is unknown nothing more is done) are tested with. So each that cuts, kills or promotes has a control
here: the same without it, or with the protection taken away.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
from postgres_pair import Pair, PgBouncer
from postgres_proxy import Act, Proxy
from postgres_servers import Server, ServerFailed, installed, pgbouncer
from postgres_watch import children_of, wait_until_ended
from postgres_wire import Transactions

GONE_S_MAX = 30


@pytest.fixture
def table(postgres: Server) -> Iterator[str]:
    """A database of the shared server with a table `row (number int)`."""
    database = postgres.fresh_database()
    postgres.sql("CREATE TABLE row (number int)", database=database)
    yield database
    postgres.drop_database(database)


def rows(server: Server, database: str = "postgres") -> list[int]:
    return [number for (number,) in server.sql("SELECT number FROM row ORDER BY number", database=database)]


# -- The server


def test_a_server_weakens_no_durability(postgres: Server) -> None:
    """A kill would prove nothing of a server that promises less than the users' own."""
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert postgres.sql(f"SHOW {name}") == [("on",)]


def test_a_committed_row_survives_a_kill(own_postgres: Server) -> None:
    """SIGKILL of all its processes: what was committed is there afterwards; the control, what was not, is not."""
    own_postgres.sql("CREATE TABLE row (number int)")
    own_postgres.sql("INSERT INTO row VALUES (1)")
    port, processes = own_postgres.port, children_of(own_postgres.pid)
    with own_postgres.connect() as open_one:
        open_one.execute("BEGIN")
        open_one.execute("INSERT INTO row VALUES (2)")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            open_one.execute("COMMIT")
    assert len(processes) > 1
    assert not wait_until_ended(processes)  # one that was killed may still have to be taken away
    own_postgres.start()
    assert rows(own_postgres) == [1]
    assert own_postgres.port == port
    assert own_postgres.wait_for_log("automatic recovery in progress")


def test_settings_are_given_and_changed() -> None:
    with Server(settings={"fsync": "off"}) as server:
        assert server.sql("SHOW fsync") == [("off",)]
        server.configure(synchronous_commit="off")
        assert server.sql("SHOW synchronous_commit") == [("off",)]
        server.restart(fsync="on")
        assert server.sql("SHOW fsync") == [("on",)]
        assert server.sql("SHOW synchronous_commit") == [("off",)]


def test_a_server_that_does_not_start_says_why() -> None:
    server = Server(settings={"max_connections": "many"})
    try:
        with pytest.raises(ServerFailed, match=r'invalid value for parameter "max_connections"'):
            server.start()
    finally:
        server.close()


def test_a_server_can_ask_for_passwords() -> None:
    """Lines of pg_hba.conf come before those that trust everybody."""
    with Server(hba=["host all guarded 127.0.0.1/32 scram-sha-256"]) as server:
        server.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        with psycopg.connect(server.url(user="guarded", password="right")):
            pass
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url(user="guarded", password="wrong"))


def test_fresh_databases_share_nothing(postgres: Server, table: str) -> None:
    other = postgres.fresh_database()
    assert postgres.sql("SELECT to_regclass('row')", database=other) == [(None,)]
    with psycopg.connect(postgres.url(database=table, unix=True)) as connection:
        assert connection.execute("SELECT count(*) FROM row").fetchone() == (0,)
    postgres.drop_database(other)


def test_identifiers_are_shared_unless_asked_for(postgres: Server) -> None:
    """A server that took the place of another is told by its identifier."""

    def identifier(server: Server) -> object:
        return server.sql("SELECT system_identifier FROM pg_control_system()")

    with Server() as copy, Server(own_identifier=True) as another:
        assert identifier(copy) == identifier(postgres) != identifier(another)


def test_a_paused_server_goes_on(own_postgres: Server) -> None:
    own_postgres.sql("CREATE TABLE row (number int)")
    own_postgres.pause()
    with ThreadPoolExecutor(1) as threads:
        insert = threads.submit(own_postgres.sql, "INSERT INTO row VALUES (1)")
        processes = [psutil.Process(own_postgres.pid), *children_of(own_postgres.pid)]
        assert {process.status() for process in processes} <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        own_postgres.resume()
        insert.result()
    assert rows(own_postgres) == [1]


def test_no_server_outlives_its_tests() -> None:
    """A test process that is killed leaves neither a server nor a folder behind."""
    program = """
import sys
from postgres_servers import Server
with Server() as server:
    print(server.folder, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        folder = Path(child.stdout.readline().strip())
        assert folder.is_dir()
        left = psutil.Process(child.pid).children(recursive=True)
        assert {"postgres"} < {process.name() for process in left}
        child.kill()
    assert not wait_until_ended(left)
    assert not folder.parent.exists()


# -- The proxy

# How a client commits: what each sends differs on the wire.


def commit_simply(connection: psycopg.Connection, number: int) -> None:
    connection.execute(f"INSERT INTO row VALUES ({number})".encode())
    connection.commit()


def commit_prepared(connection: psycopg.Connection, number: int) -> None:
    connection.execute("INSERT INTO row VALUES (%s)", [number], prepare=True)
    connection.execute("COMMIT", prepare=True)


def commit_in_one_query(connection: psycopg.Connection, number: int) -> None:
    connection.autocommit = True
    connection.execute(f"BEGIN; INSERT INTO row VALUES ({number}); COMMIT".encode())


def commit_in_a_pipeline(connection: psycopg.Connection, number: int) -> None:
    with connection.pipeline():
        connection.execute("INSERT INTO row VALUES (%s)", [number])
        connection.commit()


CLIENTS = [commit_simply, commit_prepared, commit_in_one_query, commit_in_a_pipeline]
Committing = Callable[[psycopg.Connection, int], None]


def told(proxy: Proxy, database: str, commit: Committing, number: int) -> bool:
    """Whether a client that commits a row through the proxy is told that it did."""
    connection = psycopg.connect(proxy.url(database=database), connect_timeout=10)
    try:
        commit(connection, number)
    except psycopg.OperationalError:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.parametrize("commit", CLIENTS)
def test_the_proxy_passes_everything_on_unless_asked(
    postgres: Server, table: str, postgres_proxy: Proxy, commit: Committing
) -> None:
    """The control of all that follow: without a trap the client is told, and the row is there."""
    assert told(postgres_proxy, table, commit, 1)
    assert rows(postgres, table) == [1]
    assert postgres_proxy.commits == 1


@pytest.mark.parametrize("commit", CLIENTS)
@pytest.mark.parametrize(
    ("act", "there"),
    [
        (Act.CUT_BEFORE, False),
        (Act.CUT_AFTER, True),
        (Act.HALF_CLOSE_BEFORE, False),
        (Act.HALF_CLOSE_AFTER, True),
    ],
)
def test_the_proxy_cuts_at_the_commit(
    postgres: Server, table: str, postgres_proxy: Proxy, act: Act, there: bool, commit: Committing
) -> None:
    """The client cannot tell the two cuts apart, the row can: seen through a connection of its own."""
    trap = postgres_proxy.at_commit(act)
    assert not told(postgres_proxy, table, commit, 1)
    trap.wait()
    assert rows(postgres, table) == ([1] if there else [])
    assert told(postgres_proxy, table, commit, 2), "a trap is for one commit"


@pytest.mark.parametrize("commit", CLIENTS)
def test_a_commit_that_is_in_flight_when_its_client_is_cut_off_arrives(
    postgres: Server, table: str, postgres_proxy: Proxy, commit: Committing
) -> None:
    trap = postgres_proxy.at_commit(Act.CUT_IN_FLIGHT)
    assert not told(postgres_proxy, table, commit, 1)
    trap.wait_for_answer()
    assert rows(postgres, table) == [1]


@pytest.mark.parametrize("commit", CLIENTS)
@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER])
def test_the_proxy_holds_a_commit_or_its_answer(
    postgres: Server, table: str, postgres_proxy: Proxy, act: Act, commit: Committing
) -> None:
    trap = postgres_proxy.at_commit(act)
    with ThreadPoolExecutor(1) as threads:
        client = threads.submit(told, postgres_proxy, table, commit, 1)
        trap.wait()
        assert rows(postgres, table) == ([1] if act is Act.HOLD_AFTER else [])
        assert not client.done()
        trap.release()
        assert client.result()
    assert rows(postgres, table) == [1]


@pytest.mark.parametrize("act", [Act.SILENCE_BEFORE, Act.SILENCE_AFTER])
def test_the_proxy_falls_silent(postgres: Server, table: str, postgres_proxy: Proxy, act: Act) -> None:
    """Nothing is closed: the client waits, until the test ends the connection."""
    trap = postgres_proxy.at_commit(act)
    with ThreadPoolExecutor(1) as threads:
        client = threads.submit(told, postgres_proxy, table, commit_simply, 1)
        trap.wait()
        assert rows(postgres, table) == ([1] if act is Act.SILENCE_AFTER else [])
        assert not client.done()
        postgres_proxy.cut()
        assert not client.result()


def test_the_proxy_picks_the_commit_that_it_is_asked_for(postgres: Server, table: str, postgres_proxy: Proxy) -> None:
    """The nth of those that match; the words of a row are no COMMIT."""
    postgres.sql("CREATE TABLE said (words text)", database=table)
    trap = postgres_proxy.at_commit(Act.CUT_BEFORE, nth=2, matching=lambda sent: b"wanted" in sent)
    with psycopg.connect(postgres_proxy.url(database=table)) as connection:
        for words in ("wanted: 1", "; COMMIT; ", "other"):
            connection.execute(f"INSERT INTO said VALUES ('{words}')".encode())
            connection.execute("INSERT INTO said VALUES (%s)", ["COMMIT"])
            connection.commit()
        assert not trap.reached.is_set()
        connection.execute("INSERT INTO said VALUES ('wanted: 2')")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert postgres.sql("SELECT count(*) FROM said", database=table) == [(6,)]
    assert postgres_proxy.commits == 4


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize(("act", "there"), [(Act.CUT_BEFORE, False), (Act.CUT_AFTER, True)])
def test_the_proxy_finds_a_statement_that_commits_by_itself(
    postgres: Server, table: str, postgres_proxy: Proxy, act: Act, there: bool, prepare: bool
) -> None:
    trap = postgres_proxy.at_commit(act, implicit=True)
    with psycopg.connect(postgres_proxy.url(database=table), autocommit=True) as connection:
        connection.execute("SET application_name = 'tests'")
        assert not trap.reached.is_set()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO row VALUES (%s)", [1], prepare=prepare)
    trap.wait()
    assert rows(postgres, table) == ([1] if there else [])


def test_the_proxy_refuses_and_accepts(postgres: Server, table: str, postgres_proxy: Proxy) -> None:
    """From the moment of the cut on, if it is asked to; the same port accepts afterwards."""
    trap = postgres_proxy.at_commit(Act.CUT_BEFORE, refuse=True)
    assert not told(postgres_proxy, table, commit_simply, 1)
    trap.wait()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres_proxy.url())
    postgres_proxy.accept()
    assert told(postgres_proxy, table, commit_simply, 2)
    with postgres_proxy.refusing(), pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres_proxy.url())
    assert told(postgres_proxy, table, commit_simply, 3)
    assert rows(postgres, table) == [2, 3]


def test_the_proxy_leads_elsewhere(own_postgres: Server, postgres: Server, postgres_proxy: Proxy) -> None:
    def port() -> object:
        with psycopg.connect(postgres_proxy.url()) as connection:
            return connection.execute("SELECT inet_server_port()").fetchone()

    assert port() == (postgres.port,)
    postgres_proxy.lead_to(own_postgres)
    assert port() == (own_postgres.port,)


@pytest.mark.parametrize(
    ("queries", "commits"),
    [
        (["BEGIN", "INSERT INTO row VALUES (1)", "COMMIT"], [False, False, True]),
        (["begin; insert into row values (1); end;"], [True]),
        (["START TRANSACTION", "-- words\n COMMIT WORK"], [False, False]),
        (["BEGIN", "ROLLBACK", "COMMIT"], [False, False, False]),
        (["BEGIN", "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a", "COMMIT AND CHAIN"], [False, False, False, True]),
        (["BEGIN", "SELECT $x$; COMMIT; $x$", "SELECT 'it''s; COMMIT; '", "ABORT"], [False] * 4),
        (["COMMIT", "SHOW fsync", "SELECT 1"], [False, False, True]),
    ],
)
def test_commits_are_found_among_queries(queries: list[str], commits: list[bool]) -> None:
    transactions, found = Transactions(), []
    for query in queries:
        body = query.encode() + b"\0"
        found.append(transactions.commits(b"Q" + (len(body) + 4).to_bytes(4, "big") + body))
        if found[-1]:
            transactions.over()
    assert found == commits


# -- The pair

MODES = ["on", "remote_apply", "remote_write"]


def write_until_it_ends(url: str, acknowledged: list[int], first: int, enough: threading.Event) -> None:
    """Commit numbers one by one, and keep those whose commit was acknowledged, until the server is gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(first, first + 1_000_000):
            try:
                connection.execute("INSERT INTO row VALUES (%s)", [number])
            except psycopg.OperationalError:
                return
            acknowledged.append(number)
            if len(acknowledged) >= 200:
                enough.set()


@pytest.mark.parametrize("synchronous_commit", MODES)
def test_the_promoted_standby_has_every_acknowledged_row(synchronous_commit: str) -> None:
    """The primary is killed among the commits of four writers, and the standby takes its place."""
    acknowledged: list[int] = []
    enough = threading.Event()
    with Pair(synchronous_commit) as pair, ThreadPoolExecutor(4) as threads:
        pair.primary.sql("CREATE TABLE row (number int)")
        writers = [
            threads.submit(write_until_it_ends, pair.primary.url(), acknowledged, writer * 1_000_000, enough)
            for writer in range(4)
        ]
        assert enough.wait(GONE_S_MAX)
        pair.primary.kill()
        for writer in writers:
            writer.result()
        promoted = pair.promote()
        assert set(acknowledged) <= set(rows(promoted))
        promoted.sql("INSERT INTO row VALUES (-1)")
        assert -1 in rows(promoted)


@pytest.mark.parametrize("synchronous_commit", ["on", "local"])
def test_without_the_wait_for_the_standby_an_acknowledged_row_is_lost(synchronous_commit: str) -> None:
    """The control of the pair: a commit that waits for nobody is acknowledged and lost; one that waits is neither."""
    with Pair() as pair, ThreadPoolExecutor(1) as threads:
        pair.primary.sql("CREATE TABLE row (number int)")
        pair.standby.kill()

        def insert() -> bool:
            try:
                with pair.primary.connect() as connection:
                    connection.execute(f"SET synchronous_commit = {synchronous_commit}".encode())
                    connection.execute("INSERT INTO row VALUES (1)")
            except psycopg.OperationalError:
                return False
            return True

        acknowledged = threads.submit(insert)
        if synchronous_commit == "local":
            assert acknowledged.result()
        else:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while pair.primary.sql(waiting) == [(0,)]:
                assert not acknowledged.done()
        pair.primary.kill()
        assert acknowledged.result() == (synchronous_commit == "local")
        pair.standby.start()
        assert rows(pair.promote()) == []


# -- What the system has installed


def test_a_server_of_the_system() -> None:
    programs = installed(15)
    if programs is None:
        pytest.skip("PostgreSQL 15 is not installed as Debian installs it")
    with Server(programs=programs) as server:
        assert server.sql("SELECT current_setting('server_version_num')::int / 10000") == [(15,)]
        server.sql("CREATE TABLE row (number int)")
        server.sql("INSERT INTO row VALUES (1)")
        server.kill()
        server.start()
        assert rows(server) == [1]


def test_a_pgbouncer_of_the_system(postgres: Server, table: str) -> None:
    """In transaction mode a client's next transaction may have another server connection."""
    if pgbouncer() is None:
        pytest.skip("PgBouncer is not installed")
    with PgBouncer(postgres) as bouncer, psycopg.connect(bouncer.url(database=table)) as connection:
        connection.execute("INSERT INTO row VALUES (1)")
        connection.commit()
        assert rows(postgres, table) == [1]
