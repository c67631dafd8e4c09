"""Bad input: tools, arguments, results, probes. The table is in `test_bad_input`."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from bad_input import CALLED, MODES, SAID, Face, note, opened, refused

from intentlog import (
    QUERYABLE,
    Applied,
    ArgumentDrift,
    ArgumentsNotRecordable,
    AsyncLog,
    Call,
    InDoubt,
    Log,
    NotApplied,
    OutcomeUnavailable,
    Resolution,
    Settings,
    ToolMisdefined,
    Unknown,
    tool,
)
from intentlog.core import records as r
from intentlog.log.declare import AnyTool

ASKED = QUERYABLE(settle=timedelta(0))
AT_ONCE = timedelta(microseconds=1)  # lets a probe's "not applied" count
SMALL = Settings(argument_bytes_max=100, result_bytes_max=100)


@pytest.fixture(params=MODES)
def face(quick_folder: Path, request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(quick_folder / "log.db", request.param, settings=SMALL) as made:
        yield made
        made.goes_on()


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    return value


# --- arguments ------

BAD_ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "too few": ((), {}, "missing a required argument: 'text'"),
    "too many": (("a", "b"), {}, "too many positional arguments"),
    "an unknown name": (("a",), {"cents": 1}, "unexpected keyword argument 'cents'"),
    "twice": (("a",), {"text": "b"}, "multiple values for argument 'text'"),
    "no value": ((object(),), {}, "objects of type object cannot be recorded"),
    "not finite": ((float("nan"),), {}, "not finite: nan"),
    "infinite, inside": (({"a": [float("-inf")]},), {}, "not finite: -inf"),
    "too large": (("x" * 100,), {}, "bytes, the limit is 100"),
    "cyclic": ((cyclic(),), {}, "cyclic, or nested too deeply"),
    "too deep": ((deep(),), {}, "cyclic, or nested too deeply"),
    "surrogate": (("a\ud800",), {}, "surrogates not allowed"),
}


@pytest.mark.parametrize(("args", "kwargs", "match"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_arguments_that_cannot_be_taken(face: Face, args: Any, kwargs: Any, match: str) -> None:
    """Told in words on both faces, named or unnamed step, call or perform; the next call takes the same step."""
    with face.attempt("order") as attempt:
        for use in (attempt.call, attempt.perform, attempt.step("s").call, attempt.step("s").perform):
            with refused(face, ArgumentsNotRecordable, f"^the arguments .*{match}"):
                face.wait(use(note, *args, **kwargs))
        outcome = face.wait(attempt.perform(note, "good"))
        assert (outcome.value, outcome.replayed, outcome.intent_id.step) == ("good", False, "bad-input-note")


# --- results ------

UNSTORABLE = {"object": object(), "nan": float("nan"), "too large": "x" * 200, "cyclic": cyclic(), "deep": deep()}


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_a_result_that_cannot_be_stored(face: Face, value: Any) -> None:
    """Done, without a value: handed to its caller; a replay is OutcomeUnavailable until one is supplied."""
    calls: list[int] = []

    @tool(name="bad-input-unstorable")
    def give() -> Any:
        calls.append(1)
        return value

    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("s").call(give)) is value
    (committed,) = [one.record for one in face.do(lambda log: log.history("order")) if one.kind == "Committed"]
    assert committed.value_missing
    with face.attempt("order") as attempt, refused(face, OutcomeUnavailable, "value", ran="yes", intent="order#2/s"):
        face.wait(attempt.step("s").call(give))
    with refused(face, ArgumentsNotRecordable, "the value cannot be recorded"):
        face.do(lambda log: log.supply("order#1/s", value, **SAID))
    face.do(lambda log: log.supply("order#1/s", "good", **SAID))
    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("s").call(give)) == "good"
    assert calls == [1]


# --- tools ------


def plain(text: str) -> str:
    CALLED.append(text)
    return text


async def coroutine(text: str) -> str:
    CALLED.append(text)
    return text


class Lookalike:
    name = "bad-input-note"


@pytest.mark.parametrize("given", [plain, coroutine, Lookalike(), Lookalike, None, "note", 7, print])
def test_what_is_no_tool(face: Face, given: Any) -> None:
    """A plain function would be an effect without a declaration: ToolMisdefined shows what was given."""
    with face.attempt("order") as attempt:
        for use in (attempt.call, attempt.perform, attempt.step("s").call, attempt.step("s").perform):
            with refused(face, ToolMisdefined, "is not a tool"):
                face.wait(use(given, "x"))


def test_an_async_tool_on_the_plain_log(quick_folder: Path) -> None:
    """Refused with the face that takes it; no coroutine is left behind unawaited."""
    handle: Any = tool(name="bad-input-async")(coroutine)
    with opened(quick_folder / "log.db", "sync") as face:
        with face.attempt("order") as attempt, refused(face, ToolMisdefined, "bad-input-async is async"):
            attempt.call(handle, "x")
        face.goes_on()


def test_a_queryable_tool_without_a_probe(face: Face) -> None:
    """It could only ever be in doubt: refused at the call, with the line to add."""
    handle: Any = tool(name="bad-input-unprobed", effect=ASKED)(plain)
    with face.attempt("order") as attempt, refused(face, ToolMisdefined, "QUERYABLE and has no probe"):
        face.wait(attempt.step("s").call(handle, "x"))


def same_name(number: int) -> AnyTool:
    """Two functions of different names, declared under one."""

    def first(text: str) -> str:
        CALLED.append("first")
        return "first"

    def second(text: str) -> str:
        CALLED.append("second")
        return "second"

    return tool(name="bad-input-twin")((first, second)[number])


def test_two_tools_of_one_name_in_one_log(face: Face) -> None:
    """The second is refused: its records would be taken for the first's. Made anew, the first is the same tool."""
    one, other = same_name(0), same_name(1)
    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("one").call(one, "x")) == "first"
        for step in ("one", "two"):
            with refused(
                face, ToolMisdefined, r"two tools of one name in one log: 'bad-input-twin' is .*first.*second"
            ):
                face.wait(attempt.step(step).call(other, "x"))
        again = same_name(0)
        assert face.wait(attempt.step("two").call(again, "x")) == "first"


