"""The small measures: replay of recorded steps, `import intentlog`, and the bytes that an effect adds to the log."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.effects import CENTS, Missing, charge
from bench.measures import Import, Replay, Size, spread
from intentlog import Log

# What a library that guards calls has no business to load: none of these may come with `import intentlog`.
FRAMEWORKS = frozenset(
    {"aiohttp", "django", "fastapi", "flask", "httpx", "langchain", "langgraph", "mcp", "opentelemetry", "psycopg"}
    | {"pydantic", "pydantic_ai", "requests", "rich", "sqlalchemy", "starlette", "typer", "uvicorn"}
)
_SLOWEST = 8


def replay(folder: Path, steps: int, rounds: int) -> Replay:
    """Record steps once; then run through them in one new attempt after the other, which commits nothing for them."""
    branch, speeds = "order-1042", list[float]()
    with Log.open(folder / "replay.db") as log:
        with log.attempt(branch) as attempt:
            receipts = [attempt.call(charge, str(order), cents=CENTS) for order in range(steps)]
        for _ in range(rounds):
            with log.attempt(branch) as attempt:
                commits, started = log.counters.commits, time.perf_counter()
                replayed = [attempt.call(charge, str(order), cents=CENTS) for order in range(steps)]
                speeds.append(steps / (time.perf_counter() - started))
                if replayed != receipts or log.counters.commits != commits:
                    raise Missing("a replay returned something else, or wrote something")
    return Replay(steps, spread(speeds))


# The package loads its names when they are first used: the import alone would say little.
_USE = "from intentlog import Log, tool, KEYED"
_IMPORT = f"""
import json, sys, time
before = set(sys.modules)
started = time.perf_counter()
import intentlog
alone_ms = (time.perf_counter() - started) * 1e3
{_USE}
used_ms = (time.perf_counter() - started) * 1e3
print(json.dumps([alone_ms, used_ms, sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})]))
"""


def imported(rounds: int) -> Import:
    """Import the library in fresh interpreters. The first one, which may have to compile, is not counted."""
    alone, used, modules = list[float](), list[float](), list[str]()
    for number in range(rounds + 1):
        done = subprocess.run([sys.executable, "-c", _IMPORT], check=True, capture_output=True, text=True)
        alone_ms, used_ms, modules = json.loads(done.stdout)
        if number:
            alone.append(alone_ms)
            used.append(used_ms)
    traced = [sys.executable, "-X", "importtime", "-c", _USE]
    lines = subprocess.run(traced, check=True, capture_output=True, text=True).stderr.splitlines()
    parts = [line.removeprefix("import time:").split("|") for line in lines if "|" in line]
    own = sorted(((int(p[0]), p[2].strip()) for p in parts if p[0].strip().isdigit()), reverse=True)
    outside = [name for name in modules if name not in sys.stdlib_module_names and name != "intentlog"]
    return Import(
        import_ms=spread(alone),
        used_ms=spread(used),
        outside=outside,
        frameworks=sorted(FRAMEWORKS & set(outside)),
        slowest=[f"{name} {took_us / 1e3:.1f} ms" for took_us, name in own[:_SLOWEST]],
    )


def size(folder: Path, effects: int) -> Size:
    """The log's file before and after many effects of one attempt, its WAL written back by closing."""
    path = folder / "size.db"

    def run(first: int, last: int) -> int:
        with Log.open(path) as log, log.attempt(f"order-{first}") as attempt:
            for order in range(first, last):
                attempt.call(charge, str(order), cents=CENTS)
        with Log.open(path):  # completes the checkpoint that closing may have left undone
            return path.stat().st_size

    before = run(0, effects)
    return Size(effects, (run(effects, 2 * effects) - before) / effects)
