"""The main thread, which hears signals while others work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def hearing_signals(work: Callable[[], T]) -> T:
    """Do it on a thread of its own, and run handlers of signals meanwhile. To be called by the main thread.

    Handlers run on the main thread alone, but the kernel may give a signal to any: a main thread that waits for a lock
    then sleeps on, and the handler is not run.

    Returns:
        What it returns. Raises what it, or a handler, raises.
    """
    done = Future[T]()
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            done.set_exception(error)
        with suppress(BlockingIOError):  # so full that there is enough to wake it
            os.write(writes, b".")

    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    thread = Thread(target=run, name="intentlog-mcp-work", daemon=True)
    thread.start()
    try:
        while not done.done():
            os.read(reads, 1 << 12)
    finally:
        signal.set_wakeup_fd(before)
    thread.join()
    os.close(reads)
    os.close(writes)
    return done.result()
