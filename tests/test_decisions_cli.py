"""`intentlog renew`, `cancel` and `tail`, as processes: what they print, and their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_input import EVERYTHING, SAID, note, opened
from test_cli import DECISION, Bench, started_cold

from intentlog import Applied, Log

KEYS = ["seq", "kind", "at", "record", "payload", "branch"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("decisions-cli"))
    yield made
    made.close()


@pytest.fixture
def log(quick_folder: Path) -> Path:
    path = quick_folder / "log.db"
    with opened(path, "sync") as face:
        face.call("order", "done")
        face.doubt("doubtful")
    return path


def kinds(log: Path, branch: str) -> list[str]:
    with Log.open(log, read_only=True) as reader:
        return [entry.kind for entry in reader.history(branch)]


# --- renew ------


def test_renew_lets_the_program_call_again(bench: Bench) -> None:
    """Exit 0, what was recorded, what to do next; the program that runs again calls."""
    log = bench.folder / "renewed.db"
    bench.work(log, "b", "charge")
    result = bench("renew", log, "b#1/charge", *DECISION)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "recorded: b#1/charge shall happen once more, by ann: read the statement\n"
        "next: run the program again: it calls this step\n"
    )
    assert bench.work(log, "b", "charge").code == 0
    history = bench("show", log, "b").out
    assert "to happen once more, by ann: read the statement" in history
    assert "#2/charge generation 2: dispatch 1 RETURNED" in history
    assert bench("status", log).code == 0


def test_renew_of_what_is_in_doubt(bench: Bench, log: Path) -> None:
    """Exit 1, and the command that settles it first."""
    result = bench("renew", log, "doubtful#1/s", *DECISION)
    assert (result.code, result.out) == (1, "")
    assert f"intentlog resolve {log} 'doubtful#1/s' --landed|--not-landed" in result.err
    assert bench("resolve", log, "doubtful#1/s", "--not-landed", *DECISION).code == 0
    assert bench("renew", log, "doubtful#1/s", *DECISION).code == 0


# --- cancel ------


@pytest.mark.parametrize(
    ("killed", "code", "verdict"), [("after_pending", 0, "CANCELLED"), ("after_dispatched", 3, "INDETERMINATE")]
)
def test_cancel_of_what_a_dead_owner_left(bench: Bench, killed: str, code: int, verdict: str) -> None:
    """Exit 0 where nothing is in doubt, 3 where something is, with the command that settles it; as text and JSON."""
    for more in ((), ("--json",)):
        log = bench.folder / f"{killed}-{len(more)}.db"
        bench.die(log, "b", at=killed)
        result = bench("cancel", log, "b", *DECISION, *more)
        assert (result.code, result.err) == (code, "")
        if more:
            assert list(result.document) == ["branch", "verdict", "open_intents"]
            assert (result.document["branch"], result.document["verdict"]) == ("b", verdict)
            assert [one["intent_id"] for one in result.document["open_intents"]] == ["b#1/charge"] * (code == 3)
        else:
            assert result.out.startswith(f"recorded: b sends nothing more; as the records have it, it is {verdict}\n")
            assert ("intentlog resolve" in result.out) == (code == 3)
        status = bench("status", log, "--json")
        assert (status.code, status.document["unfinished"]) == (code, [])
        assert f"attempt 1 {verdict}" in bench("show", log, "b").out.splitlines()[-1]


def test_cancel_while_its_owner_calls(bench: Bench, quick_folder: Path) -> None:
    """A call in flight is no doubt: exit 0, INDETERMINATE as the records have it; its owner then ends CANCELLED."""
    with opened(quick_folder / "log.db", "sync") as face, face.attempt("order") as attempt:
        face.wait(attempt.step("one").call(note, "x"))
        result = bench("cancel", face.path, "order", *DECISION, "--json")
        assert (result.code, result.document["verdict"]) == (0, "CANCELLED")
    assert kinds(face.path, "order")[-2:] == ["CancelRequested", "AttemptClosed"]
    assert bench("show", face.path, "order").out.splitlines()[-1].endswith("attempt 1 CANCELLED")


# --- tail ------


def test_tail_prints_the_newest_records(bench: Bench, log: Path) -> None:
    """A line each, oldest first, with its branch; ten by default."""
    whole = bench("tail", log, "-n", EVERYTHING)
    assert (whole.code, whole.err) == (0, "")
    lines = whole.out.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, 11))
    assert [line.split()[3] for line in lines[:5]] == ["order"] * 5
    assert lines[1].endswith('{"text": "x"}')
    assert bench("tail", log) == whole
    assert bench("tail", log, "-n", "3").out.splitlines() == lines[-3:]
    assert bench("tail", log, "--lines", "0") == (0, "", "")
    assert bench("tail", log, "--after", "8").out.splitlines() == lines[8:]
    assert bench("tail", log, "--after", "8", "-n", "1").out.splitlines() == lines[8:]
    assert bench("tail", log, "--after", "10") == (0, "", "")
    assert bench("tail", INTENTLOG_URL=str(log)) == whole


def test_tail_as_json_is_one_document(bench: Bench, log: Path) -> None:
    """A list of whole records, as `show --json` prints them."""
    document = bench("tail", log, "--json").document
    assert [list(entry) for entry in document] == [KEYS] * 10
    assert [entry["branch"] for entry in document] == ["order"] * 5 + ["doubtful"] * 5
    assert document[:5] == bench("show", log, "order", "--json").document
    assert bench("tail", log, "--after", "99", "--json").document == []


def following(bench: Bench, log: Path, *more: str) -> subprocess.Popen[str]:
    return started_cold(bench, "tail", str(log), "--follow", *more)


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    out, errors = process.communicate(timeout=20)
    assert out == ""
    return process.returncode, errors


def test_tail_follows_a_writer(bench: Bench, log: Path) -> None:
    """What is appended meanwhile comes at once, each record one time; Ctrl-C ends it with 130."""
    process = following(bench, log, "-n", "1")
    assert process.stdout is not None
    assert process.stdout.readline().split()[0] == "10"
    with opened(log, "sync") as face:
        for number in range(2):
            face.call("live", f"s{number}")
            lines = [process.stdout.readline() for _ in range(5)]
            first = 11 + 5 * number
            assert [int(line.split()[0]) for line in lines] == list(range(first, first + 5))
            assert {line.split()[3] for line in lines} == {"live"}
    assert ended(process, signal.SIGINT) == (130, "error: interrupted\n")


def test_tail_follows_as_json_lines(bench: Bench, log: Path) -> None:
    """One record to a line, whole; from an empty start as well."""
    process = following(bench, log, "--after", "10", "--json")
    assert process.stdout is not None
    with opened(log, "sync") as face:
        face.log.append("live", "note", {"text": "a\nb\x1b"})
        face.call("live", "s")
        entries: list[dict[str, Any]] = [json.loads(process.stdout.readline()) for _ in range(6)]
    assert [entry["seq"] for entry in entries] == list(range(11, 17))
    assert list(entries[0]) == KEYS
    assert entries[0]["payload"] == {"text": "a\nb\x1b"}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_tail_that_ends_is_a_json_line_too(bench: Bench, log: Path) -> None:
    """Whoever reads line by line can read the last one: it says that it was interrupted."""
    process = following(bench, log, "--json")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(10)]
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    lines += out.splitlines()
    assert [json.loads(line).get("error") for line in lines] == [None] * 10 + ["interrupted"]


def test_tail_follows_until_its_reader_leaves(bench: Bench, log: Path) -> None:
    """`intentlog tail -f LOG | head -1`: quiet, and the exit code of a process that SIGPIPE ended."""
    process = following(bench, log, "-n", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    with opened(log, "sync") as face:
        face.call("live", "s")
    assert (process.stderr.read(), process.wait(20)) == ("", 141)
    process.stderr.close()


def test_a_contradiction_is_told_with_both_commands(bench: Bench, log: Path) -> None:
    """What `status` prints for a doubt can be pasted; the decision closes it, and exit 3 becomes 0."""
    assert bench("status", log).code == 3
    assert bench("resolve", log, "doubtful#1/s", "--landed", *DECISION).code == 0
    assert bench("status", log).code == 0
    with opened(log, "sync") as face:
        face.log.supply("doubtful#1/s", "found", **SAID)
        face.log.renew("doubtful#1/s", **SAID)
        assert face.doubt("doubtful") == "doubtful#2/s"
        face.log.resolve("doubtful#2/s", Applied("again"), **SAID)
    assert bench("status", log).code == 0
