"""Which schedules there are of writers and a reader over one log, and what must hold at each step of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reliability import oracle
from reliability.children import context
from reliability.marks import Marks
from reliability.wal_actors import GAPS, Answer, act

READER = "R"
_LIMIT_S = 60.0
_OPEN = tuple(("open", gap) for gap in ("", *GAPS))
_USE = (("effect",), ("call",), ("upkeep",), ("restart",), ("close",), ("die",))
_HELD = (("go",), ("die",))


class Step(NamedTuple):
    """What one actor does."""

    who: str
    what: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(filter(None, (self.who, *self.what)))


Schedule = tuple[Step, ...]


class State(NamedTuple):
    """As far as a schedule goes by itself: each writer's state, the keeper, whether the reader looks."""

    writers: tuple[str, ...]  # closed, open, held
    keeper: int  # -1: nobody
    looks: bool

    def after(self, step: Step, names: str) -> State:
        """The state after a step."""
        if step.who == READER:
            return self._replace(looks=step.what == ("look",))
        number = names.index(step.who)
        word, gap = (*step.what, "")[:2]
        becomes = {"close": "closed", "die": "closed", "call": "held", "restart": "held"}.get(word, "open")
        keeper = self.keeper
        if becomes == "closed" and keeper == number:
            keeper = -1
        if word == "open":
            becomes = "held" if gap == "role" or (gap and keeper < 0) else "open"
        if keeper < 0 and ((word == "open" and gap != "role") or word in ("go", "upkeep", "restart")):
            keeper = number
        writers = (*self.writers[:number], becomes, *self.writers[number + 1 :])
        return State(writers, keeper, self.looks)

    def steps(self, names: str) -> Iterator[Step]:
        """What can be done now. Who never opened anything yet is like any other such: the first of them does it."""
        for name, writer in zip(names, self.writers, strict=True):
            if writer == "closed":
                yield from (Step(name, what) for what in _OPEN if self.keeper < 0 or what[1] in ("", "role"))
            elif writer == "open":
                yield from (Step(name, what) for what in _USE)
            else:
                yield from (Step(name, what) for what in _HELD)
        yield Step(READER, ("let_go",) if self.looks else ("look",))


def all_of(length: int, names: str = "AB") -> Iterator[Schedule]:
    """Every schedule of a length, but for those that differ only in who is called A and who B."""
    start = State(("closed",) * len(names), -1, looks=False)

    def longer(begun: Schedule, state: State) -> Iterator[Schedule]:
        if len(begun) == length:
            yield begun
            return
        used = len({step.who for step in begun} - {READER})
        for step in state.steps(names):
            if step.who in names[used + 1 :] or (step.who == READER and not begun):
                continue
            yield from longer((*begun, step), state.after(step, names))

    return longer((), start)


def random_one(chance: random.Random, length: int, names: str) -> Schedule:
    """A schedule by chance; a process of which nothing is open is opened sooner than a reader."""
    state = State(("closed",) * len(names), -1, looks=False)
    steps: list[Step] = []
    while len(steps) < length:
        step = chance.choice(list(state.steps(names)))
        if step.who == READER and not steps:
            continue
        steps.append(step)
        state = state.after(step, names)
    return tuple(steps)


def text_of(schedule: Schedule) -> str:
    """A schedule in a line."""
    return " ".join(map(str, schedule))


def parsed(text: str) -> Schedule:
    """The schedule of a line."""
    words = [step.split(".") for step in text.split()]
    return tuple(Step(who, tuple(what) if what[0] != "open" else ("open", *what[1:], "")[:2]) for who, *what in words)


class Cast:
    """The processes, which live from schedule to schedule unless they are killed.

    Args:
        names: of the writers, a letter each; there is a reader beside them.
        broken: what of the library is broken in them, for a control.
    """

    def __init__(self, names: str, broken: str = "") -> None:
        self.names = names
        self._broken = broken
        self._folder = ""
        self._actors = {name: self._started(name) for name in (*names, READER)}

    def _started(self, name: str):
        ours, its = context.Pipe()
        process = context.Process(target=act, args=(its, name, self._broken), daemon=True)
        process.start()
        its.close()
        return process, ours

    def begin(self, folder: Path) -> None:
        """A new log."""
        self._folder = str(folder)
        for name in self._actors:
            assert self.tell(name, "begin", self._folder) == "done"

    def tell(self, name: str, *words: str) -> Answer:
        """Let an actor do something, and wait for its answer."""
        _, pipe = self._actors[name]
        pipe.send(words)
        assert pipe.poll(_LIMIT_S), f"{name} hung at {words}"
        answer: Answer = pipe.recv()
        return answer

    def kill(self, name: str) -> None:
        """SIGKILL; another takes its place."""
        process, pipe = self._actors[name]
        process.kill()
        process.join()
        pipe.close()
        self._actors[name] = self._started(name)
        assert self.tell(name, "begin", self._folder) == "done"

    def end(self) -> None:
        """End them all."""
        for process, pipe in self._actors.values():
            process.kill()
            process.join()
            pipe.close()


