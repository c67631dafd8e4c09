"""Outcomes that nobody was told: of calls that were cancelled, took too long, or whose guard died before it answered.

A call with a key, in a branch that lasts, is none of them: its client asks again and is answered from the record. Such
an outcome is told once, in place of an equal call; the next equal call is made.
"""

from __future__ import annotations

import re
from collections import OrderedDict
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
KEPT_MAX = 10_000
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
        self._noted: dict[IntentId, tuple[str, str]] = {}
        self._own: set[IntentId] = set()
        self._told: OrderedDict[IntentId, None] = OrderedDict()  # the newest
        self._others: dict[IntentId, tuple[str, str]] = {}  # noted by other guards; perhaps not done yet
        self._read_to = 0
        self._lock = Lock()

    def read(self) -> None:
        """Learn what other guards have noted since: those that died, and those that live beside this one."""
        with self._lock:
            for entry in self._log.history(self._branch, after=self._read_to):
                self._read_to = entry.seq
                match entry.record:
                    case r.ApplicationEvent(name=name) if name == UNTOLD:
                        intent = IntentId(entry.payload["intent_id"])
                        if intent not in self._own:
                            alike = entry.payload["tool"], entry.payload["digest"]
                            self._noted[intent] = self._others[intent] = alike
                    case r.ApplicationEvent(name=name) if name == TOLD:
                        intent = IntentId(entry.payload)
                        self._others.pop(intent, None)
                        if intent in self._noted:
                            self._done.get(self._noted[intent], {}).pop(intent, None)
                    case _:
                        pass

    def is_left(self, intent: IntentId) -> bool:
        """Whether another guard has noted that the client of this call is gone."""
        with self._lock:
            return intent in self._others

    def leave(self, alike: tuple[str, str], intent: IntentId) -> None:
        """The client of this call, which is being made, is gone: others are to know. Raises what the log raises."""
        with self._lock:
            if intent in self._noted:
                return
            self._noted[intent] = alike
            self._own.add(intent)
        tool, digest = alike
        note = {"intent_id": str(intent), "tool": tool, "digest": digest}
        self._log.append(self._branch, UNTOLD, note, durability=Durability.IMMEDIATE)

    def add(self, done: Done) -> None:
        """Nobody was told of this one. That is durable when this returns. Raises what the log raises."""
        with self._lock:
            if done.intent_id in self._told:
                return  # an equal call was, which had waited for it
            self._done.setdefault(done.alike, {})[done.intent_id] = done
        self.leave(done.alike, done.intent_id)

    def forget(self, done: Done) -> None:
        """Its client, or that of an equal call, has it: the next equal call is not answered by it. Not noted yet."""
        with self._lock:
            self._told[done.intent_id] = None
            if len(self._told) > KEPT_MAX:
                self._told.popitem(last=False)
            self._others.pop(done.intent_id, None)
            self._done.get(done.alike, {}).pop(done.intent_id, None)

    def told(self, done: Done) -> None:
        """Its client, or that of an equal call, was told. Raises what the log raises."""
        self.forget(done)
        with self._lock:
            if done.intent_id not in self._noted:
                return
            del self._noted[done.intent_id]
        self._log.append(self._branch, TOLD, str(done.intent_id))

    def take(self, alike: tuple[str, str], identity: Identity) -> Done | None:
        """One that is equal, to be told now; or None. If it is the very call, its record answers that."""
        with self._lock:
            for other in [other for other, theirs in self._others.items() if theirs == alike]:
                found = _result_of(self._log, other)
                if found is not None:
                    del self._others[other]
                    self._done.setdefault(alike, {})[other] = Done(alike, other, found[0])
            equal = self._done.get(alike, {})
            intent = next((one for one in equal if not identity.is_of(one)), None)
            return equal.pop(intent) if intent is not None else None


def _result_of(log: Log, intent: IntentId) -> tuple[Any] | None:
    """What a call returned, by the log; None if it is not done."""
    result: tuple[Any] | None = None
    for entry in log.history(intent.branch):
        match entry.record:
            case r.Committed(step=step, outcome=r.OutcomeKind.RETURNED) | r.Supplied(step=step) if step == intent.step:
                result = (entry.payload,)
            case r.Settled(step=step, settlement=Settlement.APPLIED) if step == intent.step:
                result = (entry.payload,)
            case _:
                pass
    return result


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
