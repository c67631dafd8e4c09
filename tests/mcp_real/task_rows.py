"""What the SDKs do not send any more, line by line: tasks of 2025-11-25, both ways, and requests that no server knows.

The server is the everything server; a row is what was answered, without what is minted or measured by a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from signal import SIGINT
from typing import Any

from mcp_real.wire import Wire

RESEARCH = "simulate-research-query"
STATUS = "notifications/tasks/status"
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CAPABILITIES: Mapping[str, Any] = {
    "sampling": {},
    "elicitation": {},
    "tasks": {
        "list": {},
        "cancel": {},
        "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}},
    },
}
Rows = dict[str, Any]


class Client:
    """Answers what the server asks. What may be a task it takes up as one, which is over when asked about twice."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._results: dict[str, Any] = {}
        self._polls: dict[str, int] = {}

    def __call__(self, method: str, params: Mapping[str, Any]) -> Any:
        self.asked.append(method)
        match method:
            case "sampling/createMessage":
                content = {"type": "text", "text": "sampled"}
                return self._take_up(params, {"role": "assistant", "model": "none", "content": content})
            case "elicitation/create":
                answers = {"interpretation": "technical", "name": "A. Person"}
                wanted = params["requestedSchema"]["properties"]
                content = {name: value for name, value in answers.items() if name in wanted}
                return self._take_up(params, {"action": "accept", "content": content})
            case "tasks/get":
                self._polls[params["taskId"]] += 1
                return self._task(params["taskId"])
            case "tasks/result":
                return self._results[params["taskId"]]
            case _:
                return {}

    def _take_up(self, params: Mapping[str, Any], result: Any) -> Any:
        if "task" not in params:
            return result
        id_ = f"of-the-client-{len(self._results)}"
        self._results[id_], self._polls[id_] = result, 0
        return {"task": self._task(id_)}

    def _task(self, id_: str) -> Any:
        when = "2026-01-02T03:04:05Z"
        status = "completed" if self._polls[id_] > 1 else "working"
        return {"taskId": id_, "status": status, "createdAt": when, "lastUpdatedAt": when, "ttl": None}


def rows_of(command: Sequence[str], environment: Mapping[str, str]) -> Rows:
    """All rows, from one session."""
    client = Client()
    with Wire(command, environment, client) as wire:
        rows: Rows = {"tasks: capability": wire.begin(CAPABILITIES)["result"]["capabilities"]["tasks"]}
        tools = wire.ask("tools/list")["result"]["tools"]
        support = {tool["name"]: tool.get("execution", {}).get("taskSupport") for tool in tools}
        rows["tasks: which tools take them"] = {name: one for name, one in support.items() if one != "forbidden"}
        handled: Sequence[Callable[[Wire, Client], Rows]] = (completed, cancelled, asked_back, both_ways, unknown)
        for part in handled:
            rows |= part(wire, client)
        rows["SIGINT: exit code"] = wire.end(SIGINT)  # the lives of its tasks keep this server from ending by itself
    return masked(rows)


def taken_up(wire: Wire, **arguments: Any) -> tuple[Any, str]:
    """A call that is to become a task: its answer, and the task's id."""
    answer = wire.call(RESEARCH, {"topic": "tea", **arguments}, task={"ttl": 60000})
    return answer, answer["result"]["task"]["taskId"]


def completed(wire: Wire, client: Client) -> Rows:
    """A task from its call to its result, which is waited for in one request."""
    del client
    answer, id_ = taken_up(wire)
    return {
        "tasks: a call becomes one": answer,
        "tasks/get at work": wire.ask("tasks/get", {"taskId": id_}),
        "tasks/list": wire.ask("tasks/list"),
        "tasks/result, waited for": wire.ask("tasks/result", {"taskId": id_}),
        "tasks/get at the end": wire.ask("tasks/get", {"taskId": id_}),
        "tasks/cancel of one that is over": wire.ask("tasks/cancel", {"taskId": id_}),
        "tasks: a call that asks for none": wire.call(RESEARCH, {"topic": "milk"}),
    }


def cancelled(wire: Wire, client: Client) -> Rows:
    del client
    _, id_ = taken_up(wire)
    return {
        "tasks/cancel": wire.ask("tasks/cancel", {"taskId": id_}),
        "tasks/get of a cancelled one": wire.ask("tasks/get", {"taskId": id_}),
        "tasks/get of an unknown one": wire.ask("tasks/get", {"taskId": "no-such"}),
    }


def asked_back(wire: Wire, client: Client) -> Rows:
    """A task that asks its client for input, which comes with the request for its result."""
    before = len(client.asked)
    _, id_ = taken_up(wire, ambiguous=True)
    result = wire.ask("tasks/result", {"taskId": id_})
    asked = [one for one in wire.heard if one["method"] == "elicitation/create"][-1]
    return {
        "tasks: input is asked for": [client.asked[before:], asked["params"]],
        "tasks: the result after input": result,
    }


def both_ways(wire: Wire, client: Client) -> Rows:
    """The client takes up what the server asks as a task: the server asks about it."""
    before = len(client.asked)
    sampled = wire.call("trigger-sampling-request-async", {"prompt": "say it"})
    elicited = wire.call("trigger-elicitation-request-async", {})
    return {
        "tasks of the client: sampling": sampled,
        "tasks of the client: elicitation": elicited,
        "tasks of the client: what was asked": client.asked[before:],
    }


def unknown(wire: Wire, client: Client) -> Rows:
    """What the server does not know, and a call that is cancelled: it is not answered."""
    del client
    arguments = {"duration": 1, "steps": 5}
    slow = {"name": "trigger-long-running-operation", "arguments": arguments, "_meta": {"progressToken": "slow"}}
    id_ = wire.send("tools/call", slow)
    wire.wait_for("notifications/progress")  # it has begun
    wire.tell("notifications/cancelled", {"requestId": id_, "reason": "no more"})
    echo = {"name": "echo", "arguments": {"message": "x"}, "_meta": STATELESS}
    rows = {
        "an unknown method": wire.ask("no/such", {"x": 1}),
        "an unknown tool": wire.call("no-such-tool", {}),
        "server/discover": wire.ask("server/discover", {"_meta": STATELESS}),
        "a call of the stateless era": wire.ask("tools/call", echo),
        "a slower call after one that was cancelled": wire.call("trigger-long-running-operation", {"duration": 2}),
    }
    return rows | {"a cancelled call is answered": wire.has_answer(id_)}


def masked(value: Any) -> Any:
    """Without ids that are minted, and without clocks."""
    match value:
        case dict():
            hidden = {"taskId", "createdAt", "lastUpdatedAt"}
            return {name: "(minted)" if name in hidden else masked(one) for name, one in value.items() if name != "id"}
        case list():
            return [masked(one) for one in value]
        case _:
            return value
