"""Bad input through either face of the library: what is refused, and that nothing was appended by it.

A `Face` is one open log, used in the same way whether it is a `Log` or an `AsyncLog`; every call of it blocks.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from intentlog import (
    Applied,
    ArgumentsNotRecordable,
    AsyncLog,
    Durability,
    InDoubt,
    IntentLogError,
    Log,
    NotApplied,
    ToolMisdefined,
    tool,
)
from intentlog.log.engine import Engine

MODES = ("sync", "asyncio")
SAID = {"by": "ann", "why": "read the statement"}
EVERYTHING = 1_000_000
# Refusals that name no next step: see `test_every_refusal_says_what_to_do_next`.
WITHOUT_REMEDY = (ArgumentsNotRecordable, ToolMisdefined)
CALLED: list[str] = []


@tool(name="bad-input-note")
def note(text: str) -> str:
    CALLED.append(text)
    return text


@tool(name="bad-input-lost")
def lost(text: str) -> str:
    CALLED.append(text)
    raise TimeoutError(text)


def read_elsewhere(path: Path) -> bytes:
    """A file of a log that may be open here, read by another process: here it would be refused."""
    return subprocess.run(["cat", str(path)], check=True, capture_output=True).stdout


class Face:
    """One log through one face."""

    def __init__(self, path: Path, mode: str, **options: Any) -> None:
        self.path = path
        self.mode = mode
        self._options = options
        self._runner = asyncio.Runner() if mode == "asyncio" else None
        self._reader: Log | None = None
        self.log: Any = None

    def open(self, opener: Callable[[], Engine] | None = None) -> Face:
        """Open it; by `opener`, where a test brings an engine of its own."""
        if self._runner is None:
            self.log = Log(opener()) if opener else Log.open(self.path, **self._options)
        else:
            self.log = AsyncLog(opener) if opener else AsyncLog.open(self.path, **self._options)
            self.wait(self.log.__aenter__())
        return self

    def close(self) -> None:
        try:
            if self.log is not None:
                self.wait(self.log.close())
        finally:
            if self._runner is not None:
                self._runner.close()
            if self._reader is not None:
                self._reader.close()

    def wait(self, result: Any) -> Any:
        """What a call came to: awaited, or read to its end."""
        if inspect.isawaitable(result):
            assert self._runner is not None

            async def awaited() -> Any:
                return await result

            return self._runner.run(awaited())
        return list(result) if inspect.isgenerator(result) else result

    def do(self, act: Callable[[Any], Any]) -> Any:
        """What the log answers."""

        async def on_the_loop() -> Any:
            result = act(self.log)
            return await result if inspect.isawaitable(result) else result

        return self.wait(act(self.log) if self._runner is None else on_the_loop())

    def records(self) -> list[tuple[int, str]]:
        """Every record: what waits is written first, and a second reader sees them all."""
        seen = [(one.seq, one.kind) for one in self.do(lambda log: log.tail(EVERYTHING))]
        self._reader = self._reader or Log.open(self.path, read_only=True)
        assert [(one.seq, one.kind) for one in self._reader.tail(EVERYTHING)] == seen
        return seen

    @contextmanager
    def attempt(self, branch: str) -> Iterator[Any]:
        """An attempt, open for the block."""
        attempt = self.log.attempt(branch)
        enter, leave = ("__enter__", "__exit__") if self._runner is None else ("__aenter__", "__aexit__")
        self.wait(getattr(attempt, enter)())
        error: BaseException | None = None
        try:
            yield attempt
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.wait(getattr(attempt, leave)(type(error) if error else None, error, None))

    def call(self, branch: str, step: str, handle: Any = note, *args: Any) -> Any:
        """One call under a step, in an attempt of its own."""
        with self.attempt(branch) as attempt:
            return self.wait(attempt.step(step).call(handle, *(args or ("x",))))

    def doubt(self, branch: str, step: str = "s") -> str:
        """An intent that is in doubt."""
        with pytest.raises(InDoubt) as caught:
            self.call(branch, step, lost)
        return str(caught.value.intent_id)

    def goes_on(self) -> None:
        """The log is as usable as before."""
        number = len(self.records())
        assert self.call("goes-on", f"s{number}", note, "fine") == "fine"
        assert self.do(lambda log: log.verify()).ok


@contextmanager
def opened(path: Path, mode: str, **options: Any) -> Iterator[Face]:
    face = Face(path, mode, **options)
    try:
        yield face.open()
    finally:
        face.close()


@contextmanager
def refused(
    face: Face, kind: type[IntentLogError], match: str, *, ran: str = "no", intent: str | None = None
) -> Iterator[None]:
    """The block raises this error, which says what is wrong, and nothing is appended or called by it."""
    before, called = face.records(), len(CALLED)
    with pytest.raises(IntentLogError, match=match) as caught:
        yield
    check_told(caught.value, kind, ran=ran, intent=intent)
    assert face.records() == before
    assert len(CALLED) == called


def check_told(
    error: IntentLogError, kind: type[IntentLogError], *, ran: str = "no", intent: str | None = None
) -> None:
    """An error has its type, its code, what is known of the effect, and the next step."""
    assert (type(error), error.code) == (kind, kind.code)
    assert (error.effect_ran, error.intent_id) == (ran, intent)
    assert error.message
    assert error.remedy or isinstance(error, WITHOUT_REMEDY)


def opening_refused(path: Path, kind: type[IntentLogError], match: str, **options: Any) -> None:
    """Neither face opens it, and both say why."""
    for mode in MODES:
        face = Face(path, mode, **options)
        try:
            with pytest.raises(IntentLogError, match=match) as caught:
                face.open()
        finally:
            face.log = None
            face.close()
        check_told(caught.value, kind)


# --- every method of a log ------

READS: dict[str, Callable[[Any], Any]] = {
    "history": lambda log: log.history("order"),
    "tail": lambda log: log.tail(),
    "open_intents": lambda log: log.open_intents(),
    "contradictions": lambda log: log.contradictions(),
    "unfinished": lambda log: log.unfinished(),
    "verify": lambda log: log.verify(),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "recover": lambda log: log.recover(),
    "resolve": lambda log: log.resolve("doubtful#1/s", NotApplied(), **SAID),
    "resolve with a value": lambda log: log.resolve("doubtful#1/s", Applied("x"), **SAID),
    "supply": lambda log: log.supply("valueless#1/s", 1, **SAID),
    "renew": lambda log: log.renew("order#1/s", **SAID),
    "cancel": lambda log: log.cancel("doubtful", **SAID),
    "append": lambda log: log.append("order", "kind", durability=Durability.IMMEDIATE),
    "append EVENTUAL": lambda log: log.append("order", "kind"),
    "run": lambda log: log.run("order", lambda attempt: pytest.fail("run")),
    "attempt": lambda log: enter(log.attempt("order")),
}


def enter(attempt: Any) -> Any:
    return attempt.__enter__() if hasattr(attempt, "__enter__") else attempt.__aenter__()


def filled(path: Path) -> None:
    """A log with something for every write to decide."""
    with opened(path, "sync") as face:
        face.call("order", "s")
        face.doubt("doubtful")
        face.doubt("valueless")
        face.log.resolve("valueless#1/s", Applied(), **SAID)


def in_fork(act: Callable[[], None]) -> int:
    """Run in a forked child; 7 if it did what it should, minus the signal if it hung or was killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- a codec ------


