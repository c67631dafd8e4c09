"""A driver by hand: it does what a script asks, on a log in memory and a clock that stands still, and notes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import (
    Action,
    Append,
    Appended,
    Call,
    Deferred,
    ErrorKind,
    Fetch,
    FetchError,
    IntentId,
    Interrupted,
    Load,
    LoadBranch,
    NotMade,
    Plan,
    Probe,
    Probed,
    Raised,
    Refused,
    Returned,
    Script,
    Wait,
)
from intentlog.core.check import Held, check_branch
from intentlog.core.decisions import renew, resolve
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.lifecycle import perform
from intentlog.core.machine import Reason, Refusal
from intentlog.core.records import Answer, Durability, ErrorText, Instant, Settlement
from intentlog.core.restart import open_attempt
from intentlog.errors import NotSent, Rejected, Suspended
from intentlog.store.memory import MemoryDisk, MemoryStore

BRANCH = "order-1"
INTENT = IntentId.of(BRANCH, 1, "charge")
SECOND = 1_000_000_000
RESET = ConnectionError("reset")  # an error that proves nothing
NOT_APPLIED, APPLIED, UNKNOWN = (Answer.NOT_APPLIED, None), (Answer.APPLIED, b'"found"'), (Answer.UNKNOWN, None)
ACTIONS_MAX = 60
KINDS = {NotSent: ErrorKind.NOT_SENT, Rejected: ErrorKind.REJECTED, Suspended: ErrorKind.SUSPENDED}


class Stop(BaseException):
    """A cancellation, as its cause arrives in a script."""


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.ns = 1_000 * SECOND

    def now(self) -> Instant:
        return Instant(wall_ns=10**18 + self.ns, boot_id="boot", boot_ns=self.ns)


class Player:
    """One process on a disk: its tool's and its probe's next answers, what befalls its appends, and what it did.

    Attributes:
        calls: what the tool does next: a value, an exception to raise, NotMade, or a function of the Call.
        probes: what the probe answers next: (answer, value) or a function.
        befalls: by the name of an action, what happens at it: an error (nothing is written), or one of
            "interrupted" (not landed), "landed" (learnt, then interrupted), a Reason (refused), a function to do first,
            or a pair of a function and one of these.
        did: the names of the actions so far, reads left out.
    """

    def __init__(self, disk: MemoryDisk | None = None, owner: str = "a", clock: Clock | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.clock = clock or Clock()
        self.store = MemoryStore(self.disk, self.clock, owner)
        self.calls: list[Any] = []
        self.probes: list[Any] = []
        self.befalls: dict[str, Any] = {}
        self.did: list[str] = []
        self.seen: list[Action] = []
        self.waiting: list[Append] = []
        self.attempt = 0

    def dies(self, owner: str = "b") -> Player:
        """The process is gone; the next one works on the same disk."""
        self.disk.owners.discard(self.store.owner)
        return Player(self.disk, owner, self.clock)

    def opens(self, present: Callable[[str], Declaration | None] = lambda _: None) -> Player:
        """Open the branch's next attempt."""
        self.attempt = self.run(open_attempt(BRANCH, f"{self.store.owner}.1", present)).attempt
        self.did.clear()
        return self

    def performs(self, *calls: Any, **plan: Any) -> Any:
        """Perform the step, the tool answering with these in turn."""
        self.calls = list(calls)
        return self.run(perform(self.plan(**plan)))

    def raises(self, error: type[BaseException], *calls: Any, **plan: Any) -> Any:
        """Perform the step, which is to raise this."""
        with pytest.raises(error) as raised:
            self.performs(*calls, **plan)
        assert type(raised.value) is error
        return raised.value

    def renews(self) -> None:
        """Decide, as a person, that the step shall happen once more."""
        newest = self.operation.intents[-1].attempt
        self.run(renew("orders.db", IntentId.of(BRANCH, newest, "charge"), "ann", "again"))

    def plan(
        self, kind: str = "UNSAFE", *, probe: bool = False, window_s: int = 3600, attempt: int = 0, **fields: Any
    ) -> Plan:
        effect = EffectKind(kind)
        declaration = Declaration(
            kind=effect,
            time_limit_ns=10 * SECOND,
            window_ns=window_s * SECOND if effect is EffectKind.KEYED else 0,
            settle_ns=5 * SECOND,
            probe=probe,
            grace_ns=10 * SECOND,
        )
        plan = Plan(
            log="orders.db",
            intent_id=IntentId.of(BRANCH, attempt or self.attempt, "charge"),
            salt=self.store.salt,
            tool="charge",
            declaration=declaration,
            arguments=b'{"cents":1}',
            digest="1:00",
            kind_of=lambda error: KINDS.get(type(error), ErrorKind.AMBIGUOUS),
            describe=lambda error: ErrorText(type(error).__name__, str(error)),
            encode=lambda value: codec.encode_value(value, 1000),
            decode=lambda payload: codec.decode_value(payload, Any),
            retry_times=0,
            retry_backoff_ns=SECOND,
            read_durability=Durability.EVENTUAL,
            death_is_certain=True,
            implied_value=None,
        )
        return replace(plan, **fields)

    # --- the driver ------------------------------------------------------------------------------------------------

    def run(self, script: Script[Any]) -> Any:
        """Drive a script to its end, which has to come."""
        try:
            action = next(script)
            for _ in range(ACTIONS_MAX):
                self.seen.append(action)
                try:
                    reply = self._do(action)
                except (Exception, Interrupted) as error:
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except Interrupted as interrupted:  # as the drivers do
            raise interrupted.cause from None
        except StopIteration as stop:
            return stop.value
        msg = f"the script does not end: ... {self.did[-6:]}"
        raise AssertionError(msg)

    def _do(self, action: Action) -> Any:
        match action:
            case Load(branch, step, generation):
                return self.store.view(branch, step, generation)
            case LoadBranch(branch):
                return self.store.branch_view(branch)
            case Fetch(seq):
                return self.store.record(seq).payload
            case FetchError(seq):
                return self.store.record(seq).record.error
            case Wait(duration_ns):
                self.did.append(f"wait {duration_ns / SECOND:g}")
                self.clock.ns += duration_ns
                return None
            case Probe():
                self.did.append("probe")
                started = self.clock.now()
                answer, value = _next(self.probes, action)
                error = ErrorText("Timeout", "") if answer is Answer.UNKNOWN else None
                return Probed(answer, value, error, started)
            case Call():
                self.did.append("call")
                return _reply(_next(self.calls, action))
            case Append():
                return self._append(action)

    def _append(self, entry: Append) -> Appended | Refused | Deferred:
        name = named(entry.record)
        self.did.append(name)
        if entry.durability is Durability.EVENTUAL:
            self.waiting.append(entry)
            return Deferred()
        fate = self.befalls.pop(name, None)
        if isinstance(fate, tuple):
            first, fate = fate
            first()
        if callable(fate) and not isinstance(fate, type):
            fate()
        if isinstance(fate, Exception):
            raise fate
        if isinstance(fate, Reason):
            return Refused(Refusal(fate, ""), self.store.view(BRANCH, "charge"))
        if fate == "interrupted":
            raise Interrupted(None, Stop())
        waiting, self.waiting = self.waiting, []
        reply = self.store.append([*waiting, entry])[-1]
        if fate == "landed":
            raise Interrupted([reply], Stop())
        return reply

    # --- what the log says -------------------------------------------------------------------------------------------

    @property
    def operation(self) -> Any:
        return self.store.view(BRANCH, "charge").operation

    def kinds(self) -> list[str]:
        """The branch's records of intents, by name."""
        records = [stored.record for stored in self.store.history(BRANCH)]
        return [named(record) for record in records if isinstance(record, r.INTENT_RECORDS)]

    def is_sound(self) -> bool:
        """Whether chain, table and every invariant hold of the log (I1, I2, I3, I4, I6)."""
        rows = {(o.step, o.generation): o for _, o in self.store.operations(BRANCH, open_only=False)}
        row = self.disk.live.branches[BRANCH]
        return check_branch(Held(BRANCH, row, self.store.history(BRANCH), rows)) == []


