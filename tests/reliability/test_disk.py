"""The model of the disk, held against traces made by hand whose states are known."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from reliability.cuts import COMPLETE, cuts, variants
from reliability.disk import (
    LENGTH_ONLY,
    PAGE,
    ROOT,
    SECTOR,
    Cut,
    Disk,
    FailedSync,
    File,
    Make,
    Note,
    Operation,
    Piece,
    Rename,
    Sync,
    Truncate,
    Unlink,
    Write,
)
from reliability.power_cut import marks_of, noted_in, states_of

A, B, FOLDER = 1, 2, 3
A_IS_THERE = (Make(ROOT, "a", A), Sync(ROOT))


def disk_of(*trace: Operation) -> Disk:
    disk = Disk()
    for operation in trace:
        disk.apply(operation)
    return disk


def contents(trace: Sequence[Operation]) -> set[tuple[tuple[str, bytes | None], ...]]:
    """Every state that is looked at, written out."""
    states, _ = states_of(trace, 0, effort=20)
    return {
        tuple(sorted((path, file and file[0].content(file[1])) for path, file in state.left.items()))
        for state in states
    }


def a(content: bytes) -> tuple[tuple[str, bytes], ...]:
    return (("a", content),)


def test_what_is_synced_stays() -> None:
    """A crash after a sync leaves one state, and what is seen after it is held against that one alone."""
    trace = [*A_IS_THERE, Write(A, 0, b"x"), Sync(A), Note("ack\t1")]
    assert contents(trace) == {(), a(b""), a(b"\0"), a(b"x")}
    states, _ = states_of(trace, 0, effort=0)
    assert sorted(len(marks_of(noted_in(trace), state)) for state in states if state.left) == [0, 0, 1]
    assert disk_of(*A_IS_THERE, Write(A, 0, b"x"), Sync(A)).files[A] == File(b"x")


def test_any_subset_of_writes_can_be_left() -> None:
    """Two writes that are not synced: none, each, both; a hole is zeros."""
    trace = [*A_IS_THERE, Write(A, 0, b"x"), Write(A, 1, b"y")]
    assert contents(trace) >= {a(b""), a(b"x"), a(b"\0y"), a(b"xy")}
    assert contents(trace) <= {(), a(b""), a(b"x"), a(b"\0y"), a(b"xy"), a(b"\0"), a(b"\0\0"), a(b"x\0")}


def test_a_later_write_may_be_left_without_an_earlier_one_over_it() -> None:
    """Writes of one place: the disk has the old, the first or the second."""
    trace = [*A_IS_THERE, Write(A, 0, b"0"), Sync(A), Write(A, 0, b"1"), Write(A, 0, b"2")]
    assert contents(trace) - {(), a(b""), a(b"\0")} == {a(b"0"), a(b"1"), a(b"2")}


def test_a_write_is_torn_between_sectors_and_never_inside_one() -> None:
    """Two sectors from the middle of one on: three are touched, each is new or old as a whole."""
    old, new = bytes(4 * SECTOR), b"n" * (2 * SECTOR)
    file = File(old, (Piece(0, Write(A, 100, new)),))
    bits = (1, 2, 4, 3, 6, 7)
    left = {file.content([each]) for each in bits}
    assert len(left) == len(bits)
    assert file.content([1]) == bytes(100) + b"n" * (SECTOR - 100) + bytes(3 * SECTOR)
    assert file.content([4]) == bytes(2 * SECTOR) + b"n" * 100 + bytes(2 * SECTOR - 100)
    assert file.content([7]) == bytes(100) + new + bytes(2 * SECTOR - 100)
    assert {kept for (kept,) in variants(file, Random(0), effort=0)} >= {0, 1, 3, 4, 6, 7}


def test_a_growing_file_may_have_its_length_without_its_data() -> None:
    """The length is kept, the data is not: zeros."""
    file = File(b"old", (Piece(0, Write(A, 3, b"new")),))
    assert file.content([LENGTH_ONLY]) == b"old\0\0\0"
    assert (LENGTH_ONLY,) in set(variants(file, Random(0), effort=0))


def test_a_truncation_is_lost_or_kept_like_a_write() -> None:
    """Shorter, longer, and a write after it."""
    trace = [*A_IS_THERE, Write(A, 0, b"abc"), Sync(A), Truncate(A, 1), Write(A, 1, b"X")]
    assert contents(trace) - {(), a(b""), a(b"\0\0\0")} >= {a(b"abc"), a(b"a"), a(b"aXc"), a(b"aX")}
    assert File(b"ab", (Piece(0, Truncate(A, 4)),)).content([1]) == b"ab\0\0"


def test_names_are_lost_from_the_last_one_on() -> None:
    """Creations and an unlink in one folder: a tail of them is lost, whatever of the files is synced."""
    trace = [Make(ROOT, "a", A), Make(ROOT, "b", B), Sync(A), Unlink(ROOT, "a")]
    assert {tuple(sorted(disk_of(*trace).paths({ROOT: kept})[0])) for kept in range(4)} == {
        (),
        ("a",),
        ("a", "b"),
        ("b",),
    }
    assert contents(trace) == {(), a(b""), (("a", b""), ("b", b"")), (("b", b""),)}


def test_a_sync_of_a_file_does_not_keep_its_name() -> None:
    """As POSIX has it."""
    assert () in contents([Make(ROOT, "a", A), Write(A, 0, b"x"), Sync(A)])


def test_a_rename_over_a_name_leaves_the_old_or_the_new() -> None:
    """Never neither."""
    trace = [*A_IS_THERE, Make(ROOT, "b", B), Write(B, 0, b"new"), Sync(B), Sync(ROOT), Rename(ROOT, "b", ROOT, "a")]
    disk = disk_of(*trace)
    assert disk.paths({ROOT: 0})[0] == {"a": A, "b": B}
    assert disk.paths({ROOT: 1})[0] == {"a": B}


def test_a_rename_between_folders_is_in_both_or_in_neither() -> None:
    """What the target's sync makes durable includes what came before the rename in the other folder, and no more."""
    trace = (
        Make(ROOT, "f", FOLDER, is_folder=True),
        Make(FOLDER, "draft", A),
        Rename(FOLDER, "draft", ROOT, "log"),
        Make(FOLDER, "later", B),
    )
    disk = disk_of(*trace)
    assert disk.paths({FOLDER: 1})[0] == {"f": None, "f/draft": A}  # lost in one: lost in the other
    assert disk.paths({ROOT: 1})[0] == {"f": None, "f/draft": A}  # and with it what came after it there
    assert disk.paths({FOLDER: 2})[0] == {"f": None, "log": A}
    disk.apply(Sync(ROOT))
    assert disk.paths({FOLDER: 0})[0] == {"f": None, "log": A}
    assert disk.everything() == {"f": None, "log": A, "f/later": B}


