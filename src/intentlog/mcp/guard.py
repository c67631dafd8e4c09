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
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from intentlog.core.actions import IntentId, Outcome
from intentlog.core.effects import READ
from intentlog.core.records import Resolution
from intentlog.core.state import State
from intentlog.errors import BranchBusy, InDoubt, IntentLogError
from intentlog.log.sync import Log
from intentlog.log.values import Applied, Call, OpenIntent, Settings
from intentlog.mcp import answers, messages
from intentlog.mcp.attempts import Attempts
from intentlog.mcp.calls import Identity, Malformed, ToolCall
from intentlog.mcp.catalog import Catalog
from intentlog.mcp.lines import complain
from intentlog.mcp.quiet import WhenQuiet
from intentlog.mcp.rules import Rules
from intentlog.mcp.sending import Failed, NotReached, Refused, Reply, Send, Sending, Unanswered, outcome_of, sending
from intentlog.mcp.tasks import OVER, Ask, Tasks, asked_of, task_in
from intentlog.mcp.tools import Handle, Tools
from intentlog.mcp.untold import BY, SESSION, TOLD, Done, Untold, untold_in

BUSY_WAIT = timedelta(seconds=10)  # a guard that is being ended lets go of its branch
OTHERS_POLL_S, ENDING_POLL_S = 0.5, 0.002
LEFT_WAIT_S = 10.0
"""How long a call waits for an equal one whose client is gone, and which another guard is still making."""
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
        self._under_way: dict[IntentId, Sending] = {}
        self._unsettled: dict[tuple[str, str], set[Sending]] = {}  # until it is on record whether they were told
        self._unrecorded: set[IntentId] = set()  # sent, and the log could not take their end
        self._turns: WeakValueDictionary[tuple[str, str], Lock] = WeakValueDictionary()
        self._turns_lock = Lock()
        self._noting = WhenQuiet(self._write_notes, QUIET_S)

    def take_over(self) -> None:
        """Find what guards that died have left untold, and close the branches that were theirs alone."""
        self._untold.read()
        prefix = f"{self._how.server}."
        for left in self._log.unfinished():
            history = self._log.history(left.branch)
            for done in untold_in(history, left.branch, left.attempt, prefix):
                self._untold.add(done)
            if left.branch.startswith(self._own_prefix):
                try:
                    with self._log.attempt(left.branch, revisits=False):
                        pass
                except BranchBusy:
                    pass  # another guard is doing the same

    def passes(self, call: ToolCall) -> bool:
        """Whether the call is a read: it changes nothing, so that nothing of it is recorded."""
        return self._how.rules.effect_of(call.tool, self.catalog.hints(call.tool)) == READ

    def way(self, call: ToolCall, send: Send, ask: Ask) -> Sending:
        """The way of a call to the server, for `answer`."""

        def sent(message: bytes, headers: Mapping[str, str], about: Call) -> Reply:
            self._under_way[about.intent_id] = way
            self._unrecorded.discard(about.intent_id)
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
            text = f"internal: {type(error).__name__}: {error}"
            return messages.failure(way.call.id, messages.INTERNAL_ERROR, text)
        finally:
            sending.reset(token)
            if way.about is not None:
                self._under_way.pop(way.about.intent_id, None)

    def _answer_or_why(self, way: Sending, session: str | None) -> bytes:
        try:
            return self._answer(way, session)
        except IntentLogError as error:
            if way.about is not None:
                self._unrecorded.add(way.about.intent_id)
            if way.reply is not None:  # whatever the log makes of it, the client gets what the server said
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
        if identity.is_stable and identity.branch != of_session:
            return self._text_of(way, self._perform(identity, handle, given))
        way.alike = alike = (
            handle.name,
            handle.signature.bind(given, {}, self._how.settings.argument_bytes_max).digest,
        )
        self._begin(way)
        with self._turn_of(alike):
            doubt = self._doubt_of(way, handle, given)
            if doubt is not None and not identity.is_of(doubt.intent_id):
                outcome = self._go_on(doubt, handle, given)
                way.done = Done(alike, outcome.intent_id, outcome.value)
                return self._text_of(way, outcome)
        way.done = self._untold.take(alike, identity)
        if way.done is not None:
            return answers.untold(call.id, way.done, stateless=call.is_stateless)
        outcome = self._perform(identity, handle, given)
        way.done = Done(alike, outcome.intent_id, outcome.value)
        return self._text_of(way, outcome)

    def _perform(self, identity: Identity, handle: Handle, given: tuple[Any, ...]) -> Outcome[Any]:
        with self._attempts.of(identity.branch) as attempt:
            return attempt.step(identity.step).perform(handle, *given)

    # --- calls without a key ---------------------------------------------------------------------------------------

    def _turn_of(self, alike: tuple[str, str]) -> Lock:
        """Equal calls look for a doubt one after the other: two of them would both be its retry."""
        with self._turns_lock:
            return self._turns.setdefault(alike, Lock())

    def _begin(self, way: Sending) -> None:
        """Let equal calls know of this one, until it is on record whether its client was told."""
        if way.alike is not None:
            with self._turns_lock:
                self._unsettled.setdefault(way.alike, set()).add(way)

    def _end(self, way: Sending) -> None:
        if way.alike is not None:
            with self._turns_lock:
                left = self._unsettled.get(way.alike, set())
                left.discard(way)
                if not left:
                    self._unsettled.pop(way.alike, None)

    def _doubt_of(self, own: Sending, handle: Handle, given: tuple[Any, ...]) -> OpenIntent | None:
        """An equal call that may have been sent, and of which nobody will be told any more: this is its retry.

        It is waited for where it just ends, and for a while where another guard is making it whose client is gone. In
        PostgreSQL a dead guard is taken for alive until its lease has run out: a call that another one seems to be
        making is waited for so long.
        """
        begun_s = time.monotonic()
        lease_s = self._how.settings.lease.total_seconds() if "://" in self._how.place else 0
        while True:
            found = [one for one in self._log.open_calls(handle, *given) if one.state == State.DISPATCHED]
            self._untold.read()
            for one in found:
                if one.intent_id in self._unrecorded and one.calling:
                    raise self._in_doubt(one)
                if not one.calling and not self.tasks.is_living(one.intent_id):
                    return one
            ways = {one.intent_id: self._under_way.get(one.intent_id) for one in found}
            waited_s = time.monotonic() - begun_s
            if waited_s < LEFT_WAIT_S and self._just_ends(own, ways):
                time.sleep(ENDING_POLL_S)
                continue
            for one in found:
                way = ways[one.intent_id]
                if way is not None and way.is_left and way is not own:
                    return one
                if way is None and self._untold.is_left(one.intent_id) and waited_s > LEFT_WAIT_S:
                    raise self._in_doubt(one)
            is_left = any(way is None and self._untold.is_left(intent) for intent, way in ways.items())
            if not is_left and (None not in ways.values() or waited_s > lease_s):
                return None
            time.sleep(OTHERS_POLL_S)

    def _just_ends(self, own: Sending, open_ways: Mapping[IntentId, Sending | None]) -> bool:
        """Whether the end of an equal call is just being recorded, or that nobody was told of it."""
        with self._turns_lock:
            others = [way for way in self._unsettled.get(own.alike or ("", ""), ()) if way is not own]
        sent = [way for way in others if way.about is not None]
        return any(
            way.is_given_up or (way.is_left and way.about and way.about.intent_id not in open_ways) for way in sent
        )

    def _go_on(self, doubt: OpenIntent, handle: Handle, given: tuple[Any, ...]) -> Outcome[Any]:
        """Go on with the operation of a call that may have been sent.

        Raises:
            InDoubt: its class cannot settle it, or another guard is at it.
        """
        if doubt.resolution is Resolution.ASK_PERSON and not doubt.calling:
            raise self._in_doubt(doubt)
        branch, step = doubt.intent_id.branch, doubt.intent_id.step
        if self._attempts.is_open(branch):
            return self._perform(Identity(branch, step, is_stable=True), handle, given)
        try:
            with self._log.attempt(branch, revisits=False) as attempt:
                return attempt.step(step).perform(handle, *given)
        except BranchBusy:
            raise self._in_doubt(doubt) from None

    def _in_doubt(self, doubt: OpenIntent) -> InDoubt:
        when = f" at {doubt.dispatched_at:%Y-%m-%d %H:%M:%S} UTC" if doubt.dispatched_at else ""
        intent = f"{shlex.quote(self._how.place)} {shlex.quote(doubt.intent_id)}"
        command = f'intentlog resolve {intent} --landed|--not-landed --by YOU --why "..."'
        return InDoubt(
            f"an equal call was sent{when}, and what became of it was not learnt",
            intent_id=doubt.intent_id,
            effect_ran="unknown",
            remedy=f"a person looks whether it happened, and says so: {command}",
            not_before=doubt.not_before,
        )

    def _by_task(self, way: Sending, error: InDoubt) -> bytes:
        """The answer to a call in doubt: if the server took it up as a task, it knows what came of it."""
        call, doubt = way.call, answers.failed(way.call.id, error, self._how.place, stateless=way.call.is_stateless)
        if error.intent_id is None:
            return doubt
        try:
            task = self.tasks.of(IntentId(error.intent_id))
            state = asked_of(task, way.ask, call.meta_of_its_era) if task is not None else None
            if task is None or state is None:
                return doubt
            if state.status in OVER:
                self.tasks.settle(task, state)
        except (NotReached, Unanswered, IntentLogError) as why:
            complain(f"what became of {error.intent_id} could not be asked: {why}")
            return doubt
        if state.result is msgspec.UNSET and state.status in OVER:
            return doubt
        if task.is_of_the_extension or call.is_task:
            return messages.result(call.id, task.again(state.status))
        return doubt if state.result is msgspec.UNSET else answers.done(call.id, state.result, task.intent_id)

    # --- what became of an answer ----------------------------------------------------------------------------------

    def was_told(self, way: Sending, *, told: bool) -> None:
        """Whether the answer is with the client, or that was gone or had given the call up. The last word counts."""
        try:
            self._note_told(way, told=told)
        finally:
            self._end(way)

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
        self._begin(way)
        try:
            self._settle_late(way, way.about.intent_id, reply)
        finally:
            self._end(way)

    def _settle_late(self, way: Sending, intent: IntentId, reply: Reply) -> None:
        try:
            try:
                task = task_in(way.call, reply.frame, intent)
                if task is not None:
                    self.tasks.note(task)
                    return
                value = outcome_of(reply)
                self._log.resolve(intent, Applied(value), by=BY, why="the server answered, after it was waited for")
            except (IntentLogError, Refused, Failed, NotReached) as error:
                told = {
                    "intent_id": str(intent),
                    "reply": reply.text.decode("utf-8", "replace"),
                    "not_settled": str(error),
                }
                self._log.append(intent.branch, LATE, told)
                return
        except IntentLogError as error:
            complain(f"a late reply to {intent} could not be recorded: {error}")
            return
        if way.alike is not None:
            way.done = Done(way.alike, intent, value)
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
        return answers.done(way.call.id, outcome.value, outcome.intent_id)
