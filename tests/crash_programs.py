"""What the crash tests run in child processes, and kill.

Children are forked from a server that has the library imported and no log open, so that a kill costs milliseconds and
is still the SIGKILL of a real process that opened the log itself.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    AsyncLog,
    Call,
    Durability,
    InDoubt,
    Log,
    NotApplied,
    NotSent,
    Rejected,
    Suspended,
    failpoints,
    tool,
)
from intentlog.core import machine
from intentlog.core.actions import Append, Appended, Load, View
from intentlog.core.records import Dispatched
from intentlog.crash import NotKilled, Witness
from intentlog.log.declare import AnyTool
from intentlog.run.aio import AioDriver
from intentlog.run.duty import Duty

CLASSES = {
    "READ": READ,
    "IDEMPOTENT": IDEMPOTENT,
    "KEYED": KEYED(window=timedelta(hours=24)),
    "QUERYABLE": QUERYABLE(settle=timedelta(0)),
    "UNSAFE": UNSAFE,
}
SOON = timedelta(microseconds=1)  # lets a probe's "not applied" count at once, on any machine
BRANCH = "order-1042"


def effect_tool(kind: str, witness: Witness, ending: str, *, is_async: bool) -> AnyTool:
    """A tool of a class that tells the witness `request_id dispatch_no` and then ends as it is told.

    A KEYED one stands for a receiver that honours the key: it tells the witness once for each key.
    """

    def happen(call: Call) -> str:
        if ending in ("not_sent", "rejected", "suspended"):
            raise {"not_sent": NotSent, "rejected": Rejected, "suspended": Suspended}[ending](f"was {ending}")
        known = any(line.startswith(call.request_id) for line in witness.lines())
        if not (kind == "KEYED" and known):
            witness.record(f"{call.request_id} {call.dispatch_no}")
        if ending == "ambiguous":
            msg = "the answer was lost"
            raise TimeoutError(msg)
        return "receipt"

    def plain(call: Call, amount: int) -> str:
        del amount
        return happen(call)

    async def waiting(call: Call, amount: int) -> str:
        del amount
        if kind != "QUERYABLE":  # which may not be suspended within so short a limit
            await asyncio.sleep(0)
        return happen(call)

    def found(call: Call, amount: int) -> Applied[str] | NotApplied:
        del amount
        return Applied("receipt") if any(line.startswith(call.request_id) for line in witness.lines()) else NotApplied()

    durability = Durability.IMMEDIATE
    limit = SOON if kind == "QUERYABLE" else timedelta(minutes=5)
    declared: Any = tool(effect=CLASSES[kind], name="effect", time_limit=limit, durability=durability)
    handle = declared(waiting if is_async else plain)
    if kind == "QUERYABLE":
        handle.probe(found)
    return handle


def run_effect(folder: str, kind: str, mode: str, ending: str = "returned") -> None:
    """Open the log, make one guarded effect in one attempt, close everything."""
    witness = Witness(Path(folder, "witness"))
    handle: Any = effect_tool(kind, witness, ending, is_async=mode == "asyncio")
    expected = (InDoubt, NotSent, Rejected, Suspended, TimeoutError)
    if mode == "sync":
        try:
            with Log.open(Path(folder, "log.db")) as log, log.attempt(BRANCH) as attempt:
                attempt.call(handle, 1999)
        except expected:
            return
        return

    async def main() -> None:
        try:
            async with AsyncLog.open(Path(folder, "log.db")) as log, log.attempt(BRANCH) as attempt:
                await attempt.call(handle, 1999)
        except expected:
            return

    asyncio.run(main())


def run_recover(folder: str, kind: str, mode: str) -> None:
    """Recover the log, with the tool known, so that its probe answers."""
    handle = effect_tool(kind, Witness(Path(folder, "witness")), "returned", is_async=mode == "asyncio")
    if mode == "sync":
        with Log.open(Path(folder, "log.db")) as log:
            log.recover()
    else:

        async def main() -> None:
            async with AsyncLog.open(Path(folder, "log.db")) as log:
                await log.recover()

        asyncio.run(main())
    del handle


def run_resolve(folder: str, kind: str, mode: str) -> None:
    """Decide every intent in doubt as the witness has it."""
    del kind, mode
    witness = Witness(Path(folder, "witness"))
    with Log.open(Path(folder, "log.db")) as log:
        for intent in log.open_intents():
            if intent.in_doubt:
                answer: Applied[str] | NotApplied = Applied("receipt") if witness.lines() else NotApplied()
                log.resolve(intent.intent_id, answer, by="test", why="the witness", expect_seq=intent.seq)


def run_decide_landed(folder: str, kind: str, mode: str) -> None:
    """Decide that it landed, without saying what it returned."""
    del kind, mode
    with Log.open(Path(folder, "log.db")) as log:
        log.resolve(f"{BRANCH}#1/effect", Applied(), by="test", why="the witness")


def run_supply(folder: str, kind: str, mode: str, opened: Log | None = None) -> None:
    """Give the value of what is done without one."""
    del kind, mode
    with nullcontext(opened) if opened else Log.open(Path(folder, "log.db")) as log:
        log.supply(f"{BRANCH}#1/effect", "receipt", by="test", why="the witness")


def run_renew(folder: str, kind: str, mode: str) -> None:
    """Decide that it shall happen once more."""
    del kind
    decision = {"by": "test", "why": "wanted again"}
    run_decision(folder, mode, lambda log: log.renew(f"{BRANCH}#1/effect", **decision))


def run_cancel(folder: str, kind: str, mode: str) -> None:
    """Ask that the branch send nothing more."""
    del kind
    run_decision(folder, mode, lambda log: log.cancel(BRANCH, by="test", why="not wanted"))


def run_event(folder: str, kind: str, mode: str) -> None:
    """Add two events: one that waits, and one that takes it along."""
    del kind

    def noted(log: Any) -> Any:
        if mode == "sync":
            log.append(BRANCH, "planned", {"step": 1})
        return log.append(BRANCH, "approved", {"by": "ada"}, durability=Durability.IMMEDIATE)

    run_decision(folder, mode, noted)


def run_decision(folder: str, mode: str, decide: Callable[[Any], Any]) -> None:
    """Open the log and let this be decided, on either face."""
    if mode == "sync":
        with Log.open(Path(folder, "log.db")) as log:
            decide(log)
        return

    async def main() -> None:
        async with AsyncLog.open(Path(folder, "log.db")) as log:
            await decide(log)

    asyncio.run(main())


def two_records_only() -> None:
    """The control: a protocol without Dispatched. It goes on as if it had been written."""
    admit, append, append_async = Duty.admit, Duty.append, AioDriver._append

    def as_if(duty: Duty, entry: Append) -> Appended:
        failpoints.reached("before_dispatched")
        view: View = duty.do(Load(entry.branch, entry.record.step))
        change = machine.apply(view.branch, view.operation, entry.record, 0, view.now)
        assert isinstance(change, machine.Change)
        failpoints.reached("after_dispatched")
        return Appended(0, View(change.branch, change.operations[0], view.now))

    def sync(self: Duty, entry: Append) -> Any:
        return as_if(self, entry) if isinstance(entry.record, Dispatched) else append(self, entry)

    async def asyncio_(self: AioDriver, entry: Append) -> Any:
        return as_if(self._duty, entry) if isinstance(entry.record, Dispatched) else await append_async(self, entry)

    def admits(self: Duty, entry: Append, join: Any) -> Any:
        assert not isinstance(entry.record, Dispatched), "a way to append that this control does not know"
        return admit(self, entry, join)

    Duty.admit, Duty.append, AioDriver._append = admits, sync, asyncio_  # type: ignore[method-assign] # in a child


def trace_to(path: str) -> None:
    """Write down every point that is reached, in order, in place of dying at one."""

    def reached(name: str) -> None:
        with Path(path).open("a", encoding="utf-8") as trace:
            trace.write(f"{name}\n")

    failpoints.reached, failpoints.are_armed = reached, lambda: True  # type: ignore[assignment] # in a child process


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["crash_programs"])
# The server of Python 3.11 ignores the search path that it is given, and would import everything in every child.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def in_child(program: Callable[..., None], *arguments: object, crash_at: str | None = None, **setup: Any) -> int:
    """Run a program in a child process to its end; killed at `crash_at`, if that is given.

    Raises:
        NotKilled: it was to die at a point, and ended in another way; or it failed.
    """
    child = _context.Process(target=_child, args=(program, arguments, crash_at, setup))
    child.start()
    child.join(60)
    code = child.exitcode
    if code is None:
        child.kill()
        child.join()
    if code != (-signal.SIGKILL if crash_at else 0):
        msg = f"{program.__name__}{arguments} ended with {code}, killed at {crash_at}?"
        raise NotKilled(msg)
    return code


@contextmanager
def stopped(program: Callable[..., None], *arguments: object, crash_at: str) -> Iterator[None]:
    """Run a program in a child process until it has stopped itself at a point; afterwards it is killed."""
    child = _context.Process(target=_child, args=(program, arguments, crash_at, {}))
    child.start()
    try:
        deadline_s = time.monotonic() + 30
        while _state_of(child.pid) != "T":
            if time.monotonic() > deadline_s or child.exitcode is not None:
                msg = f"{program.__name__}{arguments} did not stop at {crash_at}"
                raise NotKilled(msg)
            time.sleep(0.005)
        yield
    finally:
        child.kill()
        child.join()


def _state_of(pid: int | None) -> str:
    """The state of a process in one letter, as `ps` shows it."""
    found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1]


def _child(
    program: Callable[..., None], arguments: tuple[object, ...], crash_at: str | None, setup: dict[str, Any]
) -> None:
    for name in ("INTENTLOG_CRASH_AT", "INTENTLOG_TEST_HOOKS"):
        os.environ.pop(name, None)
    if crash_at:
        os.environ.update(INTENTLOG_TEST_HOOKS="1", INTENTLOG_CRASH_AT=crash_at)
    if setup.get("two_records"):
        two_records_only()
    if setup.get("trace"):
        trace_to(setup["trace"])
    program(*arguments)
