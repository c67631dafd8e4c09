"""What a driver needs of the tool whose effect it drives."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from intentlog import failpoints
from intentlog.core.actions import Call, NotMade, Probe, Probed
from intentlog.core.records import Answer, ErrorText, Instant
from intentlog.ports import Clock, Store


class Found(NamedTuple):
    """A probe's answer, with the value that it found, encoded."""

    answer: Answer
    value: bytes | None = None
    error: ErrorText | None = None


class Hands(Protocol):
    """Reaches one tool, for one guarded call or one recovery."""

    @property
    def is_async(self) -> bool:
        """Whether `call` answers a coroutine."""
        ...

    def call(self, action: Call) -> Any:
        """Make the call; its coroutine, if the tool is async. Raises what the tool raises."""
        ...

    def probe(self, action: Probe, recorded: bytes | None) -> Any:
        """Ask the probe; answers `Found` or a coroutine of it. A probe that raises has answered UNKNOWN.

        Args:
            action: what is asked about.
            recorded: the operation's recorded arguments, encoded.
        """
        ...


class NoHands:
    """For scripts that call nothing."""

    is_async = False

    def call(self, action: Call) -> Any:
        """Refuse: no script of this kind calls."""
        raise AssertionError(action)

    def probe(self, action: Probe, recorded: bytes | None) -> Found:
        """Refuse: no script of this kind asks."""
        raise AssertionError(action, recorded)


def hindrance(action: Call, clock: Clock, store: Store) -> NotMade | None:
    """Reach the point before the call, and say what forbids it now. Nothing stands between this and the call.

    A READ, which nothing permits, is hindered by nothing.
    """
    failpoints.reached(failpoints.BEFORE_CALL)
    if action.grace_ns is None:
        return None
    late_ns = clock.now().boot_ns - action.sent.boot_ns - action.grace_ns
    if late_ns > 0:
        return NotMade(f"it would have been {late_ns / 1e9:.3f} s too late after its permission")
    gone = store.gone()
    return NotMade(gone) if gone else None


def probed(found: Found, started: Instant) -> Probed:
    """The reply to a probe."""
    return Probed(found.answer, found.value, found.error, started)
