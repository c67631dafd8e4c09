"""What a replay needs, read ahead: a run of a branch's operations and their values, in one look for many steps."""

from __future__ import annotations

import json
import time
from collections import deque

from intentlog.core import codec
from intentlog.core.state import Branch, Operation
from intentlog.store import schema
from intentlog.store.connection import Connection

AHEAD_MAX = 256  # operations that are read at once
AHEAD_FIRST = 16
HELD_MAX = 8_192  # operations that are held
PAYLOAD_BYTES_MAX = 4_096  # a longer value is read when it is asked for: so many that are long would fill the memory
TOUCHED_MAX = 4_096
AGE_MAX_NS = 5_000_000  # so old, at most, is what another process may have changed since


class Recall:
    """Operations that have an outcome, and their values, as they stood when they were read. Used by one at a time.

    They are given up when a commit of this process touches their branch, which it says at once, and when anybody has
    committed, which is looked for every 5 ms: so long a decision of another process (a renewal) may be missed by an
    owner that replays. How many are read ahead follows how many of the last were used.
    """

    def __init__(self) -> None:
        self._branches: dict[str, Branch] = {}
        self._operations: dict[tuple[str, str], Operation] = {}
        self._payloads: dict[int, bytes | None] = {}
        self._is_used = False  # since before what is held was read, so that no commit after that is missed
        self._touched: deque[str] = deque()  # by commits of this process: added to from any thread
        self._version = -1
        self._checked_ns = 0
        self._ahead, self._used = AHEAD_FIRST, 0

    def touch(self, branches: list[str]) -> None:
        """This process has committed something of these branches. Safe from any thread."""
        if self._is_used:
            self._touched.extend(branches)
            self._is_used = len(self._touched) <= TOUCHED_MAX  # nobody asks any more, it seems

    def view(self, connection: Connection, branch: str, step: str) -> tuple[Branch, Operation] | None:
        """A branch and an operation of it with an outcome, if they are held and stand."""
        operation = self._operations.get((branch, step))
        if operation is None or not self._stand(connection, branch):
            return None
        self._used += 1
        return self._branches[branch], operation

    def payload(self, seq: int) -> tuple[bytes | None] | None:
        """The payload of a record, in a tuple of its own, if it is held: payloads never change."""
        return (self._payloads[seq],) if seq in self._payloads else None

    def read_ahead(self, connection: Connection, branch: str, step: str) -> None:
        """Hold what follows this step in its branch. Called where a step with an outcome was not held."""
        if not self._is_used:
            self._give_up()
            self._touched.clear()
            self._is_used = True
        connection.execute("BEGIN")
        try:
            self._see(connection)
            state = connection.execute(schema.BRANCH, (branch,)).get
            rows = connection.execute(schema.AHEAD, (branch, step, self._ahead)).fetchall()
            found = [codec.decode_operation(one) for (one,) in rows]
            places = [one.decided.value_seq for one in found if one.decided and one.decided.value_seq]
            payloads = connection.execute(schema.PAYLOADS, (json.dumps(places), PAYLOAD_BYTES_MAX)).fetchall()
        finally:
            connection.execute("ROLLBACK")
        if state is None:
            return
        if len(self._operations) + len(found) > HELD_MAX:
            self._give_up()
        self._branches[branch] = codec.decode_branch(state)
        self._operations.update({(branch, one.step): one for one in found if one.decided and not one.renewed})
        self._payloads.update(payloads)
        self._ahead = min(AHEAD_MAX, 2 * self._ahead)

    def _stand(self, connection: Connection, branch: str) -> bool:
        if not self._is_used:
            return False
        while self._touched:
            if self._touched.popleft() in self._branches:
                self._give_up()
        if time.monotonic_ns() - self._checked_ns > AGE_MAX_NS:
            self._see(connection)
        return branch in self._branches

    def _see(self, connection: Connection) -> None:
        """Give up what is held if anybody has committed since."""
        version = connection.execute(schema.DATA_VERSION).get
        if version != self._version:
            self._give_up()
            self._version = version
        self._checked_ns = time.monotonic_ns()

    def _give_up(self) -> None:
        if self._operations:
            self._ahead, self._used = max(1, min(AHEAD_MAX, 2 * self._used)), 0
        self._branches.clear()
        self._operations.clear()
        self._payloads.clear()
