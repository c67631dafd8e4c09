"""What the field cases run: tools with a witness outside the log, both faces driven by the same lines, and children.

A mode is "sync" (Log), "asyncio" (AsyncLog with an `async def` tool) or "thread" (AsyncLog with a plain tool, which
runs in a thread of its own). A case is written once, as a coroutine, and played in each.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from crash_programs import CLASSES

from intentlog import (
    Applied,
    AsyncLog,
    BranchBusy,
    Call,
    Durability,
    InDoubt,
    IntentLogError,
    Log,
    NotApplied,
    NotInDoubt,
    NotSent,
    Rejected,
    failpoints,
)
from intentlog import tool as declared
from intentlog.crash import Witness
from intentlog.log.engine import Engine
from intentlog.log.sync import Attempt

MODES = ("sync", "asyncio", "thread")
KINDS = tuple(CLASSES)
EFFECTS = tuple(kind for kind in KINDS if kind != "READ")
BRANCH = "order-1042"
SOON = timedelta(microseconds=1)  # lets a probe's "not applied" count at once
PATIENCE_S = 30.0
LOST, NO, NEVER_LEFT = TimeoutError("the answer was lost"), Rejected("404: no match"), NotSent("connection refused")
NOWHERE, UNREACHABLE = NotApplied(), OSError("the probe cannot be reached")
ENDINGS: dict[str, Exception] = {"ambiguous": LOST, "rejected": NO, "not_sent": NEVER_LEFT}
Act = Callable[[Call, str], Any]


def field_tool(
    kind: str, act: Act, mode: str = "sync", answer: Any = NOWHERE, *, probed: bool | None = None, **options: Any
) -> Any:
    """A tool of this class for this mode, that does `act(call, item)`; in mode "asyncio" it may answer an awaitable.

    Its name is its own for each class and mode, so that a recovery knows which tool is meant. If it is QUERYABLE, or
    `probed`, it has a probe with this answer: a value, an error, or a function.
    """

    def plain(call: Call, item: str) -> str:
        return str(act(call, item))

    async def waiting(call: Call, item: str) -> str:
        return str(await settled(act(call, item)))

    def found(call: Call, item: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(call, item) if callable(answer) else answer

    defaults: dict[str, Any] = {"name": f"field_{kind}_{mode}".lower(), "durability": Durability.IMMEDIATE}
    if kind == "QUERYABLE":
        defaults["time_limit"] = SOON
    decorate: Any = declared(effect=CLASSES[kind], **(defaults | options))
    handle: Any = decorate(waiting if mode == "asyncio" else plain)
    if kind == "QUERYABLE" if probed is None else probed:
        handle.probe(found)
    return handle


async def settled(value: Any) -> Any:
    """The value, or what it comes to when it is awaited: so the same lines serve both faces."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def opened(mode: str, source: Path | str | Callable[[], Engine]) -> AsyncGenerator[Any]:
    """The log of a mode, at a path or a URL, or on an engine."""
    if mode == "sync":
        with Log(source()) if callable(source) else Log.open(source) as log:
            yield log
    else:
        async with AsyncLog(source) if callable(source) else AsyncLog.open(source) as log:
            yield log


@asynccontextmanager
async def attempt_at(log: Any, branch: str = BRANCH, **options: Any) -> AsyncGenerator[Any]:
    """The next attempt at a branch of either face."""
    attempt = log.attempt(branch, **options)
    if isinstance(attempt, Attempt):
        with attempt:
            yield attempt
    else:
        async with attempt:
            yield attempt


def started(method: Callable[..., Any], *arguments: Any) -> asyncio.Task[Any]:
    """A task of the loop that makes this call; a blocking one in a thread."""
    if inspect.iscoroutinefunction(method):
        return asyncio.create_task(method(*arguments))
    return asyncio.create_task(asyncio.to_thread(method, *arguments))


async def records(log: Any, branch: str = BRANCH) -> list[Any]:
    """The records of a branch's history."""
    return [entry.record for entry in await settled(log.history(branch))]


def names(found: list[Any]) -> list[str]:
    """Records in a word each."""
    return [type(record).__name__ for record in found]


