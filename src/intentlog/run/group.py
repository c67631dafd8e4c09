"""Group commit: one commit, and one sync, for the records of different effects that wait for one (DESIGN 9).

There is no timer. Who finds nobody committing commits at once, so that a lone effect pays for nothing; who comes
meanwhile waits, and those who wait go into the next commit together: never two records of one effect (I7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from intentlog.core.actions import Append, Appended, Interrupted, Refused
from intentlog.core.records import OfIntent
from intentlog.errors import BranchHeld, IntentLogError, LogClosed, LogPoisoned, LogUnavailable, WrongProcess

if TYPE_CHECKING:
    import asyncio

BATCH_RECORDS_MAX = 256  # what is written together is waited for together, and has to fit into the WAL

Commit: TypeAlias = Callable[[Sequence[Append]], list[Appended | Refused]]
Effect: TypeAlias = tuple[str, str]  # branch and step
# What keeps the whole log from being written, whoever asks: it would meet each member that is tried alone.
_OF_THE_LOG = (LogUnavailable, LogPoisoned, LogClosed, WrongProcess)


class Member:
    """What one caller waits for: a record of one effect, behind the EVENTUAL ones of its branch; or nothing at all.

    Attributes:
        branch: whose records they are, or were to be.
        entries: the records, in order.
        replies: what they came to; None until they are committed.
        error: why nothing of it was written, or why that is not known.
        turn: held until it is committed, or is to lead; for callers that are threads.
        landing: done when it is committed; for callers that are tasks.
    """

    __slots__ = ("branch", "entries", "error", "landing", "replies", "turn")

    def __init__(self, branch: str, entries: list[Append]) -> None:
        self.branch = branch
        self.entries = entries
        self.replies: list[Appended | Refused] | None = None
        self.error: BaseException | None = None
        self.turn: Lock | None = None
        self.landing: asyncio.Future[None] | None = None

    @property
    def effects(self) -> list[Effect]:
        """What its records speak for."""
        return [(one.branch, one.record.step) for one in self.entries if isinstance(one.record, OfIntent)]

    @property
    def is_done(self) -> bool:
        """Whether it is known what became of it."""
        return self.replies is not None or self.error is not None

    def result(self) -> list[Appended | Refused]:
        """What its records came to. Raises what kept them from being written."""
        if self.error is not None:
            raise self.error
        if self.replies is None:
            msg = "asked before it was committed"
            raise AssertionError(msg)
        return self.replies


def take(waiting: deque[Member], first: Member | None = None) -> list[Member]:
    """Those that go into the next commit, as they came; a second record of an effect waits for the one after (I7).

    So does what came later of the same branch: its EVENTUAL records are durable no later than its next Pending (I5).

    Args:
        waiting: they are taken out of it.
        first: goes with them in any case.
    """
    batch = [first] if first else []
    if not waiting:
        return batch
    seen = set(first.effects) if first else set[Effect]()
    size = len(first.entries) if first else 0
    left: list[Member] = []
    while waiting and (not batch or size + len(waiting[0].entries) <= BATCH_RECORDS_MAX):
        member = waiting.popleft()
        effects = member.effects
        if seen.isdisjoint(effects) and not (left and member.branch in [one.branch for one in left]):
            seen.update(effects)
            size += len(member.entries)
            batch.append(member)
        else:
            left.append(member)
    waiting.extendleft(reversed(left))
    return batch


def size_of(members: Iterable[Member]) -> int:
    """How many records they hold."""
    return sum([len(one.entries) for one in members])


def commit_together(commit: Commit, members: Sequence[Member]) -> None:
    """Commit them, and let each know what became of it.

    Where one member's records cannot be written at all, nothing of the batch was: each is tried alone then, so that
    the others do not suffer. After a commit whose fate is unknown that is the answer to all of them (I8).

    A branch that a transaction of somebody else holds is looked for by halves, so that the others need not wait for it.

    Raises:
        Interrupted: a signal's exception came; those that are not done were not written.
    """
    for of_branch in _but_for_held(commit, members):
        try:
            _together(commit, of_branch)
        except BranchHeld as error:
            _tell(of_branch, error)


def _but_for_held(commit: Commit, members: Sequence[Member]) -> list[Sequence[Member]]:
    """Commit them, but for those that may be of a branch that is held: these are answered, by branch, untried."""
    if len(members) == 1 or len({member.branch for member in members}) == 1:
        return [members]
    try:
        _together(commit, members)
    except BranchHeld:
        half = len(members) // 2
        return [*_but_for_held(commit, members[:half]), *_but_for_held(commit, members[half:])]
    return []


def _together(commit: Commit, members: Sequence[Member]) -> None:
    try:
        if len(members) == 1:  # by far the commonest, where each call counts
            members[0].replies = commit(members[0].entries) if members[0].entries else []
            return
        entries = [entry for member in members for entry in member.entries]
        replies = commit(entries) if entries else []
    except Interrupted as stop:
        if stop.replies is not None:
            _share(members, stop.replies)
        raise
    except BranchHeld:
        raise
    except _OF_THE_LOG as error:
        _tell(members, error)
    except Exception as error:  # noqa: BLE001 - each caller is told its own
        if len(members) == 1:
            members[0].error = error
            return
        for member in members:
            commit_together(commit, [member])  # what one of them meets is answered here: the others are written already
    else:
        _share(members, replies)


def _tell(members: Sequence[Member], error: IntentLogError) -> None:
    for member in members:
        member.error = error if member is members[0] else _own(error)


def _share(members: Sequence[Member], replies: Sequence[Appended | Refused]) -> None:
    start = 0
    for member in members:
        end = start + len(member.entries)
        member.replies = list(replies[start:end])
        start = end


def _own(error: IntentLogError) -> IntentLogError:
    """The error again, for one more caller: what one of them adds to it must not reach the others."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


