"""The witness outside the log: what landed at the receiver, and whether a log's records and rows are true of it.

The checks are stated anew, over landings and over records, so that a fault in the library's rules hides in none.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from fake_clock import FakeClock

import intentlog as il
from intentlog.core import codec, machine, recovery
from intentlog.core import records as r
from intentlog.core.actions import Append, ErrorKind
from intentlog.core.check import Held, check_branch
from intentlog.core.effects import EffectKind
from intentlog.core.records import OutcomeKind, Settlement, Stored, Verdict
from intentlog.core.state import Fate, Operation, State
from intentlog.log.declare import AnyTool
from intentlog.run.duty import Duty
from intentlog.run.group import Member

SECOND = 1_000_000_000
LIMIT_NS, GRACE_NS, SETTLE_NS, WINDOW_NS = 10 * SECOND, 2 * SECOND, 30 * SECOND, 3600 * SECOND
LATE_ENOUGH_NS = GRACE_NS + LIMIT_NS + SETTLE_NS  # after it a person sees whatever a permitted call can have done
YEAR_NS, BASE_NS = 365 * 86_400 * SECOND, 1_700_000_000 * SECOND


@dataclass(frozen=True)
class Receipt:
    """What every tool returns. A `rate` that is no number makes it one that cannot be stored."""

    number: int
    amount: int
    rate: float


class Stopped(BaseException):
    """What a signal's handler raises in a program without an event loop."""

    @classmethod
    def here(cls, *signal: object) -> None:
        raise cls


class Refusal(Exception): ...  # declared as a definite no


class Ending(StrEnum):
    """How a call ends."""

    RETURNED = "returned"
    UNSTORABLE = "returned what cannot be stored"
    REJECTED = "rejected"
    NOT_SENT = "not sent"
    SUSPENDED = "suspended"
    LOST = "ambiguous, nothing landed"
    LANDED = "ambiguous, landed"
    LATE = "ambiguous, lands later"
    STOPPED = "stopped, nothing landed"
    STOPPED_LANDED = "stopped, landed"
    KILLED = "killed before the tool did anything"
    KILLED_LANDED = "killed after it landed"
    KILLED_LATE = "killed, and it lands later"


LANDS_LATE = (Ending.LATE, Ending.KILLED_LATE)
NOTHING_LANDS = (Ending.REJECTED, Ending.NOT_SENT, Ending.SUSPENDED, Ending.LOST, Ending.STOPPED, Ending.KILLED)
KILLS = (Ending.KILLED, Ending.KILLED_LANDED, Ending.KILLED_LATE)
STOPS = (Ending.STOPPED, Ending.STOPPED_LANDED)
RAISES: dict[Ending, type[BaseException]] = {
    Ending.REJECTED: Refusal,
    Ending.NOT_SENT: il.NotSent,
    Ending.SUSPENDED: il.Suspended,
    **dict.fromkeys(STOPS, Stopped),
}


class Befall(NamedTuple):
    """What befalls a process, at the nth time that a point is reached in one step."""

    point: str  # before, after (an append), call, called, probe; disk: the nth write or sync fails
    nth: int
    what: str


class Op(NamedTuple):
    """An operation: what is meant to happen once."""

    branch: str
    step: str
    generation: int


class Landing(NamedTuple):
    """One request that arrived: whose it was, when (true time), and which distinct effect it caused or repeated."""

    attempt: int
    dispatch_no: int
    at_ns: int
    effect: int


class Request(NamedTuple):
    """One request that was sent."""

    op: Op
    kind: EffectKind
    request_id: str
    attempt: int
    dispatch_no: int


