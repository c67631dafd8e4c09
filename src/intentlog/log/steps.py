"""Names: which step a call is. Explicit, by the tool's template, or the tool's name with its occurrence."""

from __future__ import annotations

from threading import Lock
from weakref import WeakValueDictionary

from intentlog.errors import StepRequired
from intentlog.log.binding import Bound
from intentlog.log.declare import AnyTool
from intentlog.log.hands import running
from intentlog.log.naming import check_name, fill_template


class _Occurrences:
    """The unnamed calls of one tool in an attempt: how many there were, and which are not used up."""

    __slots__ = ("count", "open")

    def __init__(self) -> None:
        self.count = 0
        self.open: dict[str, int] = {}  # by the arguments' digest


class Unnamed:
    """One unnamed call that is being made. Held by who makes it: forgotten with it, however that is interrupted."""

    def __init__(self, number: int) -> None:
        self.number = number


class Steps:
    """The steps of one attempt: names its calls and counts the unnamed ones. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._occurrences: dict[str, _Occurrences] = {}
        self._unnamed: WeakValueDictionary[str, Unnamed] = WeakValueDictionary()  # by the tool's name

    def begin(self, handle: AnyTool, bound: Bound, given: str | None) -> tuple[str, Unnamed | None]:
        """The call's step, and what to hold while it is made if it is unnamed.

        Raises:
            StepRequired: unnamed calls of one tool in parallel, or from inside a tool.
            ArgumentsNotRecordable: the name cannot be written down.
        """
        if given is not None:  # and was checked where it was given
            return given, None
        if handle.step is not None:
            return fill_template(handle.step, bound.values), None
        if running.get():
            raise StepRequired(f"{handle.name} is called from inside a tool ({running.get()[-1]})")
        with self._lock:
            if handle.name in self._unnamed:
                raise StepRequired(f"another unnamed call of {handle.name} is being made")
            occurrences = self._occurrences.setdefault(handle.name, _Occurrences())
            number = occurrences.open.get(bound.digest, 0)
            if not number:
                occurrences.count += 1
                number = occurrences.open[bound.digest] = occurrences.count
            step = check_name("step", handle.name if number == 1 else f"{handle.name}~{number}", slash=False)
            unnamed = self._unnamed[handle.name] = Unnamed(number)
        return step, unnamed

    def end(self, handle: AnyTool, unnamed: Unnamed | None, *, decided: bool, drifted: bool) -> None:
        """The call has ended. With RETURNED or REJECTED its occurrence is used up; a drifted one never was."""
        if unnamed is None:
            return
        number = unnamed.number
        with self._lock:
            if self._unnamed.get(handle.name) is unnamed:
                del self._unnamed[handle.name]
            occurrences = self._occurrences[handle.name]
            last = drifted and number == occurrences.count
            if decided or last:
                occurrences.open = {digest: n for digest, n in occurrences.open.items() if n != number}
            if last and not decided:
                occurrences.count -= 1
