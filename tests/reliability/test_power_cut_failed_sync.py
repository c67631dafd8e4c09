"""A sync fails, the process ends, a new one goes on from what the page cache has, and later the power is cut.

The promise is the same: every acknowledged record is there (I5), also when the disk never wrote what the failed sync
was for, and each later sync succeeded (I8). The kernel calls such pages clean; only a keeper that writes what it found
once more, and checkpoints it, before it acknowledges anything may rely on it.

In the quick form one sync of each trace is failed, in the full form five, chosen by the seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from reliability import attached, recording_strace, recording_vfs
from reliability.conftest import LONG, Lab
from reliability.power_cut import repeat, seed
from reliability.power_cut_scenarios import Recorder, judged_after_failed_sync, syncs

HARNESS = "power cut after a failed sync"


@pytest.fixture(params=["strace", "vfs"])
def record(request: pytest.FixtureRequest) -> Recorder:
    """Each recorder."""
    if request.param == "vfs":
        return recording_vfs.record
    if why := attached.why_not():
        pytest.skip(why)
    return recording_strace.record


@pytest.mark.parametrize("branches", ["UNSAFE-re", "KEYED-re", "QUERYABLE-a"])
def test_a_power_cut_after_a_failed_sync_loses_nothing(
    branches: str, record: Recorder, lab: Lab, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    """I5, I8: what a process found in the page cache alone is made durable before anything relies on it."""
    number = seed()
    failable = syncs(record, quick_folder, branches)
    chosen = Random(number).sample(failable, 5 if LONG else 1)
    found = [
        judged_after_failed_sync(record, quick_folder, branches, number, fail_at=fail_at, opened_max=120)
        for fail_at in chosen
    ]
    violations = [one for judged in found for one in judged.violations]
    lab.seen(sum(judged.states for judged in found), violations, repeat=repeat(number, request.node.nodeid))


def test_a_wal_that_a_failed_sync_left_is_written_anew_before_it_is_checkpointed(
    record: Recorder, lab: Lab, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    """I5: a power cut during the checkpoint must not leave old frames over newer pages. An early commit, always."""
    number = seed()
    fail_at = syncs(record, quick_folder, "UNSAFE-re")[3]
    judged = judged_after_failed_sync(record, quick_folder, "UNSAFE-re", number, fail_at=fail_at, opened_max=200)
    lab.seen(judged.states, judged.violations, repeat=repeat(number, request.node.nodeid))


@pytest.mark.parametrize("broken", ["checkpoint left out", "what was found not written anew"])
def test_a_keeper_that_relies_on_the_page_cache_is_caught(
    broken: str, record: Recorder, lab: Lab, quick_folder: Path
) -> None:
    """The controls: a keeper that acknowledges, or checkpoints, what only the page cache has must be found out."""
    states = caught = 0
    for fail_at in syncs(record, quick_folder, "UNSAFE-re")[2:]:  # when something was acknowledged already
        judged = judged_after_failed_sync(
            record, quick_folder, "UNSAFE-re", seed(), fail_at=fail_at, opened_max=200, broken=broken, caught_max=3
        )
        states, caught = states + judged.states, caught + judged.guilty
        if caught:
            break
    lab.control(broken, states, caught)
