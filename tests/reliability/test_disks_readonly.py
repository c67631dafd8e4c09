"""File systems that are read-only from the start, or become so under a writer.

A remount is refused while a writer has the log open, so that it happens here as it does in life: by an error of the
file system (errors=remount-ro), or by its shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reliability import full_disks, oracle, trouble
from reliability.children import Child, ended, told
from reliability.conftest import Lab
from reliability.disks import Disk
from reliability.marks import Marks

HARNESS = "read-only file systems"


def place(disk: Disk, folder: Path) -> Path:
    folder.mkdir()
    (disk.folder / folder.name).mkdir()
    (folder / "log").symlink_to(disk.folder / folder.name)
    return folder


@pytest.mark.parametrize("how", ["mounted", "remounted"])
@pytest.mark.parametrize("made", ["closed", "dead"])
@pytest.mark.parametrize("shm", [True, False])
def test_a_read_only_mount(lab: Lab, quick_folder: Path, how: str, made: str, shm: bool) -> None:
    """A log, closed or left by a death, on a file system that is mounted read-only: for writing it is refused; for
    reading it is shown whole where the -shm file is there, else refused in words. Writable again, it goes on."""
    with Disk("ext4", quick_folder) as disk:
        folder = place(disk, quick_folder / "world")
        end = ended(
            trouble.run, full_disks.makes_a_log if made == "closed" else full_disks.dies_with_a_log, str(folder)
        )
        assert end.was_killed == (made == "dead")
        if not shm:
            (folder / "log" / "log.db-shm").unlink()
        if how == "mounted":
            disk.mount_anew("ro")
        else:
            assert not disk.remount("ro")
        found = [told(ended(trouble.run, program, str(folder))) for program in (full_disks.opens, full_disks.looks)]
        kinds = [(m.kind, m.words[0] if m.kind == "told" else "") for m in Marks(folder / "marks").read()][-2:]
        if kinds[0] != ("told", "LogUnavailable"):
            found.append(f"for writing: {kinds[0]}")
        if kinds[1] != (("looked", "") if shm else ("told", "LogUnavailable")):
            found.append(f"for reading: {kinds[1]} {Marks(folder / 'marks').read()[-1]}")
        disk.mount_anew("rw")
        marks = Marks(folder / "marks").read()
        found += [*oracle.violations(folder / "log" / "log.db", marks), *trouble.of_errors(marks)]
        found.append(told(ended(trouble.run, trouble.finish, str(folder))))
        lab.seen(2, [one for one in found if one])


def test_control_a_remount_under_a_writer_is_refused(lab: Lab, quick_folder: Path) -> None:
    """What the tests below stand on: a writer keeps the file system from being made read-only in an orderly way."""
    with Disk("ext4", quick_folder) as disk:
        folder = place(disk, quick_folder / "world")
        with oracle.quick_open(folder / "log" / "log.db"):
            refused = disk.remount("ro")
        lab.control("remount under a writer", 1, int("busy" in refused))


@pytest.mark.parametrize("way", [Disk.break_down, Disk.cut_power], ids=["error", "shutdown"])
def test_read_only_under_a_writer(lab: Lab, long: bool, quick_folder: Path, way: Callable[[Disk], None]) -> None:
    """I1, I5, I8: the file system becomes read-only, or is gone, at some moment of a worker's life: what leaves the
    library is typed and tells the truth of its effect; a reader is answered or refused; on the mended disk the log is
    right. A page of the -shm file that the file system cannot give any more is a SIGBUS: a crash like another.

    The library has its WAL grown ahead, as it is set: of what a file was last made longer by, ext4 acknowledges a sync
    that did not happen (the test below)."""
    found, states, died = [], 0, 0
    with Disk("ext4", quick_folder, options="errors=remount-ro") as disk:
        for after in range(5, 450, 5) if long else (30, 150, 290):
            folder = place(disk, quick_folder / str(after))
            marks = folder / "marks"
            child = Child(trouble.run, full_disks.outlasts, str(folder))
            while child.lives and (not marks.exists() or marks.read_bytes().count(b"\n") < after):
                pass
            way(disk)
            end = child.end()
            died += end.code < 0
            states += 1
            found += [f"after {after} marks: {end.raised}"] if end.raised else []
            foreign = told(ended(trouble.run, full_disks.looks_at_any, str(folder)))
            found += [f"after {after} marks, a reader: {foreign}"] if foreign else []
            disk.mount_anew()
            seen = Marks(marks).read()
            wrong = [*oracle.violations(folder / "log" / "log.db", seen), *trouble.of_errors(seen)]
            wrong = wrong or [told(ended(trouble.run, trouble.finish, str(folder)))]
            found += [f"after {after} marks: {one}" for one in wrong if one]
    print(f"{died} of {states} ended by SIGBUS")
    lab.seen(states, found)


@pytest.mark.parametrize("way", [Disk.break_down, Disk.cut_power], ids=["error", "shutdown"])
def test_what_was_synced_into_a_grown_file_outlasts_ext4(
    lab: Lab, long: bool, quick_folder: Path, way: Callable[[Disk], None]
) -> None:
    """What the WAL is grown ahead for, without the library: of a file that is long enough nothing that was synced is
    lost when ext4 breaks down, or is cut off. Of one that grows, the last sync may be, if it was under way then and the
    process lives on to be told that it succeeded; how often that was is printed."""
    rounds = 40 if long else 4
    lost = {1024 * full_disks.BLOCK: 0, 0: 0}
    with Disk("ext4", quick_folder, size_bytes=32 << 20, options="errors=remount-ro") as disk:
        for number in range(rounds * 2):
            size, path, told_path = [*lost][number % 2], disk.folder / "file", quick_folder / f"told-{number}"
            child = Child(full_disks.appends, str(path), str(told_path), size)
            while child.lives and not (told_path.exists() and told_path.stat().st_size > 5 + number):
                pass
            way(disk)
            assert not told(child.end())
            disk.mount_anew()
            content = path.read_bytes()
            synced = range(told_path.stat().st_size)
            lost[size] += any(
                content[n * full_disks.BLOCK : (n + 1) * full_disks.BLOCK] != full_disks.block(n) for n in synced
            )
            path.unlink()
    print(f"of files that grow, {lost[0]} of {rounds} lost what was synced last")
    lab.seen(rounds, ["a grown file lost what was synced"] * lost[1024 * full_disks.BLOCK])
