"""Whether two functions were made of the same: of one code, with equal defaults and surroundings."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any


def same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both would do the same. What cannot be compared is taken for different."""
    return _same(one, other, set())


def _same(one: object, other: object, seen: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in seen:
        return True
    seen.add((id(one), id(other)))
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        if one.__code__ is not other.__code__:
            return False
        parts = ("__defaults__", "__kwdefaults__")
        cells = zip(one.__closure__ or (), other.__closure__ or (), strict=True)
        return all(getattr(one, part) == getattr(other, part) for part in parts) and all(
            _same(_held(a), _held(b), seen) for a, b in cells
        )
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is compared
        return False


def _held(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None
