"""Renewing, cancelling, and closing a contradiction, through either face, on real files and across processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from bad_input import CALLED, MODES, SAID, Face, note, opened, refused, run_orders, two_notes
from crash_programs import BRANCH, effect_tool, in_child, run_effect

from intentlog import (
    READ,
    Applied,
    AttemptCancelled,
    Call,
    End,
    InDoubt,
    Log,
    NotApplied,
    NotInDoubt,
    NotSent,
    Outcome,
    Rejected,
    tool,
)
from intentlog.core import records as r
from intentlog.crash import Witness, armed


@pytest.fixture(params=MODES)
def face(quick_folder: Path, request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(quick_folder / "log.db", request.param) as made:
        yield made
        made.goes_on()


class Receiver:
    """A tool that ends as it is told, and the keys that it was called with."""

    def __init__(self, **options: Any) -> None:
        self.ending: Exception | str = "value"
        self.keys: list[tuple[str, int]] = []
        declared: Any = tool(name="decided-effect", **options)

        @declared
        def effect(call: Call, amount: int) -> str:
            self.keys.append((call.request_id, call.dispatch_no))
            if isinstance(self.ending, Exception):
                raise self.ending
            return self.ending

        self.tool = effect

    def perform(self, face: Face, amount: int = 1) -> Outcome[str]:
        with face.attempt("order") as attempt:
            return face.wait(attempt.step("s").perform(self.tool, amount))


def kinds(face: Face, branch: str = "order") -> list[str]:
    return [entry.kind for entry in face.do(lambda log: log.history(branch))]


# --- renew ------


@pytest.mark.parametrize("ending", ["returned", "rejected", "not sent", "not applied", "applied", "read"])
def test_a_renewed_step_is_a_new_operation(face: Face, ending: str) -> None:
    """Whatever it came to: called anew with a key of its own, other arguments are fine, then replayed."""
    receiver = Receiver(**({"effect": READ} if ending == "read" else {}))
    errors = {"rejected": Rejected("no"), "not sent": NotSent("down")}
    receiver.ending = errors.get(ending, TimeoutError() if "applied" in ending else "first")
    with suppress(Rejected, NotSent, InDoubt):
        receiver.perform(face)
    if "applied" in ending:
        answer = NotApplied() if ending == "not applied" else Applied("found")
        face.do(lambda log: log.resolve("order#1/s", answer, **SAID))
    face.do(lambda log: log.renew("order#1/s", **SAID))
    receiver.ending = "second"
    outcome = receiver.perform(face, 2)
    assert (outcome.value, outcome.replayed) == ("second", False)
    (old, _), (new, number) = receiver.keys
    assert old != new == outcome.request_id
    assert number == (0 if ending == "read" else 1), "dispatches are counted within the new operation"
    assert receiver.perform(face, 2).replayed
    (renewed,) = [e.record for e in face.do(lambda log: log.history("order")) if isinstance(e.record, r.Renewed)]
    assert (renewed.by, renewed.why, renewed.generation) == ("ann", SAID["why"], 1)


def test_renewed_again_and_again(face: Face) -> None:
    """Each time it happens once more, and never twice; inside an open attempt as well."""
    receiver = Receiver()
    with face.attempt("order") as attempt:
        for generation in range(1, 4):
            outcome = face.wait(attempt.step("s").perform(receiver.tool, generation))
            assert not outcome.replayed
            assert face.wait(attempt.step("s").perform(receiver.tool, generation)).replayed
            face.do(lambda log: log.renew("order#1/s", **SAID))
    assert len({key for key, _ in receiver.keys}) == len(receiver.keys) == 3
    receiver.perform(face, 4)
    assert kinds(face).count("Renewed") == 3


# --- cancel, the owner in another process ------

OWNER = """
    import asyncio, sys
    from intentlog import AsyncLog, AttemptCancelled, Log, tool

    @tool
    def slow(number: int) -> int:
        print("calling", flush=True)
        sys.stdin.readline()
        return number

    def told(error):
        print(error.code, error.effect_ran, error.intent_id, bool(error.remedy), flush=True)

    def sync():
        with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
            print("returned", attempt.step("one").call(slow, 1), flush=True)
            try:
                attempt.step("two").call(slow, 2)
            except AttemptCancelled as error:
                told(error)

    async def on_a_loop():
        async with AsyncLog.open(sys.argv[1]) as log, log.attempt("order") as attempt:
            print("returned", await attempt.step("one").call(slow, 1), flush=True)
            try:
                await attempt.step("two").call(slow, 2)
            except AttemptCancelled as error:
                told(error)

    sync() if sys.argv[2] == "sync" else asyncio.run(on_a_loop())
