"""One round trip: several statements to the server at once, and all of their answers.

Beneath psycopg's connection, on its libpq connection in pipeline mode, for the two round trips of an append alone.
psycopg's own pipeline sends each statement by itself and makes a cursor for each, which takes longer than all the rest
of a commit; and a process that is stopped between two of them leaves a transaction behind of which the server has half.
Here what is sent is written to the socket when it is complete.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from intentlog.store.postgres_opening import Link

_BINARY = pq.Format.BINARY


class Statement(NamedTuple):
    """What is sent.

    Attributes:
        name: under which it was prepared.
        text: its text.
        values: its values, in PostgreSQL's binary form.
    """

    name: bytes
    text: bytes
    values: Sequence[bytes] = ()


def prepare(link: Link, *statements: Statement) -> None:
    """Prepare them on the server, where that is safe (see `postgres_opening.connect`).

    Raises:
        psycopg.Error: they cannot be.
    """
    if link.prepare_threshold is None:
        return
    for one in statements:
        result = link.pgconn.prepare(one.name, one.text)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise error_from_result(result, "utf-8")


def exchange(link: Link, *statements: Statement) -> list[PGresult]:
    """Send the statements and wait for their results, one for each.

    Raises:
        psycopg.Error: the first error that one of them met; those behind it were not executed. Or the connection was
            lost: then it is closed.
    """
    connection = link.pgconn
    connection.enter_pipeline_mode()
    is_prepared = link.prepare_threshold is not None
    for name, text, values in statements:
        formats = [_BINARY] * len(values)
        if is_prepared:
            connection.send_query_prepared(name, values, formats, _BINARY)
        else:
            connection.send_query_params(text, values, None, formats, _BINARY)
    connection.pipeline_sync()
    _flush(connection)
    results = _results(connection)
    connection.exit_pipeline_mode()
    for one in results:
        if one.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(one, "utf-8")
    return results


def row_of(link: Link, result: PGresult) -> tuple[Any, ...]:
    """The one row of a result."""
    transformer = Transformer(link)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, 1, tuple)[0]


def _flush(connection: PGconn) -> None:
    ready = select.poll()
    ready.register(connection.socket, select.POLLIN | select.POLLOUT)
    while connection.flush():  # a large batch: what the server answers meanwhile has to be taken
        if any(event & ~select.POLLOUT for _, event in ready.poll()):
            connection.consume_input()


def _results(connection: PGconn) -> list[PGresult]:
    ready = select.poll()
    ready.register(connection.socket, select.POLLIN)
    results: list[PGresult] = []
    while True:
        while connection.is_busy():
            ready.poll()
            connection.consume_input()
        result = connection.get_result()
        if result is None:  # the end of one statement's results
            if connection.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(connection.get_error_message())
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)
