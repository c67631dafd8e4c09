"""A state machine over the public face: any sequence of attempts, calls, decisions, crashes and failing disks (I1-I9).

Hypothesis draws what two processes on one disk do, how calls end, and what befalls a process at an append, a call or a
probe; after each step the log is held against its invariants and against the witness outside (`state_machine_witness`).
The same machine drives `Log` and `AsyncLog`. A longer run, with chance of its own:

    INTENTLOG_EXAMPLES=50 python -m pytest -n 2 -rP tests/test_state_machine.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import pytest
import state_machine_witness as w
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from state_machine_witness import Befall, Ending
from state_machine_world import SIGNED, Killed, Process, World

import intentlog as il
from intentlog.core import records as r
from intentlog.core.effects import EffectKind
from intentlog.core.state import OPEN_STATES, Fate, Operation, State
from intentlog.log import declare

TIMES, ROUNDS_MIN, ROUNDS_MAX, EXAMPLES = int(os.environ.get("INTENTLOG_EXAMPLES", "1")), 4, 15, 12
APPENDS, OTHERS = ("before", "after"), ("recover", "cancel", "takeover", "renew", "resolve", "back", "pause")
BEFALLS = [
    *(Befall(point, nth, what) for what in ("kill", "power", "interrupt") for point, nth in product(APPENDS, range(5))),
    *(Befall(point, nth, what) for what in (*OTHERS, "hours") for point, nth in product(APPENDS, range(3))),
    *(Befall(point, 0, what) for what in OTHERS for point in ("call", "called")),
    *(Befall("probe", 0, what) for what in ("takeover", "resolve")),
    *(Befall("disk", nth, "") for nth in range(10)),
]
RACES = [
    *[Befall("call", 0, "resolve")] * 4,
    *[Befall("before", 0, "hours")] * 3,
    *(Befall("disk", nth, "") for nth in (2, 3)),
    *(Befall(point, 0, what) for point in ("call", "called") for what in ("recover", "takeover")),
]
ENDS: list[list[Ending]] = [[], [], [Ending.REJECTED], [Ending.NOT_SENT], [Ending.KILLED_LANDED]]
ACCIDENTS = ("kill", "power", "clock lost", "lapse", "end", 1, 5, 15, 45, 120, 4000, 8000, "seconds", "hour", "years")
DECISIONS = ("true", "bare", "stale", "unknown", "idle", "confirm", *["true", "supply", "renew", "cancel"] * 2)
QUIET = settings(
    stateful_step_count=40, derandomize=TIMES == 1, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow],  # it judges by a wall clock, which others share
)  # fmt: skip


def any_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


slots, branches, numbers = any_of(0, 0, 0, 1), any_of("order", "order", "agent"), st.integers(0, 5)
planned = st.tuples(branches, any_of(0, 0, 1), any_of(None, None, "one"), any_of(7, 7, 7, 7, 8))
endings = st.lists(st.sampled_from(list(Ending)), max_size=2)
moods = any_of("truth", "truth", "truth", "bare", "unknown", "raises")
befalls = any_of(*[None] * len(BEFALLS), *BEFALLS)
MOVES = (
    ("again", slots, endings, moods, befalls, planned),
    *[("again", slots, endings, moods, befalls)] * 2,
    ("again", slots, st.just([]), moods, st.none()),
    ("race", planned, any_of(Ending.LANDED, Ending.LATE, Ending.LOST), any_of(*ENDS), moods, any_of(*RACES)),
    ("leave_one", slots, any_of(None, None, ValueError("its own"), asyncio.CancelledError()), befalls),
    ("accident", slots, any_of(*ACCIDENTS), befalls),
    ("recover", slots, moods, befalls),
    ("note", slots, branches, any_of(*il.Durability), befalls),
    *[("decide", slots, any_of(*DECISIONS), numbers, branches, befalls)] * 2,
)


class Machine(RuleBasedStateMachine):
    """What programs, persons and accidents do. Every step is one act of one process, or of nobody."""

    seen: ClassVar[Counter[str]] = Counter()
    is_async: ClassVar[bool] = False
    offered: ClassVar[list[str]] = list(w.Tools.plain)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop() if self.is_async else None
        self.world = World(type(self).seen, self.loop)
        self.processes: dict[int, Process] = {}
        self.tools: list[Any] = []
        self.last: tuple[Any, ...] = ("order", 0, None, 7)  # branch, tool, step, amount
        self._opened = self._notes = 0
        self._checked: dict[tuple[str, str], tuple[int, bytes, int]] = {}
        self._handler = signal.signal(signal.SIGUSR1, w.Stopped.here)

    def teardown(self) -> None:
        for process in self.processes.values():
            process.abandon()
        signal.signal(signal.SIGUSR1, self._handler)
        if self.loop is not None:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    @initialize(
        certain=st.booleans(), picked=st.tuples(*[st.tuples(st.integers(0, len(w.Tools.plain) - 1), st.booleans())] * 2)
    )
    def begin(self, certain: bool, picked: tuple[tuple[int, bool], ...]) -> None:
        """Whether a dead owner is known for dead (a lock) or believed so (a lease), and the tools of this program."""
        self.world.certain = certain
        for number, is_async in picked:
            self.tools.append((w.Tools.awaited if is_async and self.is_async else w.Tools.plain)[self.offered[number]])
        self.world.plan = (self.tools[0], None, 7, "order")

    def act(self, process: Process, what: Callable[[], Any], befall: Befall | None = None) -> Any:
        """A process does one thing, and something may befall it. Answers the result, or what was raised."""
        world = self.world
        world.acting, world.befall, before = process.store, befall, world.disk.live.operations
        sent = {op for op in [*world.receiver.landings] if world.receiver.touched(op)}
        world.disk.io_until_failure = befall.nth if befall and befall.point == "disk" else None
        result, kept = None, world.kept()
        try:
            result = world.run(what())
        except (Killed, w.Stopped, TimeoutError, asyncio.CancelledError, il.IntentLogError) as raised:
            result = raised
        self._let_threads_end(process)
        self.left = world.befall and world.befall._replace(nth=world.disk.io_until_failure or world.befall.nth)
        world.disk.io_until_failure, world.befall, world.endings, world.mood = None, None, [], "truth"
        self._bury()
        if isinstance(result, il.IntentLogError):
            world.judge_error(result, before, sent)
            refused = isinstance(result, il.NotInDoubt | il.StaleDecision | il.UnknownIntent) and befall is None
            assert not refused or world.kept() == kept, f"a decision was refused and left a record: {result!r}"
        return result

    def _let_threads_end(self, process: Process) -> None:
        """A cancelled caller's tool runs on in its thread, and its outcome is recorded behind it."""
        driver = getattr(process.log, "_driver_or_none", None)
        if self.loop is not None and driver is not None and driver._tails:
            done, _ = self.loop.run_until_complete(asyncio.wait(set(driver._tails)))
            assert all(tail.exception() is None or isinstance(tail.exception(), Killed) for tail in done)

    def _bury(self) -> None:
        for slot, process in list(self.processes.items()):
            if self.world.power_lost or process.store.dead:
                self.world.seen["a crash lost an EVENTUAL record"] += bool(self._drop(slot) - self.world.noted("live"))
        self.world.power_lost = False

    def _drop(self, slot: int) -> set[bytes]:
        """A process is gone, without any clean-up. Answers its events that waited, as far as is known."""
        process = self.processes.pop(slot)
        process.abandon()
        keys = [key for key in self.world.eventual if key[0] == process.store.owner]
        return set[bytes]().union(*(self.world.eventual.pop(key) for key in keys))

    def process(self, slot: int) -> Process:
        """The process in this place; started if there is none, and anew if its log is poisoned (I8)."""
        process = self.processes.get(slot)
        if process is not None and process.store.poisoned:
            refused = self.act(process, process.log.recover)
            assert isinstance(refused, il.LogPoisoned), f"I8: a poisoned log answered {refused!r}"
            self.stop(slot)
            self.world.seen["poisoned and reopened"] += 1
            process = None
        if process is None:
            self._opened += 1
            process = self.processes[slot] = Process(self.world, f"p{self._opened}", is_async=self.is_async)
        return process

    def stop(self, slot: int, befall: Befall | None = None) -> None:
        result = self.act(self.processes[slot], self.processes[slot].log.close, befall)
        if not isinstance(result, Killed):
            durable = self._drop(slot) <= self.world.noted("durable")
            assert durable or result is not None, "I5: a close left an EVENTUAL record behind"

    def attempt(self, process: Process, branch: str, befall: Befall | None = None) -> bool:
        """Whether the process has an attempt at the branch, opened if need be."""
        self.left = befall
        if branch not in process.attempts:
            attempt = process.log.attempt(branch)
            if self.act(process, attempt.__aenter__ if self.is_async else attempt.__enter__, befall) is attempt:
                process.attempts[branch] = attempt
        return branch in process.attempts and not process.store.dead

    def leave(self, process: Process, branch: str, error: BaseException | None, befall: Befall | None = None) -> None:
        """Leave an attempt. With a dispatch that has no outcome it ends INDETERMINATE, whichever way it is left."""
        attempt: Any = process.attempts.pop(branch)
        exits = attempt.__aexit__ if self.is_async else attempt.__exit__
        doubts = w.open_dispatches(self.world.records(branch))
        result = self.act(process, lambda: exits(type(error) if error else None, error, None), befall)
        closes = [e.record for e in self.world.records(branch) if isinstance(e.record, r.AttemptClosed)]
        if result is None and error is None and befall is None:
            assert closes[-1].attempt == attempt.number, "a close that was acknowledged is not there"
            assert (closes[-1].end is il.End.INDETERMINATE) is bool(doubts), "the records decide how an attempt ends"

    def perform(self, process: Process, befall: Befall | None) -> None:
        """The last call, in the process' open attempt, and what follows from its answer."""
        branch, pick, step, amount = self.last
        tool, attempt = self.tools[pick], process.attempts[branch]
        self.world.plan = (tool, step, amount, branch)
        made = self.world.calls[process.store.owner]
        face = attempt.step(f"{tool.name}-{step}") if step else attempt
        result = self.act(process, lambda: face.perform(tool, amount), befall)
        assert not isinstance(result, TimeoutError) or tool.effect.kind is EffectKind.READ, "not an IntentLogError"
        if isinstance(result, il.Outcome):
            self.world.judge_outcome(result, self.world.calls[process.store.owner] - made, tool.effect.kind)
        elif isinstance(result, il.Fenced | il.AttemptCancelled) and branch in process.attempts:
            self.leave(process, branch, result)

    @rule(move=st.one_of([st.tuples(st.just(name), *drawn) for name, *drawn in MOVES]))  # one rule: drawn evenly
    def step(self, move: tuple[Any, ...]) -> None:
        getattr(self, move[0])(*move[1:])

    def again(self, slot: int, ends: list[Ending], mood: str, befall: Befall | None, what: Any = None) -> None:
        """A call, or the last one again: by the process that holds the branch, or by the other one."""
        self.last = what or self.last
        branch = self.last[0]
        holders = [at for at, process in sorted(self.processes.items()) if branch in process.attempts]
        process = self.process(slot or next(iter(holders), 0))
        if self.attempt(process, branch, befall):
            self.world.endings, self.world.mood = list(ends), mood
            self.perform(process, self.left)

    def race(self, what: Any, first: Ending, ends: list[Ending], mood: str, befall: Befall) -> None:
        """A call that leaves a doubt, then the same again while others decide, time runs or a disk fails."""
        self.again(0, [first, first], mood, None, what)
        self.again(0, ends, mood, befall)

    def leave_one(self, slot: int, how: BaseException | None, befall: Befall | None) -> None:
        process = self.process(slot)
        for branch in sorted(process.attempts)[:1]:
            self.leave(process, branch, how, befall)

    def accident(self, slot: int, what: Any, befall: Befall | None) -> None:
        """Between two acts: a process ends or is killed, the power is cut, a lease lapses, time passes or jumps."""
        world, process = self.world, self.processes.get(slot)
        if isinstance(what, int):
            world.clock.advance(what * w.SECOND)
        elif what in ("power", "clock lost"):
            world.cut_power(clock_lost=what == "clock lost")
        elif process is None or what in ("seconds", "hour", "years"):
            world.clock.set_back(what)
        elif what == "end":
            self.stop(slot, befall)
        elif what == "kill" or not world.certain:
            process.store.dead = what == "kill"
            world.disk.owners.discard(process.store.owner)
        self._bury()

    def recover(self, slot: int, mood: str, befall: Befall | None) -> None:
        """A recovery, and what the log lists after it; a second one at the same moment appends nothing (I9)."""
        process, clock = self.process(slot), self.world.clock
        clock.tick_ns, self.world.mood = 0, mood
        if isinstance(self.act(process, process.log.recover, befall), list) and befall is None:
            newest, self.world.mood = self.world.disk.live.events.keys(), mood
            self.act(process, process.log.recover)
            assert self.world.disk.live.events.keys() == newest, "a recovery appended though nothing had changed"
            self.inspect(process)
        clock.tick_ns = w.SECOND // 1000

    def note(self, slot: int, branch: str, durability: il.Durability, befall: Befall | None) -> None:
        """An event: IMMEDIATE is durable when acknowledged, EVENTUAL with the branch's next Pending or a close (I5)."""
        process, log = self.process(slot), self.process(slot).log
        self._notes += 1
        number, payload = self._notes, {str(self._notes).encode()}
        done = self.act(process, lambda: log.append(branch, "note", number, durability=durability), befall) is None
        if done and durability is il.Durability.IMMEDIATE:
            assert payload <= self.world.noted("durable"), "I5: an IMMEDIATE event is not durable"
        elif done:
            self.world.eventual.setdefault((process.store.owner, branch), set()).update(payload)
            if number % 2:  # what waits travels with the next Pending, or is lost in a crash before it
                self.again(slot, [], "truth", None, (branch, *self.last[1:]))

    def decide(self, slot: int, what: str, number: int, branch: str, befall: Befall | None) -> None:
        """A person decides (I9), as the world has it. What is refused leaves nothing in the log."""
        process = self.process(slot)
        if what == "cancel":
            result = self.act(process, lambda: process.log.cancel(branch, **SIGNED), befall)
            if isinstance(result, il.Cancelled) and befall is None:
                doubts = w.open_dispatches(self.world.records(branch))
                assert result.verdict is (il.End.INDETERMINATE if doubts else il.End.CANCELLED), "the records decide"
                assert {i.intent_id.branch for i in result.open_intents} <= {branch}
                self.world.seen[f"cancelled, {'with an' if doubts else 'without'} open dispatch"] += 1
            return
        rows = {(b, s): o for (b, s, _), o in self.world.disk.live.operations.items()}  # the newest generations
        wanted = [
            (b, o) for (b, _), o in rows.items() if o.intents and o.declaration.kind != "READ" and WANTED[what](o)
        ]
        if wanted:
            self._decide_one(process, what, *wanted[number % len(wanted)], befall)

    def _decide_one(
        self, process: Process, what: str, branch: str, operation: Operation, befall: Befall | None
    ) -> None:
        log, step, seq, decided = process.log, operation.step, operation.last_seq, operation.decided
        attempt = operation.intents[-1].attempt + (9 if what == "unknown" else 0)
        if what in ("true", "bare"):
            self.world.clock.advance(60 * w.SECOND)  # late enough to see whatever was sent
            attempt = operation.open_dispatches[-1].attempt
        intent, op = il.IntentId.of(branch, attempt, step), self.world.current(branch, step)
        answer = il.Applied() if what == "confirm" else self.world.truth(intent, value=what != "bare")
        expect = {"stale": seq - 1, "true": seq, "bare": seq}.get(what)
        value = self.world.receipt(op) if self.world.receiver.landings[op] else w.Receipt(0, 0, 0.0)
        scripts: dict[str, Callable[[], Any]] = {
            "supply": lambda: log.supply(intent, value, **SIGNED),
            "renew": lambda: log.renew(intent, **SIGNED),
        }
        script = scripts.get(what, lambda: log.resolve(intent, answer, expect_seq=expect, **SIGNED))
        result = self.act(process, script, befall)
        self.world.seen[f"decided: {what}"] += result is None
        if befall is None:
            assert what not in REFUSALS or isinstance(result, REFUSALS[what]), f"{what}: {result!r}"
            lacks = decided is not None and decided.fate is not Fate.REJECTED and decided.value_seq is None
            assert what != "supply" or (result is None) is lacks, f"{operation}: {result!r}"
            assert what != "renew" or isinstance(result, il.InDoubt) is bool(operation.open_dispatches), repr(result)

    def inspect(self, process: Process) -> None:
        """Open intents, contradictions and w.unfinished branches agree with the records."""
        log, live = process.log, self.world.disk.live
        listed, clashes, again = (
            self.act(process, what) for what in (log.open_intents, log.contradictions, log.unfinished)
        )
        rows = live.operations.items()
        expected = {(b, i.attempt, s): o.last_seq for (b, s, _), o in rows for i in o.intents if i.state in OPEN_STATES}
        assert {(i.intent_id.branch, i.intent_id.attempt, i.intent_id.step): i.seq for i in listed} == expected
        assert {(i.branch, i.step) for i in clashes} == {(b, s) for (b, s, _), o in rows if o.contradicts}
        for branch in live.branches:
            own = [i for i in listed if i.intent_id.branch == branch]
            doubts = {step for step, _, _ in w.open_dispatches(self.world.records(branch))}
            dispatched = {i.intent_id.step for i in own if i.state == State.DISPATCHED and i.resolution != "REPLAY"}
            assert dispatched == doubts, "what is done by a later call is listed as REPLAY until that is recorded"
            due = w.unfinished(self.world.records(branch), self.world.disk.owners | {process.store.owner}, own)
            assert due in (None, branch in {one.branch for one in again}), "unfinished branches"
            self.world.seen["listed as unfinished"] += due is True

    @invariant()
    def holds(self) -> None:
        """I1 to I6 and the folded rows in both images, the witness, and nothing lost that was acknowledged (I5)."""
        disk, receiver = self.world.disk, self.world.receiver
        lost = [seq for seq, stored in self.world.acked.items() if disk.durable.events.get(seq) is not stored]
        assert not lost, f"I5: acknowledged records are not durable: {lost}"
        assert not (repeated := receiver.repeated()), repeated
        for name, image in (("durable", disk.durable), ("live", disk.live))[: 1 + (disk.live is not disk.durable)]:
            for branch, row in image.branches.items():
                checked = (row.head_seq, row.head_chain, receiver.count())
                if self._checked.get((name, branch)) != checked:
                    self._checked[name, branch] = checked
                    assert not (found := w.broken(image, branch, receiver, disk.salt)), f"{name} image: {found}"


