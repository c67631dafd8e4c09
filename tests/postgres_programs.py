"""What the fault tests of the PostgreSQL store run in worker processes, and the judge who holds the log to the witness.

Workers share branches; in each of them three effects are to happen, one of each kind that a restart treats otherwise.
Each call tells a file outside the log which dispatch of which effect it is. Whatever strikes the workers, the server
or the network: for each effect the log's answer and the witness have to agree.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from field_case_programs import attempt_at, field_tool, is_stopped, opened, settled, until

from intentlog import Applied as Landed
from intentlog import (
    BranchBusy,
    Call,
    Fenced,
    InDoubt,
    Log,
    LogClosed,
    LogPoisoned,
    LogUnavailable,
    NotApplied,
    NotSent,
    OutcomeNotRecorded,
    Verdict,
)
from intentlog.core import records as r
from intentlog.core.records import Instant
from intentlog.crash import Witness
from intentlog.store.clock import SystemClock

STEPS = {"charge": "UNSAFE", "mail": "KEYED", "note": "IDEMPOTENT"}
LEASE_S = 1.0
IDLE_S = 0.01
TOGETHER = 4  # branches that a worker on a loop has in hand at once

children = multiprocessing.get_context("forkserver")


def holds(kind: str) -> Callable[[bytes], bool]:
    """Whether what a client sent of a transaction has a record of this kind in it; in text format bytes are in hex."""
    tag = f'"kind":"{kind}"'.encode()
    return lambda sent: tag in sent or tag.hex().encode() in sent


# --- the judge --------------------------------------------------------------------------------------------------------


class Effect(NamedTuple):
    """One effect, as the log has it and as the witness saw it.

    Attributes:
        kind: its class.
        dispatched: the dispatches that the log has.
        outcomes: those of them that have an outcome, and which.
        settled: how a probe or a person closed it, if one did.
        called: the dispatches that were witnessed, in order.
        keys: the request ids that they were witnessed with.
    """

    kind: str
    dispatched: list[int]
    outcomes: dict[int, str]
    settled: str
    called: list[int]
    keys: set[str]

    @property
    def verdict(self) -> Verdict:
        """What the log's records say of it, folded here and not by the library."""
        if self.settled == "APPLIED" or {"RETURNED", "REJECTED"} & set(self.outcomes.values()):
            return Verdict.DONE
        open_ones = [] if self.settled == "NOT_APPLIED" else [n for n in self.dispatched if n not in self.outcomes]
        return Verdict.MAY_HAVE_BEEN_SENT if open_ones else Verdict.NEVER_SENT

    def problems(self) -> Generator[str]:
        """What cannot be true of log and witness at once."""
        verdict = self.verdict
        if len(set(self.called)) < len(self.called):
            yield "duplicate: one dispatch was called twice"
        if self.kind == "UNSAFE" and len(self.called) > 1:
            yield "duplicate: what may not be repeated was called again"
        if len(self.keys) > 1:
            yield "called under more than one key"
        if set(self.called) - set(self.dispatched):
            yield "lost: called, and its Dispatched is not there"
        if verdict is Verdict.NEVER_SENT and self.called:
            yield "misclassified: never sent, says the log, and it was witnessed"
        if verdict is Verdict.DONE and not self.called:
            yield "misclassified: done, says the log, and nobody witnessed it"
        for number, outcome in self.outcomes.items():
            if (outcome == "NOT_SENT") is (number in self.called):
                yield f"misclassified: dispatch {number} is {outcome}"


def effects_of(log: Log, witness: Witness) -> dict[tuple[str, str], Effect]:
    """Every effect that the log or the witness knows of."""
    found: dict[tuple[str, str], Effect] = defaultdict(lambda: Effect("", [], {}, "", [], set()))
    for entry in log.tail(1_000_000):
        record = entry.record
        if not isinstance(record, r.OfIntent):
            continue
        effect = found[entry.branch, record.step]
        match record:
            case r.Pending():
                found[entry.branch, record.step] = effect._replace(kind=record.declaration.kind.name)
            case r.Dispatched():
                effect.dispatched.append(record.dispatch_no)
            case r.Committed():
                effect.outcomes.setdefault(record.dispatch_no, record.outcome.name)
            case r.Settled() if record.settlement.name in ("APPLIED", "NOT_APPLIED"):
                found[entry.branch, record.step] = effect._replace(settled=record.settlement.name)
            case _:
                pass
    for line in witness.lines():
        branch, step, number, key = line.split()
        found[branch, step].called.append(int(number))
        found[branch, step].keys.add(key)
    return found


class Judged(NamedTuple):
    """What a judge found true.

    Attributes:
        verdicts: of each effect, by branch and step.
        called: how often each was witnessed.
    """

    verdicts: dict[tuple[str, str], Verdict]
    called: dict[tuple[str, str], int]

    def count(self, verdict: Verdict) -> int:
        """How many effects have this verdict."""
        return sum(one is verdict for one in self.verdicts.values())


