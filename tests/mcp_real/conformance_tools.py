"""The tools of the conformance suite's server, under the names that the suite calls them by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from conformance_inputs import (
    CONTACT,
    DEFAULTS,
    ENUMS,
    FORMS,
    JSON,
    ROOTS,
    asked_for,
    elicitation,
    sampling,
)
from mcp import types
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
BUS = InMemorySubscriptionBus()
_PAUSE_S, _AWAY_S = 0.05, 0.2

Run = Callable[[Any, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Tool:
    """A tool: what it does, and what it takes."""

    run: Run
    schema: JSON
    description: str


TOOLS: dict[str, Tool] = {}


def listing() -> list[JSON]:
    """The tools as they are listed, in one order."""
    return [{"name": name, "description": one.description, "inputSchema": one.schema} for name, one in TOOLS.items()]


def tool(name: str, description: str, schema: JSON | None = None) -> Callable[[Run], Run]:
    def registered(run: Run) -> Run:
        TOOLS[name] = Tool(run, schema or {"type": "object", "properties": {}}, description)
        return run

    return registered


def result(*content: JSON, **members: Any) -> Any:
    return types.CallToolResult.model_validate({"content": list(content), **members})


def text(of: str) -> JSON:
    return {"type": "text", "text": of}


def resource(uri: str, kind: str, of: str) -> JSON:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": of}}


IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
SIMPLE: dict[str, list[JSON]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
}


def _simple(content: list[JSON]) -> Run:
    async def run(_context: Any, _params: Any) -> Any:
        return result(*content)

    return run


for _name, _content in SIMPLE.items():
    tool(_name, "Answers with content of one kind, or of several")(_simple(_content))


@tool("test_error_handling", "Always fails")
async def error_handling(_context: Any, _params: Any) -> Any:
    return result(text("This tool intentionally returns an error for testing"), isError=True)


# --- what it says meanwhile ----------------------------------------------------------------------------------------


async def log(context: Any, said: str) -> None:
    await context.session.send_log_message("info", said, related_request_id=context.request_id)


@tool("test_tool_with_logging", "Says what it is doing")
async def with_logging(context: Any, _params: Any) -> Any:
    await log(context, "Tool execution started")
    await asyncio.sleep(_PAUSE_S)
    await log(context, "Tool processing data")
    await asyncio.sleep(_PAUSE_S)
    await log(context, "Tool execution completed")
    return result(text("It was said"))


tool("test_logging_tool", "Says what it is doing, to whom wants to hear it")(with_logging)


@tool("test_tool_with_progress", "Says how far it is")
async def with_progress(context: Any, _params: Any) -> Any:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(_PAUSE_S)
    return result(text("It is done"))


@tool("test_reconnection", "Closes its stream while it works")
async def reconnection(context: Any, _params: Any) -> Any:
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await asyncio.sleep(_AWAY_S)
    return result(text("It went on"))


@tool("test_trigger_tool_change", "Says that the list of tools has changed")
async def tool_change(_context: Any, _params: Any) -> Any:
    await BUS.publish(ToolsListChanged())
    return result(text("It has changed"))


@tool("test_trigger_prompt_change", "Says that the list of prompts has changed")
async def prompt_change(_context: Any, _params: Any) -> Any:
    await BUS.publish(PromptsListChanged())
    return result(text("It has changed"))


# --- what it asks its client for, in the way of 2025-11-25 -----------------------------------------------------------


@tool("test_sampling", "Asks the client's model", {"type": "object", "properties": {"prompt": {"type": "string"}}})
async def ask_model(context: Any, params: Any) -> Any:
    asked = types.SamplingMessage(role="user", content=types.TextContent(text=params.arguments["prompt"]))
    said = await context.session.create_message([asked], max_tokens=100, related_request_id=context.request_id)
    return result(text(f"LLM response: {said.content.text}"))


async def _elicited(context: Any, message: str, schema: JSON) -> Any:
    said = await context.session.elicit_form(message, schema, related_request_id=context.request_id)
    return result(text(f"Elicitation completed: action={said.action}, content={said.content}"))


@tool("test_elicitation", "Asks the user", {"type": "object", "properties": {"message": {"type": "string"}}})
async def ask_user(context: Any, params: Any) -> Any:
    return await _elicited(context, params.arguments["message"], CONTACT)


@tool("test_elicitation_sep1034_defaults", "Asks the user, with defaults")
async def ask_defaults(context: Any, _params: Any) -> Any:
    return await _elicited(context, "Please provide user information", DEFAULTS)


@tool("test_elicitation_sep1330_enums", "Asks the user to choose")
async def ask_enums(context: Any, _params: Any) -> Any:
    return await _elicited(context, "Please choose", ENUMS)


# --- the same, in the way of 2026-07-28 ------------------------------------------------------------------------------

_ALL = {
    "user_name": elicitation(*FORMS["user_name"]),
    "greeting": sampling("Generate a greeting", 50),
    "client_roots": ROOTS,
}


def _rounds(*rounds: JSON, state: str = "") -> Run:
    """Asks for what each round names; is done when the last was answered. What it was not told it asks for again."""

    async def run(_context: Any, params: Any) -> Any:
        answers = params.input_responses or {}
        number = int(params.request_state[len(state) :]) if state and params.request_state else 0
        requests = rounds[number]
        if all(_usable(requests, name, answers) for name in requests):
            number += 1
        if number < len(rounds):
            return asked_for(rounds[number], f"{state}{number}" if state else None)
        return result(text(f"state-ok {sorted(answers)}"))

    return run


def _usable(requests: JSON, name: str, answers: JSON) -> bool:
    """Whether there is an answer to a request, and an answer to that one."""
    answer, method = answers.get(name), requests[name]["method"]
    if method == "elicitation/create":
        return isinstance(answer, types.ElicitResult)
    return isinstance(
        answer, types.CreateMessageResult if method == "sampling/createMessage" else types.ListRootsResult
    )


_OF_ROUNDS: dict[str, Run] = {
    "elicitation": _rounds({"user_name": _ALL["user_name"]}),
    "sampling": _rounds({"capital_question": sampling("What is the capital of France?", 100)}),
    "list_roots": _rounds({"client_roots": ROOTS}),
    "request_state": _rounds({"confirm": elicitation(*FORMS["confirm"])}, state="confirm-"),
    "tampered_state": _rounds({"confirm": elicitation(*FORMS["confirm"])}, state="tampered-"),
    "multiple_inputs": _rounds(_ALL, state="all-"),
    "multi_round": _rounds(*({one: elicitation(*FORMS[one])} for one in ("step1", "step2")), state="round-"),
}
for _name, _run in _OF_ROUNDS.items():
    tool(f"test_input_required_result_{_name}", "Needs input")(_run)
tool("test_streaming_elicitation", "Needs input, and asks for it in no stream")(_OF_ROUNDS["elicitation"])


@tool("test_input_required_result_capabilities", "Asks for what its client can give")
async def by_capability(context: Any, params: Any) -> Any:
    can = context.session.client_capabilities
    needs = {"user_name": can and can.elicitation, "greeting": can and can.sampling, "client_roots": can and can.roots}
    if params.input_responses:
        return result(text("It was given"))
    return asked_for({name: _ALL[name] for name, has in needs.items() if has is not None})


@tool("test_missing_capability", "Needs a client with a model")
async def missing_capability(context: Any, _params: Any) -> Any:
    can = context.session.client_capabilities
    if can is None or can.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "It needs a client that samples", needed)
    return result(text("It has one"))


# --- what it takes ---------------------------------------------------------------------------------------------------


@tool(
    "test_headers",
    "Takes an argument that stands in a header as well",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}, "required": ["region"]},
)
async def headers(_context: Any, params: Any) -> Any:
    return result(text(params.arguments["region"]))


@tool(
    "json_schema_2020_12_tool",
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema(_context: Any, _params: Any) -> Any:
    return result(text("It fits"))
