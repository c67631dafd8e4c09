"""What the MCP guard adds to a call: the same server, directly and guarded, in turn, with raw syncs in between.

Between pipes, one call at a time, its arguments an order and cents. The guarded calls are new ones, each with its
three commits; in the same turns the library makes the same effect by itself, so that what the pipes and threads of the
guard add can be told from what its commits cost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from bench.effects import CENTS, Missing, charge
from bench.floor import Floor, p50_us, p99_us
from bench.measures import McpCalls, spread
from intentlog import Log

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
_WARM = 20


class _Client:
    """Calls one tool of a server between pipes, and waits for each answer."""

    def __init__(self, command: list[str]) -> None:
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # the same for both
        if self._server.stdin is None or self._server.stdout is None:
            raise AssertionError(command)
        self._to, self._from = self._server.stdin, self._server.stdout
        self._number = 0

    def call_ns(self) -> int:
        """Call; how long until the answer was there, in nanoseconds."""
        self._number += 1
        params = {"name": "charge", "arguments": {"order_id": str(self._number), "cents": CENTS}}
        asked = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        line = json.dumps(asked).encode() + b"\n"
        started = time.perf_counter_ns()
        self._to.write(line)
        self._to.flush()
        answer = self._from.readline()
        took = time.perf_counter_ns() - started
        if b'"done"' not in answer or b"isError" in answer:
            raise Missing(f"the server answered {answer!r}")
        return took

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._to.close()
        self._server.wait()
        self._from.close()


QUICK, FULL = (3, 30), (9, 200)


def measure(folder: Path, rounds: int, times: int) -> McpCalls:
    """Call directly, guarded, and through the library alone, in turn, so many times in each round."""
    guarded_log = folder / "guarded.db"
    guard = [sys.executable, "-m", "intentlog", "mcp", "--log", str(guarded_log), "--server", "bench", "--", *SERVER]
    direct, guarded, effects, threes = list[int](), list[int](), list[int](), list[int]()
    added = list[float]()
    with (
        Floor(folder) as floor,
        _Client(SERVER) as plain,
        _Client(guard) as behind,
        Log.open(folder / "library.db") as log,
        log.attempt("order-1") as attempt,
    ):
        for number in range(_WARM):
            plain.call_ns()
            behind.call_ns()
            attempt.call(charge, f"warm-{number}", cents=CENTS)
        for number in range(rounds):
            first = len(direct)
            for turn in range(times):
                direct.append(plain.call_ns())
                guarded.append(behind.call_ns())
                threes.append(floor.three())
                started = time.perf_counter_ns()
                attempt.call(charge, f"{number}-{turn}", cents=CENTS)
                effects.append(time.perf_counter_ns() - started)
            added.append(median(guarded[first:]) - median(direct[first:]) - median(threes[first:]))
    with Log.open(guarded_log) as log:
        found = sum(entry.kind == "Committed" for entry in log.tail(8 * (len(guarded) + _WARM)))
    if found != len(guarded) + _WARM:
        raise Missing(f"{found} calls are in the guard's log, {len(guarded) + _WARM} were made")
    return McpCalls(
        calls=len(guarded),
        direct_p50_us=p50_us(direct),
        guarded_p50_us=p50_us(guarded),
        guarded_p99_us=p99_us(guarded),
        three_syncs_p50_us=p50_us(threes),
        effect_p50_us=p50_us(effects),
        added_beyond_syncs_ms=spread([one / 1e6 for one in added]),
    )
