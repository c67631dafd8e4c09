"""A client of the Python SDK 2.x that reads every page of every list of a server, and calls a tool of each page.

    python pages.py MODE COMMAND ARGS...

MODE as in `eras.py`. Prints a JSON object: what was seen, by feature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from full import Full, answered, plain, run


async def all_pages(ask: Callable[..., Any]) -> list[Any]:
    """Every page of a list, as it came."""
    pages = []
    cursor = None
    while True:
        page = await ask(cursor=cursor)
        pages.append(plain(page))
        cursor = page.next_cursor
        if cursor is None:
            return pages


async def rows_of(full: Full) -> dict[str, Any]:
    client = full.client
    rows: dict[str, Any] = {
        "pages of tools/list": await all_pages(client.list_tools),
        "pages of resources/list": await all_pages(client.list_resources),
        "pages of resources/templates/list": await all_pages(client.list_resource_templates),
        "pages of prompts/list": await all_pages(client.list_prompts),
        "a page that is not there": await answered(client.list_tools(cursor="to-9")),
    }
    calls = [f"{tool}-{page}" for page in range(3) for tool in ("look", "act")]
    rows["calls of each page's tools"] = [await full.call(one) for one in calls]
    rows["the first page again, then a read of the last"] = [
        plain(await client.list_tools()),
        await full.call("look-2"),
    ]
    return rows


if __name__ == "__main__":
    run(rows_of)
