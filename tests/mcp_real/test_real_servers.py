"""Seven real servers, directly and through the guard: the same tools, the same answers, the same left behind.

What a server leaves is the witness, outside the log. A call that is asked for again by its key leaves nothing more; one
whose guard was killed is in doubt, and not made a second time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from mcp_real.real_servers import SERVERS, Left, Server, git, without_clock
from mcp_real.wire import NoAnswer, Wire, guarded

from intentlog import Log

STATE, INTENT, REPLAYED = "io.intentlog/state", "io.intentlog/intent", "io.intentlog/replayed"
BODY = b"<html><head><title>Orders</title></head><body><article><h1>Orders</h1><p>Tea, and milk.</p></article></body>"


class Site(ThreadingHTTPServer):
    """Pages to be fetched. What was asked of it is a witness."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200 if self.path == "/page" else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as opened:
        Thread(target=opened.serve_forever, daemon=True).start()
        yield opened
        opened.shutdown()


class Run(NamedTuple):
    """What a client saw, and what a server left.

    Attributes:
        hello: the answer to `initialize`.
        tools: the listed tools.
        answers: to the calls.
        left: what they left.
        fetched: which pages were asked for.
        code: the exit code.
    """

    hello: Any
    tools: Any
    answers: list[Any]
    left: Left
    fetched: list[str]
    code: int


