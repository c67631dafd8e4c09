"""Every crash point that the source has, killed with every class that reaches it, sync and asyncio (I1-I4, I9).

Each scenario is run once to see which points it reaches, then once for each of them and killed there. After every kill
the log is recovered, settled and run to its end, and the witness is held against what the log says.
"""

from __future__ import annotations

import ast
import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crash_programs import (
    BRANCH,
    CLASSES,
    effect_tool,
    in_child,
    run_cancel,
    run_decide_landed,
    run_effect,
    run_event,
    run_recover,
    run_renew,
    run_resolve,
    run_supply,
    stopped,
)

import intentlog
from intentlog import Applied, IntentState, Log, NotApplied, Resolution, Verdict, failpoints
from intentlog.crash import Witness

MODES = ("sync", "asyncio")
ENDINGS = ("returned", "ambiguous", "not_sent", "rejected", "suspended")


class Scenario(NamedTuple):
    """What was done before, unharmed or killed at a point, and what is then killed."""

    name: str
    before: tuple[tuple[Callable[..., None], tuple[str, ...], str | None], ...]
    killed: Callable[..., None]
    arguments: tuple[str, ...]


def scenarios() -> list[Scenario]:
    """First runs with every way a call can end, and restarts, recoveries and decisions after a kill in window B."""
    found = [
        Scenario(f"{kind}-{ending}", (), run_effect, (mode, ending))
        for kind, mode, ending in itertools.product(CLASSES, MODES, ENDINGS)
    ]
    for kind, mode in itertools.product([kind for kind in CLASSES if kind != "READ"], MODES):
        for landed in ("before_call", "before_committed"):
            killed_in_b = ((run_effect, (mode, "returned"), landed),)
            found.append(Scenario(f"{kind}-again-{landed}", killed_in_b, run_effect, (mode, "returned")))
            found.append(Scenario(f"{kind}-recover-{landed}", killed_in_b, run_recover, (mode,)))
    killed_in_b = ((run_effect, ("sync", "returned"), "before_committed"),)
    found.append(Scenario("UNSAFE-resolve", killed_in_b, run_resolve, ("sync",)))
    decided = (*killed_in_b, (run_decide_landed, ("sync",), None))
    found.append(Scenario("UNSAFE-supply", decided, run_supply, ("sync",)))
    done = ((run_effect, ("sync", "returned"), None),)
    pending = ((run_effect, ("sync", "returned"), "before_dispatched"),)
    for mode in MODES:
        found.append(Scenario("UNSAFE-renew", done, run_renew, (mode,)))
        found.append(Scenario("KEYED-cancel", killed_in_b, run_cancel, (mode,)))
        found.append(Scenario("UNSAFE-cancel", pending, run_cancel, (mode,)))
        found.append(Scenario("UNSAFE-event", done, run_event, (mode,)))
    return found


def run_before(scenario: Scenario, folder: Path) -> None:
    folder.mkdir()
    for program, arguments, crash_at in scenario.before:
        in_child(program, str(folder), kind_of(scenario), *arguments, crash_at=crash_at)


def kind_of(scenario: Scenario) -> str:
    return scenario.name.partition("-")[0]


def points_reached(scenario: Scenario, folder: Path) -> list[str]:
    """The points that the scenario reaches, with their count: `after_settled:2`."""
    run_before(scenario, folder)
    trace = folder / "trace"
    in_child(scenario.killed, str(folder), kind_of(scenario), *scenario.arguments, trace=str(trace))
    seen: Counter[str] = Counter()
    points = []
    for name in trace.read_text(encoding="utf-8").split():
        seen[name] += 1
        points.append(f"{name}:{seen[name]}")
    return points


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda s: f"{s.name}-{'-'.join(s.arguments)}")
def test_killed_at_every_point(scenario: Scenario, quick_folder: Path) -> None:
    """Killed at each point it reaches: classified truthfully, settled by its class, and the witness agrees."""
    points = points_reached(scenario, quick_folder / "trace")
    assert points
    for number, point in enumerate(points):
        folder = quick_folder / str(number)
        run_before(scenario, folder)
        in_child(scenario.killed, str(folder), kind_of(scenario), *scenario.arguments, crash_at=point)
        check_classification(folder, point)
        check_settled_to_the_end(folder, kind_of(scenario), point)
        shutil.rmtree(folder)


