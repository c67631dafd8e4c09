"""What the tests of group commit hold in their hands: a store that stops inside a commit, and callers in order.

Who leads is parked inside its own commit, the others are let into the queue one after the other, and then all go on:
so what shares a commit is decided by the test, and never by time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from intentlog import AsyncLog, Log, Settings
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import Durability
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.run.duty import Duty
from intentlog.store.clock import SystemClock
from intentlog.store.memory import MemoryDisk, MemoryStore
from intentlog.store.postgres import PostgresStore
from intentlog.store.sqlite import SqliteStore

PATIENCE_S = 5


def until(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to be so"
        time.sleep(0.000_5)


class _Gated:
    """Stops inside one append until it is let on, and keeps what each append was given.

    Attributes:
        batches: the records of each append, in the order in which they began.
        threads: on which thread each was made.
        inside: set when one is stopped.
        go_on: lets it on.
        meddle: called with the records of each append before it is made; what it raises is the append's.
        afterwards: called with the replies.
        overlapped: whether two were ever under way at once.
    """

    def _gate(self) -> None:
        self.batches: list[list[Append]] = []
        self.threads: list[int] = []
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.meddle: Callable[[Sequence[Append]], None] | None = None
        self.afterwards: Callable[[list[Appended | Refused]], None] | None = None
        self._parked: str | None = None
        self._busy = threading.Lock()
        self.overlapped = False

    def park(self, kind: str = "") -> None:
        """Stop inside the next append that holds a record of this kind, or inside the next one."""
        self.inside.clear()
        self.go_on.clear()
        self._parked = kind

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        """Append, when nobody holds it back."""
        alone = self._busy.acquire(blocking=False)
        self.overlapped = self.overlapped or not alone
        try:
            self.batches.append([*entries])
            self.threads.append(threading.get_ident())
            kinds = {type(entry.record).__name__ for entry in entries}
            if self._parked is not None and (not self._parked or self._parked in kinds):
                self._parked = None
                self.inside.set()
                assert self.go_on.wait(PATIENCE_S)
            if self.meddle:
                self.meddle(entries)
            replies: list[Appended | Refused] = super().append(entries)  # type: ignore[misc] # of the store beside it
            if self.afterwards:
                self.afterwards(replies)
            return replies
        finally:
            if alone:
                self._busy.release()

    def unseen(self, *entries: Append) -> list[Appended | Refused]:
        """Append, each alone, as another process would: nobody is stopped, and nothing is kept of it."""
        return [super(_Gated, self).append([entry])[0] for entry in entries]  # type: ignore[misc] # as above

    def kinds(self) -> list[list[str]]:
        """What each append held, by the names of its records."""
        return [[type(entry.record).__name__ for entry in batch] for batch in self.batches]

    def branches_of(self, number: int) -> list[str]:
        """Whose records an append held."""
        return [entry.branch for entry in self.batches[number]]


class GatedMemory(_Gated, MemoryStore):
    def __init__(self, disk: MemoryDisk | None = None, owner: str = "memory") -> None:
        self._gate()
        super().__init__(disk or MemoryDisk(), SystemClock(), owner)


class GatedSqlite(_Gated, SqliteStore):
    def __init__(self, path: Path, vfs: str | None = None) -> None:
        self._gate()
        super().__init__(path, SystemClock(), LoggingObserver(), vfs=vfs)


class GatedPostgres(_Gated, PostgresStore):
    def __init__(self, url: str) -> None:
        self._gate()
        super().__init__(url, SystemClock(), LoggingObserver())


AnyGated = GatedMemory | GatedSqlite | GatedPostgres


def engine_of(store: Any) -> Engine:
    clock = store.clock if isinstance(store, PostgresStore) else SystemClock()
    return Engine(store, Settings(), clock, LoggingObserver())


def log_of(store: Any) -> Log:
    return Log(engine_of(store))


def async_log_of(store: Any) -> AsyncLog:
    return AsyncLog(lambda: engine_of(store))


def duty_of(store: Any) -> Duty:
    return Duty(store, LoggingObserver(), lambda _: True)


class Callers:
    """Threads that meet a log in the order in which they are sent."""

    def __init__(self, store: AnyGated, duty: Duty) -> None:
        self._store = store
        self._duty = duty
        self._futures: list[Future[Any]] = []

    def _start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()  # so that one who waits for ever does not keep the tests
        self._futures.append(future)
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()
        wait(self._futures, PATIENCE_S)

    def lead(self, function: Callable[..., Any], *arguments: Any, kind: str = "") -> Future[Any]:
        """One who is inside its commit when this returns, and stays there."""
        self._store.park(kind)
        future = self._start(function, *arguments)
        assert self._store.inside.wait(PATIENCE_S)
        return future

    def follow(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """One who waits for the commit that is under way when this returns."""
        before = self.waiting
        future = self._start(function, *arguments)
        until(lambda: self.waiting > before or future.done())
        return future

    @property
    def waiting(self) -> int:
        """How many wait for the leader."""
        return len(self._duty._group._waiting)

    def let_go(self) -> None:
        """Let the leader on."""
        self._store.go_on.set()


def error_of(future: Future[Any]) -> BaseException | None:
    """What a caller was told."""
    return future.exception(PATIENCE_S)


def result_of(future: Future[Any]) -> Any:
    """What a caller got; never waited for without end."""
    return future.result(PATIENCE_S)


# --- records, as a script would append them ------------------------------------------------------------------------


def opened(branch: str, attempt: int = 1, owner: str = "memory.1") -> Append:
    return Append(branch, r.AttemptOpened(attempt=attempt, owner=owner))


def pending(branch: str, step: str = "charge", attempt: int = 1) -> Append:
    declaration = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=1)
    record = r.Pending(
        attempt=attempt, step=step, tool=step, declaration=declaration, request_id=f"id-{step}", digest="1:00"
    )
    return Append(branch, record, b"{}")


def dispatched(branch: str, step: str = "charge", attempt: int = 1) -> Append:
    return Append(branch, r.Dispatched(attempt=attempt, step=step))


def returned(branch: str, step: str = "charge", attempt: int = 1) -> Append:
    return Append(branch, r.Committed(attempt=attempt, step=step, outcome=r.OutcomeKind.RETURNED), b'"ok"')


def looked(branch: str, step: str) -> Append:
    """What a READ leaves, which waits for its branch's next record."""
    header = r.ReadHeader(
        tool=step, declaration=Declaration(kind=EffectKind.READ, time_limit_ns=1), request_id=step, digest="1:00"
    )
    record = r.Committed(attempt=1, step=step, outcome=r.OutcomeKind.RETURNED, dispatch_no=0, read=header)
    return Append(branch, record, b'"seen"', Durability.EVENTUAL)


def noted(branch: str, name: str, durability: Durability = Durability.EVENTUAL) -> Append:
    return Append(branch, r.ApplicationEvent(attempt=1, name=name), None, durability)


def names_of(store: Any, branch: str) -> list[str]:
    """A branch's records in short: an event by its name, a read by its step, any other by its kind."""
    found = []
    for stored in store.history(branch):
        record = stored.record
        read = record.step if isinstance(record, r.Committed) and record.read else None
        found.append(getattr(record, "name", None) or read or type(record).__name__)
    return found
