"""Columns of a batch as PostgreSQL's arrays, in its binary form: bytes travel as they are, and not as hexadecimal text.

Each is of one type whatever it holds, so that a statement is prepared once; psycopg's own lists of numbers, or of
nothing but NULL, differ in theirs by what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TypeAlias

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEAD = Struct(
    ">iiIii"
).pack  # dimensions, whether there are NULLs, the elements' type, their number, the first's index
_LENGTH = Struct(">i").pack
_EMPTY = Struct(">iiI").pack
_BIGINT = Struct(">q").pack
_SIZED_BIGINT = Struct(">iq").pack
_NULL = _LENGTH(-1)
_BOOLEAN, _BYTEA, _BIGINT_TYPE, _TEXT = 16, 17, 20, 25
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


class Flags(tuple[bool, ...]):
    """A `boolean[]`."""

    __slots__ = ()


Value: TypeAlias = Blobs | Bigints | Names | Flags | int | str


def encoded(values: Iterable[Value]) -> list[bytes]:
    """The values of a statement, in PostgreSQL's binary form; a number as a bigint."""
    return [_encoded(value) for value in values]


def _encoded(value: Value) -> bytes:
    match value:
        case Blobs():
            return _array(_BYTEA, [_NULL if one is None else _LENGTH(len(one)) + one for one in value])
        case Bigints():
            return _array(_BIGINT_TYPE, [_NULL if one is None else _SIZED_BIGINT(8, one) for one in value])
        case Names():
            names = [one.encode() for one in value]
            return _array(_TEXT, [_LENGTH(len(one)) + one for one in names])
        case Flags():
            return _array(_BOOLEAN, [_LENGTH(1) + (b"\x01" if one else b"\x00") for one in value])
        case int():
            return _BIGINT(value)
        case str():
            return value.encode()


def _array(element: int, parts: Sequence[bytes]) -> bytes:
    if not parts:
        return _EMPTY(0, 0, element)
    return _HEAD(1, 1, element, len(parts), 1) + b"".join(parts)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Blobs | Bigints | Names) -> Buffer:
        return _encoded(obj)


class _BlobsDumper(_ArrayDumper):
    oid = _BYTEA_ARRAY


class _BigintsDumper(_ArrayDumper):
    oid = _BIGINT_ARRAY


class _NamesDumper(_ArrayDumper):
    oid = _TEXT_ARRAY


def register(adapters: AdaptersMap) -> None:
    """Let a connection's own statements take them too."""
    adapters.register_dumper(Blobs, _BlobsDumper)
    adapters.register_dumper(Bigints, _BigintsDumper)
    adapters.register_dumper(Names, _NamesDumper)
