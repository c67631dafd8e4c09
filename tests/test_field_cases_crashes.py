"""The field cases in which a process dies, is stopped, or meets a receiver: see `test_field_cases.py`.

A crash is the SIGKILL of a real process, a pause its SIGSTOP. A worker that lives and is taken for dead, as behind a
lease that ran out, is one whose lock file is moved aside for a while.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from core_player import Player
from crash_programs import CLASSES, in_child
from field_case_programs import (
    BRANCH,
    EFFECTS,
    KINDS,
    NOWHERE,
    UNREACHABLE,
    Bench,
    again,
    attempt_at,
    believed_dead,
    call_once,
    check_busy,
    command_line,
    ends_well,
    field_tool,
    history_of,
    is_stopped,
    names,
    opened,
    raised,
    records,
    results,
    run_slow,
    run_step,
    running,
    settled,
    until,
)

from intentlog import (
    Applied,
    Call,
    Fenced,
    InDoubt,
    Log,
    NotApplied,
    Resolution,
    Retry,
    Verdict,
)
from intentlog.cli import main as run_command
from intentlog.core.restart import recover_branch
from intentlog.crash import Witness
from intentlog.log import declare

DOUBT = Verdict.MAY_HAVE_BEEN_SENT
REPLAYED = "did 1042"


# --- case 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("owner", "paused"),
    [("sync", False), ("asyncio", False), ("cancelled", False), ("sync", True)],
    ids=["sync", "asyncio", "cancelled", "stopped"],
)
def test_case_03_a_branch_is_busy_while_its_owner_lives_and_in_doubt_when_it_is_dead(
    quick_folder: Path, owner: str, kind: str, paused: bool
) -> None:
    """Case 3: a call that takes minutes, and a second process: BranchBusy; killed: may have been sent (I2, I4).

    Also if the owner is stopped, or its caller was cancelled and the call's thread runs on (but for a READ, of which
    nothing stands in the log). Afterwards a second call only where the class permits one, with the same key.
    """
    mode = "asyncio" if owner == "asyncio" else "thread" if owner == "cancelled" else "sync"
    bench = Bench(quick_folder, mode)

    async def main() -> None:
        with running(run_slow, str(bench.folder), kind, owner) as child:
            until(lambda: results(bench.folder) if owner == "cancelled" else bench.witness.lines(), "the call")
            if paused:
                os.kill(child.pid, signal.SIGSTOP)
            async with opened(mode, bench.path) as log:
                if (owner, kind) != ("cancelled", "READ"):
                    await check_busy(log, bench.witness)
        async with opened(mode, bench.path) as log, attempt_at(log) as attempt:
            assert [one.classification for one in attempt.classifications] == ([] if kind == "READ" else [DOUBT])
            handle = field_tool(kind, lambda call, _: bench.witness.record(said(call)), mode, Applied("found"))
            error = await raised(attempt.step("act").call, handle, "1042")
            assert type(error) is (InDoubt if kind == "UNSAFE" else type(None))

    def said(call: Call) -> str:
        return f"{call.request_id} {call.dispatch_no} again"

    asyncio.run(main())
    first, *others = bench.witness.lines()
    number = 0 if kind == "READ" else 2
    wanted = [f"{first.split()[0]} {number} again"] if kind in ("READ", "IDEMPOTENT", "KEYED") else []
    assert others == wanted


# --- cases 5 and 24 ---------------------------------------------------------------------------------------------------

# How the doubt was closed: the class, the probe's answer, and the command that a person gives, if one does.
CLOSED: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "person-landed": ("UNSAFE", NOWHERE, ("--landed", "--outcome", '"by phone"')),
    "person-not-landed": ("UNSAFE", NOWHERE, ("--not-landed",)),
    "probe-landed": ("QUERYABLE", Applied("by phone"), ()),
    "probe-not-landed": ("QUERYABLE", NOWHERE, ()),
    "called-again": ("KEYED", NOWHERE, ()),
}
# And what comes late: whether it contradicts, and what every later run gets.
LATE: dict[tuple[str, str], tuple[bool, str]] = {
    ("landed", "returned"): (False, REPLAYED),
    ("landed", "rejected"): (True, "by phone"),
    ("landed", "not_sent"): (True, "by phone"),
    ("not-landed", "returned"): (True, REPLAYED),
    ("not-landed", "rejected"): (False, "Rejected"),
    ("not-landed", "not_sent"): (False, "again"),
    ("called-again", "returned"): (False, "again"),
    ("called-again", "rejected"): (False, "again"),
    ("called-again", "not_sent"): (False, "again"),
}


def expected(closed: str, ending: str) -> tuple[bool, str]:
    return LATE[closed.removeprefix("person-").removeprefix("probe-"), ending]


def intentlog(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The command line, in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", ["intentlog", *map(str, arguments)])
    return run_command()


def late_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch, closed: str, ending: str) -> Any:
    """A worker stopped after its call; its doubt is closed as if it were dead; then it wakes and tells the outcome."""
    kind, answer, decision = CLOSED[closed]
    monkeypatch.setattr(declare, "_KNOWN", WeakValueDictionary())  # no other test's tools of this name
    handle = field_tool(kind, again, bench.mode, answer)
    with running(run_step, str(bench.folder), kind, bench.mode, ending, stop_at="before_committed") as child:
        until(partial(is_stopped, child), "the worker's stop")
        with believed_dead(bench.folder):
            with Log.open(bench.path) as log:
                assert [one.classification for one in log.recover()] == [DOUBT]
            if decision:
                said = [f"{BRANCH}#1/act", *decision, "--by", "ann", "--why", "asked"]
                assert intentlog(monkeypatch, "resolve", bench.path, *said) == 0
            if closed == "called-again":
                asyncio.run(call_once(bench, handle))
        os.kill(child.pid, signal.SIGCONT)
        ends_well(child)
    return handle


@pytest.mark.parametrize("ending", ["returned", "rejected", "not_sent"])
@pytest.mark.parametrize(
    ("mode", "closed"), [*(("sync", closed) for closed in CLOSED), ("asyncio", "person-not-landed")]
)
def test_case_05_a_late_outcome_is_evidence_beside_one_answer(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str, closed: str, ending: str
) -> None:
    """Case 5: a doubt was closed and then the call's own outcome comes: one answer, both on record (I3, I9).

    By a person, a probe or a permitted repeat; what came late is kept, and named where it contradicts.
    """
    bench = Bench(quick_folder, mode)
    handle = late_outcome(bench, monkeypatch, closed, ending)
    contradicts, answer = expected(closed, ending)
    with Log.open(bench.path) as log:
        history = history_of(log)
        of_first = [record for record in history if getattr(record, "step", "") == "act" and record.attempt == 1]
        terminal = [record for record in of_first if type(record).__name__ in ("Settled", "Committed")]
        assert names(terminal) == ["Settled", "Committed"], "what closed it stands, and so does what came late"
        assert terminal[-1].outcome == ending.upper()
        assert (log.contradictions() != []) is contradicts
        assert [one for one in log.open_intents() if one.in_doubt] == []
        assert log.verify().ok
    for _ in range(2):
        assert asyncio.run(call_once(bench, handle)) == answer
    assert len(bench.witness.lines()) == 1


@pytest.mark.parametrize("ending", ["returned", "rejected", "not_sent"])
@pytest.mark.parametrize("closed", ["person-landed", "person-not-landed"])
def test_case_24_a_contradiction_is_shown_and_is_not_fine(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], closed: str, ending: str
) -> None:
    """Case 24: a person says one thing and the late outcome another: both stand, named, and exit code 3 (I9).

    What agrees is no contradiction, and exits with 0.
    """
    bench = Bench(quick_folder, "sync")
    late_outcome(bench, monkeypatch, closed, ending)
    contradicts, _ = expected(closed, ending)
    capfd.readouterr()
    assert intentlog(monkeypatch, "status", bench.path) == (3 if contradicts else 0)
    out, _ = capfd.readouterr()
    assert ("Outcomes that contradict" in out) is contradicts
    assert (f"{BRANCH}#1/act" in out) is contradicts
    assert intentlog(monkeypatch, "show", bench.path, BRANCH) == 0
    out, _ = capfd.readouterr()
    assert "ann" in out, "the person's word"
    assert ending.upper() in out, "and the late outcome"
    if closed == "person-not-landed" and contradicts:
        code, text = command_line("status", bench.path, "--json")
        assert (code, f'"contradictions":["{BRANCH}#1/act"]' in text.replace(" ", "").replace("\n", "")) == (3, True)


# --- case 10 ----------------------------------------------------------------------------------------------------------

Path10 = Callable[[Any, Any, Bench], Any]  # given the log, the tool and where


async def around_a_call(log: Any, handle: Any, bench: Bench) -> None:
    """A retry helper inside the run."""
    async with attempt_at(log) as attempt:
        for _ in range(4):
            assert isinstance(await raised(attempt.step("act").call, handle, "1042"), InDoubt)


async def around_the_run(log: Any, handle: Any, bench: Bench) -> None:
    """A retry helper, or a supervisor, around the run: a new attempt each time."""
    for _ in range(3):
        with pytest.raises(InDoubt):
            async with attempt_at(log) as attempt:
                await settled(attempt.step("act").call(handle, "1042"))
    assert await settled(log.unfinished()) == [], "no supervisor is told to run it again"


async def by_retry(log: Any, handle: Any, bench: Bench) -> None:
    """The tool declares a retry of its own."""
    eager = unsafe(bench, retry=Retry(times=3, backoff=timedelta(0)))
    await around_a_call(log, eager, bench)


async def by_recover(log: Any, handle: Any, bench: Bench) -> None:
    """Recovery, again and again."""
    for _ in range(3):
        (found,) = await settled(log.recover())
        assert found.resolution is Resolution.ASK_PERSON


async def loosened(log: Any, handle: Any, bench: Bench, kind: str) -> None:
    """A deploy declares it otherwise, with a probe that says "not there": the stricter declaration decides."""
    looser = unsafe(bench, kind, answer=NotApplied(), probed=kind in ("KEYED", "QUERYABLE"))
    await by_recover(log, looser, bench)
    await around_a_call(log, looser, bench)


PATHS: dict[str, Path10] = {
    "around-a-call": around_a_call,
    "around-the-run": around_the_run,
    "Retry": by_retry,
    "recover": by_recover,
    **{f"declared-{kind}": partial(loosened, kind=kind) for kind in CLASSES if kind != "UNSAFE"},
}


def unsafe(bench: Bench, kind: str = "UNSAFE", **options: Any) -> Any:
    """The tool whose step is in doubt, as this program declares it."""

    def act(call: Call, item: str) -> str:
        bench.witness.record(f"again {call.dispatch_no}")
        return f"did {item}"

    return field_tool(kind, act, bench.mode, name=f"field_unsafe_{bench.mode}", **options)


@pytest.mark.parametrize(
    ("mode", "doubt"),
    [
        *(("sync", doubt) for doubt in ("ambiguous", "before_call", "after_call", "before_committed")),
        ("asyncio", "ambiguous"),
        ("thread", "before_committed"),
    ],
)
def test_case_10_an_unsafe_effect_is_dispatched_once_on_every_automatic_path(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str, doubt: str
) -> None:
    """Case 10: "never repeat" holds for retry helpers, `Retry`, recover, probes and looser declarations (I4).

    However the doubt came about: an error that proves nothing, or a kill before, in or after the call.
    """
    bench = Bench(quick_folder, mode)
    ending, crash_at = (doubt, None) if doubt == "ambiguous" else ("returned", doubt)
    in_child(run_step, str(bench.folder), "UNSAFE", bench.mode, ending, crash_at=crash_at)
    calls = bench.witness.lines()

    async def main() -> None:
        for name, path in PATHS.items():
            async with opened(bench.mode, bench.path) as log:
                await path(log, unsafe(bench), bench)
                assert bench.witness.lines() == calls, name
                assert names(await records(log)).count("Dispatched") == 1, name
        async with opened(bench.mode, bench.path) as log:
            async with attempt_at(log, "live") as attempt:  # and from the first call on
                eager = field_tool("UNSAFE", lose, bench.mode, retry=Retry(times=3, backoff=timedelta(0)))
                assert isinstance(await raised(attempt.step("act").call, eager, "1042"), InDoubt)
            assert names(await records(log, "live")).count("Dispatched") == 1
            assert (await settled(log.verify())).ok

    def lose(call: Call, item: str) -> str:
        bench.witness.record("live")
        raise ConnectionResetError(item)

    asyncio.run(main())
    assert bench.witness.lines() == [*calls, "live"]
    for _ in range(2):
        assert intentlog(monkeypatch, "recover", bench.path) == 3
    assert bench.witness.lines() == [*calls, "live"]


# --- case 22 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takeover", ["attempt", "recover"])
@pytest.mark.parametrize(("mode", "kind"), [*(("sync", kind) for kind in EFFECTS), ("asyncio", "UNSAFE")])
def test_case_22_a_worker_that_was_overtaken_while_it_was_stopped_never_calls(
    quick_folder: Path, mode: str, kind: str, takeover: str
) -> None:
    """Case 22: stopped after Pending: BranchBusy for others; taken for dead all the same: NEVER_SENT, and it holds.

    When it wakes, its Dispatched is refused, it raises Fenced and has not called (I1, I2).
    """
    bench = Bench(quick_folder, mode)

    def act(call: Call, item: str) -> str:
        bench.witness.record(f"the other {call.dispatch_no}")
        return f"did {item}"

    handle = field_tool(kind, act, mode, UNREACHABLE)

    async def main() -> None:
        with running(run_step, str(bench.folder), kind, mode, stop_at="after_pending") as worker:
            until(partial(is_stopped, worker), "the worker's stop")
            async with opened(mode, bench.path) as log:
                await check_busy(log, bench.witness)
            with believed_dead(bench.folder):
                async with opened(mode, bench.path) as log:
                    if takeover == "recover":
                        found = await settled(log.recover())
                    else:
                        async with attempt_at(log) as attempt:
                            found = attempt.classifications
                            assert await settled(attempt.step("act").call(handle, "1042")) == REPLAYED
                    assert [one.classification for one in found] == [Verdict.NEVER_SENT]
            os.kill(worker.pid, signal.SIGCONT)
            ends_well(worker)
        async with opened(mode, bench.path) as log, attempt_at(log) as attempt:
            assert await settled(attempt.step("act").call(handle, "1042")) == REPLAYED

    asyncio.run(main())
    assert results(bench.folder) == ["attempt 1", "Fenced"]
    assert bench.witness.lines() == ["the other 1"]


@pytest.mark.parametrize("takeover", ["attempt", "recover"])
@pytest.mark.parametrize("kind", EFFECTS)
def test_case_22_behind_a_lease_the_fence_holds_too(kind: str, takeover: str) -> None:
    """Case 22: the same where a lease ran out and nobody is known to be dead: the fence is the guarantee (I2)."""
    zombie = Player().opens()
    other: list[Player] = []

    def takes_over() -> None:
        other.append(zombie.dies())
        if takeover == "recover":
            (found,) = other[0].run(recover_branch("order-1", lambda _: None, certain=False))
            assert found.classification is Verdict.NEVER_SENT
        else:
            assert other[0].opens().performs("other", kind=kind, death_is_certain=False).value == "other"

    zombie.befalls["Dispatched"] = takes_over
    error = zombie.raises(Fenced, kind=kind, death_is_certain=False)
    assert error.effect_ran == ("yes" if takeover == "attempt" else "no")
    assert "call" not in zombie.did
    assert other[0].is_sound()


# --- case 23 ----------------------------------------------------------------------------------------------------------

KILLS: dict[str, list[str]] = {
    "after_opened": [],
    "after_pending": ["NEVER_SENT"],
    "before_call": [DOUBT],
    "before_committed": [DOUBT],
}


@pytest.mark.parametrize("crash_at", list(KILLS))
@pytest.mark.parametrize(
    ("kind", "mode"),
    [("IDEMPOTENT", "sync"), ("KEYED", "thread"), ("QUERYABLE", "sync"), ("UNSAFE", "asyncio")],
)
def test_case_23_the_log_counts_the_attempts_of_a_task_that_is_delivered_again(
    quick_folder: Path, kind: str, mode: str, crash_at: str
) -> None:
    """Case 23: delivered again after kill -9 with the same id and no retry counted: the log tells (I2, I4).

    It says which attempt it is and what is open, and lets only that be called again which may be.
    """
    arguments = (str(quick_folder), kind, mode)
    in_child(run_step, *arguments, crash_at=crash_at)
    first_calls = Witness(quick_folder / "witness").lines()
    for _ in range(2):
        in_child(run_step, *arguments)
    doubtful = KILLS[crash_at] == [DOUBT]
    stands = doubtful and kind in ("QUERYABLE", "UNSAFE")
    second = " ".join(["attempt 2", *KILLS[crash_at]])
    third = f"attempt 3{' ' + DOUBT if stands else ''}"
    answers = ["InDoubt", "InDoubt"] if stands else [f"{REPLAYED} called", f"{REPLAYED} replayed"]
    assert [line for line in results(quick_folder) if line != "attempt 1"] == [second, answers[0], third, answers[1]]
    calls = [line.split()[1] for line in Witness(quick_folder / "witness").lines()[len(first_calls) :]]
    assert calls == ([] if stands else ["2" if doubtful else "1"])
