"""The driver on the caller's own thread. Any number of threads may drive scripts at once."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any

from intentlog import failpoints
from intentlog.core.actions import (
    Action,
    Call,
    Fetch,
    Interrupted,
    NotMade,
    Probe,
    Probed,
    Raised,
    ResultT,
    Returned,
    Script,
    Wait,
)
from intentlog.ports import Clock
from intentlog.run.duty import Duty
from intentlog.run.hands import Hands, NoHands, hindrance, probed

NO_HANDS = NoHands()


class SyncDriver:
    """Drives scripts to their end, blocking."""

    def __init__(self, duty: Duty, clock: Clock) -> None:
        self._duty = duty
        self._clock = clock

    def run(self, script: Script[ResultT], hands: Hands = NO_HANDS) -> ResultT:
        """Drive a script and return its result. Raises what the script raises."""
        try:
            action = next(script)
            while True:
                try:
                    reply = self._do(action, hands)
                except BaseException as error:  # noqa: BLE001 - the script decides what an error means
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except Interrupted as interrupted:  # a script that has nothing to add to it
            raise interrupted.cause from None
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # a script's result type is checked where it is written
        finally:
            script.close()  # a signal between two actions leaves it unfinished: what waits for its end must not wait

    def _do(self, action: Action, hands: Hands) -> Any:
        match action:
            case Call():
                return self._call(action, hands)
            case Probe():
                return self._probe(action, hands)
            case Wait(duration_ns):
                return time.sleep(duration_ns / 1e9)
            case _:
                return self._duty.do(action)

    def _call(self, action: Call, hands: Hands) -> Returned | Raised | NotMade:
        hindered = hindrance(action, self._clock, self._duty.store)
        if hindered:
            return hindered
        try:
            value = hands.call(action)
        except BaseException as error:  # noqa: BLE001 - whatever ended the call is the reply
            reply: Returned | Raised = Raised(error)
        else:
            reply = Returned(value)
        failpoints.reached(failpoints.AFTER_CALL)
        return reply

    def _probe(self, action: Probe, hands: Hands) -> Probed:
        recorded = self._duty.do(Fetch(action.arguments_seq))
        started = self._clock.now()
        found = hands.probe(action, recorded)
        if inspect.iscoroutine(found):  # an async tool's probe, asked by a program without an event loop
            found = asyncio.run(found)
        return probed(found, started)
