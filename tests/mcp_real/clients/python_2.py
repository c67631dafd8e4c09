"""The Python SDK 2.x, as it is without options: calls a tool with a key, and prints what it was told.

python python_2.py KEY TOOL URL
python python_2.py KEY TOOL COMMAND ARGS...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters

LIMIT_S = 20
found: dict[str, Any] = {}


async def main() -> None:
    key, tool, target, *arguments = sys.argv[1:]
    place: Any = target
    if not target.startswith("http://"):
        place = StdioServerParameters(command=target, args=arguments, env=dict(os.environ))
    async with Client(place, read_timeout_seconds=LIMIT_S) as client:
        found["tools"] = [one.name for one in (await client.list_tools()).tools]
        found["version"] = client.protocol_version
        said = await client.call_tool(tool, {"what": "x"}, meta={"io.intentlog/step": key})
        found.update(text=said.content[0].text, is_error=bool(said.is_error), meta=said.meta)


try:
    asyncio.run(main())
except Exception as error:
    found["raised"] = repr(error)
print(json.dumps(found), flush=True)
