"""OpenAI Agents: an agent whose model calls a tool, with the id of its call as key; prints what the model was told.

python openai_agents.py KEY TOOL COMMAND ARGS...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call


def key(context: Any) -> dict[str, str]:
    return {"io.intentlog/step": context.run_context.tool_call_id}


async def main() -> dict[str, Any]:
    command, *arguments = sys.argv[3:]
    called = function_call(sys.argv[2], {"what": "x"}, call_id=sys.argv[1])
    model = ScriptedModel([[called], [assistant_message("done")]])
    parameters: Any = {"command": command, "args": arguments, "env": dict(os.environ)}
    found: dict[str, Any] = {}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=20, tool_meta_resolver=key) as server:
        agent = Agent("a", model=model, mcp_servers=[server])
        try:
            await Runner.run(agent, "Act.")
        except Exception as error:
            found["raised"] = repr(error)
    found["tools"] = [tool.name for tool in model.calls[0].tools]
    told = [item for item in (model.calls[-1].input) if item.get("type") == "function_call_output"]
    found["text"] = told[0]["output"][0]["text"] if told else None
    return found


set_tracing_disabled(disabled=True)
print(json.dumps(asyncio.run(main())), flush=True)
