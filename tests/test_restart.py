"""A restart through the public face (DESIGN 5): take over, replay, settle, decide, and who should be run again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from crash_programs import BRANCH, effect_tool, in_child, run_effect

from intentlog import (
    READ,
    Applied,
    BranchBusy,
    End,
    Fenced,
    InDoubt,
    IntentState,
    Log,
    LogClosed,
    LogUnavailable,
    NotApplied,
    NotInDoubt,
    OutcomeUnavailable,
    Resolution,
    StaleDecision,
    UnknownIntent,
    Verdict,
    tool,
)
from intentlog.crash import Witness
from intentlog.log import declare
from intentlog.store.sqlite import SqliteStore


@pytest.fixture
def killed_in_b(quick_folder: Path) -> Path:
    """A log with an UNSAFE effect that may have been sent: its process was killed before the outcome was recorded."""
    in_child(run_effect, str(quick_folder), "UNSAFE", "sync", crash_at="before_committed")
    return quick_folder


@pytest.fixture
def log(killed_in_b: Path) -> Iterator[Log]:
    with Log.open(killed_in_b / "log.db") as opened:
        yield opened


def unsafe(folder: Path) -> Any:
    return effect_tool("UNSAFE", Witness(folder / "witness"), "returned", is_async=False)


def test_opening_an_attempt_classifies_what_the_last_left(log: Log) -> None:
    """`attempt()` itself takes over, classifies and records: no recover is needed before it."""
    with log.attempt(BRANCH) as attempt:
        assert attempt.number == 2
        (found,) = attempt.classifications
        assert (found.last_state, found.classification) == (IntentState.DISPATCHED, Verdict.MAY_HAVE_BEEN_SENT)
        assert found.resolution is Resolution.ASK_PERSON
    kinds = [entry.kind for entry in log.history(BRANCH)]
    assert kinds[3:5] == ["AttemptOpened", "Classified"]


def test_in_doubt_names_the_intent_and_the_command_and_ends_the_attempt(log: Log, killed_in_b: Path) -> None:
    """InDoubt tells what to run; leaving the block with it closes the attempt INDETERMINATE; nothing is called."""
    with pytest.raises(InDoubt) as caught, log.attempt(BRANCH) as attempt:
        attempt.call(unsafe(killed_in_b), 1999)
    assert caught.value.intent_id == "order-1042#1/effect"
    assert f"intentlog resolve {killed_in_b / 'log.db'} 'order-1042#1/effect'" in str(caught.value)
    assert list(log.history(BRANCH))[-1].record.end is End.INDETERMINATE
    assert len(Witness(killed_in_b / "witness").lines()) == 1


def test_a_decision_is_replayed(log: Log, killed_in_b: Path) -> None:
    """Decided as landed, with its value: the program gets that value, marked as a replay; no second call."""
    (found,) = log.recover()
    log.resolve(found.intent_id, Applied("by phone"), by="ada", why="asked", expect_seq=found.seq)
    with log.attempt(BRANCH) as attempt:
        outcome = attempt.perform(unsafe(killed_in_b), 1999)
    assert (outcome.value, outcome.replayed) == ("by phone", True)
    assert len(Witness(killed_in_b / "witness").lines()) == 1


def test_decided_as_not_landed_it_is_called(log: Log, killed_in_b: Path) -> None:
    """The person takes the blame: it is called again, under the same request id, as the next dispatch."""
    log.resolve("order-1042#1/effect", NotApplied(), by="ada", why="not in the ledger")
    with log.attempt(BRANCH) as attempt:
        assert not attempt.perform(unsafe(killed_in_b), 1999).replayed
    first, second = (line.split() for line in Witness(killed_in_b / "witness").lines())
    assert (first[0], first[1], second[0], second[1]) == (second[0], "1", first[0], "2")


def test_a_tool_that_returns_none_needs_no_value(quick_folder: Path) -> None:
    """Landed without a value: None is the only one that it could have returned. Others are OutcomeUnavailable."""
    calls: list[str] = []

    @tool(name="effect")
    def mail(amount: int) -> None:
        calls.append("mail")

    @tool(name="effect")
    def charge(amount: int) -> str:
        calls.append("charge")
        return "receipt"

    in_child(run_effect, str(quick_folder), "UNSAFE", "sync", crash_at="before_committed")
    with Log.open(quick_folder / "log.db") as log:
        log.resolve("order-1042#1/effect", Applied(), by="ada", why="in the outbox")
        with log.attempt(BRANCH) as attempt:
            assert attempt.perform(mail, 1999).replayed
    with Log.open(quick_folder / "log.db") as log:
        with pytest.raises(OutcomeUnavailable) as caught, log.attempt(BRANCH) as attempt:
            attempt.call(charge, 1999)
        assert caught.value.effect_ran == "yes"
        log.supply("order-1042#1/effect", "receipt", by="ada", why="found it")
        with log.attempt(BRANCH) as attempt:
            assert attempt.perform(charge, 1999).value == "receipt"
        with pytest.raises(NotInDoubt, match="needs no value"):
            log.supply("order-1042#1/effect", "other", by="ada", why="again")
        assert log.verify().ok
    assert calls == []


def test_a_renamed_step_is_told_of(quick_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A deploy renames a tool: it is a new operation and is called; the attempt's close says so, loudly."""

    @tool
    def charge(amount: int) -> int:
        return amount

    @tool
    def charge_card(amount: int) -> int:
        return amount

    with Log.open(quick_folder / "log.db") as log:
        for handle in (charge, charge, charge_card):
            with log.attempt(BRANCH) as attempt:
                attempt.call(handle, 1)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("order-1042: the attempt is complete and did not come by steps that are done: charge.")


