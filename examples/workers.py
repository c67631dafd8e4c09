"""Four workers over one log in PostgreSQL, killed at random, and the payment provider as the witness.

    python workers.py postgresql://USER@HOST/DATABASE --seconds 20

Orders are branches of the log. Each worker is a process that takes an order that nobody owns, new or left unfinished,
and charges it; who comes second meets BranchBusy and takes another. A worker that was killed is started again, and what
it had begun is gone on with by whoever comes by when its lease has run out. At the end the provider's ledger is held
against the log: it exits with 1 if they disagree.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

from intentlog import KEYED, Call, End, InDoubt, Log, Volatile, tool
from intentlog.errors import BranchBusy, IntentLogError

WORKERS = 4
LEASE_S = "2"  # of a worker: short, so that a demonstration need not wait long for what a dead one held
LIMIT = timedelta(seconds=2)
HERE = Path(__file__).parent


# The provider makes one charge for each key, so that a charge in doubt is simply sent again.
@tool(effect=KEYED(timedelta(hours=24)), step="charge", time_limit=LIMIT, not_sent=ConnectionRefusedError)
def charge(call: Call, shop: Volatile[str], order: str) -> str:
    connection = HTTPConnection(shop, timeout=call.deadline - time.monotonic())
    headers = {"Idempotency-Key": call.request_id, "Intent-Id": call.intent_id}
    connection.request("POST", "/charges", json.dumps({"order": order, "cents": 1999}), headers)
    response = connection.getresponse()
    answer = json.load(response)
    time.sleep(
        random.uniform(0.0, 0.1)
    )  # a slow network: time to be killed in, after the payment and before its record
    if response.status != 201:
        raise RuntimeError(f"{response.status}: {answer}")  # proves nothing: it stays in doubt
    return str(answer["receipt"])


# --- a worker ---------------------------------------------------------------------------------------------------------


def work(url: str, shop: str, orders: list[str]) -> None:
    """Go through the orders until all of them are finished: first those that a dead worker has left, then any."""
    finished: set[str] = set()
    with Log.open(url) as log:
        while todo := [order for order in orders if order not in finished]:
            left = {one.branch for one in log.unfinished()}.intersection(todo)
            order = random.choice(sorted(left) or todo)
            if is_finished(log, order) or is_paid(log, order, shop):
                finished.add(order)


def is_finished(log: Log, order: str) -> bool:
    """Whether some worker has come to the end of it."""
    return any(getattr(entry.record, "end", None) is End.COMPLETED for entry in log.history(order))


def is_paid(log: Log, order: str, shop: str) -> bool:
    """Take the order and charge it. False: another worker has it, or it has to wait."""
    try:
        log.run(order, lambda attempt: attempt.call(charge, shop, order))
    except (BranchBusy, InDoubt):
        time.sleep(0.02)
        return False
    return True


# --- those who start and kill them ------------------------------------------------------------------------------------


@contextmanager
def sandbox(folder: Path) -> Iterator[str]:
    """The payment provider: a process of its own, whose ledger is the witness. Yields its address."""
    files = ["--ledger", str(folder / "ledger.jsonl"), "--requests", str(folder / "requests.jsonl")]
    command = [sys.executable, str(HERE / "payment_sandbox.py"), "--stop-with-stdin", *files]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - our own program
        yield process.stdout.readline().strip() if process.stdout else ""


def started(url: str, shop: str, orders: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--worker", shop, *orders]
    environment = os.environ | {"INTENTLOG_URL": url, "INTENTLOG_LEASE_S": LEASE_S}  # no password on a command line
    return subprocess.Popen(command, env=environment)  # noqa: S603 - ourselves


def run(url: str, shop: str, orders: list[str], seconds: float, chance: random.Random) -> int:
    """Keep four workers at work, killing one now and then for so many seconds. Returns how many were killed."""
    kills = 0
    workers = [started(url, shop, orders) for _ in range(WORKERS)]
    try:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(chance.uniform(0.0, 0.8))
            place = chance.randrange(WORKERS)
            if workers[place].poll() is None:
                workers[place].kill()
                kills += 1
            workers[place].wait()
            workers[place] = started(url, shop, orders)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return kills


# --- the verdict ------------------------------------------------------------------------------------------------------


def report(url: str, folder: Path, orders: list[str], kills: int) -> int:
    """Hold the provider's ledger against the log."""
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    requests = (folder / "requests.jsonl").read_text(encoding="utf-8").count("\n")
    paid = Counter(str(json.loads(one["body"])["order"]) for one in ledger)
    receipts = {json.loads(one["body"])["order"]: one["receipt"] for one in ledger}
    with Log.open(url, read_only=True) as log:
        in_doubt = [one.intent_id for one in log.open_intents() if one.in_doubt]
        recorded = {
            order: entry.payload for order in orders for entry in log.history(order) if entry.kind == "Committed"
        }
        attempts = sum(entry.kind == "AttemptOpened" for order in orders for entry in log.history(order))
    duplicates = [order for order, count in paid.items() if count > 1]
    lost = [order for order in orders if paid[order] == 0 or recorded.get(order) != receipts[order]]
    unknown = [order for order in paid if order not in recorded]
    print(f"{len(orders)} orders, {WORKERS} workers, {kills} kills, {attempts} attempts, {requests} requests to pay")
    print(f"payments per order: {dict(sorted(Counter(paid[order] for order in orders).items()))}")
    print(f"{len(duplicates)} duplicates, {len(lost)} lost, {len(in_doubt)} in doubt, {len(unknown)} not in the log")
    for order in sorted({*duplicates, *lost, *unknown}):
        print(f"wrong: {order}: paid {paid[order]} times; the log has {recorded.get(order)!r}")
    return 1 if duplicates or lost or unknown else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=os.environ.get("INTENTLOG_URL"))
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long workers are killed")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="choose the kills as an earlier run did")
    parser.add_argument("--worker", nargs="+", metavar=("SHOP", "ORDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.url:
        parser.error(
            "give the URL of a PostgreSQL database; where there is none: "
            "docker run -e POSTGRES_PASSWORD=p -p 5432:5432 postgres, and then postgresql://postgres:p@localhost/postgres"
        )
    try:
        if given.worker:
            work(given.url, given.worker[0], given.worker[1:])
            return 0
        return demonstrate(given.url, given.orders, given.seconds, given.seed)
    except IntentLogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def demonstrate(url: str, count: int, seconds: float, seed: int | None) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    name = f"{time.time_ns():x}"[-8:]  # orders of its own: the log may have those of earlier runs
    orders = [f"order-{name}-{number}" for number in range(count)]
    print(f"seed {seed}", flush=True)
    Log.open(url).close()
    with tempfile.TemporaryDirectory() as folder:
        with sandbox(Path(folder)) as shop:
            kills = run(url, shop, orders, seconds, random.Random(seed))
        return report(url, Path(folder), orders, kills)


if __name__ == "__main__":
    sys.exit(main())
