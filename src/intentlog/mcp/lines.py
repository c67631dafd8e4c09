"""Whole lines of a pipe, in and out, whatever their length."""

from __future__ import annotations

import os
import select
import time
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
            select.select([descriptor] if stopped is None else [descriptor, stopped], [], [])
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
    """Where lines are written, whole, by any thread.

    Args:
        descriptor: written to.
        is_own: nobody else has it open: it may be made one that does not block, and only such a one keeps a limit.
    """

    def __init__(self, descriptor: int, *, is_own: bool = False) -> None:
        self._descriptor: int | None = descriptor
        self._is_within = False  # a line, which whoever wrote it never ended
        self._lock = Lock()
        if is_own:
            os.set_blocking(descriptor, False)

    def write(self, line: bytes, until_s: float | None = None) -> None:
        """Write a line. One that has no end is ended by the next one.

        Args:
            line: the line.
            until_s: when to give up, as `time.monotonic` has it; None to wait for as long as it takes. Once a byte of
                it is out the rest follows, however long that takes: what is not out could land at any later time.

        Raises:
            Unwritten: not one byte of it went out, or will.
            OSError: part of it may have gone out.
        """
        if not self._lock.acquire(timeout=-1 if until_s is None else max(0.0, until_s - time.monotonic())):
            raise Unwritten("it is taking another line")
        try:
            if self._descriptor is None:
                raise Unwritten("it is closed")
            self._put(self._descriptor, b"\n" + line if self._is_within else line, until_s)
            self._is_within = not line.endswith(b"\n")
        finally:
            self._lock.release()

    def _put(self, descriptor: int, text: bytes, until_s: float | None) -> None:
        view = memoryview(text)
        while view:
            is_begun = len(view) < len(text)
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:  # it is full, and not gone
                left_s = None if until_s is None or is_begun else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise Unwritten("it takes nothing") from None
                select.select([], [descriptor], [], left_s)
            except OSError as error:
                if not is_begun:
                    raise Unwritten(str(error)) from error
                raise

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
