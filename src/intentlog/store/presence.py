"""Whether a file that is open is still the one that its name leads to: what is written into another's is lost."""

from __future__ import annotations

import os
from pathlib import Path


class Present:
    """A file that is open and only grows, under the name that it was opened by. Safe from any thread.

    Args:
        path: the file, which is there.
        what: how it is called when it is gone.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._name = str(path)
        self._what = what
        found = path.stat()
        self._identity = (found.st_dev, found.st_ino)
        self._size = found.st_size

    def gone(self) -> str:
        """What became of it; "" if it is there, or cannot be seen from here any more (dropped rights)."""
        size = self._size  # read before the file is: it may grow, and another thread see that, between the two
        try:
            found = os.stat(self._name)  # noqa: PTH116 - asked twice for each effect: a Path takes as long again
        except (FileNotFoundError, NotADirectoryError):
            return f"{self._what} was deleted while it was open"
        except OSError:
            return ""
        if (found.st_dev, found.st_ino) != self._identity:
            return f"{self._what} was replaced while it was open"
        if found.st_size < size:
            return f"{self._what} was cut short while it was open"
        self._size = found.st_size
        return ""