REFUSALS: Any = {"stale": (il.StaleDecision, il.NotInDoubt), "unknown": il.UnknownIntent, "idle": il.NotInDoubt}
WANTED: dict[str, Callable[[Operation], bool]] = {
    **dict.fromkeys(("true", "bare", "stale", "unknown"), lambda o: bool(o.open_dispatches)),
    "idle": lambda o: not o.open_dispatches and not o.contradicts,
    "confirm": lambda o: o.contradicts,
    **dict.fromkeys(("supply", "renew"), lambda o: not o.renewed),
}


class AsyncMachine(Machine):
    seen: ClassVar[Counter[str]] = Counter()
    is_async: ClassVar[bool] = True


class FaultyMachine(Machine):
    seen: ClassVar[Counter[str]] = Counter()
    offered: ClassVar[list[str]] = ["charge", "charge", "order", "push", "mail", "charge", "charge", "push"]


def search(kind: type[Machine], examples: int, **others: Any) -> None:
    run_state_machine_as_test(kind, settings=settings(QUIET, max_examples=examples, **others))


SITUATIONS = """KEYED replayed; UNSAFE replayed; READ replayed; error: in_doubt; error: fenced; error:
attempt_cancelled; error: outcome_not_recorded; error: outcome_unavailable; settled APPLIED by intentlog:probe;
settled NOT_APPLIED by intentlog:probe; settled APPLIED by ada; settled NOT_APPLIED by ada; settled SUPERSEDED by
intentlog:owner; settled NEVER_SENT by intentlog:owner; classified NEVER_SENT, RETRY; classified MAY_HAVE_BEEN_SENT,
RECALL; a key had expired; contradiction told; late outcome; a living owner was taken for dead;
cancelled, with an open dispatch; a renewed operation was called; decided: supply; poisoned and reopened; a crash
lost an EVENTUAL record; interrupted inside an append; listed as unfinished; power cut"""


