"""What a real process did to a folder, read from strace's account of its system calls."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliability.attached import traced
from reliability.recording import Recording

_CHANGING = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,read,readv,lseek,write,writev,pwrite64,pwritev,pwritev2,truncate,"
    "ftruncate,fallocate,sync,syncfs,sync_file_range,msync,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,copy_file_range,sendfile,splice"
)
# Every string in full, in hexadecimal.
OPTIONS = ("-xx", "-s", "2000000", "-e", f"trace={_CHANGING}", "-e", "signal=none")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)\s+= (?P<result>-?\d+|\?)(?P<rest>.*)$")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class _Open:
    """An open file: which, and where the next write without an offset goes."""

    def __init__(self, path: Path, node: int | None) -> None:
        self.path = path
        self.node = node
        self.position = 0


def record(
    recording: Recording, program: Callable[..., Any], *arguments: Any, fail_at: int = 0
) -> tuple[Recording, str]:
    """Run a program in a child under strace, and add what it did to a recording.

    Args:
        recording: what earlier programs did to the folder.
        program: a function of a module that children can import.
        arguments: pickled for it.
        fail_at: which fdatasync fails, from 1; 0 for none.

    Returns:
        The recording, and the text of the exception that left the program; "" if none did.

    Raises:
        AssertionError: what the recording says is not what is in the folder.
    """
    output = recording.folder.parent / "strace"
    fault = ("-e", f"inject=fdatasync:error=EIO:when={fail_at}") if fail_at else ()
    ended = traced(program, *arguments, options=["-o", str(output), *OPTIONS, *fault])
    assert not ended.was_killed
    _Reader(recording).read(output)
    output.unlink()
    recording.check()
    return recording, ended.raised


class _Reader:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._open: dict[int, _Open] = {}

    def read(self, output: Path) -> None:
        unfinished: dict[str, str] = {}
        with output.open(encoding="ascii") as lines:
            for line in lines:
                pid, _, text = line.rstrip("\n").partition(" ")
                text = text.lstrip()
                if text.endswith(_UNFINISHED):
                    unfinished[pid] = text.removesuffix(_UNFINISHED)
                    continue
                if resumed := _RESUMED.match(text):
                    text = unfinished.pop(pid) + resumed[1]
                if call := _CALL.match(text):
                    self._take(call["name"], call["arguments"], call["result"], call["rest"])

    def _take(self, name: str, arguments: str, result: str, rest: str) -> None:
        strings = [bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(arguments)]
        if name in ("open", "openat", "mkdir", "unlink", "rename"):
            paths = [Path(os.fsdecode(text)) for text in strings]
            if result != "-1" and any(map(self._recording.concerns, paths)):
                self._named(name, paths, arguments, int(result))
            return
        first, _, others = arguments.partition(",")
        file = self._open.get(int(first)) if first.isdigit() else None
        if name == "close":
            self._open.pop(int(first), None)
        elif file is not None:
            self._on(file, name, (strings or [b""])[0], others, result, rest)
        elif not first.isdigit() and any(map(self._recording.concerns, (Path(os.fsdecode(t)) for t in strings))):
            msg = f"a call that this recorder does not know: {name}({arguments[:300]})"
            raise AssertionError(msg)

    def _named(self, name: str, paths: list[Path], arguments: str, result: int) -> None:
        recording = self._recording
        path = paths[0]
        if name == "mkdir":
            recording.made(path, is_folder=True)
        elif name == "unlink":
            recording.unlinked(path)
        elif name == "rename":
            recording.renamed(*paths)
        else:
            flags = arguments.rpartition('"')[2]
            if "O_CREAT" in flags and recording.node(path) is None:
                recording.made(path)
            node = recording.node(path)
            if "O_TRUNC" in flags and node is not None:
                recording.truncated(node, 0)
            assert node is not None or recording.is_marks(path), f"{path} was there before"
            self._open[result] = _Open(path, node)

    def _on(self, file: _Open, name: str, data: bytes, others: str, result: str, rest: str) -> None:
        if name in ("fsync", "fdatasync"):
            assert file.node is not None
            if name == "fdatasync":
                self._recording.data_synced.append(file.path)
            self._recording.synced(file.node, failed=result != "0")
        elif result == "-1" or name == "read":
            file.position += max(0, int(result))
        elif name == "lseek":
            file.position = int(result)
        elif name == "write":
            self._recording.written(file.node, file.position, data[: int(result)])
            file.position += int(result)
        elif name == "pwrite64":
            assert file.node is not None
            self._recording.written(file.node, int(others.rpartition(",")[2]), data[: int(result)])
        elif name == "ftruncate":
            assert file.node is not None
            self._recording.truncated(file.node, int(others))
        else:
            msg = f"a call that this recorder does not know: {name} of {file.path} ({rest})"
            raise AssertionError(msg)
