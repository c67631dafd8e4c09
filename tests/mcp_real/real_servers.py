"""The seven real servers: how each is started, what is asked of it, and what that leaves behind.

What a server leaves is its witness: files, a history, rows, requests that a page was fetched by. It is outside the log.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mcp_real.environment import JS, NODE, V1
from mcp_real.wire import Wire

Calls = Sequence[tuple[str, Mapping[str, Any]]]
_CLOCK = re.compile(
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d 20\d\d \d\d:\d\d:\d\d GMT[+-]\d{4} \([^)]*\)|"
    r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?"
)
WHEN = "2026-01-02T03:04:05+0000"
GIT = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.test", "GIT_AUTHOR_DATE": WHEN,
    "GIT_COMMITTER_NAME": "C", "GIT_COMMITTER_EMAIL": "c@example.test", "GIT_COMMITTER_DATE": WHEN,
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


class Left(NamedTuple):
    """What calls left.

    Attributes:
        kept: what outlasts the server's process.
        held: what is gone with it; None if it holds nothing.
    """

    kept: Any = None
    held: Any = None


class Server(NamedTuple):
    """A server.

    Attributes:
        command: starts it, by the folder that is its state.
        environment: what it needs there, by the folder.
        prepare: makes the state.
        calls: of tools, by the folder (and the address of a page).
        errors: how many of the calls are answered with an error.
        tools: how many it lists.
        left: what the calls left.
    """

    command: Callable[[Path], list[str]]
    environment: Callable[[Path], dict[str, str]]
    prepare: Callable[[Path], None]
    calls: Callable[[Path, str], Calls]
    errors: int
    tools: int
    left: Callable[[Path, Wire], Left]


def without_clock(text: str) -> str:
    """A text, with what a clock says taken out."""
    return _CLOCK.sub("(a clock)", text)


def files_in(folder: Path) -> dict[str, str]:
    """Each file, by its digest."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    environment = {**GIT, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def _javascript(package: str, *arguments: str) -> list[str]:
    return [str(NODE), str(JS / "@modelcontextprotocol" / package / "dist" / "index.js"), *arguments]


def _nothing(folder: Path) -> dict[str, str]:
    del folder
    return {}


def _files(folder: Path) -> None:
    (folder / "a.txt").write_text("one\ntwo\n")


def _repository(folder: Path) -> None:
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "a.txt").write_text("one\n")


def filesystem_calls(folder: Path, page: str) -> Calls:
    del page
    a, b, c = (str(folder / name) for name in ("a.txt", "b.txt", "sub/c.txt"))
    return [
        ("read_text_file", {"path": a}),
        ("write_file", {"path": b, "content": "written é\r\n"}),
        ("edit_file", {"path": a, "edits": [{"oldText": "two", "newText": "three"}]}),
        ("create_directory", {"path": str(folder / "sub")}),
        ("move_file", {"source": b, "destination": c}),
        ("directory_tree", {"path": str(folder)}),
        ("read_multiple_files", {"paths": [a, c, b]}),
        ("get_file_info", {"path": c}),
        ("read_text_file", {"path": "/etc/passwd"}),
        ("move_file", {"source": b, "destination": c}),
        ("edit_file", {"path": a}),
    ]


def memory_calls(folder: Path, page: str) -> Calls:
    del folder, page
    one, two = ({"name": name, "entityType": "order", "observations": [f"{name} came"]} for name in ("o-1", "o-2"))
    return [
        ("create_entities", {"entities": [one, two]}),
        ("create_relations", {"relations": [{"from": "o-1", "to": "o-2", "relationType": "follows"}]}),
        ("add_observations", {"observations": [{"entityName": "o-1", "contents": ["paid"]}]}),
        ("delete_observations", {"deletions": [{"entityName": "o-2", "observations": ["o-2 came"]}]}),
        ("read_graph", {}),
        ("search_nodes", {"query": "paid"}),
        ("add_observations", {"observations": [{"entityName": "o-9", "contents": ["?"]}]}),
        ("delete_entities", {"entityNames": ["o-2"]}),
        ("open_nodes", {"names": ["o-1"]}),
    ]


