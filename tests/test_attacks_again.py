"""What a stranger tried who knew the README alone, and got through with: each is a kind, and none works any more."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from bad_input import MODES, opened
from test_interrupts import HANDLERS, strike_at

from intentlog import (
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    AsyncLog,
    Durability,
    InDoubt,
    Log,
    LogClosed,
    NotApplied,
    NotSent,
    OutcomeUnavailable,
    Rejected,
    Retry,
    Secret,
    Suspended,
    tool,
)
from intentlog.cli import advice
from intentlog.core.actions import IntentId

SOON = Retry(2, timedelta(milliseconds=1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inner", [NotSent, Rejected, Suspended], ids=lambda e: e.__name__)
def test_what_a_guard_said_of_another_effect_proves_nothing(
    quick_folder: Path, mode: str, inner: type[Exception]
) -> None:
    """A tool that had its effect calls another one, which is refused: it is in doubt, and is not repeated (I4)."""
    made: list[str] = []
    attempts: list[Any] = []

    @tool(name="again-notify")
    def notify(text: str) -> str:
        raise inner("the mail server is down")

    @tool(effect=UNSAFE, name="again-charge", retry=SOON)
    def charge(text: str) -> str:
        made.append(text)
        return str(attempts[-1].step("notify").call(notify, text))

    @tool(effect=UNSAFE, name="again-charge-async", retry=SOON)
    async def charge_async(text: str) -> str:
        made.append(text)
        return str(await attempts[-1].step("notify").call(notify, text))

    with opened(quick_folder / "log.db", mode) as face, face.attempt("order") as attempt:
        attempts.append(attempt)
        handle: Any = charge if mode == "sync" else charge_async
        for _ in range(2):
            with pytest.raises(InDoubt) as doubt:
                face.wait(attempt.step("charge").call(handle, "x"))
        assert doubt.value.effect_ran == "unknown"
    assert made == ["x"]


def test_a_generator_that_is_returned_proves_nothing(quick_folder: Path) -> None:
    """What the tool did before it made it, nobody knows: a doubt, and no second call (I4)."""
    made: list[str] = []

    @tool(name="again-lines", retry=SOON)
    def lines(text: str) -> Any:
        made.append(text)
        return (one for one in [text])

    with Log.open(quick_folder / "log.db") as log, log.attempt("order") as attempt:
        doubt = pytest.raises(InDoubt, match="ToolMisdefined")
        with doubt:
            attempt.call(lines, "x")
    assert made == ["x"]


@pytest.mark.parametrize("raised", [RuntimeError("the session is closed"), Exception("x"), SystemExit(3)], ids=repr)
def test_a_result_whose_own_serialiser_fails_is_done(quick_folder: Path, raised: BaseException) -> None:
    """Whatever it raises: RETURNED stands in the log without a value, and nothing is called again (I3)."""

    class Receipt:
        def model_dump(self, mode: str) -> Any:
            raise raised

    @tool(name="again-receipt")
    def charge(text: str) -> Any:
        return Receipt()

    with Log.open(quick_folder / "log.db") as log, log.attempt("order") as attempt:
        assert isinstance(attempt.step("s").call(charge, "x"), Receipt)
        with pytest.raises(OutcomeUnavailable):
            attempt.step("s").call(charge, "x")
        assert [entry.kind for entry in log.history("order")][-1] == "Committed"


def test_recovery_asks_nobody_elses_probe(quick_folder: Path) -> None:
    """Two tools that a factory made under one name: neither is asked about a record that could be the other's (I9)."""
    worlds: dict[str, list[str]] = {"acme": [], "bolt": []}

    def made_for(tenant: str) -> Any:
        @tool(effect=QUERYABLE(settle=timedelta(0)), name="again-push", time_limit=timedelta(microseconds=1))
        def push(order: str) -> str:
            worlds[tenant].append(order)
            raise TimeoutError

        @push.probe
        def pushed(order: str) -> Applied[str] | NotApplied:
            return Applied("ok") if order in worlds[tenant] else NotApplied()

        return push

    acme = made_for("acme")
    with Log.open(quick_folder / "log.db") as log, log.attempt("acme-1") as attempt, pytest.raises(InDoubt):
        attempt.call(acme, "7")
    bolt = made_for("bolt")
    with Log.open(quick_folder / "log.db") as log:
        with log.attempt("bolt-1") as attempt, pytest.raises(InDoubt):
            attempt.call(bolt, "8")
        assert {one.resolution for one in log.recover()} == {"PROBE"}, "still open: ask where it can be told apart"
    assert worlds == {"acme": ["7"], "bolt": ["8"]}
    del acme, bolt


