"""A full client of the Python SDK 2.x with a server on the same SDK, in either era: a row for each thing that it does.

    python eras.py MODE COMMAND ARGS...

MODE is what the SDK calls it: `auto` (asks by `server/discover`), `2026-07-28` (asks nothing first) or `legacy` (shakes
hands). Prints a JSON object: what was seen, by feature.
"""

from __future__ import annotations

import re
from typing import Any

import anyio
from full import Full, answered, plain, run, until
from mcp.shared.exceptions import MCPError

STATE = re.compile(r"^.{20,}$")


async def first_leg(full: Full) -> Any:
    """What the server asks for, without answering; then the answer, by hand. Only in the stateless era."""
    session = full.client.session
    asked = await session.call_tool("pay", {"what": "milk"}, allow_input_required=True)
    if getattr(asked, "input_requests", None) is None:
        return [plain(asked)]
    shown = plain(asked)
    shown["requestState"] = bool(STATE.match(shown.pop("requestState", "")))
    answers = {name: {"action": "accept", "content": {"approved": True}} for name in asked.input_requests}
    second = await session.call_tool(
        "pay", {"what": "milk"}, input_responses=answers, request_state=asked.request_state, allow_input_required=True
    )
    return [shown, plain(second)]


async def cancelled(full: Full) -> Any:
    """A call that is given up: the server hears of it, and not only at its end."""
    seen: list[float] = []

    async def see(done: float, total: float | None, message: str | None) -> None:
        del total, message
        seen.append(done)

    async with anyio.create_task_group() as group:

        async def call() -> None:
            await full.client.call_tool("slow", {"what": "coal"}, progress_callback=see)

        group.start_soon(call)
        await until(lambda: seen)
        group.cancel_scope.cancel()
    with anyio.fail_after(30):
        while "cancelled coal" not in str(happened := await answered(full.client.read_resource("orders://all"))):
            await anyio.sleep(0.05)
    return [bool(seen), happened]


async def unknown(full: Full) -> Any:
    return [
        await full.call("no-such-tool"),
        await full.call("order", {"which": 1}),
        await answered(full.client.read_resource("orders://no-such")),
    ]


async def rows_of(full: Full) -> dict[str, Any]:
    client = full.client
    rows: dict[str, Any] = {
        "version": client.protocol_version,
        "server": [plain(client.server_info), plain(client.server_capabilities), client.instructions],
        "server/discover": plain(client.session.discover_result),
        "tools/list": plain(await client.list_tools()),
        "a read": await full.call("look"),
        "a call": await full.call("order", {"what": "tea"}),
        "an equal call, meant": await full.call("order", {"what": "tea"}),
        "a call that breaks": await full.call("fail", {"what": "ice"}),
        "input is required": await full.call("pay", {"what": "tea"}),
        "what was asked": full.asked_for("elicitation/create"),
        "the legs by themselves": await first_leg(full),
        "resources/read": await answered(client.read_resource("orders://all")),
        "unknown": await unknown(full),
        "cancellation": await cancelled(full),
    }
    full.accept = False
    rows["input is declined"] = await full.call("pay", {"what": "coal"})
    try:
        rows["ping"] = plain(await client.send_ping())
    except MCPError as error:
        rows["ping"] = plain(error.error)
    return rows


if __name__ == "__main__":
    run(rows_of, 90)
