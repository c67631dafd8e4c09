"""Texts that a terminal, a log's reader or a database would obey: refused in names, shown as escapes everywhere else.

Names are of branches, steps, tools and events. Free texts are errors, reasons (`by`, `why`), arguments and outcomes,
and the log's own path. Odd command lines in numbers are in `reliability/test_fuzz_cli`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reliability import commanding
from reliability.commanding import EVIL
from reliability.looking import run_command

from intentlog import ArgumentsNotRecordable, InDoubt, Log, LogPoisoned, ToolMisdefined, tool
from intentlog.observe import LoggingObserver

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
TURNING = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
BREAKING = list("\u2028\u2029")
SQL = ["'; DROP TABLE events; --", '" OR 1=1 --', "%s %(x)s {} $1 ?1 :a", "a\\'b", "E'\\x27'", "x'00'", "/* */"]
MARKUP = "[bold red]x[/] [link=file:///etc/passwd]y[/link] :smile: \\[z]"


@tool(name="texts-effect")
def effect(text: str) -> str:
    return text


@tool(name="texts-lost")
def lost(text: str) -> str:
    raise TimeoutError(text)


def raw_in(text: str) -> list[str]:
    return sorted({hex(ord(c)) for c in text if not c.isprintable() and c != "\n"})


@pytest.mark.parametrize("character", [*CONTROLS, *TURNING, *BREAKING], ids=lambda c: f"{ord(c):04x}")
def test_names_have_no_characters_that_are_obeyed(memory_log: Log, character: str) -> None:
    """DESIGN 2: C0 and C1 controls, DEL, what turns text round, what ends a line: in no name of any kind."""
    name = f"a{character}b"
    for use in (
        lambda: memory_log.attempt(name),
        lambda: memory_log.append(name, "kind", 1),
        lambda: memory_log.append("order", name, 1),
        lambda: memory_log.cancel(name, by="ada", why="x"),
        lambda: list(memory_log.history(name)),
    ):
        with pytest.raises(ArgumentsNotRecordable) as caught:
            use()
        assert character not in str(caught.value)
    with memory_log.attempt("order") as attempt, pytest.raises(ArgumentsNotRecordable):
        attempt.step(name).call(effect, "x")
    with pytest.raises((ArgumentsNotRecordable, ToolMisdefined)):
        tool(name=name)(lambda: None)


@pytest.fixture(scope="module")
def memory_log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Log.open(tmp_path_factory.mktemp("texts") / "log.db") as log:
        yield log


@pytest.fixture(scope="module")
def evil_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    commanding.make_log(str(folder))
    return folder / "log.db"


COMMANDS = [
    ["status"],
    ["show", "order"],
    ["show", "doubtful"],
    ["show", "valueless"],
    ["show", "settled"],
    ["show", EVIL],
    ["tail", "-n", "999"],
    ["verify"],
    ["doctor"],
    ["recover"],
    ["resolve", "doubtful#1/s", "--landed", "--by", EVIL, "--why", EVIL, "--outcome", EVIL],
    ["renew", EVIL, "--by", "a", "--why", "b"],
    ["cancel", EVIL, "--by", EVIL, "--why", EVIL],
    [EVIL],
    ["status", EVIL],
    ["tail", "-n", EVIL],
    ["resolve", "doubtful#1/s", "--landed", "--by", EVIL, "--why", EVIL, "--outcome", json.dumps(EVIL)],
    ["supply", "valueless#1/s", "--by", EVIL, "--why", EVIL, "--outcome", json.dumps({EVIL: EVIL})],
    ["renew", "order#1/done", "--by", EVIL, "--why", EVIL],
    ["cancel", "doubtful", "--by", EVIL, "--why", EVIL],
    ["show", "doubtful"],
]


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_raw_reaches_a_terminal(evil_log: Path, as_json: bool) -> None:
    """Every command over a log in which each free text is hostile; with --json too."""
    for command in COMMANDS:
        words = [command[0], str(evil_log), *command[1:]]
        code, out, err = run_command([*words, "--json"] if as_json else words, {})
        assert raw_in(out + err) == [], command
        assert "forged: line" not in [line.strip() for line in (out + err).splitlines()]
        if as_json and code != 2 and out:
            assert out.isascii()
            json.loads(out)


def test_texts_keep_their_value_in_json(evil_log: Path) -> None:
    """What is escaped for a person is not changed for a program."""
    _, out, _ = run_command(["show", str(evil_log), "order", "--json"], {})
    assert EVIL in [entry["payload"] for entry in json.loads(out)]
    assert {EVIL: [EVIL]} in [entry["payload"] for entry in json.loads(out)]


def test_markup_is_shown_as_it_is(quick_folder: Path) -> None:
    """rich's [bold], [link=...], :emoji: in names, reasons and errors are text."""
    with Log.open(quick_folder / "log.db") as log:
        name = MARKUP.replace("/", "|")
        for branch in (name, "order"):
            with pytest.raises(InDoubt), log.attempt(branch) as attempt:
                attempt.step(name).call(lost, MARKUP)
        log.cancel("order", by=MARKUP, why=MARKUP)
    for command in (["status"], ["show", "order"], ["show", name], ["tail"]):
        _, out, err = run_command([command[0], str(quick_folder / "log.db"), *command[1:]], {})
        assert "[bold red]x[" in out, command
        assert err == ""
    assert MARKUP in run_command(["show", str(quick_folder / "log.db"), "order"], {})[1]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_sql_in_texts_is_text(store: str, quick_folder: Path, request: pytest.FixtureRequest) -> None:
    """Names, reasons, values: stored, found and read back, and the tables stand."""
    place = quick_folder / "log.db" if store == "sqlite" else request.getfixturevalue("postgres_log_url")
    with Log.open(place) as log:
        for text in SQL:
            branch = text.replace("/", "|")
            with log.attempt(branch) as attempt:
                assert attempt.step(branch).call(effect, text) == text
            log.renew(f"{branch}#1/{branch}", by=text, why=text)
            log.append(branch, branch, {text: text})
            entries = list(log.history(branch))
            assert [entry.payload for entry in entries if entry.kind == "ApplicationEvent"] == [{text: text}]
            assert {entry.branch for entry in entries} == {branch}
        assert log.verify().ok


