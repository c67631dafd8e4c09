"""Correct uses of the public face, read by mypy and basedpyright in their strict modes and never run (DESIGN 7, 13).

What must be rejected stands in `rejections/cases.py.txt`, which `tests/test_typing.py` holds against both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import assert_type

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    AsyncAttempt,
    AsyncLog,
    AsyncTool,
    Attempt,
    Call,
    Classification,
    Durability,
    Entry,
    InDoubt,
    IntentId,
    Log,
    NotApplied,
    OpenIntent,
    Outcome,
    Rejected,
    Report,
    Retry,
    Secret,
    Settings,
    Tool,
    Unfinished,
    Unknown,
    Volatile,
    tool,
)


@dataclass
class Receipt:
    number: str


class CardDeclined(Exception):
    pass


# --- declarations ----------------------------------------------------------------------------------------------------


@tool
def bare(order_id: str, cents: int) -> Receipt:
    return Receipt(f"{order_id} {cents}")


@tool
def bare_with_call(call: Call, order_id: str, cents: int = 0) -> Receipt:
    return Receipt(f"{call.request_id} {order_id} {cents} {call.intent_id} {call.dispatch_no} {call.deadline}")


@tool()
def nothing() -> None:
    return None


@tool(effect=READ, durability=Durability.IMMEDIATE)
def read(url: str) -> bytes:
    return url.encode()


@tool(effect=IDEMPOTENT, retry=Retry(times=3), name="put")
def idempotent(call: Call, key: str, *, value: int) -> int:
    return value


@tool(
    effect=KEYED(window=timedelta(hours=24)),
    step="charge-{order_id}",
    rejects=(CardDeclined,),
    not_sent=ConnectionRefusedError,
    time_limit=timedelta(seconds=30),
    retry=Retry(times=3, backoff=timedelta(seconds=1)),
)
def keyed(call: Call, order_id: str, cents: int, token: Volatile[str], password: Secret[str] = "") -> Receipt:
    return Receipt(order_id.upper() + token.upper() + password.upper())


@tool(effect=QUERYABLE(settle=timedelta(seconds=5)))
def push(repo: str, sha: str) -> str:
    return repo + sha


@push.probe
def pushed(call: Call, repo: str, sha: str) -> Applied[str] | NotApplied | Unknown:
    return Applied(sha) if call.dispatch_no else NotApplied() if repo else Unknown()


@tool(effect=QUERYABLE(settle=timedelta(0)))
def send(*files: str, limit: int = 1, **more: float) -> int:
    return len(files) + limit + len(more)


@send.probe
def sent(*files: str, limit: int = 1, **more: float) -> NotApplied | Unknown:
    return NotApplied()


@keyed.probe
def charged(
    order_id: str, cents: int, token: Volatile[str], password: Secret[str] = ""
) -> Applied[Receipt] | NotApplied | Unknown:
    return Applied(Receipt(order_id))


@tool
async def async_bare(order_id: str) -> Receipt:
    return Receipt(order_id)


@tool(effect=QUERYABLE(settle=timedelta(0)))
async def async_queryable(call: Call, order_id: str, cents: int = 0) -> Receipt:
    return Receipt(f"{order_id} {cents}")


@async_queryable.probe
async def async_asked(call: Call, order_id: str, cents: int = 0) -> Applied[Receipt] | NotApplied | Unknown:
    return Unknown()


@tool(effect=QUERYABLE(settle=timedelta(0)))
async def async_asked_plainly(order_id: str) -> int:
    return 1


@async_asked_plainly.probe
def asked_plainly(order_id: str) -> Applied[int] | Unknown:
    return Applied(1)


@tool(effect=UNSAFE)
async def async_nothing(call: Call) -> None:
    return None


assert_type(nothing, Tool[[], None])
assert_type(read.name, str)
assert_type(async_nothing, AsyncTool[[], None])


def handles(one: Tool[..., Receipt], other: AsyncTool[..., Receipt]) -> tuple[str, str]:
    """Handles are values of a type that can be named."""
    return one.name, other.name


handles(bare, async_bare)
handles(keyed, async_queryable)

# --- calls -----------------------------------------------------------------------------------------------------------


def work(attempt: Attempt) -> int:
    """What a sync attempt answers is typed as the tool's result."""
    assert_type(attempt.number, int)
    assert_type(attempt.classifications, list[Classification])
    assert_type(attempt.call(bare, "1042", 1999), Receipt)
    assert_type(attempt.call(bare, "1042", cents=1999), Receipt)
    assert_type(attempt.call(bare, order_id="1042", cents=1999), Receipt)
    assert_type(attempt.call(bare_with_call, "1042"), Receipt)
    assert_type(attempt.call(bare_with_call, "1042", cents=1), Receipt)
    attempt.call(nothing)
    assert_type(attempt.perform(nothing), Outcome[None])
    assert_type(attempt.call(read, "https://example.org"), bytes)
    assert_type(attempt.call(idempotent, "key", value=1), int)
    assert_type(attempt.call(keyed, "1042", 1999, "token"), Receipt)
    assert_type(attempt.call(keyed, "1042", cents=1999, token="token", password="secret"), Receipt)
    assert_type(attempt.call(push, "repo", sha="sha"), str)
    assert_type(attempt.call(send, "a", "b", limit=2, more=1.5), int)
    assert_type(attempt.step("refund-1").call(bare, "1042", 1), Receipt)
    outcome = attempt.step("push").perform(push, "repo", "sha")
    assert_type(outcome, Outcome[str])
    assert_type(outcome.value, str)
    assert_type(outcome.replayed, bool)
    assert_type(outcome.intent_id, IntentId)
    assert_type(outcome.intent_id.step, str)
    assert_type(outcome.request_id, str)
    try:
        value = attempt.call(idempotent, "key", value=1)
    except InDoubt as doubt:
        assert_type(doubt.intent_id, str | None)
        raise
    except Rejected as rejected:
        assert_type(rejected.replayed, bool)
        return 0
    return value


