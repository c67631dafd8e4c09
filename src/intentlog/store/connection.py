"""What the store uses of an apsw connection, typed. Nothing else opens a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import apsw


class Cursor(Protocol):
    """The rows of one statement."""

    @property
    def get(self) -> Any:
        """The first row's column; None if there is no row."""
        ...

    def fetchall(self) -> list[Any]:
        """Every row, as tuples."""
        ...


class Connection(Protocol):
    """A SQLite connection."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, statements: str, bindings: Sequence[Any] | None = None) -> Cursor:
        """Run statements; prepared ones are kept."""
        ...

    def executemany(self, statements: str, sequence_of_bindings: Sequence[Sequence[Any]]) -> Cursor:
        """Run one statement with each of these bindings."""
        ...

    def pragma(self, name: str, value: Any = None) -> Any:
        """Set or read a pragma."""
        ...

    def data_version(self) -> int:
        """Differs after each commit, of this connection or, seen when a transaction begins, of another."""
        ...

    def config(self, op: int, *args: Any) -> int:
        """Set an option of the connection."""
        ...

    def set_busy_timeout(self, milliseconds: int) -> None:
        """How long to wait for a lock."""
        ...

    def set_wal_hook(self, callable: Callable[[Any, str, int], int] | None) -> None:  # noqa: A002 - apsw's name
        """Be told after each commit how many frames the WAL holds."""
        ...

    def wal_checkpoint(self, dbname: str | None = None, mode: int = 0) -> tuple[int, int]:
        """Checkpoint; raises BusyError where it cannot be completed."""
        ...

    def close(self, force: bool = False) -> None:  # noqa: FBT001, FBT002 - apsw's signature
        """Close."""
        ...


def connection(path: Path, flags: int, vfs: str | None) -> Connection:
    """A new connection. Raises apsw's errors."""
    return cast("Connection", apsw.Connection(str(path), flags=flags, vfs=vfs))


def memory_connection() -> Connection:
    """A connection to a new, empty database in memory."""
    return cast("Connection", apsw.Connection(":memory:"))
