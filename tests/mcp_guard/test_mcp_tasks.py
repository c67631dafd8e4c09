"""Tasks: a handle is no outcome. It is durable before the client has it; after a crash the server is asked by it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import Guarded, NoAnswer
from mcp_guard.test_mcp_stdio import state, text

from intentlog import Log

STATELESS = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
OF_ERA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "2025-11-25": ({"task": {"ttl": 60000}}, {"task": {"taskId": "t-1", "status": "working", "ttl": 60000}}),
    "2026-07-28": (
        {"_meta": STATELESS},
        {"resultType": "task", "taskId": "t-1", "status": "working", "ttl": 60000},
    ),
}
both_eras = pytest.mark.parametrize("era", OF_ERA)
with_and_without_key = pytest.mark.parametrize("key", ["k", ""], ids=["with a key", "without"])


def call(guarded: Guarded, era: str, key: str) -> Any:
    asked = OF_ERA[era][0]
    meta = {**asked.get("_meta", {}), **({"io.intentlog/step": key} if key else {})}
    params = {"name": "task", "arguments": {}, **asked, **({"_meta": meta} if meta else {})}
    return guarded.answer(guarded.ask("tools/call", params))


def over(folder: Path, status: str) -> None:
    (folder / "witness.over").write_text(status)


def open_intents(folder: Path) -> int:
    with Log.open(folder / "log.db") as log:
        assert log.verify().ok
        return len(log.open_intents())


@both_eras
@with_and_without_key
def test_the_guard_is_killed_once_the_handle_is_out(tmp_path: Path, era: str, key: str) -> None:
    """The call is not made again: its handle is given again while the server is at it, and once it is done the log has
    its result, which `tasks/get` brought."""
    handle = OF_ERA[era][1]
    with Guarded(tmp_path, "--branch", "b") as guarded:
        assert call(guarded, era, key)["result"] == handle
        guarded.process.kill()
        guarded.process.wait()
    with Guarded(tmp_path, "--branch", "b") as guarded:
        assert call(guarded, era, key)["result"] == handle
        over(tmp_path, "completed")
        done = call(guarded, era, key)["result"]
        assert done.get("task", done)["status"] == "completed"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0
    assert open_intents(tmp_path) == 0
    with Log.open(tmp_path / "log.db") as log:
        assert any(entry.payload == {"content": [{"type": "text", "text": "built"}]} for entry in log.tail(100))


@both_eras
@with_and_without_key
@pytest.mark.parametrize("point", ["before_call", "after_call"])
def test_the_guard_is_killed_before_the_handle_is_out(tmp_path: Path, era: str, key: str, point: str) -> None:
    """Before the server gave one: in doubt. Behind that it is durable, and the client gets it, who never had it."""
    with Guarded(tmp_path, "--branch", "b", crash_at=point) as guarded:
        with suppress(NoAnswer):
            call(guarded, era, key)
        assert guarded.process.wait(20) == -9
    with Guarded(tmp_path, "--branch", "b") as guarded:
        answer = call(guarded, era, key)
        if point == "before_call":
            assert (state(answer), len(guarded.calls())) == ("in_doubt", 0)
        else:
            assert (answer["result"], len(guarded.calls())) == (OF_ERA[era][1], 1)
        assert guarded.end() == 0


@both_eras
def test_what_the_client_is_told_settles_the_call(tmp_path: Path, era: str) -> None:
    """It polls as it would without the guard; the result that it is told is recorded. A repeat while the task is at
    work is another call."""
    method = "tasks/result" if era == "2025-11-25" else "tasks/get"
    meta = {"_meta": STATELESS} if era == "2026-07-28" else {}
    with Guarded(tmp_path, "--branch", "b") as guarded:
        call(guarded, era, "")
        call(guarded, era, "")
        assert len(guarded.calls()) == 2
        call(guarded, era, "k")
        over(tmp_path, "completed")
        told = guarded.answer(guarded.ask(method, {"taskId": "t-1", **meta}))["result"]
        assert told.get("result", told) == {"content": [{"type": "text", "text": "built"}]}
        assert guarded.end() == 0
    assert open_intents(tmp_path) == 2  # of the two that had the same handle nothing else was heard


@both_eras
@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_task_that_failed(tmp_path: Path, era: str, status: str) -> None:
    """In 2025-11-25 its result says how; without one, a person is asked."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        call(guarded, era, "k")
        over(tmp_path, status)
        answer = call(guarded, era, "k")
        assert guarded.end() == 0
    if era == "2025-11-25":
        assert answer["result"]["task"]["status"] == status
        assert open_intents(tmp_path) == 0
    else:
        assert state(answer) == "in_doubt"
        assert open_intents(tmp_path) == 1


def test_a_task_is_done_for_a_client_that_takes_none(tmp_path: Path) -> None:
    """Asked for again without a task, the call is answered with its result; until there is one it is in doubt."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        call(guarded, "2025-11-25", "k")
        assert state(guarded.call("task", {}, "k")) == "in_doubt"
        over(tmp_path, "completed")
        assert text(guarded.call("task", {}, "k")) == "built"
        assert guarded.end() == 0
