"""EVENTUAL records in group commit travel with their branch's next record (I5); and a log is closed under its users."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from group_bench import (
    AnyGated,
    Callers,
    GatedMemory,
    GatedSqlite,
    dispatched,
    duty_of,
    error_of,
    log_of,
    looked,
    names_of,
    noted,
    opened,
    pending,
    result_of,
    until,
)

from intentlog import Durability, Log, LogClosed, LogUnavailable
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Deferred, Load, Refused
from intentlog.run.duty import Duty
from intentlog.store.memory import MemoryDisk


def begun(store: AnyGated, *branches: str) -> Duty:
    for branch in branches:
        store.unseen(opened(branch))
    return duty_of(store)


def test_they_travel_with_their_own_branch_in_order(store: AnyGated) -> None:
    """Three branches' reads and events wait; each goes in the commit of its own branch's next record, before it."""
    duty = begun(store, "first", "a", "b", "c")
    for branch in "abc":
        for entry in (looked(branch, "look-1"), noted(branch, "noted"), looked(branch, "look-2")):
            assert isinstance(duty.append(entry), Deferred)
    assert store.batches == [], "they cost no commit"
    with Callers(store, duty) as callers:
        led = [callers.lead(duty.append, pending("first"))]
        led += [callers.follow(duty.append, pending(branch)) for branch in "ab"]
        callers.let_go()
        assert all(isinstance(result_of(one), Appended) for one in led)
    assert [len(batch) for batch in store.batches] == [1, 8]
    for branch in "ab":
        assert names_of(store, branch) == ["AttemptOpened", "look-1", "noted", "look-2", "Pending"]
    assert names_of(store, "c") == ["AttemptOpened"], "nothing of it was asked for"
    duty.flush()
    assert names_of(store, "c") == ["AttemptOpened", "look-1", "noted", "look-2"]


def test_they_survive_a_commit_that_was_not_made(store: AnyGated) -> None:
    """The commit that was to carry them failed, nothing was written: they wait on, and what came later stays later."""
    duty = begun(store, "first", "a", "b")
    duty.append(looked("a", "early"))

    def no_room(entries: Sequence[Append]) -> None:
        if len(entries) > 1:
            store.meddle = None
            duty.append(looked("a", "late"))  # comes while the others are on their way
            msg = "no room"
            raise LogUnavailable(msg)

    with Callers(store, duty) as callers:
        callers.lead(duty.append, noted("first", "first", Durability.IMMEDIATE))
        led = [callers.follow(duty.append, pending(branch)) for branch in "ab"]
        store.meddle = no_room
        callers.let_go()
        assert [type(error_of(one)) for one in led] == [LogUnavailable] * 2
        assert error_of(led[0]) is not error_of(led[1]), "each has its own"
    assert names_of(store, "a") == ["AttemptOpened"]
    assert isinstance(duty.append(pending("a")), Appended)
    assert names_of(store, "a") == ["AttemptOpened", "early", "late", "Pending"]
    assert not duty._sending


def test_a_load_sees_what_is_on_its_way(store: AnyGated) -> None:
    """A read whose record is in a commit under way: who looks at its step waits for that, and finds it."""
    duty = begun(store, "a")
    duty.append(looked("a", "look"))
    with Callers(store, duty) as callers:
        carrying = callers.lead(duty.append, pending("a"))
        looking = callers.follow(duty.do, Load("a", "look"))
        other = callers.follow(duty.do, Load("a", "another"))
        assert result_of(other).operation is None, "who looks at another step waits for nobody"
        assert not looking.done()
        callers.let_go()
        assert result_of(looking).operation.decided is not None
        assert isinstance(result_of(carrying), Appended)


def test_a_flush_waits_for_what_is_on_its_way(store: AnyGated) -> None:
    """Flush is over when all that was acknowledged is written, whoever carries it; it writes no empty commit."""
    duty = begun(store, "a", "b")
    duty.append(noted("a", "noted"))
    with Callers(store, duty) as callers:
        callers.lead(duty.append, dispatched_after_pending(store, duty, "b"))
        carrying = callers.follow(duty.append, pending("a"))
        flushing = callers.follow(duty.flush)
        assert not flushing.done()
        callers.let_go()
        result_of(flushing)
        assert "noted" in names_of(store, "a")
        result_of(carrying)
    assert all(store.batches)


def dispatched_after_pending(store: AnyGated, duty: Duty, branch: str) -> Append:
    store.unseen(pending(branch))
    return dispatched(branch)


def test_a_read_and_a_decision_about_it_do_not_share_a_commit() -> None:
    """A renewal of a step meets the EVENTUAL record of the same step, and goes into the commit after it."""
    store = GatedMemory()
    duty = begun(store, "a")
    duty.append(looked("a", "look"))
    duty.flush()
    place = store.view("a", "look").operation
    assert place is not None
    duty.append(Append("a", r.Renewed(attempt=1, step="look", by="ada", why="again", expect_seq=place.last_seq)))
    again = looked("a", "look")
    duty.append(
        Append(
            "a",
            r.Committed(**{f: getattr(again.record, f) for f in again.record.__struct_fields__} | {"generation": 2}),
            again.payload,
            Durability.EVENTUAL,
        )
    )
    late = Append("a", r.Renewed(attempt=1, step="look", by="bob", why="too late", expect_seq=place.last_seq))
    assert isinstance(duty.append(late), Refused)


# --- closing ---------------------------------------------------------------------------------------------------------


def check_nothing_acknowledged_is_lost(open_store: Callable[[], AnyGated]) -> None:
    """Six threads append until they are told that it is closed: what was acknowledged is there, the rest is not."""
    log = log_of(open_store())
    acknowledged: list[set[str]] = [set() for _ in range(6)]
    refused: list[str] = []

    def work(number: int) -> None:
        for count in range(100_000):
            durability = Durability.IMMEDIATE if count % 3 == 2 else Durability.EVENTUAL
            try:
                log.append(f"b{number}", f"{number}-{count}", durability=durability)
            except LogClosed:
                refused.append(f"{number}-{count}")
                return
            acknowledged[number].add(f"{number}-{count}")

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: all(len(one) > 10 for one in acknowledged))
    log.append("quiet", "waits")  # no later record of its branch carries it: it is closing that must write it
    log.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads), "nobody waits for ever"
    branches = ["quiet", *(f"b{number}" for number in range(6))]
    with Log(log_of(open_store())._engine) as again:
        found = {e.record.name for branch in branches for e in again.history(branch) if e.kind == "ApplicationEvent"}
        assert again.verify().ok
    assert found == {"waits"}.union(*acknowledged), "what was acknowledged, and nothing else"
    assert len(refused) == 6


def test_closing_while_others_append(quick_folder: Path) -> None:
    """I5: a log is closed under six threads that append: each record was acknowledged and is there, or was refused."""
    check_nothing_acknowledged_is_lost(lambda: GatedSqlite(quick_folder / "log.db"))


def test_closing_while_others_append_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a log that is closed without writing what waits loses what it acknowledged, and the check sees it."""
    monkeypatch.setattr(Duty, "flush", lambda self, branch=None: None)
    disk = MemoryDisk()
    with pytest.raises(AssertionError, match="what was acknowledged"):
        check_nothing_acknowledged_is_lost(lambda: GatedMemory(disk))
