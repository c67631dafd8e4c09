"""A child process that runs a program over the library and is watched from outside: real, and really killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

from reliability.attached import Ended, run_and_tell

LIMIT_S = 120.0
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["reliability.life", "reliability.full_disks", "reliability.wal_actors"])


class Child:
    """A program that runs in a process of its own, with the library imported and no log open.

    Args:
        program: a function of a module that children can import.
        arguments: pickled for it.
    """

    def __init__(self, program: Callable[..., Any], *arguments: Any) -> None:
        self._what = f"{program.__name__}{arguments}"
        self._ours, its = context.Pipe()
        self._process = context.Process(target=run_and_tell, args=(its, program, arguments))
        self._process.start()
        its.close()

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def end(self) -> Ended:
        """Wait for its end."""
        raised = ""
        with contextlib.suppress(EOFError, ConnectionResetError):  # it was killed
            assert self._ours.poll(LIMIT_S), self._kill_hung()
            raised = self._ours.recv()
        self._process.join(LIMIT_S)
        code = self._process.exitcode
        assert code is not None, self._kill_hung()
        self._ours.close()
        return Ended(code, raised)

    def kill(self) -> Ended:
        """SIGKILL, and its end."""
        self._process.kill()
        return self.end()

    def _kill_hung(self) -> str:
        self._process.kill()
        self._process.join()
        return f"{self._what} hung"


def ended(program: Callable[..., Any], *arguments: Any) -> Ended:
    """Run a program in a child, to its end."""
    return Child(program, *arguments).end()


def told(one: Ended) -> str:
    """How a child ended, in words; "" if it came to its end."""
    if one.code < 0:
        return f"it was ended by {signal.Signals(-one.code).name}"
    return one.raised
