"""What persons and programs decide through either face, made into scripts. Whatever is wrong is raised before."""

from __future__ import annotations

from typing import cast

from intentlog.core import codec, decisions
from intentlog.core.actions import IntentId, Script
from intentlog.core.records import Durability, Settlement
from intentlog.errors import ArgumentsNotRecordable, LogClosed, LogUnavailable, ToolMisdefined, UnknownIntent
from intentlog.log.inspection import Inspection
from intentlog.log.naming import check_name
from intentlog.log.sealing import SEALED
from intentlog.log.values import Applied, Cancelled, NotApplied


class Deciding(Inspection):
    """The decisions of both faces. Safe from any thread, but for what its driver does."""

    is_closing: bool

    def check_open(self) -> None:
        """Begin nothing more on a log that is being closed.

        Raises:
            LogClosed: it is.
        """
        if self.is_closing:
            raise LogClosed(f"{self.store.name} is being closed")

    def resolving(self, intent_id: str, answer: object, by: str, why: str, expect_seq: int | None) -> Script[None]:
        """The script that records a decision about an intent in doubt."""
        if not isinstance(answer, Applied | NotApplied):
            raise ToolMisdefined(f"an intent is resolved as Applied(value) or NotApplied(), not {answer!r}")
        _check_said(by, why)
        intent = parse_intent(intent_id)
        payload = None
        if isinstance(answer, Applied) and answer.has_value:
            payload = self._value(intent, cast("Applied[object]", answer).value)
        settlement = Settlement.APPLIED if isinstance(answer, Applied) else Settlement.NOT_APPLIED
        return decisions.resolve(intent, settlement, payload, by, why, expect_seq)

    def supplying(self, intent_id: str, value: object, by: str, why: str) -> Script[None]:
        """The script that records the value of an operation that is done without one."""
        _check_said(by, why)
        intent = parse_intent(intent_id)
        return decisions.supply(intent, self._value(intent, value), by, why)

    def renewing(self, intent_id: str, by: str, why: str, expect_seq: int | None) -> Script[None]:
        """The script that records that an operation shall happen once more."""
        _check_said(by, why)
        return decisions.renew(self.store.name, parse_intent(intent_id), by, why, expect_seq)

    def cancelling(self, branch: str, by: str, why: str) -> Script[decisions.Cancelled]:
        """The script that records that a branch's attempt shall send nothing more."""
        _check_said(by, why)
        return decisions.cancel(check_name("branch", branch, slash=True), by, why, self.tools.declaration_of)

    def cancelled(self, branch: str, done: decisions.Cancelled) -> Cancelled:
        """What a cancellation came to, with what is still open of the branch."""
        return Cancelled(done.verdict, tuple(self.open_intents(check_name("branch", branch, slash=True))))

    def noting(self, branch: str, kind: str, payload: object, durability: object) -> Script[None]:
        """The script that records a program's own event."""
        self.check_open()
        name = check_name("branch", branch, slash=True)
        if not isinstance(durability, Durability):
            raise ToolMisdefined(f"durability= takes a Durability, not {durability!r}")
        limit = self.settings.argument_bytes_max
        try:
            encoded = self.payloads(name).sealed(codec.encode_value(payload, limit))
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the event cannot be recorded: {error}") from error
        return decisions.note(name, check_name("event kind", kind, slash=True), encoded, durability)

    def _value(self, intent: IntentId, value: object) -> bytes:
        """A value as it is stored, if the operation's own payloads could be read here."""
        payloads = self.payloads(intent.branch)
        operation = self.store.view(intent.branch, intent.step).operation
        stored = self.store.record(operation.first_seq) if operation and payloads.codec is None else None
        if stored and stored.payload and stored.payload.startswith(SEALED):
            raise LogUnavailable(
                f"what {intent} stores is sealed, and the log was opened without its codec",
                remedy="open it with its codec: Settings(codec=...), or INTENTLOG_CODEC=MODULE:NAME for the command.",
            )
        try:
            return payloads.value(value)
        except codec.NotRecordable as error:
            raise ArgumentsNotRecordable(f"the value cannot be recorded: {error}") from error


def parse_intent(text: object) -> IntentId:
    """An intent's identity from its text form.

    Raises:
        UnknownIntent: it has not the form BRANCH#ATTEMPT/STEP.
    """
    if isinstance(text, IntentId):
        return text
    if not isinstance(text, str) or not _can_be_written(text):
        raise UnknownIntent(f"not an intent: {text!r}. The form is BRANCH#ATTEMPT/STEP, as in order-1042#2/charge")
    try:
        return IntentId(text)
    except ValueError as error:
        raise UnknownIntent(str(error)) from error


def _check_said(by: object, why: object) -> None:
    for name, text in (("by", by), ("why", why)):
        if not isinstance(text, str) or not text.strip():
            raise ArgumentsNotRecordable(f"a decision needs {name}=: it stays in the log", remedy="say who, and why.")
        if not _can_be_written(text):
            raise ArgumentsNotRecordable(f"{name}= cannot be written down: {text!r}", remedy="give it as plain text.")


def _can_be_written(text: str) -> bool:
    """Not with a lone surrogate, which stands for a byte that is no text."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
