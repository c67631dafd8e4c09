"""Names of branches, steps and tools, and the templates that make steps of arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any

from intentlog.errors import ArgumentsNotRecordable, ToolMisdefined

NAME_MAX = 255
_NOT_PRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONVERSIONS = frozenset({None, "", "r", "s", "a"})


def check_name(what: str, name: object, *, slash: bool) -> str:
    """A branch, step or tool name that can be written down and read back, as plain text.

    Raises:
        ArgumentsNotRecordable: it is no text of 1 to 255 characters, or has control characters (or `/` in a step).
    """
    if not isinstance(name, str):
        raise ArgumentsNotRecordable(f"a {what} is text, not {type(name).__name__}")
    # A subclass of str, an enum say, may print as something else than it is.
    plain = name if type(name) is str else "".join(name)
    if not 1 <= len(plain) <= NAME_MAX:
        raise ArgumentsNotRecordable(f"a {what} has 1 to {NAME_MAX} characters, not {len(plain)}")
    if not (plain.isascii() and plain.isprintable()) and _NOT_PRINTED.search(plain):
        raise ArgumentsNotRecordable(f"a {what} has no control characters: {plain!r}")
    if not slash and "/" in plain:
        raise ArgumentsNotRecordable(f"a {what} has no '/': {plain!r}")
    return plain


def check_template(tool: str, template: object, parameters: Collection[str], hidden: Collection[str]) -> str:
    """A step template that names only arguments that the tool takes and that may be written.

    Raises:
        ToolMisdefined: it cannot work, or would write a secret or volatile argument.
    """
    if not isinstance(template, str):
        raise ToolMisdefined(f"{tool}: step= is a template text, not {type(template).__name__}")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ToolMisdefined(f"{tool}: the step {template!r} is no template: {error}") from error
    for _, field, spec, conversion in parts:
        if field is None:
            continue
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if name in hidden:
            raise ToolMisdefined(f"{tool}: the step {template!r} may not hold a secret or volatile argument")
        if name not in parameters:
            raise ToolMisdefined(f"{tool}: the step {template!r} names {name!r}, which the tool does not take")
        if "{" in (spec or "") or conversion not in _CONVERSIONS:
            raise ToolMisdefined(f"{tool}: the step {template!r} has a format that is not understood")
    return template


def fill_template(template: str, arguments: Mapping[str, Any]) -> str:
    """The step that a template makes of these arguments.

    Raises:
        ArgumentsNotRecordable: it cannot be made, or cannot be written down.
    """
    try:
        step = template.format_map(arguments)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArgumentsNotRecordable(f"the step {template!r} cannot be made of these arguments: {error}") from error
    return check_name("step", step, slash=False)
