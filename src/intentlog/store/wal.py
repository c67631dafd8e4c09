"""The WAL: whether what SQLite leaves out of it can be the end that a crash tore off.

SQLite reads a WAL up to the first frame that does not fit, and takes that for its end. After a crash it is. But damage
further up looks alike, and what stands behind it would be gone without a word. Two things tell them apart:

* A commit is synced before the next one begins, so a crash tears the frames of one commit at most. Where a commit
  stands behind the end that SQLite found, and frames of another one behind that, what lies before them was damaged.
* Each owner notes in its lock file how far the WAL reached at its last commit, and the keeper when it closed the log.
  Notes are not synced; but each is written after what it says was.

It is opened for reading only: SQLite holds no locks on this file.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import apsw

from intentlog.errors import LogDamaged
from intentlog.store.connection import Connection
from intentlog.store.locks import keeper_note, left_by_dead, note_of

_HEADER_BYTES, _FRAME_HEADER_BYTES, _PAGE_BYTES = 32, 24, 4096
_MAGIC = 0x377F0682  # and one more, where its checksums are computed over big-endian words
_LOOKS, _LOOK_S = 20, 0.005  # somebody may be beginning it anew: for a moment it has no frames, and its old salts
_NEAR = 16  # frames behind a commit, in which two that fit one another are looked for
_mask = 0xFFFFFFFF
_number = Struct(">I").unpack_from
_pair = Struct(">II").unpack_from


class Reach(NamedTuple):
    """How far a WAL reached: that many frames, of the generation with these salts."""

    frames: int
    salts: str


def wal_of(path: Path) -> Path:
    """The log's WAL."""
    return path.with_name(path.name + "-wal")


def salts_of(path: Path) -> str:
    """The salts of the log's WAL, which are others whenever it is begun anew; "" if it has none."""
    try:
        descriptor = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.pread(descriptor, 8, 16).hex()
        finally:
            os.close(descriptor)
    except OSError:  # there is none; or what is wrong with it is told by who reads more of it
        return ""


def salts_at(path: Path, frames: int) -> str:
    """The salts of the log's WAL, if it has so many frames of them; else "".

    Whoever has just committed is told how many frames there are, but not of which generation: by now another process
    may have begun the WAL anew, and a note that joined the two would call a sound log damaged.
    """
    place = bytes_of(frames - 1) or _HEADER_BYTES
    try:
        descriptor = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            salts = os.pread(descriptor, 8, 16)
            return salts.hex() if frames > 0 and os.pread(descriptor, 8, place + 8) == salts else ""
        finally:
            os.close(descriptor)
    except OSError:  # as for `salts_of`
        return ""


def bytes_of(frames: int) -> int:
    """How long a WAL is at least that has so many frames."""
    return _HEADER_BYTES + frames * (_FRAME_HEADER_BYTES + _PAGE_BYTES) if frames > 0 else 0


def frames_of(connection: Connection) -> int | None:
    """How many frames SQLite reads of the WAL; None to whom may only read the file. Nothing is written."""
    try:
        return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    except apsw.ReadOnlyError:
        return None


def check_size(path: Path, folder: Path) -> None:
    """Refuse a log whose owner died with it open and whose WAL was lost since: what is left of it looks sound.

    Raises:
        LogDamaged: the WAL is not there, or shorter than it was.
    """
    # The notes first: an owner that made the WAL longer since it was looked at, and died, would seem to have lost it.
    left = [(lock_file, note_of(lock_file).wal_bytes) for lock_file in left_by_dead(folder)]
    wal = wal_of(path)
    size = wal.stat().st_size if wal.exists() else 0
    for lock_file, noted in left:
        if size < noted:
            raise LogDamaged(
                f"{wal} was {noted} bytes long when a process died that had the log open, and has {size} now: "
                "what was recorded since the last checkpoint is lost",
                remedy=f"bring it back, or restore a backup. To go on without those records, which may repeat effects "
                f"that are done, remove {lock_file}.",
            )


def check_whole(path: Path, connection: Connection, folder: Path) -> None:
    """Refuse a log of whose WAL SQLite leaves out more than a crash can have torn off. Before any checkpoint.

    Raises:
        LogDamaged: records are lost.
    """
    for look in count(1):
        frames = frames_of(connection)
        if frames is None:  # a reader without the right to write: it cannot be told to it
            return
        seen = Reach(frames, salts_of(path))
        lost = _left_out(wal_of(path), seen) or _not_reached(folder, seen)
        if not lost:
            return
        if look == _LOOKS:
            raise LogDamaged(
                f"{wal_of(path)} is damaged: {lost}",
                remedy="keep the file, and restore a backup. To go on with what can be read, which may repeat effects "
                f"that are done, cut the WAL there and forget who had it open: truncate -s {bytes_of(seen.frames)} "
                f"{wal_of(path)}; rm {folder}/*.lock",
            )
        time.sleep(_LOOK_S)


def _not_reached(folder: Path, seen: Reach) -> str:
    """What is missing of what was noted; "" if nothing is. Of an empty WAL the main file may have everything."""
    if not seen.salts:
        return ""
    for noted in (keeper_note(folder), *map(note_of, left_by_dead(folder))):
        if noted.salts == seen.salts and seen.frames < noted.frames:
            return f"it had {noted.frames} frames, and {seen.frames} of them can be read"
    return ""


def _left_out(wal: Path, seen: Reach) -> str:
    """What is lost of it, if the frames that SQLite does not read are more than a crash tears off; else ""."""
    try:
        descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        header = os.pread(descriptor, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return ""
        if not any(header):  # grown, and not written yet
            return "its header is gone" if any(os.pread(descriptor, _FRAME_HEADER_BYTES, _HEADER_BYTES)) else ""
        big = _number(header)[0] - _MAGIC
        if big not in (0, 1) or _checksum(header[:24], (0, 0), big=bool(big)) != _pair(header, 24):
            return "its header was changed"
        return _behind(descriptor, header, seen.frames, big=bool(big))
    finally:
        os.close(descriptor)


def _behind(descriptor: int, header: bytes, frames: int, *, big: bool) -> str:
    """Whether another commit stands behind a commit that SQLite does not read."""
    salts, size = header[16:24], _FRAME_HEADER_BYTES + _number(header, 8)[0]
    end = os.fstat(descriptor).st_size
    commit = 0  # the first one behind the end
    for number in range(frames, (end - _HEADER_BYTES) // size):
        if commit and number > commit + _NEAR:
            break
        place = _HEADER_BYTES + number * size
        head = os.pread(descriptor, _FRAME_HEADER_BYTES, place)
        if head[8:16] != salts:
            continue
        if not commit:
            commit = number if _number(head, 4)[0] else 0
        if commit and _fits(os.pread(descriptor, size, place + size), salts, _pair(head, 16), big=big):
            return f"SQLite reads {frames} frames of it, and whole commits stand behind them"
    return ""


def _fits(frame: bytes, salts: bytes, before: tuple[int, int], *, big: bool) -> bool:
    """Whether a frame was written behind one with this checksum."""
    if len(frame) <= _FRAME_HEADER_BYTES or frame[8:16] != salts:
        return False
    checksum = _checksum(frame[:8] + frame[_FRAME_HEADER_BYTES:], before, big=big)
    return checksum == _pair(frame, 16)


def _checksum(content: bytes, before: tuple[int, int], *, big: bool) -> tuple[int, int]:
    """SQLite's checksum, going on from another one."""
    one, two = before
    words = Struct(f"{'>' if big else '<'}{len(content) // 4}I").unpack(content)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = one + first + two & _mask
        two = two + second + one & _mask
    return one, two
