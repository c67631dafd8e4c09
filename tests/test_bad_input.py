"""Bad input: a clear error, nothing appended, nothing lost. This module: the log's place and its file.

Row: where the library's tests hold it / where the command's do. `names`, `tools`, `use`, `writes`, `interrupts` and
`cli` are `test_bad_input_...`, `here` is this module; `arguments`, `attacks` and so on are `test_...`.

    missing folder, a file as folder   here, sqlite_opening / cli, test_cli
    read-only folder, read-only file   here, sqlite_opening / cli, test_cli (unreadable)
    a folder, a device, a pipe         here / cli, test_cli
    a link to nothing, a hard link     here, attacks / test_cli
    no path at all                     here, attacks / test_cli
    a file that is no log              here, sqlite_opening / test_cli
    damaged, truncated, a cut WAL      here, attacks, sqlite_opening / cli, test_cli
    a newer format                     here, sqlite_opening / cli
    a network file system              here, sqlite_opening (the kernel's answer is replaced) / -, the same door
    opened again in one process        here, sqlite_opening / -
    used after a fork, opened in it    use, sqlite_opening, attacks / -
    used after close, before opening   use, sqlite_opening, attacks, arguments / -
    from another thread, another loop  use, restart / -
    disk full at opening               here, sqlite_opening / -
    disk full at Pending, Dispatched   writes, sqlite_faults / -
    disk full after the call           writes, sqlite_faults / -
    a bad branch                       names, arguments / cli
    a bad step, a bad tool's name      names, arguments / -
    a bad kind of event                names / -
    a bad text of an intent            names, restart / cli, test_cli
    arguments that cannot be taken     tools, arguments / -
    a result that cannot be stored     tools, arguments / test_cli (resolve, supply)
    two tools of one name              tools / -
    an async tool on the plain log     tools, arguments / -
    a plain function, an unprobed tool tools, arguments / -
    a probe that does not answer       tools, probe_bounds / test_cli (recover)
    a probe that uses the log          tools / -
    resolving what is not in doubt     names, restart / cli, test_cli
    a stale decision, an old name      names, restart / cli, test_cli
    an unknown intent or branch        names, restart / cli, test_cli
    by nobody, for no reason           names, restart / cli, test_cli
    a reserved name, surrogates        names, restart / cli, test_cli
    control characters in by=, why=    names (kept as they are) / cli (shown as escapes)
    renew, cancel what cannot be       names, decisions / cli, decisions_cli
    an event that cannot be recorded   names / -
    a tail of less than nothing        names / cli
    wrong settings                     names, arguments / -
    writing on a read-only log         writes, sqlite_opening / - (the commands that write open to write)
    INTENTLOG_CODEC names nothing      - / cli; what is no codec: sealing / cli
    INTENTLOG_CRASH_AT names nothing   here / cli
    KeyboardInterrupt, SystemExit      interrupts, interrupts of a call: test_interrupts / test_cli, decisions_cli
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from bad_input import MODES, Face, check_told, note, opened, opening_refused, read_elsewhere

from intentlog import (
    FormatTooNew,
    IntentLogError,
    Log,
    LogDamaged,
    LogInUse,
    LogUnavailable,
    failpoints,
)
from intentlog.store import making, opening


def files_of(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, byte for byte."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


@pytest.fixture
def written(quick_folder: Path) -> Path:
    """A log with a done and a doubtful effect, closed."""
    with opened(quick_folder / "log.db", "sync") as face:
        face.call("order", "done")
        face.doubt("order")
    return quick_folder / "log.db"


# --- the place ------


def in_a_missing_folder(path: Path) -> tuple[Path, str]:
    return path.parent / "nowhere" / path.name, "does not exist"


def under_a_file(path: Path) -> tuple[Path, str]:
    (path.parent / "file").touch()
    return path.parent / "file" / path.name, "does not exist"


def a_folder(path: Path) -> tuple[Path, str]:
    path.mkdir()
    return path, "not a regular file"


def a_pipe(path: Path) -> tuple[Path, str]:
    os.mkfifo(path)
    return path, "not a regular file"


def a_dangling_link(path: Path) -> tuple[Path, str]:
    path.symlink_to("nowhere.db")
    return path, "which is not there"


def a_hard_link(path: Path) -> tuple[Path, str]:
    other = path.with_name("other.db")
    Log.open(other).close()
    os.link(other, path)
    return path, "second name"


def a_url(path: Path) -> tuple[Path, str]:
    return "mysql://host/log", "a file or in PostgreSQL"  # type: ignore[return-value] # not a path, on purpose


PLACES = [in_a_missing_folder, under_a_file, a_folder, a_pipe, a_dangling_link, a_hard_link, a_url]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("arrange", PLACES)
def test_a_place_where_no_log_can_be(
    quick_folder: Path, arrange: Callable[[Path], tuple[Path, str]], read_only: bool
) -> None:
    """LogUnavailable that says what the place is; nothing is made there, and nothing that is there is touched."""
    place, match = arrange(quick_folder / "log.db")
    before = files_of(quick_folder)
    opening_refused(place, LogUnavailable, match, read_only=read_only)
    assert files_of(quick_folder) == before


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/full"])
def test_a_device_is_no_log(device: str) -> None:
    """LogUnavailable, and nothing is written to it or made beside it."""
    opening_refused(Path(device), LogUnavailable, "not a regular file")
    assert not Path(f"{device}.d").exists()


def test_an_empty_name_is_no_log() -> None:
    """It would be the present folder."""
    opening_refused("", LogUnavailable, "not a regular file")  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("place", [None, 7, b"log.db", ["log.db"]])
def test_a_place_that_is_no_path_at_all(place: Any) -> None:
    """None is what a forgotten setting gives."""
    opening_refused(place, LogUnavailable, "no path")


@pytest.mark.parametrize("mode", MODES)
def test_a_read_only_folder(mode: str) -> None:
    """A folder without a writer's rights: LogUnavailable names it; a reader reads all the same."""
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))  # pytest's own folders are closed to others
    with opened(folder / "log.db", "sync") as face:
        face.call("order", "s")
    folder.chmod(0o555)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            for path in (folder / "log.db", folder / "new.db"):
                with pytest.raises(IntentLogError, match="cannot be written") as caught:
                    Face(path, mode).open()
                check_told(caught.value, LogUnavailable)
                assert str(folder) in caught.value.message
        except BaseException:
            os._exit(1)
        os._exit(7)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        folder.chmod(0o700)
        assert {path.name for path in folder.iterdir()} == {"log.db", "log.db-wal", "log.db-shm", "log.db.d"}
        with opened(folder / "log.db", mode) as face:
            face.goes_on()
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_network_file_system(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both faces refuse it, to read as well, and say where to go. (What the kernel tells is told for it.)"""
    monkeypatch.setattr(opening, "file_system", lambda folder: "nfs4")
    before = files_of(written.parent)
    for read_only in (False, True):
        opening_refused(written, LogUnavailable, "network file system", read_only=read_only)
    assert files_of(written.parent) == before
    monkeypatch.undo()
    with opened(written, "asyncio") as face:
        face.goes_on()


def test_no_room_on_the_disk(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little for a new log: both faces say how much is needed, and nothing is made."""
    monkeypatch.setattr(opening, "FREE_BYTES_MIN", shutil.disk_usage(written.parent).total * 32)
    before = files_of(written.parent)
    opening_refused(written.with_name("new.db"), LogUnavailable, "no room")
    assert files_of(written.parent) == before
    before.pop("log.db.d/ballast")
    opening_refused(written, LogUnavailable, "no room")
    assert files_of(written.parent) == before, "a writer lets its ballast go first"
    monkeypatch.undo()
    with opened(written, "sync") as face:
        face.goes_on()


@pytest.mark.parametrize("mode", MODES)
def test_the_disk_fills_while_it_is_opened(written: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC for the ballast or the WAL: LogUnavailable in the library's words; with room again it opens."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for module, what in ((opening, "make_ballast"), (opening, "grow"), (making, "create_log")):
        monkeypatch.setattr(module, what, full)
        with pytest.raises(IntentLogError, match="No space left") as caught, opened(written, mode):
            pytest.fail("opened")
        check_told(caught.value, LogUnavailable)
        monkeypatch.undo()
    with opened(written, mode) as face:
        face.goes_on()


# --- the file ------


@pytest.mark.parametrize("content", [b"\n", b"x" * 4095, b"text\n" * 2000, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_log(quick_folder: Path, content: bytes) -> None:
    """LogDamaged for text, for a stub, for a bare header; not one byte of it changes."""
    path = quick_folder / "log.db"
    path.write_bytes(content)
    for read_only in (False, True):
        opening_refused(path, LogDamaged, "log.db", read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [2, 99, 2**31 - 1])
def test_a_newer_format(written: Path, version: int) -> None:
    """FormatTooNew with both numbers, on both faces, to read as well; the file is left as it is."""
    connection = apsw.Connection(str(written))
    connection.pragma("user_version", version)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    content = written.read_bytes()
    for read_only in (False, True):
        opening_refused(written, FormatTooNew, f"has format {version}, this intentlog writes 1", read_only=read_only)
    assert written.read_bytes() == content


def cut(size: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:size])

    return damage


def overwritten(first: int, last: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[first:last] = b"\xa5" * (min(last, len(content)) - first)
        path.write_bytes(content)

    return damage


def edited(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        connection = apsw.Connection(str(path))
        connection.execute(statement)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()

    return damage


DAMAGES = {
    "cut inside the first page": cut(2000),
    "cut after the first page": cut(4096),
    "cut inside a page": cut(3 * 4096 + 100),
    "cut a page short": cut(-4096),  # type: ignore[arg-type]
    "header": overwritten(0, 16),
    "page size": overwritten(16, 18),
    "schema": overwritten(100, 4096),
    "second page": overwritten(4096, 8192),
    "last page": overwritten(-4096, 1 << 30),
    "no events": edited("DROP TABLE events"),
    "no branches": edited("DROP TABLE branches"),
    "no operations": edited("DROP TABLE operations"),
    "no salt": edited("DELETE FROM meta"),
    "a branch's state": edited("UPDATE branches SET state = x'c1'"),
    "an operation's state": edited("UPDATE operations SET state = x'93'"),
    "a record": edited("UPDATE events SET record = '{}'"),
    "a payload": edited("UPDATE events SET payload = x'ff' WHERE payload NOT NULL"),
    "an order that goes round": edited("UPDATE events SET previous_seq = seq"),
}
USES: dict[str, Callable[[Any], Any]] = {
    "history": lambda log: log.history("order"),
    "tail": lambda log: log.tail(),
    "open_intents": lambda log: log.open_intents(),
    "unfinished": lambda log: log.unfinished(),
    "recover": lambda log: log.recover(),
    "contradictions": lambda log: log.contradictions(),
    "resolve": lambda log: log.resolve("order#2/s", note, by="a", why="b"),
    "renew": lambda log: log.renew("order#1/done", by="a", why="b"),
    "cancel": lambda log: log.cancel("order", by="a", why="b"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_or_truncated_log(written: Path, mode: str, damage: Callable[[Path], None]) -> None:
    """Found when it is opened, or else by `verify`; no use of it raises anything but the library's own errors."""
    for name in ("-wal", "-shm"):
        written.with_name(written.name + name).unlink()
    damage(written)
    try:
        with opened(written, mode, read_only=True) as face:
            assert not face.do(lambda log: log.verify()).ok
    except IntentLogError as error:
        check_told(error, LogDamaged)
    for use in USES.values():
        with suppress(IntentLogError), opened(written, mode) as face:
            face.do(use)


def test_a_missing_table_is_damage_at_opening_too(written: Path) -> None:
    """A log without `meta` cannot be mended by looking at the disk and its permissions."""
    edited("DROP TABLE meta")(written)
    with pytest.raises(IntentLogError) as caught, opened(written, "sync"):
        pytest.fail("opened")
    check_told(caught.value, LogDamaged)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET seq = 9223372036854775807 WHERE seq = (SELECT max(seq) FROM events)",
        "UPDATE meta SET value = 100000000000 WHERE key = 'salt'",
        "UPDATE meta SET value = zeroblob(100) WHERE key = 'salt'",
    ],
)
def test_damage_that_overflows_a_number(written: Path, statement: str) -> None:
    """An edited number is damage like any other: never an OverflowError, MemoryError or ValueError."""
    edited(statement)(written)
    try:
        with opened(written, "sync") as face:
            face.do(lambda log: log.verify())
            face.call("order", "another")
    except IntentLogError as error:
        check_told(error, LogDamaged)


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_wal_loses_only_what_it_held(quick_folder: Path, mode: str) -> None:
    """A WAL cut anywhere: SQLite ends it at its last whole commit; what is left is a sound log."""
    path = quick_folder / "log.db"
    with opened(path, "sync") as face:
        face.call("order", "one")
        face.call("order", "two")
        whole = {name: read_elsewhere(path.with_name(path.name + name)) for name in ("", "-wal")}
        records = face.records()
    used = whole["-wal"].rstrip(b"\0")
    for size in (0, 10, 32, 4000, len(used) // 2, len(used) - 1, len(whole["-wal"])):
        folder = quick_folder / f"cut-{size}"
        folder.mkdir()
        (folder / "log.db").write_bytes(whole[""])
        (folder / "log.db-wal").write_bytes(whole["-wal"][:size])
        with opened(folder / "log.db", mode) as face:
            kept = face.records()
            assert kept == records[: len(kept)]
            assert (kept == records) == (size == len(whole["-wal"]))
            face.goes_on()


# --- opened a second time in one process ------


def spellings(path: Path) -> Iterator[Path]:
    yield path
    yield path.parent / "." / path.name
    yield path.parent / "folder" / ".." / path.name
    yield path.parent / "link.db"
    yield path.parent / "folder-link" / path.name
    yield Path(os.path.relpath(path))


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_opened_again_in_one_process(quick_folder: Path, first: str, second: str) -> None:
    """LogInUse by whatever name and face; a reader may; the open one goes on; closed, it opens by any name."""
    path = quick_folder / "log.db"
    (quick_folder / "folder").mkdir()
    (quick_folder / "link.db").symlink_to(path)
    (quick_folder / "folder-link").symlink_to(quick_folder)
    with opened(path, first) as face:
        before = face.records()
        for name in spellings(path):
            with pytest.raises(IntentLogError, match="open in this process already") as caught, opened(name, second):
                pytest.fail("opened")
            check_told(caught.value, LogInUse)
        assert face.records() == before
        with opened(path, second, read_only=True) as reader:
            assert reader.do(lambda log: log.unfinished()) == []
        face.goes_on()
    for name in spellings(path):
        with opened(name, second) as again:
            again.goes_on()


# --- what the environment arms ------

POINTS = ["nowhere", "before_call:0", "before_call:-1", "before_call:x", "before_call:1:go", ":1", "before_call:1:"]


@pytest.mark.parametrize("text", POINTS[:-1])
def test_a_crash_point_that_is_none(quick_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """INTENTLOG_CRASH_AT that names nothing is refused with the names there are; no log is made."""
    monkeypatch.setenv("INTENTLOG_TEST_HOOKS", "1")
    monkeypatch.setenv("INTENTLOG_CRASH_AT", text)
    for mode in MODES:
        with pytest.raises(failpoints.UnknownFailpoint) as caught, opened(quick_folder / "log.db", mode):
            pytest.fail("opened")
        assert (caught.value.code, caught.value.effect_ran) == ("unknown_failpoint", "no")
        assert repr(text) in caught.value.message
        assert "NAME[:nth[:stop]]" in caught.value.message
        assert "before_dispatched" in caught.value.message
    assert files_of(quick_folder) == {}
    monkeypatch.delenv("INTENTLOG_TEST_HOOKS")
    with opened(quick_folder / "log.db", "sync") as face:  # without hooks it means nothing
        face.goes_on()


def test_a_crash_point_with_a_number_that_is_none(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a digit to Unicode is no number."""
    monkeypatch.setenv("INTENTLOG_TEST_HOOKS", "1")
    monkeypatch.setenv("INTENTLOG_CRASH_AT", "before_call:²")
    with pytest.raises(failpoints.UnknownFailpoint):
        Log.open(quick_folder / "log.db")
