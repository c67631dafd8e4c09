"""The pump between pipes: what it guards, what it passes, and what it refuses to pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import SERVER, Guarded, NoAnswer

from intentlog import Log


def text(answer: Any) -> str:
    found: str = answer["result"]["content"][0]["text"]
    return found


def state(answer: Any) -> str:
    found: str = answer["result"].get("_meta", {}).get("io.intentlog/state", "")
    return found


# --- what passes, and how it ends -----------------------------------------------------------------------------------

ECHO = (
    "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line)\n    sys.stdout.buffer.flush()\n"
    "sys.stderr.write('bye')\nsys.exit(5)"
)
PASSED = [
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    b'{"id" : 1.50 ,"method":"x/y", "params":{"b":[1e2, 10000000000000000000000], "a":"\\u00e9\xc3\xa9"}}\n',
    b"\n",
    b'  {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}  \n',
    b'{"jsonrpc":"2.0","id":"a","result":{"method":"tools/call"}}\n',
    b'[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"}]\n',
    b'"tools/call"\n',
    b'{"jsonrpc":"2.0","id":4,"method":"tools/call2","params":{}}\r\n',
]


def test_what_is_no_call_passes_as_it_came(tmp_path: Path) -> None:
    """Byte for byte, in order, both ways; the server's words on stderr and its exit code too."""
    with Guarded(tmp_path, command=[sys.executable, "-c", ECHO]) as guarded:
        guarded.write(b"".join(PASSED))
        guarded.close()
        got = guarded.everything()
        assert guarded.process.wait(20) == 5
    assert got == b"".join(PASSED).replace(b"\r\n", b" \n")


def test_a_server_that_a_signal_ended(tmp_path: Path) -> None:
    """So does the guard end, for whoever looks; a signal to the guard is passed on."""
    with Guarded(tmp_path) as guarded:
        guarded.call("act")
        guarded.process.send_signal(signal.SIGTERM)
        assert guarded.process.wait(20) == -signal.SIGTERM
    with Log.open(tmp_path / "log.db") as log:
        assert log.verify().ok
        assert not log.open_intents()
        assert not log.unfinished()


def test_a_server_that_cannot_be_started(tmp_path: Path) -> None:
    with Guarded(tmp_path, command=["/no/such/server"]) as guarded:
        assert guarded.process.wait(20) == 127


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act","arguments":{"x":NaN}}}\n',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping","params":{"name":"act"}}\n',
        b'{"jsonrpc":"2.0","id":1,"m\\u0065thod":"tools/call","method":"ping","params":{"name":"act"}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r{"jsonrpc":"2.0","id":2,"method":"tools/call"}\n',
        b'[[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}]]\n',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}',
        b'{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"act"}}\n',
        b"nonsense\n",
    ],
    ids=[
        "NaN",
        "byte order mark",
        "twice",
        "escaped twice",
        "two on a line",
        "batch in a batch",
        "cut",
        "in other letters",
        "nonsense",
    ],
)
def test_what_another_reader_could_take_for_a_call_is_refused(tmp_path: Path, line: bytes) -> None:
    """No call passes unguarded by being written so that only the server understands it."""
    with Guarded(tmp_path) as guarded:
        guarded.write(line)
        guarded.close()
        assert guarded.read()["error"]["code"] == -32700
        assert guarded.process.wait(20) == 0
        assert not guarded.calls()


def test_a_call_inside_another_message_stays_there(tmp_path: Path) -> None:
    """Python ends a line at a carriage return too: in the server, the middle one would be a call of its own."""
    line = b'{"jsonrpc":"2.0","id":8,"method":"ping","params":\r{"jsonrpc":"2.0","id":9,"method":"tools/call",'
    with Guarded(tmp_path) as guarded:
        guarded.write(line + b'"params":{"name":"act"}}\r}\n')
        assert guarded.read() == {"jsonrpc": "2.0", "id": 8, "result": {}}
        assert guarded.end() == 0
        assert not guarded.calls()


@pytest.mark.parametrize(
    "params", [{}, {"name": 3}, {"name": "act", "arguments": [1]}, {"name": "look", "Name": "act"}]
)
def test_a_call_that_is_none(tmp_path: Path, params: Any) -> None:
    with Guarded(tmp_path) as guarded:
        assert guarded.answer(guarded.ask("tools/call", params))["error"]["code"] == -32602
        guarded.tell("tools/call", {"name": "act"})  # nobody could be told what became of it
        assert guarded.end() == 0
        assert not guarded.calls()


# --- calls ----------------------------------------------------------------------------------------------------------


def test_the_key_goes_with_the_call(tmp_path: Path) -> None:
    """The request id stands in `_meta`, and where the rules say so in an argument, whatever a model put there."""
    (tmp_path / "rules.toml").write_text('[tools."a*"]\neffect = "KEYED"\nwindow_s = 86400\nkey_argument = "key"\n')
    with Guarded(tmp_path, "--branch", "b", "--rules", str(tmp_path / "rules.toml")) as guarded:
        guarded.call("act", {"what": "x", "key": "mine"}, "k")
        guarded.call("act", {"what": "x", "key": "other"}, "k")
        guarded.call("act", {"what": "y"}, "k2")
        assert guarded.end() == 0
    one, two = guarded.calls()
    assert one["arguments"] == {"what": "x", "key": one["request_id"]}
    assert two["request_id"] == two["arguments"]["key"] != one["request_id"]


