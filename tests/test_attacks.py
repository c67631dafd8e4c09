"""What a stranger's attack found, as tests: one for each way in which the promise could be broken (see track-record).

Signals inside a transaction, files and locks that are taken away while they are in use, errors right after a commit,
forks, cancellations that come twice, a log that is verified while it is written.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import apsw
import pytest
from bad_input import read_elsewhere

from intentlog import (
    AsyncLog,
    BranchBusy,
    IntentLogError,
    Log,
    LogClosed,
    LogDamaged,
    LogPoisoned,
    LogUnavailable,
    NotApplied,
    OutcomeNotRecorded,
    WrongProcess,
    tool,
)
from intentlog.crash import Witness, armed
from intentlog.log.hands import running
from intentlog.store import opening
from intentlog.store.locks import Locks
from intentlog.store.sqlite import SqliteStore


@tool
def effect(number: int) -> int:
    return number


def store_of(log: Log) -> SqliteStore:
    store: Any = log._engine.store
    return store


class Meddling:
    """A connection that does something right after a statement, as a signal handler would."""

    def __init__(self, connection: Any, statement: str, act: Callable[[], None]) -> None:
        self._connection, self._statement, self._act = connection, statement, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statements: str, bindings: Any = None) -> Any:
        result = self._connection.execute(statements, bindings)
        if statements.startswith(self._statement):
            act, self._act = self._act, lambda: None
            act()
        return result


def meddle(log: Log, connection: str, statement: str, act: Callable[[], None]) -> None:
    store = store_of(log)
    setattr(store, connection, Meddling(getattr(store, connection), statement, act))


def test_a_signal_handler_that_uses_the_log_is_told_and_harms_nothing(tmp_path: Path) -> None:
    """It came in between a transaction of its thread: a call is refused, a read is made, the transaction goes on."""
    refused: list[Exception] = []

    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:

        def handler() -> None:
            for use in (lambda: attempt.step("other").call(effect, 2), log.open_intents, log.verify):
                try:
                    use()
                except IntentLogError as error:
                    refused.append(error)

        meddle(log, "_connection", "BEGIN IMMEDIATE", handler)
        assert attempt.step("mine").call(effect, 1) == 1
        assert [type(error) for error in refused] == [LogUnavailable]
        assert "signal handler" in str(refused[0])
        assert attempt.step("other").call(effect, 2) == 2
        assert log.verify().ok


@pytest.mark.parametrize("statement", ["BEGIN", "SELECT state FROM operations WHERE branch = ? AND step >="])
def test_a_read_that_was_interrupted_leaves_no_transaction(tmp_path: Path, statement: str) -> None:
    """KeyboardInterrupt inside a read's snapshot: the log goes on; it is not taken for a failed disk."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Log.open(tmp_path / "log.db") as log:
        with log.attempt("order") as attempt:
            attempt.call(effect, 1)
        meddle(log, "_reads", statement, interrupt)
        with pytest.raises(KeyboardInterrupt):
            store_of(log).view("order", "effect")  # what is done is read ahead, in one snapshot
        with log.attempt("order") as attempt:
            assert attempt.perform(effect, 1).replayed
        assert log.verify().ok


def test_a_transaction_that_was_left_open_is_cleared_away(tmp_path: Path) -> None:
    """Whatever left it: the next use rolls it back and goes on."""
    with Log.open(tmp_path / "log.db") as log:
        store_of(log)._connection.execute("BEGIN")
        with log.attempt("order") as attempt:
            assert attempt.call(effect, 1) == 1


