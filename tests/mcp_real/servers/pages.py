"""A server on the Python SDK 2.x over pipes, each of whose lists has three pages. Calls are lines of a file.

python pages.py WITNESS
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

PAGES = 3
SCHEMA = {"type": "object"}


def page_of(params: types.PaginatedRequestParams | None) -> tuple[int, str | None]:
    """Which page is asked for, and what asks for the next one.

    Raises:
        MCPError: no page has that cursor.
    """
    cursor = params.cursor if params is not None else None
    number = {None: 0, "to-1": 1, "to-2": 2}.get(cursor)
    if number is None:
        raise MCPError(types.INVALID_PARAMS, f"no page {cursor!r}")
    return number, f"to-{number + 1}" if number + 1 < PAGES else None


async def tools(context: Any, params: Any) -> types.ListToolsResult:
    del context
    number, after = page_of(params)
    listed = [
        types.Tool(name=f"look-{number}", input_schema=SCHEMA, annotations=types.ToolAnnotations(read_only_hint=True)),
        types.Tool(name=f"act-{number}", input_schema=SCHEMA),
    ]
    return types.ListToolsResult(tools=listed, next_cursor=after)


async def resources(context: Any, params: Any) -> types.ListResourcesResult:
    del context
    number, after = page_of(params)
    one = types.Resource(uri=f"pages://{number}", name=f"page {number}")
    return types.ListResourcesResult(resources=[one], next_cursor=after)


async def templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
    del context
    number, after = page_of(params)
    one = types.ResourceTemplate(uri_template=f"pages://{number}/{{line}}", name=f"lines of page {number}")
    return types.ListResourceTemplatesResult(resource_templates=[one], next_cursor=after)


async def prompts(context: Any, params: Any) -> types.ListPromptsResult:
    del context
    number, after = page_of(params)
    return types.ListPromptsResult(prompts=[types.Prompt(name=f"prompt-{number}")], next_cursor=after)


async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    del context
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{params.name}\n".encode())
    os.close(descriptor)
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"{params.name} was called")])


async def main() -> None:
    server = Server(
        "pages",
        version="1.0",
        on_list_tools=tools,
        on_call_tool=call,
        on_list_resources=resources,
        on_list_resource_templates=templates,
        on_list_prompts=prompts,
    )
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
