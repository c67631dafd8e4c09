"""The logs that this process has open: one writer of each, and none that its parent had open when it was forked."""

from __future__ import annotations

import os
from pathlib import Path
from threading import RLock
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from intentlog.errors import LogInUse, LogUnavailable, WrongProcess
from intentlog.store.opening import Identity, identity_of


class Opened(Protocol):
    """A store, as a fork concerns it.

    Attributes:
        is_inherited: this is a forked child of the process that opened it.
        mapped: the file whose -shm this process has mapped.
    """

    is_inherited: bool
    mapped: Identity | None


# Gone with their stores, however those are lost.
writers: WeakValueDictionary[Identity, Opened] = WeakValueDictionary()
writers_lock = RLock()
_stores: WeakSet[Opened] = WeakSet()  # readers too
_open_in_parent: set[Identity] = set()


def enter(store: Opened, path: Path) -> None:
    """A store is about to open this log.

    Raises:
        WrongProcess: the process that this one was forked from had it open then.
    """
    _stores.add(store)
    store.mapped = identity_of(path)
    if store.mapped in _open_in_parent:
        raise WrongProcess(f"{path} was open in the process that this one was forked from, when it was forked")


def claim(store: Opened, path: Path) -> Identity:
    """Make it this log's writer.

    Raises:
        LogInUse: there is one.
        LogUnavailable: the log is not there any more.
    """
    identity = identity_of(path)
    if identity is None:
        raise LogUnavailable(f"{path} was removed while it was opened", remedy="try again.")
    with writers_lock:
        if identity in writers:
            raise LogInUse(f"{path} is open in this process already")
        writers[identity] = store
    store.mapped = identity
    return identity


def release(identity: Identity) -> None:
    """It writes this log no more."""
    with writers_lock:
        writers.pop(identity, None)


def _after_fork_in_child() -> None:
    """SQLite keeps one note for each file and process of the locks it holds. A child has the note, not the locks."""
    for store in list(_stores):
        store.is_inherited = True
        if store.mapped is not None:
            _open_in_parent.add(store.mapped)


os.register_at_fork(after_in_child=_after_fork_in_child)
