"""Bad input: a log that is used after its end, after a fork, or from elsewhere. The table is in `test_bad_input`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bad_input import (
    CALLED,
    MODES,
    READS,
    WRITES,
    Face,
    check_told,
    enter,
    filled,
    in_fork,
    note,
    opened,
    refused,
)

from intentlog import (
    AsyncLog,
    Fenced,
    IntentLogError,
    Log,
    LogClosed,
    LogUnavailable,
    WrongProcess,
)

# --- after the end ------


@pytest.mark.parametrize("mode", MODES)
def test_every_method_of_a_closed_log(quick_folder: Path, mode: str) -> None:
    """LogClosed; closing it again is nothing; another opening finds what was there."""
    filled(quick_folder / "log.db")
    face = Face(quick_folder / "log.db", mode).open()
    before = face.records()
    attempt = face.log.attempt("order")
    face.wait(face.log.close())
    face.wait(face.log.close())
    uses = {**READS, **WRITES, "an attempt asked for before": lambda log: enter(attempt)}
    for name, use in uses.items():
        with pytest.raises(IntentLogError) as caught:
            face.do(use)
        check_told(caught.value, LogClosed)
        assert "closed" in caught.value.message or "not open" in caught.value.message, name
    face.close()
    with opened(quick_folder / "log.db", mode) as again:
        assert again.records() == before
        again.goes_on()


def test_an_async_log_that_was_not_entered(quick_folder: Path) -> None:
    """LogClosed says how it is opened; nothing is made."""
    log = AsyncLog.open(quick_folder / "log.db")

    async def main() -> None:
        for use in {**READS, **WRITES, "counters": lambda log: log.counters}.values():
            with pytest.raises(LogClosed, match="async with"):
                await use(log)
        await log.close()

    asyncio.run(main())
    assert list(quick_folder.iterdir()) == []


ATTEMPT_USES: dict[str, Callable[[Any], Any]] = {
    "call": lambda attempt: attempt.call(note, "x"),
    "perform": lambda attempt: attempt.perform(note, "x"),
    "step.call": lambda attempt: attempt.step("s").call(note, "x"),
    "step.perform": lambda attempt: attempt.step("s").perform(note, "x"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_method_of_an_attempt_that_is_not_open(quick_folder: Path, mode: str) -> None:
    """LogClosed before it is entered, Fenced after it was left; it is entered once, and has no number before."""
    with opened(quick_folder / "log.db", mode) as face:
        attempt = face.log.attempt("order")
        for use in (*ATTEMPT_USES.values(), lambda one: one.number):
            with refused(face, LogClosed, "not open"):
                face.wait(use(attempt))
        with face.attempt("order") as left:
            assert left.number == 1
        for name, use in ATTEMPT_USES.items():
            with refused(
                face, Fenced, "attempt 1 of 'order' is closed", intent="order#1/s" if "step" in name else None
            ):
                face.wait(use(left))
        with refused(face, LogClosed, "entered once"):
            face.wait(enter(left))
        face.goes_on()


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_of_a_closed_log(quick_folder: Path, mode: str) -> None:
    """Closed under it: LogClosed for each call and for leaving the block; the branch can be opened again."""
    face = Face(quick_folder / "log.db", mode).open()
    attempt = face.log.attempt("order")
    face.wait(enter(attempt))
    face.wait(attempt.step("one").call(note, "x"))
    called = len(CALLED)
    face.wait(face.log.close())
    leave = getattr(attempt, "__exit__", None) or attempt.__aexit__
    for use in (*ATTEMPT_USES.values(), lambda one: leave(None, None, None)):
        with pytest.raises(IntentLogError) as caught:
            face.wait(use(attempt))
        check_told(caught.value, LogClosed)
    face.close()
    assert len(CALLED) == called
    with opened(quick_folder / "log.db", mode) as again:
        assert [one.branch for one in again.do(lambda log: log.unfinished())] == ["order"]
        again.call("order", "one")
        again.goes_on()


def test_an_async_log_is_entered_twice(quick_folder: Path) -> None:
    """Either it opens anew and is closed, or it says that it was closed; the log is not held for ever."""

    async def main() -> None:
        log = AsyncLog.open(quick_folder / "log.db")
        async with log:
            pass
        try:
            async with log:
                await log.tail()
        except LogClosed:
            pass

    asyncio.run(main())
    Log.open(quick_folder / "log.db").close()


def test_a_log_whose_close_failed_is_closed_again(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` is idempotent also where an event could not be written: it was told once."""
    log = Log.open(quick_folder / "log.db")
    log.append("order", "kind")

    def full(*_: object) -> None:
        raise LogUnavailable("no room")

    monkeypatch.setattr("intentlog.store.sqlite.SqliteStore.append", full)
    with pytest.raises(LogUnavailable):
        log.close()
    monkeypatch.undo()
    log.close()


# --- after a fork ------


def test_every_method_after_a_fork(quick_folder: Path) -> None:
    """WrongProcess for every method of Log and Attempt; nothing appended; the parent goes on."""
    filled(quick_folder / "log.db")
    with opened(quick_folder / "log.db", "sync") as face, face.attempt("forked") as attempt:
        other = face.log.attempt("order")
        before = face.records()

        def child() -> None:
            uses: list[Callable[[], Any]] = [
                *(partial(face.do, use) for use in (*READS.values(), *WRITES.values())),
                *(partial(use, attempt) for use in ATTEMPT_USES.values()),
                other.__enter__,
                lambda: attempt.__exit__(None, None, None),
            ]
            for use in uses:
                with pytest.raises(IntentLogError) as caught:
                    use()
                assert (type(caught.value), bool(caught.value.remedy)) == (WrongProcess, True)
            face.log.close()

        assert in_fork(child) == 7
        assert face.records() == before
        face.goes_on()


