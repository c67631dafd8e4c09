"""Calls of one step take turns: the second waits for the first, and gets what that recorded."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Whose turn it is, by step. For the tasks of one event loop.

    Attributes:
        loop: whose tasks they are. With a loop that is gone, its turns are.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # behind the one whose turn it is

    def takes(self, step: str) -> bool:
        """Take the turn, if nobody has it. To be followed by `give`."""
        if step in self._waiting:
            return False
        self._waiting[step] = deque()
        return True

    async def wait(self, step: str) -> None:
        """Wait for the turn, and take it. To be followed by `give`, unless this raises."""
        turn = self.loop.create_future()
        self._waiting[step].append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(step)  # it got the turn just when it was cancelled
            raise

    def give(self, step: str) -> None:
        """Give the turn to who has waited longest."""
        waiting = self._waiting[step]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[step]