def everything_calls(folder: Path, page: str) -> Calls:
    del folder, page
    return [
        ("echo", {"message": "hé\u2028\u0000llo"}),
        ("get-sum", {"a": 2, "b": 40.5}),
        ("get-structured-content", {"location": "Chicago"}),
        ("get-tiny-image", {}),
        ("get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("get-resource-links", {"count": 3}),
        ("gzip-file-as-resource", {"name": "x.gz", "data": "data:text/plain,abc", "outputType": "resource"}),
        ("get-sum", {"a": "two"}),
        ("no-such-tool", {}),
    ]


def git_calls(folder: Path, page: str) -> Calls:
    del page
    here = {"repo_path": str(folder)}
    return [
        ("git_status", here),
        ("git_add", {**here, "files": ["a.txt"]}),
        ("git_diff_staged", here),
        ("git_commit", {**here, "message": "first"}),
        ("git_commit", {**here, "message": "nothing is staged"}),
        ("git_create_branch", {**here, "branch_name": "next"}),
        ("git_checkout", {**here, "branch_name": "next"}),
        ("git_log", here),
        ("git_show", {**here, "revision": "HEAD"}),
        ("git_show", {**here, "revision": "no-such"}),
    ]


def time_calls(folder: Path, page: str) -> Calls:
    del folder, page
    return [
        ("get_current_time", {"timezone": "Etc/UTC"}),
        ("convert_time", {"source_timezone": "Etc/UTC", "time": "12:30", "target_timezone": "Asia/Kolkata"}),
        ("convert_time", {"source_timezone": "Etc/UTC", "time": "25:30", "target_timezone": "Asia/Kolkata"}),
        ("get_current_time", {"timezone": "No/Where"}),
    ]


def fetch_calls(folder: Path, page: str) -> Calls:
    del folder
    return [
        ("fetch", {"url": f"{page}/page"}),
        ("fetch", {"url": f"{page}/page", "raw": True, "max_length": 20}),
        ("fetch", {"url": f"{page}/missing"}),
        ("fetch", {"url": f"{page}/page", "max_length": 0}),
    ]


def sqlite_calls(folder: Path, page: str) -> Calls:
    del folder, page
    return [
        ("create_table", {"query": "CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)"}),
        ("write_query", {"query": "INSERT INTO orders (what) VALUES ('tea'), ('milk')"}),
        ("read_query", {"query": "SELECT * FROM orders"}),
        ("write_query", {"query": "UPDATE orders SET what = 'cream' WHERE id = 2"}),
        ("list_tables", {}),
        ("describe_table", {"table_name": "orders"}),
        ("append_insight", {"insight": "tea sells"}),
        ("read_query", {"query": "SELECT * FROM nowhere"}),
        ("write_query", {"query": "SELECT 1"}),
    ]


def _files_left(folder: Path, wire: Wire) -> Left:
    del wire
    return Left(files_in(folder))


def _resource_left(folder: Path, wire: Wire) -> Left:
    """A resource that a call has made, or the error without one."""
    del folder
    answer = wire.ask("resources/read", {"uri": "demo://resource/session/x.gz"})
    return Left(held=answer.get("result") or answer["error"])


def _history_left(folder: Path, wire: Wire) -> Left:
    del wire
    asked = (["log", "--all", "--format=%H %s"], ["branch"], ["status", "--porcelain"])
    return Left([git(folder, *one) for one in asked])


def _rows_left(folder: Path, wire: Wire) -> Left:
    memo = wire.ask("resources/read", {"uri": "memo://insights"})["result"]
    with sqlite3.connect(folder / "orders.db") as database:
        return Left(database.execute("SELECT * FROM orders").fetchall(), memo)


def _no_state(folder: Path) -> None:
    del folder


SERVERS = {
    "filesystem": Server(
        lambda folder: _javascript("server-filesystem", str(folder)),
        _nothing, _files, filesystem_calls, 3, 14, _files_left,
    ),
    "memory": Server(
        lambda _: _javascript("server-memory"),
        lambda folder: {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
        _no_state, memory_calls, 1, 9, _files_left,
    ),
    "everything": Server(
        lambda _: _javascript("server-everything", "stdio"),
        _nothing, _no_state, everything_calls, 2, 13, _resource_left,
    ),
    "git": Server(
        lambda folder: [str(V1), "-m", "mcp_server_git", "--repository", str(folder)],
        lambda _: GIT, _repository, git_calls, 2, 12, _history_left,
    ),
    "time": Server(
        lambda _: [str(V1), "-m", "mcp_server_time", "--local-timezone", "Etc/UTC"],
        _nothing, _no_state, time_calls, 2, 2, _files_left,
    ),
    "fetch": Server(
        lambda _: [str(V1), "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"],
        lambda folder: {"PATH": str(folder)},  # with a node it installs what it likes, and says so among its messages
        _no_state, fetch_calls, 2, 1, _files_left,
    ),
    "sqlite": Server(
        lambda folder: [str(V1.parent / "mcp-server-sqlite"), "--db-path", str(folder / "orders.db")],
        _nothing, _no_state, sqlite_calls, 2, 6, _rows_left,
    ),
}  # fmt: skip