def test_a_model_cannot_name_its_step(tmp_path: Path) -> None:
    """Identity comes from `_meta` alone, and without a stable branch a key is none."""
    with Guarded(tmp_path) as guarded:
        for _ in range(2):
            guarded.call("act", {"io.intentlog/step": "k", "_meta": {"io.intentlog/step": "k"}}, "k")
        assert guarded.end() == 0
    assert len(guarded.calls()) == 2


def test_errors_of_the_server(tmp_path: Path) -> None:
    """Each passes as it came. What says that nothing was done is final; any other may have had an effect."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        assert guarded.call("refuse", {}, "r")["error"] == {"code": -32602, "message": "no such thing"}
        assert "refused" in text(guarded.call("refuse", {}, "r"))
        for _ in range(2):  # it was not looked at: it is sent again
            assert guarded.call("unmet", {}, "u")["error"] == {"code": -32022, "message": "another version"}
        assert guarded.call("fail", {}, "f")["error"] == {"code": -32603, "message": "it broke"}
        assert state(guarded.call("fail", {}, "f")) == "in_doubt"
        assert state(guarded.call("act", {}, "r")) == "not_sent"  # another call under its key
        assert guarded.end() == 0
    assert [one["tool"] for one in guarded.calls()] == ["fail"]


def test_input_that_is_asked_for_first(tmp_path: Path) -> None:
    """`input_required` is no outcome; the leg that brings the input is an operation of its own, with the same key."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        for _ in range(2):
            assert guarded.call("ask", {}, "k")["result"] == {"resultType": "input_required", "requestState": "s-1"}
        leg = {"name": "ask", "arguments": {}, "inputResponses": {"q": 1}, "_meta": {"io.intentlog/step": "k"}}
        answers = [guarded.answer(guarded.ask("tools/call", leg)) for _ in range(2)]
        assert [text(one) for one in answers] == ["asked", "asked"]
        assert guarded.end() == 0
    assert len(guarded.calls()) == 1


PROMPT = (
    "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n"
    "    print(json.dumps({'id': asked['id'], 'result': {'content': []}}), flush=True)\n"
)


def test_a_reply_that_comes_at_once(tmp_path: Path) -> None:
    """It can be there before the guard knows that its call was written: it is recorded before it is passed on."""
    with Guarded(tmp_path, command=[sys.executable, "-c", PROMPT]) as guarded:
        for number in range(200):
            assert guarded.call("act", {"number": number})["result"] == {"content": []}
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert sum(entry.kind == "Committed" for entry in log.tail(2000)) == 200
        assert not log.open_intents()


def test_a_call_that_is_cancelled(tmp_path: Path) -> None:
    """An equal call is in doubt until the server answers late, and is then told of that, once; then it is made."""
    with Guarded(tmp_path) as guarded:
        guarded.call("act")
        slow = guarded.ask("tools/call", {"name": "slow", "arguments": {"seconds": 1.0}})
        guarded.wait_for_calls(2)
        guarded.tell("notifications/cancelled", {"requestId": slow})
        assert state(guarded.call("slow", {"seconds": 1.0})) == "in_doubt"
        time.sleep(1.5)
        assert state(guarded.call("slow", {"seconds": 1.0})) == "done"
        assert len(guarded.calls()) == 2
        assert text(guarded.call("slow", {"seconds": 1.0})) == "slowly"
        assert guarded.end() == 0
        assert not guarded.heard


def test_a_reply_that_came_late_is_told_after_a_restart(tmp_path: Path) -> None:
    """It settled the call, and its client had given that up: an equal call is told of it, once, and not sent."""
    with Guarded(tmp_path) as guarded:
        slow = guarded.ask("tools/call", {"name": "slow", "arguments": {"seconds": 0.5}})
        guarded.wait_for_calls(1)
        guarded.tell("notifications/cancelled", {"requestId": slow})
        time.sleep(1.0)
        guarded.process.kill()
        guarded.process.wait()
    with Guarded(tmp_path) as guarded:
        assert state(guarded.call("slow", {"seconds": 0.5})) == "done"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


def test_a_call_that_takes_too_long(tmp_path: Path) -> None:
    """The time limit of the rules: in doubt, for it and its equals."""
    (tmp_path / "rules.toml").write_text("[tools.hang]\ntime_limit_s = 0.5\n")
    with Guarded(tmp_path, "--rules", str(tmp_path / "rules.toml")) as guarded:
        assert [state(guarded.call("hang")) for _ in range(2)] == ["in_doubt", "in_doubt"]
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


