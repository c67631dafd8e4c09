"""What a stranger found who knew the README alone, each as it was shown (docs/track-record.md)."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from intentlog import (
    IDEMPOTENT,
    AsyncLog,
    Fenced,
    InDoubt,
    IntentLogError,
    Log,
    LogPoisoned,
    LogUnavailable,
    Retry,
    Secret,
    tool,
)

COMMAND = (sys.executable, "-m", "intentlog")


@tool(step="pay-{n}")
def pay(n: int, witness: str = "") -> int:
    if witness:
        with Path(witness).open("a") as out:
            out.write(f"{n}\n")
    return n


def committed(log: Log, branch: str) -> list[Any]:
    return [entry.payload for entry in log.history(branch) if entry.kind == "Committed"]


# --- the time limit of the guard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [{"not_sent": OSError}, {"not_sent": TimeoutError}, {"rejects": Exception}])
@pytest.mark.parametrize("cleans_up", [False, True])
def test_the_time_limit_proves_nothing_whatever_is_declared(
    tmp_path: Path, declared: dict[str, Any], cleans_up: bool
) -> None:
    """I4: the guard's own time-out is an OSError too. It ends the call in doubt, and `Retry` repeats nothing; so
    does an error that the tool meets while it cleans up."""
    calls: list[int] = []

    @tool(**declared, time_limit=timedelta(milliseconds=50), retry=Retry(3, backoff=timedelta(0)))
    async def charge(n: int) -> int:
        calls.append(n)
        try:
            await asyncio.sleep(10)
        finally:
            if cleans_up:
                raise ConnectionError(n)
        return n

    async def main() -> None:
        for _ in range(2):
            async with AsyncLog.open(tmp_path / "log.db") as log, log.attempt("order") as attempt:
                with pytest.raises(InDoubt) as raised:
                    await attempt.call(charge, 1)
                assert raised.value.effect_ran == "unknown"
                raised.value.__traceback__ = None

    asyncio.run(main())
    assert calls == [1]


# --- files ----------------------------------------------------------------------------------------------------------


def test_who_lost_its_index_writes_nothing_over_others(tmp_path: Path) -> None:
    """I5: the -shm file is deleted while a log is open. Another process makes a new one, and what it acknowledges
    stays; who has the old one is refused before it writes."""
    path, witness = tmp_path / "log.db", tmp_path / "witness"
    program = (
        "import sys; from intentlog import Log; from test_attacks_stranger import pay\n"
        "with Log.open(sys.argv[1]) as log, log.attempt('b') as attempt:\n"
        "    for n in range(40): attempt.call(pay, n, sys.argv[2])"
    )
    other = [sys.executable, "-c", program, str(path), str(witness)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    log = Log.open(path)
    attempt = log.attempt("a").__enter__()
    for n in range(40):
        attempt.call(pay, n)
    path.with_name("log.db-shm").unlink()
    subprocess.run(other, check=True, env=environment, timeout=60)
    for n in (40, 41):
        with pytest.raises(LogPoisoned, match="index"):
            attempt.call(pay, n, str(witness))
    log.close()
    subprocess.run(other, check=True, env=environment, timeout=60)
    assert witness.read_text().splitlines() == [str(n) for n in range(40)]
    with Log.open(path) as again:
        assert again.verify().ok
        assert len(committed(again, "b")) == 40


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts")
def test_a_file_that_is_mounted_by_itself_is_refused(tmp_path: Path) -> None:
    """Under its other name it had a WAL and locks of its own: two logs over one file, each of them sound."""
    path, other = tmp_path / "log.db", tmp_path / "an other"
    other.touch()
    with Log.open(path):
        pass
    mounted = subprocess.run(["mount", "--bind", str(path), str(other)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("it cannot be mounted here")
    try:
        with pytest.raises(LogUnavailable, match="mounted by itself"):
            Log.open(other)
    finally:
        subprocess.run(["umount", str(other)], check=True)


def test_the_root_is_no_log() -> None:
    with pytest.raises(LogUnavailable, match="is no file"):
        Log.open("/")


# --- inside a commit ------------------------------------------------------------------------------------------------


def test_what_the_garbage_collector_closes_does_not_wait_for_itself(tmp_path: Path) -> None:
    """A generator that holds an attempt and was given up is closed by the collector, in the middle of a commit perhaps:
    it is refused there, its branch is let go, and everybody goes on."""

    @tool(step="e-{n}", effect=IDEMPOTENT)
    def effect(n: int) -> int:
        return n

    def steps(log: Log, n: int) -> Iterator[int]:
        with log.attempt(f"given-up-{n}") as attempt:
            yield attempt.call(effect, n)
            yield attempt.call(effect, n + 1)

    class Job:
        def __init__(self, log: Log, n: int) -> None:
            self.me = self
            self.steps = steps(log, n)
            next(self.steps)

    unraised: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda found: unraised.append(found.exc_type)
    thresholds = gc.get_threshold()
    try:
        with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
            gc.set_threshold(7, 1, 1)
            for n in range(300):
                Job(log, n)
                attempt.call(effect, n)
            gc.set_threshold(*thresholds)
            gc.collect()
            assert len(committed(log, "b")) == 300
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nothing holds signals back any more
            with log.attempt("given-up-3") as other:
                assert other.call(effect, 4) == 4
            assert log.verify().ok
    finally:
        gc.set_threshold(*thresholds)
        sys.unraisablehook = before
    assert set(unraised) <= {LogUnavailable}


def test_a_deep_stack_is_no_damage(tmp_path: Path) -> None:
    """Where the stack ends in the middle of a read the log is not called damaged: nothing is to be restored."""
    raised: list[str] = []

    def deep(levels: int, n: int) -> None:
        if levels:
            deep(levels - 1, n)
        else:
            attempt.call(pay, n)

    limit = sys.getrecursionlimit()
    with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
        for n in range(limit - 120, limit):
            try:
                deep(n, n)
            except (RecursionError, IntentLogError) as error:
                raised.append(str(error))
        assert log.verify().ok
    assert raised
    assert not [one for one in raised if "damaged" in one]


# --- results --------------------------------------------------------------------------------------------------------


async def _later() -> None:
    raise AssertionError


def _promises() -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    found = {"coroutine": _later(), "future": loop.create_future(), "thread": Future[int](), "map": map(abs, [1])}
    loop.close()
    return found


@pytest.mark.parametrize("kind", ["coroutine", "future", "thread", "map"])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_promise_of_a_result_is_none(tmp_path: Path, kind: str, is_async: bool) -> None:
    """An `await` was forgotten: nothing has begun perhaps, so that the call is in doubt, and not done."""
    promises = _promises()
    given = promises.pop(kind)
    if kind != "coroutine":
        promises["coroutine"].close()

    @tool
    def plain() -> Any:
        return given

    @tool
    async def later() -> Any:
        return given

    async def main() -> None:
        async with AsyncLog.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
            with pytest.raises(InDoubt, match="proves nothing"):
                await (attempt.call(later) if is_async else attempt.call(plain))

    asyncio.run(main())


def test_a_cursor_is_a_result(tmp_path: Path) -> None:
    """What can be iterated over is not for that a promise: its effect has been made, and it is done without a value."""

    @tool
    def insert() -> Any:
        return iter([1])

    with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
        assert list(attempt.call(insert)) == [1]
        assert committed(log, "b") == [None]


SECRETS = [bytes(range(200, 232)), "Zürich-2026-geheim", 'pass"word-2026', "back\\slash-2026"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("dressed", [lambda s: s, lambda s: json.dumps({"p": str(s)}), lambda s: [repr(s)]])
def test_a_result_that_holds_a_secret_is_not_stored(tmp_path: Path, secret: Any, dressed: Any) -> None:
    """Bytes that are no text stand in base64, a text in JSON or quoted by Python, inside JSON."""

    @tool
    def login(key: Secret[Any]) -> Any:
        return dressed(key)

    with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
        attempt.call(login, secret)
        assert committed(log, "b") == [None]


@pytest.mark.parametrize("secret", SECRETS[1:])
def test_an_error_that_quotes_a_secret_is_masked(tmp_path: Path, secret: str) -> None:
    @tool(rejects=ValueError)
    def login(key: Secret[str]) -> None:
        raise ValueError(f"{key.encode()!r}, {json.dumps(json.dumps(key))}, {json.dumps(repr(key))}")

    with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
        with pytest.raises(IntentLogError):
            attempt.call(login, secret)
        told = [entry.record.error.text for entry in log.history("b") if entry.kind == "Committed"]  # type: ignore[attr-defined] # REJECTED
    assert "2026" not in told[0]


# --- errors ---------------------------------------------------------------------------------------------------------


class Liar(Exception):
    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError


class _Odd(type):
    def __subclasscheck__(cls, other: type) -> bool:
        raise ZeroDivisionError


class Odd(Exception, metaclass=_Odd):
    pass


@pytest.mark.parametrize("lies", [True, False])
def test_errors_that_lie_of_their_class(tmp_path: Path, lies: bool) -> None:
    """Whatever they or their metaclass do, the call's end is recorded, as ambiguous."""

    @tool(rejects=Odd)
    def fails() -> None:
        raise (Liar if lies else ValueError)("x")

    with Log.open(tmp_path / "log.db") as log, log.attempt("b") as attempt:
        with pytest.raises(InDoubt):
            attempt.call(fails)
        assert [entry.kind for entry in log.history("b")][-1] == "CallEnded"


