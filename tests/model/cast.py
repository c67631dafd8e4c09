"""The actors: what each will do next, by position. A script is run again from its replies only where that is new."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import Any, NamedTuple

from model.position import canonical, position
from model.programs import Program

DEAD, DONE = 0, 1  # the two roles that do nothing more
REPLIES_MAX = 120


class Role(NamedTuple):
    """An actor between two steps.

    Attributes:
        program: which of the cast's programs it runs.
        replies: what it was sent so far, one of the ways to come to its position.
        action: what it asks for; None if it does nothing more.
        broke: what came out of it that no caller expects, or "".
    """

    program: int
    replies: tuple[Any, ...]
    action: Any
    broke: str = ""


class Cast:
    """Every role that was met, by number."""

    def __init__(self, programs: list[Program], *, by_position: bool = True) -> None:
        self._programs = programs
        self._by_position = by_position
        self.roles = [Role(-1, (), None), Role(-1, (), None)]
        self._numbers: dict[Hashable, int] = {}
        self._sent: dict[tuple[int, Hashable], int] = {}

    def beginning(self) -> tuple[int, ...]:
        """Each program before its first action."""
        return tuple(self._enter(number, (), (number,)) for number in range(len(self._programs)))

    def send(self, role: int, token: Hashable, reply: Any) -> int:
        """The role after this reply. `token` stands for the reply: equal tokens, equal replies."""
        known = self._sent.get((role, token))
        if known is None:
            before = self.roles[role]
            known = self._enter(before.program, (*before.replies, reply), (role, token))
            self._sent[role, token] = known
        return known

    def _enter(self, program: int, replies: tuple[Any, ...], history: Hashable) -> int:
        script = self._programs[program]()
        role = DONE
        try:
            action = _run(script, replies)
        except StopIteration:
            return DONE
        except Exception as error:
            place: Hashable = f"broke {error!r}"
            found = Role(program, replies, None, f"{type(error).__name__}: {error}")
        else:
            place = (position(script), canonical(action)) if self._by_position else history
            found = Role(program, replies, action)
            if len(replies) > REPLIES_MAX:
                found = found._replace(broke="it asks without an end")
        role = self._numbers.setdefault((program, place), len(self.roles))
        if role == len(self.roles):
            self.roles.append(found)
        script.close()
        return role


def _run(script: Generator[Any, Any, None], replies: tuple[Any, ...]) -> Any:
    action = next(script)
    for reply in replies:
        action = script.send(reply)
    return action
