"""Where a running script stands, as a value: two scripts with equal positions do the same from now on.

Why that is sound. A script is a generator that depends on nothing but its arguments and the replies that it was sent:
the core has no clock, chance or global that changes (import-linter and tests/test_style.py keep it so). What a
suspended generator does next is then decided by, for each frame of the chain of `yield from`: its code, the place in
it, those of its variables that it can still read (`liveness`), its value stack (where the iterators of its `for` loops
are), and the exception that it handles. `gc.get_referents` names the variables' values, the stack and the exception in
this order. A value of a kind that is not known here, or an order that is not this one, is an error and not a guess.
tests/model/test_model_position.py holds the claims: that stack and variables are seen, and that a search which tells
scripts apart by all the replies that they were sent meets the same logs and receivers.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Hashable, Sequence
from datetime import datetime
from enum import Enum
from types import CellType, FunctionType
from typing import Any, cast

from model.liveness import live_after
from msgspec import Struct
from msgspec.structs import replace

from intentlog.core.records import Instant
from intentlog.core.state import Branch, Operation

# Structs of the core are frozen, and so they hash.
_PLAIN = (type(None), bool, int, str, bytes, range, datetime, Enum, type, Struct)
_COMMON = frozenset({type(None), bool, int, str, bytes, Operation, Instant})  # the same, found faster
_ITERATORS: tuple[type, ...] = (type(iter(())), type(iter([])), type(iter(range(0))))


def position(script: Generator[Any, Any, Any]) -> Hashable:
    """The position of a suspended generator, through everything that it delegates to."""
    frames: list[Hashable] = []
    inner: Any = script  # a GeneratorType, whose attributes the type of scripts does not promise
    while inner is not None:
        frames.append(_frame(inner))
        inner = inner.gi_yieldfrom
    return tuple(frames)


def _frame(script: Any) -> Hashable:
    code, place = script.gi_code, script.gi_frame.f_lasti
    variables = dict(script.gi_frame.f_locals)
    held = gc.get_referents(script)
    held = held[max(index for index, value in enumerate(held) if value is code) + 1 :]
    unset = sum(isinstance(value, CellType) and _content(value) is _UNSET for value in held)
    slots, stack = held[: len(variables) + unset], held[len(variables) + unset :]
    filled = [value for value in slots if not (isinstance(value, CellType) and _content(value) is _UNSET)]
    for value, (name, expected) in zip(filled, variables.items(), strict=True):
        if (_content(value) if isinstance(value, CellType) else value) is not expected:
            raise AssertionError(f"{code.co_qualname}: {name} is not where this Python was thought to keep it")
    readable = live_after(code, place) | {*code.co_cellvars, *code.co_freevars}
    seen = tuple((name, canonical(value)) for name, value in variables.items() if name in readable)
    rest = tuple(canonical(value) for value in stack if value is not script.gi_yieldfrom)
    return code.co_qualname, place, seen, rest


def canonical(value: Any) -> Hashable:
    """A value by what it holds. What nothing can depend on is left out (see `world.Log.identity`)."""
    if type(value) in _COMMON:
        return cast("Hashable", value)
    name: str = type(value).__name__
    if isinstance(value, Branch):
        return replace(value, head_chain=b"", latest_wall_ns=0)
    if isinstance(value, tuple | list):
        return name, tuple(canonical(item) for item in cast("Sequence[object]", value))
    if isinstance(value, BaseException):
        return name, canonical(value.args), canonical(vars(value))
    if isinstance(value, dict):
        return tuple((key, canonical(item)) for key, item in cast("dict[str, object]", value).items())
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _ITERATORS):
        return name, canonical(value.__reduce__()[1:])  # (items, place)
    if isinstance(value, FunctionType):
        return value.__qualname__, id(value)  # the model keeps them all: no id is used anew
    return _bound(value)


def _bound(value: Any) -> Hashable:
    """A bound method, as a `with` keeps one on the stack: by the object that it belongs to."""
    owner: Any = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, type):
        raise AssertionError(f"a script holds {value!r}, and nobody knows whether that tells positions apart")
    return type(value).__name__, type(owner).__qualname__, canonical(vars(owner))


_UNSET = object()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not yet set
        return _UNSET
