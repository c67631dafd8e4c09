"""The command line, run as a process on logs whose writers really died by SIGKILL.

Starting Python anew for each of some hundred runs would take a minute, so most are forked from one process that has
imported the command; `started_cold` starts `python -m intentlog`, where starting and ending are what is tested.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

MODULE = [sys.executable, "-m", "intentlog"]
COMMANDS = ["cancel", "demo", "doctor", "recover", "renew", "resolve", "show", "status", "supply", "tail", "verify"]
DECISION = ("--by", "ann", "--why", "read the statement")
ERROR_KEYS = ["error", "message", "intent_id", "effect_ran", "remedy"]

SERVER = """
import codecs, json, os, sys
import intentlog.cli
intentlog.cli.app(["verify", "--help"], standalone_mode=False)  # typer imports more when it is first used
codecs.lookup("ascii")  # found now: a child without rights may not be able to read the library's folder
print('ready', flush=True)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(request["folder"])
        os.environ.update(request["variables"])
        if "WITHOUT_RIGHTS" in os.environ and os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        sys.argv = ["intentlog", *request["arguments"]]
        code = 99
        try:
            if request["program"]:
                sys.path.insert(0, request["folder"])
                import shop
                code = shop.main()
            else:
                code = intentlog.cli.main()
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

SHOP = """
import sys
from datetime import timedelta
from intentlog import IDEMPOTENT, KEYED, QUERYABLE, Applied, InDoubt, Log, tool

@tool
def charge(order: str, cents: int) -> dict[str, str]:
    return {"receipt": order}

@tool(effect=IDEMPOTENT)
def put(order: str, cents: int) -> None: ...

@tool(effect=KEYED(window=timedelta(hours=1)))
def pay(order: str, cents: int) -> None: ...

@tool(effect=QUERYABLE(settle=timedelta(0)))
def push(order: str, cents: int) -> str:
    return "sha"

@push.probe
def pushed(order: str, cents: int) -> Applied[str]:
    print("the probe prints")
    return Applied("sha")

@tool(name="evil[red]")
def evil(order: str, cents: int) -> None:
    raise ValueError("\\x1b]0;title\\x07 [bold]\\u202e\\x9b31m\\x7f\\n")

def main():
    _, path, branch, name = sys.argv
    handle = globals()[name]
    with Log.open(path) as log:
        try:
            with log.attempt(branch) as attempt:
                print(attempt.step(name).call(handle, "\\x1b[31m" + branch, cents=1999))
        except InDoubt:
            return 7
    return 0

if __name__ == "__main__":
    sys.exit(main())
"""

MODULES = {
    "prints": 'print("the module prints")\nimport os\nos.system("echo its child prints")\nimport shop\n',
    "broken": 'raise RuntimeError("no \\x1b[31m password")\n',
    "leaves": "import sys\nsys.exit(0)\n",
    "faulty": "from intentlog import Log\ndef boom(self):\n    raise RuntimeError('boom')\nLog.recover = boom\n",
    "slow": "import sys, time\nprint('ready', file=sys.stderr, flush=True)\ntime.sleep(60)\n",
}


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


