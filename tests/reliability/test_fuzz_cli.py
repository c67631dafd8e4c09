"""Odd command lines: one of the documented exit codes, no traceback, nothing that a terminal obeys, nothing written.

Each line goes through the real entry point, in a fork of its own; some through a real process of their own. Where a
line is refused (exit code 1 or 2) the log has the records that it had, and no file is made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from reliability import commanding, fuzzing
from reliability.commanding import EVIL, LOG, Answer
from reliability.conftest import Lab
from reliability.looking import EXIT_CODES
from reliability.watched import Watched

HARNESS = "fuzz: command line"
WRITERS = {"recover", "resolve", "supply", "renew", "cancel"}
SAID = ["--by", "ann", "--why", "looked"]
LINES = [
    ["status", LOG],
    ["show", LOG, "order"],
    ["show", LOG, "doubtful", "--json"],
    ["tail", LOG, "-n", "3"],
    ["tail", LOG, "--after", "2", "--json"],
    ["recover", LOG],
    ["recover", LOG, "--import", "json", "--json"],
    ["recover", LOG, "--watch", "1"],
    ["resolve", LOG, "doubtful#1/s", "--landed", "--outcome", "1", *SAID],
    ["resolve", LOG, "doubtful#1/s", "--not-landed", "--expect-seq", "9", "--json", *SAID],
    ["supply", LOG, "valueless#1/s", "--outcome", '{"a": [1]}', *SAID],
    ["renew", LOG, "order#1/done", *SAID],
    ["cancel", LOG, "doubtful", "--json", *SAID],
    ["verify", LOG],
    ["doctor", LOG],
    ["demo", "--seed", "1"],
    ["--version"],
]
WORDS = [
    "",
    " ",
    "-",
    "--",
    "--json",
    "-n",
    "-f",
    "-x",
    "--bogus",
    "--by",
    "--why=",
    "--json=1",
    "--help",
    "--landed",
    "order",
    "order#1/done",
    "doubtful#1/s",
    "order#0/done",
    "#1/",
    "b[bold]\u200b",
    "[bold]x[/bold]",
    "a\nb",
    EVIL.replace("\0", ""),
    "\udcff\udc80",
    "\u202e",
    "9" * 400,
    "1e5",
    "-1",
    "0",
    "nan",
    "inf",
    "0.1",
    "٣",
    "true",
    "%s",
    "{x}",
    "$(id)",
    "'; DROP TABLE events; --",
    "/dev/null",
    ".",
    "..",
    "nowhere/log.db",
    f"./{LOG}",
    f"file:{LOG}?mode=memory",
    ":memory:",
    "http://x",
    "postgresql://",
    "postgres://[::1",
    "postgresql://127.0.0.1:1/x?connect_timeout=1",
    "{",
    "NaN",
    '{"a":1,"a":2}',
    "[" * 5_000,
    '"\\ud800"',
    "x" * 70_000,
    "a.b",
    ".x",
    "os/path.py",
]
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
word = st.one_of(st.sampled_from(WORDS), texts)
changes = st.lists(
    st.tuples(st.sampled_from(["put", "put", "set", "set", "drop", "double", "swap"]), st.integers(0, 15), word),
    max_size=3,
)
whole = st.lists(st.one_of(word, st.sampled_from(sorted({one for line in LINES for one in line}))), max_size=7)
lines = st.one_of(st.tuples(st.sampled_from(LINES), changes).map(lambda drawn: changed(*drawn)), whole)
with_outcomes = st.tuples(st.sampled_from([line for line in LINES if "--outcome" in line]), word).map(
    lambda drawn: [
        drawn[1] if before == "--outcome" else one for before, one in zip(["", *drawn[0]], drawn[0], strict=False)
    ]
)


def changed(line: list[str], how: list[tuple[str, int, str]]) -> list[str]:
    """A command line with some words put in, replaced, left out, said again."""
    line = list(line)
    for what, place, text in how:
        at = place % (len(line) + 1)
        match what:
            case "put":
                line.insert(at, text)
            case "set":
                line[at : at + 1] = [text]
            case "drop":
                line[at : at + 1] = []
            case "double":
                line[at:at] = line[at : at + 2]
            case _:
                line.reverse()
    return line


def wrong_with(line: list[str], answer: Answer) -> list[str]:
    """What of an answer must never be."""
    found = []
    said = answer.out + answer.err
    lasting = any(one.startswith(("--watch", "--follow", "-f", "-n")) for one in line)
    if answer.code not in EXIT_CODES and not (answer.code == 130 and lasting):
        found.append(f"it ended with {answer.code}")
    if "Traceback (most recent" in said or "internal: " in said or '"error": "internal"' in said:
        found.append(f"it told of an error of its own: {said[-600:]}")
    raw = sorted({hex(ord(c)) for c in said if not c.isprintable() and c != "\n"})
    if raw:
        found.append(f"characters {raw} reach the terminal")
    if answer.code in (1, 2):
        as_json = "--json" in line
        if as_json and not is_json(answer.out):
            found.append(f"with --json it printed {answer.out[:200]!r}")
        told = "error: " in answer.err or "Usage: " in answer.err or "doctor" in line  # which tells in its table
        if not as_json and not told:
            found.append(f"it was refused without a word: {answer.err[:200]!r}")
        if answer.wrote:
            found.append("it was refused, and has written")
    if answer.wrote and not WRITERS & set(line):
        found.append("a command that reads has written")
    if answer.made:
        found.append(f"it made {answer.made}")
    return found


def is_json(text: str) -> bool:
    """One document, or one in each line."""
    for documents in ([text], text.splitlines()):
        try:
            for one in documents:
                json.loads(one)
        except ValueError:
            continue
        return text.isascii()
    return False


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))
    with Watched() as watched:
        assert not watched.run(commanding.make_log, str(folder)).wrong
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    shutil.rmtree(folder)
    return {name: content for name, content in files.items() if not name.endswith("-shm")}


class Judge:
    """Says what is wrong with how a line is answered. A log that was written to is laid out anew.

    Args:
        folder: where the log is laid out.
        watched: runs the command; None for a real process.
        made: the log's files.
    """

    def __init__(self, folder: Path, watched: Watched | None, made: dict[str, bytes]) -> None:
        self._folder = folder
        self._watched = watched
        self._made = made
        self._number = 0
        self.codes: set[int] = set()
        self.place = self._laid_out()

    def _laid_out(self) -> Path:
        self._number += 1
        place = self._folder / str(self._number)
        for name, content in self._made.items():
            (place / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)
        return place

    def begin_anew(self) -> None:
        """Lay the log out again, as it was made."""
        shutil.rmtree(self.place)
        self.place = self._laid_out()

    def ask(self, line: list[str], variables: dict[str, str], *, keep: bool = False) -> Answer | str:
        """The answer; or how its process ended instead. What it wrote is kept, if that is wanted."""
        if self._watched is None:
            return self._really_asked(line, variables)
        came = self._watched.run(commanding.ask, str(self.place), line, variables)
        answer: Answer = came.value
        if came.wrong or answer.made or (answer.wrote and not keep):
            self.begin_anew()
        if came.wrong:
            return came.wrong
        self.codes.add(answer.code)
        return answer

    def _really_asked(self, line: list[str], variables: dict[str, str]) -> Answer:
        before = commanding.names_in(self.place)
        done = subprocess.run(
            [sys.executable, "-m", "intentlog", *map(os.fsencode, line)],
            cwd=self.place,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=90,
        )
        out, err = (text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr))
        made = commanding.names_in(self.place) - {*before, f"{LOG}-wal", f"{LOG}-shm", f"{LOG}.d"}
        return Answer(done.returncode, out, err, wrote=False, made=sorted(made))

    def __call__(self, line: list[str]) -> list[str]:
        answer = self.ask(line, {})
        return [f"the process {answer}"] if isinstance(answer, str) else wrong_with(line, answer)


def test_fuzz_command_lines(lab: Lab, made: dict[str, bytes], quick_folder: Path) -> None:
    """DESIGN 13: exit codes 0 to 4, no traceback; what is refused has written nothing; a terminal obeys nothing."""
    with Watched(commanding.bounded) as watched:
        judge = Judge(quick_folder, watched, made)
        fuzzing.hold(lab, lines, judge, fuzzing.examples(70, 400), selects="test_fuzz_command_lines")
    assert judge.codes >= {0, 1, 2, 3}, "not only refusals were tried"


def test_fuzz_command_lines_of_real_processes(lab: Lab, made: dict[str, bytes], quick_folder: Path) -> None:
    """The same, by `python -m intentlog`: what is read of a real argv, and written to real pipes."""
    judge = Judge(quick_folder, None, made)
    chosen = lines.filter(
        lambda line: sum(map(len, line)) < 60_000 and not {"demo"} & set(line) and not any(_lasts(one) for one in line)
    )
    number = fuzzing.examples(5, 40)
    fuzzing.hold(lab, chosen, judge, number, selects="test_fuzz_command_lines_of_real_processes")


def _lasts(text: str) -> bool:
    return text.startswith(("--watch", "--follow")) or (text.startswith("-") and "f" in text)


VARIABLES = {
    "INTENTLOG_URL": word,
    "INTENTLOG_CODEC": st.one_of(
        word, st.sampled_from(["json:dumps", "os:", ":", "os:path", "reliability.life:World"])
    ),
    "INTENTLOG_LEASE_S": st.one_of(word, st.sampled_from(["0", "1", "-1", "1e400", "nan", "86401", "1_0", "٣"])),
    "INTENTLOG_TEST_HOOKS": st.sampled_from(["", "0", "1", "yes"]),
    "INTENTLOG_CRASH_AT": st.one_of(
        word, st.sampled_from(["before_pending:0", "nowhere", "after_call:x", ":", "a:1:stop"])
    ),
    "INTENTLOG_DEBUG": st.sampled_from(["0", "2", ""]),
}
environments = st.tuples(
    st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.none(), min_size=1, max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: VARIABLES[name] for name in names})
    ),
    st.sampled_from([line for line in LINES if line[0] not in ("demo", "--version")]),
    st.booleans(),
)


def test_fuzz_environment(lab: Lab, made: dict[str, bytes], quick_folder: Path) -> None:
    """The same for what INTENTLOG_* variables hold; of a log that they name, too."""

    def broken(drawn: tuple[dict[str, str], list[str], bool]) -> list[str]:
        variables, line, named = drawn
        variables = {name: text.replace("\0", "") for name, text in variables.items()}
        if named:
            line = [one for one in line if one != LOG]
        answer = judge.ask(line, variables)
        return [f"the process {answer}"] if isinstance(answer, str) else wrong_with(line, answer)

    with Watched(commanding.bounded) as watched:
        judge = Judge(quick_folder, watched, made)
        fuzzing.hold(lab, environments, broken, fuzzing.examples(40, 250), selects="test_fuzz_environment")


@pytest.mark.parametrize(
    ("broken", "finds", "chosen"),
    [
        pytest.param(commanding.raising, "an error of its own", lines, id="a command raises"),
        pytest.param(
            commanding.writing_before_refusing, "has written", with_outcomes, id="it writes before it refuses"
        ),
        pytest.param(commanding.showing_raw, "reach the terminal", lines, id="texts are shown raw"),
        pytest.param(commanding.escaping, "the process raised", lines, id="an error leaves the entry point"),
    ],
)
def test_control_fuzz_command_lines(
    lab: Lab, made: dict[str, bytes], quick_folder: Path, broken: Any, finds: str, chosen: Any
) -> None:
    """CONTROL: a command that is broken on purpose is found by the same search."""
    with Watched(broken) as watched:
        judge = Judge(quick_folder, watched, made)

        def found(line: list[str]) -> list[str]:
            return [one for one in judge(line) if finds in one]

        fuzzing.caught(lab, broken.__name__, chosen, found, 100)
