"""The guard is the only way to a tool's function (DESIGN 7): an audit that tries every other door.

`audit` walks everything that can be reached from a tool: attributes, `__dict__`, slots, the classes of the MRO and what
they hold, properties, items of containers, a method's `__self__` and `__func__`, `__wrapped__`, a partial's parts, what
a weak reference refers to, and the same of its copies, pickles, subclasses, wrappers and of what its methods return. It
calls every callable among them with arguments that would make the effect happen, a permission of the guard included.
The witness is independent of the library: a file that the tool's function appends to. It must stay empty.

Not entered, because Python has no secret from them, and the documentation says so: closures (`__closure__`), `gc`,
frames and tracebacks, and the globals of modules (`__globals__`, `__builtins__`, modules themselves). Nor are classes
of Python and of other packages, which know of no tool, though their instances are; and what is not called are methods
written in C of values and containers, and `__init__` and its like: they would change what is being audited.

Two controls keep the audit honest. Through an attempt, and after all that, the same function does run. And guards that
leave their function in one of the usual places are caught by the same walk.

The audit runs in a process of its own (this file, as a script): it calls whatever it finds.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import operator
import os
import pickle
import subprocess
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from intentlog import KEYED, READ, AsyncLog, Call, IntentLogError, Log, NotApplied, Tool, UnguardedCall, tool
from intentlog.core import actions
from intentlog.core.actions import IntentId
from intentlog.core.records import Instant

TEXT = "through another door"
GUARDED = "through the guard"
WITNESS = "INTENTLOG_TEST_WITNESS"


def witness() -> Path:
    return Path(os.environ[WITNESS])


def note(text: object) -> str:
    """The effect: whatever calls this leaves a trace that does not depend on the library."""
    with witness().open("a") as file:
        file.write(f"{text}\n")
    return str(text)


@tool
def plain(text: str) -> str:
    return note(text)


@tool
async def later(text: str) -> str:
    return note(text)


@tool(effect=KEYED(window=timedelta(hours=1)), step="note-{text}", rejects=(KeyError,), not_sent=OSError)
def keyed(call: Call, text: str = TEXT, *more: str, **named: int) -> str:
    del call, more, named
    return note(text)


@keyed.probe
def is_noted(call: Call, text: str = TEXT, *more: str, **named: int) -> NotApplied:
    del call, text, more, named
    return NotApplied()


@tool(effect=READ)
def no_arguments() -> str:
    return note(GUARDED)


TOOLS: dict[str, Any] = {"plain": plain, "later": later, "keyed": keyed, "no_arguments": no_arguments}

# --- guards that leak, for the control -------------------------------------------------------------------------------


class Leaky:
    """A guard that refuses calls and keeps its function where guards usually do."""

    __slots__ = ("__dict__", "__weakref__", "_slot")

    def __init__(self, where: str, function: Callable[..., Any]) -> None:
        match where:
            case "wrapped":
                functools.update_wrapper(self, function)
            case "private":
                self.__function = function
            case "slot":
                self._slot = function
            case "container":
                self.options = ({"rest": [frozenset({function})]},)
            case "partial":
                self.later = functools.partial(functools.partial(function), TEXT)
            case "bound":
                self.strip = types.MethodType(function, TEXT)
            case "weak":
                KEPT.append(function)
                self.ref = weakref.ref(function)
            case "method":
                self.where = lambda: self._hidden
                LEAKS[id(self)] = function
            case "async":
                functools.update_wrapper(self, later_leaked)

    @property
    def _hidden(self) -> Any:
        return LEAKS.get(id(self))

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise UnguardedCall("called directly")


async def later_leaked(text: str) -> str:
    return note(text)


class LeakyReduce:
    """A guard whose function travels with its pickles and copies only."""

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (note, TEXT)


KEPT: list[Any] = []
LEAKS: dict[int, Any] = {}
LEAKY = ["wrapped", "private", "slot", "container", "partial", "bound", "weak", "method", "async", "reduce"]

# --- the walk --------------------------------------------------------------------------------------------------------

CLOSED = frozenset({
    "__builtins__", "__closure__", "__globals__", "__subclasses__", "__traceback__", "ag_frame", "cr_frame", "f_back",
    "gi_frame", "tb_frame", "tb_next",
})  # fmt: skip
LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    timedelta,
    types.ModuleType,
    types.FrameType,
    types.TracebackType,
)
CONTAINERS = (dict, list, set, frozenset, tuple, bytearray, types.MappingProxyType)
C_CALLABLES = (types.BuiltinMethodType, types.MethodWrapperType)
UNBOUND_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
REMAKING = frozenset({"__init__", "__setattr__", "__delattr__"})
OBJECTS_MAX = 20_000


class Found(NamedTuple):
    path: str
    value: Any


def is_ours(cls: type) -> bool:
    """Classes of this library and of the program are entered; those of Python and of others know of no tool."""
    return cls.__module__.partition(".")[0] in ("intentlog", __name__)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from an object in one step, by name."""
    if isinstance(value, (types.MethodType, *C_CALLABLES)):
        yield ".__self__", value.__self__
        yield ".__func__", getattr(value, "__func__", None)
        return
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield "[key]", key
            yield f"[{key!r:.30}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for item in list(value):
            yield "[item]", item
    elif isinstance(value, weakref.ReferenceType):
        yield "()", value()
    if isinstance(value, (*CONTAINERS, types.CodeType)):
        return
    if isinstance(value, types.FunctionType):
        yield ".__code__", value.__code__
        names = {"__defaults__", "__kwdefaults__", "__annotations__", *vars(value)}
    elif isinstance(value, type):
        for cls in filter(is_ours, (*value.__mro__, type(value))):
            yield f"<{cls.__name__}>", cls
            yield from ((f".__dict__[{name!r}]", item) for name, item in list(vars(cls).items()) if name not in CLOSED)
        names = set()
    else:
        yield ".__class__", type(value)
        slots = [vars(cls).get("__slots__", ()) for cls in type(value).__mro__]
        names = {name for names in slots for name in ([names] if isinstance(names, str) else names)}
        with suppress(Exception):
            names |= {*dir(value)}
        with suppress(Exception):
            names |= {*object.__getattribute__(value, "__dict__")}
    for name in sorted(name for name in names if isinstance(name, str) and name not in CLOSED):
        with suppress(Exception):
            yield f".{name}", getattr(value, name)


