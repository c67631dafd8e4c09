"""What a run of the benches measures: typed records, with the units in their names. They are the JSON in `results/`.

A ratio is always within one run: something, divided by what was measured in between on the same disk. Where there were
several rounds, it is their median, and `..._low` and `..._high` are the least and the largest of them.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import apsw
from msgspec import Struct, field

from intentlog.store.opening import file_system


class Spread(Struct, frozen=True):
    """A figure of several rounds."""

    mid: float
    low: float
    high: float


def spread(rounds: Sequence[float]) -> Spread:
    """The rounds' median, least and largest."""
    return Spread(median(rounds), min(rounds), max(rounds))


class Machine(Struct, frozen=True):
    """Where it ran; no name that would tell whose machine it is."""

    cpus: int
    kernel: str
    file_system: str
    python: str
    apsw: str
    sqlite: str
    load_1_min: float


class RawFloor(Struct, frozen=True):
    """Single raw syncs, at some moment of the run; and what a small `json.dumps` takes, to tell a slow or busy CPU."""

    when: str
    sync_p50_us: float
    sync_p99_us: float
    python_us: float


class Effects(Struct, frozen=True):
    """Guarded effects, so many at once.

    Attributes:
        key: names the scenario, as `asyncio-64`.
        at_once: how many workers (threads, tasks) there are, each with a branch and an open attempt of its own.
        effects: how many were timed, and found in the log afterwards.
        effects_per_s: wall time, all workers together.
        effect_p50_us: how long one effect took its worker.
        x_three_syncs: time per effect, all together, divided by that of three raw syncs taken in between.
        sync_p50_us: one such raw sync.
        commits_per_effect: as the log counts them.
        syncs_per_effect: as the log counts them.
    """

    key: str
    at_once: int
    effects: int
    effects_per_s: Spread
    effect_p50_us: float
    effect_p99_us: float
    x_three_syncs: Spread
    sync_p50_us: float
    commits_per_effect: float
    syncs_per_effect: float


class Growth(Struct, frozen=True):
    """Effects in a log that is so long already."""

    records: int
    file_mib: float
    effect_p50_us: float
    effect_p99_us: float
    x_three_syncs: Spread
    pages_per_commit: float


class Restart(Struct, frozen=True):
    """Opening a log whose last owner was killed, and finding what is open: `open_intents()` and `unfinished()`.

    Attributes:
        warm: with the log in the page cache, as after a killed process.
        cold: with it dropped from the page cache, as after a machine's restart.
        recover_ms: the first `log.recover()`, which appends a classification to each open intent.
    """

    records: int
    open_intents: int
    warm_open_ms: Spread
    warm_scan_ms: Spread
    warm_total_ms: Spread
    cold_total_ms: Spread
    recover_ms: float


class Replay(Struct, frozen=True):
    """Calling recorded steps again, which answers from the record."""

    steps: int
    steps_per_s: Spread


class Import(Struct, frozen=True):
    """`import intentlog` in a fresh interpreter, whose own start is not counted.

    Attributes:
        import_ms: the import alone, which loads only what it must.
        used_ms: the import, and the names that every program with a log uses.
        outside: what is loaded by then that is neither ours nor the standard library's.
        frameworks: what of it has no business here.
        slowest: the modules that take longest themselves, the interpreter's own included.
    """

    import_ms: Spread
    used_ms: Spread
    outside: list[str]
    frameworks: list[str]
    slowest: list[str]


class Size(Struct, frozen=True):
    """What an effect adds to the log's file."""

    effects: int
    bytes_per_effect: float


class McpCalls(Struct, frozen=True):
    """Calls through the MCP guard between pipes, held against the same server's own answers in the same turns.

    Attributes:
        calls: how many were timed, each way.
        standin_p50_us: the same call through the least guard of the same duties (`mcp_standin`).
        three_syncs_p50_us: three raw syncs.
        effect_p50_us: the same effect by the library alone, without pipes.
        added_beyond_syncs_ms: what the guard adds to a call, less three raw syncs.
        standin_added_beyond_syncs_ms: what the least guard adds, less the same.
    """

    calls: int
    direct_p50_us: float
    guarded_p50_us: float
    guarded_p99_us: float
    standin_p50_us: float
    three_syncs_p50_us: float
    effect_p50_us: float
    added_beyond_syncs_ms: Spread
    standin_added_beyond_syncs_ms: Spread


class AtOnce(Struct, frozen=True):
    """A peer's effects, one after the other or 64 at once.

    Attributes:
        kind: `sequential` or `64 threads`.
        sync_p50_us: a raw sync, taken on the same disk between its rounds.
        syncs_per_effect: counted by strace in a run of its own; None where that cannot be done.
    """

    kind: str
    effects: int
    effects_per_s: Spread
    effect_p50_us: float
    effect_p99_us: float
    x_three_syncs: Spread
    sync_p50_us: float
    syncs_per_effect: float | None = None


class Peer(Struct, frozen=True):
    """Another library in the same run on the same disk.

    Attributes:
        absent: why it was not measured, or its syncs not counted; empty if all was.
    """

    name: str
    version: str
    store: str
    what: str
    figures: list[AtOnce]
    absent: str = ""


class Part(Struct, frozen=True):
    """A part of a lone effect."""

    what: str
    p50_us: float


class Run(Struct):
    """Everything that one run measured. What was not asked for is empty; `absent` says why something is not there."""

    machine: Machine
    quick: bool
    floors: list[RawFloor] = field(default_factory=list[RawFloor])
    effects: list[Effects] = field(default_factory=list[Effects])
    standin: list[Effects] = field(default_factory=list[Effects])
    growth: list[Growth] = field(default_factory=list[Growth])
    restart: Restart | None = None
    replay: Replay | None = None
    imported: Import | None = None
    size: Size | None = None
    mcp: McpCalls | None = None
    peers: list[Peer] = field(default_factory=list[Peer])
    parts: list[Part] = field(default_factory=list[Part])
    absent: dict[str, str] = field(default_factory=dict[str, str])


def machine(folder: Path) -> Machine:
    """This machine, and the disk that the folder is on."""
    return Machine(
        cpus=os.cpu_count() or 0,
        kernel=f"{platform.system()} {platform.release()}",
        file_system=file_system(folder) or "unknown",
        python=f"{platform.python_implementation()} {sys.version.split()[0]}",
        apsw=apsw.apsw_version(),
        sqlite=apsw.sqlite_lib_version(),
        load_1_min=round(os.getloadavg()[0], 2),
    )
