"""Every cell of the transition table and every guard, held against a table that is written down here (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from core_histories import World, applied, at, build, grown, record_of
from msgspec.structs import replace

from intentlog.core import machine
from intentlog.core import records as r
from intentlog.core.machine import Change, Event, Reason, Refusal, Rule
from intentlog.core.state import Dispatch, Fate, State

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
Renewed                        -    -       -          -         =         =
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
_D = IN_STATE["DISPATCHED"]
_TWICE = f"{_D}, open, pending 2, dispatched 2.2"  # attempt 1 died calling, attempt 2 calls again

# Admitted cells that need more of a history than their state.
ADMITTED = {
    (Event.DISPATCHED, "DISPATCHED"): (f"{_D}, ended 1.1", "dispatched 1.2"),
    (Event.COMMITTED, "PENDING"): (f"{_D}, not_sent 1.1, pending 1", "returned 1.1"),
    (Event.COMMITTED, "SETTLED"): (f"{_D}, ended 1.1, not_applied 1", "returned 1.1"),
    (Event.PROBE_ANSWERED, "DISPATCHED"): (f"{_D}, ended 1.1", "probed 1.1"),
    (Event.ANSWERED, "DISPATCHED"): (f"{_D}, ended 1.1", "applied 1"),
    (Event.ANSWERED, "SUSPENDED"): (f"{_D}, suspended 1.1, returned 1.1", "applied 1"),
    (Event.ANSWERED, "COMMITTED"): (f"{_D}, not_sent 1.1, returned 1.1", "applied 1"),
    (Event.ANSWERED, "SETTLED"): (f"{_D}, ended 1.1, not_applied 1, returned 1.1", "applied 1"),
    (Event.SUPERSEDED, "DISPATCHED"): (f"{_TWICE}, returned 2.2", "superseded 1"),
    (Event.CLASSIFIED, "PENDING"): ("open, pending 1, open", "classified 1"),
    (Event.CLASSIFIED, "DISPATCHED"): (f"{_D}, open", "classified 1"),
    (Event.SUPPLIED, "COMMITTED"): (f"{_D}, returned 1.1 valueless", "supplied 1"),
    (Event.SUPPLIED, "SETTLED"): (f"{_D}, ended 1.1, applied 1 valueless", "supplied 1"),
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
        "NONE": (f"{_D}, returned 1.1, open", "pending 2"),
        "COMMITTED": (f"{_D}, not_sent 1.1, returned 1.1", "pending 1"),
        "SETTLED": (f"{_D}, ended 1.1, applied 1", "pending 1"),
        "SUSPENDED": (f"{_D}, suspended 1.1, returned 1.1", "pending 1"),
    }
    undone = {
        "NONE": (f"{_D}, not_sent 1.1, open", "pending 2"),
        "COMMITTED": (f"{_D}, not_sent 1.1", "pending 1"),
        "SETTLED": (f"{_D}, ended 1.1, not_applied 1", "pending 1"),
        "SUSPENDED": (f"{_D}, suspended 1.1", "pending 1"),
    }
    renewed = {
        "NONE": (f"{_D}, not_sent 1.1, renewed 1, open", "pending 2"),
        "COMMITTED": (f"{_D}, not_sent 1.1, renewed 1", "pending 1"),
        "SETTLED": (f"{_D}, ended 1.1, not_applied 1, renewed 1", "pending 1"),
        "SUSPENDED": (f"{_D}, not_sent 1.1, open, pending 2, dispatched 2.2, suspended 2.2, renewed 1", "pending 2"),
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
    "D": _D,
    "E": f"{_D}, ended 1.1",
    "R": f"{_D}, returned 1.1",
    "U": "open, pending 1 UNSAFE, dispatched 1.1, ended 1.1",
    "P2": f"{_D}, open, pending 2",  # attempt 1 may have sent, attempt 2 has declared
    "UP2": "open, pending 1 UNSAFE, dispatched 1.1, open, pending 2 UNSAFE",
    "D2": _TWICE,
    "D2E": f"{_TWICE}, ended 2.2",
    "Q": "open, pending 1 QUERYABLE, dispatched 1.1, ended 1.1",
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
RENEWED COMMITTED     | current_generation | RENEWED | R | renewed 1 | note | renewed 1
RENEWED SETTLED       | current_generation | RENEWED | E | applied 1, renewed 1 | applied 1 | renewed 1
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
        "SUSPENDED": (f"{_D}, suspended 1.1", "returned 1.1"),
        "COMMITTED": (f"{_D}, not_sent 1.1", "returned 1.1"),
        "SETTLED": (f"{_D}, ended 1.1, not_applied 1", "returned 1.1"),
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


def answer(world: World, record: r.Record) -> Change | Refusal:
    """The machine's answer; that it breaks over a record is an answer that no test wants."""
    try:
        return applied(world, record)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        msg = f"the machine broke over {record}: {error!r}"
        raise AssertionError(msg) from error


