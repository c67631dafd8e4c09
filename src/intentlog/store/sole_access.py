"""While a log is open, nobody else in the process opens its files: that would drop SQLite's locks.

POSIX locks belong to a process and a file: whoever closes any descriptor of the file there drops all of them, and
SQLite is not told. A copy or a hash of LOG or LOG-shm by the program itself, or the standard library's `sqlite3` (a
second SQLite, which knows nothing of the first one's connections), cost acknowledged records, the file, or the process
(SIGBUS). So an audit hook refuses to open them, before anything is opened, and a log is not opened where one of them is
open already. LOG-wal has no locks. What opens a file without telling Python, a library in C, is not seen.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import ref

import apsw

from intentlog.errors import LogInUse
from intentlog.store.opening import Identity

_DESCRIPTORS = Path("/dev/fd")
_REMEDY = (
    "read it through the library or the command line; copy it from another process, with SQLite's backup API; "
    "use SQLite in this process through apsw alone."
)


class SoleAccess:
    """The right of one open log to its files, in this process. Gone with its object, or when it is given up.

    Args:
        path: the log, which is there; not opened yet.

    Raises:
        LogInUse: the process has one of its files open, and not through this SQLite.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: frozenset[Identity] = frozenset()
        self.look()
        if not any(one.files & self.files for one in _holders()) and not _known_to_sqlite(self.files):
            _refuse_where_open(self)
        _install()
        number = id(self)
        _held[number] = ref(self, lambda _: _held.pop(number, None) and None)

    def look(self) -> None:
        """Learn which files they are: SQLite makes LOG-shm when it opens the log."""
        places = (str(self.path), f"{self.path}-shm")
        self.files = frozenset(found for found in map(_identity, places) if found)

    def give_up(self) -> None:
        """The log is closed."""
        _held.pop(id(self), None)


_held: dict[int, ref[SoleAccess]] = {}
os.register_at_fork(after_in_child=_held.clear)  # a child has none of these locks, and so cannot drop them


def _holders() -> list[SoleAccess]:
    return [one for one in (held() for held in tuple(_held.values())) if one is not None]


def _identity(place: Any) -> Identity | None:
    try:
        found = os.stat(place)  # noqa: PTH116 - asked at each open of the process: a Path takes as long again
    except (OSError, ValueError, TypeError):
        return None
    return found.st_dev, found.st_ino


def _known_to_sqlite(files: frozenset[Identity]) -> bool:
    """Whether a connection of the same SQLite has one of them open, which takes care of the locks."""
    names: list[str] = []
    for one in apsw.connections():
        with suppress(apsw.ConnectionClosedError):
            names.append(one.filename)
    return any(_identity(name) in files for name in names if name)


def _refuse_where_open(access: SoleAccess) -> None:
    try:
        numbers = [int(one.name) for one in _DESCRIPTORS.iterdir()]
    except OSError:  # not mounted
        return
    for number in numbers:
        with suppress(OSError):  # the listing's own
            found = os.fstat(number)
            if (found.st_dev, found.st_ino) in access.files:
                raise LogInUse(
                    f"this process has a file of {access.path} open already (descriptor {number}), not as a log: "
                    "closing it would drop SQLite's locks",
                    remedy="close it first.",
                )


@cache
def _install() -> None:
    sys.addaudithook(_on_event)  # for good: a hook cannot be taken away, and costs nothing while no log is open


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what is about to open a file of an open log.

    Raises:
        LogInUse: it is one. Whoever wanted to open it gets this error.
    """
    if not _held or (event != "open" and event != "sqlite3.connect"):  # noqa: PLR1714 - called at each event
        return
    place = arguments[0]
    if isinstance(place, int):  # a descriptor: whoever opened it has asked
        return
    if event == "sqlite3.connect" and isinstance(place, str) and place.startswith("file:"):
        from urllib.parse import unquote  # only here: it takes as long to import as all of this

        place = unquote(place.removeprefix("file:").partition("?")[0].partition("#")[0])
        place = "/" + place.lstrip("/") if place.startswith("//") else place
    found = _identity(place)
    for access in _holders() if found else ():
        if found in access.files:
            what = "the standard library's sqlite3" if event == "sqlite3.connect" else "an open of its file"
            raise LogInUse(
                f"{access.path} is open as a log in this process, and {what} would drop its locks: refused",
                remedy=_REMEDY,
            )
