"""Whoever opens the files of an open log in the same process drops SQLite's locks: refused, and nothing is lost (I5).

Two processes write to one log, and one of them does beside it what programs do: reads the log with the standard
library's `sqlite3` (a second SQLite), copies it, hashes its -shm. The control takes the refusal away.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from reliability import forked
from reliability.conftest import Lab
from reliability.marks import Marks, mark_appends
from reliability.oracle import quick_open, violations

from intentlog import Durability, IntentLogError, Log, LogInUse
from intentlog.store import sole_access

HARNESS = "files opened beside the log"
RECORDS, OPENINGS = 40, 3  # of each of the two writers


def with_sqlite3(path: Path) -> None:
    other = sqlite3.connect(path, timeout=0.01)
    try:
        other.execute("SELECT count(*) FROM events").fetchall()
    finally:
        other.close()


def with_sqlite3_by_uri(path: Path) -> None:
    sqlite3.connect(f"file:{path}?mode=ro", uri=True).close()


def with_a_hash_of_shm(path: Path) -> None:
    with path.with_name(path.name + "-shm").open("rb") as file:
        hashlib.file_digest(file, "sha256")


def with_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))


def with_a_copied_folder(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.parent / "copies", dirs_exist_ok=True)


def with_a_descriptor(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


WAYS: list[Callable[[Path], None]] = [
    with_sqlite3,
    with_sqlite3_by_uri,
    with_a_hash_of_shm,
    with_a_copy,
    with_a_copied_folder,
    with_a_descriptor,
]


def take_the_guard_away() -> None:
    """The control: the hook looks at nothing. In a child, for it cannot be put back."""
    sole_access._on_event.__code__ = (lambda event, arguments: None).__code__


def write(folder: Path, name: str, beside: Callable[[Path], None] | None, *, guarded: bool) -> None:
    """Append and be acknowledged, opening the log several times; and do something to its files all the while."""
    if not guarded:
        take_the_guard_away()
    path = folder / "log" / "log.db"
    mark_appends(Marks(folder / "marks"))
    over = threading.Event()
    # What the control breaks may be found broken by the library; what was acknowledged is counted all the same.
    spared = () if guarded else (IntentLogError,)

    def disturb() -> None:
        while beside and not over.wait(0.0005):
            with suppress(IntentLogError, sqlite3.Error, OSError):
                beside(path)

    for _ in range(OPENINGS):
        with suppress(*spared), quick_open(path) as log:
            disturber = threading.Thread(target=disturb)
            disturber.start()
            try:
                for number in range(RECORDS):
                    log.append(name, "noted", {"n": number}, durability=Durability.IMMEDIATE)
            finally:
                over.set()
                disturber.join()
                over.clear()


def one_round(folder: Path, beside: Callable[[Path], None], *, guarded: bool) -> list[str]:
    """What is false of a log after two processes wrote to it, one of which was disturbed."""
    (folder / "log").mkdir(parents=True)
    path = folder / "log" / "log.db"
    forked.run(lambda: quick_open(path).close())
    with (
        forked.running(lambda: write(folder, "one", beside, guarded=guarded)) as one,
        forked.running(lambda: write(folder, "two", None, guarded=guarded)) as two,
    ):
        ends = [one.ends(), two.ends()]
    wrong = [f"{beside.__name__}: {ended}" for ended in ends if ended != (0, "")]
    found: list[str] = []

    def judge() -> None:
        found[:] = violations(path, Marks(folder / "marks").read())
        (folder / "found").write_text("\n".join(found))

    judged = forked.run(judge)  # a file that lost its locks can kill its reader
    assert judged.code in (0, -signal.SIGBUS, -signal.SIGSEGV), judged
    text = (folder / "found").read_text() if judged.code == 0 else "it cannot be read"
    return wrong + [f"{beside.__name__}: {line}" for line in text.splitlines()]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_lost_beside_what_opens_its_files(
    lab: Lab, long: bool, quick_folder: Path, way: Callable[[Path], None]
) -> None:
    """I5: two writers, one disturbed: each acknowledged record is there, `verify` is clean, and no process died."""
    rounds = 20 if long else 2
    lab.seen(rounds, [one for n in range(rounds) for one in one_round(quick_folder / str(n), way, guarded=True)])


@pytest.mark.parametrize("way", [with_sqlite3, with_a_hash_of_shm], ids=lambda way: way.__name__)
def test_control_without_the_refusal(lab: Lab, quick_folder: Path, way: Callable[[Path], None]) -> None:
    """Records are lost, the file is damaged, or a process dies of SIGBUS."""
    for number in range(40):
        if one_round(quick_folder / str(number), way, guarded=False):
            lab.control(f"no refusal, {way.__name__}", number + 1, 1)
            return
    lab.control(f"no refusal, {way.__name__}", 40, 0)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_it_is_refused_while_the_log_is_open(quick_folder: Path, way: Callable[[Path], None], read_only: bool) -> None:
    """LogInUse, from whatever opens it; another file, and the log once it is closed, are anybody's."""
    (quick_folder / "log").mkdir()
    path = quick_folder / "log" / "log.db"
    Log.open(path).close()
    with Log.open(path, read_only=read_only), pytest.raises(LogInUse, match="refused"):
        way(path)
    (quick_folder / "log" / "other").touch()
    with Log.open(path, read_only=read_only):
        (quick_folder / "log" / "other").read_bytes()
    with_a_descriptor(path)


def test_a_log_whose_file_is_open_already_is_not_opened(quick_folder: Path) -> None:
    """Closing it later would drop the locks; a connection of the same SQLite takes care of them."""
    path = quick_folder / "log.db"
    Log.open(path).close()
    with path.open("rb"), pytest.raises(LogInUse, match="close it first"):
        Log.open(path)
    connection = apsw.Connection(str(path))
    connection.execute("SELECT * FROM meta").fetchall()
    Log.open(path).close()
    connection.close()


def test_a_log_that_was_lost_is_anybodys_again(quick_folder: Path) -> None:
    """Nobody closed it and nothing holds it any more."""
    path = quick_folder / "log.db"
    lost: Any = Log.open(path)
    del lost
    gc.collect()
    with_a_descriptor(path)


def test_a_child_may_read_what_its_parent_has_open(quick_folder: Path) -> None:
    """A forked child has none of its parent's locks and can drop none: a copy by a child is no harm."""
    path = quick_folder / "log.db"
    with Log.open(path) as log:
        forked.Child(with_a_copy, path).ends_well()
        log.append("order", "noted", {}, durability=Durability.IMMEDIATE)
        assert log.verify().ok
