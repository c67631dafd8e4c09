"""A tool's signature: which arguments fit, how they are written down, which are secret, what comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from intentlog.core import codec
from intentlog.errors import ArgumentsNotRecordable, ToolMisdefined
from intentlog.log.values import Call, SecretMark, VolatileMark


class Bound(NamedTuple):
    """Arguments that fit and can be written down.

    Attributes:
        args: to be passed by position.
        kwargs: to be passed by name.
        by_name: all of them, with defaults, for step templates.
        encoded: what is recorded.
        digest: over what identifies the operation.
        secrets: texts to be masked in whatever is kept of errors.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_name: Mapping[str, Any]
    encoded: bytes
    digest: str
    secrets: tuple[str, ...]


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
        self.takes_call = bool(parameters) and hints.get(parameters[0].name) is Call
        if parameters and parameters[0].name in ("self", "cls"):
            raise ToolMisdefined(f"{name}: a method cannot be a tool; make it a function of what it needs")
        kept = parameters[1:] if self.takes_call else parameters
        self.parameters = inspect.Signature(kept)
        self.hints: dict[str, Any] = {p.name: hints.get(p.name, Any) for p in kept}
        self.secret = frozenset(n for n, h in self.hints.items() if _marked(h, SecretMark))
        self.volatile = frozenset(n for n, h in self.hints.items() if _marked(h, VolatileMark))
        self.returns = hints.get("return", Any)
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
        by_name = bound.arguments
        hidden = self.secret | self.volatile
        kept = {name: value for name, value in by_name.items() if name not in hidden} if hidden else by_name
        try:
            encoded = codec.encode_value(kept, bytes_max)
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the arguments cannot be recorded: {error}") from error
        secrets = tuple(text for text in (str(by_name[name]) for name in self.secret) if text)
        return Bound(bound.args, bound.kwargs, by_name, encoded, codec.arguments_digest(encoded), secrets)

    def from_record(self, encoded: bytes) -> inspect.BoundArguments:
        """Recorded arguments, as their annotated types.

        Raises:
            ValueError: they do not fit the present signature, or some were not recorded (`Secret`, `Volatile`).
        """
        raw = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
        values = {name: codec.decode_value(bytes(part), self.hints.get(name, Any)) for name, part in raw.items()}
        bound = inspect.BoundArguments(self.parameters, values)
        missing = set(self.parameters.parameters) - set(values)
        if missing or set(values) - set(self.parameters.parameters):
            msg = f"the record lacks {sorted(missing)}" if missing else "the record has other arguments"
            raise ValueError(msg)
        return bound

    def _decoder_check(self, name: str) -> None:
        """Find out at the definition, not after an effect, that a result's type can never be read back."""
        try:
            msgspec.json.Decoder(self.returns)
        except TypeError as error:
            raise ToolMisdefined(f"{name}: its return type cannot be recorded: {error}") from error


def _marked(hint: Any, mark: type) -> bool:
    return get_origin(hint) is Annotated and mark in get_args(hint)[1:]
