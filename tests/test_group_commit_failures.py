"""A batch that fails, and a leader that is interrupted (DESIGN 9, I1, I8).

After a commit whose fate is unknown each of its waiters is told so, nothing more is acknowledged and nothing is called.
A signal's exception takes its own caller away, and leaves nobody waiting for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from counting_vfs import CountingVFS
from group_bench import (
    PATIENCE_S,
    AnyGated,
    Callers,
    GatedMemory,
    GatedSqlite,
    dispatched,
    duty_of,
    error_of,
    log_of,
    names_of,
    noted,
    opened,
    pending,
    result_of,
    until,
)

from intentlog import Durability, Log, LogPoisoned, OutcomeNotRecorded, Verdict, tool
from intentlog.core.actions import Append, Appended, Interrupted, Refused
from intentlog.run import group
from intentlog.store.memory import MemoryDisk, _Rows
from intentlog.store.staging import stage

N = 8
_names = count()
Opened = tuple[AnyGated, Callable[[], None], Callable[[], AnyGated]]  # store, what breaks its disk, what opens it anew


def on_memory(io: int) -> Callable[[Path], Opened]:
    """A disk that fails at the write of a commit (0), or at its sync (1)."""

    def make(folder: Path) -> Opened:
        disk = MemoryDisk()

        def again() -> AnyGated:
            disk.io_until_failure = None
            return GatedMemory(disk, "again")

        return GatedMemory(disk), lambda: setattr(disk, "io_until_failure", io), again

    return make


def on_sqlite(what: str, code: int) -> Callable[[Path], Opened]:
    """A log on a VFS whose next call of this kind on the WAL fails, and all later ones."""

    def make(folder: Path) -> Opened:
        vfs = CountingVFS(f"group-{next(_names)}")

        def fail() -> None:
            vfs.fail_at[what, "-wal"] = (vfs.calls[what, "-wal"] + 1, code)

        def again() -> AnyGated:
            vfs.fail_at.clear()
            return GatedSqlite(folder / "log.db")

        return GatedSqlite(folder / "log.db", vfs=vfs.name), fail, again

    return make


DISKS = {
    "memory-write": on_memory(0),
    "memory-sync": on_memory(1),
    "sqlite-write": on_sqlite("xWrite", apsw.SQLITE_IOERR_WRITE),
    "sqlite-sync": on_sqlite("xSync", apsw.SQLITE_IOERR_FSYNC),
}


class Ends:
    """What became of eight effects, one batch of which met a broken disk: the first that holds one of these records.

    Attributes:
        written: whose records were acknowledged, by kind.
        calls: which tools were entered.
        failed: the records of the batch that failed.
        errors: what each caller was told.
    """

    def __init__(self, store: AnyGated, break_disk: Callable[[], None], kind: str) -> None:
        self.calls: list[int] = []
        self.failed: list[str] = []
        self.written: dict[str, set[int]] = {"Pending": set(), "Dispatched": set(), "Committed": set()}
        calls = self.calls

        @tool
        def effect(number: int) -> int:
            calls.append(number)
            return number

        self.log = log = log_of(store)
        attempts = [log.attempt(f"b{n}").__enter__() for n in range(N)]
        with Callers(store, log._engine.duty) as callers:

            def breaks(entries: Sequence[Append]) -> None:
                if kind not in [type(entry.record).__name__ for entry in entries]:
                    return
                until(lambda: callers.waiting + len(entries) >= N - len(self.written[kind]))  # the others are as far
                if len(entries) > 1:
                    store.meddle = None
                    self.failed = store.kinds()[-1]
                    break_disk()

            def written(replies: list[Appended | Refused]) -> None:
                for entry in store.batches[-1]:
                    self.written.setdefault(type(entry.record).__name__, set()).add(int(entry.branch[1:]))

            callers.lead(log._engine.duty.append, noted("b0", "first", Durability.IMMEDIATE))
            store.meddle, store.afterwards = breaks, written
            led = [callers.follow(attempt.call, effect, n) for n, attempt in enumerate(attempts)]
            callers.let_go()
            self.errors = [error_of(one) for one in led]
        assert kind in self.failed
        uses: list[Callable[[], Any]] = [lambda a=a: a.step("again").call(effect, 99) for a in attempts]
        for use in [*uses, log.recover, log.verify, lambda: log.attempt("new").__enter__()]:
            with pytest.raises(LogPoisoned):  # nothing more is acknowledged
                use()


def check_poisoned(ends: Ends) -> None:
    """Each is told what is known of its own effect, by an error of its own, and nothing was called without leave."""
    permitted, done = ends.written["Dispatched"], ends.written["Committed"]
    assert sorted(ends.calls) == sorted(permitted), "no call without an acknowledged Dispatched (I1, I8)"
    assert len(done) < N - 1, "more than one waited for the batch that failed"
    for number, error in enumerate(ends.errors):
        if number in done:
            assert error is None
            continue
        if number in permitted:
            assert isinstance(error, OutcomeNotRecorded)
            assert (error.outcome, error.effect_ran) == (number, "yes")
            assert isinstance(error.__cause__, LogPoisoned)
        else:
            assert isinstance(error, LogPoisoned), error
            assert error.effect_ran == "no"
        assert error.intent_id == f"b{number}#1/effect"
    told = [error.__cause__ if isinstance(error, OutcomeNotRecorded) else error for error in ends.errors if error]
    assert len({id(error) for error in told}) == len(told)


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("kind", ["Pending", "Dispatched", "Committed"])
def test_a_failed_batch_poisons(quick_folder: Path, kind: str, disk: str) -> None:
    """I8: each waiter of the batch gets LogPoisoned, of its own; no call follows; a reopened log tells no lie of it."""
    store, break_disk, again = DISKS[disk](quick_folder)
    ends = Ends(store, break_disk, kind)
    check_poisoned(ends)
    store.close()
    with Log(log_of(again())._engine) as log:
        log.recover()
        assert log.verify().ok
        for number in range(N):
            operation = log._engine.store.view(f"b{number}", "effect").operation
            verdict = operation.verdict if operation else Verdict.NEVER_SENT
            if number in ends.calls:
                assert verdict is not Verdict.NEVER_SENT
            else:
                assert verdict is not Verdict.DONE


class Acknowledging(GatedMemory):
    """The control: answers a commit that failed as if it had been written."""

    def append(self, entries: Sequence[Append]) -> list[Appended | Refused]:
        try:
            return super().append(entries)
        except LogPoisoned:
            return stage(_Rows(self._disk.live), entries, self._clock.now()).replies


def test_a_failed_batch_poisons_control() -> None:
    """Control: over a store that acknowledges what it does not know, the check finds the calls that were made."""
    disk = MemoryDisk()
    with pytest.raises(AssertionError, match="no call without"):
        check_poisoned(Ends(Acknowledging(disk), lambda: setattr(disk, "io_until_failure", 0), "Dispatched"))


def test_a_failed_batch_poisons_control_of_the_errors(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: one error for all of them is found, by what each caller's script writes into it."""
    monkeypatch.setattr(group, "_own", lambda error: error)
    store, break_disk, _ = on_memory(0)(quick_folder)
    with pytest.raises(AssertionError):
        check_poisoned(Ends(store, break_disk, "Pending"))