def check_cell(event: Event, state: str) -> None:
    """One cell: admitted or refused, and the state of the record's own intent after it."""
    mark = WANTED[event, state]
    history, text = ADMITTED.get((event, state), (IN_STATE[state], RECORD[event]))
    world = build(history)
    assert world.state(1) == state, "the history does not lead where it should"
    record = record_of(text, world)
    assert machine.event_of(record) is event
    reply = answer(world, record)
    if mark == "-":
        assert isinstance(reply, Refusal), f"{event} from {state} was admitted"
        assert reply.reason is Reason.NO_TRANSITION
        assert State(state) not in machine.TABLE[event]
        return
    assert isinstance(reply, Change), f"{event} from {state}: {reply}"
    after = grown(world, record, reply)
    wanted = State(state) if mark == "=" else LETTERS[mark]
    assert after.state(1) == wanted
    assert after.operation().last_seq == world.seq + 1, "every record of the operation raises it"
    assert after.branch.latest_wall_ns == at(after.seq).wall_ns
    # `fold` moves some intents whatever the cell says: so the cell itself is held to the grid as well
    assert machine.TABLE[event][State(state)].to is (None if mark == "=" else wanted)


def check_case(case: Case) -> None:
    """One guard: the refusal with its reason, and the admission beside it."""
    world = build(case.history)
    record = record_of(case.record, world)
    assert world.state(record.attempt) == case.state
    reply = answer(world, record)
    assert isinstance(reply, Refusal), f"{case.record} after {case.history} was admitted"
    assert reply.reason is case.reason, reply
    beside = build(case.beside)
    assert isinstance(answer(beside, record_of(case.twin, beside)), Change), f"{case.twin} after {case.beside}"


def check_out_of_reach(state: str) -> None:
    """Two guards of Dispatched that no admitted history can set off stand all the same: they are the last door."""
    world = build(BASES["E"] if state == "DISPATCHED" else IN_STATE["PENDING"])
    operation, number = world.operation(), 1 + len(world.operation().dispatches)
    record = r.Dispatched(attempt=1, step=operation.step, dispatch_no=number)
    for forged, reason in (
        (replace(operation, renewed=True), Reason.RENEWED),
        (replace(operation, dispatches=(Dispatch(number - 1, 1, at(1), Fate.CALLING),)), Reason.CALLING),
    ):
        reply = machine.apply(world.branch, forged, record, 9, at(9))
        assert isinstance(reply, Refusal), reason
        assert reply.reason is reason


def check(event: Event, state: str) -> None:
    """Everything that this file holds of one cell."""
    check_cell(event, state)
    for case in CASES:
        if (case.event, case.state) == (event, state):
            check_case(case)
    if event is Event.DISPATCHED and WANTED[event, state] != "-":
        check_out_of_reach(state)


@pytest.mark.parametrize(("event", "state"), list(WANTED), ids=str)
def test_each_cell(event: Event, state: str) -> None:
    """Cells: the full product of events and states is admitted or refused as GRID says; each guard stands (I2-I6)."""
    check(event, state)


