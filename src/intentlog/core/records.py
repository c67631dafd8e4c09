"""The records of the log, and the words that they use.

A record is one append, immutable. Every record of an intent names its attempt, step and generation; together with the
branch that it is appended to, they say which operation it speaks for. Records of one dispatch carry `dispatch_no`,
counted from 1 within the operation over all attempts, so that a late answer can only speak for its own dispatch.

Times are not in the records: the store stamps each append with one `Instant`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from intentlog.core.effects import Declaration
from intentlog.core.words import Word


class IntentState(Word):
    """The last state of an intent, as the seed names it."""

    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"
    COMMITTED = "COMMITTED"


class Verdict(Word):
    """What a restart can truthfully say of an intent, and the verdict over an operation."""

    NEVER_SENT = "NEVER_SENT"
    MAY_HAVE_BEEN_SENT = "MAY_HAVE_BEEN_SENT"
    DONE = "DONE"


class Resolution(Word):
    """What is to be done about it (the recovery table's answers)."""

    RETRY = "RETRY"  # call: it was never sent
    RECALL = "RECALL"  # call again: the class makes a repeat harmless
    PROBE = "PROBE"  # ask the outside world about this operation
    ASK_PERSON = "ASK_PERSON"  # in doubt: a person decides
    REPLAY = "REPLAY"  # answer from the record


class OutcomeKind(Word):
    """How a call ended, when that is known."""

    RETURNED = "RETURNED"
    REJECTED = "REJECTED"  # a definite no
    NOT_SENT = "NOT_SENT"  # refused before it left


class Answer(Word):
    """A probe's answer."""

    APPLIED = "APPLIED"
    NOT_APPLIED = "NOT_APPLIED"
    UNKNOWN = "UNKNOWN"


class Settlement(Word):
    """How an intent without an outcome was closed."""

    NEVER_SENT = "NEVER_SENT"
    APPLIED = "APPLIED"
    NOT_APPLIED = "NOT_APPLIED"
    SUPERSEDED = "SUPERSEDED"  # a permitted later call of the same operation returned


class End(Word):
    """How an attempt ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INDETERMINATE = "INDETERMINATE"


class Durability(Word):
    """IMMEDIATE: durable when acknowledged. EVENTUAL: durable no later than its branch's next Pending or close (I5)."""

    IMMEDIATE = "IMMEDIATE"
    EVENTUAL = "EVENTUAL"


class Instant(Struct, frozen=True, gc=False, array_like=True):
    """One reading of the clocks.

    Attributes:
        wall_ns: wall clock, nanoseconds since the epoch (UTC).
        boot_id: which boot of which machine `boot_ns` belongs to.
        boot_ns: nanoseconds since that boot, sleep included. Never set back.
    """

    wall_ns: int
    boot_id: str
    boot_ns: int


class ErrorText(Struct, frozen=True, gc=False, array_like=True):
    """An error as evidence: its type's name and its masked, shortened text."""

    type: str
    text: str


class OfBranch(Struct, frozen=True, gc=False, kw_only=True, tag_field="kind", omit_defaults=True):
    """A record of an attempt as a whole, or of its branch."""

    attempt: int


class AttemptOpened(OfBranch, frozen=True, gc=False, kw_only=True, tag="AttemptOpened"):
    """Attempt n of the branch begins, and with it every earlier attempt is fenced."""

    owner: str


class AttemptFenced(OfBranch, frozen=True, gc=False, kw_only=True, tag="AttemptFenced"):
    """A restart fenced attempt n, whose owner is dead, without opening another."""


class AttemptClosed(OfBranch, frozen=True, gc=False, kw_only=True, tag="AttemptClosed"):
    """The owner closed its attempt."""

    end: End
    error: ErrorText | None = None


class CancelRequested(OfBranch, frozen=True, gc=False, kw_only=True, tag="CancelRequested"):
    """Somebody asked that attempt n send nothing more. It fences this attempt, not later ones."""

    by: str
    why: str


class ApplicationEvent(OfBranch, frozen=True, gc=False, kw_only=True, tag="ApplicationEvent"):
    """A program's own note in the branch. Its payload stands beside it."""

    name: str


class OfIntent(Struct, frozen=True, gc=False, kw_only=True, tag_field="kind", omit_defaults=True):
    """A record of one intent."""

    attempt: int
    step: str
    generation: int = 1


class Pending(OfIntent, frozen=True, gc=False, kw_only=True, tag="Pending"):
    """The intent is declared. The payload of an operation's first Pending holds the arguments."""

    tool: str
    declaration: Declaration
    request_id: str
    digest: str


class Dispatched(OfIntent, frozen=True, gc=False, kw_only=True, tag="Dispatched"):
    """The call may be made from now on, and only by who appended this."""

    dispatch_no: int = 1


class ReadHeader(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a READ's single record has to say of its operation, as no Pending stands before it."""

    tool: str
    declaration: Declaration
    request_id: str
    digest: str


class Committed(OfIntent, frozen=True, gc=False, kw_only=True, tag="Committed"):
    """The outcome of one dispatch. The payload is the returned value, if it could be stored."""

    outcome: OutcomeKind
    dispatch_no: int = 1
    error: ErrorText | None = None
    value_missing: str = ""  # why a RETURNED has no payload
    read: ReadHeader | None = None  # set for a READ, which has no dispatch


class CallEnded(OfIntent, frozen=True, gc=False, kw_only=True, tag="CallEnded"):
    """The call of this dispatch ended ambiguously: nobody is calling any more, and nothing is known."""

    error: ErrorText
    dispatch_no: int = 1


class Suspended(OfIntent, frozen=True, gc=False, kw_only=True, tag="Suspended"):
    """The tool stopped before its effect."""

    reason: str
    dispatch_no: int = 1


class ProbeAnswered(OfIntent, frozen=True, gc=False, kw_only=True, tag="ProbeAnswered"):
    """What the outside world answered about the operation, asked after `expect_seq` was read."""

    answer: Answer
    expect_seq: int
    dispatch_no: int = 1
    error: ErrorText | None = None  # why an UNKNOWN is one


class Settled(OfIntent, frozen=True, gc=False, kw_only=True, tag="Settled"):
    """An intent without outcome is closed. APPLIED and NOT_APPLIED close every open dispatch of the operation."""

    settlement: Settlement
    by: str
    why: str
    expect_seq: int | None = None  # of the operation; required for APPLIED and NOT_APPLIED
    superseded_by: int | None = None  # the dispatch that returned
    value_recorded: bool = False  # APPLIED with a value: it is the payload


class Classified(OfIntent, frozen=True, gc=False, kw_only=True, tag="Classified"):
    """A restart's decision about an intent of an earlier attempt."""

    last_state: IntentState
    classification: Verdict
    resolution: Resolution


class Renewed(OfIntent, frozen=True, gc=False, kw_only=True, tag="Renewed"):
    """Somebody decided that the operation shall happen once more: the generation rises."""

    by: str
    why: str
    expect_seq: int


class Supplied(OfIntent, frozen=True, gc=False, kw_only=True, tag="Supplied"):
    """Somebody supplied the value of a done operation that had none. The payload is the value."""

    by: str
    why: str


BranchRecord: TypeAlias = AttemptOpened | AttemptFenced | AttemptClosed | CancelRequested | ApplicationEvent
IntentRecord: TypeAlias = (
    Pending | Dispatched | Committed | CallEnded | Suspended | ProbeAnswered | Settled | Classified | Renewed | Supplied
)
Record: TypeAlias = BranchRecord | IntentRecord
INTENT_RECORDS = (
    Pending,
    Dispatched,
    Committed,
    CallEnded,
    Suspended,
    ProbeAnswered,
    Settled,
    Classified,
    Renewed,
    Supplied,
)


# What a call's time is bounded by: these keep the boot clock, the others the wall clock alone.
BOUNDS_A_CALL = (AttemptOpened, AttemptFenced, Dispatched, CallEnded)


class Stored(Struct, frozen=True, gc=False):
    """A record as it stands in the log.

    Attributes:
        seq: its place in the whole log, rising.
        branch: the branch that it belongs to.
        at: when it was appended; boot clock and boot id are kept for BOUNDS_A_CALL only (else 0 and "").
        record: the record.
        payload: arguments, value or event payload, as encoded bytes; None where there is none.
        previous_seq: the branch's record before this one, 0 for its first.
        chain: digest over this record and the whole branch before it.
    """

    seq: int
    branch: str
    at: Instant
    record: Record
    payload: bytes | None
    previous_seq: int
    chain: bytes
