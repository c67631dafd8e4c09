"""What the promise of a PostgreSQL log hangs on, looked at from a connection of the role that would use it.

Nothing is written and nothing is set. What the role may not see is told as that, and not guessed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg

from intentlog.core.codec import FORMAT_VERSION
from intentlog.errors import FormatTooNew
from intentlog.store.findings import Finding, Verdict, counted, judged
from intentlog.store.postgres_address import Address, address_of
from intentlog.store.postgres_errors import failure_of
from intentlog.store.postgres_opening import VERSION_MIN, Facts, Link, connect, format_of, weakness
from intentlog.store.postgres_reads import close_quietly
from intentlog.store.postgres_schema import FORMAT, NOW_NS
from intentlog.store.postgres_standbys import standbys

CLOCK_S_MAX = 1.0  # what two clocks may differ without a word
CONNECTIONS_USED_MAX = 0.8
TRANSACTION_S_MAX = 60.0  # of one that appends: readers of all branches wait for it
UNSEEN = "cannot be seen by this role"
_LOCAL = ("127.", "::1", "localhost")

_SETTINGS = b"SELECT name, setting, source FROM pg_settings"
_ROLE = b"""SELECT current_user::text, r.rolsuper, r.rolconnlimit,
    has_database_privilege(current_database(), 'CREATE'), coalesce(pg_has_role(n.nspowner, 'USAGE'), false),
    coalesce(has_schema_privilege(n.oid, 'USAGE'), false), n.oid IS NOT NULL
    FROM pg_roles r LEFT JOIN pg_namespace n ON n.nspname = $1 WHERE r.rolname = current_user"""
_LACKING = """SELECT g.name || ' (' || string_agg(g.right, ', ' ORDER BY g.right) || ')' FROM (
    SELECT c.relname::text, p.right FROM pg_class c
    JOIN (VALUES ('meta', 'SELECT'), ('events', 'SELECT'), ('events', 'INSERT'), ('branches', 'SELECT'),
        ('branches', 'INSERT'), ('branches', 'UPDATE'), ('branches', 'DELETE'), ('operations', 'SELECT'),
        ('operations', 'INSERT'), ('operations', 'UPDATE'), ('owners', 'SELECT'), ('owners', 'INSERT'),
        ('owners', 'UPDATE'), ('owners', 'DELETE')) AS p (name, "right") ON p.name = c.relname
    WHERE c.relnamespace = to_regnamespace($1) AND NOT has_table_privilege(c.oid, p.right)
    UNION ALL SELECT c.relname::text, p.right FROM pg_class c CROSS JOIN (VALUES ('SELECT'), ('USAGE')) AS p ("right")
        WHERE c.relnamespace = to_regnamespace($1)
        AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, p.right) ELSE false END
    UNION ALL SELECT f.proname::text, 'EXECUTE' FROM pg_proc f WHERE f.pronamespace = to_regnamespace($1)
        AND NOT has_function_privilege(f.oid, 'EXECUTE')) AS g (name, "right") GROUP BY g.name ORDER BY g.name"""
_HAS_LEASES = b"SELECT 1 FROM pg_class WHERE relname = 'owners' AND relnamespace = to_regnamespace($1)"
_LEASES = """SELECT count(*) FILTER (WHERE lease_until > clock_timestamp()),
    count(*) FILTER (WHERE lease_until <= clock_timestamp()),
    (SELECT count(*) FROM {s}.branches b WHERE b.unfinished AND NOT EXISTS (
        SELECT FROM {s}.owners w WHERE w.owner = b.holder AND w.lease_until > clock_timestamp())) FROM {s}.owners"""
_APPENDING = """SELECT max(extract(epoch FROM clock_timestamp() - a.xact_start))::float, count(*)
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = '{s}.places'::regclass AND l.objsubid = 2"""
_CONNECTIONS = b"SELECT sum(numbackends)::int FROM pg_stat_database"


class Setting(NamedTuple):
    """A parameter of the server, as this role gets it, and where that comes from."""

    value: str
    source: str

    def __str__(self) -> str:
        return self.value if self.source in ("default", "override") else f"{self.value} ({self.source})"


class Patient(NamedTuple):
    """What is examined.

    Attributes:
        address: where it is.
        link: a connection to it.
        facts: what the server said of itself.
        settings: its parameters.
    """

    address: Address
    link: Link
    facts: Facts
    settings: dict[str, Setting]

    def rows(self, query: bytes | str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of one query; `{s}` is the log's schema."""
        text = query.replace("{s}", f'"{self.address.schema}"').encode() if isinstance(query, str) else query
        return self.link.execute(text, values).fetchall()