def test_a_closed_attempt_says_what_is_known_of_its_step(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log.db") as log:
        with log.attempt("b") as attempt:
            attempt.step("s").call(pay, 1)
        for step, ran in (("s", "yes"), ("t", "no")):
            with pytest.raises(Fenced) as raised:
                attempt.step(step).call(pay, 1)
            assert (raised.value.effect_ran, raised.value.intent_id) == (ran, f"b#1/{step}")


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "raise BaseException('x')",
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = None",
        "raise SystemExit(3)",
    ],
)
def test_a_module_that_misbehaves_ends_in_no_traceback(tmp_path: Path, module: str) -> None:
    """Whatever a user's module does when it is imported: an error in words."""
    (tmp_path / "mod.py").write_text(module)
    Log.open(tmp_path / "log.db").close()
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*COMMAND, "recover", "log.db", "--import", "mod", *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr + done.stdout
        assert done.returncode in (0, 1)
        assert done.returncode == 0 or "error" in done.stderr + done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """With --json too, whose errors otherwise go where the report goes."""
    Log.open(tmp_path / "log.db").close()
    for more in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMMAND, "status", str(tmp_path / "log.db"), *more],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        assert "No space left" in done.stderr


@pytest.mark.parametrize("descriptors", [4, 5, 6])
def test_too_few_descriptors(tmp_path: Path, descriptors: int) -> None:
    """The command line cannot be loaded, or the log not be opened: in words. (`-S`: Python's own start wants more.)"""
    program = f"ulimit -n {descriptors}; exec {sys.executable} -S -m intentlog status {tmp_path}/log.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_probe_that_ends_the_process_has_not_told_anything(tmp_path: Path) -> None:
    """A probe that raises SystemExit is one that raises."""
    (tmp_path / "shop.py").write_text(
        "from datetime import timedelta; import os\nfrom intentlog import QUERYABLE, tool\n"
        "@tool(effect=QUERYABLE(settle=timedelta(0)))\ndef push() -> None: os._exit(9)\n"
        "@push.probe\ndef pushed(): raise SystemExit('bye')\n"
    )
    program = (
        "import shop; from intentlog import Log\nwith Log.open('log.db') as l, l.attempt('b') as a: a.call(shop.push)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 9
    done = subprocess.run(
        [*COMMAND, "recover", "log.db", "--import", "shop"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "b#1/push" in done.stdout