"""


@pytest.mark.parametrize("owner", MODES)
def test_cancelled_from_another_process(face: Face, owner: str) -> None:
    """Its running call's outcome is still recorded; its next effect is refused; it ends CANCELLED, left normally."""
    command = [sys.executable, "-u", "-c", dedent(OWNER), str(face.path), owner]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "calling\n"
    done = face.do(lambda log: log.cancel("order", **SAID))
    assert done.verdict is End.INDETERMINATE, "its call is in flight"
    (intent,) = done.open_intents
    assert (intent.intent_id, intent.calling, intent.in_doubt) == ("order#1/one", True, False)
    before = face.records()
    again = face.do(lambda log: log.cancel("order", by="bob", why="me too"))
    assert (again.verdict, len(again.open_intents)) == (End.INDETERMINATE, 1)
    assert face.records() == before, "it is cancelled already"
    assert face.do(lambda log: log.recover()) == [], "a living owner is left alone"
    assert face.do(lambda log: log.unfinished()) == []
    said, _ = child.communicate("go on\n", timeout=20)
    assert said.splitlines() == ["returned 1", "attempt_cancelled no order#1/two True"]
    assert child.returncode == 0
    entries = face.do(lambda log: log.history("order"))
    assert [e.kind for e in entries] == [
        "AttemptOpened", "Pending", "Dispatched", "CancelRequested", "Committed", "AttemptClosed",
    ]  # fmt: skip
    assert entries[-1].record.end is End.CANCELLED
    assert face.do(lambda log: log.unfinished()) == []
    assert face.do(lambda log: log.open_intents()) == []


def test_a_later_attempt_is_not_touched(face: Face) -> None:
    """The cancel fences its own attempt alone: the next replays, and sends."""
    attempts = []
    with pytest.raises(AttemptCancelled), face.attempt("order") as attempt:
        face.wait(attempt.step("one").call(note, "1"))
        assert face.do(lambda log: log.cancel("order", **SAID)).verdict is End.CANCELLED
        attempts.append(attempt)
        with refused(face, AttemptCancelled, "attempt 1", intent="order#1/two"):
            face.wait(attempt.step("two").call(note, "2"))
        assert face.wait(attempt.step("one").perform(note, "1")).replayed, "what is done is still told"
        face.wait(attempt.step("two").call(note, "2"))
    assert face.do(lambda log: log.history("order"))[-1].record.end is End.CANCELLED
    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("one").perform(note, "1")).replayed
        assert not face.wait(attempt.step("two").perform(note, "2")).replayed


def test_cancelled_while_its_thread_still_runs(quick_folder: Path) -> None:
    """An AsyncLog whose caller has gone: INDETERMINATE while the thread runs, and its late outcome is recorded."""
    begun, go_on = threading.Event(), threading.Event()

    @tool(name="decided-thread")
    def slow(number: int) -> int:
        begun.set()
        assert go_on.wait(10)
        return number

    with opened(quick_folder / "log.db", "asyncio") as face:

        async def main() -> Any:
            import asyncio

            async def work() -> None:
                async with face.log.attempt("order") as attempt:
                    await attempt.step("s").call(slow, 1)

            task = asyncio.ensure_future(work())
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            done = await face.log.cancel("order", **SAID)
            assert await face.log.unfinished() == []
            go_on.set()
            return done

        done = face.wait(main())
        assert (done.verdict, done.open_intents[0].calling) == (End.INDETERMINATE, True)
        face.log = None if face.wait(face.log.close()) else face.log
    with opened(quick_folder / "log.db", "sync") as again:
        assert again.do(lambda log: log.open_intents()) == []
        assert again.do(lambda log: log.unfinished()) == []
        assert again.call("order", "s", slow, 1) == 1


# --- cancel, the owner dead ------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("killed", ["before_pending", "after_pending", "before_closed"])
def test_a_dead_owners_attempt_is_closed_at_once(quick_folder: Path, mode: str, killed: str) -> None:
    """Nothing is in doubt: CANCELLED, for good; nobody is told to run it again."""
    in_child(run_effect, str(quick_folder), "UNSAFE", "sync", crash_at=killed)
    with opened(quick_folder / "log.db", mode) as face:
        assert [one.branch for one in face.do(lambda log: log.unfinished())] == [BRANCH]
        done = face.do(lambda log: log.cancel(BRANCH, **SAID))
        assert (done.verdict, done.open_intents) == (End.CANCELLED, ())
        assert face.do(lambda log: log.history(BRANCH))[-1].record.end is End.CANCELLED
        assert face.do(lambda log: log.unfinished()) == []
        before = face.records()
        assert face.do(lambda log: log.cancel(BRANCH, by="bob", why="me too")) == done, "it is cancelled already"
        assert face.do(lambda log: log.recover()) == []
        assert face.records() == before


