"""The clocks of a log that many machines append to: the database's wall clock, and each machine's own boot clock.

Records of all machines are stamped with one wall clock, the server's, read under the branch's lock; whatever a worker's
own wall clock says does no harm. The boot clock stays the machine's: it bounds, on the machine that made a call, how
long ago that was, and no step of the database's clock touches it. Between machines only the wall clock is compared
(`recovery.elapsed_at_least_ns`).
"""

from __future__ import annotations

from intentlog.core.records import Instant
from intentlog.ports import Clock

_DRIFT = 1_000  # two clocks are taken to run apart by less than a thousandth: a slewed one does by half of that


class DatabaseClock:
    """Reads the database's time where it was read last, plus what has passed here since. Safe from any thread.

    Args:
        local: this machine's clocks.
    """

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._anchor: tuple[int, int] | None = None  # the database's time, and the boot clock when it was known here

    def boot_ns(self) -> int:
        """This machine's boot clock, in nanoseconds."""
        return self._local.now().boot_ns

    def now(self) -> Instant:
        """The boot clock, and a lower bound of the database's time.

        A lower bound, since a probe's start is held against the time of a dispatch: too early only means that its
        NOT_APPLIED counts a moment later.
        """
        local = self._local.now()
        if self._anchor is None:
            return local
        database_ns, known_ns = self._anchor
        since_ns = local.boot_ns - known_ns
        return Instant(database_ns + since_ns - since_ns // _DRIFT, local.boot_id, local.boot_ns)

    def read(self, database_ns: int) -> Instant:
        """The database's time, which was just received, with this machine's boot clock now."""
        local = self._local.now()
        self._anchor = database_ns, local.boot_ns
        return Instant(database_ns, local.boot_id, local.boot_ns)
