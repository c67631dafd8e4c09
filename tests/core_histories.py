"""Histories of one branch, written as words and admitted record by record by the machine: the core tests' notation.

    build("open, pending 1 UNSAFE, dispatched 1.1, ended 1.1")

`1.2` is attempt 1, dispatch 2. A history whose records are not all admitted is an AssertionError.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from intentlog.core import check, codec, machine
from intentlog.core import records as r
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import Answer, End, ErrorText, Instant, OutcomeKind, Settlement, Stored
from intentlog.core.state import Branch, Operation

BRANCH = "order-1"
STEP = "charge"
SECOND = 1_000_000_000
ERROR = ErrorText("ConnectionError", "reset")


def at(seq: int) -> Instant:
    """The clocks at record `seq`: one second for each."""
    return Instant(wall_ns=1_000 * SECOND + seq * SECOND, boot_id="boot", boot_ns=seq * SECOND)


def declared(kind: EffectKind = EffectKind.IDEMPOTENT, **fields: object) -> Declaration:
    return Declaration(kind=kind, **{"time_limit_ns": 10 * SECOND, **fields})


class World(NamedTuple):
    """A branch as a store holds it: its row, its operations' rows by generation, its records."""

    branch: Branch = Branch()
    operations: tuple[Operation, ...] = ()
    history: tuple[Stored, ...] = ()

    @property
    def seq(self) -> int:
        return self.history[-1].seq if self.history else 0

    def operation(self, generation: int = 1) -> Operation | None:
        return next((o for o in self.operations if o.generation == generation), None)

    def state(self, attempt: int, generation: int = 1) -> str:
        operation = self.operation(generation)
        intent = operation.intent(attempt) if operation else None
        return str(intent.state) if intent else "NONE"

    def rows(self) -> dict[tuple[str, int], Operation]:
        return {(o.step, o.generation): o for o in self.operations}


def applied(world: World, record: r.Record) -> machine.Change | machine.Refusal:
    """The machine's answer to one more record."""
    operation = world.operation(record.generation) if isinstance(record, r.INTENT_RECORDS) else None
    return machine.apply(world.branch, operation, record, world.seq + 1, at(world.seq + 1))


def grown(world: World, record: r.Record, change: machine.Change) -> World:
    """The world with the record that the machine admitted, chained as stores chain it."""
    seq, payload = world.seq + 1, b'"paid"' if isinstance(record, r.Pending | r.Committed | r.Supplied) else None
    kept = at(seq) if isinstance(record, r.BOUNDS_A_CALL) else Instant(at(seq).wall_ns, "", 0)
    body, before = codec.encode_record(record), world.branch
    chain = codec.chain(before.head_chain, seq, BRANCH, kept, body, payload)
    branch = replace(change.branch, head_seq=seq, head_chain=chain)
    others = (o for o in world.operations if o.generation not in {c.generation for c in change.operations})
    stored = Stored(seq, BRANCH, kept, record, payload, before.head_seq, chain)
    return World(branch, (*others, *change.operations), (*world.history, stored))


def broken(history: Iterable[Stored]) -> dict[str, list[tuple[int, str]]]:
    """What each invariant finds broken in a history, from its records alone, and at which."""
    found: dict[str, list[tuple[int, str]]] = {number: [] for number in check.INVARIANTS}
    seen: dict[check.Key, check.Seen] = {}
    for stored in history:
        record = stored.record
        if isinstance(record, r.INTENT_RECORDS):
            of = seen.setdefault((record.step, record.generation), check.Seen())
            for number, invariant in check.INVARIANTS.items():
                found[number] += [(stored.seq, text)] if (text := invariant(of, record)) else []
    return found


def forced(world: World, *texts: str) -> tuple[Stored, ...]:
    """The history with records that no machine was asked about, each chained as if it had been admitted."""
    for text in texts:
        world = grown(world, record_of(text, world), machine.Change(world.branch, ()))
    return world.history


@cache
def build(text: str) -> World:
    """The world after these records, every one of them admitted."""
    head, _, last = text.rpartition(", ")
    world = build(head) if head else World()
    record = record_of(last, world)
    change = applied(world, record)
    assert isinstance(change, machine.Change), f"{last} after {head}: {change}"
    return grown(world, record, change)


