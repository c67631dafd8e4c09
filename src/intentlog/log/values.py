"""The small values of the public face: what a tool is given, what a probe answers, what a program is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from intentlog.core.actions import IntentId
from intentlog.core.effects import nanoseconds
from intentlog.core.records import End, Record, Resolution
from intentlog.core.restart import Classification
from intentlog.errors import ToolMisdefined
from intentlog.log.sealing import Codec, check_codec

LEASE_VARIABLE = "INTENTLOG_LEASE_S"
LEASE_MIN_S, LEASE_MAX_S = 1, 86_400
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _NoValue(Enum):
    """The value is not known, which is not the same as None."""

    NO_VALUE = "no value"


NO_VALUE = _NoValue.NO_VALUE
_UNKNOWN_VALUE: Any = NO_VALUE


class SecretMark:
    """Marks an argument that is never written anywhere."""


class VolatileMark:
    """Marks an argument that may differ between two tries of one operation."""


Secret = Annotated[T, SecretMark]
"""`Secret[str]`: never written anywhere, masked in recorded errors, and not part of the operation's identity."""
Volatile = Annotated[T, VolatileMark]
"""`Volatile[str]`: not part of the operation's identity (a short-lived token); never written, masked likewise."""


class Call(Struct, frozen=True):
    """What the guard tells a tool that asks for it: its first parameter, annotated `Call`.

    Attributes:
        request_id: a UUID, equal for every attempt of this operation: the receiver's idempotency key.
        intent_id: the intent, as `order-1042#2/charge`.
        dispatch_no: which call of this operation it is, from 1; 0 for a READ.
        deadline: when `time_limit` ends, in seconds of `time.monotonic()`. A plain tool keeps it itself.
    """

    request_id: str
    intent_id: IntentId
    dispatch_no: int
    deadline: float


class Applied(Struct, Generic[T_co], frozen=True):
    """A probe's or a person's answer: the effect happened.

    Attributes:
        value: what the tool would have returned. `Applied()` leaves it open: a replay then raises
            `OutcomeUnavailable`, unless the tool returns None.
    """

    value: T_co = _UNKNOWN_VALUE

    @property
    def has_value(self) -> bool:
        """Whether the value is known."""
        return self.value is not NO_VALUE


class NotApplied(Struct, frozen=True):
    """A probe's or a person's answer: the effect did not happen."""


class Unknown(Struct, frozen=True):
    """A probe's answer: it could not tell."""


class Retry(Struct, frozen=True):
    """Repeats a call that was not sent or ended ambiguously, where the effect's class permits a repeat.

    Attributes:
        times: how often it is repeated at most, 1 or more; so `times=3` makes up to four calls.
        backoff: the wait before the first repeat, zero or more; it doubles with each, up to an hour.

    Raises:
        ToolMisdefined: a value is out of its range.
    """

    times: int
    backoff: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if type(self.times) is not int or self.times < 1 or nanoseconds(self.backoff) < 0:
            raise ToolMisdefined(f"Retry needs times >= 1 and a backoff >= 0, not {self.times} and {self.backoff}")


class OpenIntent(Struct, frozen=True):
    """An intent without outcome or settlement.

    Attributes:
        intent_id: the intent.
        seq: its operation's newest record: give it to `resolve` as `expect_seq`.
        tool: the tool's name.
        effect: its effect class, as recorded.
        state: PENDING or DISPATCHED.
        dispatched_at: when it was last dispatched (UTC), or None.
        calling: whether its owner lives and has not said that the call ended.
        in_doubt: whether it may have been sent, nobody is calling any more, and its class cannot settle it (yet).
        resolution: what is to be done about it, if nobody is calling.
        contradicts: whether a late outcome says other than what was settled.
        not_before: until when (UTC) a call of it may still land: a look before that may find nothing, and be wrong.
            None: that time is past.
    """

    intent_id: IntentId
    seq: int
    tool: str
    effect: str
    state: str
    dispatched_at: datetime | None
    calling: bool
    in_doubt: bool
    resolution: Resolution
    contradicts: bool
    not_before: datetime | None = None


