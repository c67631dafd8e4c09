"""What the actors run: a user's program around the real scripts, a restart's recovery, a person. No protocol in here.

Beside the scripts' own actions a program yields three that are the model's: `Told` (a result that somebody was given),
`Seen` (the log as a person has it before them), `Looked` (a person looks at the receiver).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from model.world import BRANCH, GRACE, LIMIT, SETTLE, STEP, declared

from intentlog.core import codec
from intentlog.core.actions import ErrorKind, IntentId, Plan
from intentlog.core.decisions import resolve
from intentlog.core.effects import EffectKind
from intentlog.core.lifecycle import perform
from intentlog.core.records import Durability, End, ErrorText, Settlement
from intentlog.core.restart import Present, close_attempt, open_attempt, recover_branch
from intentlog.errors import InDoubt, IntentLogError, NotSent, Rejected, Suspended

KINDS: dict[type[BaseException], ErrorKind] = {
    NotSent: ErrorKind.NOT_SENT,
    Rejected: ErrorKind.REJECTED,
    Suspended: ErrorKind.SUSPENDED,
}
LOOKS_AFTER = GRACE + LIMIT + SETTLE  # ticks from the last dispatch until a call of it would be seen


class Told(NamedTuple):
    """Somebody was told how it stands. Reply: None."""

    what: str
    attempt: int = 0  # to whose owner
    ran: str = ""  # `effect_ran`, where an intent is named
    later: bool = False  # an InDoubt that says when to ask again


class Seen(NamedTuple):
    """A person reads the log. Reply: (`expect_seq`, the attempt in doubt, the tick of the last dispatch), or None."""


class Looked(NamedTuple):
    """A person looks at the receiver, not before this tick. Reply: whether it shows the effect."""

    not_before: int


Program: TypeAlias = Callable[[], Generator[Any, Any, None]]


class Setting(NamedTuple):
    """What all actors of one scope share: the tool's class, and how the death of an owner is known."""

    kind: EffectKind
    probe: bool
    certain: bool
    retries: int = 0
    grace: int = GRACE


def owner(name: str, setting: Setting, *, tries: int, closes: bool) -> Program:
    """A program that opens an attempt, performs the step, again if that failed, closes perhaps, and exits."""

    def program() -> Generator[Any, Any, None]:
        try:
            opened = yield from open_attempt(BRANCH, name, present(setting))
        except IntentLogError as error:
            yield told(error, 0)
            return
        plan = plan_of(setting, opened.attempt)
        for _ in range(tries):
            try:
                outcome = yield from perform(plan)
            except IntentLogError as error:
                yield told(error, opened.attempt)
            else:
                yield Told("replayed" if outcome.replayed else "returned", opened.attempt, "yes")
                break
        if closes:
            try:
                yield from close_attempt(BRANCH, opened.attempt, End.COMPLETED, None)
            except IntentLogError as error:
                yield told(error, opened.attempt)

    return program


def recovery(setting: Setting) -> Program:
    """`recover`, as a supervisor runs it: opens nothing, calls nothing but the probe."""

    def program() -> Generator[Any, Any, None]:
        yield from recover_branch(BRANCH, present(setting), certain=setting.certain)

    return program


def person(*, patient: bool, minds_seq: bool = True) -> Program:
    """A person who reads which intent is in doubt, then looks at the receiver, then decides as it shows.

    Assumed of a patient one: they look no earlier than grace, time limit and settle after the last dispatch that they
    read of. A hasty one looks at once.
    """

    def program() -> Generator[Any, Any, None]:
        seen = yield Seen()
        if seen is None:
            return
        expect_seq, attempt, last = seen
        landed = yield Looked(last + LOOKS_AFTER if patient else 0)
        settlement = Settlement.APPLIED if landed else Settlement.NOT_APPLIED
        intent = IntentId.of(BRANCH, attempt, STEP)
        payload = b'"found"' if landed else None
        try:
            yield from resolve(intent, settlement, payload, "ann", "looked", expect_seq if minds_seq else None)
        except IntentLogError as error:
            yield told(error, attempt)

    return program


def told(error: IntentLogError, attempt: int) -> Told:
    """What an error tells its caller of the effect."""
    later = isinstance(error, InDoubt) and error.not_before is not None
    return Told(type(error).__name__, attempt, error.effect_ran if error.intent_id else "", later)


@cache
def present(setting: Setting) -> Present:
    """The tools of a program that has this one."""
    declaration = declared(setting.kind, probe=setting.probe, grace=setting.grace)
    return lambda _: declaration


@cache
def plan_of(setting: Setting, attempt: int) -> Plan:
    """The guarded call. One object for each attempt, so that equal positions hold equal plans."""
    return Plan(
        log="orders.db",
        intent_id=IntentId.of(BRANCH, attempt, STEP),
        salt=b"memory-log-salt-",
        tool=STEP,
        declaration=declared(setting.kind, probe=setting.probe, grace=setting.grace),
        arguments=b'{"cents":1}',
        digest="1:00",
        kind_of=_kind_of,
        describe=_described,
        encode=_encoded,
        decode=_decoded,
        implied_value=None,
        retry_times=setting.retries,
        retry_backoff_ns=0,
        read_durability=Durability.EVENTUAL,
        death_is_certain=setting.certain,
    )


def _kind_of(error: BaseException) -> ErrorKind:
    return KINDS.get(type(error), ErrorKind.AMBIGUOUS)


def _described(error: BaseException) -> ErrorText:
    return ErrorText(type(error).__name__, str(error))


def _encoded(value: object) -> bytes:
    return codec.encode_value(value, 1000)


def _decoded(payload: bytes) -> Any:
    return codec.decode_value(payload, Any)
