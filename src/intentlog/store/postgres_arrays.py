"""Columns of a batch as PostgreSQL's arrays, in its binary form: bytes travel as they are, and not as hexadecimal text.

Each is of one type whatever it holds, so that a statement is prepared once; psycopg's own lists of numbers, or of
nothing but NULL, differ in theirs by what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import ClassVar

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEAD = Struct(
    ">iiIii"
).pack  # dimensions, whether there are NULLs, the elements' type, their number, the first's index
_LENGTH = Struct(">i").pack
_BIGINT = Struct(">iq").pack
_NULL = _LENGTH(-1)
_BYTEA, _BIGINT_TYPE, _TEXT = 17, 20, 25
_BYTEA_ARRAY, _BIGINT_ARRAY, _TEXT_ARRAY = 1001, 1016, 1009


class Blobs(tuple[bytes | None, ...]):
    """A `bytea[]`."""

    __slots__ = ()


class Bigints(tuple[int | None, ...]):
    """A `bigint[]`."""

    __slots__ = ()


class Names(tuple[str, ...]):
    """A `text[]`."""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def array(self, parts: Iterable[bytes], count: int) -> bytes:
        if not count:
            return _HEAD(0, 0, self.element, 0, 1)[:12]
        return _HEAD(1, 1, self.element, count, 1) + b"".join(parts)


class _BlobsDumper(_ArrayDumper):
    oid, element = _BYTEA_ARRAY, _BYTEA

    def dump(self, obj: Blobs) -> Buffer:
        return self.array([_NULL if one is None else _LENGTH(len(one)) + one for one in obj], len(obj))


class _BigintsDumper(_ArrayDumper):
    oid, element = _BIGINT_ARRAY, _BIGINT_TYPE

    def dump(self, obj: Bigints) -> Buffer:
        return self.array([_NULL if one is None else _BIGINT(8, one) for one in obj], len(obj))


class _NamesDumper(_ArrayDumper):
    oid, element = _TEXT_ARRAY, _TEXT

    def dump(self, obj: Names) -> Buffer:
        encoded = [one.encode() for one in obj]
        return self.array([_LENGTH(len(one)) + one for one in encoded], len(obj))


def register(adapters: AdaptersMap) -> None:
    """Let a connection send them."""
    adapters.register_dumper(Blobs, _BlobsDumper)
    adapters.register_dumper(Bigints, _BigintsDumper)
    adapters.register_dumper(Names, _NamesDumper)
