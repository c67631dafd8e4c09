"""The world that the protocol runs in: a log, a clock, a receiver. Immutable: a step makes another world.

Nothing here decides anything about records: every append goes through the stores' own `stage`, and so through
`machine.apply`.

A tick is a minute, as long as the margin that a key's window is given. A call may begin within one tick of its
permission, lands within one tick of its begin or never, and is seen at the latest one tick after it landed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from core_histories import broken
from msgspec.structs import replace

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, BranchView, Refused, View
from intentlog.core.check import Held, check_branch
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import Instant, Stored
from intentlog.core.recovery import KEY_MARGIN_NS
from intentlog.core.state import Branch, Operation
from intentlog.store.staging import OperationKey, stage

BRANCH = "order-1"
STEP = "charge"
TICK_NS = KEY_MARGIN_NS
BOOTED_NS = 1_000 * TICK_NS
GRACE = 1  # ticks from a permission to the latest begin of its call
LIMIT = 1  # from a call's begin to the latest moment at which it lands
SETTLE = 1  # from a landing to the latest moment at which the receiver shows it
WINDOW = 3  # from a key's first sight to the last moment at which the receiver remembers it


def instant(tick: int) -> Instant:
    """Both clocks at a tick, within one boot."""
    return Instant(BOOTED_NS + tick * TICK_NS, "boot", BOOTED_NS + tick * TICK_NS)


def tick_of(at: Instant) -> int:
    """The tick of an instant that kept its boot clock."""
    return (at.boot_ns - BOOTED_NS) // TICK_NS


def declared(kind: EffectKind, *, probe: bool, grace: int) -> Declaration:
    """The tool's declaration: what the world holds to."""
    return Declaration(
        kind=kind,
        time_limit_ns=LIMIT * TICK_NS,
        window_ns=WINDOW * TICK_NS if kind is EffectKind.KEYED else 0,
        settle_ns=SETTLE * TICK_NS,
        probe=probe,
        grace_ns=grace * TICK_NS,
    )


class Log(NamedTuple):
    """The one branch as the disk holds it: its row, its operations' rows, its records."""

    branch: Branch = Branch()
    operations: tuple[Operation, ...] = ()
    history: tuple[Stored, ...] = ()

    @property
    def operation(self) -> Operation | None:
        """The step's operation. (Nothing here renews: there is one generation.)"""
        return self.operations[-1] if self.operations else None

    def identity(self) -> Hashable:
        """What tells this log from another, as far as anything to come can depend on it.

        Left out are the chain's head (a digest over the rest, which nobody decides by), the latest wall clock (it is
        held against a clock that was set back, and this world's never is), and the stamps of records that bound no
        call. Stamps that do bound one stand in the rows.
        """
        records = tuple((stored.record, stored.payload) for stored in self.history)
        return replace(self.branch, head_chain=b"", latest_wall_ns=0), self.operations, records

    def appended(self, entry: Append, now: int) -> tuple[Log, Appended | Refused]:
        """One append, a commit of its own: the log after it, and the reply."""
        staged = stage(_Rows(self), [entry], instant(now))
        log = self
        for stored, body in staged.events:
            assert body == codec.encode_record(stored.record)
            changed = {(step, generation) for _, step, generation in staged.operations}
            others = (o for o in self.operations if (o.step, o.generation) not in changed)
            operations = (*others, *staged.operations.values())
            log = Log(staged.branches[BRANCH], operations, (*self.history, stored))
        return log, staged.replies[0]

    def view(self, now: int) -> View:
        """What `Load` is answered."""
        return View(self.branch, self.operation, instant(now))

    def branch_view(self, now: int, *, owner_lives: bool) -> BranchView:
        """What `LoadBranch` is answered."""
        return BranchView(self.branch, tuple(o for o in self.operations if o.is_open), owner_lives, instant(now))

    def broken(self) -> list[str]:
        """What the log's own invariants find in its records (I1, I2, I3, I4, I6)."""
        return [f"{number}: {text}" for number, found in broken(self.history).items() for _, text in found]

    def unsound(self) -> list[str]:
        """What the whole check finds: the chain, the table, the rows, the invariants."""
        rows = {(o.step, o.generation): o for o in self.operations}
        return [found.text for found in check_branch(Held(BRANCH, self.branch, self.history, rows))]

    def never_sent(self) -> frozenset[int]:
        """The attempts whose intent a restart recorded as never sent."""
        return frozenset(
            s.record.attempt
            for s in self.history
            if isinstance(s.record, r.Classified) and s.record.classification is r.Verdict.NEVER_SENT
        )

    def permits(self, attempt: int, number: int) -> bool:
        """Whether Dispatched stands in the log, and a Pending of the same attempt before it (I1)."""
        pending = False
        for stored in self.history:
            match stored.record:
                case r.Pending(attempt=of) if of == attempt:
                    pending = True
                case r.Dispatched(attempt=of, dispatch_no=no) if (of, no) == (attempt, number):
                    return pending
                case _:
                    pass
        return False


