"""The demonstration can fail: its comparison finds what forged witnesses and forged answers hold.

The whole demonstration, with its kills, is run by `make demo`.
"""

import importlib.util
import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from intentlog.cli import demo, demo_report, demo_witness
from intentlog.cli.demo_children import Children
from intentlog.cli.demo_witness import TOOLS, Claims, Judgement, Place, Seen, Verdict

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ORDERS = ["order-1", "order-2"]
TRUE = [
    Judgement("order-1#1/charge", "PENDING", "PENDING", "NEVER_SENT", "RETRY"),
    Judgement("order-2#1/mail", "DISPATCHED", "DISPATCHED", "MAY_HAVE_BEEN_SENT", "ASK_PERSON"),
]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def git(repository, *arguments):
    command = ["git", "--git-dir", str(repository), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True)
    return run.stdout.strip()


@pytest.fixture
def place(tmp_path):
    """Witnesses of two orders, each effect there and none twice. Both charges were sent in attempt 2."""
    place = Place(tmp_path)
    charges = [{"key": o, "intent": f"{o}#2/charge", "body": json.dumps({"order": o}), "receipt": "r"} for o in ORDERS]
    write_lines(place.ledger, charges)
    write_lines(place.requests, [{"key": o, "intent": f"{o}#2/charge", "status": 201} for o in ORDERS])
    write_lines(place.mail, [{"order": o, "key": f"mail-{o}", "intent": f"{o}#1/mail", "text": "t"} for o in ORDERS])
    subprocess.run(["git", "init", "--quiet", "--bare", str(place.remote)], check=True)
    for order in ORDERS:
        push(place, order, 1)
    return place


def push(place, order, number):
    message = f"Release {order}\n\nRequest-Id: {order}\nIntent-Id: {order}#1/push\n"
    commit = git(place.remote, "commit-tree", git(place.remote, "mktree"), "-m", message)
    git(place.remote, "update-ref", f"refs/heads/{order}/key/{number}", commit)


def compared(place, judgements=TRUE, done=None, unsound=()):
    """The verdict over a log that says that all is done."""
    admitted = {f"{o}#2/charge" for o in ORDERS} | {f"{o}#1/{tool}" for o in ORDERS for tool in ("push", "mail")}
    everything = {(order, tool) for order in ORDERS for tool in TOOLS}
    claims = Claims(7, ORDERS, judgements, [], everything if done is None else done, admitted, list(unsound))
    return demo_witness.compare(claims, demo_witness.read_witnesses(place))


def test_true_witnesses_are_believed(place) -> None:
    verdict = compared(place)
    assert str(verdict) == "demo: 7 kills, 0 duplicates, 0 lost, 0 misclassified"
    assert verdict == Verdict(7, [], [], [], [])
    assert verdict.exit_code == 0


@pytest.mark.parametrize("witness", ["ledger", "mail"])
def test_a_doubled_line_is_a_duplicate(place, witness) -> None:
    path = getattr(place, witness)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines, lines[0]]), encoding="utf-8")
    verdict = compared(place)
    assert str(verdict) == "demo: 7 kills, 1 duplicates, 0 lost, 0 misclassified"
    assert verdict.exit_code == 1


def test_a_second_charge_under_another_key_is_a_duplicate(place) -> None:
    lines = place.ledger.read_text(encoding="utf-8")
    place.ledger.write_text(lines + lines.splitlines()[0].replace('"key": "order-1"', '"key": "other"'))
    assert len(compared(place).duplicates) == 1


def test_a_second_commit_is_a_duplicate(place) -> None:
    push(place, "order-2", 2)
    verdict = compared(place)
    assert verdict.duplicates == ["order-2: 2 effects of push"]
    assert verdict.exit_code == 1


def test_a_repeated_request_is_no_duplicate(place) -> None:
    lines = place.requests.read_text(encoding="utf-8")
    place.requests.write_text(lines * 2)
    assert compared(place).exit_code == 0


def test_a_missing_mail_is_lost(place) -> None:
    place.mail.write_text(place.mail.read_text(encoding="utf-8").splitlines(keepends=True)[0])
    verdict = compared(place)
    assert verdict.lost == ["order-2: no mail, says its witness"]
    assert str(verdict) == "demo: 7 kills, 0 duplicates, 1 lost, 0 misclassified"
    assert verdict.exit_code == 1


def test_a_missing_commit_and_a_missing_ledger_are_lost(place) -> None:
    git(place.remote, "update-ref", "-d", "refs/heads/order-1/key/1")
    place.ledger.unlink()
    assert len(compared(place).lost) == 3


def test_what_the_log_does_not_know_to_be_done_is_lost(place) -> None:
    done = {(order, tool) for order in ORDERS for tool in TOOLS} - {("order-1", "push")}
    assert compared(place, done=done).lost == ["order-1: no push, says the log"]


