"""The guard is killed at every failpoint with a call in flight; the client asks again: witness and answer agree.

The witness is the server's, outside the log. I2, I3, I4 hold for a client that knows nothing of them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import Guarded, NoAnswer

from intentlog.log.values import LEASE_VARIABLE

NEVER_SENT = ("before_pending", "after_pending", "before_dispatched")
IN_DOUBT = ("after_dispatched", "before_call", "after_call", "before_committed")
BEFORE_THE_CALL = (*NEVER_SENT, "after_dispatched", "before_call")


def killed(folder: Path, point: str, *options: str, key: str = "", tool: str = "act") -> int:
    """Let the guard be killed at a point of a call; how many calls took effect."""
    with Guarded(folder, *options, crash_at=point) as guarded:
        with suppress(NoAnswer):
            guarded.call(tool, {"what": "x"}, key)
        assert guarded.process.wait(20) == -9
        return len(guarded.calls())


def state_of(answer: Any) -> str:
    """ "", or what the guard says of the call in place of the server."""
    state: str = answer["result"].get("_meta", {}).get("io.intentlog/state", "")
    return state


@pytest.mark.parametrize("point", [*NEVER_SENT, *IN_DOUBT, "after_committed"])
def test_a_call_with_a_key_is_asked_for_again(tmp_path: Path, point: str) -> None:
    """Never sent: it is made. Done: its recorded result. In doubt: so it says, and nothing is sent, however often."""
    before = killed(tmp_path, point, "--branch", "b", key="k")
    assert before == (0 if point in BEFORE_THE_CALL else 1)
    with Guarded(tmp_path, "--branch", "b") as guarded:
        answers = [guarded.call("act", {"what": "x"}, "k") for _ in range(2)]
        happened = len(guarded.calls())
        assert guarded.end() == 0
    if point in IN_DOUBT:
        assert [state_of(one) for one in answers] == ["in_doubt", "in_doubt"]
        assert all(one["result"]["isError"] for one in answers)
        assert happened == before
    else:
        assert [one["result"]["content"][0]["text"] for one in answers] == ["act x", "act x"]
        assert answers[1]["result"]["_meta"]["io.intentlog/replayed"] is True
        assert happened == 1


@pytest.mark.parametrize("point", [*NEVER_SENT, *IN_DOUBT, "after_committed"])
def test_a_call_without_a_key_is_asked_for_again(tmp_path: Path, point: str) -> None:
    """A doubt is found without a key, in whatever branch. What is done and was never told is told once, and not sent
    again; an intended repeat is made."""
    before = killed(tmp_path, point)
    with Guarded(tmp_path) as guarded:
        answers = [guarded.call("act", {"what": "x"}) for _ in range(2)]
        happened = len(guarded.calls())
        assert guarded.end() == 0
    states = [state_of(one) for one in answers]
    if point in IN_DOUBT:
        assert (states, happened) == (["in_doubt", "in_doubt"], before)
    elif point == "after_committed":
        assert (states, happened) == (["done", ""], 2)
        assert "NOT sent" in answers[0]["result"]["content"][0]["text"]
    else:
        assert (states, happened) == (["", ""], 2)


@pytest.mark.parametrize("point", IN_DOUBT)
def test_an_idempotent_call_goes_on_with_its_operation(tmp_path: Path, point: str) -> None:
    """Without a key too: its class settles the doubt by a repeat, under the same request id."""
    options = ("--rules", str(tmp_path / "rules.toml"))
    (tmp_path / "rules.toml").write_text('[tools.idem]\neffect = "IDEMPOTENT"\n')
    killed(tmp_path, point, *options, tool="idem")
    with Guarded(tmp_path, *options) as guarded:
        assert guarded.call("idem", {"what": "x"})["result"]["content"][0]["text"] == "idem x"
        calls = guarded.calls()
        assert guarded.end() == 0
    assert len({one["request_id"] for one in calls}) == 1


def leg(guarded: Guarded, **more: Any) -> Any:
    """A call of `ask`, under its key: with what was asked for, or without."""
    call = {"name": "ask", "arguments": {}, "_meta": {"io.intentlog/step": "k"}, **more}
    return guarded.ask("tools/call", call)


@pytest.mark.parametrize("point", ["between", *NEVER_SENT, *IN_DOUBT, "after_committed"])
def test_a_guard_dies_between_two_legs_of_a_call_or_in_the_second(tmp_path: Path, point: str) -> None:
    """The leg with what was asked for is an operation of its own: after a crash it is answered as any call is."""
    with Guarded(tmp_path, "--branch", "b") as first:
        assert first.answer(leg(first))["result"]["resultType"] == "input_required"
        first.process.kill()
    answered = {"inputResponses": {"q": 1}, "requestState": "s-1"}
    if point != "between":
        with Guarded(tmp_path, "--branch", "b", crash_at=point) as second:
            with suppress(NoAnswer):
                second.answer(leg(second, **answered))
            assert second.process.wait(20) == -9
    with Guarded(tmp_path, "--branch", "b") as third:
        answers = [third.answer(leg(third, **answered)) for _ in range(2)]
        assert third.answer(leg(third))["result"]["resultType"] == "input_required"
        happened = len(third.calls())
        assert third.end() == 0
    if point in IN_DOUBT:
        assert [state_of(one) for one in answers] == ["in_doubt", "in_doubt"]
        assert happened == (0 if point in BEFORE_THE_CALL else 1)
    else:
        assert [one["result"]["content"][0]["text"] for one in answers] == ["asked", "asked"]
        assert answers[1]["result"]["_meta"]["io.intentlog/replayed"] is True
        assert happened == 1


def test_the_server_dies_in_a_call(tmp_path: Path) -> None:
    """Its client is answered before the end: in doubt. The guard ends as the server did; an equal call is in doubt."""
    with Guarded(tmp_path) as guarded:
        assert state_of(guarded.call("die")) == "in_doubt"
        assert guarded.process.wait(20) == 3
    with Guarded(tmp_path) as guarded:
        assert state_of(guarded.call("die")) == "in_doubt"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0


@pytest.mark.parametrize("key", ["k", ""], ids=["with a key", "without"])
def test_on_postgresql_a_dead_guard_is_waited_for(
    tmp_path: Path, postgres_log_url: str, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It is taken for alive until its lease is over. Until then an equal call could be the one that it is making."""
    monkeypatch.setenv(LEASE_VARIABLE, "2")
    options = ("--branch", "b", "--log", postgres_log_url)
    assert killed(tmp_path, "after_call", *options, key=key) == 1
    with Guarded(tmp_path, *options) as guarded:
        assert state_of(guarded.call("act", {"what": "x"}, key)) == "in_doubt"
        assert len(guarded.calls()) == 1
        assert guarded.end() == 0
