"""What the demonstration compares: the word of the log against witnesses that know nothing of the log.

A witness is whoever received the effects: the payment provider's ledger and list of requests, the bare repository, the
mail file. Here they are read as they are, and held against what a restart said of each intent.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TOOLS = ("charge", "push", "mail")
TRUTHS = {"PENDING": "NEVER_SENT", "DISPATCHED": "MAY_HAVE_BEEN_SENT"}  # the seed's table, for what a kill leaves open


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demonstration keeps its log and its witnesses.

    Attributes:
        folder: everything is in it.
    """

    folder: Path

    @property
    def log(self) -> Path:
        """The log of intents."""
        return self.folder / "orders.db"

    @property
    def ledger(self) -> Path:
        """The payment provider's: one line for each charge."""
        return self.folder / "ledger.jsonl"

    @property
    def requests(self) -> Path:
        """The payment provider's: one line for each request."""
        return self.folder / "requests.jsonl"

    @property
    def remote(self) -> Path:
        """The bare repository that is pushed to."""
        return self.folder / "remote.git"

    @property
    def source(self) -> Path:
        """The repository that is pushed from."""
        return self.folder / "source.git"

    @property
    def mail(self) -> Path:
        """The mail file."""
        return self.folder / "mail.jsonl"

    @property
    def output(self) -> Path:
        """What the workers printed."""
        return self.folder / "worker.txt"


class Seen(NamedTuple):
    """Something that a witness saw.

    Attributes:
        tool: which tool caused it.
        order: for which order.
        intent: the intent that the call carried with it.
    """

    tool: str
    order: str
    intent: str


class Witnesses(NamedTuple):
    """What all witnesses saw.

    Attributes:
        calls: each call that arrived. Only the payment provider can tell a repeat from an effect.
        effects: each effect that happened.
    """

    calls: tuple[Seen, ...]
    effects: tuple[Seen, ...]


class Judgement(NamedTuple):
    """What a recovery said of an intent that a kill left open.

    Attributes:
        intent: the intent.
        seen: its state as the log showed it before the recovery.
        last_state: its last state, says the recovery; "" if it said nothing.
        classification: what the recovery concludes from it; "" if it said nothing.
        resolution: what is to be done about it.
    """

    intent: str
    seen: str
    last_state: str = ""
    classification: str = ""
    resolution: str = ""


class Claims(NamedTuple):
    """What was done, and what the log says of it: to be held against the witnesses.

    Attributes:
        kills: how many processes were killed.
        orders: every order that was given to the worker.
        judgements: what recoveries said of what the kills left open.
        misaimed: kills at a named point that did not leave what they had to leave.
        done: order and tool of every operation that is done.
        dispatched: every intent with a Dispatched record.
        unsound: what `verify` found, and what is still open.
    """

    kills: int
    orders: Sequence[str]
    judgements: Sequence[Judgement]
    misaimed: list[str]
    done: Collection[tuple[str, str]]
    dispatched: Collection[str]
    unsound: list[str]


class Verdict(NamedTuple):
    """The outcome of a demonstration.

    Attributes:
        kills: how many processes were killed.
        duplicates: operations with more than one effect.
        lost: operations that a witness or the log does not know to be done.
        misclassified: classifications that the witnesses, or the record, contradict; and kills that missed their aim.
        unsound: what is wrong with the log itself.
    """

    kills: int
    duplicates: list[str]
    lost: list[str]
    misclassified: list[str]
    unsound: list[str]

    @property
    def exit_code(self) -> int:
        """0 if there is nothing to complain of, else 1."""
        return 1 if self.duplicates or self.lost or self.misclassified or self.unsound else 0

    def __str__(self) -> str:
        return (
            f"demo: {self.kills} kills, {len(self.duplicates)} duplicates, {len(self.lost)} lost, "
            f"{len(self.misclassified)} misclassified"
        )


# --- reading ---------------------------------------------------------------------------------------------------------