class Receiver:
    """The outside world. It honours keys for their window, and shows a QUERYABLE write after its settle time."""

    def __init__(self, salt: bytes) -> None:
        self.now_ns = 0  # true time: no clock of any machine
        self.landings: defaultdict[Op, list[Landing]] = defaultdict(list)
        self.on_their_way: list[tuple[int, Request]] = []
        self.kinds: dict[Op, EffectKind] = {}
        self._salt = salt

    def operation_of(self, branch: str, step: str, request_id: str) -> Op:
        """The operation that a request id is derived for: equal over attempts, another for each generation (I6)."""
        for generation in range(1, 100):
            if codec.request_id(self._salt, branch, step, generation) == request_id:
                return Op(branch, step, generation)
        msg = f"I6: {request_id} is not derived for {branch}/{step}"
        raise AssertionError(msg)

    def pass_time(self, duration_ns: int) -> None:
        until_ns = self.now_ns + duration_ns
        due = sorted(one for one in self.on_their_way if one[0] <= until_ns)
        self.on_their_way = [one for one in self.on_their_way if one[0] > until_ns]
        for at_ns, request in due:
            self.now_ns = at_ns
            self.land(request)
        self.now_ns = until_ns

    def land(self, request: Request) -> int:
        """Answers which effect it is: of a remembered key the first one again."""
        before = self.landings[request.op]
        effect = len(before) + 1
        if request.kind is EffectKind.IDEMPOTENT:
            effect = 1
        elif request.kind is EffectKind.KEYED:
            firsts = {one.effect: one.at_ns for one in reversed(before)}
            remembered = [number for number, at_ns in firsts.items() if self.now_ns - at_ns <= WINDOW_NS]
            effect = max(remembered, default=max(firsts, default=0) + 1)
        self.kinds[request.op] = request.kind
        before.append(Landing(request.attempt, request.dispatch_no, self.now_ns, effect))
        return effect

    def send_late(self, request: Request, begun_ns: int) -> None:
        """A request that outlives its caller: it lands as late as its tool's time limit lets it."""
        self.on_their_way.append((begun_ns + LIMIT_NS, request))

    def shows(self, op: Op) -> bool:
        lag_ns = SETTLE_NS if self.kinds.get(op) is EffectKind.QUERYABLE else 0
        return any(one.at_ns + lag_ns <= self.now_ns for one in self.landings[op])

    def touched(self, op: Op, attempt: int = 0) -> bool:
        attempts = [one.attempt for one in self.landings[op]]
        attempts += [request.attempt for _, request in self.on_their_way if request.op == op]
        return bool(attempts) and attempt in (0, *attempts)

    def count(self) -> int:
        return sum(map(len, self.landings.values())) + len(self.on_their_way)

    def repeated(self) -> list[str]:
        """Operations whose effect happened more often than their class may let it."""
        return [
            f"the witness: {kind} {op} happened {count} times"
            for op, kind in self.kinds.items()
            if kind is not EffectKind.IDEMPOTENT and (count := len({one.effect for one in self.landings[op]})) > 1
        ]