def test_decisions_that_are_refused_write_nothing(log: Log) -> None:
    """Unknown, stale, not in doubt, by nobody, for no reason: a clear error each."""
    (found,) = log.recover()
    before = [entry.seq for entry in log.history(BRANCH)]
    refusals: list[tuple[type[Exception], Callable[[], None]]] = [
        (UnknownIntent, lambda: log.resolve("order-1042#1/other", Applied(), by="a", why="b")),
        (UnknownIntent, lambda: log.resolve("nonsense", Applied(), by="a", why="b")),
        (UnknownIntent, lambda: log.resolve("order-1042#7/effect", Applied(), by="a", why="b")),
        (StaleDecision, lambda: log.resolve(found.intent_id, Applied(), by="a", why="b", expect_seq=found.seq - 1)),
        (Exception, lambda: log.resolve(found.intent_id, Applied(), by=" ", why="b")),
        (Exception, lambda: log.resolve(found.intent_id, Applied(), by="a", why="")),
        (Exception, lambda: log.resolve(found.intent_id, Applied(object()), by="a", why="b")),
        (Exception, lambda: log.resolve(found.intent_id, "landed", by="a", why="b")),  # type: ignore[arg-type]
        (Exception, lambda: log.resolve(found.intent_id, Applied(), by="intentlog:probe", why="b")),
    ]
    for error, decide in refusals:
        with pytest.raises(error):
            decide()
    assert [entry.seq for entry in log.history(BRANCH)] == before
    log.resolve(found.intent_id, NotApplied(), by="a", why="b")
    with pytest.raises(NotInDoubt):
        log.resolve(found.intent_id, NotApplied(), by="a", why="b")


def test_unfinished_says_what_to_run_again(log: Log, killed_in_b: Path) -> None:
    """Ownerless and not closed; or closed INDETERMINATE, once its doubts are settled; not while they stand."""
    assert [(u.branch, u.attempt, u.end) for u in log.unfinished()] == [(BRANCH, 1, None)]
    with pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        assert log.unfinished() == [], "it has a living owner"
        attempt.call(unsafe(killed_in_b), 1999)
    assert log.unfinished() == [], "its doubt stands"
    log.resolve("order-1042#1/effect", NotApplied(), by="ada", why="looked")
    assert [(u.branch, u.end) for u in log.unfinished()] == [(BRANCH, End.INDETERMINATE)]
    log.run(BRANCH, lambda attempt: attempt.call(unsafe(killed_in_b), 1999))
    assert log.unfinished() == []