# --- the library's own log ------


def test_a_logged_line_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """No text begins a line of its own in the log of the program, or is obeyed by who shows it."""
    observer = LoggingObserver()
    observer.poisoned(f"/srv/{EVIL}.db", f"IOError: {EVIL}")
    observer.contradiction(f"order{EVIL}#1/s", EVIL)
    observer.unvisited(EVIL, [EVIL, "b"])
    assert len(caplog.records) == 3
    for record in caplog.records:
        assert raw_in(record.getMessage()) == []
        assert "\n" not in record.getMessage()


def test_a_path_that_a_terminal_would_obey(quick_folder: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's own name, in an error at the command and in the line that says that it is poisoned."""
    path = quick_folder / "a\x1b[2J\nforged: line\u202e.db"
    with Log.open(path) as log:
        log.append("order", "noted", 1)
        monkeypatch.setattr(log._engine.store, "gone", lambda **_: f"{path} was deleted")
        with pytest.raises(LogPoisoned), log.attempt("order") as attempt:
            attempt.call(effect, "x")
    assert caplog.records
    assert all("\n" not in one.getMessage() and raw_in(one.getMessage()) == [] for one in caplog.records)
    for words in (["status", str(path)], ["show", str(path), "nobody"], ["doctor", str(path)], ["status", f"{path}x"]):
        _, out, err = run_command(words, {})
        assert raw_in(out + err) == []
        assert "forged: line" not in [line[:12] for line in (out + err).splitlines()]


def test_a_traceback_that_was_asked_for(quick_folder: Path) -> None:
    """INTENTLOG_DEBUG=1 prints errors as they are raised, and their texts as escapes."""
    _, _, err = run_command(["status", str(quick_folder / EVIL.replace("\0", ""))], {"INTENTLOG_DEBUG": "1"})
    assert "Traceback" in err
    assert raw_in(err) == []
