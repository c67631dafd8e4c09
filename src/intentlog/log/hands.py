"""How a driver reaches one tool: with its arguments bound, its deadline set, and the guard's mark on the context."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import starmap
from typing import Any, cast

from intentlog.core import actions
from intentlog.core.actions import IntentId
from intentlog.core.codec import NotRecordable
from intentlog.core.records import Answer
from intentlog.errors import ToolMisdefined
from intentlog.log.binding import Bound
from intentlog.log.declare import VAULT, AnyTool
from intentlog.log.sealing import Payloads
from intentlog.log.secrecy import describe
from intentlog.log.values import Applied, Call, NotApplied, Unknown
from intentlog.run.hands import Found, Made

running: ContextVar[tuple[IntentId, ...]] = ContextVar("intentlog_running", default=())
"""The intents whose tools run in this context, outermost first."""


class ToolHands:
    """Reaches one tool for one guarded call, or, without `bound`, its probe for a recovery."""

    __slots__ = ("_bound", "_called", "_payloads", "_tool", "is_async", "time_limit_s")

    def __init__(self, handle: AnyTool, bound: Bound | None, payloads: Payloads) -> None:
        self._tool = handle
        self._bound = bound
        self._payloads = payloads
        self._called = False
        self.is_async = handle.is_async
        self.time_limit_s = handle.time_limit_s

    def call(self, action: actions.Call, box: Made) -> None:
        """See `run.hands.Hands.call`."""
        # In a context of its own, so that whatever interrupts it the mark does not stay behind.
        copy_context().run(self._call_marked, action, box)

    def _call_marked(self, action: actions.Call, box: Made) -> None:
        running.set((*running.get(), action.intent_id))
        args, kwargs = self._arguments(action)
        VAULT.call_into(self._tool, action, box, args, kwargs)
        _check_begun(self._tool, box)

    async def call_async(self, action: actions.Call) -> Any:
        """See `run.hands.Hands.call_async`."""
        token = running.set((*running.get(), action.intent_id))
        try:
            args, kwargs = self._arguments(action)
            value = await VAULT.call(self._tool, action, *args, **kwargs)
            _check_result(self._tool, value)
            return value
        finally:
            running.reset(token)

    def probe(self, action: actions.Probe, recorded: bytes | None) -> Any:
        """See `run.hands.Hands.probe`."""
        prober = self._tool.prober
        if prober is None:
            return Found(Answer.UNKNOWN, None, describe(ToolMisdefined(f"{self._tool.name} has no probe")))
        try:
            args, kwargs = self._probe_arguments(action, recorded, takes_call=prober.takes_call)
            asked = partial(prober.function, *args, **kwargs)
            if inspect.iscoroutinefunction(prober.function):
                return self._probe_async(action, asked)
            # Marked as a tool is: a probe that calls what it is asked about would wait for itself.
            answer = copy_context().run(_marked, action.intent_id, asked)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a probe that raises has not told anything
            return Found(Answer.UNKNOWN, None, describe(error, self._secrets))
        return self._probe_async(action, lambda: answer) if inspect.iscoroutine(answer) else self._found(answer)

    async def _probe_async(self, action: actions.Probe, asked: Callable[[], Any]) -> Found:
        token = running.set((*running.get(), action.intent_id))
        try:
            async with _timeout(self._tool.time_limit_s):
                answer = await asked()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a probe that raises has not told anything
            return Found(Answer.UNKNOWN, None, describe(error, self._secrets))
        finally:
            running.reset(token)
        return self._found(answer)

    def _found(self, answer: object) -> Found:
        match answer:
            case Applied():
                found = cast("Applied[object]", answer)
                if not found.has_value:
                    return Found(Answer.APPLIED)
                try:
                    return Found(Answer.APPLIED, self._payloads.value(found.value, self._unwritten))
                except NotRecordable as error:
                    return Found(Answer.APPLIED, None, describe(error, self._secrets))
            case NotApplied():
                return Found(Answer.NOT_APPLIED)
            case Unknown():
                return Found(Answer.UNKNOWN)
            case _:
                got = f"the class {answer.__name__}" if isinstance(answer, type) else type(answer).__name__
                wrong = ToolMisdefined(f"the probe returned {got}, not Applied, NotApplied or Unknown")
                return Found(Answer.UNKNOWN, None, describe(wrong))

    @property
    def _secrets(self) -> frozenset[str]:
        return self._bound.secrets if self._bound else frozenset()

    @property
    def _unwritten(self) -> frozenset[str]:
        return self._bound.unwritten if self._bound else frozenset()

    def _call_of(self, intent: IntentId, request_id: str, dispatch_no: int) -> Call:
        deadline = time.monotonic() + self._tool.time_limit_s
        return Call(request_id, intent, dispatch_no, deadline)

    def _arguments(self, action: actions.Call) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._bound is None:
            msg = "a recovery calls no tool"
            raise AssertionError(msg)
        args, kwargs = self._bound.args, self._bound.kwargs
        if self._called:  # a repeat goes out with the recorded arguments, whatever the first call did to them
            args, kwargs = self._tool.signature.as_recorded(self._bound)
        self._called = True
        if self._tool.signature.takes_call:
            args = (self._call_of(action.intent_id, action.request_id, action.dispatch_no), *args)
        return args, kwargs

    def _probe_arguments(
        self, action: actions.Probe, recorded: bytes | None, *, takes_call: bool
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._bound is not None:
            args, kwargs = self._tool.signature.as_recorded(self._bound)
        else:
            bound = self._tool.signature.from_record(self._payloads.opened(recorded or b"{}"))
            args, kwargs = bound.args, bound.kwargs
        if takes_call:
            args = (self._call_of(action.intent_id, action.request_id, action.dispatch_no), *args)
        return args, kwargs


def _timeout(seconds: float) -> AbstractAsyncContextManager[object]:
    from asyncio import timeout

    return timeout(seconds)


def _marked(intent: IntentId, function: Callable[[], Any]) -> Any:
    running.set((*running.get(), intent))
    return function()


def _check_begun(handle: AnyTool, box: Made) -> None:
    """Refuse what a plain tool returned, if it is no result but the promise of one.

    What the tool did before it returned it, nobody knows: that proves nothing.

    Raises:
        ToolMisdefined: it is a coroutine or generator.
    """
    try:
        _check_result(handle, box.values[0])
    except ToolMisdefined:
        box.values.clear()
        raise


_PROMISES = (Awaitable, Generator, AsyncGenerator, map, filter, starmap)


def _check_result(handle: AnyTool, value: object) -> None:
    """Refuse what is no result but the promise of one: a coroutine, a future, a generator or `map` that did not begin.

    Raises:
        ToolMisdefined: it is.
    """
    kind = type(value)
    if not issubclass(kind, _PROMISES) and not hasattr(kind, "add_done_callback"):
        return
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that it was never awaited
    raise ToolMisdefined(
        f"{handle.name} returned a {kind.__name__}, which is no result",
        remedy="make the tool an `async def`, await what it calls, or let it return its result.",
    )


class RecoveryHands:
    """Reaches the probes of the tools that this program has, and calls none of them."""

    is_async = False
    time_limit_s = 0.0

    def __init__(self, tool_of: Callable[[str], AnyTool | None], payloads_of: Callable[[str], Payloads]) -> None:
        self._tool_of = tool_of
        self._payloads_of = payloads_of

    def call(self, action: actions.Call, box: Made) -> None:
        """Refuse: a recovery calls no tool."""
        raise AssertionError(action, box)

    def call_async(self, action: actions.Call) -> Coroutine[Any, Any, Any]:
        """Refuse: a recovery calls no tool."""
        raise AssertionError(action)

    def probe(self, action: actions.Probe, recorded: bytes | None) -> Any:
        """Ask the probe of the tool that the record names."""
        handle = self._tool_of(action.tool)
        if handle is None:
            return Found(
                Answer.UNKNOWN, None, describe(ToolMisdefined(f"this program has no tool {action.tool!r}, or several"))
            )
        return ToolHands(handle, None, self._payloads_of(action.intent_id.branch)).probe(action, recorded)
