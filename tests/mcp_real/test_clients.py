"""Real clients before the guard: what they are told after a restart, in their own terms, and how often it happened.

Each is a process of its own, as the guard is, and the server behind it, whose witness says what happened. None of them
knows of the guard: a key in `_meta` is all that it is given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp_guard.served import Served, Upstream
from mcp_real.conformance_suite import everything, guarded
from mcp_real.environment import JS, NODE, V1, V2

CLIENTS = Path(__file__).parent / "clients"
PYTHON_1 = [str(V1), str(CLIENTS / "python_1.py")]
PYTHON_2 = [str(V2), str(CLIENTS / "python_2.py")]
TYPESCRIPT = [str(NODE), str(CLIENTS / "typescript.cjs"), str(JS)]
PYDANTIC_AI = [str(V2), str(CLIENTS / "pydantic_ai_agent.py")]
OPENAI_AGENTS = [str(V2), str(CLIENTS / "openai_agents.py")]
ALL = {
    "python-sdk-1": PYTHON_1,
    "python-sdk-2": PYTHON_2,
    "typescript-sdk": TYPESCRIPT,
    "pydantic-ai": PYDANTIC_AI,
    "openai-agents": OPENAI_AGENTS,
}
OVER_HTTP = {"python-sdk-2": PYTHON_2, "typescript-sdk": TYPESCRIPT}
TELLS_ERRORS = {"python-sdk-1", "python-sdk-2", "typescript-sdk", "pydantic-ai"}
"""OpenAI Agents tells its model the text of a result alone, and not that it is an error."""
TOOLS = ["act", "idem", "look", "hang", "die", "fail", "refuse", "big", "slow", "ask", "task", "unmet"]
LIMIT_S = 90.0


class Told(NamedTuple):
    """What a client was told of its call, and what its process, the guard and the server wrote to stderr."""

    found: dict[str, Any]
    stderr: str

    @property
    def text(self) -> str:
        return self.found.get("text") or ""


def ask(client: list[str], *target: str, tool: str = "act", crash_at: str = "") -> Told:
    """Let a client call a tool with the key `k`. It returns when the client, the guard and the server have ended."""
    environment = {**os.environ, "INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": crash_at}
    if not crash_at:
        del environment["INTENTLOG_CRASH_AT"]
    ended = subprocess.run(
        [*client, "k", tool, *target], capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return Told(json.loads(ended.stdout), ended.stderr)


def between_pipes(folder: Path) -> list[str]:
    """The command that a client starts: the guard before the witness server."""
    guard = [sys.executable, "-m", "intentlog", "mcp", "--log", str(folder / "log.db"), "--branch", "b"]
    server = Path(__file__).parents[1] / "mcp_guard" / "witness_server.py"
    return [*guard, "--server", "witness", "--", sys.executable, str(server), str(folder / "witness")]


def calls(folder: Path) -> int:
    """How often it happened."""
    return len((folder / "witness").read_text().splitlines())


def assert_in_doubt(name: str, told: Told) -> None:
    """A client was told in its own terms that nobody knows, and what its model must not do."""
    assert "may already have happened" in told.text
    assert "Do not call it again" in told.text
    assert "intentlog resolve" in told.text
    assert "raised" not in told.found
    assert bool(told.found.get("is_error")) == (name in TELLS_ERRORS)
    assert told.stderr == ""


@pytest.mark.parametrize("name", ALL)
def test_a_key_is_answered_from_the_record(tmp_path: Path, name: str) -> None:
    """By a new guard, to a new client, which lists the tools, calls, and ends without a word on stderr."""
    command = between_pipes(tmp_path)
    first, again = ask(ALL[name], *command), ask(ALL[name], *command)
    assert first.found["tools"] == again.found["tools"]
    assert set(first.found["tools"]) == set(TOOLS)
    assert (first.text, again.text) == ("act x", "act x")
    assert (first.stderr, again.stderr) == ("", "")
    assert not {"raised"} & {*first.found, *again.found}
    if "meta" in first.found:
        assert first.found["meta"] is None
        assert again.found["meta"]["io.intentlog/replayed"] is True
    assert calls(tmp_path) == 1


@pytest.mark.parametrize("name", ALL)
def test_the_guard_is_killed_after_the_call(tmp_path: Path, name: str) -> None:
    """Its client hears nothing of the outcome. When it asks again it is told so, and nothing is sent."""
    command = between_pipes(tmp_path)
    killed = ask(ALL[name], *command, crash_at="after_call")
    assert set(killed.found["tools"]) == set(TOOLS)
    assert "raised" in killed.found or killed.text == "Connection closed"
    assert calls(tmp_path) == 1
    assert_in_doubt(name, ask(ALL[name], *command))
    assert calls(tmp_path) == 1


@pytest.mark.parametrize("name", OVER_HTTP)
def test_a_key_over_http(tmp_path: Path, name: str) -> None:
    with Upstream(tmp_path, "--stream", "--sessions") as upstream:
        told = []
        for _ in range(2):
            with Served(tmp_path, upstream.url, "--branch", "b") as served:
                told.append(ask(OVER_HTTP[name], served.url))
                assert served.end() == 0
        assert [one.text for one in told] == ["act x", "act x"]
        assert [one.stderr for one in told] == ["", ""]
        assert not any("raised" in one.found for one in told)
        assert [sorted(one.found["tools"]) for one in told] == [["act", "look"]] * 2
        assert told[1].found["meta"]["io.intentlog/replayed"] is True
        assert len(upstream.calls()) == 1


@pytest.mark.parametrize("name", OVER_HTTP)
def test_the_guard_over_http_is_killed_after_the_call(tmp_path: Path, name: str) -> None:
    with Upstream(tmp_path, "--stream", "--sessions") as upstream:
        with Served(tmp_path, upstream.url, "--branch", "b", crash_at="after_call") as served:
            killed = ask(OVER_HTTP[name], served.url)
            assert served.process.wait(LIMIT_S) == -9
        assert "raised" in killed.found
        assert len(upstream.calls()) == 1
        with Served(tmp_path, upstream.url, "--branch", "b") as served:
            assert_in_doubt(name, ask(OVER_HTTP[name], served.url))
            assert served.end() == 0
        assert len(upstream.calls()) == 1


@pytest.mark.parametrize(("name", "version"), [("python-sdk-2", "2026-07-28"), ("typescript-sdk", None)])
def test_the_newest_era_that_both_speak(tmp_path: Path, name: str, version: str | None) -> None:
    """A client as it comes, and a server made with the SDK: the guard keeps them from nothing that they agree upon."""
    with everything(tmp_path / "server") as server:
        for is_again in (False, True):
            with guarded(tmp_path / "log.db", server.url, "--branch", "b", "--server", "s") as url:
                told = ask(OVER_HTTP[name], url, tool="test_simple_text")
            assert told.found.get("version") == version
            assert len(told.found["tools"]) > 25
            assert told.text == "This is a simple text response for testing."
            assert told.stderr == ""
            assert "raised" not in told.found
            assert ("io.intentlog/replayed" in (told.found["meta"] or {})) == is_again
        assert len(server.calls()) == 1


def test_killed_in_the_newest_era(tmp_path: Path) -> None:
    """What the guard says in the place of a server is a result of that era: the SDK takes it for one."""
    with everything(tmp_path / "server") as server:
        with Served(tmp_path, server.url, "--branch", "b", crash_at="after_call") as served:
            killed = ask(PYTHON_2, served.url, tool="test_simple_text")
            assert served.process.wait(LIMIT_S) == -9
        assert "raised" in killed.found
        assert len(server.calls()) == 1
        with Served(tmp_path, server.url, "--branch", "b") as served:
            told = ask(PYTHON_2, served.url, tool="test_simple_text")
            assert served.end() == 0
        assert (killed.found["version"], told.found["version"]) == ("2026-07-28", "2026-07-28")
        assert_in_doubt("python-sdk-2", told)
        assert len(server.calls()) == 1
