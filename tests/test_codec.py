"""The log format, byte for byte: canonical values, digests, request ids and the chain (DESIGN 9, 10; core/codec.py)."""

import enum
import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.codec import NotRecordable
from intentlog.core.records import Instant

MIB = 1 << 20
SALT = b"s" * 32

steady = settings(deadline=None)  # a busy machine is no fault of the codec

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5), max_leaves=20
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=20)
generations = st.integers(1, 10**6)
instants = st.builds(
    Instant,
    wall_ns=st.integers(0, 2**62),
    boot_id=st.text(st.characters(codec="ascii"), max_size=8),
    boot_ns=st.integers(0, 2**62),
)


def reversed_dicts(value: Any) -> Any:
    """An equal value whose dicts were filled in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_dicts(item) for key, item in reversed(value.items())}
    if isinstance(value, list):
        return [reversed_dicts(item) for item in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout: `1`, `1.0` and `True` are not the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: float
    tags: tuple[str, ...] = ()


class Line(msgspec.Struct):
    a: Point
    note: str | None = None


class Model(pydantic.BaseModel):
    at: datetime
    ratio: float = 0.5


# --- values ----------------------------------------------------------------------------------------------------------


@steady
@given(json_values)
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    """DESIGN 10: JSON values are recorded, and read back equal and of the same types."""
    assert same(codec.decode_value(codec.encode_value(value, MIB), Any), value)


@steady
@given(json_values)
def test_the_encoding_is_canonical(value: Any) -> None:
    """codec: deterministic JSON, keys sorted, no white space; so equal arguments have equal digests (I6)."""
    encoded = codec.encode_value(value, MIB)
    turned = codec.encode_value(reversed_dicts(value), MIB)
    assert encoded == codec.encode_value(value, MIB) == turned
    assert codec.arguments_digest(encoded) == codec.arguments_digest(turned)
    assert same(json.loads(encoded), value), "any JSON parser reads it"


@steady
@given(st.dictionaries(texts, st.integers(), min_size=2, max_size=6))
def test_keys_are_sorted_without_white_space(value: dict[str, int]) -> None:
    """codec: the header's words, held against another writer of JSON."""
    order = list(json.loads(codec.encode_value(value, MIB)))
    assert order == sorted(order, key=str.encode)
    assert len(codec.encode_value({"b": [1, 2], "a": {}}, MIB)) == len(b'{"a":{},"b":[1,2]}')


@steady
@given(json_values, json_values)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    """I6: other arguments are told from the recorded ones, `1` from `1.0` and `True` included."""
    digests = [codec.arguments_digest(codec.encode_value({"x": value}, MIB)) for value in (one, other)]
    assert (digests[0] == digests[1]) == same(one, other)


