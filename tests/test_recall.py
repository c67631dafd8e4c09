"""Replays are read ahead; what is held is given up as soon as anybody could have changed it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from intentlog import UNSAFE, Log, tool
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended
from intentlog.store import recall, schema
from intentlog.store.sqlite import SqliteStore

STEPS = 40


def counted(log: Log) -> list[str]:
    """Every statement that the reads of a log run from now on."""
    store: Any = log._engine.store
    said: list[str] = []
    store._reads.trace_v2(1, lambda event: said.append(event["sql"]))
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log in which forty steps of one branch are done."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        for number in range(STEPS):
            attempt.step(f"pay-{number:02}").call(pay, number)
    return tmp_path / "log.db"


CALLS: list[int] = []


@tool(effect=UNSAFE, name="recall-pay")
def pay(number: int) -> int:
    CALLS.append(number)
    return number


def test_many_steps_are_replayed_by_few_reads(path: Path) -> None:
    """Done is answered from the record (I3), and forty steps take fewer statements than steps."""
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        said = counted(log)
        for number in range(STEPS):
            outcome = attempt.step(f"pay-{number:02}").perform(pay, number)
            assert (outcome.value, outcome.replayed) == (number, True)
    assert CALLS == []
    assert sum(statement.startswith("SELECT") for statement in said) < STEPS


def test_what_this_process_renews_is_called_at_once(path: Path) -> None:
    """A decision about a step that is held: the next call of it is a new operation."""
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.step("pay-00").perform(pay, 0).replayed
        assert attempt.step("pay-07").perform(pay, 7).replayed
        log.renew("order#1/pay-07", by="ann", why="once more")
        assert not attempt.step("pay-07").perform(pay, 7).replayed
        assert attempt.step("pay-07").perform(pay, 7).replayed
        assert attempt.step("pay-08").perform(pay, 8).replayed
    assert CALLS == [7]


def test_what_another_process_renews_is_seen_when_the_look_is_old(path: Path) -> None:
    """At most five milliseconds late: the process that waited for the command is later than that."""
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.step("pay-00").perform(pay, 0).replayed
        command = [sys.executable, "-m", "intentlog", "renew", str(path), "order#1/pay-07", "--by", "ann", "--why", "x"]
        subprocess.run(command, check=True, capture_output=True)
        time.sleep(recall.AGE_MAX_NS / 1e9)
        assert not attempt.step("pay-07").perform(pay, 7).replayed
    assert CALLS == [7]


def test_other_branches_and_new_steps_are_not_what_is_held(path: Path) -> None:
    """A step of the same name elsewhere is another operation."""
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        assert attempt.step("pay-00").perform(pay, 0).replayed
        assert not attempt.step("pay-99").perform(pay, 99).replayed
        with log.attempt("other") as other:
            assert not other.step("pay-01").perform(pay, 1).replayed
        assert attempt.step("pay-01").perform(pay, 1).replayed
    assert CALLS == [99, 1]


def test_what_is_held_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps are replayed."""
    monkeypatch.setattr(recall, "HELD_MAX", 10)
    monkeypatch.setattr(recall, "AHEAD_MAX", 8)
    monkeypatch.setattr(recall, "AHEAD_FIRST", 4)
    with Log.open(path) as log, log.attempt("order") as attempt:
        store: SqliteStore = log._engine.store  # type: ignore[assignment]
        for number in range(STEPS):
            assert attempt.step(f"pay-{number:02}").call(pay, number) == number
            assert len(store._recall._operations) <= 10


def test_a_program_that_writes_between_replays_does_not_read_ahead_in_vain(path: Path) -> None:
    """What was given up unused is not read again: the window shrinks to the step that is asked for."""
    with Log.open(path) as log, log.attempt("order") as attempt:
        for number in range(0, STEPS, 10):
            attempt.step(f"pay-{number:02}").call(pay, number)
            attempt.step(f"new-{number}").call(pay, number)
        said = counted(log)
        attempt.step("pay-39").call(pay, 39)
        ahead = [statement for statement in said if "step >=" in statement]
        assert len(ahead) <= 1
        store: Any = log._engine.store
        assert len(store._recall._operations) <= 2
    assert "step >=" in schema.AHEAD


def test_a_commit_while_a_run_is_read_ahead_is_not_missed(path: Path) -> None:
    """A renewal that falls between the reading and the holding of it: the next look knows."""
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        store: Any = log._engine.store

        class Between:
            """The reading connection; after the payloads are read, somebody renews a step of the run."""

            def __getattr__(self, name: str) -> Any:
                return getattr(reads, name)

            def execute(self, statement: str, bindings: Any = None) -> Any:
                if statement == "ROLLBACK" and not renewed:
                    renewed.append(1)
                    thread = threading.Thread(target=renew)
                    thread.start()
                    thread.join()
                return reads.execute(statement, bindings)

        def renew() -> None:
            record = r.Renewed(attempt=1, step="pay-07", by="ann", why="once more", expect_seq=last_seq)
            assert isinstance(log._engine.duty.append(Append("order", record)), Appended)

        renewed: list[int] = []
        last_seq = store.view("order", "pay-07").operation.last_seq
        store._recall = recall.Recall()
        reads, store._reads = store._reads, Between()
        assert attempt.step("pay-00").perform(pay, 0).replayed
        assert renewed, "control: it fell in between"
        assert not attempt.step("pay-07").perform(pay, 7).replayed
        store._reads = reads
    assert CALLS == [7]


def test_long_values_are_not_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read when they are asked for: a run of them would fill the memory."""
    monkeypatch.setattr(recall, "PAYLOAD_BYTES_MAX", 1)  # of the values 0 to 39, those of one digit
    with Log.open(path) as log, log.attempt("order") as attempt:
        store: Any = log._engine.store
        for number in range(STEPS):
            assert attempt.step(f"pay-{number:02}").call(pay, number) == number
        assert {len(payload) for payload in store._recall._payloads.values()} == {1}


def test_what_nobody_asks_for_any_more_is_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits after the last replay are not remembered without end, and the next replay still is true."""
    monkeypatch.setattr(recall, "TOUCHED_MAX", 5)
    CALLS.clear()
    with Log.open(path) as log, log.attempt("order") as attempt:
        store: Any = log._engine.store
        assert attempt.step("pay-00").perform(pay, 0).replayed
        for number in range(10):
            attempt.step(f"new-{number}").call(pay, 100 + number)
        assert len(store._recall._touched) <= 6
        log.renew("order#1/pay-07", by="ann", why="once more")
        assert not attempt.step("pay-07").perform(pay, 7).replayed
        assert attempt.step("pay-08").perform(pay, 8).replayed
    assert [*range(100, 110), 7] == CALLS
