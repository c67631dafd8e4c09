"""What a server has said of its tools: their annotations, as last listed."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from intentlog.mcp.rules import Hints


class _Tool(Struct):
    name: str
    annotations: Hints | None = None


class _Page(Struct):
    tools: list[_Tool]


_PAGES = msgspec.json.Decoder(_Page)


class Catalog:
    """The annotations of a server's tools. Safe from any thread."""

    def __init__(self) -> None:
        self._hints: dict[str, Hints] = {}

    def listed(self, result: Raw, *, is_first: bool) -> None:
        """Take a page of the server's list. What cannot be read of it promises nothing."""
        try:
            page = _PAGES.decode(result)
        except msgspec.MsgspecError:
            self._hints = {}
            return
        hints = {tool.name: tool.annotations or Hints() for tool in page.tools}
        self._hints = hints if is_first else self._hints | hints

    def changed(self) -> None:
        """The server says that its list has changed: nothing of it is known until it is listed again."""
        self._hints = {}

    def hints(self, tool: str) -> Hints | None:
        """A tool's annotations, or None if they are not known."""
        return self._hints.get(tool)
