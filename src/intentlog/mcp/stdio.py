"""The pump between a client's pipes and a server's: every byte passes, but for calls, which the guard sends.

One thread reads the server, one the client; each call has a thread of its own while it is made (`turns`). What is no
call keeps its order and its bytes.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread, Timer
from types import FrameType
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from intentlog.log.values import Call
from intentlog.mcp import messages
from intentlog.mcp.batches import Batch, Tell, unheard
from intentlog.mcp.calls import Malformed, ToolCall
from intentlog.mcp.guard import Guard
from intentlog.mcp.hearing import hearing_signals
from intentlog.mcp.lines import Output, Unwritten, await_hang_up, complain, lines_of
from intentlog.mcp.messages import CALL, CANCELLED, LIST_CHANGED, Frame, Unreadable, known_by, members_of
from intentlog.mcp.sending import CONTRADICTORY, NotReached, Reply, Unanswered
from intentlog.mcp.stdio_calls import CALLS_MAX, Answer, InFlight, Once, Waiting
from intentlog.mcp.turns import Turns

ASK_LIMIT_S, SAY_LIMIT_S = 30.0, 0.2
SENT_LIMIT_S = 3.0
ENDING_LIMIT_S = 3.0
"""How long a client may take to read what is left, once a signal has ended the server."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Pump:
    """Stands between a client and one run of a server.

    Args:
        guard: guards the calls.
        command: starts the server.
        client: the descriptor that the client's messages come from.
        answers: the one that its answers go to.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self, guard: Guard, command: Sequence[str], client: int, answers: int) -> None:
        self._guard = guard
        self._client = client
        self._over, self._ends = os.pipe()
        self._to_client = Output(answers)
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 - what the operator asks for
        if self._server.stdin is None or self._server.stdout is None:
            raise AssertionError(command)
        self._to_server = Output(os.dup(self._server.stdin.fileno()), is_own=True)
        self._server.stdin.close()
        self._from_server = self._server.stdout.fileno()
        self._waiting = Waiting()
        self._unsent = 0
        self._changed = Condition(Lock())
        self._is_over = self._is_left = False
        self._has_ended = False
        self._turns = Turns(lines_of(client, self._over), self._take, self._make, CALLS_MAX)

    def run(self) -> int:
        """Pump until the server has ended, and every call with it. Its exit code; negative for a signal."""
        before = {one: signal.signal(one, self._forward) for one in FORWARDED}
        try:
            return hearing_signals(self._pump)
        finally:
            self._has_ended = True
            for one, handler in before.items():
                signal.signal(one, handler)

    def _pump(self) -> int:
        reader = Thread(target=self._read_server, name="intentlog-mcp-server", daemon=True)
        reader.start()
        Thread(target=self._watch_client, name="intentlog-mcp-client", daemon=True).start()
        self._turns.read()
        self._leave()
        self._await_sent()
        self._to_server.close()
        reader.join()
        self._turns.wait()
        return self._server.wait()

    def _watch_client(self) -> None:
        await_hang_up(self._client)  # its reader may be kept from that by a server that takes nothing
        self._leave()

    def _leave(self) -> None:
        """The client sends no more: it may be gone, and ask again at another guard."""
        self._is_left = True
        self._leave_calls()

    def _leave_calls(self) -> None:
        """The same may be so of whoever ends the guard by a signal; if it goes on, it is told."""
        for flight in list(self._waiting.calls.values()):
            if flight.way is not None and not flight.is_given_up:
                self._guard.leave(flight.way)

    def _await_sent(self) -> None:
        """What was asked before the client closed its end is still sent; but for what waits behind another call."""
        with self._changed:
            left = self._unsent + 1
            while 0 < self._unsent < left:
                left = self._unsent
                self._changed.wait(SENT_LIMIT_S)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._server.send_signal(number)
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            Thread(target=self._leave_calls, name="intentlog-mcp-leave", daemon=True).start()
        ending = Timer(ENDING_LIMIT_S, self._end_by, [number])
        ending.daemon = True
        ending.start()

    def _end_by(self, number: int) -> None:
        """End as the server did, though a client that reads nothing keeps an answer waiting: all is recorded."""
        if self._server.poll() is not None and not self._has_ended:
            os._exit(128 + number)

    # --- from the client -------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> list[InFlight]:
        """Take a line of the client's; answers the calls that are to be made."""
        try:
            if line.isspace():
                self._pass_on(line)
                return []
            read = messages.read_frame(line)
            if isinstance(read, list):
                return self._take_batch(read, line)
            if read is not None and read.method == CALL:
                return self._begin(read, self._answer)
            if read is None or read.method != CANCELLED or self._is_of_the_server(read):
                if read is not None and read.id is not UNSET:
                    self._waiting.pass_by(read)
                self._pass_on(messages.on_one_line(line))
        except Unreadable as error:
            self._answer(messages.failure(messages.id_in(line), messages.PARSE_ERROR, f"Parse error: {error}"))
        return []

    def _take_batch(self, parts: list[Raw], line: bytes) -> list[InFlight]:
        """A batch without calls passes as it is. Of one with calls, or their ends, each message is sent by itself."""
        frames = [messages.read_frame(bytes(part)) for part in parts]
        if any(isinstance(one, list) for one in frames):
            raise Unreadable("a batch in a batch")
        asked = [one for one in frames if isinstance(one, Frame) and one.method is not UNSET]
        if not any(one.method in (CALL, CANCELLED) for one in asked):
            self._pass_on(messages.on_one_line(line))
            return []
        ids = [known_by(one.id) for one in asked if one.id not in (UNSET, None)]
        if len(set(ids)) < len(ids):
            raise Unreadable("two requests of one id in a batch")
        begun: list[InFlight] = []
        batch = Batch(sum(one.id is not UNSET and one.id is not None for one in asked), self._answer)
        for frame, part in zip(frames, parts, strict=True):
            is_asked = isinstance(frame, Frame) and frame.method is not UNSET and frame.id not in (UNSET, None)
            if isinstance(frame, Frame) and is_asked and not self._is_made(frame):
                self._waiting.batched[known_by(frame.id)] = batch
            if isinstance(frame, Frame) and frame.method == CALL:
                begun += self._begin(frame, batch.add)
            elif not isinstance(frame, Frame) or frame.method != CANCELLED or self._is_of_the_server(frame):
                self._pass_on(messages.on_one_line(bytes(part)) + b"\n")
        return begun

    def _is_made(self, frame: Frame) -> bool:
        """Whether a message is a call that the guard makes, or refuses, itself."""
        try:
            return frame.method == CALL and not self._guard.passes(ToolCall(frame))
        except Malformed:
            return True

    def _is_of_the_server(self, cancel: Frame) -> bool:
        """Whether the server has to hear of this cancellation: not of a call that it was never sent."""
        key = known_by(messages.value_of(members_of(cancel.params).get("requestId")))
        batch = self._waiting.batched.pop(key, None)
        if batch is not None:
            batch.add(None)
        flight = self._waiting.calls.get(key)
        if flight is None:
            return True
        with flight.lock:
            flight.is_cancelled = True
            if not flight.is_sent:
                return False
            if flight.way is not None:
                flight.way.is_given_up = True
        flight.replies.put("the client cancelled it")
        return True

    # --- a call ----------------------------------------------------------------------------------------------------

    def _begin(self, frame: Frame, answer: Answer) -> list[InFlight]:
        """The call that is to be made, if it is. One that could not be answered is not made."""
        if frame.id is UNSET or frame.id is None:
            complain("a tools/call without an id was not sent: nobody could be told what became of it")
            return []
        try:
            call = ToolCall(frame)
        except Malformed as error:
            answer(messages.failure(frame.id, messages.INVALID_PARAMS, f"Invalid params: {error}"), unheard)
            return []
        if self._guard.passes(call):
            self._pass_on(call.as_it_came() + b"\n")
            return []
        key = known_by(frame.id)
        if key in self._waiting.calls:
            answer(messages.failure(frame.id, messages.INVALID_REQUEST, "a call with this id is under way"), unheard)
            return []
        flight = self._waiting.calls[key] = InFlight(call, answer)
        self._waiting.make_room()
        with self._changed:
            self._unsent += 1
        return [flight]

    def _make(self, flight: InFlight) -> None:
        sent = Once(self._is_sent)

        def send(message: bytes, headers: Mapping[str, str], about: Call) -> Reply:
            del headers  # there are none between pipes
            try:
                self._write(flight, message, about.deadline)
            finally:
                sent()
            return self._awaited(flight, about)

        flight.way = way = self._guard.way(flight.call, send, self._ask)
        way.is_alone = self._is_left
        try:
            answer = self._guard.answer(way)
        finally:
            sent()
            if not flight.is_given_up:
                self._waiting.calls.pop(known_by(flight.call.id), None)
            flight.ended.set()
        said = None if flight.is_cancelled else answer
        flight.answer(said, partial(self._guard.was_told, way))

    def _is_sent(self) -> None:
        with self._changed:
            self._unsent -= 1
            self._changed.notify_all()

    def _write(self, flight: InFlight, message: bytes, until_s: float) -> None:
        with flight.lock:
            if flight.is_cancelled:
                raise NotReached("the client cancelled it before it was sent")
            flight.is_sent = True  # from here on: a reply can be there before the write returns
        try:
            self._to_server.write(message + b"\n", until_s)
        except Unwritten as error:
            raise NotReached(f"the server takes nothing any more: {error}") from error
        except OSError as error:
            raise Unanswered(f"the server ended while it was sent: {error}") from error
        if self._is_over:
            flight.replies.put("the server has ended")

    def _awaited(self, flight: InFlight, about: Call) -> Reply:
        try:
            reply = flight.replies.get(timeout=max(0.0, about.deadline - time.monotonic()))
        except Empty:
            self._pass_on(messages.cancelled(flight.call.id, "its time limit is over"), time.monotonic() + SAY_LIMIT_S)
            reply = "no reply within its time limit"
        if isinstance(reply, Reply):
            if not reply.frame.is_contradictory:
                return reply
            reply = CONTRADICTORY
        with flight.lock:
            flight.is_given_up = True
        with suppress(Empty):
            while not isinstance(late := flight.replies.get_nowait(), Reply):  # it came right behind that word
                pass
            self._give(flight, late)
        raise Unanswered(reply)

    def _ask(self, method: str, params: dict[str, Any]) -> Frame:
        """Ask the server something of the guard's own."""
        id_ = f"intentlog:{secrets.token_hex(8)}"
        self._waiting.asked[id_] = answer = SimpleQueue[Frame]()
        try:
            asked = messages.request(id_, method, Raw(msgspec.json.encode(params)))
            self._to_server.write(asked + b"\n", time.monotonic() + ASK_LIMIT_S)
            return answer.get(timeout=ASK_LIMIT_S)
        except (Unwritten, OSError, Empty) as error:
            raise Unanswered(f"the server does not answer {method}: {error}") from error
        finally:
            del self._waiting.asked[id_]

    # --- from the server -------------------------------------------------------------------------------------------

    def _read_server(self) -> None:
        try:
            for came in lines_of(self._from_server):
                line = messages.unbroken(came) if b"\r" in came[:-2] and self._waiting.calls else came
                if not self._is_taken(line):
                    self._let_client_have(line)
        finally:
            self._is_over = True
            for flight in list(self._waiting.calls.values()):
                flight.replies.put("the server has ended")
            os.write(self._ends, b".")

    def _is_taken(self, line: bytes) -> bool:
        """Whether a message of the server's is not simply passed on."""
        try:
            read = messages.read_frame(line)
        except Unreadable:
            read = None  # the client's own reader says so
        if messages.says(read, LIST_CHANGED):
            self._guard.catalog.changed()
        if isinstance(read, Frame):
            if read.method is not UNSET and read.result is UNSET and read.error is UNSET:
                return False
            if read.is_reply:
                is_anothers = self._waiting.passed.pop(known_by(read.id), False)
                return self._is_reply_taken(read, line) or (not is_anothers and self._is_taken_as([(read, line)]))
        return self._is_taken_as(messages.replies_in(line) if self._waiting.anything else [])

    def _is_taken_as(self, found: list[tuple[Frame, bytes]]) -> bool:
        """Whether what some readers could take for replies was given to who waits for it, and the rest passed on."""
        if not any(self._waiting.is_for(frame.id) for frame, _ in found):
            return False
        for frame, text in found:
            flight = self._waiting.flight_like(frame.id)
            if flight is not None:
                self._give(flight, Reply(frame, text.rstrip(b"\r\n")))
            elif frame.id is UNSET or not self._is_reply_taken(frame, text):
                self._let_client_have(text.rstrip(b"\r\n") + b"\n")
        return True

    def _is_reply_taken(self, read: Frame, line: bytes) -> bool:
        key = known_by(read.id)
        asked = self._waiting.asked.get(key[1]) if key[0] else None
        if asked is not None:
            asked.put(read)
            return True
        told = self._waiting.told.pop(key, None)
        if told is not None:
            self._guard.tasks.heard(*told, read)
        flight = self._waiting.calls.get(key)
        if flight is not None and flight.is_sent:
            self._give(flight, Reply(read, line.rstrip(b"\r\n")))
            return True
        batch = self._waiting.batched.pop(key, None)
        if batch is not None:
            batch.add(line)
            return True
        is_first = self._waiting.lists.pop(key, None)
        if is_first is not None and read.result is not UNSET:
            self._guard.catalog.listed(read.result, is_first=is_first)
        return False

    def _give(self, flight: InFlight, reply: Reply) -> None:
        """Give a call its reply; if its client was answered without it, the guard."""
        with flight.lock:
            if not flight.is_given_up:
                flight.replies.put(reply)
                return
        self._waiting.calls.pop(known_by(flight.call.id), None)
        self._turns.do(self._late, flight, reply)

    def _let_client_have(self, line: bytes) -> None:
        with suppress(OSError, Unwritten):  # the client is gone; what it cannot hear, the log still can
            self._to_client.write(line)

    def _late(self, flight: InFlight, reply: Reply) -> None:
        """A reply after its client was answered without it."""
        flight.ended.wait()
        if flight.way is not None:
            self._guard.late(flight.way, reply)

    def _pass_on(self, line: bytes, until_s: float | None = None) -> None:
        """Hand a line to the server. If it has ended, its end is what the client hears."""
        with suppress(OSError, Unwritten):
            self._to_server.write(line, until_s)

    def _answer(self, text: bytes | None, tell: Tell = unheard) -> None:
        """Answer the client; what nobody is to be told is told to nobody."""
        told = False
        if text is not None:
            with suppress(OSError, Unwritten):  # the client is gone
                self._to_client.write(text + b"\n")
                told = True
        tell(told=told)
