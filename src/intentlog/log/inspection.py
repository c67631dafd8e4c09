"""What a log can be asked: what is open, what should be run again, what happened, whether it is sound."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from intentlog.core import codec, recovery
from intentlog.core.actions import BranchView, IntentId
from intentlog.core.effects import Declaration, stricter
from intentlog.core.records import Resolution, Stored
from intentlog.core.state import OPEN_STATES, Intent, Operation, State
from intentlog.errors import ArgumentsNotRecordable, LogDamaged
from intentlog.log.declare import AnyTool
from intentlog.log.naming import check_name
from intentlog.log.sealing import SEALED, Payloads
from intentlog.log.toolbox import Toolbox
from intentlog.log.values import Entry, OpenIntent, Progress, Report, Sealed, Settings, Unfinished
from intentlog.log.verifying import Verifying
from intentlog.ports import Store
from intentlog.run.duty import Duty

UNSETTLED = frozenset({Resolution.ASK_PERSON, Resolution.PROBE})  # running the program again does not settle it alone


class Inspection:
    """The reads of both faces. Safe from any thread."""

    store: Store
    duty: Duty
    tools: Toolbox
    settings: Settings

    def payloads(self, branch: str) -> Payloads:
        """What writes and reads the payloads of a branch."""
        return Payloads(self.settings.codec, branch, self.settings.result_bytes_max)

    def open_intents(self, of_branch: str | None = None) -> list[OpenIntent]:
        """Every intent without outcome or settlement, or those of one branch."""
        self.duty.flush(of_branch)
        found: list[OpenIntent] = []
        by_branch = groupby(self.store.operations(of_branch, open_only=True), key=itemgetter(0))
        for branch, operations in by_branch:
            view = self.duty.branch_view(branch)
            for _, operation in operations:
                intents = [intent for intent in operation.intents if intent.state in OPEN_STATES]
                found += [self._open_intent(branch, view, operation, intent) for intent in intents]
        return found

    def open_calls(self, tool: AnyTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[OpenIntent]:
        """Every open intent of a call of this tool with equal arguments.

        Raises:
            ArgumentsNotRecordable: they do not fit, or cannot be written down.
        """
        of_tool = [one for one in self.store.operations(None, open_only=True) if one[1].tool == tool.name]
        if not of_tool:
            return []
        bound = tool.signature.bind(args, kwargs, self.settings.argument_bytes_max)
        digests = {bound.digest}
        if self.settings.codec is not None:
            digests.add(self.payloads("").digest(bound.encoded))
        found: list[OpenIntent] = []
        for branch, operation in of_tool:
            if operation.digest in digests:
                view = self.duty.branch_view(branch)
                intents = [intent for intent in operation.intents if intent.state in OPEN_STATES]
                found += [self._open_intent(branch, view, operation, intent) for intent in intents]
        return found

    def _open_intent(self, branch: str, view: BranchView, operation: Operation, intent: Intent) -> OpenIntent:
        dispatches = [d for d in operation.dispatches if d.attempt == intent.attempt]
        calling = view.owner_lives and intent.attempt == view.branch.attempt and operation.calling(intent.attempt)
        todo = self._todo(operation, view)
        return OpenIntent(
            intent_id=IntentId.of(branch, intent.attempt, operation.step),
            seq=operation.last_seq,
            tool=operation.tool,
            effect=operation.declaration.kind,
            state=intent.state,
            dispatched_at=_time(dispatches[-1].at.wall_ns) if dispatches else None,
            calling=calling,
            in_doubt=intent.state is State.DISPATCHED and not calling and todo in UNSETTLED,
            resolution=todo,
            contradicts=operation.contradicts,
            not_before=self._may_land_until(operation, view),
        )

    def _may_land_until(self, operation: Operation, view: BranchView) -> datetime | None:
        """Until when a call of it may still land; None if that is past, or nothing was dispatched."""
        if not operation.open_dispatches:
            return None
        certain = self.store.death_is_certain
        wait_ns = recovery.trust(operation, self._declared(operation), view.branch, view.now, certain=certain).wait_ns
        return _time(view.now.wall_ns + wait_ns) if wait_ns else None

    def _todo(self, operation: Operation, view: BranchView) -> Resolution:
        """What is to be done about an operation now, by what was declared and what this program declares."""
        if self.tools.declaration_of(operation.tool) is None:
            return recovery.resolution_untold(operation, view.branch, view.now)
        return recovery.resolution(operation, self._declared(operation), view.branch, view.now)

    def _declared(self, operation: Operation) -> Declaration:
        now = self.tools.declaration_of(operation.tool)
        return stricter(operation.declaration, now) if now else operation.declaration

    def contradictions(self) -> list[IntentId]:
        """The operations of which a late outcome says other than what was settled."""
        return [
            IntentId.of(branch, operation.intents[-1].attempt, operation.step)
            for branch, operation in self.store.contradictions()
        ]

    def unfinished(self) -> list[Unfinished]:
        """The branches that a supervisor should run again."""
        self.duty.flush()
        found: list[Unfinished] = []
        for branch, row in self.store.branches(unfinished_only=True):
            view = self.duty.branch_view(branch)
            todo = [self._todo(operation, view) for operation in view.operations if operation.open_dispatches]
            doubtful = any(one in UNSETTLED for one in todo)
            if not view.busy and not row.cancelled and (row.end is None or not doubtful):
                found.append(Unfinished(branch, row.attempt, row.end))
        return found

    def abandoned(self, but: Collection[tuple[str, int]]) -> list[Unfinished]:
        """The attempts that owners of other processes died with, but for those of these branches and numbers.

        Asked often, and beside many that live: so it is seen once of each owner whether it does.
        """
        lives = {self.store.owner: True}
        found: list[Unfinished] = []
        for branch, row in self.store.branches(unfinished_only=True):
            if row.end is not None or (branch, row.attempt) in but:
                continue
            owner = row.owner.partition(".")[0]
            if owner not in lives:
                lives[owner] = self.duty.branch_view(branch).owner_lives
            if not lives[owner]:
                found.append(Unfinished(branch, row.attempt, None))
        return found

    def history(self, branch: str, after: int = 0) -> Iterator[Entry]:
        """The records of a branch, oldest first; those after this `seq`."""
        self.duty.flush(check_name("branch", branch, slash=True))
        yield from map(self._entry, self.store.history(branch, after=after))

    def tail(self, count: int, after: int | None) -> list[Entry]:
        """The newest records of the whole log, oldest first: `count` of them, or all after the record `after`."""
        if type(count) is not int or count < 0 or (after is not None and (type(after) is not int or after < 0)):
            raise ArgumentsNotRecordable("tail takes a count and a seq, each 0 or more", remedy="mend the call.")
        self.duty.flush()
        newest = self.store.newest_seq()
        first = max(0, newest - count) if after is None else min(after, newest)
        if after is None:
            while first and self.store.count(first, newest) < count:
                first = max(0, newest - 2 * (newest - first))  # places have gaps: look as far back once more
        entries = [self._entry(stored) for stored in self.store.history(None, after=first)]
        return entries[-count:] if after is None and count else entries

    def _entry(self, stored: Stored) -> Entry:
        payload: Any = None
        if stored.payload is not None:
            try:
                plain = self.payloads(stored.branch).opened(stored.payload)
                if codec.is_nested_too_deeply(plain):
                    raise LogDamaged(f"the payload of record {stored.seq} cannot be read: it is nested too deeply")
                payload = msgspec.json.decode(plain)
            except msgspec.MsgspecError as error:
                if not stored.payload.startswith(SEALED):
                    raise LogDamaged(f"the payload of record {stored.seq} cannot be read: {error}") from error
                payload = Sealed(len(stored.payload))  # opened with another key, say
            except ValueError:
                payload = Sealed(len(stored.payload))
        kind = type(stored.record).__name__
        return Entry(stored.seq, kind, _time(stored.at.wall_ns), stored.record, payload, stored.branch)

    def verify(self, progress: Progress | None = None) -> Report:
        """Hold the whole log against its file's own check, its chains, the rules and the invariants."""
        self.duty.flush()
        newest = self.store.newest_seq()
        verifying = Verifying(newest, self.store.count(0, newest), progress)
        verifying.add("", self.store.integrity())
        try:
            for whole in self.store.whole_branches():
                verifying.branch(whole, self.store.salt)
        except LogDamaged as damage:
            verifying.add("", [damage.message])
        return verifying.report()


def _time(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC)
