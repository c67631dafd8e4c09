"""What a fourth stranger found, who read the guard's source, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import LIMIT_S, SERVER, Guarded, NoAnswer
from mcp_guard.test_mcp_stdio import state, text
from mcp_guard.test_mcp_stranger import guard, line
from postgres_servers import Server

from intentlog import Log
from intentlog.log.values import LEASE_VARIABLE
from intentlog.mcp import messages
from intentlog.mcp.naming import server_name
from intentlog.mcp.rules import read_rules

SECRET = "4111222233334444"
BASE = """
import json, os, signal, sys, threading, time, uuid
def witness(params): open(sys.argv[1], "a").write(json.dumps(params) + "\\n")
def out(text): os.write(1, text.encode() + b"\\n")
def reply(id_, result): out(json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}))
def text(of): return {"content": [{"type": "text", "text": of}]}
"""


def program(folder: Path, body: str) -> list[str]:
    """A server of the test's own."""
    return [sys.executable, "-c", BASE + body, str(folder / "witness")]


LINE_BY_LINE = """
for line in sys.stdin:
    try: asked = json.loads(line)
    except ValueError: continue
    if asked.get("method") == "tools/call":
        witness(asked["params"]); reply(asked["id"], text("did"))
    else: reply(asked["id"], {})
"""


# --- passed unguarded, or sent twice --------------------------------------------------------------------------------


def test_a_carriage_return_splits_no_call(tmp_path: Path) -> None:
    """There are servers to which it ends a line: what stood behind it was a call of its own to them, unguarded (I1)."""
    inner = line(60, "act").strip()
    outer = line(50, "look", arguments={"x": "HERE"}).replace(b'"HERE"', b"\r" + inner + b"\r")
    with Guarded(tmp_path, command=program(tmp_path, LINE_BY_LINE)) as guarded:
        guarded.write(outer)
        assert text(guarded.answer(50)) == "did"
        assert [one["name"] for one in guarded.calls()] == ["look"]
        assert guarded.end() == 0


def resolved(folder: Path, intent: str, *how: str) -> None:
    command = [sys.executable, "-m", "intentlog", "resolve", str(folder / "log.db"), intent]
    subprocess.run([*command, *how, "--by", "me", "--why", "looked"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("restarts", [False, True], ids=["same guard", "new guard"])
def test_a_doubt_that_a_person_settles_is_told_once(tmp_path: Path, *, restarts: bool) -> None:
    """The model was told to wait for that; its equal call is the retry, and not sent. The one after it is."""
    with Guarded(tmp_path, crash_at="after_call") as first:
        with suppress(NoAnswer):
            first.call("act")
        assert first.process.wait(LIMIT_S) == -9
    guarded = Guarded(tmp_path)
    with guarded:
        intent = guarded.call("act")["result"]["_meta"]["io.intentlog/intent"]
        resolved(tmp_path, intent, "--landed", "--outcome", '{"content":[{"type":"text","text":"paid"}]}')
        if not restarts:
            check_told_once(guarded)
            return
        assert guarded.end() == 0
    with Guarded(tmp_path) as guarded:
        check_told_once(guarded)


def check_told_once(guarded: Guarded) -> None:
    answer = guarded.call("act")
    assert (state(answer), "paid" in text(answer), len(guarded.calls())) == ("done", True, 1)
    assert (text(guarded.call("act")), len(guarded.calls())) == ("act ", 2)


def test_a_doubt_that_a_person_denies_is_made_again(tmp_path: Path) -> None:
    """CONTROL: what did not land is never sent, and made."""
    with Guarded(tmp_path, crash_at="before_call") as first:
        with suppress(NoAnswer):
            first.call("act")
        assert first.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path) as guarded:
        resolved(tmp_path, guarded.call("act")["result"]["_meta"]["io.intentlog/intent"], "--not-landed")
        assert (text(guarded.call("act")), len(guarded.calls())) == ("act ", 1)


def test_a_guard_that_lives_learns_what_a_killed_one_left_untold(tmp_path: Path) -> None:
    """The client asks again through the other guard, which was there before: done, told once, not sent (I3)."""
    with Guarded(tmp_path) as living:
        living.call("act", {"n": 0})
        with Guarded(tmp_path, crash_at="after_committed") as dying:
            with suppress(NoAnswer):
                dying.call("act", {"n": 1})
            assert dying.process.wait(LIMIT_S) == -9
        assert state(living.call("act", {"n": 1})) == "done"
        assert len(living.calls()) == 2
        assert living.end() == 0


CODEC = """
class Codec:
    digest_key = {key!r}
    def seal(self, payload, branch): return bytes(byte ^ 90 for byte in payload)
    def open(self, sealed, branch): return bytes(byte ^ 90 for byte in sealed)
codec = Codec()
"""


@pytest.fixture
def sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_codec.py").write_text(CODEC.format(key=b"k" * 16))
    monkeypatch.setenv("INTENTLOG_CODEC", "a_codec:codec")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("sealing")
def test_an_untold_call_of_a_log_whose_digests_have_a_key(tmp_path: Path) -> None:
    """The digest that stands in the record is the one that calls are held equal by."""
    with Guarded(tmp_path, crash_at="after_committed") as dying:
        with suppress(NoAnswer):
            dying.call("act")
        assert dying.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path) as guarded:
        assert (state(guarded.call("act")), len(guarded.calls())) == ("done", 1)


