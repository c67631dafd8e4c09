"""A process whose clocks jump while a call of it is in doubt: `python clock_programs.py FOLDER SCENE JUMP CONTROL`.

Run under libfaketime with FAKETIME_TIMESTAMP_FILE and FAKETIME_NO_CACHE=1: the process itself writes the jump into that
file, so that it happens where it wants it. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from intentlog import KEYED, QUERYABLE, Applied, Call, InDoubt, Log, NotApplied, Retry, tool
from intentlog.core import machine, records
from intentlog.store.clock import SystemClock

WINDOW, SETTLE, LIMIT = timedelta(hours=24), timedelta(hours=1), timedelta(seconds=1)


def clocks() -> tuple[float, float]:
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)


def jump(text: str) -> None:
    """From now on the clocks read this much more, or less."""
    file = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
    draft = file.with_suffix(".draft")
    draft.write_text(f"{text}\n")
    draft.rename(file)


def keys_are_kept_for_ever() -> None:
    """A control: whether the receiver still knows the key is not asked."""
    machine.key_remembered = lambda *_: True
    from intentlog.core import lifecycle, recovery

    for module in (lifecycle, recovery):
        if hasattr(module, "key_remembered"):
            module.key_remembered = lambda *_: True


def boot_clock_goes_by_the_wall() -> None:
    """A control: the clock that measures what has passed is one that anybody may set."""
    now = SystemClock.now

    def wall(self: SystemClock) -> records.Instant:
        read = now(self)
        return records.Instant(read.wall_ns, read.boot_id, read.wall_ns)

    SystemClock.now = wall


CONTROLS = {"keys": keys_are_kept_for_ever, "wall": boot_clock_goes_by_the_wall, "": lambda: None}


def main(folder: str, scene: str, by: str, control: str) -> None:
    CONTROLS[control]()
    calls: list[str] = []
    before = clocks()
    moved: list[float] = []

    def land(call: Call) -> str:
        calls.append(call.request_id)
        if len(calls) == 1:
            jump_now = scene.endswith("retry")
            if jump_now:
                jump(by)
            msg = "the answer was lost"
            raise TimeoutError(msg)
        return "receipt"

    @tool(effect=KEYED(WINDOW), time_limit=LIMIT, step="act")
    def keyed(call: Call) -> str:
        return land(call)

    @tool(effect=KEYED(WINDOW), time_limit=LIMIT, step="act", retry=Retry(times=2, backoff=timedelta(0)))
    def retried(call: Call) -> str:
        return land(call)

    @tool(effect=QUERYABLE(SETTLE), time_limit=LIMIT, step="act")
    def queryable(call: Call) -> str:
        return land(call)

    @queryable.probe
    def found(call: Call) -> Applied[str] | NotApplied:
        return NotApplied()

    @tool(effect=KEYED(WINDOW), time_limit=LIMIT, step="after")
    def after(call: Call) -> str:
        return "receipt"

    handle = {"keyed": keyed, "keyed-retry": retried, "queryable": queryable}[scene]
    path = Path(folder, "log.db")
    with Log.open(path) as log:
        with suppress(InDoubt), log.attempt("order") as attempt:
            attempt.call(handle)
        if not scene.endswith("retry"):
            jump(by)
        here = clocks()
        moved = [here[0] - before[0], here[1] - before[1]]
        with suppress(InDoubt), log.attempt("order") as attempt:
            attempt.call(handle)
        log.recover()
        with log.attempt("later") as attempt:
            attempt.call(after)
    with Log.open(path) as log:  # the same boot, says the machine, whatever its clocks read
        log.recover()
        with suppress(InDoubt), log.attempt("order") as attempt:
            attempt.call(handle)
        entries = log.tail(10_000)
        told = {
            "calls": len(calls),
            "wall_s": moved[0],
            "boot_s": moved[1],
            "sound": log.verify().ok,
            "ordered": [entry.seq for entry in entries] == sorted({entry.seq for entry in entries}),
            "settled": [e.record.settlement.name for e in entries if isinstance(e.record, records.Settled)],
            "in_doubt": [str(one.intent_id) for one in log.open_intents() if one.in_doubt],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
