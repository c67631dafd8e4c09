"""Whole lines of a pipe, in and out, whatever their length."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock

from intentlog.errors import one_line

_CHUNK_BYTES = 1 << 16


def lines_of(descriptor: int, stopped: int | None = None) -> Iterator[bytes]:
    """The lines of a descriptor with their ends, as they come; what is left at its end too.

    Args:
        descriptor: read from.
        stopped: another one; once it can be read, no more lines are waited for.
    """
    begun: list[bytes] = []
    while True:
        if stopped is not None and stopped in select.select([descriptor, stopped], [], [])[0]:
            return
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            select.select([descriptor], [], [])
            continue
        except OSError:  # a socket whose other end died says so in this way: it is the end
            chunk = b""
        if not chunk:
            break
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            yield b"".join([*begun, part, b"\n"])
            begun.clear()
        if rest:
            begun.append(rest)
    if begun:
        yield b"".join(begun)


def await_hang_up(descriptor: int) -> None:
    """Wait until nobody holds the other end of a pipe or a socket, whatever of it is still to be read."""
    watched = select.poll()
    watched.register(descriptor, 0)
    watched.poll()


class Output:
    """Where lines are written, whole, by any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._is_within = False  # a line, which whoever wrote it never ended
        self._lock = Lock()

    def write(self, line: bytes) -> None:
        """Write a line. One that has no end is ended by the next one.

        Raises:
            Unwritten: not one byte of it went out.
            OSError: part of it may have gone out.
        """
        with self._lock:
            if self._descriptor is None:
                raise Unwritten("it is closed")
            view = memoryview(b"\n" + line if self._is_within else line)
            length = len(view)
            while view:
                try:
                    written = os.write(self._descriptor, view)
                except BlockingIOError:  # whoever gave it keeps it so: it is full, and not gone
                    select.select([], [self._descriptor], [])
                    continue
                except OSError as error:
                    if len(view) == length:
                        raise Unwritten(str(error)) from error
                    raise
                view = view[written:]
            self._is_within = not line.endswith(b"\n")

    def close(self) -> None:
        """Close it. Idempotent."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


class Unwritten(Exception):
    """Not one byte of a line went out."""


def complain(text: str) -> None:
    """Say something to the operator, where the server's own words go too."""
    with suppress(OSError):  # nobody reads it; what a buffer kept of it would be an error at the end
        os.write(2, f"intentlog mcp: {one_line(text)}\n".encode("utf-8", "backslashreplace"))
