"""`verify` of logs that are longer than its pages: it comes by every record, says how far it is, and misses nothing."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from intentlog import AsyncLog, Log, tool
from intentlog.cli import render
from intentlog.log import verifying
from intentlog.store import pages, whole

EFFECTS = 400  # of the long branch: three records each


@tool
def effect(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS", 50)
    monkeypatch.setattr(pages, "NEWEST_ROWS", 5)
    monkeypatch.setattr(whole, "BRANCHES_AT_ONCE", 4)
    monkeypatch.setattr(verifying, "PROGRESS_EVERY", 100)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log of one long branch and of thirty short ones, as a file."""
    path = tmp_path_factory.mktemp("verify") / "log.db"
    with Log.open(path) as log:
        with log.attempt("long") as attempt:
            for number in range(EFFECTS):
                attempt.step(f"s{number}").call(effect, number)
        for number in range(30):
            with log.attempt(f"short-{number}") as attempt:
                attempt.call(effect, number)
    connection = apsw.Connection(str(path))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    return path.read_bytes()


@pytest.fixture
def log(tmp_path: Path, made: bytes) -> Path:
    path = tmp_path / "log.db"
    path.write_bytes(made)
    return path


RECORDS = 2 + 3 * EFFECTS + 30 * 5


def verified(log: Path, progress: Callable[[int, int], object] | None = None) -> Any:
    with Log.open(log, read_only=True) as reader:
        return reader.verify(progress)


def test_every_record_is_come_by(log: Path) -> None:
    """Many pages of a branch, and many pages of branches."""
    report = verified(log)
    assert (report.problems, report.records, report.branches) == ((), RECORDS, 31)


ROW_OF = "(SELECT state FROM {table} WHERE {key} = '{value}')"
EDITS = {
    "a record of the first page": "UPDATE events SET wall_ns = wall_ns + 1 WHERE seq = 3",
    "one in the middle": "UPDATE events SET payload = CAST('7' AS BLOB) WHERE seq = 601 AND payload IS NOT NULL",
    "an unreadable one": "UPDATE events SET record = substr(record, 2) WHERE seq = 600",
    "a hole": "DELETE FROM events WHERE seq = 600",
    "a chain that does not go down": "UPDATE events SET previous_seq = 700 WHERE seq = 600",
    "a row of a long branch": "UPDATE operations SET state = "
    + ROW_OF.format(table="operations", key="step", value="s2")
    + " WHERE step = 's7'",
    "a row too many": "INSERT INTO operations "
    "SELECT branch, 's999', generation, is_listed, state, room FROM operations WHERE step = 's7'",
    "a row that is missing": "DELETE FROM operations WHERE step = 's399'",
    "a column of a long branch": "UPDATE operations SET is_listed = 1 WHERE step = 's350'",
    "every row of a long branch": "DELETE FROM operations WHERE branch = 'long'",
    "the branch's row": "UPDATE branches SET state = "
    + ROW_OF.format(table="branches", key="branch", value="short-1")
    + " WHERE branch = 'short-2'",
    "an unreadable row of a branch": "UPDATE branches SET state = CAST('x' AS BLOB) WHERE branch = 'short-2'",
    "an unreadable row of an operation": "UPDATE operations SET state = CAST('x' AS BLOB) WHERE step = 's7'",
    "a record of no chain": "INSERT INTO events "
    "SELECT (SELECT max(seq) + 1 FROM events), branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain "
    "FROM events WHERE seq = 600",
}


@pytest.mark.parametrize("edit", list(EDITS))
def test_each_edit_is_found(log: Path, edit: str) -> None:
    """Wherever it is; and what stands in other branches is still come by."""
    connection = apsw.Connection(str(log))
    connection.execute(EDITS[edit])
    assert connection.changes() > 0
    connection.close()
    report = verified(log)
    assert not report.ok
    assert report.branches == 31


