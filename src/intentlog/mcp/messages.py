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
    except msgspec.ValidationError:
        return None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    if isinstance(frame, Frame) and (_METHOD.findall(text) not in ([], [b'"method"']) or b"\\u00" in text):
        _refuse_twins(text)  # `method` could stand in it twice, as such, in other letters or written with escapes
    return frame


def _refuse_twins(text: bytes) -> None:
    try:
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise Unreadable("a member stands in it twice")
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
        value: object = json.loads(text.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return []
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
    return Frame(id=folded["id"], **parts) if parts and "id" in folded else None


def id_in(text: bytes) -> object:
    """The id of a request that could not be read, or None."""
    try:
        value: object = json.loads(text.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    id_ = cast("dict[str, object]", value).get("id") if isinstance(value, dict) else None
    return id_ if isinstance(id_, str | int) else None


def members_of(part: Raw | UnsetType) -> dict[str, Raw]:
    """The members of a part that is an object, each as it stands; none of a part that is another thing, or missing."""
    if part is UNSET:
        return {}
    try:
        return _RAW_MEMBERS.decode(part)
    except msgspec.MsgspecError:
        return {}


def text_of(part: Raw | None) -> str | None:
    """The text that a part is, or None if it is another thing or missing."""
    if part is None:
        return None
    value: object = msgspec.json.decode(part)
    return value if isinstance(value, str) else None


def with_members(part: Raw | UnsetType, members: dict[str, Any]) -> Raw:
    """The object, with these members set: what they do not name stays as it stands."""
    return Raw(msgspec.json.encode(members_of(part) | members))


def on_one_line(text: bytes) -> bytes:
    """The message as every reader takes it for one line. In JSON a carriage return stands between values only."""
    return text.replace(b"\r", b" ") if b"\r" in text else text


def request(id_: object, method: str, params: Raw | UnsetType) -> bytes:
    """A request."""
    body = {"jsonrpc": "2.0", "id": id_, "method": method}
    return msgspec.json.encode(body if params is UNSET else body | {"params": params})


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