class Cipher:
    """A toy that lets a test read what is stored. NOT for real use.

    BLAKE2b makes the key stream and the check; each branch has a key of its own.
    """

    def __init__(self, secret: bytes = b"secret", digest_key: bytes = b"") -> None:
        self.secret = secret
        self.digest_key = digest_key

    def seal(self, payload: bytes, branch: str) -> bytes:
        key = blake2b(branch.encode(), key=self.secret).digest()
        check = blake2b(payload, key=key, digest_size=16).digest()
        return check + self._mixed(payload, key, check)

    def open(self, sealed: bytes, branch: str) -> bytes:
        key = blake2b(branch.encode(), key=self.secret).digest()
        payload = self._mixed(sealed[16:], key, sealed[:16])
        if blake2b(payload, key=key, digest_size=16).digest() != sealed[:16]:
            msg = "another key, or altered"
            raise ValueError(msg)
        return payload

    def _mixed(self, text: bytes, key: bytes, check: bytes) -> bytes:
        stream = b""
        while len(stream) < len(text):
            stream += blake2b(check + len(stream).to_bytes(8, "big"), key=key).digest()
        return bytes(a ^ b for a, b in zip(text, stream, strict=False))


# --- programs for child processes, which import them by this module's name ------


def run_noting(folder: str, mode: str, then: str, durability: str = "EVENTUAL") -> None:
    """Add an event to an open attempt's branch, and then do what takes it along; or not."""
    with opened(Path(folder, "log.db"), mode) as face:
        if then == "close the log":
            face.do(lambda log: log.append("order", "planned", {"n": 1}, durability=Durability(durability)))
            return
        with face.attempt("order") as attempt:
            face.do(lambda log: log.append("order", "planned", {"n": 1}, durability=Durability(durability)))
            if then == "call":
                face.wait(attempt.step("s").call(note, "x"))
            if then == "call elsewhere":
                face.call("other", "s")


def run_orders(folder: str, branches: list[str]) -> None:
    """Work on each branch: two guarded notes."""
    with opened(Path(folder, "log.db"), "sync") as face:
        for branch in branches:
            face.log.run(branch, two_notes)


def two_notes(attempt: Any) -> None:
    attempt.step("one").call(note, "1")
    attempt.step("two").call(note, "2")
