"""The benches at a tiny scale, without any timing: that they measure what they say, and count what they make."""

import asyncio
import json
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path

import psycopg
import pytest

from bench import biglog, effects, growth, mcp, postgres, small, standin, table
from bench.floor import FILE_BYTES, RECORD_BYTES, Floor, percentile
from bench.measures import (
    AtOnce,
    Effects,
    Growth,
    Import,
    Machine,
    McpCalls,
    Peer,
    Replay,
    Restart,
    Run,
    Size,
    Spread,
    spread,
)
from bench.peers import compare
from intentlog import Log
from intentlog.store.wal import wal_of

ONE = Spread(1.0, 1.0, 1.0)
TINY = effects.Amount(2, 3, 60.0)
BENCH = Path(table.__file__).parent


def whole_run() -> Run:
    """A run in which everything was measured that the benches can measure."""
    at_once = [("threads", n) for n in effects.THREADS] + [("asyncio", n) for n in effects.TASKS]
    workers = [("sync", 1), *((f"{kind}-{n}", n) for kind, n in at_once)]
    return Run(
        Machine(2, "Linux", "ext4", "CPython", "3", "3", 0.0),
        quick=False,
        effects=[Effects(key, n, 1, ONE, 1.0, 1.0, ONE, 1.0, 3.0, 3.0) for key, n in workers],
        standin=[Effects(key, 1, 1, ONE, 1.0, 1.0, ONE, 1.0, 3.0, 3.0) for key in ("sync", "asyncio-64")],
        growth=[Growth(records, 1.0, 1.0, 1.0, ONE, 5.0) for records in growth.FULL_RECORDS],
        restart=Restart(1, 100, ONE, ONE, ONE, ONE, 1.0),
        replay=Replay(1, ONE),
        imported=Import(ONE, ONE, [], [], []),
        size=Size(1, 1.0),
        mcp=McpCalls(1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ONE, ONE),
        peers=[Peer("one", "1", "SQLite", "", [AtOnce("sequential", 1, ONE, 1.0, 1.0, ONE, 1.0)], absent="gone")],
        absent={"postgresql": "not built"},
    )


def test_each_target_has_a_measure() -> None:
    run = whole_run()
    without = [one for one in table.TARGETS if one.measure(run) is None]
    assert {one.verdict(run) for one in without} == {"not built"}
    assert all(one.key == table.PG for one in without)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    run = Run(whole_run().machine, quick=True)
    assert {one.verdict(run) for one in table.TARGETS} == {table.NOT_RUN}


def test_a_target_is_met_or_missed() -> None:
    fast, slow = whole_run(), whole_run()
    slow.effects = [Effects("threads-64", 64, 1, Spread(9.0, 9.0, 9.0), 1.0, 1.0, ONE, 1.0, 3.0, 3.0)]
    fast.effects = [Effects("threads-64", 64, 1, Spread(1e6, 1e6, 1e6), 1.0, 1.0, ONE, 1.0, 3.0, 3.0)]
    threads = next(one for one in table.TARGETS if one.what == "64 threads")
    assert (threads.verdict(fast), threads.verdict(slow)) == ("met", "MISSED")


def test_the_text_tells_every_part() -> None:
    run = whole_run()
    text = table.text(run)
    told = (
        [one.what for one in table.TARGETS]
        + [one.key for one in run.effects]
        + [f"stand-in, {one.key}" for one in run.standin]
        + ["NOT MEASURED (its syncs): gone", "not built"]
    )
    assert [part for part in told if part not in text] == []


def test_the_floor_writes_over_what_is_there(tmp_path: Path) -> None:
    with Floor(tmp_path) as floor:
        assert len(floor.take(5)) == 5
        assert min(floor.one(), floor.three()) > 0
        written = (tmp_path / "floor").read_bytes()
    assert len(written) == FILE_BYTES
    assert written.count(b"\x5a") == 9 * RECORD_BYTES
    assert not (tmp_path / "floor").exists()


def test_figures() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(list(range(100)), 99) == 99
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_a_lone_effect_is_three_commits(tmp_path: Path) -> None:
    found = effects.lone_sync(tmp_path, TINY)
    assert (found.effects, found.commits_per_effect, found.syncs_per_effect) == (6, 3.0, 3.0)
    each = effects.attempt_each(tmp_path, TINY)
    assert each.commits_per_effect == 5.0


def test_many_at_once_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "FLOOR_SYNCS", 2)
    by_threads = effects.threads(tmp_path, 3, TINY)
    by_tasks = asyncio.run(effects.tasks(tmp_path, 3, TINY))
    alone = asyncio.run(effects.tasks(tmp_path, 1, TINY))
    assert (by_threads.effects, by_tasks.effects, alone.effects) == (18, 18, 6)
    assert alone.commits_per_effect == 3.0
    assert max(by_threads.commits_per_effect, by_tasks.commits_per_effect) <= 3.0


