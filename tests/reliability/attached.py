"""A child process that strace takes hold of before it does anything: real system calls, recorded, failed or killed at.

The child is forked from a server that has the library imported and no log open, waits until strace is there, and only
then begins: so the nth system call is counted from the program's own first one.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PTRACER = 0x59616D61
_ANYBODY = ctypes.c_ulong(-1)
_LIMIT_S = 60.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["reliability.life", "reliability.kill_programs", "reliability.error_programs"])
# The server of Python 3.11 ignores the search path that it is given, and would import everything in every child.
_TESTS = str(Path(__file__).parent.parent)
if _TESTS not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])


class Ended(NamedTuple):
    """How a traced child ended.

    Attributes:
        code: its exit code, or minus the signal that ended it.
        raised: the text of the exception that left its program; "" if none did, or it was killed.
    """

    code: int
    raised: str

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


def why_not() -> str:
    """Why strace cannot take hold of a process here; "" if it can."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else f"strace may not trace here: {probe.stderr.strip()[:200]}"


def forked(program: Callable[..., Any], *arguments: Any) -> int:
    """Run a program in a child of its own, to its end; answers its exit code, or minus the signal that ended it."""
    child = _context.Process(target=program, args=arguments)
    child.start()
    child.join(_LIMIT_S)
    code = child.exitcode
    child.kill()
    child.join()
    assert code is not None, f"{program}{arguments} hung"
    return code


@contextlib.contextmanager
def beside(program: Callable[..., Any], *arguments: Any) -> Iterator[tuple[Connection, BaseProcess]]:
    """Run a program in a child beside what is in the block; it is given a pipe as its last argument."""
    ours, its = _context.Pipe()
    child = _context.Process(target=program, args=(*arguments, its))
    child.start()
    its.close()
    try:
        yield ours, child
    finally:
        ours.close()
        child.kill()
        child.join()


def traced(
    program: Callable[..., Any],
    *arguments: Any,
    options: Sequence[str],
    before: Callable[..., Any] | None = None,
    thread: Callable[[Any], int] | None = None,
) -> Ended:
    """Run a program in a child under strace, to its end.

    Args:
        program: a function of a module that children can import.
        arguments: pickled for it.
        options: strace's, such as `-e inject=fdatasync:error=EIO:when=2`; `-qq` stands before them.
        before: is given the arguments, untraced; the program is then given what it returns.
        thread: given that, answers which thread is traced, alone; else the child is, with all that it starts.

    Raises:
        AssertionError: strace did not take hold, or the child did not end.
    """
    ours, its = _context.Pipe()
    child = _context.Process(target=_held, args=(its, program, arguments, before, thread))
    child.start()
    its.close()
    tracer = None
    try:
        held = int(ours.recv())
        _wait_until(held, lambda status: "State:\tS" in status)  # so what it does until "go" is never counted
        follow = [] if thread else ["-f"]
        tracer = subprocess.Popen(
            ["strace", *follow, "-qq", *options, "-p", str(held)], stderr=subprocess.PIPE, text=True
        )
        raised = ""
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError, FileNotFoundError):  # killed
            _wait_until(held, lambda status: "TracerPid:\t0\n" not in status, tracer)
            ours.send("go")
            if ours.poll(_LIMIT_S):
                raised = ours.recv()
        child.join(_LIMIT_S)
        assert child.exitcode is not None, f"{program}{arguments} hung under {options}"
        return Ended(child.exitcode, raised)
    finally:
        ours.close()
        child.kill()
        child.join()
        if tracer is not None:
            tracer.terminate()
            tracer.communicate()


def _wait_until(thread: int, condition: Callable[[str], bool], tracer: subprocess.Popen[str] | None = None) -> None:
    """Wait until the kernel says so of a thread; it cannot be asked to tell."""
    status = Path(f"/proc/{thread}/status")
    deadline_s = time.monotonic() + _LIMIT_S
    while not condition(status.read_text(encoding="utf-8")):
        assert tracer is None or tracer.poll() is None, f"strace ended: {tracer.communicate()[1]}"
        assert time.monotonic() < deadline_s, "strace did not take hold"
        time.sleep(0.0005)


def _held(
    pipe: Connection,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
    before: Callable[..., Any] | None,
    thread: Callable[[Any], int] | None,
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY)  # where only a parent may trace
    held = threading.get_native_id()
    if before is not None:
        arguments = (before(*arguments),)
    pipe.send(held if thread is None else thread(*arguments))
    pipe.recv()
    run_and_tell(pipe, program, arguments)


def run_and_tell(pipe: Connection, program: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run a program to its end, say through the pipe what left it, and end the process."""
    raised = ""
    try:
        program(*arguments)
    except BaseException as error:
        raised = f"{type(error).__name__}: {error}"
    # The program is over: what follows (the interpreter's end) is not counted on, and may be failed too.
    with contextlib.suppress(OSError):
        pipe.send(raised)
    os._exit(1 if raised else 0)
