"""A worker's lease: that it is alive, as the others can see it, in the database's time.

A lease is a row (owner, until). A thread renews it, on a connection of its own, so that neither a long commit nor a
full pool lets it run out. It is a hint, and the fence is the guarantee: a worker that was stopped through its lease and
goes on is refused by the branch's row, whoever has taken the branch over. What a lapse costs is an attempt.

`LEASE_S` weighs two waits against each other: for so long, at most, the branches of a worker that died rest; and a
worker that cannot reach the server for so long, while the others can, loses its attempts. Three renewals fit into it,
so that two may fail.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import psycopg

from intentlog.errors import IntentLogError, one_line
from intentlog.store.postgres_address import Address
from intentlog.store.postgres_clock import DatabaseClock
from intentlog.store.postgres_errors import failure_of
from intentlog.store.postgres_opening import Link, connect
from intentlog.store.postgres_schema import Texts

LEASE_S = 30.0
RENEWALS = 3  # within one lease
_UNHURRIED = b"SET LOCAL synchronous_commit = off"
CLOSE_WAIT_S = 5.0  # for the thread, which may be waiting for a server that does not answer
logger = logging.getLogger("intentlog")


class Lease:
    """One owner's lease. Safe from any thread.

    Args:
        address: the log.
        texts: its statements.
        owner: who holds it.
        clock: is told the database's time with each renewal.
        duration_ns: how long it is good for after a renewal.
    """

    def __init__(self, address: Address, texts: Texts, owner: str, clock: DatabaseClock, duration_ns: int) -> None:
        self.owner = owner
        self.renewals = 0
        self._address = address
        self._texts = texts
        self._clock = clock
        self._duration_ns = duration_ns
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._until_ns = 0  # boot clock: no later than the database takes it to end
        self._lapsed_ns = 0  # boot clock: when it was last seen to have lapsed; before the first renewal it had
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the lease, and keep it from now on.

        Raises:
            LogUnavailable: it cannot be taken.
        """
        self.renew()
        self._thread = threading.Thread(target=self._keep, name="intentlog-lease", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Whether it has not run out."""
        return self._clock.boot_ns() < self._until_ns

    def lapse(self, given_ns: int | None) -> str:
        """Why what was permitted then is not to be used: the lease ran out since. "" if it did not.

        Args:
            given_ns: when it was permitted, by the boot clock; now, if that is None.
        """
        over_ns = self._clock.boot_ns() - self._until_ns
        if over_ns >= 0:
            return f"the lease of this worker ran out {over_ns / 1e9:.1f} s ago: another may have taken its branch over"
        if given_ns is not None and given_ns <= self._lapsed_ns:
            return "the lease of this worker had run out in between: another may have taken its branch over"
        return ""

    def renew(self) -> None:
        """Renew it now; one that has run out is taken anew.

        Not waited for until it is durable: after a crash of the server the lease is what it was at the renewal before.

        Raises:
            LogUnavailable: it cannot be renewed.
        """
        with self._lock:
            if self._stop.is_set():
                return
            try:
                self._renew()
            except psycopg.Error as error:
                self._disconnect()
                raise failure_of(self._address, error) from error

    def _renew(self) -> None:
        if self._link is None or self._link.closed:
            timeout_ms = max(1_000, self._duration_ns // RENEWALS // 1_000_000)
            self._link, _ = connect(self._address, tcp_user_timeout=str(timeout_ms))
        link = self._link
        begun_ns = self._clock.boot_ns()
        with link.transaction():
            link.execute(_UNHURRIED)
            rows = link.execute(self._texts.renew.encode(), (self.owner, self._duration_ns // 1_000)).fetchall()
        database_ns, was_held = rows[0]
        seen_ns = self._clock.read(database_ns).boot_ns
        if not was_held or begun_ns >= self._until_ns:
            self._lapsed_ns = seen_ns
            if self.renewals:
                logger.warning("%s: the lease of %s had run out, and was taken anew", self._address.name, self.owner)
        self._until_ns = begun_ns + self._duration_ns
        self.renewals += 1

    def stop(self) -> None:
        """Let it go: from now on the owner is dead. Idempotent."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_WAIT_S)
        if not self._lock.acquire(timeout=CLOSE_WAIT_S):
            return  # it runs out by itself
        try:
            if self.renewals and not self._let_go():
                self._disconnect()  # that connection was dead: over a new one, or it runs out by itself
                self._let_go()
            self._until_ns = 0
            self._disconnect()
        finally:
            self._lock.release()

    def _let_go(self) -> bool:
        """Not waited for until it is durable either: a standby that hangs would hold up the close."""
        with suppress(psycopg.Error, IntentLogError):
            if self._link is None or self._link.closed:
                self._link, _ = connect(self._address, connect_timeout=f"{CLOSE_WAIT_S:.0f}")
            with self._link.transaction():
                self._link.execute(_UNHURRIED)
                self._link.execute(self._texts.let_go.encode(), (self.owner,))
            return True
        return False

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def _keep(self) -> None:
        interval_s = self._duration_ns / 1e9 / RENEWALS
        wait_s = interval_s
        failed = False
        while not self._stop.wait(wait_s):
            try:
                self.renew()
                wait_s, failed = interval_s, False
            except IntentLogError as error:
                if not failed:
                    logger.warning("the lease of %s could not be renewed: %s", self.owner, one_line(str(error)))
                wait_s, failed = min(1.0, interval_s / 10), True
