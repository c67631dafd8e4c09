"""The features of MCP between a full client (Python SDK 2.x, handshake era) and the everything server: a row for each.

    python features.py MODE COMMAND ARGS...

MODE is `legacy`, or `auto`: the client asks by `server/discover` first, and shakes hands then. Prints a JSON object:
what was seen, by feature. Where the server does not offer one, it says so.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from full import Full, answered, plain, until

LOG, UPDATED = "notifications/message", "notifications/resources/updated"
TEXT, OTHER = "demo://resource/dynamic/text/1", "demo://resource/dynamic/text/2"
NOT_AVAILABLE = "not available"
Row = Callable[[Full], Awaitable[Any]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    """A row of the matrix. They are gone through in the order in which they stand here."""

    def add(function: Row) -> Row:
        ROWS[name] = function
        return function

    return add


@row("initialize")
async def initialize(full: Full) -> Any:
    client = full.client
    return [client.protocol_version, plain(client.server_info), plain(client.server_capabilities), client.instructions]


@row("roots")
async def roots(full: Full) -> Any:
    await until(lambda: any("Roots updated" in str(one) for one in full.told(LOG)))
    return [len(full.asked_for("roots/list")), await full.call("get-roots-list")]


@row("roots list_changed")
async def roots_changed(full: Full) -> Any:
    full.roots.append(types.Root(uri="file:///more", name="more"))
    await full.client.send_roots_list_changed()
    await until(lambda: sum("Roots updated" in str(one) for one in full.told(LOG)) == 2)
    return [len(full.asked_for("roots/list")), await full.call("get-roots-list")]


@row("tools list_changed")
async def tools_changed(full: Full) -> Any:
    return len(full.told("notifications/tools/list_changed"))


@row("tools/list")
async def tools_list(full: Full) -> Any:
    return plain(await full.client.list_tools())


@row("a tool")
async def tool(full: Full) -> Any:
    return await full.call("echo", {"message": "hé\u2028llo"})


@row("structured content")
async def structured(full: Full) -> Any:
    return await full.call("get-structured-content", {"location": "New York"})


@row("image, annotations")
async def image(full: Full) -> Any:
    arguments = {"messageType": "success", "includeImage": True}
    return [await full.call("get-tiny-image"), await full.call("get-annotated-message", arguments)]


@row("resources in a result")
async def resources_in_result(full: Full) -> Any:
    reference = await full.call("get-resource-reference", {"resourceType": "Text", "resourceId": 1})
    return [await full.call("get-resource-links", {"count": 2}), without_time(reference)]


def without_time(value: Any) -> Any:
    """The server's made-up resources name the time at which they were made."""
    match value:
        case dict():
            return {name: without_time(one) for name, one in value.items() if name != "blob"}
        case list():
            return [without_time(one) for one in value]
        case str() if " created at " in value:
            return value.partition(" created at ")[0]
        case _:
            return value


@row("a MiB each way")
async def large(full: Full) -> Any:
    message = "0123456789abcdé\n" * (1 << 16)
    text = (await full.call("echo", {"message": message}))["content"][0]["text"]
    return [len(text), message in text, hashlib.sha256(text.encode()).hexdigest()]


@row("invalid arguments")
async def invalid(full: Full) -> Any:
    return await full.call("get-sum", {"a": "two"})


@row("unknown tool")
async def unknown_tool(full: Full) -> Any:
    return await full.call("no-such-tool")


@row("unknown method")
async def unknown_method(full: Full) -> Any:
    request: Any = types.Request[Any, Any](method="no/such", params=None)
    return await answered(full.client.session.send_request(request, types.EmptyResult))


@row("ping")
async def ping(full: Full) -> Any:
    return await answered(full.client.send_ping())


@row("progress")
async def progress(full: Full) -> Any:
    seen: list[Any] = []

    async def see(done: float, total: float | None, message: str | None) -> None:
        seen.append([done, total, message])

    arguments = {"duration": 0.4, "steps": 4}
    return [await full.call("trigger-long-running-operation", arguments, progress_callback=see), seen]


@row("sampling")
async def sampling(full: Full) -> Any:
    answer = await full.call("trigger-sampling-request", {"prompt": "say it", "maxTokens": 9})
    return [answer, full.asked_for("sampling/createMessage")]


@row("elicitation: a form, accepted")
async def form_accepted(full: Full) -> Any:
    answer = await full.call("trigger-elicitation-request")
    return [answer, full.asked_for("elicitation/create")]


@row("elicitation: a form, declined")
async def form_declined(full: Full) -> Any:
    full.accept = False
    try:
        return await full.call("trigger-elicitation-request")
    finally:
        full.accept = True


@row("elicitation: a page")
async def page(full: Full) -> Any:
    answer = await full.call("trigger-url-elicitation", {"url": "https://example.test/x"})
    return [answer, full.asked_for("elicitation/create")[-1]]


@row("elicitation: required by an error, then asked again")
async def page_required(full: Full) -> Any:
    arguments = {"url": "https://example.test/y", "errorPath": True}
    return [await full.call("trigger-url-elicitation", arguments) for _ in range(2)]


