"""What a recovery would do, and what it did: the script of one branch, watched from outside."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from intentlog.core import records as r
from intentlog.core.actions import Action, Append, Appended, IntentId, Probe, ResultT, Script
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


class Noted:
    """What a recovery of one branch recorded itself, and what it concluded.

    Attributes:
        concluded: what the script returned; empty until then.
    """

    def __init__(self) -> None:
        self.concluded: list[Classification] = []
        self._records: list[tuple[int, r.Record]] = []

    def watch(self, script: Script[ResultT]) -> Script[ResultT]:
        """Run a script, and note each record that it appended: what others were faster with is refused, and not."""
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
                        self._records.append((reply.seq, action.record))
                    action = script.send(reply)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result
        finally:
            script.close()

    def told(self, branch: str) -> Recovered | None:
        """What it recorded; None if that is nothing."""
        if not self._records:
            return None
        fenced: int | None = None
        closed: r.End | None = None
        classified: dict[IntentId, Classification] = {}
        touched: set[IntentId] = set()
        for seq, record in self._records:
            if isinstance(record, r.AttemptFenced):
                fenced = record.attempt
            elif isinstance(record, r.AttemptClosed):
                closed = record.end
            elif isinstance(record, r.OfIntent):
                intent = IntentId.of(branch, record.attempt, record.step)
                touched.add(intent)
                if isinstance(record, r.Classified):
                    said = (record.last_state, record.classification, record.resolution)
                    classified[intent] = Classification(intent, *said, seq)
        classified |= {one.intent_id: one for one in self.concluded if one.intent_id in touched}
        return Recovered(branch, fenced, tuple(classified.values()), closed)


@contextmanager
def telling(branch: str, told: Callable[[Recovered], object] | None) -> Generator[Noted]:
    """A block that recovers a branch: what was recorded in it is told, whatever ends it."""
    noted = Noted()
    try:
        yield noted
    finally:
        found = noted.told(branch) if told is not None else None
        if told is not None and found is not None:
            told(found)
