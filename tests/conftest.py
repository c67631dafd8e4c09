"""Fixtures of the whole suite."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from group_bench import AnyGated, GatedMemory, GatedPostgres, GatedSqlite
from postgres_proxy import Proxy
from postgres_servers import Server

from intentlog.log import declare

RAM = Path("/dev/shm")
_SCHEMAS = itertools.count()
SHARED = ("crash_programs", "field_case_programs", "bad_input", "postgres_programs")


# A shell starts what it puts into the background with SIGINT ignored, and Python leaves it so: then nothing, here or in
# a child, would hear the Ctrl-C of the tests of interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room for one: for tests that kill processes, not machines.

    A SIGKILL loses nothing that the kernel has, so that what such a test finds does not depend on the disk; only the
    time does.
    """
    if not (RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > 1 << 30):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-", dir=RAM))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def no_tools_of_other_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools of one name would keep a recovery from asking the probe of this test's own."""
    others = [h for h in declare._KNOWN.values() if h.__module__ not in (request.module.__name__, *SHARED)]
    kept = {h.number: h for h in declare._KNOWN.values() if h not in others}
    monkeypatch.setattr(declare, "_KNOWN", WeakValueDictionary(kept))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, quick_folder: Path) -> Iterator[AnyGated]:
    """A store that can be stopped inside a commit (`group_bench`); modules that have another one define their own."""
    made: AnyGated
    if request.param == "memory":
        made = GatedMemory()
    elif request.param == "sqlite":
        made = GatedSqlite(quick_folder / "log.db")
    else:
        made = GatedPostgres(request.getfixturevalue("postgres_log_url"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server that the tests of one process share: to be used, not to be stopped or changed."""
    with Server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """The address of an empty database."""
    name = postgres.fresh_database()
    yield postgres.url(database=name)
    postgres.drop_database(name)


@pytest.fixture
def postgres_log_url(postgres: Server) -> Iterator[str]:
    """The address of a log that is not there yet: a schema of its own in a shared database, which is cheap."""
    schema = f"log_{next(_SCHEMAS)}"
    yield f"{postgres.url()}?schema={schema}"
    postgres.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL server of the test's own: to be stopped, killed, changed."""
    with Server() as server:
        yield server


@pytest.fixture
def postgres_proxy(postgres: Server) -> Iterator[Proxy]:
    """A proxy that leads to the shared server."""
    with Proxy(postgres) as proxy:
        yield proxy
