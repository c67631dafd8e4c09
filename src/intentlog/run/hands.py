"""What a driver needs of the tool whose effect it drives."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from intentlog import failpoints
from intentlog.core.actions import Call, NotMade, Probe, Probed, Raised, Returned
from intentlog.core.records import Answer, ErrorText, Instant
from intentlog.ports import Clock, Store

LOOK_AGE_MAX_NS = 5_000_000  # a store looks at its files after each permission: so new, that is enough


class Found(NamedTuple):
    """A probe's answer, with the value that it found, encoded."""

    answer: Answer
    value: bytes | None = None
    error: ErrorText | None = None


class Made:
    """What became of one call of a plain tool, whatever interrupts those who made it.

    Attributes:
        begun: whether the tool was entered.
        values: what it returned, in a list of one; empty until then.
    """

    __slots__ = ("begun", "values")

    def __init__(self) -> None:
        self.begun = False
        self.values: list[Any] = []


class Hands(Protocol):
    """Reaches one tool, for one guarded call or one recovery."""

    @property
    def is_async(self) -> bool:
        """Whether `call` answers a coroutine."""
        ...

    @property
    def time_limit_s(self) -> float:
        """How long `call_async` may take, in seconds: then its driver cancels it."""
        ...

    def call(self, action: Call, box: Made) -> None:
        """Call a plain tool; `box` is told at once that it has begun, and what it returned. Raises what it raises."""
        ...

    def call_async(self, action: Call) -> Coroutine[Any, Any, Any]:
        """The coroutine of an async tool's call; its driver keeps the time limit. Raises what the tool raises."""
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
    time_limit_s = 0.0

    def call(self, action: Call, box: Made) -> None:
        """Refuse: no script of this kind calls."""
        raise AssertionError(action, box)

    def call_async(self, action: Call) -> Coroutine[Any, Any, Any]:
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
    since_ns = clock.now().boot_ns - action.sent.boot_ns
    if since_ns > action.grace_ns:
        return NotMade(f"it would have been {(since_ns - action.grace_ns) / 1e9:.3f} s too late after its permission")
    gone = store.gone(age_max_ns=LOOK_AGE_MAX_NS, given_ns=action.sent.boot_ns)
    return NotMade(gone) if gone else None


def made(action: Call, box: Made, raised: BaseException | None) -> Returned | Raised | NotMade:
    """The reply to a call: a value that was returned stands, and a tool that was not entered was not called."""
    if box.values:
        return Returned(box.values[0])
    if raised is None:
        msg = f"{action.intent_id}: the tool neither returned nor raised"
        raise AssertionError(msg)
    if box.begun or action.grace_ns is None:
        return Raised(raised)
    return NotMade(f"{type(raised).__name__} came before it: {raised}")


def its_own(error: BaseException) -> BaseException:
    """The error that an async tool raised; Python puts another in the place of a StopIteration."""
    cause = error.__cause__
    return cause if type(error) is RuntimeError and isinstance(cause, StopIteration | StopAsyncIteration) else error


def probed(found: Found, started: Instant) -> Probed:
    """The reply to a probe."""
    return Probed(found.answer, found.value, found.error, started)