@pytest.mark.usefixtures("sealing")
def test_a_sealed_log_without_its_codec_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The guard's own notes cannot be read: it does not begin, and says so without a traceback."""
    with Guarded(tmp_path) as first:
        asked = first.ask("tools/call", {"name": "act", "arguments": {"after": 0.3}})
        first.wait_for_calls(1)
        first.tell("notifications/cancelled", {"requestId": asked})
        time.sleep(0.6)
        assert first.end() == 0
    monkeypatch.delenv("INTENTLOG_CODEC")
    with Guarded(tmp_path) as guarded:
        assert guarded.process.wait(LIMIT_S) == 1
    said = capfd.readouterr().err
    assert "INTENTLOG_CODEC" in said
    assert "internal" not in said


LEGS = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") != "tools/call": continue
    if "inputResponses" in asked["params"]:
        witness(asked["params"]); reply(asked["id"], {**text("paid"), "resultType": "complete"})
    else:
        reply(asked["id"], {"resultType": "input_required", "requestState": str(uuid.uuid4()), "inputRequests": {}})
"""


@pytest.mark.parametrize("point", ["after_call:2", "after_committed"])
def test_a_call_with_legs_is_begun_anew(tmp_path: Path, point: str) -> None:
    """Its server asks anew, in other words. By its key it is the same call: in doubt, or done, and not made again."""
    options = ("--branch", "b")
    server = program(tmp_path, LEGS)

    def leg(guarded: Guarded, **more: Any) -> Any:
        call = {"name": "pay", "arguments": {}, "_meta": {"io.intentlog/step": "k"}, **more}
        return guarded.answer(guarded.ask("tools/call", call))

    with Guarded(tmp_path, *options, crash_at=point, command=server) as first:
        asked_back = leg(first)["result"]["requestState"]
        with suppress(NoAnswer):
            leg(first, inputResponses={"q": 1}, requestState=asked_back)
        assert first.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path, *options, command=server) as guarded:
        other = leg(guarded)["result"]["requestState"]
        answer = leg(guarded, inputResponses={"q": 1}, requestState=other)
        assert other != asked_back
        assert len(guarded.calls()) == 1
    assert (state(answer) == "in_doubt") if point == "after_call:2" else (text(answer) == "paid")


def test_a_client_on_a_socket_dies_with_an_answer_unread(tmp_path: Path) -> None:
    """Reading it then fails, which is its end too: another guard hears that the client is gone."""
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        guard(tmp_path, "--server", "witness", server=[sys.executable, str(SERVER), str(tmp_path / "witness")]),
        stdin=theirs,
        stdout=theirs,
    ) as first:
        theirs.close()
        ours.sendall(line(1, "act", arguments={"after": 2}))
        with Guarded(tmp_path) as other:
            other.wait_for_calls(1)
            ours.sendall(b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
            time.sleep(0.5)
            ours.close()
            time.sleep(0.3)
            assert state(other.call("act", {"after": 2})) in ("in_doubt", "done")
            assert len(other.calls()) == 1
        assert first.wait(LIMIT_S) == 0


ONE_BY_ONE = """
for line in sys.stdin.buffer:
    asked = json.loads(line)
    if asked.get("method") == "tools/call":
        witness({"name": asked["params"]["name"]}); time.sleep(asked["params"]["arguments"].get("s", 0))
        reply(asked["id"], text("did"))
    elif "id" in asked: reply(asked["id"], {})
