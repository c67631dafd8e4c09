"""What both faces share: they differ only in how they drive.

The engine holds the store and the settings, prepares scripts, and answers reads. Everything here is pure or blocking;
`log.sync` calls it on the caller's thread, `log.aio` on the writer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from threading import Condition
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from intentlog import failpoints
from intentlog.core import check, codec, lifecycle, recovery, restart
from intentlog.core.actions import BranchView, IntentId, Outcome, Plan, Script
from intentlog.core.effects import EffectKind, nanoseconds, stricter
from intentlog.core.records import End, Resolution, Settlement
from intentlog.core.state import OPEN_STATES, Branch, Intent, Operation, State
from intentlog.errors import (
    ArgumentDrift,
    ArgumentsNotRecordable,
    Fenced,
    InDoubt,
    LogDamaged,
    LogUnavailable,
    OutcomeUnavailable,
    Rejected,
    StepRequired,
    ToolMisdefined,
    UnguardedCall,
    UnknownIntent,
)
from intentlog.log.declare import VAULT, AnyTool, known_tool
from intentlog.log.hands import ToolHands, running
from intentlog.log.naming import check_name
from intentlog.log.secrecy import describe
from intentlog.log.steps import Steps
from intentlog.log.values import Applied, Entry, NotApplied, OpenIntent, Problem, Report, Settings, Unfinished
from intentlog.observe import LoggingObserver
from intentlog.ports import Clock, Counters, Observer, Store
from intentlog.run.duty import Duty
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore

UNSETTLED = frozenset({Resolution.ASK_PERSON, Resolution.PROBE})  # running the program again does not settle it alone


class AttemptState:
    """One open attempt of this process.

    Attributes:
        branch: its branch.
        owner: who it is in the branch's row.
        number: the attempt, from 1.
        steps: how its calls are named.
    """

    def __init__(self, branch: str, owner: str, number: int) -> None:
        self.branch = branch
        self.owner = owner
        self.number = number
        self.steps = Steps()
        self.is_open = True
        self.running = 0  # calls of it whose script has not ended, guarded by the engine's condition
        self.left = False
        self.visited: set[str] = set()
        self.secrets: frozenset[str] = frozenset()  # of all its calls: its close keeps an error's text


class Prepared(NamedTuple):
    """A guarded call, ready to be driven. Its `withdraw` is for a call that is never driven."""

    step: str
    script: Script[Outcome[Any]]
    hands: ToolHands
    withdraw: Callable[[], None]


class Engine:
    """A log without a face. Safe from any thread, but for what its driver does."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, observer: Observer) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.observer = observer
        self.duty = Duty(store, observer)
        self._attempts = count(1)
        self._running = 0
        self._idle = Condition()

    # --- guarded calls -----------------------------------------------------------------------------------------

    def new_owner(self) -> str:
        """Who the next attempt of this process is; counted as alive from now on."""
        owner = f"{self.store.owner}.{next(self._attempts)}"
        self.duty.held.add(owner)
        return owner

    def let_go(self, owner: str) -> None:
        """The attempt has ended: its owner is alive no more."""
        self.duty.held.discard(owner)

    def leave(self, attempt: AttemptState) -> None:
        """The attempt was closed. Its owner stays alive while a call of it runs: closing ends no call."""
        with self._idle:
            attempt.left = True
            self._let_go_if_over(attempt)

    def _let_go_if_over(self, attempt: AttemptState) -> None:
        if attempt.left and attempt.running == 0:
            self.let_go(attempt.owner)

    def opening(self, branch: str, owner: str) -> Script[restart.Opened]:
        """The script that opens the branch's next attempt."""
        return restart.open_attempt(branch, owner, _present)

    def prepare(
        self,
        attempt: AttemptState,
        handle: object,
        given: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_async: bool,
    ) -> Prepared:
        """Bind, encode and name a call. Whatever is wrong with it is raised here, before anything is recorded."""
        usable = _usable(handle, is_async=is_async)
        if not attempt.is_open:
            raise Fenced(f"attempt {attempt.number} of {attempt.branch!r} is closed", remedy="open another attempt.")
        bound = usable.signature.bind(args, kwargs, self.settings.argument_bytes_max)
        attempt.secrets |= bound.secrets
        step, number = attempt.steps.begin(usable, bound, given)
        intent = IntentId.of(attempt.branch, attempt.number, step)
        attempt.visited.add(step)
        if any((i.branch, i.step) == (intent.branch, step) for i in running.get()):
            attempt.steps.end(usable, number, decided=False, drifted=True)
            raise StepRequired(f"{usable.name} is called under the step that it is running in", intent_id=intent)
        plan = Plan(
            log=self.store.name,
            intent_id=intent,
            salt=self.store.salt,
            tool=usable.name,
            declaration=replace(usable.declaration, grace_ns=nanoseconds(self.settings.dispatch_grace)),
            arguments=bound.encoded,
            digest=bound.digest,
            kind_of=usable.kind_of,
            describe=partial(describe, secrets=bound.secrets),
            encode=partial(codec.encode_value, bytes_max=self.settings.result_bytes_max),
            decode=partial(codec.decode_value, of_type=usable.signature.returns),
            retry_times=usable.retry.times if usable.retry else 0,
            retry_backoff_ns=nanoseconds(usable.retry.backoff) if usable.retry else 0,
            implied_value=b"null" if usable.signature.returns in (None, type(None)) else None,
            read_durability=usable.durability,
            death_is_certain=self.store.death_is_certain,
        )
        script = self._watched(lifecycle.perform(plan), attempt, usable, number)
        return Prepared(
            step,
            script,
            ToolHands(usable, bound, self.settings.result_bytes_max),
            lambda: attempt.steps.end(usable, number, decided=False, drifted=False),
        )

    def _watched(
        self, script: Script[Outcome[Any]], attempt: AttemptState, handle: AnyTool, number: int | None
    ) -> Script[Outcome[Any]]:
        """Count the call as running until its script ends, however late, and say what became of its occurrence."""
        decided = drifted = False
        with self._idle:
            self._running += 1
            attempt.running += 1
        try:
            outcome = yield from script
            decided = True
        except (Rejected, OutcomeUnavailable):
            decided = True
            raise
        except ArgumentDrift:
            drifted = True
            raise
        finally:
            attempt.steps.end(handle, number, decided=decided, drifted=drifted)
            with self._idle:
                self._running -= 1
                attempt.running -= 1
                self._let_go_if_over(attempt)
                self._idle.notify_all()
        return outcome

    def closing(self, attempt: AttemptState, error: BaseException | None) -> Script[End]:
        """The script that closes an attempt, left with this exception or none."""
        attempt.is_open = False
        if error is None:
            wanted = End.COMPLETED
        elif isinstance(error, InDoubt):
            wanted = End.INDETERMINATE
        else:
            wanted = End.FAILED if isinstance(error, Exception) else End.CANCELLED
        return restart.close_attempt(
            attempt.branch, attempt.number, wanted, describe(error, attempt.secrets) if error else None
        )

    def check_not_inside_a_tool(self) -> None:
        """Refuse to wait for a call from inside it.

        Raises:
            ToolMisdefined: a tool closes the log that guards it.
        """
        if running.get():
            raise ToolMisdefined(f"a tool ({running.get()[-1]}) cannot close the log that guards it")

    def wait_until_idle(self) -> None:
        """Wait for running calls.

        Raises:
            ToolMisdefined: a tool waits for itself.
        """
        self.check_not_inside_a_tool()
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0)

    # --- restart and decisions --------------------------------------------------------------------------------

    def to_recover(self) -> list[str]:
        """The branches that a recovery has to look at."""
        self.duty.flush()
        doubtful = {branch for branch, _ in self.store.operations(None, open_only=True)}
        return sorted(doubtful | {branch for branch, row in self.store.branches(unfinished_only=True) if row.is_open})

    def recovering(self, branch: str) -> Script[list[restart.Classification]]:
        """The script that recovers one branch."""
        return restart.recover_branch(branch, _present, certain=self.store.death_is_certain)

    def resolving(self, intent_id: str, answer: object, by: str, why: str, expect_seq: int | None) -> Script[None]:
        """The script that records a decision about an intent in doubt."""
        if not isinstance(answer, Applied | NotApplied):
            raise ToolMisdefined(f"an intent is resolved as Applied(value) or NotApplied(), not {answer!r}")
        _check_said(by, why)
        payload = None
        if isinstance(answer, Applied) and answer.has_value:
            payload = self._value(cast("Applied[object]", answer).value)
        settlement = Settlement.APPLIED if isinstance(answer, Applied) else Settlement.NOT_APPLIED
        return restart.resolve(parse_intent(intent_id), settlement, payload, by, why, expect_seq)

    def supplying(self, intent_id: str, value: object, by: str, why: str) -> Script[None]:
        """The script that records the value of an operation that is done without one."""
        _check_said(by, why)
        return restart.supply(parse_intent(intent_id), self._value(value), by, why)

    def _value(self, value: object) -> bytes:
        try:
            return codec.encode_value(value, self.settings.result_bytes_max)
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the value cannot be recorded: {error}") from error

    def unvisited(self, attempt: AttemptState, end: End) -> None:
        """Tell loudly of steps that are done and that a completed attempt did not come by: a deploy renamed them?"""
        if end is not End.COMPLETED or attempt.number == 1:
            return
        operations = self.store.operations(attempt.branch, open_only=False)
        missed = sorted({o.step for _, o in operations if o.decided and not o.renewed} - attempt.visited)
        if missed:
            self.observer.unvisited(attempt.branch, missed)

    # --- reads ------------------------------------------------------------------------------------------------

    def open_intents(self) -> list[OpenIntent]:
        """Every intent without outcome or settlement."""
        self.duty.flush()
        return [
            self._open_intent(branch, operation, intent)
            for branch, operation in self.store.operations(None, open_only=True)
            for intent in operation.intents
            if intent.state in OPEN_STATES
        ]

    def _open_intent(self, branch: str, operation: Operation, intent: Intent) -> OpenIntent:
        view = self.duty.branch_view(branch)
        dispatches = [d for d in operation.dispatches if d.attempt == intent.attempt]
        calling = view.owner_lives and intent.attempt == view.branch.attempt and operation.calling(intent.attempt)
        todo = _todo(operation, view)
        return OpenIntent(
            intent_id=IntentId.of(branch, intent.attempt, operation.step),
            seq=operation.last_seq,
            tool=operation.tool,
            effect=operation.declaration.kind,
            state=intent.state,
            dispatched_at=_time(dispatches[-1].at.wall_ns) if dispatches else None,
            calling=calling,
            in_doubt=intent.state is State.DISPATCHED and not calling and todo in UNSETTLED,
            resolution=todo,
            contradicts=operation.contradicts,
        )

    def contradictions(self) -> list[IntentId]:
        """The operations of which a late outcome says other than what was settled."""
        return [
            IntentId.of(branch, operation.intents[-1].attempt, operation.step)
            for branch, operation in self.store.operations(None, open_only=False)
            if operation.contradicts
        ]

    def unfinished(self) -> list[Unfinished]:
        """The branches that a supervisor should run again."""
        self.duty.flush()
        found: list[Unfinished] = []
        for branch, row in self.store.branches(unfinished_only=True):
            view = self.duty.branch_view(branch)
            todo = [_todo(operation, view) for operation in view.operations if operation.open_dispatches]
            doubtful = any(one in UNSETTLED for one in todo)
            if not view.busy and (row.end is None or not doubtful):
                found.append(Unfinished(branch, row.attempt, row.end))
        return found

    def history(self, branch: str) -> Iterator[Entry]:
        """The records of a branch, oldest first."""
        self.duty.flush(check_name("branch", branch, slash=True))
        for stored in self.store.history(branch):
            try:
                payload = None if stored.payload is None else msgspec.json.decode(stored.payload)
            except msgspec.MsgspecError as error:
                raise LogDamaged(f"the payload of record {stored.seq} cannot be read: {error}") from error
            kind = type(stored.record).__name__
            yield Entry(stored.seq, kind, _time(stored.at.wall_ns), stored.record, payload)

    def verify(self) -> Report:
        """Hold the whole log against its file's own check, its chains, the rules and the invariants."""
        self.duty.flush()
        problems = [Problem("", 0, text) for text in self.store.integrity()]
        branches = records = total = 0
        try:
            for branch, row in self.store.branches(unfinished_only=False):
                found, read = self._verify_branch(branch, row)
                problems.extend(found)
                branches, records = branches + 1, records + read
            total = self.store.count()
        except LogDamaged as damage:
            problems.append(Problem("", 0, damage.message))
        else:
            if total != records and not problems:
                problems.append(Problem("", 0, f"{total - records} records belong to no branch's chain"))
        return Report(tuple(problems), total, branches)

    def _verify_branch(self, branch: str, row: Branch) -> tuple[list[Problem], int]:
        """What is wrong with one branch, and how many of its records could be read."""
        try:
            history = list(self.store.history(branch))
            operations = {(o.step, o.generation): o for _, o in self.store.operations(branch, open_only=False)}
        except LogDamaged as damage:
            return [Problem(branch, 0, damage.message)], 0
        findings = check.check_branch(branch, row, history, operations)
        return [Problem(branch, seq, text) for seq, text in findings], len(history)

    @property
    def counters(self) -> Counters:
        """Commits and syncs so far."""
        return self.store.counters


