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
from intentlog.core.records import Durability, Settlement
from intentlog.log.sync import Log
from intentlog.log.values import Entry
from intentlog.mcp.calls import Identity

BY = "intentlog mcp"
"""Who settles a call whose reply came late, or whose task is over."""
TOLD, UNTOLD = "mcp.told", "mcp.untold"
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
    """Those that nobody was told, as a branch of the server's own keeps them. Safe from any thread.

    Args:
        log: the log.
        branch: the branch.
    """

    def __init__(self, log: Log, branch: str) -> None:
        self._log = log
        self._branch = branch
        self._done: dict[tuple[str, str], dict[IntentId, Done]] = {}
        self._noted: set[IntentId] = set()
        self._lock = Lock()

    def load(self) -> None:
        """Find those that earlier guards have noted."""
        noted: dict[IntentId, tuple[str, str]] = {}
        for entry in self._log.history(self._branch):
            match entry.record:
                case r.ApplicationEvent(name=name) if name == UNTOLD:
                    noted[IntentId(entry.payload["intent_id"])] = entry.payload["tool"], entry.payload["digest"]
                case r.ApplicationEvent(name=name) if name == TOLD:
                    noted.pop(IntentId(entry.payload), None)
                case _:
                    pass
        with self._lock:
            for intent, alike in noted.items():
                self._noted.add(intent)
                self._done.setdefault(alike, {})[intent] = Done(alike, intent, _value_of(self._log, intent))

    def add(self, done: Done) -> None:
        """Nobody was told of this one. That is durable when this returns. Raises what the log raises."""
        with self._lock:
            self._done.setdefault(done.alike, {})[done.intent_id] = done
            if done.intent_id in self._noted:
                return
            self._noted.add(done.intent_id)
        tool, digest = done.alike
        note = {"intent_id": str(done.intent_id), "tool": tool, "digest": digest}
        self._log.append(self._branch, UNTOLD, note, durability=Durability.IMMEDIATE)

    def forget(self, done: Done) -> None:
        """Its client, or that of an equal call, has it: the next equal call is not answered by it. Not noted yet."""
        with self._lock:
            self._done.get(done.alike, {}).pop(done.intent_id, None)

    def told(self, done: Done) -> None:
        """Its client, or that of an equal call, was told. Raises what the log raises."""
        self.forget(done)
        with self._lock:
            if done.intent_id not in self._noted:
                return
            self._noted.discard(done.intent_id)
        self._log.append(self._branch, TOLD, str(done.intent_id))

    def take(self, alike: tuple[str, str], identity: Identity) -> Done | None:
        """One that is equal, to be told now; or None. If it is the very call, its record answers that."""
        with self._lock:
            equal = self._done.get(alike, {})
            intent = next((one for one in equal if not identity.is_of(one)), None)
            return equal.pop(intent) if intent is not None else None


def _value_of(log: Log, intent: IntentId) -> Any:
    """What a call returned, by the log."""
    value: Any = None
    for entry in log.history(intent.branch):
        match entry.record:
            case r.Committed(step=step) | r.Settled(step=step) | r.Supplied(step=step) if step == intent.step:
                value = entry.payload
            case _:
                pass
    return value


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
