"""How the command line writes: JSON for programs, tables for people, and nothing that a terminal would obey.

Names, errors and payloads come from programs and their users: they may hold escape sequences or markup. Tables take
them only through `visible`; JSON is written in ASCII, where they are escaped anyway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from threading import Timer
from typing import Any, NoReturn, cast

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from intentlog.errors import one_line

PIPE_WIDTH = 100_000  # columns where no terminal sets a width: nothing is folded or cut
VALUE_LENGTH_MIN, VALUE_LENGTH_MAX = 24, 200  # characters of a value: beside a long text, and in no terminal
PATIENCE_S = 1.0  # what takes longer says that it is at work


class _Console(Console):
    """A console that leaves a reader's departure to `main`."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise what rich caught. Raises `BrokenPipeError`."""
        raise BrokenPipeError


def console(*, to_stderr: bool = False) -> Console:
    """A console that interprets no markup, and colours only what a terminal shows."""
    stream = sys.stderr if to_stderr else sys.stdout
    is_terminal = stream.isatty()  # not whatever the environment says: a pipe gets no colours
    return _Console(
        file=stream,
        force_terminal=is_terminal,
        width=None if is_terminal else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


def visible(text: str) -> str:
    r"""The text with every character that a terminal could obey, or not show, written as an escape: `\x1b`."""
    return one_line(text)


def timestamp(at: datetime | None) -> str:
    """A time for people: UTC, to the second; `-` for none."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "-"


def value_text(out: Console, value: object, *, beside: int) -> str:
    """A value as JSON, shortened to the line that it shares with so many characters, or to what a line may hold."""
    text = compact(value)
    length_max = max(VALUE_LENGTH_MIN, out.width - beside) if out.is_terminal else VALUE_LENGTH_MAX
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def print_table(out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table under its title. The first column, or one that is named in capitals, is folded and never cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.lower(), no_wrap=not column.isupper(), overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    print_line(out, title, style="bold")
    with out.capture() as drawn:
        out.print(table)
    for line in drawn.get().splitlines():
        out.file.write(line.rstrip() + "\n")  # what fills up the last column is of no use in a pipe
    out.print()


def print_line(out: Console, text: str, *, style: str = "") -> None:
    """Print one line, however long: it can be copied whole."""
    out.print(Text(visible(text), style=style), soft_wrap=True)


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document and nothing else; on one line, if it is not indented."""
    # DEL is the one control character that ASCII JSON leaves as it is.
    sys.stdout.write(json.dumps(plain(document), indent=indent).replace("\x7f", "\\u007f") + "\n")


def compact(document: object) -> str:
    """A value as JSON, on one line."""
    return json.dumps(plain(document), ensure_ascii=False)


def plain(value: object) -> Any:
    """A value of the library as JSON values, its attributes as keys, in their order."""
    match value:
        case Enum():
            return value.value
        case str() | bool() | int() | float() | None:
            return value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            kind = {} if tag is None else {"kind": tag}
            return kind | {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            items = cast("dict[object, object]", value).items()
            return {str(key): plain(item) for key, item in items}
        case _:
            return _plain_object(value)


def _plain_object(value: object) -> Any:
    """A named tuple or a dataclass by its attributes, any other sequence by its items."""
    fields = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None)
    if fields:
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, Iterable):
        return [plain(item) for item in cast("Iterable[object]", value)]
    return str(value)


@contextmanager
def at_work(what: str, *, quietly: bool) -> Generator[Callable[[int, int], None] | None]:
    """Show on stderr how far something is, if it takes longer than `PATIENCE_S` and a person is looking on.

    Args:
        what: what is done.
        quietly: show nothing; as if stdout or stderr were no terminal.

    Yields:
        What is to be told how much is done, and of how much; None if nobody is.
    """
    if quietly or not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console(to_stderr=True), transient=True)
    task = progress.add_task(what, total=None)
    timer = Timer(PATIENCE_S, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, of: progress.update(task, completed=done, total=of)
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display right now
        if progress.live.is_started:
            progress.stop()
