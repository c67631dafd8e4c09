"""Reads of any length, in pages: what is read at once is bounded by rows and by bytes.

Nothing is skipped or read twice where a log grows meanwhile: rows are taken up again behind the last key, and a
branch's records, which never change, are those that stood below its head when the reading began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from intentlog.core import codec
from intentlog.core.records import Instant, Stored
from intentlog.errors import LogDamaged
from intentlog.store import schema

PAGE_ROWS = 1_000
NEWEST_ROWS = 50  # of a branch: a walk within one statement costs as much as this many statements do
PAGE_BYTES = 4 << 20  # of a branch's records and payloads: a page ends with the record that reaches it

_PREVIOUS, _RECORD, _PAYLOAD = 2, 6, 7  # of `schema.EVENT_COLUMNS`

Row: TypeAlias = tuple[Any, ...]
Read: TypeAlias = Callable[[str, tuple[object, ...]], list[Row]]  # every row of one statement, which limits them


def by_key(read: Read, query: str, values: tuple[object, ...], first: Sequence[object]) -> Iterator[Row]:
    """Every row of a query that is ordered by a key, from the key `first`, page by page.

    Args:
        read: reads one page.
        query: takes the values, the key to begin with, and how many rows; its first columns are the key.
        values: what else the query takes.
        first: the lowest key there can be.
    """
    begin = tuple(first)
    while rows := read(query, (*values, *begin, PAGE_ROWS)):
        yield from rows
        begin = _behind(rows[-1][: len(begin)])


def _behind(key: Row) -> Row:
    """The lowest key that is above this one."""
    *rest, last = key
    return (*rest, last + "\0" if isinstance(last, str) else last + 1)


def records_back(read: Read, head: int, after: int = 0) -> Iterator[Row]:
    """The records of one branch, oldest first, as far back from `head` as its chain goes, or to the record `after`.

    The newest are read one by one: most branches are no longer. Of what lies below them only the places are read
    first, and that of one in a thousand is kept; from there the pages are read again, whole.
    """
    newest: list[Row] = []
    below, taken = head if head > after else 0, 0
    while below and len(newest) < NEWEST_ROWS and taken < PAGE_BYTES:
        found = read(schema.EVENT, (below,))
        newest += found
        below = _below(below, found[0][_PREVIOUS], after) if found else 0
        taken += len(found[0][_RECORD]) + len(found[0][_PAYLOAD] or b"") if found else 0
    places: list[tuple[int, int]] = []  # where a page begins, the newest first, and how many records it has
    while below:
        [(seq, previous, count)] = read(schema.PAGE_BACK, (below, after, PAGE_ROWS, PAGE_BYTES))
        places += [(below, count)] if count else []
        below = _below(seq, previous, after) if count else 0
    while places:
        place, count = places.pop()
        yield from reversed(read(schema.WALK_BACK, (place, after, count, PAGE_BYTES)))
    newest.reverse()
    yield from newest


def _below(seq: int, previous: int, after: int) -> int:
    """Where the walk goes on; 0 at its end. A chain that does not go down is an edit: `verify` says so."""
    return previous if after < previous < seq else 0


def stored_of(row: Row) -> Stored:
    """A record as it stands in the log.

    Raises:
        LogDamaged: it cannot be read.
    """
    seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain = row
    try:
        at = Instant(wall_ns, boot_id.hex() if boot_id else "", boot_ns or 0)
        return Stored(seq, branch, at, codec.decode_record(record), payload, previous_seq, chain)
    except (ValueError, TypeError, AttributeError) as error:
        raise LogDamaged(f"record {seq} cannot be read: {error}") from error
