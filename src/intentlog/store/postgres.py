"""A log in PostgreSQL, for workers on many machines. What may fail, and what is then known, stands in `append`.

Durability and failover are the server's own; the fence and the records are ours. One connection appends, one renews the
lease, a few read.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import RLock
from weakref import finalize

import psycopg
from psycopg_pool import ConnectionPool

from intentlog.core.actions import Append, Appended, Interrupted, Refused, View
from intentlog.errors import LogDamaged, LogPoisoned, LogUnavailable
from intentlog.ports import Clock, Counters, Observer
from intentlog.store import postgres_fate
from intentlog.store.postgres_address import Address, address_of
from intentlog.store.postgres_arrays import Bigints, Blobs
from intentlog.store.postgres_clock import DatabaseClock
from intentlog.store.postgres_errors import failure_of
from intentlog.store.postgres_fate import Sent
from intentlog.store.postgres_lease import LEASE_S, Lease
from intentlog.store.postgres_opening import (
    Facts,
    Link,
    check_readable,
    check_server,
    configure,
    connect,
    create_tables,
    weakness,
)
from intentlog.store.postgres_reads import READS_MAX, PostgresReads, close_quietly
from intentlog.store.postgres_rows import PostgresRows, Standing
from intentlog.store.postgres_schema import FORMAT, Texts, texts_of
from intentlog.store.staging import Staged, stage


class _LostBefore(Exception):
    """The connection was lost before COMMIT was sent, or the server has said that the transaction was aborted."""


class PostgresStore(PostgresReads):
    """A log in one schema of a PostgreSQL database. Safe from several threads; appends take turns.

    Args:
        url: where it is: `postgresql://...`, `postgres://...`; `?schema=` names the schema.
        clock: this machine's clocks.
        observer: is told when the log is poisoned.
        reader: only reads; `append` is refused.
        lease_s: how long others take this worker for alive after its last sign of life, in seconds.
    """

    death_is_certain = False
    upkeep_due = False

    def __init__(
        self, url: str, clock: Clock, observer: Observer, *, reader: bool = False, lease_s: float = LEASE_S
    ) -> None:
        self._address: Address = address_of(url)
        self._texts: Texts = texts_of(self._address.schema)
        self._clock = DatabaseClock(clock)
        self._observer = observer
        self._pid = os.getpid()
        self._lock = RLock()
        self._poison: str | None = None
        self._closed = False
        self._commits = 0
        self._warnings: list[str] = []
        self._acknowledged: tuple[int, bytes] | None = None  # place and chain of the last record, when it was durable
        self._lease: Lease | None = None
        self._lost: finalize[..., PostgresStore] | None = None
        self._writes: tuple[Link, Facts] | None = None
        self._is_appending = False
        self._pool = ConnectionPool(
            kwargs={**self._address.parameters, "autocommit": True, "cursor_factory": psycopg.RawCursor},
            configure=_configure,
            min_size=1,
            max_size=READS_MAX,
            num_workers=1,
            name="intentlog",
            open=False,
        )
        try:
            self._salt = self._open(reader=reader)
            if not reader:
                owner = f"{_host()}-{self._pid}-{secrets.token_hex(6)}"
                self._lease = Lease(self._address, self._texts, owner, self._clock, int(lease_s * 1e9))
                self._lost = finalize(self, _let_go, self._lease, self._pid)  # lost before anybody could close it
                self._lost.atexit = False
                self._lease.start()
            self._pool.open()
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.Error):
                raise failure_of(self._address, error) from error
            raise

    def _open(self, *, reader: bool) -> bytes:
        link, facts = connect(self._address)
        try:
            if not reader:
                check_server(self._address, facts)
                create_tables(link, self._address)
                link.execute(self._texts.sweep.encode())
            else:
                check_readable(link, self._address, facts)
            salt: bytes = link.execute(self._texts.salt.encode(), binary=True).fetchall()[0][0]
            key = f"SELECT '\"{self._address.schema}\".places'::regclass::oid::bigint"
            oid: int = link.execute(key.encode()).fetchall()[0][0]
            self._rows_of_writer = PostgresRows(self._texts, oid - (1 << 32) if oid >= 1 << 31 else oid)
        except BaseException:
            close_quietly(link)
            raise
        if reader:
            close_quietly(link)
        else:
            self._take(link, facts)
        return salt

    # --- what a driver asks ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The URL, without its password."""
        return self._address.name

    @property
    def owner(self) -> str:
        """Who appends through this store; "" for a reader."""
        return self._lease.owner if self._lease else ""

    @property
    def salt(self) -> bytes:
        """The log's secret."""
        return self._salt

    @property
    def clock(self) -> DatabaseClock:
        """The clocks that records are stamped with: for whoever compares with them."""
        return self._clock

    @property
    def counters(self) -> Counters:
        """Commits so far; each waits for one sync of the server's WAL, which it may share with other workers'."""
        return Counters(self._commits, self._commits, self._lease.renewals if self._lease else 0)

    def upkeep(self) -> None:
        """See `ports.Store.upkeep`: the server does its own."""

    def gone(self, *, age_max_ns: int = 0, given_ns: int | None = None) -> str:
        """See `ports.Store.gone`: whether the lease ran out, by this machine's clock: so it never waits."""
        del age_max_ns
        return self._lease.lapse(given_ns) if self._lease else ""

    def remembered(self, branch: str, step: str) -> View | None:
        """See `ports.Store.remembered`: of a step that its branch does not have."""
        if self._closed or self._poison is not None:
            return None
        known = self._rows_of_writer.is_new(branch, step)
        return None if known is None else View(known, None, self._clock.now())

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        """See `ports.Store.append`.

        Two round trips: lock and read, write and COMMIT. Until the second is begun nothing can have been written: a
        connection that is lost by then is replaced, and the append made once more. In the second, an error that the
        server answers with leaves nothing written. If the connection is lost there, the server is asked what became of
        the commit; what cannot be learnt poisons the store (I8). So does a warning at COMMIT: it tells that a wait for
        a standby was given up.
        """
        self.check_process()
        with self._lock:
            self._check()
            lease = self._lease
            if lease is None:
                raise LogUnavailable(f"{self.name} was opened for reading only", remedy="open it without read_only.")
            if self._is_appending:  # the lock is this thread's own
                raise LogUnavailable(
                    f"{self.name} is in use by the code that this signal handler interrupted; nothing was written",
                    remedy="let the handler set a flag, and use the log outside it.",
                )
            self._is_appending = True
            try:
                if not lease.is_held:
                    lease.renew()
                return self._append_twice_at_most(entries)
            finally:
                self._is_appending = False

    def _append_twice_at_most(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        with suppress(_LostBefore):
            return self._append(entries)
        try:
            return self._append(entries)
        except _LostBefore as error:
            raise LogUnavailable(
                f"{self.name}: the connection was lost twice; nothing was written ({error})",
                remedy="look at the server and the network, and try again.",
            ) from error.__cause__

    def _append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        link, server = self._connected()
        try:
            standing = self._rows_of_writer.read(link, entries)
            self._check_standing(standing)
            staged = stage(self._rows_of_writer, entries, self._clock.read(standing.now_ns))
            if not staged.events:
                self._rows_of_writer.roll_back(link)
                return staged.replies
        except psycopg.Error as error:
            raise self._failed_before(link, error) from error
        except Exception:
            self._roll_back(link)  # a damaged row, a refusal of the whole, a mistake of our own
            raise
        except BaseException as signal:
            self._discard()  # in the middle of an exchange; what the server has of it, it rolls back
            raise Interrupted(None, signal) from signal
        self._write(link, Sent(server, standing.xid, standing.pid, staged))
        self._keep(staged)
        return staged.replies

    def _check_standing(self, standing: Standing) -> None:
        """Refuse before anything is written: settings may have been changed since, and tables replaced."""
        refusal, remedy = weakness(standing.fsync, standing.synchronous_commit)
        if refusal:
            raise LogUnavailable(f"{self.name}: {refusal}; nothing was written", remedy=remedy)
        if standing.meta != [b"%d" % FORMAT, self._salt]:
            raise LogDamaged(
                f"{self.name}: the tables in schema {self._address.schema} are not those that were opened",
                remedy="open the log again; if a newer intentlog has brought it forward, upgrade this one.",
            )

    def _failed_before(self, link: Link, error: psycopg.Error) -> Exception:
        is_lost = _is_lost(link, error)
        if is_lost or self._writes is None:  # or not yet taken into use
            close_quietly(link)
            self._discard()
        else:
            self._roll_back(link)
        return _LostBefore(self._address.masked(str(error))) if is_lost else failure_of(self._address, error)

    def _write(self, link: Link, sent: Sent) -> None:
        self._warnings.clear()
        try:
            self._rows_of_writer.write(link, sent.staged)
        except psycopg.Error as error:
            if self._warnings:
                raise self._poisoned("; ".join(self._warnings)) from error
            if not _is_lost(link, error):
                self._roll_back(link)
                raise failure_of(self._address, error) from error
            self._learn(sent, error)
        except BaseException as signal:
            if not isinstance(signal, Exception) and not self._warnings:
                self._learn(sent, signal)
                self._keep(sent.staged)
                raise Interrupted(sent.staged.replies, signal) from signal
            raise self._poisoned(f"{type(signal).__name__}: {signal}") from signal
        if self._warnings:
            raise self._poisoned("; ".join(self._warnings))

    def _learn(self, sent: Sent, cause: BaseException) -> None:
        """Return if the commit went through.

        Raises:
            _LostBefore, Interrupted: nothing was written.
            LogPoisoned: that could not be learnt.
        """
        self._discard()
        try:
            landed, why = postgres_fate.learn(sent, self._texts, lambda: connect(self._address), self._confirm)
        except BaseException as error:
            raise self._poisoned(f"{type(error).__name__} while it was asked what became of it") from error
        if landed is None:
            raise self._poisoned(f"{type(cause).__name__}: {cause}; {why}") from cause
        if landed:
            return
        if not isinstance(cause, Exception):
            raise Interrupted(None, cause) from cause
        raise _LostBefore(why) from cause

    def _confirm(self, link: Link) -> None:
        """Make a commit that waits for what every commit waits for. Raises psycopg's errors where that is in doubt."""
        if self._lease is None:
            return
        self._warnings.clear()
        link.add_notice_handler(self._noticed)
        nobody = f"confirming {self._lease.owner}"  # writes something, and leaves nothing
        with link.transaction():
            link.execute(self._texts.confirm.encode(), (nobody,))
            link.execute(self._texts.let_go.encode(), (nobody,))
        if self._warnings:
            raise psycopg.OperationalError("; ".join(self._warnings))

    def _keep(self, staged: Staged) -> None:
        self._rows_of_writer.keep(staged)
        stored, _ = staged.events[-1]
        self._acknowledged = stored.seq, stored.chain
        self._commits += 1

    def _poisoned(self, detail: str) -> LogPoisoned:
        self._poison = self._address.masked(detail)
        self._discard()
        self._observer.poisoned(self.name, self._poison)
        return LogPoisoned(
            f"a commit of {self.name} failed, its fate is unknown: {self._poison}",
            remedy="look at the server, open the log again, and run recover.",
        )

    # --- the connection that appends ---------------------------------------------------------------------------------

    def _connected(self) -> tuple[Link, Facts]:
        if self._writes is not None and not self._writes[0].closed:
            return self._writes
        self._discard()
        link, facts = connect(self._address)
        try:
            check_server(self._address, facts)
            self._check_tail(link)
            return self._take(link, facts)
        except psycopg.Error as error:
            raise self._failed_before(link, error) from error
        except BaseException:
            close_quietly(link)
            raise

    def _take(self, link: Link, facts: Facts) -> tuple[Link, Facts]:
        self._rows_of_writer.prepare(link)
        link.add_notice_handler(self._noticed)
        self._writes = link, facts
        return self._writes

    def _check_tail(self, link: Link) -> None:
        """Whoever answers now must have what was acknowledged: another server may have taken over without it."""
        if self._acknowledged is None:
            return
        seq, chain = self._acknowledged
        if link.execute(self._texts.landed.encode(), (Bigints([seq]), Blobs([chain]))).fetchall()[0][0] == 0:
            raise self._poisoned(
                f"record {seq}, which was acknowledged, is not there: the server was replaced by one that lacks it"
            )

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(f"{notice.message_primary} ({notice.message_detail or ''})")

    def _roll_back(self, link: Link) -> None:
        try:
            self._rows_of_writer.roll_back(link)
        except psycopg.Error:
            self._discard()

    def _discard(self) -> None:
        writes, self._writes = self._writes, None
        if writes is not None:
            close_quietly(writes[0])
            self._rows_of_writer.forget()

    def close(self) -> None:
        """See `ports.Store.close`. The lease is given back, so that a restart need not wait for its end."""
        self.check_process()
        with self._lock:
            self._closed = True
            if self._lost is not None:
                self._lost.detach()
            if self._lease is not None:
                self._lease.stop()
            self._discard()
            with suppress(psycopg.Error):
                self._pool.close()


def _let_go(lease: Lease, pid: int) -> None:
    """End the lease of a store that is gone; not in a forked child, whose parent's it is."""
    if os.getpid() == pid:
        lease.stop()


def _configure(link: Link) -> None:
    configure(link)


def _is_lost(link: Link, error: psycopg.Error) -> bool:
    """Whether nothing more will come over this connection: then the error was not the server's answer."""
    return link.closed or link.broken or isinstance(error, psycopg.InterfaceError)


def _host() -> str:
    """This machine's name, without the dot that ends a store's part of an owner's name."""
    return socket.gethostname().partition(".")[0][:64] or "localhost"
