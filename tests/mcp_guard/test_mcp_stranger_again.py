"""What a second stranger found, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import SERVER, Guarded, NoAnswer
from mcp_guard.served import Served, Upstream
from mcp_guard.test_mcp_stdio import state, text
from mcp_guard.test_mcp_stranger import guard, line

from intentlog import Log

ECHO = (
    "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n"
    "    open(sys.argv[1], 'a').write(line)\n"
    "    print(json.dumps({'id': asked.get('id'), 'result': {'content': []}}), flush=True)\n"
)
CALL = '"method":"tools/call","params":{"name":"act","arguments":{}}'
OUT_OF_RANGE = {
    "method twice, once out of range": f'{{"method":1e400,"jsonrpc":"2.0","id":1,{CALL}}}',
    "id": f'{{"jsonrpc":"2.0","id":1e400,{CALL}}}',
    "id, negative": f'{{"jsonrpc":"2.0","id":-1e999,{CALL}}}',
    "id of many digits": f'{{"jsonrpc":"2.0","id":{"9" * 5_001},{CALL}}}',
    "in the id": f'{{"jsonrpc":"2.0","id":{{"a":1e400}},{CALL}}}',
    "in a batch": f'[{{"jsonrpc":"2.0","id":1e400,{CALL}}}]',
}


@pytest.mark.parametrize("asked", OUT_OF_RANGE)
def test_a_number_that_only_some_readers_have_room_for(tmp_path: Path, asked: str) -> None:
    """A call that has one where the guard looks is refused, as all that only some can read: it passed as no message."""
    seen = tmp_path / "seen"
    with Guarded(tmp_path, command=[sys.executable, "-c", ECHO, str(seen)]) as guarded:
        guarded.write(OUT_OF_RANGE[asked].encode() + b"\n")
        assert guarded.read()["error"]["code"] == -32700
        assert guarded.end() == 0
    assert not seen.exists()


@pytest.mark.parametrize("asked", ["id", "in a batch"])
def test_such_a_number_over_http(tmp_path: Path, asked: str) -> None:
    """The same, for a request that brings it."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        assert served.post(OUT_OF_RANGE[asked].encode()).status_code == 400
        assert not upstream.calls()


@pytest.mark.parametrize("request_id", ["1e400", '"\\ud800"', "[1]", "null"])
def test_a_cancellation_of_what_cannot_be_read(tmp_path: Path, request_id: str) -> None:
    """It is of no call of the guard's, passes, and ends nothing."""
    with Guarded(tmp_path) as guarded:
        cancel = f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{request_id}}}}}\n'
        guarded.write(cancel.encode())
        assert text(guarded.call("act")) == "act "
        assert guarded.end() == 0


def test_a_key_that_is_null_is_none(tmp_path: Path) -> None:
    """As if it was not there: a client may write its members whether it has them or not."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        assert text(guarded.call("act", {}, **{"io.intentlog/step": None})) == "act "
        assert guarded.end() == 0


BOTH = '{"jsonrpc":"2.0","id":1,"result":{"content":[]},"error":{"code":-32602,"message":"no"}}'


def test_a_reply_with_a_result_and_an_error(tmp_path: Path) -> None:
    """Its readers take it for the one or the other: the client is told that nothing is known, and nothing else."""
    server = f"import sys; sys.stdin.readline(); print({BOTH!r}, flush=True); sys.stdin.read()"
    with Guarded(tmp_path, "--branch", "b", command=[sys.executable, "-c", server]) as guarded:
        assert state(guarded.call("act", {}, "k")) == "in_doubt"
        assert state(guarded.call("act", {}, "k")) == "in_doubt"
        assert guarded.end() == 0


STREAM = "text/event-stream"
SAID = {
    "both, in one piece": (BOTH, "application/json", "in_doubt"),
    "both, in a stream": (f"data: {BOTH}\n\n", STREAM, "in_doubt"),
    "no error, in a stream": (BOTH.replace('{"code":-32602,"message":"no"}', "null"), "application/json", ""),
    "a byte order mark": ('\ufeffdata: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n\n', STREAM, ""),
    "deep, in a stream": (
        f'data: {{"jsonrpc":"2.0","id":1,"result":{{"content":[],"x":{"[" * 990}{"]" * 990}}}}}\n\n',
        STREAM,
        "",
    ),
}


@pytest.mark.parametrize("said", SAID)
def test_a_reply_in_odd_dress_over_http(tmp_path: Path, said: str) -> None:
    """What the client can take for a result is recorded first; what it can take for two things is not passed on."""
    body, kind, expected = SAID[said]
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        call = {"name": "say", "arguments": {"body": body, "type": kind}, "_meta": {"io.intentlog/step": "k"}}
        told = served.post(served.request("tools/call", call, id_=1)).text
        assert ("in_doubt" in told) == bool(expected)
        assert told.count('"id":1') == 1
        assert (body in told) == (not expected)
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert bool(log.open_intents()) == bool(expected)


def test_a_reply_behind_a_carriage_return(tmp_path: Path) -> None:
    """There are readers to which that ends a line: it is recorded before it is told."""
    said = '{"method":"notifications/x"}\r{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
    inside = '{"method":"notifications/x","params":[\r{"jsonrpc":"2.0","id":1,"result":{"content":[]}}\r]}'
    server = f"import sys; sys.stdin.readline(); print({inside!r}); print({said!r}, flush=True); sys.stdin.read()"
    with Guarded(tmp_path, command=[sys.executable, "-c", server]) as guarded:
        guarded.write(line())
        came = [guarded.read_line() for _ in range(3)]
        assert came[0] == inside.replace("\r", " ").encode()  # the same to who reads JSON, and one line to everybody
        assert [*came[1:]] == [one.encode() for one in said.split("\r")]
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


def test_the_last_word_of_a_dying_server_is_half_a_line(tmp_path: Path) -> None:
    """The guard's own answer stands in a line of its own, or nobody could read it."""
    half = 'read x; printf \'{"jsonrpc":"2.0","id":1,"res\''
    with Guarded(tmp_path, command=["sh", "-c", half]) as guarded:
        guarded.write(line())
        assert guarded.read_line() == b'{"jsonrpc":"2.0","id":1,"res'
        assert state(guarded.read()) == "in_doubt"


