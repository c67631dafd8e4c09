"""A clock that a test sets."""

from __future__ import annotations

from intentlog.core.records import Instant


class FakeClock:
    """Moves on by `tick_ns` at each reading, and whenever it is told to."""

    def __init__(self, tick_ns: int = 1_000_000) -> None:
        self.wall_ns = 1_700_000_000 * 10**9
        self.boot_ns = 10**12
        self.boot_id = "b007" * 8
        self.tick_ns = tick_ns

    def now(self) -> Instant:
        self.advance(self.tick_ns)
        return Instant(self.wall_ns, self.boot_id, self.boot_ns)

    def advance(self, duration_ns: int) -> None:
        """Let time pass on both clocks."""
        self.wall_ns += duration_ns
        self.boot_ns += duration_ns