def examine(url: str) -> list[Finding]:
    """Look at the server that a log is kept on, or is to be.

    Raises:
        LogUnavailable: it cannot be reached, or its answers cannot be had.
    """
    address = address_of(url)
    link, facts = connect(address)
    try:
        settings = {name: Setting(value, source) for name, value, source in link.execute(_SETTINGS).fetchall()}
        patient = Patient(address, link, facts, settings)
        return [finding for name, part in _PARTS.items() for finding in _looked(name, part, patient)]
    except psycopg.Error as error:
        raise failure_of(address, error) from error
    finally:
        close_quietly(link)


def _looked(name: str, part: Callable[[Patient], Iterator[Finding]], patient: Patient) -> list[Finding]:
    try:
        return list(part(patient))
    except psycopg.errors.InsufficientPrivilege:
        return [Finding(name, UNSEEN)]


def _durability(patient: Patient) -> Iterator[Finding]:
    settings, facts = patient.settings, patient.facts
    version = settings["server_version"].value.partition(" ")[0]
    newer = f"{VERSION_MIN // 10_000} or newer"
    yield judged("server version", version, newer, "upgrade the server.", ok=facts.version >= VERSION_MIN)
    yield judged("fsync", str(settings["fsync"]), "on", "set it in postgresql.conf.", ok=facts.fsync == "on")
    pages = settings["full_page_writes"]
    remedy = "set it in postgresql.conf: a crash of the machine can tear pages."
    yield judged("full_page_writes", str(pages), "on", remedy, ok=pages.value == "on")
    commit = settings["synchronous_commit"]
    remedy = weakness("on", commit.value)[1] or "the standby's kernel alone has what was acknowledged: use on."
    bad = Verdict.WEAK if commit.value == "remote_write" else Verdict.WRONG
    good = commit.value in ("on", "remote_apply")
    yield judged("synchronous_commit", str(commit), "on or remote_apply", remedy, ok=good, bad=bad)
    for name in ("wal_level", "max_wal_senders"):
        yield Finding(name, str(settings[name]))


def _standbys(patient: Patient) -> Iterator[Finding]:
    remedy = "connect to the primary, or promote it."
    is_standby = patient.facts.in_recovery
    yield judged("role of the server", "standby" if is_standby else "primary", "primary", remedy, ok=not is_standby)
    if not is_standby:
        settings = patient.settings
        rows = patient.rows(b"SELECT application_name, state, sync_state FROM pg_stat_replication ORDER BY 1")
        yield from standbys(settings["synchronous_standby_names"].value, settings["synchronous_commit"].value, rows)


def _database(patient: Patient) -> Iterator[Finding]:
    read_only, encoding = patient.settings["default_transaction_read_only"], patient.facts.encoding
    remedy = "ALTER ROLE ... SET default_transaction_read_only = off"
    yield judged("default_transaction_read_only", str(read_only), "off", remedy, ok=read_only.value == "off")
    yield judged("server_encoding", encoding, "UTF8", "CREATE DATABASE ... ENCODING 'UTF8'", ok=encoding == "UTF8")


def _rights(patient: Patient) -> Iterator[Finding]:
    schema = patient.address.schema
    rows = patient.rows(_ROLE, (schema,))
    user, is_super, limit, may_create, owns, may_use, exists = rows[0]
    role = f"{user}, superuser" if is_super else user
    less = f'an ordinary role is enough: one that owns the schema "{schema}".'
    yield judged("role", role, "an ordinary role", less, ok=not is_super, bad=Verdict.NOTE)
    if limit >= 0:
        yield Finding("connection limit of the role", str(limit))
    if not exists:
        remedy = f'have the owner of the database run: CREATE SCHEMA "{schema}" AUTHORIZATION "{user}"'
        found = f"{schema}: not there; a writer makes it" if may_create else f"{schema}: not there"
        yield judged("schema", found, "there, or may be made", remedy, ok=may_create)
        return
    give = (
        f'GRANT USAGE ON SCHEMA "{schema}" TO "{user}"; '
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{user}"; '
        f'GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{user}"'
    )
    if not may_use:
        yield Finding("schema", f"{schema}: may not be used", "USAGE", Verdict.WRONG, give)
        return
    missing = [name for (name,) in patient.rows(_LACKING, (schema,))]
    yield judged("schema", schema if owns else f"{schema}, of another role", "-", "", ok=owns, bad=Verdict.NOTE)
    yield judged("rights", ", ".join(missing) or "all", "all", give, ok=not missing)
    if "meta (SELECT)" not in missing:
        yield _format(patient, owns=owns)


