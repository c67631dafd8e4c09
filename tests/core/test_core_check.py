"""`check_branch`: silent on a sound log; every kind of edit is found; each invariant by its own function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from core_histories import BRANCH, World, broken, build, forced
from core_player import Player
from msgspec.structs import replace

from intentlog.core import check, codec
from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.check import INVARIANTS, Held, OperationRow, check_branch
from intentlog.core.records import Durability, Stored
from intentlog.core.state import Fate

SOUND = (
    "open, note, read 1",
    "open, pending 1, dispatched 1.1, returned 1.1, renewed 1, pending 1 g2, dispatched 1.1 g2, returned 1.1 g2, close",
    "open, pending 1, withdrawn 1, pending 1, dispatched 1.1, not_sent 1.1, pending 1, dispatched 1.2, suspended 1.2",
    "open, pending 1, dispatched 1.1, open, classified 1, pending 2, dispatched 2.2, returned 2.2",
    "open, pending 1 UNSAFE, dispatched 1.1, fence, classified 1, not_applied 1, open, pending 2, dispatched 2.2",
    "open, pending 1, fence, classified 1, never_sent 1, open, pending 2, dispatched 2.1, ended 2.1, probed 2.1",
    "open, pending 1, dispatched 1.1, ended 1.1, applied 1 valueless, supplied 1, returned 1.1",
)
LONG = f"{SOUND[3]}, superseded 1, cancel, close"


def findings(world: World, history: tuple[Stored, ...] | None = None) -> list[str]:
    found = check_branch(Held(BRANCH, world.branch, world.history if history is None else history, world.rows()))
    return [f"{finding.seq}: {finding.text}" for finding in found]


@pytest.mark.parametrize("text", [*SOUND, LONG])
def test_a_sound_log_is_silent(text: str) -> None:
    """No finding where every record was admitted, at any length of the history."""
    parts = text.split(", ")
    for count in range(1, len(parts) + 1):
        assert findings(build(", ".join(parts[:count]))) == []


def test_an_empty_branch_is_silent() -> None:
    """Nothing to find in nothing."""
    assert findings(World()) == []


# --- edits -----------------------------------------------------------------------------------------------------------


def edited(index: int, **fields: object) -> Callable[[tuple[Stored, ...]], tuple[Stored, ...]]:
    return lambda history: (*history[:index], replace(history[index], **fields), *history[index + 1 :])


EDITS = {
    "a changed body": edited(2, record=r.Dispatched(attempt=1, step="charge", dispatch_no=7)),
    "a changed payload": edited(1, payload=b'{"cents":2}'),
    "a payload taken away": edited(1, payload=None),
    "an emptied payload": edited(1, payload=b""),
    "a changed time": lambda h: edited(2, at=replace(h[2].at, wall_ns=1))(h),
    "a changed boot": lambda h: edited(2, at=replace(h[2].at, boot_id="other"))(h),
    "another number": edited(3, seq=99),
    "another predecessor": edited(3, previous_seq=1),
    "another chain value": edited(3, chain=b"0" * 16),
    "the first record removed": lambda h: h[1:],
    "a middle record removed": lambda h: (*h[:4], *h[5:]),
    "the last record removed": lambda h: h[:-1],
    "every record removed": lambda _: (),
    "two records swapped": lambda h: (*h[:3], h[4], h[3], *h[5:]),
    "a record twice": lambda h: (*h[:3], h[2], *h[3:]),
}


@pytest.mark.parametrize("name", list(EDITS))
def test_each_edit_is_found(name: str) -> None:
    """An edit, a hole, a cut, a swap: chain, links or rows tell of it (DESIGN 9)."""
    world = build(LONG)
    edit = EDITS[name]
    assert edit(world.history) != world.history
    assert findings(world, edit(world.history))


def test_an_edit_is_found_where_it_is() -> None:
    """The finding names the record whose digest does not fit."""
    world = build(LONG)
    assert findings(world, EDITS["a changed payload"](world.history)) == [
        "2: its digest does not fit: it, or one before it, was changed"
    ]


def test_a_record_of_another_branch_does_not_fit() -> None:
    """The chain holds the branch's name."""
    world = build(LONG)
    assert check_branch(Held("order-2", world.branch, world.history, world.rows()))


