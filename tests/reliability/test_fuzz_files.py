"""Damaged files of real logs: an answer or an error of the library's own, and no damage that is called sound.

Bytes are flipped, pages and ranges zeroed, swapped, copied, cut off and put in, in the main file, the `-wal`, the
`-shm` and what stands in `LOG.d`; of a log that was closed, and of one whose owner was killed with records in its WAL
alone. What `verify` may call sound is what the undamaged log said, read through the library beforehand: a flip in a
free page changes nothing.

One file is damaged at a time: a WAL that is cut short together with the lock files that noted its length is an older
log, and nothing in it says otherwise. A stranger who computes the (unkeyed) chain anew is out of scope: the chain shows
damage, not an author.
"""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from reliability import fuzzing, looking
from reliability.conftest import Lab
from reliability.looking import Content, Look
from reliability.watched import Watched

HARNESS = "fuzz: damaged files"
BRANCHES = ("KEYED-returned", "UNSAFE-killed", "IDEMPOTENT-new")
COMMANDS = ("verify", "status --json", "show KEYED-returned", "tail --json", "recover --json")
PAGE, FRAME, WAL_HEADER = 4096, 4120, 32
TEXTS = rb"receipt-|the answer was lost|looked up|1999"
MAIN, WAL, SHM = "log.db", "log.db-wal", "log.db-shm"


class Original(NamedTuple):
    """A log that a worker left: every file of its folder, by its name there, and what the log says."""

    files: dict[str, bytes]
    content: Content


class Damage(NamedTuple):
    """One thing that is done to a file. Places are fractions of its size, in millionths."""

    file: str  # its name, or a word for the lock files, whose names differ
    how: str
    at: int
    other: int
    fill: bytes


HOW = (
    "flip",
    "flip",
    "in a text",
    "in a text",
    "zero a page",
    "zero a range",
    "swap pages",
    "copy a page",
    "fill",
    "cut",
    "insert",
)
_place = st.integers(0, 999_999)
damages = st.lists(
    st.builds(
        Damage,
        st.sampled_from([MAIN, MAIN, MAIN, WAL, WAL, WAL, SHM, "keeper.lock", "making.lock", "owner", "ballast"]),
        st.sampled_from(HOW),
        _place,
        _place,
        st.binary(min_size=1, max_size=48),
    ),
    min_size=1,
    max_size=3,
).filter(lambda found: len({one.file for one in found}) == 1)
cases = st.tuples(st.sampled_from(["closed", "killed"]), damages, st.sampled_from(COMMANDS))


