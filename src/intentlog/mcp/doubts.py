"""Equal calls of one guard: which of them is made, which just ends, and of which another one is the retry."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from intentlog.core.actions import IntentId
from intentlog.core.state import State
from intentlog.errors import InDoubt
from intentlog.log.sync import Log
from intentlog.log.values import OpenIntent
from intentlog.mcp.sending import Sending
from intentlog.mcp.tasks import Tasks
from intentlog.mcp.tools import Handle
from intentlog.mcp.untold import Alike, Untold

OTHERS_POLL_S, ENDING_POLL_S = 0.5, 0.002
LEFT_WAIT_S = 10.0
"""How long a call waits for an equal one whose client is gone, and which another guard is still making."""


class Doubts:
    """The calls that are being made, and those that were, without a stable key. Safe from any thread.

    Args:
        log: the log.
        place: the log, as commands name it.
        lease_s: for how long a dead owner is taken for alive, in seconds.
        tasks: those of the server.
        untold: what nobody was told.
    """

    def __init__(self, log: Log, place: str, lease_s: float, tasks: Tasks, untold: Untold) -> None:
        self._log = log
        self._place = place
        self._lease_s = lease_s
        self._tasks = tasks
        self._untold = untold
        self._under_way: dict[IntentId, Sending] = {}
        self._unsettled: dict[Alike, set[Sending]] = {}  # until it is on record whether they were told
        self._unrecorded: set[IntentId] = set()  # sent, and the log could not take their end
        self._turns: WeakValueDictionary[Alike, Lock] = WeakValueDictionary()
        self._lock = Lock()

    def turn_of(self, alike: Alike) -> Lock:
        """Equal calls look for a doubt one after the other: two of them would both be its retry."""
        with self._lock:
            return self._turns.setdefault(alike, Lock())

    def begin(self, way: Sending) -> None:
        """Let equal calls know of this one, until it is on record whether its client was told."""
        if way.alike is not None:
            with self._lock:
                self._unsettled.setdefault(way.alike, set()).add(way)

    def end(self, way: Sending) -> None:
        """It is on record."""
        if way.alike is not None:
            with self._lock:
                left = self._unsettled.get(way.alike, set())
                left.discard(way)
                if not left:
                    self._unsettled.pop(way.alike, None)

    def being_told(self, alike: Alike) -> list[IntentId]:
        """The calls of which clients are just being told."""
        with self._lock:
            return [way.done.intent_id for way in self._unsettled.get(alike, ()) if way.done is not None]

    def sent(self, way: Sending, intent: IntentId) -> None:
        """A call is about to be sent."""
        self._under_way[intent] = way
        self._unrecorded.discard(intent)

    def came_back(self, way: Sending) -> None:
        """A call is not being made any more."""
        if way.about is not None:
            self._under_way.pop(way.about.intent_id, None)

    def is_unrecorded(self, way: Sending) -> None:
        """The log could not take a call's end."""
        if way.about is not None:
            self._unrecorded.add(way.about.intent_id)

    def of(self, own: Sending, handle: Handle, given: tuple[Any, ...]) -> OpenIntent | None:
        """An equal call that may have been sent, and of which nobody will be told any more: this is its retry.

        It is waited for where it just ends, and for a while where another guard is making it whose client is gone. In
        PostgreSQL a dead guard is taken for alive until its lease has run out: a call that another one seems to be
        making is waited for so long.

        Raises:
            InDoubt: there is one, and this guard cannot go on with it now. And what the log raises.
        """
        begun_s = time.monotonic()
        while True:
            found = [one for one in self._log.open_calls(handle, *given) if one.state == State.DISPATCHED]
            self._untold.read()
            for one in found:
                if one.intent_id in self._unrecorded and one.calling:
                    raise self.told_of(one)
                if not one.calling and not self._tasks.is_living(one.intent_id):
                    return one
            ways = {one.intent_id: self._under_way.get(one.intent_id) for one in found}
            waited_s = time.monotonic() - begun_s
            if waited_s < LEFT_WAIT_S and self._just_ends(own, ways):
                time.sleep(ENDING_POLL_S)
                continue
            for one in found:
                way = ways[one.intent_id]
                if way is not None and way.is_left and way is not own:
                    return one
                if way is None and self._untold.is_left(one.intent_id) and waited_s > LEFT_WAIT_S:
                    raise self.told_of(one)
            is_left = any(way is None and self._untold.is_left(intent) for intent, way in ways.items())
            if not is_left and (None not in ways.values() or waited_s > self._lease_s):
                return None
            time.sleep(OTHERS_POLL_S)

    def _just_ends(self, own: Sending, open_ways: Mapping[IntentId, Sending | None]) -> bool:
        """Whether the end of an equal call is just being recorded, or that nobody was told of it."""
        with self._lock:
            others = [way for way in self._unsettled.get(own.alike or ("", ""), ()) if way is not own]
        sent = [way for way in others if way.about is not None]
        return any(
            way.is_given_up or (way.is_left and way.about and way.about.intent_id not in open_ways) for way in sent
        )

    def told_of(self, doubt: OpenIntent) -> InDoubt:
        """What a call is told of the doubt that it is the retry of."""
        when = f" at {doubt.dispatched_at:%Y-%m-%d %H:%M:%S} UTC" if doubt.dispatched_at else ""
        intent = f"{shlex.quote(self._place)} {shlex.quote(doubt.intent_id)}"
        command = f'intentlog resolve {intent} --landed|--not-landed --by YOU --why "..."'
        return InDoubt(
            f"an equal call was sent{when}, and what became of it was not learnt",
            intent_id=doubt.intent_id,
            effect_ran="unknown",
            remedy=f"a person looks whether it happened, and says so: {command}",
            not_before=doubt.not_before,
        )
