"""What the MCP guard adds to a call: the same server, directly and guarded, in turn, with raw syncs in between.

Between pipes, one call at a time, its arguments an order and cents. The guarded calls are new ones, each with its
three commits; in the same turns the library makes the same effect by itself, and the least guard of the same duties
(`mcp_standin`) passes on the same call, so that what the guard adds can be told from what commits and pipes cost here.
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


class _Taken:
    """How long each call took, each way, in nanoseconds; and of each round what a way added beyond three raw syncs."""

    def __init__(self) -> None:
        self.direct, self.guarded, self.standin, self.effects, self.threes = [list[int]() for _ in range(5)]
        self.added, self.standin_added = list[float](), list[float]()

    def end_round(self, calls: int) -> None:
        """The last so many calls were a round."""
        floor = median(self.direct[-calls:]) + median(self.threes[-calls:])
        self.added.append((median(self.guarded[-calls:]) - floor) / 1e6)
        self.standin_added.append((median(self.standin[-calls:]) - floor) / 1e6)


def measure(folder: Path, rounds: int, times: int) -> McpCalls:
    """Call directly, guarded, by the stand-in and through the library alone, in turn, so many times in each round."""
    guarded_log = folder / "guarded.db"
    guard = [sys.executable, "-m", "intentlog", "mcp", "--log", str(guarded_log), "--server", "bench", "--", *SERVER]
    standin = [sys.executable, "-m", "bench.mcp_standin", str(folder / "standin.db"), *SERVER]
    taken = _Taken()
    with (
        Floor(folder) as floor,
        _Client(SERVER) as plain,
        _Client(guard) as behind,
        _Client(standin) as least,
        Log.open(folder / "library.db") as log,
        log.attempt("order-1") as attempt,
    ):
        for number in range(_WARM):
            for client in (plain, behind, least):
                client.call_ns()
            attempt.call(charge, f"warm-{number}", cents=CENTS)
        for number in range(rounds):
            for turn in range(times):
                taken.direct.append(plain.call_ns())
                taken.guarded.append(behind.call_ns())
                taken.threes.append(floor.three())
                taken.standin.append(least.call_ns())
                started = time.perf_counter_ns()
                attempt.call(charge, f"{number}-{turn}", cents=CENTS)
                taken.effects.append(time.perf_counter_ns() - started)
            taken.end_round(times)
    made = len(taken.guarded) + _WARM
    with Log.open(guarded_log) as log:
        found = sum(entry.kind == "Committed" for entry in log.tail(8 * made))
    if found != made:
        raise Missing(f"{found} calls are in the guard's log, {made} were made")
    return McpCalls(
        calls=len(taken.guarded),
        direct_p50_us=p50_us(taken.direct),
        guarded_p50_us=p50_us(taken.guarded),
        guarded_p99_us=p99_us(taken.guarded),
        standin_p50_us=p50_us(taken.standin),
        three_syncs_p50_us=p50_us(taken.threes),
        effect_p50_us=p50_us(taken.effects),
        added_beyond_syncs_ms=spread(taken.added),
        standin_added_beyond_syncs_ms=spread(taken.standin_added),
    )
