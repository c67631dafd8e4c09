"""Where a log in PostgreSQL is: its URL, taken apart, and a name of it that shows no password."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from intentlog.errors import LogUnavailable

SCHEMA = "intentlog"  # where nothing else is said: postgresql://...?schema=NAME
CONNECT_TIMEOUT_S = 10
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
# What the URL may say otherwise. A server or a network that died without a word is noticed in 20 to 25 s, so that a
# commit whose answer does not come is asked after, and a lease is renewed through another connection.
_DEFAULTS = {
    "application_name": "intentlog",
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class Address(NamedTuple):
    """A URL, taken apart.

    Attributes:
        name: the URL without what is secret in it: for errors and command lines.
        parameters: what libpq is given.
        schema: the schema that the log's tables are in.
        secrets: what must not be shown.
    """

    name: str
    parameters: dict[str, str]
    schema: str
    secrets: tuple[str, ...]

    def masked(self, text: str) -> str:
        """The text, which may be a server's or libpq's, without what is secret."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def name_of(url: str) -> str:
    """A URL without its password: it can be printed, and given to a command again."""
    user, hosts, given = _parts(url)
    shown = [(key, value) for key, value in given if key not in _SECRETS]
    who = f"{user.partition(':')[0]}@" if user else ""
    return f"postgresql://{who}{hosts}{'?' + urlencode(shown) if shown else ''}"


def _parts(url: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Who (and the password), where, and what else it says."""
    _, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    if "@" not in place and "@" in query:  # a password with a question mark in it, which libpq will not like
        place, query = rest, ""
    user, _, hosts = place.rpartition("@")
    return user, hosts, parse_qsl(query, keep_blank_values=True)


def address_of(url: str) -> Address:
    """Take a URL apart.

    Args:
        url: as libpq takes it (`postgresql://user:password@host:port/database?sslmode=...`); beside libpq's parameters
            it may name the `schema`.

    Raises:
        LogUnavailable: it is no such URL, or the schema's name would have to be quoted.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    name = name_of(url)
    user, hosts, given = _parts(url)
    schema = dict(given).get("schema", SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema):
        raise LogUnavailable(
            f"{name}: {schema!r} is no name for the log's schema", remedy="take a-z, 0-9 and _, up to 63 of them."
        )
    own = urlencode([(key, value) for key, value in given if key != "schema"], quote_via=quote)
    found = None
    if "@" not in user:  # else libpq would take what follows the first one for the host, and say its name
        with suppress(ProgrammingError):  # its text may hold the password, so that it is not kept
            found = conninfo_to_dict(f"postgresql://{user}{'@' if user else ''}{hosts}{'?' + own if own else ''}")
    if found is None:
        raise LogUnavailable(
            f"{name} is no URL that libpq takes",
            remedy="write it as postgresql://USER@HOST:PORT/DATABASE; what is special in a password as %XX (@ as %40).",
        )
    parameters = {key: str(value) for key, value in found.items()}
    several = "," in parameters.get("host", "")  # then the primary is looked for, wherever it has gone
    defaults = {**_DEFAULTS, "target_session_attrs": "primary"} if several else _DEFAULTS
    secrets = [parameters.get(key, "") for key in _SECRETS] + [unquote(user.partition(":")[2])]
    return Address(
        name,
        {**defaults, **parameters, "client_encoding": "UTF8"},
        schema,
        tuple({secret for secret in secrets if secret}),
    )
