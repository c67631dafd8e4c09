"""Canonical bytes, digests and typed values. This header is the log format, version 1.

Record    JSON object, `kind` first, then the record's fields; fields at their default are left out. UTF-8.
Payload   beside the record: arguments (an object, name -> value, of an operation's first Pending), a returned,
          found or supplied value, or an application event's body. Deterministic JSON: keys sorted, no white space.
Chain     BLAKE2b-128 over the branch's previous chain value (empty for its first record), then the numbers, boot id,
          branch, record, payload, each preceded by its length (8 bytes, big endian); an absent payload has length
          2^64 - 1. The numbers are seq, wall clock (ns) and boot clock (ns), decimal, with a space between.
          A user's codec may seal it: then one zero byte, which no JSON begins with, and what the codec made of it.
Digest    "1:" and BLAKE2b-128, hex, over the deterministic JSON of the arguments as passed, `Secret` and `Volatile`
          ones left out. "2:": the same, keyed by the user's codec.
Request   BLAKE2b-128 keyed with the log's secret salt over branch, NUL, step, NUL, generation; written as a UUID of
id        version 8 (RFC 9562). Equal for every attempt, unguessable without the salt.
State     the folded branch and operation rows: MessagePack arrays of `state.Branch`, `state.Operation`. Not truth:
          `verify` rebuilds them from the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from struct import Struct
from typing import Any, cast

import msgspec

from intentlog.core.records import Instant, Record
from intentlog.core.state import Branch, Operation

FORMAT_VERSION = 1
APPLICATION_ID = 0x69746C67  # "itlg"
CHAIN_BYTES = 16
NESTING_MAX = 200  # levels; Python's readers and writers take some calls for each, and by default have a thousand
_ALL_BUT_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+')
_OF_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_PAYLOAD = b"\xff" * 8
_LENGTH = Struct(">Q").pack

encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(Record).decode
encode_state = msgspec.msgpack.Encoder().encode
decode_branch = msgspec.msgpack.Decoder(Branch).decode
decode_operation = msgspec.msgpack.Decoder(Operation).decode


def chain(previous: bytes, seq: int, branch: str, at: Instant, record: bytes, payload: bytes | None) -> bytes:
    """The branch's chain value after this record (see the header)."""
    numbers = b"%d %d %d" % (seq, at.wall_ns, at.boot_ns)
    said = (_LENGTH(len(numbers)), numbers, _sized(at.boot_id), _sized(branch), _LENGTH(len(record)), record)
    length = _NO_PAYLOAD if payload is None else _LENGTH(len(payload))
    return blake2b(b"".join((previous, *said, length, payload or b"")), digest_size=CHAIN_BYTES).digest()


