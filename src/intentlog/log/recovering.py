"""What a recovery would do, and what it did: the script of one branch, watched from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from intentlog.core import records as r
from intentlog.core.actions import Action, Append, Appended, Probe, ResultT, Script
from intentlog.core.restart import Classification
from intentlog.log.values import Recovered


def has_work(script: Script[Any], look: Callable[[Any], Any]) -> bool:
    """Whether a script would append something or ask a probe, as things stand. It does neither.

    Args:
        script: a recovery that was not begun; it is ended.
        look: does an action that reads.
    """
    try:
        action = next(script)
        while not isinstance(action, Append | Probe):
            action = script.send(look(action))
    except StopIteration:
        return False
    finally:
        script.close()
    return True


def noted(script: Script[ResultT], records: list[r.Record]) -> Script[ResultT]:
    """Run a script, and note each record that it appended itself: what others were faster with is refused."""
    try:
        action: Action = next(script)
        while True:
            try:
                reply = yield action
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - the script decides what it means, an interruption too
                action = script.throw(error)
            else:
                if isinstance(action, Append) and isinstance(reply, Appended):
                    records.append(action.record)
                action = script.send(reply)
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        script.close()


def recovered(branch: str, concluded: Sequence[Classification], records: Sequence[r.Record]) -> Recovered:
    """What a recovery did about one branch, by the records that it appended."""
    own = {(one.attempt, one.step) for one in records if isinstance(one, r.OfIntent)}
    return Recovered(
        branch=branch,
        fenced=next((one.attempt for one in records if isinstance(one, r.AttemptFenced)), None),
        classified=tuple(one for one in concluded if (one.intent_id.attempt, one.intent_id.step) in own),
        closed=next((one.end for one in records if isinstance(one, r.AttemptClosed)), None),
    )
