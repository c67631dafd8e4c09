"""What a call is given and gives back: refused before anything is recorded, or recorded faithfully (DESIGN 10)."""

import asyncio
import enum
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from intentlog import (
    IDEMPOTENT,
    KEYED,
    QUERYABLE,
    READ,
    UNSAFE,
    Applied,
    ArgumentDrift,
    ArgumentsNotRecordable,
    AsyncLog,
    Attempt,
    Call,
    Durability,
    Fenced,
    InDoubt,
    IntentId,
    IntentLogError,
    Log,
    LogClosed,
    NotApplied,
    NotSent,
    OutcomeUnavailable,
    Rejected,
    Retry,
    Secret,
    Settings,
    StepRequired,
    Suspended,
    ToolMisdefined,
    Volatile,
    tool,
)

BRANCH = "order-1042"
SECRET = "hunter2-TOP-secret"
ZERO = timedelta(0)


@pytest.fixture
def log(quick_folder: Path) -> Iterator[Log]:
    with Log.open(quick_folder / "log.db") as opened:
        yield opened


def written(log: Log, branch: str = BRANCH) -> tuple[Any, ...]:
    """Everything that an append would change."""
    return [(e.seq, e.kind) for e in log.history(branch)], log.counters.commits, log.counters.syncs


def kinds(log: Log, branch: str = BRANCH) -> list[str]:
    return [entry.kind for entry in log.history(branch)]


@tool
def note(text: str) -> str:
    return text


@contextmanager
def refused(log: Log, error: type[IntentLogError], match: str | None = None) -> Iterator[Any]:
    """The block raises this error, says that the effect did not run, and appends nothing."""
    before = written(log)
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert type(caught.value) is error
    assert caught.value.effect_ran == "no"
    assert written(log) == before


def goes_on(attempt: Attempt) -> None:
    """After a refusal the branch is as usable as before."""
    assert attempt.step("goes-on").call(note, "still here") == "still here"


def files_with(text: str, folder: Path) -> list[str]:
    """The files that hold a text: database, WAL, whatever else. Names only, so that a failure is short to read."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(files) > 1, "the WAL is among them"
    return [path.name for path in files if text.encode() in path.read_bytes()]


@dataclass
class Point:
    x: float
    inner: Any = None


class Line(msgspec.Struct):
    a: Point


class Model(pydantic.BaseModel):
    at: datetime
    ratio: float = 0.5


class Colour(enum.Enum):
    RED = "red"


class Step(str, enum.Enum):  # noqa: UP042 - the older kind, whose str() is not its value
    PAY = "pay"


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


UNRECORDABLE = {
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "nan in list": [1.0, [math.nan]],
    "nan in dict": {"a": {"b": math.nan}},
    "nan in tuple": (math.nan,),
    "nan in dataclass": Point(math.nan),
    "nan in struct": Line(Point(math.inf)),
    "nan in pydantic": Model(at=datetime(2026, 1, 1, tzinfo=UTC), ratio=math.nan),
    "nan as key": {math.nan: 1},
    "cycle": cyclic(),
    "cycle in dataclass": Point(1.0, cyclic()),
    "too deep": deep(),
    "too large": "x" * 2_000,
    "lone surrogate": "a\ud800",
    "lone surrogate key": {"\udfff": 1},
    "object": object(),
    "function": lambda: None,
    "lock": threading.Lock(),
    "complex": 1j,
    "generator": (x for x in ()),
    "class": int,
    "file": Path("x"),
}


@pytest.fixture
def small(quick_folder: Path) -> Iterator[Log]:
    with Log.open(
        quick_folder / "log.db", settings=Settings(argument_bytes_max=1_000, result_bytes_max=1_000)
    ) as opened:
        yield opened


# --- arguments that cannot be written down ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["position", "name", "nested"])
@pytest.mark.parametrize("value", UNRECORDABLE.values(), ids=UNRECORDABLE.keys())
def test_what_cannot_be_recorded_is_refused_before_pending(small: Log, value: Any, how: str) -> None:
    """DESIGN 10: what cannot be written down is refused before Pending; nothing is sent, the branch goes on."""
    called = []

    @tool
    def act(value: Any = None, **more: Any) -> None:
        called.append(value)

    args, kwargs = {"position": ((value,), {}), "name": ((), {"value": value}), "nested": ((), {"more": [value]})}[how]
    with small.attempt(BRANCH) as attempt:
        with refused(small, ArgumentsNotRecordable):
            attempt.call(act, *args, **kwargs)
        with refused(small, ArgumentsNotRecordable):
            attempt.step("named").call(act, *args, **kwargs)
        attempt.call(act, "fine")
        goes_on(attempt)
    assert called == ["fine"]
    assert small.verify().ok


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("a",), {}),
        (("a", 1, 2), {}),
        (("a",), {"sent": 1}),
        (("a", 1), {"cents": 1}),
        (("a", 1), {"order_id": "b"}),
        ((), {"order_id": "a"}),
        (("a", 1), {"call": None}),
        (("a", 1), {"": 1}),
    ],
)
@pytest.mark.parametrize("with_call", [False, True])
def test_arguments_that_do_not_fit_are_refused_before_pending(
    log: Log, with_call: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """DESIGN 10 and errors: a wrong count or name is a program's mistake; it costs nothing and sends nothing."""
    if with_call:

        @tool
        def charge(call: Call, order_id: str, cents: int) -> None:
            pytest.fail("called")
    else:

        @tool
        def charge(order_id: str, cents: int) -> None:
            pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        with refused(log, ArgumentsNotRecordable, "do not fit"):
            attempt.call(charge, *args, **kwargs)
        goes_on(attempt)


def test_the_limit_of_arguments_is_a_setting(tmp_path: Path) -> None:
    """DESIGN 10: limits are settings; what just fits is taken."""
    with (
        Log.open(tmp_path / "log.db", settings=Settings(argument_bytes_max=20)) as log,
        log.attempt(BRANCH) as attempt,
    ):
        assert attempt.call(note, "x" * (20 - len('{"text":""}'))) == "x" * 9
        with refused(log, ArgumentsNotRecordable, "limit"):
            attempt.call(note, "x" * 10)


