"""The commands. Each returns its exit code; what it raises, `intentlog.cli.main` reports."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from intentlog.cli import advice, checkup, render, report
from intentlog.cli.arguments import (
    URL_VARIABLE,
    AsJson,
    LogArgument,
    UnknownBranch,
    Usage,
    check_is_log,
    check_text,
    decision_about,
    import_modules,
    opened_log,
    outcome_of,
    place_and,
    place_of,
    stdout_kept_clean,
)
from intentlog.cli.watch import watch
from intentlog.core.actions import IntentId
from intentlog.core.records import Settled
from intentlog.log.sync import Log
from intentlog.log.values import Applied, NotApplied

FOLLOW_POLL_S = 0.25
FINE, ERROR, USAGE, IN_DOUBT, DAMAGED = range(5)
EXIT_CODES = "0 fine, 1 error, 2 usage, 3 intents in doubt or outcomes that contradict, 4 damage found"

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # help is plain text: `[LOG]` is no markup
    help="A write-ahead log of intents: after any crash, know of each external effect whether it was never sent, "
    "may have been sent, or is done.",
    epilog=f"LOG is a path or URL, by default ${URL_VARIABLE}. Exit codes: {EXIT_CODES}.",
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer passes it so
    if wanted:
        typer.echo(f"intentlog {version('intentlog')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


@app.command(epilog="Example: intentlog demo --keep demo-logs")
def demo(
    keep: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the demonstration's files there.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Make the same choices as an earlier run.")] = None,
) -> int:
    """Kill a program between an effect and its record, and see what its log knows afterwards."""
    from intentlog.cli.demo import run_demo

    return run_demo(keep, seed, render.console())


@app.command(epilog="Example: intentlog status orders.db")
def status(log: LogArgument = None, *, as_json: AsJson = False) -> int:
    """Print what is open, what is in doubt, and what to do next.

    Exits with 3 if anything is in doubt, or outcomes contradict.
    """
    place = place_of(log)
    with opened_log(place, read_only=True) as opened:
        intents, contradictions, unfinished = opened.open_intents(), opened.contradictions(), opened.unfinished()
    todo = [(one.intent_id, advice.of_open(place, one)) for one in intents]
    todo += [(one, advice.of_contradiction(place, one)) for one in contradictions]
    if as_json:
        render.print_json({"open_intents": intents, "contradictions": contradictions, "unfinished": unfinished})
    else:
        report.status(intents, contradictions, unfinished, todo)
    return IN_DOUBT if contradictions or any(one.in_doubt for one in intents) else FINE


@app.command(epilog="Example: intentlog show orders.db order-1042")
def show(
    log: LogArgument = None,
    branch: Annotated[str | None, typer.Argument(metavar="BRANCH", help="The branch.")] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Print the history of a branch: every record, oldest first, with arguments and values."""
    place, name = place_and(log, branch, "BRANCH")
    with opened_log(place, read_only=True) as opened:
        entries = list(opened.history(name))
    if not entries:
        raise UnknownBranch(f"the log has no branch {name!r}")
    if as_json:
        render.print_json(entries)
    else:
        report.branch(name, entries)
    return FINE


@app.command(epilog="Example: intentlog tail orders.db --follow")
def tail(
    log: LogArgument = None,
    *,
    count: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many of the newest.")] = 10,
    after: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="All that stand after this record.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended, until it is interrupted.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --follow, one record to a line.")
    ] = False,
) -> int:
    """Print the newest records of the whole log, oldest first."""
    place = place_of(log)
    with opened_log(place, read_only=True) as opened:
        entries = opened.tail(count, after=after)
        if as_json and not follow:
            render.print_json(entries)
            return FINE
        report.tail(entries, as_json=as_json)
        newest = [*opened.tail(1), *entries][-1:] if after is None else entries
        seen = newest[-1].seq if newest else after or 0
        while follow:
            time.sleep(FOLLOW_POLL_S)
            newer = opened.tail(after=seen)
            report.tail(newer, as_json=as_json)
            seen = newer[-1].seq if newer else seen
    return FINE


@app.command(epilog="Example: intentlog recover orders.db --import shop.tools")
def recover(
    log: LogArgument = None,
    *,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import it, so that the probes of its tools can answer."),
    ] = None,
    watched_s: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", help="Do so again after so many seconds, until it is ended."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --watch, one object to a line.")
    ] = False,
) -> int:
    """Classify what dead owners left open, and let probes answer. Calls no tool. Exits with 3 if doubts stay open.

    Branches with a living owner are left alone. Nothing is written where nothing changed. With --watch it prints what
    it records, and goes on while the log cannot be reached; Ctrl-C and SIGTERM end it, with 130 and 143.
    """
    place = place_of(log)
    if watched_s is not None:
        with stdout_kept_clean():
            import_modules(modules or [])
        watch(place, watched_s, as_json=as_json)
    check_is_log(place)
    with stdout_kept_clean():
        import_modules(modules or [])
        with opened_log(place) as opened:
            found = opened.recover()
            late = {one.intent_id: one.not_before for one in opened.open_intents()}
    if as_json:
        render.print_json(found)
    else:
        report.recovered(
            found, [(one.intent_id, advice.of_classified(place, one, late.get(one.intent_id))) for one in found]
        )
    return IN_DOUBT if any(one.resolution in advice.UNANSWERED for one in found) else FINE