"""


def test_a_client_dies_while_its_guard_cannot_write(tmp_path: Path) -> None:
    """A busy server takes nothing, and what reads the client waits for it: the hang-up is heard all the same."""
    server = program(tmp_path, ONE_BY_ONE)
    with Guarded(tmp_path, command=server) as first:
        first.ask("tools/call", {"name": "act", "arguments": {"s": 3}})
        first.wait_for_calls(1)
        first.ask("tools/call", {"name": "put", "arguments": {"data": "x" * 300_000}})
        time.sleep(0.3)
        first.ask("ping", {})
        time.sleep(0.2)
        first.close()
        assert first.process.stdout is not None
        first.process.stdout.close()
        time.sleep(0.3)
        with Guarded(tmp_path, command=server) as other:
            assert state(other.call("act", {"s": 3})) in ("in_doubt", "done")
            assert [one["name"] for one in other.calls()].count("act") == 1


FINISHES = """
signal.signal(signal.SIGTERM, lambda *_: threading.Timer(2, lambda: os._exit(0)).start())
def made(asked): witness({}); time.sleep(1.5); reply(asked["id"], text("did"))
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": threading.Thread(target=made, args=(asked,)).start()
"""


def test_a_client_that_ends_its_guard_by_a_signal_is_gone(tmp_path: Path) -> None:
    """Its server finishes the call first: an equal call at another guard waits, is told, and is not sent."""
    server = program(tmp_path, FINISHES)
    with Guarded(tmp_path, command=server) as first:
        first.ask("tools/call", {"name": "act", "arguments": {}})
        first.wait_for_calls(1)
        first.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with Guarded(tmp_path, command=server) as other:
            asked = other.ask("tools/call", {"name": "act", "arguments": {}})
            time.sleep(0.5)
            assert len(other.calls()) == 1
            other.answer(asked)


def test_a_cancellation_in_a_batch_is_heard(tmp_path: Path) -> None:
    """Its call is in doubt, and so is the equal one."""
    with Guarded(tmp_path) as guarded:
        asked = guarded.ask("tools/call", {"name": "hang", "arguments": {}})
        guarded.wait_for_calls(1)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": asked}}
        guarded.write(json.dumps([cancel]).encode() + b"\n")
        assert state(guarded.call("hang")) == "in_doubt"
        assert len(guarded.calls()) == 1


def test_a_task_that_is_cancelled_is_over(tmp_path: Path) -> None:
    """Its client learns that from `tasks/cancel` too: an equal call asks for it, and is not sent."""
    call = {"name": "task", "arguments": {}, "task": {"ttl": 60_000}}
    with Guarded(tmp_path) as guarded:
        guarded.answer(guarded.ask("tools/call", call))
        (tmp_path / "witness.over").write_text("cancelled")
        guarded.answer(guarded.ask("tasks/cancel", {"taskId": "t-1"}))
        guarded.answer(guarded.ask("tools/call", call))
        assert len(guarded.calls()) == 1


CHANGES = """
reads = True
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/list":
        reply(asked["id"], {"tools": [{"name": "t", "inputSchema": {}, "annotations": {"readOnlyHint": reads}}]})
    elif asked["method"] == "x/change":
        reads = False
        out('[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}]'); reply(asked["id"], {})
    else: witness({}); reply(asked["id"], text("did"))
"""


def test_a_list_that_changes_in_a_batch(tmp_path: Path) -> None:
    """What was a read is none any more: its call is recorded."""
    with Guarded(tmp_path, "--trust-annotations", command=program(tmp_path, CHANGES)) as guarded:
        guarded.answer(guarded.ask("tools/list", {}))
        guarded.answer(guarded.ask("x/change", {}))
        guarded.call("t")
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert "Dispatched" in [entry.kind for entry in log.tail(20)]


# --- told, and recorded ---------------------------------------------------------------------------------------------


def test_the_reply_to_another_request_of_a_like_id(tmp_path: Path) -> None:
    """`1` and `"1"` are two requests: the answer to a ping is no outcome of the call."""
    with Guarded(tmp_path) as guarded:
        guarded.ask("tools/call", {"name": "act", "arguments": {"after": 0.5}}, 1)
        guarded.wait_for_calls(1)
        guarded.ask("ping", {}, "1")
        assert text(guarded.answer(1)) == "act "
        assert {"jsonrpc": "2.0", "id": "1", "result": {}} in guarded.heard
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        (outcome,) = [entry.payload for entry in log.tail(20) if entry.kind == "Committed"]
    assert outcome["content"][0]["text"] == "act "


def test_a_reply_right_behind_a_cancellation_settles_its_call(tmp_path: Path) -> None:
    """Both come within a millisecond, in whatever order: none of the calls that were replied to stays in doubt."""
    body = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": time.sleep(0.012); reply(asked["id"], text("did")); witness({})
"""
    with Guarded(tmp_path, command=program(tmp_path, body)) as guarded:
        for number in range(120):
            asked = guarded.ask("tools/call", {"name": "t", "arguments": {"n": number}})
            time.sleep(0.0125 + (number % 25) * 0.0001)
            guarded.tell("notifications/cancelled", {"requestId": asked})
            time.sleep(0.004)
        time.sleep(0.5)
        sent = len(guarded.calls())
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert sent
        assert log.open_intents() == []


