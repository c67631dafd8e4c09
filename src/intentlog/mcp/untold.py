"""Outcomes that nobody was told: of calls that were cancelled, took too long, or whose guard died before it answered.

A call with a key, in a branch that lasts, is none of them: its client asks again and is answered from the record. Such
an outcome is told once, in place of an equal call; the next equal call is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from threading import Lock
from typing import Any, NamedTuple

from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.records import Durability, Settlement
from intentlog.errors import IntentLogError
from intentlog.log.sync import Log
from intentlog.log.values import Entry, Sealed
from intentlog.mcp.calls import MINTED, Identity

BY = "intentlog mcp"
"""Who settles a call whose reply came late, or whose task is over."""
KEPT_MAX = 10_000
TOLD, UNTOLD = "mcp.told", "mcp.untold"
SESSION = "session-"
"""How the last part of a branch begins that is a session's: its calls may be asked for again in another one."""

Alike = tuple[str, str]
"""What equal calls have in common: their tool, and the digest of their arguments."""


class NotesSealed(IntentLogError):
    """The guard's own notes in a log cannot be read. Nothing was sent."""

    code = "notes_sealed"
    default_remedy = "start the guard with the codec that the log is written with: INTENTLOG_CODEC=MODULE:NAME."


class Done(NamedTuple):
    """A call that is done.

    Attributes:
        alike: what calls equal to it have in common.
        intent_id: its intent.
        value: the server's result.
    """

    alike: Alike
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
        self._done: dict[Alike, dict[IntentId, Done]] = {}
        self._noted: dict[IntentId, Alike] = {}
        self._own: set[IntentId] = set()
        self._told: OrderedDict[IntentId, None] = OrderedDict()  # the newest
        self._others: dict[IntentId, Alike] = {}  # noted by other guards; perhaps not done yet
        self._read_to = 0
        self._lock = Lock()
        self._writing = Lock()  # that somebody was told stands behind that nobody was

    def read(self) -> None:
        """Learn what other guards have noted since: those that died, and those that live beside this one."""
        with self._lock:
            for entry in self._log.history(self._branch, after=self._read_to):
                self._read_to = entry.seq
                match entry.record:
                    case r.ApplicationEvent(name=name) if name == UNTOLD:
                        note = opened(entry)
                        intent = IntentId(note["intent_id"])
                        if intent not in self._own:
                            alike = note["tool"], note["digest"]
                            self._noted[intent] = self._others[intent] = alike
                    case r.ApplicationEvent(name=name) if name == TOLD:
                        intent = IntentId(opened(entry))
                        self._others.pop(intent, None)
                        if intent in self._noted:
                            self._done.get(self._noted[intent], {}).pop(intent, None)
                    case _:
                        pass

    def is_left(self, intent: IntentId) -> bool:
        """Whether another guard has noted that the client of this call is gone."""
        with self._lock:
            return intent in self._others

    def leave(self, alike: Alike, intent: IntentId) -> None:
        """The client of this call, which is being made, is gone: others are to know. Raises what the log raises."""
        with self._writing:
            with self._lock:
                if intent in self._noted or intent in self._told:
                    return
                self._noted[intent] = alike
                self._own.add(intent)
            tool, digest = alike
            note = {"intent_id": str(intent), "tool": tool, "digest": digest}
            self._log.append(self._branch, UNTOLD, note, durability=Durability.IMMEDIATE)

    def expect(self, alike: Alike, intent: IntentId) -> None:
        """A client was told that this call is in doubt: once it is settled as done, that is told. Raises as `leave`."""
        with self._lock:
            self._others[intent] = alike
        self.leave(alike, intent)

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
            for intent in [one for one in self._others if _is_one_operation(one, done.intent_id)]:
                del self._others[intent]
            self._done.get(done.alike, {}).pop(done.intent_id, None)

    def told(self, done: Done) -> None:
        """Its client, or that of an equal call, was told. Raises what the log raises."""
        with self._writing:
            self.forget(done)
            with self._lock:
                noted = [one for one in self._noted if _is_one_operation(one, done.intent_id)]
                for intent in noted:
                    del self._noted[intent]
            for intent in noted:
                self._log.append(self._branch, TOLD, str(intent))

    def take(self, alike: Alike, identity: Identity, but: Collection[IntentId]) -> Done | None:
        """One that is equal, to be told now; or None. If it is the very call, its record answers that.

        Args:
            alike: what they have in common.
            identity: the call's.
            but: operations whose clients are just being told.
        """

        def is_out(one: IntentId) -> bool:
            return identity.is_of(one) or any(_is_one_operation(one, other) for other in but)

        with self._lock:
            for other in [one for one, theirs in self._others.items() if theirs == alike and not is_out(one)]:
                is_over, found = _result_of(self._log, other)
                if is_over:
                    del self._others[other]
                if found is not None:
                    self._done.setdefault(alike, {})[other] = Done(alike, other, found[0])
            equal = self._done.get(alike, {})
            intent = next((one for one in equal if not is_out(one)), None)
            return equal.pop(intent) if intent is not None else None


