"""`intentlog recover --watch`: a supervisor as a process of its own, beside workers that really die.

What it does not do is told by a witness (no tool is called) and by the history of a branch whose owner lives (nothing
is fenced). That two of them share the work is told by what both print, and by what stands in the log.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_servers import Server
from worker_bench import PATIENCE_S, Bench, Spoken, bench

from intentlog import Log

OFTEN = ("--watch", "0.1")
FENCED_KEYS = ["at", "event", "branch", "attempt"]
CLASSIFIED_KEYS = ["at", "event", "intent_id", "last_state", "classification", "resolution", "seq"]


@pytest.fixture(params=["postgres", "sqlite"])
def many(request: pytest.FixtureRequest, quick_folder: Path) -> Iterator[Bench]:
    postgres = request.param == "postgres"
    place = request.getfixturevalue("postgres_url") if postgres else str(quick_folder / "log.db")
    with bench(place, quick_folder) as made:
        yield made


@pytest.fixture
def several(postgres_url: str, quick_folder: Path) -> Iterator[Bench]:
    with bench(postgres_url, quick_folder) as made:
        yield made


def watch(many: Bench, *more: str, **variables: str) -> Spoken:
    return many.command("recover", many.place, *OFTEN, *more, **variables)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def dead_worker(many: Bench, *branches: str) -> None:
    """A worker that died inside a call of each branch."""
    worker = many.worker("async")
    worker.does("call", *branches)
    assert sorted(worker.says() for _ in branches) == sorted(f"calling {branch}" for branch in branches)
    worker.kill()


def kinds(place: str, branch: str) -> list[str]:
    with Log.open(place, read_only=True) as log:
        return [entry.kind for entry in log.history(branch)]


def test_what_dead_workers_leave_is_classified_and_told_once(many: Bench) -> None:
    """A line for each thing, no call of any tool, and silence while there is nothing (I2, I9). SIGTERM ends it.

    It is there before the first death, and sees each that follows. A living owner's branch is looked at and left alone.
    """
    living = many.worker()
    assert living.asks("call", "living") == "calling living"
    supervisor = watch(many)
    dead_worker(many, "first")
    assert re.fullmatch(r"\S+ \S+Z  first  attempt 1 fenced, its owner was dead", supervisor.says())
    said, see = supervisor.says().split("; see: ")
    assert re.fullmatch(r"\S+ \S+Z  first#1/stay  DISPATCHED  MAY_HAVE_BEEN_SENT  ASK_PERSON", said)
    assert see == f"intentlog status {many.place}"
    between = many.worker()
    between.does("die", "second")
    assert between.ends()[0] == -signal.SIGKILL
    assert re.fullmatch(r"\S+ \S+Z  second  attempt 1 fenced, its owner was dead", supervisor.says())
    assert supervisor.ends(signal.SIGTERM) == (143, "", "error: terminated\n")
    assert many.done() == ["stay living", "stay first", "charge second"]
    assert kinds(many.place, "living") == ["AttemptOpened", "Pending", "Dispatched"]
    assert kinds(many.place, "first") == ["AttemptOpened", "Pending", "Dispatched", "AttemptFenced", "Classified"]


def test_as_json_each_line_is_an_object(many: Bench) -> None:
    """`--json`: one object a line, its `event` telling what it is; the last one tells what ended it. Ctrl-C: 130."""
    dead_worker(many, "order")
    supervisor = watch(many, "--json")
    found = objects(supervisor.says() + "\n" + supervisor.says())
    assert [list(one) for one in found] == [FENCED_KEYS, CLASSIFIED_KEYS]
    assert [one["event"] for one in found] == ["fenced", "classified"]
    wanted = {"intent_id": "order#1/stay", "classification": "MAY_HAVE_BEEN_SENT", "resolution": "ASK_PERSON"}
    assert wanted.items() <= found[1].items()
    code, out, errors = supervisor.ends(signal.SIGINT)
    assert (code, errors) == (130, "")
    assert [one["error"] for one in objects(out)] == ["interrupted"]


def test_two_supervisors_share_what_there_is(several: Bench) -> None:
    """Each attempt is fenced once and each intent classified once, by one of the two, which tells it (I9).

    The control is what both find to do: without the other each would have done all of it.
    """
    branches = [f"order-{number}" for number in range(30)]
    dead_worker(several, *branches)
    with Log.open(several.place, read_only=True) as log:
        while log.recoverable() != sorted(branches):
            assert set(log.recoverable()) <= set(branches)
    supervisors = [watch(several, "--json") for _ in range(2)]
    told: list[dict[str, Any]] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(told) < 2 * len(branches):
        told += [found for one in supervisors for found in objects(one.said())]
        assert time.monotonic() < deadline_s, told
    for one in supervisors:
        code, out, _ = one.ends(signal.SIGTERM)
        assert (code, [found["error"] for found in objects(out)]) == (143, ["terminated"])
    counted = Counter((one["event"], one.get("branch") or one.get("intent_id")) for one in told)
    assert set(counted.values()) == {1}
    assert len(counted) == 2 * len(branches)
    for branch in branches:
        assert Counter(kinds(several.place, branch)) == Counter(
            ["AttemptOpened", "Pending", "Dispatched", "AttemptFenced", "Classified"]
        )


def test_it_outlasts_a_restart_of_the_database(own_postgres: Server, quick_folder: Path) -> None:
    """The server is killed and comes back: it says so, once each, goes on, and classifies what it finds then (I8)."""
    name = own_postgres.fresh_database()
    with bench(own_postgres.url(database=name), quick_folder) as many:
        Log.open(many.place).close()
        supervisor = watch(many)
        dead_worker(many, "before")
        assert "before  attempt 1 fenced" in supervisor.says()
        assert "before#1/stay" in supervisor.says()
        own_postgres.kill()
        assert re.search(r"Z  cannot look: postgresql:.*; trying again, in 1 s at first$", supervisor.says("stderr"))
        own_postgres.start()
        while not (said := supervisor.says("stderr")).endswith("  looking again"):
            assert "cannot look" in said  # that it was starting
        dead_worker(many, "after")
        assert "after  attempt 1 fenced" in supervisor.says()
        assert "after#1/stay" in supervisor.says()
        assert supervisor.ends(signal.SIGTERM) == (143, "", "error: terminated\n")


def test_probes_answer_where_their_module_is_imported(several: Bench) -> None:
    """With `--import` a probe settles the doubt, and no tool is called (I3, I9)."""
    worker = several.worker()
    worker.does("ship", "order")
    assert worker.ends()[0] == -signal.SIGKILL
    supervisor = watch(several, "--import", "worker_programs", "--json")
    found = objects(supervisor.says() + "\n" + supervisor.says())
    assert [one["event"] for one in found] == ["fenced", "classified"]
    assert found[1]["resolution"] == "REPLAY"
    assert supervisor.ends(signal.SIGTERM)[0] == 143
    assert several.done() == ["ship order"]
    assert kinds(several.place, "order")[-2:] == ["ProbeAnswered", "Settled"]


def test_ctrl_c_in_the_middle_of_a_look_ends_it_cleanly(many: Bench) -> None:
    """A probe is being asked when Ctrl-C comes: one line, exit 130, no traceback; what was recorded is told."""
    worker = many.worker()
    worker.does("ship", "order")
    assert worker.ends()[0] == -signal.SIGKILL
    supervisor = watch(many, "--import", "worker_programs", SLOW_PROBE="1")
    assert supervisor.says("stderr") == "the probe is asked"
    code, out, errors = supervisor.ends(signal.SIGINT)
    assert (code, errors) == (130, "error: interrupted\n")
    assert re.findall(r"Z  (\S+  \S+)", out) == ["order  attempt", "order#1/ship  DISPATCHED"]
    with Log.open(many.place, read_only=True) as log:
        assert log.recoverable() == []  # fenced and classified; the probe of a tool that this program does not have
    assert "Settled" not in kinds(many.place, "order")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "often"])
def test_an_interval_that_makes_no_sense_is_a_usage_error(tmp_path: Path, seconds: str) -> None:
    """Exit 2; the log is not looked at."""
    with bench(str(tmp_path / "none.db"), tmp_path) as many:
        code, out, errors = many.command("recover", many.place, f"--watch={seconds}").ends()
        assert (code, out, errors[:7]) == (2, "", "error: ")
        assert "--watch" in errors
        assert not (tmp_path / "none.db").exists()


def test_a_log_that_cannot_be_opened_at_first_ends_it(postgres: Server, tmp_path: Path) -> None:
    """A mistake in the address is told at once, and not waited for: exit 1, one error, no password, nothing is made."""
    empty = postgres.url(database="postgres", user="somebody", password="hush")
    for place in (str(tmp_path / "none.db"), empty, "postgresql://u:hush@127.0.0.1:1/x", "mysql://u:hush@h/x"):
        with bench(place, tmp_path) as many:
            code, out, errors = watch(many).ends()
            assert (code, out, errors.count("error: ")) == (1, "", 1)
            assert "hush" not in errors
            assert "Traceback" not in errors
            code, out, errors = watch(many, "--json").ends()
            assert (code, errors, objects(out)[0]["error"]) == (1, "", "log_unavailable")


def test_without_rights_or_with_a_wrong_password_it_ends_with_the_remedy(own_postgres: Server, tmp_path: Path) -> None:
    """A role that may only read cannot fence: exit 1, and what it lacks. Nothing was written. No password is shown."""
    name = own_postgres.fresh_database()
    owner = own_postgres.url(database=name)
    with bench(owner, tmp_path) as many:
        dead_worker(many, "order")
        with Log.open(owner, read_only=True) as log:
            while not log.recoverable():
                pass  # its lease runs out
        own_postgres.sql(
            "CREATE ROLE reader LOGIN PASSWORD 'hush'; GRANT USAGE ON SCHEMA intentlog TO reader", database=name
        )
        own_postgres.sql("GRANT SELECT ON ALL TABLES IN SCHEMA intentlog TO reader", database=name)
        own_postgres.sql("GRANT SELECT ON ALL SEQUENCES IN SCHEMA intentlog TO reader", database=name)
        many.place = own_postgres.url(database=name, user="reader", password="hush")
        for more in ((), OFTEN):
            code, out, errors = many.command("recover", many.place, *more).ends()
            assert (code, out) == (1, "")
            assert "the role lacks a right" in errors
            assert "\nnext: " in errors
            assert "hush" not in errors
        assert many.command("status", many.place).ends()[0] == 3  # reading is what it may
        own_postgres.sql("ALTER ROLE reader PASSWORD NULL")
        rules = own_postgres.data / "pg_hba.conf"
        rules.write_text("host all reader 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        own_postgres.configure()
        code, out, errors = watch(many).ends()
        assert (code, out) == (1, "")
        assert "the password is wrong" in errors
        assert "hush" not in errors
        assert kinds(owner, "order") == ["AttemptOpened", "Pending", "Dispatched"]


def test_a_terminal_is_shown_that_it_still_looks(postgres_url: str) -> None:
    """A heartbeat that each look replaces, for a person, and without a password. Not where there is no terminal."""
    place = postgres_url.replace("postgres@", "postgres:hush@")
    Log.open(place).close()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "intentlog", "recover", place, *OFTEN]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while shown.count(b"watching") < 3:
        shown += os.read(ours, 65536)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    os.close(ours)
    assert shown.count(b"\r\x1b[K") >= 3
    assert b"\n" not in shown
    assert b"watching postgresql://postgres@" in shown
    assert b"hush" not in shown
