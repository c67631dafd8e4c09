"""What `@tool(...)` is given, and its types."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from intentlog.core.effects import Effect
from intentlog.core.records import Durability
from intentlog.errors import ToolMisdefined
from intentlog.log.values import Retry

Errors = type[Exception] | tuple[type[Exception], ...]
TIME_LIMIT = timedelta(minutes=5)


class Options(NamedTuple):
    """What `@tool(...)` was given."""

    effect: Effect
    name: str | None
    step: str | None
    rejects: Errors
    not_sent: Errors
    time_limit: timedelta
    retry: Retry | None
    durability: Durability


def check_types(options: Options) -> None:
    """Refuse what is of another type, in words.

    Raises:
        ToolMisdefined: something is.
    """
    wanted = {"effect": Effect, "time_limit": timedelta, "durability": Durability}
    optional = {"name": str, "step": str, "retry": Retry}
    for field, value in options._asdict().items():
        kind = wanted.get(field) or optional.get(field)
        if kind is None or isinstance(value, kind) or (field in optional and value is None):
            continue
        hint = " (KEYED and QUERYABLE are given their time: KEYED(window=...))" if field == "effect" else ""
        raise ToolMisdefined(f"{field}= takes a {kind.__name__}, not {value!r}{hint}")


def as_tuple(errors: Errors) -> tuple[type[Exception], ...]:
    """The error types, of one or several.

    Raises:
        ToolMisdefined: something is no type of error.
    """
    given: tuple[Any, ...] = errors if isinstance(errors, tuple) else (errors,)
    for one in given:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise ToolMisdefined(f"rejects= and not_sent= take exception types, not {one!r}")
    return given
