"""The recovery table and its clocks, held against a table that is written down here (DESIGN 4)."""

from __future__ import annotations

from itertools import product

import pytest
from core_histories import SECOND, at, build, declared
from msgspec.structs import replace

from intentlog.core import recovery
from intentlog.core.effects import EffectKind
from intentlog.core.records import Answer, Instant, Resolution
from intentlog.core.recovery import Doubt, Lever, Next, Trust
from intentlog.core.state import Branch, Dispatch, Fate, Operation

# For each doubt and class: what to do with probe and key, probe alone, key alone, nothing.
GRID = """
                     READ IDEMPOTENT KEYED QUERYABLE UNSAFE
NEVER_SENT           tttt tttt       tttt  tttt      tttt
MAY_HAVE_BEEN_SENT   cccc cccc       ppca  ppaa      aaaa
REJECTED_BESIDE_OPEN rrrr aaaa       ppaa  ppaa      aaaa
DONE                 rrrr rrrr       rrrr  rrrr      rrrr
"""
LETTERS = {
    "t": Resolution.RETRY,
    "c": Resolution.RECALL,
    "p": Resolution.PROBE,
    "a": Resolution.ASK_PERSON,
    "r": Resolution.REPLAY,
}
LEVERS = (Lever.PROBE_AND_KEY, Lever.PROBE, Lever.KEY, Lever.NOTHING)


def wanted() -> dict[tuple[Doubt, EffectKind, Lever], Resolution]:
    """GRID, read."""
    header, *lines = GRID.strip("\n").splitlines()
    cells = {}
    for line in lines:
        doubt, *columns = line.split()
        for kind, letters in zip(header.split(), columns, strict=True):
            for lever, letter in zip(LEVERS, letters, strict=True):
                cells[Doubt(doubt), EffectKind(kind), lever] = LETTERS[letter]
    return cells


WANTED = wanted()

# --- situations: an operation, its declaration and the clocks, that stand in each row and column ----------------------

HOUR = 3600 * SECOND
HISTORIES = {
    Doubt.NEVER_SENT: "open, pending 1, dispatched 1.1, not_sent 1.1",
    Doubt.MAY_HAVE_BEEN_SENT: "open, pending 1, dispatched 1.1, ended 1.1",
    Doubt.REJECTED_BESIDE_OPEN: "open, pending 1, dispatched 1.1, open, pending 2, dispatched 2.2, rejected 2.2",
    Doubt.DONE: "open, pending 1, dispatched 1.1, returned 1.1",
}


def decided(doubt: Doubt, kind: EffectKind, lever: Lever) -> Resolution:
    """`recovery.resolution` in a situation that lies in this cell, as far as the class can have the lever."""
    world = build(HISTORIES[doubt])
    probe = lever in (Lever.PROBE_AND_KEY, Lever.PROBE)
    window_ns = HOUR if lever in (Lever.PROBE_AND_KEY, Lever.KEY) else SECOND
    declaration = declared(kind, probe=probe, window_ns=window_ns if kind is EffectKind.KEYED else 0)
    return recovery.resolution(world.operation(), declaration, world.branch, at(20))


def check(doubt: Doubt, kind: EffectKind, lever: Lever) -> None:
    """One cell, as it stands and, where a situation leads there, as it is reached."""
    assert recovery.TABLE[doubt][kind][lever] is WANTED[doubt, kind, lever]
    # only KEYED has a key; where nothing is open, no key can have been forgotten
    nothing_open = doubt in (Doubt.NEVER_SENT, Doubt.DONE)
    has_key = lever in (Lever.PROBE_AND_KEY, Lever.KEY)
    if has_key is (kind is EffectKind.KEYED) or (kind is EffectKind.KEYED and not nothing_open):
        assert decided(doubt, kind, lever) is WANTED[doubt, kind, lever]


@pytest.mark.parametrize(("doubt", "kind", "lever"), list(WANTED))
def test_each_cell(doubt: Doubt, kind: EffectKind, lever: Lever) -> None:
    """The recovery table: every doubt, class and lever; UNSAFE in doubt is for a person alone (I4)."""
    check(doubt, kind, lever)


def test_the_table_is_total() -> None:
    """No default: every cell of the product is written down, here and there."""
    there = {(d, k, lever) for d, row in recovery.TABLE.items() for k, cells in row.items() for lever in cells}
    assert there == set(product(Doubt, EffectKind, Lever)) == set(WANTED)