def test_each_changed_row_is_found() -> None:
    """The folded rows are rebuilt from the records and compared: changed, missing, or too many."""
    world = build(LONG)
    [key] = world.rows()
    row = world.rows()[key]
    dispatch = replace(row.dispatches[0], fate=Fate.NOT_SENT)
    for operations in (
        {},
        {key: replace(row, contradicts=True)},
        {key: replace(row, dispatches=(dispatch, *row.dispatches[1:]))},
        {key: row, ("refund", 1): replace(row, step="refund")},
    ):
        found = check_branch(Held(BRANCH, world.branch, world.history, operations))
        assert ["operation" in finding.text for finding in found] == [True]
    for branch in (
        replace(world.branch, attempt=9),
        replace(world.branch, cancelled=False),
        replace(world.branch, latest_wall_ns=0),
        replace(world.branch, head_seq=1),
        replace(world.branch, head_chain=b""),
    ):
        [found] = check_branch(Held(BRANCH, branch, world.history, world.rows()))
        assert "branch's row" in found.text


@pytest.mark.parametrize(("kind", "at"), [("UNSAFE", 2), ("READ", 2)])
def test_a_request_id_that_is_not_this_logs_is_found(kind: str, at: int) -> None:
    """I6: with the log's secret each key is derived again, a READ's as a Pending's; without it, none is."""
    player = Player().opens()
    player.performs("paid", kind=kind, read_durability=Durability.IMMEDIATE)
    row, history = player.disk.live.branches[BRANCH], list(player.store.history(BRANCH))
    rows = {(o.step, o.generation): o for _, o in player.store.operations(BRANCH, open_only=False)}
    whole = Held(BRANCH, row, history, rows)
    assert check_branch(whole, player.store.salt) == []
    assert check_branch(whole) == []
    assert check_branch(whole, b"another") == [(at, "its request id is not that of this log")]


# --- forged histories: chained as if admitted, and against an invariant --------------------------------------------

PAID = "open, pending 1, dispatched 1.1, returned 1.1"
DOUBT = "open, pending 1 UNSAFE, dispatched 1.1"
FORGED = {
    "I1": [
        ("open", "dispatched 1.1"),
        ("open, pending 1, dispatched 1.1, open", "dispatched 2.2"),
        ("open, pending 1", "dispatched 1.1 g2"),
    ],
    "I2": [("open, pending 1, fence, classified 1", "dispatched 1.1")],
    "I3": [
        (PAID, "dispatched 1.2"),
        ("open, pending 1, dispatched 1.1, rejected 1.1", "dispatched 1.2"),
        ("open, pending 1, dispatched 1.1, ended 1.1, applied 1", "dispatched 1.2"),
        ("open, pending 1, dispatched 1.1, not_sent 1.1, pending 1, returned 1.1", "dispatched 1.2"),
    ],
    "I4": [
        (f"{DOUBT}, ended 1.1", "dispatched 1.2"),
        (f"{DOUBT}, open, pending 2 UNSAFE", "dispatched 2.2"),
        (f"{DOUBT}, not_sent 1.1, pending 1, dispatched 1.2", "dispatched 1.3"),
        (f"{DOUBT}, suspended 1.1, pending 1, dispatched 1.2, ended 1.2", "dispatched 1.3"),
    ],
    "I6": [
        ("open, pending 1, withdrawn 1", "pending 1 drift"),
        ("open, pending 1, withdrawn 1", "pending 1 tool"),
        ("open, pending 1, withdrawn 1", "pending 1 key"),
    ],
}


@pytest.mark.parametrize(
    ("number", "history", "forged"), [(number, *case) for number, cases in FORGED.items() for case in cases]
)
def test_each_invariant_is_found_broken_by_its_own_function(number: str, history: str, forged: str) -> None:
    """I1, I2, I3, I4, I6, each stated anew from the records: the forged record is found, by that function alone."""
    world = build(history)
    records = forced(world, forged)
    seqs = {name: [seq for seq, _ in found] for name, found in broken(records).items() if found}
    assert seqs == {number: [records[-1].seq]}
    assert not any(broken(world.history).values())
    found = findings(world._replace(branch=replace(world.branch, head_seq=records[-1].seq)), records)
    assert any(f"{number}: " in text for text in found)
    assert any("the rules refuse this record" in text for text in found), "and the table refuses it on its own"


def test_i4_knows_who_settled() -> None:
    """I4: NOT_APPLIED by a probe does not free an UNSAFE operation; only a person's does."""
    records = forced(build(f"{DOUBT}, ended 1.1"), "not_applied 1 probe", "pending 1 UNSAFE", "dispatched 1.2")
    assert [seq for seq, _ in broken(records)["I4"]] == [records[-1].seq]