def test_the_asyncio_face_refuses_the_same(tmp_path: Path) -> None:
    """DESIGN 13: the awaited face is the same; no bad argument reaches the log through it either."""

    @tool
    async def act(value: Any) -> Any:
        return value

    async def main() -> None:
        settings = Settings(argument_bytes_max=1_000)
        async with AsyncLog.open(tmp_path / "log.db", settings=settings) as log, log.attempt(BRANCH) as attempt:
            before = [entry.seq for entry in await log.history(BRANCH)]
            for value in UNRECORDABLE.values():
                with pytest.raises(ArgumentsNotRecordable) as caught:
                    await attempt.call(act, value)
                assert caught.value.effect_ran == "no"
            for args in ((), (1, 2)):
                with pytest.raises(ArgumentsNotRecordable):
                    await attempt.call(act, *args)
            for name in ("", "x" * 256, "a/b", "a\0b", 7):
                with pytest.raises(ArgumentsNotRecordable):
                    await attempt.step(name).call(act, 1)
            assert [entry.seq for entry in await log.history(BRANCH)] == before
            assert await attempt.call(act, 1) == 1

    asyncio.run(main())


# --- names -----------------------------------------------------------------------------------------------------------

BAD_NAMES: dict[str, Any] = {
    "empty": "",
    "256 characters": "x" * 256,
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b[2J",
    "C1 control": "a\x85b",
    "line separator": "a\u2028b",
    "direction override": "a\u202eb",
    "lone surrogate": "\ud800",
    "None": None,
    "int": 7,
    "bytes": b"a",
}
BAD_STEPS = {**BAD_NAMES, "slash": "a/b"}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_branch_that_cannot_be_written_down_is_refused(log: Log, name: Any) -> None:
    """DESIGN 2: a branch is text of 1 to 255 characters without control characters."""
    with refused(log, ArgumentsNotRecordable):
        log.attempt(name)
    with refused(log, ArgumentsNotRecordable):
        log.run(name, lambda attempt: pytest.fail("run"))
    with pytest.raises(ArgumentsNotRecordable):
        list(log.history(name))


@pytest.mark.parametrize("name", BAD_STEPS.values(), ids=BAD_STEPS.keys())
def test_a_step_that_cannot_be_written_down_is_refused(log: Log, name: Any) -> None:
    """DESIGN 2: a step likewise, and without `/`, so that an intent's text can be parsed from the right."""
    with log.attempt(BRANCH) as attempt:
        with refused(log, ArgumentsNotRecordable):
            attempt.step(name).call(note, "x")
        with refused(log, ArgumentsNotRecordable):
            attempt.step(name).perform(note, "x")
        goes_on(attempt)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 255, "a b", "#1", "~2", "日本", "🙂"])
def test_a_name_may_be_anything_else(log: Log, name: str) -> None:
    """DESIGN 2: characters are counted, not bytes; what can be written down is taken, and parsed back."""
    with log.attempt(name) as attempt:
        outcome = attempt.step(name).perform(note, "x")
    assert IntentId(str(outcome.intent_id)) == outcome.intent_id
    assert (outcome.intent_id.branch, outcome.intent_id.attempt, outcome.intent_id.step) == (name, 1, name)
    assert IntentId(str(outcome.intent_id)).step == name


def test_a_branch_may_hold_slashes_and_hashes(log: Log) -> None:
    """DESIGN 2: the text form is parsed from the right, so a branch such as a path or URL works."""
    with log.attempt("a/b#1/c#2") as attempt:
        outcome = attempt.perform(note, "x")
    parsed = IntentId(str(outcome.intent_id))
    assert (parsed.branch, parsed.attempt, parsed.step) == ("a/b#1/c#2", 1, "note")


def test_a_name_that_is_an_enum_is_its_text(log: Log) -> None:
    """DESIGN 2: one identity everywhere: what the outcome names is what the record holds and a person can resolve."""
    with log.attempt(BRANCH) as attempt:
        outcome = attempt.step(Step.PAY).perform(note, "x")
        again = attempt.step("pay").perform(note, "x")
    assert again.replayed
    assert (str(outcome.intent_id), outcome.request_id) == (str(again.intent_id), again.request_id)
    with log.attempt("fresh") as attempt:
        fresh = attempt.step("pay").perform(note, "x").request_id
    with log.attempt(Step.PAY) as attempt:
        enum_branch = attempt.step("pay").perform(note, "x")
    assert fresh != enum_branch.request_id
    assert str(enum_branch.intent_id) == "pay#1/pay"


@pytest.mark.parametrize("value", ["a/b", "", "x" * 300, "a\nb", "\ud800"])
def test_a_template_that_makes_a_bad_step_is_refused(log: Log, value: str) -> None:
    """DESIGN 2: a step from `@tool(step=...)` is held to the same rule, with the arguments of the call."""

    @tool(step="{order_id}")
    def charge(order_id: str) -> None:
        pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        with refused(log, ArgumentsNotRecordable):
            attempt.call(charge, value)
        goes_on(attempt)


@pytest.mark.parametrize("template", ["{order_id.missing}", "{order_id:d}", "{order_id[key]}"])
def test_a_template_that_fails_on_the_arguments_is_a_clear_error(log: Log, template: str) -> None:
    """DESIGN 13: errors are IntentLogError and say whether the effect ran; a bare AttributeError does not."""

    @tool(step=template)
    def charge(order_id: str) -> None:
        pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        with refused(log, ArgumentsNotRecordable):
            attempt.call(charge, "a")
        goes_on(attempt)


# --- tools that cannot work ------------------------------------------------------------------------------------------


def plain(order_id: str, token: Secret[str] = "", session: Volatile[str] = "") -> None:
    pytest.fail("called")


class Methods:
    def method(self, x: int) -> None: ...

    @classmethod
    def of_class(cls, x: int) -> None: ...

    @staticmethod
    def static(x: int) -> None: ...

    def __call__(self, x: int) -> None: ...


def generator(x: int) -> Iterator[int]:
    yield x


async def async_generator(x: int) -> Any:
    yield x


