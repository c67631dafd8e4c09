"""One guarded call, from when it is bound and named to when its script ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intentlog.core import lifecycle
from intentlog.core.actions import Outcome, Plan, Script
from intentlog.errors import ArgumentDrift, OutcomeUnavailable, Rejected
from intentlog.log.binding import Bound
from intentlog.log.declare import AnyTool
from intentlog.log.hands import ToolHands
from intentlog.log.steps import Unnamed
from intentlog.run.duty import Duty

if TYPE_CHECKING:
    from intentlog.log.engine import AttemptState


class Prepared:
    """A guarded call of which nothing is recorded yet. For one driver; one that never drives it has to `withdraw` it.

    Attributes:
        step: its step.
    """

    __slots__ = ("_attempt", "_bound", "_plan", "_tool", "_unnamed", "step")

    def __init__(
        self, attempt: AttemptState, handle: AnyTool, bound: Bound, step: str, unnamed: Unnamed | None, plan: Plan
    ) -> None:
        self.step = step
        self._attempt = attempt
        self._tool = handle
        self._bound = bound
        self._unnamed = unnamed
        self._plan = plan

    def replayed(self, duty: Duty) -> Outcome[Any] | None:
        """Its outcome, if reading is all that it takes. None: it takes more, or an error, and is to be driven.

        It waits for nobody, needs no turn of its step, and does what a driver would: the script is the same.
        """
        if not self._attempt.is_replaying:
            return None
        outcome = duty.read_through(lifecycle.perform(self._plan))
        if outcome is None:
            self._attempt.is_replaying = False
        else:
            self._attempt.steps.end(self._tool, self._unnamed, decided=True, drifted=False)
        return outcome

    def script(self) -> Script[Outcome[Any]]:
        """Its script, counted as a call of its attempt while it runs."""
        script = self._watched()
        self._attempt.watch(script)
        return script

    def hands(self) -> ToolHands:
        """What reaches its tool."""
        return ToolHands(self._tool, self._bound, self._attempt.payloads)

    def withdraw(self) -> None:
        """It is not driven: what counts unnamed calls forgets it."""
        self._attempt.steps.end(self._tool, self._unnamed, decided=False, drifted=False)

    def _watched(self) -> Script[Outcome[Any]]:
        """Say what became of the call's occurrence, when its script ends, however late."""
        attempt = self._attempt
        decided = drifted = False
        try:
            outcome = yield from lifecycle.perform(self._plan)
            decided, attempt.is_replaying = True, outcome.replayed
        except (Rejected, OutcomeUnavailable):
            decided = True
            raise
        except ArgumentDrift:
            drifted = True
            raise
        finally:
            attempt.steps.end(self._tool, self._unnamed, decided=decided, drifted=drifted)
        return outcome
