"""Outcomes that nobody was told: of calls that were cancelled, took too long, or whose guard died before it answered.

A call with a key, in a branch that lasts, is none of them: its client asks again and is answered from the record. Such
an outcome is told once, in place of an equal call; the next equal call is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from threading import Lock
from typing import Any, NamedTuple

from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.records import Settlement
from intentlog.log.values import Entry
from intentlog.mcp.calls import Identity

BY = "intentlog mcp"
"""Who settles a call whose reply came late, or whose task is over."""
TOLD = "mcp.told"
SESSION = "session-"
"""How the last part of a branch begins that is a session's: its calls may be asked for again in another one."""
MINTED = re.compile(r"\.[0-9a-f]{12}$")
"""How a step ends that was minted for one call."""


class Done(NamedTuple):
    """A call that is done.

    Attributes:
        alike: what calls equal to it have in common.
        intent_id: its intent.
        value: the server's result.
    """

    alike: tuple[str, str]
    intent_id: IntentId
    value: Any


class Untold:
    """Those that nobody was told. Safe from any thread."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], Done] = {}
        self._lock = Lock()

    def add(self, done: Done) -> None:
        """Nobody was told of this one."""
        with self._lock:
            self._done[done.alike] = done

    def drop(self, done: Done) -> None:
        """Its client was told after all."""
        with self._lock:
            if self._done.get(done.alike) == done:
                del self._done[done.alike]

    def take(self, alike: tuple[str, str], identity: Identity) -> Done | None:
        """One that is equal, to be told now; or None. If it is the very call, its record answers that."""
        with self._lock:
            done = self._done.pop(alike, None)
            return None if done is None or identity.is_of(done.intent_id) else done


def untold_in(history: Iterable[Entry], branch: str, attempt: int, prefix: str) -> list[Done]:
    """What nobody was told of an attempt whose guard died.

    Args:
        history: the records of its branch.
        branch: the branch.
        attempt: the attempt.
        prefix: what the tools' names of this server begin with.
    """
    pending: dict[str, r.Pending] = {}
    is_session = branch.rpartition("/")[2].startswith(SESSION)
    done: dict[str, Done] = {}
    for entry in history:
        match entry.record:
            case r.Pending(attempt=number, step=step, tool=tool) if number == attempt:
                if tool.startswith(prefix) and (is_session or MINTED.search(step)):
                    pending[step] = entry.record
            case r.Committed(attempt=number, step=step, outcome=r.OutcomeKind.RETURNED) if step in pending:
                one = pending[step]
                done[step] = Done((one.tool, one.digest), IntentId.of(branch, number, step), entry.payload)
            case r.Settled(attempt=number, step=step, by=by, settlement=Settlement.APPLIED) if (
                step in pending and by == BY
            ):
                one = pending[step]  # it was answered late
                done[step] = Done((one.tool, one.digest), IntentId.of(branch, number, step), entry.payload)
            case r.ApplicationEvent(name=name) if name == TOLD:
                done.pop(entry.payload, None)
            case _:
                pass
    return list(done.values())
