"""What a person should hear of, through the standard library's logging (logger `intentlog`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intentlog.errors import one_line

if TYPE_CHECKING:
    from logging import Logger

STEPS_TOLD = 10  # of those that were not come by


class LoggingObserver:
    """Tells what a person should hear of to the logger `intentlog`. Safe from any thread."""

    def contradiction(self, intent_id: str, detail: str) -> None:
        """A late outcome says other than what was settled."""
        text = "%s: %s; both stand in the log. Look: intentlog status LOG"
        _logger().error(text, one_line(intent_id), one_line(detail))

    def unvisited(self, branch: str, steps: Sequence[str]) -> None:
        """A completed attempt did not come by steps that are done."""
        text = (
            "%s: the attempt is complete and did not come by steps that are done: %s. "
            "If a deploy renamed them, they were done again under their new names."
        )
        others = f" and {len(steps) - STEPS_TOLD} others" if len(steps) > STEPS_TOLD else ""
        _logger().warning(text, one_line(branch), one_line(", ".join(steps[:STEPS_TOLD])) + others)

    def poisoned(self, log: str, detail: str) -> None:
        """The log refuses everything from now on (I8)."""
        text = "%s: a commit's fate is unknown (%s); open the log again and run recover"
        _logger().critical(text, one_line(log), one_line(detail))


def _logger() -> Logger:
    """The logger; `logging` is loaded when there is something to tell, which is seldom."""
    from logging import getLogger

    return getLogger("intentlog")