@pytest.mark.parametrize(
    "given",
    [
        Methods.method,
        Methods().method,
        Methods.of_class,
        Methods.__dict__["of_class"],
        Methods.__dict__["static"],
        Methods(),
        Methods,
        generator,
        async_generator,
        partial(plain, "a"),
        print,
        note,
        lambda x: x,
        7,
    ],
    ids=[
        "method", "bound method", "class method", "classmethod", "staticmethod", "callable object", "class",
        "generator", "async generator", "partial", "builtin", "tool", "lambda", "int",
    ],
)  # fmt: skip
def test_only_a_function_defined_with_def_is_a_tool(given: Any) -> None:
    """DESIGN 7: `@tool` takes a function away; of what it cannot take away, or name in a record, it says so at once."""
    with pytest.raises(ToolMisdefined) as caught:
        tool(given)
    assert caught.value.effect_ran == "no"
    with pytest.raises(ToolMisdefined):
        tool(effect=IDEMPOTENT)(given)


@pytest.mark.parametrize(
    "step",
    ["{missing}", "{0}", "{}", "x-{}", "{", "}", "x-{order_id", "{order_id!x}", "{order_id:{missing}}"],
)
def test_a_bad_step_template_is_refused_at_the_definition(step: str) -> None:
    """DESIGN 2: what can never name a step is told when the module is loaded, not at the first call."""
    with pytest.raises(ToolMisdefined) as caught:
        tool(step=step)(plain)
    assert caught.value.effect_ran == "no"


@pytest.mark.parametrize(
    "step", ["{token}", "x-{session}", "{token!r}", "{token[0]}", "{token.real}", "{order_id:{token}}"]
)
def test_a_step_template_may_not_hold_a_secret(step: str) -> None:
    """DESIGN 10: `Secret[...]` is never written anywhere, and a step is written; a volatile one names nothing."""
    with pytest.raises(ToolMisdefined):
        tool(step=step)(plain)


@pytest.mark.parametrize("name", ["a/b", "a\0b", "a\nb", "x" * 256, "\ud800"])
def test_a_tool_name_is_held_to_the_rule_of_steps(log: Log, name: str) -> None:
    """DESIGN 2: an unnamed call's step is the tool's name; it must be one that can be written down and read back."""

    def act(x: int) -> int:
        pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        before = written(log)
        with pytest.raises(IntentLogError) as caught:  # at the definition, or at the call
            attempt.call(tool(name=name)(act), 1)
        assert type(caught.value) in (ToolMisdefined, ArgumentsNotRecordable)
        assert written(log) == before
        goes_on(attempt)


@pytest.mark.parametrize(
    "define",
    [
        lambda: KEYED(window=ZERO),
        lambda: KEYED(window=timedelta(seconds=-1)),
        lambda: QUERYABLE(settle=timedelta(microseconds=-1)),
        lambda: Retry(times=0),
        lambda: Retry(times=-1),
        lambda: Retry(times=1, backoff=timedelta(microseconds=-1)),
        lambda: Settings(dispatch_grace=ZERO),
        lambda: Settings(argument_bytes_max=0),
        lambda: Settings(result_bytes_max=-1),
        lambda: Settings(threads_max=0),
        lambda: tool(time_limit=ZERO)(plain),
        lambda: tool(time_limit=timedelta(seconds=-1))(plain),
        lambda: tool(durability=Durability.EVENTUAL)(plain),
        lambda: tool(effect=IDEMPOTENT, durability=Durability.EVENTUAL)(plain),
        lambda: tool(rejects=("CardDeclined",))(plain),
        lambda: tool(rejects=(ValueError()))(plain),
        lambda: tool(not_sent=KeyboardInterrupt)(plain),
        lambda: tool(not_sent=(ValueError, asyncio.CancelledError))(plain),
    ],
)
def test_a_limit_out_of_its_range_is_refused(define: Callable[[], Any]) -> None:
    """DESIGN 4, 9: an intent's durability cannot be weakened; times are positive; errors are exceptions' types."""
    with pytest.raises(ToolMisdefined) as caught:
        define()
    assert caught.value.effect_ran == "no"


@pytest.mark.parametrize(
    "define",
    [
        lambda: tool(effect=KEYED)(plain),
        lambda: tool(effect="UNSAFE")(plain),
        lambda: tool(effect=None)(plain),
        lambda: tool(time_limit=30)(plain),
        lambda: tool(retry=3)(plain),
        lambda: KEYED(window=3600),
        lambda: QUERYABLE(settle=5),
        lambda: Retry(times=1.5),
        lambda: Retry(times=1, backoff=1),
    ],
    ids=[
        "KEYED not called", "effect a text", "effect None", "time_limit a number", "retry a number", "window a number",
        "settle a number", "half a repeat", "backoff a number",
    ],
)  # fmt: skip
def test_a_declaration_of_the_wrong_type_is_a_clear_error(define: Callable[[], Any]) -> None:
    """DESIGN 13: errors are IntentLogError; `@tool(effect=KEYED)` without its window is told in the user's words."""
    with pytest.raises(ToolMisdefined):
        define()


@pytest.mark.parametrize(
    "declare",
    [
        lambda: tool(effect=KEYED(window=timedelta.max)),
        lambda: tool(time_limit=timedelta.max),
        lambda: tool(effect=QUERYABLE(settle=timedelta.max)),
    ],
    ids=["window", "time limit", "settle"],
)
def test_the_longest_time_is_taken_or_refused_in_words(log: Log, declare: Callable[[], Any]) -> None:
    """DESIGN 13: "for ever" is a plausible window; it works, or the definition says why not; no bare OverflowError."""
    try:
        act = declare()(same_number)
        if act.effect.kind == "QUERYABLE":
            act.probe(lambda x: NotApplied())
    except ToolMisdefined:
        return
    with log.attempt(BRANCH) as attempt:
        assert attempt.call(act, 1) == 1


def same_number(x: int) -> int:
    return x


@pytest.mark.parametrize("effect", [READ, IDEMPOTENT, UNSAFE])
def test_a_probe_where_no_class_asks_it_is_refused(effect: Any) -> None:
    """DESIGN 4: only QUERYABLE and KEYED ask; a probe elsewhere would promise what nobody keeps."""
    act = tool(effect=effect)(same_number)
    with pytest.raises(ToolMisdefined):
        act.probe(lambda x: NotApplied())