class Play:
    """One schedule, played and looked at."""

    def __init__(self, cast: Cast, folder: Path) -> None:
        self._cast = cast
        self._path = folder / "log" / "log.db"
        self._marks = Marks(folder / "marks")
        self._held: dict[str, str] = {}  # where
        self._open: set[str] = set()
        self._looks = False
        self.found: list[str] = []
        cast.begin(folder)

    def play(self, schedule: Schedule) -> list[str]:
        """What was wrong."""
        for number, step in enumerate(schedule, 1):
            if self._is_possible(step):
                self._do(step.who, *step.what)
                self.found += [f"after step {number}: {one}" for one in self._seen_by_a_reader()]
            if self.found:
                break
        self._let_all_go()
        if not self.found:
            self._ends()
        for name in sorted(self._open):
            self._do(name, "close")
        if not self.found:
            self.found += oracle.violations(self._path, self._marks.read())
        return self.found

    def _is_possible(self, step: Step) -> bool:
        """A process that was refused, or was not held where it was to be, is elsewhere than its schedule knows."""
        word = step.what[0]
        if step.who == READER:
            return self._looks == (word == "let_go")
        if step.who in self._held:
            return word in ("go", "die")
        return word != "go" and (step.who in self._open) == (word != "open")

    def _do(self, who: str, word: str, *arguments: str) -> None:
        if word == "die":
            self._cast.kill(who)
            self._held.pop(who, None)
            self._open.discard(who)
            return
        opening = word == "open" or (word == "go" and self._held.get(who, "") in GAPS)
        was_held = self._held.pop(who, "")
        answer = self._cast.tell(who, word, *arguments)
        if answer == "held":
            self._held[who] = arguments[0] if arguments else word
            self._open.discard(who)
            return
        if answer != "done":
            self._refused(who, word or was_held, answer)
        refused = answer != "done"
        if who == READER:
            self._looks = word == "look" and not refused
        elif word == "close" or (opening and refused):
            self._open.discard(who)
        else:
            self._open.add(who)

    def _refused(self, who: str, word: str, answer: Answer) -> None:
        """LogUnavailable, and only for a reason; of a call that has ended, that its outcome could not be recorded."""
        _, name, text = answer if isinstance(answer, tuple) else ("", answer, "")
        reasons = {
            "the writer's lock is held": "growing" in self._held.values(),
            "a snapshot keeps the WAL": self._looks and word in ("open", "go"),
            "there is no log yet": who == READER and not self._path.exists(),
        }
        is_outcome = word == "go" and name == "OutcomeNotRecorded" and "[effect ran: yes]" in text
        if not (name == "LogUnavailable" or is_outcome) or not any(reasons.values()) or text.endswith("remedy: "):
            self.found.append(f"{who}.{word}: {name}: {text}")

    def _seen_by_a_reader(self) -> list[str]:
        marks = self._marks.read()
        if not self._path.exists():
            return ["acknowledged, and no log"] if any(m.kind == "ack" for m in marks) else []
        try:
            with oracle.quick_open(self._path, read_only=True) as log:
                return [*oracle._of_records(log, marks), *oracle._of_verify(log)]
        except oracle.IntentLogError as error:
            return [f"a reader is refused: {type(error).__name__}: {error}"]

    def _let_all_go(self) -> None:
        for name in sorted(self._held, key=lambda one: self._held[one] != "growing"):
            self._do(name, "go")
        if self._looks:
            self._do(READER, "let_go")

    def _ends(self) -> None:
        """Everybody goes on; one at most is the keeper; who is left alone becomes it."""
        for name in sorted(self._open):
            self._do(name, "effect")
        keepers = [name for name in sorted(self._open) if self._cast.tell(name, "keeper") == "keeper"]
        if len(keepers) > 1:
            self.found.append(f"keepers: {keepers}")
        if len(self._open) > 1:
            first = keepers[0] if keepers else min(self._open)
            self._do(first, "close")
        for name in sorted(self._open)[:1]:
            self._do(name, "upkeep")
            if self._cast.tell(name, "keeper") != "keeper":
                self.found.append(f"{name} was left without a keeper, and did not become it")
        self.found += [f"at the end: {one}" for one in self._seen_by_a_reader()]
