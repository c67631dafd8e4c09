"""The package `exactly-once`, with its SQLite store as it comes: a claim before the call, the result after it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from exactly_once import Store, once

from bench.peers.runner import Peer, main, timed

NAME = "exactly_once"


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """One store for all threads."""
    del url
    store = Store.sqlite(str(folder / "exactly_once.db"))

    def effect(key: str) -> None:
        with once(store, key=key) as guard:
            if not guard.fresh:
                raise AssertionError(key)
            guard.result = f"receipt-{key}"

    yield Peer(f"{version(NAME)} (SQLite {sqlite3.sqlite_version})", timed(effect))


if __name__ == "__main__":
    main(opened)