@pytest.mark.parametrize("what", ["log.db", "log.db-wal", "lock"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_log_taken_away_while_it_is_open_permits_no_call(tmp_path: Path, what: str, how: str) -> None:
    """The permission would stand where nobody else looks: LogPoisoned, and no call is made (I1, I2)."""
    calls: list[int] = []

    @tool
    def counted(number: int) -> int:
        calls.append(number)
        return number

    refused = pytest.raises(LogPoisoned, match=r"deleted|replaced")
    with refused, Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)
        path = next((tmp_path / "log.db.d").glob("owner-*")) if what == "lock" else tmp_path / what
        content = read_elsewhere(path)
        path.unlink()
        if how == "replaced":
            path.write_bytes(content)
        attempt.call(counted, 1)
    assert calls == []


def test_a_worker_whose_lock_was_taken_away_while_it_was_stopped_does_not_call(tmp_path: Path) -> None:
    """Stopped between its permission and its call, counted as dead by another who calls: it wakes, and does not."""
    program = """
        import sys
        from pathlib import Path
        from intentlog import Fenced, Log, tool
        from intentlog.crash import Witness

        @tool
        def effect(number: int) -> int:
            Witness(Path(sys.argv[2])).record("the worker")
            return number

        try:
            with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
                print("answered", attempt.perform(effect, 1).replayed)
        except Fenced:
            sys.exit(7)
    """
    command = [sys.executable, "-c", dedent(program), str(tmp_path / "log.db"), str(tmp_path / "witness")]
    worker = subprocess.Popen(command, env=armed("before_call:1:stop"), stdout=subprocess.PIPE, text=True)
    os.waitpid(worker.pid, os.WUNTRACED)
    next((tmp_path / "log.db.d").glob("owner-*")).unlink()
    with Log.open(tmp_path / "log.db") as log:
        (found,) = log.recover()
        log.resolve(found.intent_id, NotApplied(), by="test", why="the witness is empty")
        with log.attempt("order") as attempt:
            assert attempt.call(effect, 1) == 1
    worker.send_signal(signal.SIGCONT)
    said, _ = worker.communicate(timeout=20)
    assert (worker.returncode, said) == (7, "answered True\n"), "it gets what the other's call returned"
    assert Witness(tmp_path / "witness").lines() == []


def test_a_second_name_of_the_file_is_refused(tmp_path: Path) -> None:
    """A hard link would have a WAL and locks of its own, and find a log without its newest records."""
    Log.open(tmp_path / "log.db").close()
    os.link(tmp_path / "log.db", tmp_path / "other.db")
    for name in ("log.db", "other.db"):
        with pytest.raises(LogUnavailable, match="second name"):
            Log.open(tmp_path / name)
    (tmp_path / "other.db").unlink()
    Log.open(tmp_path / "log.db").close()


def test_a_log_that_was_closed_stands_in_its_main_file(tmp_path: Path) -> None:
    """The keeper leaves the records there too: a copy of a closed log without its WAL is not silently empty."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)
    (tmp_path / "copy.db").write_bytes((tmp_path / "log.db").read_bytes())
    with Log.open(tmp_path / "copy.db", read_only=True) as log:
        assert log.verify().ok
        assert sum(1 for _ in log.history("order")) == 5


def test_a_link_leads_to_the_log_itself(tmp_path: Path) -> None:
    """Locks and WAL stand beside the file, whatever name it is opened by: a living owner is seen through a link."""
    (tmp_path / "link.db").symlink_to("log.db")
    (tmp_path / "log.db").touch()
    with Log.open(tmp_path / "link.db") as log, log.attempt("order"):
        with Log.open(tmp_path / "log.db", read_only=True) as reader:
            assert reader.unfinished() == []
        assert not (tmp_path / "link.db.d").exists()


@pytest.mark.parametrize("error", [OSError("too many open files"), apsw.IOError("disk"), RuntimeError("odd")])
def test_what_fails_after_a_commit_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Upkeep that raises: the record is durable and its reply is given; what comes after is refused."""

    def fails(self: Any, connection: Any) -> None:
        raise error

    with pytest.raises(LogPoisoned), Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        monkeypatch.setattr(SqliteStore, "_restart_wal", fails)
        monkeypatch.setattr("intentlog.store.sqlite.WAL_FRAMES_MAX", 0)
        attempt.call(effect, 1)
    monkeypatch.undo()
    with Log.open(tmp_path / "log.db") as log:
        kinds = [entry.kind for entry in log.history("order")]
        assert kinds == ["AttemptOpened", "Pending"], "it stands, though upkeep failed after it"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("shutdown"), RecursionError()])
def test_an_outcome_that_anything_keeps_from_the_log_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Not only the library's own errors: OutcomeNotRecorded with the value, effect ran: yes."""
    with Log.open(tmp_path / "log.db") as log:
        original = SqliteStore.append

        def fails(self: Any, entries: Any) -> Any:
            if type(entries[-1].record).__name__ == "Committed":
                raise error
            return original(self, entries)

        monkeypatch.setattr(SqliteStore, "append", fails)
        with pytest.raises(OutcomeNotRecorded) as caught, log.attempt("order") as attempt:
            attempt.call(effect, 41)
        assert (caught.value.outcome, caught.value.effect_ran) == (41, "yes")


