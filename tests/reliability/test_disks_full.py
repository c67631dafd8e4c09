"""A disk that is really full, and files that may not grow: a file takes the room, and it is given back later.

Whatever is refused is refused by a typed error that says what to do and, truly, whether the effect ran; no process dies
of SIGBUS; with room again the log goes on, or opens, and is right.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from reliability import full_disks, oracle, trouble
from reliability.children import Child, ended, told
from reliability.conftest import Lab, by_form
from reliability.disks import Disk
from reliability.fillers import Filler
from reliability.marks import Mark, Marks

HARNESS = "full disks, file size limits"
MOMENTS = 190  # appends and upkeeps of the worker that meets them
KIB = 1024
SEED = 6


def place(disk: Disk, folder: Path) -> Path:
    """A world's folder, whose log is on the disk and whose marks are not."""
    folder.mkdir()
    (disk.folder / folder.name).mkdir()
    (folder / "log").symlink_to(disk.folder / folder.name)
    return folder


def seen(folder: Path) -> list[Mark]:
    return Marks(folder / "marks").read()


def wrong(folder: Path, *, finish: bool = True) -> list[str]:
    """What is false of the log in a folder, now that its disk is well; and what was said wrong before."""
    marks = seen(folder)
    found = [*oracle.violations(folder / "log" / "log.db", marks), *trouble.of_errors(marks)]
    rest = told(ended(trouble.run, trouble.finish, str(folder))) if finish and not found else ""
    return [*found, rest] if rest else found


def cleared(disk: Disk) -> None:
    for path in disk.folder.rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_opening_a_log_on_a_full_disk(lab: Lab, quick_folder: Path, kind: str) -> None:
    """At every fullness, by writers and readers, of logs that were closed, left by a death, or not there yet, with and
    without the -shm file: it opens, or is refused by LogUnavailable; never SIGBUS (DESIGN 9)."""
    found, states = [], 0
    with Disk(kind, quick_folder) as disk:
        for level in by_form((0, 16, 72), range(0, 640, 24), range(0, 640, 8)):
            for made in ("closed", "dead", "dead, no shm", "none"):
                about = f"{level} KiB free, {made}"
                folder = made_on(disk, quick_folder / f"{level}-{made}", made)
                filler = Filler(disk.folder)
                filler.fill(level * KIB)
                for program in (full_disks.looks, full_disks.opens):
                    end = told(ended(trouble.run, program, str(folder)))
                    states += 1
                    found += [f"{about}, {program.__name__}: {end}"] if end else []
                filler.release()
                end = told(ended(trouble.run, full_disks.opens, str(folder)))
                if end or seen(folder)[-1].kind != "opened":
                    found.append(f"{about}: with room again it does not open: {end} {seen(folder)[-1]}")
                found += [f"{about}: {one}" for one in wrong(folder, finish=False)]
                cleared(disk)
    lab.seen(states, found)


def made_on(disk: Disk, folder: Path, made: str) -> Path:
    """A world on the disk with a log that was closed or left by a death, or none."""
    place(disk, folder)
    if made == "closed":
        assert not told(ended(trouble.run, full_disks.makes_a_log, str(folder)))
    elif made != "none":
        assert ended(trouble.run, full_disks.dies_with_a_log, str(folder)).was_killed
    if made == "dead, no shm":
        (folder / "log" / "log.db-shm").unlink()
    return folder


def test_control_no_look_at_the_room(lab: Lab, quick_folder: Path) -> None:
    """Control, must fail: without the look at the room before it opens, a writer is killed by SIGBUS on ext4, where the
    -shm file can be made longer and not be filled."""
    caught = states = 0
    with Disk("ext4", quick_folder) as disk:
        for level in (8, 16, 24):
            folder = made_on(disk, quick_folder / str(level), "dead, no shm")
            (folder / "log" / "log.db.d" / "ballast").unlink()
            filler = Filler(disk.folder)
            filler.fill(level * KIB)
            caught += ended(trouble.run, full_disks.opens, str(folder), True).code == -signal.SIGBUS
            states += 1
            filler.release()
            cleared(disk)
    lab.control("no look at the room", states, caught)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
