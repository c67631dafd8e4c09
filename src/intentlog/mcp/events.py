"""Server-sent events as they stand on the wire: where one ends, and the message in it."""

from __future__ import annotations

import re

_LINE_END = rb"(?:\r\n|\n|\r(?!\n))"
_EVENT_END = re.compile(_LINE_END + rb"(?:\r\n|\n|\r)")
_LINES = re.compile(_LINE_END)
CONTENT_TYPE = "text/event-stream"


class Events:
    """Cuts what comes of a stream into whole events, byte for byte.

    Args:
        bytes_max: an event may have so many; a larger one is given on in pieces, and no message is read in it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = bytearray()
        self._bytes_max = bytes_max
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that are whole now, each with its end."""
        self._left += chunk
        whole: list[bytes] = []
        while (end := _EVENT_END.search(self._left, self._searched)) is not None:
            whole.append(bytes(self._left[: end.end()]))
            del self._left[: end.end()]
            self._searched = 0
        self._searched = max(0, len(self._left) - 4)  # an end can have begun in the last bytes
        if len(self._left) > self._bytes_max:
            whole.append(self.rest())
        return whole

    def rest(self) -> bytes:
        """What came without an end."""
        rest = bytes(self._left)
        self._left.clear()
        self._searched = 0
        return rest


def data_of(event: bytes) -> bytes:
    """The data of an event; empty if it has none."""
    return b"\n".join(_fields(event, b"data"))


def type_of(event: bytes) -> bytes:
    """What an event calls itself; empty if it does not."""
    return next(iter(_fields(event, b"event")[-1:]), b"")


def has_id(event: bytes) -> bool:
    """Whether the stream can be taken up again behind the event."""
    return any(_fields(event, b"id"))


def event_of(message: bytes) -> bytes:
    """A message as an event."""
    return b"event: message\ndata: " + message + b"\n\n"


def _fields(event: bytes, name: bytes) -> list[bytes]:
    found: list[bytes] = []
    for line in _LINES.split(event.removeprefix(b"\xef\xbb\xbf")):  # a mark that readers skip where a stream begins
        field, _, value = line.partition(b":")
        if field == name:
            found.append(value.removeprefix(b" "))
    return found
