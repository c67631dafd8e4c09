"""effect-ledger, with its SQLite store as it comes: a claim before the call, the result after it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from effect_ledger import EffectExecutor

from bench.peers.runner import Peer, main, timed


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """One executor for all threads."""
    del url
    executor = EffectExecutor(str(folder / "effect_ledger.db"), scope="bench")

    def effect(key: str) -> object:
        done = executor.execute(key, "charge:v1", {"order_id": key, "cents": 1999}, lambda _: f"receipt-{key}")
        if done.state != "completed":
            raise AssertionError(done)
        return done

    yield Peer(f"{version('effect-ledger')} (SQLite {sqlite3.sqlite_version})", timed(effect))


if __name__ == "__main__":
    main(opened)
