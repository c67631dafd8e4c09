"""A SQLite VFS that counts, and can fail, the calls that reach the disk: a witness of what the log says of itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import apsw


class CountingVFS(apsw.VFS):
    """Passes everything on to the system's VFS, and counts xSync and xWrite by kind of file (`log`, `-wal`).

    `fail_at` maps ("xSync", "-wal") and the like to (the number of the call, the SQLite error code that it answers).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fail_at: dict[tuple[str, str], tuple[int, int]] = {}
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> CountingFile:  # noqa: N802 - SQLite's name
        return CountingFile(self, name, flags)

    def reached(self, what: str, suffix: str) -> None:
        """Count a call, and fail it if it is the one."""
        self.calls[what, suffix] += 1
        number, code = self.fail_at.get((what, suffix), (0, 0))
        if number and self.calls[what, suffix] >= number:
            raise apsw.exception_for(code)

    def syncs(self) -> int:
        """How often anything was synced."""
        return sum(count for (what, _), count in self.calls.items() if what == "xSync")


class CountingFile(apsw.VFSFile):
    """One open file of a `CountingVFS`."""

    def __init__(self, vfs: CountingVFS, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        filename = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._suffix = "-wal" if filename.endswith("-wal") else "log"
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._vfs.reached("xSync", self._suffix)
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._vfs.reached("xWrite", self._suffix)
        super().xWrite(data, offset)