def test_a_hundred_calls_at_once_and_a_large_result(tmp_path: Path) -> None:
    with Guarded(tmp_path) as guarded:
        left = {guarded.ask("tools/call", {"name": "slow", "arguments": {"seconds": 0.5, "n": n}}) for n in range(100)}
        while left:
            left.remove(guarded.read()["id"])
        assert len(text(guarded.call("big", {"bytes": 8 << 20}))) == 8 << 20
        assert guarded.end() == 0
    assert len(guarded.calls()) == 101


def test_a_batch_with_calls_is_answered_as_one(tmp_path: Path) -> None:
    with Guarded(tmp_path) as guarded:
        guarded.write(
            b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}},'
            b'{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"}]\n'
        )
        answers = guarded.read()
        assert sorted(one["id"] for one in answers) == [1, 2]
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert sum(entry.kind == "Committed" for entry in log.tail(100)) == 1


def test_reads_are_not_recorded(tmp_path: Path) -> None:
    """A tool is a read by the rules, or by its server's hints where those are trusted and known."""
    with Guarded(tmp_path, "--trust-annotations") as guarded:
        guarded.call("look", {"what": "before the list"})
        guarded.answer(guarded.ask("tools/list", {}))
        assert text(guarded.call("look", {"what": "x"})) == "look x"
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert sum(entry.kind == "Committed" for entry in log.tail(100)) == 1


def test_a_list_that_changes_is_not_trusted_any_more(tmp_path: Path) -> None:
    """A tool that was a read need not be one after `list_changed`: until the tools are listed again it is UNSAFE."""
    with Guarded(tmp_path, "--trust-annotations") as guarded:
        for asked in ("tools/list", "x/change", "tools/list"):
            guarded.answer(guarded.ask(asked, {}))
            guarded.call("look", {"what": asked})
        assert guarded.end() == 0
        assert {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"} in guarded.heard
    with Log.open(tmp_path / "log.db") as log:
        assert sum(entry.kind == "Committed" for entry in log.tail(100)) == 1


def test_a_server_that_takes_nothing(tmp_path: Path) -> None:
    """Not a byte has left: never sent, and nothing is in doubt."""
    deaf = "import os, time; os.close(0); print('{}', flush=True); time.sleep(2)"
    with Guarded(tmp_path, command=[sys.executable, "-c", deaf]) as guarded:
        assert guarded.read() == {}
        assert state(guarded.call("act")) == "not_sent"
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


def test_a_result_that_is_too_large_to_keep(tmp_path: Path) -> None:
    """It is passed on, and recorded as done without a value; asked for again, nothing is sent."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        assert len(text(guarded.call("big", {"bytes": 65 << 20}, "k"))) == 65 << 20
        again = guarded.call("big", {"bytes": 65 << 20}, "k")
        assert (state(again), len(guarded.calls())) == ("done", 1)
        assert guarded.end() == 0


def test_the_log_of_who_names_none(tmp_path: Path) -> None:
    """A client's configuration need only name the server: the log is the user's own, and nobody else's to read."""
    guard = [sys.executable, "-m", "intentlog", "mcp", "--", sys.executable, str(SERVER), str(tmp_path / "witness")]
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}\n'
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run(guard, input=call, capture_output=True, env=environment, check=True, timeout=30)
    assert b"act" in done.stdout
    found = tmp_path / "data" / "intentlog" / "mcp.db"
    assert (found.stat().st_mode & 0o777, found.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "options",
    [[], ["--http", "0"], ["--upstream", "http://127.0.0.1:1/mcp"], ["--http", "0", "--upstream", "x", "--", "server"]],
)
def test_a_command_line_that_names_no_server_or_two(options: list[str]) -> None:
    guard = [sys.executable, "-m", "intentlog", "mcp", *options]
    done = subprocess.run(guard, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert "--upstream" in done.stderr


def test_secrets_are_not_written(tmp_path: Path) -> None:
    """`redact`: in no byte of the log, and not part of what makes calls equal."""
    (tmp_path / "rules.toml").write_text('[tools.act]\nredact = ["card"]\n')
    with Guarded(tmp_path, "--branch", "b", "--rules", str(tmp_path / "rules.toml")) as guarded:
        guarded.call("act", {"what": "x", "card": "4111-1111-1111-1111"}, "k")
        assert guarded.end() == 0
    assert guarded.calls()[0]["arguments"]["card"] == "4111-1111-1111-1111"
    assert not any(b"4111" in path.read_bytes() for path in tmp_path.glob("log.db*") if path.is_file())


def test_another_guard_holds_the_branch(tmp_path: Path) -> None:
    """Not sent, and says why; of another branch the log is shared."""
    with Guarded(tmp_path, "--branch", "b") as one, Guarded(tmp_path, "--branch", "b") as two:
        assert text(one.call("act", {}, "k")) == "act "
        assert state(two.call("act", {}, "k2")) == "not_sent"
        with pytest.raises(NoAnswer):
            two.read(0.1)
        assert (one.end(), two.end()) == (0, 0)
    assert len(one.calls()) == 1