class Clocks(FakeClock):
    """Wall and boot clock of the machine, and behind them the receiver's true time.

    Left out, as no library can see it: a wall clock that is slow about an earlier boot's dispatch by more than the
    key's margin, and still reads later than everything in the branch.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self.receiver = receiver
        self.boots = 1
        self._small_jumps = 0

    def advance(self, duration_ns: int) -> None:
        super().advance(duration_ns)
        self.receiver.pass_time(duration_ns)

    def set_back(self, how: str) -> None:
        if how == "seconds" and self._small_jumps < 2:
            self._small_jumps += 1
            self.wall_ns -= 20 * SECOND
        elif how == "hour" and self.boots == 1:
            self.wall_ns -= 3600 * SECOND
        elif how == "years":
            self.wall_ns -= 10 * YEAR_NS

    def boot(self, *, clock_lost: bool = False) -> None:
        """Another boot, with the wall clock right again or lost."""
        self.boots += 1
        self.boot_id = f"{self.boots:032x}"
        self.receiver.pass_time(65 * SECOND)
        self.boot_ns = 5 * SECOND
        self.wall_ns = BASE_NS - (20 + self.boots) * YEAR_NS if clock_lost else BASE_NS + self.receiver.now_ns


class Tools:
    """The tools by name, plain and `async def`, and the world that they act in now."""

    world: ClassVar[Any]
    plain: ClassVar[dict[str, Any]] = {}
    awaited: ClassVar[dict[str, Any]] = {}


def _declare(
    name: str, effect: il.Effect, *, retry: il.Retry | None = None, probe: bool = False, **others: Any
) -> None:
    """A plain tool and an async one, which end as the world has drawn."""
    kind = effect.kind
    given: Any = {
        "effect": effect,
        "rejects": Refusal,
        "time_limit": timedelta(seconds=LIMIT_NS // SECOND),
        "retry": retry,
    }
    plain: Any = il.tool(name=name, **given, **others)
    awaited: Any = il.tool(name=f"async-{name}", **given, **others)

    def act(call: il.Call, amount: int) -> Receipt:
        receipt: Receipt = Tools.world.serve(kind, call)
        return receipt

    async def act_async(call: il.Call, amount: int) -> Receipt:
        receipt: Receipt = await Tools.world.serve_async(kind, call)
        return receipt

    def acted(call: il.Call, amount: int) -> il.Applied[Receipt] | il.NotApplied | il.Unknown:
        answer: il.Applied[Receipt] | il.NotApplied | il.Unknown = Tools.world.probe(call)
        return answer

    async def acted_async(call: il.Call, amount: int) -> il.Applied[Receipt] | il.NotApplied | il.Unknown:
        return await asyncio.to_thread(acted, call, amount)

    Tools.plain[name], Tools.awaited[name] = plain(act), awaited(act_async)
    if probe:
        Tools.plain[name].probe(acted)
        Tools.awaited[name].probe(acted_async)


_AGAIN = il.Retry(times=1, backoff=timedelta(0))
_KEYED = il.KEYED(window=timedelta(seconds=WINDOW_NS // SECOND))
_declare("put", il.IDEMPOTENT, retry=_AGAIN)
_declare("charge", _KEYED)
_declare("order", _KEYED, probe=True, retry=_AGAIN)
_declare("push", il.QUERYABLE(settle=timedelta(seconds=SETTLE_NS // SECOND)), probe=True)
_declare("mail", il.UNSAFE)
_declare("post", il.UNSAFE, retry=_AGAIN)
_declare("look", il.READ)
_declare("meter", il.READ, durability=il.Durability.IMMEDIATE)


def untrue_rows(operations: Mapping[tuple[str, str, int], Operation], receiver: Receiver) -> list[str]:
    """Verdicts that are not true: never sent and done, of what did and did not land (I2, I3)."""
    found: list[str] = []
    for key, operation in operations.items():
        op, decided = Op(*key), operation.decided
        if operation.declaration.kind is EffectKind.READ or not operation.intents:
            continue
        landed = bool(receiver.landings[op])
        if operation.verdict is Verdict.NEVER_SENT and receiver.touched(op):
            found.append(f"I2: {op} is never sent by its row, and it landed or will")
        if operation.verdict is Verdict.DONE and decided and landed is (decided.fate is Fate.REJECTED):
            found.append(f"truth: {op} is recorded as {decided.fate}, landed: {landed}")
    return found


def untrue_records(records: Sequence[Stored], receiver: Receiver) -> list[str]:
    """Single records that are not true, whatever they fold to: of one intent (I2), of one dispatch."""
    found: list[str] = []
    for stored in records:
        record = stored.record
        if not isinstance(record, r.Classified | r.Committed | r.Settled | r.Suspended):
            continue
        landings = receiver.landings[Op(stored.branch, record.step, record.generation)]
        own = [one for one in landings if one.attempt == record.attempt]
        match record:
            case r.Classified(classification=Verdict.NEVER_SENT) if own:
                found.append(f"I2: record {stored.seq} says never sent of an intent that landed")
            case r.Settled(settlement=Settlement.APPLIED) if not landings:
                found.append(f"truth: record {stored.seq} says applied, and nothing landed")
            case r.Committed(outcome=OutcomeKind.NOT_SENT | OutcomeKind.REJECTED, read=None) | r.Suspended() as denied:
                if denied.dispatch_no in {one.dispatch_no for one in own}:
                    found.append(f"truth: record {stored.seq} denies a dispatch that landed")
            case _:
                pass
    return found


def unfenced(records: Iterable[Stored]) -> list[str]:
    """I2: Pending and Dispatched of an attempt that was fenced, closed, cancelled or overtaken before it."""
    current, over = 0, set[int]()
    found: list[str] = []
    for stored in records:
        match stored.record:
            case r.AttemptOpened(attempt=attempt):
                current = attempt
            case r.AttemptFenced(attempt=attempt) | r.AttemptClosed(attempt=attempt):
                over.add(attempt)
            case r.CancelRequested(attempt=attempt):
                over.add(attempt)
            case r.Pending(attempt=attempt) | r.Dispatched(attempt=attempt) if attempt != current or attempt in over:
                found.append(f"fence: record {stored.seq} is of attempt {attempt}, the branch is at {current}")
            case _:
                pass
    return found


def open_dispatches(records: Iterable[Stored]) -> set[tuple[str, int, int]]:
    """Step, generation and number of each dispatch without outcome or settlement, from the records alone."""
    is_open: dict[tuple[str, int, int], int] = {}  # -> its attempt
    for stored in records:
        match stored.record:
            case r.Dispatched() as d:
                is_open[d.step, d.generation, d.dispatch_no] = d.attempt
            case r.Committed(outcome=OutcomeKind.RETURNED, read=None) as c:
                _close(
                    is_open, [key for key in is_open if key[:2] == (c.step, c.generation) and key[2] <= c.dispatch_no]
                )
            case (r.Committed(read=None) | r.Suspended()) as e:
                _close(is_open, [(e.step, e.generation, e.dispatch_no)])
            case r.Settled(settlement=Settlement.APPLIED | Settlement.NOT_APPLIED) as s:
                _close(is_open, [key for key in is_open if key[:2] == (s.step, s.generation)])
            case r.Settled(settlement=Settlement.SUPERSEDED) as s:
                of = (s.step, s.generation)
                _close(is_open, [key for key, attempt in is_open.items() if key[:2] == of and attempt == s.attempt])
            case _:
                pass
    return set(is_open)


def _close(is_open: dict[tuple[str, int, int], int], keys: Iterable[tuple[str, int, int]]) -> None:
    for key in keys:
        is_open.pop(key, None)


def broken(image: Any, branch: str, receiver: Receiver, salt: bytes) -> list[str]:
    """Whatever is wrong with one branch of an image: by the library's own check, and by those above."""
    records = [e for e in image.events.values() if e.branch == branch]
    rows = {key: operation for key, operation in image.operations.items() if key[0] == branch}
    by_step = {(step, generation): operation for (_, step, generation), operation in rows.items()}
    whole = Held(branch, image.branches[branch], records, by_step)
    found = [f"{f.seq}: {f.text}" for f in check_branch(whole, salt)]
    return found + untrue_rows(rows, receiver) + untrue_records(records, receiver) + unfenced(records)


