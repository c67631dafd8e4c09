"""SIGKILL at every system call of opening, effects, recovery, decisions, upkeep and closing, and again in what follows.

strace kills at the call's entry, so that "after it" is the next place. What a kill left is looked at once for each
distinct state: with the library, and carried to its end. A second kill falls into the reopening and recovery from a
first one: one first kill for each state of commits, at the places before which a file may have changed.

The quick form and the nightly one are samples, by a seed; the nightly one kills at each call's name at least once. The
full one is every first kill, and second ones that are spread over all that a first one left.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from reliability.attached import why_not
from reliability.conftest import LONG, at_most, repeated
from reliability.kill_programs import CONTROLS, SCENES
from reliability.kill_sweep import UNSTEADY, Sweep, after_changes, changed_between, spread
from reliability.oracle import quick_open
from reliability.repeatable import committed_in

from intentlog import IntentLogError

HARNESS = "kill -9 at every system call"
FIRST_QUICK, FIRST_NIGHTLY = 8, 24
SECOND_QUICK, SECOND_NIGHTLY, SECOND_FULL = 4, 24, 150
SEED = int(os.environ.get("INTENTLOG_LAB_SEED") or random.SystemRandom().randrange(1_000_000))
# What a scene must have been killed at, or it does not do what it is there for.
OF_A_COMMIT = {"pwrite64", "fdatasync", "fcntl", "write"}
KILLED_AT = {
    "open-new": {"mkdir", "openat", "pwrite64", "fdatasync", "fsync", "rename", "unlink", "flock", "ftruncate"},
    "open-existing": {"openat", "pwrite64", "fdatasync", "fsync", "flock", "unlink", "rename", "ftruncate"},
    "open-guest": {"openat", "flock", "rename", "unlink", "pwrite64"},
    "checkpoint": {"pwrite64", "fdatasync", "fcntl"},
    "close": {"pwrite64", "fdatasync", "unlink", "close"},
    "aio-loop": {"pread64"},
    "aio-caller": {"write"},
}

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "strace is here")


@pytest.mark.parametrize("name", SCENES)
def test_a_kill_at_any_call_loses_nothing_and_tells_no_lie(
    name: str, quick_folder: Path, lab: Any, request: pytest.FixtureRequest
) -> None:
    """I1 to I5: what was acknowledged is there, "never sent" is true, nothing is repeated that may not be; twice."""
    chance = random.Random(f"{SEED} {name}").random
    sweep = Sweep(quick_folder, SCENES[name])
    places = sweep.places()
    calls = {place.call for place in places}
    wanted = spread(places, at_most(FIRST_QUICK, FIRST_NIGHTLY), chance)
    if LONG:
        missed = calls - {place.call for place in wanted}
        wanted += [next(place for place in places if place.call == call) for call in sorted(missed)]
    left = sweep.kill_first(wanted)
    assert sweep.kills + sweep.not_reached == len(wanted)
    assert sweep.not_reached <= sum(place.call in UNSTEADY for place in wanted)
    assert calls >= KILLED_AT.get(name, OF_A_COMMIT), f"it never came to {KILLED_AT.get(name, OF_A_COMMIT) - calls}"
    assert set(sweep.calls) >= calls - UNSTEADY or not LONG, f"never killed at {calls - UNSTEADY - set(sweep.calls)}"

    if not (SCENES[name].has_keeper or SCENES[name].thread):  # where others change the files too
        drifted = changed_between(places, sweep.states)  # a run in fifty may not be the same on a busy machine
        assert len(drifted) * 50 <= max(50, len(places)), drifted

    distinct = [*{committed_in(one.folder): one for one in left}.values()]
    second = min(at_most(SECOND_QUICK, SECOND_NIGHTLY), SECOND_FULL)
    origins = spread(distinct, at_most(SECOND_QUICK // 4, SECOND_NIGHTLY // 2), chance)
    first_kills = sweep.kills
    for one in origins:
        again = after_changes(sweep.second_places(one))
        sweep.kill_again(one, spread(again, max(1, second // len(origins)), chance))
    assert sweep.kills > first_kills
    print(f"{name}: {len(places)} places, {first_kills} first kills, {len(distinct)} states of commits,")
    print(f"  {sweep.kills - first_kills} second kills, {sweep.checks} states looked at; calls {dict(sweep.calls)}")
    lab.seen(sweep.kills, sweep.violations, repeat=repeated("INTENTLOG_LAB_SEED", SEED, request.node.name))


@pytest.mark.parametrize("name", ["open-new", "WAL mode after the name"])
def test_a_log_is_in_wal_mode_before_it_has_its_name(name: str, quick_folder: Path, lab: Any) -> None:
    """I5: killed while a log is made, it can be looked at by a reader, who may not play back a rollback journal.

    Once it got its name first: a kill left a log that nobody could open. As it was then, the second case.
    """
    sweep = Sweep(quick_folder, {**SCENES, **CONTROLS}[name])
    refused = []
    places = after_changes(sweep.places())
    if name in SCENES:
        places = spread(places, at_most(20, sys.maxsize), random.Random(SEED).random)
    for place in places:
        for left in sweep.kill_first([place]):
            path = left.folder / "log" / "log.db"
            if path.exists():
                try:
                    quick_open(path, read_only=True).close()
                except IntentLogError as error:
                    refused.append(f"{left.places}: {error}")
        if name in CONTROLS and refused and not LONG:
            break  # one is enough; the long forms count them all
    if name in CONTROLS:
        lab.control(f"{name}, read first", sweep.kills, len(refused))
    else:
        lab.seen(sweep.kills, [*sweep.violations, *refused])


@pytest.mark.parametrize("name", CONTROLS)
def test_the_kills_find_what_is_wrong(name: str, quick_folder: Path, lab: Any) -> None:
    """Controls: each breaks the protocol, or the making of a log, and some kill must show it."""
    sweep = Sweep(quick_folder, CONTROLS[name])
    for place in after_changes(sweep.places(sound=False)):
        sweep.kill_first([place])
        if sweep.violations and not LONG:
            break  # one is enough; the long forms count them all
    lab.control(name, sweep.kills, len(sweep.violations))