@app.command(
    epilog="Example: intentlog resolve orders.db 'order-1042#1/charge' --not-landed --by ann --why 'not on the bill'"
)
def resolve(  # noqa: PLR0913 - a decision names what it decides
    log: LogArgument = None,
    intent: Annotated[str | None, typer.Argument(metavar="INTENT", help="The intent: BRANCH#ATTEMPT/STEP.")] = None,
    *,
    landed: Annotated[bool, typer.Option("--landed", help="It happened.")] = False,
    not_landed: Annotated[bool, typer.Option("--not-landed", help="It did not happen.")] = False,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="On what grounds.")],
    outcome: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --landed: what the tool would have returned.")
    ] = None,
    expect_seq: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Refuse if the operation moved on since this record.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Record a person's decision about an intent in doubt: it landed, or it did not."""
    if landed == not_landed:
        raise Usage("say one of --landed and --not-landed")
    if outcome is not None and not landed:
        raise Usage("--outcome is what the tool would have returned; it goes with --landed")
    happened: Applied[Any] = Applied() if outcome is None else Applied(outcome_of(outcome))
    place, intent_id = decision_about(log, intent, by, why)
    check_is_log(place)
    with opened_log(place) as opened:
        opened.resolve(intent_id, happened if landed else NotApplied(), by=by, why=why, expect_seq=expect_seq)
        seq, record = _newest_decision(opened, intent_id)
        doubts = sum(one.in_doubt for one in opened.open_intents())
    if as_json:
        render.print_json({"intent_id": intent_id, "seq": seq} | render.plain(record))
    else:
        report.decided(place, intent_id, seq, record, doubts)
    return FINE


@app.command(
    epilog="Example: intentlog supply orders.db 'order-1042#1/mail' --outcome '\"m-7\"' --by ann --why 'in the outbox'"
)
def supply(
    log: LogArgument = None,
    intent: Annotated[str | None, typer.Argument(metavar="INTENT", help="The intent: BRANCH#ATTEMPT/STEP.")] = None,
    *,
    outcome: Annotated[str, typer.Option(metavar="JSON", help="What the tool would have returned.")],
    by: Annotated[str, typer.Option(metavar="NAME", help="Who says so.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="On what grounds.")],
) -> int:
    """Give the value of an effect that is done without one, so that a program that runs again gets it."""
    value = outcome_of(outcome)
    place, intent_id = decision_about(log, intent, by, why)
    check_is_log(place)
    with opened_log(place) as opened:
        opened.supply(intent_id, value, by=by, why=why)
    render.print_line(render.console(), f"recorded: the value of {intent_id}, by {by}: {why}")
    return FINE


@app.command(epilog="Example: intentlog renew orders.db 'order-1042#1/charge' --by ann --why 'refunded, charge anew'")
def renew(
    log: LogArgument = None,
    intent: Annotated[str | None, typer.Argument(metavar="INTENT", help="The intent: BRANCH#ATTEMPT/STEP.")] = None,
    *,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="On what grounds.")],
    expect_seq: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Refuse if the operation moved on since this record.")
    ] = None,
) -> int:
    """Decide that an effect shall happen once more: the next call of its step is a new one, with a key of its own."""
    place, intent_id = decision_about(log, intent, by, why)
    check_is_log(place)
    with opened_log(place) as opened:
        opened.renew(intent_id, by=by, why=why, expect_seq=expect_seq)
    out = render.console()
    render.print_line(out, f"recorded: {intent_id} shall happen once more, by {by}: {why}")
    render.print_line(out, "next: run the program again: it calls this step")
    return FINE


@app.command(epilog="Example: intentlog cancel orders.db order-1042 --by ann --why 'the customer withdrew'")
def cancel(
    log: LogArgument = None,
    branch: Annotated[str | None, typer.Argument(metavar="BRANCH", help="The branch.")] = None,
    *,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="On what grounds.")],
    as_json: AsJson = False,
) -> int:
    """Ask that a branch send nothing more. Its running call is not ended. Exits with 3 while something is in doubt."""
    place, name = place_and(log, branch, "BRANCH")
    for option, given in (("BRANCH", name), ("--by", by), ("--why", why)):
        check_text(option, given)
    check_is_log(place)
    with opened_log(place) as opened:
        done = opened.cancel(name, by=by, why=why)
    if as_json:
        render.print_json({"branch": name} | render.plain(done))
    else:
        todo = [(one.intent_id, advice.of_open(place, one)) for one in done.open_intents]
        report.cancelled(name, done, todo)
    return IN_DOUBT if any(one.in_doubt for one in done.open_intents) else FINE


@app.command(epilog="Example: intentlog verify orders.db")
def verify(log: LogArgument = None, *, as_json: AsJson = False) -> int:
    """Hold the whole log against its digests, its rules and its invariants. Exits with 4 if damage was found."""
    place = place_of(log)
    with render.at_work("verifying", quietly=as_json) as progress, opened_log(place, read_only=True) as opened:
        found = opened.verify(progress)
    if as_json:
        render.print_json({"ok": found.ok} | render.plain(found))
    else:
        report.verified(found)
    return FINE if found.ok else DAMAGED


@app.command(epilog="Example: intentlog doctor postgresql://orders@db.example/orders")
def doctor(log: LogArgument = None, *, as_json: AsJson = False) -> int:
    """Look at what the log's durability hangs on: settings, standbys, rights, workers. Exits with 1 if one is wrong.

    Nothing is written. What a standby, a pooler or the role's rights keep from being seen is said to be unseen.
    """
    name, found = checkup.examine(place_of(log))
    is_wrong = checkup.is_wrong(found)
    if as_json:
        render.print_json({"ok": not is_wrong, "log": name, "findings": found})
    else:
        checkup.report(name, found)
    return ERROR if is_wrong else FINE


def _newest_decision(opened: Log, intent_id: IntentId) -> tuple[int, Settled]:
    """The decision about this step that was recorded last, and where."""
    return [
        (entry.seq, entry.record)
        for entry in opened.history(intent_id.branch)
        if isinstance(entry.record, Settled) and entry.record.step == intent_id.step
    ][-1]
