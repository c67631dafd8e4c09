"""A WAL of which SQLite reads less than was acknowledged: told from one whose end a crash tore off, and refused."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from intentlog import Durability, Log, LogDamaged, LogUnavailable, tool
from intentlog.store import wal
from intentlog.store.locks import left_by_dead, note_of

FRAME, HEADER = 24 + 4096, 32
Damage = Callable[[bytes, int], bytes]


@tool(name="wal-effect")
def effect(number: int) -> int:
    return number


def write(path: Path, *, dies: bool) -> NoReturn:
    """The body of a child."""
    try:
        with Log.open(path) as log:
            for number in range(12):
                with log.attempt(f"order-{number}") as attempt:
                    attempt.call(effect, number)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(0)


def written(path: Path, *, dies: bool = True) -> int:
    """Twelve effects by a process that is then killed, or closes the log; how many frames its WAL has."""
    child = os.fork()
    if child == 0:
        write(path, dies=dies)
    os.waitpid(child, 0)
    content = path.with_name("log.db-wal").read_bytes()
    salts = content[16:24]
    frames = 0
    while content[HEADER + frames * FRAME + 8 : HEADER + frames * FRAME + 16] == salts:
        frames += 1
    assert frames > 60
    return frames


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def zeroed(content: bytes, place: int, size: int) -> bytes:
    return content[:place] + bytes(size) + content[place + size :]


def at(frame: int, byte: int = 24 + 50) -> int:
    return HEADER + frame * FRAME + byte


DAMAGES: dict[str, Damage] = {
    "the magic": lambda content, _: flipped(content, 0),
    "the salts": lambda content, _: flipped(content, 17),
    "the header's checksum": lambda content, _: flipped(content, 30),
    "the header is zeros": lambda content, _: zeroed(content, 0, HEADER),
    "a page": lambda content, frames: flipped(content, at(frames // 2)),
    "a frame's salts": lambda content, frames: flipped(content, at(frames // 2, 9)),
    "a frame is zeros": lambda content, frames: zeroed(content, at(frames // 2, 0), FRAME),
    "the last page": lambda content, frames: flipped(content, at(frames - 1)),
    "the end is zeros": lambda content, frames: zeroed(content, at(frames // 2, 0), at(frames // 2, 0)),
    "cut short": lambda content, frames: content[: at(frames // 2, 0)],
}


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "closed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_wal_is_not_an_older_log(quick_folder: Path, damage: Damage, dies: bool) -> None:
    """I5: SQLite stops reading at the damage and would open the log of before it; a reader and a writer refuse it."""
    path = quick_folder / "log.db"
    frames = written(path, dies=dies)
    wal = path.with_name("log.db-wal")
    wal.write_bytes(damage(wal.read_bytes(), frames))
    before = path.read_bytes(), wal.read_bytes()
    for read_only in (True, False):
        with pytest.raises(LogDamaged, match=r"log\.db-wal"):
            Log.open(path, read_only=read_only)
    assert (path.read_bytes(), wal.read_bytes()) == before, "nothing was checkpointed over what the main file has"


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_torn_last_commit_is_no_damage(quick_folder: Path, torn: int) -> None:
    """What a power cut leaves: the last commit is torn, and what was noted of it did not reach the disk."""
    path = quick_folder / "log.db"
    frames = written(path)
    wal = path.with_name("log.db-wal")
    wal.write_bytes(flipped(wal.read_bytes(), at(frames - 1 - torn)))
    for lock in quick_folder.glob("log.db.d/owner-*.lock"):
        lock.write_bytes(b"")
    with Log.open(path) as log:
        assert log.verify().ok
        assert log.unfinished(), "its close was torn off"


def test_a_wal_that_is_begun_anew_keeps_older_frames(quick_folder: Path) -> None:
    """Control: whole commits of an older generation stand behind the end, and are not taken for this one's."""
    path = quick_folder / "log.db"
    written(path)
    for _ in range(3):
        with Log.open(path) as log:
            log.append("order-1", "noted", 1)
        with Log.open(path, read_only=True) as log:
            assert log.verify().ok


