"""Ends what a test run leaves behind, however the run ended: `python postgres_watch.py FOLDER`, a pipe as its input.

The test process holds the other end of the pipe. When it ends, by SIGKILL too, the kernel closes the pipe; then every
server below the folder is killed, and the folder is removed, with others whose names were written to the pipe.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAMS = {"initdb", "pg_basebackup", "pgbouncer", "postgres"}
IPC_RMID = 0
ENDED_WITHIN_S = 30.0


def servers_below(folder: Path) -> list[psutil.Process]:
    """The PostgreSQL and PgBouncer processes that were started with a path below the folder.

    A server's own children carry other titles: they end with their postmaster, or are found as its children.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words and Path(words[0]).name in PROGRAMS and any(str(folder) in word for word in words[1:]):
                found.append(process)
    return found


def children_of(pid: int) -> list[psutil.Process]:
    """The processes of a server beside its postmaster, whose children all of them are.

    (psutil's own `children` leaves out a child that seems older than its parent, which it may for a moment while the
    system's clock is being corrected.)
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.ppid() == pid:
                found.append(process)
    return found


def end_below(folder: Path) -> None:
    """Kill every server below the folder, give its shared memory back, remove the folder."""
    doomed = servers_below(folder)
    for process in list(doomed):
        with suppress(psutil.Error):
            process.suspend()  # a postmaster that is stopped starts no more children
            doomed += children_of(process.pid)
    for process in doomed:
        with suppress(psutil.Error):
            process.kill()
    wait_until_ended(doomed)
    for lock_file in folder.glob("*/data/postmaster.pid"):
        release_shared_memory(lock_file)
    shutil.rmtree(folder, ignore_errors=True)


def ended(process: psutil.Process) -> bool:
    """It runs no more. Its parent may not have asked for its exit status yet, and may never do so."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes that are not ours, at most `ENDED_WITHIN_S`; those that still run."""
    until = time.monotonic() + ENDED_WITHIN_S
    while (alive := [process for process in processes if not ended(process)]) and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def release_shared_memory(lock_file: Path) -> None:
    """Remove the System V segment of a killed server: nobody else would, once its data folder is gone.

    Args:
        lock_file: its postmaster.pid; the seventh line names the segment.
    """
    with suppress(OSError, IndexError, ValueError):
        segment = int(lock_file.read_text().splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


if __name__ == "__main__":
    others = sys.stdin.read().splitlines()
    end_below(Path(sys.argv[1]))
    for other in others:
        shutil.rmtree(other, ignore_errors=True)
