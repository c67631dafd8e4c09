"""What the log of a demonstration says, and the table and line that it ends with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table

from intentlog.cli.demo_witness import Judgement, Place, Seen
from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.machine import RESERVED
from intentlog.core.records import OutcomeKind, Settlement
from intentlog.log.sync import Log
from intentlog.log.values import Entry

LEGEND = """\
A: killed after Pending, before Dispatched. B-: after Dispatched, before the call.
B+: after the call, before its outcome. takeover: a worker that goes on with what
another left. settled, #2: called in attempt 2. calls: of that operation, as its
witness had counted them when the process was killed, and in the end."""
NARROW = 100  # columns


class Answer(NamedTuple):
    """One line of what `intentlog recover --json` prints."""

    intent_id: str
    last_state: str
    classification: str
    resolution: str


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that was killed.

    Attributes:
        what: which, and where.
        left: what was said of each intent that it left open.
        calls: how many calls of these operations the witnesses had seen by then.
    """

    what: str
    left: list[Judgement]
    calls: list[int]


class LogSays(NamedTuple):
    """What the log says in the end.

    Attributes:
        histories: the records of each order.
        unsound: what `verify` found.
    """

    histories: dict[str, list[Entry]]
    unsound: list[str]

    def done(self) -> set[tuple[str, str]]:
        """Order and tool of every operation that returned, or was settled as applied."""
        return {
            (order, entry.record.step)
            for order, history in self.histories.items()
            for entry in history
            if (isinstance(entry.record, r.Committed) and entry.record.outcome is OutcomeKind.RETURNED)
            or (isinstance(entry.record, r.Settled) and entry.record.settlement is Settlement.APPLIED)
        }

    def dispatched(self) -> set[str]:
        """Every intent with a Dispatched record."""
        return {
            IntentId.of(order, entry.record.attempt, entry.record.step)
            for order, history in self.histories.items()
            for entry in history
            if isinstance(entry.record, r.Dispatched)
        }


def look(place: Place) -> dict[str, str]:
    """The state of every open intent, read without a writer's rights."""
    with Log.open(place.log, read_only=True) as log:
        return {one.intent_id: one.state for one in log.open_intents()}


def recorded(place: Place, intents: Collection[str]) -> dict[str, Answer]:
    """What the log holds of decisions about these intents."""
    found: dict[str, Answer] = {}
    with Log.open(place.log, read_only=True) as log:
        for order in {IntentId(intent).branch for intent in intents}:
            for one in (entry.record for entry in log.history(order)):
                if isinstance(one, r.Classified):
                    intent = IntentId.of(order, one.attempt, one.step)
                    found[intent] = Answer(intent, one.last_state, one.classification, one.resolution)
    return {intent: answer for intent, answer in found.items() if intent in intents}


def read_log(place: Place, orders: Sequence[str]) -> LogSays:
    """Read the whole log and verify it."""
    with Log.open(place.log, read_only=True) as log:
        histories = {order: list(log.history(order)) for order in orders}
        unsound = [f"verify: {one.branch} at {one.seq}: {one.text}" for one in log.verify().problems]
        unsound += [f"still open: {one.intent_id} is {one.state}" for one in log.open_intents()]
    return LogSays(histories, unsound)


def table(kills: Sequence[Kill], says: LogSays, calls: Sequence[Seen], width: int) -> Table:
    """Each kill, what it left, and what became of that; for a console of so many columns."""
    shown = Table(box=None, padding=(0, 1 if width < NARROW else 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("", "killed", "left open", "last state", "classification", "settled", "calls"):
        shown.add_column(name)
    for number, kill in enumerate(kills, 1):
        if not kill.left:
            shown.add_row(str(number), kill.what, "nothing new", "", "", "", "")
        for one, then in zip(kill.left, kill.calls, strict=True):
            intent = IntentId(one.intent)
            counts = f"{then} {calls_of(calls, intent)}"
            settled = how_settled(says.histories[intent.branch], intent)
            shown.add_row(str(number), kill.what, intent, one.seen, one.classification, settled, counts)
    return shown


def calls_of(calls: Sequence[Seen], intent: IntentId) -> int:
    """How many calls of the intent's operation are among these."""
    return sum((seen.order, seen.tool) == (intent.branch, intent.step) for seen in calls)


def how_settled(history: Sequence[Entry], intent: IntentId) -> str:
    """How an intent without outcome was closed, and whether its operation was called again."""
    of_step = [entry.record for entry in history if getattr(entry.record, "step", None) == intent.step]
    later = (f"#{one.attempt}" for one in of_step if isinstance(one, r.Dispatched) and one.attempt > intent.attempt)
    called = next(later, "not called")
    for one in of_step:
        if isinstance(one, r.Settled) and one.attempt == intent.attempt:
            match one.settlement:
                case Settlement.NEVER_SENT:
                    return called
                case Settlement.SUPERSEDED:
                    return f"same key, {called}"
                case Settlement.APPLIED:
                    return f"{one.by.removeprefix(RESERVED)}: landed"
                case Settlement.NOT_APPLIED:
                    return f"{one.by.removeprefix(RESERVED)}: no, {called}"
    return "open"