class Bench:
    """A folder with the modules of a shop, and a process that commands and programs are forked from."""

    def __init__(self, folder):
        self.folder = folder
        self.numbers = count(1)
        for name, text in {"shop": SHOP, **MODULES}.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], text=True, env=environment(), **pipes)
        while self.server.stdout.readline() != "ready\n":
            assert self.server.poll() is None

    def __call__(self, *arguments, program=False, **variables):
        out, err = self.folder / "stdout", self.folder / "stderr"
        request = {
            "arguments": [str(one) for one in arguments],
            "folder": str(self.folder),
            "out": str(out),
            "err": str(err),
            "variables": variables,
            "program": program,
        }
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        result = Result(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
        if "INTENTLOG_DEBUG" not in variables:
            assert "Traceback" not in result.out + result.err
        return result

    def work(self, log, branch, tool):
        """A program opens an attempt at the branch, and calls the tool."""
        return self(log, branch, tool, program=True)

    def die(self, log, branch, tool="charge", at="after_dispatched"):
        """The program is killed at a crash point. Returns the intent that it leaves."""
        hooks = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": at}
        assert self(log, branch, tool, program=True, **hooks).code == -signal.SIGKILL
        return f"{branch}#1/{tool}"

    def records(self, log):
        return self("verify", log, "--json").document["records"]

    def close(self):
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(10)


def environment(**variables):
    left_out = ("INTENTLOG_", "FORCE_", "PYTHONUNBUFFERED")  # whoever runs the tests may have set them
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return inherited | variables


def started_cold(bench, *arguments, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
    return subprocess.Popen(
        [*MODULE, *arguments],
        cwd=bench.folder,
        env=environment(),
        text=True,
        preexec_fn=listening,  # noqa: PLW1509 - this process has one thread
        **pipes,
    )


def expect_error(result, code, text):
    """An error is text on stderr, and leaves stdout empty."""
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert text in result.err


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("cli"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def doubts(bench):
    """A log with an intent of each kind left open; only for tests that do not write."""
    log = bench.folder / "doubts.db"
    for tool in ("charge", "pay", "push", "put"):
        bench.die(log, f"b-{tool}", tool)
    bench.die(log, "b-pending", at="after_pending")
    assert bench.work(log, "b-done", "charge").code == 0
    return log


@pytest.fixture
def log(bench):
    """The path of a log that this test alone writes."""
    return bench.folder / f"log-{next(bench.numbers)}.db"


# --- status -----------------------------------------------------------------------------------------------------------


def test_status_names_each_open_intent_and_the_command_that_settles_it(bench, doubts):
    """`status` says what is in doubt and what to run next, and exits with 3 while anything is."""
    result = bench("status", doubts)
    assert (result.code, result.err) == (3, "")
    assert re.search(
        r"^b-charge#1/charge +charge +UNSAFE +DISPATCHED +\d{4}-\d\d-\d\d \S+Z +yes$", result.out, re.MULTILINE
    )
    assert re.search(r"^b-pending#1/charge +charge +UNSAFE +PENDING +- +no$", result.out, re.MULTILINE)
    assert re.search(r"^b-pending +1 +its owner died$", result.out, re.MULTILINE)
    for flag in ("--landed", "--not-landed"):
        command = (
            rf"^  intentlog resolve \S+doubts.db 'b-charge#1/charge' {flag} --by NAME --why TEXT --expect-seq \d+$"
        )
        assert re.search(command, result.out, re.MULTILINE)
    assert re.search(
        r"b-push#1/push: import the module.*\n  intentlog recover \S+ --import MODULE$", result.out, re.MULTILINE
    )
    assert "b-done" not in result.out


def test_status_as_json_has_the_attributes_of_the_library(bench, doubts):
    """`status --json` prints one document, in a stable order, its keys the library's attribute names."""
    result = bench("status", doubts, "--json")
    assert result.code == 3
    document = result.document
    assert list(document) == ["open_intents", "contradictions", "unfinished"]
    intents = {one["intent_id"]: one for one in document["open_intents"]}
    assert list(intents) == sorted(intents)
    charge, pending = intents["b-charge#1/charge"], intents["b-pending#1/charge"]
    assert {"intent_id", "seq", "tool", "effect", "state", "dispatched_at", "in_doubt", "contradicts"} <= set(charge)
    assert (charge["state"], charge["effect"], charge["in_doubt"]) == ("DISPATCHED", "UNSAFE", True)
    assert (pending["state"], pending["dispatched_at"], pending["in_doubt"]) == ("PENDING", None, False)
    assert charge["dispatched_at"].endswith("Z")
    assert datetime.fromisoformat(charge["dispatched_at"]).utcoffset().total_seconds() == 0
    assert {"branch": "b-pending", "attempt": 1, "end": None} in document["unfinished"]
    assert datetime.fromisoformat(charge["not_before"]) > datetime.fromisoformat(charge["dispatched_at"])
    again = bench("status", doubts, "--json").document
    for one in (*document["open_intents"], *again["open_intents"]):
        one.pop("not_before")  # made of a wall clock and a boot clock, read one after the other
    assert again == document


def test_status_of_a_log_without_doubts_is_fine(bench, log):
    """Nothing open: exit 0."""
    bench.work(log, "b", "charge")
    assert bench("status", log) == (0, "nothing is open, nothing is in doubt\n", "")
    assert bench("status", INTENTLOG_URL=str(log)).code == 0


def test_a_call_in_flight_is_no_doubt_and_a_late_outcome_contradicts(bench, log):
    """A living owner's call is left alone. An outcome that contradicts a decision: exit 3, though nothing is open."""
    hooks = {"INTENTLOG_TEST_HOOKS": "1", "INTENTLOG_CRASH_AT": "before_committed:1:stop"}
    command = [sys.executable, "shop.py", log, "b", "charge"]
    late = subprocess.Popen(command, cwd=bench.folder, env=environment(**hooks), stdout=subprocess.DEVNULL)
    try:
        assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
        status = bench("status", log)
        assert (status.code, "wait for its owner" in status.out) == (0, True)
        assert bench("recover", log, "--json") == (0, "[]\n", "")
        expect_error(bench("resolve", log, "b#1/charge", "--not-landed", *DECISION), 1, "its owner lives")
        # The lock is only a hint: whoever removes it makes a living owner look dead, and the log must cope.
        for lock in Path(f"{log}.d").glob("owner-*.lock"):
            lock.unlink()
        assert bench("resolve", log, "b#1/charge", "--not-landed", *DECISION).code == 0
    finally:
        late.send_signal(signal.SIGCONT)
        late.wait(10)
    status = bench("status", log)
    assert status.code == 3
    assert re.search(r"^Outcomes that contradict\nintent\nb#1/charge$", status.out, re.MULTILINE)
    assert f"intentlog show {log} b\n" in status.out
    status = bench("status", log, "--json")
    assert (status.code, status.document["contradictions"]) == (3, ["b#1/charge"])


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_tells_a_branch_in_order(bench, doubts):
    """`show` prints a line for each record: seq, time, kind, what, and its arguments or value as JSON."""
    result = bench("show", doubts, "b-done")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "b-done"
    kinds = ["AttemptOpened", "Pending", "Dispatched", "Committed", "AttemptClosed"]
    assert [line.split()[3] for line in lines[1:]] == kinds
    assert lines[2].endswith('{"cents": 1999, "order": "\\u001b[31mb-done"}')
    assert lines[4].endswith('#1/charge: dispatch 1 RETURNED  {"receipt": "\\u001b[31mb-done"}')


def test_show_as_json_has_whole_records(bench, doubts):
    """`show --json` prints every record with all its fields, and its payload as it was."""
    document = bench("show", doubts, "b-done", "--json").document
    assert [list(entry) for entry in document] == [["seq", "kind", "at", "record", "payload", "branch"]] * 5
    pending = document[1]
    assert pending["payload"] == {"cents": 1999, "order": "\x1b[31mb-done"}
    assert (pending["record"]["step"], pending["record"]["generation"]) == ("charge", 1)
    assert pending["record"]["declaration"]["kind"] == "UNSAFE"
    assert datetime.fromisoformat(pending["at"]).utcoffset().total_seconds() == 0


def test_show_takes_the_log_from_the_environment(bench, doubts):
    """With $INTENTLOG_URL the one argument is the branch."""
    assert bench("show", "b-done", INTENTLOG_URL=str(doubts)) == bench("show", doubts, "b-done")


def test_show_of_an_unknown_branch_is_an_error(bench, doubts):
    """A branch that is not there is no empty history."""
    expect_error(bench("show", doubts, "b-nope"), 1, "no branch 'b-nope'")
    result = bench("show", doubts, "b-nope", "--json")
    assert (result.code, result.document["error"], result.err) == (1, "unknown_branch", "")
    expect_error(bench("show", doubts, "b\x1bnope"), 1, r"'b\x1bnope'")


# --- recover ----------------------------------------------------------------------------------------------------------


def test_recover_classifies_and_says_what_to_do(bench, log):
    """`recover` answers the seed's table, exits with 3 while a person is needed, and writes nothing twice."""
    for tool in ("charge", "put"):
        bench.die(log, f"b-{tool}", tool)
    bench.die(log, "b-pending", at="after_pending")
    result = bench("recover", log)
    assert (result.code, result.err) == (3, "")
    assert re.search(r"^b-charge#1/charge +DISPATCHED +MAY_HAVE_BEEN_SENT +ASK_PERSON +\d+$", result.out, re.MULTILINE)
    assert re.search(r"^b-pending#1/charge +PENDING +NEVER_SENT +RETRY +\d+$", result.out, re.MULTILINE)
    assert re.search(r"^b-put#1/put +DISPATCHED +MAY_HAVE_BEEN_SENT +RECALL +\d+$", result.out, re.MULTILINE)
    assert re.search(r"^  intentlog resolve .*'b-charge#1/charge' --landed", result.out, re.MULTILINE)
    before = bench.records(log)
    again = bench("recover", log, "--json")
    assert [one["intent_id"] for one in again.document] == ["b-charge#1/charge", "b-put#1/put"]
    assert list(again.document[0]) == ["intent_id", "last_state", "classification", "resolution", "seq"]
    assert bench.records(log) == before


def test_recover_needs_no_person_where_the_class_settles_it(bench, log):
    """Nothing that stays in doubt: exit 0, and after it nothing to recover."""
    bench.die(log, "b", "put", at="after_pending")
    assert bench("recover", log).code == 0
    assert bench("recover", log) == (0, "nothing to recover, nothing is in doubt\n", "")


def test_recover_imports_modules_so_that_probes_answer(bench, log):
    """Without the tool's module: exit 3; with it the probe settles: exit 0. What user's code prints goes to stderr."""
    bench.die(log, "b", "push")
    without = bench("recover", log, "--json")
    assert (without.code, without.document[0]["resolution"]) == (3, "PROBE")
    result = bench("recover", log, "--json", "--import", "json", "--import", "prints")
    assert (result.code, result.document[0]["resolution"]) == (0, "REPLAY")
    assert {"the module prints", "its child prints", "the probe prints"} <= set(result.err.splitlines())
    assert "the probe answered APPLIED" in bench("show", log, "b").out


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("shop.py", "--import shop"),
        ("broken", r"RuntimeError: no \x1b[31m password"),
        ("leaves", "SystemExit: 0"),
    ],
)
def test_recover_reports_a_module_that_does_not_import(bench, log, module, text):
    """The user's error in one line, exit 1, and nothing was written."""
    bench.die(log, "b")
    before = bench.records(log)
    result = bench("recover", log, "--import", module)
    expect_error(result, 1, f"error: cannot import {module!r}: ")
    assert text in result.err
    assert bench.records(log) == before


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_resolve_landed_gives_the_program_its_outcome(bench, log):
    """A decision with its outcome: recorded with name and reason, and the program that runs again gets it, uncalled."""
    intent = bench.die(log, "b")
    result = bench("resolve", log, intent, "--landed", *DECISION, "--outcome", '{"receipt": "by hand"}')
    assert (result.code, result.err) == (0, "")
    assert re.search(
        r"^recorded at \d+: b#1/charge landed \(APPLIED\), by ann: read the statement$", result.out, re.MULTILINE
    )
    assert "next: run the program again: this step answers the recorded outcome" in result.out
    assert bench.work(log, "b", "charge").out == "{'receipt': 'by hand'}\n"


def test_resolve_not_landed_lets_the_program_call_again(bench, log):
    """A decision that nothing happened: the program that runs again calls. `--json` prints what was recorded."""
    intent = bench.die(log, "b")
    seq = bench("status", log, "--json").document["open_intents"][0]["seq"]
    result = bench("resolve", log, intent, "--not-landed", *DECISION, "--expect-seq", seq, "--json")
    assert result.code == 0
    wanted = {"intent_id": intent, "settlement": "NOT_APPLIED", "by": "ann", "why": "read the statement"}
    assert wanted.items() <= result.document.items()
    assert bench("show", log, "b", "--json").document[-1]["seq"] == result.document["seq"]
    assert "'receipt'" in bench.work(log, "b", "charge").out


def test_resolve_without_an_outcome_says_what_a_replay_will_do(bench, log):
    """Done without a value is honest: the next run cannot get one. Other doubts are counted."""
    intent = bench.die(log, "b")
    bench.die(log, "c")
    result = bench("resolve", log, intent, "--landed", *DECISION)
    assert result.code == 0
    assert "OutcomeUnavailable" in result.out
    assert f"still in doubt: 1 intent; see: intentlog status {log}" in result.out


def test_supply_gives_a_value_to_what_is_done_without_one(bench, log):
    """Landed without its value, a program cannot go on; supplied, it gets the value. Not twice, and not in doubt."""
    intent = bench.die(log, "b")
    value = ("--outcome", '{"receipt": "7"}', "--by", "ann", "--why", "read the statement")
    expect_error(bench("supply", log, intent, *value), 1, "it needs no value")
    assert bench("resolve", log, intent, "--landed", *DECISION).code == 0
    assert bench("supply", log, intent, *value).code == 0
    assert "{'receipt': '7'}" in bench.work(log, "b", "charge").out
    expect_error(bench("supply", log, intent, *value), 1, "it needs no value")
    assert bench("verify", log).code == 0


def test_resolve_refuses_what_needs_no_decision(bench, log):
    """Unknown, not in doubt, stale, ill-formed: exit 1, each with its code, and nothing is written."""
    bench.work(log, "done", "charge")
    doubtful = bench.die(log, "b")
    before = bench.records(log)
    for intent, more, code, effect_ran in (
        ("b#1/nothing", (), "unknown_intent", "no"),
        ("no intent", (), "unknown_intent", "no"),
        ("done#1/charge", (), "not_in_doubt", "yes"),
        (doubtful, ("--expect-seq", "1"), "stale_decision", "unknown"),
    ):
        arguments = ("resolve", log, intent, "--landed", *DECISION, *more)
        result = bench(*arguments, "--json")
        assert (result.code, list(result.document), result.err) == (1, ERROR_KEYS, "")
        assert (result.document["error"], result.document["effect_ran"]) == (code, effect_ran)
        if intent.count("#"):
            assert result.document["intent_id"] == intent
        expect_error(bench(*arguments), 1, result.document["message"])
    assert bench.records(log) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (DECISION, "--landed and --not-landed"),
        (("--landed", "--not-landed", *DECISION), "--landed and --not-landed"),
        (("--landed", "--why", "x"), "--by"),
        (("--landed", "--by", "x"), "--why"),
        (("--landed", "--by", " ", "--why", "x"), "--by is blank"),
        (("--landed", "--by", "x", "--why", "\udcff"), "--why is not valid UTF-8"),
        (("--not-landed", *DECISION, "--outcome", "1"), "it goes with --landed"),
        (("--landed", *DECISION, "--outcome", "{receipt}"), "--outcome is not JSON"),
        (("--landed", *DECISION, "--outcome", "NaN"), "--outcome is not JSON"),
        (("--landed", *DECISION, "--outcome", "[" * 100_000), "--outcome is not JSON"),
        (("--landed", *DECISION, "--outcome", "\udcff"), "not valid UTF-8"),
        (("--landed", *DECISION, "--expect-seq", "x"), "--expect-seq"),
        (("--landed", *DECISION, "--expect-seq", "0"), "--expect-seq"),
        (("--landed", *DECISION, "--force"), "--force"),
    ],
)
def test_resolve_refuses_what_makes_no_sense(bench, doubts, arguments, text):
    """A usage error: exit 2, with the option that is wrong, and nothing is written."""
    before = bench.records(doubts)
    expect_error(bench("resolve", doubts, "b-charge#1/charge", *arguments), 2, text)
    result = bench("resolve", doubts, "b-charge#1/charge", *arguments, "--json")
    assert (result.code, result.document["error"]) == (2, "usage")
    assert bench.records(doubts) == before


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_a_log_sound(bench, doubts):
    """A log that crashes have left is sound: exit 0."""
    result = bench("verify", doubts)
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"sound: \d+ records in 6 branches\n", result.out)
    document = bench("verify", doubts, "--json").document
    assert (document["ok"], document["problems"], document["branches"]) == (True, [], 6)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET record = replace(record, 'charge', 'chargf') WHERE seq = 2",
        "UPDATE events SET payload = CAST(replace(payload, '1999', '1998') AS BLOB) WHERE seq = 2",
        "DELETE FROM events WHERE seq = 3",
        "UPDATE events SET record = substr(record, 2) WHERE seq = 2",
    ],
)
def test_verify_finds_damage(bench, log, damage):
    """An edit, a hole, a record that cannot be read: exit 4, as text and as JSON."""
    bench.work(log, "b", "charge")
    connection = apsw.Connection(str(log))
    connection.execute(damage)
    connection.close()
    result = bench("verify", log)
    assert result.code == 4
    as_json = bench("verify", log, "--json")
    assert (as_json.code, as_json.err) == (4, "")
    if "ok" in as_json.document:
        assert list(as_json.document["problems"][0]) == ["branch", "seq", "text"]
        assert re.search(r"^damaged, \d+ problems?: ", result.out, re.MULTILINE)
    else:
        assert as_json.document["error"] == "log_damaged"