def judge(log: Log, witness: Witness, acknowledged: Iterable[str] = ()) -> Judged:
    """Hold the log to the witness, once nobody works any more.

    Args:
        log: recovers first: what its restart says is judged too.
        witness: of the calls.
        acknowledged: `branch step` of each call that returned to its caller: its outcome is never lost (I5).

    Raises:
        AssertionError: they do not agree; with every effect of which they do not.
    """
    until(lambda: not any(one.calling for one in log.open_intents()), "the end of the leases of who died")
    log.recover()
    said = {(one.intent_id.branch, one.intent_id.step): one for one in log.recover()}
    effects = effects_of(log, witness)
    wrong = [f"{'/'.join(name)}: {what}: {one}" for name, one in effects.items() for what in one.problems()]
    for name, one in effects.items():
        if name in said and said[name].classification is not one.verdict:
            wrong.append(f"{'/'.join(name)}: {said[name].classification} says the restart, {one.verdict} the records")
        if one.verdict is Verdict.MAY_HAVE_BEEN_SENT and name not in said:
            wrong.append(f"{'/'.join(name)}: open, and not classified")
    for line in acknowledged:
        branch, step = line.split()
        if effects[branch, step].verdict is not Verdict.DONE:
            wrong.append(f"{branch}/{step}: lost: it was acknowledged: {effects[branch, step]}")
    report = log.verify()
    wrong += [] if report.ok else [str(report)]
    assert not wrong, "\n".join(wrong)
    return Judged(
        {name: one.verdict for name, one in effects.items()}, {name: len(one.called) for name, one in effects.items()}
    )


# --- the workers ------------------------------------------------------------------------------------------------------


class Ground(NamedTuple):
    """Where workers work: the log's place, and a folder for what they tell.

    Attributes:
        place: the log's URL, or its path.
        folder: of the witness (each call), of `returned` (each call that came back to its caller), of `finished` (each
            branch of which no worker has anything more to do).
    """

    place: str
    folder: str

    @property
    def source(self) -> Any:
        """What a log is opened with."""
        return self.place if "://" in self.place else Path(self.place)

    @property
    def witness(self) -> Witness:
        return Witness(Path(self.folder, "witness"))

    @property
    def returned(self) -> Witness:
        return Witness(Path(self.folder, "returned"))

    @property
    def finished(self) -> Witness:
        return Witness(Path(self.folder, "finished"))


def step_tools(witness: Witness, mode: str) -> dict[str, Any]:
    """A tool for each step. Its call is a line of the witness, and a little time in which it can be struck."""

    def act(call: Call, item: str) -> Any:
        witness.record(f"{item} {call.intent_id.step} {call.dispatch_no} {call.request_id}")
        return asyncio.sleep(0.001, item) if mode == "asyncio" else time.sleep(0.001) or item

    return {step: field_tool(kind, act, mode, name=f"fault_{step}") for step, kind in STEPS.items()}


async def run_branch(log: Any, ground: Ground, tools: dict[str, Any], branch: str) -> bool:
    """One attempt at a branch; whether no worker has anything more to do in it."""
    try:
        async with attempt_at(log, branch) as attempt:
            for step, handle in tools.items():
                await settled(attempt.step(step).call(handle, branch))
                ground.returned.record(f"{branch} {step}")
    except InDoubt:
        return True  # a person has to look at it
    except (BranchBusy, Fenced, NotSent):  # the last of a worker that was stopped through its lease
        return False
    return True


async def work_on(ground: Ground, branches: Sequence[str], seed: int, mode: str) -> None:
    """Work until each branch is finished, by this worker or another; open the log anew whenever it gives up."""
    chance = random.Random(seed)
    tools = step_tools(ground.witness, mode)
    gave_up = (LogUnavailable, LogPoisoned, OutcomeNotRecorded, LogClosed)

    async def work(log: Any, left: list[str]) -> None:
        while left:
            branch = left.pop()
            if await run_branch(log, ground, tools, branch):
                ground.finished.record(branch)

    while left := sorted(set(branches) - set(ground.finished.lines())):
        chance.shuffle(left)
        before = len(left)
        with suppress(*gave_up):
            async with opened(mode, ground.source) as log:
                if mode == "sync":
                    await work(log, left)
                else:
                    found = await asyncio.gather(*(work(log, left) for _ in range(TOGETHER)), return_exceptions=True)
                    for error in found:
                        if isinstance(error, BaseException):
                            raise error
        if before == len(left):
            await asyncio.sleep(IDLE_S)


def worker(ground: Ground, branches: Sequence[str], seed: int, mode: str, traits: dict[str, Any]) -> None:
    """A worker process.

    Args:
        ground: where.
        branches: all of them.
        seed: of its order.
        mode: "sync" or "asyncio".
        traits: `lease_s`; `clock_back_s`, a wall clock that is set back; `setup`, a function that takes a protection
            away, for a control.
    """
    os.environ["INTENTLOG_LEASE_S"] = str(traits.get("lease_s", LEASE_S))
    if back_s := traits.get("clock_back_s"):
        set_clock_back(back_s)
    if setup := traits.get("setup"):
        setup()
    asyncio.run(work_on(ground, branches, seed, mode))


