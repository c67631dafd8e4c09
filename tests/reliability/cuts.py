"""Which of the states that a power cut can leave are looked at, of the many that `disk` allows. Pure.

A crash at any point of a trace leaves what was synced by then and some of what was not; what is pending right before a
sync contains all that was pending at any point since the sync before. So it is enough to look right before each sync,
and at the end; how early a state is possible is told by the last piece that it keeps (`Disk.left`).

Covered, right before each sync of a file (the file in focus):

* every subset of its pieces, where it has at most `COMPLETE`; beyond that every prefix, each piece lost alone, each
  kept alone, and `effort` random subsets;
* each of its writes torn: its first sectors, its last ones, random ones, its length alone; at up to `TEARS` places;
  with the pieces before it kept and those after it lost, and with all others kept;
* each of these with everything else that is not synced (other files, names) kept, and lost;
* `effort` random crosses: every piece of every file, torn or not, and every folder's names, each by chance.

Before each sync of a folder: every number of its operations, with all else kept, and lost; and the crosses. At the end
of the trace all of this for each file and folder that has anything pending.

Not covered: the full product of two files' subsets (it is sampled by the crosses), and of subsets with tears.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from reliability.disk import LENGTH_ONLY, Cut, Disk, File, Piece, Write, sectors

COMPLETE = 6
TEARS = 4


def cuts(disk: Disk, focus: int, chance: Random, *, effort: int) -> Iterator[Cut]:
    """What a crash right now may keep, varied around a file or folder."""
    waiting = [node for node, file in disk.files.items() if file.pieces and node != focus]
    lost_files = {node: disk.files[node].nothing for node in waiting}
    if focus in disk.files:
        lost_names = dict.fromkeys(disk.folders(), 0)
        for kept in variants(disk.files[focus], chance, effort=effort):
            yield Cut({focus: kept}, {})
            yield Cut({**lost_files, focus: kept}, lost_names)
    else:
        lost_names = dict.fromkeys([f for f in disk.folders() if f != focus], 0)
        for number in range(disk.pending(focus) + 1):
            yield Cut({}, {focus: number})
            yield Cut(lost_files, {**lost_names, focus: number})
    for _ in range(effort):
        yield cross(disk, chance)


def cross(disk: Disk, chance: Random) -> Cut:
    """Every file and folder by chance."""
    files = {node: _by_chance(file, chance) for node, file in disk.files.items() if file.pieces}
    return Cut(files, {folder: chance.randint(0, disk.pending(folder)) for folder in disk.folders()})


def _by_chance(file: File, chance: Random) -> tuple[int, ...]:
    likely = chance.choice((0.1, 0.5, 0.9))
    kept = [piece.whole if chance.random() < likely else 0 for piece in file.pieces]
    if chance.random() < 0.5:
        torn = chance.randrange(len(kept))
        kept[torn] = chance.choice([*_tears(file, torn, chance), 0])
    return tuple(kept)


def variants(file: File, chance: Random, *, effort: int) -> Iterator[tuple[int, ...]]:
    """What a crash may keep of a file."""
    whole = file.everything
    number = len(whole)
    if number <= COMPLETE:
        yield from itertools.product(*((0, bits) for bits in whole))
    else:
        for place in range(number + 1):
            yield (*whole[:place], *file.nothing[place:])
        for place in range(number):
            yield (*whole[:place], 0, *whole[place + 1 :])
            yield (*file.nothing[:place], whole[place], *file.nothing[place + 1 :])
        for _ in range(effort):
            yield tuple(bits if chance.random() < 0.5 else 0 for bits in whole)
    for place in range(number):
        for bits in _tears(file, place, chance):
            yield (*whole[:place], bits, *file.nothing[place + 1 :])
            yield (*whole[:place], bits, *whole[place + 1 :])


def _tears(file: File, place: int, chance: Random) -> list[int]:
    """What may be kept of one of a file's writes, neither all nor nothing."""
    piece: Piece = file.pieces[place]
    if not isinstance(piece.what, Write):
        return []
    found = [LENGTH_ONLY] if piece.what.offset + len(piece.what.data) > len(file.synced) else []
    number = len(sectors(piece.what))
    if number == 1:
        return found
    places = range(1, number) if number - 1 <= TEARS else sorted(chance.sample(range(1, number), TEARS))
    for first in places:
        head = (1 << first) - 1
        found += [head, piece.whole & ~head]
    return [*found, chance.getrandbits(number) & piece.whole]
