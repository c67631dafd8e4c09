"""The guard over HTTP: one piece or a stream, with sessions or without; what passes, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_guard.served import Served, Upstream, messages

from intentlog import Log

DRESSES = [(), ("--stream",), ("--sessions",), ("--stream", "--sessions")]
STATELESS = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def text(answer: Any) -> str:
    found: str = answer["result"]["content"][0]["text"]
    return found


def state(answer: Any) -> str:
    found: str = answer["result"].get("_meta", {}).get("io.intentlog/state", "")
    return found


@pytest.mark.parametrize("dress", DRESSES, ids=" ".join)
def test_a_call_over_http(tmp_path: Path, dress: tuple[str, ...]) -> None:
    """Answered as the server does, in its dress; asked for again with its key, from the record."""
    with Upstream(tmp_path, *dress) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        headers = {"mcp_session_id": "s-1"} if "--sessions" in dress else {}
        asked = served.request(
            "tools/call", {"name": "act", "arguments": {"what": "x"}, "_meta": {"io.intentlog/step": "k"}}
        )
        first = served.post(asked, **headers)
        assert len(messages(first)) == (2 if "--stream" in dress else 1)
        assert messages(first)[-1] == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"content": [{"type": "text", "text": "act x"}]},
        }
        again = served.post(asked, **headers)
        assert text(messages(again)[-1]) == "act x"
        assert messages(again)[-1]["result"]["_meta"]["io.intentlog/replayed"] is True
        assert len(upstream.calls()) == 1
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert log.verify().ok
        assert not log.open_intents()
        assert not log.unfinished()


NEVER_SENT = ("before_pending", "after_pending", "before_dispatched")
IN_DOUBT = ("after_dispatched", "before_call", "after_call", "before_committed")


@pytest.mark.parametrize("point", [*NEVER_SENT, *IN_DOUBT, "after_committed"])
@pytest.mark.parametrize("key", ["k", ""], ids=["with a key", "without"])
def test_the_guard_is_killed_in_a_call(tmp_path: Path, point: str, key: str) -> None:
    """I2, I3, I4, over HTTP, where a session is the branch: witness and answer agree, however often it is asked."""
    with Upstream(tmp_path, "--stream", "--sessions") as upstream:
        with Served(tmp_path, upstream.url, crash_at=point) as served:
            with suppress(httpx2.HTTPError):
                served.call("act", {"what": "x"}, key, mcp_session_id="s-1")
            assert served.process.wait(20) == -9
        before = len(upstream.calls())
        with Served(tmp_path, upstream.url) as served:
            answers = [served.call("act", {"what": "x"}, key, mcp_session_id="s-1") for _ in range(2)]
            happened = len(upstream.calls())
    if point in IN_DOUBT:
        assert [state(one) for one in answers] == ["in_doubt", "in_doubt"]
        assert happened == before == (1 if point in ("after_call", "before_committed") else 0)
    elif key:
        assert [text(one) for one in answers] == ["act x", "act x"]
        assert happened == 1
    elif point == "after_committed":
        assert ([state(one) for one in answers], happened) == (["done", ""], 2)
    else:
        assert ([state(one) for one in answers], happened) == (["", ""], 2)


def test_a_doubt_is_found_from_another_session(tmp_path: Path) -> None:
    """A session's id is a branch only as long as it lives: a call with the same key in the next one is not sent."""
    with Upstream(tmp_path, "--sessions") as upstream:
        with Served(tmp_path, upstream.url, crash_at="after_call") as served:
            with suppress(httpx2.HTTPError):
                served.call("act", {}, "k", mcp_session_id="s-1")
            assert served.process.wait(20) == -9
        with Served(tmp_path, upstream.url) as served:
            assert state(served.call("act", {}, "k", mcp_session_id="s-2")) == "in_doubt"
        with Served(tmp_path, upstream.url, crash_at="after_committed") as served:
            with suppress(httpx2.HTTPError):
                served.call("act", {"what": "y"}, "k2", mcp_session_id="s-2")
            assert served.process.wait(20) == -9
        with Served(tmp_path, upstream.url) as served:
            assert state(served.call("act", {"what": "y"}, "k2", mcp_session_id="s-3")) == "done"
            assert text(served.call("act", {"what": "y"}, "k2", mcp_session_id="s-2")) == "act y"
        assert len(upstream.calls()) == 2


