"""Every cell of the transition table and every guard, held against the rules as core_rules.py has them (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from core_histories import World, applied, at, build, grown, record_of
from core_rules import (
    ADMITTED,
    BASES,
    BRANCH_GRID,
    CASES,
    DISPATCHED,
    IN_STATE,
    LETTERS,
    RECORD,
    STATES,
    WANTED,
    Case,
)
from msgspec.structs import replace

from intentlog.core import machine
from intentlog.core import records as r
from intentlog.core.machine import Change, Event, Reason, Refusal, Rule
from intentlog.core.records import End
from intentlog.core.state import Dispatch, Fate, State


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
    """The full product of events and states is admitted or refused as GRID says; each guard stands (I2, I3, I4, I6)."""
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
    for history, ends in (("open", set(End)), ("open, cancel", {End.CANCELLED, End.INDETERMINATE})):
        world = build(history)
        replies = {end: answer(world, record_of(f"close 1 {end}", world)) for end in End}
        assert {end for end, reply in replies.items() if isinstance(reply, Change)} == ends, history
        refused = [reply.reason for reply in replies.values() if isinstance(reply, Refusal)]
        assert set(refused) <= {Reason.CANCELLED}, "so that who closes it looks again"


def test_each_branch_cell() -> None:
    """BRANCH_TABLE: attempts are numbered without a gap; only the open one is fenced or closed.

    One that has not ended for good is cancelled, fenced or not, and then closed by whoever finds its owner dead.
    """
    assert set(machine.BRANCH_TABLE) == set(r.BranchRecord.__args__)
    check_branch_table()


GUARDS_OF_A_BRANCH = (machine.next_attempt, machine.open_attempt, machine.unclosed, machine.closable, machine.fenced)


@pytest.mark.parametrize("kind", list(machine.BRANCH_TABLE))
def test_every_mutation_of_the_branch_table_is_caught(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the guard from a record of a branch, or giving it another, fails the check above; so does dropping it."""
    there = machine.BRANCH_TABLE[kind]
    check_branch_table()
    for guards in {(), *((guard,) for guard in GUARDS_OF_A_BRANCH)} - {there}:
        with monkeypatch.context() as patch:
            patch.setitem(machine.BRANCH_TABLE, kind, guards)
            with pytest.raises(AssertionError):
                check_branch_table()
    monkeypatch.delitem(machine.BRANCH_TABLE, kind)
    with pytest.raises(AssertionError):
        check_branch_table()


def test_every_settlement_has_its_column() -> None:
    """A Settled is judged as what it says: none of the four may pass by another's rules (I2, I4)."""
    wanted = {"NEVER_SENT": "NEVER_SENT", "APPLIED": "ANSWERED", "NOT_APPLIED": "ANSWERED", "SUPERSEDED": "SUPERSEDED"}
    assert set(wanted) == set(r.Settlement)
    for settlement, column in wanted.items():
        record = r.Settled(attempt=1, step="s", settlement=r.Settlement(settlement), by="ann", why="")
        assert machine.event_of(record) is Event[column]


def test_what_was_dispatched_since_the_fence_stays_known() -> None:
    """The next fence bounds when the newest call can have begun, whatever was recorded between the two (I4)."""
    assert not build("open, pending 1").branch.dispatched
    for text in ("ended 1.1", "not_sent 1.1, pending 1, withdrawn 1", "note"):
        assert build(f"{DISPATCHED}, {text}").branch.dispatched, text
    assert not build(f"{DISPATCHED}, ended 1.1, fence").branch.dispatched


@pytest.mark.parametrize("text", ["pending 1", "dispatched 1.2"])
def test_a_zombie_is_told_that_it_is_fenced_whatever_its_state(text: str) -> None:
    """Where the table has no cell, a fenced attempt hears FENCED, so that it stops instead of looking again (I2)."""
    world = build("open, pending 1, withdrawn 1, open" if text != "pending 1" else f"{DISPATCHED}, open")
    assert answer(world, record_of(text, world)).reason is Reason.FENCED


@pytest.mark.parametrize(
    ("history", "detail"),
    [
        ("open, pending 1, open", "attempt 1 is past, the branch is at 2"),
        ("open, pending 1, fence", "attempt 1 is fenced by a restart"),
        ("open, pending 1, close", "attempt 1 is closed"),
    ],
)
def test_who_is_fenced_hears_by_what(history: str, detail: str) -> None:
    """The words reach the caller: overtaken, fenced by a recovery, or closed by its own program (I2)."""
    world = build(history)
    assert answer(world, record_of("dispatched 1.1", world)) == Refusal(Reason.FENCED, detail)


def test_a_read_does_not_wipe_out_a_doubt() -> None:
    """Doubt is per operation and sticks: a READ's record may not follow an open dispatch and make it vanish."""
    world = build("open, pending 1 UNSAFE, dispatched 1.1, open")
    reply = answer(world, record_of("read 2", world))
    if isinstance(reply, Change):
        assert reply.operations[0].dispatches == world.operation().dispatches
