"""What `verify` has found so far, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable

from intentlog.core.check import Whole, check_branch
from intentlog.errors import LogDamaged
from intentlog.log.values import Problem, Progress, Report

PROGRESS_EVERY = 1_000  # records
PROBLEMS_MAX = 10_000  # of more it is only told how many: a log can be wrong in each of its records


class Verifying:
    """One run of `verify`.

    Args:
        newest_seq: the place of the log's newest record when the run began.
        count: how many records stood up to it: what the run has to come by.
        progress: is told how far it is, or nobody.
    """

    def __init__(self, newest_seq: int, count: int, progress: Progress | None) -> None:
        self._newest_seq = newest_seq
        self._count = count
        self._progress = progress
        self._problems: list[Problem] = []
        self._more = 0
        self._branches = 0
        self._records = 0
        self._met = 0  # of those that were there when it began
        self._tell()

    def add(self, branch: str, texts: Iterable[str]) -> None:
        """What was found, at no record."""
        for text in texts:
            self._add(Problem(branch, 0, text))

    def branch(self, whole: Whole, salt: bytes) -> None:
        """Check one branch."""
        self._branches += 1
        try:
            for seq, text in check_branch(whole, salt, self._passed):
                self._add(Problem(whole.name, seq, text))
        except LogDamaged as damage:
            self.add(whole.name, [damage.message])

    def report(self) -> Report:
        """The end: what was found in all.

        Whoever appends after the run began adds to what is read, and never to what has to be come by.
        """
        unmet = self._count - self._met
        if unmet and not self._problems:
            self.add("", [f"of {self._count} records {unmet} are in no branch's chain"])
        if self._more:
            self._problems.append(Problem("", 0, f"and {self._more} more problems"))
        self._tell()
        return Report(tuple(self._problems), self._records, self._branches)

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)
        else:
            self._more += 1

    def _passed(self, seq: int) -> None:
        self._records += 1
        if seq <= self._newest_seq:
            self._met += 1
        if self._records % PROGRESS_EVERY == 0:
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._met, self._count)
