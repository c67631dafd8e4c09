"""What became of a commit whose answer did not come (I8): asked of the server itself.

The transaction had an id. As long as the server says that it is in progress, it is asked again; and if that takes long,
the server process that holds it, for a client that is gone, is ended. When it is not in progress any more, or the
server was replaced by another (a timeline or a system of its own), a statement that is begun then sees its records, or
nobody will ever see them. Only the records tell: a server that crashed gives out again the ids of transactions that
left no trace in its WAL, so that "committed" may be said of another transaction of the same id.

That a commit is there is not enough. Its answer may have been outstanding because a standby had not confirmed it. So it
counts as durable only when a commit made after it has been answered, without a warning: what confirms the later one has
the earlier one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psycopg

from intentlog.errors import LogUnavailable
from intentlog.store.postgres_arrays import Bigints, Blobs
from intentlog.store.postgres_opening import Facts, Link
from intentlog.store.postgres_schema import Texts
from intentlog.store.staging import Staged

LEARN_LIMIT_S = 60.0  # in which a server restarts, or a standby is promoted
POLL_FIRST_S = 0.05
POLL_MAX_S = 1.0
IN_PROGRESS_MAX_S = 2.0  # then what is left of it on the server is waiting for a client that is gone, or for a standby


class Sent(NamedTuple):
    """A commit that was sent.

    Attributes:
        server: what the server said of itself when the connection was made.
        xid: the transaction.
        pid: the server process that it was in: after a crash its number may have been given to somebody else's.
        staged: what it writes.
    """

    server: Facts
    xid: str
    pid: int
    staged: Staged


class Learnt(NamedTuple):
    """What became of it.

    Attributes:
        landed: whether it is in the log, durably; None: that could not be learnt.
        why: what was found, for the error.
    """

    landed: bool | None
    why: str


def learn(
    sent: Sent,
    texts: Texts,
    connected: Callable[[], tuple[Link, Facts]],
    confirm: Callable[[Link], None],
    limit_s: float = LEARN_LIMIT_S,
) -> Learnt:
    """Ask until it is known, or until the limit has passed.

    Args:
        sent: the commit.
        texts: the statements.
        connected: a new connection, or LogUnavailable.
        confirm: makes a commit of its own, and raises where that is not durable for sure.
        limit_s: how long to go on, in seconds.
    """
    begun_s, poll_s = time.monotonic(), POLL_FIRST_S
    why = "the server was not reached"
    while True:
        try:
            link, server = connected()
        except LogUnavailable as error:
            why = error.message
        else:
            try:
                end_it = time.monotonic() - begun_s > IN_PROGRESS_MAX_S
                landed, why = _asked(link, server, sent, texts, end_it=end_it)
                if landed:
                    confirm(link)
                if landed is not None:
                    return Learnt(landed, why)
            except psycopg.Error as error:
                why = f"{type(error).__name__}: {error}"
            finally:
                with suppress(psycopg.Error):
                    link.close()
        if time.monotonic() + poll_s > begun_s + limit_s:
            return Learnt(None, why)
        time.sleep(poll_s)
        poll_s = min(POLL_MAX_S, 2 * poll_s)


def _asked(link: Link, server: Facts, sent: Sent, texts: Texts, *, end_it: bool) -> tuple[bool | None, str]:
    if server.in_recovery:
        return None, "the server is a standby"
    if not server.is_successor_of(sent.server) and _is_in_progress(link, sent.xid, texts):
        if end_it:
            link.execute(texts.end_process.encode(), (sent.xid, sent.pid))
        return None, f"transaction {sent.xid} is still in progress"
    seqs = Bigints([stored.seq for stored, _ in sent.staged.events])
    chains = Blobs([stored.chain for stored, _ in sent.staged.events])
    found = link.execute(texts.landed.encode(), (seqs, chains)).fetchall()[0][0]
    return found == len(chains), f"of its {len(chains)} records {found} are there"


def _is_in_progress(link: Link, xid: str, texts: Texts) -> bool:
    try:
        status = link.execute(texts.xact_status.encode(), (xid,)).fetchall()[0][0]
    except psycopg.errors.InvalidParameterValue:  # an id "in the future": the server crashed, and never heard of it
        return False
    return bool(status == "in progress")