class _Rows:
    """A store's tables, for the length of one append."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def places(self, count: int) -> range:
        first = len(self.log.history) + 1
        return range(first, first + count)

    def branch(self, branch: str) -> Branch | None:
        return self.log.branch if branch == BRANCH else None

    def operation(self, key: OperationKey) -> Operation | None:
        wanted = (o for o in self.log.operations if (BRANCH, o.step, o.generation) == key)
        return next(wanted, None)


class Flight(NamedTuple):
    """A call on its way: it lands no later than `until`, or never."""

    number: int
    attempt: int
    until: int


class Landing(NamedTuple):
    """An effect that happened.

    Attributes:
        number: the dispatch that made it.
        attempt: whose dispatch that was.
        at: when; 0 where nothing can depend on that any more.
        again: the receiver knew the key and did nothing new.
    """

    number: int
    attempt: int
    at: int
    again: bool


class Receiver(NamedTuple):
    """The outside: what is on its way to it, and what happened there."""

    flying: tuple[Flight, ...] = ()
    landings: tuple[Landing, ...] = ()

    def begun(self, number: int, attempt: int, now: int) -> Receiver:
        """A call goes out."""
        return self._replace(flying=(*self.flying, Flight(number, attempt, now + LIMIT)))

    def landed(self, flight: Flight, now: int, *, keyed: bool) -> Receiver:
        """It arrives. A receiver of keys does nothing new while it remembers the key."""
        again = keyed and any(now <= one.at + WINDOW for one in self.landings if not one.again)
        landing = Landing(flight.number, flight.attempt, now, again)
        return Receiver(tuple(f for f in self.flying if f != flight), (*self.landings, landing))

    def without(self, number: int) -> Receiver:
        """This call will not land: it was refused, or never left."""
        return self._replace(flying=tuple(f for f in self.flying if f.number != number))

    def has_landed(self, number: int) -> bool:
        """Whether this dispatch's call arrived."""
        return any(one.number == number for one in self.landings)

    def attempts(self) -> frozenset[int]:
        """Whose calls are on their way, or landed."""
        return frozenset({one.attempt for one in self.flying} | {one.attempt for one in self.landings})

    def shows(self, now: int) -> frozenset[bool]:
        """What one who looks may see: a landing certainly, none certainly, or, while it settles, either."""
        effects = [one for one in self.landings if not one.again]
        if any(one.at + SETTLE <= now for one in effects):
            return frozenset({True})
        return frozenset({True, False}) if effects else frozenset({False})

    def at_tick(self, now: int, *, keyed: bool) -> Receiver:
        """Time came to `now`: what is too late never lands, and what nothing depends on any more is forgotten."""
        kept = WINDOW + 1 if keyed else SETTLE
        landings = tuple(one._replace(at=-kept) if one.at + kept <= now else one for one in self.landings)
        return Receiver(tuple(f for f in self.flying if f.until >= now), landings)

    @property
    def effects(self) -> int:
        """How often it really happened."""
        return sum(not one.again for one in self.landings)
