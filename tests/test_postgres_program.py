"""A program whose log moved to PostgreSQL, and nothing else of it: both faces, the command line, and real crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from group_bench import dispatched, noted
from postgres_proxy import Act, Proxy
from postgres_servers import Server

from intentlog import READ, UNSAFE, AsyncLog, InDoubt, Log, tool
from intentlog.cli.arguments import URL_VARIABLE
from intentlog.core.actions import Refused

PASSWORD = "geheim"
PROGRAM = """
import sys
from intentlog import UNSAFE, Log, tool

@tool(effect=UNSAFE)
def charge(cents: int) -> int:
    print("charged", flush=True)
    return cents

with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
    print("value", attempt.step("charge").call(charge, 1999), flush=True)
"""


@tool(effect=UNSAFE)
async def charge(cents: int) -> int:
    return cents


@tool(effect=READ)
def look(cents: int) -> int:
    return cents


def program(url: str, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    hooks = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at} if crash_at else {}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, env={**os.environ, **hooks}, check=False
    )


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "intentlog", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def run_out(server: Server, url: str) -> None:
    """Every lease of the log ends: the wait for a dead worker is cut short."""
    schema = url.rpartition("=")[2]
    server.sql(f"UPDATE {schema}.owners SET lease_until = clock_timestamp() - interval '1 second'")


@pytest.mark.parametrize(
    ("crash_at", "called", "says", "ends"),
    [
        ("after_pending", [], "NEVER_SENT", 0),
        ("after_dispatched", [], "MAY_HAVE_BEEN_SENT", 3),
        ("after_call", ["charged"], "MAY_HAVE_BEEN_SENT", 3),
        ("after_committed", ["charged"], "", 0),
    ],
)
def test_a_worker_that_is_killed(
    postgres: Server, postgres_log_url: str, crash_at: str, called: list[str], says: str, ends: int
) -> None:
    """I1, I2, I3 after SIGKILL in each window, as in SQLite: told by the command line, settled, and gone on with."""
    url = postgres_log_url.replace("postgres@", f"postgres:{PASSWORD}@")
    killed = program(url, crash_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.split() == called
    run_out(postgres, postgres_log_url)
    runs = [command("status", url), command("recover", url), command("show", url, "order"), command("tail", url)]
    assert says in runs[1].stdout
    assert runs[1].returncode == ends, runs[1].stderr
    if ends:
        why = ("--by", "ann", "--why", "read the statement")
        runs.append(command("resolve", url, "order#1/charge", "--landed", "--outcome", "1999", *why))
        assert runs[-1].returncode == 0, runs[-1].stderr
    runs.append(command("verify", **{URL_VARIABLE: url}))
    assert runs[-1].returncode == 0, runs[-1].stdout
    again = program(url)
    calls = ["charged"] if says == "NEVER_SENT" else []
    assert again.stdout.split() == [*calls, "value", "1999"], again.stderr
    assert not [one for one in runs if PASSWORD in one.stdout + one.stderr]


def test_no_command_shows_the_password_where_nobody_answers() -> None:
    """Not in an error either."""
    for name in ("status", "recover", "verify", "tail"):
        failed = command(name, f"postgresql://ann:{PASSWORD}@127.0.0.1:1/orders")
        assert failed.returncode == 1
        assert "nobody listens there" in failed.stderr
        assert PASSWORD not in failed.stdout + failed.stderr


def test_an_event_loop_waits_for_no_commit(postgres_log_url: str, postgres_proxy: Proxy) -> None:
    """Not even for a small one: here its answer is withheld until the loop itself lets it through."""

    async def main() -> int:
        url = f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}"
        async with AsyncLog.open(url) as log, log.attempt("order") as attempt:
            for number in range(20):  # so that small commits have been seen to be quick
                await attempt.step(f"s{number}").call(charge, number)
            trap = postgres_proxy.at_commit(Act.HOLD_AFTER, matching=lambda sent: b"Dispatched" in sent)
            call = asyncio.ensure_future(attempt.step("last").call(charge, 1999))
            while not trap.done.is_set():
                await asyncio.sleep(0.001)
            trap.release()
            return await call

    assert asyncio.run(main()) == 1999


def test_an_event_loop_reads_and_replays(postgres_log_url: str, postgres: Server) -> None:
    """The second run calls nothing; a READ waits for its branch's next record; a doubt stays one."""

    async def main() -> None:
        async with AsyncLog.open(postgres_log_url) as log:
            for _ in range(2):
                async with log.attempt("order") as attempt:
                    assert await attempt.step("look").call(look, 3) == 3
                    outcomes = [await attempt.step(f"s{n}").perform(charge, n) for n in range(5)]
            assert [outcome.value for outcome in outcomes] == list(range(5))
            assert all(outcome.replayed for outcome in outcomes)
            assert (await log.verify()).ok
            assert len(await log.tail(3)) == 3

    asyncio.run(main())


