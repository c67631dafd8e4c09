"""This library, in the same form as its peers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import apsw

from bench.effects import CENTS, charge
from bench.peers.runner import Peer, Ready, Times, main
from intentlog import Log


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """An attempt for each worker and round, opened and closed outside of what is timed."""

    def effects(name: str, count: int, ready: Ready) -> Times:
        times: Times = []
        with log.attempt(name) as attempt:
            ready()
            for number in range(count):
                began = time.perf_counter_ns()
                attempt.call(charge, str(number), cents=CENTS)
                times.append((began, time.perf_counter_ns()))
        return times

    with Log.open(url or folder / "intentlog.db") as log:
        yield Peer(f"{version('intentlog')} (SQLite {apsw.sqlite_lib_version()})", effects)


if __name__ == "__main__":
    main(opened)
