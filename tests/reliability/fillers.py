"""Taking the room of a disk, and giving it back."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


class Filler:
    """A file that takes the room of a file system.

    Args:
        folder: somewhere on it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but so much; written, not only reserved."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = os.fstat(descriptor).st_size
            for chunk in (1 << 18, 1 << 12):
                with suppress(_Full):
                    while True:
                        end += _written(descriptor, bytes(chunk), end)
            if leave_bytes:
                os.ftruncate(descriptor, max(0, end - leave_bytes))
            os.fsync(descriptor)  # ext4 gives freed blocks out again only after its journal's commit
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)


class _Full(Exception):
    pass


def _written(descriptor: int, content: bytes, at: int) -> int:
    try:
        return os.pwrite(descriptor, content, at)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _Full from error
        raise
