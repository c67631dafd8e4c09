"""The legs of a call with several round trips: each is an operation of its own, and one of them makes the effect."""

from __future__ import annotations

from typing import Any

from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.effects import EffectKind
from intentlog.core.records import Settlement
from intentlog.core.state import State
from intentlog.log.sync import Log
from intentlog.log.values import OpenIntent
from intentlog.mcp.calls import Identity, Malformed
from intentlog.mcp.tools import Handle
from intentlog.mcp.untold import Alike, Done


def other_leg(
    log: Log, identity: Identity, handle: Handle, given: tuple[Any, ...], alike: Alike
) -> OpenIntent | Done | None:
    """Of the call that a leg belongs to, another leg that is done, or that may have been sent.

    A client that begins such a call anew is asked anew, and what it then answers looks like another operation: by the
    key it is the same call.

    Args:
        log: the log.
        identity: the leg's.
        handle: its tool.
        given: its arguments.
        alike: what it has in common with calls that are equal but for what was asked back.

    Raises:
        Malformed: the key is another call's.
    """
    own, siblings = identity.step, identity.legs
    found: Done | None = None
    for entry in log.history(identity.branch):
        match entry.record:
            case r.Pending(step=step) if step == own:
                return None  # it was asked for before: its own record answers
            case r.Pending(step=step, tool=tool, digest=digest) if (
                step.startswith(siblings) and (tool, digest) != alike
            ):
                msg = "its key is another call's: another tool, or other arguments"
                raise Malformed(msg)
            case (
                r.Committed(step=step, attempt=attempt, outcome=r.OutcomeKind.RETURNED)
                | r.Settled(step=step, attempt=attempt, settlement=Settlement.APPLIED)
                | r.Supplied(step=step, attempt=attempt)
            ) if step.startswith(siblings):
                found = Done(alike, IntentId.of(identity.branch, attempt, step), entry.payload)
            case _:
                pass
    if found is not None or handle.effect.kind in (EffectKind.READ, EffectKind.IDEMPOTENT):
        return found
    for doubt in log.open_calls(handle, *given):
        is_sibling = doubt.intent_id.branch == identity.branch and doubt.intent_id.step.startswith(siblings)
        if is_sibling and doubt.state == State.DISPATCHED:
            return doubt
    return None
