"""A call on its way to the server: what the guard asks of a transport, and what a reply proves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET, Raw

from intentlog.errors import Suspended
from intentlog.log.values import Call
from intentlog.mcp.calls import ToolCall
from intentlog.mcp.hiding import Hidden, hidden_in
from intentlog.mcp.messages import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, Frame, members_of, text_of, value_of
from intentlog.mcp.rules import Rule
from intentlog.mcp.tasks import Ask, Task, task_in
from intentlog.mcp.untold import Done

METHOD_NOT_FOUND, ELICITATION_REQUIRED = -32601, -32042
HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
REFUSALS = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
"""Errors by which JSON-RPC says that a request was not executed, and that the same one would not be. Final: there are
servers that find their own result invalid and say -32602, and a repeat would be a second effect."""
NOT_TAKEN_UP = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
"""Errors by which MCP (2026-07-28) has the client ask again in other words: the call was not looked at. An error that
stands in neither proves nothing."""
INPUT_REQUIRED = "input_required"
CONTRADICTORY = "the reply has both a result and an error"


class NotReached(Exception):
    """Not one byte of the message has left."""


class Unanswered(Exception):
    """The message may have reached the server, and no reply came."""


class Refused(Exception):
    """The server's definite no. Its text is the JSON-RPC error."""


class Failed(Exception):
    """A JSON-RPC error that does not say whether there was an effect."""


class Handed(Exception):
    """The server has taken the call up as a task: what came of it, it says later."""


class Reply(NamedTuple):
    """A reply, and the bytes that it came as."""

    frame: Frame
    text: bytes


class Send(Protocol):
    """How a transport sends one message and waits for its reply."""

    def __call__(self, message: bytes, headers: Mapping[str, str], about: Call, /) -> Reply:
        """Send, and wait until `about.deadline`.

        Raises:
            NotReached: nothing has left.
            Unanswered: it may have arrived, and no reply came, or will come.
        """
        ...


class Sending:
    """One call, on its way.

    Args:
        call: the call.
        rule: what the operator says of its tool.
        send: sends it.
        ask: asks the server something of the guard's own.
        given: records that the server has taken it up as a task.

    Attributes:
        call: the call.
        ask: as above.
        rule: what the operator says of its tool.
        reply: what it got, if it was sent and got something.
        about: what it was sent as, if it was.
        is_given_up: whether its reply is waited for no more; its end may still have to be recorded.
        is_left: whether its client is gone, of several that this guard has: an equal call here is its retry.
        is_alone: whether the guard's only client is gone: an equal call at another guard is its retry.
        task: the handle that it got in place of a result, if it did.
        alike: what calls equal to it have in common, if it has no stable key.
        done: what its client is told of, if it has no stable key and the call is done.
    """

    def __init__(self, call: ToolCall, rule: Rule, send: Send, ask: Ask, given: Callable[[Task], None]) -> None:
        self.call = call
        self.ask = ask
        self.rule = rule
        self.reply: Reply | None = None
        self.about: Call | None = None
        self.is_given_up = False
        self.is_left = self.is_alone = False
        self.task: Task | None = None
        self.alike: tuple[str, str] | None = None
        self.done: Done | None = None
        self._send = send
        self._given = given

    @cached_property
    def hidden(self) -> Hidden:
        """What of it is never written."""
        return hidden_in(self.call.given(self.rule)[1]) if self.rule.redact else Hidden()

    def __call__(self, about: Call) -> Any:
        """Send it. Runs inside the guarded tool."""
        self.about = about
        headers = {self.rule.key_header: about.request_id} if self.rule.key_header else {}
        reply = self._send(self.call.message(about.request_id, self.rule), headers, about)
        self.task = task = task_in(self.call, reply.frame, about.intent_id, self.hidden)
        if task is not None:
            self._given(task)
        self.reply = reply
        if task is not None:
            raise Handed(f"the server has taken it up as task {task.id}")
        return outcome_of(reply)


sending: ContextVar[Sending] = ContextVar("intentlog_mcp_sending")
"""What the tool that runs in this context sends."""


def outcome_of(reply: Reply) -> Any:
    """The result of a call.

    Raises:
        Refused, Failed, NotReached: it is an error.
        Suspended: the server asks for something first; the effect has not happened.
    """
    frame = reply.frame
    if frame.is_contradictory:
        raise Failed(CONTRADICTORY)
    if frame.error is not UNSET:
        text = bytes(frame.error).decode("utf-8", "replace")
        match code_of(frame):
            case code if code == ELICITATION_REQUIRED:
                raise Suspended("the server asks for something first")
            case code if code in NOT_TAKEN_UP:
                raise NotReached(text)
            case code if code in REFUSALS:
                raise Refused(text)
            case _:
                raise Failed(text)
    if text_of(members_of(frame.result).get("resultType")) == INPUT_REQUIRED:
        raise Suspended("the server asks for something first")
    return _kept(frame.result) if frame.result is not UNSET else None


class Unkept:
    """A result that cannot be recorded: the call is done without a value."""


def _kept(result: Raw) -> Any:
    value = value_of(result)
    return Unkept() if value is UNSET else value


def code_of(frame: Frame) -> int | None:
    """The code of an error of JSON-RPC, if it is one."""
    code = value_of(members_of(frame.error).get("code"))
    return code if isinstance(code, int) else None
