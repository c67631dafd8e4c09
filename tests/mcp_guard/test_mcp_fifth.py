"""What a review of the fourth stranger's mends found, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import LIMIT_S, Guarded, NoAnswer
from mcp_guard.test_mcp_fourth import CODEC, LEGS, SECRET, program, resolved
from mcp_guard.test_mcp_stdio import state, text
from mcp_guard.test_mcp_stranger import line

from intentlog import Log
from intentlog.mcp import messages
from intentlog.mcp.naming import server_name


@pytest.fixture
def killed_in_its_call(tmp_path: Path) -> Path:
    """A guard was killed with `act {"n": 1}` in doubt."""
    with Guarded(tmp_path, crash_at="after_call") as first:
        with suppress(NoAnswer):
            first.call("act", {"n": 1})
        assert first.process.wait(LIMIT_S) == -9
    return tmp_path


@pytest.mark.parametrize("restarts", [False, True], ids=["same guard", "new guard"])
def test_a_doubt_that_nobody_was_told_of_is_settled_by_a_person(killed_in_its_call: Path, *, restarts: bool) -> None:
    """Another guard has looked at what the killed one left before: it still tells what the person says."""
    guarded = Guarded(killed_in_its_call)
    with guarded:
        guarded.call("act", {"n": 0})
        intent = guarded_doubt(killed_in_its_call)
        resolved(killed_in_its_call, intent, "--landed", "--outcome", '{"content":[{"type":"text","text":"paid"}]}')
        if not restarts:
            assert "paid" in text(guarded.call("act", {"n": 1}))
            assert len(guarded.calls()) == 2
            return
        assert guarded.end() == 0
    with Guarded(killed_in_its_call) as guarded:
        assert "paid" in text(guarded.call("act", {"n": 1}))
        assert len(guarded.calls()) == 2


def guarded_doubt(folder: Path) -> str:
    with Log.open(folder / "log.db", read_only=True) as log:
        (intent,) = [one.intent_id for one in log.open_intents()]
    return intent


def test_a_doubt_after_an_error_is_settled_by_a_person(tmp_path: Path) -> None:
    """Its client got the error as it came, and the doubt with it."""
    with Guarded(tmp_path) as guarded:
        assert guarded.call("fail")["error"]["code"] == -32603
        resolved(tmp_path, guarded_doubt(tmp_path), "--landed", "--outcome", '"paid"')
        assert "paid" in text(guarded.call("fail"))
        assert len(guarded.calls()) == 1


def test_a_keyed_call_that_went_on_and_was_told_to_nobody(tmp_path: Path) -> None:
    """The older attempt's intent is superseded by then: the outcome counts, and is told, not made under a new key."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\neffect = "KEYED"\nwindow_s = 86400\nkey_argument = "key"\n')
    options = ("--rules", str(tmp_path / "rules.toml"))
    server = program(
        tmp_path,
        """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call":
        witness(asked["params"]["arguments"]["key"]); time.sleep(0.5); reply(asked["id"], text("did"))
""",
    )
    with Guarded(tmp_path, *options, crash_at="after_call", command=server) as first:
        with suppress(NoAnswer):
            first.call("act")
        assert first.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path, *options, command=server) as second:
        second.ask("tools/call", {"name": "act", "arguments": {}})
        second.wait_for_calls(2)
        second.close()
        assert second.process.stdout is not None
        second.process.stdout.close()
        second.process.wait(LIMIT_S)
    with Guarded(tmp_path, *options, command=server) as third:
        assert state(third.call("act")) == "done"
        assert len(set(map(str, third.calls()))) == 1


def test_a_repeat_after_another_guard_went_on_with_the_doubt(tmp_path: Path) -> None:
    """Its client was told what came of it: what it means to repeat is made."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\neffect = "KEYED"\nwindow_s = 86400\nkey_argument = "key"\n')
    with Guarded(tmp_path, "--rules", str(tmp_path / "rules.toml"), crash_at="after_call") as first:
        with suppress(NoAnswer):
            first.call("act")
        assert first.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path, "--rules", str(tmp_path / "rules.toml")) as second:
        assert text(second.call("act")) == "act "
        assert text(second.call("act")) == "act "
        assert len({one["request_id"] for one in second.calls()}) == 2
        assert second.end() == 0


def test_all_that_a_leaving_client_was_told_it_was_told(tmp_path: Path) -> None:
    """That it left is not written behind that it was told: what it then means to repeat is made."""
    body = """
waiting = []
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": waiting.append(asked["id"]); witness({})
for one in waiting: reply(one, text("did"))
"""
    server = program(tmp_path, body)
    with Guarded(tmp_path, command=server) as first:
        for number in range(40):
            first.ask("tools/call", {"name": "act", "arguments": {"n": number}})
        first.wait_for_calls(40)
        first.close()
        assert first.everything().count(b'"did"') == 40
        assert first.process.wait(LIMIT_S) == 0
    with Guarded(tmp_path) as second:
        assert [state(second.call("act", {"n": number})) for number in range(40)] == [""] * 40


def test_a_signal_that_ends_nothing_takes_no_client_away(tmp_path: Path) -> None:
    """A server that reloads at SIGHUP goes on, and so does its client: an equal call of another one is made."""
    body = """
signal.signal(signal.SIGHUP, lambda *_: None)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call":
        witness({}); time.sleep(asked["params"]["arguments"].get("after", 0)); reply(asked["id"], text("did"))