def test_a_note_does_not_join_a_count_with_the_salts_of_another_generation(quick_folder: Path) -> None:
    """Between a commit and its note another process begins the WAL anew: the note names no generation then.

    With the new one's salts and the old one's count, a sound log would have been called damaged.
    """
    path = quick_folder / "log.db"
    frames = written(path, dies=False)
    with Log.open(path) as log:
        store = log._engine.store
        assert wal.salts_at(path, frames) == "", "begun anew by the opening: this frame is the older generation's"
        assert wal.salts_at(path, 1) == wal.salts_of(path) != ""
        store._frames = frames + 1  # so that it was begun anew since
        store._count_frames(None, "main", frames)  # what the last one before was told, told late
        [owner] = path.with_name("log.db.d").glob("owner-*.lock")
        assert note_of(owner)[1:] == (frames, "")
        log.append("order-1", "noted", 1, durability=Durability.IMMEDIATE)
        assert note_of(owner).salts == wal.salts_of(path)
        assert note_of(owner).frames < frames


@pytest.mark.parametrize("reads_only", [False, True], ids=["writer", "reader"])
def test_an_owner_that_made_the_wal_and_died_while_another_opens_the_log(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, reads_only: bool
) -> None:
    """A sound log is not called damaged: the WAL is looked at after what the dead noted of it, not before (I5).

    One of 900 kills at random met it: a process was killed right after it had made the WAL, while another one, which
    had seen none, was about to read the notes.
    """
    path = quick_folder / "log.db"
    written(path, dies=False)  # all of it is in the main file
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink()
    waits, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(waits, 1)
        write(path, dies=True)
    ends: list[int] = []

    def meanwhile(folder: Path) -> list[Path]:
        if not ends:
            os.write(begins, b".")
            ends.append(os.waitpid(child, 0)[1])
        return left_by_dead(folder)

    monkeypatch.setattr(wal, "left_by_dead", meanwhile)
    with Log.open(path, read_only=reads_only) as log:
        assert ends == [signal.SIGKILL]
        assert log.verify().ok
        assert sum(entry.kind == "Committed" for entry in log.tail(1_000)) == 12


def test_what_is_told_to_do_goes_on_without_those_records(quick_folder: Path) -> None:
    """The remedy that is printed is one that works."""
    path = quick_folder / "log.db"
    frames = written(path)
    wal = path.with_name("log.db-wal")
    wal.write_bytes(flipped(wal.read_bytes(), at(frames // 2)))
    with pytest.raises(LogDamaged) as caught:
        Log.open(path)
    command = caught.value.remedy.partition("who had it open: ")[2]
    assert os.system(command) == 0
    with Log.open(path) as log:
        assert log.verify().ok
        assert 0 < log.tail(1)[0].seq < 12 * 5


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "closed"])
def test_no_log_is_made_beside_the_wal_of_another(quick_folder: Path, dies: bool) -> None:
    """SQLite would play that one's pages into the new log. Nor does a reader let SQLite remove it."""
    path = quick_folder / "log.db"
    written(path, dies=dies)
    wal = path.with_name("log.db-wal")
    before = wal.read_bytes()
    for arrange in (path.unlink, path.touch):
        arrange()
        with pytest.raises((LogUnavailable, LogDamaged)):
            Log.open(path, read_only=True)
        with pytest.raises(LogDamaged, match=r"log\.db-wal"):
            Log.open(path)
        assert wal.read_bytes() == before
    shutil.rmtree(path.with_name("log.db.d"))
    with pytest.raises(LogDamaged, match="is gone, and its WAL is there"):
        Log.open(path)
    wal.unlink()
    Log.open(path).close()


def test_a_note_that_cannot_be_written_fails_no_commit(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: the commit has landed by then."""
    original = os.pwrite

    def fails(descriptor: int, content: bytes, place: int) -> int:
        if len(content) < 100:
            raise OSError(5, "Input/output error")
        return original(descriptor, content, place)

    monkeypatch.setattr(os, "pwrite", fails)
    with Log.open(quick_folder / "log.db") as log, log.attempt("order") as attempt:
        assert attempt.call(effect, 1) == 1
