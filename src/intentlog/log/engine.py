"""What both faces share: they differ only in how they drive.

The engine holds the store and the settings, prepares scripts, and answers reads. Everything here is pure or blocking;
`log.sync` calls it on the caller's thread, `log.aio` on the writer's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from inspect import GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from itertools import count
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from msgspec.structs import replace

from intentlog import failpoints
from intentlog.core import codec, restart
from intentlog.core.actions import IntentId, Load, Plan, Script, View
from intentlog.core.effects import Declaration, EffectKind, nanoseconds
from intentlog.core.records import End
from intentlog.core.state import Operation
from intentlog.errors import (
    ArgumentsNotRecordable,
    EffectRan,
    Fenced,
    InDoubt,
    LogUnavailable,
    StepRequired,
    ToolMisdefined,
)
from intentlog.log.deciding import Deciding
from intentlog.log.declare import AnyTool
from intentlog.log.hands import RecoveryHands, running
from intentlog.log.prepared import Prepared
from intentlog.log.recovering import Noted, has_work
from intentlog.log.sealing import Payloads
from intentlog.log.secrecy import describe
from intentlog.log.steps import Steps
from intentlog.log.toolbox import Toolbox
from intentlog.log.values import Settings
from intentlog.observe import LoggingObserver
from intentlog.ports import Clock, Counters, Observer, Store
from intentlog.run.duty import Duty
from intentlog.store.clock import SystemClock
from intentlog.store.sqlite import SqliteStore
from intentlog.store.trust import check_link, check_mount

if TYPE_CHECKING:
    from intentlog.store.postgres import PostgresStore

SCRIPTS_MIN = 32
IDLE_POLL_S = 0.01  # how often a log that is being closed looks whether its calls have ended


class AttemptState:
    """One attempt of this process, from before it is opened.

    Attributes:
        branch: its branch.
        owner: who it is in the branch's row.
        number: the attempt, from 1; 0 until it is open.
        steps: how its calls are named.
        is_open: whether it may begin calls.
        left: whether it was closed, or nobody will close it any more.
        visited: the steps that it came by.
        secrets: what is to be masked in an error that its close keeps.
        payloads: writes and reads the payloads of its branch.
        is_replaying: whether its next call is likely to be answered from the record.
        templates: of the plans of its tools, by their names, with the declaration that each was made for.
    """

    def __init__(self, branch: str, owner: str, payloads: Payloads) -> None:
        self.branch = branch
        self.owner = owner
        self.payloads = payloads
        self.is_replaying = False
        self.templates: dict[str, tuple[Declaration, Plan]] = {}
        self.number = 0
        self.steps = Steps()
        self.is_open = True
        self.left = False
        self.visited: set[str] = set()
        self.secrets: frozenset[str] = frozenset()
        self._scripts: list[ref[Script[Any]]] = []
        self._scripts_max = SCRIPTS_MIN  # so many, then those that are gone are left out
        self._scripts_lock = RLock()

    def watch(self, script: Script[Any]) -> None:
        """Count a call of it as running for as long as its script has begun and not ended."""
        with self._scripts_lock:
            self._scripts.append(ref(script))
            if len(self._scripts) > self._scripts_max:
                self._scripts = [one for one in self._scripts if one() is not None]
                self._scripts_max = SCRIPTS_MIN + 2 * len(self._scripts)

    @property
    def is_calling(self) -> bool:
        """Whether a call of it still runs. Asked of the scripts themselves: a count could be left wrong by a signal."""
        with self._scripts_lock:
            scripts = [one() for one in self._scripts]
        return any(one is not None and getgeneratorstate(one) in (GEN_RUNNING, GEN_SUSPENDED) for one in scripts)

    @property
    def lives(self) -> bool:
        """Whether it holds its branch: it was not left, or a call of it still runs: closing ends no call."""
        return not self.left or self.is_calling


class Engine(Deciding):
    """A log without a face. Safe from any thread, but for what its driver does."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, observer: Observer) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.observer = observer
        self.duty = Duty(store, observer, self._holds)
        self.tools = Toolbox()
        self.is_closing = False
        self._numbers = count(1)
        self._attempts: WeakValueDictionary[str, AttemptState] = WeakValueDictionary()

    # --- guarded calls -----------------------------------------------------------------------------------------

    def new_attempt(self, branch: str) -> AttemptState:
        """An attempt about to be opened; its owner is alive from now on, until it is left or forgotten.

        Raises:
            LogClosed: the log is being closed.
        """
        self.check_open()
        attempt = AttemptState(branch, f"{self.store.owner}.{next(self._numbers)}", self.payloads(branch))
        self._attempts[attempt.owner] = attempt
        return attempt

    def _holds(self, owner: str) -> bool:
        attempt = self._attempts.get(owner)
        return attempt is not None and attempt.lives

    def opening(self, branch: str, owner: str) -> Script[restart.Opened]:
        """The script that opens the branch's next attempt."""
        return restart.open_attempt(branch, owner, self.tools.declaration_of)

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
        usable = self.tools.usable(handle, is_async=is_async)
        self.check_open()
        if not attempt.is_open:
            raise self._closed(attempt, given)
        bound = usable.signature.bind(args, kwargs, self.settings.argument_bytes_max)
        template = self._template(attempt, usable)
        payloads = attempt.payloads
        arguments, digest = bound.encoded, bound.digest
        if payloads.codec:
            try:
                arguments, digest = payloads.sealed(bound.encoded), payloads.digest(bound.encoded)
            except codec.NotRecordable as error:
                raise ArgumentsNotRecordable(f"the arguments cannot be recorded: {error}") from error
        if bound.secrets:
            attempt.secrets |= bound.secrets
        step, unnamed = attempt.steps.begin(usable, bound, given)
        intent = IntentId.of(attempt.branch, attempt.number, step)
        attempt.visited.add(step)
        inside = running.get()
        if inside and (attempt.branch, step) in [(one.branch, one.step) for one in inside]:
            attempt.steps.end(usable, unnamed, decided=False, drifted=True)
            raise StepRequired(f"{usable.name} is called under the step that it is running in", intent_id=intent)
        plan = replace(
            template,
            intent_id=intent,
            arguments=arguments,
            digest=digest,
            describe=partial(describe, secrets=bound.secrets) if bound.secrets else describe,
            encode=partial(payloads.value, unwritten=bound.unwritten) if bound.unwritten else payloads.value,
            unkeyed_digest=bound.digest if payloads.codec else "",
        )
        return Prepared(attempt, usable, bound, step, unnamed, plan)

    def _closed(self, attempt: AttemptState, given: str | None) -> Fenced:
        """That an attempt is closed, with what is known of the effect, if its step was named."""
        about = f"attempt {attempt.number} of {attempt.branch!r} is closed"
        if given is None:
            return Fenced(about, remedy="open another attempt.")
        ran: EffectRan = "unknown"
        if not self.store.is_remote:  # else it would have to be waited for, on an event loop perhaps
            view: View = self.duty.do(Load(attempt.branch, given))
            ran = view.operation.effect_ran if view.operation else "no"
        intent = IntentId.of(attempt.branch, attempt.number, given)
        return Fenced(about, intent_id=intent, effect_ran=ran, remedy="open another attempt.")

    def _template(self, attempt: AttemptState, handle: AnyTool) -> Plan:
        """What is alike in all plans of an attempt for one tool; made once."""
        found = attempt.templates.get(handle.name)
        if found is not None and found[0] is handle.declaration:  # else it is new, its twin, or it got a probe since
            return found[1]
        returns = handle.signature.returns
        template = Plan(
            log=self.store.name,
            intent_id=IntentId.of(attempt.branch, attempt.number, "?"),
            salt=self.store.salt,
            tool=handle.name,
            declaration=replace(handle.declaration, grace_ns=nanoseconds(self.settings.dispatch_grace)),
            arguments=b"",
            digest="",
            kind_of=handle.kind_of,
            describe=describe,
            encode=attempt.payloads.value,
            decode=partial(attempt.payloads.decoded, of_type=returns),
            retry_times=handle.retry.times if handle.retry else 0,
            retry_backoff_ns=nanoseconds(handle.retry.backoff) if handle.retry else 0,
            implied_value=b"null" if returns in (None, type(None)) else None,
            read_durability=handle.durability,
            death_is_certain=self.store.death_is_certain,
            opened=attempt.payloads.opened,
        )
        attempt.templates[handle.name] = handle.declaration, template
        return template

    def closing(self, attempt: AttemptState, error: BaseException | None) -> Script[End]:
        """The script that closes an attempt, left with this exception or none."""
        attempt.is_open = False
        if error is not None:  # on its way out it may leave other attempts, whose ends keep its text too
            for other in self._live_attempts():
                other.secrets |= attempt.secrets
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
        """Begin nothing more, and wait for running calls.

        Raises:
            ToolMisdefined: a tool waits for itself.
        """
        self.check_not_inside_a_tool()
        self.is_closing = True
        while self._is_calling():
            time.sleep(IDLE_POLL_S)

    def _is_calling(self) -> bool:
        return any(attempt.is_calling for attempt in self._live_attempts())

    def _live_attempts(self) -> list[AttemptState]:
        attempts = (ref() for ref in self._attempts.valuerefs())  # a list of its own: other threads add meanwhile
        return [attempt for attempt in attempts if attempt is not None]

    # --- restart and decisions --------------------------------------------------------------------------------

    def to_recover(self) -> list[str]:
        """The branches that a recovery has to look at."""
        self.duty.flush()
        doubtful = {branch for branch, _ in self.store.operations(None, open_only=True)}
        unclosed = {branch for branch, row in self.store.branches(unfinished_only=True) if row.is_open or row.cancelled}
        return sorted(doubtful | unclosed)

    def recoverable(self) -> list[str]:
        """The branches that a recovery would write about, or whose probes it would ask."""
        return [one for one in self.to_recover() if has_work(self.recovering(one, Noted()), self.duty.do)]

    def recovering(self, branch: str, noted: Noted) -> Script[list[restart.Classification]]:
        """The script that recovers one branch, and notes the records that it appends."""
        script = restart.recover_branch(branch, self.tools.present, certain=self.store.death_is_certain)
        return noted.watch(script)

    def recovery_hands(self) -> RecoveryHands:
        """Reaches the probes that a recovery may ask."""
        return RecoveryHands(self.tools.tool_of, self.payloads)

    def unvisited(self, attempt: AttemptState, end: End) -> None:
        """Tell loudly of steps that are done and that a completed attempt did not come by: a deploy renamed them?"""
        if end is not End.COMPLETED or attempt.number == 1:
            return
        operations = self.store.operations(attempt.branch, open_only=False)
        missed = sorted({o.step for _, o in operations if _matters_again(o)} - attempt.visited)
        if missed:
            self.observer.unvisited(attempt.branch, missed)

    @property
    def counters(self) -> Counters:
        """Commits and syncs so far."""
        return self.store.counters


