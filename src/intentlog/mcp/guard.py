"""The guard of one server's calls on one log: which operation a call is, and what its client is answered.

Every decision about an effect is the library's. Here it is decided which operation a call belongs to:

* With a key of the client's in a stable branch: the operation of that key. What is done is answered from the record.
  A session is a branch as well, but ends, and its client may ask again in the next: what follows holds there too.
* Else, if a call equal to it may have been sent and is not being made any more: it is taken for that one's retry, and
  goes on with its operation, as its class permits.
* Else, if an equal call is done and its client was never told: that is told, once, and nothing is sent.
* Else it is a new operation: an intended repeat is not swallowed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from intentlog.core.actions import IntentId, Outcome
from intentlog.core.effects import READ
from intentlog.core.records import Resolution
from intentlog.errors import BranchBusy, Fenced, InDoubt, IntentLogError, one_line
from intentlog.log.sealing import Payloads
from intentlog.log.sync import Log
from intentlog.log.values import Applied, Call, OpenIntent, Settings, Unfinished
from intentlog.mcp import answers, messages
from intentlog.mcp.attempts import Attempts
from intentlog.mcp.calls import Identity, Malformed, ToolCall
from intentlog.mcp.catalog import Catalog
from intentlog.mcp.doubts import Doubts
from intentlog.mcp.legs import other_leg
from intentlog.mcp.lines import complain
from intentlog.mcp.quiet import WhenQuiet
from intentlog.mcp.rules import Rules
from intentlog.mcp.sending import (
    Failed,
    NotReached,
    Refused,
    Reply,
    Send,
    Sending,
    Unanswered,
    Unkept,
    outcome_of,
    sending,
)
from intentlog.mcp.tasks import OVER, Ask, Task, Tasks, TaskState, asked_of, task_in
from intentlog.mcp.tools import Handle, Tools
from intentlog.mcp.untold import BY, SESSION, TOLD, Done, Untold, untold_in

BUSY_WAIT = timedelta(seconds=10)  # a guard that is being ended lets go of its branch
LATE = "mcp.late_reply"
QUIET_S = 0.2
"""That a client was told is durable with the next call's first record, or by itself after so long without one."""


class Guarding(Struct, frozen=True):
    """How a server is guarded.

    Attributes:
        place: the log's path or URL, as commands name it.
        server: the server's name, which begins its tools' names.
        branch: the stable branch of its calls, or None.
        key_names: the members of `_meta` that may hold a call's key.
        rules: what the operator says of its tools.
        settings: those that the log was opened with.
    """

    place: str
    server: str
    branch: str | None
    key_names: tuple[str, ...]
    rules: Rules
    settings: Settings


