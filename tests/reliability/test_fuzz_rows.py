"""Edits of a log through SQL, the chain not fixed up: `verify` calls none sound, and nothing ends in a traceback.

Cells of every table and column are changed, rows deleted, doubled, swapped, moved to another branch or place, tables,
indexes and triggers changed. What `verify` may call sound is a log whose records and folded rows say what they said:
the room behind a row and the count of upkeeps say nothing.

What `verify` cannot see (DESIGN 9) is in `test_a_branch_that_was_removed_whole_is_not_seen`: the newest branch of a
log, removed with its row and its records. Somebody who computes the (unkeyed) chain anew, and folds the rows anew, is
out of scope: the chain shows damage, not an author.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from hypothesis import strategies as st
from reliability import fuzzing, looking
from reliability.conftest import Lab
from reliability.looking import Content
from reliability.watched import Watched

HARNESS = "fuzz: edits through SQL"
BRANCHES = ("KEYED-returned", "UNSAFE-returned", "IDEMPOTENT-new")
COLUMNS = {
    "events": ("seq", "branch", "previous_seq", "wall_ns", "boot_id", "boot_ns", "record", "payload", "chain"),
    "branches": ("branch", "unfinished", "state"),
    "operations": ("branch", "step", "generation", "is_listed", "state", "room"),
    "meta": ("key", "value"),
}
CELLS = [(table, column) for table, columns in COLUMNS.items() for column in columns]
ROW_OF = {
    "events": "rowid",
    "branches": "branch",
    "operations": "branch || char(0) || step || char(0) || generation",
    "meta": "key",
}
OF_TABLES = (
    "DROP INDEX unfinished_branches",
    "DROP INDEX listed_operations",
    "DROP TABLE operations",
    "DROP TABLE branches",
    "DROP TABLE meta",
    "ALTER TABLE events RENAME COLUMN wall_ns TO wall",
    "CREATE TRIGGER extra AFTER INSERT ON events BEGIN DELETE FROM events WHERE seq = new.seq; END",
    "CREATE TABLE extra (a)",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 7",
    "PRAGMA application_id = 1",
)


class Edit(NamedTuple):
    """One edit. Rows are chosen as fractions of their table, in thousandths."""

    how: str
    cell: tuple[str, str]
    row: int
    other: int
    value: Any


values = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-2, 40),
    st.binary(max_size=24),
    st.text(max_size=12),
    st.floats(allow_nan=False),
    st.sampled_from(["more", "less", "flip", "cut", "longer"]).map(lambda word: ("of the cell", word)),
)
HOW = ("set", "set", "set", "copy", "swap", "delete", "double", "delete some", "of a table")
edits = st.lists(
    st.builds(
        Edit,
        st.sampled_from(HOW),
        st.sampled_from(CELLS),
        st.integers(0, 999),
        st.integers(0, 999),
        values,
    ),
    min_size=1,
    max_size=3,
)


def apply(connection: apsw.Connection, edit: Edit) -> None:
    """Make one edit, as far as the tables take it."""
    table, column = edit.cell
    keys = [key for (key,) in connection.execute(f"SELECT {ROW_OF[table]} FROM {table} ORDER BY 1")]
    if not keys:
        return
    one, other = (keys[len(keys) * place // 1_000] for place in (edit.row, edit.other))
    where = f"WHERE {ROW_OF[table]} = ?"
    match edit.how:
        case "set":
            value = edit.value
            if isinstance(value, tuple):
                value = changed(connection.execute(f"SELECT {column} FROM {table} {where}", (one,)).get, value[1])
            connection.execute(f"UPDATE {table} SET {column} = ? {where}", (value, one))
        case "copy":
            connection.execute(
                f"UPDATE {table} SET {column} = (SELECT {column} FROM {table} {where}) {where}", (other, one)
            )
        case "swap":
            mine, its = (
                connection.execute(f"SELECT * FROM {table} {where}", (key,)).fetchall()[0] for key in (one, other)
            )
            mine, its = list(mine), list(its)
            first = {"events": 1, "branches": 1, "operations": 3, "meta": 1}[table]
            if COLUMNS[table].index(column) >= first:  # all but the key, or with the key this cell alone
                mine[first:], its[first:] = its[first:], mine[first:]
            for row in (mine, its):
                connection.execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        case "delete":
            connection.execute(f"DELETE FROM {table} {where}", (one,))
        case "double":
            row = list(connection.execute(f"SELECT * FROM {table} {where}", (one,)).fetchall()[0])
            row[0] = max(keys) + 1 if table == "events" else f"{row[0]}-again"
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        case "delete some":
            connection.execute(f"DELETE FROM {table} WHERE {column} = (SELECT {column} FROM {table} {where})", (one,))
        case _:
            connection.execute(OF_TABLES[edit.row % len(OF_TABLES)])


def changed(cell: Any, word: str) -> Any:
    """A cell's value, a little other."""
    match cell:
        case int():
            return cell + (1 if word in ("more", "longer") else -1)
        case bytes() if cell:
            edges = {"cut": cell[:-1], "longer": cell + b"\0"}
            return edges.get(word, bytes([cell[0] ^ 1]) + cell[1:])
        case str() if cell:
            edges = {"cut": cell[:-1], "longer": cell + " "}
            middle = len(cell) // 2
            return edges.get(word, cell[:middle] + chr(ord(cell[middle]) ^ 1) + cell[middle + 1 :])
        case _:
            return word


