"""`intentlog doctor`, on real servers whose settings are good, and on some that are not.

What it calls wrong is what the library's promises rest on: an acknowledged record is never lost (I5), and a commit's
fate can be learnt (I8). Each setting that it finds wrong is also found right by the same test, before it was changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_pair import Pair, PgBouncer
from postgres_servers import Server, identity, installed, pgbouncer
from test_cli import Bench
from worker_bench import Bench as Workers
from worker_bench import bench as workers

from intentlog import Log
from intentlog.store.postgres_standbys import standbys, waited_for

KEYS = ["setting", "found", "wanted", "verdict", "remedy"]
WRONG, WEAK, NOTE, OK = "wrong", "weak", "note", "ok"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("doctor"))
    yield made
    made.close()


@pytest.fixture
def many(postgres_url: str, quick_folder: Path) -> Iterator[Workers]:
    with workers(postgres_url, quick_folder) as made:
        yield made


def examined(bench: Bench, place: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and of each setting what was found and the verdict."""
    result = bench("doctor", place, "--json")
    document: dict[str, Any] = result.document
    assert result.err == ""
    assert document["ok"] == (result.code == 0)
    assert all(list(one) == KEYS for one in document["findings"])
    found = {one["setting"]: (one["found"], one["verdict"]) for one in document["findings"]}
    assert len(found) == len(document["findings"])
    assert (result.code == 1) == any(verdict == WRONG for _, verdict in found.values())
    assert all(one["remedy"] for one in document["findings"] if one["verdict"] in (WRONG, WEAK))
    return result.code, found


