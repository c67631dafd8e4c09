"""The command line in a child process: what it answers, and whether it wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from reliability.looking import run_command, warm
from reliability.oracle import quick_open

from intentlog import Applied, InDoubt, Log, tool
from intentlog.cli import arguments, commands, demo, main, render, watch

LOG = "log.db"
# Everything that a terminal obeys or hides: escapes, the same in one byte, a link, a title, a bell, turned text.
EVIL = (
    "\x1b[2J\x9b31m\x1b]8;;http://x\x07\x1b]0;t\x1b\\ [bold]b[/bold][link=x] "
    "\u202e\u2066\u200b\ufeff\x7f\x00\r\nforged: line"
)


class Answer(NamedTuple):
    """What a command came to.

    Attributes:
        code: its exit code.
        out: its stdout.
        err: its stderr.
        wrote: whether the log has other records than before.
        made: the files that are there and were not.
    """

    code: int
    out: str
    err: str
    wrote: bool
    made: list[str]


@tool(name="evil[red]")
def evil(text: str) -> str:
    raise ValueError(text)


@tool(name="good")
def good(text: str) -> str:
    return text


def make_log(folder: str) -> None:
    """A log with something for each command, and in each text what a terminal would obey."""
    with quick_open(Path(folder) / LOG) as log:
        for branch in ("order", "b[bold]\u200b"):
            with log.attempt(branch) as attempt:
                attempt.step("done").call(good, EVIL)
            log.append(branch, "noted", {EVIL: [EVIL]})
        for branch in ("doubtful", "valueless", "settled"):
            with suppress(InDoubt), log.attempt(branch) as attempt:
                attempt.step("s").call(evil, EVIL)
        log.resolve("valueless#1/s", Applied(), by=EVIL, why=EVIL)
        log.resolve("settled#1/s", Applied(EVIL), by=EVIL, why=EVIL)
        log.cancel("settled", by=EVIL, why=EVIL)


def ask(folder: str, words: Sequence[str], variables: dict[str, str]) -> Answer:
    """Give the command these words, in a folder with a log."""
    os.chdir(folder)
    before, there = _records(), names_in(Path())
    code, out, err = run_command(words, variables)
    made = sorted(names_in(Path()) - there - {f"{LOG}-wal", f"{LOG}-shm", f"{LOG}.d"})
    return Answer(code, out, err, _records() != before, made)


def names_in(folder: Path) -> set[str]:
    """The names of what is in a folder."""
    return {place.name for place in folder.iterdir()}


def kept_wrong(folder: str, branch: str, text: str) -> list[str]:
    """What is wrong with how a JSON text that was taken is kept, read and shown."""
    os.chdir(folder)
    value, is_one = meant(text)
    with quick_open(Path(LOG), read_only=True) as log:
        kept = [entry.payload for entry in log.history(branch)][-1]
    found = [] if is_one and same(kept, value) else [f"it means {value!r:.300}, and is kept as {kept!r:.300}"]
    for words in (["show", LOG, branch], ["show", LOG, branch, "--json"], ["tail", LOG]):
        code, out, err = run_command(words, {})
        found += [f"{words} ended with {code}: {out[-200:]}{err[-300:]}"] if code else []
    return found


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, to the last bit; but of a sequence only the items count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return sorted(one) == sorted(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    return type(one) is type(other) and one == other


def meant(text: str) -> tuple[Any, bool]:
    """What a JSON text means, and whether it means one thing."""
    twins = False

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twins
        twins = twins or len(dict(found)) < len(found)
        return dict(found)

    try:
        return json.loads(text, object_pairs_hook=pairs), not twins
    except (ValueError, RecursionError):
        return None, False


def _records() -> list[tuple[int, str]]:
    with quick_open(Path(LOG), read_only=True) as log:
        return [(entry.seq, entry.kind) for entry in log.tail(1_000_000)]


# --- what the watching process prepares ------------------------------------------------------------------------------


def bounded() -> None:
    """Let what goes on for ever look once, and the demonstration show nothing: it kills processes for seconds."""
    warm()

    def interrupted(_: float) -> NoReturn:
        raise KeyboardInterrupt

    commands.time = watch.time = SimpleNamespace(sleep=interrupted)  # type: ignore[assignment]
    demo.run_demo = lambda *_: 0  # type: ignore[assignment]


def _broken(change: Callable[[], None]) -> None:
    bounded()
    change()


def raising() -> None:
    """CONTROL: a command raises what it does not expect."""

    def raises(self: Log) -> NoReturn:
        msg = "on purpose"
        raise ValueError(msg)

    _broken(lambda: setattr(Log, "open_intents", raises))


def writing_before_refusing() -> None:
    """CONTROL: an outcome that is no JSON is refused after something was written."""

    def refuses(text: str) -> Any:
        with quick_open(Path(LOG)) as log:
            log.append("order", "noted", 1)
        return arguments.outcome_of(text)

    _broken(lambda: setattr(commands, "outcome_of", refuses))


def showing_raw() -> None:
    """CONTROL: texts reach the terminal as they are."""
    _broken(lambda: setattr(render, "visible", str))


def escaping() -> None:
    """CONTROL: an error leaves the entry point."""
    from intentlog import cli

    def escapes(error: BaseException, words: Sequence[str]) -> NoReturn:
        raise error

    assert main is cli.main
    _broken(lambda: setattr(cli, "_failure", escapes))