def test_an_async_probe_of_a_plain_tool_is_refused() -> None:
    """DESIGN 13: a plain tool is used without an event loop; so its probe is plain."""

    async def asked(x: int) -> NotApplied:
        return NotApplied()

    with pytest.raises(ToolMisdefined):
        tool(effect=QUERYABLE(settle=ZERO))(same_number).probe(asked)


def test_a_queryable_tool_without_a_probe_is_refused_at_the_call(log: Log) -> None:
    """DESIGN 4: QUERYABLE is settled by its probe; without one it could only be in doubt."""
    act = tool(effect=QUERYABLE(settle=ZERO))(same_number)
    with log.attempt(BRANCH) as attempt:
        with refused(log, ToolMisdefined, "probe"):
            attempt.call(act, 1)
        goes_on(attempt)


@pytest.mark.parametrize("given", [plain, lambda: None, print, None, "note", note.probe, Methods().method])
def test_what_is_not_a_tool_is_refused(log: Log, given: Any) -> None:
    """DESIGN 7: an attempt calls tools; a plain function would be an effect without a declaration."""
    with log.attempt(BRANCH) as attempt:
        with refused(log, ToolMisdefined):
            attempt.call(given, "a")
        with refused(log, ToolMisdefined):
            attempt.step("s").perform(given, "a")
        goes_on(attempt)


def test_an_async_tool_on_the_plain_log_is_refused(log: Log) -> None:
    """DESIGN 13: `async def` tools belong to AsyncLog; no coroutine is made and forgotten."""

    @tool
    async def act(x: int) -> int:
        pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        with refused(log, ToolMisdefined, "async"):
            attempt.call(act, 1)
        goes_on(attempt)


def test_a_call_parameter_that_the_guard_cannot_fill_never_makes_a_doubt(log: Log) -> None:
    """DESIGN 13: a *first* parameter annotated Call is filled; one by name only cannot be, so nothing is dispatched."""

    def act(*, call: Call, x: int) -> int:
        return x

    with log.attempt(BRANCH) as attempt:
        try:
            assert attempt.call(tool(act), x=1) == 1
        except (ToolMisdefined, ArgumentsNotRecordable):
            assert kinds(log) == ["AttemptOpened"]


def test_an_unresolvable_annotation_is_told_at_the_definition() -> None:
    """DESIGN 10: values are read back by the annotations, so they must mean something."""

    def act(x: "Nowhere") -> int:  # noqa: F821 - that is the point
        return 1

    with pytest.raises(ToolMisdefined):
        tool(act)


def test_an_attempt_that_is_not_open_calls_nothing(log: Log) -> None:
    """DESIGN 3: a closed attempt can append nothing that is fenced, and one not entered is none yet."""
    attempt = log.attempt(BRANCH)
    with refused(log, LogClosed):
        attempt.call(note, "x")
    with attempt:
        pass
    with refused(log, Fenced):
        attempt.call(note, "x")
    with refused(log, LogClosed), attempt:
        pytest.fail("entered twice")


# --- round trips -----------------------------------------------------------------------------------------------------


def returns(value: Any, of_type: Any) -> Any:
    def give() -> Any:
        return value

    give.__annotations__["return"] = of_type
    return tool(give)