def wrong_ones(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {setting: text for setting, (text, verdict) in found.items() if verdict == WRONG}


# --- a server that is as it should be --------------------------------------------------------------------------------


def test_a_good_server_is_told_as_a_table(bench: Bench, postgres_url: str) -> None:
    """Exit 0 before there is a log and with one; each row has what was found, what is wanted and a verdict."""
    for schema in ("there, or may be made", "-"):
        result = bench("doctor", postgres_url)
        assert (result.code, result.err) == (0, "")
        lines = [line.split("  ") for line in result.out.splitlines()]
        assert lines[0] == [postgres_url]
        rows = {line[0]: [cell.strip() for cell in line if cell] for line in lines}
        assert rows["setting"] == ["setting", "found", "wanted", "verdict"]
        assert rows["fsync"] == ["fsync", "on (configuration file)", "on", "ok"]
        assert rows["schema"][2] == schema
        assert lines[-1][0].startswith("nothing is wrong: ")
        Log.open(postgres_url).close()
    assert {"format", "owners", "rights"} <= rows.keys()
    assert rows["an acknowledged commit survives"][1].endswith("not the loss of its disk")


def test_an_ordinary_role_that_owns_its_schema_is_fine(bench: Bench, own_postgres: Server) -> None:
    """What the docs recommend gets exit 0, over TCP with a password and over a socket; the password is not shown."""
    own_postgres.sql("CREATE ROLE shop LOGIN PASSWORD 'hush-hush'")
    name = own_postgres.fresh_database(owner="shop")
    place = own_postgres.url(database=name, user="shop", password="hush-hush")
    Log.open(place).close()
    for text in (place, own_postgres.url(database=name, user="shop", password="hush-hush", unix=True)):
        code, found = examined(bench, text)
        assert (code, found["role"], found["rights"]) == (0, ("shop", OK), ("all", OK))
        assert "hush" not in bench("doctor", text).out + bench("doctor", text, "--json").out
    assert found["TLS"] == ("no: a socket of this machine", OK)


# --- settings that take the promise away -----------------------------------------------------------------------------


def test_what_takes_durability_away_is_wrong(bench: Bench, own_postgres: Server) -> None:
    """fsync, full pages, synchronous_commit as this role or database gets it, a read-only default: exit 1 (I5)."""
    name = own_postgres.fresh_database()
    own_postgres.sql("CREATE ROLE shop LOGIN SUPERUSER")
    place = own_postgres.url(database=name, user="shop")
    assert examined(bench, place)[0] == 0
    own_postgres.restart(fsync="off", full_page_writes="off")
    found = examined(bench, place)[1]
    assert wrong_ones(found).keys() == {"fsync", "full_page_writes"}
    own_postgres.restart(fsync="on", full_page_writes="on")
    for value, verdict in (("off", WRONG), ("local", WRONG), ("remote_write", WEAK), ("remote_apply", OK)):
        own_postgres.sql(f"ALTER ROLE shop SET synchronous_commit = {value}")
        found = examined(bench, place)[1]
        assert found["synchronous_commit"] == (f"{value} (user)", verdict)
        if value == "off":
            assert found["an acknowledged commit survives"] == ("not even a crash of the server", WRONG)
    own_postgres.sql("ALTER ROLE shop RESET synchronous_commit")
    own_postgres.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    assert examined(bench, place)[1]["synchronous_commit"] == ("off (database)", WRONG)
    own_postgres.sql(f"ALTER DATABASE {name} RESET synchronous_commit")
    own_postgres.sql("ALTER ROLE shop SET default_transaction_read_only = on")
    assert wrong_ones(examined(bench, place)[1]).keys() == {"default_transaction_read_only"}


def test_a_standby_and_a_primary_whose_standby_is_gone(bench: Bench) -> None:
    """What a commit waits for, whether that is there, and what it therefore survives (I5). A standby takes no log."""
    with Pair("remote_apply") as pair:
        place = pair.primary.url()
        code, found = examined(bench, place)
        assert (code, found["standbys that stream"]) == (0, ("standby (sync)", OK))
        assert "whose readers see it" in found["an acknowledged commit survives"][0]
        assert wrong_ones(examined(bench, pair.standby.url())[1]) == {"role of the server": "standby"}
        pair.primary.sql(
            "SET synchronous_commit = local; CREATE ROLE shop LOGIN; CREATE SCHEMA intentlog AUTHORIZATION shop"
        )
        found = examined(bench, pair.primary.url(user="shop"))[1]
        assert found["standbys that stream"] == ("1 standby, of which this role may not see more", NOTE)
        pair.standby.stop()
        found = examined(bench, place)[1]
        assert wrong_ones(found) == {"standbys that stream": "none; not standby"}
        pair.primary.configure(synchronous_standby_names="")
        assert examined(bench, place)[0] == 0


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("", (0, [])),
        ("a", (1, ["a"])),
        ('a, "b c"', (1, ["a", "b c"])),
        ("*", (1, ["*"])),
        ("2 (a, b, c)", (2, ["a", "b", "c"])),
        ("FIRST 1 (a,b)", (1, ["a", "b"])),
        ("any 2 ( a, b, c )", (2, ["a", "b", "c"])),
    ],
)
def test_the_forms_of_synchronous_standby_names(names: str, wanted: tuple[int, list[str]]) -> None:
    """Each form that PostgreSQL takes is read as it does."""
    assert waited_for(names) == wanted


def test_too_few_standbys_are_wrong_and_a_spare_one_that_is_gone_is_weak() -> None:
    """Commits stand still with too few; with as many as needed, but not all, one more failure would stop them."""
    both = [("a", "streaming", "quorum"), ("b", "streaming", "quorum")]

    def verdict(names: str, rows: list[tuple[str, str, str]]) -> str:
        (found,) = [one for one in standbys(names, "on", rows) if one.setting == "standbys that stream"]
        return found.verdict

    assert verdict("ANY 2 (a, b)", both) == OK
    assert verdict("ANY 2 (a, b)", both[:1]) == WRONG
    assert verdict("ANY 1 (a, b)", both[:1]) == WEAK
    assert verdict("ANY 1 (a, b)", [("a", "catchup", "quorum")]) == WRONG
    assert verdict("", [("a", "streaming", "async")]) == NOTE
    (survives,) = [one for one in standbys("", "on", [("a", "streaming", "async")]) if "survives" in one.setting]
    assert (survives.verdict, "not a failover" in survives.found) == (WEAK, True)


# --- rights, schema, format ------------------------------------------------------------------------------------------


