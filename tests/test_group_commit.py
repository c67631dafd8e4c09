"""Group commit among threads: one leads, the others' records travel with its next commit (DESIGN 9, I1, I5, I7, I8).

Who leads is held inside its commit until everybody waits, so that each test knows what shares a commit. Where a check
could be passed by a group commit that does not group, or groups too much, a control that does so must fail it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from group_bench import (
    AnyGated,
    Callers,
    GatedSqlite,
    dispatched,
    duty_of,
    error_of,
    log_of,
    looked,
    names_of,
    noted,
    opened,
    pending,
    result_of,
    returned,
)

from intentlog import (
    AttemptCancelled,
    Fenced,
    LogDamaged,
    tool,
)
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.core.machine import Reason
from intentlog.run import duty as duty_module
from intentlog.run import group
from intentlog.run.duty import Duty
from intentlog.run.group import Member


def prepared(store: AnyGated, *branches: str, until_kind: str = "Pending") -> Duty:
    """A duty over a log in which these branches have an attempt, and as much of the effect `charge` as is asked."""
    steps = [opened, pending, dispatched][: ["AttemptOpened", "Pending", "Dispatched"].index(until_kind) + 1]
    replies = [store.unseen(step(branch))[0] for branch in branches for step in steps]
    assert all(isinstance(reply, Appended) for reply in replies)
    return duty_of(store)


def check_they_share(store: AnyGated) -> None:
    """One leads alone; the seven who come meanwhile are one commit and one sync, made by one of them."""
    others = [f"b{n}" for n in range(7)]
    duty = prepared(store, "first", *others, until_kind="AttemptOpened")
    before = store.counters
    with Callers(store, duty) as callers:
        led = [callers.lead(duty.append, pending("first"))]
        led += [callers.follow(duty.append, pending(branch)) for branch in others]
        callers.let_go()
        assert all(isinstance(result_of(one), Appended) for one in led)
    assert [store.branches_of(n) for n in range(len(store.batches))] == [["first"], others]
    assert (store.counters.commits - before.commits, store.counters.syncs - before.syncs) == (2, 2)
    seqs = [result_of(one).seq for one in led]
    assert seqs == sorted(set(seqs)), "each has its own place, as they came"


def test_those_who_wait_share_a_commit(store: AnyGated) -> None:
    """DESIGN 9: one sync serves the records of different effects that all wait for one."""
    check_they_share(store)


def test_those_who_wait_share_a_commit_control(store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: where each commits alone, the check fails."""
    monkeypatch.setattr(group, "take", lambda waiting, first: [first])
    with pytest.raises(AssertionError):
        check_they_share(store)


def test_the_whole_effects_of_many_threads(store: AnyGated) -> None:
    """Eight tools called at once: each is called once and returns its own; three records of each, none shared (I7)."""
    calls: list[int] = []

    @tool
    def effect(number: int) -> int:
        calls.append(number)
        return number

    log = log_of(store)
    attempts = [log.attempt(f"b{n}").__enter__() for n in range(8)]
    before = store.counters
    store.batches.clear()
    with Callers(store, log._engine.duty) as callers:
        led = [callers.lead(attempts[0].call, effect, 0)]
        led += [callers.follow(attempts[n].call, effect, n) for n in range(1, 8)]
        callers.let_go()
        assert [result_of(one) for one in led] == list(range(8))
    assert sorted(calls) == list(range(8))
    assert store.kinds()[1][:7] == ["Pending"] * 7
    assert store.counters.commits - before.commits == len(store.batches) < 3 * 8
    for batch in store.batches:
        assert len({entry.branch for entry in batch}) == len(batch), "two records of an effect in one commit (I7)"
    assert not store.overlapped
    for attempt in attempts:
        attempt.__exit__(None, None, None)
    assert log.verify().ok


# --- a member that is refused, or cannot be written ----------------------------------------------------------------


def test_a_refused_member_does_not_hurt_the_others(store: AnyGated) -> None:
    """The fence is met inside the shared commit: fenced and cancelled get no permission, the others do (I2, I4)."""
    branches = ["first", "good", "fenced", "stopped", "last"]
    duty = prepared(store, *branches)
    store.unseen(opened("fenced", attempt=2, owner="other.1"))
    store.unseen(Append("stopped", r.CancelRequested(attempt=1, by="ada", why="not wanted")))
    with Callers(store, duty) as callers:
        callers.lead(duty.append, dispatched("first"))
        led = {branch: callers.follow(duty.append, dispatched(branch)) for branch in branches[1:]}
        callers.let_go()
        replies = {branch: result_of(one) for branch, one in led.items()}
    assert store.kinds() == [["Dispatched"], ["Dispatched"] * 4], "one commit holds them all"
    refused = {b: reply.refusal.reason for b, reply in replies.items() if isinstance(reply, Refused)}
    assert refused == {"fenced": Reason.FENCED, "stopped": Reason.CANCELLED}
    assert "Dispatched" not in names_of(store, "fenced") + names_of(store, "stopped")
    assert names_of(store, "good")[-1] == names_of(store, "last")[-1] == "Dispatched"


