"""What the commands are given, and what is wrong with it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from intentlog.core.actions import IntentId
from intentlog.errors import IntentLogError
from intentlog.log.deciding import parse_intent
from intentlog.log.sync import Log
from intentlog.log.values import Settings

URL_VARIABLE = "INTENTLOG_URL"
CODEC_VARIABLE = "INTENTLOG_CODEC"  # MODULE:NAME of the codec that seals the log's payloads
LogArgument = Annotated[
    str | None, typer.Argument(metavar="LOG", help=f"The log's path or URL; by default ${URL_VARIABLE}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


class Usage(typer.TyperException):
    """The command line asks for something that makes no sense. Nothing was opened or written."""

    exit_code = 2


class UnknownBranch(IntentLogError):
    """The log has no record of this branch."""

    code = "unknown_branch"
    default_remedy = "check its name; branches that need something are listed by: intentlog status LOG."


class ImportFailed(IntentLogError):
    """A module that the command line or the environment names cannot be imported. The log was not touched."""

    code = "import_failed"


def place_of(log: str | None) -> str:
    """Where the log is: as given, or as the environment says.

    Raises:
        Usage: neither says it.
    """
    place = log or os.environ.get(URL_VARIABLE)
    if not place:
        raise Usage(f"missing LOG: give the log's path, or set ${URL_VARIABLE}")
    return place


def place_and(log: str | None, other: str | None, name: str) -> tuple[str, str]:
    """Where the log is, and the argument after it. With the environment's log, one argument is that one.

    Raises:
        Usage: something is missing.
    """
    if other is None and os.environ.get(URL_VARIABLE):
        log, other = None, log
    if other is None:
        raise Usage(f"missing {name}" if log else f"missing LOG and {name}")
    return place_of(log), other


def opened_log(place: str, *, read_only: bool = False) -> Log:
    """The log, opened with the codec that the environment names, so that payloads are read and written as they are.

    Raises:
        ImportFailed: there is no such codec. And what `Log.open` raises.
    """
    return Log.open(place, settings=Settings(codec=codec_named()), read_only=read_only)


def codec_named() -> Any:
    """The codec that the environment names, or None.

    Raises:
        ImportFailed: there is no such codec.
    """
    name = os.environ.get(CODEC_VARIABLE)
    if not name:
        return None
    module, _, attribute = name.partition(":")
    with stdout_kept_clean():
        import_modules([module])
    try:
        return getattr(sys.modules[module], attribute)
    except AttributeError as error:
        raise ImportFailed(
            f"${CODEC_VARIABLE}={name!r}: there is no such codec", remedy="its form is MODULE:NAME."
        ) from error


def check_is_log(place: str) -> None:
    """Refuse to make a log: a command that writes corrects an old one, and a new one would hide a mistyped path.

    Raises:
        LogUnavailable, LogDamaged: there is none at this place.
    """
    Log.open(place, read_only=True).close()


def decision_about(log: str | None, intent: str | None, by: str, why: str) -> tuple[str, IntentId]:
    """Where the log is, and the intent that a decision is about; what a record cannot hold is refused first.

    Raises:
        Usage, UnknownIntent: something is missing, blank or no text.
    """
    place, text = place_and(log, intent, "INTENT")
    for name, given in (("INTENT", text), ("--by", by), ("--why", why)):
        check_text(name, given)
    return place, parse_intent(text)


def check_text(name: str, text: str) -> None:
    """Refuse a text that a record cannot hold.

    Raises:
        Usage: it is blank, or the shell gave bytes that are no text.
    """
    if not text.strip():
        raise Usage(f"{name} is blank")
    if not _is_unicode(text):
        raise Usage(f"{name} is not valid UTF-8")


def outcome_of(text: str) -> Any:
    """The value that a person gives for an outcome.

    Raises:
        Usage: it is not JSON.
    """
    if not _is_unicode(text):
        raise Usage("--outcome is not valid UTF-8")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twins)
    except (ValueError, RecursionError) as error:
        raise Usage(f"--outcome is not JSON: {error}") from error


def import_modules(names: Sequence[str]) -> None:
    """Import a user's modules, as `python -m` would find them.

    Raises:
        ImportFailed: one cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path and not sys.flags.safe_path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ImportFailed(
                f"cannot import {name!r}: {type(error).__name__}: {error}",
                remedy=f"give the module's name, not its file: --import {name.removesuffix('.py').replace('/', '.')}"
                if name.endswith(".py")
                else "mend it, or run where it can be found.",
            ) from error


@contextmanager
def stdout_kept_clean() -> Generator[None]:
    """Send to stderr what user's code prints, its child processes included: stdout holds our answer alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _is_unicode(text: str) -> bool:
    """Whether it can be written down. Python keeps bytes that are no UTF-8 as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. JSON lets a key stand twice and does not say which one counts; a person meant one of them."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twins = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
        raise ValueError(f"the key {twins[0]!r} stands in it twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
