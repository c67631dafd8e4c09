"""A named step of an attempt: `attempt.step("refund-1").call(refund, ...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from intentlog.core.actions import Outcome
from intentlog.log.declare import AnyTool, Tool

P = ParamSpec("P")
R = TypeVar("R")


class Step:
    """A named step of an attempt."""

    def __init__(
        self, perform: Callable[[AnyTool, str, tuple[Any, ...], dict[str, Any]], Outcome[Any]], name: str
    ) -> None:
        self._perform = perform
        self._name = name

    def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Attempt.call`."""
        value: R = self._perform(tool, self._name, args, kwargs).value
        return value

    def perform(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """See `Attempt.perform`."""
        return self._perform(tool, self._name, args, kwargs)
