"""Handles of tasks: a server takes a call up, and says later what came of it.

A handle is no outcome. It is recorded durably before it is passed on, so that after a crash the server can be asked
(`tasks/get`) what became of the call. In 2025-11-25 the client asks for a task, and fetches its result with
`tasks/result`; in the extension of 2026-07-28 the server decides, and `tasks/get` brings the result.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.records import Durability
from intentlog.errors import IntentLogError, NotInDoubt
from intentlog.log.sync import Log
from intentlog.log.values import Applied
from intentlog.mcp.calls import ToolCall
from intentlog.mcp.hiding import Hidden
from intentlog.mcp.lines import complain
from intentlog.mcp.messages import Frame, members_of, text_of, value_of
from intentlog.mcp.untold import BY, opened

HANDLE = "mcp.task"
GET, RESULT, CANCEL = "tasks/get", "tasks/result", "tasks/cancel"
OVER = frozenset({"completed", "failed", "cancelled"})
KEPT_MAX = 10_000
"""Of handles that were given out and of whose end nothing was heard. Older ones are found in the log."""


class Ask(Protocol):
    """How a transport asks the server something of the guard's own."""

    def __call__(self, method: str, params: dict[str, Any], /) -> Frame:
        """Ask, and wait for the answer.

        Raises:
            NotReached, Unanswered: there was none.
        """
        ...


class Task(Struct, frozen=True):
    """A task that a server has taken a call up as.

    Attributes:
        id: the server's name for it.
        intent_id: the call's intent.
        given: the result by which it was given.
        hidden: what of its call is never written.
    """

    id: str
    intent_id: IntentId
    given: dict[str, Any]
    hidden: Hidden = Hidden()

    @property
    def is_of_the_extension(self) -> bool:
        """Whether it is one of 2026-07-28."""
        return "resultType" in self.given

    def again(self, status: str) -> dict[str, Any]:
        """The result by which it was given, as it would be given now."""
        if self.is_of_the_extension:
            return self.given | {"status": status}
        return self.given | {"task": self.given["task"] | {"status": status}}


class TaskState(Struct, frozen=True):
    """What a server says of a task.

    Attributes:
        status: the server's own word.
        result: the call's result, if it is at hand; else UNSET.
        is_unkept: whether there is one that cannot be recorded.
    """

    status: str
    result: Any = UNSET
    is_unkept: bool = False


class Tasks:
    """The tasks of one server. Safe from any thread.

    Args:
        log: where they are recorded.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._living: OrderedDict[str, Task] = OrderedDict()
        self._intents: set[IntentId] = set()
        self._lock = Lock()

    def note(self, task: Task) -> None:
        """A server has given a handle. It is durable when this returns. Raises what the log raises."""
        given = task.hidden.masked_in(task.given) if task.hidden.is_in(task.given) else task.given
        told = {"intent_id": str(task.intent_id), "task": task.id, "given": given}
        self._log.append(task.intent_id.branch, HANDLE, told, durability=Durability.IMMEDIATE)

    def given(self, task: Task) -> None:
        """The same of one that a client is about to be given, which will ask for its end."""
        self.note(task)
        with self._lock:
            self._living[task.id] = task
            self._intents.add(task.intent_id)
            while len(self._living) > KEPT_MAX:
                _, oldest = self._living.popitem(last=False)
                self._intents.discard(oldest.intent_id)

    def lost(self, task: Task) -> None:
        """The client was gone before it had the handle: whoever makes an equal call is to have it."""
        with self._lock:
            self._living.pop(task.id, None)
            self._intents.discard(task.intent_id)

    def is_living(self, intent: IntentId) -> bool:
        """Whether a handle of this call was given out by this guard, and its end was not heard of."""
        with self._lock:
            return intent in self._intents

    def heard(self, id_: str, method: str, frame: Frame) -> None:
        """A client was told something of a task. If that is its end, it is recorded."""
        with self._lock:
            task = self._living.get(id_)
        state = state_in(task, method, frame) if task is not None else None
        if task is not None and state is not None and state.status in OVER:
            try:
                self.settle(task, state)
            except IntentLogError as error:  # then the next equal call asks the server again
                complain(f"the end of task {task.id} could not be recorded: {error}")

    def settle(self, task: Task, state: TaskState) -> None:
        """A task is over. Its result settles the call; without one, the call stays in doubt."""
        if state.result is not UNSET:
            with suppress(NotInDoubt):  # it was settled meanwhile
                why = f"task {task.id}: {state.status}"
                is_unkept = state.is_unkept or task.hidden.is_in(state.result)
                answer = Applied() if is_unkept else Applied(state.result)
                self._log.resolve(task.intent_id, answer, by=BY, why=why)
        self.lost(task)

    def of(self, intent: IntentId) -> Task | None:
        """The task that a call was taken up as, by the log."""
        found: Task | None = None
        for entry in self._log.history(intent.branch):
            match entry.record:
                case r.ApplicationEvent(name=name) if name == HANDLE and opened(entry)["intent_id"] == intent:
                    found = Task(entry.payload["task"], intent, entry.payload["given"])
                case _:
                    pass
        return found


def task_in(call: ToolCall, frame: Frame, intent: IntentId, hidden: Hidden) -> Task | None:
    """The task that a reply gives in place of a result, or None."""
    members = members_of(frame.result)
    if text_of(members.get("resultType")) == "task":
        id_ = text_of(members.get("taskId"))
    elif call.is_task and "task" in members:
        id_ = text_of(members_of(members["task"]).get("taskId"))
    else:
        return None
    given = value_of(frame.result)
    return Task(id_, intent, given, hidden) if id_ and given is not UNSET else None


def state_in(task: Task, method: str, frame: Frame) -> TaskState | None:
    """What a reply to `tasks/get` or `tasks/result` says of a task; None if it says nothing."""
    if frame.result is UNSET:
        return None
    members = members_of(frame.result)
    if method == RESULT:
        return _with_result("completed", frame.result)
    status = text_of(members.get("status"))
    if status is None:
        return None
    if task.is_of_the_extension and status == "completed" and "result" in members:
        return _with_result(status, members["result"])
    return TaskState(status)


def _with_result(status: str, result: Raw) -> TaskState:
    value = value_of(result)
    return TaskState(status, None, is_unkept=True) if value is UNSET else TaskState(status, value)


def asked_of(task: Task, ask: Ask, meta: dict[str, Any]) -> TaskState | None:
    """Ask the server what became of a task.

    Args:
        task: the task.
        ask: asks it.
        meta: what requests of its era say of themselves.

    Returns:
        What it says; None if it knows nothing of it.

    Raises:
        NotReached, Unanswered: it did not answer.
    """
    params = {"taskId": task.id} | ({"_meta": meta} if meta else {})
    state = state_in(task, GET, ask(GET, params))
    if state is None or task.is_of_the_extension or state.status not in OVER:
        return state
    found = state_in(task, RESULT, ask(RESULT, params))
    return state if found is None else msgspec.structs.replace(found, status=state.status)