def test_a_second_cancellation_during_close_loses_no_outcome(tmp_path: Path) -> None:
    """Ctrl-C twice: the tool's thread ends, its value is recorded, the log is closed and can be opened again."""
    begun, go_on = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "late"

    async def main() -> None:
        async def work() -> None:
            async with AsyncLog.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
                await attempt.call(slow)

        task = asyncio.create_task(work())
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        # asyncio.run cancels whatever is left when this returns: the fourth time

    asyncio.run(main())
    with Log.open(tmp_path / "log.db") as log:
        assert [e.record.outcome for e in log.history("order") if e.kind == "Committed"] == ["RETURNED"]


def test_an_opening_that_was_given_up_leaves_nothing_claimed(tmp_path: Path) -> None:
    """Cancelled while it opened: the same process opens the log right after."""

    async def main() -> None:
        task = asyncio.create_task(AsyncLog.open(tmp_path / "log.db").__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    Log.open(tmp_path / "log.db").close()


def test_a_forked_child_does_not_hang(tmp_path: Path) -> None:
    """Forked while another thread is inside the log: every use is WrongProcess, and closing is nothing."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store_of(log)._lock, log._engine.duty._lock:
            inside.set()
            assert leave.wait(10)

    with Log.open(tmp_path / "log.db") as log:
        thread = threading.Thread(target=hold)
        thread.start()
        assert inside.wait(10)
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            try:
                for use in (log.open_intents, log.verify, log.recover, log.attempt("x").__enter__):
                    with pytest.raises(WrongProcess):
                        use()
                log.close()
            except BaseException:
                os._exit(1)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        leave.set()
        thread.join()


def test_verify_of_a_log_that_is_written_sees_no_damage(tmp_path: Path) -> None:
    """A reader beside a worker: each branch is read at one moment."""
    with Log.open(tmp_path / "log.db") as log:
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.is_set():
                with log.attempt(f"b{number % 3}") as attempt:
                    attempt.step(f"s{number}").call(effect, number)
                number += 1

        thread = threading.Thread(target=work)
        thread.start()
        end_s = time.monotonic() + 1.0
        try:
            while time.monotonic() < end_s:
                with Log.open(tmp_path / "log.db", read_only=True) as reader:
                    report = reader.verify()
                assert report.ok, report.problems
        finally:
            stop.set()
            thread.join()


EDITS = [
    ";".join(f"DELETE FROM {table} WHERE branch = 'a'" for table in ("events", "operations", "branches")),
    "UPDATE operations SET is_listed = NOT is_listed",
    "UPDATE branches SET unfinished = NOT unfinished",
    "UPDATE operations SET generation = 2",
    "UPDATE operations SET step = 'other'",
    "UPDATE events SET branch = 'b' WHERE branch = 'a'",
    "INSERT INTO operations SELECT 'ghost', step, generation, is_listed, state, room FROM operations LIMIT 1",
    "DROP INDEX listed_operations",
    "DROP INDEX unfinished_branches",
    "CREATE TRIGGER gone AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "UPDATE meta SET value = randomblob(32) WHERE key = 'salt'",
]


@pytest.mark.parametrize("edit", EDITS)
def test_verify_finds_an_edit_of_any_table(tmp_path: Path, edit: str) -> None:
    """Rows, indexed columns, indexes, triggers, the salt, a branch removed from the middle."""
    with Log.open(tmp_path / "log.db") as log:
        for branch in ("a", "b"):
            with log.attempt(branch) as attempt:
                attempt.call(effect, 1)
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.execute(edit)
    connection.close()
    with Log.open(tmp_path / "log.db", read_only=True) as log:
        assert not log.verify().ok


def test_a_format_that_never_was_is_damage(tmp_path: Path) -> None:
    """user_version below 1."""
    Log.open(tmp_path / "log.db").close()
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.pragma("user_version", -1)
    connection.close()
    with pytest.raises(LogDamaged):
        Log.open(tmp_path / "log.db")


def break_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xa5" * 4096
    path.write_bytes(content)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda path: path.with_name(path.name + ".d").write_text("a file"),
        lambda path: path.with_name(path.name + ".d").symlink_to("/nowhere"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(8176)),
    ],
    ids=["folder is a file", "folder is a dangling link", "link to itself", "header alone"],
)
def test_an_opening_that_fails_is_told_in_the_librarys_words(tmp_path: Path, arrange: Callable[[Path], None]) -> None:
    """No bare OSError, no error of SQLite's."""
    arrange(tmp_path / "log.db")
    with pytest.raises((LogUnavailable, LogDamaged)):
        Log.open(tmp_path / "log.db")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\ud800"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """LogUnavailable, by whatever the system refuses it for."""
    with pytest.raises(LogUnavailable):
        Log.open(tmp_path / name)


def test_a_damaged_page_is_damage_at_opening_or_at_verify(tmp_path: Path) -> None:
    """Overwritten bytes: LogDamaged, or a finding; never an exception of SQLite's."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)
    (tmp_path / "log.db-wal").write_bytes(b"")
    break_file(tmp_path / "log.db")
    try:
        with Log.open(tmp_path / "log.db", read_only=True) as log:
            assert not log.verify().ok
    except LogDamaged:
        pass


def test_two_that_ask_of_one_owner_do_not_meet(tmp_path: Path) -> None:
    """Asking whether an owner lives takes a shared lock: another who asks is not taken for the owner."""
    dead = Locks(tmp_path)
    path = tmp_path / f"owner-{dead.owner}.lock"
    copy = path.read_bytes()
    dead.release()
    path.write_bytes(copy)  # as a killed process leaves it
    asker, found = Locks(tmp_path), list[bool]()

    def ask() -> None:
        for _ in range(2_000):
            if asker.lives(dead.owner):
                found.append(True)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asker.release()
    assert found == []


def test_a_writer_of_an_existing_log_needs_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less than a mebibyte free a new log is refused; an old one still tells of its doubts, and is written."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        attempt.call(effect, 1)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    monkeypatch.setattr(opening, "FREE_BYTES_MIN", free * 2)
    with pytest.raises(LogUnavailable, match="no room"):
        Log.open(tmp_path / "new.db")
    with Log.open(tmp_path / "log.db", read_only=True) as log:
        assert log.verify().ok
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        assert attempt.perform(effect, 1).replayed


def test_close_is_not_starved_by_new_calls(tmp_path: Path) -> None:
    """Threads that call without a pause: from the moment of closing on they are told LogClosed, and close returns."""
    log = Log.open(tmp_path / "log.db")
    refused: list[bool] = []

    def work(number: int) -> None:
        try:
            with log.attempt(f"b{number}") as attempt:
                for step in range(10**6):
                    attempt.step(f"s{step}").call(effect, step)
        except LogClosed:
            refused.append(True)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    log.close()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 4
    with Log.open(tmp_path / "log.db") as again:
        assert again.verify().ok
        assert not [i for i in again.open_intents() if i.in_doubt]


def test_two_that_close_wait_for_the_same_end(tmp_path: Path) -> None:
    """The second close returns when the log is closed, not before; what is used later is LogClosed, never raw."""

    async def main() -> None:
        async with AsyncLog.open(tmp_path / "log.db") as log:
            attempt = log.attempt("order")
            await asyncio.gather(log.close(), log.close())
            Log.open(tmp_path / "log.db").close()
            with pytest.raises(LogClosed):
                await attempt.__aenter__()

    asyncio.run(main())


def test_an_opening_that_its_loop_did_not_wait_for_is_closed(tmp_path: Path) -> None:
    """asyncio.run ends while a log is being opened: the same process can open it right after."""

    async def main() -> None:
        _ = asyncio.create_task(AsyncLog.open(tmp_path / "log.db").__aenter__())  # noqa: RUF006 - left alone on purpose
        await asyncio.sleep(0)

    asyncio.run(main())
    Log.open(tmp_path / "log.db").close()


def test_a_mark_of_a_call_does_not_stay_behind(tmp_path: Path) -> None:
    """Whatever a call is interrupted by, this thread is not taken to be inside a tool afterwards."""

    @tool
    def interrupted() -> None:
        raise KeyboardInterrupt

    with Log.open(tmp_path / "log.db") as log:
        with pytest.raises(KeyboardInterrupt), log.attempt("order") as attempt:
            attempt.call(interrupted)
        assert running.get() == ()


def test_an_attempt_that_was_forgotten_holds_its_branch_no_longer(tmp_path: Path) -> None:
    """A signal kept its block from being closed: when nobody has the attempt any more, the branch is free."""
    with Log.open(tmp_path / "log.db") as log:
        attempt = log.attempt("order")
        attempt.__enter__()
        with pytest.raises(BranchBusy), log.attempt("order"):
            pass
        del attempt
        gc.collect()
        with log.attempt("order") as again:
            assert again.number == 2


def test_rights_that_were_dropped_are_no_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files cannot be seen any more, which does not say that they are gone: no false alarm."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:

        def denied(self: Path, **_: object) -> None:
            raise PermissionError(str(self))

        monkeypatch.setattr(Path, "stat", denied)
        try:
            assert attempt.call(effect, 1) == 1
        finally:
            monkeypatch.undo()
