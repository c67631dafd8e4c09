"""`intentlog recover --watch`: a supervisor that classifies, again and again, what dead workers left open.

Each look opens the log anew: first for reading, and only where there is something to record (or a probe to ask) for
writing. So nothing of an earlier failure stays, a look that finds nothing writes nothing, and a SQLite log is not kept
by a process that seldom writes to it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import NoReturn

from intentlog.cli import advice, render
from intentlog.cli.arguments import Usage, opened_log, stdout_kept_clean
from intentlog.core.restart import Classification
from intentlog.errors import IntentLogError, LogPoisoned, LogUnavailable
from intentlog.log.values import Recovered

INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 86_400.0
RETRY_FIRST_S, RETRY_S_MAX = 1.0, 30.0  # after a look that failed; it doubles in between


class Terminated(BaseException):
    """SIGTERM: whoever started the command asks it to end."""


def watch(place: str, interval_s: float, *, as_json: bool) -> NoReturn:
    """Look every `interval_s` seconds, until a signal ends it; a look that cannot be made is made again later.

    Raises:
        KeyboardInterrupt, Terminated: it was asked to end. The log is closed.
        IntentLogError: the first look could not be made; or a later one found damage, or a newer format.
    """
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:  # nor is it, of a NaN
        raise Usage(f"--watch takes from {INTERVAL_S_MIN} seconds to a day, not {interval_s}")
    lines = Lines(place, as_json=as_json)
    is_first = True
    retry_s = 0.0
    with _ended_by_sigterm():
        while True:
            try:
                _look(place, lines)
            except (LogUnavailable, LogPoisoned) as error:
                if is_first:
                    raise
                retry_s = min(RETRY_S_MAX, 2 * retry_s) if retry_s else RETRY_FIRST_S
                lines.unavailable(error, retry_s)
            else:
                if retry_s:
                    lines.available()
                retry_s = 0.0
                lines.heartbeat()
            is_first = False
            time.sleep(retry_s or interval_s)


def _look(place: str, lines: Lines) -> None:
    found: list[Recovered] = []
    try:
        with stdout_kept_clean():  # probes are user's code
            _recover(place, found.append)
    finally:
        lines.recovered(found)  # what is recorded is told, whatever became of the rest


def _recover(place: str, told: Callable[[Recovered], None]) -> None:
    with opened_log(place, read_only=True) as seen:
        if not seen.recoverable():
            return
    with opened_log(place) as log:
        log.recover(told)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Let SIGTERM raise in the block, so that what is open there is closed; unless it is ignored."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Lines:
    """What a watch prints: a line for each thing that happens. With a terminal, also that it still looks.

    Args:
        place: the log, as it was named.
        as_json: print objects, each on a line, its `event` telling what it is.
    """

    def __init__(self, place: str, *, as_json: bool) -> None:
        self._place = place
        self._as_json = as_json
        self._out, self._errors = render.console(), render.console(to_stderr=True)
        self._beats = not as_json and self._out.is_terminal and self._errors.is_terminal
        self._told = ""  # of the failure that lasts

    def recovered(self, found: list[Recovered]) -> None:
        """Tell what a look recorded."""
        for one in found:
            if one.fenced is not None:
                text = f"attempt {one.fenced} fenced, its owner was dead"
                self._line(f"{one.branch}  {text}", "fenced", branch=one.branch, attempt=one.fenced)
            for intent in one.classified:
                self._line(self._of(intent), "classified", **render.plain(intent))
            if one.closed is not None:
                self._line(f"{one.branch}  closed {one.closed}", "closed", branch=one.branch, end=one.closed)

    def _of(self, one: Classification) -> str:
        text = f"{one.intent_id}  {one.last_state}  {one.classification}  {one.resolution}"
        if one.resolution not in advice.UNANSWERED:
            return text
        return f"{text}; see: {advice.command('status', self._place)}"

    def unavailable(self, error: IntentLogError, retry_s: float) -> None:
        """Tell that a look failed; once, while it fails in the same way."""
        if error.message != self._told:
            self._told = error.message
            known = {"error": error.code, "message": error.message, "remedy": error.remedy, "retry_s": retry_s}
            text = f"cannot look: {error.message}; trying again, in {retry_s:.0f} s at first"
            self._line(text, "unavailable", to_stderr=True, **known)

    def available(self) -> None:
        """Tell that it can look again."""
        self._told = ""
        self._line("looking again", "available", to_stderr=True)

    def heartbeat(self) -> None:
        """Show a person when it looked last, on a line that the next one replaces."""
        if self._beats:
            text = render.visible(
                f"{render.timestamp(datetime.now(UTC))}  watching {advice.without_password(self._place)}"
            )
            sys.stderr.write(f"\r\x1b[K{text[: self._errors.width - 1]}")
            sys.stderr.flush()

    def _line(self, text: str, event: str, *, to_stderr: bool = False, **fields: object) -> None:
        now = datetime.now(UTC)
        if self._as_json:
            render.print_json({"at": now, "event": event, **fields}, indent=None)
        else:
            if self._beats:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            render.print_line(self._errors if to_stderr else self._out, f"{render.timestamp(now)}  {text}")
        sys.stdout.flush()
