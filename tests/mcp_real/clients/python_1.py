"""The Python SDK 1.x: calls a tool with a key, and prints what it was told.

python python_1.py KEY TOOL COMMAND ARGS...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

LIMIT = timedelta(seconds=20)


async def main() -> dict[str, Any]:
    key, tool, command, *arguments = sys.argv[1:]
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(parameters) as (read, write), ClientSession(read, write, LIMIT) as session:
        await session.initialize()
        tools = [one.name for one in (await session.list_tools()).tools]
        try:
            said = await session.call_tool(tool, {"what": "x"}, meta={"io.intentlog/step": key})
        except Exception as error:
            return {"tools": tools, "raised": repr(error)}
        return {"tools": tools, "text": said.content[0].text, "is_error": bool(said.isError), "meta": said.meta}


print(json.dumps(asyncio.run(main())), flush=True)
