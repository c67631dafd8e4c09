"""What a server is called in the log, by the command that starts it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from intentlog.mcp.calls import readable

_LAUNCHERS = re.compile(
    r"npx|bunx|pnpx|pnpm|yarn|uvx|uv|pipx|node|deno|bun|python[\d.]*|docker|podman|env|sh|bash|dlx|exec|run|tool|x"
)
_SETTING = re.compile(r"\w+=.*", re.DOTALL)
_VERSION = re.compile(r"(?<=.)(@[^/]*|==.*|\.(py|m?js|c?js|ts|sh|exe))$")


def server_name(command: Sequence[str]) -> str:
    """A name for the server that a command starts: what it is and for what, without who launches it and its version.

    `npx -y @modelcontextprotocol/server-filesystem@2026.1 /srv` is `server-filesystem-` and a digest of `/srv`: for
    another folder, or another account, it is another server. Equal for equal commands.
    """
    settings: list[str] = []
    for place, word in enumerate(command):
        base = PurePath(word).name
        if _SETTING.fullmatch(word):
            settings.append(word)
        elif not word.startswith("-") and not _LAUNCHERS.fullmatch(base) and (name := _VERSION.sub("", base)):
            where = [str(Path(word).absolute())] if _is_file(word) else []  # of two programs of one name
            return _with_digest(readable(name, 60), [*settings, *where, *command[place + 1 :]])
    return _with_digest(readable(PurePath(command[0]).name, 60), settings)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # it is too long for a name, say
        return False


def _with_digest(name: str, given: Sequence[str]) -> str:
    """The name, and what tells apart what its server is given."""
    text = "\0".join(given).encode("utf-8", "surrogateescape")
    return f"{name}-{blake2b(text, digest_size=4).hexdigest()}" if given else name


def upstream_name(url: str) -> str:
    """A name for the server at an address: where it is. Equal for equal addresses."""
    parts = urlsplit(url)
    path = parts.path.strip("/").removesuffix("mcp").strip("/")
    return readable("-".join([parts.netloc.rpartition("@")[2], *path.split("/")]).rstrip("-"), 60)
