"""The legs of a call with several round trips: each is an operation of its own, and one of them makes the effect."""

from __future__ import annotations

from typing import Any

from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.effects import EffectKind
from intentlog.core.state import State
from intentlog.log.sync import Log
from intentlog.log.values import OpenIntent
from intentlog.mcp.calls import Identity
from intentlog.mcp.tools import Handle
from intentlog.mcp.untold import Done


def other_leg(log: Log, identity: Identity, handle: Handle, given: tuple[Any, ...]) -> OpenIntent | Done | None:
    """Of the call that a leg belongs to, another leg that is done, or that may have been sent.

    A client that begins such a call anew is asked anew, and what it then answers looks like another operation: by the
    key it is the same call.

    Args:
        log: the log.
        identity: the leg's.
        handle: its tool.
        given: its arguments.
    """
    own, siblings = identity.step, identity.legs
    found: Done | None = None
    for entry in log.history(identity.branch):
        match entry.record:
            case r.Pending(step=step) if step == own:
                return None  # it was asked for before: its own record answers
            case r.Committed(step=step, attempt=attempt, outcome=r.OutcomeKind.RETURNED) if step.startswith(siblings):
                found = Done(("", ""), IntentId.of(identity.branch, attempt, step), entry.payload)
            case _:
                pass
    if found is not None or handle.effect.kind in (EffectKind.READ, EffectKind.IDEMPOTENT):
        return found
    for doubt in log.open_calls(handle, *given):
        is_sibling = doubt.intent_id.branch == identity.branch and doubt.intent_id.step.startswith(siblings)
        if is_sibling and doubt.state == State.DISPATCHED and not doubt.calling:
            return doubt
    return None
