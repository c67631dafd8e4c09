"""A process that opens a log after another was killed, says how long that took, works a little, and is killed itself.

Run as `python -m bench.reopened LOG [--recover]`. What it prints is JSON, times in milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from bench.effects import CENTS, charge
from intentlog import Log

_EFFECTS = 60  # what it leaves in the WAL for the next one to recover
_BRANCH = "killed"


def main(path: str, *options: str) -> None:
    """Open, scan, recover if asked to, print; then leave a WAL behind."""
    began = time.perf_counter()
    log = Log.open(path)
    opened = time.perf_counter()
    open_intents = len(log.open_intents())
    log.unfinished()
    scanned = time.perf_counter()
    found: dict[str, float] = {
        "open_ms": (opened - began) * 1e3,
        "scan_ms": (scanned - opened) * 1e3,
        "open_intents": open_intents,
    }
    if "--recover" in options:
        log.recover()
        found["recover_ms"] = (time.perf_counter() - scanned) * 1e3
    with log.attempt(_BRANCH) as attempt:
        for order in range(_EFFECTS):
            attempt.call(charge, f"{attempt.number}-{order}", cents=CENTS)
        print(json.dumps(found), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
