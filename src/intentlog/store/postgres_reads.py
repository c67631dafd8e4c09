"""The reading half of a PostgreSQL log: through a pool, since several threads read, and each waits for a network."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

import msgspec
import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from intentlog.core import codec
from intentlog.core.actions import BranchView, View
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.errors import IntentLogError, LogClosed, LogDamaged, LogPoisoned, LogUnavailable, WrongProcess
from intentlog.store import pages, whole
from intentlog.store.postgres_address import Address
from intentlog.store.postgres_clock import DatabaseClock
from intentlog.store.postgres_errors import failure_of
from intentlog.store.postgres_opening import Link, connect
from intentlog.store.postgres_schema import COLUMNS, INDEXES, NO_OPERATION, NO_STEP, STRAYS, Texts

READS_MAX = 4  # connections, and so reads at once
POOL_TIMEOUT_S = 10.0
MARK_BITS = 31  # of a place, in the key of an advisory lock

T = TypeVar("T")
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, OverflowError)


class PostgresReads(ABC):
    """Reads of one log. Safe from several threads at once."""

    is_remote = True

    _address: Address
    _texts: Texts
    _clock: DatabaseClock
    _pool: ConnectionPool[Link]
    _pid: int
    _poison: str | None
    _closed: bool

    @abstractmethod
    def remembered(self, branch: str, step: str) -> View | None:
        """See `ports.Store.remembered`."""

    # --- whether it may be used --------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """See `ports.Store.check_process`."""
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"{self._address.name} was opened in process {self._pid}, this is its child {os.getpid()}"
            )

    def _check(self) -> None:
        self.check_process()
        if self._closed:
            raise LogClosed(f"{self._address.name} was closed")
        if self._poison is not None:
            raise LogPoisoned(
                f"an earlier commit of {self._address.name} failed, its fate is unknown: {self._poison}",
                remedy="look at the server, open the log again, and run recover.",
            )

    # --- how a read is made ------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[Link], T]) -> T:
        """Read through the pool. A connection that was found dead is replaced, and the read made once more."""
        self._check()
        is_last = False
        while True:
            try:
                with self._pool.connection(POOL_TIMEOUT_S) as link, self._reading():
                    return work(link)
            except PoolTimeout as error:
                raise self._exhausted() from error
            except PoolClosed:
                raise LogClosed(f"{self._address.name} was closed") from None
            except LogUnavailable as failure:
                is_lost = isinstance(failure.__cause__, psycopg.OperationalError | psycopg.InterfaceError)
                if is_last or not is_lost:
                    raise
                is_last = True
                self._pool.check()

    def _exhausted(self) -> IntentLogError:
        """Why no connection could be had: the server's own words, or that all are in use."""
        try:
            link, _ = connect(self._address)
        except LogUnavailable as failure:
            return failure
        link.close()
        return LogUnavailable(
            f"{self._address.name}: all {READS_MAX} connections for reads were in use for {POOL_TIMEOUT_S:.0f} s",
            remedy="look for reads that take long, such as a verify, and try again.",
        )

    @contextmanager
    def _reading(self) -> Generator[None]:
        """A block of reads, in which what cannot be read is told in the library's words."""
        try:
            yield
        except psycopg.Error as error:
            raise failure_of(self._address, error) from error
        except _UNDECODABLE as error:
            raise LogDamaged(f"{self._address.name} is damaged: {type(error).__name__}: {error}") from error

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[pages.Row]:
        return self._read(lambda link: link.execute(query.encode(), values, binary=True).fetchall())

    # --- reads -------------------------------------------------------------------------------------------------------

    def view(self, branch: str, step: str, generation: int | None = None) -> View:
        """See `ports.Store.view`. One statement, so that it is of one snapshot."""
        self._check()
        known = self.remembered(branch, step) if generation is None else None
        if known is not None:
            return known
        if generation is None:
            rows = self._rows(self._texts.view_newest, (branch, step))
        else:
            rows = self._rows(self._texts.view, (branch, step, generation))
        now_ns, row, operation = rows[0]
        with self._reading():
            return View(_branch(row), _operation(operation), self._clock.read(now_ns))

    def branch_view(self, branch: str) -> BranchView:
        """See `ports.Store.branch_view`. One statement, so that it is of one snapshot."""
        rows = self._rows(self._texts.branch_view, (branch,))
        now_ns, row, lives, _ = rows[0]
        with self._reading():
            listed = [codec.decode_operation(one[3]) for one in rows if one[3] is not None]
            open_ones = tuple([one for one in listed if one.is_open])
            return BranchView(_branch(row), open_ones, lives, self._clock.read(now_ns))

    def record(self, seq: int) -> Stored | None:
        """See `ports.Store.record`."""
        rows = self._rows(self._texts.event, (seq,))
        return pages.stored_of(rows[0]) if rows else None

    def payload(self, seq: int) -> bytes | None:
        """See `ports.Store.payload`."""
        rows = self._rows(self._texts.payload, (seq,))
        return rows[0][0] if rows else None

    def history(self, branch: str | None, *, after: int = 0) -> Iterator[Stored]:
        """See `ports.Store.history`. Of all branches, each page goes up to the horizon of its moment."""
        self._check()
        if branch is None:
            rows = pages.by_key(self._decided, self._texts.events_after, (), (after,))
        else:
            states = self._rows(self._texts.branch, (branch,))
            with self._reading():
                head = _branch(states[0][0] if states else None).head_seq
            rows = pages.records_back(self._rows, self._texts.walk, head, after)
        return map(pages.stored_of, rows)

    def _decided(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        horizon = self._horizon()
        return self._rows(query, (*values, horizon))

    def _horizon(self) -> int:
        """The place up to which it is decided which records there are (see `postgres_schema`)."""

        def look(link: Link) -> tuple[int, list[int]]:
            newest = link.execute(self._texts.newest_place.encode()).fetchall()[0][0]
            marks = link.execute(self._texts.marks.encode()).fetchall()  # by a later statement than the newest place
            return newest, [key for (key,) in marks]

        newest, marks = self._read(look)
        return min([newest, *[_below(newest, key) for key in marks]])

    def newest_seq(self) -> int:
        """See `ports.Store.newest_seq`."""
        return int(self._rows(self._texts.newest_seq, (self._horizon(),))[0][0])

    def count(self, after: int, to: int) -> int:
        """See `ports.Store.count`."""
        return int(self._rows(self._texts.count_of, (after, to))[0][0])

    def branches(self, *, unfinished_only: bool) -> Iterator[tuple[str, Branch]]:
        """See `ports.Store.branches`."""
        query = self._texts.unfinished if unfinished_only else self._texts.branches
        for branch, state in pages.by_key(self._rows, query, (), ("",)):
            with self._reading():
                row = _branch(state)
            yield branch, row

    def operations(self, branch: str | None, *, open_only: bool) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.operations`."""
        texts = self._texts
        if branch is None:
            query = texts.all_listed if open_only else texts.all_operations
            rows = pages.by_key(self._rows, query, (), NO_OPERATION)
        else:
            query = texts.listed_of if open_only else texts.operations_of
            rows = pages.by_key(self._rows, query, (branch,), NO_STEP)
        for row in rows:
            with self._reading():
                operation = codec.decode_operation(row[-1])
            if operation.is_open or not open_only:
                yield row[0] if branch is None else branch, operation

    def contradictions(self) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.contradictions`."""
        for row in pages.by_key(self._rows, self._texts.all_listed, (), NO_OPERATION):
            with self._reading():
                operation = codec.decode_operation(row[-1])
            if operation.contradicts:
                yield row[0], operation

    # --- reads that take long: on a connection of their own ----------------------------------------------------------

    def whole_branches(self) -> Iterator[whole.WholeBranch]:
        """See `ports.Store.whole_branches`. Each is of one snapshot, on a connection of its own: it takes long."""
        self._check()
        link, _ = connect(self._address)
        try:
            for one in whole.branches(_Snapshots(link, self._reading), self._texts.whole):
                self._check()
                yield one
        finally:
            link.close()

    def integrity(self) -> list[str]:
        """See `ports.Store.integrity`: the tables themselves, and rows that belong to nothing.

        The server's own files are checked by its own tools (`pg_amcheck`, data checksums).
        """
        self._check()
        try:
            link, _ = connect(self._address)
            try:
                with self._reading():
                    return self._integrity(link)
            finally:
                link.close()
        except (LogDamaged, LogUnavailable) as damage:
            return [damage.message]

    def _integrity(self, link: Link) -> list[str]:
        found: list[str] = []
        columns: dict[str, str] = dict(link.execute(self._texts.columns.encode()).fetchall())
        indexes = {name for (name,) in link.execute(self._texts.indexes.encode()).fetchall()}
        if any(columns.get(table) != wanted for table, wanted in COLUMNS.items()) or not indexes >= set(INDEXES):
            found.append("its tables or indexes are not those of a log")
        for query, text in STRAYS:
            rows = link.execute(query.format(s=f'"{self._address.schema}"').encode()).fetchall()
            found.extend(text.format(*row) for row in rows)
        return found


class _Snapshots:
    """See `whole.Snapshots`."""

    def __init__(self, link: Link, reading: Callable[[], AbstractContextManager[None]]) -> None:
        self._link = link
        self.reading = reading

    def begin(self) -> None:
        self._link.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def end(self) -> None:
        self._link.execute(b"ROLLBACK")

    def rows(self, query: str, values: tuple[object, ...]) -> list[pages.Row]:
        return self._link.execute(query.encode(), values, binary=True).fetchall()


def _below(newest: int, key: int) -> int:
    """The place that an advisory lock's key stands for: the one nearest to the newest; no higher than that."""
    behind = (newest - key) % (1 << MARK_BITS)
    return newest - behind if behind < 1 << (MARK_BITS - 1) else newest


def _branch(state: bytes | None) -> Branch:
    return codec.decode_branch(state) if state else Branch()


def _operation(state: bytes | None) -> Operation | None:
    return None if state is None else codec.decode_operation(state)


def close_quietly(link: Link) -> None:
    """Close a connection that may be dead already."""
    with suppress(psycopg.Error):
        link.close()