def read_witnesses(place: Place) -> Witnesses:
    """Read what each witness has seen by now. None of this opens the log."""
    charges = [Seen("charge", json.loads(line["body"])["order"], line["intent"]) for line in _lines(place.ledger)]
    requests = [Seen("charge", line["intent"].rpartition("#")[0], line["intent"]) for line in _lines(place.requests)]
    mails = [Seen("mail", line["order"], line["intent"]) for line in _lines(place.mail)]
    pushes = _pushes(place.remote)
    return Witnesses((*requests, *pushes, *mails), (*charges, *pushes, *mails))


def mail_key(place: Place, order: str) -> str | None:
    """The request id that stands in the order's mail, or None if no mail of it was sent."""
    return next((line["key"] for line in _lines(place.mail) if line["order"] == order), None)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _pushes(remote: Path) -> list[Seen]:
    if not remote.exists():
        return []
    wanted = "--format=%(refname:lstrip=2)%09%(contents:trailers:key=Intent-Id,valueonly,separator=%20)"
    command = ["git", "--git-dir", str(remote), "for-each-ref", wanted]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words
    found = (line.split("\t") for line in listing.splitlines())
    return [Seen("push", name.partition("/")[0], intent.strip()) for name, intent in found]


# --- comparing -------------------------------------------------------------------------------------------------------


def compare(claims: Claims, seen: Witnesses) -> Verdict:
    """Hold what was done and said against what the witnesses saw."""
    return Verdict(
        kills=claims.kills,
        duplicates=duplicates(seen.effects),
        lost=lost(seen.effects, claims.orders, claims.done),
        misclassified=misclassified(claims.judgements, seen.calls, claims.dispatched) + claims.misaimed,
        unsound=claims.unsound,
    )


def duplicates(effects: Iterable[Seen]) -> list[str]:
    """Every operation that has more than one effect."""
    counted = Counter((seen.order, seen.tool) for seen in effects)
    return [f"{order}: {count} effects of {tool}" for (order, tool), count in sorted(counted.items()) if count > 1]


def lost(effects: Iterable[Seen], orders: Sequence[str], done: Collection[tuple[str, str]]) -> list[str]:
    """Every operation whose effect its witness has not seen, or which is not done in the log.

    Args:
        effects: what the witnesses saw.
        orders: every order that was given to the worker.
        done: order and tool of what is done, says the log.
    """
    happened = {(seen.order, seen.tool) for seen in effects}
    problems: list[str] = []
    for operation in [(order, tool) for order in orders for tool in TOOLS]:
        missing = [name for name, known in (("its witness", happened), ("the log", done)) if operation not in known]
        if missing:
            problems.append(f"{operation[0]}: no {operation[1]}, says {' and '.join(missing)}")
    return problems


def misclassified(judgements: Iterable[Judgement], calls: Collection[Seen], dispatched: Collection[str]) -> list[str]:
    """Every classification that is not true, and every call that the log does not admit to.

    Args:
        judgements: what recoveries said.
        calls: what the witnesses saw, up to the end: "never sent" has to stay true.
        dispatched: the intents of which the log holds a Dispatched record.
    """
    called = {seen.intent for seen in calls}
    problems: list[str] = []
    for one in judgements:
        if not one.classification:
            problems.append(f"{one.intent}: open ({one.seen}), and the recovery said nothing of it")
        elif one.last_state != one.seen:
            problems.append(f"{one.intent}: {one.last_state}, says the recovery, and the log showed {one.seen}")
        elif TRUTHS.get(one.last_state) != one.classification:
            problems.append(f"{one.intent}: {one.classification}, from {one.last_state}")
        elif one.classification == "NEVER_SENT" and one.intent in called:
            problems.append(f"{one.intent}: NEVER_SENT, and its witness saw a call")
    problems += [
        f"{intent}: its witness saw a call, the log no dispatch" for intent in sorted(called - set(dispatched))
    ]
    return sorted(set(problems))
