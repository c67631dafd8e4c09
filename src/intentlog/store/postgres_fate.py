"""What became of a commit whose answer did not come (I8): asked of the server itself.

The transaction had an id. Whoever answers after the connection was lost is either the same server, in the same history:
it knows of the id, and as long as it says "in progress" it is asked again. Or it is one that has replaced it (another
timeline, another system): an id may mean another transaction there, so that the records themselves are looked for; what
is not in that history cannot come to be in it any more.

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
from intentlog.store.postgres_opening import Facts, Link
from intentlog.store.postgres_rows import bigints
from intentlog.store.postgres_schema import Texts
from intentlog.store.staging import Staged

LEARN_LIMIT_S = 60.0  # in which a server restarts, or a standby is promoted
POLL_FIRST_S = 0.05
POLL_MAX_S = 1.0


class Sent(NamedTuple):
    """A commit that was sent.

    Attributes:
        server: what the server said of itself when the connection was made.
        xid: the transaction.
        staged: what it writes.
    """

    server: Facts
    xid: str
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
    deadline_s, poll_s = time.monotonic() + limit_s, POLL_FIRST_S
    why = "the server was not reached"
    while True:
        try:
            link, server = connected()
        except LogUnavailable as error:
            why = error.message
        else:
            try:
                landed, why = _asked(link, server, sent, texts)
                if landed:
                    confirm(link)
                if landed is not None:
                    return Learnt(landed, why)
            except psycopg.Error as error:
                why = f"{type(error).__name__}: {error}"
            finally:
                with suppress(psycopg.Error):
                    link.close()
        if time.monotonic() + poll_s > deadline_s:
            return Learnt(None, why)
        time.sleep(poll_s)
        poll_s = min(POLL_MAX_S, 2 * poll_s)


def _asked(link: Link, server: Facts, sent: Sent, texts: Texts) -> tuple[bool | None, str]:
    if server.in_recovery:
        return None, "the server is a standby"
    status = None
    if not server.is_successor_of(sent.server):
        status = link.execute(texts.xact_status.encode(), (sent.xid,)).fetchall()[0][0]
        if status == "in progress":
            return None, f"transaction {sent.xid} is still in progress"
        if status == "aborted":
            return False, f"transaction {sent.xid} was aborted"
    seqs = bigints([stored.seq for stored, _ in sent.staged.events])
    chains = [stored.chain for stored, _ in sent.staged.events]
    found = link.execute(texts.landed.encode(), (seqs, chains)).fetchall()[0][0]
    if found == len(chains):
        return True, "its records are there"
    return (None if status == "committed" else False), f"of its {len(chains)} records {found} are there"
