"""Values, digests, keys and the chain in bytes (DESIGN 10; the header of codec.py is the log format)."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pytest
from core_histories import at, build

from intentlog.core import codec
from intentlog.core.records import Instant

# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 1, "null", [1.5, None], {"b": 1, "a": {"null": [None]}}, [[], {}]])
def test_values_round_trip(value: Any) -> None:
    """JSON, keys sorted, no white space."""
    encoded = codec.encode_value(value, 100)
    assert codec.decode_value(encoded, Any) == value
    assert encoded == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": [-float("inf")]}}, (None, {float("nan")})])
def test_what_is_not_finite_is_refused(value: Any) -> None:
    """DESIGN 10: NaN is refused before Pending, however deep."""
    with pytest.raises(codec.NotRecordable, match="not finite"):
        codec.encode_value(value, 100)


def test_what_cannot_be_kept_is_refused() -> None:
    """Cycles, strangers and what is too large."""
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value, why in ((cyclic, "cyclic"), (object(), "cannot be recorded"), ("x" * 99, "takes 101 bytes")):
        with pytest.raises(codec.NotRecordable, match=why):
            codec.encode_value(value, 100)


@pytest.mark.parametrize("value", [{1: "a", "b": None}, {"x": {2.5: [1]}}, {10: 1, 9: 2}])
def test_keys_that_are_no_text_are_written_as_text(value: Any) -> None:
    """DESIGN 10: an object's keys are sorted, whatever they were; equal arguments have one digest (I6)."""
    encoded = codec.encode_value(value, 100)
    assert encoded == codec.encode_value(dict(reversed(value.items())), 100)
    found = json.loads(encoded)
    assert list(found) == sorted(found)
    assert all(isinstance(key, str) for key in found)


@pytest.mark.parametrize("value", [{1: float("nan")}, {1: {"a": [float("inf")]}}, {float("nan"): 1, 2: 3}])
def test_what_is_not_finite_is_refused_beside_such_keys(value: Any) -> None:
    """DESIGN 10: NaN is refused before Pending, as a key as well."""
    with pytest.raises(codec.NotRecordable, match="not finite"):
        codec.encode_value(value, 100)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"x": ({2: [], "2": {}},)}]])
def test_keys_that_would_be_written_alike_are_refused(value: Any) -> None:
    """DESIGN 10: nothing is lost silently, and equal arguments have one digest in whatever order they come (I6)."""
    with pytest.raises(codec.NotRecordable, match="alike"):
        codec.encode_value(value, 100)


def test_a_model_that_cannot_be_written_is_refused() -> None:
    """DESIGN 10: what a user's own serialiser raises is the reason, and not an error out of nowhere after Pending."""

    class Broken(Model):
        def model_dump(self, mode: str) -> dict[str, int]:
            msg = f"no {mode} of me"
            raise TypeError(msg)

    with pytest.raises(codec.NotRecordable, match="no json of me"):
        codec.encode_value([Broken(5)], 100)


def deep(levels: int, opens: str, closes: str, inside: str = "1") -> object:
    return json.loads(opens * levels + inside + closes * levels)


@pytest.mark.parametrize(
    ("value", "is_too_deep"),
    [
        (deep(200, "[", "]"), False),
        (deep(201, "[", "]"), True),
        (deep(100, '{"a":[', "]}"), False),
        (deep(101, '{"a":[', "]}"), True),
        (deep(450, "[1,[2],", "]"), True),
        (deep(199, "[[1],", "]", '"[[[[{{{{\\"["'), False),
        ([[[number]] for number in range(5_000)], False),
        (["[" * 5_000, "\\" * 9, '"[' * 900], False),
    ],
    ids=[
        "as deep as may be",
        "deeper",
        "objects too",
        "deeper objects",
        "siblings",
        "brackets in texts",
        "wide",
        "texts",
    ],
)
def test_a_value_is_not_nested_deeper_than_a_reader_follows(value: object, is_too_deep: bool) -> None:
    """What is taken can be read and shown by whoever has a stack of Python's usual depth, wherever it is in it."""
    if is_too_deep:
        with pytest.raises(codec.NotRecordable, match="nested more than 200 levels deep"):
            codec.encode_value(value, 1 << 20)
    else:
        assert json.loads(codec.encode_value(value, 1 << 20)) == value


def test_a_value_may_be_as_large_as_the_limit() -> None:
    """DESIGN 10: limits are settings, to the byte."""
    assert codec.encode_value("x" * 98, 100) == b'"' + b"x" * 98 + b'"'
    with pytest.raises(codec.NotRecordable, match="101 bytes, the limit is 100"):
        codec.encode_value("x" * 99, 100)


class Model:
    """What a pydantic model looks like to the codec."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"cents": self.cents}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> Model:
        return cls(value["cents"])


def test_models_by_their_own_serialiser() -> None:
    """Pydantic's models, without importing it; other types are not read back."""
    encoded = codec.encode_value(Model(5), 100)
    assert (encoded, codec.decode_value(encoded, Model).cents) == (b'{"cents":5}', 5)
    for text in (b'"x"', b"{"):
        with pytest.raises(ValueError):
            codec.decode_value(text, int)


class Stranger:
    """A class that no serialiser knows."""


def test_a_type_that_cannot_be_read_back_is_a_value_error() -> None:
    """decode_value: ValueError, whatever the annotation is: perform catches no other, and would lose the outcome."""
    with pytest.raises(ValueError, match="cannot be read back"):
        codec.decode_value(b"{}", Stranger)


