"""What PostgreSQL and libpq raise, in the library's words, with the remedy."""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from psycopg import errors as pg

from intentlog.errors import BranchHeld, IntentLogError, LogDamaged, LogUnavailable
from intentlog.store.postgres_address import Address


class Words(NamedTuple):
    """What an error means, and what to do."""

    meaning: str
    remedy: str


# What a server or libpq says of a connection that was not made. libpq gives no code for it, only this text: where the
# server speaks another language the text itself is shown, which says the same.
_AT_CONNECT: tuple[tuple[str, Words], ...] = (
    ("password authentication failed", Words("the password is wrong", "check user and password.")),
    ("no password supplied", Words("the server wants a password", "put it in the URL, in PGPASSWORD or ~/.pgpass.")),
    ("no pg_hba.conf entry", Words("the server lets nobody in from here so", "mend its pg_hba.conf, or sslmode.")),
    ("does not support ssl", Words("the server speaks no TLS", "switch TLS on there, or say sslmode=prefer.")),
    ("certificate verify failed", Words("the server's certificate is not trusted", "name its CA: sslrootcert=FILE.")),
    ("root certificate file", Words("there is no CA to trust", "name it: sslrootcert=FILE, or sslrootcert=system.")),
    ("server certificate for", Words("the certificate is another host's", "use the name that it was made out to.")),
    ("could not translate host name", Words("there is no such host", "check the host's name.")),
    ("failed to resolve host", Words("there is no such host", "check the host's name.")),
    ("too many clients", Words("the server has no connection left", "raise its max_connections, or use PgBouncer.")),
    ("connection slots", Words("the server has no connection left", "raise its max_connections, or use PgBouncer.")),
    ("too many connections", Words("the role has no connection left", "raise its CONNECTION LIMIT.")),
    ("starting up", Words("the server is starting", "wait for it, and try again.")),
    ("not yet accepting", Words("the server is recovering", "wait for it, and try again.")),
    ("in recovery mode", Words("the server is recovering", "wait for it, and try again.")),
    ("shutting down", Words("the server is shutting down", "wait until it is back, and try again.")),
    ("session is read-only", Words("none of the hosts is the primary", "wait for the failover, or check the hosts.")),
    ("in hot standby mode", Words("none of the hosts is the primary", "wait for the failover, or check the hosts.")),
    ("does not exist", Words("there is no such database or role", "create it, or check the URL.")),
    ("connection refused", Words("nobody listens there", "start the server, or check host and port.")),
    ("no such file or directory", Words("there is no such socket", "start the server, or name a host.")),
    ("timeout expired", Words("the server does not answer", "check host, port and firewall.")),
)
_UNREACHED = Words("the server cannot be reached", "check that it runs and can be reached.")

_BY_STATE: dict[str | None, Words] = {
    pg.DiskFull.sqlstate: Words("the server's disk is full", "free some room there and go on."),
    pg.OutOfMemory.sqlstate: Words("the server is out of memory", "look at its load, and try again."),
    pg.LockNotAvailable.sqlstate: Words(
        "another transaction holds the branch for too long", "look for it: SELECT * FROM pg_stat_activity; then go on."
    ),
    pg.DeadlockDetected.sqlstate: Words("the server broke a deadlock", "try again."),
    pg.QueryCanceled.sqlstate: Words(
        "the server cancelled a statement", "raise the role's statement_timeout, or find who cancelled it."
    ),
    pg.ReadOnlySqlTransaction.sqlstate: Words(
        "the server takes no writes: a standby, or made read-only", "connect to the primary."
    ),
    pg.InsufficientPrivilege.sqlstate: Words(
        "the role lacks a right",
        "a writer owns the schema; a reader needs USAGE on it, and SELECT on its tables and sequences.",
    ),
    pg.IdleInTransactionSessionTimeout.sqlstate: Words("this process was stopped inside a commit", "try again."),
    pg.TransactionTimeout.sqlstate: Words("this process was stopped inside a commit", "try again."),
    pg.AdminShutdown.sqlstate: Words("the server ended the connection", "try again when it is back."),
    pg.CrashShutdown.sqlstate: Words("the server crashed", "try again when it is back."),
    pg.CannotConnectNow.sqlstate: Words("the server is starting or stopping", "wait for it, and try again."),
}
_NOT_OURS = (
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedFunction,
    pg.UndefinedObject,
    pg.InvalidSchemaName,
    pg.DatatypeMismatch,
    pg.DuplicateTable,
    pg.WrongObjectType,
    pg.IntegrityError,
    pg.DataCorrupted,
    pg.IndexCorrupted,
)


def connect_failure(address: Address, error: psycopg.Error) -> LogUnavailable:
    """Why a connection was not made. Nothing was written."""
    text = address.masked(str(error))
    words = next((words for part, words in _AT_CONNECT if part in text.lower()), _UNREACHED)
    return LogUnavailable(f"{address.name} cannot be opened: {words.meaning} ({text})", remedy=words.remedy)


def failure_of(address: Address, error: psycopg.Error) -> IntentLogError:
    """What a statement met. Nothing was written by it."""
    text = address.masked(str(error))
    if isinstance(error, _NOT_OURS):
        return LogDamaged(
            f"{address.name}: the tables in schema {address.schema} are not those of a log, or not sound: {text}",
            remedy="name another schema (?schema=NAME), or restore a backup.",
        )
    words = _BY_STATE.get(error.sqlstate) if error.sqlstate else None
    if words is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        words = Words("the connection was lost", "try again; the next use connects anew.")
    words = words or Words("the server refused a statement", "look at the server's log.")
    kind = BranchHeld if isinstance(error, pg.LockNotAvailable) else LogUnavailable
    return kind(f"{address.name}: {words.meaning}; nothing was written ({text})", remedy=words.remedy)
