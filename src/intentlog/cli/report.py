"""What the commands tell people: the tables, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from intentlog.cli import render
from intentlog.cli.advice import Advice, command
from intentlog.cli.history import what
from intentlog.core.actions import IntentId
from intentlog.core.records import Settled, Settlement
from intentlog.core.restart import Classification
from intentlog.log.values import Cancelled, Entry, OpenIntent, Report, Unfinished

Todo = Sequence[tuple[IntentId, Advice]]


def status(
    intents: Sequence[OpenIntent], contradictions: Sequence[IntentId], unfinished: Sequence[Unfinished], todo: Todo
) -> None:
    """Print what is open, what contradicts, what to run again."""
    out = render.console()
    if intents:
        columns = ("INTENT", "tool", "class", "state", "dispatched", "doubt")
        rows = (
            (
                one.intent_id,
                one.tool,
                one.effect,
                one.state,
                render.timestamp(one.dispatched_at),
                "yes" if one.in_doubt else "no",
            )
            for one in intents
        )
        render.print_table(out, "Open intents", columns, rows)
    if contradictions:
        render.print_table(out, "Outcomes that contradict", ("INTENT",), ((one,) for one in contradictions))
    if unfinished:
        ended = ((one.branch, str(one.attempt), one.end or "its owner died") for one in unfinished)
        render.print_table(out, "Branches to run again", ("BRANCH", "attempt", "ended"), ended)
    if not (intents or contradictions or unfinished):
        render.print_line(out, "nothing is open, nothing is in doubt")
    _next(out, todo)


def branch(name: str, entries: Sequence[Entry]) -> None:
    """Print a branch's history, a line for each record; what is too long for a line is the value, which is cut."""
    out = render.console()
    render.print_line(out, name, style="bold")
    digits = len(str(entries[-1].seq))
    for entry in entries:
        line = f"{entry.seq:>{digits}}  {render.timestamp(entry.at)}  {entry.kind:<16}  {what(entry.record)}"
        if entry.payload is not None:
            line += f"  {render.value_text(out, entry.payload, beside=len(line) + 2)}"
        render.print_line(out, line)


def tail(entries: Sequence[Entry], *, as_json: bool) -> None:
    """Print records of the whole log, each on a line of its own, at once: somebody may be following."""
    out = render.console()
    for entry in entries:
        if as_json:
            render.print_json(entry, indent=None)
            continue
        line = f"{entry.seq}  {render.timestamp(entry.at)}  {entry.branch}  {entry.kind}  {what(entry.record)}"
        if entry.payload is not None:
            line += f"  {render.value_text(out, entry.payload, beside=len(line) + 2)}"
        render.print_line(out, line)
    sys.stdout.flush()


def cancelled(name: str, done: Cancelled, todo: Todo) -> None:
    """Print what a cancellation came to."""
    out = render.console()
    render.print_line(out, f"recorded: {name} sends nothing more; as the records have it, it is {done.verdict}")
    _next(out, todo)


def recovered(found: Sequence[Classification], todo: Todo) -> None:
    """Print what a recovery concluded."""
    out = render.console()
    if not found:
        render.print_line(out, "nothing to recover, nothing is in doubt")
        return
    columns = ("INTENT", "last state", "classification", "resolution", "seq")
    rows = ((one.intent_id, one.last_state, one.classification, one.resolution, str(one.seq)) for one in found)
    render.print_table(out, "Left open by dead owners", columns, rows)
    _next(out, todo)


def decided(place: str, intent_id: str, seq: int, record: Settled, doubts: int) -> None:
    """Print a decision that was recorded, and what follows from it."""
    out = render.console()
    landed = record.settlement is Settlement.APPLIED
    render.print_line(
        out,
        f"recorded at {seq}: {intent_id} {'landed' if landed else 'did not land'} ({record.settlement}), "
        f"by {record.by}: {record.why}",
    )
    if not landed:
        after = "run the program again: it calls this step"
    elif record.value_recorded:
        after = "run the program again: this step answers the recorded outcome, nothing is called"
    else:
        supply = command("supply", place, intent_id, options="--outcome JSON")
        after = (
            "run the program again: nothing is called; where the log has no value of it and the tool returns more than "
            f"None, it raises OutcomeUnavailable, until its value is there: {supply}"
        )
    render.print_line(out, f"next: {after}")
    if doubts:
        render.print_line(out, f"still in doubt: {_counted(doubts, 'intent')}; see: {command('status', place)}")


def verified(found: Report) -> None:
    """Print what `verify` found."""
    out = render.console()
    if found.problems:
        rows = ((one.branch or "-", str(one.seq) if one.seq else "-", one.text) for one in found.problems)
        render.print_table(out, "Problems", ("BRANCH", "seq", "TEXT"), rows)
    verdict = "sound" if found.ok else f"damaged, {_counted(len(found.problems), 'problem')}"
    read = f"{_counted(found.records, 'record')} in {_counted(found.branches, 'branch', 'branches')}"
    render.print_line(out, f"{verdict}: {read}")


def _next(out: Console, todo: Todo) -> None:
    """Print each advice once, with the intents that it is for and the commands, unbroken."""
    grouped: dict[Advice, list[str]] = {}
    for intent_id, advice in todo:
        grouped.setdefault(advice, []).append(intent_id)
    for advice, intent_ids in grouped.items():
        render.print_line(out, f"next: {', '.join(intent_ids)}: {advice.text}")
        for line in advice.commands:
            render.print_line(out, f"  {line}")


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
