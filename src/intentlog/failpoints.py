"""Named crash points, inert unless armed.

Armed only with `INTENTLOG_TEST_HOOKS=1`, by `INTENTLOG_CRASH_AT=NAME[:nth[:stop]]`: at the nth time that the point is
reached (default 1) the process sends itself SIGKILL, or SIGSTOP with `stop`. An unknown name is refused when the first
log is opened. Every append has a point before and after it, named for its record; a call has one on either side.
"""

from __future__ import annotations

import os
import signal
import threading

from intentlog.errors import IntentLogError

APPENDS = {
    "AttemptOpened": "opened",
    "AttemptFenced": "fenced",
    "AttemptClosed": "closed",
    "CancelRequested": "cancelled",
    "ApplicationEvent": "event",
    "Pending": "pending",
    "Dispatched": "dispatched",
    "Committed": "committed",
    "CallEnded": "call_ended",
    "Suspended": "suspended",
    "ProbeAnswered": "probe_answered",
    "Settled": "settled",
    "Classified": "classified",
    "Renewed": "renewed",
    "Supplied": "supplied",
}
BEFORE = {kind: f"before_{name}" for kind, name in APPENDS.items()}
AFTER = {kind: f"after_{name}" for kind, name in APPENDS.items()}
BEFORE_CALL, AFTER_CALL = "before_call", "after_call"
POINTS = frozenset({*BEFORE.values(), *AFTER.values(), BEFORE_CALL, AFTER_CALL})


class UnknownFailpoint(IntentLogError):
    """`INTENTLOG_CRASH_AT` names no point of the source. Nothing was opened."""

    code = "unknown_failpoint"


class _Armed:
    """The one point that is armed in this process."""

    def __init__(self, name: str, nth: int, number: int) -> None:
        self.name = name
        self.left = nth
        self.number = number
        self.lock = threading.Lock()

    def reached(self, name: str) -> None:
        """Count; at the nth time, the process dies or stops here."""
        if name != self.name:
            return
        with self.lock:
            self.left -= 1
            strike = self.left == 0
        if strike:
            # To this thread: of a signal to the process another one could take care, while this one runs on.
            signal.pthread_kill(threading.get_ident(), self.number)


def _parse(text: str) -> _Armed:
    name, _, rest = text.partition(":")
    nth, _, stop = rest.partition(":")
    counts = (nth or "1").isascii() and (nth or "1").isdigit()
    if name not in POINTS or not counts or int(nth or "1") < 1 or stop not in ("", "stop"):
        raise UnknownFailpoint(
            f"INTENTLOG_CRASH_AT={text!r}: the form is NAME[:nth[:stop]]; the names are {sorted(POINTS)}"
        )
    return _Armed(name, int(nth or "1"), signal.SIGSTOP if stop else signal.SIGKILL)


_armed: _Armed | None = None


def arm_from_environment() -> None:
    """Arm what the environment asks for, if test hooks are on.

    Raises:
        UnknownFailpoint: the name is not one of `POINTS`.
    """
    global _armed  # noqa: PLW0603 - one point for the whole process, set before the first append
    text = os.environ.get("INTENTLOG_CRASH_AT", "")
    if _armed is None and text and os.environ.get("INTENTLOG_TEST_HOOKS") == "1":
        _armed = _parse(text)


def are_armed() -> bool:
    """Whether a point is armed: where none is, nothing needs to be named."""
    return _armed is not None


def reached(name: str) -> None:
    """Say that this point is reached. Costs one comparison when nothing is armed."""
    if _armed is not None:
        _armed.reached(name)