def test_a_folder_that_is_lost_takes_what_is_in_it_along() -> None:
    """Its own names may be durable: nobody finds them."""
    disk = disk_of(Make(ROOT, "f", FOLDER, is_folder=True), Make(FOLDER, "a", A), Sync(FOLDER))
    assert disk.paths({ROOT: 0})[0] == {}


def test_a_failed_sync_leaves_pages_that_later_syncs_do_not_write() -> None:
    """The write that failed may be missing after a sync that succeeded, and what came after it be there: a hole."""
    page = b"f" * PAGE
    trace = [*A_IS_THERE, Write(A, 0, page), FailedSync(A), Write(A, PAGE, b"next"), Sync(A), Note("ack")]
    left = contents(trace)
    assert a(bytes(PAGE) + b"next") in left
    assert a(page + b"next") in left
    assert disk_of(*trace).files[A].cached == page + b"next"


def test_a_page_that_is_written_once_more_is_whole_after_the_next_sync() -> None:
    """The cache's page goes to the disk, with what the failed sync left in it; its neighbours stay as they are."""
    failed = b"f" * (2 * PAGE)
    trace = [*A_IS_THERE, Write(A, 0, failed), FailedSync(A), Write(A, 10, b"again"), Sync(A)]
    file = disk_of(*trace).files[A]
    assert file.content(file.nothing) == b"f" * 10 + b"again" + b"f" * (PAGE - 15) + bytes(PAGE)
    assert [piece.what for piece in file.pieces] == [Write(A, PAGE, b"f" * PAGE)]


def test_up_to_a_number_of_pieces_every_subset_is_looked_at() -> None:
    """And beyond it every prefix, each one alone, each one lost."""
    pieces = tuple(Piece(at, Write(A, at, b"x")) for at in range(COMPLETE + 3))
    few = set(variants(File(bytes(99), pieces[:COMPLETE]), Random(0), effort=0))
    assert len(few) == 2**COMPLETE
    many = set(variants(File(bytes(99), pieces), Random(0), effort=0))
    assert many >= {(1,) * kept + (0,) * (len(pieces) - kept) for kept in range(len(pieces) + 1)}
    assert many >= {tuple(int(at == alone) for at in range(len(pieces))) for alone in range(len(pieces))}
    assert many >= {tuple(int(at != lost) for at in range(len(pieces))) for lost in range(len(pieces))}


def test_two_files_are_varied_against_each_other() -> None:
    """One in full while the other is all there and all lost; both by chance."""
    disk = disk_of(Make(ROOT, "a", A), Make(ROOT, "b", B), Sync(ROOT), Write(A, 0, b"x"), Write(B, 0, b"y"))
    seen = {
        (disk.files[A].content(cut.files.get(A, (1,))), disk.files[B].content(cut.files.get(B, (1,))))
        for cut in cuts(disk, A, Random(0), effort=20)
    }
    assert seen >= {(x, y) for x in (b"", b"x") for y in (b"", b"y")}
    assert Cut({}, {}) not in list(cuts(disk, A, Random(0), effort=0))


@pytest.mark.parametrize(
    ("content", "held"), [(b"", ["ack"]), (b"x", ["try 1", "ack"]), (b"xy", ["try 1", "try 2", "ack"])]
)
def test_a_state_is_held_against_all_that_was_seen_while_a_crash_could_leave_it(
    content: bytes, held: list[str]
) -> None:
    """What it may contain was tried by its first moment; what it must contain was acknowledged by its last."""
    trace = [*A_IS_THERE, Note("try\t1"), Write(A, 0, b"x"), Note("try\t2"), Write(A, 1, b"y"), Note("ack")]
    states, _ = states_of(trace, 0, effort=0)
    (state,) = [one for one in states if (file := one.left.get("a")) and file[0].content(file[1]) == content]
    assert [" ".join((mark.kind, *mark.words)) for mark in marks_of(noted_in(trace), state)] == held
