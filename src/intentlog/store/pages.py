"""Reads of any length, in pages: what is read at once is bounded by rows and by bytes.

Nothing is skipped or read twice where a log grows meanwhile: rows are taken up again behind the last key, and a
branch's records, which never change, are those that stood below its head when the reading began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from intentlog.core import codec
from intentlog.core.records import Instant, Stored
from intentlog.errors import LogDamaged

PAGE_ROWS = 1_000
NEWEST_ROWS = 50  # of a branch: a walk within one statement costs as much as this many statements do
PAGE_BYTES = 4 << 20  # of a branch's records and payloads: a page ends with the record that reaches it

EVENT_COLUMNS = "seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain"  # of every store
_PREVIOUS, _RECORD, _PAYLOAD = 2, 6, 7  # of these

Row: TypeAlias = tuple[Any, ...]
Read: TypeAlias = Callable[[str, tuple[object, ...]], list[Row]]  # every row of one statement, which limits them


class Walk(NamedTuple):
    """The statements that read a branch's records back along its chain.

    Attributes:
        event: one record, by its place.
        walk_back: the records from a place back: (place, the place to stop above, how many, how many bytes) at most.
        page_back: where such a walk ends (the record, and the one before it), and after how many records.
        newest_back: how the newest are read: by `walk_back` too, where each statement is a round trip; or None: one by
            one, where none is.
    """

    event: str
    walk_back: str
    page_back: str
    newest_back: str | None = None


def by_key(read: Read, query: str, values: tuple[object, ...], before: Sequence[object]) -> Iterator[Row]:
    """Every row of a query that is ordered by a key, page by page.

    Args:
        read: reads one page.
        query: takes the values, the key to begin behind, and how many rows; its first columns are the key.
        values: what else the query takes.
        before: a key below the lowest that there is.
    """
    last = tuple(before)
    while rows := read(query, (*values, *last, PAGE_ROWS)):
        yield from rows
        last = rows[-1][: len(last)]


def records_back(read: Read, walk: Walk, head: int, after: int = 0) -> Iterator[Row]:
    """The records of one branch, oldest first, as far back from `head` as its chain goes, or to the record `after`.

    The newest are read first: most branches are no longer. Of what lies below them only the places are read first, and
    that of one in a thousand is kept; from there the pages are read again, whole.
    """
    below = head if head > after else 0
    newest = _newest(read, walk, below, after)
    below = _below(newest[-1][0], newest[-1][_PREVIOUS], after) if newest else 0
    places: list[tuple[int, int]] = []  # where a page begins, the newest first, and how many records it has
    while below:
        [(seq, previous, count)] = read(walk.page_back, (below, after, PAGE_ROWS, PAGE_BYTES))
        places += [(below, count)] if count else []
        below = _below(seq, previous, after) if count else 0
    while places:
        place, count = places.pop()
        yield from reversed(read(walk.walk_back, (place, after, count, PAGE_BYTES)))
    newest.reverse()
    yield from newest


def _newest(read: Read, walk: Walk, below: int, after: int) -> list[Row]:
    """The newest records, back from this place: newest first."""
    if walk.newest_back is not None:
        return read(walk.newest_back, (below, after, NEWEST_ROWS, PAGE_BYTES)) if below else []
    newest: list[Row] = []
    taken = 0
    while below and len(newest) < NEWEST_ROWS and taken < PAGE_BYTES:
        found = read(walk.event, (below,))
        if not found:
            break
        newest += found
        below = _below(below, found[0][_PREVIOUS], after)
        taken += len(found[0][_RECORD]) + len(found[0][_PAYLOAD] or b"")
    return newest


def _below(seq: int, previous: int, after: int) -> int:
    """Where the walk goes on; 0 at its end. A chain that does not go down is an edit: `verify` says so."""
    return previous if after < previous < seq else 0


def body_of(row: Row) -> bytes:
    """A record's encoding, as it is kept: in SQLite as text."""
    body: bytes | str = row[_RECORD]
    return body.encode() if isinstance(body, str) else body


def stored_of(row: Row) -> Stored:
    """A record as it stands in the log.

    Raises:
        LogDamaged: it cannot be read.
    """
    seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain = row
    try:
        at = Instant(wall_ns, boot_id.hex() if boot_id else "", boot_ns or 0)
        return Stored(seq, branch, at, codec.decode_record(record), payload, previous_seq, chain)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LogDamaged(f"record {seq} cannot be read: {error}") from error
