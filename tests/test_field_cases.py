"""What went wrong for people who do this job, one test for each case by its number: cases without a kill.

Those with a kill stand in `test_field_cases_crashes.py`; 13 to 17 and 21 beside their subjects (`-k test_case_`). Each
holds the whole kind of the fault: every class, both faces, every way in which it can come about. Whether a call
happened is read from a witness outside the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from counting_vfs import CountingVFS
from crash_programs import in_child
from field_case_programs import (
    BATCH,
    BRANCH,
    EFFECTS,
    ENDINGS,
    KINDS,
    LOST,
    MODES,
    Bench,
    attempt_at,
    batch,
    batch_tool,
    field_tool,
    names,
    opened,
    order_tools,
    raised,
    records,
    run_batch,
    run_three,
    settled,
)

from intentlog import (
    Applied,
    ArgumentDrift,
    Call,
    End,
    InDoubt,
    LogPoisoned,
    NotApplied,
    NotSent,
    OutcomeNotRecorded,
    Rejected,
    Settings,
    Verdict,
)
from intentlog.log.engine import open_engine

_numbers = count()


@pytest.fixture(params=MODES)
def bench(quick_folder: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(quick_folder, str(request.param))


# --- case 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ending"),
    [*((kind, "ambiguous") for kind in KINDS), ("UNSAFE", "not_sent"), ("READ", "rejected"), ("UNSAFE", "rejected")],
)
def test_case_02_a_batch_that_is_run_again_calls_only_what_failed(bench: Bench, kind: str, ending: str) -> None:
    """Case 2: two of a batch are done and one failed: in every later run only the third can be called (I3, I4).

    Again in the same attempt, whose process is then killed, in a new process, and once more. What is UNSAFE and
    ambiguous is called again only when a person said that it did not land; what was rejected, never.
    """
    (bench.folder / "failing").touch()
    in_child(run_batch, str(bench.folder), kind, bench.mode, ending, crash_at="before_closed")
    (bench.folder / "failing").unlink()
    asks_person = (kind, ending) == ("UNSAFE", "ambiguous")
    stays = asks_person or ending == "rejected"
    assert sorted(bench.witness.lines()) == ["first", "second", "third", *([] if stays else ["third"])]
    handle = batch_tool(bench.folder, kind, bench.mode, ending)

    async def main() -> list[Any]:
        async with opened(bench.mode, bench.path) as log:
            async with attempt_at(log) as attempt:
                *done, third = await batch(attempt, handle)
            assert [(one.value, one.replayed) for one in done] == [("did first", True), ("did second", True)]
            if asks_person:
                assert isinstance(third, InDoubt)
                await settled(log.resolve(f"{BRANCH}#1/third", NotApplied(), by="ann", why="not on the bill"))
            async with attempt_at(log) as attempt:
                return await batch(attempt, handle)

    *done, third = asyncio.run(main())
    assert [(one.value, one.replayed) for one in done] == [("did first", True), ("did second", True)]
    if ending == "rejected":
        assert isinstance(third, Rejected)
        assert third.replayed
    else:
        assert (third.value, third.replayed) == ("did third", not asks_person)
    calls = {name: bench.witness.lines().count(name) for name in BATCH}
    assert calls == {"first": 1, "second": 1, "third": {"rejected": 1}.get(ending, 2 if asks_person else 3)}


# --- case 4 -----------------------------------------------------------------------------------------------------------

CHANGES: dict[str, list[tuple[str, str]]] = {  # after a resume: (step, item), where a, b, c were recorded for a, b, c
    "skipped": [("b", "b"), ("c", "c")],
    "turned-round": [("c", "c"), ("b", "b"), ("a", "a")],
    "put-in-between": [("a", "a"), ("new", "new"), ("b", "b"), ("c", "c")],
    "repeated": [("a", "a"), ("a", "a"), ("b", "b")],
    "arguments-changed": [("a", "a"), ("b", "B"), ("c", "c")],
    "arguments-exchanged": [("a", "c"), ("b", "b"), ("c", "a")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_case_04_each_step_gets_its_own_outcome_or_drift(bench: Bench, kind: str) -> None:
    """Case 4: another order of steps after a resume: a step's own outcome, or ArgumentDrift; never another's (I6).

    Named steps and unnamed ones, skipped, turned round, put in between, with other arguments, or of another tool; the
    first run was killed. Of a READ the arguments are not stored, so that its drift cannot name which differs.
    """
    in_child(run_three, str(bench.folder), kind, bench.mode, crash_at="before_closed")
    handle, other = order_tools(bench.folder, kind, bench.mode)

    async def check(attempt: Any, step: str | None, item: str, recorded: str | None) -> None:
        face = attempt if step is None else attempt.step(step)
        error = await raised(face.call, handle, item)
        if recorded in (None, item):
            assert error is None
            outcome = await settled(attempt.step(step).perform(handle, item)) if step else None
            assert outcome is None or (outcome.value, outcome.replayed) == (f"did {item}", True)
            return
        assert isinstance(error, ArgumentDrift), (step, item, error)
        assert error.intent_id == f"{BRANCH}#{attempt.number}/{step or attempt_step(handle)}"
        assert kind == "READ" or "item differ" in str(error)

    def attempt_step(tool: Any) -> str:
        return str(tool.name)

    async def main() -> None:
        async with opened(bench.mode, bench.path) as log:
            for steps in CHANGES.values():
                async with attempt_at(log) as attempt:
                    for step, item in steps:
                        await check(attempt, step, item, None if step == "new" else step)
                    await check(attempt, None, "y", "x")  # the first unnamed one was called with x
                    assert await settled(attempt.call(handle, "x")) == "did x"
                    assert await settled(attempt.call(handle, "y")) == "did y"
                    assert isinstance(await raised(attempt.step("a").call, other, "a"), ArgumentDrift)
            assert (await settled(log.verify())).ok

    asyncio.run(main())
    assert bench.witness.lines() == ["a", "b", "c", "x", "y", "new"]


# --- case 8 -----------------------------------------------------------------------------------------------------------

FAULTS = {
    "disk-full": ("xWrite", apsw.SQLITE_FULL),
    "write-error": ("xWrite", apsw.SQLITE_IOERR_WRITE),
    "sync-error": ("xSync", apsw.SQLITE_IOERR_FSYNC),
}


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize(
    ("mode", "kind", "ending"),
    [
        *((mode, "UNSAFE", "returned") for mode in MODES),
        *(("sync", kind, "returned") for kind in EFFECTS if kind != "UNSAFE"),
        *((mode, "UNSAFE", ending) for mode in ("sync", "asyncio") for ending in ("rejected", "not_sent")),
    ],
)
def test_case_08_an_outcome_that_cannot_be_recorded_is_handed_out(
    quick_folder: Path, mode: str, kind: str, fault: str, ending: str
) -> None:
    """Case 8: the call ended and the disk failed: OutcomeNotRecorded with the outcome; later "may have been sent" (I5).

    It is not a failed effect: whatever returned says "yes", and what is UNSAFE is not called again. After a failed sync
    the record may be there when the log is opened again; either is true.
    """
    bench = Bench(quick_folder, mode)
    vfs = CountingVFS(f"field-case-{next(_numbers)}")

    def act(call: Call, item: str) -> str:
        bench.witness.record(call.request_id)
        what, code = FAULTS[fault]
        vfs.fail_at[what, "-wal"] = (vfs.calls[what, "-wal"] + 1, code)
        if ending in ENDINGS:
            raise ENDINGS[ending]
        return f"did {item}"

    handle = field_tool(kind, act, bench.mode, Applied("found"))
    engine = partial(open_engine, bench.path, Settings(), read_only=False, vfs=vfs.name)

    async def main() -> tuple[Exception | None, list[Any], Exception | None]:
        error = again = None
        async with opened(bench.mode, engine) as log:
            with suppress(LogPoisoned):
                async with attempt_at(log) as attempt:
                    error = await raised(attempt.step("act").call, handle, "1042")
                    vfs.fail_at.clear()
                    again = await raised(attempt.step("act").call, handle, "1042") if kind == "UNSAFE" else None
        async with opened(bench.mode, engine) as log:
            return error, await settled(log.recover()), again

    error, found, again = asyncio.run(main())
    assert type(error) is OutcomeNotRecorded
    assert error.intent_id == f"{BRANCH}#1/act"
    assert error.effect_ran == ("yes" if ending == "returned" else "no")
    assert error.outcome == ("did 1042" if ending == "returned" else ENDINGS[ending])
    if kind == "UNSAFE":
        assert type(again).__name__ in ("InDoubt", "LogPoisoned"), "no second call"
        assert len(bench.witness.lines()) == 1
    assert fault == "sync-error" or found, "nothing tells that it ended"
    assert {one.classification for one in found} <= {Verdict.MAY_HAVE_BEEN_SENT}


# --- case 9 -----------------------------------------------------------------------------------------------------------


class NotFound(LookupError):
    """A receiver's 404."""


