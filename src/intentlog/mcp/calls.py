"""One `tools/call`: what a client asks for, who it is, and what goes to the server."""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from intentlog.core import codec
from intentlog.core.actions import IntentId
from intentlog.mcp import messages
from intentlog.mcp.messages import Frame, members_of, text_of, value_of
from intentlog.mcp.rules import Rule

STEP_META, BRANCH_META = "io.intentlog/step", "io.intentlog/branch"
REQUEST_ID_META = "io.intentlog/request-id"
VERSION_META = "io.modelcontextprotocol/protocolVersion"
KNOWN_KEYS = (STEP_META, "claudecode/toolUseId")
"""Members of `_meta` that name one call of a model, the same when it is made again."""
_MEMBERS = frozenset({"name", "arguments", "_meta", "task"})
_LEG = ("inputResponses", "requestState")  # of a call that answers what the server asked back
_LEG_MARK = "~leg-"
_KEY_MAX = 160
MINTED = re.compile(r"\.[0-9a-f]{12}$")
"""How a step ends that was minted for one call."""
_PLAIN = re.compile(r"[\w.@:+~-]{1,180}", re.ASCII)
_ODD = re.compile(r"[^\w.@:+~-]", re.ASCII)


class Malformed(ValueError):
    """A `tools/call` that names no tool, or whose arguments are no object."""


class Identity(Struct, frozen=True):
    """Which operation a call is.

    Attributes:
        branch: its line of execution.
        step: its name there.
        is_stable: whether a later call with the same key is this one again. Otherwise the step was minted for this one.
        legs: how the steps of all legs of its call begin, if it has a key.
    """

    branch: str
    step: str
    is_stable: bool
    legs: str = ""

    def is_of(self, intent: IntentId) -> bool:
        """Whether an intent is of this operation."""
        return (intent.branch, intent.step) == (self.branch, self.step)


class ToolCall:
    """A `tools/call`, read but not changed.

    Args:
        frame: the message.

    Attributes:
        id: what its reply is known by.
        tool: the tool's name.
        arguments: as the model gave them.
        meta: the members of `_meta`, which the client fills and no model.

    Raises:
        Malformed: it names no tool, its arguments are no object, or a reader could find another call in it.
    """

    def __init__(self, frame: Frame) -> None:
        self.id: Any = frame.id
        self._params = members_of(frame.params)
        if misspelt := messages.misspelt_in(self._params, _MEMBERS):
            msg = f"{misspelt!r} is not what the protocol calls it"
            raise Malformed(msg)
        tool = text_of(self._params.get("name"))
        if not tool:
            msg = "tools/call names no tool"
            raise Malformed(msg)
        self.tool: str = tool
        self._arguments: Raw | UnsetType = self._params.get("arguments", UNSET)
        self.arguments = _object_of(self._arguments)
        self.meta = members_of(self._params.get("_meta", UNSET))

    @property
    def is_stateless(self) -> bool:
        """Whether it is of the stateless era (2026-07-28 and later), in which each request says its version."""
        return VERSION_META in self.meta

    @property
    def is_task(self) -> bool:
        """Whether the client asks for a handle in place of the result."""
        return "task" in self._params

    @property
    def is_leg(self) -> bool:
        """Whether it answers what the server asked back."""
        return any(name in self._params for name in _LEG)

    @property
    def meta_of_its_era(self) -> dict[str, Raw]:
        """What requests of the stateless era say of themselves, as this one does."""
        return {name: value for name, value in self.meta.items() if name.startswith("io.modelcontextprotocol/")}

    def identity(self, branch: str | None, own_branch: str, key_names: tuple[str, ...] = KNOWN_KEYS) -> Identity:
        """Which operation it is.

        Args:
            branch: the stable branch that the operator or the session gives, or None.
            own_branch: the branch of this run of the guard, for what has no stable one.
            key_names: the members of `_meta` that may hold a key.

        Raises:
            Malformed: what names it is no text: it would be taken for another one, or for none.
        """
        named = self._named_by(BRANCH_META) or branch
        key = next((text for name in key_names if (text := self._named_by(name))), None)
        if key is None or named is None:
            return Identity(named or own_branch, f"{readable(self.tool, 100)}.{secrets.token_hex(6)}", is_stable=False)
        step = readable(key, _KEY_MAX)
        if MINTED.search(step) or _LEG_MARK in step:  # it would be taken for what the guard itself names so
            step = _told_apart(key.replace("~", "_"), key, _KEY_MAX)
        return Identity(named, f"{step}{self._leg()}", is_stable=True, legs=f"{step}{_LEG_MARK}")

    def _named_by(self, member: str) -> str | None:
        part = self.meta.get(member)
        if part is None or (text := value_of(part)) is None:
            return None
        if not isinstance(text, str) or not text:
            msg = f"{member} in _meta is a text that is not empty, not {bytes(part)[:40].decode('utf-8', 'replace')}"
            raise Malformed(msg)
        return text

    def _leg(self) -> str:
        """What tells the legs of one call with several round trips apart: each is an operation."""
        if not self.is_leg:
            return ""
        answers = {name: self._params[name] for name in _LEG if name in self._params}
        encoded = codec.encode_value(msgspec.json.decode(msgspec.json.encode(answers)), bytes_max=1 << 30)
        return f"{_LEG_MARK}{blake2b(encoded, digest_size=6).hexdigest()}"

    def given(self, rule: Rule) -> tuple[Any, ...]:
        """What its guarded tool is given: its arguments, and if some are never written, the values of those.

        What stands in the key's own place is left out.
        """
        kept = {name: value for name, value in self.arguments.items() if name != rule.key_argument}
        if not rule.redact:
            return (kept,)
        hidden: list[Any] = []
        return _without(kept, {name.casefold() for name in rule.redact}, hidden), hidden

    def as_it_came(self) -> bytes:
        """The message, each of its members once."""
        return messages.request(self.id, messages.CALL, Raw(msgspec.json.encode(self._params)))

    def message(self, request_id: str, rule: Rule) -> bytes:
        """The message for the server: as it came, with the request id where the receiver looks for it."""
        params: dict[str, Any] = dict(self._params)
        params["_meta"] = self.meta | {REQUEST_ID_META: request_id}
        if rule.key_argument:
            params["arguments"] = messages.with_members(self._arguments, {rule.key_argument: request_id})
        return messages.request(self.id, messages.CALL, Raw(msgspec.json.encode(params)))


def readable(name: str, length_max: int) -> str:
    """A name as part of a record's: as it is, if that is plain and short; else what can be read of it, and a digest."""
    if _PLAIN.fullmatch(name) and len(name) <= length_max:
        return name
    return _told_apart(name, name, length_max)


def _told_apart(shown: str, name: str, length_max: int) -> str:
    """What can be read of a name, and a digest of it."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{_ODD.sub('_', shown)[: length_max - 17]}~{digest}"


def _without(value: Any, names: set[str], hidden: list[Any]) -> Any:
    """The value without the members of these names; theirs are put to the hidden ones."""
    if isinstance(value, list):
        return [_without(one, names, hidden) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, part in sorted(cast("dict[str, Any]", value).items()):
        if name.casefold() in names:
            hidden.append(part)
        else:
            kept[name] = _without(part, names, hidden)
    return kept


def _object_of(part: Raw | UnsetType) -> dict[str, Any]:
    if part is UNSET:
        return {}
    try:
        value: object = msgspec.json.decode(part)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"the arguments of tools/call cannot be read: {error}"
        raise Malformed(msg) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        msg = "the arguments of tools/call are no object"
        raise Malformed(msg)
    return cast("dict[str, Any]", value)
