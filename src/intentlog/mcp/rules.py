"""What the operator says of a server's tools: effect class, times, probe, key, redaction. A file in TOML.

    trust_annotations = true              # take `readOnlyHint` and `idempotentHint` at their word

    [tools.write_file]
    effect = "IDEMPOTENT"

    [tools."charge_*"]                    # a pattern: the first that matches counts, a plain name before any pattern
    effect = "KEYED"
    window_s = 86400
    key_argument = "idempotency_key"      # where the receiver looks for the key; or key_header, over HTTP
    redact = ["card"]                     # never written, at whatever depth

    [tools.push]
    effect = "QUERYABLE"
    settle_s = 5
    probe = ["python", "probe_push.py"]
    time_limit_s = 60

A tool that is named nowhere is UNSAFE, unless its annotations are trusted: a server's hints are a server's word.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intentlog.core.effects import IDEMPOTENT, KEYED, QUERYABLE, READ, UNSAFE, Effect
from intentlog.errors import IntentLogError, ToolMisdefined

TIME_LIMIT_S = 3600.0
"""How long the guard waits for a reply, unless a rule says another time: a server has no limit of its own, and a build
or a review may take long."""


LIMIT_MAX_S = 366 * 86_400
OF_A_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate te trailer transfer-encoding upgrade".split()
)
NOT_SENT_HEADERS = OF_A_CONNECTION | {b"host", b"origin", b"content-length", b"accept-encoding", b"expect"}
"""Headers that are a connection's own, or the guard's: a key has no place in them."""


class RulesUnreadable(IntentLogError):
    """The file of rules cannot be read, or says what makes no sense. Nothing was started."""

    code = "rules_unreadable"
    default_remedy = "mend the file; `intentlog mcp --suggest -- COMMAND` prints a first one."


class Rule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the operator says of the tools that a name or pattern matches.

    Attributes:
        effect: the effect class; None leaves it to trusted annotations.
        window_s: KEYED: how long the receiver remembers a key, in seconds.
        settle_s: QUERYABLE: how long until the receiver shows a write, in seconds.
        probe: the command that asks whether an operation happened.
        probe_limit_s: how long it may take, in seconds.
        time_limit_s: how long a call may take, in seconds.
        key_argument: the argument that carries the request id; what a model puts there is dropped.
        key_header: the HTTP header that carries it.
        redact: members of the arguments that are never written, at whatever depth, in whatever letters.
    """

    effect: Literal["READ", "IDEMPOTENT", "KEYED", "QUERYABLE", "UNSAFE"] | None = None
    window_s: float = 0.0
    settle_s: float = 0.0
    probe: tuple[str, ...] = ()
    probe_limit_s: float = 30.0
    time_limit_s: float = TIME_LIMIT_S
    key_argument: str | None = None
    key_header: str | None = None
    redact: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValueError: why.
        """
        if self.effect == "KEYED" and not (self.key_argument or self.key_header):
            msg = "KEYED needs key_argument or key_header: where the receiver looks for the key"
            raise ValueError(msg)
        if self.effect == "QUERYABLE" and not self.probe:
            msg = "QUERYABLE needs a probe"
            raise ValueError(msg)
        if self.probe and self.effect not in ("QUERYABLE", "KEYED"):
            msg = "only QUERYABLE and KEYED tools have a probe"
            raise ValueError(msg)
        if self.key_header and self.key_header.strip().lower().encode() in NOT_SENT_HEADERS:
            msg = f"key_header is none that a connection has for itself: {self.key_header}"
            raise ValueError(msg)
        if not all(0 < limit_s <= LIMIT_MAX_S for limit_s in (self.time_limit_s, self.probe_limit_s)):
            msg = f"time limits are above 0 and at most {LIMIT_MAX_S} s"
            raise ValueError(msg)


class Hints(Struct, frozen=True):
    """A tool's annotations, as its server lists them. Both default to false: what is not said is not promised."""

    readOnlyHint: bool = False  # noqa: N815 - the protocol's own name
    idempotentHint: bool = False  # noqa: N815 - likewise


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator says of a server."""

    trust_annotations: bool = False
    tools: dict[str, Rule] = {}

    def trusting(self) -> Rules:
        """The same, with the server's annotations trusted."""
        return msgspec.structs.replace(self, trust_annotations=True)

    def rule_for(self, tool: str) -> Rule:
        """The rule of a tool: the one of its name, else the first whose pattern matches it, else an empty one."""
        if tool in self.tools:
            return self.tools[tool]
        return next((rule for pattern, rule in self.tools.items() if fnmatchcase(tool, pattern)), Rule())

    def effect_of(self, tool: str, hints: Hints | None) -> Effect:
        """The effect class of a tool.

        Args:
            tool: its name.
            hints: its annotations as last listed; None if they are not known, or may have changed since.
        """
        rule = self.rule_for(tool)
        match rule.effect:
            case None:
                return _hinted(hints) if hints and self.trust_annotations else UNSAFE
            case "KEYED":
                return KEYED(timedelta(seconds=rule.window_s))
            case "QUERYABLE":
                return QUERYABLE(timedelta(seconds=rule.settle_s))
            case "READ":
                return READ
            case "IDEMPOTENT":
                return IDEMPOTENT
            case "UNSAFE":
                return UNSAFE


def check_for_pipes(rules: Rules) -> None:
    """Refuse rules that only count over HTTP.

    Raises:
        RulesUnreadable: a receiver would look for its key in a header, which a message between pipes does not have.
    """
    for name, rule in rules.tools.items():
        if rule.key_header and not rule.key_argument:
            raise RulesUnreadable(f"{name}: key_header counts over HTTP alone; between pipes a key has a key_argument")


def _hinted(hints: Hints) -> Effect:
    """`destructiveHint` and `openWorldHint` say nothing of whether a repeat is safe."""
    if hints.readOnlyHint:
        return READ
    return IDEMPOTENT if hints.idempotentHint else UNSAFE


def read_rules(path: Path) -> Rules:
    """The rules in a file.

    Raises:
        RulesUnreadable: it cannot be read, or makes no sense.
    """
    try:
        given: Mapping[str, Any] = tomllib.loads(path.read_text("utf-8"))
        rules = msgspec.convert(given, Rules)
        for name in rules.tools:
            rules.effect_of(name, None)
    except (OSError, ValueError, OverflowError, ToolMisdefined) as error:
        raise RulesUnreadable(f"{path}: {error}") from error
    return rules