NOES: dict[str, tuple[Exception, dict[str, Any]]] = {  # what a tool raises, and what it declares of it
    "declared": (NotFound("404: no match"), {"rejects": NotFound}),
    "by-its-base": (NotFound("404: no match"), {"rejects": (ValueError, LookupError)}),
    "raised-as-such": (Rejected("404: no match"), {}),
}


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "declared") for kind in KINDS), ("READ", "by-its-base"), ("UNSAFE", "raised-as-such")]
)
def test_case_09_a_definite_no_blocks_nothing_and_is_replayed_as_an_error(bench: Bench, kind: str, how: str) -> None:
    """Case 9: a search without a match, a 404: the run goes on and completes; a replay raises it again (I3)."""
    error, options = NOES[how]

    def act(call: Call, item: str) -> str:
        bench.witness.record(item)
        if item == "missing":
            raise error
        return f"did {item}"

    handle = field_tool(kind, act, bench.mode, **options)

    async def main() -> None:
        for number in (1, 2):
            async with opened(bench.mode, bench.path) as log:
                assert await settled(log.unfinished()) == []
                async with attempt_at(log) as attempt:
                    assert attempt.classifications == []
                    found = await raised(attempt.step("search").call, handle, "missing")
                    assert await settled(attempt.step("next").call(handle, "next")) == "did next"
                assert isinstance(found, Rejected)
                assert "404: no match" in str(found)
                assert (found.replayed, found.effect_ran) == (number > 1, "no")
                assert (await records(log))[-1].end is End.COMPLETED
                assert await settled(log.open_intents()) == []

    asyncio.run(main())
    assert bench.witness.lines() == ["missing", "next"]


