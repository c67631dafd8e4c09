"""Two servers that belong together: a primary with a synchronous standby; and a PgBouncer in front of a server."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self

from postgres_servers import (
    SUPERUSER,
    Server,
    Setting,
    clean_environment,
    free_port,
    identity,
    pgbouncer,
    private_folder,
)

BOUNCER_S_MAX = 30.0


class Pair:
    """A primary and a standby that it waits for at each commit, as far as `synchronous_commit` says.

    Args:
        synchronous_commit: "on" (the standby has flushed the record), "remote_apply" (and shows it to its readers) or
            "remote_write" (its kernel has it).
        programs: the folder of their programs, `embedded()` by default.
        settings: further parameters, of both.

    Attributes:
        primary: accepts writes; ends with the pair unless a test ends it before.
        standby: follows, and accepts reads; after `promote` writes too, and waits for nobody.
    """

    def __init__(self, synchronous_commit: str = "on", *, programs: Path | None = None, **settings: Setting) -> None:
        both = {**settings, "synchronous_commit": synchronous_commit}
        self.primary = Server(programs=programs, settings={**both, "synchronous_standby_names": "FIRST 1 (standby)"})
        self._programs = programs
        self._both = both

    def __enter__(self) -> Self:
        """Start both, and return when the standby is synchronous."""
        self.primary.start()
        source = f"host=127.0.0.1 port={self.primary.port} user={SUPERUSER} application_name=standby"
        try:
            self.standby = Server(
                programs=self._programs, settings={**self._both, "primary_conninfo": source}, data_of=self.primary
            )
            self.standby.start()
            self.standby.wait_for_log("started streaming")
            self.primary.sql("SET synchronous_commit = local; SELECT pg_current_xact_id()")  # news for it to report
            self.primary.wait_for_log("is now a synchronous standby")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The standby first: a primary that stops waits until its standby has everything.
        if hasattr(self, "standby"):
            self.standby.close()
        self.primary.close()

    def promote(self) -> Server:
        """Make the standby the primary, whatever has become of the other one; the server to go on with."""
        self.standby.promote()
        return self.standby


class PgBouncer:
    """A PgBouncer in front of a server, on a free port of 127.0.0.1; `with PgBouncer(server) as bouncer`.

    Args:
        server: where it leads to.
        pool_mode: "transaction", "session" or "statement".
        settings: further lines of the section [pgbouncer] of its configuration.

    Raises:
        FileNotFoundError: there is none on this system (`postgres_servers.pgbouncer`).
    """

    def __init__(self, server: Server, *, pool_mode: str = "transaction", **settings: Setting) -> None:
        program = pgbouncer()
        if program is None:
            raise FileNotFoundError("no PgBouncer on this system")
        self._program = program
        self._server = server
        self.folder = private_folder("bouncer")
        self.port = free_port()
        self._settings: dict[str, Setting] = {"pool_mode": pool_mode, "default_pool_size": 10, **settings}

    def __enter__(self) -> Self:
        users = self.folder / "users"
        users.write_text(f'"{SUPERUSER}" ""\n')
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "logfile": "",
            **self._settings,
        }
        section = "".join(f"{name} = {value}\n" for name, value in lines.items())
        server = f"* = host=127.0.0.1 port={self._server.port} user={SUPERUSER}\n"
        conf = self.folder / "pgbouncer.ini"
        conf.write_text(f"[databases]\n{server}[pgbouncer]\n{section}")
        self._process = subprocess.Popen(
            [self._program, conf],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.folder,
            env=clean_environment(),
            **identity(),
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "process up" in line:
                return self
        self._process.wait()
        raise RuntimeError("PgBouncer did not start:\n" + "".join(said))

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()

    def url(self, *, database: str = "postgres", user: str = SUPERUSER) -> str:
        """The address of a database of the server, through this PgBouncer."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"