def unfinished(records: Iterable[Stored], owners: set[str], listed: Iterable[il.OpenIntent]) -> bool | None:
    """Whether a supervisor has to run the branch again; None where that depends on more than this."""
    own = list[r.Record]()
    for record in (stored.record for stored in records):
        own = [record] if isinstance(record, r.AttemptOpened) else [*own, record]
    end = next((one.end for one in own if isinstance(one, r.AttemptClosed)), None)
    if not own or not isinstance(own[0], r.AttemptOpened) or any(isinstance(one, r.CancelRequested) for one in own):
        return False
    if end not in (None, r.End.INDETERMINATE) or (end and any(i.calling or i.in_doubt for i in listed)):
        return False
    return True if own[0].owner.partition(".")[0] not in owners else None


def without(guard: machine.Guard) -> dict[machine.Event, dict[State, machine.Rule]]:
    def weaker(cell: machine.Rule) -> machine.Rule:
        return cell._replace(guards=tuple(g for g in cell.guards if g is not guard))

    return {event: {state: weaker(cell) for state, cell in row.items()} for event, row in machine.TABLE.items()}


def leaves_behind(duty: Duty, branch: str, *entries: Append) -> Member:
    return Member(branch, [*entries] or duty._waiting.pop(branch, []))


FAULTS: dict[str, list[tuple[Any, str, Any]]] = {
    "no fence": [(machine, "TABLE", without(machine.fenced))],
    "no guard of the class": [(machine, "TABLE", without(machine.class_permits))],
    "any error is taken for not sent": [(AnyTool, "kind_of", lambda tool, error: ErrorKind.NOT_SENT)],
    "a probe is believed at once": [(recovery, "trust", lambda *args, **kwargs: recovery.Trust(True, 0))],
    "a key is never forgotten": [(place, "key_remembered", lambda *args: True) for place in (machine, recovery)],
    "an EVENTUAL record is left behind": [(Duty, "_with_waiting", leaves_behind)],
}
