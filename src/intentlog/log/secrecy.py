"""`Secret` and `Volatile` arguments: where the marks may stand, and how texts that are kept are masked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec

from intentlog.core.records import ErrorText
from intentlog.errors import IntentLogError
from intentlog.log.values import SecretMark, VolatileMark

MASK = "***"
CODED_MIN = 6  # bytes of a secret that is looked for in a code
ERROR_TEXT_MAX = 1_000  # characters of an error's text that are kept


def is_marked(hint: Any, mark: type) -> bool:
    """Whether the whole annotation is `Secret[...]` (or `Volatile[...]`)."""
    return get_origin(hint) is Annotated and mark in get_args(hint)[1:]


def holds_mark(hint: Any) -> bool:
    """Whether a mark stands anywhere inside an annotation: in a union, a list, a field of a dataclass or struct."""
    return _holds_mark(hint, set())


def _holds_mark(hint: Any, seen: set[int]) -> bool:
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    if is_marked(hint, SecretMark) or is_marked(hint, VolatileMark):
        return True
    parts = [*get_args(hint), getattr(hint, "__supertype__", None), getattr(hint, "__value__", None)]  # NewType, `type`
    if isinstance(hint, type) and not _is_pythons(hint):
        parts.extend(_fields_of(hint))
    return any(_holds_mark(part, seen) for part in parts if part is not None)


def _fields_of(kind: type) -> Iterable[Any]:
    """The types of a class's fields: of a dataclass, a struct, a model, a named tuple or a typed dict."""
    try:
        return get_type_hints(kind, include_extras=True).values()
    except Exception:  # noqa: BLE001 - annotations that cannot be read may be anything's; those of fields can be
        return ()


def _is_pythons(kind: type) -> bool:
    return kind.__module__ in ("builtins", "datetime", "decimal", "uuid", "pathlib")


def texts_of(value: object) -> set[str]:
    """Every form in which a secret value, or a part of it, could stand in a text."""
    texts: set[str] = set()
    _collect(value, texts, set())
    return {form for text in texts if text for form in _forms(text) if form}


def _forms(text: str) -> Iterable[str]:
    """A text as errors tell it: as it is, quoted by Python, JSON or a URL, in base64 or hexadecimal."""
    import json
    from urllib.parse import quote, quote_plus

    encoded = text.encode("utf-8", "surrogatepass")
    once = {text, repr(text)[1:-1], ascii(text)[1:-1], repr(encoded)[2:-1]}
    once |= {json.dumps(text, ensure_ascii=escaped)[1:-1] for escaped in (True, False)}
    yield from once
    yield from (json.dumps(form, ensure_ascii=escaped)[1:-1] for form in once for escaped in (True, False))
    if len(encoded) < CODED_MIN:  # a shorter one in base64 stands in anything
        return
    yield from (quote(encoded), quote(encoded, safe=""), quote_plus(encoded))
    yield from _codes(encoded)


def _codes(encoded: bytes) -> Iterable[str]:
    """Bytes in base64, wherever in a longer text they stand, and in hexadecimal."""
    from base64 import b64encode, urlsafe_b64encode

    for code in (b64encode, urlsafe_b64encode):
        for before in range(3):  # bytes of something else: what stands for the secret alone begins and ends so
            whole = code(bytes(before) + encoded).decode()
            yield whole[-(-8 * before // 6) : 8 * (before + len(encoded)) // 6]
    yield encoded.hex()
    yield encoded.hex().upper()


def _collect(value: object, texts: set[str], seen: set[int]) -> None:
    if id(value) in seen:  # it holds itself
        return
    seen.add(id(value))
    match value:
        case None | bool():
            return
        case str():
            texts.add("".join(value))
        case bytes() | bytearray():
            texts.update((bytes(value).decode("utf-8", "replace"), repr(bytes(value))[2:-1], bytes(value).hex()))
            if len(value) >= CODED_MIN:
                texts.update(_codes(bytes(value)))
        case _:
            texts.update((str(value), repr(value)))
            for part in _parts(value):
                _collect(part, texts, seen)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return [*items.keys(), *items.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Iterable[object]", value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    found: object = None if isinstance(value, type) else getattr(value, "__dict__", None)
    held = list(cast("dict[str, object]", found).values()) if isinstance(found, dict) else []
    if hasattr(value, "model_dump"):  # a model of pydantic's
        return held
    return [one for one in held if isinstance(one, str | bytes)]  # of another object not what it leads to


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, the longest first: one may begin as another does."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def describe(error: BaseException, secrets: Iterable[str] = ()) -> ErrorText:
    """An error as evidence: masked, shortened, printable, whatever its own methods do."""
    name = type(error).__qualname__
    try:
        text = vars(error)["message"] if issubclass(type(error), IntentLogError) else str(error)
    except Exception as unprintable:  # noqa: BLE001 - an error's own __str__ may raise anything
        text = f"(its text cannot be had: {type(unprintable).__qualname__})"
    masked = mask(text, secrets).encode("utf-8", "replace").decode()
    return ErrorText(mask(name, secrets), masked[:ERROR_TEXT_MAX])