@pytest.mark.parametrize("program", [full_disks.fills_after_the_call, full_disks.fills_at_a_checkpoint])
def test_the_disk_is_full_at(lab: Lab, quick_folder: Path, kind: str, program: Callable[..., None]) -> None:
    """I5: between Dispatched and Committed, the ballast is released and the outcome recorded, and what then finds no
    room is refused; at a checkpoint, that waits. With room again the same log goes on."""
    with Disk(kind, quick_folder) as disk:
        folder = place(disk, quick_folder / "world")
        end = told(ended(trouble.run, program, str(folder), str(disk.folder)))
        lab.seen(1, [end] if end else wrong(folder))


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_the_disk_is_full_from_any_moment_on(lab: Lab, long: bool, quick_folder: Path, kind: str) -> None:
    """I1, I5, I8: full before the nth append or checkpoint, Pending, Dispatched and Committed among them, until room is
    made after some errors; then everything goes on."""
    found, states = [], 0
    chance = random.Random(SEED)
    moments = range(1, MOMENTS, 2) if long else sorted(chance.sample(range(1, MOMENTS), 4))
    with Disk(kind, quick_folder) as disk:
        for moment in moments:
            folder = place(disk, quick_folder / str(moment))
            end = told(ended(trouble.run, full_disks.fills, str(folder), str(disk.folder), moment))
            states += 1
            Filler(disk.folder).release()
            found += [f"moment {moment}: {one}" for one in ([end] if end else wrong(folder))]
            cleared(disk)
    lab.seen(states, found)


@pytest.mark.parametrize(("kind", "block_bytes"), [("ext4", 1024), ("ext4", 4096), ("tmpfs", 0)])
@pytest.mark.parametrize("snapshot", [False, True])
def test_the_disk_fills_at_random(
    lab: Lab, long: bool, quick_folder: Path, kind: str, block_bytes: int, snapshot: bool
) -> None:
    """I1 to I5: room is taken and given back at random moments under a running worker; with a reader whose snapshot
    keeps the WAL growing, past what one page of the -shm file covers, too.

    Where blocks are smaller than a page, a disk that fills between the look at its room and the mapping of the -shm
    file can end a process by SIGBUS: there it is a crash like another. Nowhere else may it happen."""
    found, states, died = [], 0, 0
    with Disk(kind, quick_folder, 40 << 20, block_bytes=block_bytes) as disk:
        for seed in range(4 if long else 1):
            chance = random.Random(seed)
            folder = place(disk, quick_folder / str(seed))
            child = Child(trouble.run, full_disks.works, str(folder), 200 if long else 40, snapshot)
            filler = Filler(disk.folder)
            while child.lives:
                for _ in range(chance.randrange(200_000)):
                    pass
                filler.fill(chance.choice((0, 0, 8, 40, 80, 300)) * KIB)
                states += 1
                for _ in range(chance.randrange(200_000)):
                    pass
                filler.release()
            end = child.end()
            died += end.code == -signal.SIGBUS
            wrongly = "" if end.code == -signal.SIGBUS and block_bytes == 1024 else told(end)
            found += [f"seed {seed}: {one}" for one in ([wrongly] if wrongly else wrong(folder, finish=False))]
            cleared(disk)
    print(f"{died} ended by SIGBUS")
    lab.seen(states, found)


def test_a_wal_outgrows_its_index(lab: Lab, long: bool, quick_folder: Path) -> None:
    """A snapshot keeps the WAL from being restarted until its index needs another page of the mapped -shm file, which a
    nearly full disk cannot give: refused in words, never SIGBUS."""
    found, states = [], 0
    for level in range(60, 200, 4) if long else (84, 100):
        with Disk("ext4", quick_folder, 40 << 20) as disk:
            folder = place(disk, quick_folder / str(level))
            end = told(ended(trouble.run, full_disks.outgrows_the_index, str(folder), str(disk.folder), level * KIB))
            states += 1
            found += [f"{level} KiB free: {one}" for one in ([end] if end else wrong(folder, finish=False))]
    lab.seen(states, found)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_files_may_not_grow(lab: Lab, long: bool, quick_folder: Path, from_the_start: bool) -> None:
    """I1, I5, I8: RLIMIT_FSIZE at many limits, from before the log is opened or while it is in use."""
    found, states = [], 0
    limits = range(4, 640, 8) if long else (20, 60, 100, 140)
    for limit in limits:
        folder = quick_folder / str(limit)
        folder.mkdir()
        end = told(ended(trouble.run, full_disks.limited, str(folder), limit * KIB, from_the_start))
        states += 1
        found += [f"{limit} KiB: {one}" for one in ([end] if end else wrong(folder))]
    lab.seen(states, found)
