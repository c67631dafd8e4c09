"""JSON-RPC messages of MCP as they stand on the wire: what the guard has to know of them, and nothing more.

A message is parsed to find out whether it is a `tools/call`; what is not one passes as the very bytes that came. Two
readers of one text must not read two messages in it: what only some parsers take (NaN, a byte order mark, a key that
stands twice or in other letters) is refused rather than passed, and a carriage return between values, at which some
servers end a line, becomes a space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
CALL, LIST, CANCELLED = "tools/call", "tools/list", "notifications/cancelled"
LIST_CHANGED = "notifications/tools/list_changed"


KnownBy = tuple[bool, Any]
"""What a message's id is looked up by: `1` and `"1"` are two."""


class Unreadable(ValueError):
    """A text is no message that every reader would read alike."""


class Frame(Struct, frozen=True, gc=False):
    """The members that say what a message is; each a part of the bytes that came."""

    id: Any = UNSET
    method: Any = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def is_reply(self) -> bool:
        """Whether it answers a request."""
        return self.method is UNSET and self.id is not UNSET and (self.result is not UNSET or self.error is not UNSET)

    @property
    def is_contradictory(self) -> bool:
        """Whether it answers with a result and with an error: its readers take it for the one or the other."""
        return self.result is not UNSET and self.error is not UNSET


_METHOD = re.compile(rb'"method"', re.IGNORECASE)
_FRAMES = msgspec.json.Decoder(Frame | list[Raw])
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def read_frame(text: bytes) -> Frame | list[Raw] | None:
    """A message, a batch of messages, or None for JSON that is neither.

    Raises:
        Unreadable: not every reader would read the same in it.
    """
    try:
        frame = _FRAMES.decode(text)
    except msgspec.ValidationError as error:
        if not text.lstrip().startswith((b"{", b"[")):
            return None
        raise Unreadable(f"it is no message: {error}") from error  # a number that only some readers have room for
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    if isinstance(frame, Frame) and (_METHOD.findall(text) not in ([], [b'"method"']) or b"\\u00" in text):
        # `method` could stand in it twice, as such, in other letters or written with escapes
        _refuse_other_readings(text)
    return _without_null(frame) if isinstance(frame, Frame) else frame


def says(read: Frame | list[Raw] | None, method: str) -> bool:
    """Whether a message, or one of a batch, is of this method."""
    if isinstance(read, list):
        return any(says(one, method) for one in frames_in(read))
    return read is not None and read.method == method


def frames_in(batch: list[Raw]) -> list[Frame]:
    """The messages of a batch that can be read."""
    found: list[Frame] = []
    for part in batch:
        with suppress(Unreadable):
            read = read_frame(bytes(part))
            found += [read] if isinstance(read, Frame) else []
    return found


def _without_null(frame: Frame) -> Frame:
    """A reply without the `error: null`, or `result: null`, that some servers put beside the other one."""
    if frame.is_contradictory and value_of(frame.error) is None:
        return msgspec.structs.replace(frame, error=UNSET)
    if frame.is_contradictory and value_of(frame.result) is None:
        return msgspec.structs.replace(frame, result=UNSET)
    return frame


def refuse_twins(text: bytes) -> list[str]:
    """The names of an object's members.

    Raises:
        Unreadable: it is no JSON, or one of them stands in it twice: of two readers each may take another one.
    """
    try:
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
        names = [name for name, _ in pairs]
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"it is no object of JSON: {error}") from error
    if len(set(names)) < len(names):
        raise Unreadable("a member stands in it twice")
    return names


def _refuse_other_readings(text: bytes) -> None:
    names = refuse_twins(text)
    if misspelt := misspelt_in(names, ("id", "method", "params")):
        raise Unreadable(f"{misspelt!r} is not what the protocol calls it")


def misspelt_in(names: Iterable[str], known: Collection[str]) -> str | None:
    """A name that is a known one in other letters (`Method`), or None: to some readers that is the same."""
    return next((name for name in names if name not in known and name.casefold() in known), None)


def replies_in(text: bytes) -> list[tuple[Frame, bytes]]:
    """What some reader could take for replies, in whatever spelling: each, and a text of it alone.

    A server's reply is not refused for its spelling, but it has to be recorded before its client can read it.
    """
    try:
        return _replies_of(json.loads(text.decode("utf-8-sig", "replace")), text)
    except RecursionError:
        return _deep_replies_in(text)
    except ValueError:
        pieces = [piece for piece in text.split(b"\r") if piece.strip()]  # there are readers to which that ends a line
        found = [replies_in(piece) or [(Frame(), piece)] for piece in pieces] if len(pieces) > 1 else []
        return [one for some in found for one in some]


def _replies_of(value: object, text: bytes) -> list[tuple[Frame, bytes]]:
    if not isinstance(value, list):
        frame = _reply_like(value)
        return [] if frame is None else [(frame, text)]
    parts = cast("list[object]", value)
    return [(_reply_like(part) or Frame(), json.dumps(part).encode()) for part in parts]