class Guard:
    """Guards the calls of one server. Safe from any thread; a call is made on the thread that asks for it."""

    def __init__(self, log: Log, how: Guarding) -> None:
        self.catalog = Catalog()
        self._log = log
        self._how = how
        self._tools = Tools(how.server, how.rules)
        self._attempts = Attempts(log, BUSY_WAIT)
        self._own_prefix = f"mcp/{how.server}/"
        self._own_branch = f"{self._own_prefix}{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}-{secrets.token_hex(3)}"
        self._untold = Untold(log, f"{self._own_prefix}untold")
        self.tasks = Tasks(log)
        lease_s = how.settings.lease.total_seconds() if "://" in how.place else 0
        self._doubts = Doubts(log, how.place, lease_s, self.tasks, self._untold)
        self._looked_at: set[tuple[str, int]] = set()  # attempts of the dead
        self._looking = Lock()
        self._noting = WhenQuiet(self._write_notes, QUIET_S)

    def take_over(self) -> None:
        """Find what guards that died have left untold, and close the branches that were theirs alone."""
        self._untold.read()
        self._look_at(self._log.unfinished())
        self._learn_of_the_dead()

    def _learn_of_the_dead(self) -> None:
        """Find what guards that died since have left untold: whoever asks again may come to this one."""
        with self._looking:
            self._look_at(self._log.abandoned(but=self._looked_at))

    def _look_at(self, those_left: Iterable[Unfinished]) -> None:
        for left in those_left:
            history = self._log.history(left.branch)
            told_nobody, in_doubt = untold_in(history, left.branch, left.attempt, self._how.server)
            for done in told_nobody:
                self._untold.add(done)
            for alike, intent in in_doubt:  # a person may settle it
                self._untold.expect(alike, intent)
            if left.branch.startswith(self._own_prefix):
                try:
                    with self._log.attempt(left.branch, revisits=False):
                        pass
                except BranchBusy:
                    pass  # another guard is doing the same
            self._looked_at.add((left.branch, left.attempt))

    def passes(self, call: ToolCall) -> bool:
        """Whether the call is a read: it changes nothing, so that nothing of it is recorded."""
        return self._how.rules.effect_of(call.tool, self.catalog.hints(call.tool)) == READ

    def way(self, call: ToolCall, send: Send, ask: Ask) -> Sending:
        """The way of a call to the server, for `answer`."""

        def sent(message: bytes, headers: Mapping[str, str], about: Call) -> Reply:
            self._doubts.sent(way, about.intent_id)
            if way.is_alone:
                self.leave(way)
            return send(message, headers, about)

        way = Sending(call, self._how.rules.rule_for(call.tool), sent, ask, self.tasks.given)
        return way

    def answer(self, way: Sending, session: str | None = None) -> bytes:
        """Make a call, if the log permits it. Whatever happens there is an answer.

        Args:
            way: the call, and how it is sent.
            session: what its session is known by for as long as it lives, or None.
        """
        token = sending.set(way)
        try:
            return self._answer_or_why(way, session)
        except Malformed as error:
            return messages.failure(way.call.id, messages.INVALID_PARAMS, f"Invalid params: {error}")
        except Exception as error:  # noqa: BLE001 - a client that is not answered waits for ever
            text = f"internal: {type(error).__name__}: {one_line(str(error))}"
            return messages.failure(way.call.id, messages.INTERNAL_ERROR, text)
        finally:
            sending.reset(token)
            self._doubts.came_back(way)

    def _answer_or_why(self, way: Sending, session: str | None) -> bytes:
        try:
            return self._answer(way, session)
        except IntentLogError as error:
            self._doubts.is_unrecorded(way)
            if way.reply is not None:  # whatever the log makes of it, the client gets what the server said
                if way.task is None:  # who has a handle asks for its end
                    self._expect(way, error)
                return way.reply.text
            if isinstance(error, InDoubt):
                return self._by_task(way, error)
            return answers.failed(way.call.id, error, self._how.place, stateless=way.call.is_stateless)

    def _answer(self, way: Sending, session: str | None) -> bytes:
        call = way.call
        handle = self._tools.of(call.tool, self._how.rules.effect_of(call.tool, self.catalog.hints(call.tool)))
        given = call.given(way.rule)
        of_session = None if session is None else f"{self._own_prefix}{SESSION}{session}"
        identity = call.identity(self._how.branch or of_session, self._own_branch, self._how.key_names)
        if identity.is_stable and call.is_leg:
            with self._doubts.turn_of((identity.branch, identity.legs)):  # the legs of one call, one after the other
                return self._answer_leg(way, identity, handle, given)
        if identity.is_stable and identity.branch != of_session:
            return self._text_of(way, self._perform(identity, handle, given))
        way.alike = alike = handle.name, self._digest_of(handle, given)
        self._doubts.begin(way)
        self._learn_of_the_dead()
        with self._doubts.turn_of(alike):
            doubt = self._doubts.of(way, handle, given)
            if doubt is not None and not identity.is_of(doubt.intent_id):
                outcome = self._go_on(doubt, handle, given)
                way.done = Done(alike, outcome.intent_id, outcome.value)
                return self._text_of(way, outcome)
        way.done = self._untold.take(alike, identity, self._doubts.being_told(alike))
        if way.done is not None:
            return answers.untold(call.id, way.done, stateless=call.is_stateless)
        outcome = self._perform(identity, handle, given)
        way.done = Done(alike, outcome.intent_id, outcome.value)
        return self._text_of(way, outcome)

    def _answer_leg(self, way: Sending, identity: Identity, handle: Handle, given: tuple[Any, ...]) -> bytes:
        call, alike = way.call, (handle.name, self._digest_of(handle, given))
        other = other_leg(self._log, identity, handle, given, alike)
        if isinstance(other, OpenIntent):
            raise self._doubts.told_of(other)
        if other is not None:
            return answers.done(call.id, other.value, other.intent_id, stateless=call.is_stateless)
        return self._text_of(way, self._perform(identity, handle, given))

    def _digest_of(self, handle: Handle, given: tuple[Any, ...]) -> str:
        """The digest of a call's arguments, as it stands in its record."""
        settings = self._how.settings
        bound = handle.signature.bind(given, {}, settings.argument_bytes_max)
        return bound.digest if settings.codec is None else Payloads(settings.codec, "", 0).digest(bound.encoded)

    def _perform(self, identity: Identity, handle: Handle, given: tuple[Any, ...]) -> Outcome[Any]:
        try:
            with self._attempts.of(identity.branch) as attempt:
                return attempt.step(identity.step).perform(handle, *given)
        except Fenced as error:  # it slept past its lease: what was taken over is taken back, if nobody has it now
            if error.effect_ran != "no":
                raise
        with self._attempts.of(identity.branch) as attempt:
            return attempt.step(identity.step).perform(handle, *given)

    # --- calls that are another one's retry ------------------------------------------------------------------------

    def _go_on(self, doubt: OpenIntent, handle: Handle, given: tuple[Any, ...]) -> Outcome[Any]:
        """Go on with the operation of a call that may have been sent.

        Raises:
            InDoubt: its class cannot settle it, or another guard is at it.
        """
        if doubt.resolution is Resolution.ASK_PERSON and not doubt.calling:
            raise self._doubts.told_of(doubt)
        branch, step = doubt.intent_id.branch, doubt.intent_id.step
        if self._attempts.is_open(branch):
            return self._perform(Identity(branch, step, is_stable=True), handle, given)
        try:
            with self._log.attempt(branch, revisits=False) as attempt:
                return attempt.step(step).perform(handle, *given)
        except BranchBusy:
            raise self._doubts.told_of(doubt) from None

    def _by_task(self, way: Sending, error: InDoubt) -> bytes:
        """The answer to a call in doubt: if the server took it up as a task, it knows what came of it."""
        call = way.call
        intent = IntentId(error.intent_id) if error.intent_id is not None else None
        task, state = self._state_of(way, intent) if intent is not None else (None, None)
        if task is not None and state is not None and (state.result is not msgspec.UNSET or state.status not in OVER):
            if task.is_of_the_extension or call.is_task:
                return messages.result(call.id, task.again(state.status))
            if state.result is not msgspec.UNSET:
                return answers.done(call.id, state.result, task.intent_id, stateless=call.is_stateless)
        self._expect(way, error)
        return answers.failed(call.id, error, self._how.place, stateless=call.is_stateless)

    def _expect(self, way: Sending, error: IntentLogError) -> None:
        """A client is told of a doubt: once somebody has said that it landed, the next equal call is its retry."""
        if error.intent_id is None or error.effect_ran != "unknown" or way.alike is None:
            return
        try:
            self._untold.expect(way.alike, IntentId(error.intent_id))
        except IntentLogError as unnoted:
            complain(f"that {error.intent_id} is in doubt could not be noted for other guards: {unnoted}")

    def _state_of(self, way: Sending, intent: IntentId) -> tuple[Task | None, TaskState | None]:
        """The task that a call was taken up as, and what its server says of it."""
        try:
            task = self.tasks.of(intent)
            state = asked_of(task, way.ask, way.call.meta_of_its_era) if task is not None else None
            if task is not None and state is not None and state.status in OVER:
                self.tasks.settle(task, state)
        except (NotReached, Unanswered, IntentLogError) as why:
            complain(f"what became of {intent} could not be asked: {why}")
            return None, None
        return task, state

    # --- what became of an answer ----------------------------------------------------------------------------------

    def was_told(self, way: Sending, *, told: bool) -> None:
        """Whether the answer is with the client, or that was gone or had given the call up. The last word counts."""
        try:
            self._note_told(way, told=told)
        finally:
            self._doubts.end(way)

    def _note_told(self, way: Sending, *, told: bool) -> None:
        if way.task is not None and not told:
            self.tasks.lost(way.task)
        if way.done is None:
            return
        try:
            if told:
                self._untold.told(way.done)
                self._log.append(way.done.intent_id.branch, TOLD, way.done.intent_id.step)
                self._noting.ask()
            else:
                self._untold.add(way.done)
        except IntentLogError as error:  # as after a crash, it may be told once more
            complain(f"whether {way.done.intent_id} was told could not be noted: {error}")

    def leave(self, way: Sending) -> None:
        """The client of a guard is gone while a call is made: an equal call at another guard is its retry."""
        way.is_alone = True  # if it is not sent yet, that is noted then
        if way.alike is None or way.about is None:
            return
        try:
            self._untold.leave(way.alike, way.about.intent_id)
        except IntentLogError as error:
            complain(f"that the client of {way.about.intent_id} is gone could not be noted: {error}")

    def _write_notes(self) -> None:
        """Make durable who was told. Reading the log writes what waits."""
        try:
            self._log.tail(0)
        except IntentLogError as error:
            complain(f"who was told could not be noted: {error}")

    def has_it(self, way: Sending) -> None:
        """A client has an answer that it could not be told before. To be followed by `was_told`, which notes it."""
        if way.done is not None:
            self._untold.forget(way.done)

    def late(self, way: Sending, reply: Reply) -> None:
        """The server answers a call whose client was answered without it: what it says settles the doubt."""
        if way.about is None:
            return
        self._doubts.begin(way)
        try:
            self._settle_late(way, way.about.intent_id, reply)
        finally:
            self._doubts.end(way)

    def _settle_late(self, way: Sending, intent: IntentId, reply: Reply) -> None:
        try:
            try:
                task = task_in(way.call, reply.frame, intent, way.hidden)
                if task is not None:
                    self.tasks.note(task)
                    return
                value = outcome_of(reply)
                is_kept = not isinstance(value, Unkept) and not way.hidden.is_in(value)
                answer = Applied(value) if is_kept else Applied()
                self._log.resolve(intent, answer, by=BY, why="the server answered, after it was waited for")
            except (IntentLogError, Refused, Failed, NotReached) as error:
                told = {
                    "intent_id": str(intent),
                    "reply": way.hidden.masked(reply.text.decode("utf-8", "replace")),
                    "not_settled": way.hidden.masked(str(error)),
                }
                self._log.append(intent.branch, LATE, told)
                return
        except IntentLogError as error:
            complain(f"a late reply to {intent} could not be recorded: {error}")
            return
        if way.alike is not None:
            way.done = Done(way.alike, intent, value if is_kept else None)
            self.was_told(way, told=False)

    def close(self) -> None:
        """Close the attempts that it opened. Its calls have ended."""
        self._noting.close()
        for error in self._attempts.close():
            complain(str(error))

    def _text_of(self, way: Sending, outcome: Outcome[Any]) -> bytes:
        """The server's reply as it came; or the recorded one, if nothing was sent now."""
        if way.reply is not None:
            return way.reply.text
        if way.call.is_task:
            task = self.tasks.of(outcome.intent_id)
            if task is not None:  # its client fetches the result itself
                return messages.result(way.call.id, task.again("completed"))
        return answers.done(way.call.id, outcome.value, outcome.intent_id, stateless=way.call.is_stateless)
