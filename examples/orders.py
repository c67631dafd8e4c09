"""A worker that processes orders. Each order has three real effects, one for each way of telling whether it happened.

    python orders.py --log orders.db --shop 127.0.0.1:8080 --source src.git --remote repo.git --mail mail.jsonl order-1

Kill it at any moment and run it again with the same orders: what is done is not done again, what was never sent is
sent, and what may have been sent is settled by the tool's effect class, or left for a person. It exits with 0 when all
orders are finished, and with 3 when one of them has to wait: run it again, and see `intentlog status orders.db`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

from intentlog import KEYED, QUERYABLE, UNSAFE, Applied, Call, Log, NotApplied, Volatile, tool
from intentlog.errors import BranchBusy, InDoubt, NotSent, Rejected

LIMIT = timedelta(seconds=1)


class ChargeRefused(Exception):
    """The provider said no, and will say no again."""


# KEYED: the provider makes one charge per key, however often it is asked. So a charge in doubt is simply sent again.
@tool(effect=KEYED(timedelta(hours=24)), time_limit=LIMIT, rejects=ChargeRefused, not_sent=ConnectionRefusedError)
def charge(call: Call, shop: Volatile[str], order_id: str, cents: int) -> str:
    connection = HTTPConnection(shop, timeout=call.deadline - time.monotonic())
    headers = {"Idempotency-Key": call.request_id, "Intent-Id": call.intent_id}
    connection.request("POST", "/charges", json.dumps({"order": order_id, "cents": cents}), headers)
    answer = json.load(response := connection.getresponse())
    if response.status in (400, 402, 422):  # not 409 or 429, which may be otherwise the next time
        raise ChargeRefused(answer["error"])
    if response.status != 201:
        raise RuntimeError(f"{response.status}: {answer}")  # proves nothing: it stays in doubt
    return str(answer["receipt"])


# QUERYABLE: git does not know our key, but it can be asked. The branch's name holds the request id, because ls-remote
# shows only names, and the number of the call, so that a second push would stand beside the first for all to see.
@tool(effect=QUERYABLE(settle=timedelta(seconds=1)), time_limit=LIMIT)
def push(call: Call, source: str, remote: str, order_id: str) -> str:
    message = f"Release {order_id}\n\nRequest-Id: {call.request_id}\nIntent-Id: {call.intent_id}\n"
    commit = git(call, source, "commit-tree", git(call, source, "mktree"), "-m", message)
    git(call, source, "push", "--quiet", remote, f"{commit}:refs/heads/{order_id}/{call.request_id}/{call.dispatch_no}")
    return commit


@push.probe
def pushed(call: Call, source: str, remote: str, order_id: str) -> Applied[str] | NotApplied:
    found = git(call, source, "ls-remote", remote, f"refs/heads/{order_id}/{call.request_id}/*")
    return Applied(found.split()[0]) if found else NotApplied()


def git(call: Call, repository: str, *arguments: str) -> str:
    """Run git until the call's deadline at most, whether or not this process lives so long.

    A worker that is killed leaves its git running, and "not applied" must not count while that can still push. So git
    gets an alarm, which exec keeps and which ends it at the deadline. A push that breaks off changes nothing; what the
    receiver has by then, it takes in within the settle time.
    """
    left = max(call.deadline - time.monotonic(), 0.001)  # never 0, which would be no alarm
    command = ["git", "--git-dir", repository, "-c", "user.name=orders", "-c", "user.email=orders@localhost"]
    return subprocess.run(  # noqa: S603 - no shell, and our own arguments
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: signal.setitimer(signal.ITIMER_REAL, left),
    ).stdout.strip()


# UNSAFE: nobody can be asked whether it happened, so a mail in doubt waits until a person has looked.
@tool(effect=UNSAFE, time_limit=LIMIT)
def mail(call: Call, outbox: str, order_id: str, text: str) -> str:
    line = json.dumps({"order": order_id, "text": text, "key": call.request_id, "intent": call.intent_id})
    with Path(outbox).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return call.request_id


def process(log: Log, order_id: str, given: argparse.Namespace) -> bool:
    """Take one order as far as it goes now. True if nothing is left to do for it."""
    try:
        with log.attempt(order_id) as attempt:
            receipt = attempt.call(charge, given.shop, order_id, cents=1999)
            commit = attempt.call(push, given.source, given.remote, order_id)
            attempt.call(mail, given.mail, order_id, f"Paid ({receipt}) and released ({commit[:10]}).")
    except Rejected as error:
        print(f"{order_id}: refused: {error}", flush=True)
    except (InDoubt, NotSent, BranchBusy) as error:
        print(f"{order_id}: later: {error}", flush=True)
        return False
    else:
        print(f"{order_id}: finished", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("log", "shop", "source", "remote", "mail"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("orders", nargs="+")
    given = parser.parse_args()
    with Log.open(given.log) as log:
        waiting = [order_id for order_id in given.orders if not process(log, order_id, given)]
    return 3 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
