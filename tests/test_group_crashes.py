"""kill -9 in the middle of a batch of 64 effects (DESIGN 1 and 9, I1, I2, I3, I5, I7).

64 UNSAFE effects at once, on threads and on an event loop, and a SIGKILL at a point inside a batch. Then the log's
answer for each of the 64 is held against a witness outside the log, and the program is run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_programs import in_child
from group_programs import EFFECTS, branch_of, run_at_once, told

from intentlog import InDoubt, Log, Verdict, tool
from intentlog.crash import Witness

MODES = ("sync", "asyncio")
BRANCHES = [branch_of(number) for number in range(EFFECTS)]
# In lock step the points of one batch are all reached before its commit, and all after it. The nth counts records.
CUTS = (("before", 2), ("before", EFFECTS), ("after", 40))
POINTS = [f"{side}_{record}:{nth}" for record in ("pending", "dispatched", "committed") for side, nth in CUTS]
POINTS += ["before_call:1", "before_call:33", "after_call:1", "after_call:33", f"after_call:{EFFECTS}"]
STRIKES = ["xWrite:3", "xWrite:40", "xSync:1", "xSync:2", "xSync:3"]


class Found(NamedTuple):
    """What a restart found after a kill.

    Attributes:
        answers: the log's one answer for each branch's effect.
        recovered: how many intents the restart classified.
        lines: how often the witness saw each branch's effect.
    """

    answers: Mapping[str, Verdict]
    recovered: int
    lines: Counter[str]


def look(folder: Path) -> Found:
    """Open the log again, recover, and take its answers."""
    with Log.open(folder / "log.db") as log:
        classified = {c.intent_id.branch: c.classification for c in log.recover()}
        answers = {}
        for branch in BRANCHES:
            kinds = [entry.kind for entry in log.history(branch)]
            if branch in classified:
                answers[branch] = classified[branch]
            else:
                answers[branch] = Verdict.DONE if "Committed" in kinds else Verdict.NEVER_SENT
                assert ("Committed" in kinds) == ("Pending" in kinds), "what is open is classified"
    return Found(answers, len(classified), Counter(Witness(folder / "witness").lines()))


def check_answers(found: Found) -> None:
    """Each of the 64 has a true answer, as the witness has it."""
    for branch in BRANCHES:
        lines, answer = found.lines[branch], found.answers[branch]
        if answer is Verdict.NEVER_SENT:
            assert lines == 0, f"{branch}: never sent, says the log, and it was witnessed"
        elif answer is Verdict.DONE:
            assert lines == 1, f"{branch}: done, says the log, and it was witnessed {lines} times"
        else:
            assert answer is Verdict.MAY_HAVE_BEEN_SENT
            assert lines <= 1
    assert set(found.lines) <= set(BRANCHES)


def run_again(folder: Path, found: Found) -> None:
    """The program runs again: what is done is replayed, what was never sent is sent, what is in doubt is not."""
    witness = Witness(folder / "witness")
    called: list[str] = []

    @tool(step="effect")
    def effect(number: int) -> int:
        called.append(branch_of(number))
        return told(witness, number)

    with Log.open(folder / "log.db") as log:
        for number, branch in enumerate(BRANCHES):
            try:
                with log.attempt(branch) as attempt:
                    outcome = attempt.perform(effect, number)
            except InDoubt:
                assert found.answers[branch] is Verdict.MAY_HAVE_BEEN_SENT
            else:
                assert outcome.value == number
                assert outcome.replayed == (found.answers[branch] is Verdict.DONE)
        report = log.verify()  # of the whole log, what was killed included
        assert report.ok, report
    assert called == [branch for branch in BRANCHES if found.answers[branch] is Verdict.NEVER_SENT]
    after = Counter(witness.lines())
    for branch in BRANCHES:
        expected = found.lines[branch] + (found.answers[branch] is Verdict.NEVER_SENT)
        assert after[branch] == expected <= 1, f"{branch}: witnessed {after[branch]} times in all"


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", MODES)
def test_killed_in_the_middle_of_a_batch(quick_folder: Path, mode: str, point: str) -> None:
    """Killed where records of a batch are about to be committed, or were, or between calls: each answer is true."""
    in_child(run_at_once, str(quick_folder), mode, crash_at=point)
    found = look(quick_folder)
    check_answers(found)
    check_cut(mode, point, found)
    run_again(quick_folder, found)


def check_cut(mode: str, point: str, found: Found) -> None:
    """The kill fell where it was to fall: what the 64 come to at this point, in lock step on an event loop."""
    if mode == "asyncio":
        name = point.partition(":")[0]
        nth = int(point.partition(":")[2])
        calls = {"before_call": nth - 1, "after_call": nth, "before_committed": EFFECTS, "after_committed": EFFECTS}
        answers = {
            "before_pending": Verdict.NEVER_SENT,
            "after_pending": Verdict.NEVER_SENT,
            "before_dispatched": Verdict.NEVER_SENT,
            "after_committed": Verdict.DONE,
        }
        assert sum(found.lines.values()) == calls.get(name, 0)
        assert set(found.answers.values()) == {answers.get(name, Verdict.MAY_HAVE_BEEN_SENT)}
        classified = name not in ("before_pending", "after_committed")
        assert found.recovered == (EFFECTS if classified else 0)


@pytest.mark.parametrize("strike", STRIKES)
@pytest.mark.parametrize("mode", MODES)
def test_killed_inside_the_commit_itself(quick_folder: Path, mode: str, strike: str) -> None:
    """Killed among the writes of a batch's pages, and right before its sync: the whole batch is there, or nothing."""
    with_strike = (str(quick_folder), mode, strike)
    in_child(run_at_once, *with_strike, crash_at="before_cancelled")  # of no record here: the VFS strikes
    found = look(quick_folder)
    check_answers(found)
    if mode == "asyncio":
        assert len(set(found.answers.values())) == 1, "all 64 were in the batch"
    run_again(quick_folder, found)


# --- controls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_killed_in_the_middle_of_a_batch_control_two_records(quick_folder: Path, mode: str) -> None:
    """Control: over a protocol without Dispatched, the log calls never sent what the witness saw."""
    in_child(run_at_once, str(quick_folder), mode, crash_at="before_committed:1", two_records=True)
    found = look(quick_folder)
    with pytest.raises(AssertionError, match="never sent, says the log, and it was witnessed"):
        check_answers(found)


def test_killed_in_the_middle_of_a_batch_control_false_answers(quick_folder: Path) -> None:
    """Control: one answer of the 64, or one line of the witness, made false is found each time."""
    in_child(run_at_once, str(quick_folder), "sync", crash_at="after_committed:20")
    found = look(quick_folder)
    check_answers(found)
    done = next(branch for branch in BRANCHES if found.answers[branch] is Verdict.DONE)
    with pytest.raises(AssertionError):
        check_answers(found._replace(answers={**found.answers, done: Verdict.NEVER_SENT}))
    for lines in (0, 2):
        with pytest.raises(AssertionError):
            check_answers(found._replace(lines=Counter({**found.lines, done: lines})))
    with pytest.raises(AssertionError):
        run_again(quick_folder, found._replace(answers={**found.answers, done: Verdict.NEVER_SENT}))
