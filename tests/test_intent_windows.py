"""The two windows of DESIGN 1: a real process is killed in each, and the restart tells them apart (I1, I2).

Run by `pytest -k intent_windows`. The witness is a file that the tool appends to; the log is never asked whether the
call happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from crash_programs import in_child, run_effect

from intentlog import Classification, IntentState, Log, Resolution, Verdict
from intentlog.crash import Witness


class Found(NamedTuple):
    """What a restart found after a kill."""

    last_state: str
    classification: Classification
    calls: list[str]


def kill_and_look(folder: Path, crash_at: str, mode: str, *, two_records: bool) -> Found:
    """Kill a worker at a point, open its log again, and recover."""
    folder.mkdir()
    in_child(run_effect, str(folder), "UNSAFE", mode, crash_at=crash_at, two_records=two_records)
    with Log.open(folder / "log.db") as log:
        kinds = [entry.kind for entry in log.history("order-1042")]
        (classification,) = log.recover()
    return Found(kinds[-1], classification, Witness(folder / "witness").lines())


def check_windows(folder: Path, mode: str, *, two_records: bool = False) -> None:
    """The seed's three kills, and what must be true of each. Over two records it must fail."""
    a = kill_and_look(folder / "a", "after_pending", mode, two_records=two_records)
    assert a.last_state == "Pending"
    assert a.classification.last_state is IntentState.PENDING
    assert a.classification.classification is Verdict.NEVER_SENT, "window A: the call was never issued"
    assert a.calls == [], "window A: the witness has no call"

    made = kill_and_look(folder / "b-made", "before_committed", mode, two_records=two_records)
    not_made = kill_and_look(folder / "b-not-made", "after_dispatched", mode, two_records=two_records)
    assert len(made.calls) == 1, "window B, call made: the witness has it"
    assert not_made.calls == [], "window B, call not made: the witness has none"
    for b in (made, not_made):
        assert b.classification.classification is not a.classification.classification, "the windows must differ"
        assert b.last_state == "Dispatched"
        assert b.classification.last_state is IntentState.DISPATCHED
        assert b.classification.classification is Verdict.MAY_HAVE_BEEN_SENT
        assert b.classification.resolution is Resolution.ASK_PERSON


@pytest.mark.parametrize("mode", ["sync", "asyncio"])
def test_intent_windows(tmp_path: Path, mode: str) -> None:
    """Killed between Pending and Dispatched: never sent. Between Dispatched and outcome: may have been sent."""
    check_windows(tmp_path, mode)


@pytest.mark.parametrize("mode", ["sync", "asyncio"])
def test_intent_windows_control_two_records_cannot_tell(tmp_path: Path, mode: str) -> None:
    """Control: the same test over a two-record protocol fails, at the very point where the windows must differ."""
    with pytest.raises(AssertionError, match="the windows must differ"):
        check_windows(tmp_path, mode, two_records=True)


def test_intent_windows_classification_is_itself_recorded(tmp_path: Path) -> None:
    """I9: the restart's decision stands in the log, once, however often recovery runs."""
    in_child(run_effect, str(tmp_path), "UNSAFE", "sync", crash_at="after_dispatched")
    for _ in range(2):
        with Log.open(tmp_path / "log.db") as log:
            log.recover()
            kinds = [entry.kind for entry in log.history("order-1042")]
            assert kinds == ["AttemptOpened", "Pending", "Dispatched", "AttemptFenced", "Classified"]
            assert log.verify().ok
