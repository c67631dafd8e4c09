"""What an examination of a log's surroundings finds: one row for each thing that was looked at."""

from __future__ import annotations

from msgspec import Struct

from intentlog.core.words import Word


class Verdict(Word):
    """What a finding means for the log's promise."""

    OK = "ok"
    NOTE = "note"  # nothing is wanted of it, or it could not be seen
    WEAK = "weak"  # the log works, and something is less than it could be
    WRONG = "wrong"  # the log is refused, stands still, or loses what it has acknowledged


class Finding(Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        setting: what it is.
        found: what was found.
        wanted: what it should be; "-" where nothing is wanted.
        verdict: what that means.
        remedy: what to do about it; "" where there is nothing to do.
    """

    setting: str
    found: str
    wanted: str = "-"
    verdict: Verdict = Verdict.NOTE
    remedy: str = ""


def judged(setting: str, found: str, wanted: str, remedy: str, *, ok: bool, bad: Verdict = Verdict.WRONG) -> Finding:
    """A finding that is as wanted, or is not, and then has a remedy."""
    return Finding(setting, found, wanted, Verdict.OK if ok else bad, "" if ok else remedy)


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"
