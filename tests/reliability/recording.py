"""From paths to the operations of `disk`: what both recorders write into.

The folder whose disk loses its power is recorded, and the file of marks beside it, which does not.
"""

from __future__ import annotations

from pathlib import Path

from reliability.disk import (
    ROOT,
    Disk,
    FailedSync,
    Make,
    Note,
    Operation,
    Rename,
    Sync,
    Truncate,
    Unlink,
    Write,
)


class Recording:
    """The operations on a folder, in their order.

    Args:
        folder: an empty folder.
        marks: the witness's file, outside it.
    """

    def __init__(self, folder: Path, marks: Path) -> None:
        self.folder = folder
        self.operations: list[Operation] = []
        self.data_synced: list[Path] = []  # what each fdatasync was of
        self._marks = marks
        self._nodes: dict[Path, int] = {folder: ROOT}
        self._last = ROOT

    def is_marks(self, path: Path) -> bool:
        """Whether it is the file of marks."""
        return path == self._marks

    def concerns(self, path: Path) -> bool:
        """Whether what happens to a file is recorded. The shared memory of a WAL is not: it is made anew."""
        return self.is_marks(path) or (path.is_relative_to(self.folder) and not path.name.endswith("-shm"))

    def node(self, path: Path) -> int | None:
        """The file or folder that a path names now; the marks have none."""
        return self._nodes.get(path)

    def made(self, path: Path, *, is_folder: bool = False) -> None:
        """A name that was not there is there."""
        if self.is_marks(path):
            return
        self._last += 1
        self._nodes[path] = self._last
        self.operations.append(Make(self._nodes[path.parent], path.name, self._last, is_folder))

    def renamed(self, path: Path, target: Path) -> None:
        """A file got another name."""
        folder, to_folder = self._nodes[path.parent], self._nodes[target.parent]
        self.operations.append(Rename(folder, path.name, to_folder, target.name))
        self._nodes[target] = self._nodes.pop(path)

    def unlinked(self, path: Path) -> None:
        """A name is gone."""
        self.operations.append(Unlink(self._nodes[path.parent], path.name))
        del self._nodes[path]

    def written(self, node: int | None, offset: int, data: bytes) -> None:
        """Bytes were written; without a node, to the marks."""
        if node is None:
            self.operations += [Note(line) for line in data.decode().splitlines()]
        else:
            self.operations.append(Write(node, offset, data))

    def truncated(self, node: int, size: int) -> None:
        """A file has another length."""
        self.operations.append(Truncate(node, size))

    def synced(self, node: int, *, failed: bool = False) -> None:
        """A file or folder was synced, or should have been."""
        self.operations.append(FailedSync(node) if failed else Sync(node))

    def check(self) -> None:
        """Compare what the operations make of an empty folder with the folder.

        Raises:
            AssertionError: the recorder missed something.
        """
        disk = Disk()
        for operation in self.operations:
            disk.apply(operation)
        paths = disk.everything()
        model = {path: None if node is None else disk.files[node].cached for path, node in paths.items()}
        found = {
            str(path.relative_to(self.folder)): None if path.is_dir() else path.read_bytes()
            for path in self.folder.rglob("*")
            if self.concerns(path)
        }
        differing = sorted(path for path in {*model, *found} if model.get(path, b"-") != found.get(path, b"-"))
        assert not differing, f"the recorder missed what was done to {differing}"
