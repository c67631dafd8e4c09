"""`examples/workers.py` in a short form: workers that are killed at random, held against the payment provider's ledger.

It holds I3 and I6 from outside: whatever is killed, each order is paid one time, by the witness, and the log agrees.
The control is a ledger that differs from the log: the example's own verdict must find that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from intentlog import IDEMPOTENT, Log, tool

EXAMPLE = Path(__file__).parent.parent / "examples" / "workers.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workers_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INTENTLOG_")}
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], env=kept, capture_output=True, text=True, check=False, timeout=300
    )


def test_workers_that_are_killed_pay_each_order_one_time(postgres_url: str) -> None:
    """Four workers, killed for some seconds: no order is paid twice, none is lost, and witness and log agree."""
    done = run(postgres_url, "--seconds", "3", "--orders", "60", "--seed", "7")
    assert (done.returncode, done.stderr) == (0, "")
    said = re.fullmatch(
        r"seed 7\n60 orders, 4 workers, (\d+) kills, (\d+) attempts, (\d+) requests to pay\n"
        r"payments per order: \{1: 60\}\n0 duplicates, 0 lost, 0 in doubt, 0 not in the log\n",
        done.stdout,
    )
    assert said, done.stdout
    kills, attempts, requests = map(int, said.groups())
    assert kills > 0
    assert attempts >= 60
    assert requests >= 60
    with Log.open(postgres_url, read_only=True) as log:
        assert log.verify().ok
        assert log.open_intents() == []


def charged(order: str, receipt: str) -> str:
    body = json.dumps({"order": order, "cents": 1999})
    return json.dumps({"key": receipt, "intent": f"{order}#1/charge", "body": body, "receipt": receipt}) + "\n"


@pytest.mark.parametrize(
    ("ledger", "code", "wrong"),
    [
        (lambda: charged("a", "r-a") + charged("b", "r-b"), 0, ""),
        (lambda: charged("a", "r-a"), 1, "1 lost"),
        (lambda: charged("a", "r-a") + charged("b", "r-b") + charged("b", "r-c"), 1, "1 duplicates"),
        (lambda: charged("a", "r-a") + charged("b", "another"), 1, "1 lost"),
        (lambda: charged("a", "r-a") + charged("b", "r-b") + charged("c", "r-c"), 1, "1 not in the log"),
    ],
    ids=["agree", "lost", "duplicate", "other-receipt", "not-in-the-log"],
)
def test_a_witness_that_disagrees_is_found(
    example: ModuleType,
    quick_folder: Path,
    capsys: pytest.CaptureFixture[str],
    ledger: Callable[[], str],
    code: int,
    wrong: str,
) -> None:
    """The control: a payment that is missing, doubled, another's or unknown to the log makes the verdict 1."""

    @tool(effect=IDEMPOTENT, step="charge", name="pay")
    def pay(order: str) -> str:
        return f"r-{order}"

    place = str(quick_folder / "log.db")
    with Log.open(place) as log:
        for order in ("a", "b"):
            log.run(order, lambda attempt, order=order: attempt.call(pay, order))
    (quick_folder / "ledger.jsonl").write_text(ledger(), encoding="utf-8")
    (quick_folder / "requests.jsonl").write_text("", encoding="utf-8")
    assert example.report(place, quick_folder, ["a", "b"], 0) == code
    assert wrong in capsys.readouterr().out


def test_without_a_server_it_says_in_one_sentence_how_to_get_one() -> None:
    """No URL: a usage error. A server that is not there: an error, exit 1. No traceback."""
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "docker run" in done.stderr
    done = run("postgresql://127.0.0.1:1/x")
    assert done.returncode == 1
    assert "nobody listens there" in done.stderr
    assert "Traceback" not in done.stderr
