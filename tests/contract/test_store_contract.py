"""What every store owes (`ports.Store`): one suite, run against each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from intentlog import LogClosed
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.machine import Reason
from intentlog.core.state import Branch
from intentlog.observe import LoggingObserver
from intentlog.ports import Store
from intentlog.store.clock import SystemClock
from intentlog.store.memory import MemoryDisk, MemoryStore
from intentlog.store.postgres import PostgresStore
from intentlog.store.sqlite import SqliteStore

Reopen = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the same log anew, after closing what was open."""
    disk, opened = MemoryDisk(), list[Store]()
    url = request.getfixturevalue("postgres_log_url") if request.param == "postgres" else ""

    def again() -> Store:
        for store in opened:
            store.close()
        if request.param == "memory":
            opened.append(MemoryStore(disk, SystemClock(), owner=f"memory-{len(opened)}"))
        elif url:
            opened.append(PostgresStore(url, SystemClock(), LoggingObserver()))
        else:
            opened.append(SqliteStore(tmp_path / "log.db", SystemClock(), LoggingObserver()))
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Reopen) -> Store:
    return reopen()


def opened(store: Store, branch: str = "order", attempt: int = 1) -> Append:
    return Append(branch, r.AttemptOpened(attempt=attempt, owner=f"{store.owner}.1"))


def pending(step: str = "charge", attempt: int = 1, branch: str = "order", payload: bytes | None = b"{}") -> Append:
    declaration = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=1)
    record = r.Pending(
        attempt=attempt, step=step, tool=step, declaration=declaration, request_id=f"id-{step}", digest="1:00"
    )
    return Append(branch, record, payload)


def dispatched(step: str = "charge", attempt: int = 1, number: int = 1, branch: str = "order") -> Append:
    return Append(branch, r.Dispatched(attempt=attempt, step=step, dispatch_no=number))


def returned(step: str = "charge", attempt: int = 1, number: int = 1, value: bytes = b'"ok"') -> Append:
    record = r.Committed(attempt=attempt, step=step, dispatch_no=number, outcome=r.OutcomeKind.RETURNED)
    return Append("order", record, value)


def append(store: Store, *entries: Append) -> Appended | Refused:
    """Each in a commit of its own; the last one's reply."""
    return [store.append([entry])[0] for entry in entries][-1]


def test_an_acknowledged_record_is_there_after_reopening(reopen: Reopen) -> None:
    """I5: what append acknowledged, another process reads: record, payload, time, folded rows."""
    store = reopen()
    reply = append(store, opened(store), pending(payload=b'{"cents":1}'), dispatched(), returned())
    assert isinstance(reply, Appended)
    again = reopen()
    kinds = [type(stored.record).__name__ for stored in again.history("order")]
    assert kinds == ["AttemptOpened", "Pending", "Dispatched", "Committed"]
    assert [stored.payload for stored in again.history("order")] == [None, b'{"cents":1}', None, b'"ok"']
    view = again.view("order", "charge")
    assert view.operation == reply.view.operation
    assert view.branch == reply.view.branch


def test_records_are_numbered_and_chained_per_branch(store: Store) -> None:
    """seq rises over the whole log; previous_seq and chain link each branch's own records."""
    for branch in ("a", "b"):
        store.append([opened(store, branch)])
    for branch in ("b", "a"):
        store.append([pending(branch=branch)])
    assert [stored.seq for stored in store.history(None)] == [1, 2, 3, 4]
    assert [(stored.seq, stored.previous_seq) for stored in store.history("a")] == [(1, 0), (4, 1)]
    assert [(stored.seq, stored.previous_seq) for stored in store.history("b")] == [(2, 0), (3, 2)]
    chains = {stored.chain for stored in store.history(None)}
    assert len(chains) == 4
    assert all(len(chain) == 16 for chain in chains)


def test_what_the_machine_refuses_is_not_written(store: Store) -> None:
    """A refused record leaves nothing behind, costs no commit, and tells the state that it met (I2)."""
    append(store, opened(store), pending(), opened(store, attempt=2))
    before = store.counters
    reply = append(store, dispatched(attempt=1))
    assert isinstance(reply, Refused)
    assert reply.refusal.reason is Reason.FENCED
    assert reply.view.branch.attempt == 2
    assert store.counters == before
    assert [type(s.record).__name__ for s in store.history("order")] == ["AttemptOpened", "Pending", "AttemptOpened"]


def test_a_refused_member_does_not_hurt_the_others_of_its_commit(store: Store) -> None:
    """Entries of different effects in one commit: one sync for all, refusals left out (I7)."""
    append(store, opened(store), opened(store, "other"), pending("a"), pending("b"))
    before = store.counters
    replies = store.append([dispatched("a"), dispatched("missing"), dispatched("b")])
    assert [type(reply) for reply in replies] == [Appended, Refused, Appended]
    assert (store.counters.commits - before.commits, store.counters.syncs - before.syncs) == (1, 1)


def test_two_records_of_one_effect_never_share_a_commit(store: Store) -> None:
    """I7: a store refuses such a batch as a whole, whoever asks for it."""
    append(store, opened(store))
    with pytest.raises(AssertionError, match="I7"):
        store.append([pending(), dispatched()])
    assert [type(s.record).__name__ for s in store.history("order")] == ["AttemptOpened"]
    assert isinstance(append(store, pending()), Appended), "the store goes on"