# --- bad input --------------------------------------------------------------------------------------------------------


def _other_database(path):
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        pytest.param(lambda path: None, 1, id="missing"),
        pytest.param(lambda path: path.write_text("not a log\n" * 100), 4, id="text"),
        pytest.param(_other_database, 4, id="other-database"),
        pytest.param(lambda path: path.touch(), 1, id="empty"),
        pytest.param(lambda path: path.mkdir(), 1, id="folder"),
        pytest.param(os.mkfifo, 1, id="pipe"),
        pytest.param(lambda path: path.symlink_to("/nowhere/else.db"), 1, id="dangling"),
    ],
)
def test_what_is_no_log_is_refused_and_left_as_it_is(bench, log, make, code):
    """Every command refuses it with an error, and none makes a log there or touches what is there."""
    make(log)
    before = {path: path.read_bytes() if path.is_file() else None for path in bench.folder.glob(f"{log.name}*")}
    for command in (
        ("status", log),
        ("show", log, "b"),
        ("recover", log),
        ("resolve", log, "b#1/charge", "--landed", *DECISION),
        ("verify", log),
    ):
        expect_error(bench(*command), code, log.name)
        result = bench(*command, "--json")
        assert (result.code, list(result.document), result.err) == (code, ERROR_KEYS, "")
    after = {path: path.read_bytes() if path.is_file() else None for path in bench.folder.glob(f"{log.name}*")}
    assert after == before