@pytest.mark.parametrize("cell", list(WANTED), ids="-".join)
def test_every_mutation_of_the_table_is_caught(
    cell: tuple[Doubt, EffectKind, Lever], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a cell is changed to, or if it is dropped, its check fails."""
    doubt, kind, lever = cell
    row = recovery.TABLE[doubt][kind]
    for other in set(Resolution) - {row[lever]}:
        with monkeypatch.context() as patch:
            patch.setitem(row, lever, other)
            with pytest.raises(AssertionError):
                check(*cell)
    monkeypatch.delitem(row, lever)
    with pytest.raises(KeyError):
        check(*cell)


@pytest.mark.parametrize("doubt", list(Doubt))
def test_the_row_of_an_operation(doubt: Doubt) -> None:
    """Verdicts are rows, and REJECTED beside an open dispatch is one of its own: never called again (I3)."""
    assert recovery.doubt(build(HISTORIES[doubt]).operation()) is doubt


@pytest.mark.parametrize("recorded", [None, Resolution.RECALL, Resolution.ASK_PERSON])
def test_what_is_untold(recorded: Resolution | None) -> None:
    """Who does not have the tool goes by the recorded class, unless a restart that had it asked for a person."""
    world = build(HISTORIES[Doubt.MAY_HAVE_BEEN_SENT])
    operation = replace(world.operation(), declaration=declared(EffectKind.IDEMPOTENT, probe=False, window_ns=0))
    intents = tuple(replace(one, resolution=recorded) for one in operation.intents)
    found = recovery.resolution_untold(replace(operation, intents=intents), world.branch, at(20))
    assert found is (Resolution.ASK_PERSON if recorded is Resolution.ASK_PERSON else Resolution.RECALL)


def test_what_is_untold_of_a_settled_intent_stands_no_more() -> None:
    """The person has decided: what was asked before is not asked again."""
    world = build(HISTORIES[Doubt.DONE])
    operation = world.operation()
    intents = tuple(replace(one, resolution=Resolution.ASK_PERSON) for one in operation.intents)
    found = recovery.resolution_untold(replace(operation, intents=intents), world.branch, at(20))
    assert found is Resolution.REPLAY


# --- after a probe --------------------------------------------------------------------------------------------------

# answer, counts by now -> with the key remembered and nothing rejected beside it, otherwise
AFTER = {
    ("APPLIED", True): ("SETTLE_APPLIED", "SETTLE_APPLIED"),
    ("APPLIED", False): ("SETTLE_APPLIED", "SETTLE_APPLIED"),
    ("NOT_APPLIED", True): ("SETTLE_NOT_APPLIED", "SETTLE_NOT_APPLIED"),
    ("NOT_APPLIED", False): ("RECALL", "IN_DOUBT"),
    ("UNKNOWN", True): ("RECALL", "IN_DOUBT"),
    ("UNKNOWN", False): ("RECALL", "IN_DOUBT"),
}


def check_after(answer: str, *, counts: bool) -> None:
    """One row: with the key; without it; and with it beside a REJECTED, which is never called again (I3)."""
    with_key, otherwise = AFTER[answer, counts]
    for key, rejected in product((True, False), repeat=2):
        found = recovery.after_probe(Answer(answer), counts=counts, key=key, rejected=rejected)
        assert found == (with_key if key and not rejected else otherwise)


@pytest.mark.parametrize(("answer", "counts"), list(AFTER))
def test_after_a_probe(answer: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AFTER_PROBE, each row, and each mutation of it caught: NOT_APPLIED settles only when it counts."""
    check_after(answer, counts=counts)
    row = recovery.AFTER_PROBE[Answer(answer), counts]
    mutants = [(other, row[1]) for other in Next if other is not row[0]]
    mutants += [(row[0], other) for other in Next if other is not row[1]]
    for mutant in mutants:
        with monkeypatch.context() as patch:
            patch.setitem(recovery.AFTER_PROBE, (Answer(answer), counts), mutant)
            with pytest.raises(AssertionError):
                check_after(answer, counts=counts)


def test_after_a_probe_is_total() -> None:
    """Every answer, counting or not."""
    assert set(recovery.AFTER_PROBE) == set(product(Answer, (True, False)))


# --- the clocks -----------------------------------------------------------------------------------------------------


def clocks(wall: int, boot: int, boot_id: str = "a") -> Instant:
    return Instant(wall * SECOND, boot_id, boot * SECOND)


SINCE = clocks(1000, 100)


@pytest.mark.parametrize(
    ("now", "at_least", "at_most", "why"),
    [
        (clocks(1010, 110), 10, 10, "same boot, clocks agree"),
        (clocks(9000, 110), 10, 8000, "same boot, the wall clock was set forward"),
        (clocks(500, 110), 10, 10, "same boot, the wall clock was set back"),
        (clocks(1010, 100), 0, 10, "same boot, no time by the boot clock"),
        (clocks(1010, 99), 0, 10, "same boot, a boot clock that ran back proves nothing"),
        (clocks(1010, 3, "b"), 3, 10, "another boot: at least its uptime, at most the wall clock's difference"),
        (clocks(900, 3, "b"), 3, -100, "another boot, set back: `key_remembered` refuses it before it looks here"),
        (clocks(9000, 300, "b"), 300, 8000, "another boot, whose clock reads higher than the first's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bounds_of_the_time_elapsed(now: Instant, at_least: int, at_most: int, why: str) -> None:
    """Settling needs a lower bound, a key's window an upper one (DESIGN 4)."""
    assert recovery.elapsed_at_least_ns(SINCE, now) == at_least * SECOND, why
    assert recovery.elapsed_at_most_ns(SINCE, now) == at_most * SECOND, why


@pytest.mark.parametrize(
    ("now", "at_least", "why"),
    [
        (clocks(1010, 110), 10, "same boot, clocks agree"),
        (clocks(9000, 110), 10, "same boot, the database's clock was set forward"),
        (clocks(500, 110), 10, "same boot, the database's clock was set back"),
        (clocks(1010, 10**6, "b"), 10, "another machine, however long it has been up"),
        (clocks(1010, 3, "b"), 10, "another machine, that was started later"),
        (clocks(900, 10**6, "b"), 0, "another machine, and the database's clock was set back"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_lower_bound_between_machines_is_the_databases(now: Instant, at_least: int, why: str) -> None:
    """I2: the uptime of the machine that asks says nothing of a call that another one made a moment ago."""
    assert recovery.elapsed_at_least_ns(SINCE, now, one_machine=False) == at_least * SECOND, why


def operation_with(*dispatches: tuple[Instant, Fate]) -> Operation:
    made = tuple(Dispatch(n, n, when, fate) for n, (when, fate) in enumerate(dispatches, 1))
    return replace(build("open, pending 1").operation(), dispatches=made)


KEYED = declared(EffectKind.KEYED, window_ns=100 * SECOND, time_limit_ns=10 * SECOND)  # 30 s are left for elapsing


@pytest.mark.parametrize(
    ("elapsed_ns", "remembered"),
    [(0, True), (30 * SECOND, True), (30 * SECOND + 1, False), (31 * SECOND, False), (10**6 * SECOND, False)],
)
def test_the_edge_of_a_keys_window(elapsed_ns: int, remembered: bool) -> None:
    """Re-sent only if now + time_limit + 60 s still fits, to the nanosecond."""
    operation = operation_with((SINCE, Fate.ENDED))
    now = Instant(SINCE.wall_ns + elapsed_ns, "a", SINCE.boot_ns + elapsed_ns)
    assert recovery.key_remembered(operation, KEYED, Branch(), now) is remembered
    lever = recovery.lever(operation, KEYED, Branch(), now)
    assert lever is (Lever.KEY if remembered else Lever.NOTHING)
    asked = recovery.lever(operation, replace(KEYED, probe=True), Branch(), now)
    assert asked is (Lever.PROBE_AND_KEY if remembered else Lever.PROBE)


def test_the_grace_before_a_call_is_part_of_the_call_still_to_come() -> None:
    """Permitted now, it may begin as late as the grace allows, and has to end while the key is remembered."""
    operation, graced = operation_with((SINCE, Fate.ENDED)), replace(KEYED, grace_ns=7 * SECOND)
    for elapsed_ns, remembered in ((23 * SECOND, True), (23 * SECOND + 1, False)):
        now = Instant(SINCE.wall_ns + elapsed_ns, "a", SINCE.boot_ns + elapsed_ns)
        assert recovery.key_remembered(operation, graced, Branch(), now) is remembered


def test_a_clock_earlier_than_the_branch_means_expired() -> None:
    """A clock that reads earlier than any time in the branch tells nothing; one that reads the same does."""
    operation, now = operation_with((SINCE, Fate.ENDED)), clocks(1010, 110)
    assert recovery.key_remembered(operation, KEYED, Branch(latest_wall_ns=now.wall_ns), now)
    assert not recovery.key_remembered(operation, KEYED, Branch(latest_wall_ns=now.wall_ns + 1), now)


def test_the_window_runs_from_the_first_dispatch_that_may_have_landed() -> None:
    """A later re-send does not renew the key; one that was never sent has not shown it to the receiver."""
    early, late, now = clocks(900, 10), clocks(1000, 100), clocks(1010, 110)
    assert not recovery.key_remembered(operation_with((early, Fate.ENDED), (late, Fate.ENDED)), KEYED, Branch(), now)
    assert recovery.key_remembered(operation_with((early, Fate.NOT_SENT), (late, Fate.ENDED)), KEYED, Branch(), now)
    assert recovery.key_remembered(operation_with((early, Fate.NOT_SENT)), KEYED, Branch(), now), "nothing is open"


def test_only_keyed_has_a_key() -> None:
    """A window declared by nobody is no lever."""
    operation = operation_with((SINCE, Fate.ENDED))
    for kind in set(EffectKind) - {EffectKind.KEYED}:
        assert recovery.lever(operation, declared(kind, window_ns=HOUR), Branch(), clocks(1010, 110)) is Lever.NOTHING


QUERYABLE = declared(EffectKind.QUERYABLE, settle_ns=5 * SECOND, time_limit_ns=10 * SECOND, probe=True)
GRACED = replace(QUERYABLE, grace_ns=3 * SECOND)
OPENED = Branch(attempt=1, fenced_at=clocks(990, 90))  # at second 90, before it dispatched anything
HELD, TAKEN, FENCED = (  # by attempt 1 still; by attempt 2 since second 101; fenced without another since second 101
    Branch(attempt=1),
    Branch(attempt=2, fenced_at=clocks(1001, 101)),
    Branch(attempt=1, fenced=True, fenced_at=clocks(1001, 101)),
)


def ended(second: int) -> Dispatch:
    return Dispatch(1, 1, SINCE, Fate.ENDED, clocks(900 + second, second))


@pytest.mark.parametrize(
    ("dispatch", "branch", "certain", "begun_by", "why"),
    [
        (Dispatch(1, 1, SINCE, Fate.CALLING), HELD, True, 103, "its owner begins within the grace"),
        (Dispatch(1, 1, SINCE, Fate.CALLING), TAKEN, True, 101, "its owner was dead when the fence went up"),
        (Dispatch(1, 1, SINCE, Fate.CALLING), FENCED, True, 101, "the same, without another attempt"),
        (Dispatch(1, 1, SINCE, Fate.CALLING), TAKEN, False, 103, "a lease ran out: the owner may live"),
        (Dispatch(1, 1, SINCE, Fate.CALLING), Branch(attempt=2), True, 103, "a fence without a time shortens nothing"),
        (
            Dispatch(1, 1, SINCE, Fate.CALLING),
            OPENED,
            True,
            103,
            "the fence that its own attempt raised does not bind it",
        ),
        (ended(102), HELD, True, 102, "it had begun when it was seen to end"),
        (ended(104), HELD, True, 103, "it began within the grace, however late it ended"),
        (ended(102), TAKEN, False, 102, "believed dead, and seen to end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_edge_of_a_settle_time(dispatch: Dispatch, branch: Branch, certain: bool, begun_by: int, why: str) -> None:
    """NOT_APPLIED counts time_limit + settle after the latest moment at which the call can have begun, to the ns."""
    operation = replace(operation_with(), dispatches=(dispatch,))
    counts_at_ns = (begun_by + 15) * SECOND
    for missing_ns in (0, 1, SECOND, 10 * SECOND):
        started = Instant(SINCE.wall_ns, "a", counts_at_ns - missing_ns)
        found = recovery.trust(operation, GRACED, branch, started, certain=certain)
        assert found == Trust(counts=missing_ns == 0, wait_ns=missing_ns), why
    long_after = Instant(SINCE.wall_ns, "a", 10**6 * SECOND)
    assert recovery.trust(operation, GRACED, branch, long_after, certain=certain) == Trust(True, 0)


def test_settling_runs_from_the_last_dispatch() -> None:
    """However long ago the first was: the last must have had its time."""
    operation = operation_with((clocks(0, 0), Fate.ENDED), (SINCE, Fate.ENDED))
    found = recovery.trust(operation, QUERYABLE, Branch(attempt=2), clocks(1014, 114), certain=True)
    assert found == Trust(counts=False, wait_ns=SECOND)


@pytest.mark.parametrize("fate", [Fate.NOT_SENT, Fate.ENDED])
def test_the_grace_holds_while_any_open_dispatch_may_still_be_called(fate: Fate) -> None:
    """An owner who may live begins its call within the grace, whatever became of a later dispatch meanwhile."""
    first = Dispatch(1, 1, clocks(1000, 100), Fate.CALLING)
    last = Dispatch(2, 2, clocks(1001, 101), fate, clocks(1002, 102) if fate is Fate.ENDED else None)
    operation = replace(operation_with(), dispatches=(first, last))
    found = recovery.trust(
        operation, replace(QUERYABLE, grace_ns=10 * SECOND), Branch(attempt=2), clocks(1018, 118), certain=False
    )
    assert not found.counts, "the first call may begin at 110 and be seen no earlier than 125"


def test_the_wall_clock_does_not_settle() -> None:
    """A wall clock set forward makes no write visible."""
    operation = operation_with((SINCE, Fate.ENDED))
    found = recovery.trust(operation, QUERYABLE, HELD, clocks(10**6, 101), certain=True)
    assert found == Trust(counts=False, wait_ns=14 * SECOND)