@pytest.mark.parametrize(
    ("value", "of_type"),
    [
        (None, None),
        (b"\x00\xff", bytes),
        (datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=UTC), datetime),
        (Decimal("1.50"), Decimal),
        (uuid.UUID(int=7), uuid.UUID),
        (Colour.RED, Colour),
        (Point(1.5), Point),
        (Line(Point(0.0)), Line),
        (Model(at=datetime(2026, 1, 1, tzinfo=UTC)), Model),
        ({1, 2}, set[int]),
        ((1, "a"), tuple[int, str]),
        ([Point(1.0)], list[Point]),
        ({"a": Decimal("0.10")}, dict[str, Decimal]),
        (1, float),  # 1.0, both times
        ((1, 2), Any),  # a list, both times
        (b"\x00", Any),  # its text, both times
        ({"a": (1,)}, Any),
        (Colour.RED, Any),
        (2**80, int),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_first_run_returns_what_a_replay_returns(log: Log, value: Any, of_type: Any) -> None:
    """DESIGN 10: decoded from what was recorded, by the annotation; the caller cannot come to rely on more."""
    give = returns(value, of_type)
    with log.attempt(BRANCH) as attempt:
        first = attempt.perform(give)
    with log.attempt(BRANCH) as attempt:
        replay = attempt.perform(give)
    assert (first.replayed, replay.replayed) == (False, True)
    assert first.value == replay.value
    assert type(first.value) is type(replay.value)
    if of_type is not Any:
        assert first.value == value
    if of_type not in (Any, float, None):
        assert isinstance(first.value, type(value))


def test_arguments_reach_the_tool_as_they_were_passed(log: Log) -> None:
    """DESIGN 10: a call is made with the caller's own values, whatever form the record gives them."""
    seen: list[Any] = []

    @tool
    def act(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    given = (
        b"x",
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal("1.0"),
        uuid.UUID(int=1),
        Colour.RED,
        Point(1.0),
        {1},
        (1,),
    )
    with log.attempt(BRANCH) as attempt:
        attempt.call(act, *given, name=given)
    assert seen == [(given, {"name": given})]


def test_a_result_is_a_copy(log: Log) -> None:
    """DESIGN 10: what the tool keeps and changes later is not what its caller holds."""
    kept = [1]
    with log.attempt(BRANCH) as attempt:
        value = attempt.call(returns(kept, list[int]))
    kept.append(2)
    assert value == [1]


@pytest.mark.parametrize(
    "value", ["x" * 2_000, math.nan, object(), cyclic(), "\ud800", [iter(())]], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("effect", [UNSAFE, IDEMPOTENT, KEYED(timedelta(hours=1)), READ], ids=lambda e: e.kind)
def test_a_result_that_cannot_be_stored_is_done_without_a_value(small: Log, value: Any, effect: Any) -> None:
    """DESIGN 10: the effect ran; its first caller gets the value, a replay says that it is done and has none."""
    calls = []

    @tool(effect=effect)
    def act() -> Any:
        calls.append(1)
        return value

    with small.attempt(BRANCH) as attempt:
        assert attempt.step("s").call(act) is value
    for _ in range(2):
        with small.attempt(BRANCH) as attempt, pytest.raises(OutcomeUnavailable) as caught:
            attempt.step("s").call(act)
        assert caught.value.effect_ran == "yes"
        assert caught.value.intent_id.endswith("/s")
        assert "supply" in caught.value.remedy
    assert len(calls) == 1
    assert small.verify().ok


def test_a_value_that_no_longer_fits_its_type_is_unavailable(log: Log) -> None:
    """DESIGN 10: a type that changed between two releases does not make the effect run again."""
    calls = []

    def make(returned: Any, of_type: Any) -> Any:
        def act() -> Any:
            calls.append(returned)
            return returned

        act.__annotations__["return"] = of_type
        return tool(act)

    with log.attempt(BRANCH) as attempt:
        attempt.call(make("text", str))
    with log.attempt(BRANCH) as attempt, pytest.raises(OutcomeUnavailable) as caught:
        attempt.call(make(7, int))
    assert caught.value.effect_ran == "yes"
    assert calls == ["text"]


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
def test_an_effect_that_has_not_begun_is_not_recorded_as_done(log: Log, kind: str) -> None:
    """DESIGN 1: "done" is true, and so is "never sent". What a function that hands back a coroutine or generator did
    before that, nobody knows: a doubt.

    This is what `@tool` gets over an async function that another decorator has wrapped.
    """

    async def later() -> None: ...

    made: Any = later() if kind == "coroutine" else (x for x in ())

    @tool
    def act() -> Any:
        return made

    try:
        with log.attempt(BRANCH) as attempt, pytest.raises(InDoubt, match="ToolMisdefined"):
            attempt.call(act)
    finally:
        made.close()
    assert [e.kind for e in log.history(BRANCH)][-2:] == ["CallEnded", "AttemptClosed"]


def test_an_error_that_cannot_be_printed_is_still_an_end(log: Log) -> None:
    """DESIGN 4: anything else that is raised is ambiguous: CallEnded stands, and the caller gets InDoubt."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @tool
    def act() -> None:
        raise Unprintable

    with pytest.raises(InDoubt) as caught, log.attempt(BRANCH) as attempt:
        attempt.call(act)
    assert isinstance(caught.value.__cause__, Unprintable)
    assert "CallEnded" in kinds(log)


def test_a_repeat_is_made_with_the_stored_arguments(log: Log) -> None:
    """DESIGN 4: IDEMPOTENT and KEYED call again with the *stored* arguments, whatever the tool did to its own."""
    seen: list[list[int]] = []

    @tool(effect=IDEMPOTENT, retry=Retry(times=1, backoff=ZERO))
    def act(items: list[int]) -> None:
        seen.append(list(items))
        items.append(99)
        if len(seen) == 1:
            raise ConnectionResetError

    with log.attempt(BRANCH) as attempt:
        attempt.call(act, [1])
    assert seen == [[1], [1]]


def test_an_applied_without_a_value_is_done_without_a_value(log: Log) -> None:
    """DESIGN 10 and `Applied`: the value "if known"; an unknown one is not the value None."""

    @tool(effect=QUERYABLE(settle=ZERO))
    def push(sha: str):
        raise ConnectionResetError

    push.probe(lambda sha: Applied())
    with pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        attempt.call(push, "a")
    with log.attempt(BRANCH) as attempt, pytest.raises(OutcomeUnavailable) as caught:
        attempt.call(push, "a")
    assert caught.value.effect_ran == "yes"


def test_a_recovery_asks_the_probe_with_the_arguments_of_the_record(log: Log) -> None:
    """DESIGN 5: `log.recover()` lets known tools' probes answer, with every kind of parameter, as annotated."""
    asked: list[Any] = []

    @tool(effect=QUERYABLE(settle=ZERO))
    def send_all(at: datetime, /, *files: bytes, limit: Decimal = Decimal("1.50"), **more: uuid.UUID) -> None:
        raise ConnectionResetError

    @send_all.probe
    def sent_all(at: datetime, /, *files: bytes, limit: Decimal = Decimal("1.50"), **more: uuid.UUID) -> Applied[None]:
        asked.append((at, files, limit, more))
        return Applied(None)

    given = (datetime(2026, 1, 1, tzinfo=UTC), b"a", b"b")
    with pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        attempt.call(send_all, *given, one=uuid.UUID(int=1))
    log.recover()
    assert asked == [(given[0], given[1:], Decimal("1.50"), {"one": uuid.UUID(int=1)})]


# --- secrets ---------------------------------------------------------------------------------------------------------


class Refused(Exception):
    pass


class Down(Exception):
    pass


@pytest.mark.parametrize("error", [None, ValueError, Refused, Down, Rejected, NotSent, Suspended, KeyError, OSError])
@pytest.mark.parametrize("effect", [UNSAFE, IDEMPOTENT, READ], ids=lambda e: e.kind)
def test_a_secret_is_never_written(tmp_path: Path, effect: Any, error: Any) -> None:
    """DESIGN 10: `Secret[...]` is never written anywhere, and masked in every text that is kept."""

    @tool(effect=effect, rejects=Refused, not_sent=Down)
    def login(user: str, password: Secret[str]) -> str:
        if error is not None:
            raise error(f"cannot log {user} in with {password}")
        assert password == SECRET
        return "in"

    shown = [repr(login)]
    with Log.open(tmp_path / "log.db") as log:
        try:
            with log.attempt(BRANCH) as attempt:
                outcome = attempt.perform(login, "ada-lovelace", password=SECRET)
                shown += [repr(outcome), repr(attempt)]
        except IntentLogError as answer:
            if answer.intent_id:  # the guard's; a READ's own error reaches its caller as it is
                shown += [repr(answer), str(answer), repr(vars(answer))]
            else:
                assert effect is READ
        except (ValueError, Down, LookupError, OSError):
            assert effect is READ, "only a READ's own error reaches its caller as it is"
        shown += [repr(entry) for entry in log.history(BRANCH)] + [repr(log.recover()), repr(log.open_intents())]
    assert not [text for text in shown if SECRET in text]
    assert files_with("ada-lovelace", tmp_path) or effect is READ, "a control: what is no secret is there"
    assert not files_with(SECRET, tmp_path)


def test_a_secret_in_an_error_that_leaves_the_block_is_masked(tmp_path: Path) -> None:
    """DESIGN 4: masked in *every* text that is kept, the one that AttemptClosed keeps of what left the block too."""

    @tool
    def login(password: Secret[str]) -> None:
        raise ValueError(password)

    with Log.open(tmp_path / "log.db") as log, pytest.raises(ValueError, match=SECRET), log.attempt(BRANCH) as attempt:
        try:
            attempt.call(login, SECRET)
        except InDoubt as doubt:
            raise doubt.__cause__ from None  # what a program does that wants the tool's own error
    assert not files_with(SECRET, tmp_path)


@dataclass
class Credentials:
    user: str
    password: str


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (f"{SECRET}\n\\'x", repr),
        (SECRET.encode(), lambda s: s.decode()),
        (Credentials("ada", SECRET), lambda s: s.password),
        ({"password": SECRET}, lambda s: s["password"]),
        ([SECRET], lambda s: s[0]),
    ],
    ids=["quoted", "bytes", "dataclass", "dict", "list"],
)
def test_a_secret_is_masked_in_whatever_form_an_error_tells_it(tmp_path: Path, secret: Any, text: Any) -> None:
    """DESIGN 4: the *values* of Secret arguments are masked, those inside one and those that repr() writes too."""

    @tool
    def login(credentials: Secret[Any]) -> None:
        raise ValueError(f"refused: {text(credentials)}")

    with Log.open(tmp_path / "log.db") as log, pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        attempt.call(login, secret)
    assert not files_with(SECRET, tmp_path)


def test_a_secret_that_begins_like_another_is_masked_whole(tmp_path: Path) -> None:
    """DESIGN 4: of two secrets, one the other's beginning, no tail is left, in whatever order they are masked."""

    @tool
    def login(a1: Secret[str], b1: Secret[str], a2: Secret[str], b2: Secret[str], a3: Secret[str], b3: Secret[str]):
        raise ValueError(a1, b1, a2, b2, a3, b3)

    pairs = [(f"key{n}", f"key{n}{SECRET}") for n in range(3)]
    with Log.open(tmp_path / "log.db") as log, pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        attempt.call(login, *(secret for pair in pairs for secret in pair))
    with Log.open(tmp_path / "log.db") as log, pytest.raises(InDoubt), log.attempt("turned") as attempt:
        attempt.call(login, *(secret for pair in pairs for secret in reversed(pair)))
    assert not files_with(SECRET, tmp_path)


@dataclass
class Account:
    user: str
    password: Secret[str]


@pytest.mark.parametrize("where", ["or None", "in a list", "in a dataclass", "variadic", "by name", "returned"])
def test_a_secret_inside_another_type_is_refused_or_hidden(tmp_path: Path, where: str) -> None:
    """DESIGN 10: `Secret[...]` is never written anywhere: where the guard cannot keep that, it refuses the tool."""

    def optional(secret: Secret[str] | None) -> None: ...
    def listed(secret: list[Secret[str]]) -> None: ...
    def inside(secret: Account) -> None: ...
    def variadic(*secret: Secret[str]) -> None: ...
    def by_name(**secret: Secret[str]) -> None: ...
    def returned(secret: Secret[str]) -> Secret[str]:
        return secret

    function, args, kwargs = {
        "or None": (optional, (SECRET,), {}),
        "in a list": (listed, ([SECRET],), {}),
        "in a dataclass": (inside, (Account("ada", SECRET),), {}),
        "variadic": (variadic, (SECRET,), {}),
        "by name": (by_name, (), {"password": SECRET}),
        "returned": (returned, (SECRET,), {}),
    }[where]
    with Log.open(tmp_path / "log.db") as log, log.attempt(BRANCH) as attempt, suppress(ToolMisdefined):
        attempt.call(tool(function), *args, **kwargs)
    assert not files_with(SECRET, tmp_path)


def test_a_secret_is_not_part_of_the_identity(log: Log) -> None:
    """DESIGN 10: `Secret` is left out of the digest: a rotated password is the same operation, and is used."""
    seen = []

    @tool(effect=IDEMPOTENT)
    def login(user: str, password: Secret[str]) -> str:
        seen.append(password)
        if password == "old":
            raise ConnectionResetError
        return "in"

    with pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
        attempt.call(login, "ada", "old")
    with log.attempt(BRANCH) as attempt:
        assert attempt.call(login, "ada", "new") == "in"
        assert attempt.call(login, "ada", "newest") == "in"
    assert seen == ["old", "new", "newest"]


# --- identity --------------------------------------------------------------------------------------------------------


def test_case_13_a_fresh_token_is_the_same_charge(tmp_path: Path) -> None:
    """Field case 13: a short-lived token among the arguments is `Volatile`: a retry with a fresh one is one charge."""
    keys: list[tuple[str, str]] = []

    @tool(effect=KEYED(window=timedelta(hours=24)), step="charge-{order_id}")
    def charge(call: Call, order_id: str, token: Volatile[str]) -> str:
        keys.append((call.request_id, token))
        if token == "stale-token":
            raise ConnectionResetError
        return "paid"

    with Log.open(tmp_path / "log.db") as log:
        with pytest.raises(InDoubt), log.attempt(BRANCH) as attempt:
            attempt.call(charge, "7", "stale-token")
        with log.attempt(BRANCH) as attempt:
            assert attempt.call(charge, "7", token="fresh-token") == "paid"
        with log.attempt(BRANCH) as attempt:
            outcome = attempt.perform(charge, "7", token="another-token")
    assert outcome.replayed
    assert [token for _, token in keys] == ["stale-token", "fresh-token"]
    assert {key for key, _ in keys} == {outcome.request_id}
    assert not files_with("stale-token", tmp_path)
    assert not files_with("fresh-token", tmp_path)


def test_case_04_another_order_of_steps_gets_its_own_outcomes_or_drift(log: Log) -> None:
    """Field case 4: a resume skips a step: each call gets its own outcome; changed arguments: ArgumentDrift."""
    calls: list[str] = []

    @tool
    def fetch(name: str) -> str:
        calls.append(name)
        return f"got {name}"

    with log.attempt(BRANCH) as attempt:
        for name in ("a", "b", "c"):
            attempt.step(f"fetch-{name}").call(fetch, name)
        attempt.call(fetch, "x")
        attempt.call(fetch, "y")
    with log.attempt(BRANCH) as attempt:
        assert attempt.step("fetch-c").call(fetch, "c") == "got c"
        assert attempt.step("fetch-a").call(fetch, "a") == "got a"
        with refused_drift(log, "fetch-b"):
            attempt.step("fetch-b").call(fetch, "B")
        with refused_drift(log, "fetch"):
            attempt.call(fetch, "y")  # the first unnamed one was "x"
        assert attempt.call(fetch, "x") == "got x"
        assert attempt.call(fetch, "y") == "got y"
    assert calls == ["a", "b", "c", "x", "y"]


@contextmanager
def refused_drift(log: Log, step: str) -> Iterator[None]:
    """ArgumentDrift names the intent and what differs, tells that the recorded effect is done, and appends nothing."""
    before = written(log)
    with pytest.raises(ArgumentDrift) as caught:
        yield
    assert caught.value.intent_id.endswith(f"/{step}")
    assert caught.value.effect_ran == "yes"
    assert "arguments" in str(caught.value)
    assert written(log) == before


@pytest.mark.parametrize(
    ("recorded", "given"),
    [(1, 2), (1, 1.0), (1, True), ("1", 1), (None, ""), ([], {}), ([1, 2], [2, 1]), ({"a": 1}, {"a": 1, "b": None})],
)
def test_a_changed_argument_is_drift(log: Log, recorded: Any, given: Any) -> None:
    """I6: other arguments are an error, never a replay; on every class, before anything is written."""

    def anything(value: Any) -> Any:
        return value

    for effect in (UNSAFE, IDEMPOTENT, READ):
        act = tool(effect=effect, name=f"anything-{effect.kind}")(anything)
        step = f"s-{effect.kind}"
        with log.attempt(BRANCH) as attempt:
            attempt.step(step).call(act, recorded)
            with refused_drift(log, step):
                attempt.step(step).call(act, given)
        with log.attempt(BRANCH) as attempt:
            with refused_drift(log, step):
                attempt.step(step).call(act, given)
            assert attempt.step(step).perform(act, recorded).replayed


def test_another_tool_under_a_recorded_step_is_drift(log: Log) -> None:
    """I6: a step is one tool's; another's outcome is never returned."""

    @tool
    def other(text: str) -> str:
        pytest.fail("called")

    with log.attempt(BRANCH) as attempt:
        attempt.step("s").call(note, "x")
        with pytest.raises(ArgumentDrift, match="other"):
            attempt.step("s").call(other, "x")


def test_how_arguments_are_passed_is_not_drift(log: Log) -> None:
    """DESIGN 10: the digest is over the arguments, by name: by position, by name or by default, they are the same."""
    calls = []

    @tool
    def act(a: int, b: int = 2) -> None:
        calls.append((a, b))

    with log.attempt(BRANCH) as attempt:
        attempt.step("s").call(act, 1)
        assert attempt.step("s").perform(act, 1, 2).replayed
        assert attempt.step("s").perform(act, b=2, a=1).replayed
    assert calls == [(1, 2)]


def test_case_14_two_equal_refunds_are_two(log: Log) -> None:
    """Field case 14: two refunds with equal arguments, as two steps: two refunds, each replayed under its own step."""
    keys: list[str] = []

    @tool(effect=KEYED(window=timedelta(hours=24)))
    def refund(call: Call, order_id: str, cents: int) -> str:
        keys.append(call.request_id)
        return f"refund {len(keys)}"

    def work(attempt: Attempt) -> list[str]:
        named = [attempt.step(f"refund-{n}").call(refund, "7", 100) for n in (1, 2)]
        return named + [attempt.call(refund, "7", 100) for _ in range(2)]

    wanted = ["refund 1", "refund 2", "refund 3", "refund 4"]
    assert log.run(BRANCH, work) == wanted
    assert log.run(BRANCH, work) == wanted
    assert len(keys) == len(set(keys)) == 4


def test_case_15_a_replayed_failure_is_told_from_a_fresh_one(log: Log) -> None:
    """Field case 15: `.replayed` tells; live the tool's own error is the cause, and one `except` serves both."""
    calls = []

    class Declined(Exception):
        pass

    @tool(rejects=Declined)
    def charge(cents: int) -> None:
        calls.append(cents)
        raise Declined("no funds")

    found = []
    for _ in range(2):
        with log.attempt(BRANCH) as attempt, pytest.raises(Rejected, match="no funds") as caught:
            attempt.call(charge, 5)
        found.append(caught.value)
    live, replay = found
    assert (live.replayed, replay.replayed) == (False, True)
    assert isinstance(live.__cause__, Declined)
    assert replay.__cause__ is None
    assert live.error_type.endswith("Declined")
    assert live.error_type == replay.error_type
    assert (live.effect_ran, replay.effect_ran) == ("no", "no")
    assert calls == [5]


def test_case_16_equal_ids_in_two_branches_do_not_collide(log: Log) -> None:
    """Field case 16: a provider that repeats call ids across conversations: the branch is part of the identity."""
    keys: list[str] = []

    @tool(effect=KEYED(window=timedelta(hours=24)))
    def act(call: Call, text: str) -> str:
        keys.append(call.request_id)
        return text

    for branch in ("conversation-1", "conversation-2"):
        with log.attempt(branch) as attempt:
            outcome = attempt.step("call_0").perform(act, branch)
        assert (outcome.value, outcome.replayed) == (branch, False)
    assert len(set(keys)) == 2


# --- occurrences -----------------------------------------------------------------------------------------------------


def steps_of(log: Log, branch: str = BRANCH) -> list[str]:
    return [entry.record.step for entry in log.history(branch) if entry.kind == "Pending"]


def test_unnamed_calls_are_counted_per_tool(log: Log) -> None:
    """DESIGN 2: `charge`, `charge~2`, counted per tool, afresh in each attempt."""
    calls = []

    @tool
    def charge(cents: int) -> int:
        calls.append(cents)
        return len(calls)

    def work(attempt: Attempt) -> list[int]:
        found = [attempt.call(charge, cents) for cents in (5, 5, 6)]
        attempt.call(note, "between")
        return [*found, attempt.call(charge, 5)]

    assert log.run(BRANCH, work) == [1, 2, 3, 4]
    assert steps_of(log) == ["charge", "charge~2", "charge~3", "note", "charge~4"]
    assert log.run(BRANCH, work) == [1, 2, 3, 4]
    assert len(calls) == 4


def test_an_occurrence_that_ended_without_an_outcome_is_tried_again(log: Log) -> None:
    """DESIGN 2: without RETURNED or REJECTED it is left open: equal arguments are it again, others the next one."""
    calls: list[str] = []

    @tool(not_sent=ConnectionRefusedError)
    def charge(order: str) -> str:
        calls.append(order)
        if len(calls) < 3:
            raise ConnectionRefusedError
        return "paid"

    with log.attempt(BRANCH) as attempt:
        for order in ("a", "b"):
            with pytest.raises(NotSent):
                attempt.call(charge, order)
        assert attempt.perform(charge, "a").intent_id.step == "charge"
        assert attempt.perform(charge, "b").intent_id.step == "charge~2"
        assert attempt.perform(charge, "a").intent_id.step == "charge~3"
    assert calls == ["a", "b", "a", "b", "a"]


def test_a_refused_call_uses_no_occurrence_up(log: Log) -> None:
    """DESIGN 2: a call that was refused before Pending is no occurrence; the next one is the first."""

    @tool
    def act(value: Any) -> Any:
        return value

    with log.attempt(BRANCH) as attempt:
        for value in (math.nan, object()):
            with refused(log, ArgumentsNotRecordable):
                attempt.call(act, value)
        assert attempt.perform(act, 1).intent_id.step == "act"


def test_an_occurrence_without_a_stored_value_is_used_up_on_replay_too(log: Log) -> None:
    """DESIGN 2: it ended with RETURNED, only its value is missing: the next equal call is the next occurrence."""
    results: list[Any] = [object(), 7]

    @tool
    def act(x: int) -> Any:
        return results.pop(0)

    with log.attempt(BRANCH) as attempt:
        attempt.call(act, 1)
        assert attempt.call(act, 1) == 7
    with log.attempt(BRANCH) as attempt:
        with pytest.raises(OutcomeUnavailable):
            attempt.call(act, 1)
        assert attempt.call(act, 1) == 7


def test_a_rejected_occurrence_is_used_up(log: Log) -> None:
    """DESIGN 2: REJECTED is an outcome: the next equal call is another operation, in a replay as in the first run."""
    calls = []

    @tool(rejects=ValueError)
    def act(x: int) -> str:
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("no")
        return "yes"

    for _ in range(2):
        with log.attempt(BRANCH) as attempt:
            with pytest.raises(Rejected):
                attempt.call(act, 1)
            assert attempt.call(act, 1) == "yes"
    assert calls == [1, 1]


def test_unnamed_calls_in_parallel_threads_need_steps(log: Log) -> None:
    """DESIGN 2: unnamed calls of one tool in parallel raise StepRequired: their order, so their names, is chance."""
    entered, leave = threading.Event(), threading.Event()

    @tool
    def slow(x: int) -> int:
        entered.set()
        assert leave.wait(10)
        return x

    with log.attempt(BRANCH) as attempt:
        thread = threading.Thread(target=attempt.call, args=(slow, 1))
        thread.start()
        try:
            assert entered.wait(10)
            with refused(log, StepRequired):
                attempt.call(slow, 2)
            assert attempt.call(note, "another tool") == "another tool"
            leave.set()
            assert attempt.step("named").call(slow, 2) == 2
        finally:
            leave.set()
            thread.join()
        assert attempt.perform(slow, 3).intent_id.step == "slow~2"


def test_unnamed_calls_in_parallel_tasks_need_steps(tmp_path: Path) -> None:
    """DESIGN 2: the same of tasks; with steps of their own they run at once."""

    @tool
    async def slow(x: int) -> int:
        await asyncio.sleep(0.02)
        return x

    async def main() -> None:
        async with AsyncLog.open(tmp_path / "log.db") as log, log.attempt(BRANCH) as attempt:
            found = await asyncio.gather(*(attempt.call(slow, n) for n in range(3)), return_exceptions=True)
            assert found[0] == 0
            assert [type(error) for error in found[1:]] == [StepRequired, StepRequired]
            named = [attempt.step(f"slow-{n}").call(slow, n) for n in range(3)]
            assert await asyncio.gather(*named) == [0, 1, 2]
            assert [e.kind for e in await log.history(BRANCH)].count("Dispatched") == 4

    asyncio.run(main())


def test_an_unnamed_call_from_inside_a_tool_needs_a_step(log: Log) -> None:
    """DESIGN 2: from inside a tool an unnamed call raises StepRequired; a named one is made, its own step never."""
    seen: dict[str, Any] = {}

    @tool
    def outer(x: int) -> int:
        with refused(log, StepRequired):
            attempt.call(note, "unnamed")
        with refused(log, StepRequired):
            attempt.step("outer").call(note, "the step that is running")
        seen["inner"] = attempt.step("inner").call(note, "named")
        return x

    with log.attempt(BRANCH) as attempt:
        assert attempt.call(outer, 1) == 1
        assert attempt.perform(note, "after").intent_id.step == "note"
    assert seen == {"inner": "named"}


def test_a_volatile_argument_is_masked_in_what_is_kept_of_errors(tmp_path: Path) -> None:
    """DESIGN 10: a short-lived token is a token: it is not written, in the error of a call neither."""
    token = "tok-live-73aa"

    @tool
    def act(token: Volatile[str]) -> None:
        raise RuntimeError(f"401 bad token {token}")

    with pytest.raises(InDoubt), Log.open(tmp_path / "log.db") as log, log.attempt(BRANCH) as attempt:
        attempt.call(act, token)
    assert not files_with(token, tmp_path)
