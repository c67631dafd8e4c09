"""What must be true of any log after any crash, given only what was seen from outside (`marks`).

`violations` opens the log with the library and answers in words; an empty list is a sound log that tells the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from reliability.marks import Mark

from intentlog import IntentLogError, Log, Settings, Verdict
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store import opening
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore


def quick_open(path: Path, *, read_only: bool = False) -> Log:
    """Open a log as `Log.open` does, but for the room that is made ahead: so it takes milliseconds in memory."""
    with patch.object(opening, "BALLAST_BYTES", 1):
        return _opened(path, read_only=read_only)


def _opened(path: Path, *, read_only: bool) -> Log:
    store = SqliteStore(path, SystemClock(), LoggingObserver(), reader=read_only, wal_bytes=0)
    return Log(Engine(store, Settings(), store._clock, LoggingObserver()))


def violations(path: Path, marks: Sequence[Mark], *, made_whole: bool = False) -> list[str]:
    """What is false of the log at `path`, which a crash left with these marks outside.

    Args:
        path: the log; opened by a writer, recovered, and closed.
        marks: what was seen up to the crash.
        made_whole: whether the log must be there although nothing was acknowledged.
    """
    if not path.exists():
        lost = [m for m in marks if m.kind == "ack"]
        return [f"there is no log, and {len(lost)} acknowledged records are gone"] if lost or made_whole else []
    try:
        with quick_open(path) as log:
            return violations_of(log, marks)
    except IntentLogError as error:
        return [f"it does not open, or not be read: {type(error).__name__}: {error}"]


def violations_of(log: Log, marks: Sequence[Mark]) -> list[str]:
    """The same of a log that is open, wherever it is kept."""
    return [*_of_records(log, marks), *_of_recovery(log, marks), *_of_verify(log)]


def _of_verify(log: Log) -> list[str]:
    report = log.verify()
    return [] if report.ok else [f"verify: {problem}" for problem in report.problems]


def _of_records(log: Log, marks: Sequence[Mark]) -> list[str]:
    """I5: every acknowledged record is there; none is there that nobody was about to append."""
    found: list[str] = []
    tries = Counter((m.words[0], m.words[1]) for m in marks if m.kind == "try")
    acks = {int(m.words[0]): (m.words[1], m.words[2]) for m in marks if m.kind == "ack"}
    there: dict[int, tuple[str, str]] = {}
    for branch in sorted({branch for branch, _ in tries}):
        there |= {entry.seq: (branch, entry.kind) for entry in log.history(branch)}
    lost = {seq: what for seq, what in acks.items() if there.get(seq) != what}
    found += [f"lost: record {seq}, {kind} of {branch}, was acknowledged" for seq, (branch, kind) in lost.items()]
    invented = Counter(there.values()) - tries
    found += [f"invented: {number} {kind} of {branch}" for (branch, kind), number in invented.items()]
    return found + [f"lost: {branch} noted {kind}" for branch, kind in _noted(marks) - set(there.values())]


def _noted(marks: Sequence[Mark]) -> set[tuple[str, str]]:
    """The EVENTUAL events that must be durable: their branch's next Pending or close was acknowledged (I5)."""
    waiting: dict[str, set[tuple[str, str]]] = {}
    durable: set[tuple[str, str]] = set()
    for mark in marks:
        if mark.kind == "noted":
            waiting.setdefault(mark.words[0], set()).add((mark.words[0], mark.words[1]))
        elif mark.kind == "ack" and mark.words[2] in ("Pending", "AttemptClosed"):
            durable |= waiting.pop(mark.words[1], set())
    return durable


def _of_recovery(log: Log, marks: Sequence[Mark]) -> list[str]:
    """I2, I3: "never sent" only where the witness has no call; what the caller was handed is what the log has."""
    called = {m.words[0] for m in marks if m.kind == "call"}
    found = [
        f"a lie: {one.intent_id} is called never sent, and its call began"
        for one in log.recover()
        if one.classification is Verdict.NEVER_SENT and one.intent_id in called
    ]
    still_open = {intent.intent_id for intent in log.open_intents()}
    got = {m.words[0] for m in marks if m.kind == "got"}
    found += [f"lost: the outcome of {intent} was handed out, and is open again" for intent in sorted(got & still_open)]
    return found + of_calls(marks)


def of_calls(marks: Sequence[Mark]) -> list[str]:
    """I2, I4, outside the log: no call after "never sent" was said of it, no second one of what may not be repeated."""
    found = []
    said: set[str] = set()
    for mark in marks:
        if mark.kind == "said" and mark.words[1] == Verdict.NEVER_SENT.name:
            said.add(mark.words[0])
        elif mark.kind == "call" and mark.words[0] in said:
            found.append(f"a lie: {mark.words[0]} was said to be never sent, and was called after it")
    per_request = Counter(m.words[1] for m in marks if m.kind == "call")
    kind_of = {m.words[1]: m.words[0].partition("-")[0] for m in marks if m.kind == "call"}
    for request_id, number in per_request.items():
        if number > 1 and kind_of[request_id] in ("UNSAFE", "QUERYABLE"):
            found.append(f"twice: {kind_of[request_id]} {request_id} was called {number} times")
    return found
