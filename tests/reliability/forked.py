"""Children that are forked from this very process, in two milliseconds: it has the library imported and no log open.

A child runs one function and ends without the interpreter's own end. What it raised is told to the parent.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

_LIMIT_S = 60.0
_POLL_S = 0.0005
_PIPE_BYTES = 60_000  # so much a pipe takes without a reader


class Ended(NamedTuple):
    """How a child ended.

    Attributes:
        code: its exit code, or minus the signal that ended it.
        raised: the traceback of the exception that left its function; "" if none did.
    """

    code: int
    raised: str


class Child:
    """A child process that runs a function.

    Args:
        program: what it runs; it may be a closure.
        arguments: given to it.
    """

    def __init__(self, program: Callable[..., Any], *arguments: Any) -> None:
        self._told, telling = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _be(program, arguments, telling)
        os.close(telling)
        self.ended: Ended | None = None

    def is_running(self) -> bool:
        """Whether it has not ended; a stopped one has not."""
        self._look(os.WNOHANG)
        return self.ended is None

    def stops(self) -> bool:
        """Wait until it is stopped, or has ended: then False."""
        until_s = time.monotonic() + _LIMIT_S
        while self.ended is None:
            if self._look(os.WNOHANG | os.WUNTRACED):
                return True
            assert time.monotonic() < until_s, "it neither stopped nor ended"
            time.sleep(_POLL_S)
        return False

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.ended is None:
            os.kill(self.pid, number)

    def go_on(self) -> None:
        """Let it go on after a stop."""
        self.signal(signal.SIGCONT)

    def ends(self, limit_s: float = _LIMIT_S) -> Ended:
        """Wait for its end.

        Raises:
            AssertionError: it hangs.
        """
        until_s = time.monotonic() + limit_s
        while self.is_running():
            assert time.monotonic() < until_s, "it does not end"
            time.sleep(_POLL_S)
        assert self.ended is not None
        return self.ended

    def ends_well(self) -> None:
        """Wait for its end, which is none by a signal or an exception."""
        ended = self.ends()
        assert ended == (0, ""), ended

    def kill(self) -> None:
        """End it, whatever it does."""
        self.signal(signal.SIGKILL)
        while self.ended is None:
            self._look(0)

    def _look(self, options: int) -> bool:
        """Whether it was seen to be stopped; notes its end."""
        if self.ended is not None:
            return False
        pid, status = os.waitpid(self.pid, options)
        if pid == 0:
            return False
        if os.WIFSTOPPED(status):
            return True
        with os.fdopen(self._told, encoding="utf-8") as told:
            os.set_blocking(self._told, False)  # a grandchild may hold the other end
            self.ended = Ended(os.waitstatus_to_exitcode(status), told.read() or "")
        return False


@contextmanager
def running(program: Callable[..., Any], *arguments: Any) -> Iterator[Child]:
    """A child that is killed at the end of the block, if it still runs."""
    child = Child(program, *arguments)
    try:
        yield child
    finally:
        child.kill()


def run(program: Callable[..., Any], *arguments: Any) -> Ended:
    """Run a function in a child, to its end."""
    with running(program, *arguments) as child:
        return child.ends()


def _be(program: Callable[..., Any], arguments: tuple[Any, ...], telling: int) -> NoReturn:
    code = 0
    try:
        faulthandler.disable()  # of a child that dies as it should, its parent tells
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        program(*arguments)
    except BaseException:
        code = 1
        with suppress(OSError):
            os.set_blocking(telling, False)
            os.write(telling, traceback.format_exc().encode("utf-8", "replace")[-_PIPE_BYTES:])
    finally:
        os._exit(code)
