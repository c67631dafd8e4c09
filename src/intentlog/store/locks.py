"""Who is alive, and who keeps the log: lock files beside it, in `LOG.d/`.

One lock file per open log, held by flock until it is closed or its process dies: so a restart knows at once that an
owner is dead. flock belongs to the open file, not to the process, so that opening and closing the file elsewhere in
the process does not drop it. The descriptors are close-on-exec, and closed in forked children, who would otherwise keep
a dead parent's lock alive.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from intentlog.errors import LogUnavailable
from intentlog.store import trust

_NOTE = b"%020d %010d %-16s\n"  # of one length, so that a later one covers an earlier one
_NOTE_BYTES_MAX = 100


class Locks:
    """This process' locks on one log. Safe from any thread.

    Args:
        folder: the folder beside the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.owner = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._held: int | None = self._locked_file()
        self._keeper: int | None = None
        _ALL.add(self)

    def become_keeper(self) -> bool:
        """Take the keeper's role if nobody has it. True while this process has it."""
        if self._keeper is None:
            descriptor = trust.create(self._folder / "keeper.lock", os.O_RDWR)
            self._keeper = _lock(descriptor)
        return self._keeper is not None

    def give_up_keeper(self) -> None:
        """Let another process keep the log."""
        keeper, self._keeper = self._keeper, None  # first: a second release must not close another's descriptor
        if keeper is not None:
            os.close(keeper)

    @property
    def is_keeper(self) -> bool:
        """Whether this process has the keeper's role."""
        return self._keeper is not None

    @property
    def owner_file(self) -> Path:
        """The lock file by which others see that this owner is alive."""
        return self._path(self.owner)

    def note(self, wal_bytes: int, frames: int, salts: str) -> None:
        """Write into this owner's lock file how far the WAL reaches, for whoever opens the log after its death."""
        if self._held is not None:
            _write_note(self._held, wal_bytes, frames, salts)

    def note_as_keeper(self, wal_bytes: int, frames: int, salts: str) -> None:
        """Write the same into the keeper's lock file, for whoever opens the log after it was closed."""
        if self._keeper is not None:
            _write_note(self._keeper, wal_bytes, frames, salts)

    def lives(self, owner: str) -> bool:
        """Whether the log that this owner opened is still open, in a process that still lives."""
        return owner == self.owner or lives(self._folder, owner)

    def release(self) -> None:
        """Let go of everything. Idempotent. A lock file that cannot be removed is swept by the next opening."""
        self.give_up_keeper()
        held, self._held = self._held, None
        if held is not None:
            with suppress(OSError):
                self._path(self.owner).unlink(missing_ok=True)
            os.close(held)

    def forget_after_fork(self) -> None:
        """In a forked child: close the descriptors, which belong to the parent."""
        for descriptor in (self._keeper, self._held):
            if descriptor is not None:
                os.close(descriptor)
        self._keeper = self._held = None

    def sweep(self) -> None:
        """Remove the lock files of dead owners."""
        for path in left_by_dead(self._folder):
            path.unlink(missing_ok=True)

    def _locked_file(self) -> int:
        # Locked before it has its name: whoever finds the name finds the lock held.
        draft = self._path(self.owner).with_suffix(".draft")
        descriptor = trust.create(draft, os.O_RDWR | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            draft.rename(self._path(self.owner))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _path(self, owner: str) -> Path:
        return self._folder / f"owner-{owner}.lock"


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of it: the kernel may write a part and say so."""
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def left_by_dead(folder: Path) -> list[Path]:
    """The lock files of owners that died with the log open."""
    names = ((path, path.name.removeprefix("owner-").removesuffix(".lock")) for path in folder.glob("owner-*.lock"))
    return [path for path, owner in names if not lives(folder, owner)]


class Note(NamedTuple):
    """What stands in a lock file: how long the WAL was, how many frames it had, and of which generation they were."""

    wal_bytes: int
    frames: int
    salts: str


_NOTHING = Note(0, 0, "")


def note_of(lock_file: Path) -> Note:
    """What an owner noted last; nothing, if it did not come so far, was swept by another, or is none of ours."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _NOTHING
    try:
        words = os.read(descriptor, _NOTE_BYTES_MAX).split()
    except OSError:  # a folder, say
        return _NOTHING
    finally:
        os.close(descriptor)
    if not words or not all(word.isdigit() for word in words[:2]):
        return _NOTHING
    size, frames, salts = (*words, *(b"0", b"0", b"")[len(words) :])[:3]
    return Note(int(size), int(frames), salts.decode("ascii", "replace"))


def _write_note(descriptor: int, wal_bytes: int, frames: int, salts: str) -> None:
    """What a note says is true already, and goes on without it: so nothing is raised, inside a commit least of all."""
    try:  # noqa: SIM105 - in each commit: `suppress` takes longer than the write does
        write_all(descriptor, _NOTE % (wal_bytes, frames, salts.encode()), 0)
    except OSError:
        pass


def keeper_note(folder: Path) -> Note:
    """What the last keeper noted when it closed the log."""
    return note_of(folder / "keeper.lock")


def lives(folder: Path, owner: str) -> bool:
    """Whether somebody holds the lock file of this owner."""
    if not owner or "/" in owner:
        return False
    return _is_held(folder, f"owner-{owner}.lock")


def keeper_lives(folder: Path) -> bool:
    """Whether some process has the keeper's role."""
    return _is_held(folder, "keeper.lock")


def _is_held(folder: Path, name: str) -> bool:
    try:
        # For reading: a reader may be on a read-only disk.
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return not _try(descriptor, fcntl.LOCK_SH)  # shared: two that ask do not meet each other
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogUnavailable(
            f"who has the log open cannot be seen: {error}", remedy=f"check the disk, and the permissions of {folder}."
        ) from error


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(descriptor: int) -> int | None:
    is_held = False
    try:
        is_held = _try(descriptor, fcntl.LOCK_EX)
    finally:
        if not is_held:
            os.close(descriptor)
    return descriptor if is_held else None


_ALL: WeakSet[Locks] = WeakSet()


def _after_fork_in_child() -> None:
    for locks in list(_ALL):
        locks.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
