"""The field cases of idempotency keys, with a receiver over HTTP that remembers them, or does not.

See `test_field_cases.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from crash_programs import in_child
from field_case_programs import (
    UNREACHABLE,
    Bench,
    attempt_at,
    charge_at,
    field_tool,
    names,
    opened,
    raised,
    records,
    results,
    run_charge,
    settled,
)

from intentlog import (
    Applied,
    InDoubt,
    NotApplied,
    Retry,
    Settings,
    Unknown,
)
from intentlog.core.records import Instant
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore


class Receiver:
    """A payment provider: one charge for each key that it remembers, and the answer that it saved for it.

    Attributes:
        keys: the key of each request, in order.
        charges: the key of each charge.
        faults: what befalls the next requests: "lost" (charged, no answer), "dropped" (nothing), "500" (saved as such).
        saved: what is answered to a key again.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.charges: list[str] = []
        self.faults: list[str] = []
        self.saved: dict[str, tuple[int, str]] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                answer = receiver._answer(self.headers["Idempotency-Key"])
                if answer is not None:
                    self.send_response(answer[0])
                    self.end_headers()
                    self.wfile.write(answer[1].encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                """Nobody reads it."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.port = int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, key: str) -> tuple[int, str] | None:
        self.keys.append(key)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "dropped":
            return None
        if key not in self.saved:
            self.saved[key] = (500, "internal") if fault == "500" else (201, f"receipt-{len(self.charges) + 1}")
            self.charges += [] if fault == "500" else [key]
        return None if fault == "lost" else self.saved[key]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


# --- case 1 -----------------------------------------------------------------------------------------------------------

# The receiver's faults, the first run's ending, where it dies, and how many requests there are in all.
FIRST_RUNS: dict[str, tuple[list[str], str, str | None, int]] = {
    "answer-lost": (["lost"], "", None, 2),
    "lost-twice": (["dropped", "lost"], "", None, 3),
    "dropped": (["dropped"], "", None, 2),
    "agent-fails-later": ([], "agent-fails", None, 1),
    "killed-before-the-call": ([], "", "before_call", 1),
    "killed-after-the-call": ([], "", "after_call", 2),
    "killed-before-the-record": ([], "", "before_committed", 2),
    "killed-after-the-record": ([], "", "before_closed", 1),
}


@pytest.mark.parametrize(
    ("mode", "first"),
    [*(("sync", first) for first in FIRST_RUNS), ("asyncio", "lost-twice"), ("asyncio", "killed-before-the-record")],
)
def test_case_01_every_attempt_of_a_charge_sends_the_same_key(
    quick_folder: Path, receiver: Receiver, mode: str, first: str
) -> None:
    """Case 1: an agent-level retry is a new attempt: the receiver sees the same key, and makes one charge (I3, I6)."""
    faults, ending, crash_at, requests = FIRST_RUNS[first]
    receiver.faults = list(faults)
    run = partial(in_child, run_charge, str(quick_folder), mode, receiver.port)
    run(ending, crash_at=crash_at)
    for _ in range(2):
        run()
    answers = [line.split() for line in results(quick_folder)]
    assert answers[-1][0] == "3"
    assert {receipt for _, receipt, _ in answers} == {"receipt-1"}
    assert set(receiver.keys) == {key for _, _, key in answers}
    assert receiver.charges == [receiver.keys[0]]
    assert len(receiver.keys) == requests, "what is done is not sent again"


# --- cases 18 and 19 --------------------------------------------------------------------------------------------------


class LaterClock:
    """The machine's clocks, so much later; after a reboot, if wanted, an hour ago."""

    def __init__(self, hours: float, *, rebooted: bool) -> None:
        self._later_ns, self._rebooted, self._clock = int(hours * 3600) * 10**9, rebooted, SystemClock()

    def now(self) -> Instant:
        now = self._clock.now()
        boot = ("b007" * 8, 3600 * 10**9) if self._rebooted else (now.boot_id, now.boot_ns + max(0, self._later_ns))
        return Instant(now.wall_ns + self._later_ns, *boot)


SAVED_500: dict[str, tuple[bool, str | None]] = {  # with a probe that cannot tell?, and where the first run dies
    "no-probe": (False, None),
    "no-probe-killed": (False, "before_call_ended"),
    "probe-unknown-killed": (True, "before_call_ended"),
}


def engine_at(path: Path, clock: LaterClock) -> Engine:
    return Engine(SqliteStore(path, clock, LoggingObserver()), Settings(), clock, LoggingObserver())


# Hours until the restart, the probe's answer (None: no probe), whether it had landed -> what the restart gets.
RESTARTS: dict[str, tuple[float, Any, bool, str]] = {
    "23h": (23, None, True, "sent again"),
    "23h-probe-silent": (23, UNREACHABLE, True, "sent again"),
    "23h-not-landed": (23, None, False, "sent again"),
    "23h55m": (23.92, None, True, "in doubt"),  # the call might end after the key is forgotten
    "25h": (25, None, True, "in doubt"),
    "25h-probe-silent": (25, UNREACHABLE, True, "in doubt"),
    "25h-probe-unknown": (25, Unknown(), True, "in doubt"),
    "25h-probe-landed": (25, Applied("receipt-1"), True, "receipt-1"),
    "25h-probe-not-landed": (25, NotApplied(), False, "sent again"),
    "clock-set-back": (-2, None, True, "in doubt"),
}


@pytest.mark.parametrize("restart", list(RESTARTS))
@pytest.mark.parametrize(("mode", "rebooted"), [("sync", False), ("asyncio", True)], ids=["sync", "asyncio-rebooted"])
def test_case_18_a_key_is_not_sent_again_when_the_receiver_has_forgotten_it(
    quick_folder: Path, receiver: Receiver, mode: str, rebooted: bool, restart: str
) -> None:
    """Case 18: keys are kept for 24 h and the restart comes 25 h later: the probe, or in doubt; never sent (I3, I6).

    Killed with its charge in doubt; 23 h later it is sent again, with the same key.
    """
    hours, answer, landed, wanted = RESTARTS[restart]
    probed = answer is not None
    arguments = (str(quick_folder), mode, receiver.port, "", probed)
    in_child(run_charge, *arguments, crash_at="before_committed" if landed else "before_call")
    if hours >= 24:
        receiver.saved.clear()  # now another request under that key would be another charge
    before = list(receiver.keys)
    handle = field_tool("KEYED", lambda call, _: charge_at(call, receiver.port), mode, answer, probed=probed)
    source = partial(engine_at, quick_folder / "log.db", LaterClock(hours, rebooted=rebooted))

    async def main() -> str:
        async with opened(mode, source) as log:
            await settled(log.recover())
            assert receiver.keys == before, "a recovery sends nothing"
            async with attempt_at(log) as attempt:
                if wanted != "in doubt":
                    return str(await settled(attempt.step("charge").call(handle, "1042")))
                error = await raised(attempt.step("charge").call, handle, "1042")
                assert isinstance(error, InDoubt)
                assert error.effect_ran == "unknown"
                return wanted

    found = asyncio.run(main())
    if wanted == "sent again":
        assert found == "receipt-1"
        assert len(receiver.keys) == len(before) + 1
    else:
        assert (found, receiver.keys) == (wanted, before)
    assert len(set(receiver.keys)) == 1
    assert receiver.charges == receiver.keys[:1], "one charge"


@pytest.mark.parametrize(
    ("mode", "probed", "crash_at"),
    [(mode, probed, crash_at) for mode in ("sync", "asyncio") for probed, crash_at in SAVED_500.values()],
    ids=[f"{mode}-{name}" for mode in ("sync", "asyncio") for name in SAVED_500],
)
def test_case_19_a_saved_500_stays_unknown_and_permits_no_new_key(
    quick_folder: Path, receiver: Receiver, mode: str, probed: bool, crash_at: str | None
) -> None:
    """Case 19: the receiver answers the same 500 under the key again: unknown each time, and the same key (I6).

    Never NOT_SENT, never REJECTED, whatever repeats it: the same attempt, new ones, `Retry`, a restart after a kill.
    """
    bench = Bench(quick_folder, mode)
    receiver.faults = ["500"]
    in_child(run_charge, str(bench.folder), bench.mode, receiver.port, "", probed, crash_at=crash_at)
    make = partial(
        field_tool, "KEYED", lambda call, _: charge_at(call, receiver.port), bench.mode, Unknown(), probed=probed
    )

    async def main() -> list[Any]:
        async with opened(bench.mode, bench.path) as log:
            for retry in (None, None, Retry(times=2, backoff=timedelta(0))):
                handle = make(retry=retry)
                async with attempt_at(log) as attempt:
                    for _ in range(2):
                        error = await raised(attempt.step("charge").call, handle, "1042")
                        assert type(error) is InDoubt
                        assert error.effect_ran == "unknown"
                await settled(log.recover())
            assert (await settled(log.verify())).ok
            return await records(log)

    history = asyncio.run(main())
    assert len(receiver.keys) == 1 + 2 + 2 + 6
    assert len(set(receiver.keys)) == 1
    assert receiver.charges == []
    assert not {"Committed", "Settled", "Renewed"} & set(names(history))
    assert {one.request_id for one in history if hasattr(one, "request_id")} == set(receiver.keys)
