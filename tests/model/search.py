"""Breadth first through every state of a scope: the first counter-example that is found is a shortest one."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from model import promises
from model.steps import Model, Scope, State

STATES_MAX = 5_000_000


class Found(NamedTuple):
    """What a search came to.

    Attributes:
        states: how many there are.
        steps: how many steps lead from one to another.
        logs: how many different logs were met.
        situations: the noteworthy ones, and how many steps were one.
        broken: what the first broken promise says; "" if all hold.
        trace: the shortest way there, in words.
    """

    states: int
    steps: int
    logs: int
    situations: Counter[str]
    broken: str = ""
    trace: tuple[str, ...] = ()

    def story(self) -> str:
        """The counter-example, one step to a line."""
        return "\n".join(
            [f"  {number:2}. {words}" for number, words in enumerate(self.trace, 1)] + [f"  => {self.broken}"]
        )


class Search:
    """One search. Everything it met stays at hand."""

    def __init__(self, scope: Scope, *, watched: tuple[str, ...] = (), by_position: bool = True) -> None:
        """Search a scope for what breaks a promise.

        Args:
            scope: what is covered.
            watched: promises to watch, by the word that their texts begin with; all of them, if there is none.
            by_position: whether equal positions are one, or every history of replies is its own.
        """
        self.model = Model(scope, by_position=by_position)
        self._watched = watched
        self._kind = scope.setting.kind
        self.states: dict[State, int] = {}
        self._came: list[tuple[int, str]] = []
        self._next: list[list[int]] = []
        self._sound: dict[int, list[str]] = {}
        self._unbroken: dict[int, list[str]] = {}

    def run(self) -> Found:
        """Every state, or those up to the first that breaks a promise."""
        situations: Counter[str] = Counter()
        queue = [self.model.beginning()]
        self.states[queue[0]] = 0
        self._came.append((-1, ""))
        steps = 0
        for number, state in enumerate(queue):
            ways: list[int] = []
            for step in self.model.steps(state):
                steps += 1
                situations.update(step.situations)
                after = self.states.get(step.state)
                fresh = after is None
                if after is None:
                    after = self.states[step.state] = len(queue)
                    queue.append(step.state)
                    self._came.append((number, step.words))
                ways.append(after)
                broken = [*step.broken, *(self._broken(step.state) if fresh else ())]
                if broken := [one for one in broken if self._is_watched(one)]:
                    return self._found(steps, situations, broken[0], (*self._way(number), step.words))
            self._next.append(ways)
            if not ways and (ended := self._ended_badly(state)):
                return self._found(steps, situations, ended, self._way(number))
            assert len(queue) < STATES_MAX, "the scope is too large"
        if (circling := self._on_a_cycle()) is not None:
            return self._found(steps, situations, "livelock: it comes back to where it was", self._way(circling))
        return self._found(steps, situations, "", ())

    def finals(self) -> list[State]:
        """The states from which no step leads on."""
        return [state for state, number in self.states.items() if not self._next[number]]

    def _found(self, steps: int, situations: Counter[str], broken: str, trace: tuple[str, ...]) -> Found:
        logs = len({state.log for state in self.states})
        return Found(len(self.states), steps, logs, situations, broken, trace)

    def _is_watched(self, broken: str) -> bool:
        return not self._watched or broken.startswith(self._watched)

    def _broken(self, state: State) -> list[str]:
        log = self.model.log(state)
        if state.log not in self._unbroken:
            self._unbroken[state.log] = log.broken()
        return self._unbroken[state.log] + promises.broken_in(log, self.model.receiver(state), self._kind)

    def _ended_badly(self, state: State) -> str:
        """At the end every script has ended, and the log is sound throughout."""
        if idle := self.model.idle(state):
            return f"deadlock: {', '.join(idle)}"
        if state.log not in self._sound:
            self._sound[state.log] = self.model.log(state).unsound()
        unsound = [one for one in self._sound[state.log] if self._is_watched(one)]
        return unsound[0] if unsound else ""

    def _way(self, number: int) -> tuple[str, ...]:
        words: list[str] = []
        while number > 0:
            number, word = self._came[number]
            words.append(word)
        return tuple(reversed(words))

    def _on_a_cycle(self) -> int | None:
        """Time only passes and logs only grow: a cycle is scripts that ask on and on and bring nothing about."""
        entering = [0] * len(self._next)
        for ways in self._next:
            for after in ways:
                entering[after] += 1
        free = [number for number, count in enumerate(entering) if not count]
        for number in free:  # grows while it is walked
            for after in self._next[number]:
                entering[after] -= 1
                if not entering[after]:
                    free.append(after)
        return next((number for number, count in enumerate(entering) if count), None)