class GroupCommit:
    """Threads that commit for each other: one leads, on its own thread, while the others wait. Safe from any thread.

    Args:
        commit: commits a batch and lets each member know.
        upkeep: what is to be done between two commits.
    """

    def __init__(self, commit: Callable[[Sequence[Member]], None], upkeep: Callable[[], None]) -> None:
        self._commit = commit
        self._upkeep = upkeep
        self._lock = Lock()
        self._waiting: deque[Member] = deque()
        self._is_led = False

    def takes_lead(self) -> bool:
        """Take the lead, if nobody has it: to commit one's own record alone, and then to `hand_over`."""
        self._lock.acquire()  # not `with`, which wants memory to let go of a lock
        try:
            was_led, self._is_led = self._is_led, True
            return not was_led
        finally:
            self._lock.release()

    def join(self, member: Member) -> None:
        """Take a place. To be followed by `finish`, on the same thread."""
        with self._lock:
            if self._is_led:
                member.turn = Lock()
                member.turn.acquire()
                self._waiting.append(member)
            self._is_led = True

    def finish(self, member: Member) -> None:
        """Wait until it is committed, or commit it, with those that wait by then.

        Raises:
            Interrupted: by a signal's exception.
        """
        if member.turn is not None:
            member.turn.acquire()
        if not member.is_done:
            self._lead(member)

    def _lead(self, member: Member) -> None:
        batch = [member]
        if self._waiting:
            with self._lock:
                batch = take(self._waiting, member)
        others = batch[1:]
        try:
            try:
                self._commit(batch)
            except Interrupted as stop:
                raise Interrupted(member.replies, stop.cause) from None  # what it asks of is its own record's fate
            finally:
                if others:
                    _let_go([one for one in others if one.is_done])  # they do not wait for the upkeep
            self._upkeep()
        finally:
            self.hand_over(others)

    def hand_over(self, others: Sequence[Member] = ()) -> None:
        """Let the next one lead, if anybody waits; who was not written, because a signal came, is the first to.

        Where memory runs out here it is tried again: a lead that is not given back holds up everybody, for ever.
        """
        while True:
            try:
                self._hand_over(others)
            except MemoryError:
                continue
            return

    def _hand_over(self, others: Sequence[Member]) -> None:
        unwritten = [one for one in others if not one.is_done] if others else ()
        self._lock.acquire()
        try:
            if unwritten:
                self._waiting.extendleft(reversed(unwritten))
            leader = self._waiting.popleft() if self._waiting else None
            self._is_led = leader is not None
            if leader is not None and leader.turn is not None:
                leader.turn.release()
        finally:
            self._lock.release()


def _let_go(members: Iterable[Member]) -> None:
    for one in members:
        if one.turn is not None:
            one.turn.release()
