"""Holds back the program's signal handlers while a script is between two of its steps, on the main thread.

Python runs a handler between any two bytecodes of the main thread, and what it raises (Ctrl-C's KeyboardInterrupt, a
SystemExit on SIGTERM) would come out of the middle of a script: a value that a tool has returned would miss its record.
So the handlers wait: they run after each append, whose fate is known then, before a call, and after the script; and as
ever during the call itself, a probe and a wait, which may take long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, TypeAlias, cast

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

FIRST_REAL_TIME = 32  # those from here on are for programs among themselves; nobody ends one by them
_NUMBERS = tuple(
    sorted(int(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} if n < FIRST_REAL_TIME)
)
# The module `signal` wraps both to make enums of numbers, which takes twenty times as long as what they do.
_plain = import_module("_signal")
_get: Callable[[int], object] = _plain.getsignal
_set: Callable[[int, Handler], object] = _plain.signal


# What all handlers were when they were last asked for, and which of them are functions: seldom are they others.
_last: tuple[list[object], list[tuple[int, Handler]]] = ([], [])


def _to_hold() -> list[tuple[int, Handler]]:
    global _last  # noqa: PLW0603 - replaced whole, by whichever thread
    handlers, functions = _last
    now = list(map(_get, _NUMBERS))
    if now != handlers:
        pairs = zip(_NUMBERS, now, strict=True)
        functions = [(number, cast("Handler", one)) for number, one in pairs if callable(one)]
        _last = now, functions
    return functions


@contextmanager
def held_back() -> Generator[None]:
    """Let signals wait while the block runs; what their handlers raise is raised at its end."""
    signals = Signals()
    signals.hold()
    try:
        yield
    finally:
        signals.release()


class Signals:
    """The handlers of one script's driver. Used on one thread; on any but the main one it does nothing.

    Attributes:
        are_waiting: whether `deliver` has something to do.
    """

    def __init__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        self._held: dict[int, Handler] = {}
        self._came: dict[int, FrameType | None] = {}
        self._late: BaseException | None = None
        self.are_waiting = False

    def hold(self) -> None:
        """From now on, signals wait. What a handler raises before that is raised here, and nothing is held."""
        if not self._is_main:
            return
        try:
            for number, handler in _to_hold():
                if number not in self._held:
                    self._held[number] = handler
                    _set(number, self._note)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the handlers back, and run those whose signals came. Raises what they raise."""
        if not self._held and not self.are_waiting:
            return
        raised: BaseException | None = None
        while self._held:
            try:
                number, handler = next(iter(self._held.items()))
                if _get(number) == self._note:
                    _set(number, handler)
                del self._held[number]
            except BaseException as error:  # noqa: BLE001 - of a handler that is back: the others come back first
                raised = raised or error
        try:
            self.deliver()
        finally:
            for number in self._came:  # a handler raised before these had their turn
                signal.raise_signal(number)
        if raised is not None:
            raise raised

    def deliver(self) -> None:
        """Run the handlers whose signals came; those that are held stay held. Raises what they raise."""
        try:
            while self._came:
                number, frame = self._came.popitem()
                handler = self._held.get(number) or _get(number)
                if callable(handler):
                    handler(number, frame)
            if self._late is not None:
                late, self._late = self._late, None
                raise late
        finally:
            self.are_waiting = bool(self._came or self._late)

    def outside(self, function: Callable[[], None]) -> BaseException | None:
        """Run what may take long with the handlers in their place; answers what it, or one of them, raised.

        Whatever comes, and however often, signals are held again afterwards.
        """
        raised: list[BaseException] = []
        held = False
        while not held:
            try:
                while not held:
                    held = self._once(function, raised)
            except BaseException as error:  # noqa: BLE001 - a signal beside the lines below: it hid what they met
                hidden = error.__context__
                raised.extend(one for one in (hidden, error) if one is not None and one not in raised)
        if len(raised) > 1:  # a signal after the function raised: both are told
            self.keep(raised[-1])
        return raised[0] if raised else None

    def _once(self, function: Callable[[], None], raised: list[BaseException]) -> bool:
        """Run the function, if this is the first time; then hold. False: something was raised, come again."""
        try:
            if not raised:
                self.release()
                function()
            self.hold()
        except BaseException as error:  # noqa: BLE001 - the caller decides what it means
            raised.append(error)
            return False
        return True

    def keep(self, error: BaseException) -> None:
        """Let this be raised at the next `deliver`: it came too late to undo what was done."""
        self._late = error
        self.are_waiting = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame
        self.are_waiting = True
