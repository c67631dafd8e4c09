"""Tasks that may crash, hang or exhaust their process: each in a fork of its own, under a process that watches it.

The watching process is forked from a server that has the library imported and no log open, so a task begins with
nothing of another one's, and what kills it kills nothing else.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Self

from reliability.attached import _context

HANG_S = 90.0  # far above what any task needs, on a machine that is busy with others


class Came(NamedTuple):
    """What a task came to.

    Attributes:
        value: what it returned; None if it did not.
        wrong: "" if it returned; else how it ended: what it raised, the signal that killed it, or that it hung.
    """

    value: Any
    wrong: str


class Watched:
    """Runs tasks one after the other. A context manager.

    Args:
        prepare: run by the watching process before the first task: what it changes there, every task finds changed.
        hang_s: after how long a task is taken for hung.
    """

    def __init__(self, prepare: Callable[[], None] | None = None, *, hang_s: float = HANG_S) -> None:
        self._pipe, its = _context.Pipe()
        self._hang_s = hang_s
        self._process = _context.Process(target=_watching, args=(its, prepare, hang_s))
        self._process.start()
        its.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()

    def run(self, task: Callable[..., Any], *arguments: Any) -> Came:
        """Run a function of a module that children can import; its arguments and its value are pickled."""
        self._pipe.send((task, arguments))
        assert self._pipe.poll(self._hang_s + HANG_S), "the watching process does not answer"
        return Came(*self._pipe.recv())


def _watching(pipe: Connection, prepare: Callable[[], None] | None, hang_s: float) -> None:
    if prepare is not None:
        prepare()
    while True:
        try:
            task, arguments = pipe.recv()
        except EOFError:
            return
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reads)
            pipe.close()
            _in_child(writes, task, arguments)
        os.close(writes)
        pipe.send(_outcome(child, reads, hang_s))


def _in_child(writes: int, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        came = Came(task(*arguments), "")
    except BaseException as error:
        came = Came(None, f"raised {type(error).__name__}: {error}")
    with os.fdopen(writes, "wb") as out:
        pickle.dump(tuple(came), out)
    sys.stdout.flush()
    os._exit(0)


def _outcome(child: int, reads: int, hang_s: float) -> tuple[Any, str]:
    """What the child sent before it ended, or how it ended."""
    parts = []
    with os.fdopen(reads, "rb", buffering=0) as coming:
        while True:
            ready, _, _ = select.select([coming], [], [], hang_s)
            part = coming.read(1 << 20) if ready else None
            if not part:
                break
            parts.append(part)
    if part is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None, f"hung for {hang_s:.0f} s"
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        return None, f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    value, wrong = pickle.loads(b"".join(parts))
    return value, wrong
