"""Faults for the model to find: each takes one thing away from the real code, where a search runs it."""

from __future__ import annotations

from typing import Any

import pytest
from model import steps, world

from intentlog.core import machine
from intentlog.core import records as r
from intentlog.core.actions import Append, Appended, Refused, View
from intentlog.core.state import OPEN_FATES, Dispatch, Operation


def two_records_only(patch: pytest.MonkeyPatch) -> None:
    """Dispatched is decided on, and acknowledged, and never written."""
    whole = world.Log.appended

    def appended(self: world.Log, entry: Append, now: int) -> tuple[world.Log, Appended | Refused]:
        if not isinstance(entry.record, r.Dispatched):
            return whole(self, entry, now)
        change = machine.apply(self.branch, self.operation, entry.record, len(self.history), world.instant(now))
        if isinstance(change, machine.Refusal):
            return self, Refused(change, self.view(now))
        return self, Appended(0, View(self.branch, change.operations[0], world.instant(now)))

    patch.setattr(world.Log, "appended", appended)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """The guard of the attempt's number and openness lets everybody pass."""
    real = machine.fenced

    def open_to_all(_: machine.Situation) -> machine.Refusal | None:
        return None

    for cells in machine.TABLE.values():
        for state, rule in cells.items():
            guards = tuple(open_to_all if guard is real else guard for guard in rule.guards)
            patch.setitem(cells, state, rule._replace(guards=guards))
    patch.setattr(machine, "fenced", open_to_all)


def doubt_of_the_newest_attempt(patch: pytest.MonkeyPatch) -> None:
    """An operation's doubt is that of its newest attempt alone: what an earlier one may have sent is forgotten."""

    def open_dispatches(self: Operation) -> tuple[Dispatch, ...]:
        newest = self.dispatches[-1].attempt if self.dispatches else 0
        return tuple(d for d in self.dispatches if d.fate in OPEN_FATES and d.attempt == newest)

    patch.setattr(Operation, "open_dispatches", property(open_dispatches))


def no_grace(patch: pytest.MonkeyPatch) -> None:
    """The driver calls however long ago it was permitted to."""

    def hindered_by_nothing(*_: Any) -> None:
        return None

    patch.setattr(steps, "hindrance", hindered_by_nothing)
