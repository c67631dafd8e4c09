"""Several worker processes over one log in PostgreSQL: a branch has one owner, and what a dead one leaves is run again.

Workers are real processes on a real server; a death is a SIGKILL. The control is the same race for branches of which
each worker has its own: there all of them own theirs, so that `busy` comes of the branch and not of the race.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_bench import Bench, Spoken, bench

from intentlog import Log

FACES = ("sync", "async")
WORKERS = 4


@pytest.fixture
def many(postgres_url: str, quick_folder: Path) -> Iterator[Bench]:
    with bench(postgres_url, quick_folder) as made:
        yield made


def kinds(place: str, branch: str) -> list[str]:
    with Log.open(place, read_only=True) as log:
        return [entry.kind for entry in log.history(branch)]


def told_at_once(workers: list[Spoken], verb: str, branches: list[str]) -> list[str]:
    """Tell each worker before any is listened to; what they say."""
    for worker, branch in zip(workers, branches, strict=True):
        worker.does(verb, branch)
    return [worker.says() for worker in workers]


@pytest.mark.parametrize("verb", ["attempt", "run"])
def test_exactly_one_of_several_processes_owns_a_branch(many: Bench, verb: str) -> None:
    """However often they race for it, sync and asyncio: one opens the attempt, the others get BranchBusy (I2).

    When the owner leaves, the branch is free: the next race has one winner again, with the next attempt.
    """
    workers = [many.worker(face) for face in FACES for _ in range(WORKERS // 2)]
    for round_no in range(10):
        branch = f"order-{round_no // 2}"  # each is raced for twice
        said = told_at_once(workers, verb, [branch] * WORKERS)
        assert Counter(said) == {f"own {branch}": 1, f"busy {branch}": WORKERS - 1}
        owner = workers[said.index(f"own {branch}")]
        assert owner.asks("leave") == f"left {branch}"
    for number in range(5):
        assert kinds(many.place, f"order-{number}") == ["AttemptOpened", "AttemptClosed"] * 2
    own = [f"own-{number}" for number in range(WORKERS)]
    assert told_at_once(workers, verb, own) == [f"own {branch}" for branch in own]


@pytest.mark.parametrize("face", FACES)
def test_a_branch_stays_its_owners_while_that_lives(many: Bench, face: str) -> None:
    """A call that runs longer than the lease is good for keeps its branch: the lease is renewed beside it (I2).

    Another worker that waits gets the branch when the owner has died and its lease has run out, not before.
    """
    owner, other = many.worker(face), many.worker(face)
    assert owner.asks("call", "long") == "calling long"
    with Log.open(many.place, read_only=True) as log:
        assert [(one.intent_id, one.calling) for one in log.open_intents()] == [("long#1/stay", True)]
        assert (log.unfinished(), log.recoverable()) == ([], [])
    assert other.asks("attempt", "long") == "busy long"
    other.does("take", "long")  # waits
    owner.kill()
    assert other.says() == "done long receipt-long"
    assert many.done() == ["stay long", "charge long"]


@pytest.mark.parametrize("face", FACES)
def test_unfinished_gives_a_supervisor_the_branches_to_run_again(many: Bench, face: str) -> None:
    """After a kill between two effects no intent is open, and the branch is given all the same; run again, it is done.

    Nothing that is done is done again (I3), and what a living owner holds, or has finished, is not given.
    """
    doomed, living, other = many.worker(face), many.worker(face), many.worker(face)
    assert living.asks("attempt", "held") == "own held"
    assert other.asks("take", "finished") == "done finished receipt-finished"
    doomed.does("die", "half-done")
    assert doomed.ends()[0] == -9
    assert other.asks("take", "half-done") == "done half-done receipt-half-done"  # waits until the lease has run out
    assert other.asks("unfinished") == "unfinished"
    second = many.worker(face)
    second.does("die", "left-alone")
    assert second.ends()[0] == -9
    waits = many.worker(face)
    assert waits.asks("call", "probe-of-the-lease") == "calling probe-of-the-lease"
    waits.kill()
    assert other.asks("take", "probe-of-the-lease").startswith("done")  # its lease began later, so that both are over
    assert other.asks("unfinished") == "unfinished left-alone"
    assert other.asks("take", "left-alone") == "done left-alone receipt-left-alone"
    assert other.asks("unfinished") == "unfinished"
    assert living.asks("leave") == "left held"
    charged = Counter(line for line in many.done() if line.startswith("charge"))
    assert set(charged.values()) == {1}
    assert kinds(many.place, "half-done").count("Committed") == 1
