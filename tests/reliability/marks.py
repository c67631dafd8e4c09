"""What happened, as seen from outside the log: one line for each try, acknowledgement, call and report, in their order.

The file is the receiver's and the client's memory. It is never read by the library, and a harness that takes power or
disk from the log leaves it alone.

    try BRANCH KIND         a record is handed to the store
    ack SEQ BRANCH KIND     the store acknowledged it: from now on it must be there (I5)
    noted BRANCH KIND       an EVENTUAL event was accepted: it must be there with its branch's next `ack` of Pending
    call INTENT REQUEST NO  the effect takes place, in the tool: from now on "never sent" is a lie (I2)
    got INTENT VALUE        the caller was handed this result
    said INTENT VERDICT     a restart or a recovery reported this of the intent
    renewed BRANCH          a person lets the branch's effect happen once more
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from intentlog.store.sqlite import SqliteStore


class Mark(NamedTuple):
    """One line: its kind and its words."""

    kind: str
    words: tuple[str, ...]


class Marks:
    """A file of marks, which any process may add to. A line is one write, so that a kill leaves it whole or not at all.

    Args:
        path: the file; made at the first mark.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def tell(self, kind: str, *words: object) -> None:
        """Add a line."""
        os.write(self._descriptor, ("\t".join([kind, *map(str, words)]) + "\n").encode())

    def close(self) -> None:
        """Add no more."""
        os.close(self._descriptor)

    def read(self) -> list[Mark]:
        """Every mark so far."""
        return parsed(self.path.read_bytes())

    def calls(self, request_id: str = "") -> list[Mark]:
        """The calls so far, or those with one request id."""
        return [m for m in self.read() if m.kind == "call" and request_id in ("", m.words[1])]


def parsed(content: bytes) -> list[Mark]:
    """The marks of a file's content."""
    lines = (line.split("\t") for line in content.decode().splitlines())
    return [Mark(words[0], tuple(words[1:])) for words in lines]


def mark_appends(marks: Marks, store: Any = SqliteStore) -> None:
    """From now on every append of this process, of whatever log of this kind, is marked before it and after it."""
    original = store.append

    def append(self: Any, entries: Sequence[Any]) -> list[Any]:
        for entry in entries:
            marks.tell("try", entry.branch, type(entry.record).__name__)
        replies = original(self, entries)
        for entry, reply in zip(entries, replies, strict=True):
            seq = getattr(reply, "seq", None)  # none of a record that was refused
            if seq is not None:
                marks.tell("ack", seq, entry.branch, type(entry.record).__name__)
        return replies

    store.append = append  # in a child process