def identity(value: Any) -> Any:
    """One and the same thing, though attribute access makes a bound method anew each time."""
    if isinstance(value, (types.MethodType, *C_CALLABLES)):
        return id(value.__self__), getattr(value, "__func__", None) or value.__name__
    return id(value)


def walk(roots: Iterable[Found], seen: dict[Any, Any]) -> Iterator[Found]:
    """Everything reachable, each object once, breadth first. `seen` keeps it alive, so that ids stay its own."""
    pending = list(roots)
    while pending:
        following: list[Found] = []
        for found in pending:
            if isinstance(found.value, LEAVES) or identity(found.value) in seen:
                continue
            seen[identity(found.value)] = found.value
            assert len(seen) < OBJECTS_MAX, f"the walk has left the tool behind: {found.path}"
            yield found
            following += [Found(found.path + step, value) for step, value in parts(found.value)]
        pending = following


def derived(subject: Any) -> Iterator[Found]:
    """A tool, and what the standard library makes of one."""
    makers: dict[str, Callable[[], Any]] = {
        "": lambda: subject,
        "copy": lambda: copy.copy(subject),
        "deepcopy": lambda: copy.deepcopy([subject]),
        **{f"pickle{n}": lambda n=n: pickle.loads(pickle.dumps(subject, n)) for n in (0, 2, pickle.HIGHEST_PROTOCOL)},
        "reduce": subject.__reduce__,
        "reduce_ex": lambda: subject.__reduce_ex__(4),
        "object reduce": lambda: object.__reduce_ex__(subject, 4),
        "clone": lambda: clone(type(subject), subject),
        "subclass": lambda: clone(type("Sub", (type(subject),), {}), subject),
        "unsealed": lambda: clone(types.new_class("Sub", (type(subject),), {"sealed": False}), subject),
        "called subclass": lambda: clone(
            types.new_class("Sub", (type(subject),), {"sealed": False}, lambda n: n.update(__call__=note_self)), subject
        ),
        "wraps": lambda: functools.wraps(subject)(lambda text: subject(text)),  # noqa: PLW0108 - what a wrapper is
        "unwrap": lambda: inspect.unwrap(subject),
        "unwrap wraps": lambda: inspect.unwrap(functools.wraps(subject)(lambda: None)),
        "partial": lambda: functools.partial(subject, TEXT),
        "partialmethod": lambda: type("Holder", (), {"door": functools.partialmethod(subject, TEXT)})().door,
        "singledispatch": lambda: functools.singledispatch(subject),
        "cache": lambda: functools.cache(subject),
        "method": lambda: types.MethodType(subject, TEXT),
        "attribute": lambda: type("Holder", (), {"door": subject})().door,
        "staticmethod": lambda: staticmethod(subject),
        "classmethod": lambda: classmethod(subject),
        "property": lambda: property(subject),
        "methodcaller": lambda: functools.partial(operator.methodcaller("__call__", TEXT), subject),
        "ref": lambda: weakref.ref(subject),
        "proxy": lambda: weakref.proxy(subject),
        "proxy call": lambda: weakref.proxy(subject).__call__,
        "hints": lambda: typing.get_type_hints(subject),
        "signature": lambda: inspect.signature(subject),
        "members": lambda: inspect.getmembers(subject),
        "static members": lambda: inspect.getmembers_static(subject),
        "map": lambda: map(subject, [TEXT]),
        "thread": lambda: in_thread(subject),
        "executor": lambda: in_executor(subject),
        "to_thread": lambda: asyncio.run(asyncio.to_thread(subject, TEXT)),
        "sorted": lambda: sorted([TEXT, TEXT], key=subject),
        "await": lambda: asyncio.run(subject(TEXT)),
    }
    for name, make in makers.items():
        try:
            made = make()
        except BaseException as error:
            made = error
        yield Found(f"{name}:" if name else "", made)


