"""What a lifecycle generator asks of its driver, and what it is sent in reply.

A generator yields one action, is sent the reply, and yields the next; what it returns is the result. A driver does
what it is asked and never decides. Errors of the store are thrown into the generator at the action that met them.
`Interrupted` is thrown where a cancellation or a signal arrived during an append: it says what became of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from msgspec import Struct

from intentlog.core.effects import Declaration
from intentlog.core.machine import Refusal
from intentlog.core.records import Answer, Durability, ErrorText, Instant, Record
from intentlog.core.state import Branch, Operation
from intentlog.core.words import Word
from intentlog.errors import NotSent, Rejected, Suspended

DIGITS_MAX = 100  # of an attempt's number; Python reads 4,300


class IntentId(str):
    """The identity of an intent, in its text form `order-1042#2/charge`, parsed from the right.

    Attributes:
        branch: the branch.
        attempt: the attempt, from 1.
        step: the step.
    """

    __slots__ = ("attempt", "branch", "step")
    branch: str
    attempt: int
    step: str

    def __new__(cls, text: str) -> Self:
        """The identity that `text` writes down.

        Raises:
            ValueError: it has not the form BRANCH#ATTEMPT/STEP.
        """
        rest, slash, step = text.rpartition("/")
        branch, sharp, attempt = rest.rpartition("#")
        counts = attempt.isascii() and attempt.isdigit() and not attempt.startswith("0") and len(attempt) <= DIGITS_MAX
        if not (slash and sharp and branch and step and counts):
            msg = f"not an intent: {text!r}. The form is BRANCH#ATTEMPT/STEP, as in order-1042#2/charge"
            raise ValueError(msg)
        return cls.of(branch, int(attempt), step)

    @classmethod
    def of(cls, branch: str, attempt: int, step: str) -> Self:
        """The identity made of its parts, which are taken as they are."""
        identity = super().__new__(cls, f"{branch}#{attempt}/{step}")
        identity.branch, identity.attempt, identity.step = branch, attempt, step
        return identity

    def __reduce__(self) -> tuple[type[IntentId], tuple[str]]:
        """Pickled as its text."""
        return type(self), (str(self),)


# --- actions --------------------------------------------------------------------------------------------------------


class Load(Struct, frozen=True, gc=False):
    """Read a branch and the current generation of one step, or the one that is named. Reply: `View`."""

    branch: str
    step: str
    generation: int | None = None


class LoadBranch(NamedTuple):
    """Read a branch and its open operations. Reply: `BranchView`."""

    branch: str


class Fetch(Struct, frozen=True, gc=False):
    """Read the payload of one record. Reply: bytes or None."""

    seq: int


class FetchError(NamedTuple):
    """Read the error text of one record. Reply: `ErrorText` or None."""

    seq: int


class Append(Struct, frozen=True, gc=False):
    """Append one record, in a commit of its own. Reply: `Appended` or `Refused`; `Deferred` if EVENTUAL.

    `body` is the record's encoding, where that was made before, outside the lock that the commit is made under.
    """

    branch: str
    record: Record
    payload: bytes | None = None
    durability: Durability = Durability.IMMEDIATE
    body: bytes = b""


class Call(Struct, frozen=True):
    """Call the tool, unless `grace_ns` passed since `sent`. Reply: `Returned`, `Raised` or `NotMade`."""

    intent_id: IntentId
    request_id: str
    dispatch_no: int
    sent: Instant
    grace_ns: int | None  # None for a READ, which nothing fences


class Probe(NamedTuple):
    """Ask the tool's probe about the operation. Reply: `Probed`."""

    tool: str
    intent_id: IntentId
    request_id: str
    dispatch_no: int
    arguments_seq: int  # where the recorded arguments stand, for a restart that has no others


class Wait(NamedTuple):
    """Wait. Reply: None."""

    duration_ns: int


Action: TypeAlias = Load | LoadBranch | Fetch | FetchError | Append | Call | Probe | Wait

# --- replies --------------------------------------------------------------------------------------------------------


class View(Struct, frozen=True, gc=False):
    """A branch and an operation as they stand, and the clocks."""

    branch: Branch
    operation: Operation | None
    now: Instant


class BranchView(NamedTuple):
    """A branch, its open operations, whether its owner lives, and the clocks."""

    branch: Branch
    operations: tuple[Operation, ...]
    owner_lives: bool
    now: Instant

    @property
    def busy(self) -> bool:
        """A living owner holds it: its attempt is open, or a call of it has not been seen to end."""
        calling = any(o.calling(self.branch.attempt) for o in self.operations)
        return self.owner_lives and (self.branch.is_open or calling)


