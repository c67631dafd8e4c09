"""Which standbys a commit waits for, and what it therefore survives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from intentlog.store.findings import Finding, Verdict, counted

_WITH_NUMBER = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_MACHINE = "a crash of the server and of its machine"
_KEPT_BY = {
    "remote_write": ", whose kernels have it: not that both machines crash",
    "on": ", whose disks have it",
    "remote_apply": ", whose disks have it, and whose readers see it",
}


def waited_for(names: str) -> tuple[int, list[str]]:
    """What `synchronous_standby_names` says: for how many of which a commit waits; 0 where it is empty."""
    found = _WITH_NUMBER.fullmatch(names)
    number, listed = (int(found[1]), found[2]) if found else (1, names)
    standbys = [name.strip().strip('"') for name in listed.split(",") if name.strip()]
    return (number if standbys else 0), standbys


def standbys(names: str, commit: str, rows: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """What is found of them.

    Args:
        names: `synchronous_standby_names`.
        commit: `synchronous_commit`.
        rows: of those that are connected, the name, state and sync_state, as pg_stat_replication has them.
    """
    number, wanted = waited_for(names)
    unseen = any(state is None for _, state, _ in rows)
    streaming = [name for name, state, _ in rows if state == "streaming"]
    waited = [name for name, state, kind in rows if state == "streaming" and kind in ("sync", "quorum")]
    yield Finding("synchronous_standby_names", names or "none")
    if unseen:
        text = f"{counted(len(rows), 'standby', 'standbys')}, of which this role may not see more"
        yield Finding("standbys that stream", text, "-", Verdict.NOTE, "GRANT pg_read_all_stats TO the role.")
    else:
        gone = [name for name in wanted if name != "*" and name not in streaming]
        found = ", ".join(f"{name} ({kind})" for name, state, kind in rows if state == "streaming") or "none"
        found += f"; not {', '.join(gone)}" if gone else ""
        if len(waited) < number:
            remedy = "no commit is acknowledged: bring the standby back, or take it out of synchronous_standby_names."
            yield Finding("standbys that stream", found, f"{number} that is waited for", Verdict.WRONG, remedy)
        else:
            verdict = Verdict.WEAK if gone else Verdict.OK if number else Verdict.NOTE
            remedy = "one more that fails stops every commit: bring it back." if gone else ""
            yield Finding(
                "standbys that stream", found, f"{number} that is waited for" if number else "-", verdict, remedy
            )
    yield _survives(number if commit in _KEPT_BY else 0, commit, has_others=bool(rows))


def _survives(number: int, commit: str, *, has_others: bool) -> Finding:
    setting = "an acknowledged commit survives"
    if commit == "off":
        return Finding(setting, "not even a crash of the server", _MACHINE, Verdict.WRONG, "synchronous_commit = on")
    if number:
        kept = f"{counted(number, 'standby', 'standbys')}{_KEPT_BY[commit]}"
        return Finding(setting, f"{_MACHINE}, and its loss: it is on {kept}", "-", Verdict.OK)
    if has_others:
        remedy = "name a standby in synchronous_standby_names."
        return Finding(setting, f"{_MACHINE}; not a failover to a standby that is behind", "-", Verdict.WEAK, remedy)
    return Finding(setting, f"{_MACHINE}; not the loss of its disk")
