"""The seams: what the library asks of a store, a clock and an observer.

Every store passes one contract suite (`tests/contract`). A store is called from one thread at a time, except where a
method says otherwise; the drivers see to that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from intentlog.core.actions import Append, Appended, BranchView, Refused, View
from intentlog.core.check import Whole
from intentlog.core.records import Instant, Stored
from intentlog.core.state import Branch, Operation


class Clock(Protocol):
    """Reads the clocks. Safe from any thread."""

    def now(self) -> Instant:
        """One reading of wall clock and boot clock."""
        ...


class Counters(NamedTuple):
    """How many commits, and syncs of the log, the store made for records; and its own commits for upkeep."""

    commits: int
    syncs: int
    upkeep_commits: int


class Store(Protocol):
    """Where records are kept. Blocking."""

    @property
    def name(self) -> str:
        """How a command line names this log: its path or address."""
        ...

    @property
    def owner(self) -> str:
        """Who appends through this store; `owner_lives` can tell of it. Empty for a reader."""
        ...

    @property
    def salt(self) -> bytes:
        """The log's secret, from which request ids are derived."""
        ...

    @property
    def death_is_certain(self) -> bool:
        """Whether `owner_lives` knows (a lock) or only believes (a lease)."""
        ...

    @property
    def counters(self) -> Counters:
        """Commits and syncs so far. Safe from any thread."""
        ...

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        """Append records in one commit, and return when it is durable.

        Each entry is admitted by `machine.apply` on the rows read under its branch's lock, within the commit; one
        that is refused is left out and hurts no other. At most one entry speaks for any one effect (I7).

        Raises:
            LogUnavailable: nothing was written (busy, no room).
            LogPoisoned: an I/O error left the commit's fate unknown, now or earlier (I8).
            LogClosed, WrongProcess: nothing was written.
        """
        ...

    @property
    def upkeep_due(self) -> bool:
        """Whether `upkeep` has something to do. Safe from any thread."""
        ...

    def upkeep(self) -> None:
        """Do what keeps commits cheap (a checkpoint), between two commits: never inside one.

        Raises nothing: what fails poisons the store, so that the next use is refused (I8).
        """
        ...

    def view(self, branch: str, step: str, generation: int | None = None) -> View:
        """The branch, the current generation of a step's operation (or the one that is named), and the clocks."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether a network leads to it: an event loop then reads and commits in threads. Safe from any thread."""
        ...

    def remembered(self, branch: str, step: str) -> View | None:
        """What `view` answers, where it is known without a look. Never waits; safe from any thread."""
        ...

    def branch_view(self, branch: str) -> BranchView:
        """The branch, its open operations, whether its owner lives, and the clocks."""
        ...

    def record(self, seq: int) -> Stored | None:
        """One record by its place."""
        ...

    def payload(self, seq: int) -> bytes | None:
        """One record's payload; None where it has none, or there is no such record."""
        ...

    def history(self, branch: str | None, *, after: int = 0) -> Iterator[Stored]:
        """The records of one branch, or of all, oldest first, in pages; only those after the place `after`.

        What is appended while it is read may be seen or not; no record is skipped or given twice.
        """
        ...

    def newest_seq(self) -> int:
        """The place of the newest record; 0 if there is none.

        No record comes to stand below it later: one that is being committed at a lower place is waited out, by naming
        only what is older.
        """
        ...

    def count(self, after: int, to: int) -> int:
        """How many records stand above one place, up to another that is no higher than `newest_seq`.

        Places may have gaps: this is what a reader of them comes by.
        """
        ...

    def integrity(self) -> list[str]:
        """What the store finds wrong with its own files and indexes; empty if nothing."""
        ...

    def whole_branches(self) -> Iterator[Whole]:
        """Every branch, by name, with everything of it, of one moment: for `verify`. Good until the next is asked for.

        A branch that is written meanwhile is as it stood at some moment; one that is new meanwhile may be missing.
        """
        ...

    def gone(self, *, age_max_ns: int = 0, given_ns: int | None = None) -> str:
        """Why a permission is worth nothing any more: log or lock were deleted or replaced, a lease ran out. Else "".

        Safe from any thread.

        Args:
            age_max_ns: a look that is no older need not be repeated.
            given_ns: when the permission was asked for, by the boot clock: what was lost for a while since then counts.
        """
        ...

    def check_process(self) -> None:
        """Refuse a forked child of the process that opened the log.

        Raises:
            WrongProcess: this is another process.
        """
        ...

    def branches(self, *, unfinished_only: bool) -> Iterator[tuple[str, Branch]]:
        """Every branch, by name, in pages; or only those whose attempt is open or ended INDETERMINATE (indexed)."""
        ...

    def operations(self, branch: str | None, *, open_only: bool) -> Iterator[tuple[str, Operation]]:
        """The operations of one branch, or of all, with their branch, in pages; or only the open ones (indexed)."""
        ...

    def contradictions(self) -> Iterator[tuple[str, Operation]]:
        """The operations of which a late outcome says other than what was settled, with their branch (indexed)."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent. Never checkpoints."""
        ...


class Observer(Protocol):
    """Is told what a person should hear of. Must not raise; safe from any thread."""

    def contradiction(self, intent_id: str, detail: str) -> None:
        """A late outcome says other than what was settled."""
        ...

    def unvisited(self, branch: str, steps: Sequence[str]) -> None:
        """A completed attempt did not come by steps that are done: they may have been renamed, and done anew."""
        ...

    def poisoned(self, log: str, detail: str) -> None:
        """The log refuses everything from now on (I8)."""
        ...
