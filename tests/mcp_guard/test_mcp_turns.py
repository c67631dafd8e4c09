"""The threads that read a client and make its calls: none keeps the client from being read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from mcp_guard.guarded import LIMIT_S

from intentlog.mcp.turns import Turns


def test_the_client_is_read_while_every_thread_makes_a_call() -> None:
    """What ends a call is a message of the client's too: it must be read however many calls are under way."""
    released = threading.Event()
    made: list[bytes] = []

    def take(line: bytes) -> list[bytes]:
        if line == b"let them end":
            released.set()
            return []
        return [line]

    def make(call: bytes) -> None:
        assert released.wait(LIMIT_S)
        made.append(call)

    calls = [b"call %d" % number for number in range(7)]
    turns = Turns(iter([*calls, b"let them end"]), take, make, 3)
    turns.read()
    turns.wait()
    assert sorted(made) == calls


def test_the_calls_of_one_line_are_all_made() -> None:
    """A batch has several; the one that read it makes one, others the rest."""
    both = threading.Barrier(3, timeout=LIMIT_S)
    turns = Turns(iter([b"batch"]), lambda _: ["a", "b", "c"], lambda _: both.wait() and None, 3)
    turns.read()
    turns.wait()
    assert not both.broken


def test_what_ends_the_reading_is_raised() -> None:
    """Not lost in a thread: the guard would wait for ever. Calls that were begun are made."""
    made: list[str] = []

    def lines() -> Iterator[bytes]:
        yield b"a call"
        raise OSError(5, "the client's pipe broke")

    turns = Turns(lines(), lambda line: [line.decode()], made.append, 3)
    with pytest.raises(OSError, match="pipe broke"):
        turns.read()
    turns.wait()
    assert made == ["a call"]


def test_a_call_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """On any thread: the one that read it, or another one."""

    def make(call: str) -> None:
        raise ValueError(call)

    turns = Turns(iter([b"line"]), lambda _: ["one", "two"], make, 3)
    turns.read()
    turns.wait()
    told = capfd.readouterr().err
    assert "internal: ValueError: one" in told
    assert "internal: ValueError: two" in told
