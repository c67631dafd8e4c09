"""A worker process that does what it is told, line by line, so that a test decides who does what when.

    python worker_programs.py sync|async LOG

It prints `ready`, then answers each line of its standard input:

    attempt B   opens an attempt at branch B: `own B` and holds it until the line `leave` (then `left B`), or `busy B`
    run B       `log.run(B, fn)`, where fn says `own B` and waits for `leave`: then `left B`; or `busy B`
    take B      `log.run` with a wait until the branch is free, whose fn charges: `done B RECEIPT`
    call B...   opens an attempt at each branch and calls `stay` in it, which says `calling B` and never returns
    die B       is killed by SIGKILL inside an attempt at B, between two effects: after a charge
    unfinished  `unfinished` and the branches that a supervisor should run again

What a call did stands in the file $WITNESS, a line for each: the tool and the branch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

from intentlog import KEYED, QUERYABLE, Applied, AsyncLog, Log, NotApplied, tool
from intentlog.errors import BranchBusy

PATIENCE = timedelta(seconds=60)


def tell(*words: str) -> None:
    print(*words, flush=True)


def witness(what: str, order: str) -> None:
    with Path(os.environ["WITNESS"]).open("a", encoding="utf-8") as file:
        file.write(f"{what} {order}\n")


@tool(effect=KEYED(timedelta(hours=24)), step="charge")
def charge(order: str) -> str:
    witness("charge", order)
    return f"receipt-{order}"


@tool(step="stay")
def stay(order: str) -> None:
    witness("stay", order)
    tell("calling", order)
    threading.Event().wait()


@tool(step="stay", name="stay_async")
async def stay_async(order: str) -> None:
    witness("stay", order)
    tell("calling", order)
    await asyncio.Event().wait()


@tool(effect=QUERYABLE(timedelta(0)), step="ship", time_limit=timedelta(milliseconds=1))
def ship(order: str) -> None:
    witness("ship", order)
    os.kill(os.getpid(), signal.SIGKILL)


@ship.probe
def shipped(order: str) -> Applied[None] | NotApplied:
    if "SLOW_PROBE" in os.environ:
        print("the probe is asked", file=sys.stderr, flush=True)
        threading.Event().wait()
    found = f"ship {order}" in Path(os.environ["WITNESS"]).read_text(encoding="utf-8").splitlines()
    return Applied(None) if found else NotApplied()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(branch: str) -> str:
    tell("own", branch)
    sys.stdin.readline()
    return branch


def work(log: Log, verb: str, branches: list[str]) -> None:
    branch = branches[0] if branches else ""
    match verb:
        case "attempt":
            with log.attempt(branch):
                hold(branch)
            tell("left", branch)
        case "run":
            tell("left", log.run(branch, lambda _: hold(branch)))
        case "take":
            tell("done", branch, log.run(branch, lambda attempt: attempt.call(charge, branch), wait=PATIENCE))
        case "call":
            for one in branches:
                target = lambda one=one: log.run(one, lambda attempt: attempt.call(stay, one))  # noqa: E731
                threading.Thread(target=target, daemon=True).start()
        case "ship":
            log.run(branch, lambda attempt: attempt.call(ship, branch))
        case "die":
            log.run(branch, lambda attempt: (attempt.call(charge, branch), die()))
        case "unfinished":
            tell("unfinished", *sorted(one.branch for one in log.unfinished()))


async def work_async(log: AsyncLog, verb: str, branches: list[str], tasks: list[asyncio.Task[object]]) -> None:
    branch = branches[0] if branches else ""

    async def held(_: object) -> str:
        return hold(branch)

    async def charged(attempt):
        return await attempt.call(charge, branch)

    async def dies(attempt):
        await attempt.call(charge, branch)
        die()

    match verb:
        case "attempt":
            async with log.attempt(branch):
                hold(branch)
            tell("left", branch)
        case "run":
            tell("left", await log.run(branch, held))
        case "take":
            tell("done", branch, await log.run(branch, charged, wait=PATIENCE))
        case "call":
            for one in branches:

                async def stays(attempt, one=one):
                    await attempt.call(stay_async, one)

                tasks.append(asyncio.ensure_future(log.run(one, stays)))
        case "die":
            await log.run(branch, dies)
        case "unfinished":
            tell("unfinished", *sorted(one.branch for one in await log.unfinished()))


def main_sync(place: str) -> None:
    with Log.open(place) as log:
        tell("ready")
        for line in sys.stdin:
            verb, *branches = line.split()
            try:
                work(log, verb, branches)
            except BranchBusy:
                tell("busy", *branches)


async def main_async(place: str) -> None:
    tasks: list[asyncio.Task[object]] = []
    async with AsyncLog.open(place) as log:
        tell("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, *branches = line.split()
            try:
                await work_async(log, verb, branches, tasks)
            except BranchBusy:
                tell("busy", *branches)


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        main_sync(sys.argv[2])
    else:
        asyncio.run(main_async(sys.argv[2]))