class Original(NamedTuple):
    """A closed log, all of it in its main file, and what it says."""

    file: bytes
    content: Content


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))
    with Watched() as watched:
        assert not watched.run(looking.made_by, looking.live_and_close, str(folder)).wrong
        came = watched.run(looking.read_content, str(folder))
        assert not came.wrong
    path = folder / "log" / "log.db"
    connection = apsw.Connection(str(path))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    yield Original(path.read_bytes(), came.value)
    shutil.rmtree(folder)


class Judge:
    """Says what is wrong with a list of edits.

    Args:
        folder: where the edited logs are put, one after the other.
        watched: looks at them.
        original: what is edited.
    """

    def __init__(self, folder: Path, watched: Watched, original: Original) -> None:
        self._folder = folder
        self._watched = watched
        self._original = original

    def __call__(self, found: list[Edit]) -> list[str]:
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            (place / "log").mkdir(mode=0o700)
            path = place / "log" / "log.db"
            path.write_bytes(self._original.file)
            path.chmod(0o600)
            connection = apsw.Connection(str(path))
            for edit in found:
                with suppress(apsw.Error):  # the tables do not take it
                    apply(connection, edit)
            connection.close()
            came = self._watched.run(looking.look, str(place), BRANCHES, ("verify",) if found[0].row % 4 == 0 else ())
        finally:
            shutil.rmtree(place)
        if came.wrong:
            return [f"the process {came.wrong}"]
        wrong = list(came.value.wrong)
        original = self._original.content
        for who, content in came.value.accepted.items():
            # What a writer went on with may have mended rows: never records.
            is_later = who == "later reader"
            if not set(original.records) <= set(content.records) or (content != original and not is_later):
                wrong.append(f"verify of the {who} is content")
        return wrong


def test_fuzz_edited_rows(lab: Lab, original: Original, quick_folder: Path) -> None:
    """DESIGN 9, I5, I6, I9: whatever is edited, `verify` does not call it sound, and nothing ends in a traceback."""
    with Watched(looking.warm) as watched:
        judge = Judge(quick_folder, watched, original)
        fuzzing.hold(lab, edits, judge, fuzzing.examples(40, 200), selects="test_fuzz_edited_rows")


def test_each_cell_of_each_table(lab: Lab, original: Original, quick_folder: Path) -> None:
    """DESIGN 9: each column of each table, in a row of its beginning, its middle and its end."""
    wrong = []
    cells = [(cell, row) for cell in CELLS for row in ((500,) if not fuzzing.LONG else (0, 300, 500, 700, 999))]
    with Watched(looking.warm) as watched:
        judge = Judge(quick_folder, watched, original)
        for cell, row in cells:
            found = [Edit("set", cell, row, 0, ("of the cell", "flip"))]
            wrong += [f"{found}: {one}" for one in judge(found)]
    lab.seen(len(cells), wrong)


def test_control_fuzz_edited_rows(lab: Lab, original: Original, quick_folder: Path) -> None:
    """CONTROL: with the chain left out of `verify` the same search finds what it lets pass."""
    chosen = edits.filter(lambda found: {edit.cell[0] for edit in found} == {"events"})
    with Watched(looking.without_chain) as watched:
        judge = Judge(quick_folder, watched, original)
        fuzzing.caught(
            lab, "verify without the chain", chosen, lambda f: [one for one in judge(f) if "is content" in one], 200
        )


def test_a_branch_that_was_removed_whole_is_not_seen(lab: Lab, original: Original, quick_folder: Path) -> None:
    """DESIGN 9 says so: the newest branch, its rows and its records gone, is a log in which it never was."""
    path = quick_folder / "log.db"
    path.write_bytes(original.file)
    path.chmod(0o600)
    with looking.quick_open(path) as log:
        log.append("newest", "approved", {"by": "ada"})
    for branch, is_seen in (("newest", False), ("KEYED-returned", True)):
        connection = apsw.Connection(str(path))
        for table in ("events", "operations", "branches"):
            connection.execute(f"DELETE FROM {table} WHERE branch = ?", (branch,))
        connection.close()
        with looking.quick_open(path, read_only=True) as log:
            assert log.verify().ok is not is_seen, "behind an older one the places of others stand"
    lab.seen(1, [])