class Unfinished(Struct, frozen=True):
    """A branch that a supervisor should run again.

    Attributes:
        branch: the branch.
        attempt: its last attempt.
        end: how that ended: None if its owner died, INDETERMINATE if its doubts are settled, or will be by the run.
    """

    branch: str
    attempt: int
    end: End | None


class Recovered(Struct, frozen=True):
    """What one recovery recorded about one branch. What another had recorded before is not in it.

    Attributes:
        branch: the branch.
        fenced: the attempt that it fenced, because its owner was dead; or None.
        classified: what it concluded of the branch's open intents, after probes answered.
        closed: how it closed the attempt, which had been cancelled; or None.
    """

    branch: str
    fenced: int | None
    classified: tuple[Classification, ...]
    closed: End | None


class Entry(Struct, frozen=True):
    """One record of a branch's history.

    Attributes:
        seq: its place in the log.
        kind: the record's kind, as `Pending`.
        at: when it was appended (UTC).
        record: the record itself.
        payload: arguments, value or event as JSON, or None; `Sealed`, if the log's codec is not at hand.
        branch: its branch.
    """

    seq: int
    kind: str
    at: datetime
    record: Record
    payload: Any
    branch: str


class Sealed(Struct, frozen=True):
    """Stands for a payload that was sealed by the log's codec, and cannot be opened without it.

    Attributes:
        sealed_bytes: its size.
    """

    sealed_bytes: int


class Cancelled(Struct, frozen=True):
    """What `cancel` came to, as the records have it now.

    Attributes:
        verdict: CANCELLED, or INDETERMINATE while something was dispatched and has no outcome or settlement.
        open_intents: what is still open of the branch; a call in flight is, until its owner records its outcome.
    """

    verdict: End
    open_intents: tuple[OpenIntent, ...]


Progress: TypeAlias = Callable[[int, int], object]
"""Is told how far `verify` is: records that were checked, and all that there were when it began."""


class Problem(Struct, frozen=True):
    """Something that `verify` found.

    Attributes:
        branch: where.
        seq: at which record, 0 if at none.
        text: what.
    """

    branch: str
    seq: int
    text: str


class Report(Struct, frozen=True):
    """What `verify` found.

    Attributes:
        problems: everything that is wrong, the first ten thousand; empty if the log is sound.
        records: how many records were read.
        branches: how many branches.
    """

    problems: tuple[Problem, ...]
    records: int
    branches: int

    @property
    def ok(self) -> bool:
        """Whether the log is sound."""
        return not self.problems


def _lease() -> timedelta:
    """The lease that the environment wants.

    Raises:
        ToolMisdefined: it is no number of seconds.
    """
    text = os.environ.get(LEASE_VARIABLE, "30")
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as error:
        raise ToolMisdefined(f"${LEASE_VARIABLE} is a number of seconds, not {text!r}") from error


class Settings(Struct, frozen=True):
    """How a log guards its calls.

    Attributes:
        dispatch_grace: a call begins within this time after its permission was sent, or not at all; > 0.
        argument_bytes_max: the largest encoding of a call's arguments.
        result_bytes_max: the largest encoding of a result; a larger one is recorded as done without a value.
        threads_max: how many plain tools an AsyncLog runs at once.
        codec: seals what is stored of arguments, values and events; see `Codec`.
        lease: in PostgreSQL, how long others take this worker for alive after its last sign of life, from 1 second;
            renewed every third of it. By default $INTENTLOG_LEASE_S seconds, or 30.
    """

    dispatch_grace: timedelta = timedelta(seconds=10)
    argument_bytes_max: int = 1 << 20
    result_bytes_max: int = 1 << 20
    threads_max: int = 64
    codec: Codec | None = None
    lease: timedelta = field(default_factory=_lease)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if nanoseconds(self.dispatch_grace) <= 0:
            raise ToolMisdefined(f"dispatch_grace must be positive, not {self.dispatch_grace}")
        if not LEASE_MIN_S <= self.lease.total_seconds() <= LEASE_MAX_S:
            raise ToolMisdefined(f"lease must be from {LEASE_MIN_S} s to a day, not {self.lease}")
        for name in ("argument_bytes_max", "result_bytes_max", "threads_max"):
            value: object = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ToolMisdefined(f"{name} must be at least 1, not {value!r}")
        if self.codec is not None:
            check_codec(self.codec)
