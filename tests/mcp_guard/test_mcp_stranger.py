"""What a stranger found who knew the README and docs/mcp.md alone, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import LIMIT_S, SERVER, Guarded
from mcp_guard.served import Served, Upstream
from mcp_guard.test_mcp_stdio import state, text

from intentlog import Log


def line(id_: Any = 1, tool: str = "act", **params: Any) -> bytes:
    call = {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": tool, "arguments": {}, **params}}
    return json.dumps(call).encode() + b"\n"


def guard(folder: Path, *options: str, server: list[str]) -> list[str]:
    return [sys.executable, "-m", "intentlog", "mcp", "--log", str(folder / "log.db"), *options, "--", *server]


def wait_until_recorded(folder: Path, kind: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        if (folder / "log.db").exists():
            with Log.open(folder / "log.db", read_only=True) as log:
                if any(entry.kind == kind for entry in log.tail(20)):
                    return
        time.sleep(0.02)
    pytest.fail(f"no {kind} was recorded")


@pytest.mark.parametrize("guards_between", [0, 1])
def test_a_client_leaves_before_it_is_told_and_the_guard_ends_in_order(tmp_path: Path, guards_between: int) -> None:
    """What nobody was told stays known, however many guards come and go: an equal call is told, and not sent."""
    witness = tmp_path / "witness"
    server = [sys.executable, str(SERVER), str(witness)]
    options = ("--server", "witness")
    with subprocess.Popen(
        guard(tmp_path, *options, server=server), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as left:
        assert left.stdin is not None
        assert left.stdout is not None
        left.stdin.write(line(tool="slow", arguments={"seconds": 0.5}))
        left.stdin.flush()
        left.stdout.close()
        wait_until_recorded(tmp_path, "Committed")
        left.stdin.close()
        assert left.wait(20) == 0
    for _ in range(guards_between):
        with Guarded(tmp_path) as guarded:
            assert text(guarded.call("act")) == "act "
            assert guarded.end() == 0
    with Guarded(tmp_path) as guarded:
        answers = [guarded.call("slow", {"seconds": 0.5}) for _ in range(2)]
        assert [state(one) for one in answers] == ["done", ""]
        assert guarded.end() == 0


PROBES = {
    "APPLIED": (
        '{"answer": "APPLIED", "result": {"content": [{"type": "text", "text": "asked"}]}}',
        ["asked", "asked"],
        1,
    ),
    "NOT_APPLIED": ('{"answer": "NOT_APPLIED"}', ["in_doubt", "in_doubt"], 2),
    "UNKNOWN": ('{"answer": "UNKNOWN"}', ["in_doubt", "in_doubt"], 1),
    "nonsense": ("maybe", ["in_doubt", "in_doubt"], 1),
}


@pytest.mark.parametrize("answer", PROBES)
def test_a_probe_is_asked(tmp_path: Path, answer: str) -> None:
    """A command that reads what is asked in JSON, and whose answer settles the call; or leaves it in doubt."""
    said, expected, happened = PROBES[answer]
    asked = tmp_path / "asked"
    probe = f"import sys; open({str(asked)!r}, 'w').write(sys.stdin.read()); print({said!r})"
    rule = {"effect": "QUERYABLE", "settle_s": 0.05, "time_limit_s": 0.5, "probe": [sys.executable, "-c", probe]}
    members = "\n".join(f"{name} = {json.dumps(value)}" for name, value in rule.items())
    (tmp_path / "rules.toml").write_text(f"[tools.hang]\n{members}\n")
    options = ("--branch", "b", "--rules", str(tmp_path / "rules.toml"))
    with Guarded(tmp_path, *options) as guarded:
        assert state(guarded.call("hang", {"a": 1}, "k")) == "in_doubt"
        assert guarded.end() == 0
    time.sleep(1.0)
    with Guarded(tmp_path, *options) as guarded:
        found = [guarded.call("hang", {"a": 1}, "k") for _ in range(2)]
        assert [state(one) or text(one) for one in found] == expected
        request_ids = {one["request_id"] for one in guarded.calls()}
        assert len(guarded.calls()) == happened
        assert guarded.end() == 0
    question = json.loads(asked.read_text())
    assert (question["tool"], question["arguments"], {question["request_id"]}) == ("hang", {"a": 1}, request_ids)


def test_a_call_that_waits_behind_one_of_its_key(tmp_path: Path) -> None:
    """The client closes its end, and the guard comes to its own, though the second was never sent."""
    mute = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    keyed = {"_meta": {"io.intentlog/step": "k"}}
    asked = line(1, **keyed) + line(2, **keyed)
    done = subprocess.run(
        guard(tmp_path, "--branch", "b", server=mute), input=asked, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert sorted(json.loads(one)["id"] for one in done.stdout.splitlines()) == [1, 2]


REPLIES = {
    "half a surrogate pair": '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\\ud83d"}]}}',
    "NaN": '{"jsonrpc":"2.0","id":1,"result":{"n":NaN}}',
    "a number that is too large": '{"jsonrpc":"2.0","id":1,"result":{"n":1e400}}',
    "an array": '[{"jsonrpc":"2.0","id":1,"result":{}}]',
    "its id as a text": '{"jsonrpc":"2.0","id":"1","result":{}}',
    "its id twice": '{"jsonrpc":"2.0","id":1,"id":1,"result":{}}',
    "a method beside it": '{"jsonrpc":"2.0","id":1,"method":"x","result":{}}',
    "a byte order mark": '\ufeff{"jsonrpc":"2.0","id":1,"result":{}}',
    "other letters": '{"jsonrpc":"2.0","id":1,"Result":{}}',
    "an error that is none": '{"jsonrpc":"2.0","id":1,"result":{},"error":null}',
    "deeper than a reader goes": f'{{"jsonrpc":"2.0","id":1,"result":{{"x":{"[" * 1000}"]}}"{"]" * 1000}}}}}',
    "deeper still": f'{{"jsonrpc":"2.0","x":",\\"","id":1,"result":{{"x":{"[" * 50_000}{"]" * 50_000}}}}}',
    "deep, in an array": f'[{{"jsonrpc":"2.0","id":1,"result":{{"x":{"[" * 5_000}{"]" * 5_000}}}}}]',
}


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_in_odd_dress_is_recorded_before_it_is_told(tmp_path: Path, reply: str) -> None:
    """Whatever a client may take for the reply; asked for again with its key, the call is done."""
    server = [
        sys.executable,
        "-c",
        f"import sys; sys.stdin.readline(); print({REPLIES[reply]!r}, flush=True); sys.stdin.read()",
    ]
    with Guarded(tmp_path, "--branch", "b", command=server) as guarded:
        guarded.write(line(1, _meta={"io.intentlog/step": "k"}))
        told = guarded.read_line()
        assert "result" in told.decode("utf-8", "surrogatepass").casefold()
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()
        assert sum(entry.kind == "Committed" for entry in log.tail(20)) == 1


@pytest.mark.parametrize("target", ["URL", "*", "mcp", "/mcp#f"])
def test_an_odd_target_of_a_request(tmp_path: Path, target: str) -> None:
    """What a proxy's client sends is the path in it; what is no path is refused. Nothing is in doubt."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        client = HTTPConnection(served.url.split("/")[2], timeout=20)
        client.request("POST", served.url if target == "URL" else target, line(1), {"content-type": "application/json"})
        answer = client.getresponse()
        answer.read()
        client.close()
        reached = len(upstream.calls())
        assert (answer.status, reached) in {(200, 1), (400, 0)}
        assert (reached == 1) == (target == "URL")
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


