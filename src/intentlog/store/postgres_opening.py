"""Connecting to a PostgreSQL log: what is refused, and how its tables are made.

Nothing is set for the session: behind a pooler a session is shared. What a transaction needs it sets for itself, and
what a durable commit needs of the server is looked at here, and again in each transaction.
"""

from __future__ import annotations

import logging
import secrets
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import RawCursor
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from intentlog.core.codec import FORMAT_VERSION
from intentlog.errors import FormatTooNew, LogDamaged, LogUnavailable
from intentlog.store import postgres_arrays
from intentlog.store.postgres_address import Address
from intentlog.store.postgres_errors import connect_failure, failure_of
from intentlog.store.postgres_schema import FORMAT, MIGRATIONS

Link: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SALT_BYTES = 32
VERSION_MIN = 130_000  # pg_current_xact_id and xid8
_WEAK = frozenset({"off", "local"})
logger = logging.getLogger("intentlog")

_FACTS = b"""
SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('default_transaction_read_only'), current_setting('server_encoding'),
    current_setting('server_version_num')::int, (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
    pg_backend_pid()
"""


class Facts(NamedTuple):
    """What a server says of itself.

    Attributes:
        in_recovery: whether it is a standby.
        fsync, synchronous_commit, read_only, encoding, version: its settings, for this role.
        system: its identifier, which a copy keeps.
        timeline: which of the histories of that system it is in; "" of a standby.
        pid: the server process that the answer came from.
    """

    in_recovery: bool
    fsync: str
    synchronous_commit: str
    read_only: str
    encoding: str
    version: int
    system: int
    timeline: str
    pid: int

    def is_successor_of(self, other: Facts) -> bool:
        """Whether the other server was replaced by this one: promoted, restored, or another altogether."""
        return (self.system, self.timeline) != (other.system, other.timeline)


def connect(address: Address, **others: str) -> tuple[Link, Facts]:
    """A new connection, in autocommit, and what its server says of itself.

    Statements are prepared on the server, if the connection leads to it directly. A pooler in transaction mode gives
    each transaction another server connection, to which a prepared statement is unknown, unless it follows them as
    PgBouncer does from 1.21 on, where it is set up to. Whether there is one in between is told by the process: its
    number, as the connection was told it, is then not that of the process that answers.

    Args:
        address: where to.
        others: libpq's parameters that differ for this connection.

    Raises:
        LogUnavailable: it cannot be made.
    """
    parameters: dict[str, Any] = {**address.parameters, **others}
    try:
        link = psycopg.connect(
            **parameters, autocommit=True, prepare_threshold=None, cursor_factory=RawCursor, row_factory=tuple_row
        )
    except psycopg.Error as error:
        raise connect_failure(address, error) from error
    try:
        return link, configure(link)
    except psycopg.Error as error:
        link.close()
        raise failure_of(address, error) from error


def configure(link: Link) -> Facts:
    """Fit a new connection to our use, and ask its server what it says of itself."""
    link.adapters.register_dumper(int, Int8BinaryDumper)  # of one type, whatever its size: one prepared statement each
    postgres_arrays.register(link.adapters)
    rows = link.execute(_FACTS).fetchall()
    facts = Facts(*rows[0])
    link.prepare_threshold = 0 if facts.pid == link.info.backend_pid else None
    return facts


def check_server(address: Address, facts: Facts) -> None:
    """Refuse a server whose word "committed" is not what the log's promise needs.

    Raises:
        LogUnavailable: it is too old, takes no writes, or acknowledges what can be lost.
    """
    refusal, remedy = "", ""
    if facts.version < VERSION_MIN:
        refusal, remedy = f"it is version {facts.version // 10_000}", "use PostgreSQL 13 or newer."
    elif facts.in_recovery:
        refusal, remedy = "it is a standby, which takes no writes", "connect to the primary, or promote it."
    elif facts.read_only != "off":
        refusal = "default_transaction_read_only is on"
        remedy = "ALTER ROLE ... SET default_transaction_read_only = off; or connect to the primary."
    elif facts.encoding != "UTF8":
        refusal, remedy = f"its encoding is {facts.encoding}", "CREATE DATABASE ... ENCODING 'UTF8'."
    else:
        refusal, remedy = weakness(facts.fsync, facts.synchronous_commit)
    if refusal:
        raise LogUnavailable(f"{address.name} cannot keep a log: {refusal}", remedy=remedy)
    if facts.synchronous_commit == "remote_write":
        logger.warning(
            "%s: synchronous_commit is remote_write: the standby's operating system can lose what was acknowledged. "
            "Use on or remote_apply.",
            address.name,
        )


