"""What a power cut can leave of a folder: operations on files in, states of the disk out. Pure: it touches no disk.

The model is the weakest that POSIX and real disks give to a program that syncs, less what no program could survive:

* A file has its content as it was last synced, and pieces that are not synced: each write and each change of length.
  A crash keeps any subset of the pieces. Of a write it may keep any of its sectors (512 bytes, which are never torn),
  or its length alone: then zeros stand where the data would be.
* A successful sync of a file makes its content durable, never its name. A sync of a folder makes the folder's names
  durable, not the content of what they name.
* Names (a creation, a rename, an unlink) are kept in order: what is lost of a folder is a tail of its operations. A
  rename from one folder to another is one operation of both. Between folders there is no order.
* A sync that fails leaves its file's written pages (4 KiB) clean, whether or not they were written, as Linux does:
  later syncs succeed without them, unless the page is written once more. The length is metadata, and waits.

Not modelled: sectors that are damaged after a good sync, writes that land in the wrong place, disks that lie about a
flush, garbage (other than zeros and what was there before) in a block that was never written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SECTOR = 512
PAGE = 4096
ROOT = 0
LENGTH_ONLY = -1


class Make(NamedTuple):
    """A new file or folder has a name."""

    folder: int
    name: str
    node: int
    is_folder: bool = False


class Rename(NamedTuple):
    """A name moves, over another one if that is there."""

    folder: int
    name: str
    to_folder: int
    to_name: str


class Unlink(NamedTuple):
    """A name goes."""

    folder: int
    name: str


class Write(NamedTuple):
    """Bytes at an offset of a file."""

    node: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file gets another length."""

    node: int
    size: int


class Sync(NamedTuple):
    """A file, or a folder, was synced."""

    node: int


class FailedSync(NamedTuple):
    """A file's sync failed."""

    node: int


class Note(NamedTuple):
    """A line that somebody outside has: durable at once."""

    text: str


Operation = Make | Rename | Unlink | Write | Truncate | Sync | FailedSync | Note
_Entry = Make | Rename | Unlink


class Piece(NamedTuple):
    """What is not synced of a file: one write or change of length, and when it was made."""

    at: int
    what: Write | Truncate
    is_stranded: bool = False  # a sync that failed took it for written

    @property
    def whole(self) -> int:
        """The choice that keeps all of it: a bit for each sector."""
        return (1 << len(sectors(self.what))) - 1 if isinstance(self.what, Write) else 1


class File(NamedTuple):
    """A file: what is synced of it, and what is not, in order."""

    synced: bytes = b""
    pieces: tuple[Piece, ...] = ()

    def first(self, kept: Sequence[int]) -> int:
        """Since when a crash can leave it so: since the last piece that is kept."""
        return max((piece.at + 1 for piece, bits in zip(self.pieces, kept, strict=True) if bits), default=0)

    def content(self, kept: Sequence[int]) -> bytes:
        """What a crash leaves.

        Args:
            kept: for each piece 0, or the bits of the sectors that are kept, or LENGTH_ONLY.
        """
        image = bytearray(self.synced)
        for piece, bits in zip(self.pieces, kept, strict=True):
            if bits and isinstance(piece.what, Truncate):
                _resize(image, piece.what.size)
            elif bits and isinstance(piece.what, Write):
                _put(image, piece.what, bits, piece.whole)
        return bytes(image)

    @property
    def everything(self) -> tuple[int, ...]:
        """The choice that keeps all."""
        return tuple(piece.whole for piece in self.pieces)

    @property
    def cached(self) -> bytes:
        """What a program reads that does not lose power."""
        return self.content(self.everything)

    @property
    def nothing(self) -> tuple[int, ...]:
        """The choice that keeps what is synced alone."""
        return (0,) * len(self.pieces)

    def after_sync(self) -> File:
        """It, after a sync that succeeded: what is stranded is written only where its page is dirty again."""
        cached = self.cached
        if not any(piece.is_stranded for piece in self.pieces):
            return File(cached)
        image = bytearray(self.content([0 if p.is_stranded else p.whole for p in self.pieces]))
        _resize(image, len(cached))
        dirty = {page for piece in self.pieces if not piece.is_stranded for page in _pages(piece.what)}
        for page in dirty:
            image[page * PAGE : (page + 1) * PAGE] = cached[page * PAGE : (page + 1) * PAGE]
        left = (p for p in self.pieces if p.is_stranded and dirty.isdisjoint(_pages(p.what)))
        return File(bytes(image), tuple(left))

    def after_failed_sync(self) -> File:
        """It, after a sync that failed: each page of each write is a piece of its own, and clean."""
        stranded: list[Piece] = []
        for piece in self.pieces:
            if isinstance(piece.what, Truncate) or piece.is_stranded:
                stranded.append(piece)
                continue
            node, offset, data = piece.what
            for page in _pages(piece.what):
                start, end = max(page * PAGE, offset), min((page + 1) * PAGE, offset + len(data))
                part = Write(node, start, data[start - offset : end - offset])
                stranded.append(Piece(piece.at, part, is_stranded=True))
        return File(self.synced, tuple(stranded))


