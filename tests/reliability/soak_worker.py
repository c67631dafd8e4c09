"""What the soak's processes run: workers over orders, whoever finishes what they left, and the judge.

Each order is a branch with three effects at the payment sandbox, one of each kind that a restart treats otherwise. The
sandbox makes one charge for each key. A KEYED effect goes by its request id; the others by one key for each call, so
that a second call would stand in the ledger beside the first.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from crash_programs import two_records_only
from reliability.marks import Marks

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    UNSAFE,
    Applied,
    BranchBusy,
    Call,
    Fenced,
    InDoubt,
    Log,
    LogClosed,
    LogPoisoned,
    LogUnavailable,
    NotApplied,
    NotSent,
    OutcomeNotRecorded,
    OutcomeUnavailable,
    Settings,
    Verdict,
    tool,
)
from intentlog.core import records as r
from intentlog.core.actions import Append, IntentId
from intentlog.core.records import Committed
from intentlog.log.engine import Engine
from intentlog.observe import LoggingObserver
from intentlog.store import sqlite
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore
from intentlog.store.staging import stage

STEPS = ("charge", "push", "mail")
LIMIT, SETTLE = timedelta(milliseconds=500), timedelta(milliseconds=700)
ORDERS = 150
IDLE_S = 0.002
GAVE_UP = (LogUnavailable, LogPoisoned, OutcomeNotRecorded, LogClosed)
NOT_NOW = (InDoubt, NotSent, BranchBusy, Fenced, HTTPException, OSError)


class Place(NamedTuple):
    """One round's log, and what bears witness.

    Attributes:
        log: the log.
        told: marks of what workers were told: `returned ORDER STEP`, `said INTENT VERDICT`.
        requests: what the sandbox was asked, of all rounds.
        shop: its address.
        name: begins the name of each order of this round.
        since: how long `requests` was when the round began.
    """

    log: Path
    told: Path
    requests: Path
    shop: str
    name: str
    since: int

    @property
    def orders(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(ORDERS)]

    def asked(self) -> Iterator[tuple[IntentId, int, str]]:
        """Intent, dispatch and request id of each request of this round."""
        with self.requests.open("rb") as file:
            file.seek(self.since)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):  # the last one may be being written
                words = json.loads(line)["intent"].split()
                intent = IntentId(words[0])
                if intent.branch.startswith(f"{self.name}-"):
                    yield intent, int(words[1]), words[2]


def make_tools(place: Place, *, repeatable: bool = False) -> dict[str, Any]:
    """The three tools. `repeatable` is a control: what may not be repeated is declared as if it might."""

    def ask(call: Call, key: str, order: str) -> str:
        connection = HTTPConnection(place.shop, timeout=max(call.deadline - time.monotonic(), 0.001))
        try:
            told = f"{call.intent_id} {call.dispatch_no} {call.request_id}"
            headers = {"Idempotency-Key": key, "Intent-Id": told}
            connection.request("POST", "/charges", json.dumps({"order": order}), headers)
            answer = connection.getresponse()
            content = json.load(answer)
            if answer.status != 201:
                msg = f"{answer.status}: {content}"
                raise RuntimeError(msg)
            return str(content["receipt"])
        finally:
            connection.close()

    refused = ConnectionRefusedError

    @tool(effect=KEYED(timedelta(hours=24)), name="soak_charge", time_limit=LIMIT, not_sent=refused)
    def charge(call: Call, order: str) -> str:
        return ask(call, call.request_id, order)

    @tool(effect=QUERYABLE(SETTLE), name="soak_push", time_limit=LIMIT, not_sent=refused)
    def push(call: Call, order: str) -> str:
        return ask(call, f"{call.request_id}/{call.intent_id.attempt}/{call.dispatch_no}", order)

    @push.probe
    def pushed(call: Call, order: str) -> Applied[str] | NotApplied:
        found = any(key == call.request_id for _, _, key in place.asked())
        return Applied("found") if found else NotApplied()

    @tool(effect=IDEMPOTENT if repeatable else UNSAFE, name="soak_mail", time_limit=LIMIT, not_sent=refused)
    def mail(call: Call, order: str) -> str:
        return ask(call, f"{call.request_id}/{call.intent_id.attempt}/{call.dispatch_no}", order)

    return {"charge": charge, "push": push, "mail": mail}


def open_log(place: Place, frames: int) -> Log:
    """The log, with a checkpoint after so many frames, and no room grown ahead."""
    sqlite.CHECKPOINT_FRAMES = frames
    sqlite.WAL_FRAMES_MAX = frames + 8
    store = SqliteStore(place.log, SystemClock(), LoggingObserver(), wal_bytes=0)
    return Log(Engine(store, Settings(), store._clock, LoggingObserver()))


# --- a worker -----------------------------------------------------------------------------------------------------


def work(place: Place, seed: float, control: str, file_bytes_max: int) -> None:
    """Take orders until killed, or until all are finished; open the log anew whenever it gives up.

    Args:
        place: the round's.
        seed: of its order, and of when it checkpoints.
        control: which protection it does without; "" for none.
        file_bytes_max: no file of it grows beyond that: a disk fault that needs no root; 0 for none.
    """
    if control:
        CONTROLS[control]()
    if file_bytes_max:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))
    chance = random.Random(seed)
    told = Marks(place.told)
    tools = make_tools(place, repeatable=control == "repeatable")
    finished: set[str] = set()
    while left := [order for order in place.orders if order not in finished]:
        chance.shuffle(left)
        with suppress(*GAVE_UP), open_log(place, chance.choice((8, 30, 900))) as log:
            tell_all(told, log.recover())
            behind = [one.branch for one in log.unfinished()]  # first what a dead one has left
            for order in [*behind, *left]:
                if run_order(log, told, tools, order):
                    finished.add(order)
        time.sleep(IDLE_S)


def run_order(log: Log, told: Marks, tools: dict[str, Any], order: str) -> bool:
    """One attempt at an order; whether it is finished."""
    try:
        with log.attempt(order) as attempt:
            tell_all(told, attempt.classifications)
            for step, handle in tools.items():
                with suppress(OutcomeUnavailable):
                    attempt.step(step).call(handle, order)
                    told.tell("returned", order, step)
    except NOT_NOW:
        return False
    return True


def tell_all(told: Marks, said: Any) -> None:
    for one in said:
        told.tell("said", one.intent_id, one.classification.name)


# --- controls -----------------------------------------------------------------------------------------------------


def unwritten_outcomes() -> None:
    """Acknowledges outcomes that it does not write."""
    original: Callable[..., Any] = SqliteStore._append

    def append(self: SqliteStore, connection: Any, tables: Any, entries: list[Append]) -> Any:
        if not any(isinstance(entry.record, Committed) for entry in entries):
            return original(self, connection, tables, entries)
        connection.execute("BEGIN IMMEDIATE")
        tables.begin()
        replies = stage(tables, entries, self._clock.now()).replies
        connection.execute("ROLLBACK")
        return replies

    SqliteStore._append = append


CONTROLS: dict[str, Callable[[], None]] = {
    "two-records": two_records_only,
    "unwritten": unwritten_outcomes,
    "repeatable": lambda: None,  # see `make_tools`
}


# --- the end of a round ---------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a round came to.

    Attributes:
        effects: operations that are done.
        duplicates, lost, misclassified, unsound: each in words.
    """

    effects: int
    duplicates: list[str]
    lost: list[str]
    misclassified: list[str]
    unsound: list[str]