def record_of(text: str, world: World) -> r.Record:
    """The record that the words name, as an honest owner, restart, probe or person would append it to this world."""
    verb, *rest = text.split()
    target = rest[0] if rest and rest[0][0].isdigit() else ""
    flags = set(rest[1:] if target else rest)
    attempt_text, _, number = target.partition(".")
    attempt = int(attempt_text) if attempt_text else world.branch.attempt + (verb == "open")
    if verb == "close":
        usual = End.CANCELLED if world.branch.cancelled else End.COMPLETED
        return r.AttemptClosed(attempt=attempt, end=next((e for e in End if e in flags), usual))
    if verb in _BRANCH:
        return _BRANCH[verb](attempt)
    generation = 2 if "g2" in flags else 1
    intent = {"attempt": attempt, "step": STEP, "generation": generation}
    spoken_for = world.operation(generation)
    last = spoken_for.last_seq if spoken_for else 0
    decision = {"by": machine.PROBE if "probe" in flags else "ann", "why": "saw it"}
    expect = {"expect_seq": last - 1 if "stale" in flags else last}
    if number:
        return _of_dispatch(verb, {**intent, "dispatch_no": int(number)}, flags, expect)
    match verb:
        case "pending":
            return r.Pending(**intent, **header(flags))
        case "read":
            outcome = OutcomeKind.REJECTED if "rejected" in flags else OutcomeKind.RETURNED
            return r.Committed(**intent, outcome=outcome, dispatch_no=0, read=r.ReadHeader(**header(flags | {"READ"})))
        case "withdrawn" | "never_sent":
            by = machine.OWNER if verb == "withdrawn" else machine.RESTART
            return r.Settled(**intent, settlement=Settlement.NEVER_SENT, by=by, why="")
        case "applied" | "not_applied":
            has_value = verb == "applied" and "valueless" not in flags
            return r.Settled(
                **intent, settlement=Settlement(verb.upper()), **decision, **expect, value_recorded=has_value
            )
        case "superseded":
            return r.Settled(**intent, settlement=Settlement.SUPERSEDED, by=machine.RESTART, why="", superseded_by=2)
        case "classified":
            never = world.state(attempt) == "PENDING"
            last_state = r.IntentState.PENDING if never else r.IntentState.DISPATCHED
            verdict = r.Verdict.NEVER_SENT if never else r.Verdict.MAY_HAVE_BEEN_SENT
            todo = r.Resolution.RETRY if never else r.Resolution.RECALL
            return r.Classified(**intent, last_state=last_state, classification=verdict, resolution=todo)
        case "renewed":
            return r.Renewed(**intent, **expect, by="ann", why="again")
        case "supplied":
            return r.Supplied(**intent, by="ann", why="known")
        case _:
            raise ValueError(text)


def header(flags: set[str]) -> dict[str, object]:
    """Tool, declaration, request id and digest; `drift`, `tool` and `key` make one of them another.

    A key is remembered for an hour; with `brief` for so long that a repeat may begin within 5 seconds, 5 records.
    """
    kind = next((k for k in EffectKind if k in flags), EffectKind.IDEMPOTENT)
    window_ns = (75 if "brief" in flags else 3600) * SECOND if kind is EffectKind.KEYED else 0
    return {
        "tool": "refund" if "tool" in flags else "charge",
        "declaration": declared(kind, probe="asks" in flags, window_ns=window_ns),
        "request_id": "other" if "key" in flags else f"id-{'g2' if 'g2' in flags else 'g1'}",
        "digest": "1:ff" if "drift" in flags else "1:00",
    }


def _of_dispatch(verb: str, intent: dict[str, object], flags: set[str], expect: dict[str, int]) -> r.Record:
    match verb:
        case "dispatched":
            return r.Dispatched(**intent)
        case "returned" | "rejected" | "not_sent":
            missing = "too large" if "valueless" in flags else ""
            return r.Committed(**intent, outcome=OutcomeKind(verb.upper()), value_missing=missing)
        case "ended":
            return r.CallEnded(**intent, error=ERROR)
        case "suspended":
            return r.Suspended(**intent, reason="waits")
        case "probed":
            return r.ProbeAnswered(**intent, **expect, answer=next((a for a in Answer if a in flags), Answer.UNKNOWN))
        case _:
            raise ValueError(verb)


_BRANCH = {
    "open": lambda attempt: r.AttemptOpened(attempt=attempt, owner=f"memory.{attempt}"),
    "fence": lambda attempt: r.AttemptFenced(attempt=attempt),
    "cancel": lambda attempt: r.CancelRequested(attempt=attempt, by="ann", why="stop"),
    "note": lambda attempt: r.ApplicationEvent(attempt=attempt, name="n"),
}
