"""The scheduler's choices: every step that can be the next one, and the state after it.

One action of one actor is one step, and so are: an actor dies, a call lands, a tick passes. A death before and after
each append, and before, during and after each call, is a death between two steps; an actor that pauses is one that the
scheduler leaves alone while ticks pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

from model import promises
from model.cast import DEAD, DONE, Cast
from model.programs import Looked, Program, Seen, Setting, Told
from model.world import Log, Receiver, instant, tick_of

from intentlog.core import records as r
from intentlog.core.actions import (
    Append,
    Appended,
    Call,
    Fetch,
    FetchError,
    Load,
    LoadBranch,
    Probe,
    Probed,
    Raised,
    Refused,
    Returned,
    Wait,
)
from intentlog.core.effects import EffectKind
from intentlog.core.records import Answer, ErrorText, Instant
from intentlog.errors import NotSent, Rejected, Suspended
from intentlog.run.hands import hindrance

REFUSALS: dict[str, type[Exception]] = {"not sent": NotSent, "rejected": Rejected, "suspended": Suspended}


class Scope(NamedTuple):
    """What one search covers.

    Attributes:
        name: the scope, in a word or two.
        setting: the tool's class, and how death is known.
        programs: the actors by name. All but the first begin once something stands in the log.
        horizon: the last tick.
        mortal: who may die, at any step.
        endings: how a call may end for its caller, beside returning once it has landed: "time-out", "not sent",
            "rejected", "suspended".
        mute: whether the probe may answer UNKNOWN.
        prompt: whether nobody stops between what they read and what they append of it.
    """

    name: str
    setting: Setting
    programs: dict[str, Program]
    horizon: int
    mortal: tuple[str, ...] = ("A",)
    endings: tuple[str, ...] = ()
    mute: bool = False
    prompt: bool = False


class State(NamedTuple):
    """A state of everything, made of numbers so that it is quickly compared: of the log, the receiver, the roles."""

    now: int
    log: int
    receiver: int
    roles: tuple[int, ...]
    calling: tuple[bool, ...]  # whose call has begun and not ended


class Step(NamedTuple):
    """One step: in words, and the state after it; what it breaks, and which noteworthy situations it is."""

    words: str
    state: State
    broken: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()


ThingT = TypeVar("ThingT")


class Numbers(Generic[ThingT]):
    """Numbers for things, in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.things: list[ThingT] = []

    def of(self, thing: ThingT, identity: Hashable) -> int:
        number = self._numbers.setdefault(identity, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class _Clock(NamedTuple):
    """What the driver's own check before a call reads."""

    tick: int

    def now(self) -> Instant:
        return instant(self.tick)

    def gone(self, *, age_max_ns: int = 0, given_ns: int | None = None) -> str:
        return ""


class Model:
    """The transition system of one scope."""

    def __init__(self, scope: Scope, *, by_position: bool = True) -> None:
        self.scope = scope
        self.names = tuple(scope.programs)
        self.cast = Cast(list(scope.programs.values()), by_position=by_position)
        self._logs, self._receivers = Numbers[Log](), Numbers[Receiver]()
        self._appends: dict[tuple[int, int, int], tuple[int, Appended | Refused]] = {}
        self._keyed = scope.setting.kind is EffectKind.KEYED
        self._opening = self.cast.beginning()

    def beginning(self) -> State:
        """Nothing has happened."""
        log, receiver = self._number(Log()), self._receivers.of(Receiver(), Receiver())
        return State(0, log, receiver, self._opening, (False,) * len(self.names))

    def log(self, state: State) -> Log:
        """The state's log."""
        return self._logs.things[state.log]

    def receiver(self, state: State) -> Receiver:
        """The state's receiver."""
        return self._receivers.things[state.receiver]

    def idle(self, state: State) -> list[str]:
        """Who waits for what may never come, once no step is left: nobody but a person may."""
        left = ((name, self.cast.roles[role]) for name, role in zip(self.names, state.roles, strict=True))
        return [name for name, role in left if role.action is not None and not isinstance(role.action, Seen | Looked)]

    # --- the steps -------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that can be the next one."""
        busy = False
        for actor, role in enumerate(state.roles):
            if role in (DEAD, DONE) or (state.log == 0 and actor):
                continue
            busy = True
            yield from self._acts(state, actor)
            if self.names[actor] in self.scope.mortal and role != self._opening[actor] and state.log:
                dead = self._with_role(state, actor, DEAD)
                yield Step(f"{self.names[actor]} dies", dead)
        receiver = self.receiver(state)
        for flight in receiver.flying:
            landed = receiver.landed(flight, state.now, keyed=self._keyed)
            situations = ("the receiver knew the key",) if landed.landings[-1].again else ()
            words = f"the call of dispatch {flight.number} lands"
            yield Step(words, self._with_receiver(state, landed), (), situations)
        if busy and state.now < self.scope.horizon and not (self.scope.prompt and self._appending(state)):
            later = receiver.at_tick(state.now + 1, keyed=self._keyed)
            yield Step("a tick passes", self._with_receiver(state, later)._replace(now=state.now + 1))

    def _acts(self, state: State, actor: int) -> Iterator[Step]:
        action = self.cast.roles[state.roles[actor]].action
        name, log, now = self.names[actor], self.log(state), state.now
        match action:
            case Load():
                yield self._go(state, actor, f"{name} reads the step", ("view", state.log, now), log.view(now))
            case LoadBranch():
                for lives in self._owner_lives(state, actor):
                    words = (
                        f"{name} reads the branch{'' if lives or not log.history else ' and takes its owner for dead'}"
                    )
                    view = log.branch_view(now, owner_lives=lives)
                    yield self._go(state, actor, words, ("branch", state.log, now, lives), view)
            case Append():
                yield self._append(state, actor, action)
            case Call() if not state.calling[actor]:
                yield self._begin(state, actor, action)
            case Call():
                yield from self._end(state, actor, action)
            case Probe():
                yield from self._probe(state, actor)
            case Seen():
                operation = log.operation
                if operation is not None and operation.open_dispatches:
                    newest = operation.dispatches[-1]
                    seen = (operation.last_seq, operation.open_dispatches[-1].attempt, tick_of(newest.at))
                    yield self._go(state, actor, f"{name} reads the doubt at seq {seen[0]}", seen, seen)
            case Looked(not_before):
                for shown in sorted(self.receiver(state).shows(now)) if now >= not_before else ():
                    words = f"{name} looks and finds {'the effect' if shown else 'nothing'}"
                    yield self._go(state, actor, words, shown, shown)
            case _:
                raise AssertionError(action)

    def _append(self, state: State, actor: int, action: Append) -> Step:
        key = (state.log, state.roles[actor], state.now)
        before = self.log(state)
        if key not in self._appends:
            log, reply = before.appended(action, state.now)
            self._appends[key] = (self._number(log), reply)
        number, reply = self._appends[key]
        after = state._replace(log=number)
        word = promises.named(action.record)
        words = f"{self.names[actor]} appends {word}"
        if isinstance(reply, Refused):
            words = (
                f"{self.names[actor]} wants to append {word}: refused, {reply.refusal.reason} ({reply.refusal.detail})"
            )
        situations = promises.situations_of(before, action.record, reply)
        step = self._go(after, actor, words, (type(reply), number, state.now), reply)
        return step._replace(situations=(*situations, *step.situations))

    def _begin(self, state: State, actor: int, action: Call) -> Step:
        name, number, attempt = self.names[actor], action.dispatch_no, action.intent_id.attempt
        clock: Any = _Clock(state.now)
        hindered = hindrance(action, clock, clock)
        if hindered is not None:
            words = f"{name} does not call: {hindered.why}"
            step = self._go(state, actor, words, "not made", hindered)
            return step._replace(situations=("a call came too late and was not made", *step.situations))
        receiver = self.receiver(state).begun(number, attempt, state.now)
        calling = tuple(begun or one == actor for one, begun in enumerate(state.calling))
        after = self._with_receiver(state, receiver)._replace(calling=calling)
        broken = promises.broken_by_call(self.log(state), attempt, number)
        situations = promises.situations_of_call(self.log(state), attempt)
        return Step(f"{name} begins the call of dispatch {number}", after, broken, situations)

    def _end(self, state: State, actor: int, action: Call) -> Iterator[Step]:
        name, number, receiver = self.names[actor], action.dispatch_no, self.receiver(state)
        calling = tuple(begun and one != actor for one, begun in enumerate(state.calling))
        after = state._replace(calling=calling)
        if receiver.has_landed(number):
            yield self._go(after, actor, f"{name}'s call returns", "returned", Returned("paid"))
        for ending in self.scope.endings:
            refusal = REFUSALS.get(ending)
            if refusal is None:
                words = f"{name}'s call ends without an answer"
                yield self._go(after, actor, words, ending, Raised(TimeoutError("no answer")))
            elif not receiver.has_landed(number):
                ended = self._with_receiver(after, receiver.without(number))
                words = f"{name}'s call ends: {ending}"
                yield self._go(ended, actor, words, ending, Raised(refusal(ending)))

    def _probe(self, state: State, actor: int) -> Iterator[Step]:
        shown = self.receiver(state).shows(state.now)
        answers = [Answer.APPLIED if one else Answer.NOT_APPLIED for one in sorted(shown)]
        for answer in [*answers, *([Answer.UNKNOWN] if self.scope.mute else [])]:
            value = b'"found"' if answer is Answer.APPLIED else None
            error = ErrorText("Timeout", "") if answer is Answer.UNKNOWN else None
            words = f"{self.names[actor]}'s probe answers {answer}"
            probed = Probed(answer, value, error, instant(state.now))
            yield self._go(state, actor, words, (answer, state.now), probed)

    # --- small things ------------------------------------------------------------------------------------------------

    def _go(self, state: State, actor: int, words: str, token: Hashable, reply: Any) -> Step:
        """Send a reply, and at once what nobody else can have a part in: payloads of records, waits, results told."""
        role = self.cast.send(state.roles[actor], token, reply)
        broken: list[str] = []
        situations: list[str] = []
        while True:
            found = self.cast.roles[role]
            log, answer = self.log(state), cast("Any", None)
            match found.action:
                case Fetch(seq):
                    answer = log.history[seq - 1].payload
                case FetchError(seq):
                    record = log.history[seq - 1].record
                    answer = record.error if isinstance(record, r.Committed) else None
                case Wait():
                    pass
                case Told() as told:
                    words += f"; {self.names[actor]} is told: {told.what}" + (f" [{told.ran}]" if told.ran else "")
                    broken += promises.broken_by_telling(told, self.receiver(state))
                    situations += promises.situations_of_telling(told, self.scope.setting.kind)
                case _:
                    break
            role = self.cast.send(role, answer, answer)
        broken += [f"script: {found.broke}"] if found.broke else []
        return Step(words, self._with_role(state, actor, role), tuple(broken), tuple(situations))

    def _appending(self, state: State) -> bool:
        return any(isinstance(self.cast.roles[role].action, Append) for role in state.roles)

    def _owner_lives(self, state: State, actor: int) -> tuple[bool, ...]:
        """What the store may say of the owner: with a lock the truth; with a lease a living one may count as dead.

        Where nothing is open and nobody calls, no script asks for it, and the truth is enough.
        """
        branch = self.log(state).branch
        if branch.owner not in self.names:
            return (False,)
        owner = self.names.index(branch.owner)
        alive = state.roles[owner] not in (DEAD, DONE)
        operation = self.log(state).operation
        matters = branch.is_open or (operation is not None and operation.calling(branch.attempt))
        doubted = alive and matters and not self.scope.setting.certain and owner != actor
        return (True, False) if doubted else (alive,)

    def _with_role(self, state: State, actor: int, role: int) -> State:
        calling = state.calling
        if role == DEAD:
            calling = tuple(begun and one != actor for one, begun in enumerate(calling))
        return state._replace(roles=(*state.roles[:actor], role, *state.roles[actor + 1 :]), calling=calling)

    def _with_receiver(self, state: State, receiver: Receiver) -> State:
        return state._replace(receiver=self._receivers.of(receiver, receiver))

    def _number(self, log: Log) -> int:
        return self._logs.of(log, log.identity())
