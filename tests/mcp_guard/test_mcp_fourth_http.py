"""What a fourth stranger found over HTTP, who read the guard's source, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from mcp_guard.served import BOTH, LIMIT_S, Served, Upstream, messages
from mcp_guard.test_mcp_http import state, text

from intentlog import Log
from intentlog.mcp.rules import RulesUnreadable, read_rules


def address(served: Served) -> tuple[str, int]:
    host, port = served.url.split("/")[2].split(":")
    return host, int(port)


def left_in_its_call(served: Served, upstream: Upstream, body: bytes, session: str) -> None:
    """A client hangs up while its call is made."""
    host, port = address(served)
    with socket.create_connection((host, port)) as client:
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nAccept: {BOTH}\r\n"
        client.sendall(f"{head}Mcp-Session-Id: {session}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        upstream.wait_for_calls(1)
    time.sleep(0.5)


def test_another_guard_hears_that_a_client_is_gone(tmp_path: Path) -> None:
    """It asks there again: its call is not sent, and it is told what came of it (I3)."""
    with (
        Upstream(tmp_path, "--sessions") as upstream,
        Served(tmp_path, upstream.url) as one,
        Served(tmp_path, upstream.url) as other,
    ):
        call = one.request("tools/call", {"name": "slow", "arguments": {"seconds": 2}})
        left_in_its_call(one, upstream, json.dumps(call).encode(), "s-1")
        assert state(other.call("slow", {"seconds": 2}, mcp_session_id="s-2")) == "done"
        assert len(upstream.calls()) == 1


@contextmanager
def asking(served: Served, call: object, session: str) -> Iterator[list[httpx2.Response]]:
    """A client that waits for the answer to a call meanwhile."""
    answers: list[httpx2.Response] = []

    def ask() -> None:
        with suppress(httpx2.HTTPError):
            headers = {"accept": BOTH, "mcp-session-id": session}
            answers.append(httpx2.post(served.url, json=call, headers=headers, timeout=LIMIT_S))

    thread = threading.Thread(target=ask)
    thread.start()
    yield answers
    thread.join()


def test_a_cancellation_in_a_batch_is_heard(tmp_path: Path) -> None:
    """In a session: the call is in doubt, its client is told so, and the equal call is not sent."""
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        call = served.request("tools/call", {"name": "slow", "arguments": {"seconds": 3}}, 77)
        with asking(served, call, "s-1") as answers:
            upstream.wait_for_calls(1)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
            with suppress(json.JSONDecodeError):
                served.post([cancel], mcp_session_id="s-1")
            assert state(served.call("slow", {"seconds": 3}, mcp_session_id="s-1")) == "in_doubt"
        assert len(upstream.calls()) == 1
        assert answers


@pytest.mark.parametrize("coding", ["utf-16-be", "utf-16", "utf-16-le", "utf-32-be"])
def test_a_call_in_another_coding_in_the_dress_of_a_form(tmp_path: Path, coding: str) -> None:
    """There are readers of JSON that take it for one, on whatever path: it is refused."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        body = json.dumps(served.request("tools/call", {"name": "act", "arguments": {}})).encode(coding)
        for path in ("/mcp", "/mcp/", "/%6dcp"):
            place = served.url.removesuffix("/mcp") + path
            form = {"content-type": "application/x-www-form-urlencoded"}
            assert served.http.post(place, content=body, headers=form).status_code == 400
        assert upstream.calls() == []


def test_a_form_passes(tmp_path: Path) -> None:
    """CONTROL: what is a form, as for a token, is passed on."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        form = {"content-type": "application/x-www-form-urlencoded"}
        place = served.url.removesuffix("/mcp") + "/token"
        assert served.http.post(place, content=b"grant_type=x", headers=form).status_code == 307


RULE = '[tools.act]\neffect = "KEYED"\nwindow_s = 1000\nkey_header = "{name}"\n'


def test_the_key_in_a_header_that_the_client_calls_its_connections(tmp_path: Path) -> None:
    """A client does not take the guard's own header away by naming it in `Connection`."""
    (tmp_path / "rules.toml").write_text(RULE.format(name="Idempotency-Key"))
    options = ("--rules", str(tmp_path / "rules.toml"))
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, *options) as served:
        served.call("act", connection="keep-alive, Idempotency-Key")
        (call,) = upstream.calls()
    assert call["headers"]["idempotency-key"] == call["request_id"]


