"""Batches (2025-03-26): what is asked in one array is answered in one, though calls in it are sent one by one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol


class Tell(Protocol):
    """Is told whether the client has been given an answer."""

    def __call__(self, *, told: bool) -> None:
        """Hear of it."""
        ...


def unheard(*, told: bool) -> None:
    """For answers of which nobody asks whether they were told."""


class Batch:
    """The replies to a batch, gathered. Safe from any thread.

    Args:
        expected: how many of its requests will be answered, or be known not to.
        answer: takes the array of replies, and what to tell.
    """

    def __init__(self, expected: int, answer: Callable[[bytes | None, Tell], None]) -> None:
        self._missing = expected
        self._answer = answer
        self._replies: list[tuple[bytes, Tell]] = []
        self._lock = Lock()

    def add(self, reply: bytes | None, tell: Tell = unheard) -> None:
        """Take one reply, or that there will be none. The last one lets them all be answered."""
        with self._lock:
            if reply is not None:
                self._replies.append((reply.strip(), tell))
            self._missing -= 1
            is_last = not self._missing
        if reply is None:
            tell(told=False)
        if is_last:
            array = b"[" + b",".join(text for text, _ in self._replies) + b"]"
            self._answer(array if self._replies else None, self._tell_all)

    def _tell_all(self, *, told: bool) -> None:
        for _, tell in self._replies:
            tell(told=told)
