"""A program's own events, and the tail of a log: what EVENTUAL costs and promises (I5), with real kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_input import EVERYTHING, MODES, Face, note, opened, run_noting
from crash_programs import in_child

from intentlog import READ, Durability, Entry, Log, tool
from intentlog.run.duty import WAITING_MAX


@pytest.fixture(params=MODES)
def face(quick_folder: Path, request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(quick_folder / "log.db", request.param) as made:
        yield made
        made.goes_on()


def kinds(log: Log, branch: str = "order") -> list[str]:
    return [entry.kind for entry in log.history(branch)]


def on_disk(face: Face, branch: str = "order") -> list[str]:
    """What a second reader sees: what waits in this process is not there yet."""
    with Log.open(face.path, read_only=True) as reader:
        return kinds(reader, branch)


def add(face: Face, kind: str = "planned", payload: Any = None, branch: str = "order", **more: Any) -> None:
    face.do(lambda log: log.append(branch, kind, payload, **more))


# --- what it costs ------


def test_an_eventual_event_costs_no_commit(face: Face) -> None:
    """It travels in the commit of its branch's next Pending: three commits for the effect, as ever."""
    with face.attempt("order") as attempt:
        before = face.log.counters
        for number in range(3):
            add(face, payload=number)
        assert face.log.counters == before
        assert on_disk(face) == ["AttemptOpened"]
        face.wait(attempt.step("s").call(note, "x"))
        assert face.log.counters.commits - before.commits == 3
        assert on_disk(face) == ["AttemptOpened", *["ApplicationEvent"] * 3, "Pending", "Dispatched", "Committed"]
        add(face, payload="at the end")
    assert on_disk(face)[-2:] == ["ApplicationEvent", "AttemptClosed"]
    assert face.log.counters.commits - before.commits == 4, "and none for the close either"


def test_an_immediate_event_costs_one_and_takes_the_others_along(face: Face) -> None:
    """Those of its branch, in their order; another branch's wait on."""
    before = face.log.counters.commits
    add(face, "first")
    add(face, "elsewhere", branch="other")
    add(face, "second", durability=Durability.IMMEDIATE)
    assert face.log.counters.commits - before == 1
    assert on_disk(face) == ["ApplicationEvent"] * 2
    assert on_disk(face, "other") == []
    names = [entry.record.name for entry in face.do(lambda log: log.history("order"))]
    assert names == ["first", "second"]


def test_very_many_are_written_together(face: Face) -> None:
    """So many of one branch that memory would grow: one commit for them all."""
    before = face.log.counters.commits
    for number in range(WAITING_MAX - 1):
        add(face, payload=number)
    assert face.log.counters.commits == before
    add(face, payload="the last")
    assert face.log.counters.commits - before == 1
    assert on_disk(face) == ["ApplicationEvent"] * WAITING_MAX
    add(face, payload="waits again")
    assert face.log.counters.commits - before == 1


def test_closing_the_log_writes_what_waits(face: Face) -> None:
    """Of every branch, also of those that no attempt was ever made at."""
    for branch in ("a", "b"):
        add(face, branch=branch)
    with opened(face.path.with_name("second.db"), face.mode) as other:
        for branch in ("a", "b"):
            add(other, branch=branch)
        path = other.path
    with Log.open(path) as log:
        assert [kinds(log, branch) for branch in ("a", "b")] == [["ApplicationEvent"]] * 2
        assert log.unfinished() == []
        assert log.recover() == []


def test_looking_at_a_branch_writes_what_waits_for_it(face: Face) -> None:
    """A program sees its own events; so do `tail` and `verify`."""
    add(face, "seen", {"n": 1})
    (entry,) = face.do(lambda log: log.history("order"))
    assert (entry.kind, entry.record.name, entry.payload, entry.branch) == (
        "ApplicationEvent",
        "seen",
        {"n": 1},
        "order",
    )
    add(face, "seen too")
    assert len(face.do(lambda log: log.tail())) == 2
    assert on_disk(face) == ["ApplicationEvent"] * 2


