"""`@tool`: takes a function away and gives a handle that only a guard can use."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from itertools import count, starmap
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakKeyDictionary, WeakValueDictionary

from intentlog.core import actions
from intentlog.core.actions import ErrorKind
from intentlog.core.effects import READ, UNSAFE, Declaration, Effect, EffectKind, nanoseconds
from intentlog.core.records import Durability
from intentlog.errors import (
    ArgumentsNotRecordable,
    IntentLogError,
    NotSent,
    Rejected,
    Suspended,
    ToolMisdefined,
    UnguardedCall,
)
from intentlog.log.binding import Signature
from intentlog.log.naming import check_name, check_template
from intentlog.log.options import TIME_LIMIT, Errors, Options, as_tuple, check_types
from intentlog.log.sameness import same_function
from intentlog.log.values import Applied, Call, NotApplied, Retry, Unknown
from intentlog.run.hands import Made

P = ParamSpec("P")
R = TypeVar("R")


class _Vault:
    """Where the functions are. The closures below are the only way to them."""

    def __init__(self) -> None:
        functions: WeakKeyDictionary[AnyTool, Callable[..., Any]] = WeakKeyDictionary()

        def keep(handle: AnyTool, function: Callable[..., Any]) -> None:
            functions[handle] = function

        def call(handle: AnyTool, permission: actions.Call, *args: Any, **kwargs: Any) -> Any:
            if type(permission) is not actions.Call:
                raise UnguardedCall(f"{handle.name} was reached without a permission")
            return functions[handle](*args, **kwargs)

        def call_into(
            handle: AnyTool, permission: actions.Call, box: Made, args: tuple[Any, ...], kwargs: Mapping[str, Any]
        ) -> None:
            """Call, and put what is returned into the box without a bytecode between: no signal can lose it."""
            if type(permission) is not actions.Call:
                raise UnguardedCall(f"{handle.name} was reached without a permission")
            calls = starmap(partial(functions[handle], *args, **kwargs), ((),))
            box.begun = True
            box.values.extend(calls)
            if not box.values:  # it raised StopIteration, which to `extend` is an end like another
                raise StopIteration("raised by the tool")

        def alike(one: AnyTool, other: AnyTool) -> bool:
            asks = (one.prober, other.prober)
            probes = asks[0] is asks[1] or (None not in asks and same_function(*(p.function for p in asks if p)))
            return probes and same_function(functions[one], functions[other])

        def has(handle: AnyTool) -> bool:
            return handle in functions

        self.keep = keep
        self.call = call
        self.call_into = call_into
        self.has = has
        self.alike = alike


VAULT = _Vault()
_KNOWN: WeakValueDictionary[int, AnyTool] = WeakValueDictionary()  # every tool that is alive, as it was declared
_numbers, _collected = count(), dict[str, int]()


class AnyTool:
    """A handle on a function that causes an external effect. It cannot be called; an attempt can call it.

    Attributes:
        name: the tool's name, as records keep it.
        effect: its effect class.
        step: the template of its steps, or None.
        retry: how often a call is repeated, or None.
        durability: of a READ's record.
        time_limit: how long a call may take; `time_limit_s` in seconds.
        is_async: whether it is an `async def`.
        signature: its arguments and result.
        prober: its probe, or None.
        declaration: what Pending records of it.
        number: its number among the tools of this process.
    """

    def __init__(self, function: Callable[..., Any], scope: dict[str, Any], options: Options) -> None:
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.name = options.name or function.__name__
        self.effect = options.effect
        self.step = options.step
        self.retry = options.retry
        self.durability = options.durability
        self.time_limit = options.time_limit
        self.time_limit_s = options.time_limit.total_seconds()
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function, scope)
        self.prober: Prober | None = None
        self._rejects = as_tuple(options.rejects)
        self._not_sent = as_tuple(options.not_sent)
        self._check()
        self.declaration = self._declared()
        VAULT.keep(self, function)
        self.number = next(_numbers)
        _KNOWN[self.number] = self

    def __init_subclass__(cls, *, sealed: bool = True) -> None:
        """Refuse subclasses: one could open another door to the function."""
        super().__init_subclass__()
        if sealed:
            raise UnguardedCall("a tool cannot be subclassed")

    if not TYPE_CHECKING:

        def __call__(self, *args, **kwargs) -> NoReturn:  # noqa: ANN002, ANN003 - hidden from type checkers
            """Refuse. Raises `UnguardedCall`; the effect does not run."""
            del args, kwargs
            raise UnguardedCall(f"{self.name} is a guarded tool and was called directly")

    def __setattr__(self, name: str, value: object) -> None:
        """Set what is declared, until it is a tool: no other effect class is put on it afterwards."""
        if "number" in vars(self):
            raise ToolMisdefined(f"{self.name} is declared; {name} cannot be changed", remedy="declare another tool.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<tool {self.name} {self.effect.kind}>"

    def __copy__(self) -> AnyTool:
        return self

    def __deepcopy__(self, memo: object) -> AnyTool:
        return self

    def __reduce__(self) -> str:
        return self.__qualname__

    def kind_of(self, error: BaseException) -> ErrorKind:
        """What an error of this tool proves: nothing, unless it is declared to.

        What a guard raised for another effect, which this tool called, says nothing of this one.
        """
        kind = type(error)  # not `isinstance`, which asks the error itself
        if issubclass(kind, IntentLogError) and vars(error).get("intent_id"):
            return ErrorKind.AMBIGUOUS
        kinds: tuple[tuple[ErrorKind, tuple[type[BaseException], ...]], ...] = (
            (ErrorKind.SUSPENDED, (Suspended,)),
            (ErrorKind.NOT_SENT, (NotSent, *self._not_sent)),
            (ErrorKind.REJECTED, (Rejected, *self._rejects)),
        )
        try:
            return next((proved for proved, types in kinds if issubclass(kind, types)), ErrorKind.AMBIGUOUS)
        except Exception:  # noqa: BLE001 - a metaclass of the user's may raise anything
            return ErrorKind.AMBIGUOUS

    def _declared(self) -> Declaration:
        return Declaration(
            kind=self.effect.kind,
            time_limit_ns=nanoseconds(self.time_limit),
            window_ns=self.effect.window_ns,
            settle_ns=self.effect.settle_ns,
            probe=self.prober is not None,
        )

    def _set_probe(self, function: Callable[..., Any], scope: dict[str, Any]) -> None:
        if self.effect.kind not in (EffectKind.QUERYABLE, EffectKind.KEYED):
            raise ToolMisdefined(
                f"{self.name}: only QUERYABLE and KEYED tools have a probe, this is {self.effect.kind}"
            )
        if inspect.iscoroutinefunction(function) and not self.is_async:
            raise ToolMisdefined(f"{self.name}: the probe of a plain tool must be plain")
        takes_call = Signature(function, scope, records_result=False).takes_call
        vars(self)["prober"] = Prober(function, takes_call=takes_call)
        vars(self)["declaration"] = self._declared()

    def _check(self) -> None:
        name, parameters = self.name, self.signature.parameters.parameters
        try:
            check_name("tool name", name, slash=False)
        except ArgumentsNotRecordable as error:
            raise ToolMisdefined(error.message) from error
        if nanoseconds(self.time_limit) <= 0:
            raise ToolMisdefined(f"{name}: time_limit must be positive, not {self.time_limit}")
        if self.durability is Durability.EVENTUAL and self.effect.kind is not EffectKind.READ:
            raise ToolMisdefined(f"{name}: the durability of an intent cannot be weakened; only a READ may be EVENTUAL")
        if self.step is not None:
            check_template(name, self.step, parameters, self.signature.secret | self.signature.volatile)


class Tool(AnyTool, Generic[P, R], sealed=False):
    """The handle of a plain function."""

    def probe(self, function: ProbeFunction[P, R]) -> ProbeFunction[P, R]:
        """Decorate the function that asks whether this operation happened. It returns Applied, NotApplied or Unknown.

        Raises:
            ToolMisdefined: the tool's class has no use for one.
        """
        self._set_probe(function, _scope(2))
        return function


class AsyncTool(AnyTool, Generic[P, R], sealed=False):
    """The handle of an `async def` function."""

    def probe(self, function: AnyProbeFunction[P, R]) -> AnyProbeFunction[P, R]:
        """Decorate the function, plain or async, that asks whether this operation happened."""
        self._set_probe(function, _scope(2))
        return function


class Prober(NamedTuple):
    """A probe's function, and whether it takes a `Call`. A probe changes nothing, so it may be reached."""

    function: Callable[..., Any]
    takes_call: bool


