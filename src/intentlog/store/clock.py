"""The machine's clocks."""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path

from intentlog.core.records import Instant

# Counts sleep, cannot be set. macOS' CLOCK_MONOTONIC counts sleep too; Linux' does not, so it has CLOCK_BOOTTIME.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall clock and boot clock of this machine. Safe from any thread."""

    def __init__(self) -> None:
        self._boot_id = boot_id()

    def now(self) -> Instant:
        """One reading of both clocks."""
        return Instant(time.time_ns(), self._boot_id, time.clock_gettime_ns(_BOOT_CLOCK))


@cache
def boot_id() -> str:
    """Which boot of this machine it is: 32 hex digits."""
    if sys.platform == "darwin":
        import subprocess

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - a constant
    else:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return text.strip().replace("-", "").lower()