# --- interrupts ------------------------------------------------------------------------------------------------------


class Work:
    """Tools to be called by several threads, each in an attempt of its own."""

    def __init__(self, store: AnyGated, *branches: str) -> None:
        self.calls: list[str] = []
        calls = self.calls

        @tool
        def effect(name: str) -> str:
            calls.append(name)
            return name

        self.effect = effect
        self.log = log_of(store)
        self.attempts = {branch: self.log.attempt(branch).__enter__() for branch in branches}

    def call(self, branch: str) -> Any:
        return self.attempts[branch].call(self.effect, branch)


def test_ctrl_c_while_the_main_thread_leads(store: AnyGated) -> None:
    """A real SIGINT inside the commit: its own effect is withdrawn, the seven who wait go on as ever."""
    others = [f"b{n}" for n in range(7)]
    work = Work(store, "main", *others)
    with Callers(store, work.log._engine.duty) as callers:
        led: list[Any] = []

        def strikes(entries: Sequence[Append]) -> None:
            store.meddle = None
            assert threading.current_thread() is threading.main_thread()
            led.extend(callers.follow(work.call, branch) for branch in others)
            signal.raise_signal(signal.SIGINT)

        store.meddle = strikes
        with pytest.raises(KeyboardInterrupt):
            work.call("main")
        assert [result_of(one) for one in led] == others
    assert sorted(work.calls) == others
    assert names_of(store, "main") == ["AttemptOpened", "Pending", "Settled"]
    assert work.log.verify().ok