def test_the_toolbox_is_the_logs_own(quick_folder: Path) -> None:
    """Another log may have the other tool of that name."""
    one, other = same_name(0), same_name(1)
    with opened(quick_folder / "a.db", "sync") as first, opened(quick_folder / "b.db", "asyncio") as second:
        assert first.call("order", "s", one, "x") == "first"
        assert second.call("order", "s", other, "x") == "second"


def test_another_tool_under_a_recorded_step(face: Face) -> None:
    """ArgumentDrift names both tools, and what was done is told."""
    face.call("order", "s")
    other: Any = tool(name="bad-input-other")(plain)
    with face.attempt("order") as attempt:
        with refused(
            face, ArgumentDrift, "for tool 'bad-input-note', .* 'bad-input-other'", ran="yes", intent="order#2/s"
        ):
            face.wait(attempt.step("s").call(other, "x"))
        with refused(face, ArgumentDrift, "other arguments: text differ", ran="yes", intent="order#2/s"):
            face.wait(attempt.step("s").call(note, "y"))


# --- probes ------


def asked(answer: Callable[..., Any], *, is_async: bool = False, limit: timedelta = AT_ONCE) -> Any:
    """A tool whose call is lost, and whose probe answers so."""

    def lost(call: Call, text: str) -> str:
        raise TimeoutError

    async def lost_on_the_loop(call: Call, text: str) -> str:
        raise TimeoutError

    declared: Any = tool(name="bad-input-asked", effect=ASKED, time_limit=limit)
    handle = declared(lost_on_the_loop if is_async else lost)
    handle.probe(answer)
    return handle


def raises(call: Call, text: str) -> Any:
    raise ValueError("the probe\nfailed")


def unprintable(call: Call, text: str) -> Any:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Unprintable


def other_arguments(text: str, more: int) -> Any:
    pytest.fail("asked")


WRONG_ANSWERS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises, "the probe\nfailed"),
    "unprintable": (unprintable, "its text cannot be had"),
    "True": (lambda call, text: True, "the probe returned bool, not Applied, NotApplied or Unknown"),
    "None": (lambda call, text: None, "the probe returned NoneType"),
    "the class": (lambda call, text: Applied, "the probe returned the class Applied"),
    "other arguments": (other_arguments, "missing 1 required positional argument"),
    "Unknown": (lambda call, text: Unknown(), ""),
}