def settle(place: Place, report: Path) -> None:
    """Judge what the strikes left; decide every doubt as the sandbox has it, finish what was begun, judge again."""
    told = Marks(place.told)
    tools = make_tools(place)
    unsound: list[str] = []
    with open_log(place, 900) as log:
        tell_all(told, log.recover())
        first = judged(log, place, told)
        until_s = time.monotonic() + 30
        begun = sorted({entry.branch for entry in log.tail(1_000_000)})
        finished = {
            one for one in begun if any(getattr(e.record, "end", None) is r.End.COMPLETED for e in log.history(one))
        }
        while left := [one for one in begun if one not in finished]:
            decide(log, place)
            finished |= {order for order in left if run_order(log, told, tools, order)}
            if time.monotonic() > until_s:
                unsound.append(f"not finished: {left[:5]}")
                break
            time.sleep(IDLE_S)
        last = judged(log, place, told)
        problems = [str(problem) for problem in log.verify().problems]
    found = Found(
        last.effects,
        *([*dict.fromkeys([*a, *b])] for a, b in zip(first[1:4], last[1:4], strict=True)),
        [*first.unsound, *last.unsound, *unsound, *problems],
    )
    report.write_text(json.dumps(found))


def decide(log: Log, place: Place) -> None:
    """What a person does about every doubt that no class settles. No worker lives, and nothing is on its way."""
    landed = {(intent.branch, intent.step) for intent, _, _ in place.asked()}
    for one in log.open_intents():
        if one.in_doubt and one.intent_id.step == "mail":
            answer: Any = Applied("seen") if (one.intent_id.branch, "mail") in landed else NotApplied()
            log.resolve(one.intent_id, answer, by="ada", why="the sandbox", expect_seq=one.seq)


