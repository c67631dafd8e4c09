"""`intentlog doctor`: what a log's durability hangs on, where it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from intentlog.cli import render
from intentlog.log.engine import postgres_store, resolved
from intentlog.store.findings import Finding, Verdict, counted


def examine(place: str) -> tuple[str, list[Finding]]:
    """Look at the server or the file that the log is kept in; its name, without a password, and what was found.

    Raises:
        LogUnavailable, LogDamaged, FormatTooNew: it cannot be looked at.
    """
    if "://" in place:
        postgres_store(place)  # refuses another kind of URL, and where the client is not installed
        from intentlog.store import postgres_address, postgres_checkup

        return postgres_address.address_of(place).name, postgres_checkup.examine(place)
    from intentlog.store import sqlite_checkup

    return place, sqlite_checkup.examine(resolved(place))


def is_wrong(findings: Sequence[Finding]) -> bool:
    """Whether one of them takes the promise away."""
    return any(one.verdict is Verdict.WRONG for one in findings)


def report(name: str, findings: Sequence[Finding]) -> None:
    """Print the table, what to do, and the verdict."""
    out = render.console()
    rows = ((one.setting, one.found, one.wanted, one.verdict) for one in findings)
    render.print_table(out, name, ("SETTING", "FOUND", "WANTED", "verdict"), rows)
    for one in findings:
        if one.remedy:
            render.print_line(out, f"{one.verdict}: {one.setting}: {one.remedy}")
    wrong = sum(one.verdict is Verdict.WRONG for one in findings)
    weak = sum(one.verdict is Verdict.WEAK for one in findings)
    summary = f"{wrong} wrong, {weak} weak" if wrong or weak else "nothing is wrong"
    render.print_line(out, f"{summary}: {counted(len(findings), 'thing')} looked at")