@pytest.mark.parametrize("mode", MODES)
def test_a_dead_owners_doubt_outlives_the_cancel(quick_folder: Path, mode: str) -> None:
    """Killed in window B: INDETERMINATE with the doubt; settled later, it is still not to be run again."""
    in_child(run_effect, str(quick_folder), "UNSAFE", "sync", crash_at="before_committed")
    with opened(quick_folder / "log.db", mode) as face:
        done = face.do(lambda log: log.cancel(BRANCH, **SAID))
        assert (done.verdict, [one.in_doubt for one in done.open_intents]) == (End.INDETERMINATE, [True])
        kinds_now = kinds(face, BRANCH)[3:]
        assert kinds_now == ["CancelRequested", "AttemptFenced", "Classified", "AttemptClosed"]
        assert face.do(lambda log: log.history(BRANCH))[-1].record.end is End.INDETERMINATE
        face.do(lambda log: log.resolve(done.open_intents[0].intent_id, Applied("receipt"), **SAID))
        assert face.do(lambda log: log.unfinished()) == [], "it was cancelled"
        handle = effect_tool("UNSAFE", Witness(quick_folder / "witness"), "returned", is_async=False)
        with face.attempt(BRANCH) as attempt:
            assert face.wait(attempt.perform(handle, 1999)).value == "receipt"


# --- a supervisor ------


def test_a_supervisors_loop(quick_folder: Path) -> None:
    """Run what `unfinished` lists until it lists nothing: whatever was killed is done, what was cancelled is not.

    The loop below is all that a supervisor needs.
    """
    branches = [f"order-{number}" for number in range(5)]
    for number, point in enumerate(("before_pending", "after_pending", "before_committed", "after_committed:2")):
        in_child(run_orders, str(quick_folder), branches[number : number + 1], crash_at=point)
    in_child(run_orders, str(quick_folder), branches[4:], crash_at="before_pending:2")
    with Log.open(quick_folder / "log.db") as log:
        log.cancel(branches[4], **SAID)
        called = len(CALLED)

        log.recover()
        while todo := log.unfinished():
            for one in todo:
                try:
                    log.run(one.branch, two_notes)
                except InDoubt as doubt:
                    log.resolve(str(doubt.intent_id), NotApplied(), **SAID)  # a person looked

        ends = [[e.record.end for e in log.history(b) if e.kind == "AttemptClosed"][-1] for b in branches]
        assert ends == [End.COMPLETED] * 4 + [End.CANCELLED]
        assert len(CALLED) - called == 2 + 2 + 2 + 0, "the fourth had both its effects recorded"
        assert log.open_intents() == []


# --- a contradiction ------

LATE = """
    import sys
    from intentlog import Log, tool

    @tool(name="decided-late")
    def late(number: int) -> str:
        return "late"

    with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
        attempt.step("s").call(late, 1)
"""


@tool(name="decided-late")
def late(number: int) -> str:
    CALLED.append("late")
    return "anew"


@pytest.fixture(scope="module")
def contradicting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose owner was stopped before its outcome, taken for dead and decided against, and then went on."""
    folder = tmp_path_factory.mktemp("contradicting") / "log"
    folder.mkdir()
    command = [sys.executable, "-c", dedent(LATE), str(folder / "log.db")]
    owner = subprocess.Popen(command, env=armed("before_committed:1:stop"), stderr=subprocess.DEVNULL)
    os.waitpid(owner.pid, os.WUNTRACED)
    next((folder / "log.db.d").glob("owner-*")).unlink()
    with Log.open(folder / "log.db") as log:
        log.resolve("order#1/s", NotApplied(), **SAID)
    owner.send_signal(signal.SIGCONT)
    owner.wait(20)
    return folder


@pytest.fixture
def contradicted(contradicting: Path, quick_folder: Path) -> Path:
    shutil.copytree(contradicting, quick_folder / "log")
    return quick_folder / "log" / "log.db"


@pytest.mark.parametrize("mode", MODES)
def test_a_contradiction_is_confirmed(contradicted: Path, mode: str) -> None:
    """A person says that it is done: it contradicts no more, and the late value is replayed."""
    with opened(contradicted, mode) as face:
        assert face.do(lambda log: log.contradictions()) == ["order#1/s"]
        with refused(face, NotInDoubt, "renew it", ran="yes", intent="order#1/s"):
            face.do(lambda log: log.resolve("order#1/s", NotApplied(), **SAID))
        with refused(face, NotInDoubt, "none can be given", ran="yes", intent="order#1/s"):
            face.do(lambda log: log.resolve("order#1/s", Applied("other"), **SAID))
        face.do(lambda log: log.resolve("order#1/s", Applied(), **SAID))
        assert face.do(lambda log: log.contradictions()) == []
        with refused(face, NotInDoubt, "its verdict is DONE", ran="yes", intent="order#1/s"):
            face.do(lambda log: log.resolve("order#1/s", Applied(), **SAID))
        assert face.call("order", "s", late, 1) == "late"


@pytest.mark.parametrize("mode", MODES)
def test_a_contradiction_is_renewed(contradicted: Path, mode: str) -> None:
    """A person says that it shall happen once more: it contradicts no more, and the next call is made."""
    with opened(contradicted, mode) as face:
        face.do(lambda log: log.renew("order#1/s", **SAID))
        assert face.do(lambda log: log.contradictions()) == []
        called = len(CALLED)
        assert face.call("order", "s", late, 2) == "anew"
        assert face.call("order", "s", late, 2) == "anew"
        assert len(CALLED) == called + 1
        face.goes_on()
