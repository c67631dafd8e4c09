"""What a damaged file makes SQLite or a decoder raise, in the library's words."""

from __future__ import annotations

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


class Reading:
    """Raises `LogDamaged` for what a sound file cannot cause, in the block that it is entered for."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, _DAMAGE):
            raise damage_of(self._path, error) from error
        if isinstance(error, apsw.Error | OSError):
            raise LogUnavailable(f"{self._path} cannot be read: {error}", remedy="check the disk.") from error


def reading(path: Path) -> Reading:
    """A block of reads of the log at this path."""
    return Reading(path)