async def async_work(attempt: AsyncAttempt) -> bytes:
    """An async attempt takes both kinds of tools."""
    assert_type(await attempt.call(async_bare, "1042"), Receipt)
    assert_type(await attempt.call(async_bare, order_id="1042"), Receipt)
    assert_type(await attempt.call(async_queryable, "1042", cents=1), Receipt)
    await attempt.call(async_nothing)
    assert_type(await attempt.perform(async_nothing), Outcome[None])
    assert_type(await attempt.call(bare, "1042", 1), Receipt)
    assert_type(await attempt.call(bare_with_call, "1042"), Receipt)
    assert_type(await attempt.step("s").call(push, "repo", "sha"), str)
    assert_type(await attempt.step("s").perform(async_asked_plainly, "1042"), Outcome[int])
    return await attempt.call(read, "https://example.org")


# --- logs ------------------------------------------------------------------------------------------------------------


def logs() -> None:
    """The sync log."""
    with Log.open("orders.db") as log:
        assert_type(log, Log)
        with log.attempt("order-1042", wait=timedelta(seconds=5)) as attempt:
            assert_type(attempt, Attempt)
            work(attempt)
        assert_type(log.run("order-1043", work), int)
        assert_type(log.run("order-1044", lambda attempt: attempt.call(push, "repo", "sha")), str)
        assert_type(log.recover(), list[Classification])
        assert_type(log.unfinished(), list[Unfinished])
        assert_type(log.open_intents(), list[OpenIntent])
        assert_type(log.history("order-1042"), Iterator[Entry])
        assert_type(log.verify(), Report)
        assert_type(log.verify().ok, bool)
        assert_type(log.counters.commits, int)
        log.resolve("order-1042#1/push", Applied("sha"), by="ada", why="seen", expect_seq=3)
        for intent in log.open_intents():
            log.resolve(intent.intent_id, NotApplied(), by="ada", why="looked", expect_seq=intent.seq)
    with Log.open(Path("orders.db"), settings=Settings(threads_max=1), read_only=True) as reader:
        reader.verify()


async def async_logs() -> None:
    """The async log."""
    async with AsyncLog.open("orders.db") as log:
        assert_type(log, AsyncLog)
        async with log.attempt("order-1042") as attempt:
            assert_type(attempt, AsyncAttempt)
            await async_work(attempt)
        assert_type(await log.run("order-1043", async_work), bytes)
        assert_type(await log.recover(), list[Classification])
        assert_type(await log.unfinished(), list[Unfinished])
        assert_type(await log.open_intents(), list[OpenIntent])
        assert_type(await log.history("order-1042"), list[Entry])
        assert_type(await log.verify(), Report)
        await log.resolve("order-1042#1/push", NotApplied(), by="ada", why="looked")