def test_rights_that_are_missing_are_named_with_what_gives_them(bench: Bench, postgres: Server) -> None:
    """From no schema to all rights, a step at a time; what is advised gives what was missing."""
    name = postgres.fresh_database()
    postgres.sql("CREATE ROLE doctored LOGIN")
    place = postgres.url(database=name, user="doctored")
    try:
        assert wrong_ones(examined(bench, place)[1]) == {"schema": "intentlog: not there"}
        Log.open(postgres.url(database=name)).close()
        assert wrong_ones(examined(bench, place)[1]) == {"schema": "intentlog: may not be used"}
        postgres.sql("GRANT USAGE ON SCHEMA intentlog TO doctored", database=name)
        found = examined(bench, place)[1]
        assert "events (INSERT, SELECT)" in wrong_ones(found)["rights"]
        assert found["workers"] == ("cannot be seen by this role", NOTE)
        (remedy,) = [
            one["remedy"] for one in bench("doctor", place, "--json").document["findings"] if one["setting"] == "rights"
        ]
        postgres.sql(remedy, database=name)
        code, found = examined(bench, place)
        assert (code, found["rights"], found["schema"]) == (0, ("all", OK), ("intentlog, of another role", NOTE))
        with Log.open(place) as log, log.attempt("order"):
            pass
        postgres.sql("UPDATE intentlog.meta SET value = '99' WHERE key = 'format'", database=name)
        found = examined(bench, place)[1]
        assert "format 99" in wrong_ones(found)["format"]
    finally:
        postgres.drop_database(name)
        postgres.sql("DROP ROLE doctored")


# --- workers ---------------------------------------------------------------------------------------------------------


def test_workers_are_counted_alive_and_dead(bench: Bench, many: Workers, postgres: Server) -> None:
    """Who lives has a lease; who died leaves one that runs out, and a branch to run again. Both are no fault."""
    living, doomed = many.worker(), many.worker()
    assert living.asks("call", "held") == "calling held"
    assert doomed.asks("call", "left") == "calling left"
    code, found = examined(bench, many.place)
    assert (code, found["owners"][0]) == (0, "2 alive, 0 whose lease ran out")
    assert found["unfinished without a living owner"] == ("0 branches", OK)
    doomed.kill()
    while (found := examined(bench, many.place)[1])["owners"][0] != "1 alive, 1 whose lease ran out":
        assert found["owners"][0] == "2 alive, 0 whose lease ran out"
    assert examined(bench, many.place)[1]["unfinished without a living owner"] == ("1 branch", NOTE)


def test_a_transaction_that_appends_and_does_not_end_is_seen(bench: Bench, postgres: Server, postgres_url: str) -> None:
    """Readers of the whole log wait for it: its age is told."""
    Log.open(postgres_url).close()
    setting = "oldest transaction that appends"
    assert examined(bench, postgres_url)[1][setting] == ("none", OK)
    with postgres.connect(database=postgres_url.rpartition("/")[2]) as link, link.transaction():
        link.execute("SELECT pg_advisory_xact_lock_shared('intentlog.places'::regclass::oid::int, 0)")
        found = examined(bench, postgres_url)[1][setting]
    assert (found[0].endswith(" s"), found[1]) == (True, OK)


@pytest.mark.skipif(pgbouncer() is None, reason="the system has no PgBouncer")
def test_a_pooler_in_between_is_seen(bench: Bench, postgres: Server, postgres_url: str) -> None:
    """PgBouncer is told by the process that answers: not the one that the connection was told of."""
    assert examined(bench, postgres_url)[1]["pooler in between"][0].startswith("no: ")
    with PgBouncer(postgres) as pooler:
        found = examined(bench, pooler.url(database=postgres_url.rpartition("/")[2]))[1]
        assert found["pooler in between"][0].startswith("yes: ")


@pytest.mark.skipif(installed() is None, reason="the wheel's server speaks no TLS, and the system has none")
def test_tls_is_seen(bench: Bench, tmp_path: Path) -> None:
    """With TLS it says how far the server was checked; on a loopback address none is no fault."""
    with Server(programs=installed()) as server:
        assert examined(bench, server.url())[1]["TLS"] == ("no: an address of this machine", NOTE)
        certificate = tls(server, tmp_path)
        found = examined(bench, server.url() + "?sslmode=require")[1]["TLS"]
        assert found == ("yes, sslmode=require: whose server it is was not checked", WEAK)
        verified = server.url().replace("127.0.0.1", "localhost")
        found = examined(bench, f"{verified}?sslmode=verify-full&sslrootcert={certificate}")[1]["TLS"]
        assert found == ("yes, sslmode=verify-full", OK)