def damaged(content: bytes, damage: Damage) -> bytes:
    """A file's content after it."""
    size = len(content)
    at = size * damage.at // 1_000_000
    other = size * damage.other // 1_000_000
    base, unit = (WAL_HEADER, FRAME) if damage.file == WAL else (0, PAGE)
    page, another = (base + max(0, place - base) // unit * unit for place in (at, other))
    first, last = sorted((at, other))
    match damage.how:
        case "flip":
            flipped = bytearray(content)
            for place in {at, *(size * byte // 256 for byte in damage.fill[: damage.other % 3])}:
                if place < size:
                    flipped[place] ^= 1 << damage.other % 8
            return bytes(flipped)
        case "in a text":  # of a value, an error, a name: nothing but a digest can tell
            texts = [found.start() for found in re.finditer(TEXTS, content)]
            place = texts[len(texts) * damage.at // 1_000_000] if texts else at
            return content[:place] + b"X" + content[place + 1 :] if place < size else content
        case "zero a page":
            return content[:page] + bytes(max(0, min(unit, size - page))) + content[page + unit :]
        case "zero a range":
            return content[:first] + bytes(last - first) + content[last:]
        case "swap pages":
            low, high = sorted((page, another))
            if high - low < unit or size < high:
                return content
            one, two = content[low : low + unit], content[high : high + unit]
            return content[:low] + two + content[low + unit : high] + one + content[high + unit :]
        case "copy a page":
            return content[:another] + content[page : page + unit] + content[another + unit :]
        case "fill":
            return (content[:at] + damage.fill + content[at + len(damage.fill) :])[:size]
        case "cut":
            return content[:at]
        case _:
            return content[:at] + damage.fill + content[at:]


def with_damage(original: Original, found: list[Damage]) -> dict[str, bytes]:
    """The files after all of it."""
    files = dict(original.files)
    for one in found:
        for name, content in files.items():
            if Path(name).name == one.file or (one.file == "owner" and Path(name).name.startswith("owner-")):
                files[name] = damaged(content, one)
    return files


@pytest.fixture(scope="module")
def originals() -> dict[str, Original]:
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))
    made = {}
    with Watched() as watched:
        for name, program, wrong in (
            ("closed", looking.live_and_close, ""),
            ("killed", looking.die_in_an_effect, f"was killed by {signal.SIGKILL.name}"),
        ):
            (folder / name).mkdir()
            assert watched.run(looking.made_by, program, str(folder / name)).wrong == wrong
            files = {
                str(p.relative_to(folder / name)): p.read_bytes()
                for p in (folder / name / "log").rglob("*")
                if p.is_file()
            }
            came = watched.run(looking.read_content, str(folder / name))
            assert not came.wrong
            made[name] = Original(files, came.value)
    shutil.rmtree(folder)
    return made


class Judge:
    """Says what is wrong with an example.

    Args:
        folder: where the damaged logs are put, one after the other.
        watched: looks at them.
        originals: the logs that are damaged.
    """

    def __init__(self, folder: Path, watched: Watched, originals: dict[str, Original]) -> None:
        self._folder = folder
        self._watched = watched
        self._originals = originals

    def __call__(self, case: tuple[str, list[Damage], str]) -> list[str]:
        name, found, command = case
        original = self._originals[name]
        files = with_damage(original, found)
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            for file, content in files.items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).parent.chmod(0o700)
                (place / file).write_bytes(content)
                (place / file).chmod(0o600)
            came = self._watched.run(looking.look, str(place), BRANCHES, (command,))
        finally:
            shutil.rmtree(place)
        if came.wrong:
            return [f"the process {came.wrong}"]
        return [*came.value.wrong, *_accepted(original, came.value)]


def _accepted(original: Original, seen: Look) -> list[str]:
    wrong = []
    for who, content in seen.accepted.items():
        lost = len(set(original.content.records) - set(content.records))
        # What a writer went on with may have mended rows: never records.
        if lost or (content != original.content and who != "later reader"):
            wrong.append(f"verify of the {who} is content, {lost} of {len(original.content.records)} records differ")
    return wrong


def test_fuzz_damaged_files(lab: Lab, originals: dict[str, Original], quick_folder: Path) -> None:
    """DESIGN 9, I5: no traceback, no hang, no crash of the process, and `verify` calls nothing sound that differs."""
    with Watched(looking.warm) as watched:
        judge = Judge(quick_folder, watched, originals)
        fuzzing.hold(lab, cases, judge, fuzzing.examples(30, 200), selects="test_fuzz_damaged_files")


@pytest.mark.parametrize(
    ("broken", "finds", "how"),
    [
        pytest.param(looking.without_chain, "is content", ["in a text"], id="verify without the chain"),
        pytest.param(
            looking.without_translation, "raised", ["zero a range", "cut", "insert"], id="errors of SQLite let through"
        ),
    ],
)
def test_control_fuzz_damaged_files(
    lab: Lab, originals: dict[str, Original], quick_folder: Path, broken: Any, finds: str, how: Any
) -> None:
    """CONTROL: the same search over a library that is broken on purpose finds it; of the main file's damages alone."""
    chosen = cases.filter(lambda case: case[1][0].file == MAIN and {one.how for one in case[1]} <= set(how))
    with Watched(broken) as watched:
        judge = Judge(quick_folder, watched, originals)

        def found(case: Any) -> list[str]:
            return [one for one in judge(case) if finds in one]

        fuzzing.caught(lab, broken.__name__, chosen, found, 100)


def test_control_a_crash_and_a_hang_are_seen(lab: Lab) -> None:
    """CONTROL: a task that the kernel kills, one that ends its process, and one that never ends, are told as that."""
    with Watched() as watched:
        ends = [watched.run(looking.end_badly, how).wrong for how in ("SIGBUS", "SIGSEGV", "exit", "raise")]
    with Watched(hang_s=1) as watched:
        ends.append(watched.run(looking.end_badly, "hang").wrong)
    signals = ["was killed by SIGBUS", "was killed by SIGSEGV"]
    assert ends == [*signals, "exited with 3", "raised ValueError: on purpose", "hung for 1 s"]
    lab.control("processes that end badly", len(ends), len(ends))
