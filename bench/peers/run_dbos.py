"""DBOS: a step of a workflow, recorded after it ran. On SQLite, or on PostgreSQL if a URL is given."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from dbos import DBOS

from bench.peers.runner import Peer, Ready, Times, main


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """A workflow for each worker; its steps are timed inside it, its own beginning and end are not."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url or f"sqlite:///{folder}/dbos.sqlite",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    def charge(order_id: str, cents: int) -> str:
        return f"receipt-{order_id}-{cents}"

    @DBOS.workflow()
    def work(name: str, count: int) -> Times:
        times: Times = []
        waiting.pop(name)()
        for number in range(count):
            began = time.perf_counter_ns()
            charge(str(number), 1999)
            times.append((began, time.perf_counter_ns()))
        return times

    waiting: dict[str, Ready] = {}  # not an argument of the workflow: those are recorded

    def effects(name: str, count: int, ready: Ready) -> Times:
        waiting[name] = ready
        return work(name, count)

    DBOS.launch()
    store = "PostgreSQL" if url else f"SQLite {sqlite3.sqlite_version}"
    yield Peer(f"{version('dbos')} ({store})", effects)
    DBOS.destroy()


if __name__ == "__main__":
    main(opened)