@pytest.mark.parametrize(
    "option", ["--branch=", "--server=", "--key-meta=", "--server=a/b", f"--server={'x' * 101}", "--branch=a\nb"]
)
def test_a_name_that_names_nothing(tmp_path: Path, option: str) -> None:
    """A variable of a shell that is not set: no branch at all would let a call with a key be made again."""
    done = subprocess.run(
        guard(tmp_path, option, server=["cat"]), stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, option.partition("=")[0] in done.stderr.decode()) == (2, True)
    assert not (tmp_path / "log.db").exists()


def test_who_was_told_is_on_record_soon(tmp_path: Path) -> None:
    """Also when nothing follows: killed a second later, the guard leaves nothing that would swallow a repeat."""
    with Guarded(tmp_path) as guarded:
        assert text(guarded.call("act")) == "act "
        time.sleep(1.0)
        guarded.process.kill()
    with Guarded(tmp_path) as guarded:
        assert text(guarded.call("act")) == "act "
        assert len(guarded.calls()) == 2
        assert guarded.end() == 0


def test_a_probe_that_answers_twice(tmp_path: Path) -> None:
    """It says nothing: of two readers each would take another answer."""
    said = '{"answer": "APPLIED", "answer": "NOT_APPLIED"}'
    rule = {"effect": "QUERYABLE", "settle_s": 0.05, "time_limit_s": 0.5, "probe": ["echo", said]}
    members = "\n".join(f"{name} = {json.dumps(value)}" for name, value in rule.items())
    (tmp_path / "rules.toml").write_text(f"[tools.hang]\n{members}\n")
    options = ("--branch", "b", "--rules", str(tmp_path / "rules.toml"))
    with Guarded(tmp_path, *options) as guarded:
        assert state(guarded.call("hang", {}, "k")) == "in_doubt"
        time.sleep(1.0)
        assert state(guarded.call("hang", {}, "k")) == "in_doubt"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


HEARS = """
import os, signal, threading
from intentlog.mcp.hearing import hearing_signals
heard = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: heard.set())
def work():
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    return heard.wait(20)
print(hearing_signals(work))
"""


def test_a_signal_that_another_thread_is_given() -> None:
    """The kernel may give it to any: it is heard by the main thread, whatever that waits for."""
    done = subprocess.run([sys.executable, "-c", HEARS], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (b"True\n", b"")


def test_a_client_that_leaves_and_a_guard_that_ends_say_nothing_on_stderr(tmp_path: Path) -> None:
    """No task of the guard's is left behind in a stream that its client has closed."""
    with Upstream(tmp_path, "--stream") as upstream, Served(tmp_path, upstream.url) as served:
        call = served.request("tools/call", {"name": "slow", "arguments": {"seconds": 1.0}})
        with served.http.stream("POST", served.url, json=call, headers={"accept": STREAM}) as response:
            next(response.iter_lines())
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
        assert served.process.stderr is not None
        assert served.process.stderr.read() == ""


def test_a_relative_log_is_named_so_that_any_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in an answer is run by a person, who stands elsewhere."""
    monkeypatch.chdir(tmp_path)
    own = [sys.executable, str(SERVER), str(tmp_path / "witness")]
    command = [sys.executable, "-m", "intentlog", "mcp", "--log", "l.db", "--branch", "b", "--", *own]
    told: list[Any] = []
    for _ in range(2):
        done = subprocess.run(command, input=line(tool="die"), capture_output=True, timeout=30, check=False)
        told += [json.loads(one) for one in done.stdout.splitlines()]
    assert [state(one) for one in told] == ["in_doubt", "in_doubt"]
    assert f"intentlog resolve {tmp_path / 'l.db'} " in text(told[1])


def test_a_call_is_not_answered_by_a_guard_that_was_killed(tmp_path: Path) -> None:
    """CONTROL of what is read above: a guard that is gone answers nothing."""
    with Guarded(tmp_path) as guarded:
        guarded.process.kill()
        with pytest.raises((NoAnswer, BrokenPipeError)):
            guarded.call("act")
