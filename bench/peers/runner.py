"""What every runner of a peer shares: effects that do nothing are made, and how long each took is printed, as JSON.

A runner is `python -m bench.peers.run_NAME FOLDER KIND ROUNDS PER_WORKER [URL]`, in the environment of the peer: only
the standard library is imported here. KIND is `sequential` or `at-once`. It prints for each round the time that all
effects took together, each effect's own, and raw syncs taken on the same disk around the round, in nanoseconds.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bench.floor import Floor

AT_ONCE = 64
FLOOR_SYNCS = 60
Times = list[tuple[int, int]]  # when each effect began and ended
Ready = Callable[[], object]  # waits for the other workers: called when all is open, right before the first effect
Effects = Callable[[str, int, Ready], Times]


class Peer(NamedTuple):
    """A peer, ready to be used.

    Attributes:
        version: its version, with that of what stores for it.
        effects: makes so many effects in a row on this thread, in one workflow, graph or attempt, and times each. It is
            given another name each time, also by threads that call it at once.
    """

    version: str
    effects: Effects


OpenPeer = Callable[[Path, str], AbstractContextManager[Peer]]


def timed(effect: Callable[[str], object]) -> Effects:
    """The `effects` of a peer that guards single calls: it is given a key that was never used."""

    def effects(name: str, count: int, ready: Ready) -> Times:
        times: Times = []
        ready()
        for number in range(count):
            key = f"{name}-{number}"
            began = time.perf_counter_ns()
            effect(key)
            times.append((began, time.perf_counter_ns()))
        return times

    return effects


def _at_once(peer: Peer, name: str, per_worker: int) -> Times:
    found: list[Times] = []
    failed: list[BaseException] = []
    ready = threading.Barrier(AT_ONCE)

    def work(worker: int) -> None:
        try:
            found.append(peer.effects(f"{name}-{worker}", per_worker, ready.wait))
        except BaseException as error:  # noqa: BLE001 - told on the main thread
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [one for times in found for one in times]


def main(open_peer: OpenPeer) -> None:
    """Run as the command line says."""
    folder, kind, rounds, per_worker, *rest = sys.argv[1:]
    done: list[dict[str, object]] = []
    with Floor(Path(folder)) as floor, open_peer(Path(folder), rest[0] if rest else "") as peer:
        peer.effects("warm", 5, int)
        for number in range(int(rounds)):
            syncs = floor.take(FLOOR_SYNCS)
            if kind == "at-once":
                times = _at_once(peer, f"round-{number}", int(per_worker))
                elapsed = max(end for _, end in times) - min(began for began, _ in times)
            else:
                times = peer.effects(f"round-{number}", int(per_worker), int)
                elapsed = sum(end - began for began, end in times)
            syncs += floor.take(FLOOR_SYNCS)
            took = [end - began for began, end in times]
            done.append({"elapsed_ns": elapsed, "effects_ns": took, "syncs_ns": syncs})
        version = peer.version
    print(json.dumps({"version": version, "rounds": done}))