def weakness(fsync: str, synchronous_commit: str) -> tuple[str, str]:
    """What lets the server acknowledge what it can lose, and the remedy; empty if nothing does."""
    if fsync != "on":
        return "fsync is off: a crash of the machine loses what was acknowledged", "set fsync = on in postgresql.conf."
    if synchronous_commit in _WEAK:
        what = "a crash" if synchronous_commit == "off" else "a failover to the standby"
        return (
            f"synchronous_commit is {synchronous_commit}: {what} loses what was acknowledged",
            "ALTER ROLE ... SET synchronous_commit = on; look at postgresql.conf too.",
        )
    return "", ""


def format_of(link: Link, address: Address) -> int:
    """Which format the log's tables have; 0: there are none.

    Raises:
        FormatTooNew: a newer intentlog made them.
    """
    found = link.execute(
        b"SELECT 1 FROM pg_class WHERE relname = 'meta' AND relnamespace = to_regnamespace($1)", (address.schema,)
    ).fetchall()
    if not found:
        return 0
    meta: dict[str, bytes] = dict(
        link.execute(f'SELECT key, value FROM "{address.schema}".meta'.encode(), binary=True).fetchall()  # noqa: S608 - a name that was checked
    )
    try:
        tables, records = int(meta.get("format", b"0")), int(meta.get("records", b"0"))
    except ValueError as error:
        raise LogDamaged(f"{address.name}: its format is no number", remedy="restore a backup.") from error
    if tables > FORMAT or records > FORMAT_VERSION:
        raise FormatTooNew(
            f"{address.name}: the tables in schema {address.schema} have format {tables}.{records}, "
            f"this intentlog reads up to {FORMAT}.{FORMAT_VERSION}"
        )
    return tables


def check_readable(link: Link, address: Address, facts: Facts) -> None:
    """Refuse to read where there is no log, and where it may be behind: a person would decide on what is not so.

    Raises:
        LogUnavailable: there are no tables, or it is a standby, which also does not show who is committing.
        FormatTooNew: a newer intentlog made them.
    """
    if facts.in_recovery:
        raise LogUnavailable(
            f"{address.name} is a standby, which may lack what was acknowledged", remedy="read from the primary."
        )
    if format_of(link, address) == 0:
        raise LogUnavailable(
            f"{address.name}: there is no log in schema {address.schema}", remedy="a writer makes it one."
        )


def create_tables(link: Link, address: Address) -> None:
    """Make the log's tables, or bring them forward. Several may do so at once: one does it, the others wait for it.

    Raises:
        psycopg.Error: nothing was changed.
        LogUnavailable, FormatTooNew: neither.
    """
    if format_of(link, address) == FORMAT:
        return
    key = int.from_bytes(blake2b(f"intentlog {address.schema}".encode(), digest_size=8).digest(), signed=True)
    with link.transaction():
        link.execute(b"SELECT pg_advisory_xact_lock($1)", (key,))
        before = format_of(link, address)  # by a statement that was begun under the lock
        if before == FORMAT:
            return
        if before == 0:
            _create_schema(link, address)
        else:  # no writer is in the middle of a commit, and the next one sees the new format
            link.execute(f'LOCK TABLE "{address.schema}".branches IN ACCESS EXCLUSIVE MODE'.encode())
        for migration in MIGRATIONS[before:]:
            link.execute(migration.format(s=f'"{address.schema}"').encode(), prepare=False)
        put = f'INSERT INTO "{address.schema}".meta VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = $2'  # noqa: S608 - a name that was checked
        link.execute(put.encode(), ("format", b"%d" % FORMAT))
        if before == 0:
            link.execute(put.encode(), ("records", b"%d" % FORMAT_VERSION))
            link.execute(put.encode(), ("salt", secrets.token_bytes(SALT_BYTES)))


def _create_schema(link: Link, address: Address) -> None:
    exists = link.execute(b"SELECT to_regnamespace($1) IS NOT NULL", (address.schema,)).fetchall()[0][0]
    try:
        if not exists:
            link.execute(f'CREATE SCHEMA "{address.schema}"'.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        user = link.info.user
        raise LogUnavailable(
            f"{address.name}: role {user} may not create the schema {address.schema}",
            remedy=f'have the owner of the database run: CREATE SCHEMA "{address.schema}" AUTHORIZATION "{user}"',
        ) from error