@pytest.mark.parametrize("name", ["Expect", "TE", "upgrade", "Origin", "Host"])
def test_a_key_has_no_place_in_a_connections_own_header(tmp_path: Path, name: str) -> None:
    """Such a rule is refused: it would never be sent."""
    (tmp_path / "rules.toml").write_text(RULE.format(name=name))
    with pytest.raises(RulesUnreadable, match="key_header"):
        read_rules(tmp_path / "rules.toml")


def test_a_reply_in_an_array_of_another_stream(tmp_path: Path) -> None:
    """It is recorded before it is passed on there; the call is done."""
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        with served.listening("s-1") as stream:
            call = served.request("tools/call", {"name": "accept", "arguments": {"in_array": True}})
            with asking(served, call, "s-1") as answers:
                array = next(stream)
        assert answers[0].status_code == 202
        assert array[1]["result"]["content"][0]["text"] == "accepted"
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert "Committed" in [entry.kind for entry in log.tail(20)]
        assert log.open_intents() == []


def test_an_array_with_a_reply_that_comes_too_late_too(tmp_path: Path) -> None:
    """The other call's client has its reply from it: the array is passed on, both are recorded."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\ntime_limit_s = 0.5\n')
    options = ("--rules", str(tmp_path / "rules.toml"))
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url, *options) as served:
        with served.listening("s-1") as stream:
            assert state(served.call("accept", {"held": True}, mcp_session_id="s-1")) == "in_doubt"
            call = served.request("tools/call", {"name": "accept", "arguments": {"in_array": True}}, 50)
            with asking(served, call, "s-1"):
                array = next(stream)
        assert [one["id"] for one in array if "id" in one] == [1, 50]
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert log.open_intents() == []


@pytest.mark.parametrize("session", ["", "s-1"], ids=["alone", "in a session"])
def test_the_time_limit_of_a_call_whose_server_hangs(tmp_path: Path, session: str) -> None:
    """It is answered in doubt, and the guard ends when it is told to, though the server takes no cancellation."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\ntime_limit_s = 1\n')
    options = ("--rules", str(tmp_path / "rules.toml"))
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, *options) as served:
        call = served.request("tools/call", {"name": "slow", "arguments": {"seconds": 60}})
        with asking(served, call, session) as answers:
            upstream.wait_for_calls(1)
            upstream.process.send_signal(signal.SIGSTOP)
        assert state(messages(answers[0])[-1]) == "in_doubt"
        assert served.end() == 0


def test_the_stream_of_another_protocol_is_not_begun(tmp_path: Path) -> None:
    """HTTP+SSE of 2024-11-05 names a place to post to, and replies in this stream: nothing there would be recorded."""
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, Served(tmp_path, f"http://127.0.0.1:{listening.getsockname()[1]}/sse") as served:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                body = b"event: endpoint\ndata: /messages?session=1\n\n"
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
                connection.sendall(head + body)

        thread = threading.Thread(target=answer)
        thread.start()
        came = served.http.get(served.url, headers={"accept": "text/event-stream"})
        thread.join()
        assert "endpoint" not in came.text
        assert served.process.stderr is not None
        assert "2024-11-05" in served.process.stderr.readline()


def test_a_result_is_told_in_the_stateless_era(tmp_path: Path) -> None:
    """A person's outcome has its `resultType` too."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.intentlog/step": "k"}
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        asked = served.request("tools/call", {"name": "act", "arguments": {}, "_meta": meta})
        served.post(asked)
        again = messages(served.post(asked))[-1]
        assert (again["result"]["resultType"], text(again)) == ("complete", "act ")
        assert len(upstream.calls()) == 1