def open_engine(path: str | Path, settings: Settings, *, read_only: bool, vfs: str | None = None) -> Engine:
    """Open the log at a path.

    Raises:
        LogUnavailable, LogDamaged, LogInUse, FormatTooNew: as they say; nothing was written.
    """
    if "://" in str(path):
        raise LogUnavailable(f"{path}: this version keeps its logs in SQLite files only", remedy="name a file.")
    failpoints.arm_from_environment()
    clock, observer = SystemClock(), LoggingObserver()
    store = SqliteStore(Path(path), clock, observer, reader=read_only, vfs=vfs)
    return Engine(store, settings, clock, observer)


def parse_intent(text: str) -> IntentId:
    """An intent's identity from its text form.

    Raises:
        UnknownIntent: it has not the form BRANCH#ATTEMPT/STEP.
    """
    try:
        return text if isinstance(text, IntentId) else IntentId(text)
    except ValueError as error:
        raise UnknownIntent(str(error)) from error


def _check_said(by: object, why: object) -> None:
    for name, text in (("by", by), ("why", why)):
        if not isinstance(text, str) or not text.strip():
            raise ArgumentsNotRecordable(f"a decision needs {name}=: it stays in the log")


def _usable(handle: object, *, is_async: bool) -> AnyTool:
    """The tool, if it can be used as it is declared."""
    if not isinstance(handle, AnyTool):
        raise ToolMisdefined(f"{handle!r} is not a tool", remedy="decorate the function with @tool.")
    if not VAULT.has(handle):
        raise UnguardedCall(f"{handle.name} only looks like a tool: no function stands behind it")
    if handle.is_async and not is_async:
        raise ToolMisdefined(f"{handle.name} is async", remedy="use AsyncLog.")
    if handle.effect.kind is EffectKind.QUERYABLE and handle.prober is None:
        raise ToolMisdefined(f"{handle.name} is QUERYABLE and has no probe", remedy=f"add one: @{handle.name}.probe")
    return handle


def _todo(operation: Operation, view: BranchView) -> Resolution:
    """What is to be done about an operation now, by what was declared and what this program declares."""
    present = _present(operation.tool)
    declaration = stricter(operation.declaration, present) if present else operation.declaration
    return recovery.resolution(operation, declaration, view.branch, view.now)


def _present(name: str) -> Any:
    handle = known_tool(name)
    return handle.declaration if handle else None


def _time(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC)
