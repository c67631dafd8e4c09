"""What the log says of a branch and of an operation, folded. Kept by the stores, rebuilt by `verify`."""

from __future__ import annotations

from msgspec import Struct

from intentlog.core import records as r
from intentlog.core.effects import Declaration
from intentlog.core.records import Instant
from intentlog.core.words import Word
from intentlog.errors import EffectRan


class State(Word):
    """The state of an intent in the machine."""

    NONE = "NONE"
    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"
    SUSPENDED = "SUSPENDED"
    COMMITTED = "COMMITTED"
    SETTLED = "SETTLED"


class Fate(Word):
    """What is known of one dispatch."""

    CALLING = "CALLING"  # its owner calls, or died calling
    ENDED = "ENDED"  # the call ended, ambiguously
    RETURNED = "RETURNED"
    REJECTED = "REJECTED"
    NOT_SENT = "NOT_SENT"
    SUSPENDED = "SUSPENDED"
    APPLIED = "APPLIED"
    NOT_APPLIED = "NOT_APPLIED"
    SUPERSEDED = "SUPERSEDED"


OPEN_FATES = frozenset({Fate.CALLING, Fate.ENDED})
OPEN_STATES = frozenset({State.PENDING, State.DISPATCHED})


class Dispatch(Struct, frozen=True, gc=False, array_like=True):
    """One permission to call: its number in the operation, whose attempt it was, when, and what became of it."""

    number: int
    attempt: int
    at: Instant
    fate: Fate
    ended_at: Instant | None = None  # when its call was seen to end, ambiguously


class Intent(Struct, frozen=True, gc=False, array_like=True):
    """One attempt's share in an operation."""

    attempt: int
    state: State
    classified: r.Verdict | None = None
    resolution: r.Resolution | None = None


class Decided(Struct, frozen=True, gc=False, array_like=True):
    """What the operation came to: RETURNED, REJECTED or APPLIED; where that stands, and where its value does."""

    fate: Fate
    seq: int
    value_seq: int | None


class Operation(Struct, frozen=True, gc=False, array_like=True):
    """Everything the log says of one operation, folded."""

    step: str
    generation: int
    tool: str
    declaration: Declaration
    request_id: str
    digest: str
    first_seq: int  # its first record; the payload of that Pending holds the arguments
    last_seq: int  # its newest record: what `expect_seq` is held against
    intents: tuple[Intent, ...] = ()
    dispatches: tuple[Dispatch, ...] = ()
    decided: Decided | None = None
    renewed: bool = False
    contradicts: bool = False  # a late outcome says other than what was settled
    last_answer: r.Answer | None = None

    def intent(self, attempt: int) -> Intent | None:
        """This attempt's intent, or None."""
        for one in reversed(self.intents):
            if one.attempt == attempt:
                return one
        return None

    def dispatch(self, number: int) -> Dispatch | None:
        """The dispatch of this number, or None."""
        for one in reversed(self.dispatches):
            if one.number == number:
                return one
        return None

    @property
    def open_dispatches(self) -> tuple[Dispatch, ...]:
        """Those without an outcome, oldest first."""
        if len(self.dispatches) == 1:  # by far the commonest
            return self.dispatches if self.dispatches[0].fate in OPEN_FATES else ()
        return tuple([d for d in self.dispatches if d.fate in OPEN_FATES])

    @property
    def is_open(self) -> bool:
        """Whether a restart has to look at it."""
        if len(self.intents) == 1:  # by far the commonest
            return self.intents[0].state in OPEN_STATES
        return not OPEN_STATES.isdisjoint([one.state for one in self.intents])

    @property
    def is_listed(self) -> bool:
        """Whether anybody has to look at it: a restart, or a person whom its contradiction is shown."""
        return self.is_open or self.contradicts

    @property
    def verdict(self) -> r.Verdict:
        """The worst over all dispatches; RETURNED and APPLIED stand for the whole operation, REJECTED does not."""
        if self.decided and (self.decided.fate is not Fate.REJECTED or not self.open_dispatches):
            return r.Verdict.DONE
        return r.Verdict.MAY_HAVE_BEEN_SENT if self.open_dispatches else r.Verdict.NEVER_SENT

    @property
    def effect_ran(self) -> EffectRan:
        """The verdict in an error's words: "no", "unknown" or "yes"."""
        if self.verdict is r.Verdict.DONE:
            return "no" if self.decided and self.decided.fate is Fate.REJECTED else "yes"
        return "unknown" if self.verdict is r.Verdict.MAY_HAVE_BEEN_SENT else "no"

    def says(self, record: r.Classified) -> bool:
        """Whether the newest classification of this record's intent is the same."""
        intent = self.intent(record.attempt)
        known = (intent.classified, intent.resolution) if intent else ()
        return known == (record.classification, record.resolution)

    def calling(self, attempt: int) -> bool:
        """Whether a call of this attempt has not been seen to end."""
        return Fate.CALLING in [one.fate for one in self.dispatches if one.attempt == attempt]


class Branch(Struct, frozen=True, gc=False, array_like=True):
    """Everything the log says of one branch, folded."""

    attempt: int = 0
    owner: str = ""
    end: r.End | None = None
    fenced: bool = False  # the present attempt was fenced by a restart
    cancelled: bool = False  # the present attempt was asked to stop
    latest_wall_ns: int = 0  # the latest wall clock ever recorded in the branch
    fenced_at: Instant | None = None  # the first fence after the newest dispatch: an attempt opened, or fenced
    dispatched: bool = False  # something was dispatched since that fence
    head_seq: int = 0
    head_chain: bytes = b""

    @property
    def is_open(self) -> bool:
        """Whether its attempt may still append what is fenced."""
        return self.attempt > 0 and self.end is None and not self.fenced

    @property
    def is_unfinished(self) -> bool:
        """Whether its attempt was not closed, or was closed with something in doubt and is still wanted."""
        if self.end is None:
            return self.attempt > 0
        return self.end is r.End.INDETERMINATE and not self.cancelled
