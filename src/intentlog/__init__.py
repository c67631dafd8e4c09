"""intentlog: crash-safe external effects.

After any crash, each external effect has one of three true answers: never sent, may have been sent, done.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intentlog.core.actions import IntentId, Outcome
    from intentlog.core.effects import IDEMPOTENT, KEYED, QUERYABLE, READ, UNSAFE, Effect
    from intentlog.core.records import Durability, End, IntentState, Resolution, Verdict
    from intentlog.core.restart import Classification
    from intentlog.errors import (
        ArgumentDrift,
        ArgumentsNotRecordable,
        AttemptCancelled,
        BranchBusy,
        BranchPruned,
        Fenced,
        FormatTooNew,
        InDoubt,
        IntentLogError,
        LogClosed,
        LogDamaged,
        LogInUse,
        LogPoisoned,
        LogUnavailable,
        NotInDoubt,
        NotSent,
        OutcomeNotRecorded,
        OutcomeUnavailable,
        Rejected,
        StaleDecision,
        StepRequired,
        Suspended,
        ToolMisdefined,
        UnguardedCall,
        UnknownIntent,
        WrongProcess,
    )
    from intentlog.log.aio import AsyncAttempt, AsyncLog, AsyncStep
    from intentlog.log.declare import AsyncTool, Tool, tool
    from intentlog.log.sealing import Codec
    from intentlog.log.step import Step
    from intentlog.log.sync import Attempt, Log
    from intentlog.log.values import (
        Applied,
        Call,
        Cancelled,
        Entry,
        NotApplied,
        OpenIntent,
        Problem,
        Report,
        Retry,
        Sealed,
        Secret,
        Settings,
        Unfinished,
        Unknown,
        Volatile,
    )

# Where each name is: a program loads what it uses, and the synchronous log brings no event loop with it.
_HOMES = {
    "intentlog.core.actions": ("IntentId", "Outcome"),
    "intentlog.core.effects": ("IDEMPOTENT", "KEYED", "QUERYABLE", "READ", "UNSAFE", "Effect"),
    "intentlog.core.records": ("Durability", "End", "IntentState", "Resolution", "Verdict"),
    "intentlog.core.restart": ("Classification",),
    "intentlog.errors": (
        "ArgumentDrift",
        "ArgumentsNotRecordable",
        "AttemptCancelled",
        "BranchBusy",
        "BranchPruned",
        "Fenced",
        "FormatTooNew",
        "InDoubt",
        "IntentLogError",
        "LogClosed",
        "LogDamaged",
        "LogInUse",
        "LogPoisoned",
        "LogUnavailable",
        "NotInDoubt",
        "NotSent",
        "OutcomeNotRecorded",
        "OutcomeUnavailable",
        "Rejected",
        "StaleDecision",
        "StepRequired",
        "Suspended",
        "ToolMisdefined",
        "UnguardedCall",
        "UnknownIntent",
        "WrongProcess",
    ),
    "intentlog.log.aio": ("AsyncAttempt", "AsyncLog", "AsyncStep"),
    "intentlog.log.declare": ("AsyncTool", "Tool", "tool"),
    "intentlog.log.sealing": ("Codec",),
    "intentlog.log.step": ("Step",),
    "intentlog.log.sync": ("Attempt", "Log"),
    "intentlog.log.values": (
        "Applied",
        "Call",
        "Cancelled",
        "Entry",
        "NotApplied",
        "OpenIntent",
        "Problem",
        "Report",
        "Retry",
        "Sealed",
        "Secret",
        "Settings",
        "Unfinished",
        "Unknown",
        "Volatile",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """The public name, loaded when it is first used."""
    home = _HOME_OF.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "IDEMPOTENT",
    "KEYED",
    "QUERYABLE",
    "READ",
    "UNSAFE",
    "Applied",
    "ArgumentDrift",
    "ArgumentsNotRecordable",
    "AsyncAttempt",
    "AsyncLog",
    "AsyncStep",
    "AsyncTool",
    "Attempt",
    "AttemptCancelled",
    "BranchBusy",
    "BranchPruned",
    "Call",
    "Cancelled",
    "Classification",
    "Codec",
    "Durability",
    "Effect",
    "End",
    "Entry",
    "Fenced",
    "FormatTooNew",
    "InDoubt",
    "IntentId",
    "IntentLogError",
    "IntentState",
    "Log",
    "LogClosed",
    "LogDamaged",
    "LogInUse",
    "LogPoisoned",
    "LogUnavailable",
    "NotApplied",
    "NotInDoubt",
    "NotSent",
    "OpenIntent",
    "Outcome",
    "OutcomeNotRecorded",
    "OutcomeUnavailable",
    "Problem",
    "Rejected",
    "Report",
    "Resolution",
    "Retry",
    "Sealed",
    "Secret",
    "Settings",
    "StaleDecision",
    "Step",
    "StepRequired",
    "Suspended",
    "Tool",
    "ToolMisdefined",
    "Unfinished",
    "UnguardedCall",
    "Unknown",
    "UnknownIntent",
    "Verdict",
    "Volatile",
    "WrongProcess",
    "tool",
]