@row("log notifications, from a level on")
async def logging_level(full: Full) -> Any:
    before = len(full.told(LOG))
    answers = [await answered(full.client.set_logging_level("error"))]
    await full.client.subscribe_resource(OTHER)
    await full.client.send_ping()
    below = len(full.told(LOG)) - before
    answers.append(await answered(full.client.set_logging_level("debug")))
    await full.client.unsubscribe_resource(OTHER)
    await until(lambda: len(full.told(LOG)) > before)
    return [answers, below, full.told(LOG)[before:]]


@row("resources/list")
async def resources_list(full: Full) -> Any:
    return plain(await full.client.list_resources())


@row("resources/templates/list")
async def templates_list(full: Full) -> Any:
    return plain(await full.client.list_resource_templates())


@row("resources/read")
async def resources_read(full: Full) -> Any:
    read = full.client.read_resource
    listed = [str(one.uri) for one in (await full.client.list_resources()).resources]
    asked = [*listed, TEXT, "demo://resource/no-such"]
    return [len(listed), [without_time(await answered(read(one))) for one in asked]]


@row("resources list_changed")
async def resources_changed(full: Full) -> Any:
    arguments = {"name": "x.gz", "data": "data:text/plain,abc", "outputType": "resourceLink"}
    link = await full.call("gzip-file-as-resource", arguments)
    await until(lambda: full.told("notifications/resources/list_changed"))
    changed = len(full.told("notifications/resources/list_changed"))
    return [link, changed, plain(await full.client.read_resource("demo://resource/session/x.gz"))]


@row("resources/subscribe, updated")
async def subscribe(full: Full) -> Any:
    answer = await answered(full.client.subscribe_resource(TEXT))
    await full.call("toggle-subscriber-updates")
    await until(lambda: full.told(UPDATED))
    return [answer, full.told(UPDATED)[0]]


@row("resources/unsubscribe")
async def unsubscribe(full: Full) -> Any:
    answer = await answered(full.client.unsubscribe_resource(TEXT))
    await full.call("toggle-subscriber-updates")
    before = len(full.told(UPDATED))
    await full.call("toggle-subscriber-updates")
    await full.client.send_ping()
    return [answer, len(full.told(UPDATED)) - before]


@row("prompts/list")
async def prompts_list(full: Full) -> Any:
    return plain(await full.client.list_prompts())


@row("prompts/get")
async def prompts_get(full: Full) -> Any:
    get = full.client.get_prompt
    asked = [
        get("simple-prompt"),
        get("args-prompt", {"city": "Oslo", "state": "O"}),
        get("completable-prompt", {"department": "Sales", "name": "Eve"}),
        get("args-prompt", {}),
        get("no-such"),
    ]
    return [await answered(one) for one in asked]


@row("completion")
async def completion(full: Full) -> Any:
    prompt = types.PromptReference(type="ref/prompt", name="completable-prompt")
    template = types.ResourceTemplateReference(type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}")
    complete = full.client.complete
    asked = [
        complete(prompt, {"name": "department", "value": "S"}),
        complete(prompt, {"name": "name", "value": ""}, {"department": "Engineering"}),
        complete(template, {"name": "resourceId", "value": "12"}),
    ]
    return [await answered(one) for one in asked]


@row("pagination")
async def pagination(full: Full) -> Any:
    client = full.client
    tools, resources = await client.list_tools(), await client.list_resources()
    templates, prompts = await client.list_resource_templates(), await client.list_prompts()
    cursors = [one.next_cursor for one in (tools, resources, templates, prompts)]
    return NOT_AVAILABLE if cursors == [None] * 4 else cursors


@row("cancellation")
async def cancellation(full: Full) -> Any:
    seen: list[float] = []
    answers: list[Any] = []

    async def see(done: float, total: float | None, message: str | None) -> None:
        del total, message
        seen.append(done)

    async def call() -> None:
        arguments = {"duration": 1.0, "steps": 10}
        answers.append(await full.call("trigger-long-running-operation", arguments, progress_callback=see))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: seen)
        group.cancel_scope.cancel()
    await until(lambda: any(one["progress"] == one["total"] == 10 for one in full.told("notifications/progress")))
    return [answers, bool(seen), await full.call("echo", {"message": "the next one"})]


@row("thirty calls in flight")
async def in_flight(full: Full) -> Any:
    answers: dict[int, Any] = {}

    async def call(number: int) -> None:
        answers[number] = await full.call("get-sum", {"a": number, "b": 1})

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(call, number)
    return [answers[number]["content"][0]["text"] for number in range(30)]


async def main() -> None:
    warnings.simplefilter("ignore")  # much of the handshake era is deprecated in the SDK
    full = Full(sys.argv[2:], sys.argv[1])
    found: dict[str, Any] = {}
    async with full.client:
        for name, function in ROWS.items():
            try:
                with anyio.fail_after(90):
                    found[name] = await function(full)
            except Exception as error:
                found[name] = {"failed": repr(error)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    anyio.run(main)