"""
    server = program(tmp_path, body)
    with Guarded(tmp_path, command=server) as one, Guarded(tmp_path, command=server) as other:
        one.call("act", {"n": 0})
        one.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        asked = one.ask("tools/call", {"name": "act", "arguments": {"after": 1}})
        one.wait_for_calls(2)
        assert text(other.call("act", {"after": 1})) == "did"
        assert text(one.answer(asked)) == "did"


def test_a_key_of_a_call_with_legs_names_one_call(tmp_path: Path) -> None:
    """A leg with other arguments, or of another tool, is refused; two legs at once are made one after the other, and
    the second is answered from the record of the first."""
    body = """
def made(asked): witness(asked["params"]["arguments"]); time.sleep(0.7); reply(asked["id"], text("paid"))
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": threading.Thread(target=made, args=(asked,)).start()
"""

    def leg(guarded: Guarded, state_: str, cents: int = 1, tool: str = "pay") -> Any:
        meta = {"_meta": {"io.intentlog/step": "k"}}
        answered = {"inputResponses": {"q": 1}, "requestState": state_}
        return guarded.ask("tools/call", {"name": tool, "arguments": {"cents": cents}, **meta, **answered})

    with Guarded(tmp_path, "--branch", "b", command=program(tmp_path, body)) as guarded:
        asked = {leg(guarded, "s-1"), leg(guarded, "s-2")}
        came = [guarded.read(), guarded.read()]  # in whichever order
        assert {one["id"] for one in came} == asked
        assert [text(one) for one in came] == ["paid", "paid"]
        assert guarded.calls() == [{"cents": 1}]
        for other in (leg(guarded, "s-3", cents=999), leg(guarded, "s-3", tool="refund")):
            assert guarded.answer(other)["error"]["code"] == messages.INVALID_PARAMS
        assert guarded.calls() == [{"cents": 1}]


def test_a_leg_that_a_person_settled_is_done(tmp_path: Path) -> None:
    """As one that returned: its outcome answers the call that was begun anew."""
    server = program(tmp_path, LEGS)

    def leg(guarded: Guarded, **more: Any) -> Any:
        call = {"name": "pay", "arguments": {}, "_meta": {"io.intentlog/step": "k"}, **more}
        return guarded.answer(guarded.ask("tools/call", call))

    with Guarded(tmp_path, "--branch", "b", crash_at="after_call", command=server) as first:
        with suppress(NoAnswer):
            leg(first, inputResponses={"q": 1}, requestState="s-1")
        assert first.process.wait(LIMIT_S) == -9
    with Guarded(tmp_path, "--branch", "b", command=server) as guarded:
        assert state(leg(guarded, inputResponses={"q": 1}, requestState="s-2")) == "in_doubt"
        resolved(tmp_path, guarded_doubt(tmp_path), "--landed", "--outcome", '"paid"')
        assert text(leg(guarded, inputResponses={"q": 1}, requestState="s-3")) == "paid"
        assert len(guarded.calls()) == 1


def test_the_answer_to_a_request_of_the_servers_hides_no_reply(tmp_path: Path) -> None:
    """A server that asks with the id 1 is answered; its reply to the call `"1"` as `1` is recorded all the same."""
    body = """
out('{"jsonrpc":"2.0","id":1,"method":"ping"}')
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call": reply(int(asked["id"]), text("did"))
"""
    with Guarded(tmp_path, command=program(tmp_path, body)) as guarded:
        assert guarded.read()["method"] == "ping"
        guarded.write(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
        guarded.ask("tools/call", {"name": "act", "arguments": {}}, "1")
        assert text(guarded.read()) == "did"
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        assert log.open_intents() == []


def test_a_sealed_note_of_another_server_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards of other servers on a shared log read none of it."""
    (tmp_path / "a_codec.py").write_text(CODEC.format(key=b""))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Guarded(tmp_path, "--server", "other") as living:
        living.call("act", {"n": 0})
        with monkeypatch.context() as sealed:
            sealed.setenv("INTENTLOG_CODEC", "a_codec:codec")
            with Guarded(tmp_path, "--server", "sealing") as dying:
                dying.call("act", {"n": 1})
                time.sleep(0.6)
                dying.process.kill()
                dying.process.wait()
        assert text(living.call("act", {"n": 2})) == "act "
    with Guarded(tmp_path, "--server", "third") as third:
        assert text(third.call("act", {"n": 3})) == "act "


def test_a_redacted_number_takes_no_handle_away(tmp_path: Path) -> None:
    """The handle is passed, and recorded without it. Arguments that are too deep are refused, and answered."""
    (tmp_path / "rules.toml").write_text('[tools."*"]\nredact = ["card"]\n')
    body = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "tools/call":
        card = asked["params"]["arguments"]["card"]
        reply(asked["id"], {"task": {"taskId": "t", "status": "working", "card": card}})
"""
    with Guarded(tmp_path, "--rules", str(tmp_path / "rules.toml"), command=program(tmp_path, body)) as guarded:
        call = {"name": "charge", "arguments": {"card": int(SECRET)}, "task": {}}
        assert guarded.answer(guarded.ask("tools/call", call))["result"]["task"]["taskId"] == "t"
        deep = b"[" * 900 + b"]" * 900
        guarded.write(line(90, "charge", arguments={"card": 1, "x": "HERE"}).replace(b'"HERE"', deep))
        assert guarded.answer(90)
        assert guarded.end() == 0
    with Log.open(tmp_path / "log.db") as log:
        (handle,) = [entry.payload for entry in log.tail(20) if getattr(entry.record, "name", "") == "mcp.task"]
    assert handle["given"]["task"]["card"] == "***"


def test_a_command_with_a_word_that_is_too_long_for_a_name() -> None:
    """It is no file, and no error."""
    assert server_name(["python", "-c", "x" * 5_000])
