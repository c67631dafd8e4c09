"""Pydantic AI: an agent whose model calls a tool, with the id of its call as key; prints what the model was told.

python pydantic_ai_agent.py KEY TOOL COMMAND ARGS...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

found: dict[str, Any] = {}


async def with_key(context: Any, call: Any, name: str, arguments: dict[str, Any]) -> Any:
    return await call(name, arguments, metadata={"io.intentlog/step": context.tool_call_id})


def model(messages: list[Any], info: Any) -> ModelResponse:
    """Calls the tool; then notes what it is told, and ends."""
    told = [part for part in messages[-1].parts if isinstance(part, (ToolReturnPart, RetryPromptPart))]
    if told:
        found["text"] = str(told[0].content)
        found["is_error"] = isinstance(told[0], RetryPromptPart) or told[0].outcome != "success"
        return ModelResponse(parts=[TextPart("done")])
    found["tools"] = [tool.name for tool in info.function_tools]
    return ModelResponse(parts=[ToolCallPart(sys.argv[2], {"what": "x"}, tool_call_id=sys.argv[1])])


async def main() -> None:
    command, *arguments = sys.argv[3:]
    transport = StdioTransport(command, arguments, env=dict(os.environ), keep_alive=False)
    agent = Agent(FunctionModel(model), toolsets=[MCPToolset(transport, process_tool_call=with_key, read_timeout=20)])
    try:
        await agent.run("Act.")
    except Exception as error:
        found["raised"] = repr(error)


asyncio.run(main())
print(json.dumps(found), flush=True)