def sectors(write: Write) -> range:
    """The sectors of its file that a write touches."""
    return range(write.offset // SECTOR, (write.offset + len(write.data) - 1) // SECTOR + 1)


def _pages(what: Write | Truncate) -> range:
    if isinstance(what, Truncate):
        return range(0)
    return range(what.offset // PAGE, (what.offset + len(what.data) - 1) // PAGE + 1)


def _resize(image: bytearray, size: int) -> None:
    del image[size:]
    image.extend(bytes(size - len(image)))


def _put(image: bytearray, write: Write, bits: int, whole: int) -> None:
    end = write.offset + len(write.data)
    if bits in (LENGTH_ONLY, whole):
        _resize(image, max(end, len(image)))
        if bits == whole:
            image[write.offset : end] = write.data
        return
    for number, sector in enumerate(sectors(write)):
        if bits >> number & 1:
            first, last = max(sector * SECTOR, write.offset), min((sector + 1) * SECTOR, end)
            _resize(image, max(last, len(image)))
            image[first:last] = write.data[first - write.offset : last - write.offset]


class Cut(NamedTuple):
    """What one crash keeps of what is not synced."""

    files: Mapping[int, tuple[int, ...]]  # by file: a choice for each of its pieces; a file that is not here keeps all
    names: Mapping[int, int]  # by folder: how many of its unsynced operations; a folder that is not here keeps all


class Disk:
    """The disk at one moment of a trace."""

    def __init__(self) -> None:
        self.at = 0  # how many operations it has seen
        self.files: dict[int, File] = {}
        self.synced_at = 0  # when something became durable last: no earlier crash leaves what is left from here on
        self._names: dict[int, dict[str, int]] = {ROOT: {}}  # those that are durable, by folder
        self._entries: list[tuple[int, _Entry]] = []

    def apply(self, operation: Operation) -> None:
        """Take the next operation of the trace."""
        match operation:
            case Make() | Rename() | Unlink():
                self._entries.append((self.at, operation))
                if isinstance(operation, Make):
                    self._new(operation)
            case Write(data=b""):
                pass
            case Write() | Truncate():
                file = self.files[operation.node]
                self.files[operation.node] = File(file.synced, (*file.pieces, Piece(self.at, operation)))
            case Sync():
                if self.pending(operation.node):
                    self._sync(operation.node)
                    self.synced_at = self.at + 1
            case FailedSync():
                self.files[operation.node] = self.files[operation.node].after_failed_sync()
            case Note():
                pass
        self.at += 1

    def _new(self, made: Make) -> None:
        if made.is_folder:
            self._names[made.node] = {}
        else:
            self.files[made.node] = File()

    def _sync(self, node: int) -> None:
        if node in self.files:
            self.files[node] = self.files[node].after_sync()
            return
        durable = self._needed_by(node)
        for _, entry in durable:
            _enter(self._names, entry)
        self._entries = [one for one in self._entries if one not in durable]

    def _needed_by(self, folder: int) -> list[tuple[int, _Entry]]:
        """The operations of a folder, and what must be kept with them: what came before them in their other folder."""
        needed: list[tuple[int, _Entry]] = []
        folders = {folder}
        for one in reversed(self._entries):
            if not folders.isdisjoint(_folders(one[1])):
                folders |= _folders(one[1])
                needed.append(one)
        return needed[::-1]

    def pending(self, node: int) -> int:
        """How many pieces of a file, or operations of a folder, are not synced."""
        return (
            len(self.files[node].pieces) if node in self.files else sum(node in _folders(e) for _, e in self._entries)
        )

    def folders(self) -> list[int]:
        """Every folder that has names which are not synced."""
        return sorted({folder for _, entry in self._entries for folder in _folders(entry)})

    def everything(self) -> dict[str, int | None]:
        """Each path with the file that it names, None for a folder, as a program sees it that does not lose power."""
        return self.paths({})[0]

    def paths(self, kept: Mapping[int, int]) -> tuple[dict[str, int | None], int]:
        """What a crash leaves of the names: each path with its file, None for a folder; and since when it can.

        Args:
            kept: `Cut.names`.
        """
        names = {folder: dict(found) for folder, found in self._names.items()}
        first = self.synced_at
        room = {folder: kept.get(folder, math.inf) for folder in self._names}
        for at, entry in self._entries:
            folders = _folders(entry)
            is_kept = all(room[folder] > 0 for folder in folders)
            if is_kept:
                _enter(names, entry)
                first = at + 1
            for folder in folders:  # one that is lost takes all that came after it in its folders with it
                room[folder] = room[folder] - 1 if is_kept else 0
        return dict(_walk(names, ROOT, "")), max(first, self.synced_at)


def _folders(entry: _Entry) -> set[int]:
    return {entry.folder, entry.to_folder} if isinstance(entry, Rename) else {entry.folder}


def _enter(names: dict[int, dict[str, int]], entry: _Entry) -> None:
    match entry:
        case Make():
            names[entry.folder][entry.name] = entry.node
        case Rename():
            names[entry.to_folder][entry.to_name] = names[entry.folder].pop(entry.name)
        case Unlink():
            del names[entry.folder][entry.name]


def _walk(names: dict[int, dict[str, int]], folder: int, prefix: str) -> Iterable[tuple[str, int | None]]:
    for name, node in names[folder].items():
        yield prefix + name, None if node in names else node
        if node in names:
            yield from _walk(names, node, f"{prefix}{name}/")
