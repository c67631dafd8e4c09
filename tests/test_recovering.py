"""What a recovery tells that it recorded, through both faces, and whether one would record anything.

The dead owners are processes that were killed. Another recovery that is faster is a real one, on the same log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_bench import Bench, bench

from intentlog import AsyncLog, End, Log, Resolution, Verdict
from intentlog.log.values import Recovered


@pytest.fixture
def many(quick_folder: Path) -> Iterator[Bench]:
    with bench(str(quick_folder / "log.db"), quick_folder) as made:
        yield made


def recovered(face: str, place: str) -> tuple[list[str], list[Recovered], list[str]]:
    """What could be recovered, what a recovery told, and what can be recovered after it."""
    told: list[Recovered] = []
    if face == "sync":
        with Log.open(place) as log:
            before = log.recoverable()
            log.recover(told.append)
            return before, told, log.recoverable()

    async def run() -> tuple[list[str], list[Recovered], list[str]]:
        async with AsyncLog.open(place) as log:
            before = await log.recoverable()
            await log.recover(told.append)
            return before, told, await log.recoverable()

    return asyncio.run(run())


def die(many: Bench, *does: str) -> None:
    worker = many.worker()
    worker.does(*does)
    if does[0] == "call":
        assert worker.says().startswith("calling")
    worker.kill()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_recovery_tells_what_it_recorded_and_a_second_one_nothing(many: Bench, face: str) -> None:
    """Fenced and classified, by branch; a death between two effects is fenced alone; then there is no more (I9)."""
    die(many, "call", "inside")
    worker = many.worker()
    worker.does("die", "between")
    worker.ends()
    before, told, after = recovered(face, many.place)
    assert (before, after) == (["between", "inside"], [])
    assert [(one.branch, one.fenced, one.closed) for one in told] == [("between", 1, None), ("inside", 1, None)]
    assert told[0].classified == ()
    (found,) = told[1].classified
    assert (found.intent_id, found.classification) == ("inside#1/stay", Verdict.MAY_HAVE_BEEN_SENT)
    assert found.resolution is Resolution.ASK_PERSON
    assert recovered(face, many.place) == ([], [], [])


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_cancelled_attempt_whose_owner_died_is_closed(many: Bench, face: str) -> None:
    """Asked to stop while its owner lived, which then died: the recovery closes it, and tells that (I9)."""
    worker = many.worker()
    assert worker.asks("attempt", "order") == "own order"
    with Log.open(many.place) as log:
        log.cancel("order", by="ann", why="the customer withdrew")
        assert log.recoverable() == []
    worker.kill()
    before, told, after = recovered(face, many.place)
    assert (before, after) == (["order"], [])
    assert [(one.fenced, one.classified, one.closed) for one in told] == [(1, (), End.CANCELLED)]


def test_what_was_recorded_is_told_even_where_the_recovery_is_interrupted(
    many: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure in the middle of a branch hides nothing of what stands in the log by then."""
    die(many, "call", "order")
    told: list[Recovered] = []
    with Log.open(many.place) as log:
        append: Callable[..., Any] = log._engine.duty.append
        kinds: list[str] = []

        def failing(entry: Any) -> Any:
            kinds.append(type(entry.record).__name__)
            if kinds[-1] == "Classified":
                raise KeyboardInterrupt
            return append(entry)

        monkeypatch.setattr(log._engine.duty, "append", failing)
        with pytest.raises(KeyboardInterrupt):
            log.recover(told.append)
    assert kinds == ["AttemptFenced", "Classified"]
    assert told == [Recovered("order", 1, (), None)]


def test_what_another_recovery_was_faster_with_is_not_told(many: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both report the doubt, and one of them recorded it: each record is told by who appended it (I9)."""
    die(many, "call", "order")
    mine: list[Recovered] = []
    codes: list[int] = []
    with Log.open(many.place) as log:
        append: Callable[..., Any] = log._engine.duty.append

        def after_another(entry: Any) -> Any:
            if type(entry.record).__name__ == "Classified" and not codes:
                codes.append(many.command("recover", many.place, "--json").ends()[0])
            return append(entry)

        monkeypatch.setattr(log._engine.duty, "append", after_another)
        found = log.recover(mine.append)
        kinds = [entry.kind for entry in log.history("order")]
    assert codes == [3]
    assert [one.intent_id for one in found] == ["order#1/stay"]
    assert mine == [Recovered("order", 1, (), None)]
    assert kinds.count("Classified") == 1