def test_the_digest_is_what_the_format_says() -> None:
    """codec: "1:" and BLAKE2b-128, hex, over the arguments' deterministic JSON."""
    encoded = codec.encode_value({"b": 1, "a": "x"}, MIB)
    assert encoded == b'{"a":"x","b":1}'
    assert codec.arguments_digest(encoded) == "1:" + blake2b(encoded, digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("value", "of_type"),
    [
        (b"\x00\xff", bytes),
        (datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=UTC), datetime),
        (datetime(2026, 2, 28), datetime),  # noqa: DTZ001 - a naive one must stay naive
        (date(2026, 2, 28), date),
        (time(23, 59), time),
        (timedelta(days=-1, microseconds=1), timedelta),
        (Decimal("1.50"), Decimal),
        (uuid.UUID(int=7), uuid.UUID),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (Point(1.5, ("a", "b")), Point),
        (Line(Point(0.0)), Line),
        (Model(at=datetime(2026, 1, 1, tzinfo=UTC)), Model),
        ((1, "a", None), tuple[int, str, None]),
        ({3, 1, 2}, set[int]),
        (frozenset({"b", "a"}), frozenset[str]),
        ([Line(Point(1.0), "n")], list[Line]),
        ({"k": Decimal("0.10")}, dict[str, Decimal]),
        (2**100, int),
        (-0.0, float),
        ("null", str),
        (None, type(None)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_typed_value_comes_back_by_its_annotation(value: Any, of_type: Any) -> None:
    """DESIGN 10: what is recorded is decoded with the function's annotation, to an equal value of the same type."""
    back = codec.decode_value(codec.encode_value(value, MIB), of_type)
    assert back == value
    assert type(back) is type(value)


def test_a_decimal_keeps_its_digits() -> None:
    """DESIGN 10: an amount of 1.50 is not 1.5 after a replay."""
    assert str(codec.decode_value(codec.encode_value(Decimal("1.50"), MIB), Decimal)) == "1.50"


@steady
@given(st.sets(st.integers()))
def test_a_set_is_written_in_one_order(value: set[int]) -> None:
    """codec: deterministic; a set has no order of its own, so its encoding has one."""
    backwards: set[int] = set()
    for item in sorted(value, reverse=True):
        backwards.add(item)
    assert codec.encode_value(value, MIB) == codec.encode_value(backwards, MIB)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: [1, [x]],
        lambda x: {"a": {"b": x}},
        lambda x: (x,),
        lambda x: {x},
        Point,
        lambda x: Line(Point(x)),
        lambda x: {"null": "null", "x": [Line(Point(0.0)), Line(Point(x), "null")]},
        lambda x: Model(at=datetime(2026, 1, 1, tzinfo=UTC), ratio=x),
    ],
    ids=["bare", "list", "dict", "tuple", "set", "dataclass", "struct", "among nulls", "pydantic"],
)
def test_a_float_that_is_not_finite_is_refused(number: float, wrap: Any) -> None:
    """DESIGN 10: NaN is refused, however deep: JSON would write it as null, and a replay would return another value."""
    with pytest.raises(NotRecordable):
        codec.encode_value(wrap(number), MIB)


def test_null_itself_is_recorded() -> None:
    """The guard against NaN looks closer at `null`; None, and a text that says so, are values like others."""
    value = {"a": None, "b": ["null", None], "c": 1.5}
    assert codec.decode_value(codec.encode_value(value, MIB), Any) == value


def cyclic_list() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def deep_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        cyclic_list(),
        deep_list(100_000),
        "\ud800",
        {"\udfff": 1},
        object(),
        complex(1, 2),
        lambda: None,
        {1, "a", 2.5},
        [iter(())],
        (x for x in ()),
        Exception("x"),
        int,
    ],
    ids=[
        "cycle", "too deep", "lone surrogate", "lone surrogate key", "object", "complex", "function", "mixed set",
        "iterator", "generator", "exception", "class",
    ],
)  # fmt: skip
def test_what_cannot_be_written_down_is_refused(value: Any) -> None:
    """DESIGN 10: cycles, and what JSON has no form for, are refused with one class of error, and nothing else."""
    with pytest.raises(NotRecordable):
        codec.encode_value(value, MIB)


def test_the_limit_is_in_bytes_and_included() -> None:
    """DESIGN 10: limits are settings; one that is met is kept, one byte more is refused, whatever the characters."""
    assert codec.encode_value("é" * 10, 22) == '"éééééééééé"'.encode()
    with pytest.raises(NotRecordable, match="22 bytes, the limit is 21"):
        codec.encode_value("é" * 10, 21)


@pytest.mark.parametrize(
    ("encoded", "of_type"),
    [(b'"a"', int), (b"null", str), (b"{}", Line), (b"", Any), (b"{", Any), (b'"2026"', datetime), (b'"x"', Colour)],
)
def test_a_value_that_does_not_fit_its_type_is_a_value_error(encoded: bytes, of_type: Any) -> None:
    """DESIGN 10: a value that no longer decodes at replay is told as one kind of error."""
    with pytest.raises(ValueError):
        codec.decode_value(encoded, of_type)