def test_the_server_is_not_reached(tmp_path: Path) -> None:
    """Never sent, and so it says; nothing is in doubt."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        upstream.process.kill()
        upstream.process.wait()
        assert state(served.call("act", {}, "k")) == "not_sent"
        assert served.post(served.request("ping", {})).status_code == 502
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


@pytest.mark.parametrize("dress", [(), ("--stream",)], ids=" ".join)
def test_the_server_dies_in_a_call(tmp_path: Path, dress: tuple[str, ...]) -> None:
    with Upstream(tmp_path, *dress) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        assert [state(served.call("die", {}, "k")) for _ in range(2)] == ["in_doubt", "in_doubt"]
        assert len(upstream.calls()) == 1


@pytest.mark.parametrize("status", [401, 404, 429, 307])
def test_a_status_by_which_a_call_is_not_taken_up(tmp_path: Path, status: int) -> None:
    """It passes as it came, so that the client can sign in, or begin a session; and the call can be made again."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        location = {"location": upstream.url} if status == 307 else {}
        call = {"name": "status", "arguments": {"status": status, **location}, "_meta": {"io.intentlog/step": "k"}}
        for _ in range(2):
            response = served.post(served.request("tools/call", call))
            assert response.status_code == status
            assert response.headers.get("location") == ("/mcp" if location else None)
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


@pytest.mark.parametrize("status", [500, 502, 503, 504, 409, 302, 200, 202])
def test_a_status_that_proves_nothing(tmp_path: Path, status: int) -> None:
    """In doubt: it may come from the middle of the call, or from a gateway that cannot know."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        answers = [served.call("gone", {"status": status}, "k") for _ in range(2)]
        assert [state(one) for one in answers] == ["in_doubt", "in_doubt"]
        assert len(upstream.calls()) == 1


@pytest.mark.parametrize(("code", "again"), [(-32001, 404), (-32022, 404), (-32602, 200)])
def test_a_status_and_an_error(tmp_path: Path, code: int, again: int) -> None:
    """A session that is over, as some servers put it, and a call that is to be put in other words. A refusal is final,
    whatever the status."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        asked = {"name": "status", "arguments": {"status": 404, "code": code}, "_meta": {"io.intentlog/step": "k"}}
        found = [served.post(served.request("tools/call", asked, id_=n)).status_code for n in (1, 2)]
        assert found == [404, again]
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()


