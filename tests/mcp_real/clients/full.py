"""A full client of the Python SDK 2.x: it answers all that a server can ask, and keeps what it heard."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

LIMIT_S = 60.0
_MINTED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Full:
    """A client and what it heard.

    Args:
        command: starts the server, or the guard before it.
        mode: how the era is found.

    Attributes:
        client: the SDK's.
        heard: notifications, each with its method.
        asked: what the server asked, each with its method.
        accept: whether a person who is asked accepts.
        roots: the client's roots.
    """

    def __init__(self, command: Sequence[str], mode: str) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.accept = True
        self.roots = [types.Root(uri="file:///orders", name="orders")]
        self.client = Client(
            StdioServerParameters(command=command[0], args=list(command[1:])),
            mode=mode,
            client_info=types.Implementation(name="full", version="1"),
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
            list_roots_callback=self._list_roots,
            logging_callback=self._log,
            message_handler=self._hear,
            log_level="debug",
            cache=None,
        )

    async def _sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        del context
        self.asked.append(("sampling/createMessage", plain(params)))
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=content, model="none", stop_reason="endTurn")

    async def _elicit(self, context: Any, params: Any) -> types.ElicitResult:
        del context
        self.asked.append(("elicitation/create", plain(params)))
        if not self.accept:
            return types.ElicitResult(action="decline")
        answers = {"name": "A. Person", "check": True, "integer": 7, "approved": True}
        schema = getattr(params, "requested_schema", None) or {}
        content = {name: value for name, value in answers.items() if name in schema.get("properties", {})}
        return types.ElicitResult(action="accept", content=content or None)

    async def _list_roots(self, context: Any) -> types.ListRootsResult:
        del context
        self.asked.append(("roots/list", None))
        return types.ListRootsResult(roots=self.roots)

    async def _log(self, params: Any) -> None:
        del params  # it is heard as a message too

    async def _hear(self, message: Any) -> None:
        if isinstance(message, BaseModel):
            self.heard.append((str(getattr(message, "method", "")), plain(getattr(message, "params", None))))

    def told(self, method: str) -> list[Any]:
        """What was heard by this method."""
        return [params for name, params in self.heard if name == method]

    def asked_for(self, method: str) -> list[Any]:
        """What the server asked by this method."""
        return [params for name, params in self.asked if name == method]

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **further: Any) -> Any:
        """Call a tool; an error of the protocol is an answer too."""
        return await answered(self.client.call_tool(tool, arguments or {}, **further))


def run(rows_of: Callable[[Full], Awaitable[dict[str, Any]]], limit_s: float = LIMIT_S) -> None:
    """Connect as the command line says, `MODE COMMAND ARGS...`, and print what is seen, by feature, as JSON."""

    async def main() -> None:
        warnings.simplefilter("ignore")
        full = Full(sys.argv[2:], sys.argv[1])
        async with full.client:
            with anyio.fail_after(limit_s):
                rows = await rows_of(full)
        sys.stdout.write(json.dumps(rows))

    anyio.run(main)


def plain(value: Any) -> Any:
    """A value of the SDK's as JSON, without what is minted anew for each run."""
    if isinstance(value, BaseModel):
        return without_ids(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return value


def without_ids(value: Any) -> Any:
    match value:
        case str():
            return _MINTED.sub("(id)", value)
        case dict():
            return {name: without_ids(one) for name, one in value.items() if name != "progressToken"}
        case list():
            return [without_ids(one) for one in value]
        case _:
            return value


async def answered(asking: Any) -> Any:
    """What is answered; an error of JSON-RPC as such."""
    try:
        return plain(await asking)
    except MCPError as error:
        return {"error": plain(error.error)}


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it does not, in time.
    """
    with anyio.fail_after(LIMIT_S):
        while not holds():
            await anyio.sleep(0.01)
