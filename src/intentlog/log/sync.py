"""The log on the caller's threads: `Log`, `Attempt`, `Step`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakValueDictionary

from intentlog.core.actions import IntentId, Outcome
from intentlog.core.effects import nanoseconds
from intentlog.core.records import Durability
from intentlog.core.restart import Classification
from intentlog.errors import BranchBusy, IntentLogError, LogClosed, WrongProcess
from intentlog.log.declare import AnyTool, Tool
from intentlog.log.engine import AttemptState, Engine, open_engine
from intentlog.log.naming import check_name
from intentlog.log.recovering import telling
from intentlog.log.step import Step
from intentlog.log.values import (
    Applied,
    Cancelled,
    Entry,
    NotApplied,
    OpenIntent,
    Progress,
    Recovered,
    Report,
    Settings,
    Unfinished,
)
from intentlog.ports import Counters
from intentlog.run.signals import held_back
from intentlog.run.sync import SyncDriver

P = ParamSpec("P")
R = TypeVar("R")
BUSY_POLL_S = 0.05


class Log:
    """A log of intents. Use `Log.open`. Safe from any number of threads; not across a fork."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driver = SyncDriver(engine.duty, engine.clock)

    @classmethod
    def open(cls, path: str | Path, *, settings: Settings | None = None, read_only: bool = False) -> Log:
        """Open the log at `path`, making it if it is not there.

        Args:
            path: a file on a local disk. Beside it stand its WAL (`-wal`, `-shm`) and a folder for locks (`.d`). Or a
                URL, `postgresql://...`, for workers on many machines (docs/postgresql.md).
            settings: sizes and times; see `Settings`.
            read_only: read without a writer's rights; nothing is made.

        Raises:
            LogUnavailable: no such folder, no rights, no room, a network file system, held by another process; a
                server that cannot be reached, or that acknowledges what it can lose.
            LogDamaged, FormatTooNew: it is not a log, or a newer one.
            LogInUse: this process has it open already.
        """
        log: Log | None = None
        try:
            with held_back():  # else an interrupt could leave it open with nobody to close it
                log = cls(open_engine(path, Settings() if settings is None else settings, read_only=read_only))
            return log  # noqa: RET504 - bound, so that it can be closed; inside, so that nothing stands in between
        except BaseException:
            if log is not None:
                log.close()
            raise

    def attempt(self, branch: str, *, wait: timedelta | None = None, revisits: bool = True) -> Attempt:
        """The next attempt at a branch, to be used as a context manager.

        Entering it fences every earlier attempt and classifies what they left open. Leaving it closes the attempt:
        COMPLETED, FAILED or CANCELLED by how the block was left, INDETERMINATE if a dispatch has no outcome.

        Args:
            branch: one line of execution: 1 to 255 printable characters.
            wait: how long to wait for a branch that a living owner holds; not at all by default.
            revisits: whether a further attempt runs the same program again, and comes by every recorded step: then it
                is warned of those that it did not. False for a conversation, each of whose steps is made once.
        """
        return Attempt(self._engine, self._driver, check_name("branch", branch, slash=True), wait, revisits=revisits)

    def run(self, branch: str, work: Callable[[Attempt], R], *, wait: timedelta | None = None) -> R:
        """Open an attempt, run `work(attempt)` in it, close it, and return what `work` returned."""
        with self.attempt(branch, wait=wait) as attempt:
            return work(attempt)

    def recover(self, told: Callable[[Recovered], object] | None = None) -> list[Classification]:
        """Classify what dead owners left open, and let the probes of known tools answer. Calls no tool.

        Appends nothing when nothing changed; lists the doubts that are still open each time. Branches with a living
        owner are left alone. Several processes may do so at once: each conclusion is recorded by one of them.

        Args:
            told: is called after each branch of which this recovery itself recorded something, whatever ends it.
        """
        hands = self._engine.recovery_hands()
        found: list[Classification] = []
        for branch in self._engine.to_recover():
            with telling(branch, told) as noted:
                noted.concluded = self._driver.run(self._engine.recovering(branch, noted), hands)
                found.extend(noted.concluded)
        return found

    def recoverable(self) -> list[str]:
        """The branches that a `recover` now would write about, or whose probes it would ask. Writes nothing."""
        return self._engine.recoverable()

    def unfinished(self) -> list[Unfinished]:
        """The branches that a supervisor should run again: their owner died, or their doubts are settled by now."""
        return self._engine.unfinished()

    def abandoned(self, *, but: Collection[tuple[str, int]] = ()) -> list[Unfinished]:
        """The attempts that their owners died with, in other processes; but for those of these branches and numbers."""
        return self._engine.abandoned(but)

    def open_intents(self) -> list[OpenIntent]:
        """Every intent without outcome or settlement."""
        return self._engine.open_intents()

    def open_calls(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[OpenIntent]:
        """Every open intent, in whatever branch, of a call equal to this one: of that tool, with equal arguments."""
        return self._engine.open_calls(tool, args, kwargs)

    def contradictions(self) -> list[IntentId]:
        """The operations of which a late outcome says other than what was settled."""
        return self._engine.contradictions()

    def history(self, branch: str, *, after: int = 0) -> Iterator[Entry]:
        """The records of a branch, oldest first, streamed; with `after`, those that stand after this `seq`."""
        return self._engine.history(branch, after)

    def resolve(
        self, intent_id: str, answer: Applied[Any] | NotApplied, *, by: str, why: str, expect_seq: int | None = None
    ) -> None:
        """Decide an intent in doubt, as a person (or a program in one's name).

        Args:
            intent_id: the intent, as `order-1042#2/charge`.
            answer: `Applied(value)`, with the value that a replay shall return if it is known, or `NotApplied()`.
            by: who decides.
            why: on what grounds.
            expect_seq: the `seq` that the decision was prepared at; refused if the operation moved on since.

        Raises:
            UnknownIntent, NotInDoubt, StaleDecision: nothing was recorded.
        """
        self._driver.run(self._engine.resolving(intent_id, answer, by, why, expect_seq))

    def supply(self, intent_id: str, value: object, *, by: str, why: str) -> None:
        """Give the value of an effect that is done without one, so that it can be replayed.

        Raises:
            UnknownIntent, NotInDoubt: it is not there, or needs no value; nothing was recorded.
        """
        self._driver.run(self._engine.supplying(intent_id, value, by, why))

    def renew(self, intent_id: str, *, by: str, why: str, expect_seq: int | None = None) -> None:
        """Decide that an effect shall happen once more: the step's next call is a new operation with a key of its own.

        For what is done, rejected or did not happen, and is wanted again; other arguments are fine then. It also
        closes a contradiction: the old operation's outcomes are history.

        Args:
            intent_id: the intent, as `order-1042#2/charge`.
            by: who decides.
            why: on what grounds.
            expect_seq: the `seq` that the decision was prepared at; refused if the operation moved on since.

        Raises:
            UnknownIntent: it is not there. InDoubt: it may have been sent; resolve it first.
            NotInDoubt: it is about to be called, or was renewed and not called since.
            StaleDecision: it moved on. In each case nothing was recorded.
        """
        self._driver.run(self._engine.renewing(intent_id, by, why, expect_seq))

    def cancel(self, branch: str, *, by: str, why: str) -> Cancelled:
        """Ask that a branch's attempt send nothing more, from any process; later attempts are not touched.

        Its owner's next effect raises `AttemptCancelled`; a call in flight is not ended, and its outcome is recorded.
        A dead owner's attempt is closed at once. `log.unfinished()` does not list it any more.

        Returns:
            Cancelled: `.verdict` CANCELLED, or INDETERMINATE while a dispatch has no outcome; `.open_intents`.

        Raises:
            UnknownIntent: no attempt at the branch was ever opened.
            NotInDoubt: its last attempt has ended and nothing of it is in doubt. Nothing was recorded.
        """
        return self._engine.cancelled(branch, self._driver.run(self._engine.cancelling(branch, by, why)))

    def append(
        self, branch: str, kind: str, payload: object = None, *, durability: Durability = Durability.EVENTUAL
    ) -> None:
        """Add a program's own event to a branch's history. It changes nothing that the log decides.

        Args:
            branch: the branch, whoever owns it; it need not be there yet.
            kind: what the event is, 1 to 255 characters.
            payload: any value that can be recorded.
            durability: EVENTUAL costs no commit: it is durable with the branch's next record, or when the log is
                closed. IMMEDIATE is durable when this returns.

        Raises:
            ArgumentsNotRecordable: nothing was recorded.
        """
        self._driver.run(self._engine.noting(branch, kind, payload, durability))

    def tail(self, count: int = 10, *, after: int | None = None) -> list[Entry]:
        """The newest records of the whole log, oldest first.

        Args:
            count: how many, 0 or more.
            after: in place of a count: all that stand after this `seq`.
        """
        return self._engine.tail(count, after)

    def verify(self, progress: Progress | None = None) -> Report:
        """Hold the whole log against its digests, the rules and the invariants.

        It may run beside those who write: each branch is read as it stood at one moment. Its memory does not depend on
        the log's length.

        Args:
            progress: is called with how many records are checked, and how many there were at the beginning: at the
                beginning, after each thousand, and at the end. What it raises ends the check.
        """
        return self._engine.verify(progress)

    @property
    def counters(self) -> Counters:
        """How many commits and syncs were made for records."""
        return self._engine.counters

    def close(self) -> None:
        """Wait for running calls, write what waits, and let go. Idempotent.

        Raises:
            LogPoisoned, LogUnavailable: records of READs were waiting and could not be written. It is closed anyway.
        """
        try:
            self._engine.store.check_process()
        except WrongProcess:
            return  # a forked child has nothing of it to let go
        self._driver.check_not_driving()
        self._engine.wait_until_idle()
        with held_back():
            try:
                self._engine.duty.close()
            finally:
                self._engine.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except IntentLogError:
            if error is None:
                raise  # with an error on its way, that one tells more


class Attempt:
    """One try at a branch. Use `Log.attempt` in a `with` statement. Safe from any number of threads."""

    def __init__(
        self, engine: Engine, driver: SyncDriver, branch: str, wait: timedelta | None, *, revisits: bool = True
    ) -> None:
        self._engine = engine
        self._driver = driver
        self._branch = branch
        self._revisits = revisits
        self._wait_s = nanoseconds(wait) / 1e9 if wait is not None else 0.0
        self._opened: AttemptState | None = None
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._locks_lock = Lock()
        self.classifications: list[Classification] = []

    @property
    def number(self) -> int:
        """Which attempt of its branch it is, from 1."""
        return self._state.number

    def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a tool under the guard, and return what it returns, or what the record says that it returned.

        Raises:
            InDoubt: it may have been sent, and its class cannot settle it.
            Rejected: the receiver gave a definite no, now or in the record.
            NotSent, Suspended: nothing left; call again.
            ArgumentsNotRecordable, ArgumentDrift, StepRequired: a mistake of the program; nothing was sent by this.
            OutcomeUnavailable: it is done, and its value cannot be had.
            OutcomeNotRecorded: it is done, and that could not be written; the error carries the outcome.
            Fenced, AttemptCancelled: this attempt may do no more.
        """
        value: R = self._perform(tool, None, args, kwargs).value
        return value

    def perform(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Like `call`, but answers the whole `Outcome`: value, replayed, intent_id, request_id."""
        return self._perform(tool, None, args, kwargs)

    def step(self, name: str) -> Step:
        """Name the step of the next call: `attempt.step("refund-1").call(refund, ...)`."""
        return Step(self._perform, check_name("step", name, slash=False))

    def _perform(self, tool: AnyTool, step: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
        engine, driver = self._engine, self._driver
        prepared = engine.prepare(self._state, tool, step, args, kwargs, is_async=False)
        try:
            driver.check_not_driving()
            outcome = prepared.replayed(engine.duty)
            if outcome is not None:
                return outcome
            with self._lock_of(prepared.step):
                return driver.run(prepared.script(), prepared.hands())
        finally:
            prepared.withdraw()  # a script that was never begun could not say that its call has ended

    def _lock_of(self, step: str) -> Lock:
        """A concurrent call of one step waits, and gets the recorded outcome."""
        with self._locks_lock:
            return self._locks.setdefault(step, Lock())

    @property
    def _state(self) -> AttemptState:
        if self._opened is None:
            raise LogClosed("the attempt is not open: use `with log.attempt(...) as attempt`")
        return self._opened

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise LogClosed("an attempt is entered once; ask the log for another")
        deadline_s = time.monotonic() + self._wait_s
        busy = False
        try:
            while not busy and not self._try():
                time.sleep(BUSY_POLL_S)
                busy = time.monotonic() >= deadline_s
        except BaseException:
            self._leave()
            raise
        if busy:
            raise BranchBusy(f"branch {self._branch!r} is held by a living owner")
        return self

    def _leave(self) -> None:
        """Hold the branch no longer: nobody will leave an attempt whose entering was interrupted."""
        if self._opened is not None:
            self._opened.left = True

    def _try(self) -> bool:
        """Try once to open the attempt. False: the branch is busy, and there is time to wait."""
        state = self._engine.new_attempt(self._branch)
        try:
            opened = self._driver.run(self._engine.opening(self._branch, state.owner))
            state.number = opened.attempt
            state.is_replaying = opened.attempt > 1
            self.classifications = opened.classifications
            self._opened = state
        except BranchBusy:
            if self._wait_s <= 0:
                raise
        finally:
            state.left = self._opened is None
        return self._opened is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            state, engine = self._state, self._engine
            end = self._driver.run(engine.closing(state, error))
            if self._revisits:
                engine.unvisited(state, end)
        except IntentLogError:
            if error is None:
                raise  # with an error on its way, that one tells more
        finally:
            self._leave()
