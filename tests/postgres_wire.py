"""As much of PostgreSQL's protocol 3 as it takes to find a commit in the bytes between a client and a server."""

from __future__ import annotations

import re
from collections.abc import Iterator

CANCEL_REQUEST, SSL_REQUEST, GSS_REQUEST = 80877102, 80877103, 80877104

_QUOTED = re.compile(rb"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_COMMIT = re.compile(rb"\s*(?:COMMIT|END)\b(?!\s+PREPARED)", re.IGNORECASE)
_BEGIN = re.compile(rb"\s*(?:BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)
_ROLLBACK = re.compile(rb"\s*(?:ROLLBACK|ABORT)\b(?!\s+(?:TO|PREPARED|WORK\s+TO|TRANSACTION\s+TO))", re.IGNORECASE)
_READING = re.compile(rb"\s*(?:SHOW|SET|RESET|DISCARD|DEALLOCATE|FETCH|CLOSE|LISTEN|\Z)", re.IGNORECASE)


class Frames:
    """Cuts a stream of bytes into messages.

    Args:
        untyped_first: the first message has no type byte, as a client's start-up packet has none.
    """

    def __init__(self, *, untyped_first: bool = False) -> None:
        self._rest = b""
        self._untyped = untyped_first

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Each whole message that there is now, its type byte and length included."""
        self._rest += received
        while True:
            head = 0 if self._untyped else 1
            if len(self._rest) < head + 4:
                return
            length = head + int.from_bytes(self._rest[head : head + 4], "big")
            if len(self._rest) < length:
                return
            message, self._rest = self._rest[:length], self._rest[length:]
            if self._untyped and int.from_bytes(message[4:8], "big") not in (SSL_REQUEST, GSS_REQUEST):
                self._untyped = False
            yield message


class Transactions:
    """Follows a client's messages and says which of them commits; `over` is to be called after each that does.

    A COMMIT is found as a simple query or as an Execute of a portal whose statement was parsed as one. Where a
    statement that may write stands outside BEGIN, the Sync that ends it commits, or the simple query itself.

    Attributes:
        explicit: the message that `commits` said yes to last was a COMMIT, not the end of an implicit transaction.
        sent: every byte that the client sent of the transaction at hand.
    """

    def __init__(self) -> None:
        self.explicit = False
        self.sent = b""
        self._in_block = False
        self._wrote = False
        self._statements: dict[bytes, bytes] = {}
        self._portals: dict[bytes, bytes] = {}

    def commits(self, message: bytes) -> bool:
        """Take the client's next message; whether a transaction is committed by it, if nothing goes wrong."""
        kind, body = message[:1], message[5:]
        self.sent += message
        match kind:
            case b"Q":
                statements = _QUOTED.sub(b"''", body.rstrip(b"\0")).split(b";")
                found = [self._commits(text) for text in statements]  # all of them, for what each leaves behind
                return any(found) or self._ends_implicit()
            case b"P":
                name, query, *_ = body.split(b"\0", 2)
                self._statements[name] = query
            case b"B":
                portal, name, *_ = body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, b"")
            case b"E":
                return self._commits(self._portals.get(body.split(b"\0", 1)[0], b""))
            case b"S":
                return self._ends_implicit()
            case _:
                pass
        return False

    def over(self) -> None:
        """The transaction at hand has ended: what is sent from now on belongs to the next."""
        self.sent = b""
        self._in_block = self._wrote = False

    def _commits(self, text: bytes) -> bool:
        if _COMMIT.match(text):
            self.explicit = self._in_block
            return self._in_block
        if _BEGIN.match(text):
            self._in_block = True
        elif _ROLLBACK.match(text):
            self.over()
        elif not self._in_block and not _READING.match(text):
            self._wrote = True
        return False

    def _ends_implicit(self) -> bool:
        if self._in_block:
            return False
        wrote, self.explicit = self._wrote, False
        if not wrote:
            self.over()
        return wrote
