"""In whose hands a log's files are: only its owner appends, and nobody else may change, replace or plant one of them.

As `ssh` and PostgreSQL treat what they rely on: another user's file is refused, to root too (what root makes beside it,
that user's own programs could not open any more), and so is what a group or everybody may write. A link is followed
only where the user names one, and only one that the user or root has made. Who only reads needs no more than the right
to read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from intentlog.errors import LogUnavailable

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MODE = 0o600
_BESIDE = ("", "-wal", "-shm", "-journal")


def check_mount(path: Path) -> None:
    """Refuse a file that is mounted by itself: its WAL and locks would stand beside this name, and not beside its own.

    Raises:
        LogUnavailable: it is (`docker run -v /srv/orders.db:/data/orders.db`).
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return  # another system, which mounts no files
    name = os.fsencode(path)
    for line in mounts:
        if _plain(line.split(b" ")[4]) == name and not path.is_dir():
            raise LogUnavailable(
                f"{path} is mounted by itself, so that it would be another log than under its own name",
                remedy="mount the folder that it stands in.",
            )


def _plain(place: bytes) -> bytes:
    r"""A mount's place as it is: spaces and the like stand as `\040`."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), place)


def check_link(path: Path) -> None:
    """Refuse a link that somebody else has made.

    Raises:
        LogUnavailable: it is one.
    """
    if path.is_symlink() and path.lstat().st_uid not in (os.geteuid(), 0):
        raise LogUnavailable(f"{path} is a link that another user has made", remedy="name the file itself.")


def check_owned(path: Path, folder: Path) -> None:
    """Refuse a writer a log that is in other hands too. Nothing is made or changed.

    Args:
        path: the log; it need not be there yet.
        folder: its folder of locks; nor need this.

    Raises:
        LogUnavailable: one of its files belongs to somebody else, is a link, or can be written by others.
    """
    check_folder(path.parent)
    for end in _BESIDE:
        _check(path.with_name(path.name + end), stat.S_ISREG)
    _check(folder, stat.S_ISDIR)
    if folder.is_dir():
        for name in os.listdir(folder):  # noqa: PTH208 - names are all that is wanted
            _check(folder / name, stat.S_ISREG)


def check_folder(folder: Path) -> None:
    """Refuse a folder in which everybody may replace or remove a log.

    Raises:
        LogUnavailable: it is one.
    """
    if is_everybodys(folder):
        raise LogUnavailable(
            f"everybody may write the folder {folder}, and so remove or replace the log",
            remedy=f"chmod o-w {folder}, or keep the log in a folder of its own.",
        )


def is_everybodys(folder: Path) -> bool:
    """Whether everybody may remove what others have in it: not in one like /tmp, with the sticky bit."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def create(path: Path, flags: int) -> int:
    """Open a file beside the log, its owner's alone; made, if it is not there, whatever the umask. Follows no link.

    Raises:
        OSError: it is a link, or cannot be opened.
        LogUnavailable: it is no regular file, or another user's.
    """
    kept = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would be waited for
    descriptor = os.open(path, flags | kept, _MODE)
    try:
        found = os.fstat(descriptor)
        _judge(path, found, stat.S_ISREG)
        if stat.S_IMODE(found.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_folder(folder: Path) -> None:
    """Make the folder of locks, its owner's alone, whatever the umask; or find it made so.

    Raises:
        LogUnavailable: it is no folder, another user's, or can be written by others.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _check(folder, stat.S_ISDIR)
    else:
        folder.chmod(0o700)


def _check(place: Path, is_kind: Callable[[int], bool]) -> None:
    try:
        found = place.lstat()
    except FileNotFoundError:
        return  # not made yet; or a lock that went with its owner
    _judge(place, found, is_kind)


def _judge(place: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "not what belongs there"
        raise LogUnavailable(
            f"{place} is {what}; the log was not touched", remedy="see who put it there, and remove it."
        )
    if found.st_uid != os.geteuid():
        raise LogUnavailable(
            f"{place} belongs to {owner_name(found.st_uid)}, and {owner_name(os.geteuid())} would write it",
            remedy=f"only its owner appends to a log: run this as {owner_name(found.st_uid)}.",
        )
    if found.st_mode & _OTHERS_WRITE and (found.st_size or stat.S_ISDIR(found.st_mode)):
        raise LogUnavailable(
            f"{place} can be written by others than its owner",
            remedy=f"see that nobody has altered it (intentlog verify), and chmod go-w {place}.",
        )


def owner_name(uid: int) -> str:
    """A user's name; the number, where it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