def test_an_effect_is_three_commits(postgres_log_url: str, postgres_proxy: Proxy) -> None:
    """I1, I7: as a witness between the program and the server counts them; a replay is none."""
    with Log.open(f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}") as log:
        with log.attempt("order") as attempt:
            counts = [postgres_proxy.commits]
            for number in (1, 1, 2):
                attempt.step(f"s{number}").call(plainly, number)
                counts.append(postgres_proxy.commits)
        assert [after - before for before, after in pairwise(counts)] == [3, 0, 3]


@tool(effect=UNSAFE)
def plainly(cents: int) -> int:
    return cents


FORKED = """
import gc, os, sys
from intentlog import Log, WrongProcess

log = Log.open(sys.argv[1])
with log.attempt("order"):
    child = os.fork()
    if child == 0:
        try:
            log.append("order", "note")
        except WrongProcess:
            del log
            gc.collect()
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert log._engine.store.branch_view("order").owner_lives
log.append("order", "after")
log.close()
lost = Log.open(sys.argv[1])
owner = lost._engine.store.owner
del lost
gc.collect()
with Log.open(sys.argv[1], read_only=True) as reader:
    print(len(list(reader.history("order"))))
"""


def test_a_fork_and_a_lost_log_leave_the_lease_to_whom_it_belongs(postgres_log_url: str, postgres: Server) -> None:
    """A child says nothing over its parent's connections; a log that nobody can close any more lets its lease go."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, postgres_log_url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"]
    schema = postgres_log_url.rpartition("=")[2]
    assert postgres.sql(f"SELECT count(*) FROM {schema}.owners") == [(0,)]


@tool(effect=UNSAFE)
def breaks(cents: int) -> int:
    raise TimeoutError(cents)


def test_a_doubt_names_the_log_without_its_password(postgres_log_url: str) -> None:
    """The command that it tells can be run as it stands."""
    url = postgres_log_url.replace("postgres@", f"postgres:{PASSWORD}@")
    with Log.open(url) as log:
        with pytest.raises(InDoubt) as doubt, log.attempt("order") as attempt:
            attempt.call(breaks, 1)
        assert f"intentlog resolve '{postgres_log_url}'" in doubt.value.remedy
        assert PASSWORD not in str(doubt.value)


def test_a_tail_is_as_long_as_was_asked_for(postgres_log_url: str) -> None:
    """Places have gaps, where records were refused: they are looked past."""
    with Log.open(postgres_log_url) as log:
        store = log._engine.store
        with log.attempt("order"):
            pass
        for number in range(5):
            store.append([noted("b", f"n{number}")])
            for _ in range(7):
                assert isinstance(store.append([dispatched("nobody")])[0], Refused)
        assert [entry.record.name for entry in log.tail(3)] == ["n2", "n3", "n4"]
        assert len(log.tail(1_000)) == 7
        assert log.verify().ok


def test_the_extra_is_declared() -> None:
    """With the extra `postgres`, as the error says."""
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    extra = text.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
    assert "postgres = [" in extra
    assert "psycopg" in extra
    assert "psycopg-pool" in extra