class Effect:
    """One operation, as the log has it and as the sandbox was asked."""

    def __init__(self) -> None:
        self.dispatched: set[int] = set()
        self.outcomes: dict[int, str] = {}
        self.settled = ""
        self.asked: list[int] = []
        self.keys: set[str] = set()

    @property
    def verdict(self) -> Verdict:
        """Folded from the records here, and not by the library."""
        if self.settled == "APPLIED" or {"RETURNED", "REJECTED"} & set(self.outcomes.values()):
            return Verdict.DONE
        still_open = self.dispatched - set(self.outcomes) if self.settled != "NOT_APPLIED" else set()
        return Verdict.MAY_HAVE_BEEN_SENT if still_open else Verdict.NEVER_SENT


def effects_of(log: Log, place: Place) -> dict[tuple[str, str], Effect]:
    found: dict[tuple[str, str], Effect] = defaultdict(Effect)
    for entry in log.tail(1_000_000):
        record = entry.record
        if not isinstance(record, r.OfIntent):
            continue
        effect = found[entry.branch, record.step]
        match record:
            case r.Dispatched():
                effect.dispatched.add(record.dispatch_no)
                effect.settled = "" if effect.settled == "NOT_APPLIED" else effect.settled
            case r.Committed():
                effect.outcomes.setdefault(record.dispatch_no, record.outcome.name)
            case r.Settled() if record.settlement.name in ("APPLIED", "NOT_APPLIED"):
                effect.settled = record.settlement.name
                if effect.settled == "NOT_APPLIED":
                    effect.outcomes |= dict.fromkeys(effect.dispatched - set(effect.outcomes), "NOT_SENT")
            case _:
                pass
    for intent, number, key in place.asked():
        found[intent.branch, intent.step].asked.append(number)
        found[intent.branch, intent.step].keys.add(key)
    return found


def judged(log: Log, place: Place, told: Marks) -> Found:
    """Hold the log to the sandbox, and to what the workers were told."""
    effects = effects_of(log, place)
    duplicates, lost, misclassified = [], [], []
    for (branch, step), one in effects.items():
        what = f"{branch}/{step}: {vars(one)}"
        if len(set(one.asked)) < len(one.asked) or (step in ("push", "mail") and len(one.asked) > 1):
            duplicates.append(f"called again: {what}")
        if len(one.keys) > 1:
            duplicates.append(f"under several keys: {what}")
        if set(one.asked) - one.dispatched:
            misclassified.append(f"called, and its Dispatched is not there: {what}")
        if one.verdict is Verdict.NEVER_SENT and one.asked:
            misclassified.append(f"never sent, says the log, and it was: {what}")
        if one.verdict is Verdict.DONE and not one.asked:
            misclassified.append(f"done, says the log, and it was not: {what}")
        misclassified += [
            f"dispatch {number} is {outcome}: {what}"
            for number, outcome in one.outcomes.items()
            if (outcome == "NOT_SENT") is (number in one.asked)
        ]
    asked = {(intent.branch, intent.step) for intent, _, _ in place.asked()}
    for mark in told.read():
        if mark.kind == "returned":
            if effects[mark.words[0], mark.words[1]].verdict is not Verdict.DONE:
                lost.append(f"its outcome was handed out, and is not there: {mark.words}")
            if (mark.words[0], mark.words[1]) not in asked:
                lost.append(f"its outcome was handed out, and nobody was asked: {mark.words}")
    misclassified += said_wrongly(place, told)
    done = sum(one.verdict is Verdict.DONE for one in effects.values())
    return Found(done, duplicates, lost, misclassified, [])


def said_wrongly(place: Place, told: Marks) -> list[str]:
    """Intents that were said to be never sent, of which a request came at any time: it has to stay true."""
    called = {str(intent) for intent, _, _ in place.asked()}
    said = {m.words[0] for m in told.read() if m.kind == "said" and m.words[1] == Verdict.NEVER_SENT.name}
    return [f"said to be never sent, and it was: {intent}" for intent in sorted(said & called)]