@pytest.mark.parametrize("error", [TimeoutError, NotFound, NotSent, ZeroDivisionError])
def test_case_09_a_read_that_fails_is_just_an_error(bench: Bench, error: type[Exception]) -> None:
    """Case 9: whatever a READ raises undeclared reaches its caller as it is; nothing is in doubt, and it is read anew.

    Nothing outside changed, so that there is nothing to guard: the branch goes on and completes (I2).
    """

    def act(call: Call, item: str) -> str:
        bench.witness.record(item)
        if len(bench.witness.lines()) < 3:
            raise error("no match")
        return f"found {item}"

    handle = field_tool("READ", act, bench.mode, durability=None)

    async def main() -> None:
        async with opened(bench.mode, bench.path) as log:
            for _ in range(2):
                async with attempt_at(log) as attempt:
                    assert type(await raised(attempt.step("search").call, handle, "x")) is error
                assert (await records(log))[-1].end is End.COMPLETED
                assert await settled(log.open_intents()) == []
                assert await settled(log.unfinished()) == []
            async with attempt_at(log) as attempt:
                assert await settled(attempt.step("search").call(handle, "x")) == "found x"

    asyncio.run(main())
    assert len(bench.witness.lines()) == 3


# --- case 12 ----------------------------------------------------------------------------------------------------------


SCOPES = ("around-a-call", "around-an-unnamed-call", "around-the-run")


async def retrying(function: Callable[[], Awaitable[Any]], times: int = 4) -> list[Any]:
    """What a generic retry helper does: again after any exception; the errors, and the result if there was one."""
    seen: list[Any] = []
    for _ in range(times):
        try:
            seen.append(await function())
        except (Exception, asyncio.CancelledError) as error:
            seen.append(error)
        else:
            break
    return seen


@pytest.mark.parametrize(
    ("mode", "doubt", "scope"),
    [
        *(("sync", "lost", scope) for scope in SCOPES),
        *(("asyncio", "cut-short", scope) for scope in SCOPES),
        ("asyncio", "lost", "around-a-call"),
        ("thread", "lost", "around-the-run"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_case_12_a_generic_retry_helper_repeats_what_its_class_permits(
    quick_folder: Path, mode: str, kind: str, doubt: str, scope: str
) -> None:
    """Case 12: a doubtful or cancelled call in a retry helper: UNSAFE is InDoubt each time; one operation (I4, I6).

    The others as they permit: READ, IDEMPOTENT and KEYED are called again, with the same key; QUERYABLE is asked about.
    A plain tool cannot be cut short: its thread is case 11.
    """
    bench = Bench(quick_folder, mode)

    def act(call: Call, item: str) -> Any:
        bench.witness.record(f"{call.request_id} {item}")
        if len(bench.witness.lines()) > 2:
            return f"did {item}"
        if doubt == "lost":
            raise LOST
        return asyncio.Event().wait()

    limit = timedelta(milliseconds=10) if doubt == "cut-short" else timedelta(minutes=5)
    handle = field_tool(kind, act, bench.mode, Applied("did 1042"), time_limit=limit)

    async def main() -> tuple[list[Any], list[Any]]:
        async with opened(bench.mode, bench.path) as log:

            async def call(attempt: Any) -> Any:
                face = attempt.step("act") if scope == "around-a-call" else attempt
                return await settled(face.call(handle, "1042"))

            async def run() -> Any:
                async with attempt_at(log) as attempt:
                    return await call(attempt)

            if scope == "around-the-run":
                seen = await retrying(run)
            else:
                async with attempt_at(log) as attempt:
                    seen = await retrying(lambda: call(attempt))
            return seen, await records(log)

    seen, history = asyncio.run(main())
    calls = {"UNSAFE": 1, "QUERYABLE": 1}.get(kind, 3)
    assert len(bench.witness.lines()) == calls
    assert len(set(bench.witness.lines())) == 1, "one key"
    of_intents = [record for record in history if hasattr(record, "step")]
    assert len({(record.step, record.generation) for record in of_intents}) == 1, "one operation"
    assert names(history).count("Dispatched") == (0 if kind == "READ" else calls)
    doubts = [type(one).__name__ for one in seen if isinstance(one, BaseException)]
    assert doubts == {"UNSAFE": ["InDoubt"] * 4, "QUERYABLE": ["InDoubt"], "READ": ["TimeoutError"] * 2}.get(
        kind, ["InDoubt"] * 2
    )
    assert (seen[-1] == "did 1042") is (kind != "UNSAFE")
