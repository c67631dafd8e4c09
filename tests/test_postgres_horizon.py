"""A reader of all branches misses nothing that commits late: it reads no further than what is decided."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from postgres_proxy import Act, Proxy, Trap

from intentlog.core import records as r
from intentlog.core.actions import Append
from intentlog.observe import LoggingObserver
from intentlog.store import postgres_reads
from intentlog.store.clock import SystemClock
from intentlog.store.postgres import PostgresStore


class Late:
    """A record whose place is taken and whose COMMIT is held back, and one that was committed after it.

    Attributes:
        reader: a reader's store.
    """

    def __init__(self, through: str, url: str, proxy: Proxy) -> None:
        clock, observer = SystemClock(), LoggingObserver()
        self._slow, self._quick = PostgresStore(through, clock, observer), PostgresStore(url, clock, observer)
        self.reader = PostgresStore(url, clock, observer, reader=True)
        self._quick.append([noted("quick", "first")])
        self._trap: Trap = proxy.at_commit(Act.HOLD_BEFORE, matching=lambda sent: b"late" in sent)
        self._thread = threading.Thread(target=self._slow.append, args=([noted("slow", "late")],), daemon=True)
        self._thread.start()
        self._trap.wait()
        self._quick.append([noted("quick", "second")])

    def land(self) -> None:
        self._trap.release()
        self._thread.join()

    def append(self, name: str) -> None:
        self._quick.append([noted("quick", name)])

    def close(self) -> None:
        for store in (self._slow, self._quick, self.reader):
            store.close()


def noted(branch: str, name: str) -> Append:
    return Append(branch, r.ApplicationEvent(attempt=1, name=name))


def names(store: PostgresStore, after: int = 0) -> list[str]:
    return [stored.record.name for stored in store.history(None, after=after)]


@pytest.fixture
def late(postgres_log_url: str, postgres_proxy: Proxy) -> Iterator[Late]:
    through = f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}"
    made = Late(through, postgres_log_url, postgres_proxy)
    yield made
    made.land()
    made.close()


def test_what_commits_late_is_not_skipped(late: Late) -> None:
    """`ports.Store.history`: who reads on behind the last record that it saw meets the one that was committed late."""
    seen = list(late.reader.history(None))
    assert [stored.record.name for stored in seen] == ["first"]
    assert late.reader.newest_seq() == seen[-1].seq
    assert [stored.record.name for stored in late.reader.history("quick")] == ["first", "second"], (
        "a branch has no holes"
    )
    late.land()
    late.append("third")
    assert names(late.reader, after=seen[-1].seq) == ["late", "second", "third"]


def test_without_the_horizon_it_is_skipped(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a reader that goes by what it can see goes past the place that is still to be filled."""
    monkeypatch.setattr(PostgresStore, "_horizon", lambda self: 1 << 60)
    seen = list(late.reader.history(None))
    assert [stored.record.name for stored in seen] == ["first", "second"]
    late.land()
    assert names(late.reader, after=seen[-1].seq) == []


def test_a_place_that_was_given_back_holds_nobody_up(late: Late, postgres_proxy: Proxy) -> None:
    """A transaction that is rolled back leaves a gap, and its mark ends with it."""
    postgres_proxy.cut()
    late._thread.join()  # it was made once more, at another place
    assert names(late.reader) == ["first", "second", "late"]


@pytest.mark.parametrize(
    ("newest", "key", "place"),
    [
        (10, 7, 7),
        (10, 10, 10),
        (10, 12, 10),  # taken after the newest place was read: above it
        ((5 << 31) + 3, 1, (5 << 31) + 1),
        ((5 << 31) + 3, (1 << 31) - 2, (5 << 31) - 2),
        ((5 << 31) - 2, 1, (5 << 31) - 2),
    ],
)
def test_a_key_stands_for_the_nearest_place(newest: int, key: int, place: int) -> None:
    """31 bits of a place are in the key: which place it is, the newest one tells."""
    assert postgres_reads._below(newest, key) == place
