#!/usr/bin/env python3
"""Whether `intentlog verify` of a large log stays small, and finds one edited record in it. See `make verify-size`.

    python scripts/verify_size.py [--records N] [--folder FOLDER]

Two logs of N records each are made: one branch that has all of them, and branches of five. Each is verified by the
real command in a process of its own; then one record in its middle is edited, which must be found. The time is told
beside that of a plain reading of the same records: `SELECT`, and each decoded. Exits with 1 if a sound log was not
found sound, an edit was not found, or a process took more than 200 MiB.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from intentlog import Log
from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import Append
from intentlog.core.effects import Declaration, EffectKind
from intentlog.store import pages, schema
from intentlog.store.clock import SystemClock
from intentlog.store.connection import connection as open_connection
from intentlog.store.rows import SqliteRows
from intentlog.store.staging import stage

LIMIT_MIB = 200
SOUND, DAMAGED = 0, 4  # how the command exits
RECORDS_OF_A_BRANCH = 5
RECORDS_PER_COMMIT = 50_000
TOGETHER = 100  # branches that are written at one time: their records stand between each other's
DECLARATION = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=60_000_000_000)


def opened(branch: str) -> Append:
    """Its first record."""
    return Append(branch, r.AttemptOpened(attempt=1, owner="verify-size.1"))


def closed(branch: str) -> Append:
    """Its last."""
    return Append(branch, r.AttemptClosed(attempt=1, end=r.End.COMPLETED))


def effect(salt: bytes, branch: str, step: str) -> Iterator[Append]:
    """One call that returned."""
    request_id = codec.request_id(salt, branch, step, 1)
    arguments = b'{"cents":1999,"order_id":"%s"}' % step.encode()
    digest = codec.arguments_digest(arguments)
    pending = r.Pending(
        attempt=1, step=step, tool="charge", declaration=DECLARATION, request_id=request_id, digest=digest
    )
    yield Append(branch, pending, arguments)
    yield Append(branch, r.Dispatched(attempt=1, step=step))
    yield Append(branch, r.Committed(attempt=1, step=step, outcome=r.OutcomeKind.RETURNED), b'{"receipt":"r-1"}')


def one_branch(salt: bytes, records: int) -> Iterator[Append]:
    """A branch that has them all."""
    yield opened("one")
    for number in range((records - 2) // 3):
        yield from effect(salt, "one", f"charge-{number}")
    yield closed("one")


def many_branches(salt: bytes, records: int) -> Iterator[Append]:
    """Branches of five records, some of which are written at one time."""
    count = records // RECORDS_OF_A_BRANCH
    for first in range(0, count, TOGETHER):
        names = [f"order-{number * 7_919 % count:07}" for number in range(first, min(count, first + TOGETHER))]
        yield from map(opened, names)
        for stage_of_all in zip(*(effect(salt, name, "charge") for name in names), strict=True):
            yield from stage_of_all
        yield from map(closed, names)


SHAPES = {"one branch": one_branch, "many branches": many_branches}


def build(path: Path, shape: str, records: int) -> None:
    """Make a log as the store makes it, but for its syncs and its many commits."""
    with Log.open(path):
        pass
    connection = open_connection(path, apsw.SQLITE_OPEN_READWRITE, None)
    connection.pragma("synchronous", 0)
    salt = connection.execute(schema.SALT).get
    rows, clock = SqliteRows(connection), SystemClock()
    entries = SHAPES[shape](salt, records)
    while batch := list(itertools.islice(entries, RECORDS_PER_COMMIT)):
        connection.execute("BEGIN IMMEDIATE")
        rows.begin()
        for entry in batch:
            staged = stage(rows, [entry], clock.now())
            if not staged.events:
                raise RuntimeError(f"not admitted: {staged.replies}")
            rows.write(staged)
            rows.keep(staged)
        connection.execute("COMMIT")
    connection.close()


def read_plainly(path: Path) -> None:
    """What no reader of the log can do without."""
    connection = open_connection(path, apsw.SQLITE_OPEN_READONLY, None)

    def rows(query: str, values: tuple[object, ...]) -> list[pages.Row]:
        return connection.execute(query, values).fetchall()

    for row in pages.by_key(rows, schema.EVENTS_FROM, (), (0,)):
        codec.decode_record(row[6])


def edit(path: Path, records: int) -> None:
    """Change one record in the middle of the log, as nobody may."""
    connection = open_connection(path, apsw.SQLITE_OPEN_READWRITE, None)
    connection.execute("UPDATE events SET wall_ns = wall_ns + 1 WHERE seq = ?", (records // 2,))
    connection.close()


class Ended(NamedTuple):
    """A process that came to its end."""

    code: int
    seconds: float
    cpu_seconds: float
    peak_mib: float
    out: str


def run(command: Iterable[str | Path]) -> Ended:
    """Run a command and measure it alone: this process is small, as a child's peak begins with its parent's size."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out)  # noqa: S603 - our own commands
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        peak = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        return Ended(process.returncode, seconds, used.ru_utime + used.ru_stime, peak, out.read().decode().strip())


def say(line: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check(path: Path, shape: str, records: int) -> bool:
    """Make, verify and edit one log. Whether all was as it should be."""
    itself = (sys.executable, __file__, "--records", str(records), "--log", path, "--part")
    built = run((*itself, f"build {shape}"))
    say(f"{shape}: {records} records made in {built.seconds:.0f} s, {path.stat().st_size >> 20} MiB")
    ok = built.code == 0
    for wanted, what in ((SOUND, "as it was made"), (DAMAGED, "with one record edited")):
        if wanted == DAMAGED:
            run((*itself, "edit"))
        plain = run((*itself, "read"))
        ended = run((sys.executable, "-m", "intentlog", "verify", path))
        as_wanted = ended.code == wanted and ended.peak_mib <= LIMIT_MIB
        ok = ok and as_wanted
        ratio = ended.cpu_seconds / plain.cpu_seconds
        say(
            f"  {'ok' if as_wanted else 'FAILED'}: {what}: exit {ended.code}, {ended.peak_mib:.0f} MiB, "
            f"{ended.seconds:.1f} s, {ended.cpu_seconds:.1f} s of CPU ({records / ended.seconds:,.0f} records/s; "
            f"{ratio:.1f} times the CPU of a plain reading, {plain.cpu_seconds:.1f} s)"
        )
        say(f"    {ended.out.splitlines()[-1] if ended.out else '-'}")
    return ok


def main() -> int:
    """0 if every log was as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_500_000, help="of each log, 5 or more")
    parser.add_argument("--folder", type=Path, help="where to make them; about 1 GiB for each")
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        if chosen.part == "edit":
            edit(chosen.log, chosen.records)
        elif chosen.part == "read":
            read_plainly(chosen.log)
        else:
            build(chosen.log, chosen.part.partition(" ")[2], chosen.records)
        return 0
    with tempfile.TemporaryDirectory(prefix="verify-size-", dir=chosen.folder) as folder:
        paths = {shape: Path(folder) / f"{number}.db" for number, shape in enumerate(SHAPES)}
        found = [check(path, shape, chosen.records) for shape, path in paths.items()]  # each, whatever the first was
        return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
