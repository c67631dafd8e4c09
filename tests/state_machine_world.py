"""The world of the state machine: a disk, clocks, processes on it, tools that end as drawn, and what befalls them.

A process dies by `Killed`, raised where it is killed; from then on its store answers nothing, and no line of its
clean-up reaches the disk. What other processes do at the same time is done inside its appends, calls and probes.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any

import msgspec
import state_machine_witness as w

import intentlog as il
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.core.effects import EffectKind
from intentlog.core.records import Stored
from intentlog.core.state import State
from intentlog.log.engine import Engine
from intentlog.store.memory import MemoryDisk, MemoryStore

SETTINGS = il.Settings(dispatch_grace=timedelta(seconds=w.GRACE_NS // w.SECOND))
SIGNED: Any = {"by": "ada", "why": "looked"}


class Killed(BaseException):
    """The process is gone."""


class Store(MemoryStore):
    """A store whose process can be killed at any append. Tells the world what it acknowledged."""

    def __init__(self, world: World, owner: str) -> None:
        self.world = world
        self.dead = False
        super().__init__(world.disk, world.clock, owner)
        self.death_is_certain = world.certain

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        self._check()
        self.world.reached("before", self)
        replies = super().append(entries)
        self.world.acknowledged(self, entries, replies)
        self.world.reached("after", self)
        return replies

    def _check(self) -> None:
        if self.dead:
            raise Killed
        super()._check()


class Process:
    """One process with the log open, and the attempts that it holds."""

    def __init__(self, world: World, name: str, *, is_async: bool) -> None:
        self.store = Store(world, name)
        self.attempts: dict[str, il.Attempt | il.AsyncAttempt] = {}
        engine = Engine(self.store, SETTINGS, world.clock, world)
        log = il.AsyncLog(lambda: engine)
        self.log: Any = world.run(log.__aenter__()) if is_async else il.Log(engine)

    def abandon(self) -> None:
        """Its threads end with it; nothing of it reaches the disk."""
        self.store.dead = True
        driver = getattr(self.log, "_driver_or_none", None)
        if driver is not None:
            driver.close()


class World:
    """Everything outside the programs, and the one thing that befalls them in each step."""

    def __init__(self, seen: Counter[str], loop: asyncio.AbstractEventLoop | None) -> None:
        self.seen = seen
        self.loop = loop
        self.disk = MemoryDisk()
        self.receiver = w.Receiver(self.disk.salt)
        self.clock = w.Clocks(self.receiver)
        self.certain = True
        self.power_lost = False
        self.acting: Store | None = None
        self.endings: list[w.Ending] = []
        self.mood = "truth"
        self.befall: w.Befall | None = None
        self.plan: tuple[Any, str | None, int, str] = (None, None, 7, "order")  # tool, step, amount, branch of the call
        self.calls: Counter[str] = Counter()
        self.called: set[tuple[w.Op, int]] = set()
        self.acked: dict[int, Stored] = {}
        self.eventual: dict[tuple[str, str], set[bytes]] = {}
        self.values: dict[w.Op, w.Receipt] = {}
        self._others = 0
        self._task: asyncio.Task[Any] | None = None
        self._told = threading.Event()
        w.Tools.world = self

    def run(self, answer: Any) -> Any:
        if self.loop is None or not inspect.iscoroutine(answer):
            return answer
        self._told.clear()
        self._task = self.loop.create_task(answer)
        self._task.add_done_callback(lambda _: self._told.set())
        return self.loop.run_until_complete(self._task)

    def interrupt(self) -> None:
        self.seen["interrupted inside an append"] += 1
        if self.loop is None:
            signal.raise_signal(signal.SIGUSR1)
        elif self._task is not None:
            self.loop.call_soon_threadsafe(self._task.cancel)

    def kill(self, store: Store, *, power: bool) -> None:
        """The process dies here; with a power cut, every process, and what was not synced."""
        self.seen["power cut" if power else "kill"] += 1
        store.dead = True
        self.disk.owners.discard(store.owner)
        if power:
            self.cut_power()
        raise Killed

    def cut_power(self, *, clock_lost: bool = False) -> None:
        self.power_lost = True
        self.disk.cut_power()
        self.clock.boot(clock_lost=clock_lost)

    # --- told by stores (I5) ---------------------------------------------------------------------------------------

    def acknowledged(self, store: Store, entries: Sequence[Append], replies: Sequence[Appended | Refused]) -> None:
        """Keep what was acknowledged; with a Pending or a close, what waited for it has to be durable."""
        for entry, reply in zip(entries, replies, strict=True):
            if isinstance(reply, Appended):
                self.acked[reply.seq] = self.disk.live.events[reply.seq]
                self._note(entry.record, reply)
                if isinstance(entry.record, r.Pending | r.AttemptClosed):
                    waited = self.eventual.pop((store.owner, entry.branch), set())
                    assert waited <= self.noted("durable"), "I5: an EVENTUAL record was left behind"

    def _note(self, record: r.Record, reply: Appended) -> None:
        match record:
            case r.Settled():
                self.seen[f"settled {record.settlement} by {record.by}"] += 1
            case r.Classified():
                self.seen[f"classified {record.classification}, {record.resolution}"] += 1
            case r.Committed() if record.attempt != reply.view.branch.attempt:
                self.seen["late outcome"] += 1
            case _:
                pass

    def noted(self, image: str) -> set[bytes]:
        """The payloads of the application events of an image."""
        events = getattr(self.disk, image).events.values()
        return {e.payload for e in events if isinstance(e.record, r.ApplicationEvent) and e.payload}

    def reached(self, point: str, store: Store) -> None:
        """A point of a process is reached; if its time has come, what was drawn befalls it."""
        if self.befall is None or self.befall.point != point or store is not self.acting:
            return
        if self.befall.nth > 0:
            self.befall = self.befall._replace(nth=self.befall.nth - 1)
            return
        what, self.befall = self.befall.what, None
        if what in ("kill", "power"):
            self.kill(store, power=what == "power")
        elif what == "interrupt":
            self.interrupt()
        else:
            Context().run(self.meanwhile, what, store)  # another process: no mark of a running tool is upon it

    def meanwhile(self, what: str, store: Store) -> None:
        """What happens elsewhere while the process stands still here. A lease lapses by it; a lock does not."""
        self.seen[f"meanwhile: {what}"] += 1
        if what == "pause":
            self.clock.advance(w.GRACE_NS + w.SECOND)
        elif what == "hours":
            self.clock.advance(2 * w.WINDOW_NS)
        elif what == "back":
            self.clock.set_back("seconds")
        else:
            if not self.certain and what != "cancel":
                self.disk.owners.discard(store.owner)
                self.seen["a living owner was taken for dead"] += 1
            self._elsewhere(what)

    def _elsewhere(self, what: str) -> None:
        acting, endings, self.endings = self.acting, self.endings, []
        self._others += 1
        self.acting = Store(self, f"other-{self._others}")
        try:
            with il.Log(Engine(self.acting, SETTINGS, self.clock, self)) as log:
                self._decide(log, what)
        except il.IntentLogError as error:
            self.seen[f"elsewhere: {error.code}"] += 1
        finally:
            self.acting, self.endings = acting, endings

    def _decide(self, log: il.Log, what: str) -> None:
        tool, step, amount, branch = self.plan
        match what:
            case "recover":
                log.recover()
            case "cancel":
                log.cancel(branch, **SIGNED)
            case "takeover":
                with log.attempt(branch) as attempt:
                    if not tool.is_async:
                        (attempt.step(step) if step else attempt).call(tool, amount)
            case "renew":
                rows = [(s, o) for (b, s, _), o in self.disk.live.operations.items() if b == branch]
                for name, operation in rows[-1:]:
                    log.renew(f"{branch}#{operation.intents[-1].attempt if operation.intents else 1}/{name}", **SIGNED)
            case _:
                found = [i for i in log.open_intents() if i.intent_id.branch == branch and i.state == State.DISPATCHED]
                for intent in found:
                    self.clock.advance(w.LATE_ENOUGH_NS)
                    log.resolve(intent.intent_id, self.truth(intent.intent_id, value=True), **SIGNED)

    def truth(self, intent_id: Any, *, value: bool) -> il.Applied[Any] | il.NotApplied:
        """What a person finds who looks late enough."""
        op = self.current(intent_id.branch, intent_id.step)
        if not self.receiver.landings[op]:
            return il.NotApplied()
        return il.Applied(self.receipt(op)) if value else il.Applied()

    def current(self, branch: str, step: str) -> w.Op:
        generations = [g for b, s, g in self.disk.live.operations if (b, s) == (branch, step)]
        return w.Op(branch, step, max(generations, default=1))

    def receipt(self, op: w.Op) -> w.Receipt:
        """What the receiver would answer of an operation that it has: of its first effect."""
        return w.Receipt(self.receiver.landings[op][0].effect, op.generation, 1.0)

    def permitted(self, kind: EffectKind, call: il.Call) -> w.Request:
        """A call has begun: hold it against what is durable (I1), and its process against poison (I8)."""
        store, intent = self.acting, call.intent_id
        assert store is not None
        assert not store.dead
        assert not store.poisoned, "I8: a call after a commit whose fate is unknown"
        op = self.receiver.operation_of(intent.branch, intent.step, call.request_id)
        self.calls[store.owner] += 1
        if kind is not EffectKind.READ:
            permissions = [
                (e.branch, e.record.step, e.record.generation, e.record.attempt, e.record.dispatch_no)
                for e in self.disk.durable.events.values()
                if isinstance(e.record, r.Dispatched)
            ]
            assert (*op, intent.attempt, call.dispatch_no) in permissions, "I1: a call without a durable Dispatched"
            assert (op, call.dispatch_no) not in self.called, "I1: two calls of one Dispatched"
            self.called.add((op, call.dispatch_no))
            self.seen["a renewed operation was called"] += op.generation > 1
        return w.Request(op, kind, call.request_id, intent.attempt, call.dispatch_no)

    def serve(self, kind: EffectKind, call: il.Call) -> w.Receipt:
        request, begun_ns = self.permitted(kind, call), self.receiver.now_ns
        self._reached("call")
        return self._end(self._next_ending(), request, begun_ns)

    async def serve_async(self, kind: EffectKind, call: il.Call) -> w.Receipt:
        """An async tool's body. What happens elsewhere meanwhile happens in another thread, as in another process."""
        request, begun_ns = self.permitted(kind, call), self.receiver.now_ns
        await asyncio.to_thread(self._reached, "call") if self._waits_at("call") else None
        ending = self._next_ending()
        if ending in w.STOPS:
            task = asyncio.current_task()
            assert task is not None
            if ending is w.Ending.STOPPED_LANDED and self.receiver.now_ns <= begun_ns + w.LIMIT_NS:
                await asyncio.to_thread(self._land, request)
            self.seen[f"call {ending}"] += 1
            task.cancel()
            await asyncio.sleep(0)
        if self._waits_at("called"):
            return await asyncio.to_thread(self._end, ending, request, begun_ns)
        return self._end(ending, request, begun_ns)

    def _next_ending(self) -> w.Ending:
        return self.endings.pop(0) if self.endings else w.Ending.RETURNED

    def _waits_at(self, point: str) -> bool:
        return self.befall is not None and self.befall.point == point

    def _reached(self, point: str) -> None:
        if self.acting is not None:
            self.reached(point, self.acting)

    def _land(self, request: w.Request) -> w.Receipt:
        effect = 1 if request.kind is EffectKind.READ else self.receiver.land(request)
        receipt = w.Receipt(effect, request.op.generation, 1.0)
        self._reached("called")
        return receipt

    def _end(self, ending: w.Ending, request: w.Request, begun_ns: int) -> w.Receipt:
        self.seen[f"call {ending}"] += 1
        if ending in w.STOPS and self.loop is not None and self._task is not None:
            self.loop.call_soon_threadsafe(self._task.cancel)  # its caller goes, this thread runs on
            assert self._told.wait(10)
            self.seen["a thread ran on alone"] += 1
            ending = w.Ending.LOST if ending is w.Ending.STOPPED else w.Ending.RETURNED
        receipt = w.Receipt(0, 0, 0.0)
        if self.receiver.now_ns > begun_ns + w.LIMIT_NS and ending not in w.NOTHING_LANDS:
            ending = w.Ending.KILLED if ending in w.KILLS else w.Ending.LOST  # a tool keeps its time limit
        if ending in w.LANDS_LATE and request.kind is not EffectKind.READ:
            self.receiver.send_late(request, begun_ns)
        elif ending not in w.NOTHING_LANDS:
            receipt = self._land(request)
        if ending in w.KILLS:
            assert self.acting is not None
            self.kill(self.acting, power=False)
        if ending not in (w.Ending.RETURNED, w.Ending.UNSTORABLE):
            raise w.RAISES.get(ending, TimeoutError)("as drawn")
        return receipt if ending is w.Ending.RETURNED else w.Receipt(receipt.number, receipt.amount, math.nan)

    def probe(self, call: il.Call) -> il.Applied[w.Receipt] | il.NotApplied | il.Unknown:
        """A probe's body: what the receiver shows, whether or not that is all that was sent."""
        op = self.receiver.operation_of(call.intent_id.branch, call.intent_id.step, call.request_id)
        shown = self.receiver.shows(op)
        receipt = self.receipt(op) if shown else None
        self.seen[f"probe: {self.mood}"] += 1
        self._reached("probe")
        if self.mood == "raises":
            raise ConnectionError("no answer")
        if self.mood == "unknown":
            return il.Unknown()
        if receipt is None:
            return il.NotApplied()
        return il.Applied() if self.mood == "bare" else il.Applied(receipt)

    def judge_outcome(self, outcome: il.Outcome[Any], made: int, kind: EffectKind) -> None:
        """Equal values and types in every replay, one request id for an operation, and `replayed` says what was."""
        intent, value = outcome.intent_id, outcome.value
        op = self.receiver.operation_of(intent.branch, intent.step, outcome.request_id)
        assert type(value) is w.Receipt
        assert outcome.replayed is (made == 0), f"replayed is {outcome.replayed}, calls made now: {made}"
        self.seen[f"{kind} {'replayed' if outcome.replayed else 'called'}"] += 1
        if kind is EffectKind.READ:
            stored = [e.payload for e in self.records(op.branch) if getattr(e.record, "step", "") == op.step]
            recorded = [msgspec.json.decode(payload, type=w.Receipt) for payload in stored if payload]
            assert not outcome.replayed or value in recorded
            return
        assert self.receiver.landings[op], "done, and nothing landed"
        if not math.isnan(value.rate):
            assert self.values.setdefault(op, value) == value, "a replay answered another value"

    def judge_error(self, error: il.IntentLogError, before: Iterable[tuple[str, str, int]], sent: set[w.Op]) -> None:
        """`effect_ran` is true: of a generation that it can be about, and but for what others did meanwhile."""
        self.seen[f"error: {error.code}"] += 1
        self.seen["a key had expired"] += "forgotten the key" in error.message
        if error.intent_id is None or isinstance(error, il.UnknownIntent):
            return
        intent, live = il.IntentId(error.intent_id), self.disk.live.operations
        where = (intent.branch, intent.step)
        first, last = (max((g for b, s, g in image if (b, s) == where), default=1) for image in (before, live))
        ops = [w.Op(*where, generation) for generation in range(first, last + 1)]
        row = live.get(ops[-1])
        if row is not None and row.declaration.kind is not EffectKind.READ:
            ran = all(op in sent or self.receiver.touched(op, intent.attempt) for op in ops)
            assert error.effect_ran != "no" or not ran, f"it ran: {error!r}"
            assert error.effect_ran != "yes" or any(self.receiver.landings[op] for op in ops), f"it did not: {error!r}"

    def kept(self) -> list[int]:
        """The places of all records but the EVENTUAL ones, which travel with whatever comes next."""
        events = self.disk.live.events.values()
        return [e.seq for e in events if not isinstance(e.record, r.ApplicationEvent | r.Committed)]

    def records(self, branch: str) -> list[Stored]:
        return [e for e in self.disk.live.events.values() if e.branch == branch]

    # --- what a person should hear of: see `ports.Observer` ---------------------------------------------------------

    def contradiction(self, intent_id: str, detail: str) -> None:
        self.seen["contradiction told"] += 1

    def unvisited(self, branch: str, steps: Sequence[str]) -> None:
        self.seen["unvisited steps told"] += 1

    def poisoned(self, log: str, detail: str) -> None:
        pass