def _matters_again(operation: Operation) -> bool:
    """Whether it is done, and doing it again under another name would do something outside."""
    return operation.decided is not None and not operation.renewed and operation.declaration.kind is not EffectKind.READ


def open_engine(path: str | Path, settings: object, *, read_only: bool, vfs: str | None = None) -> Engine:
    """Open the log at a path.

    Raises:
        LogUnavailable, LogDamaged, LogInUse, FormatTooNew: as they say; nothing was written.
        ToolMisdefined: the settings are none.
    """
    if not isinstance(settings, Settings):
        raise ToolMisdefined(f"settings= takes Settings(...), not {settings!r}")
    clock, observer = SystemClock(), LoggingObserver()
    if "://" in str(path):  # of whatever kind
        opened = postgres_store(str(path))
        failpoints.arm_from_environment()
        shared = opened(clock, observer, reader=read_only, lease_s=settings.lease.total_seconds())
        return Engine(shared, settings, shared.clock, observer)
    failpoints.arm_from_environment()
    store = SqliteStore(resolved(path), clock, observer, reader=read_only, vfs=vfs)
    return Engine(store, settings, clock, observer)


def postgres_store(url: str) -> Callable[..., PostgresStore]:
    """What opens the log at a URL. PostgreSQL's client is only imported here.

    Raises:
        LogUnavailable: the URL is of another kind, or the client is not installed.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise LogUnavailable(
            f"{url.partition('://')[0]}://...: a log is kept in a file or in PostgreSQL",
            remedy="name a file, or a URL postgresql://...",
        )
    try:
        from intentlog.store.postgres import PostgresStore
    except ImportError as error:
        raise LogUnavailable(
            f"a log in PostgreSQL needs psycopg, which is not here: {error}",
            remedy="install intentlog with its extra `postgres`: pip install '.[postgres]'",
        ) from error
    return partial(PostgresStore, url)


def resolved(path: str | Path) -> Path:
    """The file itself, whatever leads to it: its WAL and its locks stand beside it, not beside a link.

    Raises:
        LogUnavailable: there is no such path.
    """
    try:
        check_link(Path(path))
        target = Path(path).resolve()
        if not target.name:
            raise LogUnavailable(f"{path} is no file", remedy="name a file.")
        if Path(path).is_symlink() and not target.exists():
            raise LogUnavailable(f"{path} is a link to {target}, which is not there", remedy="name a file.")
        check_mount(target)
        return target
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise LogUnavailable(f"{path!r} is no path: {error}", remedy="name a file.") from error
