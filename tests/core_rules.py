"""The rules of the transition table, written down a second time: what tests/core/test_core_machine.py holds TABLE to.

Each cell, each guard of each cell with a history that sets it off and one beside it that does not, and what may be
recorded of a branch in each state of it (DESIGN 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from intentlog.core.machine import Event, Reason
from intentlog.core.state import State

# Where an intent goes: the first letter of the state, `=` it stays, `-` refused. X is SETTLED.
GRID = """
                               NONE PENDING DISPATCHED SUSPENDED COMMITTED SETTLED
Pending                        P    -       -          P         P         P
Dispatched                     -    D       D          -         -         -
Committed                      -    =       C          =         =         =
Committed of a READ            C    -       -          -         -         -
CallEnded                      -    -       =          -         -         -
Suspended                      -    -       S          -         -         -
ProbeAnswered                  -    -       =          -         -         -
Settled(NEVER_SENT)            -    X       -          -         -         -
Settled(APPLIED or NOT_APPLIED) -   -       X          =         =         =
Settled(SUPERSEDED)            -    -       X          -         -         -
Classified                     -    =       =          -         -         -
Renewed                        -    -       -          =         =         =
Supplied                       -    -       -          -         =         =
"""
LETTERS = {
    "P": State.PENDING,
    "D": State.DISPATCHED,
    "S": State.SUSPENDED,
    "C": State.COMMITTED,
    "X": State.SETTLED,
}
STATES = tuple(State)

# A history that leaves the intent of attempt 1 in each state, and for each event the record that is put to it.
IN_STATE = {
    "NONE": "open",
    "PENDING": "open, pending 1",
    "DISPATCHED": "open, pending 1, dispatched 1.1",
    "SUSPENDED": "open, pending 1, dispatched 1.1, suspended 1.1",
    "COMMITTED": "open, pending 1, dispatched 1.1, not_sent 1.1",
    "SETTLED": "open, pending 1, withdrawn 1",
}
RECORD = {
    Event.PENDING: "pending 1",
    Event.DISPATCHED: "dispatched 1.1",
    Event.COMMITTED: "returned 1.1",
    Event.READ_COMMITTED: "read 1",
    Event.CALL_ENDED: "ended 1.1",
    Event.SUSPENDED: "suspended 1.1",
    Event.PROBE_ANSWERED: "probed 1.1",
    Event.NEVER_SENT: "withdrawn 1",
    Event.ANSWERED: "applied 1",
    Event.SUPERSEDED: "superseded 1",
    Event.CLASSIFIED: "classified 1",
    Event.RENEWED: "renewed 1",
    Event.SUPPLIED: "supplied 1",
}
DISPATCHED = IN_STATE["DISPATCHED"]
TWICE = f"{DISPATCHED}, open, pending 2, dispatched 2.2"  # attempt 1 died calling, attempt 2 calls again

# Admitted cells that need more of a history than their state.
ADMITTED = {
    (Event.DISPATCHED, "DISPATCHED"): (f"{DISPATCHED}, ended 1.1", "dispatched 1.2"),
    (Event.COMMITTED, "PENDING"): (f"{DISPATCHED}, not_sent 1.1, pending 1", "returned 1.1"),
    (Event.COMMITTED, "SETTLED"): (f"{DISPATCHED}, ended 1.1, not_applied 1", "returned 1.1"),
    (Event.PROBE_ANSWERED, "DISPATCHED"): (f"{DISPATCHED}, ended 1.1", "probed 1.1"),
    (Event.ANSWERED, "DISPATCHED"): (f"{DISPATCHED}, ended 1.1", "applied 1"),
    (Event.ANSWERED, "SUSPENDED"): (f"{DISPATCHED}, suspended 1.1, returned 1.1", "applied 1"),
    (Event.ANSWERED, "COMMITTED"): (f"{DISPATCHED}, not_sent 1.1, returned 1.1", "applied 1"),
    (Event.ANSWERED, "SETTLED"): (f"{DISPATCHED}, ended 1.1, not_applied 1, returned 1.1", "applied 1"),
    (Event.SUPERSEDED, "DISPATCHED"): (f"{TWICE}, returned 2.2", "superseded 1"),
    (Event.CLASSIFIED, "PENDING"): ("open, pending 1, open", "classified 1"),
    (Event.CLASSIFIED, "DISPATCHED"): (f"{DISPATCHED}, open", "classified 1"),
    (Event.SUPPLIED, "COMMITTED"): (f"{DISPATCHED}, returned 1.1 valueless", "supplied 1"),
    (Event.SUPPLIED, "SETTLED"): (f"{DISPATCHED}, ended 1.1, applied 1 valueless", "supplied 1"),
}


class Case(NamedTuple):
    """One guard at work: refused after `history` for `reason`; admitted after `beside`, with the record `twin`."""

    event: Event
    state: str
    guard: str
    reason: Reason
    history: str
    record: str
    beside: str
    twin: str


def _pending_cases() -> Iterator[Case]:
    """The four guards of a Pending, from each state that it may follow."""
    done_by_late = {
        "NONE": (f"{DISPATCHED}, returned 1.1, open", "pending 2"),
        "COMMITTED": (f"{DISPATCHED}, not_sent 1.1, returned 1.1", "pending 1"),
        "SETTLED": (f"{DISPATCHED}, ended 1.1, applied 1", "pending 1"),
        "SUSPENDED": (f"{DISPATCHED}, suspended 1.1, returned 1.1", "pending 1"),
    }
    undone = {
        "NONE": (f"{DISPATCHED}, not_sent 1.1, open", "pending 2"),
        "COMMITTED": (f"{DISPATCHED}, not_sent 1.1", "pending 1"),
        "SETTLED": (f"{DISPATCHED}, ended 1.1, not_applied 1", "pending 1"),
        "SUSPENDED": (f"{DISPATCHED}, suspended 1.1", "pending 1"),
    }
    renewed = {
        "NONE": (f"{DISPATCHED}, not_sent 1.1, renewed 1, open", "pending 2"),
        "COMMITTED": (f"{DISPATCHED}, not_sent 1.1, renewed 1", "pending 1"),
        "SETTLED": (f"{DISPATCHED}, ended 1.1, not_applied 1, renewed 1", "pending 1"),
        "SUSPENDED": (
            f"{DISPATCHED}, not_sent 1.1, open, pending 2, dispatched 2.2, suspended 2.2, renewed 1",
            "pending 2",
        ),
    }
    for state, (history, record) in undone.items():
        cell, beside = (Event.PENDING, state), (f"{history}, note", record)
        for what, reason in (("open", "FENCED"), ("fence", "FENCED"), ("close", "FENCED"), ("cancel", "CANCELLED")):
            yield Case(*cell, "fenced", Reason(reason), f"{history}, {what}", record, *beside)
        for other in ("drift", "tool", "key"):
            yield Case(*cell, "same_call", Reason.DRIFT, history, f"{record} {other}", history, f"{record} KEYED")
        reborn = f"{renewed[state][1]} g2"
        yield Case(*cell, "current_generation", Reason.RENEWED, *renewed[state], renewed[state][0], reborn)
        yield Case(*cell, "undecided", Reason.DECIDED, *done_by_late[state], *beside)


# Histories that the cases below begin with.
BASES = {
    "O": "open",
    "P": "open, pending 1",
    "D": DISPATCHED,
    "E": f"{DISPATCHED}, ended 1.1",
    "R": f"{DISPATCHED}, returned 1.1",
    "U": "open, pending 1 UNSAFE, dispatched 1.1, ended 1.1",
    "P2": f"{DISPATCHED}, open, pending 2",  # attempt 1 may have sent, attempt 2 has declared
    "UP2": "open, pending 1 UNSAFE, dispatched 1.1, open, pending 2 UNSAFE",
    "D2": TWICE,
    "D2E": f"{TWICE}, ended 2.2",
    "Q": "open, pending 1 QUERYABLE, dispatched 1.1, ended 1.1",
    "K": "open, pending 1 KEYED brief, dispatched 1.1",
    "KP2": "open, pending 1 KEYED brief, dispatched 1.1, open, pending 2 KEYED brief",
    "READ": "open, read 1",
    "RD": "open, pending 1 READ, dispatched 1.1, open",  # declared as a READ, once not
    "OO": "open, open",
}
# cell | guard | reason | begins with [/ its twin] | what makes it refuse | what makes it admit | record [| twin]
GUARDS = """
DISPATCHED PENDING    | fenced | FENCED | P | open | note | dispatched 1.1
DISPATCHED PENDING    | fenced | CANCELLED | P2 | cancel | note | dispatched 2.2
DISPATCHED PENDING    | undecided | DECIDED | P2 | returned 1.1 | not_sent 1.1 | dispatched 2.2
DISPATCHED PENDING    | class_permits | IN_DOUBT | UP2 | note | not_sent 1.1 | dispatched 2.2
DISPATCHED PENDING    | next_dispatch | NUMBER | P2 | note | note | dispatched 2.3 | dispatched 2.2
DISPATCHED PENDING    | next_dispatch | NUMBER | P2 | note | note | dispatched 2.1 | dispatched 2.2
DISPATCHED DISPATCHED | fenced | CANCELLED | E | cancel | note | dispatched 1.2
DISPATCHED DISPATCHED | fenced | FENCED | E | open | note | dispatched 1.2
DISPATCHED DISPATCHED | undecided | DECIDED | D2E | returned 1.1 | not_sent 1.1 | dispatched 2.3
DISPATCHED DISPATCHED | call_ended | CALLING | D | note | ended 1.1 | dispatched 1.2
DISPATCHED DISPATCHED | class_permits | IN_DOUBT | U/E | note | note | dispatched 1.2
DISPATCHED DISPATCHED | class_permits | IN_DOUBT | Q/E | note | note | dispatched 1.2
DISPATCHED PENDING    | class_permits | IN_DOUBT | KP2 | note, note, note | note | dispatched 2.2
DISPATCHED DISPATCHED | class_permits | IN_DOUBT | K | ended 1.1, note, note, note, note | ended 1.1 | dispatched 1.2
DISPATCHED DISPATCHED | next_dispatch | NUMBER | E | note | note | dispatched 1.1 | dispatched 1.2
COMMITTED DISPATCHED  | known_dispatch | NUMBER | D2 | note | note | returned 2.1 | returned 2.2
COMMITTED PENDING     | known_dispatch | NUMBER | P2 | note | note | returned 2.1 | returned 1.1
COMMITTED COMMITTED   | known_dispatch | NUMBER | D2 | not_sent 2.2 | not_sent 2.2 | returned 2.1 | returned 2.2
COMMITTED SETTLED     | known_dispatch | NUMBER | E | not_applied 1 | not_applied 1 | returned 1.2 | returned 1.1
COMMITTED SUSPENDED   | known_dispatch | NUMBER | D | suspended 1.1 | suspended 1.1 | returned 1.2 | returned 1.1
CALL_ENDED DISPATCHED | known_dispatch | NUMBER | D2 | note | note | ended 2.1 | ended 2.2
CALL_ENDED DISPATCHED | being_called | NO_TRANSITION | D | ended 1.1 | note | ended 1.1
SUSPENDED DISPATCHED  | known_dispatch | NUMBER | D2 | note | note | suspended 2.1 | suspended 2.2
SUSPENDED DISPATCHED  | being_called | NO_TRANSITION | D | ended 1.1 | note | suspended 1.1
READ_COMMITTED NONE   | fenced | FENCED | O | open | note | read 1
READ_COMMITTED NONE   | fenced | CANCELLED | O | cancel | note | read 1
READ_COMMITTED NONE   | same_call | DRIFT | READ | open | renewed 1, open | read 2 drift | read 2 drift g2
READ_COMMITTED NONE   | current_generation | RENEWED | READ | renewed 1, open | renewed 1, open | read 2 | read 2 g2
READ_COMMITTED NONE   | undecided | DECIDED | READ | open | renewed 1, open | read 2 | read 2 g2
READ_COMMITTED NONE   | never_dispatched | NO_TRANSITION | RD/OO | note | note | read 2
READ_COMMITTED NONE   | never_dispatched | NO_TRANSITION | P/OO | open | note | read 2
READ_COMMITTED NONE   | never_dispatched | NO_TRANSITION | D/OO | not_sent 1.1, open | note | read 2
PROBE_ANSWERED DISPATCHED | known_dispatch | NUMBER | D2E | note | note | probed 1.2 | probed 1.1
PROBE_ANSWERED DISPATCHED | doubtful | NOT_IN_DOUBT | D2 | returned 2.2 | ended 2.2 | probed 1.1
PROBE_ANSWERED DISPATCHED | nobody_calling | NOT_IN_DOUBT | D | note | fence | probed 1.1
PROBE_ANSWERED DISPATCHED | expected_seq | STALE | E | note | note | probed 1.1 stale | probed 1.1
ANSWERED DISPATCHED   | doubtful | NOT_IN_DOUBT | D2 | returned 2.2 | ended 2.2 | not_applied 1
ANSWERED DISPATCHED   | nobody_calling | NOT_IN_DOUBT | D2 | note | close | applied 1
ANSWERED DISPATCHED   | may_settle | IN_DOUBT | U | note | note | not_applied 1 probe | not_applied 1
ANSWERED DISPATCHED   | may_settle | IN_DOUBT | U | note | note | applied 1 probe | applied 1
ANSWERED DISPATCHED   | expected_seq | STALE | E | note | note | applied 1 probe stale | applied 1 probe
SUPERSEDED DISPATCHED | returned | NO_TRANSITION | D2 | rejected 2.2 | returned 2.2 | superseded 1
NEVER_SENT PENDING    | sendable_no_more | NOT_IN_DOUBT | P | note | fence | never_sent 1
CLASSIFIED PENDING    | sendable_no_more | NOT_IN_DOUBT | P | note | close | classified 1
CLASSIFIED DISPATCHED | sendable_no_more | NOT_IN_DOUBT | D | note | fence | classified 1
CLASSIFIED PENDING    | unconcluded | NOT_IN_DOUBT | P | fence, classified 1 | fence | classified 1
CLASSIFIED DISPATCHED | unconcluded | NOT_IN_DOUBT | D | fence, classified 1 | fence | classified 1
RENEWED COMMITTED     | current_generation | RENEWED | R | renewed 1 | note | renewed 1
RENEWED SETTLED       | current_generation | RENEWED | E | applied 1, renewed 1 | applied 1 | renewed 1
RENEWED SUSPENDED     | current_generation | RENEWED | D | suspended 1.1, renewed 1 | suspended 1.1 | renewed 1
RENEWED SUSPENDED     | closed | NO_TRANSITION | D | suspended 1.1, open, pending 2 | suspended 1.1 | renewed 1
RENEWED SUSPENDED     | expected_seq | STALE | D | suspended 1.1 | suspended 1.1 | renewed 1 stale | renewed 1
RENEWED COMMITTED     | expected_seq | STALE | R | note | note | renewed 1 stale | renewed 1
RENEWED SETTLED       | expected_seq | STALE | E | applied 1 | applied 1 | renewed 1 stale | renewed 1
RENEWED COMMITTED     | closed | NO_TRANSITION | D2 | rejected 2.2 | rejected 2.2, not_sent 1.1 | renewed 2
RENEWED SETTLED       | closed | NO_TRANSITION | P2 | withdrawn 2 | withdrawn 2, not_sent 1.1 | renewed 2
SUPPLIED COMMITTED    | valueless | NO_TRANSITION | D | returned 1.1 | returned 1.1 valueless | supplied 1
SUPPLIED COMMITTED    | valueless | NO_TRANSITION | D | rejected 1.1 valueless | returned 1.1 valueless | supplied 1
SUPPLIED COMMITTED    | valueless | NO_TRANSITION | D | not_sent 1.1 | returned 1.1 valueless | supplied 1
SUPPLIED SETTLED      | valueless | NO_TRANSITION | E | applied 1 | applied 1 valueless | supplied 1
"""


def read_cases() -> Iterator[Case]:
    """GUARDS, read."""
    for line in GUARDS.strip().splitlines():
        cell, guard, reason, base, refuses, admits, record, *twin = (part.strip() for part in line.split("|"))
        event, state = cell.split()
        first, _, second = base.partition("/")
        history, beside = f"{BASES[first]}, {refuses}", f"{BASES[second or first]}, {admits}"
        yield Case(Event[event], state, guard, Reason(reason), history, record, beside, (twin or [record])[0])


def _confirmed_cases() -> Iterator[Case]:
    """A contradiction, and nothing else that is closed, is confirmed: by a person, as done, having seen it all."""
    late = {
        "SUSPENDED": (f"{DISPATCHED}, suspended 1.1", "returned 1.1"),
        "COMMITTED": (f"{DISPATCHED}, not_sent 1.1", "returned 1.1"),
        "SETTLED": (f"{DISPATCHED}, ended 1.1, not_applied 1", "returned 1.1"),
    }
    for state, (history, contradiction) in late.items():
        cell, shown = (Event.ANSWERED, state), f"{history}, {contradiction}"
        none, confirmed = Reason.NOT_IN_DOUBT, f"{shown}, applied 1"
        yield Case(*cell, "contradicting", none, f"{history}, note", "applied 1", shown, "applied 1")
        yield Case(*cell, "contradicting", none, confirmed, "applied 1", shown, "applied 1")
        beside = f"{history}, open, pending 2, dispatched 2.2, {contradiction}"
        yield Case(*cell, "contradicting", none, beside, "applied 1", f"{beside}, ended 2.2, superseded 2", "applied 1")
        yield Case(*cell, "confirmed_by_person", Reason.DECIDED, shown, "not_applied 1", shown, "applied 1")
        yield Case(*cell, "confirmed_by_person", Reason.DECIDED, shown, "applied 1 probe", shown, "applied 1")
        yield Case(*cell, "expected_seq", Reason.STALE, shown, "applied 1 stale", shown, "applied 1")


CASES = [*_pending_cases(), *read_cases(), *_confirmed_cases()]


def wanted_cells() -> dict[tuple[Event, str], str]:
    """GRID, read."""
    header, *lines = GRID.strip("\n").splitlines()
    assert header.split() == [str(state) for state in STATES]
    cells = {}
    for line in lines:
        *words, a, b, c, d, e, f = line.split()
        event = Event(" ".join(words))
        cells.update({(event, state): mark for state, mark in zip(header.split(), (a, b, c, d, e, f), strict=True)})
    return cells


WANTED = wanted_cells()

# --- the branch's own records ---------------------------------------------------------------------------------------

# After each history, and for each record of the branch: admitted, or why not.
BRANCH_GRID = """
                                  open 1  open 2  open 3  fence 1 close 1 cancel 1 note 1
nothing                           ok      NUMBER  NUMBER  FENCED  FENCED  FENCED   ok
open                              NUMBER  ok      NUMBER  ok      ok      ok       ok
open, cancel                      NUMBER  ok      NUMBER  ok      ok      ok       ok
open, fence                       NUMBER  ok      NUMBER  FENCED  FENCED  ok       ok
open, cancel, fence               NUMBER  ok      NUMBER  FENCED  ok      ok       ok
open, close                       NUMBER  ok      NUMBER  FENCED  FENCED  FENCED   ok
open, cancel, close               NUMBER  ok      NUMBER  FENCED  FENCED  FENCED   ok
open, close INDETERMINATE         NUMBER  ok      NUMBER  FENCED  FENCED  ok       ok
open, close INDETERMINATE, cancel NUMBER  ok      NUMBER  FENCED  FENCED  ok       ok
open, open                        NUMBER  NUMBER  ok      FENCED  FENCED  FENCED   ok
open, cancel, open                NUMBER  NUMBER  ok      FENCED  FENCED  FENCED   ok
"""