@pytest.mark.parametrize(("status", "code"), [(400, -32000), (404, -32603), (401, -32001)])
def test_an_error_that_proves_nothing_whatever_its_status(tmp_path: Path, status: int, code: int) -> None:
    """It answers this call, so that the server took it up: it may have broken after the effect. Not sent again."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        asked = {"name": "gone", "arguments": {"status": status, "code": code}, "_meta": {"io.intentlog/step": "k"}}
        found = [served.post(served.request("tools/call", asked, id_=n)) for n in (1, 2)]
        assert [one.status_code for one in found] == [status, 200]
        assert state(messages(found[1])[-1]) == "in_doubt"
        assert served.end() == 0
    assert len(upstream.calls()) == 1


def test_a_redirection_past_the_guard(tmp_path: Path) -> None:
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        call = {"name": "status", "arguments": {"status": 307, "location": "http://127.0.0.1:1/mcp"}}
        answer = messages(served.post(served.request("tools/call", call)))[-1]
        assert (state(answer), "past the guard" in text(answer)) == ("not_sent", True)
        assert served.http.get(served.url.replace("/mcp", "/other")).status_code == 307


# --- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["accept", "cut"])
def test_a_reply_in_another_stream_of_the_session(tmp_path: Path, tool: str) -> None:
    """It is recorded before it is passed on, wherever it comes."""
    with Upstream(tmp_path, "--stream", "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        asked = served.request("tools/call", {"name": tool, "_meta": {"io.intentlog/step": "k"}})
        found: list[Any] = []
        first = threading.Thread(target=lambda: found.append(served.post(asked, mcp_session_id="s-1")))
        first.start()
        upstream.wait_for_calls(1)
        with served.listening("s-1") as heard:
            assert text(next(heard)) == {"accept": "accepted", "cut": "cut"}[tool]
            first.join(20)
            with Log.open(tmp_path / "log.db") as log:
                assert not log.open_intents()
        assert text(served.call(tool, {}, "k", mcp_session_id="s-1"))
        assert len(upstream.calls()) == 1


def test_who_takes_a_stream_up_again_is_told(tmp_path: Path) -> None:
    """A call without a key whose reply comes where its stream is taken up is told: an equal one is made again."""
    with (
        Upstream(tmp_path, "--stream", "--sessions") as upstream,
        Served(tmp_path, upstream.url) as served,
        served.listening("s-1") as heard,
    ):
        for number in (1, 2):
            assert messages(served.post(served.request("tools/call", {"name": "cut"}), mcp_session_id="s-1")) == []
            assert text(next(heard)) == "cut"
            assert len(upstream.calls()) == number


def test_a_client_that_leaves_a_session_s_stream(tmp_path: Path) -> None:
    """That is no cancel: the call goes on, its outcome is recorded, and the client finds it by its key."""
    with Upstream(tmp_path, "--stream", "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        call = {"name": "slow", "arguments": {"seconds": 0.5}, "_meta": {"io.intentlog/step": "k"}}
        leave(served, call, upstream, mcp_session_id="s-1")
        time.sleep(1.0)
        assert text(served.call("slow", {"seconds": 0.5}, "k", mcp_session_id="s-1")) == "slow "
        assert len(upstream.calls()) == 1


def test_a_client_that_takes_its_stream_up_again(tmp_path: Path) -> None:
    """What it could not be told where it had left, it is told there; an equal call after that is another one."""
    with Upstream(tmp_path, "--stream", "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        call = {"name": "slow", "arguments": {"seconds": 0.5, "again": True}}
        leave(served, call, upstream, mcp_session_id="s-1")
        time.sleep(1.0)
        with served.listening("s-1") as heard:
            assert text(next(heard)) == "slow "
        assert text(served.call("slow", {"seconds": 0.5, "again": True}, mcp_session_id="s-1")) == "slow "
        assert len(upstream.calls()) == 2


def test_the_guard_is_told_to_end_in_a_call_that_lasts(tmp_path: Path) -> None:
    """It is not waited for longer than the grace: the call is in doubt, and so its client is answered."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        found: list[Any] = []
        calling = threading.Thread(target=lambda: found.append(served.call("slow", {"seconds": 60}, "k")))
        calling.start()
        upstream.wait_for_calls(1)
        assert served.end() == 0
        calling.join(20)
        assert state(found[0]) == "in_doubt"
    with Log.open(tmp_path / "log.db") as log:
        assert [one.state for one in log.open_intents()] == ["DISPATCHED"]


@pytest.mark.parametrize("dress", [(), ("--stream",)], ids=" ".join)
def test_a_client_that_closes_its_stream_cancels(tmp_path: Path, dress: tuple[str, ...]) -> None:
    """Without a session: the server hears it, and the call is in doubt."""
    with Upstream(tmp_path, *dress) as upstream, Served(tmp_path, upstream.url, "--branch", "b") as served:
        call = {"name": "slow", "arguments": {"seconds": 3}, "_meta": {"io.intentlog/step": "k", **STATELESS}}
        leave(served, call, upstream)
        assert state(served.call("slow", {"seconds": 3}, "k")) == "in_doubt"
        assert len(upstream.calls()) == 1


def leave(served: Served, call: dict[str, Any], upstream: Upstream, **headers: str) -> None:
    """Ask, and be gone once it is being made."""
    with httpx2.Client(timeout=0.3) as client, suppress(httpx2.TimeoutException):
        named = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        with client.stream("POST", served.url, json=served.request("tools/call", call), headers=named) as response:
            for _ in response.iter_lines():
                break
            upstream.wait_for_calls(1)
    upstream.wait_for_calls(1)
    time.sleep(0.2)


def test_cancelled_in_a_session(tmp_path: Path) -> None:
    """An equal call is in doubt until the server answers late."""
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        asked = served.request("tools/call", {"name": "slow", "arguments": {"seconds": 1}})
        first = threading.Thread(target=lambda: served.post(asked, mcp_session_id="s-1"))
        first.start()
        upstream.wait_for_calls(1)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": asked["id"]}}
        assert served.post(cancel, mcp_session_id="s-1").status_code == 202
        first.join(20)
        assert state(served.call("slow", {"seconds": 1}, mcp_session_id="s-2")) == "in_doubt"
        time.sleep(1.5)
        assert state(served.call("slow", {"seconds": 1}, mcp_session_id="s-2")) == "done"
        assert len(upstream.calls()) == 1


