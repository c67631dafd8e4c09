"""What both drivers do with a store: read, append between two failpoints, and keep EVENTUAL records for later.

EVENTUAL records wait in memory and travel in the commit of their branch's next record, so that they cost none of their
own; a crash loses them and the program repeats the read (I5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

from intentlog import failpoints
from intentlog.core import records as r
from intentlog.core.actions import (
    Append,
    Appended,
    BranchView,
    Deferred,
    Fetch,
    FetchError,
    Interrupted,
    Load,
    LoadBranch,
    Refused,
)
from intentlog.core.records import Durability
from intentlog.errors import LogClosed, LogUnavailable
from intentlog.ports import Observer, Store
from intentlog.run.signals import held_back

WAITING_MAX = 256  # of one branch; so many are written together
StoreAction = Load | LoadBranch | Fetch | FetchError | Append


class Duty:
    """A store, what waits to be written to it, and which attempts of it live in this process. Safe from any thread.

    Attributes:
        store: the store.
    """

    def __init__(self, store: Store, observer: Observer, holds: Callable[[str], bool]) -> None:
        self.store = store
        self._holds = holds  # whether an owner of this process (`store.owner` + "." + a number) holds its branch
        self._observer = observer
        self._waiting: dict[str, list[Append]] = {}
        self._lock = RLock()
        self._closed = False

    def do(self, action: StoreAction) -> Any:
        """Do one store action and return its reply."""
        match action:
            case Append():
                return self.append(action)
            case Load(branch, step, generation):
                if self._waits(branch, step):
                    self.flush(branch)
                return self.store.view(branch, step, generation)
            case LoadBranch(branch):
                return self.branch_view(branch)
            case Fetch(seq):
                stored = self.store.record(seq)
                return stored.payload if stored else None
            case FetchError(seq):
                stored = self.store.record(seq)
                return stored.record.error if stored and isinstance(stored.record, r.Committed) else None

    def append(self, entry: Append) -> Appended | Refused | Deferred:
        """Append one record, with what waits for its branch; or let it wait, if it is EVENTUAL."""
        self.store.check_process()  # a forked child may find the lock held by a thread that it does not have
        if not self.store.owner:  # what waits could never be written
            raise LogUnavailable(f"{self.store.name} was opened for reading only", remedy="open it without read_only.")
        with self._lock:
            if self._closed:
                raise LogClosed(f"{self.store.name} is closed, or being closed")
            if entry.durability is Durability.EVENTUAL:
                waiting = self._waiting.setdefault(entry.branch, [])
                waiting.append(entry)
                if len(waiting) >= WAITING_MAX:
                    self._write(entry.branch)
                return Deferred()
            reply = self._write(entry.branch, entry)[-1]
        if isinstance(reply, Appended) and isinstance(entry.record, r.Committed):
            self._tell_contradiction(entry, reply)
        return reply

    def flush(self, branch: str | None = None) -> None:
        """Write the EVENTUAL records of one branch, or of all, now."""
        self.store.check_process()
        with held_back(), self._lock:  # an interrupt in between would lose what waits, or write it twice
            for one in [branch] if branch is not None else list(self._waiting):
                if one in self._waiting:
                    self._write(one)

    def close(self) -> None:
        """Write what waits, and take nothing more: what is acknowledged while a log is closed would be lost.

        Raises what the store raises; what could not be written is told by that, and forgotten.
        """
        with held_back(), self._lock:
            try:
                self.flush()
            finally:
                self._closed = True
                self._waiting.clear()

    def _write(self, branch: str, *entries: Append) -> list[Appended | Refused]:
        """Write what waits for a branch, and these after it; if nothing was written, it waits on."""
        waiting = self._waiting.pop(branch, [])
        try:
            return self._commit([*waiting, *entries])
        except BaseException as error:
            landed = isinstance(error, Interrupted) and error.replies
            if waiting and not landed:
                self._waiting[branch] = waiting
            raise

    def _commit(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        kinds = [type(entry.record).__name__ for entry in entries]
        for kind in kinds:
            failpoints.reached(failpoints.BEFORE[kind])
        replies = self.store.append(entries)
        for kind in kinds:
            failpoints.reached(failpoints.AFTER[kind])
        return replies

    def _waits(self, branch: str, step: str) -> bool:
        waiting = self._waiting.get(branch, ())
        return any(getattr(entry.record, "step", None) == step for entry in waiting)

    def branch_view(self, branch: str) -> BranchView:
        """The store's view; of this process' own attempts, whether they are held."""
        view = self.store.branch_view(branch)
        store, _, attempt = view.branch.owner.partition(".")
        if attempt and store == self.store.owner:
            return view._replace(owner_lives=self._holds(view.branch.owner))
        return view

    def _tell_contradiction(self, entry: Append, reply: Appended) -> None:
        operation = reply.view.operation
        if operation is not None and operation.contradicts:
            name = f"{entry.branch}#{entry.record.attempt}/{operation.step}"
            self._observer.contradiction(name, "a late outcome says other than what was settled")