def until(met: Callable[[], Any], what: str) -> None:
    """Look until it is so.

    Raises:
        AssertionError: it did not come to be in time.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline_s, f"in vain waited for: {what}"
        time.sleep(0.002)


def place_of(folder: Path | str) -> Path | str:
    """Where the log of a folder is: at the URL in its file `url`, or in a file of its own."""
    url = Path(folder, "url")
    return url.read_text() if url.exists() else Path(folder, "log.db")


class Bench(NamedTuple):
    """A folder with a log, a witness outside it, and the mode in which the case is played."""

    folder: Path
    mode: str

    @property
    def path(self) -> Path | str:
        return place_of(self.folder)

    @property
    def witness(self) -> Witness:
        return Witness(self.folder / "witness")


class InFlight:
    """A tool whose call begins, and goes on when it is let."""

    def __init__(self, bench: Bench, kind: str, ending: str = "returned") -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._let = asyncio.Event()
        self._witness, self._ending, self._mode = bench.witness, ending, bench.mode
        self.tool = field_tool(kind, self._act, bench.mode, Applied("found"), time_limit=timedelta(minutes=5))

    def let_on(self) -> None:
        self.go_on.set()
        self._let.set()

    async def begins(self, attempt: Any) -> asyncio.Task[Any]:
        """Call it under step `act`; answers when the call has begun."""
        task = started(attempt.step("act").perform, self.tool, "1042")
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_S)
        return task

    def _act(self, call: Call, item: str) -> Any:
        self._witness.record(f"{item} {call.request_id}")
        self.begun.set()
        if self._mode == "asyncio":
            return self._waiting(item)
        assert self.go_on.wait(PATIENCE_S)
        return self._end(item)

    async def _waiting(self, item: str) -> str:
        await self._let.wait()
        return self._end(item)

    def _end(self, item: str) -> str:
        if self._ending in ENDINGS:
            raise ENDINGS[self._ending]
        return f"did {item}"


async def raised(method: Callable[..., Any], *arguments: Any) -> Exception | None:
    """What a call of either face raises, if it does."""
    try:
        await settled(method(*arguments))
    except Exception as error:
        return error
    return None


async def enter(log: Any) -> None:
    """Open an attempt, and close it."""
    async with attempt_at(log):
        pass


async def check_busy(log: Any, witness: Witness) -> None:
    """A living owner's branch is left alone, whoever asks."""
    calls = witness.lines()
    assert isinstance(await raised(enter, log), BranchBusy)
    assert await settled(log.recover()) == []
    assert await settled(log.unfinished()) == []
    for one in await settled(log.open_intents()):
        assert not one.in_doubt
        resolve: Callable[..., Any] = partial(log.resolve, by="ann", why="impatient")
        assert isinstance(await raised(resolve, one.intent_id, NOWHERE), NotInDoubt)
    assert witness.lines() == calls


async def call_once(bench: Bench, handle: Any) -> str:
    """One attempt at the step: its value, or the name of the error."""
    async with opened(bench.mode, bench.path) as log, attempt_at(log) as attempt:
        try:
            return str(await settled(attempt.step("act").call(handle, "1042")))
        except Rejected as error:
            return type(error).__name__


def again(call: Call, item: str) -> str:
    """What a tool does where it only matters that it is called anew."""
    del call, item
    return "again"


def history_of(log: Log, branch: str = BRANCH) -> list[Any]:
    """The records of a branch's history, by the sync face."""
    return [entry.record for entry in log.history(branch)]


def results(folder: Path) -> list[str]:
    """What the children said of themselves."""
    return Witness(folder / "results").lines()


# --- children -------------------------------------------------------------------------------------------------------

_children = multiprocessing.get_context("forkserver")  # the server that `crash_programs` sets up
_children.set_forkserver_preload(["crash_programs", "field_case_programs"])


@contextmanager
def running(program: Callable[..., None], *arguments: object, stop_at: str = "") -> Generator[Any]:
    """A child process that runs while the block does, and may stop at a point; it is killed at the end."""
    child = _children.Process(target=_begin, args=(program, arguments, stop_at))
    child.start()
    try:
        yield child
    finally:
        child.kill()  # a stopped one too
        child.join()
        child.close()


def _begin(program: Callable[..., None], arguments: tuple[object, ...], stop_at: str) -> None:
    def reached(name: str) -> None:
        if name == stop_at:  # a signal to the process would leave this thread running until another has taken it
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    failpoints.reached, failpoints.are_armed = reached, lambda: True
    program(*arguments)


