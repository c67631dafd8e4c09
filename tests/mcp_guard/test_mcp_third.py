"""What a third stranger found, who read the guard's source, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import SERVER, Guarded
from mcp_guard.served import Served, Upstream, messages
from mcp_guard.test_mcp_stdio import state, text
from mcp_guard.test_mcp_stranger import guard, line, wait_until_recorded

from intentlog import BranchBusy, Log
from intentlog.mcp.attempts import Attempts

# --- a client that is gone, and asks again elsewhere ----------------------------------------------------------------


SLOW = (
    "import json, sys, time\nfor line in sys.stdin:\n    asked = json.loads(line)\n    time.sleep(3)\n"
    "    open(sys.argv[1], 'a').write(json.dumps(asked['params']) + '\\n')\n"
    "    print(json.dumps({'id': asked['id'], 'result': {'content': []}}), flush=True)\n"
)


@pytest.mark.parametrize("is_sent", [False, True], ids=["before it is sent", "later"])
def test_a_client_dies_while_its_call_is_made_and_asks_another_guard(tmp_path: Path, *, is_sent: bool) -> None:
    """The old guard still waits for its server: the call is not sent by the new one, which tells what came of it."""
    slow = [sys.executable, "-c", SLOW, str(tmp_path / "witness")]
    with Guarded(tmp_path, command=slow) as old, Guarded(tmp_path, command=slow) as new:
        old.ask("tools/call", {"name": "act", "arguments": {}})
        if is_sent:
            wait_until_recorded(tmp_path, "Dispatched")
        old.close()
        assert old.process.stdout is not None
        old.process.stdout.close()
        wait_until_recorded(tmp_path, "Dispatched")  # before that nobody could know of it
        time.sleep(0.2)
        assert state(new.call("act")) == "done"
        assert len(new.calls()) == 1
        assert new.end() == 0


def test_two_clients_side_by_side(tmp_path: Path) -> None:
    """CONTROL: a call whose client waits for it holds up nobody: an equal one of another client is made."""
    with Guarded(tmp_path) as one, Guarded(tmp_path) as other:
        asked = one.ask("tools/call", {"name": "act", "arguments": {"after": 1.0}})
        one.wait_for_calls(1)
        assert text(other.call("act", {"after": 1.0})) == "act "
        assert text(one.answer(asked)) == "act "
        assert len(one.calls()) == 2
        assert (one.end(), other.end()) == (0, 0)


def test_what_one_guard_has_told_another_one_does_not_tell_again(tmp_path: Path) -> None:
    """They learn from the log what nobody was told, and that somebody was: of two repeats the second is made."""
    with Guarded(tmp_path) as one, Guarded(tmp_path) as other:
        other.call("act", {"n": 0})  # it runs, and has read what was noted before
        asked = one.ask("tools/call", {"name": "act", "arguments": {"n": 1, "after": 0.5}})
        one.wait_for_calls(2)
        one.tell("notifications/cancelled", {"requestId": asked})
        time.sleep(1.0)  # its reply comes late, and settles it
        assert state(other.call("act", {"n": 1, "after": 0.5})) == "done"
        time.sleep(0.5)  # that it was told is on record soon
        assert text(one.call("act", {"n": 1, "after": 0.5})) == "act "
        assert len(one.calls()) == 3
        assert (one.end(), other.end()) == (0, 0)


@contextmanager
def left_behind(served: Served, session: str, tool: str, arguments: dict[str, Any], **meta: Any) -> Iterator[None]:
    """A call of a session whose client has hung up."""
    asked = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
    body = json.dumps(served.request("tools/call", asked, id_=1)).encode()
    host = served.url.split("/")[2]
    head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nMcp-Session-Id: {session}\r\n"
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1]))) as client:
        client.sendall(head.encode() + b"Accept: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        yield
    time.sleep(0.3)


@pytest.mark.parametrize("key", ["k", ""], ids=["with a key", "without"])
def test_a_client_that_begins_a_new_session_in_the_middle_of_its_call(tmp_path: Path, key: str) -> None:
    """In a session the call goes on: the equal call of the new one waits for it, and is answered by its outcome."""
    meta = {"io.intentlog/step": key} if key else {}
    body = '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"said"}]}}'
    arguments = {"body": body, "type": "application/json", "after": 2.0}
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        with left_behind(served, "A", "say", arguments, **meta):
            upstream.wait_for_calls(1)
        asked = {"name": "say", "arguments": arguments, "_meta": meta}
        answer = messages(served.post(served.request("tools/call", asked, id_=1), mcp_session_id="B"))[-1]
        assert text(answer) == "said"
        assert len(upstream.calls()) == 1


def test_a_handle_whose_client_was_gone(tmp_path: Path) -> None:
    """Nobody asks for its end: the equal call of a new session is given it, and no second task is made."""
    handle = '{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"t-1","status":"working"}}'
    arguments = {"body": handle, "type": "application/json", "after": 0.5}
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        with left_behind(served, "A", "say", arguments):
            upstream.wait_for_calls(1)
        time.sleep(0.5)
        asked = {"name": "say", "arguments": arguments}
        served.post(served.request("tools/call", asked, id_=1), mcp_session_id="B")
        assert len(upstream.calls()) == 1


def test_a_cancelled_call_and_its_equal_at_the_same_moment(tmp_path: Path) -> None:
    """I4: whatever comes first, the reply or the cancellation, what nobody was told of is not sent again."""
    chance = random.Random(1)
    with Guarded(tmp_path) as guarded:
        for number in range(60):
            arguments = {"n": number, "after": 0.01}
            before = len(guarded.calls())
            asked = guarded.ask("tools/call", {"name": "act", "arguments": arguments})
            guarded.wait_for_calls(before + 1)
            time.sleep(chance.uniform(0.004, 0.014))
            guarded.tell("notifications/cancelled", {"requestId": asked})
            guarded.call("act", arguments)
            was_told = any(one.get("id") == asked for one in guarded.heard)
            assert len(guarded.calls()) == before + 1 + was_told, number
        assert guarded.end() == 0


# --- batches --------------------------------------------------------------------------------------------------------


def batch(*calls: tuple[Any, dict[str, Any]]) -> bytes:
    return b"[" + b",".join(line(id_, arguments=arguments).strip() for id_, arguments in calls) + b"]\n"


def test_a_batch_of_which_one_call_is_cancelled(tmp_path: Path) -> None:
    """The array comes without it, and the other call is told."""
    with Guarded(tmp_path) as guarded:
        guarded.write(batch((1, {"n": 1}), (2, {"n": 2, "after": 20.0})))
        guarded.wait_for_calls(2)
        guarded.tell("notifications/cancelled", {"requestId": 2})
        assert [one["id"] for one in guarded.read()] == [1]
        guarded.process.kill()


def test_a_batch_whose_guard_is_killed_before_its_array_is_out(tmp_path: Path) -> None:
    """A reply that was only gathered is told to nobody: the equal call is not sent."""
    with Guarded(tmp_path) as guarded:
        guarded.write(batch((1, {"n": 1}), (2, {"n": 2, "after": 20.0})))
        guarded.wait_for_calls(2)
        time.sleep(0.7)
        guarded.process.kill()
    with Guarded(tmp_path) as guarded:
        assert state(guarded.call("act", {"n": 1})) == "done"
        assert len(guarded.calls()) == 2
        assert guarded.end() == 0


def test_a_batch_with_a_call_that_cannot_be_answered_and_a_read(tmp_path: Path) -> None:
    """The call without an id is not made, and the array does not wait for it; a read's reply stands in it."""
    with Guarded(tmp_path, "--trust-annotations") as guarded:
        guarded.answer(guarded.ask("tools/list", {}))
        parts = [line(1, arguments={}).strip(), line(None, arguments={}).strip(), line(2, "look").strip()]
        guarded.write(b"[" + b",".join(parts) + b"]\n")
        assert sorted(one["id"] for one in guarded.read()) == [1, 2]
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


