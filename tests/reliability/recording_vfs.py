"""What a real process did to a folder, recorded inside it: no strace, no root, any system.

SQLite's calls are seen by a VFS, the library's own by putting functions of `os` in front of those that it calls. What
neither sees is SQLite's own sync of the folder of a new WAL: the states are those of a disk that never had it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw
from reliability.attached import _LIMIT_S, _context
from reliability.recording import Recording

_NAME = "recording"


def record(
    recording: Recording, program: Callable[..., Any], *arguments: Any, fail_at: int = 0
) -> tuple[Recording, str]:
    """Run a program in a child, and add what it did to a recording.

    Args:
        recording: what earlier programs did to the folder.
        program: a function of a module that children can import.
        arguments: pickled for it.
        fail_at: which sync of the log or its WAL by SQLite fails, from 1; 0 for none.

    Returns:
        The recording, and the text of the exception that left the program; "" if none did.

    Raises:
        AssertionError: what the recording says is not what is in the folder.
    """
    ours, its = _context.Pipe()
    child = _context.Process(target=_recorded, args=(its, recording, program, arguments, fail_at))
    child.start()
    its.close()
    try:
        assert ours.poll(_LIMIT_S), f"{program.__name__}{arguments} hung"
        grown, raised = ours.recv()
    finally:
        ours.close()
        child.kill()
        child.join()
    grown.check()
    return grown, raised


def _recorded(
    pipe: Connection, recording: Recording, program: Callable[..., Any], arguments: tuple[Any, ...], fail_at: int
) -> None:
    vfs = _RecordingVFS(recording, fail_at)
    _record_os(recording)
    raised = ""
    try:
        program(*arguments)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    pipe.send((recording, raised))
    del vfs  # held until here: without it its name would be gone


class _RecordingVFS(apsw.VFS):
    """The default VFS of the process, in front of the system's."""

    def __init__(self, recording: Recording, fail_at: int) -> None:
        self.recording = recording
        self.fail_at = fail_at
        super().__init__(_NAME, "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _RecordingFile:  # noqa: N802 - SQLite's name
        return _RecordingFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name
        super().xDelete(filename, syncdir)
        path = Path(filename)
        if self.recording.concerns(path):
            self.recording.unlinked(path)
            folder = self.recording.node(path.parent)
            if syncdir and folder is not None:
                self.recording.synced(folder)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, vfs: _RecordingVFS, name: Any, flags: list[int]) -> None:
        filename = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)
        self._path = Path(filename)
        self._vfs = vfs
        self._recording = vfs.recording
        if self._recording.concerns(self._path) and self._recording.node(self._path) is None:
            self._recording.made(self._path)
        self._node = self._recording.node(self._path)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        super().xWrite(data, offset)
        if self._node is not None:
            self._recording.written(self._node, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(newsize)
        if self._node is not None:
            self._recording.truncated(self._node, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if self._node is None:
            super().xSync(flags)
            return
        self._recording.data_synced.append(self._path)
        failed = len(self._recording.data_synced) == self._vfs.fail_at
        self._recording.synced(self._node, failed=failed)
        if failed:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)


def _record_os(recording: Recording) -> None:
    """Put a function in front of each one of `os` that the library changes files by; `pathlib` calls them too."""
    files: dict[int, int | None] = {}  # by descriptor; None for the marks
    ends: dict[int, int] = {}  # where the next write without an offset goes
    original = {name: getattr(os, name) for name in ("open", "close", "write", "pwrite", "fsync")}

    def opened(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        descriptor: int = original["open"](path, flags, *arguments, **named)
        file = Path(os.fspath(path))
        if recording.concerns(file):
            if recording.node(file) is None:
                recording.made(file)
            node = recording.node(file)
            if flags & os.O_TRUNC and node is not None:
                recording.truncated(node, 0)
            files[descriptor], ends[descriptor] = node, 0
        return descriptor

    def closed(descriptor: int) -> None:
        files.pop(descriptor, None)
        original["close"](descriptor)

    def written(descriptor: int, data: bytes) -> int:
        number: int = original["write"](descriptor, data)
        if descriptor in files:
            recording.written(files[descriptor], ends[descriptor], bytes(data)[:number])
            ends[descriptor] += number
        return number

    def written_at(descriptor: int, data: bytes, offset: int) -> int:
        number: int = original["pwrite"](descriptor, data, offset)
        if descriptor in files:
            recording.written(files[descriptor], offset, bytes(data)[:number])
        return number

    def synced(descriptor: int) -> None:
        original["fsync"](descriptor)
        node = files.get(descriptor)
        if node is not None:
            recording.synced(node)

    for name, function in zip(original, (opened, closed, written, written_at, synced), strict=True):
        setattr(os, name, function)
    _record_names(recording)


def _record_names(recording: Recording) -> None:
    rename, unlink, mkdir = os.rename, os.unlink, os.mkdir

    def renamed(source: Any, target: Any, **named: Any) -> None:
        rename(source, target, **named)
        if recording.concerns(Path(source)):
            recording.renamed(Path(source), Path(target))

    def unlinked(path: Any, **named: Any) -> None:
        unlink(path, **named)
        if recording.concerns(Path(path)):
            recording.unlinked(Path(path))

    def made(path: Any, *arguments: Any, **named: Any) -> None:
        mkdir(path, *arguments, **named)
        if recording.concerns(Path(path)):
            recording.made(Path(path), is_folder=True)

    os.rename, os.unlink, os.mkdir = renamed, unlinked, made