def test_ctrl_c_while_the_main_thread_waits_for_a_leader(store: AnyGated) -> None:
    """A real SIGINT while its record is in another's hands: its fate is learnt first, then nothing of it is sent."""
    work = Work(store, "main", "first", "last")
    with Callers(store, work.log._engine.duty) as callers:
        led = [callers.lead(work.call, "first")]

        def strikes() -> None:
            until(lambda: callers.waiting == 1)
            os.kill(os.getpid(), signal.SIGINT)
            led.append(callers.follow(work.call, "last"))
            callers.let_go()

        striking = threading.Thread(target=strikes)
        striking.start()
        with pytest.raises(KeyboardInterrupt):
            work.call("main")
        striking.join(PATIENCE_S)
        assert [result_of(one) for one in led] == ["first", "last"]
    assert sorted(work.calls) == ["first", "last"]
    assert store.kinds()[4][:2] == ["Pending", "Pending"], "it shared its commit all the same"
    assert names_of(store, "main") == ["AttemptOpened", "Pending", "Settled"]
    assert work.log.verify().ok


@pytest.mark.parametrize("landed", [True, False])
def test_an_interrupted_leader_leaves_nobody_waiting(store: AnyGated, landed: bool) -> None:
    """An exception of a signal inside the commit of four: the leader learns its own record's fate, three go on."""
    branches = ["first", "lead", "b1", "b2", "b3"]
    duty = duty_of(store)
    for branch in branches:
        store.unseen(opened(branch), pending(branch))
    with Callers(store, duty) as callers:
        callers.lead(duty.append, dispatched("first"))
        led = [callers.follow(duty.append, dispatched(branch)) for branch in branches[1:]]

        def before(entries: Sequence[Append]) -> None:
            if entries[0].branch == "lead":
                store.meddle = None
                raise Interrupted(None, KeyboardInterrupt())

        def after(replies: list[Appended | Refused]) -> None:
            if len(replies) > 1:
                store.afterwards = None
                raise Interrupted(replies, KeyboardInterrupt())

        if landed:
            store.afterwards = after
        else:
            store.meddle = before
        callers.let_go()
        stopped = error_of(led[0])
        replies = [result_of(one) for one in led[1:]]
    assert isinstance(stopped, Interrupted)
    assert isinstance(stopped.cause, KeyboardInterrupt)
    if landed:
        assert isinstance(stopped.reply, Appended)
        assert store.record(stopped.reply.seq).branch == "lead", "the reply to its own record, not to another's"
    else:
        assert stopped.reply is None
    assert ("Dispatched" in names_of(store, "lead")) == landed
    assert [store.record(reply.seq).branch for reply in replies] == branches[2:]
    assert isinstance(duty.append(noted("b1", "later", Durability.IMMEDIATE)), Appended), "and others lead on"


def test_an_interrupt_among_those_that_are_replayed_singly(store: AnyGated) -> None:
    """The batch was refused and each is tried alone: one interrupt between them loses no reply, and nobody waits."""
    branches = ["first", "lead", "b1", "b2", "b3"]
    duty = duty_of(store)
    for branch in branches:
        store.unseen(opened(branch), pending(branch))

    def meddle(entries: Sequence[Append]) -> None:
        if len(entries) > 1 and entries[0].branch == "lead":
            msg = "one of them cannot be written"
            raise ValueError(msg)
        if entries[0].branch == "b2":
            store.meddle = None
            raise Interrupted(None, KeyboardInterrupt())

    with Callers(store, duty) as callers:
        callers.lead(duty.append, dispatched("first"))
        led = [callers.follow(duty.append, dispatched(branch)) for branch in branches[1:]]
        store.meddle = meddle
        callers.let_go()
        stopped = error_of(led[0])
        replies = [result_of(one) for one in led[1:]]
    assert isinstance(stopped, Interrupted)
    assert isinstance(stopped.reply, Appended), "its own record was written before the interrupt came"
    assert store.record(stopped.reply.seq).branch == "lead"
    assert [store.record(reply.seq).branch for reply in replies] == branches[2:]