def test_problems_are_counted_where_they_are_too_many(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is wrong in each of its records does not fill the memory."""
    monkeypatch.setattr(verifying, "PROBLEMS_MAX", 20)
    connection = apsw.Connection(str(log))
    connection.execute("UPDATE events SET wall_ns = wall_ns + 1")
    connection.close()
    problems = verified(log).problems
    assert len(problems) == 21
    more = int(problems[-1].text.split()[1])
    assert problems[-1].text == f"and {more} more problems"
    assert more > RECORDS - 20


def test_it_says_how_far_it_is(log: Path) -> None:
    """From none to all, rising."""
    told: list[tuple[int, int]] = []
    assert verified(log, lambda done, of: told.append((done, of))).ok
    assert told == sorted(told)
    assert (told[0], told[-1]) == ((0, RECORDS), (RECORDS, RECORDS))
    assert len(told) >= RECORDS // 100


def test_it_says_how_far_it_is_to_asyncio_too(log: Path) -> None:
    """In another thread; what it raises ends the check."""
    told: list[object] = []

    def stop(done: int, of: int) -> None:
        told.append(threading.current_thread())
        if done:
            raise KeyError(of)

    async def main() -> None:
        async with AsyncLog.open(log, read_only=True) as reader:
            with pytest.raises(KeyError):
                await reader.verify(stop)
            assert (await reader.verify()).ok

    asyncio.run(main())
    assert threading.main_thread() not in told
    assert len(told) == 2


def test_a_long_branch_that_is_written_meanwhile_is_sound(tmp_path: Path, made: bytes) -> None:
    """Read in many pages, while its records, its rows and others' change: it is as it stood at one moment."""
    path = tmp_path / "log.db"
    path.write_bytes(made)
    with Log.open(path) as log:
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.is_set():
                with log.attempt("long") as attempt:
                    attempt.step(f"new-{number}").call(effect, number)
                with log.attempt(f"new-{number}") as attempt:
                    attempt.call(effect, number)
                number += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            lengths = set()
            begun_s = time.monotonic()
            while len(lengths) < 4 and time.monotonic() - begun_s < 30:
                report = log.verify()
                assert report.ok, report.problems
                lengths.add(report.records)
        finally:
            stop.set()
            thread.join()
        assert len(lengths) == 4, "it was not written meanwhile"


def test_what_it_reads_with_is_let_go(log: Path) -> None:
    """A look that is given up in its middle holds neither the file nor a snapshot."""
    with Log.open(log) as opened:
        store: Any = opened._engine.store
        found = store.whole_branches()
        next(found).records()
        found.close()
        assert opened.verify().ok


# --- the bar of the command line --------------------------------------------------------------------------------------


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Stdout and stderr are a terminal; what is shown is read from its other end."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as shown:
        patch.setattr(render, "PATIENCE_S", 0.0)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "100")
        patch.setattr(sys, "stderr", shown)
        patch.setattr(sys, "stdout", shown)
        yield ours
    os.close(ours)


def test_a_terminal_is_shown_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is done, of how much."""
    shown, told = b"", False
    with terminal(monkeypatch) as screen, render.at_work("verifying", quietly=False) as progress:
        if progress is not None:
            told = True
            progress(250, 1_000)
        end_s = time.monotonic() + 5
        while b"250/1000" not in shown and time.monotonic() < end_s:
            with suppress(BlockingIOError):
                shown += os.read(screen, 65536)
            time.sleep(0.01)
    assert told
    assert b"verifying" in shown
    assert b"250/1000" in shown


@pytest.mark.parametrize("how", ["quietly", "stdout", "stderr"])
def test_who_is_no_person_is_shown_no_bar(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """With --json, or where one of the streams is no terminal."""
    with terminal(monkeypatch) as screen, monkeypatch.context() as patch:
        if how != "quietly":
            patch.setattr(sys, how, io.StringIO())
        with render.at_work("verifying", quietly=how == "quietly") as progress:
            time.sleep(0.1)
        with pytest.raises(BlockingIOError):
            os.read(screen, 1)
    assert progress is None
