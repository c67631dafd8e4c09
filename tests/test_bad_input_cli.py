"""Bad input at the command line: exit code, a clear text or one JSON object, nothing written.

The table is in `test_bad_input`. The commands run in real processes, forked from the server of `test_cli`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from bad_input import EVERYTHING, SAID, note, opened
from test_cli import DECISION, ERROR_KEYS, Bench

from intentlog import Applied, Log, NotApplied

WITH_JSON = {"status", "show", "tail", "recover", "resolve", "cancel", "verify"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bad-input-cli"))
    yield made
    made.close()


@pytest.fixture
def log(quick_folder: Path) -> Path:
    """A log with what each decision needs: done, without a value, in doubt, and in doubt by two attempts."""
    path = quick_folder / "log.db"
    with opened(path, "sync") as face:
        face.call("order", "done")
        face.doubt("valueless")
        face.log.resolve("valueless#1/s", Applied(), **SAID)
        face.doubt("doubtful")
        face.doubt("twice")
        face.log.resolve("twice#1/s", NotApplied(), **SAID)
        face.doubt("twice")
    return path


def records(path: Path) -> list[tuple[int, str]]:
    with Log.open(path, read_only=True) as reader:
        return [(one.seq, one.kind) for one in reader.tail(EVERYTHING)]


def told(bench: Bench, arguments: tuple[object, ...], code: int, error: str, match: str, **variables: str) -> Any:
    """The command refuses: with --json as one object on stdout alone, without as text on stderr alone."""
    if arguments[0] not in WITH_JSON:
        plain = bench(*arguments, **variables)
        assert (plain.code, plain.out) == (code, ""), plain
        assert plain.err.startswith("error: ")
        assert match in plain.err
        assert plain.err.count("\n") == 1 + ("\nnext: " in plain.err)
        return None
    result = bench(*arguments, "--json", **variables)
    assert (result.code, result.err) == (code, "")
    document = result.document
    assert list(document) == ERROR_KEYS
    assert document["error"] == error
    assert match in document["message"]
    return document


def unchanged(
    bench: Bench, log: Path, arguments: tuple[object, ...], code: int, error: str, match: str, **variables: str
) -> Any:
    """As `told`, and no record was written."""
    before = records(log)
    document = told(bench, arguments, code, error, match, **variables)
    assert records(log) == before
    return document


def every_command(log: object) -> list[tuple[object, ...]]:
    outcome = ("--outcome", "1")
    return [
        ("status", log),
        ("show", log, "order"),
        ("tail", log),
        ("recover", log),
        ("resolve", log, "doubtful#1/s", "--landed", *DECISION),
        ("supply", log, "valueless#1/s", *outcome, *DECISION),
        ("renew", log, "order#1/done", *DECISION),
        ("cancel", log, "doubtful", *DECISION),
        ("verify", log),
    ]


# --- the log's place and file ------


@pytest.mark.parametrize(
    ("place", "match"),
    [
        ("/dev/null", "/dev/null is not a regular file"),
        (".", "not a regular file"),
        ("nowhere/log.db", "does not exist"),
    ],
)
def test_a_place_where_no_log_can_be(bench: Bench, place: str, match: str) -> None:
    """A device, a folder, a missing folder: exit 1 from every command, and what to do."""
    for arguments in every_command(place):
        document = told(bench, arguments, 1, "log_unavailable", match)
        assert document is None or (document["effect_ran"], bool(document["remedy"])) == ("no", True)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A log in a folder that only its owner, who is somebody else, can write."""
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-"))  # pytest's own folders are closed to others
    with opened(folder / "log.db", "sync") as face:
        face.doubt("doubtful")
    for file in folder.glob("log.db*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    for lock in (folder / "log.db.d").iterdir():
        lock.chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_folder(bench: Bench, read_only_folder: Path) -> None:
    """What writes is refused with the folder's name; what reads reads."""
    path = read_only_folder / "log.db"
    for arguments in every_command(path):
        if arguments[0] in ("resolve", "supply", "renew", "cancel", "recover"):
            told(bench, arguments, 1, "log_unavailable", "cannot be written", WITHOUT_RIGHTS="1")
    assert bench("status", path, WITHOUT_RIGHTS="1").code == 3
    assert bench("verify", path, WITHOUT_RIGHTS="1").code == 0


def test_a_log_whose_locks_cannot_be_seen(bench: Bench, read_only_folder: Path) -> None:
    """A reader who may not look into the folder of locks cannot tell who lives, and says so in the library's words."""
    (read_only_folder / "log.db.d").chmod(0o700)
    told(bench, ("status", read_only_folder / "log.db"), 1, "log_unavailable", "log.db.d", WITHOUT_RIGHTS="1")


def test_a_newer_format(bench: Bench, log: Path) -> None:
    """Exit 1, with both numbers; the upgrade is the next step."""
    connection = apsw.Connection(str(log))
    connection.pragma("user_version", 99)
    connection.close()
    for arguments in every_command(log):
        document = told(bench, arguments, 1, "format_too_new", "has format 99, this intentlog writes 1")
        assert document is None or "upgrade intentlog" in document["remedy"]


DAMAGES: dict[str, Any] = {
    "cut": lambda content: content[:10_000],
    "stub": lambda content: content[:1_000],
    "header": lambda content: b"\0" * 100 + content[100:],
    "pages": lambda content: content[:4096] + b"\xa5" * (len(content) - 4096),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_log(bench: Bench, log: Path, damage: Any) -> None:
    """`verify` exits with 4; every other command ends with an error or an answer, and never with a traceback."""
    content = damage(log.read_bytes())
    for beside in ("-wal", "-shm"):
        log.with_name(log.name + beside).unlink()
    for arguments in every_command(log):
        log.write_bytes(content)
        result = bench(*arguments)
        assert result.code == 4 if arguments[0] == "verify" else result.code in (0, 1, 3, 4), arguments


# --- names and intents ------

BAD_BRANCHES = {
    "too long": ("b" * 256, 1, "1 to 255 characters, not 256"),
    "newline": ("a\nb", 1, "no control characters"),
    "escape": ("\x1b[2J", 1, "no control characters"),
    "turned round": ("a\u202eb", 1, "no control characters"),
}


@pytest.mark.parametrize(("name", "code", "match"), BAD_BRANCHES.values(), ids=BAD_BRANCHES.keys())
def test_a_branch_that_is_no_name(bench: Bench, log: Path, name: str, code: int, match: str) -> None:
    """`show` and `cancel` say what is wrong with it, and a terminal obeys nothing of it."""
    for arguments in (("show", log, name), ("cancel", log, name, *DECISION)):
        unchanged(bench, log, arguments, code, "arguments_not_recordable", match)


def test_a_branch_that_is_no_text(bench: Bench, log: Path) -> None:
    """Blank, or bytes that are no UTF-8: a usage error of `cancel`; `show` has no such branch."""
    for name, match in (("", "BRANCH is blank"), (" ", "BRANCH is blank"), ("\udcff", "BRANCH is not valid UTF-8")):
        unchanged(bench, log, ("cancel", log, name, *DECISION), 2, "usage", match)
    for name, match in (("", "not 0"), ("\udcff", "no control characters")):
        unchanged(bench, log, ("show", log, name), 1, "arguments_not_recordable", match)
    unchanged(bench, log, ("show", log, " "), 1, "unknown_branch", "no branch ' '")


def test_a_branch_that_is_not_there(bench: Bench, log: Path) -> None:
    """Cancelling nothing, or what has ended."""
    unchanged(bench, log, ("cancel", log, "nowhere", *DECISION), 1, "unknown_intent", "no attempt at branch 'nowhere'")
    unchanged(bench, log, ("cancel", log, "order", *DECISION), 1, "not_in_doubt", "nothing to cancel")


DECIDING = {
    "resolve": ("--not-landed", *DECISION),
    "supply": ("--outcome", "1", *DECISION),
    "renew": DECISION,
}
ILL_FORMED = [
    "order", "order#1", "order/s", "order#0/s", "order#01/s", "order#x/s", "#1/s", "order#1/",
    "order#\uff11/s", "order#1/s/",
]  # fmt: skip


@pytest.mark.parametrize("command", DECIDING)
def test_a_text_that_is_no_intent(bench: Bench, log: Path, command: str) -> None:
    """Exit 1 with the form that it should have; blank or no text at all is a usage error."""
    for text in ILL_FORMED[:: 1 if command == "renew" else 4]:
        unchanged(bench, log, (command, log, text, *DECIDING[command]), 1, "unknown_intent", "BRANCH#ATTEMPT/STEP")
    for text, match in (("", "INTENT is blank"), (" ", "INTENT is blank"), ("order\udcff#1/s", "not valid UTF-8")):
        unchanged(bench, log, (command, log, text, *DECIDING[command]), 2, "usage", match)


@pytest.mark.parametrize("command", DECIDING)
def test_an_intent_that_is_not_there(bench: Bench, log: Path, command: str) -> None:
    """It is named in full; near misses are not corrected."""
    for text in ("order#1/other", "order#7/done", "nowhere#1/s", f"order#{'9' * 30}/done"):
        arguments = (command, log, text, *DECIDING[command])
        document = unchanged(bench, log, arguments, 1, "unknown_intent", "no such intent in the log")
        assert document is None or (document["intent_id"], document["effect_ran"]) == (text, "no")


# --- decisions ------

TARGETS = {
    "resolve": ("doubtful#1/s", "--not-landed"),
    "supply": ("valueless#1/s", "--outcome", "1"),
    "renew": ("order#1/done",),
    "cancel": ("doubtful",),
}


@pytest.mark.parametrize("command", TARGETS)
def test_a_decision_by_nobody_or_for_no_reason(bench: Bench, log: Path, command: str) -> None:
    """Missing, blank, no UTF-8: usage errors that name the option. The library's own names: exit 1."""
    for option, other in (("--by", "--why"), ("--why", "--by")):
        given = (command, log, *TARGETS[command], other, "x")
        unchanged(bench, log, given, 2, "usage", option)
        for text, match in ((" \t", "is blank"), ("\udcff", "is not valid UTF-8")):
            unchanged(bench, log, (*given, option, text), 2, "usage", f"{option} {match}")
    arguments = (command, log, *TARGETS[command], "--by", "intentlog:probe", "--why", "x")
    unchanged(bench, log, arguments, 1, "arguments_not_recordable", "the library's own")


def test_control_characters_are_kept_and_not_obeyed(bench: Bench, log: Path) -> None:
    """A record can hold them; the screen shows them as escapes."""
    why = "a\x1b[2J\r\nb\u202e"
    result = bench("resolve", log, "doubtful#1/s", "--not-landed", "--by", "ann", "--why", why)
    assert (result.code, r"a\x1b[2J\r\nb\u202e" in result.out) == (0, True)
    assert bench("show", log, "doubtful", "--json").document[-1]["record"]["why"] == why
    assert "\x1b" not in bench("tail", log).out


def test_decisions_that_need_none(bench: Bench, log: Path) -> None:
    """Not in doubt, stale, under an old name, in doubt, renewed already: each with its code and its intent."""
    decided = ("--landed", *DECISION)
    cases: list[tuple[tuple[object, ...], str, str, str, str]] = [
        (("resolve", log, "order#1/done", *decided), "not_in_doubt", "its verdict is DONE", "order#1/done", "yes"),
        (
            ("resolve", log, "doubtful#1/s", *decided, "--expect-seq", "1"),
            "stale_decision",
            "1",
            "doubtful#1/s",
            "unknown",
        ),
        (("resolve", log, "twice#1/s", *decided), "stale_decision", "twice#2/s", "twice#1/s", "unknown"),
        (("supply", log, "order#1/done", *DECIDING["supply"]), "not_in_doubt", "needs no value", "order#1/done", "yes"),
        (
            ("renew", log, "doubtful#1/s", *DECISION),
            "in_doubt",
            "settled before it is renewed",
            "doubtful#1/s",
            "unknown",
        ),
    ]
    for arguments, error, match, intent, ran in cases:
        document = unchanged(bench, log, arguments, 1, error, match)
        assert document is None or (document["intent_id"], document["effect_ran"]) == (intent, ran)
        assert document is None or document["remedy"]
    assert bench("renew", log, "order#1/done", *DECISION).code == 0
    unchanged(bench, log, ("renew", log, "order#1/done", *DECISION), 1, "not_in_doubt", "renewed, and not called since")


def test_an_outcome_that_is_none(bench: Bench, log: Path) -> None:
    """No JSON, not finite, no UTF-8, too large: nothing is recorded."""
    for outcome, match in (
        ("", "not JSON"),
        ("{", "not JSON"),
        ("Infinity", "not JSON"),
        ("\udcff", "not valid UTF-8"),
    ):
        arguments = ("supply", log, "valueless#1/s", *DECISION, "--outcome", outcome)
        unchanged(bench, log, arguments, 2, "usage", match)
    for command, target in (("supply", ("valueless#1/s",)), ("resolve", ("doubtful#1/s", "--landed"))):
        for outcome, match in (('"\\ud800"', "surrogates not allowed"), ("1e999", "not finite")):
            arguments = (command, log, *target, *DECISION, "--outcome", outcome)
            unchanged(bench, log, arguments, 1, "arguments_not_recordable", match)
    with opened(log, "sync") as face:
        assert [e.in_doubt for e in face.log.open_intents() if e.intent_id == "doubtful#1/s"] == [True]


def test_a_tail_of_less_than_nothing(bench: Bench, log: Path) -> None:
    """Negative, or no number: a usage error."""
    for more in (("-n", "-1"), ("-n", "x"), ("--after", "-1"), ("--after", "1.5"), ("--lines",)):
        unchanged(bench, log, ("tail", log, *more), 2, "usage", more[0].replace("-n", "-n"))
    assert bench("tail", log, "-n", "0", "--json").document == []
    assert len(bench("tail", log, "-n", "9" * 30, "--json").document) == len(records(log))


def test_a_tail_after_more_than_there_can_be(bench: Bench, log: Path) -> None:
    """Nothing stands after it."""
    result = bench("tail", log, "--after", "9" * 30, "--json")
    assert (result.code, result.document) == (0, [])


# --- what the environment says ------


NO_CODECS = ["json", "json:", ":codec", "json:nothing", ".json:dumps", "shop.py:codec", "broken:codec"]


def test_a_codec_that_is_not_there(bench: Bench, log: Path) -> None:
    """$INTENTLOG_CODEC that names nothing: every command that opens the log says so, exit 1, and what to do."""
    for arguments in every_command(log):
        unchanged(bench, log, arguments, 1, "import_failed", "nowhere", INTENTLOG_CODEC="nowhere:codec")
    for name in NO_CODECS:
        document = unchanged(bench, log, ("status", log), 1, "import_failed", "", INTENTLOG_CODEC=name)
        assert document["remedy"]


def test_a_codec_that_is_none(bench: Bench, log: Path) -> None:
    """It names something, which is no codec: exit 1, before the log is opened with it."""
    for arguments in every_command(log):
        unchanged(bench, log, arguments, 1, "tool_misdefined", "is no codec", INTENTLOG_CODEC="json:dumps")
    for name in ("shop:charge", "json:decoder"):
        unchanged(bench, log, ("status", log), 1, "tool_misdefined", "is no codec", INTENTLOG_CODEC=name)


def test_a_crash_point_that_is_none(bench: Bench, log: Path) -> None:
    """$INTENTLOG_CRASH_AT: refused with the names there are, by what reads as well."""
    variables = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": "nowhere"}
    for arguments in every_command(log):
        unchanged(bench, log, arguments, 1, "unknown_failpoint", "before_dispatched", **variables)


def test_the_log_goes_on_after_all_that(bench: Bench, log: Path) -> None:
    """Refused commands leave no lock, no claim and no half of anything."""
    for arguments in (
        ("resolve", log, "x", *DECIDING["resolve"]),
        ("cancel", log, "x", *DECISION),
        ("tail", log, "-n", "x"),
    ):
        assert bench(*arguments).code in (1, 2)
    with opened(log, "asyncio") as face:
        assert face.call("order", "done", note, "x") == "x"
        face.goes_on()
    assert bench("verify", log).code == 0