def leased(lease_s: float, program: Callable[..., None], *arguments: object) -> None:
    """Run another program in this process, with a lease of its own."""
    os.environ["INTENTLOG_LEASE_S"] = str(lease_s)
    program(*arguments)


def set_clock_back(seconds: float) -> None:
    """Let this process read an earlier wall clock; the boot clock cannot be set."""
    now = SystemClock.now

    def earlier(self: SystemClock) -> Instant:
        read = now(self)
        return Instant(read.wall_ns - int(seconds * 1e9), read.boot_id, read.boot_ns)

    SystemClock.now = earlier  # type: ignore[method-assign] # in a child process


# --- what strikes them ------------------------------------------------------------------------------------------------


class Storm:
    """Worker processes over shared branches, and what strikes them; `with Storm(...) as storm`.

    Args:
        ground: where they work.
        branches: how many branches there are to be worked on.
        workers: how many workers there are at any time.
        seed: of everything that is left to chance here.
        modes: of the workers, in turn.
        traits: of each worker; see `worker`.
        odd: traits of the first worker alone.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        branches: int,
        workers: int,
        seed: int = 1,
        modes: Sequence[str] = ("sync", "asyncio"),
        traits: dict[str, Any] | None = None,
        odd: dict[str, Any] | None = None,
    ) -> None:
        self.ground = ground
        self.branches = [f"order-{number}" for number in range(branches)]
        self.chance = random.Random(seed)
        self.kills = 0
        self.pauses = 0
        self._count = workers
        self._modes = modes
        self._traits = traits or {}
        self._odd = odd or {}
        self._started = 0
        self._workers: list[Any] = []
        self._paused: list[Any] = []

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self._workers, *self._paused]:
            child.kill()
            child.join()

    def _start(self) -> None:
        mode = self._modes[self._started % len(self._modes)]
        traits = {**self._traits, **(self._odd if self._started == 0 else {})}
        arguments = (self.ground, self.branches, self.chance.random(), mode, traits)
        child = children.Process(target=worker, args=arguments)
        child.start()
        self._workers.append(child)
        self._started += 1

    @property
    def finished(self) -> bool:
        """Whether every branch is."""
        return set(self.branches) <= set(self.ground.finished.lines())

    def wait_for_calls(self, more: int) -> bool:
        """Wait until so many more calls were witnessed; False if there is nothing more to do first."""
        path = self.ground.witness.path
        before = path.stat().st_size if path.exists() else 0
        line = len(f"{self.branches[-1]} charge 1 ") + 36

        def grown() -> bool:
            assert all(child.exitcode in (None, 0) for child in self._workers), "a worker failed"
            return self.finished or (path.exists() and path.stat().st_size >= before + more * line)

        until(grown, f"{more} calls")
        return not self.finished

    def kill_worker(self) -> None:
        """SIGKILL to one of them, and another takes its place."""
        child = self._workers.pop(self.chance.randrange(len(self._workers)))
        child.kill()
        child.join()
        self.kills += 1
        self._start()

    def pause_worker(self) -> None:
        """SIGSTOP to one of them, and another takes its place; `resume_workers` lets it go on."""
        child = self._workers.pop(self.chance.randrange(len(self._workers)))
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: is_stopped(child) or child.exitcode is not None, "the worker's stop")
        self._paused.append(child)
        self.pauses += 1
        self._start()

    def resume_workers(self) -> None:
        """SIGCONT to those that were stopped: they work on as if nothing had been."""
        for child in self._paused:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
        self._workers += self._paused
        self._paused = []

    def wait_until_finished(self) -> None:
        """Let them finish, and wait for their own ends."""
        self.resume_workers()
        until(lambda: self.finished, "the end of the work")
        for child in self._workers:
            child.join(60)
            assert child.exitcode == 0, "a worker failed"


def decide_as_witnessed(log: Log, witness: Witness) -> int:
    """What a person does about every doubt: look, and say; how many there were."""
    lines = {tuple(line.split()[:2]) for line in witness.lines()}
    doubts = [one for one in log.open_intents() if one.in_doubt]
    for one in doubts:
        branch, step = one.intent_id.branch, one.intent_id.step
        answer: Any = Landed(branch) if (branch, step) in lines else NotApplied()
        log.resolve(one.intent_id, answer, by="ann", why="the witness", expect_seq=one.seq)
    return len(doubts)


def finish(ground: Ground, branches: Iterable[str]) -> None:
    """Decide every doubt, and run each branch to its end."""
    with Log.open(ground.source) as log:
        decide_as_witnessed(log, ground.witness)

        async def main() -> None:
            tools = step_tools(ground.witness, "sync")
            for branch in branches:
                assert await run_branch(log, ground, tools, branch)

        asyncio.run(main())
        found = judge(log, ground.witness, ground.returned.lines())
        assert set(found.verdicts.values()) == {Verdict.DONE}
        assert set(found.verdicts) == {(branch, step) for branch in branches for step in STEPS}
        assert all(times == 1 for (_, step), times in found.called.items() if STEPS[step] == "UNSAFE")