def test_the_grid_and_the_cases_cover_everything() -> None:
    """The product is full, and each guard of each rule is named by a case (or out of reach, and forged)."""
    assert set(WANTED) == {(event, str(state)) for event in Event for state in State}
    named = {(case.event, case.state, case.guard) for case in CASES}
    forged = {(Event.DISPATCHED, s, g) for s in ("PENDING", "DISPATCHED") for g in ("current_generation", "call_ended")}
    there = {
        (e, str(s), g.__name__) for e, row in machine.TABLE.items() for s, rule in row.items() for g in rule.guards
    }
    assert there == named | forged


def mutations() -> Iterator[tuple[str, Event, str, Rule | None]]:
    """Every way to change one cell: drop it, add it, send it elsewhere, take one guard away."""
    for event, row in machine.TABLE.items():
        for state in State:
            rule = row.get(state)
            if rule is None:
                for to in (None, *STATES):
                    yield f"add {event} {state} to {to}", event, str(state), Rule(to, ())
                continue
            yield f"drop {event} {state}", event, str(state), None
            for to in {None, *STATES} - {rule.to}:
                yield f"{event} {state} to {to}", event, str(state), rule._replace(to=to)
            for guard in rule.guards:
                left = tuple(g for g in rule.guards if g is not guard)
                yield f"{event} {state} without {guard.__name__}", event, str(state), rule._replace(guards=left)


def test_every_mutation_of_the_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file's strength: whatever is changed about one cell of TABLE, `check` of that cell fails."""
    for event, state in WANTED:
        check(event, state)  # builds every history with the true table
    missed = []
    for name, event, state, rule in mutations():
        row = {s: cell for s, cell in machine.TABLE[event].items() if s != state}
        row |= {State(state): rule} if rule else {}
        with monkeypatch.context() as patch:
            patch.setitem(machine.TABLE, event, row)
            try:
                check(event, state)
            except AssertionError:
                continue
        missed.append(name)
    assert missed == []


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


def check_branch_table() -> None:
    """Every record of a branch in every state of it."""
    header, *lines = BRANCH_GRID.strip("\n").splitlines()
    words = header.split()
    texts = [" ".join(pair) for pair in zip(words[::2], words[1::2], strict=True)]
    for line in lines:
        history, wanted = line[:34].strip(), line[34:].split()
        world = World() if history == "nothing" else build(history)
        for text, mark in zip(texts, wanted, strict=True):
            reply = answer(world, record_of(text, world))
            found = reply.reason if isinstance(reply, Refusal) else "ok"
            assert found == mark, f"{text} after {history}"


def test_each_branch_cell() -> None:
    """BRANCH_TABLE: attempts are numbered without a gap; only the open one is fenced or closed.

    One that has not ended for good is cancelled, fenced or not, and then closed by whoever finds its owner dead.
    """
    assert set(machine.BRANCH_TABLE) == set(r.BranchRecord.__args__)
    check_branch_table()


@pytest.mark.parametrize("kind", [k for k, guards in machine.BRANCH_TABLE.items() if guards])
def test_every_mutation_of_the_branch_table_is_caught(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the guard from any record of a branch fails the check above."""
    monkeypatch.setitem(machine.BRANCH_TABLE, kind, ())
    with pytest.raises(AssertionError):
        check_branch_table()


@pytest.mark.parametrize("text", ["pending 1", "dispatched 1.2"])
def test_a_zombie_is_told_that_it_is_fenced_whatever_its_state(text: str) -> None:
    """Where the table has no cell, a fenced attempt hears FENCED, so that it stops instead of looking again (I2)."""
    world = build("open, pending 1, withdrawn 1, open" if text != "pending 1" else f"{_D}, open")
    assert answer(world, record_of(text, world)).reason is Reason.FENCED


def test_a_read_does_not_wipe_out_a_doubt() -> None:
    """Doubt is per operation and sticks: a READ's record may not follow an open dispatch and make it vanish."""
    world = build("open, pending 1 UNSAFE, dispatched 1.1, open")
    reply = answer(world, record_of("read 2", world))
    if isinstance(reply, Change):
        assert reply.operations[0].dispatches == world.operation().dispatches