@pytest.mark.parametrize(
    "judgement",
    [
        pytest.param(Judgement("order-1#1/charge", "PENDING"), id="not classified at all"),
        pytest.param(
            Judgement("order-1#1/charge", "PENDING", "PENDING", "MAY_HAVE_BEEN_SENT", "RECALL"), id="too suspicious"
        ),
        pytest.param(Judgement("order-1#1/push", "DISPATCHED", "DISPATCHED", "NEVER_SENT", "RETRY"), id="too trusting"),
        pytest.param(Judgement("order-1#1/push", "DISPATCHED", "DISPATCHED", "DONE", "REPLAY"), id="not done yet"),
        pytest.param(
            Judgement("order-1#1/charge", "DISPATCHED", "PENDING", "NEVER_SENT", "RETRY"), id="from another state"
        ),
        pytest.param(
            Judgement("order-1#2/charge", "PENDING", "PENDING", "NEVER_SENT", "RETRY"), id="its witness saw a call"
        ),
    ],
)
def test_an_untrue_classification_is_counted(place, judgement) -> None:
    verdict = compared(place, [*TRUE, judgement])
    assert str(verdict) == "demo: 7 kills, 0 duplicates, 0 lost, 1 misclassified"
    assert verdict.exit_code == 1


def test_a_call_that_the_log_does_not_admit_to_is_counted() -> None:
    calls = [Seen("mail", "order-1", "order-1#1/mail"), Seen("mail", "order-1", "order-1#2/mail")]
    problems = demo_witness.misclassified([], calls, {"order-1#1/mail"})
    assert problems == ["order-1#2/mail: its witness saw a call, the log no dispatch"]


def test_a_kill_that_missed_its_aim_is_counted(place) -> None:
    claims = Claims(7, [], [], ["order-1: not killed in charge, window A"], set(), {"order-1#2/charge"}, [])
    assert demo_witness.compare(claims, demo_witness.Witnesses((), ())).exit_code == 1


def test_an_unsound_log_fails_the_demonstration(place) -> None:
    assert compared(place, unsound=["verify: order-1 at 3: its digest does not fit"]).exit_code == 1


def test_the_sandbox_charges_a_key_once_over_http(tmp_path) -> None:
    spec = importlib.util.spec_from_file_location("payment_sandbox", EXAMPLES / "payment_sandbox.py")
    sandbox = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sandbox  # its annotations are looked up there
    try:
        spec.loader.exec_module(sandbox)
        place = Place(tmp_path)
        server = sandbox.serve(sandbox.Ledger(place.ledger, place.requests))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            ask_the_sandbox(server.server_address, place)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        again = sandbox.Ledger(place.ledger, place.requests)  # another process, with the same ledger
        assert again.charge("key-1", json.dumps({"order": "order-1"}), "order-1#3/charge").is_repeat
    finally:
        del sys.modules[spec.name]


def ask_the_sandbox(address, place) -> None:
    body, other = json.dumps({"order": "order-1"}), json.dumps({"order": "order-2"})

    def ask(body, **headers):
        connection = HTTPConnection(*address, timeout=10)
        connection.request("POST", "/charges", body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        answer = response.status, json.load(response), response.headers.get("Idempotent-Replayed")
        connection.close()
        return answer

    first = ask(body, Idempotency_Key="key-1", Intent_Id="order-1#1/charge")
    assert first == (201, {"receipt": "receipt-1"}, None)
    assert ask(body, Idempotency_Key="key-1", Intent_Id="order-1#2/charge") == (201, first[1], "true")
    assert ask(other, Idempotency_Key="key-1", Intent_Id="order-2#1/charge")[0] == 422
    assert ask(body)[0] == 400
    assert ask(other, Idempotency_Key="key-2", Intent_Id="order-2#1/charge")[1] == {"receipt": "receipt-2"}

    threads = [Thread(target=ask, args=(body,), kwargs={"Idempotency_Key": "key-3"}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(place.ledger.read_text(encoding="utf-8").splitlines()) == 3
    assert len(place.requests.read_text(encoding="utf-8").splitlines()) == 13


def test_the_sandbox_stops_with_whoever_started_it(tmp_path) -> None:
    place = Place(tmp_path)
    command = [sys.executable, str(EXAMPLES / "payment_sandbox.py"), "--stop-with-stdin"]
    command += ["--ledger", str(place.ledger), "--requests", str(place.requests)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"127.0.0.1:")
        process.stdin.close()  # as the system does when its other end dies
        assert process.wait(timeout=20) == 0


def test_a_worker_finishes_an_order_and_replays_it(tmp_path) -> None:
    """The worker alone, without a kill: three effects the first time, none the second."""
    place = Place(tmp_path)
    children = Children(place, EXAMPLES)
    children.make_repositories()
    with children.shop():
        assert children.work(ORDERS) == 0
        seen = demo_witness.read_witnesses(place)
        assert children.work(ORDERS) == 0
    assert demo_witness.read_witnesses(place) == seen
    assert sorted(seen.effects) == sorted(Seen(tool, o, f"{o}#1/{tool}") for o in ORDERS for tool in TOOLS)
    says = demo_report.read_log(place, ORDERS)
    assert not says.unsound
    assert not demo_witness.lost(seen.effects, ORDERS, says.done())
    assert {one.intent for one in seen.calls} == says.dispatched()


def test_a_folder_in_use_is_refused(tmp_path) -> None:
    (tmp_path / "precious").write_text("x")
    assert demo.run_demo(tmp_path, 1, Console(quiet=True)) == demo.USAGE


def test_without_git_it_says_so(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.run_demo(None, 1, Console()) == demo.ERROR
    assert "no git" in capsys.readouterr().out
