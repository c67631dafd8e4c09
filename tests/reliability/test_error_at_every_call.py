"""EIO, ENOSPC, EINTR and short writes at every system call that a log makes: opening, appending, upkeep, recovery,
closing; once, and from there on. Then the log is reopened without faults.

The quick form and the nightly one are samples, by a seed; the full one is every fault. EINTR for ever is no fault of a
system, and both Python and SQLite make such a call again: there every second call is interrupted.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from reliability.attached import why_not
from reliability.conftest import at_most, repeated
from reliability.error_programs import CONTROLS, limited, shortened
from reliability.error_sweep import CALLS, ERRORS, ErrorSweep, Fault
from reliability.kill_programs import left, nothing
from reliability.kill_sweep import spread

HARNESS = "error at every system call"
QUICK, NIGHTLY = 5, 32  # faults of a call in a folder
SEED = int(os.environ.get("INTENTLOG_LAB_SEED") or random.SystemRandom().randrange(1_000_000))
PWRITE = [f"pwrite64-{error}" for error in ERRORS]  # by far the most: an item each
FOLDERS = {"new": nothing, "left": left}

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "strace is here")


@pytest.mark.parametrize("call", [*(call for call in CALLS if call != "pwrite64"), *PWRITE])
@pytest.mark.parametrize("name", FOLDERS)
def test_an_error_of_any_call_is_told_and_nothing_is_lost(
    name: str, call: str, quick_folder: Path, lab: Any, request: pytest.FixtureRequest
) -> None:
    """I1, I8: no call after a failed Dispatched, no outcome lost silently, what is told is true; reopened, right."""
    sweep = ErrorSweep(quick_folder, FOLDERS[name])
    call, _, error = call.partition("-")
    faults = sweep.faults(call, [error] if error else ERRORS)
    if not faults:
        assert call == "write", f"{name} never makes {call}"  # all that is written has its place
        lab.seen(sweep.runs, [])
        return
    chance = random.Random(f"{SEED} {name} {call}").random
    wanted = spread(faults, at_most(QUICK, NIGHTLY), chance)
    undisturbed = sweep.runs
    for fault in wanted:
        sweep.fail(fault)
    assert sweep.runs - undisturbed == len(wanted)
    print(f"{name} {call}: {len(wanted)} of {len(faults)} faults, {sweep.checks} states reopened, {dict(sweep.told)}")
    lab.seen(sweep.runs, sweep.violations, repeat=repeated("INTENTLOG_LAB_SEED", SEED, request.node.name))


@pytest.mark.parametrize("call", ["pwrite", "os.pwrite"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_write_that_is_done_in_part_is_finished(
    name: str, call: str, quick_folder: Path, lab: Any, request: pytest.FixtureRequest
) -> None:
    """The kernel really writes half of it and says so: it is written on, or told. SQLite's writes and the library's."""
    sweep = ErrorSweep(quick_folder, FOLDERS[name])
    chance = random.Random(f"{SEED} {name} {call}").random
    numbers = range(1, len(sweep.places["pwrite64"]) + 1)
    wanted = spread([(number, on) for number in numbers for on in (False, True)], at_most(QUICK, NIGHTLY), chance)
    struck = sum(sweep.shorten(shortened, call, *one) for one in wanted)
    assert struck or call.startswith("os."), "no write was shortened"
    lab.seen(sweep.runs, sweep.violations, repeat=repeated("INTENTLOG_LAB_SEED", SEED, request.node.name))


@pytest.mark.parametrize("name", FOLDERS)
def test_files_that_may_not_grow_lose_nothing(
    name: str, quick_folder: Path, lab: Any, request: pytest.FixtureRequest
) -> None:
    """RLIMIT_FSIZE: the kernel writes up to the limit, then refuses with EFBIG: told, and nothing lost."""
    sweep = ErrorSweep(quick_folder, FOLDERS[name])
    chance = random.Random(f"{SEED} {name}").random
    limits = [*range(24_000, 300_000, 4_096)]
    for limit in spread(limits, at_most(QUICK, NIGHTLY), chance):
        sweep.shorten(limited, limit + int(chance() * 4_096))
    assert sweep.told, "no limit was met"
    lab.seen(sweep.runs, sweep.violations, repeat=repeated("INTENTLOG_LAB_SEED", SEED, request.node.name))


@pytest.mark.parametrize("name", CONTROLS)
def test_the_errors_find_what_is_wrong(name: str, quick_folder: Path, lab: Any) -> None:
    """Controls: a store without the poison rule, one that syncs again, and errors that are swallowed."""
    sweep = ErrorSweep(quick_folder, nothing)
    runs = sweep.runs
    for number, place in enumerate(sweep.places["fdatasync"], 1):
        if "-wal>" in place.about and not sweep.violations:
            sweep.fail(Fault("fdatasync", "EIO", number, on=False), CONTROLS[name])
    print(sweep.violations[:3])
    lab.control(name, sweep.runs - runs, len(sweep.violations))
