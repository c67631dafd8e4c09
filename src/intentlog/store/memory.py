"""A log in memory that can lose what was not synced, and fail at the nth I/O operation. For tests and models.

A `MemoryDisk` outlives its stores as a disk outlives processes. It holds the *live* image (what a surviving kernel
would show after kill -9) and the *durable* one (what a power cut leaves). Each append is one write to the live image
and one sync that makes it durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from intentlog.core.actions import Append, Appended, BranchView, Refused, View
from intentlog.core.check import Held
from intentlog.core.records import Stored
from intentlog.core.state import Branch, Operation
from intentlog.errors import LogClosed, LogPoisoned
from intentlog.ports import Clock, Counters
from intentlog.store.staging import OperationKey, Staged, stage


class _Image(NamedTuple):
    events: dict[int, Stored]
    branches: dict[str, Branch]
    operations: dict[tuple[str, str, int], Operation]

    def copy(self) -> _Image:
        return _Image(dict(self.events), dict(self.branches), dict(self.operations))


class MemoryDisk:
    """What outlives a process: two images, and the owners that are alive."""

    def __init__(self, salt: bytes = b"memory-log-salt-") -> None:
        self.salt = salt
        self.live = _Image({}, {}, {})
        self.durable = self.live
        self.owners: set[str] = set()
        self.io_until_failure: int | None = None  # the countdown: at 0 the next write or sync fails, and all later ones

    def io(self) -> None:
        """Count one I/O operation.

        Raises:
            OSError: the countdown ran out.
        """
        if self.io_until_failure is None:
            return
        if self.io_until_failure <= 0:
            msg = "the disk failed"
            raise OSError(msg)
        self.io_until_failure -= 1

    def cut_power(self) -> None:
        """Lose what was not synced, and every process."""
        self.live = self.durable
        self.owners.clear()


class _Rows:
    """The live image, copied: becomes the next live image if the append goes through."""

    def __init__(self, image: _Image) -> None:
        self.image = image.copy()

    def places(self, count: int) -> range:
        first = len(self.image.events) + 1
        return range(first, first + count)

    def branch(self, branch: str) -> Branch | None:
        return self.image.branches.get(branch)

    def operation(self, key: OperationKey) -> Operation | None:
        return self.image.operations.get(key)

    def write(self, staged: Staged) -> None:
        self.image.events.update({stored.seq: stored for stored, _ in staged.events})
        self.image.branches.update(staged.branches)
        self.image.operations.update(staged.operations)


class MemoryStore:
    """A store on a `MemoryDisk`. Not safe for use from several threads at once."""

    def __init__(self, disk: MemoryDisk, clock: Clock, owner: str = "memory") -> None:
        self._disk = disk
        self._clock = clock
        self._owner = owner
        self._commits = 0
        self._syncs = 0
        self._poison: str | None = None
        self._closed = False
        disk.owners.add(owner)

    name = "memory"
    death_is_certain = True

    @property
    def owner(self) -> str:
        """Who appends here."""
        return self._owner

    @property
    def salt(self) -> bytes:
        """The log's secret."""
        return self._disk.salt

    @property
    def counters(self) -> Counters:
        """Commits and syncs so far."""
        return Counters(self._commits, self._syncs, 0)

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        """See `ports.Store.append`."""
        self._check()
        rows = _Rows(self._disk.live)
        staged = stage(rows, entries, self._clock.now())
        rows.write(staged)
        if not staged.events:
            return staged.replies
        try:
            self._disk.io()
            self._disk.live = rows.image
            self._disk.io()
            self._disk.durable = rows.image
        except OSError as error:
            self._poison = str(error)
            raise LogPoisoned(f"a commit failed, its fate is unknown: {error}") from error
        self._commits += 1
        self._syncs += 1
        return staged.replies

    upkeep_due = False
    is_remote = False

    def upkeep(self) -> None:
        """See `ports.Store.upkeep`: there is nothing to do."""

    def view(self, branch: str, step: str, generation: int | None = None) -> View:
        """See `ports.Store.view`."""
        self._check()
        image = self._disk.live
        generations = [g for (b, s, g) in image.operations if (b, s) == (branch, step)]
        wanted = max(generations, default=0) if generation is None else generation
        operation = image.operations.get((branch, step, wanted))
        return View(image.branches.get(branch, Branch()), operation, self._clock.now())

    def remembered(self, branch: str, step: str) -> View | None:
        """See `ports.Store.remembered`."""
        self._check()
        return self.view(branch, step)

    def branch_view(self, branch: str) -> BranchView:
        """See `ports.Store.branch_view`."""
        self._check()
        row = self._disk.live.branches.get(branch, Branch())
        operations = tuple(operation for _, operation in self.operations(branch, open_only=True))
        lives = row.owner.partition(".")[0] in self._disk.owners
        return BranchView(row, operations, lives, self._clock.now())

    def record(self, seq: int) -> Stored | None:
        """See `ports.Store.record`."""
        self._check()
        return self._disk.live.events.get(seq)

    def payload(self, seq: int) -> bytes | None:
        """See `ports.Store.payload`."""
        stored = self.record(seq)
        return stored.payload if stored else None

    def history(self, branch: str | None, *, after: int = 0) -> Iterator[Stored]:
        """See `ports.Store.history`."""
        self._check()
        yield from [s for s in self._disk.live.events.values() if branch in (None, s.branch) and s.seq > after]

    def newest_seq(self) -> int:
        """See `ports.Store.newest_seq`."""
        self._check()
        return max(self._disk.live.events, default=0)

    def integrity(self) -> list[str]:
        """See `ports.Store.integrity`."""
        self._check()
        return []

    def whole_branches(self) -> Iterator[Held]:
        """See `ports.Store.whole_branches`."""
        for name, row in self.branches(unfinished_only=False):
            operations = {(o.step, o.generation): o for _, o in self.operations(name, open_only=False)}
            yield Held(name, row, self.history(name), operations)

    def count(self, after: int, to: int) -> int:
        """See `ports.Store.count`: here places have no gaps."""
        self._check()
        return to - after

    def gone(self, *, age_max_ns: int = 0, given_ns: int | None = None) -> str:
        """See `ports.Store.gone`: a disk in memory is never taken away."""
        del age_max_ns, given_ns
        return ""

    def check_process(self) -> None:
        """See `ports.Store.check_process`: a disk in memory is forked with its process."""

    def branches(self, *, unfinished_only: bool) -> Iterator[tuple[str, Branch]]:
        """See `ports.Store.branches`."""
        self._check()
        for branch, row in sorted(self._disk.live.branches.items()):
            if row.is_unfinished or not unfinished_only:
                yield branch, row

    def operations(self, branch: str | None, *, open_only: bool) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.operations`."""
        self._check()
        for (of_branch, _, _), operation in sorted(self._disk.live.operations.items(), key=lambda item: item[0]):
            if branch in (None, of_branch) and (operation.is_open or not open_only):
                yield of_branch, operation

    def contradictions(self) -> Iterator[tuple[str, Operation]]:
        """See `ports.Store.contradictions`."""
        return (found for found in self.operations(None, open_only=False) if found[1].contradicts)

    def close(self) -> None:
        """Let go; the disk keeps both images."""
        self._closed = True
        self._disk.owners.discard(self._owner)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed("the log was closed")
        if self._poison is not None:
            raise LogPoisoned(f"an earlier commit failed, its fate is unknown: {self._poison}")
