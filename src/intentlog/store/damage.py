"""What a damaged file makes SQLite or a decoder raise, in the library's words."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from intentlog.errors import LogDamaged, LogUnavailable

_DAMAGE = (
    apsw.ConstraintError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.SQLError,
    apsw.MismatchError,
    msgspec.MsgspecError,
    OverflowError,
    TypeError,
    UnicodeDecodeError,
)


def damage_of(path: Path, error: Exception) -> Exception:
    """The error that a damaged file deserves; any other as it is."""
    if isinstance(error, _DAMAGE):
        return LogDamaged(f"{path} is damaged: {type(error).__name__}: {error}")
    if isinstance(error, apsw.Error):
        return LogUnavailable(f"{path} cannot be used now; nothing was written: {error}", remedy="try again.")
    return error


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Raise `LogDamaged` for what a sound file cannot cause."""
    try:
        yield
    except _DAMAGE as error:
        raise damage_of(path, error) from error
    except (apsw.BusyError, apsw.IOError, apsw.CantOpenError) as error:
        raise LogUnavailable(f"{path} cannot be read: {error}", remedy="check the disk.") from error