def test_i6_holds_of_reads_too() -> None:
    """I6: equal in all records of an operation, a READ's header included."""
    records = forced(build("open, read 1"), "pending 1 drift")
    assert [seq for seq, _ in broken(records)["I6"]] == [records[-1].seq]


def test_invariants_hold_per_operation() -> None:
    """A renewed generation is another operation: nothing of the first forbids it anything."""
    world = build(SOUND[1])
    assert not any(broken(world.history).values())


def test_every_invariant_of_the_records_is_checked() -> None:
    """Four of the nine cannot be seen in a history; the others have a function each."""
    assert set(INVARIANTS) == set(FORGED) == {"I1", "I2", "I3", "I4", "I6"}
    assert codec.FORMAT_VERSION == 1


# --- what is kept while a branch is read -----------------------------------------------------------------------------


def test_who_looks_on_is_told_of_each_record() -> None:
    """Its place, in order; and of a second look not again."""
    world = build(LONG)
    for rows in (world.rows(), {key: build(SOUND[3]).rows()[key] for key in world.rows()}):
        places: list[int] = []
        check_branch(Held(BRANCH, world.branch, world.history, rows), None, places.append)
        assert places == [stored.seq for stored in world.history]


class Misfiled(Held):
    """A branch whose indexed columns say other than its rows."""

    unfinished: bool | None = None
    changed: dict[str, object]

    @property
    def is_unfinished(self) -> bool:
        return super().is_unfinished if self.unfinished is None else self.unfinished

    def operations(self) -> Iterator[OperationRow]:
        return (one._replace(**self.changed) for one in super().operations())


@pytest.mark.parametrize(
    ("unfinished", "changed"),
    [(True, {}), (None, {"is_listed": True}), (None, {"key": ("charge", 2)}), (None, {"key": ("refund", 1)})],
)
def test_columns_that_do_not_say_what_rows_do_are_found(unfinished: bool | None, changed: dict[str, object]) -> None:
    """What is indexed decides what a restart looks at."""
    world = build(LONG)
    whole = Misfiled(BRANCH, world.branch, world.history, world.rows())
    whole.unfinished, whole.changed = unfinished, changed
    assert (0, "the indexed columns do not say what the rows do") in check_branch(whole)


@pytest.mark.parametrize("liars_max", [0, 1_000])
def test_a_row_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch, liars_max: int) -> None:
    """It is what its records once folded to, and says so: the records after that are missed, and told of once."""
    monkeypatch.setattr(check, "LIARS_MAX", liars_max)
    texts = LONG.split(", ")
    world = build(LONG)
    for count in range(2, len(texts) - 2):
        before = build(", ".join(texts[:count]))
        found = check_branch(Held(BRANCH, world.branch, world.history, before.rows()))
        assert found == [(0, "the row of operation 'charge' is not what its records fold to")]


def test_a_row_that_stands_still_hides_no_invariant() -> None:
    """I3: the second look remembers what the first forgot."""
    world = build(PAID)
    records = forced(world, "dispatched 1.2")
    found = [text for _, text in check_branch(Held(BRANCH, world.branch, records, world.rows()))]
    assert any(text.startswith("I3: charge ") for text in found)
    assert not any(text.startswith("I1: ") for text in found)


def test_a_row_cannot_borrow_anothers_newest_record() -> None:
    """A row without records, that names the newest record of another operation as its own."""
    world = build(SOUND[1])
    ghost = replace(world.rows()["charge", 2], step="ghost", generation=1)
    rows = world.rows() | {("ghost", 1): ghost}
    assert check_branch(Held(BRANCH, world.branch, world.history, rows)) == [
        (0, "the row of operation 'ghost' is not what its records fold to")
    ]


def test_only_what_is_open_is_kept() -> None:
    """An operation is forgotten with its newest record, if it has become what its row says."""
    player = Player().opens()
    for number in range(20):
        player.performs("paid", intent_id=IntentId.of(BRANCH, 1, f"s{number}"))
    rows = {(o.step, o.generation): o for _, o in player.store.operations(BRANCH, open_only=False)}
    whole = Held(BRANCH, player.disk.live.branches[BRANCH], player.store.history(BRANCH), rows)
    look = check._Look(whole, None, frozenset())
    kept = []
    for stored, body in whole.records():
        look.take(stored, body)
        kept.append(len(look._watched))
    assert (max(kept), kept[-1], len(rows)) == (1, 0, 20)
    assert look.findings_at_end() == []
