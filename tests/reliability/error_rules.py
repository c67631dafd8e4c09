"""What a client must have been told when a system call of its log failed, given only its marks (`error_programs`)."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from reliability.marks import Mark

from intentlog import errors


def lies(before: Sequence[Mark], marks: Sequence[Mark]) -> list[str]:
    """What was false of what a client was told, or done behind its back.

    Args:
        before: the marks that the folder had when the client began.
        marks: those that it added.
    """
    found = [*_after_poison(marks), *_calls_without_permission(marks), *_outcomes_lost(marks)]
    called = {_branch(m.words[0]) for m in before if m.kind == "call"}
    for mark in marks:
        if mark.kind == "call":
            called.add(_branch(mark.words[0]))
        elif mark.kind == "error":
            found += _of_error(mark, called)
    return found


def untold(marks: Sequence[Mark], index: int) -> list[str]:
    """A sync of the WAL failed while the record of this mark was appended: it must not be acknowledged, but told."""
    after = marks[index + 1] if index + 1 < len(marks) else Mark("nothing", ())
    if after.kind == "failed" and after.words[:2] == marks[index].words:
        return []
    return [f"I8: the sync of {' '.join(marks[index].words)} failed, and what followed was {after}"]


def _after_poison(marks: Sequence[Mark]) -> list[str]:
    """I8: after a commit of unknown fate nothing is acknowledged and no call is made until the log is reopened."""
    first = next((n for n, m in enumerate(marks) if m.kind == "failed" and m.words[2] == "LogPoisoned"), len(marks))
    return [
        f"I8: {m.kind} {' '.join(m.words)} after {marks[first]}" for m in marks[first:] if m.kind in ("ack", "call")
    ]


def _calls_without_permission(marks: Sequence[Mark]) -> list[str]:
    """I1: each call after a Dispatched of its own that was acknowledged."""
    permitted: Counter[str] = Counter()
    found = []
    for mark in marks:
        if mark.kind == "ack" and mark.words[2] == "Dispatched":
            permitted[mark.words[1]] += 1
        elif mark.kind == "call":
            permitted[_branch(mark.words[0])] -= 1
            if permitted[_branch(mark.words[0])] < 0:
                found.append(f"I1: {mark.words[0]} was called, and its Dispatched was not acknowledged")
    return found


def _outcomes_lost(marks: Sequence[Mark]) -> list[str]:
    """After a call the caller has its value, or an error that names the intent; the value alone only if it stands."""
    open_calls: dict[str, Mark] = {}
    unrecorded: set[str] = set()
    hidden = []
    for mark in marks:
        if mark.kind in ("ack", "failed") and mark.words[-2 if mark.kind == "failed" else -1] == "Committed":
            branch = mark.words[0 if mark.kind == "failed" else 1]
            unrecorded = unrecorded | {branch} if mark.kind == "failed" else unrecorded - {branch}
        if mark.kind == "got" and _branch(mark.words[0]) in unrecorded:
            hidden.append(f"lost: the outcome of {mark.words[0]} could not be recorded, and its caller was not told")
        if mark.kind == "call":
            open_calls[mark.words[0]] = mark
        elif mark.kind == "got":
            open_calls.pop(mark.words[0], None)
        elif mark.kind == "error":
            open_calls.pop(str(ast.literal_eval(mark.words[1])), None)
    return hidden + [f"lost: {intent} was called, and its caller was told nothing of it" for intent in open_calls]


def _of_error(mark: Mark, called: set[str]) -> list[str]:
    """One error that left the library: its type, its remedy, its intent, what it says of the effect."""
    name, intent, ran, remedy, outcome, phase = mark.words
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.IntentLogError)):
        return [f"foreign: {name} left the library while {phase}"]
    found = []
    if not ast.literal_eval(remedy):
        found.append(f"{name} while {phase} says nothing of what to do")
    if intent == "None":
        return [*found, f"{name} in an effect names no intent"] if phase == "effect" else found
    was_called = _branch(str(ast.literal_eval(intent))) in called
    if ran == "'no'" and was_called:
        found.append(f"a lie: {name} says that {intent} did not run, and it was called")
    if ran == "'yes'" and not was_called:
        found.append(f"a lie: {name} says that {intent} ran, and it was not called")
    if name == "OutcomeNotRecorded" and "receipt-" not in outcome:
        found.append(f"lost: OutcomeNotRecorded of {intent} carries {outcome}")
    return found


def _branch(intent: str) -> str:
    return intent.partition("#")[0]