@pytest.mark.parametrize("mode", MODES)
def test_a_secret_of_an_inner_attempt_is_masked_by_the_outer_one(quick_folder: Path, mode: str) -> None:
    """An error on its way out ends every attempt that it leaves, and the text is kept by each."""
    token = "hunter2-very-secret"

    @tool(effect=READ, name="again-balance")
    def balance(account: str, token: Secret[str]) -> str:
        raise RuntimeError(f"401 for {token}")

    with opened(quick_folder / "log.db", mode) as face:
        with pytest.raises(RuntimeError), face.attempt("run"), face.attempt("run/sub") as inner:
            face.wait(inner.step("s").call(balance, "acc", token))
        ends = [face.do(lambda log, b=b: log.history(b))[-1].record for b in ("run", "run/sub")]
    assert all("***" in end.error.text for end in ends)
    assert not any(token.encode() in file.read_bytes() for file in quick_folder.glob("log.db*") if file.is_file())


HANDLER = """
    import signal, sys
    from datetime import timedelta
    from intentlog import IDEMPOTENT, IntentLogError, Log, Retry, tool

    log = Log.open(sys.argv[1])

    @tool(effect=IDEMPOTENT, retry=Retry(1, timedelta(seconds=30)), not_sent=ConnectionRefusedError)
    def send(text: str) -> str:
        if sys.argv[3] == "wait":
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        raise ConnectionRefusedError

    def handler(number, frame):
        try:
            log.close() if sys.argv[2] == "close" else attempt.step("s").call(send, "x")
        except IntentLogError as error:
            print(error.code, flush=True)
        raise SystemExit(0)

    signal.signal(signal.SIGALRM, handler)
    with log.attempt("order") as attempt:
        attempt.step("s").call(send, "x")
"""


@pytest.mark.parametrize("what", ["close", "call"])
def test_a_handler_that_would_wait_for_its_own_thread_is_told(quick_folder: Path, what: str) -> None:
    """Between two steps of a call, here while it waits to be repeated: refused in words, not a hang."""
    command = [sys.executable, "-c", dedent(HANDLER), str(quick_folder / "log.db"), what, "wait"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=25)
    assert (child.returncode, child.stdout) == (0, "log_unavailable\n")


def test_what_is_acknowledged_while_a_log_is_closed_is_in_it(quick_folder: Path) -> None:
    """Threads add events until the log refuses them: none that was taken is lost (I5)."""
    for number in range(10):
        log, taken, go = Log.open(quick_folder / f"{number}.db"), [0, 0], threading.Event()

        def add(which: int, log: Log = log, taken: list[int] = taken, go: threading.Event = go) -> None:
            try:
                while True:
                    log.append(f"b{which}", "event", taken[which])
                    taken[which] += 1
                    if taken[which] == 20:
                        go.set()
            except LogClosed:
                return

        threads = [threading.Thread(target=add, args=(which,)) for which in range(2)]
        for one in threads:
            one.start()
        go.wait()
        log.close()
        for one in threads:
            one.join()
        with Log.open(quick_folder / f"{number}.db") as again:
            found = [sum(e.kind == "ApplicationEvent" for e in again.history(f"b{which}")) for which in range(2)]
        assert found == taken


@pytest.mark.parametrize("durability", list(Durability))
def test_closing_is_not_put_off_by_those_who_add_events(quick_folder: Path, durability: Durability) -> None:
    """An AsyncLog that is being closed takes nothing more, and so comes to its end."""

    async def main() -> None:
        async with AsyncLog.open(quick_folder / "log.db") as log:

            async def add(which: int) -> None:
                try:
                    while True:
                        await log.append(f"b{which}", "event", durability=durability)
                        await asyncio.sleep(0)
                except LogClosed:
                    return

            tasks = [asyncio.create_task(add(which)) for which in range(4)]
            await asyncio.sleep(0.02)
            async with asyncio.timeout(20):
                await log.close()
            await asyncio.gather(*tasks)

    asyncio.run(main())


def test_status_does_not_advise_to_do_it_once_more() -> None:
    """A contradiction is confirmed; a renewal that somebody runs because it is printed would call again."""
    told = advice.of_contradiction("log.db", IntentId("order#1/charge"))
    assert [command.split()[1] for command in told.commands] == ["show", "resolve"]


@pytest.fixture
def interrupting() -> Generator[signal.Signals]:
    number, handler, _ = HANDLERS["KeyboardInterrupt"]
    before = signal.signal(number, handler)
    yield number
    signal.signal(number, before)


LOOKS: dict[str, Callable[[Log], Any]] = {
    "tail": lambda log: log.tail(1),
    "history": lambda log: list(log.history("order")),
    "open_intents": lambda log: log.open_intents(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_an_event_that_waits_survives_an_interrupted_look(
    quick_folder: Path, look: Callable[[Log], Any], interrupting: signal.Signals
) -> None:
    """A signal at each line of a read that writes what waits: it is written one time, whatever came (I5)."""
    nth = 0
    while True:
        nth += 1
        where: list[str] = []
        path = quick_folder / f"{nth}.db"
        with Log.open(path) as log:
            log.append("order", "event", nth)
            try:
                with strike_at(nth * 3, interrupting, where):
                    look(log)
            except KeyboardInterrupt:
                pass
        if not where:
            break
        with Log.open(path, read_only=True) as again:
            assert [e.payload for e in again.history("order")] == [nth], where
    assert nth > 10
