"""Batches (2025-03-26): what is asked in one array is answered in one, though calls in it are sent one by one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any


class Batch:
    """The replies to a batch, gathered. Safe from any thread.

    Args:
        expected: how many replies there will be.
        answer: takes the array of them.
    """

    def __init__(self, expected: int, answer: Callable[[bytes], Any]) -> None:
        self._missing = expected
        self._answer = answer
        self._replies: list[bytes] = []
        self._lock = Lock()

    def add(self, reply: bytes) -> None:
        """Take one reply; the last one lets them all be answered."""
        with self._lock:
            self._replies.append(reply.strip())
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._answer(b"[" + b",".join(self._replies) + b"]")
