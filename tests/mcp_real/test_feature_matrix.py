"""Every feature of MCP over pipes, directly and through the guard: equal, row by row.

A row that is equal because both sides failed would hold nothing: of each is also said what has to be found in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp_real.environment import V2
from mcp_real.real_servers import SERVERS
from mcp_real.task_rows import rows_of
from mcp_real.wire import guarded

from intentlog import Log
from intentlog.core.records import Pending
from intentlog.mcp.rules import read_rules

HERE = Path(__file__).parent
LIMIT_S = 120
NOT_AVAILABLE = {"pagination": "each of the server's lists is one page"}
FEATURES = {
    "initialize": '"listChanged": true}, "resources": {"subscribe": true',
    "roots": "Current MCP Roots (1 total)",
    "roots list_changed": "Current MCP Roots (2 total)",
    "tools list_changed": "5",
    "tools/list": '"simulate-research-query"',
    "a tool": "Echo: h\\u00e9\\u2028llo",
    "structured content": '"structuredContent": {"temperature": 33',
    "image, annotations": '"mimeType": "image/png"',
    "resources in a result": '"resource_link"',
    "a MiB each way": "[1048582, true, ",
    "invalid arguments": '"isError": true',
    "unknown tool": "Tool no-such-tool not found",
    "unknown method": '"code": -32601',
    "ping": "{}",
    "progress": "[[1.0, 4.0, null], [2.0, 4.0, null], [3.0, 4.0, null], [4.0, 4.0, null]]",
    "sampling": '"systemPrompt": "You are a helpful test server."',
    "elicitation: a form, accepted": "Name: A. Person",
    "elicitation: a form, declined": "User declined",
    "elicitation: a page": "User completed the URL elicitation flow",
    "elicitation: required by an error, then asked again": '"code": -32042',
    "log notifications, from a level on": "[[{}, {}], 0, [{",
    "resources/list": '"architecture.md"',
    "resources/templates/list": '"demo://resource/dynamic/text/{resourceId}"',
    "resources/read": '[7, [{"ttlMs"',
    "resources list_changed": '"blob": "H4sI',
    "resources/subscribe, updated": '[{}, {"uri": "demo://resource/dynamic/text/1"}]',
    "resources/unsubscribe": "[{}, 0]",
    "prompts/list": '"completable-prompt"',
    "prompts/get": "What's weather in Oslo, O?",
    "completion": '"values": ["Alice", "Bob", "Charlie"]',
    "pagination": '"not available"',
    "cancellation": "[[], true, {",
    "thirty calls in flight": "The sum of 29 and 1 is 30.",
}
TASKS = {
    "tasks: capability": '"requests": {"tools": {"call": {}}}',
    "tasks: which tools take them": '{"simulate-research-query": "required"}',
    "tasks: a call becomes one": '"result": {"task": {"taskId": "(minted)", "status": "working"',
    "tasks/get at work": '"status": "working"',
    "tasks/list": '"tasks": [{"taskId": "(minted)"',
    "tasks/result, waited for": "# Research Report: tea",
    "tasks/get at the end": '"status": "completed"',
    "tasks/cancel of one that is over": "Cannot cancel task in terminal status: completed",
    "tasks: a call that asks for none": "requires task augmentation",
    "tasks/cancel": '"status": "cancelled"',
    "tasks/get of a cancelled one": '"status": "cancelled"',
    "tasks/get of an unknown one": "Task not found",
    "tasks: input is asked for": '[["elicitation/create"], {',
    "tasks: the result after input": "# Research Report: tea (technical)",
    "tasks of the client: sampling": "[COMPLETED] Async sampling completed!",
    "tasks of the client: elicitation": "[COMPLETED] User provided the requested information!",
    "tasks of the client: what was asked": '"tasks/get", "tasks/get", "tasks/result"',
    "an unknown method": '"code": -32601',
    "an unknown tool": "Tool no-such-tool not found",
    "server/discover": '"code": -32601',
    "a call of the stateless era": "Echo: x",
    "a slower call after one that was cancelled": "Long running operation completed. Duration: 2 seconds",
    "a cancelled call is answered": "false",
    "SIGINT: exit code": "0",
}
ERAS = {
    "server": '"Takes orders."',
    "tools/list": '"readOnlyHint": true',
    "a read": '"structuredContent": {"result": 7}',
    "a call": "ordered tea",
    "an equal call, meant": "ordered tea",
    "a call that breaks": '"isError": true',
    "input is required": "paid for tea: True",
    "what was asked": "Pay for tea?",
    "the legs by themselves": "paid for milk: True",
    "resources/read": "ordered tea\\nordered tea\\n",
    "unknown": "Unknown tool: no-such-tool",
    "cancellation": "begins coal\\ncancelled coal\\n",
    "input is declined": "elicitation was decline",
}
OF_ERA = {
    "auto": {
        "version": '"2026-07-28"',
        "server/discover": '"supportedVersions": ["2026-07-28"]',
        "the legs by themselves": '"resultType": "input_required"',
        "ping": '"code": -32601',
    },
    "2026-07-28": {
        "version": '"2026-07-28"',
        "server": "[null, {}, null]",  # it was asked for nothing that says so
        "server/discover": '"capabilities": {}',
        "the legs by themselves": '"resultType": "input_required"',
        "ping": '"code": -32601',
    },
    "legacy": {"version": '"2025-11-25"', "server/discover": "null", "ping": "{}"},
}
PAGES = {
    "pages of tools/list": '"nextCursor": "to-2", "tools": [{"name": "look-1"',
    "pages of resources/list": '"resources": [{"name": "page 2", "uri": "pages://2"}]',
    "pages of resources/templates/list": '"uriTemplate": "pages://2/{line}"',
    "pages of prompts/list": '"prompts": [{"name": "prompt-2"}]',
    "a page that is not there": '"code": -32602',
    "calls of each page's tools": "act-2 was called",
    "the first page again, then a read of the last": "look-2 was called",
}
HAPPENED = [
    "ordered tea", "ordered tea", "ordered ice, and broke", "paid for tea: True", "paid for milk: True",
    "begins coal", "cancelled coal",
]  # fmt: skip


def seen_by(script: str, *arguments: str) -> dict[str, Any]:
    """What a client saw, in the environment of the SDK 2.x."""
    command = [str(V2), str(HERE / "clients" / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    rows: dict[str, Any] = json.loads(done.stdout)
    return rows


def assert_equal_rows(of: str, direct: Mapping[str, Any], through: Mapping[str, Any], found: Mapping[str, str]) -> None:
    """Each row is equal, and in each is what has to be found."""
    assert list(direct) == list(through)
    assert set(direct) == set(found)
    print(f"| {of} | direct / guarded |")
    for name, row in direct.items():
        text = json.dumps(row)
        assert found[name] in text, name
        assert through[name] == row, name
        print(f"| {name} | {NOT_AVAILABLE.get(name, 'equal')} |")
    assert {name for name, row in direct.items() if row == "not available"} == NOT_AVAILABLE.keys() & direct.keys()


def in_doubt(log: Path) -> list[str]:
    """The tools whose calls are in doubt."""
    with Log.open(log) as opened:
        assert opened.verify().ok
        return [one.tool for one in opened.open_intents()]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_each_feature_of_the_handshake_era(tmp_path: Path, mode: str) -> None:
    """With a full client of the Python SDK 2.x, and the everything server. In doubt is what was cancelled alone."""
    assert len(FEATURES) >= 20
    command = SERVERS["everything"].command(tmp_path)
    direct = seen_by("features.py", mode, *command)
    through = seen_by("features.py", mode, *with_guard(tmp_path, "everything", command))
    assert_equal_rows(f"everything, {mode}", direct, through, FEATURES)
    assert in_doubt(tmp_path / "log.db") == ["everything.trigger-long-running-operation"]


def test_each_request_about_tasks(tmp_path: Path) -> None:
    """Line by line. What was cancelled, call or task, is all that is in doubt."""
    command = SERVERS["everything"].command(tmp_path)
    direct = rows_of(command, {})
    through = rows_of(guarded(tmp_path / "log.db", command, "--server", "everything"), {})
    assert_equal_rows("everything, tasks", direct, through, TASKS)
    tools = ["simulate-research-query", "trigger-long-running-operation"]
    assert in_doubt(tmp_path / "log.db") == [f"everything.{one}" for one in tools]


@pytest.mark.parametrize("mode", OF_ERA)
def test_both_eras_with_a_server_of_the_sdk(tmp_path: Path, mode: str) -> None:
    """The stateless era over pipes, found by `server/discover` or known, and the handshake. The same has happened."""
    rows: list[dict[str, Any]] = []
    for side in ("direct", "guarded"):
        witness = tmp_path / side
        command = [str(V2), str(HERE / "servers" / "orders.py"), str(witness)]
        rows.append(
            seen_by("eras.py", mode, *(command if side == "direct" else with_guard(tmp_path, "orders", command)))
        )
        assert witness.read_text().splitlines() == HAPPENED
    assert_equal_rows(f"orders, {mode}", *rows, ERAS | OF_ERA[mode])
    assert in_doubt(tmp_path / "log.db") == ["orders.slow"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_lists_of_several_pages(tmp_path: Path, mode: str) -> None:
    """Of a server of the SDK that has them. A tool of any page is known by its annotations, as long as it is listed."""
    rows: list[dict[str, Any]] = []
    for side in ("direct", "guarded"):
        witness = tmp_path / side
        command = [str(V2), str(HERE / "servers" / "pages.py"), str(witness)]
        rows.append(
            seen_by(
                "pages.py",
                mode,
                *(command if side == "direct" else with_guard(tmp_path, "pages", command, "--trust-annotations")),
            )
        )
        calls = [f"{tool}-{page}" for page in range(3) for tool in ("look", "act")]
        assert witness.read_text().splitlines() == [*calls, "look-2"]
    assert_equal_rows(f"pages, {mode}", *rows, PAGES)
    assert in_doubt(tmp_path / "log.db") == []
    with Log.open(tmp_path / "log.db") as log:
        recorded = [entry.record.tool for entry in log.tail(100) if isinstance(entry.record, Pending)]
    # A list that was begun anew says nothing of its later pages until those are read again.
    assert recorded == ["pages.act-0", "pages.act-1", "pages.act-2", "pages.look-2"]


def test_rules_are_suggested_for_every_page(tmp_path: Path) -> None:
    """None of a server's tools is left out because it is listed late."""
    server = [str(V2), str(HERE / "servers" / "pages.py"), str(tmp_path / "witness")]
    suggest = [sys.executable, "-m", "intentlog", "mcp", "--suggest", "--", *server]
    (tmp_path / "rules.toml").write_bytes(subprocess.run(suggest, stdout=subprocess.PIPE, check=True).stdout)
    names = {f"{tool}-{page}" for page in range(3) for tool in ("look", "act")}
    assert read_rules(tmp_path / "rules.toml").tools.keys() == names


def with_guard(folder: Path, name: str, command: Sequence[str], *options: str) -> list[str]:
    """The command of a guarded server, for a client that gives its servers few variables of its environment."""
    path = os.environ.get("PYTHONPATH")
    if path is None:
        return guarded(folder / "log.db", command, "--server", name, *options)
    bare = ["env", "-u", "PYTHONPATH", *command]
    return ["env", f"PYTHONPATH={path}", *guarded(folder / "log.db", bare, "--server", name, *options)]
