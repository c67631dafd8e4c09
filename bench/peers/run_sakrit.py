"""sakrit, with its SQLite ledger as it comes: a claim and a permission before the call, the result after it."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from sakrit import ArgClass, EffectDecl, Sakrit, SqliteLedger

from bench.peers.runner import Peer, Ready, Times, main, timed


def charge(order_id: str, cents: int) -> str:
    """An effect without an effect."""
    return f"receipt-{order_id}-{cents}"


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """One ledger on the main thread; else one for each thread, as it wants it, on a file that several workers share."""
    del url
    declared = EffectDecl("charge", {"order_id": ArgClass.IDENTITY, "cents": ArgClass.IDENTITY})
    alone = SqliteLedger(str(folder / "sakrit.db"))
    SqliteLedger(str(folder / "shared.db"), multi_worker=True)

    def effects(name: str, count: int, ready: Ready) -> Times:
        is_main = threading.current_thread() is threading.main_thread()
        ledger = alone if is_main else SqliteLedger(str(folder / "shared.db"), multi_worker=True)
        sakrit = Sakrit(ledger, secret=b"a secret of the bench, 32 bytes.")

        def effect(key: str) -> object:
            return sakrit.guard(declared, charge, kwargs={"order_id": key, "cents": 1999}, key=key)

        return timed(effect)(name, count, ready)

    yield Peer(f"{version('sakrit')} (SQLite {sqlite3.sqlite_version})", effects)


if __name__ == "__main__":
    main(opened)