def tls(server: Server, tmp_path: Path) -> Path:
    """Switch TLS on, with a certificate for localhost, which is returned."""
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    try:
        subprocess.run([*command, "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("the system has no openssl to make a certificate with")
    for path in (key, certificate):
        target = server.data / path.name
        target.write_bytes(path.read_bytes())
        target.chmod(0o600)
        if who := identity():
            os.chown(target, who["user"], who["group"])
    server.restart(ssl="on")
    return certificate


# --- what cannot be looked at ----------------------------------------------------------------------------------------


def test_what_cannot_be_reached_is_an_error_without_a_password(bench: Bench, postgres: Server) -> None:
    """Server down, no such database, another kind of URL, a mangled one: exit 1, one error and the remedy."""
    for place, text in (
        ("postgresql://ann:hush@127.0.0.1:1/x", "nobody listens there"),
        (postgres.url(database="nowhere", password="hush"), "no such database"),
        ("mysql://ann:hush@db/x", "a log is kept in a file or in PostgreSQL"),
        ("postgresql://ann:hush@h:port/x?nonsense=1", "no URL that libpq takes"),
    ):
        result = bench("doctor", place)
        assert (result.code, result.out) == (1, "")
        assert text in result.err
        assert "\nnext: " in result.err
        assert "hush" not in result.err + bench("doctor", place, "--json").out


def test_a_wrong_password_is_an_error_that_does_not_show_it(bench: Bench) -> None:
    """Exit 1; with the right one, exit 0."""
    with Server(hba=["host all shop 127.0.0.1/32 scram-sha-256"]) as server:
        server.sql("CREATE ROLE shop LOGIN SUPERUSER PASSWORD 'right-one'")
        result = bench("doctor", server.url(user="shop", password="wrong-one"))
        assert (result.code, result.out) == (1, "")
        assert "the password is wrong" in result.err
        assert "wrong-one" not in result.err
        assert "the server wants a password" in bench("doctor", server.url(user="shop")).err
        assert bench("doctor", server.url(user="shop", password="right-one")).code == 0


@pytest.mark.parametrize("command", ["doctor", "status", "recover"])
def test_without_the_extra_each_command_says_what_to_install(tmp_path: Path, command: str) -> None:
    """PostgreSQL's client is not there: exit 1, and the command that installs it."""
    for name in ("psycopg", "psycopg_pool"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\")\n")
    with workers("postgresql://db/x", tmp_path) as made:
        code, out, errors = made.command(command, made.place, PYTHONPATH=str(tmp_path)).ends()
    assert (code, out) == (1, "")
    assert "pip install '.[postgres]'" in errors
    assert "Traceback" not in errors


# --- a log in a file -------------------------------------------------------------------------------------------------


def test_a_log_in_a_file(bench: Bench, quick_folder: Path) -> None:
    """File system, format, rights, room, WAL, owners and keeper; a file that others can read is weak, not wrong."""
    path = quick_folder / "log.db"
    assert bench("doctor", path).code == 1
    with workers(str(path), quick_folder) as many:
        worker = many.worker()
        assert worker.asks("attempt", "order") == "own order"
        code, found = examined(bench, str(path))
        assert (code, found["owners"][0], found["keeper"]) == (0, "1 alive, 0 dead with the log open", ("alive", OK))
        assert found["permissions"] == ("0600", OK)
        worker.ends(signal.SIGKILL)
        path.chmod(0o644)
        code, found = examined(bench, str(path))
        assert (code, found["owners"][0], found["permissions"]) == (
            0,
            "0 alive, 1 dead with the log open",
            ("0644", WEAK),
        )
        before = path.read_bytes()
        assert bench("doctor", path).code == 0
        assert path.read_bytes() == before
    (quick_folder / "other.db").write_text("not a log\n" * 1000)
    assert bench("doctor", quick_folder / "other.db").code == 4
    assert json.loads(bench("doctor", quick_folder / "other.db", "--json").out)["error"] == "log_damaged"