class Appended(Struct, frozen=True, gc=False):
    """The record stands in the log.

    Attributes:
        seq: its place.
        view: branch and operation with it, and the clocks when the commit was sent.
    """

    seq: int
    view: View


class Deferred(NamedTuple):
    """The EVENTUAL record is kept, and goes into the commit of its branch's next Pending or close."""


class Refused(Struct, frozen=True, gc=False):
    """The record was refused and nothing was written; branch and operation as they stand."""

    refusal: Refusal
    view: View


class Returned(Struct, frozen=True):
    """The tool returned."""

    value: Any


class Raised(Struct, frozen=True):
    """The tool raised, or its call was cancelled.

    Attributes:
        error: what it raised.
        at_limit: whether the guard was ending it then, because its time limit was over.
    """

    error: BaseException
    at_limit: bool = False


class NotMade(Struct, frozen=True):
    """The call was not made, and why: the grace had passed, or the log was taken away."""

    why: str


class Probed(NamedTuple):
    """What the probe answered, and when it was begun."""

    answer: Answer
    value: bytes | None  # what APPLIED found, encoded
    error: ErrorText | None
    started: Instant


class Interrupted(BaseException):
    """A cancellation or a signal arrived during an append, and the record's fate was learnt first.

    Attributes:
        replies: what the append came to; None where nothing was written.
        cause: the cancellation, or the signal's exception.
    """

    def __init__(self, replies: Sequence[Appended | Refused] | None, cause: BaseException) -> None:
        super().__init__()
        self.replies = replies
        self.cause = cause

    @property
    def reply(self) -> Appended | Refused | None:
        """The reply to the newest record of the append."""
        return self.replies[-1] if self.replies else None


ResultT = TypeVar("ResultT")
Script: TypeAlias = Generator[Action, Any, ResultT]

# --- what a script is told ------------------------------------------------------------------------------------------


class ErrorKind(Word):
    """What a tool's error proves."""

    NOT_SENT = "NOT_SENT"
    REJECTED = "REJECTED"
    SUSPENDED = "SUSPENDED"
    AMBIGUOUS = "AMBIGUOUS"  # nothing: the default


class Plan(Struct, frozen=True):
    """One guarded call, bound, encoded and named before anything is written.

    Attributes:
        log: how commands name the log.
        intent_id: branch, attempt and step.
        salt: the log's secret, for the request id.
        tool: the tool's name.
        declaration: the tool's present declaration.
        arguments: the arguments to be stored, encoded and sealed.
        digest: over the arguments as passed.
        kind_of: what an error of this tool proves.
        describe: an error as evidence, secrets masked.
        encode: a result as bytes; raises codec.NotRecordable.
        decode: a recorded result as the annotated type; raises ValueError.
        implied_value: the recorded form of the only value that the tool can return, or None.
        retry_times: how often the call may be repeated within this one.
        retry_backoff_ns: the wait before the first repeat; it doubles with each.
        read_durability: of a READ's record.
        death_is_certain: whether the store knows a dead owner for dead (a lock), or only believes it (a lease).
        opened: a stored payload as it was before it was sealed; raises ValueError.
        unkeyed_digest: the digest of version 1, for an operation from before the log had a codec; "" if that is it.
    """

    log: str
    intent_id: IntentId
    salt: bytes
    tool: str
    declaration: Declaration
    arguments: bytes
    digest: str
    kind_of: Callable[[BaseException], ErrorKind]
    describe: Callable[[BaseException], ErrorText]
    encode: Callable[[object], bytes]
    decode: Callable[[bytes], Any]
    implied_value: bytes | None
    retry_times: int
    retry_backoff_ns: int
    read_durability: Durability
    death_is_certain: bool
    opened: Callable[[bytes], bytes] = bytes
    unkeyed_digest: str = ""

    def proved_by(self, raised: Raised) -> ErrorKind:
        """What it proves that a call raised.

        At the time limit nothing, whatever the tool declares of a time-out or of what it meets while it cleans up;
        unless it says so itself, in the library's own words.
        """
        if raised.at_limit and not issubclass(type(raised.error), NotSent | Rejected | Suspended):
            return ErrorKind.AMBIGUOUS
        return self.kind_of(raised.error)

    def __repr__(self) -> str:
        """Without the salt, the arguments and what is masked: it stands in frames, which error reports show."""
        return f"Plan({self.intent_id}, {self.tool})"


class Outcome(NamedTuple, Generic[ResultT]):
    """What a guarded call came to.

    Attributes:
        value: what the tool returned, as a replay would return it.
        replayed: True if it comes from the record and nothing was called now.
        intent_id: the intent, in its text form.
        request_id: the key that every attempt of the operation sends.
    """

    value: ResultT
    replayed: bool
    intent_id: IntentId
    request_id: str
