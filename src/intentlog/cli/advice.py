"""What a person should do next about an intent, with the command to run."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import NamedTuple

from intentlog.cli import render
from intentlog.core.actions import IntentId
from intentlog.core.records import IntentState, Resolution
from intentlog.core.restart import Classification
from intentlog.log.values import OpenIntent

UNANSWERED = frozenset({Resolution.ASK_PERSON, Resolution.PROBE})  # after a recovery: still in doubt

_DECIDE = "it may have been sent; find out outside whether it landed, then record which"
_AGAIN = "run the program again: "


class Advice(NamedTuple):
    """What to do, in words, and the commands for it."""

    text: str
    commands: tuple[str, ...] = ()


def of_open(log: str, intent: OpenIntent) -> Advice:
    """What to do about an open intent, before a recovery has looked at it."""
    if intent.state == IntentState.PENDING:
        return Advice("not sent; the program calls it when it goes on")
    if intent.calling:
        return Advice("being called now; wait for its owner")
    return _of(log, intent.intent_id, intent.seq, intent.resolution, intent.not_before)


def of_classified(log: str, found: Classification, not_before: datetime | None) -> Advice:
    """What to do about an intent after a recovery has looked at it; a call of it may land until `not_before`."""
    return _of(log, found.intent_id, found.seq, found.resolution, not_before)


def _of(log: str, intent_id: IntentId, seq: int, resolution: Resolution, not_before: datetime | None) -> Advice:
    match resolution:
        case Resolution.RETRY:
            return Advice(_AGAIN + "the effect did not happen, and is called")
        case Resolution.RECALL:
            return Advice(_AGAIN + "it repeats the call, which its class makes harmless")
        case Resolution.PROBE:
            text = "import the module of its tool, so that its probe can find out; if it was asked, ask again later"
            if not_before is not None:
                text += f" (a call may land until {render.timestamp(not_before)})"
            return Advice(text, (_recover(log),))
        case Resolution.ASK_PERSON:
            return _decide(log, intent_id, seq, not_before)
        case Resolution.REPLAY:
            return Advice("done: a program that runs again gets its outcome from the log")


def of_contradiction(log: str, intent_id: IntentId) -> Advice:
    """What to do where a late outcome says other than what was settled."""
    text = (
        "a late outcome says other than what was settled, and both stand in the log: read them, mend it outside, "
        "then say that it is done (if it shall happen once more, renew it after that)"
    )
    confirm = command("resolve", log, intent_id, options="--landed --by NAME --why TEXT")
    return Advice(text, (command("show", log, intent_id.branch), confirm))


def command(name: str, *places: str, options: str = "") -> str:
    """A command line that a shell reads as it is meant, whatever characters the places hold.

    Args:
        name: the command.
        places: the log, whose password is left out, and what else it takes.
        options: its options.
    """
    log, *others = places
    quoted = [_quoted(place) for place in (without_password(log), *others)]
    if any(place.startswith("-") for place in places):
        return " ".join(filter(None, ["intentlog", name, options, "--", *quoted]))
    return " ".join(filter(None, ["intentlog", name, *quoted, options]))


def _decide(log: str, intent_id: str, seq: int, not_before: datetime | None) -> Advice:
    late = "" if not_before is None else f" (it may still land until {render.timestamp(not_before)}: look after that)"
    return Advice(
        _DECIDE + late,
        tuple(
            command("resolve", log, intent_id, options=f"{flag} --by NAME --why TEXT --expect-seq {seq}")
            for flag in ("--landed", "--not-landed")
        ),
    )


def _recover(log: str) -> str:
    return command("recover", log, options="--import MODULE")


def without_password(log: str) -> str:
    """How a log is named where it may be read by others."""
    if not log.startswith(("postgresql://", "postgres://")):
        return log
    from intentlog.store.postgres_address import name_of

    return name_of(log)


def _quoted(text: str) -> str:
    """One word of a shell; what cannot be printed in the escapes of bash and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(
        c if c.isprintable() and c not in "'\\" else "".join(f"\\x{byte:02x}" for byte in c.encode(errors="replace"))
        for c in text
    )
    return f"$'{escaped}'"
