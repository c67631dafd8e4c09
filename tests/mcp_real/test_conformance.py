"""The official conformance suite finds behind the guard what it finds before it: the same checks, with the same ends.

Equal totals alone would not do: a proxy can lose checks without failing one, and a suite that reaches no server passes
some as well. So the checks are compared one by one, and there must be as many passed as this server passes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mcp_real.conformance_suite import Everything, dropping, everything, guarded, records, run_suite

OF_2025 = ("--suite", "all", "--spec-version", "2025-11-25")
OF_2026 = ("--suite", "all", "--spec-version", "2026-07-28")
WITH_EXTENSIONS = ("--requirements", "2026-07-28")
"""The same, and the extensions. The server has none, so that what fails must fail alike."""
REBINDING = ("localhost-host-rebinding-rejected", "localhost-host-valid-accepted")


@pytest.mark.parametrize(
    ("options", "passed", "failed"),
    [
        pytest.param(OF_2025, 84, 0, id="2025-11-25"),
        pytest.param(OF_2026, 152, 0, id="2026-07-28"),
        pytest.param(WITH_EXTENSIONS, 164, 30, id="2026-07-28-with-extensions"),
    ],
)
def test_the_guard_changes_no_check(tmp_path: Path, options: tuple[str, ...], passed: int, failed: int) -> None:
    """Nor when the suite is run again through the same guard: calls that are meant again are made again."""
    with everything(tmp_path / "server") as server:
        direct = run_suite(server.url, tmp_path / "direct", *options)
        before = len(server.calls())
        with guarded(tmp_path / "log.db", server.url) as url:
            first = run_suite(url, tmp_path / "first", *options)
            again = run_suite(url, tmp_path / "again", *options)
        assert direct.total[0] >= passed
        assert direct.total[1] == failed
        assert (direct.of("SUCCESS"), direct.of("FAILURE")) == direct.total
        for check in REBINDING:
            assert [name for _, id_, name, status in direct.checks if id_ == check and status == "SUCCESS"], check
        assert first == direct
        assert again == direct
        assert_all_went_through(server, before, tmp_path / "log.db")


def assert_all_went_through(server: Everything, before: int, log: Path) -> None:
    """Every call that reached a tool while the guard stood there is one that stands in the log; none came before."""
    calls = server.calls()
    assert before > 10
    assert not any(call["request_id"] for call in calls[:before])
    reached = Counter(call["request_id"] for call in calls[before:])
    assert sum(reached.values()) == 2 * before
    found = Counter(one["kind"] for one in records(log))
    assert found["Committed"] > 10
    written_ahead = {one["record"]["request_id"] for one in records(log) if one["kind"] == "Pending"}
    assert set(reached) <= written_ahead
    assert set(reached.values()) == {1}


def test_a_proxy_that_loses_something_is_seen(tmp_path: Path) -> None:
    """The control: what is compared above tells a proxy that passes all from one that does not."""
    with everything(tmp_path / "server") as server, dropping(tmp_path / "proxy", server.url) as url:
        direct = run_suite(server.url, tmp_path / "direct", *OF_2025)
        behind = run_suite(url, tmp_path / "behind", *OF_2025)
    assert behind.total != direct.total
    assert behind.total[0] > 28  # as many pass where no server is
    assert {"tools-call-with-logging", "tools-call-with-progress"} <= behind.scenarios_unlike(direct)
