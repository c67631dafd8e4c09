"""A small MCP server over pipes, which does what a test asks, and writes each call that took effect to a witness.

    python witness_server.py WITNESS

Tools: `act` (takes effect and answers), `idem` (the same, hinted idempotent), `look` (a read), `hang` (takes effect and
never answers), `die` (takes effect and ends), `fail` (takes effect and answers with an error of JSON-RPC), `refuse`
(answers with one that says that nothing was done), `unmet` (wants to be asked in other words), `big` (answers with so
many bytes), `slow` (takes effect, answers after so many seconds), `ask` (asks for input first, in the way of
2026-07-28), `task` (takes effect, and answers with a handle, in the way of the client's era). A task is over once a
file beside the witness says how: `WITNESS.over`; `unkept` is a result that is no sound JSON. Any of them waits between
effect and answer for so many seconds as the argument `after` says.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_out = threading.Lock()
_witness = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
TOOLS = {
    "act": {}, "idem": {"idempotentHint": True}, "look": {"readOnlyHint": True}, "hang": {}, "die": {}, "fail": {},
    "refuse": {}, "big": {}, "slow": {}, "ask": {}, "task": {}, "unmet": {},
}  # fmt: skip


def tell(message: dict[str, Any]) -> None:
    line = (json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode()
    with _out:
        os.write(1, line)


def text(of: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": of}]}


def happens(params: dict[str, Any]) -> None:
    """The effect: a line in the witness, with the key that the call came with."""
    line = {
        "tool": params["name"],
        "arguments": params.get("arguments", {}),
        "request_id": params.get("_meta", {}).get("io.intentlog/request-id"),
    }
    os.write(_witness, (json.dumps(line) + "\n").encode())


def call(id_: Any, params: dict[str, Any]) -> None:
    name, arguments = params["name"], params.get("arguments", {})
    if name not in ("look", "refuse", "ask", "unmet"):
        happens(params)
    time.sleep(arguments.get("after", 0))
    match name:
        case "hang":
            return
        case "die":
            os._exit(3)
        case "fail":
            tell({"id": id_, "error": {"code": -32603, "message": "it broke"}})
        case "refuse":
            tell({"id": id_, "error": {"code": -32602, "message": "no such thing"}})
        case "unmet":
            tell({"id": id_, "error": {"code": -32022, "message": "another version"}})
        case "big":
            tell({"id": id_, "result": text("x" * arguments["bytes"])})
        case "slow":
            time.sleep(arguments["seconds"])
            tell({"id": id_, "result": text("slowly")})
        case "ask":
            if "inputResponses" in params:
                happens(params)
                tell({"id": id_, "result": {**text("asked"), "resultType": "complete"}})
            else:
                tell({"id": id_, "result": {"resultType": "input_required", "requestState": "s-1"}})
        case "task":
            of_2025 = {"task": {"taskId": "t-1", "status": "working", "ttl": 60000}}
            tell({"id": id_, "result": of_2025 if "task" in params else {"resultType": "task", **of_2025["task"]}})
        case "act" | "idem" | "look":
            tell({"id": id_, "result": text(f"{name} {arguments.get('what', '')}")})
        case _:
            tell({"id": id_, "error": {"code": -32602, "message": f"unknown tool {name}"}})


def task(id_: Any, method: str, params: dict[str, Any]) -> None:
    """What became of the task."""
    over = Path(sys.argv[1] + ".over")
    status = over.read_text() if over.exists() else "working"
    if params["taskId"] != "t-1" or (method == "tasks/result" and status == "working"):
        tell({"id": id_, "error": {"code": -32602, "message": "no such task"}})
    elif status == "unkept":
        with _out:
            os.write(1, f'{{"jsonrpc":"2.0","id":{json.dumps(id_)},"result":{{"n":NaN}}}}\n'.encode())
    elif method == "tasks/result":
        tell({"id": id_, "result": text("built")})
    else:
        result = {"result": text("built")} if status == "completed" and "_meta" in params else {}
        tell({"id": id_, "result": {"taskId": "t-1", "status": status, **result}})


def main() -> None:
    for line in sys.stdin:
        if line.isspace():
            continue
        message = json.loads(line)
        if message.get("id") is None or "method" not in message:
            continue
        id_, method, params = message["id"], message["method"], message.get("params", {})
        if method == "tools/call":
            threading.Thread(target=call, args=(id_, params), daemon=True).start()
        elif method == "x/change":
            tell({"method": "notifications/tools/list_changed"})
            tell({"id": id_, "result": {}})
        elif method.startswith("tasks/"):
            task(id_, method, params)
        elif method == "initialize":
            info = {"name": "witness", "version": "1"}
            tell(
                {
                    "id": id_,
                    "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info},
                }
            )
        elif method == "tools/list":
            tools = [{"name": n, "inputSchema": {"type": "object"}, "annotations": a} for n, a in TOOLS.items()]
            tell({"id": id_, "result": {"tools": tools}})
        else:
            tell({"id": id_, "result": {}})


if __name__ == "__main__":
    main()