TELLS_LATE = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") != "tools/call": continue
    arguments = asked["params"]["arguments"]
    time.sleep(arguments.get("after", 0))
    card = "charged " + arguments["card"]
    if "task" in asked["params"]: reply(asked["id"], {"task": {"taskId": "t", "status": "working", "about": card}})
    elif arguments.get("fails"): out(json.dumps({"id": asked["id"], "error": {"code": -32602, "message": card}}))
    else: reply(asked["id"], text(card))
"""


@pytest.mark.parametrize("call", [{"after": 1}, {"after": 1, "fails": True}, {"task": True}], ids=str)
def test_what_is_redacted_is_not_written_late_either(tmp_path: Path, call: dict[str, Any]) -> None:
    """A late result, a late error and a task's handle say it again: no byte of it is in the log's files."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\nredact = ["card"]\ntime_limit_s = 0.3\n')
    more = {"task": {}} if call.pop("task", False) else {}
    options = ("--rules", str(tmp_path / "rules.toml"))
    with Guarded(tmp_path, *options, command=program(tmp_path, TELLS_LATE)) as guarded:
        params = {"name": "charge", "arguments": {"card": SECRET, **call}, **more}
        guarded.answer(guarded.ask("tools/call", params))
        time.sleep(1.2)
        assert guarded.end() == 0
    files = [one for one in tmp_path.iterdir() if one.name.startswith("log.db") and one.is_file()]
    assert files
    assert [one.name for one in files if SECRET.encode() in one.read_bytes()] == []


# --- what goes on, and what is said ---------------------------------------------------------------------------------


def test_half_a_surrogate_pair_for_an_id_ends_nothing(tmp_path: Path) -> None:
    """It is refused to nobody in particular, and the guard goes on."""
    with Guarded(tmp_path) as guarded:
        guarded.write(b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}\n')
        assert guarded.read()["error"]["code"] == messages.PARSE_ERROR
        assert text(guarded.call("act")) == "act "


def test_a_reply_at_any_depth_is_read_or_found_out() -> None:
    """Around the reader's own limit too: 990 levels deep it raised, and ended what reads the server."""
    for depth in range(900, 1010):
        deep = b'{"jsonrpc":"2.0","id":1,"result":{"n":NaN,"x":' + b"[" * depth + b"]" * depth + b"}}"
        assert [frame.id for frame, _ in messages.replies_in(deep)] == [1]
        assert [frame.id for frame, _ in messages.replies_in(b"[" + deep + b"]")] == [1]


def test_an_output_that_does_not_block_gets_the_whole_answer(tmp_path: Path) -> None:
    """It is full, and not gone: the rest is written when there is room."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETFL, os.O_NONBLOCK)
    command = guard(tmp_path, server=[sys.executable, str(SERVER), str(tmp_path / "witness")])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write) as process:
        os.close(write)
        assert process.stdin is not None
        process.stdin.write(line(1, "big", arguments={"bytes": 300_000}))
        process.stdin.flush()
        time.sleep(1.0)  # the pipe is full by now
        process.stdin.close()
        with os.fdopen(read, "rb") as came:
            assert len(json.loads(came.read())["result"]["content"][0]["text"]) == 300_000
        assert process.wait(LIMIT_S) == 0


READS_LATE = """
time.sleep(3)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": witness(asked["params"]["name"]); reply(asked["id"], text("did"))
"""


def test_behind_a_server_that_reads_nothing_a_call_is_never_sent(tmp_path: Path) -> None:
    """At its time limit not one byte of it is out, and none goes out later. One that is begun goes out whole, and is
    waited for: while the guard holds a part of it, it could still land (I2)."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\ntime_limit_s = 0.5\n')
    options = ("--rules", str(tmp_path / "rules.toml"))
    with Guarded(tmp_path, *options, command=program(tmp_path, READS_LATE)) as guarded:
        large = guarded.ask("tools/call", {"name": "large", "arguments": {"x": "y" * 300_000}})
        time.sleep(0.5)
        begun_s = time.monotonic()
        assert state(guarded.call("behind")) == "not_sent"
        assert time.monotonic() - begun_s < 1.5
        guarded.answer(large)
        time.sleep(0.5)
        assert guarded.calls() == ["large"]
        assert guarded.end() == 0