@pytest.mark.parametrize("use", [READS["history"], WRITES["recover"], lambda log: log.close()])
def test_an_async_log_after_a_fork(quick_folder: Path, use: Callable[[Any], Any]) -> None:
    """WrongProcess, as of a Log; not a hang. Closing is nothing."""
    with opened(quick_folder / "log.db", "asyncio") as face:
        face.call("order", "s")

        def child() -> None:
            async def main() -> None:
                try:
                    await use(face.log)
                except WrongProcess:
                    return

            asyncio.new_event_loop().run_until_complete(main())

        assert in_fork(child) == 7


WAL_DEAD_MAN_BYTE = 128  # of the -shm: whoever has the log open holds it shared, or the next opener takes it for dead

DEAD_MAN = """
import fcntl, sys
with open(sys.argv[1] + "-shm", "r+b") as shared:
    try:
        fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    except OSError:
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("parents", "childs"),
    [
        pytest.param(False, False, id="both write"),
        pytest.param(False, True, id="the child reads"),
        pytest.param(True, False, id="the parent reads"),
        pytest.param(True, True, id="both read"),
    ],
)
def test_a_child_opens_the_log_that_its_parent_had_open(quick_folder: Path, parents: bool, childs: bool) -> None:
    """Either it is refused, or others can see that the child has the log open.

    SQLite keeps one note per file and process of the locks it holds; a forked child inherits the note and not the
    locks. When the parent has gone, the next process to open the log finds nobody, and truncates the -shm file that the
    child has mapped: SIGBUS.
    """
    path = quick_folder / "log.db"
    Log.open(path).close()
    log = Log.open(path, read_only=parents)
    log.tail()
    told, tell = os.pipe()
    go_on, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(let_go)
        try:
            with Log.open(path, read_only=childs) as own:
                own.tail()
                os.write(tell, b"o")
                os.read(go_on, 1)
        except IntentLogError:
            os.write(tell, b"r")
        os._exit(0)
    os.close(tell)
    os.close(go_on)
    answer = os.read(told, 1)
    os.close(told)
    log.close()
    checker = [sys.executable, "-c", DEAD_MAN, str(path), str(WAL_DEAD_MAN_BYTE)]
    held = subprocess.run(checker, check=False, timeout=20).returncode == 7
    os.close(let_go)
    os.waitpid(child, 0)
    assert answer == b"r" or held
    with opened(path, "sync") as face:
        face.goes_on()


# --- from elsewhere ------


def test_a_log_is_used_from_other_threads(quick_folder: Path) -> None:
    """A Log may be: opened in one thread, its attempt called in a second, left and closed in a third."""
    with opened(quick_folder / "log.db", "sync") as face:
        attempt = face.log.attempt("order")
        found: list[Any] = []
        uses = (attempt.__enter__, lambda: attempt.call(note, "x"), lambda: attempt.__exit__(None, None, None))
        for use in uses:
            thread = threading.Thread(target=lambda act=use: found.append(act()))
            thread.start()
            thread.join()
        assert found[1:] == ["x", None]
        assert [kind for _, kind in face.records()][-1] == "AttemptClosed"
        face.goes_on()


LOOPS = """
    import asyncio, signal, sys, threading
    from intentlog import AsyncLog, IntentLogError, tool

    signal.alarm(4)

    @tool
    async def slow(number: int) -> int:
        begun.set()
        await asyncio.sleep(0.2)
        return number

    begun = threading.Event()

    async def main():
        async with AsyncLog.open(sys.argv[1]) as log, log.attempt("order") as attempt:
            async def call():
                return await attempt.step("s").call(slow, 1)

            def elsewhere():
                begun.wait()
                try:
                    asyncio.run(call())
                    print("called")
                except IntentLogError as error:
                    print(error.code)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            await call()
            await asyncio.to_thread(thread.join)

    asyncio.run(main())
"""


def test_an_async_log_is_used_from_a_second_loop(quick_folder: Path) -> None:
    """It is for the tasks of one loop: the second is told so, in the library's words; the first goes on and ends."""
    program = "\n".join(line.removeprefix("    ") for line in LOOPS.splitlines())
    command = [sys.executable, "-c", program, str(quick_folder / "log.db")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert child.returncode == 0
    assert "RuntimeError" not in child.stderr
    assert child.stdout.strip() in ("called", "tool_misdefined", "log_closed", "log_unavailable")


def test_an_async_log_is_used_in_one_loop_after_another(quick_folder: Path) -> None:
    """What is not at work in the first loop any more can be used, left and closed in the second."""

    async def first() -> tuple[AsyncLog, Any]:
        log = await AsyncLog.open(quick_folder / "log.db").__aenter__()
        attempt = await log.attempt("order").__aenter__()
        await attempt.step("one").call(note, "x")
        return log, attempt

    async def second(log: AsyncLog, attempt: Any) -> None:
        assert await attempt.step("two").call(note, "y") == "y"
        await attempt.__aexit__(None, None, None)
        assert (await log.verify()).ok
        await log.close()

    asyncio.run(second(*asyncio.run(first())))
    with opened(quick_folder / "log.db", "sync") as face:
        face.goes_on()