@pytest.mark.parametrize("member", ["io.intentlog/step", "io.intentlog/branch"])
@pytest.mark.parametrize("value", [1042, True, "", ["a"]], ids=repr)
def test_what_names_a_call_is_a_text(tmp_path: Path, member: str, value: Any) -> None:
    """A number in its place would be taken for none: two orders would be one, or one call be made twice."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        answer = guarded.call("act", {}, "" if member.endswith("step") else "k", **{member: value})
        assert answer["error"]["code"] == -32602
        assert not guarded.calls()
        assert guarded.end() == 0


def test_a_key_in_a_header_needs_one(tmp_path: Path) -> None:
    """Between pipes there is none: the call would be repeated without its key."""
    (tmp_path / "rules.toml").write_text('[tools.a]\neffect = "KEYED"\nwindow_s = 60\nkey_header = "Key"\n')
    command = guard(tmp_path, "--rules", str(tmp_path / "rules.toml"), server=["true"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "key_argument" in done.stderr) == (1, True)


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """So the guard ends, and without a word of its own."""
    command = guard(tmp_path, server=["sh", "-c", "kill -9 $$"])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (-9, b"")


def test_a_secret_in_the_depth(tmp_path: Path) -> None:
    """What is redacted is not written, wherever it stands and however it is spelt."""
    (tmp_path / "rules.toml").write_text('[tools.act]\nredact = ["card"]\n')
    arguments = {"payment": {"card": "4242-SECRET"}, "all": [{"Card": "4343-SECRET"}], "what": "x"}
    with Guarded(tmp_path, "--rules", str(tmp_path / "rules.toml")) as guarded:
        assert text(guarded.call("act", arguments)) == "act x"
        assert guarded.calls()[0]["arguments"] == arguments
        assert guarded.end() == 0
    assert not any(b"SECRET" in path.read_bytes() for path in tmp_path.glob("log.db*") if path.is_file())


def test_a_signal_while_the_client_reads_nothing(tmp_path: Path) -> None:
    """The server has ended by it, and so does the guard; what it could not tell is known afterwards."""
    server = [sys.executable, str(SERVER), str(tmp_path / "witness")]
    command = guard(tmp_path, "--server", "witness", server=server)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stuck:
        assert stuck.stdin is not None
        stuck.stdin.write(line(1, "big", arguments={"bytes": 1 << 20}))
        stuck.stdin.flush()
        wait_until_recorded(tmp_path, "Committed")
        stuck.terminate()
        assert stuck.wait(20) in {-15, 128 + 15}
    with Guarded(tmp_path) as guarded:
        assert state(guarded.call("big", {"bytes": 1 << 20})) == "done"
        assert guarded.end() == 0


def test_who_cannot_be_read_is_answered_by_its_id(tmp_path: Path) -> None:
    with Guarded(tmp_path) as guarded:
        guarded.write(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"act","arguments":{"n":NaN}}}\n')
        assert guarded.answer(7)["error"]["code"] == -32700
        assert guarded.end() == 0