# --- tasks ----------------------------------------------------------------------------------------------------------


def test_a_handle_that_comes_late(tmp_path: Path) -> None:
    """It is no outcome then either: of the call nothing is known until the server says so."""
    call = {"name": "task", "arguments": {"after": 0.5}, "task": {"ttl": 60000}}
    with Guarded(tmp_path, "--branch", "b") as guarded:
        asked = guarded.ask("tools/call", call)
        guarded.wait_for_calls(1)
        guarded.tell("notifications/cancelled", {"requestId": asked})
        time.sleep(1.0)
        assert guarded.answer(guarded.ask("tools/call", call))["result"]["task"]["status"] == "working"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


def test_a_result_of_a_task_that_cannot_be_kept(tmp_path: Path) -> None:
    """The call is done without a value; what the server answers to the guard's own question stays with the guard."""
    call = {"name": "task", "arguments": {}, "task": {"ttl": 60000}, "_meta": {"io.intentlog/step": "k"}}
    with Guarded(tmp_path, "--branch", "b") as guarded:
        guarded.answer(guarded.ask("tools/call", call))
        (tmp_path / "witness.over").write_text("unkept")
        asked = guarded.ask("tasks/result", {"taskId": "t-1"})
        assert guarded.read_line() == b'{"jsonrpc":"2.0","id":%d,"result":{"n":NaN}}' % asked
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


