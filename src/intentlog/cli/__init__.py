"""The command line: `main` runs a command and turns whatever it raises into a message and an exit code.

Nothing ends in a traceback. With `--json` an error is one object on stdout, else it is text on stderr.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from intentlog.cli import mcp as guard
from intentlog.cli import render
from intentlog.cli.commands import DAMAGED, ERROR, FINE, app
from intentlog.cli.watch import Terminated
from intentlog.core.actions import Interrupted
from intentlog.errors import IntentLogError, LogDamaged

__all__ = ["app", "guard", "main"]

INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
TERMINATED = 143  # and one that SIGTERM ended
READER_LEFT = 141  # and one that SIGPIPE ended: `intentlog show LOG BRANCH | head`


class Failure(NamedTuple):
    """Why a command did not do what it was asked to. All but the exit code is what `--json` prints."""

    exit_code: int
    error: str
    message: str
    intent_id: str | None = None
    effect_ran: str | None = None
    remedy: str | None = None


def main(begin: Callable[[], object] = lambda: None) -> int:
    """Run the command that the process was started with, and return its exit code.

    Args:
        begin: called when the command is loaded, and whatever is raised from then on is told as an error.
    """
    _prepare_streams()
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # what it warns of, a command tells in its own words
    try:
        code = _run(sys.argv[1:], begin)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_stdout_go()
        return READER_LEFT
    except (OSError, ValueError, AttributeError) as error:  # of the report: a full disk, a stream that was closed
        _let_stdout_go()
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - what is left to tell it with
        return ERROR
    return code


def _prepare_streams() -> None:
    """Let every text be written, wherever the streams lead."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who started the process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end
        else:
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str], begin: Callable[[], object]) -> int:
    command = typer.main.get_command(app)
    try:
        begin()
        # Not `app()`: that one catches interrupts and broken pipes itself, and leaves.
        with command.make_context("intentlog", list(arguments)) as context:
            code: int | None = command.invoke(context)
            sys.stdout.flush()
            return code or FINE
    except typer.Exit as error:
        return error.exit_code
    except BrokenPipeError:
        raise
    except BaseException as error:  # noqa: BLE001 - no traceback, ever
        can_print = True
        try:
            sys.stdout.flush()
        except (OSError, ValueError, AttributeError):
            can_print = False
            _let_stdout_go()  # what it holds cannot be written: or this error would be met and told again at the end
        if os.environ.get("INTENTLOG_DEBUG") == "1":
            for line in traceback.format_exc().splitlines():
                print(render.visible(line), file=sys.stderr)  # noqa: T201 - a person asked for it
        in_lines = any(one in ("--follow", "-f") or one.startswith("--watch") for one in arguments)
        return _reported(_failure(error, arguments), as_json=can_print and "--json" in arguments, in_lines=in_lines)


def _failure(error: BaseException, arguments: Sequence[str]) -> Failure:
    match error:
        case IntentLogError():
            code = DAMAGED if isinstance(error, LogDamaged) else ERROR
            return Failure(code, error.code, error.message, error.intent_id, error.effect_ran, error.remedy or None)
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            command = context.command_path if context else " ".join(["intentlog", *arguments[:1]])
            return Failure(error.exit_code, "usage", error.format_message(), remedy=f"{command} --help")
        case OSError():
            return Failure(ERROR, "os_error", str(error))
        case KeyboardInterrupt() | Interrupted() | typer.Abort():
            return Failure(INTERRUPTED, "interrupted", "interrupted")
        case Terminated():
            return Failure(TERMINATED, "terminated", "terminated")
        case _:
            remedy = "run it again with INTENTLOG_DEBUG=1 for the traceback, and report it."
            return Failure(ERROR, "internal", f"internal: {type(error).__name__}: {error}", remedy=remedy)


def _reported(failure: Failure, *, as_json: bool, in_lines: bool = False) -> int:
    if as_json:
        _, *facts = failure
        render.print_json(dict(zip(failure._fields[1:], facts, strict=True)), indent=None if in_lines else 2)
    else:
        about = f"{failure.intent_id}: " if failure.intent_id else ""
        out = render.console(to_stderr=True)
        render.print_line(out, f"error: {about}{failure.message}")
        if failure.remedy:
            render.print_line(out, f"next: {failure.remedy}")
    return failure.exit_code


def _let_stdout_go() -> None:
    """Send what is still buffered nowhere, or the interpreter would complain when it flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    if sys.stdout is None or sys.stdout.closed:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
