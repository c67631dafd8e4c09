"""`intentlog mcp`: the guard between an MCP client and a server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from intentlog.cli.advice import without_password
from intentlog.cli.arguments import URL_VARIABLE, codec_named, stdout_kept_clean
from intentlog.cli.commands import FINE, app
from intentlog.errors import ArgumentsNotRecordable, IntentLogError, LogUnavailable
from intentlog.log.naming import check_name
from intentlog.log.sync import Log
from intentlog.log.values import Settings
from intentlog.mcp.calls import KNOWN_KEYS
from intentlog.mcp.guard import Guard, Guarding
from intentlog.mcp.naming import server_name, upstream_name
from intentlog.mcp.rules import Rules, check_for_pipes, read_rules


class ExtraMissing(IntentLogError):
    """An optional part is not installed. Nothing was started."""

    code = "extra_missing"


SERVER_NAME_MAX = 100  # with a tool's name behind it, it is a name of the log
CANNOT_START = 127  # as a shell says it
BYTES_MAX = 64 << 20
"""Of arguments and of results: what tools return is larger than what programs do. A larger result is passed on, and
recorded as done without a value."""


Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND [ARGS]...", help="Starts the MCP server.")]
Http = Annotated[
    str | None,
    typer.Option(metavar="[HOST:]PORT", help="Listen here for clients over HTTP, for the server at --upstream."),
]
UpstreamUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="The server, in place of a command: http://HOST:PORT/mcp.")
]
LogPlace = Annotated[
    str | None,
    typer.Option(metavar="LOG", help=f"The log's path or URL; by default ${URL_VARIABLE}, or a file of the user's."),
]
Branch = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The line of execution, the same after a restart: calls with a key are known again."
    ),
]
Server = Annotated[
    str | None, typer.Option(metavar="NAME", help="The server's name in the log; by default from its command.")
]
RulesFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What is known of its tools: effect class, times, probe, key, redaction (TOML)."),
]
Trusting = Annotated[
    bool,
    typer.Option("--trust-annotations", help="Take the server's hints at their word: readOnlyHint, idempotentHint."),
]
KeyMeta = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A further member of _meta that holds a call's key.")
]
Suggesting = Annotated[
    bool, typer.Option("--suggest", help="Print a first file of rules, from the server's own list, and end.")
]


@app.command(
    name="mcp",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: intentlog mcp --branch order-agent -- npx -y @modelcontextprotocol/server-filesystem /srv/orders",
)
def mcp(  # noqa: PLR0913 - its options are its arguments
    command: Command = None,
    *,
    http: Http = None,
    upstream: UpstreamUrl = None,
    log: LogPlace = None,
    branch: Branch = None,
    server: Server = None,
    rules: RulesFile = None,
    trust_annotations: Trusting = False,
    key_meta: KeyMeta = None,
    suggest: Suggesting = False,
) -> int:
    """Guard the tool calls between an MCP client and a server. Reads and writes MCP on stdin and stdout.

    After a crash each call has a truthful answer: done (its recorded result), never sent (it is made), or in doubt (a
    tool result that says so, and names the command by which a person settles it). Exits as the server does.

    Over HTTP it stands before a server that runs elsewhere: `intentlog mcp --http 4000 --upstream http://HOST:PORT/mcp`
    is reached at http://127.0.0.1:4000/mcp. It needs `pip install intentlog[mcp-http]`.
    """
    if (http is None) != (upstream is None) or (command is None) == (upstream is None):
        msg = "name a command behind --, or both --http and --upstream"
        raise typer.BadParameter(msg)
    if suggest:
        if command is None:
            msg = "--suggest needs a command behind --"
            raise typer.BadParameter(msg)
        from intentlog.mcp.suggest import suggestion

        sys.stdout.write(suggestion(command))
        return FINE
    _check_names(branch, server, key_meta or ())
    known = read_rules(rules) if rules else Rules()
    known = known.trusting() if trust_annotations else known
    settings = Settings(codec=codec_named(), argument_bytes_max=BYTES_MAX, result_bytes_max=BYTES_MAX)
    place = log or os.environ.get(URL_VARIABLE) or _own_log()
    how = Guarding(
        place=without_password(place) if "://" in place else str(Path(place).absolute()),
        server=server or (server_name(command) if command else upstream_name(upstream or "")),
        branch=branch,
        key_names=(*KNOWN_KEYS, *(key_meta or ())),
        rules=known,
        settings=settings,
    )
    if command is None:
        return _served(http or "", upstream or "", place, how)
    check_for_pipes(known)
    return _guarded(command, place, how)


def _check_names(branch: str | None, server: str | None, keys: Sequence[str]) -> None:
    """Refuse what would name nothing, as a variable of a shell that is not set, or could not be written down.

    Raises:
        typer.BadParameter: which option, and why.
    """
    for option, name in (("--branch", branch), ("--server", server), *(("--key-meta", key) for key in keys)):
        if name is None:
            continue
        if option == "--server" and len(name) > SERVER_NAME_MAX:
            msg = f"--server: a name has at most {SERVER_NAME_MAX} characters, not {len(name)}"
            raise typer.BadParameter(msg)
        try:
            check_name("name", name, slash=option != "--server")
        except ArgumentsNotRecordable as error:
            raise typer.BadParameter(f"{option} {name!r}: {error.message}") from error


def _served(address: str, url: str, place: str, how: Guarding) -> int:
    try:
        from intentlog.mcp.serving import serve
    except ImportError as error:
        remedy = "pip install 'intentlog[mcp-http]'."
        raise ExtraMissing(f"the guard over HTTP needs {error.name}", remedy=remedy) from error
    with Log.open(place, settings=how.settings) as opened:
        guard = Guard(opened, how)
        guard.take_over()
        serve(guard, address, url)
        guard.close()
    return FINE


def _guarded(command: list[str], place: str, how: Guarding) -> int:
    from intentlog.mcp.stdio import Pump

    answers = os.dup(1)
    with stdout_kept_clean(), Log.open(place, settings=how.settings) as opened:
        guard = Guard(opened, how)
        guard.take_over()
        try:
            pump = Pump(guard, command, 0, answers)
        except OSError as error:
            sys.stderr.write(f"error: cannot start {command[0]!r}: {error}\n")
            return CANNOT_START
        code = pump.run()
        guard.close()
    if code < 0:  # ended by a signal: so does this process, for whoever looks
        with suppress(OSError):  # of one that cannot be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _own_log() -> str:
    """A log of the user's, where none is named: a client's configuration need only name the server."""
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "intentlog"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LogUnavailable(f"{folder} cannot be made: {error}", remedy="name a log: --log LOG.") from error
    return str(folder / "mcp.db")
