"""What both drivers do with a store: read, append between two failpoints, and keep EVENTUAL records for later.

Appends of several callers share a commit (`run.group`).

EVENTUAL records wait in memory and travel in the commit of their branch's next record, so that they cost none of their
own; a crash loses them and the program repeats the read (I5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from msgspec.structs import replace

from intentlog import failpoints
from intentlog.core import codec
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
    ResultT,
    Script,
)
from intentlog.core.records import Durability
from intentlog.errors import IntentLogError, LogClosed, LogUnavailable
from intentlog.ports import Observer, Store
from intentlog.run.group import GroupCommit, Member, commit_together
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
        self._sending: dict[str, list[Member]] = {}  # those that carry what waited, until it is written
        self._lock = Lock()
        self._group = GroupCommit(self.commit, self.upkeep)
        self._is_writer = bool(store.owner)
        self._closed = False

    def do(self, action: StoreAction) -> Any:
        """Do one store action and return its reply."""
        match action:
            case Load(branch, step, generation):
                if self.waits(branch, step):
                    self.flush(branch)
                return self.store.view(branch, step, generation)
            case LoadBranch(branch):
                return self.branch_view(branch)
            case Fetch(seq):
                return self.store.payload(seq)
            case FetchError(seq):
                stored = self.store.record(seq)
                return stored.record.error if stored and isinstance(stored.record, r.Committed) else None
            case Append():
                return self.append(action)

    def read_through(self, script: Script[ResultT]) -> ResultT | None:
        """Run a script that only reads what is there. None: it would wait, write or call, or it raised.

        Nothing of it was done then: it is to be driven from its beginning.
        """
        try:
            action = next(script)
            while isinstance(action, Load | Fetch):
                if isinstance(action, Load) and self.waits(action.branch, action.step):
                    break
                action = script.send(self.do(action))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # a script's result type is checked where it is written
        except IntentLogError:
            return None  # raised again by who drives it, with what belongs to it
        script.close()
        return None

    # --- appending ---------------------------------------------------------------------------------------------

    def append(self, entry: Append) -> Appended | Refused | Deferred:
        """Append one record, with what waits for its branch and with others' records; or let it wait, if EVENTUAL."""
        self.store.check_process()  # a forked child may find a lock held by a thread that it does not have
        if not self._waiting and entry.durability is Durability.IMMEDIATE and self._group.takes_lead():
            return self._append_alone(entry)
        if self.meets(entry):
            self.flush(entry.branch)
        member = self.admit(entry, self._group.join)
        if member is None:
            return Deferred()
        self._group.finish(member)
        return self.reply(entry, member)

    def _append_alone(self, entry: Append) -> Appended | Refused:
        """The common case, by itself: nothing waits, and nobody commits. The caller has the lead."""
        try:
            self._check_usable()
            reply = self._commit([entry])[0]
            try:
                self.upkeep()
            except BaseException as cause:  # noqa: BLE001 - told with what became of the record
                raise Interrupted([reply], cause) from None
        finally:
            self._group.hand_over()
        if isinstance(entry.record, r.Committed) and isinstance(reply, Appended):
            self._tell_contradiction(entry, reply)
        return reply

    def _check_usable(self) -> None:
        if self._is_writer and not self._closed:
            return
        if not self._is_writer:  # what waits could never be written
            raise LogUnavailable(f"{self.store.name} was opened for reading only", remedy="open it without read_only.")
        raise LogClosed(f"{self.store.name} is closed, or being closed")

    def admit(self, entry: Append, join: Callable[[Member], None]) -> Member | None:
        """What shall be committed for an entry; None: it is EVENTUAL and waits.

        Args:
            entry: the record.
            join: called with the member, before the log can be closed.

        Raises:
            LogUnavailable, LogClosed, WrongProcess: nothing was written.
        """
        self.store.check_process()
        self._check_usable()
        entry = replace(entry, body=codec.encode_record(entry.record))  # here, where nobody waits for it
        if entry.durability is Durability.IMMEDIATE and not self._waiting:
            member = Member(entry.branch, [entry])  # what waits from now on came later
            join(member)
            return member
        with self._lock:
            self._check_usable()  # once more: nothing more is taken by a log that is being closed
            if entry.durability is Durability.EVENTUAL:
                waiting = self._waiting.setdefault(entry.branch, [])
                waiting.append(entry)
                if len(waiting) < WAITING_MAX:
                    return None
                member = self._with_waiting(entry.branch)
            else:
                member = self._with_waiting(entry.branch, entry)
            join(member)
            return member

    def reply(self, entry: Append, member: Member) -> Appended | Refused | Deferred:
        """What an entry's member came to, for who appended it. Raises what kept it from being written."""
        reply = (member.replies if member.error is None and member.replies else member.result())[-1]
        if entry.durability is Durability.EVENTUAL:
            return Deferred()
        if isinstance(reply, Appended) and isinstance(entry.record, r.Committed):
            self._tell_contradiction(entry, reply)
        return reply

    def commit(self, members: Sequence[Member]) -> None:
        """Commit a batch, and let each of its members know. To be followed by `upkeep`, when they were woken.

        Raises:
            Interrupted: by a signal's exception; those that are not done were not written.
        """
        try:
            commit_together(self._commit, members)
        finally:
            if self._sending:
                self._settle(members)

    def give_back(self, members: Sequence[Member]) -> None:
        """Let the EVENTUAL records of these wait again: their callers are gone, and nobody will commit them."""
        for member in members:
            member.error = LogUnavailable("its event loop ended; nothing was written")
        self._settle(members)

    def upkeep(self) -> None:
        """Do the store's upkeep, if it is due."""
        if self.store.upkeep_due:
            self.store.upkeep()

    def flush(self, branch: str | None = None) -> None:
        """Write the EVENTUAL records of one branch, or of all, now; return when all of them are written."""
        self.store.check_process()
        with held_back():  # an interrupt in between would lose what waits, or write it twice
            members = self.flushing(branch, self._group.join)
            errors: list[BaseException] = []
            for member in members:  # each, whatever becomes of the others: it may be its turn to lead
                try:
                    self._group.finish(member)
                    member.result()
                except BaseException as error:  # noqa: BLE001 - raised below
                    errors.append(error)
            if errors:
                raise errors[0]

    def flushing(self, branch: str | None, join: Callable[[Member], None]) -> list[Member]:
        """What `flush` waits for: when these are committed, so is everything that waited or was on its way."""
        with self._lock:
            if not (self._waiting or self._sending):
                return []
            members: list[Member] = []
            for one in [branch] if branch is not None else [*{*self._waiting, *self._sending}]:
                member = self._with_waiting(one)  # behind what is on its way: a branch's records keep their order
                join(member)
                members.append(member)
            return members

    def close(self) -> None:
        """Write what waits, and take nothing more: what is acknowledged while a log is closed would be lost.

        Raises what the store raises; what could not be written is told by that, and forgotten.
        """
        with held_back():
            with self._lock:
                self._closed = True
            try:
                self.flush()
            finally:
                self._waiting.clear()

    def waits(self, branch: str, step: str) -> bool:
        """Whether a record of this step is not yet in the store, and `flush` would write it."""
        if not (self._waiting or self._sending):
            return False
        with self._lock:
            entries = [*self._waiting.get(branch, ())]
            for member in self._sending.get(branch, ()):
                entries.extend(member.entries)
        return any(getattr(entry.record, "step", None) == step for entry in entries)

    def meets(self, entry: Append) -> bool:
        """Whether what waits for its branch speaks for the same effect: then that is flushed first (I7)."""
        if not (self._waiting or self._sending):
            return False
        return isinstance(entry.record, r.OfIntent) and self.waits(entry.branch, entry.record.step)

    def _with_waiting(self, branch: str, *entries: Append) -> Member:
        """The member that takes these, behind what waits for the branch. The caller holds the lock."""
        waiting = self._waiting.pop(branch, None) if self._waiting else None
        if waiting is None:
            return Member(branch, [*entries])
        member = Member(branch, [*waiting, *entries])
        self._sending.setdefault(branch, []).append(member)
        return member

    def _settle(self, members: Sequence[Member]) -> None:
        """Forget what was sent; if nothing of it was written, it waits on.

        One that is not done will be committed by whoever leads next; but for the first, whose caller was interrupted.
        """
        with self._lock:
            for member in members:
                sending = self._sending.get(member.branch, [])
                if member not in sending or not (member.is_done or member is members[0]):
                    continue
                sending.remove(member)
                if not sending:
                    del self._sending[member.branch]
                if member.replies is None and not self._closed:
                    waiting = [one for one in member.entries if one.durability is Durability.EVENTUAL]
                    self._waiting[member.branch] = [*waiting, *self._waiting.get(member.branch, ())]

    def _commit(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        if not failpoints.are_armed():
            return self.store.append(entries)
        kinds = [type(entry.record).__name__ for entry in entries]
        for kind in kinds:
            failpoints.reached(failpoints.BEFORE[kind])
        replies = self.store.append(entries)
        for kind in kinds:
            failpoints.reached(failpoints.AFTER[kind])
        return replies

    # --- reading -----------------------------------------------------------------------------------------------

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
