"""The guarded tools that stand for a server's: one for each name, made as it is called, of the class it has then."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from intentlog.core.effects import Effect
from intentlog.log.declare import Tool, tool
from intentlog.log.values import Applied, Call, NotApplied, Secret, Unknown
from intentlog.mcp.calls import readable
from intentlog.mcp.messages import refuse_twins
from intentlog.mcp.rules import Rule, Rules
from intentlog.mcp.sending import NotReached, Refused, sending

Handle = Tool[..., Any]
"""Takes the arguments that are recorded; and, if the rules redact some, the values of those."""


class _Answer(Struct):
    """What a probe command prints."""

    answer: Literal["APPLIED", "NOT_APPLIED", "UNKNOWN"]
    result: Any = msgspec.UNSET


class Tools:
    """The tools of one server. Safe from any thread.

    Args:
        server: its name, which begins theirs.
        rules: what the operator says of them.
    """

    def __init__(self, server: str, rules: Rules) -> None:
        self._server = server
        self._rules = rules
        self._handles: dict[str, tuple[Effect, Handle]] = {}
        self._lock = Lock()

    def named(self, name: str) -> str:
        """A tool's name in the log."""
        return f"{self._server}.{readable(name, 128)}"

    def of(self, name: str, effect: Effect) -> Handle:
        """The tool, of this class."""
        with self._lock:
            known = self._handles.get(name)
            if known is None or known[0] != effect:
                known = self._handles[name] = (
                    effect,
                    _declared(self.named(name), name, effect, self._rules.rule_for(name)),
                )
            return known[1]


def _declared(name: str, own_name: str, effect: Effect, rule: Rule) -> Handle:
    declared = tool(
        effect=effect,
        name=name,
        rejects=Refused,
        not_sent=NotReached,
        time_limit=timedelta(seconds=rule.time_limit_s),
    )

    def forward(call: Call, arguments: dict[str, Any]) -> Any:
        del arguments
        return sending.get()(call)

    def forward_hiding(call: Call, arguments: dict[str, Any], hidden: Secret[list[Any]]) -> Any:
        del arguments, hidden
        return sending.get()(call)

    handle: Handle = cast("Handle", declared(forward_hiding) if rule.redact else declared(forward))
    if rule.probe:

        def ask(call: Call, arguments: dict[str, Any]) -> Any:
            about = {"request_id": str(call.request_id), "intent_id": str(call.intent_id)}
            asked = {"tool": own_name, "arguments": arguments, **about}
            return _asked(rule.probe, asked, rule.probe_limit_s)

        def ask_hiding(call: Call, arguments: dict[str, Any], hidden: Secret[list[Any]]) -> Any:
            del hidden
            return ask(call, arguments)

        handle.probe(ask_hiding if rule.redact else ask)
    return handle


def _asked(command: Sequence[str], question: Mapping[str, Any], limit_s: float) -> Any:
    """The answer of a probe command, which reads a question in JSON and prints its answer so.

    Raises:
        subprocess.SubprocessError, OSError, msgspec.MsgspecError, Unreadable: it gave none. Nothing is known then.
    """
    asked = msgspec.json.encode(question)
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, timeout=limit_s, check=True)  # noqa: S603 - the operator's
    refuse_twins(done.stdout)
    answer = msgspec.json.decode(done.stdout, type=_Answer)
    match answer.answer:
        case "APPLIED":
            return Applied() if answer.result is msgspec.UNSET else Applied(answer.result)
        case "NOT_APPLIED":
            return NotApplied()
        case "UNKNOWN":
            return Unknown()