def note_self(self: Any, text: str) -> str:
    """A subclass's own `__call__`: it gets at the function only if the instance holds it somewhere."""
    return super(type(self), self).__call__(text)  # type: ignore[misc]


def clone(cls: Any, subject: Any) -> Any:
    made = object.__new__(cls)
    made.__dict__.update(subject.__dict__)
    return made


def in_thread(subject: Any) -> None:
    threading.excepthook = lambda args: None
    thread = threading.Thread(target=subject, args=(TEXT,))
    thread.start()
    thread.join()


def in_executor(subject: Any) -> Any:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(subject, TEXT).exception()


def argument_lists(subject: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What a caller would pass who wants the effect; also to something that takes the tool, or a permission, first."""
    intent = IntentId.of("branch", 1, "step")
    call = Call("00000000-0000-8000-8000-000000000000", intent, 1, 1e12)
    permission = actions.Call(intent, call.request_id, 1, Instant(0, "", 0), None)
    return [
        ((), {}),
        ((TEXT,), {}),
        ((), {"text": TEXT}),
        ((call, TEXT), {}),
        ((subject,), {}),
        ((subject, TEXT), {}),
        ((subject, permission, TEXT), {}),
        ((subject, permission, call, TEXT), {}),
        ((permission, TEXT), {}),
        ((permission,), {}),
        (([TEXT],), {}),
        (((TEXT,), {}), {}),
        ((subject, (TEXT,), {}), {}),
    ]


def may_be_called(value: Any) -> bool:
    """Every callable that could lead to a function: not the C methods of values and built-in containers."""
    if not callable(value) or isinstance(value, UNBOUND_C) or getattr(value, "__name__", "") in REMAKING:
        return False
    if isinstance(value, C_CALLABLES):
        owner = value.__self__
        return is_ours(type(owner)) or isinstance(
            owner, functools.partial | operator.methodcaller | weakref.ReferenceType
        )
    return not isinstance(value, type) or is_ours(value)


def driven(result: Any) -> Any:
    """What came of a call; a coroutine, generator or other lazy thing is made to run."""
    with suppress(BaseException):
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        if inspect.isgenerator(result) or isinstance(result, map | filter):
            return list(result)
    return result


def lines() -> int:
    return len(witness().read_text().splitlines()) if witness().exists() else 0


def audit(subject: Any) -> dict[str, Any]:
    """Try every door. Answers how many objects were seen and callables called, and which of them ran the effect."""
    seen: dict[int, Any] = {}
    ran = [found.path for found in derived(subject) if lines() and (witness().unlink() or True)]
    doors = [found for found in walk(derived(subject), seen) if may_be_called(found.value)]
    witness().unlink(missing_ok=True)  # what making the derived ones did is counted above
    codes = [found.path for found in walk([Found("", subject)], {}) if is_own_code(found.value)]
    called = 0
    for depth in range(2):  # what a method returns is walked and called as well
        results: list[Found] = []
        for path, door in doors:
            for args, kwargs in argument_lists(subject):
                try:
                    result = driven(door(*args, **kwargs))
                except BaseException as error:
                    result = error.args
                called += 1
                if not isinstance(result, LEAVES):
                    results.append(Found(f"{path}()", result))
            if lines():
                ran.append(path)
                witness().unlink()
        if ran:
            break
        if depth == 0:
            doors = [found for found in walk(results, seen) if may_be_called(found.value)]
    return {"objects": len(seen), "called": called, "ran": ran, "codes": codes}


def is_own_code(value: Any) -> bool:
    """Whether this is the code of an effect's function: with it, anybody could make the function again."""
    return isinstance(value, types.CodeType) and "note" in value.co_names and value.co_filename == __file__


async def awaited(log: Path, subject: Any) -> str:
    async with AsyncLog.open(log) as opened, opened.attempt("branch") as attempt:
        return await attempt.call(subject, GUARDED)


def through_the_guard(log: Path, subject: Any) -> str:
    if inspect.iscoroutinefunction(subject) or subject.is_async:
        return asyncio.run(awaited(log, subject))
    with Log.open(log) as opened, opened.attempt("branch") as attempt:
        return attempt.call(subject) if subject is no_arguments else attempt.call(subject, GUARDED)


def main(name: str) -> None:
    """Audit one tool, then call it under the guard; or audit one leaky guard. The findings are printed."""
    warnings.simplefilter("ignore")
    if name in TOOLS:
        findings = audit(TOOLS[name])
        findings["guarded"] = through_the_guard(witness().with_name("log.db"), TOOLS[name])
    else:
        findings = audit(LeakyReduce() if name == "reduce" else Leaky(name, note))
    findings["lines"] = witness().read_text().splitlines() if witness().exists() else []
    print(json.dumps(findings))


def audited(name: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, name],
        env={**os.environ, WITNESS: str(folder / "witness")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    findings: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return findings


@pytest.mark.parametrize("name", TOOLS)
def test_nothing_reachable_from_a_tool_runs_its_function(tmp_path: Path, name: str) -> None:
    """DESIGN 7: no attribute reaches the function, of the tool, its copies, pickles, subclasses, wrappers.

    Then the first control: the same function, after all of that, through an attempt: one line.
    """
    findings = audited(name, tmp_path)
    assert findings["ran"] == []
    assert findings["codes"] == []
    assert findings["objects"] > 500
    assert findings["called"] > 5_000
    assert findings["guarded"] == GUARDED
    assert findings["lines"] == [GUARDED]


@pytest.mark.parametrize("where", LEAKY)
def test_a_guard_that_leaks_is_caught(tmp_path: Path, where: str) -> None:
    """The second control: guards that keep their function in a usual place; the same walk finds it, and says where."""
    assert audited(where, tmp_path)["ran"] != []


# --- field case 17 ---------------------------------------------------------------------------------------------------


def test_case_17_no_other_door_runs_the_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 17: a batch method, a bound method, a subclass, a copy, pickling, `functools.wraps`: UnguardedCall."""
    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    holder = type("Agent", (), {"run": plain, "static": staticmethod(plain), "bound": types.MethodType(plain, TEXT)})

    @functools.wraps(plain)
    def wrapper(text: str) -> Any:
        return wrapper.__wrapped__(text)

    doors: dict[str, Callable[[], Any]] = {
        "direct": lambda: plain(TEXT),
        "__call__": lambda: plain.__call__(TEXT),
        "type's __call__": lambda: type(plain).__call__(plain, TEXT),
        "async": lambda: asyncio.run(later(TEXT)),
        "attribute": lambda: holder().run(TEXT),
        "static": lambda: holder.static(TEXT),
        "bound": holder.bound,
        "method": types.MethodType(plain, TEXT),
        "copy": lambda: copy.copy(plain)(TEXT),
        "deepcopy": lambda: copy.deepcopy({"tools": [plain]})["tools"][0](TEXT),
        "pickle": lambda: pickle.loads(pickle.dumps(plain))(TEXT),
        "wraps": lambda: wrapper(TEXT),
        "unwrap": lambda: inspect.unwrap(wrapper)(TEXT),
        "partial": functools.partial(plain, TEXT),
        "methodcaller": lambda: operator.methodcaller("__call__", TEXT)(plain),
        "singledispatch": lambda: functools.singledispatch(plain)(TEXT),
        "cache": lambda: functools.cache(plain)(TEXT),
        "proxy": lambda: weakref.proxy(plain)(TEXT),
        "batch": lambda: list(map(plain, [TEXT, TEXT])),
        "sorted": lambda: sorted([TEXT, TEXT], key=plain),
        "executor": lambda: list(ThreadPoolExecutor(1).map(plain, [TEXT])),
        "to_thread": lambda: asyncio.run(asyncio.to_thread(plain, TEXT)),
        "subclass": lambda: type("Sub", (Tool,), {}),
        "clone": lambda: clone(Tool, plain)(TEXT),
    }
    for name, door in doors.items():
        with pytest.raises(UnguardedCall) as caught:
            door()
        assert caught.value.effect_ran == "no", name
        assert caught.value.remedy, name
    assert copy.copy(plain) is plain
    assert copy.deepcopy(plain) is plain
    assert pickle.loads(pickle.dumps(plain)) is plain
    exposed = {"func", "function", "fn", "coroutine", "run", "invoke", "ainvoke", "batch", "map", "raw", "__wrapped__"}
    assert not exposed & {*dir(plain), *dir(later)}, "where frameworks look for the function of a tool"
    assert lines() == 0
    assert through_the_guard(tmp_path / "log.db", plain) == GUARDED
    assert lines() == 1


def test_a_copy_made_by_force_has_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 17: an object that only looks like the tool is refused by the guard too, before anything is recorded.

    Nothing ran, so nothing may be told to be in doubt.
    """
    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    with Log.open(tmp_path / "log.db") as log, log.attempt("branch") as attempt:
        before = [entry.kind for entry in log.history("branch")]
        with suppress(IntentLogError):
            attempt.call(clone(Tool, plain), TEXT)
        assert lines() == 0
        assert [entry.kind for entry in log.history("branch")] == before


def test_a_permission_cannot_be_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 7: even who imports the guard's own module is asked for the permission that a driver holds."""
    from intentlog.log import declare

    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    for permission in (None, object(), Call("", IntentId.of("b", 1, "s"), 1, 0.0), "permission"):
        with pytest.raises(UnguardedCall):
            declare.VAULT.call(plain, permission, TEXT)
    assert lines() == 0


if __name__ == "__main__":
    main(sys.argv[1])
