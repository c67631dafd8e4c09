"""The effect classes, and what each permits when an effect may have been sent (DESIGN 4)."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from intentlog.core.words import Word
from intentlog.errors import ToolMisdefined

NS_PER_MICROSECOND = 1_000
LONGEST = timedelta(days=100_000)  # what 64 bits hold in nanoseconds


class EffectKind(Word):
    """The five classes, loosest first."""

    READ = "READ"
    IDEMPOTENT = "IDEMPOTENT"
    KEYED = "KEYED"
    QUERYABLE = "QUERYABLE"
    UNSAFE = "UNSAFE"


class Effect(Struct, frozen=True, gc=False):
    """An effect class with its times. Use READ, IDEMPOTENT, UNSAFE, KEYED(...) or QUERYABLE(...)."""

    kind: EffectKind
    window_ns: int = 0  # KEYED: how long the receiver remembers a key
    settle_ns: int = 0  # QUERYABLE: how long until the receiver shows a write


class Declaration(Struct, frozen=True, gc=False, array_like=True, kw_only=True):
    """What a tool declares and every Pending records, so that a restart can hold it against the present one."""

    kind: EffectKind
    time_limit_ns: int
    window_ns: int = 0
    settle_ns: int = 0
    probe: bool = False
    grace_ns: int = 0  # `dispatch_grace` of the log that dispatched: how late a call may begin


READ = Effect(EffectKind.READ)
IDEMPOTENT = Effect(EffectKind.IDEMPOTENT)
UNSAFE = Effect(EffectKind.UNSAFE)


def KEYED(window: timedelta) -> Effect:
    """The receiver honours an idempotency key for `window` (> 0) after it first saw it.

    A repeat is made only while a whole call, `time_limit` and a minute, still fits into the window.

    Raises:
        ToolMisdefined: `window` is not positive.
    """
    if nanoseconds(window) <= 0:
        raise ToolMisdefined(f"KEYED needs a positive window, not {window}")
    return Effect(EffectKind.KEYED, window_ns=nanoseconds(window))


def QUERYABLE(settle: timedelta) -> Effect:
    """A probe can tell whether it landed; the receiver shows a write at most `settle` (>= 0) after it took it.

    Raises:
        ToolMisdefined: `settle` is negative.
    """
    if nanoseconds(settle) < 0:
        raise ToolMisdefined(f"QUERYABLE needs a settle time of zero or more, not {settle}")
    return Effect(EffectKind.QUERYABLE, settle_ns=nanoseconds(settle))


def nanoseconds(duration: object) -> int:
    """A duration in whole nanoseconds, without the rounding of `total_seconds`.

    Raises:
        ToolMisdefined: it is no timedelta, or too long.
    """
    if not isinstance(duration, timedelta):
        raise ToolMisdefined(f"a time is given as a timedelta, not {duration!r}")
    if duration > LONGEST:
        raise ToolMisdefined(f"a time of {duration} is too long: at most {LONGEST.days} days")
    return ((duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds) * NS_PER_MICROSECOND


BACKOFF_NS_MAX = 3600 * 1_000_000_000


def wait_before_repeat_ns(backoff_ns: int, repeats: int) -> int:
    """How long to wait before the next repeat: doubled with each that was made, an hour at most."""
    return min(backoff_ns << min(repeats, 42), BACKOFF_NS_MAX)  # 42 doublings of a nanosecond are more than an hour


# May a further call be made while an earlier one may have landed? (KEYED: only while the key is remembered.)
PROBED = frozenset({EffectKind.KEYED, EffectKind.QUERYABLE})  # the classes that a probe may settle
REPEATABLE = frozenset({EffectKind.READ, EffectKind.IDEMPOTENT, EffectKind.KEYED})

_STRICTNESS = {
    EffectKind.READ: 0,
    EffectKind.IDEMPOTENT: 1,
    EffectKind.KEYED: 2,
    EffectKind.QUERYABLE: 2,
    EffectKind.UNSAFE: 3,
}


def stricter(recorded: Declaration, present: Declaration) -> Declaration:
    """What both declarations permit: the stricter class, the shorter window, the longer limits.

    KEYED against QUERYABLE leaves only the probe, and only if both have one; otherwise nothing but a person.
    """
    if recorded == present:
        return recorded
    both_probe = recorded.probe and present.probe
    if {recorded.kind, present.kind} == {EffectKind.KEYED, EffectKind.QUERYABLE}:
        kind = EffectKind.QUERYABLE if both_probe else EffectKind.UNSAFE
    else:
        kind = max(recorded.kind, present.kind, key=_STRICTNESS.__getitem__)
    windows = [d.window_ns for d in (recorded, present) if d.kind is EffectKind.KEYED]
    return Declaration(
        kind=kind,
        time_limit_ns=max(recorded.time_limit_ns, present.time_limit_ns),
        window_ns=min(windows) if kind is EffectKind.KEYED and windows else 0,
        settle_ns=max(recorded.settle_ns, present.settle_ns),
        probe=both_probe,
        grace_ns=max(recorded.grace_ns, present.grace_ns),
    )