def _format(patient: Patient, *, owns: bool) -> Finding:
    wanted = f"{FORMAT}.{FORMAT_VERSION}"
    try:
        tables = format_of(patient.link, patient.address)
    except FormatTooNew as error:
        return Finding("format", error.message, wanted, Verdict.WRONG, "upgrade this intentlog.")
    if tables == FORMAT:
        return Finding("format", wanted, wanted, Verdict.OK)
    if not tables and not owns:
        return Finding("format", "no tables", wanted, Verdict.WRONG, "have the owner of the schema open the log first.")
    found = f"tables of format {tables}" if tables else "no tables"
    return Finding("format", f"{found}; the next writer brings them forward", wanted)


def _clock(patient: Patient) -> Iterator[Finding]:
    before_ns = time.time_ns()
    theirs_ns = patient.rows(f"SELECT {NOW_NS}")[0][0]
    after_ns = time.time_ns()
    apart_s = (theirs_ns - (before_ns + after_ns) / 2) / 1e9
    found = f"{apart_s:+.3f} s (± {(after_ns - before_ns) / 2e9:.3f})"
    remedy = "the log goes by the server's clock, and is not harmed; set this machine's by NTP all the same."
    good = abs(apart_s) < CLOCK_S_MAX
    yield judged(
        "server's clock against this one", found, f"within {CLOCK_S_MAX:.0f} s", remedy, ok=good, bad=Verdict.WEAK
    )


def _workers(patient: Patient) -> Iterator[Finding]:
    if not patient.rows(_HAS_LEASES, (patient.address.schema,)):
        return
    alive, lapsed, waiting = patient.rows(_LEASES)[0]
    yield Finding("owners", f"{alive} alive, {lapsed} whose lease ran out")
    found = counted(waiting, "branch", "branches")
    remedy = "have them run again; what is in doubt: intentlog recover."
    yield judged("unfinished without a living owner", found, "-", remedy, ok=not waiting, bad=Verdict.NOTE)
    age_s, appending = patient.rows(_APPENDING)[0]
    setting = "oldest transaction that appends"
    if age_s is None:
        yield Finding(setting, UNSEEN if appending else "none", "-", Verdict.NOTE if appending else Verdict.OK)
        return
    remedy = "tail and verify see nothing that is newer: find its process in pg_stat_activity, and end it."
    good = age_s < TRANSACTION_S_MAX
    yield judged(setting, f"{age_s:.1f} s", f"under {TRANSACTION_S_MAX:.0f} s", remedy, ok=good, bad=Verdict.WEAK)


def _connections(patient: Patient) -> Iterator[Finding]:
    settings = patient.settings
    used = patient.rows(_CONNECTIONS)[0][0]
    reserved = ("superuser_reserved_connections", "reserved_connections")
    most = int(settings["max_connections"].value) - sum(int(settings[n].value) for n in reserved if n in settings)
    wanted = f"under {int(most * CONNECTIONS_USED_MAX)}"
    remedy = "raise max_connections, or put PgBouncer in between; a worker takes up to six."
    good = used < most * CONNECTIONS_USED_MAX
    yield judged("connections in use", f"{used} of {most}", wanted, remedy, ok=good, bad=Verdict.WEAK)
    ours, theirs = patient.link.info.backend_pid, patient.facts.pid
    if ours == theirs:
        yield Finding("pooler in between", "no: the process that answers is the one that was named at the connection")
    else:
        text = f"yes: process {theirs} answers, {ours} was named at the connection; statements are not prepared"
        yield Finding("pooler in between", text)


def _tls(patient: Patient) -> Iterator[Finding]:
    link, parameters = patient.link, patient.address.parameters
    host = link.info.host
    if host.startswith("/"):
        yield Finding("TLS", "no: a socket of this machine", "-", Verdict.OK)
    elif not link.pgconn.ssl_in_use:
        is_local = host.startswith(_LOCAL)
        bad = Verdict.NOTE if is_local else Verdict.WEAK
        found = "no: an address of this machine" if is_local else "no: arguments and results cross the network as text"
        yield judged(
            "TLS", found, "yes", "say sslmode=verify-full, and switch TLS on at the server.", ok=False, bad=bad
        )
    else:
        mode = parameters.get("sslmode", "prefer")
        verified = mode == "verify-full"
        found = f"yes, sslmode={mode}" + ("" if verified else ": whose server it is was not checked")
        yield judged(
            "TLS", found, "verify-full", "say sslmode=verify-full&sslrootcert=...", ok=verified, bad=Verdict.WEAK
        )


_PARTS: dict[str, Callable[[Patient], Iterator[Finding]]] = {
    "durability": _durability,
    "standbys": _standbys,
    "database": _database,
    "rights": _rights,
    "workers": _workers,
    "connections": _connections,
    "TLS": _tls,
    "clock": _clock,
}