# --- digests, keys, names that differ ---------------------------------------------------------------------------------


def test_request_ids_and_digests_are_pinned() -> None:
    """Equal for every attempt, a UUID of version 8, other with step, generation or salt (I6)."""
    one = codec.request_id(b"salt", "order-1", "charge", 1)
    others = [codec.request_id(b"tlas", "order-1", "charge", 1), codec.request_id(b"salt", "order-1", "charge", 2)]
    others += [codec.request_id(b"salt", "order-2", "charge", 1), codec.request_id(b"salt", "order-1", "refund", 1)]
    assert one == "a50fa4bd-96df-8bf5-88a0-69968711af8a"
    assert len({one, *others}) == 5
    assert codec.arguments_digest(b"{}") == "1:2afb9b83f9314e5d029766197f539792"


def test_a_request_id_is_a_uuid_of_version_8() -> None:
    """RFC 9562: version 8, variant 10, so that receivers that want a UUID as a key take it; equal whoever asks (I6)."""
    for generation in range(1, 200):
        key = codec.request_id(b"salt", "order-1", "charge", generation)
        assert (len(key), key[14]) == (36, "8")
        assert key[19] in "89ab"
        assert key == codec.request_id(b"salt", "order-1", "charge", generation)


def test_a_keyed_digest_has_a_version_of_its_own() -> None:
    """The header's `2:`: keyed by the user's codec, so that sealed arguments cannot be guessed by digest (I6)."""
    keyed = codec.arguments_digest(b"{}", b"key")
    assert keyed == "2:" + blake2b(b"{}", key=b"key", digest_size=16).hexdigest()
    assert keyed == codec.arguments_digest(b"{}", b"key")
    others = {
        codec.arguments_digest(b"{}"),
        codec.arguments_digest(b"{}", b"yek"),
        codec.arguments_digest(b"[]", b"key"),
    }
    assert len({keyed, *others}) == 4
    assert {text[:2] for text in others} == {"1:", "2:"}


@pytest.mark.parametrize(
    ("recorded", "present", "names"),
    [
        (b'{"a":1,"b":2}', b'{"a":1,"b":3}', ["b"]),
        (b'{"a":1}', b'{"a":1}', []),
        (b'{"z":1,"b":[]}', b'{"a":1,"b":{}}', ["a", "b", "z"]),
        (b'{"a":null}', b"{}", ["a"]),
        (b'{"a":1}', b'{"a":1.0}', ["a"]),
        (b"\0sealed", b'{"a":1}', []),
        (b"[1]", b'{"a":1}', []),
        (b"", b'{"a":1}', []),
        (None, b'{"a":1}', []),
    ],
)
def test_the_names_of_arguments_that_differ(recorded: bytes | None, present: bytes, names: list[str]) -> None:
    """ArgumentDrift names what differs (I6), sorted; nothing where the recorded arguments cannot be read."""
    assert codec.different_names(recorded, present) == names


# --- the chain, and rows ----------------------------------------------------------------------------------------------


def test_the_chain_is_pinned() -> None:
    """The header's words, literally: every part preceded by its length, so that no two records read alike."""
    when = Instant(wall_ns=7, boot_id="boot", boot_ns=8)
    found = codec.chain(b"p" * 16, 5, "order-1", when, b"{}", b"[]")
    wanted = blake2b(b"p" * 16, digest_size=16)
    for part in (b"5 7 8", b"boot", b"order-1", b"{}", b"[]"):
        wanted.update(len(part).to_bytes(8, "big") + part)
    assert found == wanted.digest()
    assert len(found) == codec.CHAIN_BYTES


def test_every_part_of_a_record_is_in_its_chain() -> None:
    """A payload that is absent, empty or another; a branch, a place, a time, a body: each changes the value."""
    when = Instant(wall_ns=7, boot_id="boot", boot_ns=8)
    values = [
        codec.chain(b"", 5, "order-1", when, b"{}", None),
        codec.chain(b"", 5, "order-1", when, b"{}", b""),
        codec.chain(b"", 5, "order-1", when, b"{}", b"\xff" * 8),
        codec.chain(b"p", 5, "order-1", when, b"{}", None),
        codec.chain(b"", 6, "order-1", when, b"{}", None),
        codec.chain(b"", 5, "order-2", when, b"{}", None),
        codec.chain(b"", 5, "order-1", when, b"{ }", None),
        codec.chain(b"", 5, "order-1", Instant(8, "boot", 8), b"{}", None),
        codec.chain(b"", 5, "order-1", Instant(7, "toob", 8), b"{}", None),
        codec.chain(b"", 5, "order-1", Instant(7, "boot", 9), b"{}", None),
    ]
    assert len(set(values)) == len(values)


def test_rows_survive_their_encoding() -> None:
    """The folded rows read back equal, with everything that they can hold: stores keep them, verify compares them."""
    world = build(
        "open, pending 1, dispatched 1.1, ended 1.1, fence, classified 1, probed 1.1, open, pending 2, dispatched 2.2,"
        " returned 2.2, superseded 1, not_sent 2.2, cancel, close CANCELLED"
    )
    operation = world.operation()
    assert operation.contradicts
    assert codec.decode_operation(codec.encode_state(operation)) == operation
    assert codec.decode_branch(codec.encode_state(world.branch)) == world.branch
    assert world.branch.fenced_at == at(5)