def test_a_fenced_call_among_others_is_not_made(store: AnyGated) -> None:
    """By the public face: Fenced and AttemptCancelled reach their own callers, nothing of theirs is called (I2)."""
    calls: list[str] = []

    @tool
    def effect(name: str) -> str:
        calls.append(name)
        return name

    log = log_of(store)
    attempts = {name: log.attempt(name).__enter__() for name in ("first", "good", "fenced", "stopped", "last")}
    with Callers(store, log._engine.duty) as callers:
        led = {"first": callers.lead(attempts["first"].call, effect, "first")}
        for name in ("good", "fenced", "stopped", "last"):
            led[name] = callers.follow(attempts[name].call, effect, name)

        def overtake(entries: Sequence[Append]) -> None:  # another process, between this batch's Pending and Dispatched
            if any(type(entry.record) is r.Dispatched for entry in entries):
                store.meddle = None
                store.unseen(opened("fenced", attempt=2, owner="other.1"))
                store.unseen(Append("stopped", r.CancelRequested(attempt=1, by="ada", why="no")))

        store.meddle = overtake
        callers.let_go()
        ends = {name: error_of(one) or result_of(one) for name, one in led.items()}
    assert isinstance(ends["fenced"], Fenced)
    assert isinstance(ends["stopped"], AttemptCancelled)
    assert ends["fenced"].effect_ran == ends["stopped"].effect_ran == "no"
    assert [ends[name] for name in ("first", "good", "last")] == ["first", "good", "last"]
    assert sorted(calls) == ["first", "good", "last"]


def damaged_row(path: Path) -> str:
    """What stands in the operation's row of one branch is no operation."""
    return "UPDATE operations SET state = x'00' WHERE branch = 'bad'"


def constraint(path: Path) -> str:
    """SQLite refuses the row itself, as it would for a broken unique index."""
    return """
        CREATE TRIGGER refuses BEFORE INSERT ON events WHEN NEW.branch = 'bad'
        BEGIN SELECT RAISE(ABORT, 'refused'); END
    """


def check_one_cannot_be_written(path: Path, statement: str) -> None:
    store = GatedSqlite(path)
    try:
        duty = prepared(store, "first", "good", "bad", "last")
        other = apsw.Connection(str(path))  # another process' hand; of the same SQLite, as locks demand
        other.execute(statement)
        other.close()
        with Callers(store, duty) as callers:
            callers.lead(duty.append, dispatched("first"))
            led = {branch: callers.follow(duty.append, dispatched(branch)) for branch in ("good", "bad", "last")}
            callers.let_go()
            ends = {branch: error_of(one) or result_of(one) for branch, one in led.items()}
        assert isinstance(ends["good"], Appended), ends["good"]
        assert isinstance(ends["last"], Appended), ends["last"]
        assert isinstance(ends["bad"], LogDamaged), ends["bad"]
        alone = [store.branches_of(n) for n in range(len(store.batches))]
        assert alone == [["first"], ["good", "bad", "last"], ["good"], ["bad"], ["last"]], "replayed singly"
        assert [names_of(store, b)[-1] for b in ("good", "bad", "last")] == ["Dispatched", "Pending", "Dispatched"]
        assert isinstance(duty.append(returned("good")), Appended), "the log goes on"
    finally:
        store.close()


@pytest.mark.parametrize("harm", [damaged_row, constraint])
def test_a_member_that_cannot_be_written_fails_alone(quick_folder: Path, harm: Any) -> None:
    """Nothing of the batch was written: it is replayed singly, and only the damaged one is told so."""
    check_one_cannot_be_written(quick_folder / "log.db", harm(quick_folder))


