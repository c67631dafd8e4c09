"""A tool's signature: which arguments fit, how they are written down, which are secret, what comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

import msgspec

from intentlog.core import codec
from intentlog.errors import ArgumentsNotRecordable, ToolMisdefined
from intentlog.log.secrecy import holds_mark, is_marked, texts_of
from intentlog.log.values import Call, SecretMark, VolatileMark

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Bound(NamedTuple):
    """Arguments that fit and can be written down.

    Attributes:
        arguments: all of them, with defaults.
        encoded: what is recorded.
        digest: over them, but for hidden ones: it identifies the operation together with its step.
        secrets: texts of hidden arguments, to be masked in whatever is kept of errors.
    """

    arguments: inspect.BoundArguments
    encoded: bytes
    digest: str
    secrets: frozenset[str]


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
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsNotRecordable(f"the arguments do not fit the tool: {error}") from error
        bound.apply_defaults()
        try:
            encoded = self._encode(bound.arguments, bytes_max)
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the arguments cannot be recorded: {error}") from error
        hidden = self.secret | self.volatile
        secrets = frozenset(text for name in hidden for text in texts_of(bound.arguments[name]))
        return Bound(bound, encoded, codec.arguments_digest(encoded), secrets)

    def _encode(self, arguments: Mapping[str, Any], bytes_max: int) -> bytes:
        hidden = self.secret | self.volatile
        kept = {name: value for name, value in arguments.items() if name not in hidden} if hidden else arguments
        return codec.encode_value(kept, bytes_max)

    def as_recorded(self, bound: Bound) -> inspect.BoundArguments:
        """The arguments as they were recorded, whatever the tool has done to them since; hidden ones as given.

        Raises:
            ValueError: they do not fit the tool's types.
        """
        try:
            if self._encode(bound.arguments.arguments, len(bound.encoded)) == bound.encoded:
                return bound.arguments
        except codec.NotRecordable:
            pass  # changed into something larger, or that cannot even be written
        hidden = {name: bound.arguments.arguments[name] for name in self.secret | self.volatile}
        return self.from_record(bound.encoded, hidden)

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
        hidden = self.secret | self.volatile
        others = {n: hint for n, hint in {**hints, "return": self.returns}.items() if n not in hidden}
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
