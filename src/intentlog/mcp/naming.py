"""What a server is called in the log, by the command that starts it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

from intentlog.mcp.calls import readable

_LAUNCHERS = re.compile(
    r"npx|bunx|pnpx|pnpm|yarn|uvx|uv|pipx|node|deno|bun|python[\d.]*|docker|podman|env|sh|bash|dlx|exec|run|tool|x"
)
_VERSION = re.compile(r"(?<=.)(@[^/]*|==.*|\.(py|m?js|c?js|ts|sh|exe))$")


def server_name(command: Sequence[str]) -> str:
    """A name for the server that a command starts: what it is, without who launches it, and without a version.

    `npx -y @modelcontextprotocol/server-filesystem@2026.1 /srv` is `server-filesystem`. Equal for equal commands.
    """
    for word in command:
        base = PurePath(word).name
        if word.startswith("-") or _LAUNCHERS.fullmatch(base) or re.fullmatch(r"\w+=.*", word):
            continue
        name = _VERSION.sub("", base)
        if name:
            return readable(name, 60)
    return readable(PurePath(command[0]).name, 60)


def upstream_name(url: str) -> str:
    """A name for the server at an address: where it is. Equal for equal addresses."""
    parts = urlsplit(url)
    path = parts.path.strip("/").removesuffix("mcp").strip("/")
    return readable("-".join([parts.netloc.rpartition("@")[2], *path.split("/")]).rstrip("-"), 60)
