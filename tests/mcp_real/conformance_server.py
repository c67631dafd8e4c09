"""A real server, made with the Python SDK 2.x, that has what the official conformance suite asks a server for.

    python conformance_server.py PORT-FILE WITNESS

Its tools stand in `conformance_tools`, what it asks its client for in `conformance_inputs`. It listens on this machine
alone, with the SDK's protection against DNS rebinding on, speaks both eras, and keeps its events, so that a stream that
was closed can be taken up again. Each call that reaches a tool is a line in the witness.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from conformance_inputs import FORMS, asked_for, elicitation
from conformance_tools import BUS, PIXEL, TOOLS, listing
from mcp import types
from mcp.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

NAME = "conformance"
RETRY_MS = 100
RESOURCES = {
    "test://static-text": ("text/plain", "text", "This is the content of the static text resource."),
    "test://static-binary": ("image/png", "blob", PIXEL),
    "test://watched-resource": ("text/plain", "text", "It is watched."),
}
TEMPLATE = ("test://template/", "/data")


class Events(EventStore):
    """The events of all streams, in memory."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        seen = int(last_event_id) if last_event_id.isdigit() else 0
        if not 0 < seen <= len(self._events):
            return None
        stream = self._events[seen - 1][0]
        for number, (of, message) in enumerate(self._events[seen:], seen + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def list_tools(_context: Any, _params: Any) -> Any:
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in listing()])


async def call_tool(context: Any, params: Any) -> Any:
    tool = TOOLS.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    line = {"tool": params.name, "request_id": (context.meta or {}).get("io.intentlog/request-id")}
    with Path(sys.argv[2]).open("a") as witness:
        witness.write(json.dumps(line) + "\n")
    return await tool.run(context, params)


async def list_resources(_context: Any, _params: Any) -> Any:
    described = [{"uri": u, "name": u[7:], "description": u, "mimeType": kind} for u, (kind, _, _) in RESOURCES.items()]
    return types.ListResourcesResult.model_validate({"resources": described})


async def list_templates(_context: Any, _params: Any) -> Any:
    uri = "{id}".join(TEMPLATE)
    described = {"uriTemplate": uri, "name": "template", "description": uri, "mimeType": "application/json"}
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": [described]})


async def read_resource(_context: Any, params: Any) -> Any:
    uri = str(params.uri)
    if uri in RESOURCES:
        kind, member, content = RESOURCES[uri]
    elif uri.startswith(TEMPLATE[0]) and uri.endswith(TEMPLATE[1]):
        of = uri.removeprefix(TEMPLATE[0]).removesuffix(TEMPLATE[1])
        content = json.dumps({"id": of, "templateTest": True, "data": f"Data for ID: {of}"})
        kind, member = "application/json", "text"
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.ReadResourceResult.model_validate({"contents": [{"uri": uri, "mimeType": kind, member: content}]})


PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


async def list_prompts(_context: Any, _params: Any) -> Any:
    described = [
        {"name": name, "description": name, "arguments": [{"name": one, "required": True} for one in arguments]}
        for name, arguments in PROMPTS.items()
    ]
    return types.ListPromptsResult.model_validate({"prompts": described})


async def get_prompt(_context: Any, params: Any) -> Any:
    given = params.arguments or {}

    def text(of: str) -> dict[str, Any]:
        return {"type": "text", "text": of}

    match params.name:
        case "test_simple_prompt":
            parts = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            parts = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            within = {"uri": given["resourceUri"], "mimeType": "text/plain"}
            resource = {**within, "text": "Embedded resource content for testing."}
            parts = [{"type": "resource", "resource": resource}, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
            parts = [image, text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            answer = (params.input_responses or {}).get("user_context")
            if answer is None:
                return asked_for({"user_context": elicitation(*FORMS["user_context"])})
            parts = [text(f"In the context of {(answer.content or {}).get('context')}")]
        case _:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    messages = [{"role": "user", "content": part} for part in parts]
    return types.GetPromptResult.model_validate({"messages": messages})


async def complete(_context: Any, params: Any) -> Any:
    found = [one for one in ("paris", "park", "party") if one.startswith(params.argument.value)]
    return types.CompleteResult.model_validate({"completion": {"values": found, "total": len(found), "hasMore": False}})


async def taken_note_of(_context: Any, _params: Any) -> Any:
    return types.EmptyResult()


def made() -> Server[Any]:
    """The server."""
    server = Server(
        NAME,
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=taken_note_of,
        on_unsubscribe_resource=taken_note_of,
        on_subscriptions_listen=ListenHandler(BUS),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=taken_note_of,
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    return server


async def main() -> None:
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=["127.0.0.1:*", "localhost:*"],
        allowed_origins=["http://127.0.0.1:*", "http://localhost:*"],
    )
    application = made().streamable_http_app(event_store=Events(), retry_interval=RETRY_MS, transport_security=security)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1)
    port = Path(sys.argv[1])
    written = port.with_suffix(".new")
    written.write_text(f"{listening.getsockname()[1]}\n")
    written.replace(port)
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(main())
