"""When a probe's "not applied" is trusted (DESIGN 4, decision 0006): through the whole library, with real kills.

Field case 21: a probe that says "not there" before the receiver can show a write is asked again, not believed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from intentlog import QUERYABLE, Applied, InDoubt, Log, NotApplied, Resolution, tool
from intentlog.crash import armed

LIMIT, SETTLE = timedelta(seconds=1), timedelta(milliseconds=500)

WORKER = """
    import sys
    from datetime import timedelta
    from intentlog import QUERYABLE, Applied, Log, NotApplied, tool

    @tool(effect=QUERYABLE(settle=timedelta(milliseconds=500)), time_limit=timedelta(seconds=1))
    def push(ref: str) -> str:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)  # what it has begun lives on elsewhere

    @push.probe
    def pushed(ref: str) -> Applied[str] | NotApplied:
        return NotApplied()

    with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
        attempt.call(push, "main")
"""


@tool(effect=QUERYABLE(settle=SETTLE), time_limit=LIMIT)
def push(ref: str) -> str:
    return f"pushed {ref}"


@push.probe
def pushed(ref: str) -> Applied[str] | NotApplied:
    del ref
    return NotApplied()


def killed_late(log: Path, delay_s: float) -> float:
    """A worker stopped just before its call for `delay_s`, then going on and killed inside it. Answers when."""
    program = dedent(WORKER)
    worker = subprocess.Popen([sys.executable, "-c", program, str(log)], env=armed("before_call:1:stop"))
    os.waitpid(worker.pid, os.WUNTRACED)
    time.sleep(delay_s)
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait()
    assert worker.returncode == -signal.SIGKILL
    return time.monotonic()


def test_case_21_a_call_that_began_late_is_given_its_whole_time(tmp_path: Path) -> None:
    """The call began 1.6 s after Dispatched, its owner is dead: "no" counts only from the fence."""
    died_s = killed_late(tmp_path / "log.db", 1.6)
    with Log.open(tmp_path / "log.db") as log:
        (found,) = log.recover()
        assert found.resolution is Resolution.PROBE, "asked, and not believed yet"
        with pytest.raises(InDoubt) as doubt, log.attempt("order") as attempt:
            attempt.call(push, "main")
        assert doubt.value.not_before is not None
        assert doubt.value.not_before > datetime.now(UTC)
        while log.recover()[0].resolution is Resolution.PROBE:
            time.sleep(0.05)
        assert time.monotonic() - died_s >= (LIMIT + SETTLE).total_seconds() - 0.05
        with log.attempt("order") as attempt:
            assert attempt.call(push, "main") == "pushed main"


def test_restarting_again_and_again_does_not_put_the_answer_off(tmp_path: Path) -> None:
    """Each attempt raises a fence; the bound stays with the first of them, so that the doubt ends in time."""
    died_s = killed_late(tmp_path / "log.db", 0.0)
    with Log.open(tmp_path / "log.db") as log:
        for _ in range(200):
            try:
                with log.attempt("order") as attempt:
                    attempt.call(push, "main")
                break
            except InDoubt:
                time.sleep(0.05)
    assert 1.4 <= time.monotonic() - died_s <= 8.0, "limit + settle is 1.5 s; the grace alone would be 10 s more"
