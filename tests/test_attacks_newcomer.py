"""What a newcomer who followed the README found, each as a test of the whole kind of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from intentlog import (
    IDEMPOTENT,
    QUERYABLE,
    READ,
    UNSAFE,
    AsyncLog,
    InDoubt,
    Log,
    LogPoisoned,
    ToolMisdefined,
    Unknown,
    tool,
)

PYTHON = sys.executable


@pytest.mark.parametrize(("mode", "is_async"), [("sync", False), ("asyncio", False), ("asyncio", True)])
@pytest.mark.parametrize(
    "proves", [{"not_sent": LookupError}, {"rejects": LookupError}, {"not_sent": RuntimeError}, {}]
)
def test_a_stop_iteration_proves_nothing(
    quick_folder: Path, mode: str, proves: dict[str, Any], *, is_async: bool
) -> None:
    """A tool that raises StopIteration raised StopIteration: no other error stands in for it and is believed (I4)."""
    calls: list[int] = []

    def plain() -> None:
        calls.append(1)
        next(iter(()))

    async def coroutine() -> None:
        plain()

    pay = tool(effect=UNSAFE, name="pay", step="pay", **proves)(coroutine if is_async else plain)
    path = quick_folder / "log.db"

    async def on_a_loop() -> None:
        async with AsyncLog.open(path) as log, log.attempt("order") as attempt:
            await attempt.call(pay)

    def on_a_thread() -> None:
        with Log.open(path) as log, log.attempt("order") as attempt:
            attempt.call(pay)

    for _ in range(3):
        with pytest.raises(InDoubt):
            asyncio.run(on_a_loop()) if mode == "asyncio" else on_a_thread()
    with Log.open(path) as log:
        (ended,) = [e.record for e in log.history("order") if e.kind == "CallEnded"]
    assert ended.error.type == "StopIteration"
    assert calls == [1]


STUCK = """
    import os, sys
    from datetime import timedelta
    from intentlog import IDEMPOTENT, UNSAFE, InDoubt, Log, Settings, tool

    kills = sys.argv[2] == "kills"

    @tool(effect=IDEMPOTENT if kills else UNSAFE, step="x", time_limit=timedelta(seconds=0.2))
    def pay() -> int:
        if kills:
            os.kill(os.getpid(), 9)
        return 1

    with Log.open(sys.argv[1], settings=Settings(dispatch_grace=timedelta(seconds=0.1))) as log:
        try:
            with log.attempt("order") as attempt:
                attempt.call(pay)
        except InDoubt as doubt:
            print(doubt)
        print(log.unfinished())
"""


def test_who_does_not_have_the_tool_says_what_who_has_it_found(tmp_path: Path) -> None:
    """A tool that was made stricter while its call was in doubt: status and recover say that a person decides."""
    program, log = tmp_path / "stuck.py", str(tmp_path / "log.db")
    program.write_text(dedent(STUCK))
    subprocess.run([PYTHON, str(program), log, "kills"], check=False)
    for _ in range(2):
        said = subprocess.run([PYTHON, str(program), log, "asks"], check=True, capture_output=True, text=True).stdout
        assert "UNSAFE of pay cannot settle it" in said
        assert "called as IDEMPOTENT" in said
        assert said.endswith("[]\n"), "a supervisor need not run it again: a person comes first"
    for command in ("status", "recover", "status"):
        found = subprocess.run([PYTHON, "-m", "intentlog", command, log], check=False, capture_output=True, text=True)
        assert found.returncode == 3, command
        assert "intentlog resolve" in found.stdout
        assert "run the program again" not in found.stdout


@pytest.mark.parametrize("after_s", [0.02, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_a_command_that_is_interrupted_while_it_loads_says_nothing(tmp_path: Path, after_s: float) -> None:
    """Ctrl-C at any moment: no traceback. Before the command runs, it ends like any program that SIGINT ends."""
    Log.open(tmp_path / "log.db").close()
    command = "import intentlog.__main__ as m; print('up', flush=True); raise SystemExit(m.main())"
    process = subprocess.Popen(
        [PYTHON, "-c", command, "tail", "--follow", str(tmp_path / "log.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert "Traceback" not in said
    assert process.returncode in (-signal.SIGINT, 130)


def test_a_background_job_keeps_ignoring_interrupts(tmp_path: Path) -> None:
    """A shell starts a job in the background with SIGINT ignored: the command leaves that as it is."""
    Log.open(tmp_path / "log.db").close()
    process = subprocess.Popen(
        [PYTHON, "-m", "intentlog", "tail", "--follow", str(tmp_path / "log.db")],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509 - as a shell does
        stdout=subprocess.DEVNULL,
    )
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    try:
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("file", ["", "-wal"])
def test_a_log_that_is_cut_short_while_it_is_open_makes_no_call(tmp_path: Path, file: str) -> None:
    """Truncated by somebody else: what follows could not be read back, so nothing is acknowledged or called (I5)."""
    calls: list[int] = []

    @tool(effect=UNSAFE)
    def pay(order: int) -> None:
        calls.append(order)

    path = tmp_path / "log.db"
    with pytest.raises(LogPoisoned) as caught, Log.open(path) as log, log.attempt("order") as attempt:
        attempt.step("first").call(pay, 1)
        os.truncate(f"{path}{file}", 100)
        attempt.step("second").call(pay, 2)
    assert caught.value.effect_ran == "no"
    assert calls == [1]


def test_a_read_that_is_not_made_again_is_nothing_to_warn_of(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is for what would be done twice under a new name; and it names ten steps, not a thousand."""

    @tool(effect=READ)
    def look() -> int:
        return 1

    @tool(effect=UNSAFE)
    def pay(order: int) -> int:
        return order

    with Log.open(quick_folder / "log.db") as log:
        with log.attempt("order") as attempt:
            attempt.step("look").call(look)
            for number in range(12):
                attempt.step(f"pay-{number:02}").call(pay, number)
        with caplog.at_level(logging.WARNING), log.attempt("order"):
            pass
    (said,) = [record.getMessage() for record in caplog.records]
    assert "look" not in said
    assert "pay-09 and 2 others" in said