@lru_cache(maxsize=4_096)  # a log has one boot id at a time, and the branches that are worked at
def _sized(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH(len(encoded)) + encoded


def arguments_digest(arguments: bytes, key: bytes = b"") -> str:
    """The digest of encoded arguments, with its version; keyed, if a codec that seals them brings a key."""
    return ("2:" if key else "1:") + blake2b(arguments, key=key, digest_size=16).hexdigest()


def different_names(recorded: bytes | None, present: bytes) -> list[str]:
    """The names of the arguments whose encodings differ; none where the recorded ones cannot be read."""
    try:
        before = msgspec.json.decode(recorded or b"", type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return []
    now = msgspec.json.decode(present, type=dict[str, msgspec.Raw])
    return sorted(n for n in before.keys() | now.keys() if bytes(before.get(n, b"")) != bytes(now.get(n, b"")))


@lru_cache(maxsize=16)  # to begin one takes longer than to go on with its copy
def _keyed(salt: bytes) -> blake2b:
    return blake2b(key=salt, digest_size=16)


def request_id(salt: bytes, branch: str, step: str, generation: int) -> str:
    """The key that every attempt of the operation sends."""
    keyed = _keyed(salt).copy()
    keyed.update(f"{branch}\0{step}\0{generation}".encode())
    digest = bytearray(keyed.digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class NotRecordable(ValueError):
    """A value cannot be written down, and why. Becomes `ArgumentsNotRecordable`, or a done without a value."""


class StaysSealed(ValueError):
    """A payload is sealed by the log's codec, which is not here or cannot open it."""


def encode_value(value: object, bytes_max: int) -> bytes:
    """Deterministic JSON of a value.

    Args:
        value: JSON values, dataclasses, msgspec structs, pydantic models, datetime, Decimal, bytes, UUID, enums.
        bytes_max: the largest encoding that is accepted, in bytes.

    Raises:
        NotRecordable: it is of another kind, cyclic, too large or too deep, or holds a float that is not finite.
    """
    try:
        encoded = _encode(value)
        if b"null" in encoded and value is not None:  # how JSON writes a float that is not finite
            plain: object = msgspec.to_builtins(value, enc_hook=_encode_model)
            _refuse_not_finite(plain)
    except RecursionError:
        raise NotRecordable("it is cyclic, or nested too deeply") from None
    except NotRecordable:
        raise
    except Exception as error:  # an encoder, or a model of the user's, may raise anything
        raise NotRecordable(_told(error)) from error
    if len(encoded) > bytes_max:
        raise NotRecordable(f"it takes {len(encoded)} bytes, the limit is {bytes_max}")
    if is_nested_too_deeply(encoded):
        raise NotRecordable(f"it is nested more than {NESTING_MAX} levels deep")
    return encoded


def is_nested_too_deeply(encoded: bytes) -> bool:
    """Whether a JSON text is nested deeper than whoever reads it can be relied on to follow."""
    if encoded.count(b"[") + encoded.count(b"{") <= NESTING_MAX:
        return False
    left = _ALL_BUT_BRACKETS.sub(b"", encoded).translate(_OF_ONE_KIND)
    for _ in range(NESTING_MAX):  # each time the innermost level goes
        left = left.replace(b"[]", b"")
        if not left:
            return False
    return True


def _encode(value: object) -> bytes:
    try:
        return _encode_deterministic(value)
    except TypeError as error:
        if "Only dicts with str keys" not in str(error):
            raise
    # msgspec orders objects by text keys only: other keys are written as text first, once they are seen to be sound.
    _refuse_not_finite(msgspec.to_builtins(value, enc_hook=_encode_model))
    plain: object = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_model)
    if _keys_in(plain) != _keys_in(msgspec.to_builtins(value, enc_hook=_encode_model)):
        raise NotRecordable("two keys of one dict would be written alike")
    return msgspec.json.encode(plain, order="deterministic")


def _keys_in(value: object) -> int:
    """How many keys msgspec's builtins hold, at every depth."""
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return len(items) + sum(_keys_in(part) for part in items.values())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(_keys_in(part) for part in cast("list[object]", value))
    return 0


def decode_value(encoded: bytes, of_type: Any) -> Any:
    """The value again, as the annotated type.

    Raises:
        ValueError: it does not fit the type.
    """
    try:
        return msgspec.json.decode(encoded, type=of_type, dec_hook=_decode_model)
    except Exception as error:  # so may a decoder
        raise ValueError(_told(error)) from error


def _told(error: Exception) -> str:
    """An encoder's own words; of an error that is somebody else's, its name too."""
    own = isinstance(error, TypeError | ValueError | NotImplementedError | msgspec.MsgspecError)
    return str(error) if own else f"{type(error).__name__}: {error}"


def _encode_model(value: object) -> object:
    """Pydantic models by their own serialiser, without importing pydantic."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"objects of type {type(value).__name__} cannot be recorded")
    return dump(mode="json")


def _decode_model(of_type: Any, value: Any) -> Any:
    validate = getattr(of_type, "model_validate", None)
    if validate is None:
        raise NotImplementedError(f"objects of type {of_type!r} cannot be read back")
    return validate(value)


def _refuse_not_finite(value: object) -> None:
    """Walk msgspec's builtins: scalars, lists and objects."""
    if isinstance(value, float) and not isfinite(value):
        raise NotRecordable(f"a float that is not finite: {value}")
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        parts = [*items.keys(), *items.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = cast("list[object]", value)
    for part in parts:
        _refuse_not_finite(part)


_encode_deterministic = msgspec.json.Encoder(enc_hook=_encode_model, order="deterministic").encode
