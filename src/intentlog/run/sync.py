"""The driver on the caller's own thread. Any number of threads may drive scripts at once."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from intentlog import failpoints
from intentlog.core.actions import (
    Action,
    Append,
    Appended,
    Call,
    Fetch,
    Interrupted,
    NotMade,
    Probe,
    Probed,
    Raised,
    Refused,
    ResultT,
    Returned,
    Script,
    Wait,
)
from intentlog.core.records import Answer, ErrorText
from intentlog.errors import LogUnavailable
from intentlog.ports import Clock
from intentlog.run.duty import Duty
from intentlog.run.hands import Found, Hands, Made, NoHands, hindrance, made, probed
from intentlog.run.signals import Signals

NO_HANDS = NoHands()


class SyncDriver:
    """Drives scripts to their end, blocking."""

    def __init__(self, duty: Duty, clock: Clock) -> None:
        self._duty = duty
        self._clock = clock
        self._own = threading.local()  # whether this thread is between two steps of a script

    def check_not_driving(self) -> None:
        """Refuse what would wait for this very thread, because it has come in between two steps of a call.

        A signal handler, or what the garbage collector runs: a `__del__`, a generator that it closes.

        Raises:
            LogUnavailable: nothing was written. Not raised inside a tool or a probe, where a call is a nested one.
        """
        if getattr(self._own, "driving", False):
            raise LogUnavailable(
                "the log is in use by the code that this signal handler or finalizer interrupted; nothing was written",
                remedy="let a handler set a flag or raise; close what holds an attempt before it is given up.",
            )

    def run(self, script: Script[ResultT], hands: Hands = NO_HANDS) -> ResultT:
        """Drive a script and return its result. Raises what the script raises.

        A signal whose handler raises is told to the script where an append's fate is known, else when it has ended: its
        result is then in the log, and not returned.
        """
        try:
            self.check_not_driving()
        except LogUnavailable:
            script.close()
            raise
        signals = Signals()
        signals.hold()
        self._own.driving = True
        try:
            return self._drive(script, hands, signals)
        except Interrupted as interrupted:  # a script that has nothing to add to it
            raise interrupted.cause from None
        finally:
            try:
                script.close()  # runs the script's own code, and can fail as that can, for want of memory too
            finally:
                self._own.driving = False
                signals.release()

    def _drive(self, script: Script[ResultT], hands: Hands, signals: Signals) -> ResultT:
        try:
            action = next(script)
            while True:
                try:
                    reply = self._do(action, hands, signals)
                    self._deliver(signals, action, reply)
                except BaseException as error:  # noqa: BLE001 - the script decides what an error means
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # a script's result type is checked where it is written

    def _deliver(self, signals: Signals, action: Action, reply: Any) -> None:
        if not signals.are_waiting or isinstance(action, Call):
            return  # of a call the outcome comes first
        try:
            signals.deliver()
        except BaseException as cause:
            if isinstance(action, Append):
                raise Interrupted([reply] if isinstance(reply, Appended | Refused) else None, cause) from None
            raise

    def _do(self, action: Action, hands: Hands, signals: Signals) -> Any:
        if isinstance(action, Append):
            return self._duty.append(action)
        match action:
            case Call():
                return self._call(action, hands, signals)
            case Probe():
                return self._probe(action, hands, signals)
            case Wait(duration_ns):
                raised = signals.outside(lambda: time.sleep(duration_ns / 1e9))
                if raised is not None:
                    raise raised
                return None
            case _:
                return self._duty.do(action)

    def _call(self, action: Call, hands: Hands, signals: Signals) -> Returned | Raised | NotMade:
        hindered = hindrance(action, self._clock, self._duty.store)
        if hindered:
            return hindered
        box = Made()
        raised = signals.outside(lambda: self._inside(lambda: hands.call(action, box)))
        reply = made(action, box, raised)
        if raised is not None and not isinstance(reply, Raised):
            signals.keep(raised)  # it came before the call, or after it
        failpoints.reached(failpoints.AFTER_CALL)
        return reply

    def _inside(self, function: Callable[[], None]) -> None:
        """Run user's code, which may use the log: what it calls is nested, and does not wait for this thread."""
        self._own.driving = False
        try:
            function()
        finally:
            self._own.driving = True

    def _probe(self, action: Probe, hands: Hands, signals: Signals) -> Probed:
        recorded = self._duty.do(Fetch(action.arguments_seq))
        started = self._clock.now()
        answers: list[Found] = []

        def ask() -> None:
            found = hands.probe(action, recorded)
            if inspect.iscoroutine(found):  # an async tool's probe, asked by a program without an event loop
                found = _awaited(found)
            answers.append(found)

        raised = signals.outside(lambda: self._inside(ask))
        if raised is not None:
            raise raised
        return probed(answers[0], started)


def _awaited(coroutine: Coroutine[Any, Any, Found]) -> Found:
    """What an async probe answers; nothing, where this thread's own event loop would have to wait for it."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    return Found(Answer.UNKNOWN, None, ErrorText("ToolMisdefined", "an async probe is asked by an AsyncLog"))