@pytest.mark.parametrize("name", ["effect", "step", "_not_sent", "prober", "signature"])
def test_nothing_is_changed_of_a_tool_that_is_declared(name: str) -> None:
    """A class that is loosened behind the declaration's back would be believed."""

    @tool(effect=UNSAFE)
    def pay() -> None: ...

    with pytest.raises(ToolMisdefined, match="is declared"):
        setattr(pay, name, IDEMPOTENT)
    assert pay.effect == UNSAFE
    assert timedelta(0) < pay.time_limit


DIES = """
    import os, sys
    from pathlib import Path
    from intentlog import UNSAFE, Call, Log, tool

    @tool(effect=UNSAFE)
    def pay(call: Call, order: int) -> int:
        with Path(sys.argv[2]).open("a") as witness:
            witness.write(call.request_id + "\\n")
        return order

    with Log.open(sys.argv[1]) as log:
        log.recover()
        with log.attempt("order") as attempt:
            for order in range(3):
                attempt.step(f"pay-{order}").call(pay, order)
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("loss", ["deleted", "cut short"])
def test_a_wal_that_is_lost_after_a_death_is_noticed(tmp_path: Path, loss: str) -> None:
    """Without its WAL the log would look sound, and begin anew what is done (I3, I5): it is refused, and says why."""
    program, log, witness = tmp_path / "dies.py", tmp_path / "log.db", tmp_path / "witness"
    program.write_text(dedent(DIES))
    run = [PYTHON, str(program), str(log), str(witness)]
    subprocess.run(run, check=False)
    wal = tmp_path / "log.db-wal"
    kept = wal.read_bytes()
    os.truncate(wal, len(kept) // 2) if loss == "cut short" else wal.unlink()
    again = subprocess.run(run, check=False, capture_output=True, text=True)
    assert "LogDamaged" in again.stderr
    for command in ("status", "verify"):
        found = subprocess.run([PYTHON, "-m", "intentlog", command, log], check=False, capture_output=True, text=True)
        assert found.returncode == 4
        assert "what was recorded since the last checkpoint is lost" in found.stdout + found.stderr
    assert len(witness.read_text().splitlines()) == 3
    wal.write_bytes(kept)
    subprocess.run(run, check=False, capture_output=True)
    assert len(witness.read_text().splitlines()) == 3, "control: with its WAL nothing of it is called again"


def test_a_probe_that_nobody_waits_for_any_more_is_closed(quick_folder: Path) -> None:
    """Cancelled while its coroutine is made: no warning that it was never awaited (each warning fails a test here)."""
    path = quick_folder / "log.db"

    @tool(effect=QUERYABLE(settle=timedelta(0)), name="asked", step="ask-{number}")
    async def ask(number: int) -> int:
        raise TimeoutError

    @ask.probe
    async def found(number: int) -> Unknown:
        await asyncio.sleep(0)
        return Unknown()

    async def main() -> None:
        async with AsyncLog.open(path) as log, log.attempt("order") as attempt:
            for number in range(20):
                with pytest.raises(InDoubt):
                    await attempt.call(ask, number)
            for turns in range(12):
                calls = [asyncio.ensure_future(attempt.call(ask, number)) for number in range(20)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
        gc.collect()

    asyncio.run(main())
