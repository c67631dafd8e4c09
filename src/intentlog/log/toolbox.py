"""Which tool a name in a log's records means, in this program."""

from __future__ import annotations

from weakref import WeakValueDictionary

from intentlog.core.effects import Declaration, EffectKind
from intentlog.errors import ToolMisdefined, UnguardedCall
from intentlog.log.declare import VAULT, AnyTool, known_tool


class Toolbox:
    """The tools that were called through one log: each name is one tool's. Safe from any thread."""

    def __init__(self) -> None:
        self._used: WeakValueDictionary[str, AnyTool] = WeakValueDictionary()

    def usable(self, handle: object, *, is_async: bool) -> AnyTool:
        """The tool, if it can be called through this log.

        Raises:
            ToolMisdefined: it is no tool, not for this kind of log, or its name is another tool's.
            UnguardedCall: it only looks like a tool.
        """
        if not isinstance(handle, AnyTool):
            raise ToolMisdefined(f"{handle!r} is not a tool", remedy="decorate the function with @tool.")
        is_used = self._used.get(handle.name) is handle
        if not is_used and not VAULT.has(handle):
            raise UnguardedCall(f"{handle.name} only looks like a tool: no function stands behind it")
        if handle.is_async and not is_async:
            raise ToolMisdefined(f"{handle.name} is async", remedy="use AsyncLog.")
        if handle.effect.kind is EffectKind.QUERYABLE and handle.prober is None:
            raise ToolMisdefined(
                f"{handle.name} is QUERYABLE and has no probe", remedy=f"add one: @{handle.name}.probe"
            )
        if not is_used:
            self._take_name(handle)
        return handle

    def _take_name(self, handle: AnyTool) -> None:
        """Without a lock, which an interrupt could leave held: if two meet here, one is refused at its next call."""
        other = self._used.get(handle.name)
        if other is not None and _place(other) != _place(handle):
            raise ToolMisdefined(
                f"two tools of one name in one log: {handle.name!r} is {_place(other)} already, "
                f"and {_place(handle)} is another",
                remedy='give one of them another name: @tool(name="...").',
            )
        self._used[handle.name] = handle  # the first; or its function's twin, made anew or by a factory

    def tool_of(self, name: str) -> AnyTool | None:
        """The tool that a record names, if this program has one of that name and no other."""
        return known_tool(name, collect=True)

    def declaration_of(self, name: str) -> Declaration | None:
        """What this program declares of the tool of this name, if it has it."""
        handle = known_tool(name)
        return handle.declaration if handle else None

    def present(self, name: str) -> Declaration | None:
        """The same, for a recovery, which may ask that tool's probe."""
        handle = self.tool_of(name)
        return handle.declaration if handle else None


def _place(handle: AnyTool) -> str:
    return f"{handle.__module__}.{handle.__qualname__}"