class Decorator(Protocol):
    """What `tool(...)` returns: its parameters, without a leading `Call`, become the tool's."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload] # async comes first
        self, function: Callable[Concatenate[object, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTool[Concatenate[object, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Call, P], Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap] # async is told apart first
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap] # async is told apart first
    @overload
    def __call__(self, function: Callable[Concatenate[object, P], R], /) -> Tool[Concatenate[object, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Call, P], R], /) -> Tool[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload] # async comes first
    function: Callable[Concatenate[object, P], Coroutine[Any, Any, R]], /
) -> AsyncTool[Concatenate[object, P], R]: ...
@overload
def tool(function: Callable[Concatenate[Call, P], Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap] # async is told apart first
@overload
def tool(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap] # async is told apart first
@overload
def tool(function: Callable[Concatenate[object, P], R], /) -> Tool[Concatenate[object, P], R]: ...
@overload
def tool(function: Callable[Concatenate[Call, P], R], /) -> Tool[P, R]: ...
@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    effect: Effect = UNSAFE,
    name: str | None = None,
    step: str | None = None,
    rejects: Errors = (),
    not_sent: Errors = (),
    time_limit: timedelta = TIME_LIMIT,
    retry: Retry | None = None,
    durability: Durability | None = None,
) -> Decorator: ...
def tool(  # noqa: PLR0913 - a declaration names what it declares
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect = UNSAFE,
    name: str | None = None,
    step: str | None = None,
    rejects: Errors = (),
    not_sent: Errors = (),
    time_limit: timedelta = TIME_LIMIT,
    retry: Retry | None = None,
    durability: Durability | None = None,
) -> Any:
    """Make a function a tool: it can be called through an attempt and in no other way.

    Args:
        function: the function, when used without parentheses. A first parameter annotated `Call` is filled by the
            guard.
        effect: what may be done when it may have been sent: READ, IDEMPOTENT, KEYED(window), QUERYABLE(settle) or
            UNSAFE.
        name: its name in the records; the function's own by default.
        step: a template of its steps over its arguments, as "charge-{order_id}".
        rejects: errors that are a definite no of the receiver.
        not_sent: errors that prove that nothing left.
        time_limit: how long a call may take, > 0. Enforced on `async def` tools; a plain one keeps `call.deadline`.
        retry: repeat a call within the call, where the class permits.
        durability: of a READ's record: EVENTUAL (the default) or IMMEDIATE.

    Raises:
        ToolMisdefined: the declaration cannot work as written.
    """
    if durability is None:
        durability = Durability.EVENTUAL if effect == READ else Durability.IMMEDIATE
    options = Options(effect, name, step, rejects, not_sent, time_limit, retry, durability)
    check_types(options)
    if function is not None:
        return _declare(function, _scope(2), options)

    def decorate(given: Callable[..., Any]) -> AnyTool:
        return _declare(given, _scope(2), options)

    return decorate


def _declare(function: Callable[..., Any], scope: dict[str, Any], options: Options) -> AnyTool:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise ToolMisdefined(f"{function!r} is not a function defined with def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolMisdefined(f"{function.__name__} is a generator; a tool returns one value")
    kind = cast("type[AnyTool]", AsyncTool if inspect.iscoroutinefunction(function) else Tool)
    return kind(function, scope, options)


def known_tool(name: str, *, collect: bool = False) -> AnyTool | None:
    """The tool that a name means here; None if several could be. `collect`: not those that only a cycle still holds."""
    found = _alive(name)
    if collect and _differ(found) and _collected.get(name) != found[-1].number:
        _collected[name] = found[-1].number  # once for each that is declared
        gc.collect()
        found = _alive(name)
    return None if not found or _differ(found) else found[-1]


def _alive(name: str) -> list[AnyTool]:
    handles = (ref() for ref in _KNOWN.valuerefs())  # a list of its own: other threads may declare tools meanwhile
    return [handle for handle in handles if handle is not None and handle.name == name]


def _differ(found: list[AnyTool]) -> bool:
    return any(not VAULT.alike(found[-1], one) for one in found[:-1])


def _scope(depth: int) -> dict[str, Any]:
    frame = inspect.currentframe()
    while frame is not None and depth:
        frame, depth = frame.f_back, depth - 1
    return frame.f_locals if frame else {}


if TYPE_CHECKING:
    ProbeAnswer = Applied[R] | NotApplied | Unknown
    ProbeFunction = Callable[Concatenate[Call, P], ProbeAnswer[R]] | Callable[P, ProbeAnswer[R]]
    AnyProbeFunction = (
        ProbeFunction[P, R]
        | Callable[Concatenate[Call, P], Coroutine[Any, Any, ProbeAnswer[R]]]
        | Callable[P, Coroutine[Any, Any, ProbeAnswer[R]]]
    )
