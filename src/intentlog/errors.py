"""Every exception of intentlog.

Each class says when it is raised, whether the effect ran, and what to do next.

| code                    | raised when                                                     | effect ran      |
|-------------------------|-----------------------------------------------------------------|-----------------|
| unguarded_call          | a tool is called without an attempt                             | no              |
| tool_misdefined         | a declaration cannot work as written                            | no              |
| arguments_not_recordable| arguments do not fit the signature, or cannot be written down   | no              |
| argument_drift          | a step is called again with other arguments or another tool     | as known so far |
| step_required           | an unnamed call cannot be told from its twin                    | no              |
| in_doubt                | it may have been sent, and the class cannot settle it           | unknown         |
| rejected                | the receiver gave a definite no, now or in the record           | no, or unknown  |
| not_sent                | the call was refused before it left                             | no, or unknown  |
| suspended               | the tool stopped before its effect, to be called again          | no, or unknown  |
| outcome_unavailable     | it is done, but its value was not stored or no longer decodes   | yes             |
| outcome_not_recorded    | the call returned, and its outcome could not be written         | yes             |
| branch_busy             | a living owner holds the branch                                 | as known so far |
| branch_pruned           | the branch was pruned and left only its tombstone               | as it was       |
| fenced                  | a later attempt has taken the branch over                       | as known so far |
| attempt_cancelled       | the attempt was cancelled                                       | as known so far |
| not_in_doubt            | a person decides what needs no decision                         | as known        |
| stale_decision          | something was recorded since the decision was prepared          | as known        |
| unknown_intent          | no such intent stands in the log                                | -               |
| log_poisoned            | an I/O error left a commit's fate unknown                       | as known so far |
| log_unavailable         | the log cannot be opened or written now                         | as known so far |
| log_in_use              | this process has the log, or a file of it, open already         | no              |
| log_closed              | the log or the attempt was closed                               | no              |
| log_damaged             | the file is not a sound log                                     | as known so far |
| format_too_new          | a newer intentlog wrote the file                                | no              |
| wrong_process           | the log was opened before a fork                                | no              |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

EffectRan = Literal["no", "unknown", "yes"]


def one_line(text: str) -> str:
    r"""The text on one line, with what a terminal would obey or hide written as an escape: `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class IntentLogError(Exception):
    """The base of every error that intentlog raises.

    Attributes:
        code: a stable name for programs and `--json`.
        intent_id: text form of the intent (`order-1042#2/charge`), or None where there is none.
        effect_ran: what is known about the effect: "no", "unknown" or "yes".
        remedy: what to do next, with the command where there is one.
    """

    code: ClassVar[str] = "error"
    default_remedy: ClassVar[str] = ""
    default_effect_ran: ClassVar[EffectRan] = "no"

    def __init__(
        self,
        message: str = "",
        *,
        intent_id: str | None = None,
        effect_ran: EffectRan | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.intent_id = intent_id
        self.effect_ran: EffectRan = effect_ran or self.default_effect_ran
        self.remedy = self.default_remedy if remedy is None else remedy

    def __str__(self) -> str:
        about = f"{self.intent_id}: " if self.intent_id else ""
        ran = f" [effect ran: {self.effect_ran}]" if self.intent_id else ""
        after = f" Next: {self.remedy}" if self.remedy else ""
        return f"{about}{self.message}{ran}{after}"

    def __reduce__(self) -> tuple[Callable[..., IntentLogError], tuple[Any, ...]]:
        """Keep every attribute through pickling, so that process pools lose nothing."""
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[IntentLogError], attributes: dict[str, Any]) -> IntentLogError:
    error = kind.__new__(kind)
    Exception.__init__(error, attributes.get("message", ""))
    error.__dict__.update(attributes)
    return error


# --- a program's own mistakes: nothing is written, no effect runs -----------------------------------------------


class UnguardedCall(IntentLogError):
    """A tool was called directly, or reached by another door than the guard. The effect did not run."""

    code = "unguarded_call"
    default_remedy = "call it through an attempt: attempt.call(tool, ...)."


class ToolMisdefined(IntentLogError):
    """A tool's declaration cannot work as written. Raised before anything is recorded."""

    code = "tool_misdefined"
    default_remedy = "mend the program; nothing was recorded."


class ArgumentsNotRecordable(IntentLogError):
    """The arguments do not fit the tool's signature, or cannot be written down. Nothing was recorded."""

    code = "arguments_not_recordable"
    default_remedy = "mend what was given; nothing was recorded."


class ArgumentDrift(IntentLogError):
    """A step is called again with other arguments, or by another tool, than were recorded (I6)."""

    code = "argument_drift"
    default_remedy = 'give the new effect a step of its own: attempt.step("...").call(...).'


class StepRequired(IntentLogError):
    """An unnamed call cannot be told from its twin: calls in parallel, or from inside a tool."""

    code = "step_required"
    default_remedy = 'name the step: attempt.step("...").call(...).'


# --- what a guarded call may answer ------------------------------------------------------------------------------


