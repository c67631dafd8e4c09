"""What the conformance suite's server asks its client for: in both eras, and in which words."""

from __future__ import annotations

from typing import Any

from mcp import types

JSON = dict[str, Any]


def form(**properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT: JSON = {"type": "string"}
ENUM: JSON = {"enum": ["option1", "option2", "option3"]}
CHOICES = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]

FORMS: dict[str, tuple[str, JSON]] = {
    "user_name": ("What is your name?", form(name=TEXT)),
    "user_context": ("What context should the prompt use?", form(context=TEXT)),
    "confirm": ("Please confirm", form(ok={"type": "boolean"})),
    "step1": ("Step 1: What is your name?", form(name=TEXT)),
    "step2": ("Step 2: What is your favorite color?", form(color=TEXT)),
}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
ENUMS = form(
    untitledSingle={"type": "string", **ENUM},
    titledSingle={"type": "string", "oneOf": CHOICES},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    untitledMulti={"type": "array", "items": {"type": "string", **ENUM}},
    titledMulti={"type": "array", "items": {"anyOf": CHOICES}},
)
CONTACT = form(
    username={"type": "string", "description": "User's response"},
    email={"type": "string", "description": "User's email address"},
)

ROOTS: JSON = {"method": "roots/list", "params": {}}


def elicitation(message: str, schema: JSON) -> JSON:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def sampling(prompt: str, tokens_max: int) -> JSON:
    messages = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": tokens_max}}


def asked_for(requests: JSON, state: str | None = None) -> Any:
    """The result by which a server of 2026-07-28 asks."""
    told = {"resultType": "input_required", "inputRequests": requests}
    return types.InputRequiredResult.model_validate(told | ({"requestState": state} if state else {}))
