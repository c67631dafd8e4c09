"""One guarded effect is exactly 3 commits and exactly 3 syncs (DESIGN 1, I7), by three witnesses.

The log's own counters, a SQLite VFS that counts xSync, and strace, which also shows the order: sync, sync, the tool's
own write, sync. A change that merges two of the records fails here.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from counting_vfs import CountingVFS

from intentlog import KEYED, READ, AsyncLog, Durability, Log, Settings, tool
from intentlog.crash import Witness, run
from intentlog.log.engine import open_engine


@tool(effect=KEYED(window=timedelta(hours=24)))
def charge(order: str, cents: int) -> dict[str, int]:
    return {order: cents}


@tool(effect=READ)
def look(order: str) -> str:
    return order.upper()


@tool(effect=READ, durability=Durability.IMMEDIATE)
def ask_model(prompt: str) -> str:
    return prompt


def test_three_commits_and_three_syncs_by_the_counters(tmp_path: Path) -> None:
    """Each effect adds 3 commits and 3 syncs, on a plain log and on an event loop (I7)."""
    with Log.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
        for number in range(5):
            before = log.counters
            attempt.step(f"charge-{number}").call(charge, "a", number)
            assert (log.counters.commits - before.commits, log.counters.syncs - before.syncs) == (3, 3)

    async def main() -> None:
        async with AsyncLog.open(tmp_path / "aio.db") as log, log.attempt("order") as attempt:
            before = log.counters
            await attempt.call(charge, "a", 1)
            assert (log.counters.commits - before.commits, log.counters.syncs - before.syncs) == (3, 3)

    asyncio.run(main())


def test_three_syncs_by_the_vfs(tmp_path: Path) -> None:
    """What SQLite asks of the disk agrees with the counters: 3 xSync an effect, all of the WAL (I7)."""
    vfs = CountingVFS("counting-three")
    engine = open_engine(tmp_path / "log.db", Settings(), read_only=False, vfs=vfs.name)
    with Log(engine) as log, log.attempt("order") as attempt:
        for number in range(20):
            before = vfs.calls.copy()
            attempt.step(f"charge-{number}").call(charge, "a", number)
            assert vfs.calls["xSync", "-wal"] - before["xSync", "-wal"] == 3
            assert vfs.calls["xSync", "log"] == before["xSync", "log"]


def test_a_read_has_no_sync_of_its_own_and_one_if_immediate(tmp_path: Path) -> None:
    """READ: 0 commits and 0 syncs; its record travels with the next one. IMMEDIATE: 1 and 1 (I5)."""
    vfs = CountingVFS("counting-read")
    engine = open_engine(tmp_path / "log.db", Settings(), read_only=False, vfs=vfs.name)
    with Log(engine) as log, log.attempt("order") as attempt:
        before, syncs = log.counters, vfs.syncs()
        assert attempt.call(look, "a") == "A"
        assert (log.counters, vfs.syncs()) == (before, syncs)
        attempt.call(ask_model, "why")
        assert (log.counters.commits - before.commits, log.counters.syncs - before.syncs) == (1, 1)
        assert vfs.syncs() - syncs == 1
    with Log.open(tmp_path / "log.db") as log:
        assert [e.record.step for e in log.history("order") if e.kind == "Committed"] == ["look", "ask_model"]


def test_upkeep_never_falls_inside_an_effect(tmp_path: Path) -> None:
    """Checkpoints come between effects: over many of them each one still has its 3 syncs, and the WAL does not grow."""
    vfs = CountingVFS("counting-upkeep")
    engine = open_engine(tmp_path / "log.db", Settings(), read_only=False, vfs=vfs.name)
    inside: list[int] = []

    @tool
    def effect(number: int) -> int:
        inside.append(vfs.calls["xSync", "-wal"] - start)
        return number

    with Log(engine) as log, log.attempt("order") as attempt:
        size = (tmp_path / "log.db-wal").stat().st_size
        for number in range(200):
            start = vfs.calls["xSync", "-wal"]
            attempt.step(f"e{number}").call(effect, number)
        assert set(inside) == {2}, "two syncs before each call, whatever upkeep does"
        assert log.counters.upkeep_commits > 1, "the WAL was restarted meanwhile"
        assert log.counters.commits == log.counters.syncs == 1 + 3 * 200
        assert (tmp_path / "log.db-wal").stat().st_size == size


PROGRAM = """
    import sys
    from pathlib import Path
    from intentlog import Log, tool
    from intentlog.crash import Witness

    witness = Witness(Path(sys.argv[2]))

    @tool
    def effect(number: int) -> int:
        witness.record(f"effect {number}")
        return number

    with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
        for number in range(3):
            Path(sys.argv[3]).touch()  # a mark in the trace
            attempt.step(f"e{number}").call(effect, number)
        Path(sys.argv[3]).touch()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed; the two other witnesses ran")
def test_sync_sync_call_sync_by_strace(tmp_path: Path) -> None:
    """The kernel sees, for each effect: a sync of the WAL, another, the tool's own write and sync, a third (I1, I7)."""
    program, mark, trace = tmp_path / "program.py", tmp_path / "mark", tmp_path / "trace"
    program.write_text(dedent(PROGRAM), encoding="utf-8")
    calls = "trace=fsync,fdatasync,sync_file_range,msync,openat,write,pwrite64"
    arguments = [str(tmp_path / "log.db"), str(tmp_path / "witness"), str(mark)]
    strace = ["strace", "-f", "-y", "-e", calls, "-o", str(trace)]
    ended = run([*strace, sys.executable, str(program), *arguments], timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    assert Witness(tmp_path / "witness").lines() == ["effect 0", "effect 1", "effect 2"]
    effects = re.split(
        rf'^.*openat\(.*"{re.escape(str(mark))}".*$', trace.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for effect in effects[1:-1]:
        seen = re.findall(r"(fsync|fdatasync|sync_file_range|msync|write)\(\d+<([^>]*)>", effect)
        assert [(call, Path(path).name) for call, path in seen] == [
            ("fdatasync", "log.db-wal"),
            ("fdatasync", "log.db-wal"),
            ("write", "witness"),
            ("fsync", "witness"),
            ("fdatasync", "log.db-wal"),
        ]