class InDoubt(IntentLogError):
    """The effect may have been sent, and its class cannot settle it (yet). `__cause__` is the call's own error.

    Attributes:
        not_before: until when (wall clock, UTC) a call of it may still land, as far as the log can tell: a probe's "not
            applied" counts only after it, and a person who looks should look then. None: that time is past.
    """

    code = "in_doubt"
    default_effect_ran = "unknown"

    def __init__(self, message: str = "", *, not_before: datetime | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.not_before = not_before


class Rejected(IntentLogError):
    """The receiver gave a definite no. A tool raises it; the guard raises it live and on replay alike.

    Attributes:
        replayed: True if the answer comes from the record and nothing was called now.
        error_type: the name of the error that the tool raised.
    """

    code = "rejected"

    def __init__(
        self, message: str = "", *, replayed: bool = False, error_type: str = "Rejected", **kwargs: Any
    ) -> None:
        super().__init__(message, **kwargs)
        self.replayed = replayed
        self.error_type = error_type


class NotSent(IntentLogError):
    """The call was refused before it left (connection refused, name not found). Safe to call again."""

    code = "not_sent"
    default_remedy = "call the step again."


class Suspended(IntentLogError):
    """A tool raises it before its effect, when it has to wait for something. Not an outcome; call the step again."""

    code = "suspended"
    default_remedy = "call the step again when what it waits for is there."


class OutcomeUnavailable(IntentLogError):
    """The effect is done, but its value was not stored, or does not decode to the present type any more."""

    code = "outcome_unavailable"
    default_effect_ran = "yes"
    default_remedy = "give the value once: intentlog supply LOG INTENT --outcome JSON, or log.supply(...)."


class OutcomeNotRecorded(IntentLogError):
    """The call ended, and its outcome could not be written. A restart will say "may have been sent".

    Attributes:
        outcome: what the tool returned, or the error that it raised.
    """

    code = "outcome_not_recorded"
    default_effect_ran = "yes"
    default_remedy = "keep the outcome; make room or mend the disk, reopen the log, then `intentlog recover LOG`."

    def __init__(self, message: str = "", *, outcome: object = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.outcome = outcome


# --- who may go on ---------------------------------------------------------------------------------------------------


class BranchBusy(IntentLogError):
    """A living owner holds the branch: its attempt is open, or a call of it still runs."""

    code = "branch_busy"
    default_remedy = "wait for it (log.attempt(branch, wait=...)) or end the process that holds it."


class BranchPruned(IntentLogError):
    """The branch was pruned; only its tombstone is left."""

    code = "branch_pruned"
    default_remedy = "use a new branch."


class Fenced(IntentLogError):
    """A later attempt has taken the branch over, or the attempt is closed. This one can do no more."""

    code = "fenced"
    default_remedy = "stop; the newer attempt goes on."


class AttemptCancelled(IntentLogError):
    """The attempt was cancelled; no further effect of it is sent."""

    code = "attempt_cancelled"
    default_remedy = "stop, or open a new attempt."


# --- decisions by a person ---------------------------------------------------------------------------------------


class NotInDoubt(IntentLogError):
    """The intent needs no decision: it is done, was never sent, or is being called right now."""

    code = "not_in_doubt"
    default_remedy = "look first: intentlog status LOG."


class StaleDecision(IntentLogError):
    """Something was recorded for the operation since the decision was prepared."""

    code = "stale_decision"
    default_effect_ran = "unknown"
    default_remedy = "look again (intentlog show LOG BRANCH) and decide anew."


class UnknownIntent(IntentLogError):
    """No such intent stands in the log."""

    code = "unknown_intent"
    default_remedy = "see what its branch has: intentlog show LOG BRANCH. The form is BRANCH#ATTEMPT/STEP."


# --- the log itself ------------------------------------------------------------------------------------------------


class LogPoisoned(IntentLogError):
    """An I/O error left a commit's fate unknown; nothing more is acknowledged on this log (I8)."""

    code = "log_poisoned"
    default_effect_ran = "unknown"
    default_remedy = "mend the disk, open the log again, and run recover."


class LogUnavailable(IntentLogError):
    """The log cannot be opened or written now (missing folder, no room, held by another). Nothing was written."""

    code = "log_unavailable"


class BranchHeld(LogUnavailable):
    """A transaction of somebody else holds a branch of what was to be written together. Nothing was written."""


class LogInUse(IntentLogError):
    """This process has the log open already, or opens one of its files by hand, which would drop SQLite's locks."""

    code = "log_in_use"
    default_remedy = "share the one Log object; it may be used from several threads."


class LogClosed(IntentLogError):
    """The log or the attempt was closed."""

    code = "log_closed"
    default_remedy = "open it again."


class LogDamaged(IntentLogError):
    """The file is not a log, or is not sound."""

    code = "log_damaged"
    default_remedy = "see what is damaged: intentlog verify LOG; keep the file, and restore a backup."


class FormatTooNew(IntentLogError):
    """A newer intentlog wrote the log."""

    code = "format_too_new"
    default_remedy = "upgrade intentlog; older versions never write to a newer log."


class WrongProcess(IntentLogError):
    """The log was opened before a fork, which SQLite's locks do not survive."""

    code = "wrong_process"
    default_remedy = "fork before the log is opened, or start the child anew (spawn, exec)."
