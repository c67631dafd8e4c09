"""A secret in each place and each form in which a user's program can hold or tell one, for `test_security_secrets`."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import msgspec
import pydantic

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    Call,
    NotSent,
    Rejected,
    Retry,
    Secret,
    Suspended,
    Unknown,
    Volatile,
    tool,
)
from intentlog.log.naming import NAME_MAX

CORE = "Zq7-5ecretV3x"
SECRET = f'{CORE}/p&w "ö\\ +~='
SHOWN = "shown-order-42"
SOON = timedelta(microseconds=1)


def forms_of(text: str) -> dict[str, bytes]:
    """How a text may stand in bytes."""
    raw = text.encode()
    found = {
        "as it is": raw,
        "its core": CORE.encode() if CORE in text else raw,
        "repr": repr(text)[1:-1].encode(),
        "JSON": json.dumps(text)[1:-1].encode(),
        "JSON, not ASCII": json.dumps(text, ensure_ascii=False)[1:-1].encode(),
        "URL": quote(text).encode(),
        "URL, all of it": quote(text, safe="").encode(),
        "form": quote_plus(text).encode(),
        "UTF-16": text.encode("utf-16-le"),
        "UTF-16, big": text.encode("utf-16-be"),
        "UTF-32": text.encode("utf-32-le"),
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
    }
    return found | coded(raw)


def coded(raw: bytes) -> dict[str, bytes]:
    """In base64, wherever it begins within three bytes."""
    return {
        f"{code.__name__} {before}": code(bytes(before) + raw)[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        for code in (b64encode, urlsafe_b64encode)
        for before in range(3)
    }


FORMS = forms_of(SECRET)


def found_in(content: bytes, forms: dict[str, bytes] = FORMS) -> list[str]:
    return [name for name, form in forms.items() if form in content]


# --- the worker ------


@dataclass
class Credentials:
    user: str
    password: str


class Login(msgspec.Struct):
    user: str
    password: str


class Pair(NamedTuple):
    user: str
    password: str


class Model(pydantic.BaseModel):
    user: str
    inner: dict[str, str]


class Plain:
    """An object of no kind that is taken apart, whose repr does not tell."""

    def __init__(self) -> None:
        self.password = SECRET
        self.itself = self


PLACES: dict[str, Any] = {
    "text": SECRET,
    "bytes": SECRET.encode(),
    "dataclass": Credentials("ada", SECRET),
    "struct": Login("ada", SECRET),
    "named tuple": Pair("ada", SECRET),
    "dict": {"user": "ada", "deep": {"password": SECRET}},
    "key of a dict": {SECRET: 1},
    "list": ["ada", [SECRET]],
    "model": Model(user="ada", inner={"password": SECRET}),
    "object": Plain(),
    "cycle": [SECRET],
}
PLACES["cycle"].append(PLACES["cycle"])
CLASSES = {
    "READ": READ,
    "IDEMPOTENT": IDEMPOTENT,
    "KEYED": KEYED(window=timedelta(hours=1)),
    "QUERYABLE": QUERYABLE(settle=timedelta(0)),
    "UNSAFE": UNSAFE,
}


class Odd(Exception):
    """An error whose own texts hold the secret, and who knows what else."""


def told(form: Callable[[str], str]) -> Callable[[], BaseException]:
    return lambda: Odd(f"refused {SHOWN}: {form(SECRET)}")


def chained() -> BaseException:
    error = ValueError("the outer one")
    error.__cause__ = ValueError(SECRET)
    error.add_note(f"note: {SECRET}")
    return error


def long_one() -> BaseException:
    return Odd("x" * (1_000 - len(SECRET) // 2) + SECRET)  # what is kept is cut inside it


ENDINGS: dict[str, Callable[[], BaseException] | None] = {
    "returned": None,
    "returns it": None,
    "as it is": told(str),
    "repr": told(repr),
    "JSON": told(json.dumps),
    "URL": told(lambda s: f"https://x/?token={quote_plus(s)}"),
    "a part of a URL": told(lambda s: f"https://x/{quote(s)}/y"),
    "base64": told(lambda s: "Basic " + b64encode(f"ada:{s}".encode()).decode()),
    "hex": told(lambda s: s.encode().hex()),
    "rejected": lambda: Rejected(f"no: {SECRET}"),
    "not sent": lambda: NotSent(f"refused: {SECRET}"),
    "suspended": lambda: Suspended(f"waits for {SECRET}"),
    "chained": chained,
    "long": long_one,
    "keyed error": lambda: KeyError(SECRET),
    "two arguments": lambda: OSError(5, SECRET, SECRET),
}


def tool_of(kind: str, ending: str, place: str, *, is_async: bool) -> Any:
    """A tool that knows a secret, and ends in some way."""

    def end(credentials: Any) -> Any:
        makes = ENDINGS[ending]
        if makes is not None:
            raise makes()
        return {"echo": ["", SECRET]} if ending == "returns it" else SHOWN

    options: Any = {"effect": CLASSES[kind], "name": f"login-{kind}", "step": "login-{user}", "time_limit": SOON}
    if ending == "as it is" and kind not in ("UNSAFE", "QUERYABLE"):
        options["retry"] = Retry(times=2, backoff=timedelta(0))
    if is_async:

        @tool(**options | {"time_limit": timedelta(seconds=60)})
        async def login(call: Call, user: str, credentials: Secret[Any], session: Volatile[str] = SECRET) -> Any:
            return end(credentials)
    else:

        @tool(**options)
        def login(call: Call, user: str, credentials: Secret[Any], session: Volatile[str] = SECRET) -> Any:
            return end(credentials)

    if kind in ("QUERYABLE", "KEYED"):

        @login.probe
        def found(call: Call, user: str, credentials: Secret[Any], session: Volatile[str] = SECRET) -> Any:
            if place == "text":
                raise Odd(f"the probe has {SECRET}")
            return Applied({"found": SECRET}) if place == "dict" else Unknown()

    return login


CASES = [("UNSAFE", ending, "text") for ending in ENDINGS]
CASES += [(kind, ending, "text") for kind in CLASSES for ending in list(ENDINGS)[:3] if kind != "UNSAFE"]
CASES += [(kind, ending, "text") for kind in ("READ", "KEYED") for ending in ("rejected", "not sent", "suspended")]
CASES += [("KEYED", "repr", place) for place in PLACES]
CASES += [("QUERYABLE", "as it is", "dict"), ("KEYED", "chained", "dict")]


def branch_of(case: tuple[str, str, str]) -> str:
    return "-".join(case)[:NAME_MAX]