def typed(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a `Call` first, as the guard sees it."""
    if answer.__name__ != "<lambda>":
        return answer

    def probe(call: Call, text: str) -> Any:
        return answer(call, text)

    return probe


@pytest.mark.parametrize(("answer", "text"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_a_probe_that_does_not_answer(face: Face, answer: Callable[..., Any], text: str) -> None:
    """It has not told anything: UNKNOWN with its error as evidence, the doubt stays, by a call and by recover alike."""
    handle = asked(typed(answer))
    for again in (False, True):
        with face.attempt("order") as attempt, pytest.raises(InDoubt) as caught:
            face.wait(attempt.step("s").call(handle, "x"))
        assert (caught.value.effect_ran, bool(caught.value.remedy)) == ("unknown", True)
        assert face.do(lambda log: log.recover())[0].resolution is Resolution.PROBE
        answers = [e.record for e in face.do(lambda log: log.history("order")) if isinstance(e.record, r.ProbeAnswered)]
        assert [one.answer for one in answers] == ["UNKNOWN"], f"recorded once (again: {again})"
        assert text in (answers[0].error.text if answers[0].error else "")
    before = face.records()
    face.do(lambda log: log.recover())
    assert face.records() == before, "an equal answer is not recorded again"


def test_a_probes_value_that_cannot_be_stored(face: Face) -> None:
    """It happened, that is recorded; its value is not there, and can be supplied."""

    def found(call: Call, text: str) -> Applied[Any]:
        return Applied(object())

    handle = asked(found)
    with face.attempt("order") as attempt, pytest.raises(InDoubt):
        face.wait(attempt.step("s").call(handle, "x"))
    assert face.do(lambda log: log.recover())[0].resolution is Resolution.REPLAY
    with face.attempt("order") as attempt, refused(face, OutcomeUnavailable, "value", ran="yes", intent="order#2/s"):
        face.wait(attempt.step("s").call(handle, "x"))
    face.do(lambda log: log.supply("order#1/s", "found", **SAID))
    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("s").call(handle, "x")) == "found"


def test_a_plain_probe_that_returns_a_coroutine(face: Face) -> None:
    """It is awaited, and counts; nothing is left behind unawaited."""

    async def later() -> Applied[str]:
        return Applied("found")

    def found(call: Call, text: str) -> Any:
        return later()

    handle = asked(found)
    with face.attempt("order") as attempt, pytest.raises(InDoubt):
        face.wait(attempt.step("s").call(handle, "x"))
    with face.attempt("order") as attempt:
        assert face.wait(attempt.step("s").call(handle, "x")) == "found"


def test_an_async_probe_that_never_returns(quick_folder: Path) -> None:
    """At the tool's time limit it is cancelled, and has told nothing."""
    begun: list[int] = []

    async def never(call: Call, text: str) -> NotApplied:
        begun.append(1)
        await asyncio.Event().wait()
        return NotApplied()

    handle = asked(never, is_async=True, limit=timedelta(milliseconds=20))
    with opened(quick_folder / "log.db", "asyncio") as face:
        for _ in range(2):
            with face.attempt("order") as attempt, pytest.raises(InDoubt):
                face.wait(attempt.step("s").call(handle, "x"))
        assert face.do(lambda log: log.recover())[0].resolution is Resolution.PROBE
        answers = [e.record for e in face.do(lambda log: log.history("order")) if isinstance(e.record, r.ProbeAnswered)]
        assert [(one.answer, one.error.type) for one in answers] == [("UNKNOWN", "TimeoutError")]
    assert len(begun) == 2, "by the second call, and by recover"


def test_a_plain_log_asks_an_async_probe_inside_a_loop(quick_folder: Path) -> None:
    """A `Log` used from a coroutine: what cannot be asked here has not answered; no error of asyncio's."""

    async def found(call: Call, text: str) -> Applied[str]:
        return Applied("found")

    handle = asked(found, is_async=True)

    async def main() -> list[Any]:
        async with AsyncLog.open(quick_folder / "log.db") as log, log.attempt("order") as attempt:
            with pytest.raises(InDoubt):
                await attempt.step("s").call(handle, "x")
        with Log.open(quick_folder / "log.db") as log:
            return log.recover()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert asyncio.run(main())[0].resolution is Resolution.PROBE
        gc.collect()  # finds whatever was never awaited
    assert [str(one.message) for one in warned] == []


REENTERING = """
    import faulthandler, signal, sys
    from datetime import timedelta
    from intentlog import QUERYABLE, InDoubt, Log, NotApplied, StepRequired, ToolMisdefined, tool

    signal.alarm(3)

    @tool(effect=QUERYABLE(settle=timedelta(0)), time_limit=timedelta(microseconds=1))
    def push(ref: str) -> str:
        raise TimeoutError

    @push.probe
    def pushed(ref: str) -> NotApplied:
        try:
            log.close() if sys.argv[2] == "close" else attempt.step("s").call(push, ref)
        except (StepRequired, ToolMisdefined) as error:
            print(error.code)
            raise
        return NotApplied()

    with Log.open(sys.argv[1]) as log, log.attempt("order") as attempt:
        for _ in range(2):
            try:
                attempt.step("s").call(push, "main")
            except InDoubt:
                pass
"""


@pytest.mark.parametrize(("what", "said"), [("call", "step_required"), ("close", "tool_misdefined")])
def test_a_probe_that_waits_for_its_own_call(quick_folder: Path, what: str, said: str) -> None:
    """Calling the step that it is asked about, or closing the log: refused, as inside a tool; not a hang."""
    command = [sys.executable, "-c", dedent(REENTERING), str(quick_folder / "log.db"), what]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (child.returncode, child.stdout) == (0, f"{said}\n")


def test_a_probe_that_calls_another_step(face: Face) -> None:
    """A guarded call is nothing that a probe may not make: it is a call like any other, and the doubt is settled."""
    attempts: list[Any] = []

    def looks(call: Call, text: str) -> NotApplied:
        assert isinstance(attempts[-1].step("look").call(note, "seen"), str)
        return NotApplied()

    async def looks_on_the_loop(call: Call, text: str) -> NotApplied:
        assert await attempts[-1].step("look").call(note, "seen") == "seen"
        return NotApplied()

    is_async = face.mode == "asyncio"
    handle = asked(looks_on_the_loop if is_async else looks, is_async=is_async, limit=timedelta(seconds=10))
    with face.attempt("order") as attempt:
        attempts.append(attempt)
        for _ in range(2):
            with pytest.raises(InDoubt):
                face.wait(attempt.step("s").call(handle, "x"))
    steps = [getattr(e.record, "step", "") for e in face.do(lambda log: log.history("order")) if e.kind == "Committed"]
    assert steps == ["look"]