@pytest.fixture(autouse=True)
def no_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools of other tests, of the same names, would keep a recovery from asking these ones' probes."""
    own = [*w.Tools.plain.values(), *w.Tools.awaited.values()]
    monkeypatch.setattr(declare, "_KNOWN", WeakValueDictionary({handle.number: handle for handle in own}))


@pytest.mark.parametrize("kind", [Machine, AsyncMachine])
def test_no_sequence_breaks_a_promise(kind: type[Machine]) -> None:
    """Rounds until every situation was met that a machine has to have met, to prove anything; some in any case."""
    wanted = SITUATIONS.replace("\n", " ").split("; ") + ["a thread ran on alone"] * kind.is_async
    for number in range(ROUNDS_MAX):
        search(type(f"{kind.__name__}{number}", (kind,), {}), EXAMPLES * TIMES)  # another name is another seed
        if number + 1 >= ROUNDS_MIN and all(kind.seen[what] for what in wanted):
            break
    print("\n".join(f"{count:7} {what}" for what, count in sorted(kind.seen.items())))
    assert not [what for what in wanted if not kind.seen[what]], "situations that were not met"


@pytest.mark.parametrize("fault", w.FAULTS)
def test_control_a_fault_that_is_built_in_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, faulty in w.FAULTS[fault]:
        monkeypatch.setattr(place, name, faulty)
    machine = type("FaultyMachine4", (FaultyMachine,), {})  # the name is the seed: by this one it takes a second
    with pytest.raises(AssertionError):
        search(machine, 200, phases=[Phase.generate])