def ends_well(child: Any) -> None:
    """Wait for a child's own end."""
    child.join(PATIENCE_S)
    assert child.exitcode == 0


def is_stopped(child: Any) -> bool:
    """Whether a process is stopped, as after SIGSTOP."""
    command = ["ps", "-o", "state=", "-p", str(child.pid)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip().startswith("T")


@contextmanager
def believed_dead(folder: Path) -> Generator[None]:
    """While the block runs, whoever asks takes the log's one owner for dead; afterwards it is seen to live again.

    This is what a lease that ran out looks like: liveness is a hint, the fence is the guarantee.
    """
    (lock,) = (folder / "log.db.d").glob("owner-*.lock")
    aside = lock.with_suffix(".aside")
    lock.rename(aside)
    yield
    aside.rename(lock)


def run_step(folder: str, kind: str, mode: str, ending: str = "returned") -> None:
    """One attempt with one step, `act`, that tells the witness of each call, and the results what came of it."""
    witness, results = Witness(Path(folder, "witness")), Witness(Path(folder, "results"))

    def act(call: Call, item: str) -> str:
        witness.record(f"{call.request_id} {call.dispatch_no}")
        if ending in ENDINGS:
            raise ENDINGS[ending]
        return f"did {item}"

    handle = field_tool(kind, act, mode, UNREACHABLE)

    async def main() -> None:
        async with opened(mode, place_of(folder)) as log, attempt_at(log) as attempt:
            verdicts = [one.classification.value for one in attempt.classifications]
            results.record(" ".join([f"attempt {attempt.number}", *verdicts]))
            outcome = await settled(attempt.step("act").perform(handle, "1042"))
            results.record(f"{outcome.value} {'replayed' if outcome.replayed else 'called'}")

    try:
        asyncio.run(main())
    except IntentLogError as error:
        results.record(type(error).__name__)


def run_slow(folder: str, kind: str, mode: str) -> None:
    """A call that never ends. In mode "cancelled" its caller has gone, and its thread runs on."""
    witness, results = Witness(Path(folder, "witness")), Witness(Path(folder, "results"))
    tool_mode = "thread" if mode == "cancelled" else mode

    def act(call: Call, item: str) -> Any:
        witness.record(f"{call.request_id} {call.dispatch_no} {item}")
        if mode == "asyncio":
            return asyncio.Event().wait()
        with suppress(ConnectionError):
            os.read(os.pipe()[0], 1)  # nobody will ever write
        return None

    limit = timedelta(minutes=5)
    handle = field_tool(kind, act, tool_mode, UNREACHABLE, time_limit=limit)

    async def work(log: Any) -> None:
        async with attempt_at(log) as attempt:
            await settled(attempt.step("act").call(handle, "1042"))

    async def main() -> None:
        async with opened(tool_mode, place_of(folder)) as log:
            if mode != "cancelled":
                await work(log)
            task = asyncio.create_task(work(log))
            await asyncio.to_thread(until, witness.lines, "the call")
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            results.record("cancelled")
            await asyncio.Event().wait()

    asyncio.run(main())


def run_deliveries(folder: str, kind: str, wait_s: float, together: Any, rounds: int, mode: str) -> None:
    """One of several workers that are given the same ids at the same moments."""
    witness, results = Witness(Path(folder, "witness")), Witness(Path(folder, "results"))

    def act(call: Call, item: str) -> str:
        witness.record(f"{item} {call.request_id}")
        return f"did {item}"

    handle = field_tool(kind, act, mode, UNREACHABLE, name="field_delivery")

    async def deliver(log: Any, item: str) -> str:
        try:
            async with attempt_at(log, item, wait=timedelta(seconds=wait_s)) as attempt:
                outcome = await settled(attempt.step("act").perform(handle, item))
        except BranchBusy:
            return f"{item} busy"
        return f"{item} {'replayed' if outcome.replayed else 'called'} {outcome.value}"

    async def main() -> None:
        async with opened(mode, place_of(folder)) as log:
            for number in range(rounds):
                together.wait(PATIENCE_S)
                results.record(await deliver(log, f"id-{number}"))

    asyncio.run(main())


def run_interrupted(folder: str) -> None:
    """An agent's whole process is told to stop (SIGINT) while an UNSAFE plain tool runs in a thread of it."""
    witness = Witness(Path(folder, "witness"))

    def act(call: Call, item: str) -> str:
        witness.record(f"{call.request_id} {item}")
        until(Path(folder, "go").exists, "leave to go on")
        return f"did {item}"

    handle = field_tool("UNSAFE", act, "thread")

    async def main() -> None:
        async with AsyncLog.open(Path(folder, "log.db")) as log, log.attempt(BRANCH) as attempt:
            await attempt.step("act").call(handle, "1042")

    signal.signal(signal.SIGINT, signal.default_int_handler)  # as a process has it that a shell starts
    with suppress(KeyboardInterrupt):
        asyncio.run(main())


# --- several steps ---------------------------------------------------------------------------------------------------

BATCH = ("first", "second", "third")


async def batch(attempt: Any, handle: Any) -> list[Any]:
    """Call the three at once, in threads or as tasks; outcomes or errors, in their order."""
    work = [started(attempt.step(name).perform, handle, name) for name in BATCH]
    return await asyncio.gather(*work, return_exceptions=True)


def batch_tool(folder: Path, kind: str, mode: str, ending: str) -> Any:
    """Its third call fails for as long as there is a file `failing`."""
    witness = Witness(folder / "witness")

    def act(call: Call, item: str) -> str:
        witness.record(item)
        if item == "third" and (folder / "failing").exists():
            raise ENDINGS[ending]
        return f"did {item}"

    return field_tool(kind, act, mode)


def run_batch(folder: str, kind: str, mode: str, ending: str) -> None:
    """The batch, and once more in the same attempt."""
    handle = batch_tool(Path(folder), kind, mode, ending)

    async def main() -> None:
        async with opened(mode, Path(folder, "log.db")) as log, attempt_at(log) as attempt:
            for _ in range(2):
                await batch(attempt, handle)

    asyncio.run(main())


def order_tools(folder: Path, kind: str, mode: str) -> tuple[Any, Any]:
    """A tool whose value names its own item, and another one."""
    witness = Witness(folder / "witness")

    def act(call: Call, item: str) -> str:
        witness.record(item)
        return f"did {item}"

    return field_tool(kind, act, mode), field_tool(kind, act, mode, name=f"field_other_{mode}")


def run_three(folder: str, kind: str, mode: str) -> None:
    """Steps a, b and c, and then two unnamed ones."""
    handle, _ = order_tools(Path(folder), kind, mode)

    async def main() -> None:
        async with opened(mode, Path(folder, "log.db")) as log, attempt_at(log) as attempt:
            for item in "abc":
                await settled(attempt.step(item).call(handle, item))
            for item in "xy":
                await settled(attempt.call(handle, item))

    asyncio.run(main())


# --- a charge at a provider -------------------------------------------------------------------------------------------


def charge_at(call: Call, port: int) -> str:
    """Ask the provider for a charge, under the operation's key."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/charges", b"", {"Idempotency-Key": call.request_id})
        response = connection.getresponse()
        answer = response.read().decode()
    finally:
        connection.close()
    if response.status != 201:
        msg = f"{response.status}: {answer}"
        raise RuntimeError(msg)  # proves nothing
    return answer


def run_charge(folder: str, mode: str, port: int, ending: str = "", probed: bool = False) -> None:
    """An agent run with a KEYED charge in it, that may fail after the charge."""
    results = Witness(Path(folder, "results"))
    handle = field_tool("KEYED", lambda call, _: charge_at(call, port), mode, UNREACHABLE, probed=probed)

    async def main() -> None:
        async with opened(mode, Path(folder, "log.db")) as log, attempt_at(log) as attempt:
            outcome = await settled(attempt.step("charge").perform(handle, "1042"))
            results.record(f"{attempt.number} {outcome.value} {outcome.request_id}")
            if ending == "agent-fails":
                msg = "a later step of the agent failed"
                raise RuntimeError(msg)

    with suppress(InDoubt, RuntimeError):
        asyncio.run(main())


def command_line(*arguments: str | Path) -> tuple[int, str]:
    """Run `intentlog` as a process of its own: its exit code, and what it printed."""
    command = [sys.executable, "-m", "intentlog", *map(str, arguments)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    return ended.returncode, ended.stdout + ended.stderr
