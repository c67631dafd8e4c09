"""A tool's signature: which arguments fit, how they are written down, which are secret, what comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from intentlog.core import codec
from intentlog.errors import ArgumentsNotRecordable, ToolMisdefined
from intentlog.log.secrecy import holds_mark, is_marked, texts_of
from intentlog.log.values import Call, SecretMark, VolatileMark

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_TEXTS = frozenset[str]()
KNOWN_AGAIN_MIN = 8  # characters of a secret that a result is searched for: a shorter one stands in anything


class Bound(msgspec.Struct, frozen=True):
    """Arguments that fit and can be written down.

    Attributes:
        args: by position, as given.
        kwargs: by name, as given.
        values: all of them by their names, with defaults.
        encoded: what is recorded.
        digest: over them, but for hidden ones: it identifies the operation together with its step.
        secrets: texts of hidden arguments, to be masked in whatever is kept of errors.
        unwritten: texts of secret ones, long enough to be known again, that no value may hold.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any]
    encoded: bytes
    digest: str
    secrets: frozenset[str]
    unwritten: frozenset[str] = _NO_TEXTS

    def __repr__(self) -> str:
        """Without the arguments: it stands in frames, which are shown by whoever reports an error."""
        return f"Bound({', '.join(self.values)})"


class Signature:
    """What a function takes and returns, read once. Immutable; safe from any thread.

    Args:
        function: the function.
        scope: names visible where it was defined, for its annotations.
        records_result: whether what it returns will have to be read back from the log.

    Raises:
        ToolMisdefined: an annotation cannot be resolved, or a type cannot be recorded.
    """

    def __init__(self, function: Callable[..., Any], scope: Mapping[str, Any], *, records_result: bool = True) -> None:
        name = function.__name__
        try:
            hints = get_type_hints(function, localns=dict(scope), include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise ToolMisdefined(f"{name}: an annotation cannot be resolved: {error}") from error
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and parameters[0].name in ("self", "cls"):
            raise ToolMisdefined(f"{name}: a method cannot be a tool; make it a function of what it needs")
        self.takes_call = bool(parameters) and hints.get(parameters[0].name) is Call
        by_position = bool(parameters) and parameters[0].kind in _BY_POSITION
        if (self.takes_call and not by_position) or any(hints.get(p.name) is Call for p in parameters[1:]):
            raise ToolMisdefined(f"{name}: a `Call` can only be its first parameter, given by position")
        kept = parameters[1:] if self.takes_call else parameters
        self.parameters = inspect.Signature(kept)
        self._read_kinds(kept)
        self.returns = hints.get("return", Any)
        self._read_marks(name, {p.name: hints.get(p.name, Any) for p in kept})
        self.hints = {p.name: _collected(p, hints.get(p.name, Any)) for p in kept}
        if records_result:
            self._decoder_check(name)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], bytes_max: int) -> Bound:
        """Hold arguments against the signature and write them down. Nothing is recorded by this.

        Raises:
            ArgumentsNotRecordable: they do not fit, or cannot be written down, or are too large.
        """
        values = self._values(args, kwargs)
        try:
            encoded = self._encode(values, bytes_max)
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the arguments cannot be recorded: {error}") from error
        secrets = unwritten = _NO_TEXTS
        if self._hidden:
            secrets = frozenset(text for name in self._hidden for text in texts_of(values[name]))
            known = (text for name in self.secret for text in texts_of(values[name]))
            unwritten = frozenset(text for text in known if len(text) >= KNOWN_AGAIN_MIN)
        return Bound(args, kwargs, values, encoded, codec.arguments_digest(encoded), secrets, unwritten)

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by their names, with defaults. In the common case without `inspect`, which takes ten times."""
        if self._is_simple and not kwargs and len(args) == len(self._names) == self._by_position:
            return dict(zip(self._names, args, strict=True))
        if self._is_simple and len(args) <= self._by_position:
            values = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
            if len(values) == len(self._names) and self._given_once(args, kwargs):
                return values
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsNotRecordable(f"the arguments do not fit the tool: {error}") from error
        bound.apply_defaults()
        return bound.arguments

    def _given_once(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return not kwargs or all(self._places.get(name, -1) >= len(args) for name in kwargs)

    def _read_kinds(self, parameters: list[inspect.Parameter]) -> None:
        """What the common case needs: each parameter has a name to be given by, and they stand in order."""
        self._names = tuple(p.name for p in parameters)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._by_position = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._is_simple = all(p.kind in simple for p in parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def _encode(self, arguments: Mapping[str, Any], bytes_max: int) -> bytes:
        kept = {n: value for n, value in arguments.items() if n not in self._hidden} if self._hidden else arguments
        return codec.encode_value(kept, bytes_max)

    def as_recorded(self, bound: Bound) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments as they were recorded, whatever the tool has done to them since; hidden ones as given.

        Raises:
            ValueError: they do not fit the tool's types.
        """
        try:
            if self._encode(bound.values, len(bound.encoded)) == bound.encoded:
                return bound.args, bound.kwargs
        except codec.NotRecordable:
            pass  # changed into something larger, or that cannot even be written
        recorded = self.from_record(bound.encoded, {name: bound.values[name] for name in self._hidden})
        return recorded.args, recorded.kwargs

    def from_record(self, encoded: bytes, hidden: Mapping[str, Any] | None = None) -> inspect.BoundArguments:
        """Recorded arguments, as their annotated types, with those that were not recorded.

        Raises:
            ValueError: they do not fit the present signature, or some were not recorded (`Secret`, `Volatile`).
        """
        raw = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
        values = {name: codec.decode_value(bytes(part), self.hints.get(name, Any)) for name, part in raw.items()}
        values |= hidden or {}
        bound = inspect.BoundArguments(self.parameters, values)
        missing = set(self.parameters.parameters) - set(values)
        if missing or set(values) - set(self.parameters.parameters):
            msg = f"the record lacks {sorted(missing)}" if missing else "the record has other arguments"
            raise ValueError(msg)
        return bound

    def _read_marks(self, name: str, hints: Mapping[str, Any]) -> None:
        """Which arguments are hidden. A mark deeper inside a type could not be kept, so it is refused."""
        self.secret = frozenset(n for n, hint in hints.items() if is_marked(hint, SecretMark))
        self.volatile = frozenset(n for n, hint in hints.items() if is_marked(hint, VolatileMark))
        self._hidden = self.secret | self.volatile
        others = {n: hint for n, hint in {**hints, "return": self.returns}.items() if n not in self._hidden}
        deeper = sorted(n for n, hint in others.items() if holds_mark(hint))
        if deeper:
            raise ToolMisdefined(
                f"{name}: Secret and Volatile mark a whole argument, not a part of one ({', '.join(deeper)})",
                remedy="write Secret[str | None] for Secret[str] | None; give the secret part an argument of its own.",
            )

    def _decoder_check(self, name: str) -> None:
        """Find out at the definition, not after an effect, that a result's type can never be read back."""
        try:
            msgspec.json.Decoder(self.returns)
        except TypeError as error:
            raise ToolMisdefined(f"{name}: its return type cannot be recorded: {error}") from error


def _collected(parameter: inspect.Parameter, hint: Any) -> Any:
    """The type of what a parameter collects: `*args: T` is a tuple of T, `**kwargs: T` an object of T."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple[hint, ...]
    return dict[str, hint] if parameter.kind is inspect.Parameter.VAR_KEYWORD else hint
