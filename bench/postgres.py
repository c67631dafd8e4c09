"""A private PostgreSQL server in a folder of the bench, for what stores there; or why there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from intentlog import IntentLogError, Log

START_LIMIT_S = 60
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


def _programs() -> Path:
    """The folder of the newest server that is installed.

    Raises:
        Absent: there is none.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).parent
    if not found:
        raise Absent("no PostgreSQL server is installed")
    return found[-1].parent


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
    programs, user = _programs(), _user()
    folder.mkdir(mode=0o777, parents=True)
    folder.chmod(0o777)
    data, trace = folder / "data", folder / "trace" if traced else None
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "--auth=trust", "-E", "UTF8"]
    made = subprocess.run(initdb, check=False, capture_output=True, text=True, user=user, cwd="/")
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


def library_has_it() -> str:
    """Why the library cannot be measured on PostgreSQL; empty if it can be tried."""
    try:
        Log.open("postgresql://bench@127.0.0.1:1/none").close()
    except (IntentLogError, ImportError) as error:
        return "psycopg is not installed" if "needs psycopg" in str(error) else ""
    return ""