def opened(entry: Entry) -> Any:
    """What a note of the guard's own says.

    Raises:
        NotesSealed: it was written with a codec that this program does not have.
    """
    if isinstance(entry.payload, Sealed):
        raise NotesSealed(f"what the guard has noted in {entry.branch} is sealed")
    return entry.payload


def _is_one_operation(one: IntentId, other: IntentId) -> bool:
    """Whether both are of one operation: an attempt that goes on with it has an intent of its own."""
    return (one.branch, one.step) == (other.branch, other.step)


def _result_of(log: Log, intent: IntentId) -> tuple[bool, tuple[Any] | None]:
    """Whether it is settled what became of a call, by the log, and what it returned if it is done."""
    is_over, result = False, None
    for entry in log.history(intent.branch):
        match entry.record:
            case r.Committed(step=step, outcome=kind) if step == intent.step:
                is_over, result = True, (entry.payload,) if kind is r.OutcomeKind.RETURNED else None
            case r.Supplied(step=step) if step == intent.step:
                is_over, result = True, (entry.payload,)
            case r.Settled(step=step, settlement=Settlement.APPLIED) if step == intent.step:
                is_over, result = True, (entry.payload,)
            case r.Settled(step=step, settlement=Settlement.NOT_APPLIED) if step == intent.step:
                is_over = True
            case _:
                pass
    return is_over, result


def untold_in(
    history: Iterable[Entry], branch: str, attempt: int, server: str
) -> tuple[list[Done], list[tuple[Alike, IntentId]]]:
    """What nobody was told of an attempt whose guard died: what is done, and what may have been sent.

    Args:
        history: the records of its branch.
        branch: the branch.
        attempt: the attempt.
        server: the server's name.
    """
    pending: dict[str, r.Pending] = {}
    is_session = branch.startswith(f"mcp/{server}/{SESSION}")
    done: dict[str, Done] = {}
    sent: set[str] = set()
    for entry in history:
        match entry.record:
            case r.Pending(attempt=number, step=step, tool=tool) if number == attempt:
                if tool.startswith(f"{server}.") and (is_session or MINTED.search(step)):
                    pending[step] = entry.record
            case r.Dispatched(attempt=number, step=step) if number == attempt and step in pending:
                sent.add(step)
            case r.Committed(step=step, outcome=kind) if step in pending and kind is not r.OutcomeKind.RETURNED:
                sent.discard(step)
            case r.Suspended(step=step) | r.Settled(step=step, settlement=Settlement.NOT_APPLIED) if step in pending:
                sent.discard(step)
            case r.Committed(attempt=number, step=step, outcome=r.OutcomeKind.RETURNED) if step in pending:
                one = pending[step]
                done[step] = Done((one.tool, one.digest), IntentId.of(branch, number, step), entry.payload)
            case r.Settled(attempt=number, step=step, settlement=Settlement.APPLIED) if step in pending:
                one = pending[step]  # it was answered late, or a person or a probe has said so
                done[step] = Done((one.tool, one.digest), IntentId.of(branch, number, step), entry.payload)
            case r.ApplicationEvent(name=name) if name == TOLD and done:  # of another server's there are none
                if done.pop(told := opened(entry), None) is not None:
                    sent.discard(told)
            case _:
                pass
    doubts = [step for step in sent if step not in done]
    alike = {step: (pending[step].tool, pending[step].digest) for step in doubts}
    return list(done.values()), [(alike[step], IntentId.of(branch, attempt, step)) for step in doubts]
