"""A server on the Python SDK 2.x over pipes, in both eras: what it does is in a file, outside any log.

python orders.py WITNESS
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("orders", version="1.0", instructions="Takes orders.")


class Approval(BaseModel):
    """What a person is asked before an order is paid."""

    approved: bool


def ask_approval(what: str) -> Elicit[Approval]:
    return Elicit(f"Pay for {what}?", Approval)


def witness(line: str) -> None:
    """What happened, as a line of a file."""
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> int:
    """How many orders there are."""
    return 7


@server.tool()
def order(what: str) -> str:
    """Order something."""
    witness(f"ordered {what}")
    return f"ordered {what}"


@server.tool()
def fail(what: str) -> str:
    """Order something, and break."""
    witness(f"ordered {what}, and broke")
    raise ValueError(what)


@server.tool()
def pay(what: str, approval: Annotated[Approval, Resolve(ask_approval)]) -> str:
    """Pay for something, once a person has approved."""
    witness(f"paid for {what}: {approval.approved}")
    return f"paid for {what}: {approval.approved}"


@server.tool()
async def slow(what: str, context: Context) -> str:
    """Order something slowly, and tell how far it is."""
    witness(f"begins {what}")
    try:
        for step in range(100):
            await context.report_progress(step, 100)
            await anyio.sleep(0.1)
    except asyncio.CancelledError:
        witness(f"cancelled {what}")
        raise
    return f"ordered {what}"


@server.resource("orders://all")
def orders() -> str:
    """What happened so far."""
    return Path(sys.argv[1]).read_text()


if __name__ == "__main__":
    server.run("stdio")