def test_the_stand_in_makes_the_same_commits(tmp_path: Path) -> None:
    """It is a floor only if it does what it is held against: three commits an effect, shared by different ones."""
    alone = standin.lone(tmp_path, TINY)
    together = asyncio.run(standin.at_once(tmp_path, 3, TINY))
    assert (alone.effects, alone.commits_per_effect) == (6, 3.0)
    assert (together.effects, together.commits_per_effect <= 3.0) == (18, True)
    with sqlite3.connect(tmp_path / "standin-lone.db") as log:
        kinds = [json.loads(text)["kind"] for (text,) in log.execute("SELECT record FROM events ORDER BY seq")]
    assert kinds == ["Pending", "Dispatched", "Committed"] * 7


def test_a_missing_effect_is_told(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log.db") as log:
        with log.attempt("order-0") as attempt:
            attempt.call(effects.charge, "1", cents=1)
        effects.check_there(log.history("order-0"), 1, "order-0")
        with pytest.raises(effects.Missing):
            effects.check_there(log.history("order-0"), 2, "order-0")


def test_a_big_log_is_a_sound_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biglog, "OPEN_INTENTS", 3)
    big = biglog.make(tmp_path / "big.db", 600)
    with Log.open(big.path) as log:
        report = log.verify()
        assert report.ok
        assert report.records == big.records
        found = log.open_intents()
        assert (len(found), {one.in_doubt for one in found}) == (3, {True})
        with log.attempt(big.closed[-1]) as attempt:
            attempt.call(effects.charge, "0", cents=effects.CENTS)  # recorded: replayed
            before = log.counters.commits
            attempt.call(effects.charge, "new", cents=effects.CENTS)
        assert log.counters.commits - before == 4
        frames = growth.frames_of(wal_of(big.path))
    assert frames.commits == 6  # the keeper's own first
    assert frames.frames > frames.commits


def test_small_measures(tmp_path: Path) -> None:
    assert small.replay(tmp_path, 3, 1).steps == 3
    assert 200 < small.size(tmp_path, 12).bytes_per_effect < 4096


def test_syncs_are_counted_in_what_strace_writes(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(
        "12 fdatasync(5) = 0\n12 fsync(7 <unfinished ...>\n13 fdatasync(5) = 0\n12 <... fsync resumed>) = 0\n",
        encoding="utf-8",
    )
    assert postgres.syncs_in(trace) == 3


def test_effects_on_postgresql(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scenarios on a server, held against rows of a commit each: three commits an effect, and shared ones."""
    monkeypatch.setattr(effects, "FLOOR_SYNCS", 2)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        floor = postgres.RowFloor(connection)
        alone = effects.lone("pg-1", postgres_url, floor, TINY)
        by_tasks = asyncio.run(effects.together("pg-3", postgres_url, floor, 3, TINY))
        rows = connection.execute("SELECT count(*), sum(length(body)) FROM floor").fetchall()
    assert (alone.effects, alone.commits_per_effect, by_tasks.effects) == (6, 3.0, 18)
    assert by_tasks.commits_per_effect <= 3.0
    assert rows[0][1] == rows[0][0] * RECORD_BYTES > 0


def test_the_bench_brings_its_server_along(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no server is installed, the wheel's is run, by a user who may not reach where the wheel is."""
    monkeypatch.setattr(postgres, "SYSTEM", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    folder = Path(tempfile.mkdtemp(prefix="intentlog-bench-"))  # in reach of the server's user, as `tmp_path` is not
    folder.chmod(0o755)
    request.addfinalizer(lambda: shutil.rmtree(folder))
    with postgres.server(folder / "server") as running, psycopg.connect(running.url) as connection:
        assert connection.execute("SHOW fsync").fetchall() == [("on",)]
        assert connection.info.server_version >= 180_000


def test_each_peer_has_a_runner_and_pinned_versions() -> None:
    for name in {spec.name for spec in compare.SPECS}:
        assert (BENCH / "peers" / f"run_{name}.py").is_file()
        if name != "intentlog":
            pinned = (BENCH / "peers" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
            assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.]+", line) for line in pinned)


def test_a_peer_that_does_not_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Path:
        raise compare.Absent(f"{name} does not install")

    monkeypatch.setattr(compare, "environment", absent)
    monkeypatch.setattr(compare, "server", lambda *_, **__: (_ for _ in ()).throw(compare.Absent("no server")))
    peers = compare.measure(tmp_path, quick=True, tell=lambda _: None)
    assert [(one.name, bool(one.absent), one.figures) for one in peers] == [(s.name, True, []) for s in compare.SPECS]


def test_the_guard_between_pipes_is_measured(tmp_path: Path) -> None:
    """Each call of each round is in the guard's log: what was passed by it would be missing, and the run would fail."""
    found = mcp.measure(tmp_path, 2, 5)
    assert found.calls == 10
    assert found.guarded_p50_us > found.direct_p50_us > 0
