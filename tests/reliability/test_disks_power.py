"""Power cuts on real file systems: the disk is cut off under a running worker, mounted anew, and looked at.

Random cuts find less than the replay of every crash state does; here the file system's own recovery is under test with
the log's, on a real block device.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from reliability import oracle, trouble
from reliability.children import Child, ended, told
from reliability.conftest import Lab
from reliability.disks import Disk
from reliability.marks import Mark, Marks

HARNESS = "file systems cut off (ioctl)"
LINES = 700  # of marks, that a whole life writes


def cut(disk: Disk, folder: Path, chance: random.Random, synchronous: str) -> str:
    """Let a worker live on the disk and cut the power after a random mark. What was wrong of how it ended.

    Who has no power does nothing more, but the worker lives on, and ext4 may tell it that a sync succeeded which was
    under way at the cut (test_disks_readonly.py): of its marks since then only what it tried counts.
    """
    marks = folder / "marks"
    after = chance.randrange(LINES) + lines(marks)
    child = Child(trouble.run, trouble.live, str(folder), synchronous)
    while child.lives and lines(marks) < after:
        pass
    for _ in range(chance.randrange(2_000)):  # at any moment between two marks
        pass
    before = lines(marks)
    disk.cut_power()
    end = child.end()
    disk.mount_anew()
    if marks.exists():
        kept = marks.read_bytes().splitlines(keepends=True)
        marks.write_bytes(b"".join([*kept[:before], *(line for line in kept[before:] if line.startswith(b"try\t"))]))
    # A page of the -shm that the dead file system cannot give is a SIGBUS: no worse than the cut itself.
    return end.raised


def lines(marks: Path) -> int:
    return marks.read_bytes().count(b"\n") if marks.exists() else 0


def lives(disk: Disk, folder: Path, seed: int, synchronous: str = "FULL") -> tuple[int, list[str]]:
    """Cut a worker off, and the one after it, which recovers. The cuts, and what was false after each."""
    chance = random.Random(seed)
    folder.mkdir()
    on_disk = disk.folder / folder.name
    on_disk.mkdir()
    (folder / "log").symlink_to(on_disk)
    found: list[str] = []
    cuts = 0
    for again in (False, True):
        foreign = cut(disk, folder, chance, synchronous)
        cuts += 1
        found += [f"seed {seed}, cut {cuts}: {foreign}"] if foreign else []
        if not on_disk.exists():  # its name was not durable, for nothing in it was
            on_disk.mkdir()
        if again or synchronous != "FULL":
            marks = seen(folder)
            found += [f"seed {seed}, cut {cuts}: {one}" for one in oracle.violations(on_disk / "log.db", marks)]
            found += [f"seed {seed}, cut {cuts}: {one}" for one in trouble.of_errors(marks)]
        if found:
            return cuts, found
    rest = told(ended(trouble.run, trouble.finish, str(folder)))
    return cuts, [f"seed {seed}, at the end: {rest}"] if rest else []


def seen(folder: Path) -> list[Mark]:
    return Marks(folder / "marks").read()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_disk_that_is_cut_off(lab: Lab, long: bool, quick_folder: Path, kind: str) -> None:
    """I1 to I5: power cut at random moments of a worker's life, and of its recovery; every acknowledged record is
    there, nothing is invented, "never sent" is said of no effect whose call began."""
    cuts, found = 0, []
    with Disk(kind, quick_folder, 64 << 20) as disk:
        for seed in range(40 if long else 4):
            done, wrong = lives(disk, quick_folder / f"life-{seed}", seed)
            cuts += done
            found += wrong
    lab.seen(cuts, found)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_control_without_syncs(lab: Lab, long: bool, quick_folder: Path, kind: str) -> None:
    """Control, must fail: synchronous=OFF loses what was acknowledged."""
    caught = cuts = 0
    with Disk(kind, quick_folder, 64 << 20) as disk:
        for seed in range(20 if long else 3):
            done, wrong = lives(disk, quick_folder / f"life-{seed}", seed, "OFF")
            cuts += done
            caught += bool(wrong)
    lab.control(f"synchronous=OFF on {kind}", cuts, caught)


def test_normal_damages_nothing(lab: Lab, long: bool, quick_folder: Path) -> None:
    """synchronous=NORMAL may lose what was acknowledged, which random cuts seldom find; what is there is sound."""
    if not long:
        pytest.skip("in the long form only: random cuts hardly find synchronous=NORMAL, the replay of states does")
    cuts, damage, lossy = 0, [], 0
    with Disk("ext4", quick_folder, 64 << 20) as disk:
        for seed in range(40):
            done, wrong = lives(disk, quick_folder / f"life-{seed}", seed, "NORMAL")
            cuts += done
            lossy += bool(wrong)
            damage += [one for one in wrong if "verify" in one or "does not open" in one]
    print(f"synchronous=NORMAL: {lossy} of 40 lives lost something")
    lab.seen(cuts, damage)