def test_many_clients_with_equal_ids(tmp_path: Path) -> None:
    """Without sessions every client counts from 1: a reply belongs to the request that it answers."""
    with Upstream(tmp_path, "--stream") as upstream, Served(tmp_path, upstream.url) as served:
        found: dict[int, Any] = {}

        def ask(number: int) -> None:
            call = {"name": "slow", "arguments": {"seconds": 0.5, "what": number}}
            found[number] = messages(served.post(served.request("tools/call", call, id_=1)))[-1]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        assert {number: text(one) for number, one in found.items()} == {n: f"slow {n}" for n in range(50)}
        assert len(upstream.calls()) == 50


# --- headers, and what is refused -----------------------------------------------------------------------------------


def test_headers(tmp_path: Path) -> None:
    """Authorization passes, the guard's own address becomes the server's, the key goes where the rules say, and no
    client gets another's cookies."""
    (tmp_path / "rules.toml").write_text(
        '[tools.act]\neffect = "KEYED"\nwindow_s = 60\nkey_header = "Idempotency-Key"\n'
    )
    with (
        Upstream(tmp_path) as upstream,
        Served(tmp_path, upstream.url, "--rules", str(tmp_path / "rules.toml")) as served,
    ):
        assert served.post(served.request("tools/list", {})).headers["set-cookie"] == "a=b"
        served.http.cookies.clear()  # as another client
        origin = served.url.removesuffix("/mcp")
        served.call("act", {}, authorization="Bearer x", origin=origin, idempotency_key="a client's own")
        served.call("act", {}, origin="http://localhost:9")
        one, two = upstream.calls()
    host = upstream.url.split("/")[2]
    assert one["headers"] == {
        "host": host, "origin": f"http://{host}", "authorization": "Bearer x", "idempotency-key": one["request_id"]
    }  # fmt: skip
    assert two["headers"]["origin"] == "http://localhost:9"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping","params":{"name":"act"}}', {}),
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}]', {}),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"act"}}', {}),
        (
            b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}',
            {"content_type": "text/plain"},
        ),
        (b"a=b", {"content_type": "application/x-www-form-urlencoded"}),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}', {"content_encoding": "gzip"}),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"host": "evil.example:80"}),
    ],
    ids=["twice", "batch", "no id", "byte order mark", "a form", "compressed", "another host"],
)
def test_what_is_refused_over_http(tmp_path: Path, body: bytes, headers: dict[str, str]) -> None:
    """No call reaches the server unguarded, whatever its dress; no page of a browser's reaches the guard by a name of
    its own."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        assert 400 <= served.post(body, **headers).status_code < 500
        assert not upstream.calls()


def test_a_call_is_guarded_at_any_path(tmp_path: Path) -> None:
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        served.url = served.url.replace("/mcp", "//elsewhere/%6dcp?x=1")
        response = served.post(served.request("tools/call", {"name": "act"}), content_type="text/plain")
        assert response.status_code == 307
    with Log.open(tmp_path / "log.db") as log:
        assert sum(entry.kind == "Dispatched" for entry in log.tail(100)) == 1


def test_reads_pass_unrecorded_over_http(tmp_path: Path) -> None:
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url, "--trust-annotations") as served:
        served.post(served.request("tools/list", {}))
        assert text(served.call("look", {"what": "x"})) == "look x"
        assert served.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert not log.tail(100)


def test_the_guard_is_told_to_end_in_a_call(tmp_path: Path) -> None:
    """The call is waited for, a stream that would last as long as its client is not."""
    with Upstream(tmp_path, "--sessions") as upstream, Served(tmp_path, upstream.url) as served:
        found: list[Any] = []
        with served.listening("s-1"):
            calling = threading.Thread(target=lambda: found.append(served.call("slow", {"seconds": 1})))
            calling.start()
            upstream.wait_for_calls(1)
            assert served.end() == 0
            calling.join(20)
        assert text(found[0]) == "slow "
    with Log.open(tmp_path / "log.db") as log:
        assert not log.open_intents()
        assert not log.unfinished()


def test_json_is_what_a_port_says(tmp_path: Path) -> None:
    """The address at which it listens is told on stderr, where nothing else is."""
    with Upstream(tmp_path) as upstream, Served(tmp_path, upstream.url) as served:
        assert served.said == f"intentlog mcp: {upstream.url} is guarded at {served.url}\n"
        assert json.loads(served.post(served.request("ping", {})).content)["result"] == {}