def _reply_like(value: object) -> Frame | None:
    if not isinstance(value, dict):
        return None
    folded = {str(name).casefold(): part for name, part in cast("dict[object, object]", value).items()}
    parts = {name: Raw(json.dumps(folded[name]).encode()) for name in ("result", "error") if name in folded}
    return _without_null(Frame(id=folded["id"], **parts)) if parts and "id" in folded else None


_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MARKS = re.compile(_TEXT + rb"|[\[\]{},]", re.DOTALL)
_MEMBER = re.compile(rb"\s*(" + _TEXT + rb")\s*:(.*)", re.DOTALL)


def _deep_replies_in(text: bytes) -> list[tuple[Frame, bytes]]:
    """The same of a text that is nested deeper than this reader goes: others go deeper."""
    if text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return [(_shallow(part) or Frame(), part.strip()) for part in _parts_of(text)]
    frame = _shallow(text)
    return [] if frame is None else [(frame, text)]


def _shallow(text: bytes) -> Frame | None:
    """The reply that an object is, by its own members alone."""
    members: dict[str, bytes] = {}
    for part in _parts_of(text):
        if found := _MEMBER.fullmatch(part):
            name = value_of(Raw(found[1]))
            members[str(name).casefold()] = found[2].strip()
    id_ = value_of(Raw(members["id"])) if "id" in members else UNSET
    parts = {name: Raw(members[name]) for name in ("result", "error") if name in members}
    return _without_null(Frame(id=id_, **parts)) if parts and id_ is not UNSET else None


def _parts_of(text: bytes) -> list[bytes]:
    """What an array or an object consists of, between its own commas. Nothing, if it has no end."""
    depth = begun = 0
    parts: list[bytes] = []
    for mark in _MARKS.finditer(text):
        sign = mark[0][:1]
        if sign in b"[{":
            depth += 1
            begun = mark.end() if depth == 1 else begun
        elif sign in b"]},":
            is_own = depth == 1
            depth -= sign != b","
            if is_own:
                parts.append(text[begun : mark.start()])
                begun = mark.end()
                if sign != b",":
                    return parts
    return []


def id_in(text: bytes) -> object:
    """The id of a request that could not be read, or None."""
    try:
        value: object = json.loads(text.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    id_ = cast("dict[str, object]", value).get("id") if isinstance(value, dict) else None
    is_plain = isinstance(id_, int) or (isinstance(id_, str) and id_.isprintable())  # half a surrogate pair is not
    return id_ if is_plain else None


def members_of(part: Raw | UnsetType) -> dict[str, Raw]:
    """The members of a part that is an object, each as it stands; none of a part that is another thing, or missing."""
    if part is UNSET:
        return {}
    try:
        return _RAW_MEMBERS.decode(part)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def value_of(part: Raw | UnsetType | None) -> Any:
    """What a part is; UNSET if it is missing, or no JSON that every reader reads (half a surrogate pair, 1e400)."""
    if part is None or part is UNSET:
        return UNSET
    try:
        return msgspec.json.decode(part)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return UNSET


def text_of(part: Raw | None) -> str | None:
    """The text that a part is, or None if it is another thing, missing or none that every reader reads."""
    value = value_of(part)
    return value if isinstance(value, str) else None


def with_members(part: Raw | UnsetType, members: dict[str, Any]) -> Raw:
    """The object, with these members set: what they do not name stays as it stands."""
    return Raw(msgspec.json.encode(members_of(part) | members))


def on_one_line(text: bytes) -> bytes:
    """The message as every reader takes it for one line. In JSON a carriage return stands between values only."""
    return text.replace(b"\r", b" ") if b"\r" in text else text


def unbroken(text: bytes) -> bytes:
    """A server's line as every reader takes it for one, if it is one message; else as it came."""
    try:
        is_one = read_frame(text) is not None
    except Unreadable:
        return text
    body = text.rstrip(b"\r\n")
    return on_one_line(body) + text[len(body) :] if is_one else text


def request(id_: object, method: str, params: Raw | UnsetType) -> bytes:
    """A request."""
    body = {"jsonrpc": "2.0", "id": id_, "method": method}
    return on_one_line(msgspec.json.encode(body if params is UNSET else body | {"params": params}))


def result(id_: object, value: object) -> bytes:
    """A reply that answers."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": value})


def failure(id_: object, code: int, message: str, data: object = None) -> bytes:
    """A reply that refuses. `data` is left out if it is None."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "error": error})


def cancelled(id_: object, reason: str) -> bytes:
    """The line by which a request is given up."""
    params = {"requestId": id_, "reason": reason}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": CANCELLED, "params": params}) + b"\n"


def stateless_meta() -> dict[str, object]:
    """What each request of the stateless era says of itself."""
    prefix = "io.modelcontextprotocol/"
    return {
        f"{prefix}protocolVersion": "2026-07-28",
        f"{prefix}clientInfo": {"name": "intentlog", "version": "1"},
        f"{prefix}clientCapabilities": {},
    }


def known_by(id_: object) -> KnownBy:
    """What an id is looked up by, whatever it is."""
    return (isinstance(id_, str), id_ if isinstance(id_, str | int | float) else repr(id_))
