"""Opening a log: what is refused before anything is touched, who keeps it, and what a second process may do."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import apsw
import pytest

from intentlog import (
    BranchBusy,
    FormatTooNew,
    Log,
    LogClosed,
    LogDamaged,
    LogInUse,
    LogUnavailable,
    Verdict,
    WrongProcess,
    tool,
)
from intentlog.store import opening
from intentlog.store.locks import Locks


@tool
def effect(number: int) -> int:
    return number


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that says what it does on its output, a line each."""
    command = [sys.executable, "-u", "-c", dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is gone."""
    process.kill()
    process.communicate()


HOLDER = """
    import sys
    from intentlog import Log, tool

    @tool
    def effect(number: int) -> int:
        return number

    with Log.open(sys.argv[1]) as log, log.attempt(sys.argv[2]) as attempt:
        attempt.call(effect, 1)
        print("open", flush=True)
        for order in sys.stdin:
            attempt.step(order.strip()).call(effect, 2)
            print("called", flush=True)
"""


def test_missing_folder_and_missing_log(tmp_path: Path) -> None:
    """No such folder: a clear error, nothing made. Reading makes no log either."""
    with pytest.raises(LogUnavailable, match="does not exist"):
        Log.open(tmp_path / "nowhere" / "log.db")
    with pytest.raises(LogUnavailable, match="no log at"):
        Log.open(tmp_path / "log.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"x", b"not a database at all, but long enough to be looked at\n" * 200])
def test_a_file_that_is_not_a_log_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """LogDamaged, and not one byte of the file is changed."""
    path = tmp_path / "log.db"
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises((LogDamaged, LogUnavailable)):
            Log.open(path, read_only=read_only)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A SQLite database of another program is not turned into a log, nor into a WAL database."""
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(LogDamaged, match="another program"):
        Log.open(path)
    assert path.read_bytes() == content


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """FormatTooNew: an older version never writes to a newer log."""
    path = tmp_path / "log.db"
    Log.open(path).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    for read_only in (False, True):
        with pytest.raises(FormatTooNew, match="99"):
            Log.open(path, read_only=read_only)


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    """LogUnavailable for what is not a regular file."""
    with pytest.raises(LogUnavailable, match="not a regular file"):
        Log.open(tmp_path)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks cannot be trusted there. (The type is what the kernel tells; here it is told for it.)"""
    assert opening.file_system(tmp_path) not in ("", "nfs")
    monkeypatch.setattr(opening, "file_system", lambda folder: "nfs4")
    with pytest.raises(LogUnavailable, match="network file system"):
        Log.open(tmp_path / "log.db")


def test_opened_twice_in_one_process(tmp_path: Path) -> None:
    """LogInUse, by another name of the same file too; after closing it opens again."""
    with Log.open(tmp_path / "log.db"):
        (tmp_path / "alias.db").symlink_to("log.db")
        for name in ("log.db", "alias.db"):
            with pytest.raises(LogInUse):
                Log.open(tmp_path / name)
    Log.open(tmp_path / "log.db").close()


def test_a_failed_opening_leaves_nothing_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an opening that failed half-way the same process can open the log."""

    def fails(*_: object) -> None:
        raise LogUnavailable("no")

    monkeypatch.setattr(opening, "take_over_wal", fails)
    with pytest.raises(LogUnavailable):
        Log.open(tmp_path / "log.db")
    monkeypatch.undo()
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    """0600 for the log, its WAL and its locks; 0700 for their folder, whatever the umask."""
    before = os.umask(0)
    try:
        with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
            attempt.call(effect, 1)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    assert modes.pop("log.db.d") == 0o700
    assert {"log.db", "log.db-wal", "log.db-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_used_after_a_fork(tmp_path: Path) -> None:
    """WrongProcess in the child, which writes nothing; the parent goes on, and its lock is its own."""
    with Log.open(tmp_path / "log.db") as log:
        pid = os.fork()
        if pid == 0:
            try:
                list(log.history("order"))
            except WrongProcess:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with log.attempt("order") as attempt:
            assert attempt.call(effect, 1) == 1


def test_a_forked_child_does_not_keep_a_dead_owner_alive(tmp_path: Path) -> None:
    """The parent is killed, its child lives on: the branch is free at once."""
    program = """
        import os, sys, time
        from intentlog import Log
        log = Log.open(sys.argv[1])
        attempt = log.attempt("order").__enter__()
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        print(child, flush=True)
        time.sleep(30)
    """
    process = child(program, tmp_path / "log.db")
    grandchild = int(line(process))
    process.kill()
    process.wait()  # not for the end of its output, which the grandchild holds
    try:
        with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
            assert attempt.number == 2
        os.kill(grandchild, 0)  # it lives
    finally:
        os.kill(grandchild, 9)
        stop(process)


def test_used_after_close(tmp_path: Path) -> None:
    """LogClosed for every use; closing again is fine."""
    log = Log.open(tmp_path / "log.db")
    log.close()
    log.close()
    for use in (log.recover, log.unfinished, log.open_intents, log.verify, log.attempt("order").__enter__):
        with pytest.raises(LogClosed):
            use()


def test_a_living_process_keeps_its_branch_and_a_dead_one_does_not(tmp_path: Path) -> None:
    """Field case 3: BranchBusy while the owner lives, other branches go on; after SIGKILL it is taken at once."""
    holder = child(HOLDER, tmp_path / "log.db", "order")
    assert line(holder) == "open"
    with Log.open(tmp_path / "log.db") as log:
        with pytest.raises(BranchBusy, match=str(holder.pid)), log.attempt("order"):
            pass
        assert log.recover() == [], "a living owner is left alone"
        with log.attempt("other") as attempt:
            assert attempt.call(effect, 1) == 1
        stop(holder)
        with log.attempt("order") as attempt:
            assert attempt.number == 2
            assert attempt.perform(effect, 1).replayed


def test_two_processes_write_one_log(tmp_path: Path) -> None:
    """Keeper and guest append by turns; the keeper dies, the guest goes on; nothing acknowledged is lost."""
    keeper = child(HOLDER, tmp_path / "log.db", "a")
    assert line(keeper) == "open"
    guest = child(HOLDER, tmp_path / "log.db", "b")
    assert line(guest) == "open"
    for turn in range(40):
        for process in (keeper, guest):
            assert process.stdin is not None
            process.stdin.write(f"s{turn}\n")
            process.stdin.flush()
            assert line(process) == "called"
    stop(keeper)
    assert guest.stdin is not None
    for turn in range(40, 320):  # enough for the guest to take the keeper's role and restart the WAL
        guest.stdin.write(f"s{turn}\n")
        guest.stdin.flush()
        assert line(guest) == "called"
    stop(guest)
    with Log.open(tmp_path / "log.db") as log:
        assert sum(e.kind == "Committed" for e in log.history("a")) == 41
        assert sum(e.kind == "Committed" for e in log.history("b")) == 321
        assert log.verify().ok


def test_a_second_keeper_waits_for_its_turn(tmp_path: Path) -> None:
    """One keeper at a time, by lock; a released role can be taken."""
    first, second = Locks(tmp_path), Locks(tmp_path)
    assert first.become_keeper()
    assert first.become_keeper()
    assert not second.become_keeper()
    first.give_up_keeper()
    assert second.become_keeper()
    assert first.lives(second.owner)
    second.release()
    assert not first.lives(second.owner)
    first.release()


def test_dead_owners_locks_are_swept(tmp_path: Path) -> None:
    """Lock files of the dead do not pile up; those of the living stay."""
    holder = child(HOLDER, tmp_path / "log.db", "a")
    assert line(holder) == "open"
    with Log.open(tmp_path / "log.db"):
        assert len(list((tmp_path / "log.db.d").glob("owner-*.lock"))) == 2
    stop(holder)
    with Log.open(tmp_path / "log.db"):
        assert len(list((tmp_path / "log.db.d").glob("owner-*"))) == 1


def test_a_reader_neither_writes_nor_removes(tmp_path: Path) -> None:
    """status and show while a worker lives, and after it died: the WAL with its records stays where it is."""
    holder = child(HOLDER, tmp_path / "log.db", "order")
    assert line(holder) == "open"
    for _ in range(2):
        with Log.open(tmp_path / "log.db", read_only=True) as log:
            assert [e.kind for e in log.history("order")][:2] == ["AttemptOpened", "Pending"]
            with pytest.raises(LogUnavailable, match="reading only"), log.attempt("x"):
                pass
        wal = (tmp_path / "log.db-wal").read_bytes()
        assert any(wal)
        stop(holder)
        time.sleep(0.01)
        assert (tmp_path / "log.db-wal").read_bytes() == wal


def test_a_commit_that_is_stopped_blocks_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stopped inside a commit blocks all writers: LogUnavailable names its pid; nothing was written."""
    Log.open(tmp_path / "log.db").close()
    program = """
        import sys, time, apsw
        connection = apsw.Connection(sys.argv[1])
        connection.execute("BEGIN IMMEDIATE")
        print("inside", flush=True)
        time.sleep(60)
    """
    monkeypatch.setattr(opening, "BUSY_LIMIT_MS", 100)
    with Log.open(tmp_path / "log.db") as log:
        stopped = child(program, tmp_path / "log.db")
        assert line(stopped) == "inside"
        with pytest.raises(LogUnavailable, match=str(stopped.pid)) as caught, log.attempt("order"):
            pass
        assert "nothing was written" in caught.value.message
        stop(stopped)
        with log.attempt("order") as attempt:
            assert attempt.number == 1


def without_rights(act: Callable[[], None]) -> int:
    """Run in a child that is no root, whoever runs the tests; 7 if it did what it should."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            act()
        except BaseException:
            os._exit(1)
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_or_file_that_cannot_be_written(what: str) -> None:
    """Read-only folder or file: a clear error before anything is made."""
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))  # pytest's own folders are closed to others
    Log.open(folder / "log.db").close()
    (folder / "log.db").chmod(0o444)
    folder.chmod(0o555 if what == "folder" else 0o777)

    def opens() -> None:
        with pytest.raises(LogUnavailable, match="cannot be written"):
            Log.open(folder / "log.db")

    try:
        assert without_rights(opens) == 7
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_no_room_on_the_disk_is_refused_before_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk under the mapped -shm would kill the process: it is asked before."""
    monkeypatch.setattr(opening, "FREE_BYTES_MIN", shutil.disk_usage(tmp_path).total * 2)
    with pytest.raises(LogUnavailable, match="no room"):
        Log.open(tmp_path / "log.db")
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_or_damaged_log_is_found(tmp_path: Path) -> None:
    """An edited record, an edited value, a removed record: verify names the branch and the record."""
    path = tmp_path / "log.db"
    with Log.open(path) as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)
        attempt.call(effect, 2)
    for damage in (
        "UPDATE events SET payload = x'39' WHERE seq = 4",
        "UPDATE events SET record = replace(record, 'effect', 'affect') WHERE seq = 3",
        "UPDATE events SET wall_ns = wall_ns + 1 WHERE seq = 2",
        "DELETE FROM events WHERE seq = 3",
        "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)",
        "UPDATE operations SET is_listed = 1, state = (SELECT state FROM operations LIMIT 1)",
        "INSERT INTO events SELECT 99, 'ghost', 0, wall_ns, NULL, NULL, record, NULL, chain FROM events WHERE seq = 1",
    ):
        copy = tmp_path / "copy.db"
        source, target = apsw.Connection(str(path)), apsw.Connection(str(copy))
        with target.backup("main", source, "main") as backup:
            backup.step()
        target.execute(damage)
        source.close()
        target.close()
        with Log.open(copy, read_only=True) as log:
            report = log.verify()
        assert not report.ok, damage
        for name in ("copy.db", "copy.db-wal", "copy.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
    with Log.open(path) as log:
        assert log.verify().ok
        assert [c for c in log.recover() if c.classification is Verdict.MAY_HAVE_BEEN_SENT] == []


READER = """
    import sys
    from intentlog import Log
    log = Log.open(sys.argv[1], read_only=True)  # so that the -shm is there and the next writer is the keeper
    log.open_intents()
    print("reading", flush=True)
    sys.stdin.read()
"""

CHECKPOINTER = """
    import fcntl, sys, time
    shm = open(sys.argv[1] + "-shm", "r+b")
    WAL_CKPT_LOCK = 121  # the byte that SQLite locks while it makes a checkpoint
    fcntl.lockf(shm, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, WAL_CKPT_LOCK)
    print("checkpointing", flush=True)
    time.sleep(0.5)
    fcntl.lockf(shm, fcntl.LOCK_UN, 1, WAL_CKPT_LOCK)
    sys.stdin.read()
"""


def test_a_checkpoint_of_another_process_is_waited_for(tmp_path: Path) -> None:
    """SQLite answers busy at once while another makes one: a second process that opens the log waits for its turn."""
    path = tmp_path / "log.db"
    Log.open(path).close()
    reader = child(READER, path)
    try:
        assert line(reader) == "reading"
        other = child(CHECKPOINTER, path)
        try:
            assert line(other) == "checkpointing"
            with Log.open(path) as log:
                assert log.verify().ok
        finally:
            stop(other)
    finally:
        stop(reader)