def named(record: r.Record) -> str:
    """A record in a word, with what it says where that matters."""
    match record:
        case r.Committed(outcome=outcome):
            return str(outcome)
        case r.Settled(settlement=settlement):
            return f"Settled({settlement})"
        case r.ProbeAnswered(answer=answer):
            return f"ProbeAnswered({answer})"
        case _:
            return type(record).__name__


def _next(answers: list[Any], action: Action) -> Any:
    assert answers, f"nobody expected {action}"
    answer = answers.pop(0)
    return answer(action) if callable(answer) and not isinstance(answer, type) else answer


def _reply(answer: Any) -> Returned | Raised | NotMade:
    if isinstance(answer, NotMade):
        return answer
    return Raised(answer) if isinstance(answer, BaseException) else Returned(answer)


def crashed(kind: str, at: str, *calls: Any, **plan: Any) -> Player:
    """The next process, opened, after one that died at this action of performing a step of this class."""
    first = Player().opens()
    first.calls = list(calls)
    script = perform(first.plan(kind, **plan))
    action = next(script)
    while not (isinstance(action, Call) if at == "call" else isinstance(action, Append) and named(action.record) == at):
        action = script.send(first._do(action))
    script.close()
    return first.dies()


# --- what programs, zombies and persons do ---------------------------------------------------------------------------


def nothing(_: str) -> None:
    """The tools of a program that has none."""


def here(kind: str, **fields: Any) -> Callable[[str], Declaration]:
    """The tools of a program that has this one."""
    return lambda _: Player().plan(kind, **fields).declaration


def decides(player: Player, settlement: str, **fields: Any) -> None:
    """Ann says what became of the first attempt's intent."""
    fields = {"intent": INTENT, "payload": None, "by": "ann", "why": "looked", "expect_seq": None, **fields}
    player.run(resolve(settlement=Settlement(settlement), **fields))


def late(player: Player, attempt: int, number: int, outcome: str) -> None:
    """The outcome of a dispatch whose owner was given up."""
    record = r.Committed(attempt=attempt, step="charge", dispatch_no=number, outcome=r.OutcomeKind(outcome))
    assert isinstance(player.store.append([Append(BRANCH, record, b'"late"')])[0], Appended)


def contradicted() -> Player:
    """It was said not to have been sent; then the zombie's call turned out to have returned."""
    player = Player().opens()
    player.raises(NotSent, NotSent("refused"))
    player = player.dies()
    late(player, 1, 1, "RETURNED")
    assert player.operation.contradicts
    return player


def interrupted_after(player: Player, script: Script[Any], appends: int) -> Player:
    """The next process, after this one died in the middle of a script: so many records of it had become durable."""
    action = next(script)
    while appends or not isinstance(action, Append):
        reply = player._do(action)
        appends -= isinstance(action, Append)
        action = script.send(reply)
    script.close()
    return player.dies("z")