@pytest.mark.parametrize("place", ["nowhere/orders.db", "shop.py/orders.db", "x" * 5000, "postgresql://db/x", "\udcff"])
def test_a_place_that_cannot_be_is_an_error(bench, place):
    """A missing folder, a file as a folder, a name that no disk takes: an error, exit 1."""
    for command in ("status", "recover"):
        result = bench(command, place)
        assert (result.code, result.out, result.err[:7]) == (1, "", "error: ")


def test_an_unreadable_log_is_an_error(bench, log):
    """A file without rights: an error, exit 1. Asked without root's rights, whoever runs the tests."""
    bench.work(log, "b", "charge")
    log.chmod(0)
    for command in ("status", "recover"):
        expect_error(bench(command, log, WITHOUT_RIGHTS="1"), 1, log.name)


@pytest.mark.parametrize(
    "arguments",
    [(), ("status",), ("show",), ("show", "x.db"), ("nonsense",), ("status", "--nonsense"), ("status", "a", "b")],
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(bench, arguments):
    """Exit 2, and where to read more."""
    result = bench(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "--help" in result.err


def test_a_fault_of_our_own_is_one_line(bench, doubts):
    """Even an unexpected exception gives no traceback, unless it is asked for."""
    result = bench("recover", doubts, "--import", "faulty")
    expect_error(result, 1, "error: internal: RuntimeError: boom\nnext: ")
    assert bench("recover", doubts, "--import", "faulty", "--json").document["error"] == "internal"
    assert "Traceback" in bench("recover", doubts, "--import", "faulty", INTENTLOG_DEBUG="1").err


# --- what reaches the screen ------------------------------------------------------------------------------------------


def test_nothing_in_a_log_is_obeyed_by_a_terminal(bench, log):
    """Escape sequences, control characters and markup in names, errors and payloads are shown, not interpreted."""
    assert bench.work(log, "b[/red] :smile:", "evil").code == 7
    for command in (("status", log), ("show", log, "b[/red] :smile:"), ("recover", log)):
        shown = bench(*command)
        assert all(line.isprintable() for line in shown.out.split("\n"))
        assert "b[/red] :smile:" in shown.out
        as_json = bench(*command, "--json").out
        assert as_json.isascii()
        assert "\x1b" not in as_json
        assert "\x7f" not in as_json
    assert "evil[red]" in bench("status", log).out
    history = bench("show", log, "b[/red] :smile:")
    assert r"\x1b]0;title\x07 [bold]\u202e\x9b31m\x7f\n" in history.out
    errors = bench("recover", log, "--import", "no\x1bpe").err + bench("sta\x1btus").err
    assert "\x1b" not in errors


def test_ids_are_never_cut_and_a_pipe_gets_no_colours(bench, log):
    """The longest branch and step stand whole in the tables and in the commands, whatever the environment asks for."""
    branch = "b" * 255
    intent = bench.die(log, branch)
    narrow = {"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for command, times in ((("status", log), 4), (("recover", log), 4)):
        result = bench(*command, **narrow)
        assert result.out.count(intent) == times
        assert "\x1b" not in result.out
    assert f"\n{branch}  1        its owner died\n" in bench("status", log, **narrow).out


def test_a_terminal_gets_colours_and_whole_commands(bench, doubts):
    """On a narrow terminal tables fold, and the command to run next stays in one piece."""
    code, shown = _on_a_terminal(bench, 60, "status", str(doubts))
    assert code == 3
    assert "\x1b[1m" in shown
    assert f"intentlog resolve {doubts} 'b-charge#1/charge' --landed --by NAME --why TEXT" in shown


def _on_a_terminal(bench, columns, *arguments):
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    variables = environment(COLUMNS=str(columns), TERM="xterm")
    process = subprocess.Popen([*MODULE, *arguments], stdout=theirs, stderr=theirs, cwd=bench.folder, env=variables)
    shown = b""
    while process.poll() is None:
        with suppress(BlockingIOError):
            shown += os.read(ours, 65536)
        time.sleep(0.01)
    with suppress(OSError):
        shown += os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    return process.returncode, shown.decode()


def test_a_reader_that_leaves_is_no_error(bench, doubts):
    """`intentlog show LOG BRANCH | head`: nothing on stderr, and the exit code of a process that SIGPIPE ended."""
    for more in ((), ("--json",)):
        process = started_cold(bench, "show", doubts, "b-done", *more)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(10)) == ("", 141)
        process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_under_stdout_is_an_error(bench, doubts):
    """An answer that cannot be written is no success."""
    with Path("/dev/full").open("w") as full:
        process = started_cold(bench, "show", doubts, "b-done", stdout=full)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors.count("\n"), errors[:7]) == (1, 1, "error: ")


def test_an_interrupt_ends_a_command_quietly(bench, doubts):
    """Ctrl-C: one line, exit 130."""
    process = started_cold(bench, "recover", str(doubts), "--import", "slow")
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=10)
    assert (process.returncode, out, errors) == (130, "", "error: interrupted\n")


# --- help, version, start-up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(bench, command):
    """`--help` has a description and one worked example."""
    result = bench(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: intentlog {command} [OPTIONS]")
    assert f"  Example: intentlog {command} " in result.out
    assert command in bench("--help").out


def test_the_module_runs_as_the_command_does(bench):
    """`python -m intentlog --version` works."""
    process = started_cold(bench, "--version")
    out, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    assert re.fullmatch(r"intentlog \d+\.\d+\.\d+\n", out)


def test_the_library_does_not_load_the_command_line():
    """`import intentlog` costs neither typer nor rich."""
    program = "import sys, intentlog; sys.exit(bool({'typer', 'rich', 'intentlog.cli'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