def test_a_member_that_cannot_be_written_fails_alone_control(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where a batch fails as one, the others suffer, and the check fails."""

    def as_one(commit: Any, members: Sequence[Member]) -> None:
        try:
            replies = commit([entry for member in members for entry in member.entries])
            group._share(members, replies)
        except Exception as error:
            for member in members:
                member.error = error

    monkeypatch.setattr(duty_module, "commit_together", as_one)
    with pytest.raises(AssertionError):
        check_one_cannot_be_written(quick_folder / "log.db", damaged_row(quick_folder))


# --- what may not share a commit -----------------------------------------------------------------------------------


def two_of_one_effect(store: AnyGated) -> list[Append]:
    """An operation whose owner was fenced in its call: its late outcome and a person's word about it."""
    for entry in (opened("op", attempt=2), Append("op", r.AttemptClosed(attempt=2, end=r.End.INDETERMINATE))):
        assert isinstance(store.unseen(entry)[0], Appended)
    operation = store.view("op", "charge").operation
    assert operation is not None
    word = r.Settled(
        attempt=1, step="charge", settlement=r.Settlement.APPLIED, by="ada", why="seen", expect_seq=operation.last_seq
    )
    return [Append("op", word), returned("op")]


def check_two_of_one_effect(store: AnyGated, *, outcome_first: bool) -> None:
    duty = prepared(store, "first", "op", "other", "last", until_kind="Dispatched")
    two = two_of_one_effect(store)
    two = two[::-1] if outcome_first else two
    with Callers(store, duty) as callers:
        callers.lead(duty.append, returned("first"))
        led = [callers.follow(duty.append, one) for one in (two[0], returned("other"), two[1], returned("last"))]
        callers.let_go()
        replies = [error_of(one) or result_of(one) for one in led]
    shared = [store.branches_of(n) for n in range(len(store.batches))]
    assert shared == [["first"], ["op", "other", "last"], ["op"]], "the second waits for the commit after (I7)"
    assert [entry.record for batch in store.batches[1:] for entry in batch if entry.branch == "op"] == [
        one.record for one in two
    ], "in the order in which they came"
    assert all(isinstance(reply, Appended) for reply in (replies[0], replies[1], replies[3])), replies
    if outcome_first:  # nothing is left to decide
        assert isinstance(replies[2], Refused)
        assert replies[2].refusal.reason is Reason.NOT_IN_DOUBT
    else:  # an outcome that comes after a decision is evidence
        assert isinstance(replies[2], Appended)


@pytest.mark.parametrize("outcome_first", [True, False])
def test_two_records_of_one_effect_never_share_a_commit(store: AnyGated, outcome_first: bool) -> None:
    """I7: an owner's outcome and a person's decision about the same operation, queued at once; others do share."""
    check_two_of_one_effect(store, outcome_first=outcome_first)


def test_two_records_of_one_effect_never_share_a_commit_control(
    store: AnyGated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a queue that looks at no effects hands the store a batch that it refuses as a whole."""

    def all_of_them(waiting: Any, first: Member) -> list[Member]:
        batch = [first, *waiting]
        waiting.clear()
        return batch

    monkeypatch.setattr(group, "take", all_of_them)
    with pytest.raises(AssertionError):
        check_two_of_one_effect(store, outcome_first=True)


def test_a_commit_holds_no_more_than_the_limit(store: AnyGated, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 9: what is written together has to fit into the WAL: BATCH_RECORDS_MAX, EVENTUAL records counted."""
    monkeypatch.setattr(group, "BATCH_RECORDS_MAX", 4)
    branches = [f"b{n}" for n in range(9)]
    duty = prepared(store, "first", *branches)
    for branch in branches[::4]:
        for name in "xy":
            duty.append(noted(branch, name))
    with Callers(store, duty) as callers:
        callers.lead(duty.append, dispatched("first"))
        led = [callers.follow(duty.append, dispatched(branch)) for branch in branches]
        callers.let_go()
        assert all(isinstance(result_of(one), Appended) for one in led)
    sizes = [len(batch) for batch in store.batches]
    assert sizes == [1, 4, 2, 4, 2, 3], "as many as fit, in the order in which they came"


def test_what_takes_reads_along_is_not_overtaken(store: AnyGated) -> None:
    """I5: a read is durable no later than its branch's next Pending, also where what carries it waits for a twin."""
    duty = prepared(store, "first", "op")
    with Callers(store, duty) as callers:
        led = [callers.lead(duty.append, dispatched("first")), callers.follow(duty.append, dispatched("op"))]
        duty.append(looked("op", "look"))
        led.append(callers.follow(duty.append, returned("op")))  # of the same effect: for the commit after
        led.append(callers.follow(duty.append, pending("op", "next")))
        callers.let_go()
        assert all(isinstance(result_of(one), Appended) for one in led)
    assert store.kinds() == [["Dispatched"], ["Dispatched"], ["Committed", "Committed", "Pending"]]
    assert names_of(store, "op") == ["AttemptOpened", "Pending", "Dispatched", "look", "Committed", "Pending"]