def test_the_second_opener_of_one_attempt_is_refused(store: Store) -> None:
    """Two that saw attempt 0 both try to open 1: the second is refused, so that exactly one owns it."""
    assert isinstance(append(store, opened(store)), Appended)
    reply = append(store, opened(store))
    assert isinstance(reply, Refused)
    assert reply.refusal.reason is Reason.NUMBER


def test_open_operations_and_unfinished_branches_are_found(store: Store) -> None:
    """The restart scan: only what is open, without reading what is done."""
    append(store, opened(store), pending("a"), dispatched("a"), returned("a"), pending("b"), opened(store, "idle"))
    store.append([Append("idle", r.AttemptClosed(attempt=1, end=r.End.COMPLETED))])
    assert [(b, o.step) for b, o in store.operations(None, open_only=True)] == [("order", "b")]
    assert [(b, o.step) for b, o in store.operations("order", open_only=False)] == [("order", "a"), ("order", "b")]
    assert list(store.operations("nobody", open_only=False)) == []
    assert [branch for branch, _ in store.branches(unfinished_only=True)] == ["order"]
    assert [branch for branch, _ in store.branches(unfinished_only=False)] == ["idle", "order"]
    assert [o.step for o in store.branch_view("order").operations] == ["b"]


def test_view_answers_the_current_generation(store: Store) -> None:
    """After a renewal the new generation is the operation; the old one stays as it was."""
    append(store, opened(store), pending(), dispatched(), returned())
    store.append([Append("order", r.Renewed(attempt=1, step="charge", by="ada", why="again", expect_seq=4))])
    view = store.view("order", "charge")
    assert view.operation is not None
    assert (view.operation.generation, view.operation.verdict) == (2, r.Verdict.NEVER_SENT)
    generations = [(o.generation, o.renewed) for _, o in store.operations("order", open_only=False)]
    assert generations == [(1, True), (2, False)]


def test_an_unknown_branch_and_record_are_empty_not_errors(store: Store) -> None:
    """Reads of what is not there."""
    found = store.view("nobody", "nothing")
    assert (found.branch, found.operation) == (Branch(), None)
    assert store.branch_view("nobody").operations == ()
    assert list(store.history("nobody")) == []
    assert store.record(99) is None


def test_boot_clock_is_kept_for_dispatched(store: Store) -> None:
    """DESIGN 4: Dispatched stores boot id and boot clock; the folded dispatch has the same."""
    append(store, opened(store), pending())
    reply = append(store, dispatched())
    (stored,) = [s for s in store.history("order") if isinstance(s.record, r.Dispatched)]
    assert stored.at.boot_id
    assert stored.at.boot_ns > 0
    assert isinstance(reply, Appended)
    assert reply.view.operation is not None
    assert reply.view.operation.dispatches[0].at == stored.at


def test_an_owner_lives_until_its_store_is_closed(reopen: Reopen) -> None:
    """A closed log's owner is dead at once, so that a restart takes over without waiting."""
    first = reopen()
    append(first, opened(first))
    assert first.branch_view("order").owner_lives
    second = reopen()
    assert not second.branch_view("order").owner_lives


def test_salt_is_secret_enough_and_stays(reopen: Reopen) -> None:
    """The log's salt is the same after reopening: request ids are stable (I6)."""
    salt = reopen().salt
    assert len(salt) >= 16
    assert reopen().salt == salt


def test_closed_is_refused_and_close_is_idempotent(store: Store) -> None:
    """After close every use is LogClosed."""
    store.close()
    store.close()
    for use in (
        lambda: store.append([opened(store)]),
        lambda: store.view("a", "b"),
        lambda: store.branch_view("a"),
        lambda: list(store.history("a")),
        lambda: list(store.branches(unfinished_only=False)),
        lambda: list(store.operations(None, open_only=True)),
    ):
        with pytest.raises(LogClosed):
            use()


def test_names_of_any_printable_text(store: Store) -> None:
    """Branches and steps with spaces, quotes, emoji and SQL are kept apart and given back as they were."""
    names = ["a b", "o'x\"; DROP TABLE events", "日本", "🙂", "a#b/c", "A", "a"]
    for name in names:
        store.append([opened(store, name)])
    assert [b for b, _ in store.branches(unfinished_only=False)] == sorted(names)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_is_safe_from_many_threads(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The store serialises its callers: 8 threads, no record lost, every chain sound."""
    clock, observer = SystemClock(), LoggingObserver()
    if kind == "sqlite":
        store: Store = SqliteStore(tmp_path / "log.db", clock, observer)
    else:
        store = PostgresStore(request.getfixturevalue("postgres_log_url"), clock, observer)

    def work(number: int) -> None:
        store.append([opened(store, f"b{number}")])
        for step in range(10):
            store.append([pending(f"s{step}", branch=f"b{number}")])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stored.seq for stored in store.history(None)] == list(range(1, 8 * 11 + 1))
    assert all(len(list(store.history(f"b{n}"))) == 11 for n in range(8))
    store.close()