def check_classification(folder: Path, point: str) -> None:
    """Never sent only if the witness has nothing; may have been sent only if it was dispatched (I2)."""
    calls = Witness(folder / "witness").lines()
    with Log.open(folder / "log.db") as log:
        states = {i.intent_id: i.state for i in log.open_intents()}
        classified = log.recover()
        assert {c.intent_id: c.last_state for c in classified} == states, point
        for one in classified:
            if one.last_state is IntentState.PENDING:
                assert one.classification is Verdict.NEVER_SENT, point
                assert calls == [] or any(c.intent_id != one.intent_id for c in classified), point
            else:
                assert one.classification is Verdict.MAY_HAVE_BEEN_SENT, point
        assert log.verify().ok, point


def check_settled_to_the_end(folder: Path, kind: str, point: str) -> None:
    """Run the program again, deciding as the witness has it, until it is done; then count what happened outside."""
    witness = Witness(folder / "witness")
    handle: Any = effect_tool(kind, witness, "returned", is_async=False)
    with Log.open(folder / "log.db") as log:
        for _ in range(4):
            try:
                with log.attempt(BRANCH) as attempt:
                    assert attempt.call(handle, 1999) == "receipt", point
                break
            except intentlog.InDoubt:
                (doubt,) = [i for i in log.open_intents() if i.in_doubt]
                if kind != "UNSAFE":
                    pytest.fail(f"{point}: {kind} asks a person")
                answer = Applied("receipt") if witness.lines() else NotApplied()
                log.resolve(doubt.intent_id, answer, by="test", why="the witness", expect_seq=doubt.seq)
            except intentlog.OutcomeUnavailable:
                run_supply(str(folder), kind, "sync", log)
            except intentlog.Rejected:
                return  # a definite no stays one; nothing happened outside
        else:
            pytest.fail(f"{point}: not done after four attempts")
        assert log.verify().ok, point
        assert [c for c in log.recover() if c.resolution is Resolution.ASK_PERSON] == [], point
        operations = 1 + sum(entry.kind == "Renewed" for entry in log.history(BRANCH))
    lines = witness.lines()
    assert len({line.split()[0] for line in lines}) == operations, f"{point}: one request id for each operation"
    if kind in ("UNSAFE", "QUERYABLE", "KEYED"):
        assert len(lines) == operations, f"{point}: each happened once"


# --- the list of points is read from the source -------------------------------------------------------------------

SOURCE = Path(intentlog.__file__).parent


def constructed_records() -> set[str]:
    """Every record class that the source outside `core/records.py` makes: `r.Pending(...)` or `Pending(...)`."""
    made = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func
                in_records = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
                if in_records and function.value.id == "r" and function.attr in failpoints.APPENDS:
                    made.add(function.attr)
    return made


def test_every_append_of_the_source_has_a_point_and_is_killed(quick_folder: Path) -> None:
    """A record that the source appends has a point before and after it, and some scenario above reaches both."""
    made = constructed_records()
    assert made == set(failpoints.APPENDS)
    wanted = {p for kind in made for p in (failpoints.BEFORE[kind], failpoints.AFTER[kind])}
    wanted |= {failpoints.BEFORE_CALL, failpoints.AFTER_CALL}
    reached = set()
    for number, scenario in enumerate(scenarios()):
        if scenario.arguments[0] == "sync":
            reached |= {p.partition(":")[0] for p in points_reached(scenario, quick_folder / str(number))}
    assert reached == wanted


def test_no_append_goes_round_the_points() -> None:
    """Only `run/duty.py` calls a store's `append`, between the two points."""
    callers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.func if isinstance(node, ast.Call) else None
            appends = isinstance(call, ast.Attribute) and call.attr == "append"
            if appends and getattr(call.value, "attr", "") in ("store", "_store"):
                callers.add(path.relative_to(SOURCE).as_posix())
    assert callers == {"run/duty.py"}


def test_a_stop_stops_the_thread_that_reached_the_point(quick_folder: Path) -> None:
    """`:stop` on an AsyncLog's writer thread: the record that stands after the point is not written meanwhile."""
    for number in range(5):
        folder = quick_folder / str(number)
        folder.mkdir()
        with stopped(run_effect, str(folder), "UNSAFE", "asyncio", "returned", crash_at="before_committed:1:stop"):
            with Log.open(folder / "log.db", read_only=True) as log:
                kinds = [entry.kind for entry in log.history(BRANCH)]
            assert kinds == ["AttemptOpened", "Pending", "Dispatched"]