def fresh(folder: Path, server: Server) -> None:
    """The state that every run begins with, in the same place, so that answers name the same paths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    server.prepare(folder)


def run(server: Server, command: Sequence[str], folder: Path, site: Site, *, keys: bool = False) -> Run:
    """Start, list, call, look what it left, end."""
    site.asked.clear()
    with Wire(command, server.environment(folder)) as wire:
        hello = wire.begin()
        tools = wire.ask("tools/list")
        calls = server.calls(folder, site.address)
        answers = [wire.call(tool, given, f"k-{n}" if keys else "") for n, (tool, given) in enumerate(calls)]
        left = server.left(folder, wire)
        code = wire.end()
    masked = [json.loads(without_clock(json.dumps(one))) for one in answers]
    return Run(hello, tools, masked, left, list(site.asked), code)


def is_error(answer: Any) -> bool:
    """Whether it says that the call failed: the server of SQLite says so in a text alone."""
    if "error" in answer or answer["result"].get("isError"):
        return True
    return str(answer["result"]["content"][0].get("text")).startswith(("Database error", "Error: SELECT"))


def as_first_told(answer: Any) -> Any:
    """The answer to a call that is answered from the record, without what the guard says of that."""
    meta = dict(answer["result"]["_meta"])
    assert meta.pop(REPLAYED) is True
    assert "/k-" in meta.pop(INTENT)
    bare = {name: value for name, value in answer["result"].items() if name != "_meta"}
    return {**answer, "result": {**bare, "_meta": meta} if meta else bare}


@pytest.mark.parametrize("name", SERVERS)
def test_a_guarded_server_is_the_server(tmp_path: Path, site: Site, name: str) -> None:
    """Tools, answers, what is left and the exit code are the same, whether each tool is taken for unsafe or as its
    server hints. Asked for again by the same keys, each call that is done is answered as before, and leaves nothing."""
    server, folder, log = SERVERS[name], tmp_path / "state", tmp_path / "log.db"
    command = server.command(folder)
    fresh(folder, server)
    direct = run(server, command, folder, site)
    assert len(direct.tools["result"]["tools"]) == server.tools
    assert [is_error(one) for one in direct.answers].count(True) == server.errors

    fresh(folder, server)
    unsafe = run(server, guarded(log, command, "--branch", "b"), folder, site, keys=True)
    assert unsafe == direct
    assert any(direct.left) or name in ("time", "fetch")

    again = run(server, guarded(log, command, "--branch", "b"), folder, site, keys=True)
    assert (again.left.kept, again.fetched) == (direct.left.kept, [])
    assert again.left.held != direct.left.held or direct.left.held is None
    assert [as_first_told(one) for one in again.answers] == direct.answers

    fresh(folder, server)
    trusting = run(server, guarded(tmp_path / "trusting.db", command, "--trust-annotations"), folder, site)
    assert trusting == direct
    for place in (log, tmp_path / "trusting.db"):
        with Log.open(place) as opened:
            assert opened.verify().ok
            assert not opened.open_intents()
    row = [
        (len(one.tools["result"]["tools"]), len(one.answers), sum(map(is_error, one.answers)))
        for one in (direct, unsafe)
    ]
    cells = " | ".join(f"{of_direct} / {of_guarded}" for of_direct, of_guarded in zip(*row, strict=True))
    print(f"| {name} | {cells} | equal | {len(again.answers)} from the record |")


def killed(server: Server, folder: Path, log: Path, point: str, tool: str, given: dict[str, Any]) -> None:
    """The guard is killed at a failpoint of a call, once the server has answered it."""
    hooks = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": point}
    command = guarded(log, server.command(folder), "--branch", "b")
    with Wire(command, {**server.environment(folder), **hooks}) as wire:
        wire.begin()
        with pytest.raises(NoAnswer, match="it ended"):
            wire.call(tool, given, "k")
        assert wire.process.wait(30) == -9


def asked_twice_more(server: Server, command: Sequence[str], folder: Path, tool: str, given: dict[str, Any]) -> Any:
    """The call, asked for again with the same key, two times. The answers."""
    with Wire(command, server.environment(folder)) as wire:
        wire.begin()
        answers = [wire.call(tool, given, "k") for _ in range(2)]
        assert wire.end() == 0
    return answers


def assert_in_doubt(answers: Any, log: Path) -> None:
    assert [one["result"]["_meta"][STATE] for one in answers] == ["in_doubt", "in_doubt"]
    assert all(one["result"]["isError"] for one in answers)
    with Log.open(log) as opened:
        assert [one.intent_id for one in opened.open_intents()] == [answers[0]["result"]["_meta"][INTENT]]


both_points = pytest.mark.parametrize("point", ["after_call", "before_committed"])


@both_points
def test_a_file_that_may_be_written_is_not_written_again(tmp_path: Path, point: str) -> None:
    """What came to stand in the file meanwhile is still there. Asked without the guard, the retry overwrites it."""
    server, folder, log = SERVERS["filesystem"], tmp_path / "state", tmp_path / "log.db"
    fresh(folder, server)
    file = folder / "order.txt"
    given = {"path": str(file), "content": "one tea"}
    killed(server, folder, log, point, "write_file", given)
    assert file.read_text() == "one tea"
    file.write_text("one tea, and milk")
    answers = asked_twice_more(
        server, guarded(log, server.command(folder), "--branch", "b"), folder, "write_file", given
    )
    assert_in_doubt(answers, log)
    assert file.read_text() == "one tea, and milk"
    asked_twice_more(server, server.command(folder), folder, "write_file", given)
    assert file.read_text() == "one tea"
    print(f"| filesystem write_file, killed {point} | in doubt, in doubt | not written again |")


@both_points
def test_a_commit_that_may_be_made_is_not_made_again(tmp_path: Path, point: str) -> None:
    """What was staged meanwhile is still only staged. Asked without the guard, the retry commits it."""
    server, folder, log = SERVERS["git"], tmp_path / "state", tmp_path / "log.db"
    fresh(folder, server)
    git(folder, "add", "a.txt")
    given = {"repo_path": str(folder), "message": "the order"}
    killed(server, folder, log, point, "git_commit", given)
    assert git(folder, "log", "--format=%s").split("\n") == ["the order", ""]
    (folder / "b.txt").write_text("of the next order\n")
    git(folder, "add", "b.txt")
    answers = asked_twice_more(
        server, guarded(log, server.command(folder), "--branch", "b"), folder, "git_commit", given
    )
    assert_in_doubt(answers, log)
    assert git(folder, "log", "--format=%s").split("\n") == ["the order", ""]
    asked_twice_more(server, server.command(folder), folder, "git_commit", given)
    assert git(folder, "log", "--format=%s").split("\n") == ["the order", "the order", ""]
    print(f"| git git_commit, killed {point} | in doubt, in doubt | one commit |")
