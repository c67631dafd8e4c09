"""The framing, fuzzed: whatever reader a server has, what it takes for a call was guarded or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from intentlog.mcp import messages
from intentlog.mcp.calls import Malformed, ToolCall
from intentlog.mcp.events import Events, data_of, event_of
from intentlog.mcp.messages import Frame, Unreadable, read_frame

NAMES = ["method", "Method", "METHOD", "m\\u0065thod", "id", "ID", "params", "result", "jsonrpc", "x"]
VALUES = [
    '"tools/call"',
    '"tools\\/call"',
    '"ping"',
    '"t\\u006fols/call"',
    "1",
    "null",
    '{"name":"act"}',
    "NaN",
    "1e999",
    "[]",
]
SPACES = ["", " ", "\t", "\r", "\r\n", "\x0b", "\ufeff"]
space = st.sampled_from(SPACES)


@st.composite
def objects(draw: st.DrawFn) -> str:
    members = draw(
        st.lists(st.tuples(space, st.sampled_from(NAMES), space, st.sampled_from(VALUES), space), max_size=5)
    )
    return "{" + ",".join(f'{a}"{name}"{b}:{value}{c}' for a, name, b, value, c in members) + "}"


texts = st.one_of(
    objects(),
    st.tuples(space, objects(), space).map("".join),
    st.lists(objects(), max_size=3).map(lambda parts: "[" + ",".join(parts) + "]"),
    st.lists(objects(), min_size=2, max_size=3).map("\r".join),
    st.text(max_size=40),
)


def readers(line: bytes) -> Iterator[Any]:
    """What different servers read in a line: the last of two equal members, or the first, or whatever its letters; with
    a byte order mark or without; a carriage return ends the line, or does not."""
    for text in [line, *line.split(b"\r")]:
        for encoding in ("utf-8", "utf-8-sig"):
            for pairs in (dict, lambda pairs: dict(reversed(pairs)), lambda pairs: {n.casefold(): v for n, v in pairs}):
                with suppress(ValueError, RecursionError):
                    yield json.loads(text.decode(encoding), object_pairs_hook=pairs)


def is_call(read: Any) -> bool:
    parts = read if isinstance(read, list) else [read]
    return any(isinstance(part, dict) and part.get("method") == "tools/call" for part in parts)


@given(texts)
@example('{"id":1,"method":"ping","params":\r{"method":"tools/call"}\r}')
@example('{"Method":"tools/call"}')
def test_no_reader_finds_a_call_that_was_not_seen(text: str) -> None:
    """Of what passes: as it passes, on one line."""
    try:
        line = text.encode()
    except UnicodeEncodeError:
        return
    if b"\n" in line.rstrip(b"\r\n"):
        return
    try:
        read = read_frame(line)
        frames = [read_frame(bytes(part)) for part in read] if isinstance(read, list) else [read]
    except Unreadable:
        return
    seen = any(isinstance(frame, Frame) and frame.method == messages.CALL for frame in frames)
    if not seen:
        assert not any(is_call(found) for found in readers(messages.on_one_line(line)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["name", "Name", "n\\u0061me", "arguments", "_meta", "_Meta"]),
            st.sampled_from(['"a"', '"b"', "{}"]),
        )
    )
)
def test_every_reader_finds_the_call_that_was_seen(members: list[tuple[str, str]]) -> None:
    """What is sent has each member once, and none in other letters."""
    params = "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
    frame = read_frame(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode())
    assert isinstance(frame, Frame)
    try:
        call = ToolCall(frame)
    except Malformed:
        return
    found = list(readers(call.as_it_came()))
    assert found
    assert all(one["params"]["name"] == call.tool for one in found)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=20).filter(lambda b: not set(b) & set(b"\r\n")), st.sampled_from([b"\n", b"\r\n", b"\r"])
        )
    ),
    st.data(),
)
def test_events_are_cut_where_they_end(fields: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """However they come in pieces: byte for byte, and the message in each is the one that went in."""
    stream = b"".join(b"data: " + value + end + end for value, end in fields)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    events = Events(1 << 20)
    whole = [event for piece in pieces for event in events.feed(piece)]
    assert b"".join(whole) + events.rest() == stream
    assert [data_of(event) for event in whole if data_of(event)] == [value for value, _ in fields if value]


def test_an_event_without_an_end_is_given_on(tmp_path: object) -> None:
    """What is too large for a message is no message, and is not kept."""
    events = Events(10)
    assert events.feed(b"data: 0123456789") == [b"data: 0123456789"]
    assert data_of(event_of(b"{}")) == b"{}"
