"""What a client is told when no reply of its server is at hand, in words that a model can act on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from intentlog.errors import ArgumentDrift, BranchBusy, InDoubt, IntentLogError, OutcomeUnavailable, Rejected
from intentlog.mcp import messages
from intentlog.mcp.untold import Done

STATE_META, INTENT_META, REPLAYED_META = "io.intentlog/state", "io.intentlog/intent", "io.intentlog/replayed"


def done(id_: object, value: object, intent_id: str, *, stateless: bool) -> bytes:
    """The recorded result of a call that is done: as the server gave it, marked as replayed."""
    members = _members(value)
    if "content" not in members and "structuredContent" not in members:  # a person gave it
        members = {"content": [{"type": "text", "text": text_in(value)}]}
    meta = {**_members(members.get("_meta")), REPLAYED_META: True, INTENT_META: str(intent_id)}
    era = {"resultType": "complete"} if stateless else {}
    return messages.result(id_, {**era, **members, "_meta": meta})


def failed(id_: object, error: IntentLogError, place: str, *, stateless: bool) -> bytes:
    """A tool result that says in plain words what is known of the effect, what not to do, and what to do next.

    Args:
        id_: the call's.
        error: why there is no result.
        place: the log, as commands name it.
        stateless: whether the call is of the stateless era.
    """
    state = {"no": "not_sent", "unknown": "in_doubt", "yes": "done"}[error.effect_ran]
    match error:
        case InDoubt():
            text = (
                f"This call may already have happened, and nothing can tell: {error.message}. Do not call it again, do "
                "not try another way to the same end, and do not say that it failed or that it worked: tell the user "
                "that a person has to look. An equal call is answered like this one until that is settled."
            )
        case OutcomeUnavailable():
            text = f"This call is done, and was not made again; its result is not at hand: {error.message}."
        case Rejected():
            text = f"The receiver refused this call, and it was not made again: {error.message}."
        case _:
            text = f"{_KNOWN[state]} {error.message}."
    following = _next(error, place)
    remedy = f" Next: {following}" if following else ""
    about = f" (intent {error.intent_id})" if error.intent_id else ""
    return told(id_, f"intentlog: {text}{remedy}{about}", state, error.intent_id, stateless=stateless)


def _next(error: IntentLogError, place: str) -> str | None:
    """The next step, as somebody can take it who has the command alone."""
    intent = f"{shlex.quote(place)} {shlex.quote(str(error.intent_id))}"
    match error:
        case OutcomeUnavailable():
            return f'a person gives it once: intentlog supply {intent} --outcome JSON --by YOU --why "..."'
        case ArgumentDrift():
            return "another call needs another key."
        case BranchBusy():
            return "another guard has this branch: end it, or give this one a --branch of its own."
        case _:
            return error.remedy


def untold(id_: object, done: Done, *, stateless: bool) -> bytes:
    """That an equal call is done, and its result: told in place of the call, once."""
    result = "Its result is not at hand." if done.value is None else f"Its result: {text_in(done.value)}"
    text = (
        "intentlog: This call was NOT sent. An equal call is done, and by the record whoever made it was not told: it "
        "was cancelled, took too long, was in doubt, or the guard was ended just then. If this is its retry, it is "
        f"done. If it is meant to happen once more, call again. (intent {done.intent_id}) {result}"
    )
    return told(id_, text, "done", done.intent_id, stateless=stateless)


_KNOWN = {
    "not_sent": "This call was not sent:",
    "in_doubt": "Whether this call happened is not known; do not call it again:",
    "done": "This call is done, and was not made again:",
}


def told(id_: object, text: str, state: str, intent_id: str | None, *, stateless: bool) -> bytes:
    """A tool result that is an error, and says so to the model."""
    meta = {STATE_META: state} | ({INTENT_META: str(intent_id)} if intent_id else {})
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}
    return messages.result(id_, result | ({"resultType": "complete"} if stateless else {}))


def text_in(value: object) -> str:
    """A value as a text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _members(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