def test_an_event_belongs_to_whatever_attempt_there_is(face: Face) -> None:
    """Before the first attempt, in one, after it; and it decides nothing."""
    add(face, durability=Durability.IMMEDIATE)
    with face.attempt("order") as attempt:
        assert attempt.number == 1
        add(face)
        face.wait(attempt.step("s").call(note, "x"))
    add(face, durability=Durability.IMMEDIATE)
    events = [e.record.attempt for e in face.do(lambda log: log.history("order")) if e.kind == "ApplicationEvent"]
    assert events == [0, 1, 1]
    assert face.do(lambda log: log.open_intents()) == []
    assert face.do(lambda log: log.verify()).ok


def test_an_event_beside_a_read(face: Face) -> None:
    """Both wait, and are written in the order in which they came."""

    @tool(name="events-look", effect=READ)
    def look() -> str:
        return "seen"

    with face.attempt("order") as attempt:
        add(face, "before")
        face.wait(attempt.step("look").call(look))
        add(face, "after")
        assert on_disk(face) == ["AttemptOpened"]
    assert on_disk(face) == ["AttemptOpened", "ApplicationEvent", "Committed", "ApplicationEvent", "AttemptClosed"]


# --- what it promises ------

# what follows the event, where the process is killed, durability -> whether the event is there
KILLS = [
    ("call", "before_pending", "EVENTUAL", False),  # the control: nothing has taken it along yet
    ("call", "after_pending", "EVENTUAL", True),
    ("call", "before_dispatched", "EVENTUAL", True),
    ("call elsewhere", "after_committed", "EVENTUAL", False),  # another branch's records take nothing along
    ("nothing", "before_closed", "EVENTUAL", False),
    ("nothing", "after_closed", "EVENTUAL", True),
    ("close the log", "before_event", "EVENTUAL", False),
    ("close the log", "after_event", "EVENTUAL", True),
    ("call", "after_event", "IMMEDIATE", True),
    ("call", "before_pending", "IMMEDIATE", True),
    ("call", "before_event", "IMMEDIATE", False),  # not acknowledged
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("then", "killed", "durability", "there"), KILLS)
def test_an_event_after_a_kill(
    quick_folder: Path, mode: str, then: str, killed: str, durability: str, there: bool
) -> None:
    """EVENTUAL: durable no later than its branch's next Pending or close. IMMEDIATE: when `append` has returned."""
    in_child(run_noting, str(quick_folder), mode, then, durability, crash_at=killed)
    with Log.open(quick_folder / "log.db") as log:
        events = [entry.payload for entry in log.history("order") if entry.kind == "ApplicationEvent"]
        assert events == ([{"n": 1}] if there else [])
        log.recover()
        assert log.verify().ok


# --- tail ------


def test_the_tail_of_a_log(face: Face) -> None:
    """The newest records of all branches, oldest first; or all after a seq."""
    for number in range(4):
        face.call(f"branch-{number % 2}", f"s{number}")
    whole: list[Entry] = face.do(lambda log: log.tail(EVERYTHING))
    assert [entry.seq for entry in whole] == list(range(1, 21))
    assert {entry.branch for entry in whole} == {"branch-0", "branch-1"}
    assert face.do(lambda log: log.tail()) == whole[-10:]
    for count in (0, 1, 7, 20, 21):
        assert face.do(lambda log, n=count: log.tail(n)) == whole[len(whole) - min(count, 20) :]
    for after in (0, 1, 19, 20, 21):
        assert face.do(lambda log, seq=after: log.tail(after=seq)) == whole[after:]
    assert face.do(lambda log: log.tail(1, after=18)) == whole[18:], "`after` stands in place of a count"
    assert [e for e in whole if e.branch == "branch-0"] == face.do(lambda log: log.history("branch-0"))


def test_the_tail_of_an_empty_log(face: Face) -> None:
    """Nothing, however it is asked for."""
    assert face.do(lambda log: log.tail()) == face.do(lambda log: log.tail(after=5)) == []


def test_a_tail_that_follows_sees_every_record(face: Face) -> None:
    """A reader that asks for what stands after the last that it saw misses none and sees none twice."""
    seen: list[int] = []
    with Log.open(face.path, read_only=True) as reader:
        for number in range(5):
            face.call("order", f"s{number}")
            seen += [entry.seq for entry in reader.tail(after=seen[-1] if seen else 0)]
        assert seen == [entry.seq for entry in reader.tail(EVERYTHING)] == list(range(1, 26))