def test_a_doubt_that_a_rerun_settles_is_unfinished_work(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KEYED call timed out: running the program again settles it by its key, so a supervisor is told to."""
    in_child(run_effect, str(quick_folder), "KEYED", "sync", "ambiguous")
    monkeypatch.setattr(declare, "_KNOWN", WeakValueDictionary())  # another test's `effect` would count as stricter
    with Log.open(quick_folder / "log.db") as log:
        assert [(u.branch, u.end) for u in log.unfinished()] == [(BRANCH, End.INDETERMINATE)]
        (intent,) = log.open_intents()
        assert (intent.in_doubt, intent.resolution) == (False, Resolution.RECALL)


def test_killed_between_effects_it_is_unfinished_too(quick_folder: Path) -> None:
    """No intent is open, and still there is work: the attempt was never closed."""
    in_child(run_effect, str(quick_folder), "UNSAFE", "sync", crash_at="before_closed")
    with Log.open(quick_folder / "log.db") as log:
        assert log.open_intents() == []
        assert [u.branch for u in log.unfinished()] == [BRANCH]
        assert log.recover() == []
        assert [entry.kind for entry in log.history(BRANCH)][-1] == "AttemptFenced", "fenced, once"
        log.recover()
        assert sum(entry.kind == "AttemptFenced" for entry in log.history(BRANCH)) == 1


def test_abandoned_are_the_attempts_whose_owner_died(log: Log, killed_in_b: Path) -> None:
    """Not those that are open here, nor those that are known already; a branch that went on is none any more."""
    with log.attempt("another"):
        (left,) = log.abandoned()
        assert (left.branch, left.attempt, left.end) == (BRANCH, 1, None)
        assert log.abandoned(but={(BRANCH, 1)}) == []
        assert log.abandoned(but={(BRANCH, 2), ("another", 1)}) == [left]
    with log.attempt(BRANCH):
        assert log.abandoned() == []
    assert log.abandoned() == []


def test_recover_appends_nothing_when_nothing_changed(log: Log) -> None:
    """It lists the doubts that are open each time; the log does not grow by looking."""
    first = log.recover()
    before = log.counters
    assert log.recover() == first
    assert log.counters == before


def test_a_closed_attempt_and_one_not_entered_call_nothing(log: Log, killed_in_b: Path) -> None:
    """Fenced after the block, LogClosed before it."""
    attempt = log.attempt("other")
    with pytest.raises(LogClosed):
        attempt.call(unsafe(killed_in_b), 1)
    with attempt:
        pass
    with pytest.raises(Fenced):
        attempt.call(unsafe(killed_in_b), 1)
    assert len(Witness(killed_in_b / "witness").lines()) == 1


def test_one_branch_one_owner_across_threads(log: Log) -> None:
    """BranchBusy for the second; with `wait` it gets its turn."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with log.attempt("held"):
            inside.set()
            assert leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(BranchBusy), log.attempt("held"):
        pass
    with pytest.raises(BranchBusy), log.attempt("held", wait=timedelta(milliseconds=60)):
        pass
    threading.Timer(0.1, leave.set).start()
    with log.attempt("held", wait=timedelta(seconds=10)) as attempt:
        assert attempt.number == 2
    thread.join()


def test_one_step_called_by_two_threads_is_called_once(log: Log) -> None:
    """Field case 6: the second waits, and gets the recorded outcome."""
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    @tool
    def slow(number: int) -> int:
        calls.append(number)
        begun.set()
        assert go_on.wait(10)
        return number

    found: list[Any] = []
    with log.attempt("threads") as attempt:
        work = [threading.Thread(target=lambda: found.append(attempt.step("one").perform(slow, 1))) for _ in range(2)]
        work[0].start()
        assert begun.wait(10)
        work[1].start()
        go_on.set()
        for thread in work:
            thread.join()
    assert calls == [1]
    assert sorted(outcome.replayed for outcome in found) == [False, True]


@pytest.mark.parametrize(
    ("error", "end"), [(None, End.COMPLETED), (ValueError, End.FAILED), (KeyboardInterrupt, End.CANCELLED)]
)
def test_how_an_attempt_ends(log: Log, error: type[BaseException] | None, end: End) -> None:
    """COMPLETED, FAILED, CANCELLED by how the block was left, where nothing is in doubt."""
    try:
        with log.attempt("ends"):
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert list(log.history("ends"))[-1].record.end is end


def test_an_attempt_with_an_open_doubt_never_ends_as_completed(log: Log, killed_in_b: Path) -> None:
    """The records decide, not the path: the program swallowed InDoubt, and the attempt is INDETERMINATE."""
    with log.attempt(BRANCH) as attempt, pytest.raises(InDoubt):
        attempt.call(unsafe(killed_in_b), 1999)
    assert list(log.history(BRANCH))[-1].record.end is End.INDETERMINATE


def test_threads_that_take_turns_at_a_branch_never_fence_each_other(quick_folder: Path) -> None:
    """An attempt holds its branch until it is closed, its closing included: who waits takes over afterwards."""
    failures: list[BaseException] = []

    @tool
    def count(number: int) -> int:
        return number

    with Log.open(quick_folder / "log.db") as log:

        def work(name: str) -> None:
            try:
                for number in range(15):
                    with log.attempt(BRANCH, wait=timedelta(seconds=30)) as attempt:
                        attempt.step(f"{name}-{number}").call(count, number)
            except BaseException as error:
                failures.append(error)

        def look() -> None:
            while any(thread.is_alive() for thread in threads):
                log.recover()
                log.open_intents()

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        look()
        for thread in threads:
            thread.join()
        assert failures == []
        kinds = [entry.kind for entry in log.history(BRANCH)]
        assert "AttemptFenced" not in kinds
        assert kinds.count("AttemptOpened") == kinds.count("AttemptClosed") == 45
        assert log.verify().ok


def test_reads_that_could_not_be_written_wait_on(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the log that finds no room loses no READ's record: it travels with the next commit."""

    @tool(effect=READ)
    def look(name: str) -> str:
        return name.upper()

    with Log.open(quick_folder / "log.db") as log, log.attempt(BRANCH) as attempt:
        assert attempt.call(look, "a") == "A"

        def full(self: Any, entries: Any) -> Any:
            raise LogUnavailable("no room")

        monkeypatch.setattr(SqliteStore, "append", full)
        with pytest.raises(LogUnavailable):
            log.open_intents()
        monkeypatch.undo()
        assert [entry.kind for entry in log.history(BRANCH)] == ["AttemptOpened", "Committed"]
