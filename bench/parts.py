"""Where the time of one lone effect goes: its parts timed alone, and for the rest a profiler's list of functions.

The parts are timed alone, in turn, on the same disk: three raw syncs; staging three records (admission, encoding,
digest) over rows in memory; the same over SQLite, committed as the store commits; taking the signal handlers away and
giving them back, as a driver does before and after a call. What is left of the whole effect is the driver, the script
and the binding of arguments. So the parts add up by construction; the last one holds what the others miss. The profiler
makes each Python call look dearer than it is, so its list tells where to look, not how long it takes.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from bench.biglog import RowsInMemory
from bench.effects import CENTS, Missing, charge
from bench.floor import Floor, p50_us
from bench.measures import Part
from intentlog import Log
from intentlog.core import codec
from intentlog.core.actions import Append
from intentlog.core.records import Instant, OfIntent, Record
from intentlog.run.signals import Signals
from intentlog.store import opening
from intentlog.store.clock import SystemClock
from intentlog.store.connection import Connection
from intentlog.store.rows import SqliteRows
from intentlog.store.staging import stage

_BRANCH = "order-0"
_FUNCTIONS = 40
_PER_ROUND = 40  # as many as a WAL takes without being restarted

Template = list[tuple[Record, bytes | None]]


def _template(path: Path) -> Template:
    """What the library records of an attempt's opening and of one effect."""
    with Log.open(path) as log, log.attempt(_BRANCH) as attempt:
        attempt.call(charge, "0", cents=CENTS)
        entries = list(log.history(_BRANCH))
    payloads = [None if one.payload is None else codec.encode_value(one.payload, 1 << 20) for one in entries]
    return [(one.record, payload) for one, payload in zip(entries, payloads, strict=True)]


class _Copies:
    """Records of the template's effect, again and again, each time under another step."""

    def __init__(self, template: Template) -> None:
        self._clock = SystemClock()
        self._opening = [one for one in template if not isinstance(one[0], OfIntent)]
        self._effect = [(record, payload) for record, payload in template if isinstance(record, OfIntent)]
        self._steps = (f"charge-{number}" for number in count(1))

    def open(self, append: Callable[[Append, Instant], None]) -> None:
        for record, payload in self._opening:
            append(Append(_BRANCH, record, payload), self._clock.now())

    def effect(self, append: Callable[[Append, Instant], None]) -> None:
        step = next(self._steps)
        for record, payload in self._effect:
            append(Append(_BRANCH, replace(record, step=step), payload), self._clock.now())


def _commit(connection: Connection, tables: SqliteRows, entry: Append, at: Instant) -> None:
    """Append as the store does."""
    connection.execute("BEGIN IMMEDIATE")
    tables.begin()
    staged = stage(tables, [entry], at)
    if not staged.events:
        raise Missing(f"a copied record was refused: {entry.record}")
    tables.write(staged)
    connection.execute("COMMIT")
    tables.keep(staged)


def _timed(what: Callable[[], object], times: int = _PER_ROUND) -> list[int]:
    took: list[int] = []
    for _ in range(times):
        started = time.perf_counter_ns()
        what()
        took.append(time.perf_counter_ns() - started)
    return took


def _nothing() -> None:
    """What takes no time."""


def _signals() -> None:
    """As a driver does: held, given back for the call, held again, given back."""
    signals = Signals()
    signals.hold()
    signals.outside(_nothing)
    signals.release()


def measure(folder: Path, *, quick: bool) -> list[Part]:
    """The whole effect first, then its parts."""
    template = _template(folder / "template.db")
    copied = folder / "copied.db"
    with Log.open(copied):
        pass
    connection = opening.connect(copied, reader=False, vfs=None)
    append = partial(_commit, connection, SqliteRows(connection))
    in_memory, in_sqlite = _Copies(template), _Copies(template)
    rows = RowsInMemory(1)
    in_memory.open(rows.append)
    in_sqlite.open(append)
    numbers = count(1)
    whole, raw, staged, stored, held = (list[int]() for _ in range(5))
    with Floor(folder) as floor, Log.open(folder / "whole.db") as log, log.attempt(_BRANCH) as attempt:
        for number in range(6 if quick else 25):
            opening.take_over_wal(connection, copied, opening.WAL_BYTES)
            found = (
                _timed(lambda: attempt.call(charge, str(next(numbers)), cents=CENTS)),
                _timed(floor.three),
                _timed(lambda: in_memory.effect(rows.append)),
                _timed(lambda: in_sqlite.effect(append)),
                _timed(_signals),
            )
            if number:  # the first round warms up
                for every, one in zip((whole, raw, staged, stored, held), found, strict=True):
                    every.extend(one)
    connection.close()
    effect, syncs, staging, store, signals = (p50_us(one) for one in (whole, raw, staged, stored, held))
    return [
        Part("one effect", effect),
        Part("three raw syncs", syncs),
        Part("SQLite: statements and commits, beyond the syncs", store - staging - syncs),
        Part("staging: admission, encoding, digest", staging),
        Part("signal handlers, taken and given back", signals),
        Part("the rest: driver, script, arguments, checks before the call", effect - store - signals),
    ]


def calls(folder: Path, effects: int) -> str:
    """The functions in which lone effects spend their time, as cProfile sees it."""
    profile, told = cProfile.Profile(), io.StringIO()
    with Log.open(folder / "calls.db") as log, log.attempt(_BRANCH) as attempt:
        attempt.call(charge, "warm", cents=CENTS)
        profile.enable()
        for number in range(effects):
            attempt.call(charge, str(number), cents=CENTS)
        profile.disable()
    pstats.Stats(profile, stream=told).strip_dirs().sort_stats("tottime").print_stats(_FUNCTIONS)
    return (
        f"{effects} lone effects under cProfile, which makes each Python call look dearer than it is\n{told.getvalue()}"
    )