def test_a_model_that_no_longer_fits_is_a_value_error() -> None:
    """DESIGN 10: the same of pydantic models, whose errors are pydantic's own."""
    with pytest.raises(ValueError):
        codec.decode_value(b'{"at":"never"}', Model)


# --- request ids -----------------------------------------------------------------------------------------------------


@steady
@given(names, names, generations)
def test_a_request_id_is_a_uuid_of_version_8(branch: str, step: str, generation: int) -> None:
    """DESIGN 2: a UUID in form; RFC 9562: version 8, for contents of one's own making. The same each time."""
    text = codec.request_id(SALT, branch, step, generation)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert text == codec.request_id(SALT, branch, step, generation)


@steady
@given(st.tuples(names, names, generations), st.tuples(names, names, generations))
def test_other_operations_have_other_request_ids(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    """DESIGN 2: derived from (branch, step, generation), all three; equal only for the same operation."""
    assert (codec.request_id(SALT, *one) == codec.request_id(SALT, *other)) == (one == other)


@steady
@given(names, names, generations)
def test_each_part_of_an_operation_counts(branch: str, step: str, generation: int) -> None:
    """DESIGN 2 and field case 16: branch, step and generation are all part of the identity; the log's salt too."""
    ids = {
        codec.request_id(SALT, branch, step, generation),
        codec.request_id(SALT, branch + "x", step, generation),
        codec.request_id(SALT, branch, step + "x", generation),
        codec.request_id(SALT, branch, step, generation + 1),
        codec.request_id(b"t" * 32, branch, step, generation),
    }
    assert len(ids) == 5


@steady
@given(names, st.integers(0, 20))
def test_moving_the_border_between_branch_and_step_is_another_operation(text: str, cut: int) -> None:
    """The parts are joined by NUL, which no name may hold: the same characters cut elsewhere are not the same parts."""
    cut = 1 + cut % max(1, len(text))
    whole, split = (text + text, text), (text[:cut] + text, text[cut:] + text)
    differ = whole != split
    assert (codec.request_id(SALT, *whole, 1) != codec.request_id(SALT, *split, 1)) == differ


def test_the_step_cannot_run_into_the_generation() -> None:
    """As above, at the other border."""
    assert codec.request_id(SALT, "b", "s1", 1) != codec.request_id(SALT, "b", "s", 11)


def test_a_request_id_is_what_the_format_says() -> None:
    """codec: BLAKE2b-128 keyed with the salt, over branch, NUL, step, NUL, generation; six bits are the UUID's own."""
    wanted = bytearray(blake2b(b"order-1042\0charge\x001", key=SALT, digest_size=16).digest())
    wanted[6], wanted[8] = wanted[6] & 0x0F | 0x80, wanted[8] & 0x3F | 0x80
    assert codec.request_id(SALT, "order-1042", "charge", 1) == str(uuid.UUID(bytes=bytes(wanted)))


# --- the chain -------------------------------------------------------------------------------------------------------

LINK = {
    "previous": b"p" * 16,
    "seq": 12,
    "branch": "order-1042",
    "at": Instant(3, "boot", 4),
    "record": b'{"kind":"x"}',
    "payload": b"null",
}


@pytest.mark.parametrize(
    "change",
    [
        {"previous": b"q" * 16},
        {"previous": b""},
        {"seq": 13},
        {"branch": "order-1043"},
        {"at": Instant(4, "boot", 4)},
        {"at": Instant(3, "boot", 5)},
        {"at": Instant(3, "boos", 4)},
        {"at": Instant(3, "", 4)},
        {"record": b'{"kind":"y"}'},
        {"record": b""},
        {"payload": b"true"},
        {"payload": b""},
        {"payload": None},
    ],
    ids=repr,
)
def test_the_chain_changes_with_every_field(change: dict[str, Any]) -> None:
    """DESIGN 9: a chained digest per branch; whatever is edited in a record, `verify` finds it."""
    assert codec.chain(**LINK) == codec.chain(**LINK)
    assert codec.chain(**{**LINK, **change}) != codec.chain(**LINK)


def test_an_absent_payload_is_not_an_empty_one() -> None:
    """codec: an absent payload has a length that no payload has."""
    assert codec.chain(**{**LINK, "payload": None}) != codec.chain(**{**LINK, "payload": b""})


links = st.tuples(st.integers(1, 2**62), names, instants, st.binary(max_size=8), st.none() | st.binary(max_size=8))


@steady
@given(links, links)
def test_different_links_have_different_chains(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """DESIGN 9: each part is preceded by its length, so that no bytes can move from one field to the next."""
    chains = [codec.chain(b"", seq, branch, at, record, payload) for seq, branch, at, record, payload in (one, other)]
    assert (chains[0] == chains[1]) == (one == other)


@steady
@given(st.binary(min_size=1, max_size=12), st.data())
def test_bytes_cannot_move_between_record_and_payload(whole: bytes, data: st.DataObject) -> None:
    """As above, at the one border where both sides are free bytes."""
    cuts = data.draw(st.lists(st.integers(0, len(whole)), min_size=2, max_size=2, unique=True))
    chains = {codec.chain(b"", 1, "b", Instant(1, "", 0), whole[:cut], whole[cut:]) for cut in cuts}
    assert len(chains) == 2


@steady
@given(links)
def test_the_chain_is_what_the_format_says(link: tuple[Any, ...]) -> None:
    """The header of codec.py is the log format: what is written there, followed by hand, gives the same digest.

    "BLAKE2b-128 over the branch's previous chain value, then the numbers, boot id, branch, record, payload, each
    preceded by its length (8 bytes, big endian); an absent payload has length 2^64 - 1. The numbers are seq, wall clock
    (ns) and boot clock (ns), decimal, with a space between."
    """
    seq, branch, at, record, payload = link
    wanted = blake2b(LINK["previous"], digest_size=16)
    numbers = f"{seq} {at.wall_ns} {at.boot_ns}".encode()
    for part in (numbers, at.boot_id.encode(), branch.encode(), record):
        wanted.update(len(part).to_bytes(8, "big") + part)
    wanted.update((2**64 - 1 if payload is None else len(payload)).to_bytes(8, "big") + (payload or b""))
    assert codec.chain(LINK["previous"], seq, branch, at, record, payload) == wanted.digest()


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        r.AttemptOpened(attempt=1, owner="o"),
        r.AttemptFenced(attempt=1),
        r.AttemptClosed(attempt=1, end=r.End.FAILED, error=r.ErrorText("E", "t")),
        r.CancelRequested(attempt=2, by="b", why="w"),
        r.ApplicationEvent(attempt=2, name="n"),
        r.Dispatched(attempt=1, step="s", generation=2, dispatch_no=3),
        r.Committed(attempt=1, step="s", outcome=r.OutcomeKind.RETURNED, value_missing="large"),
        r.CallEnded(attempt=1, step="s", error=r.ErrorText("E", "t")),
        r.Suspended(attempt=1, step="s", reason="r"),
        r.ProbeAnswered(attempt=1, step="s", answer=r.Answer.UNKNOWN, expect_seq=4),
        r.Settled(attempt=1, step="s", settlement=r.Settlement.APPLIED, by="b", why="w", expect_seq=4),
        r.Renewed(attempt=1, step="s", by="b", why="w", expect_seq=9),
        r.Supplied(attempt=1, step="s", by="b", why="w"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_json_with_its_kind_first(record: r.Record) -> None:
    """codec: a JSON object, `kind` first, fields at their default left out; read back equal."""
    encoded = codec.encode_record(record)
    fields = json.loads(encoded)
    assert next(iter(fields.items())) == ("kind", type(record).__name__)
    assert fields.get("generation") != 1
    assert fields.get("dispatch_no") != 1
    assert codec.decode_record(encoded) == record