# --- what else ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mcp/", "/%6dcp", "//mcp", "/other"])
def test_a_call_in_the_dress_of_a_form(tmp_path: Path, path: str) -> None:
    """A server may look at neither path nor content type: what a reader of JSON finds there is guarded everywhere."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        url = served.url.removesuffix("/mcp") + path
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = served.http.post(url, content=b"\xef\xbb\xbf " + line(), headers=kind)
        assert answer.status_code == 400
        assert served.http.post(url, content=line(), headers=kind).status_code in (200, 307)
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert any(entry.kind == "Dispatched" for entry in log.tail(10))


def test_a_branch_that_another_guard_holds_holds_up_nobody_else(tmp_path: Path) -> None:
    """Calls of other branches go on meanwhile, and those of this one wait side by side."""
    with Guarded(tmp_path, "--branch", "held") as holder, Log.open(tmp_path / "log.db") as log:
        holder.call("act")
        attempts = Attempts(log, timedelta(seconds=2))
        took_s: list[float] = []

        def ask() -> None:
            begun_s = time.monotonic()
            with pytest.raises(BranchBusy), attempts.of("held"):
                pass
            took_s.append(time.monotonic() - begun_s)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        begun_s = time.monotonic()
        with attempts.of("free"):
            other_s = time.monotonic() - begun_s
        for thread in threads:
            thread.join()
        attempts.close()
        assert other_s < 1.5
        assert max(took_s) < 3.5


@pytest.mark.parametrize("said", [b"{bad\n", b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}\n'])
def test_a_client_that_reads_nothing_any_more_says_something_odd(tmp_path: Path, said: bytes) -> None:
    """It is answered to nobody, and the guard ends in order."""
    own = [sys.executable, str(SERVER), str(tmp_path / "witness")]
    with subprocess.Popen(
        guard(tmp_path, server=own), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as left:
        assert left.stdin is not None
        assert left.stdout is not None
        assert left.stderr is not None
        left.stdout.close()
        left.stdin.write(said)
        left.stdin.close()
        assert left.wait(20) == 0
        assert left.stderr.read() == b""


def test_nobody_reads_what_the_guard_complains_of(tmp_path: Path) -> None:
    """Its client lives, and is answered."""
    own = [sys.executable, str(SERVER), str(tmp_path / "witness")]
    reads, writes = os.pipe()
    with subprocess.Popen(
        guard(tmp_path, server=own), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writes
    ) as lonely:
        os.close(writes)
        os.close(reads)
        assert lonely.stdin is not None
        assert lonely.stdout is not None
        lonely.stdin.write(line(None) + line(2))
        lonely.stdin.close()
        assert json.loads(lonely.stdout.read())["id"] == 2
        assert lonely.wait(20) == 0


RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
ANSWERS = {
    "a false length": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(RESULT), RESULT),
    "another coding": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: br\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(RESULT), RESULT),
    "no place": b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers everything with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("method", ["tools/call", "ping"])
def test_an_odd_answer_of_http(tmp_path: Path, answer: str, method: str) -> None:
    """What the client is given is what the server said; where that leads nowhere, the guard says so."""
    with answering(ANSWERS[answer]) as url, Served(tmp_path, url) as served:
        asked = served.request(method, {"name": "act", "arguments": {}}, id_=1)
        if answer == "no place":
            told = served.post(asked)
            assert told.status_code in (200, 502)
            assert ("in_doubt" if method == "tools/call" else "no place") in told.text
        else:
            with served.http.stream("POST", served.url, json=asked) as response:
                assert b"".join(response.iter_raw()) == RESULT
                assert response.headers.get("content-encoding") == ("br" if answer == "another coding" else None)
        served.process.terminate()
        assert served.process.wait(20) == 0
        assert served.process.stderr is not None
        assert served.process.stderr.read() == ""
