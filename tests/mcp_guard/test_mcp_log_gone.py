"""The log's server cannot be reached when the end of a call is to be recorded: an equal call is in doubt (I2, I3).

PostgreSQL is behind a proxy that hangs up and takes no connection. The witness is the guarded server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_guard.guarded import Guarded
from mcp_guard.test_mcp_crashes import state_of
from postgres_proxy import Proxy

ASKED = {"what": "x"}


@pytest.fixture
def guarded(tmp_path: Path, postgres_log_url: str, postgres_proxy: Proxy) -> Iterator[Guarded]:
    through = f"{postgres_proxy.url()}?{postgres_log_url.partition('?')[2]}"
    with Guarded(tmp_path, "--branch", "b", "--log", through) as made:
        yield made


def is_not_sent(answer: Any) -> bool:
    """The guard says that the call was not sent, since it cannot write that it will be."""
    return bool(answer["result"]["isError"]) and state_of(answer) == "not_sent"


def test_a_cancelled_call_whose_end_cannot_be_recorded(guarded: Guarded, postgres_proxy: Proxy) -> None:
    """While the log is gone nothing is sent. Once it is back, the equal call is in doubt, however often it is asked."""
    first = guarded.ask("tools/call", {"name": "hang", "arguments": ASKED})
    guarded.wait_for_calls(1)
    with postgres_proxy.refusing():
        postgres_proxy.cut()
        guarded.tell("notifications/cancelled", {"requestId": first})
        while_gone = guarded.call("hang", ASKED)
    after = [guarded.call("hang", ASKED) for _ in range(2)]
    assert is_not_sent(while_gone)
    assert [state_of(one) for one in after] == ["in_doubt", "in_doubt"]
    assert len(guarded.calls()) == 1


@pytest.mark.parametrize("key", ["k", ""], ids=["with a key", "without"])
def test_a_reply_that_cannot_be_recorded(guarded: Guarded, postgres_proxy: Proxy, key: str) -> None:
    """Its client hears what the server said. The log knows that it was sent: what is asked again is in doubt."""
    meta = {"_meta": {"io.intentlog/step": key}} if key else {}
    first = guarded.ask("tools/call", {"name": "act", "arguments": {**ASKED, "after": 1}, **meta})
    guarded.wait_for_calls(1)
    with postgres_proxy.refusing():
        postgres_proxy.cut()
        told = guarded.answer(first, 90)
    after = guarded.call("act", {**ASKED, "after": 1}, key)
    assert told["result"]["content"][0]["text"] == "act x"
    assert state_of(after) == "in_doubt"
    assert len(guarded.calls()) == 1