def test_two_requests_of_one_id_in_a_batch_are_refused(tmp_path: Path) -> None:
    """Nobody could say which reply is whose; the batch was never answered."""
    with Guarded(tmp_path) as guarded:
        pings = [{"jsonrpc": "2.0", "id": 7, "method": "ping"}] * 2
        guarded.write(json.dumps([json.loads(line(1)), *pings]).encode() + b"\n")
        assert "one id" in guarded.read()["error"]["message"]
        assert guarded.calls() == []


@pytest.mark.parametrize(
    "page",
    [
        {"tools": [{"name": "a", "annotations": None, "title": None}]},
        {"tools": [{"name": "a"}, {"name": "a"}]},
        {"tools": [{"name": "a\x7f"}]},
        {"tools": [{"name": "a"}], "nextCursor": "always the same"},
        {"tools": [{"name": "a"}], "nextCursor": ""},
    ],
    ids=str,
)
def test_a_first_file_of_rules_from_an_odd_list(tmp_path: Path, page: dict[str, Any]) -> None:
    """It ends, and what it prints can be read."""
    body = f"""
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize": reply(asked["id"], {{"protocolVersion": "2025-06-18"}})
    if asked["method"] == "tools/list": reply(asked["id"], {page!r})
"""
    command = [sys.executable, "-m", "intentlog", "mcp", "--suggest", "--", *program(tmp_path, body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    (tmp_path / "rules.toml").write_text(done.stdout)
    assert list(read_rules(tmp_path / "rules.toml").tools) == [page["tools"][0]["name"]]


def test_a_recorded_result_whose_meta_is_no_object(tmp_path: Path) -> None:
    """It is told again; its replay was an internal error."""
    body = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": reply(asked["id"], {**text("did"), "_meta": ["a"]})
"""
    with Guarded(tmp_path, "--branch", "b", command=program(tmp_path, body)) as guarded:
        guarded.call("t", {}, "k")
        assert guarded.call("t", {}, "k")["result"]["_meta"]["io.intentlog/replayed"] is True


def test_a_key_that_looks_minted_is_a_key(tmp_path: Path) -> None:
    """What was recorded under it is its client's to ask for: another's equal call without a key is made."""
    with Guarded(tmp_path, "--branch", "b", crash_at="after_committed") as dying:
        with suppress(NoAnswer):
            dying.call("act", {}, "toolu.0123456789ab")
        assert dying.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path, "--branch", "c") as guarded:
        assert text(guarded.call("act")) == "act "
        assert len(guarded.calls()) == 2


def test_a_key_that_looks_like_a_leg_is_a_key(tmp_path: Path) -> None:
    """It is no leg of the call whose key it begins with: that one's leg is made."""
    with Guarded(tmp_path, "--branch", "b") as guarded:
        guarded.call("act", {}, "k~leg-1")
        leg = {"name": "ask", "arguments": {}, "_meta": {"io.intentlog/step": "k"}, "inputResponses": {"q": 1}}
        assert text(guarded.answer(guarded.ask("tools/call", leg))) == "asked"
        assert len(guarded.calls()) == 2


def test_two_programs_of_one_file_name_are_two_servers(tmp_path: Path) -> None:
    """`server.py` stands in many folders: one was answered from the other's record."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "server.py").touch()
    names = [server_name(["python3", str(tmp_path / folder / "server.py")]) for folder in ("a", "b", "a")]
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_no_password_is_told(tmp_path: Path, own_postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command by which a person settles a doubt names the log without it. After a sleep through its lease the
    guard goes on."""
    monkeypatch.setenv(LEASE_VARIABLE, "2")
    url = f"{own_postgres.url().replace('@', ':SECRETPW@', 1)}?schema=log_a"
    with Guarded(tmp_path, "--log", url) as guarded, Guarded(tmp_path, "--log", url) as other:
        assert state(guarded.call("die")) == "in_doubt"
        answer = text(other.call("die"))
        assert "resolve" in answer
        assert "SECRETPW" not in answer
    with Guarded(tmp_path, "--log", url) as sleeper:
        sleeper.call("act", {"n": 1})
        sleeper.process.send_signal(signal.SIGSTOP)
        time.sleep(3.5)
        with Guarded(tmp_path, "--log", url) as other:
            other.call("act", {"n": 2})  # it closes what a guard left that seems to be dead
            sleeper.process.send_signal(signal.SIGCONT)
            assert [text(sleeper.call("act", {"n": number})) for number in (3, 4)] == ["act ", "act "]
