"""A TCP proxy between a client and a PostgreSQL server that cuts, holds and delays at a COMMIT.

What a client sees when its connection goes is the same whether the COMMIT had reached the server or not. Here a test
says which of the two it is to be, and waits for events, not for time to pass:

    with Proxy(server) as proxy:
        trap = proxy.at_commit(Act.CUT_AFTER)
        ...  # the client, over proxy.url(), sends COMMIT: the server has committed, and the answer is lost
        trap.wait()
"""

from __future__ import annotations

import enum
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from postgres_servers import SUPERUSER, Server, free_port
from postgres_wire import GSS_REQUEST, SSL_REQUEST, Frames, Transactions

WAIT_S_MAX = 60.0
SYNC = b"S\0\0\0\4"


class Act(enum.Enum):
    """What to do at the COMMIT that was waited for."""

    CUT_BEFORE = "close the connection; the COMMIT never reaches the server"
    CUT_AFTER = "pass it on, wait until the server has committed, close the connection instead of passing the answer on"
    CUT_IN_FLIGHT = "pass it on and close the client's side at once: the fate is open when the client looks"
    HOLD_BEFORE = "withhold the COMMIT until the test releases it"
    HOLD_AFTER = "pass it on, and withhold the server's answer until the test releases it"
    HALF_CLOSE_BEFORE = "withhold the COMMIT and end the stream to the client, whose own stays open"
    HALF_CLOSE_AFTER = "pass it on, then end the stream to the client instead of answering; its own stays open"
    SILENCE_BEFORE = "pass nothing on any more, in either direction, and close nothing: a cable that was pulled"
    SILENCE_AFTER = "pass it on, wait until the server has committed, then the same"

    @property
    def passes_commit(self) -> bool:
        """The server gets the COMMIT."""
        return self not in (Act.CUT_BEFORE, Act.HALF_CLOSE_BEFORE, Act.SILENCE_BEFORE)


class Trap:
    """One act that waits for its COMMIT.

    Attributes:
        act: what is done there.
        reached: set when the COMMIT is there, before anything is done.
        done: set when the act was carried out: for the acts `_AFTER`, the server has committed.
        answered: set when the server has answered the COMMIT, whether the client is told or not.
    """

    def __init__(self, act: Act, nth: int, matching: Callable[[bytes], bool], *, implicit: bool, refuse: bool) -> None:
        self.act = act
        self.reached = threading.Event()
        self.done = threading.Event()
        self.answered = threading.Event()
        self.implicit = implicit
        self.refuse = refuse
        self.matching = matching
        self.left = nth
        self.released = threading.Event()

    def wait(self) -> None:
        """Wait until the act was carried out; of one that holds, until the COMMIT, or its answer, is being held."""
        assert self.done.wait(WAIT_S_MAX), f"no COMMIT came to the proxy, or no answer to it: {self.act.name}"

    def wait_for_answer(self) -> None:
        """Wait until the server has answered the COMMIT that was passed on to it."""
        assert self.answered.wait(WAIT_S_MAX), f"the server did not answer the COMMIT: {self.act.name}"

    def release(self) -> None:
        """Let go on what is held."""
        self.released.set()


class Proxy:
    """Listens on a free port of 127.0.0.1 and leads to a server; `with Proxy(server) as proxy`.

    Several connections at once are fine. TLS is declined in the server's name: what is encrypted cannot be followed.

    Args:
        server: where it leads to; `lead_to` changes that for the connections to come.

    Attributes:
        port: where it listens.
        commits: how many COMMITs have come to it from clients.
    """

    def __init__(self, server: Server) -> None:
        self.port = free_port()
        self.commits = 0
        self._server = server
        self._lock = threading.Lock()
        self._traps: list[Trap] = []  # those that wait
        self._set: list[Trap] = []  # all of them
        self._links: set[_Link] = set()
        self._threads: list[threading.Thread] = []
        self._listening: socket.socket | None = None
        self._turned_away = threading.Event()
        self._turns_away = False
        self._ended = False

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.refuse()
        for trap in self._set:
            trap.release()
        self.cut()
        for thread in self._threads:
            thread.join()

    def url(self, *, database: str = "postgres", user: str = SUPERUSER) -> str:
        """The address of a database of the server, through this proxy."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def lead_to(self, server: Server) -> None:
        """Lead new connections to another server, as a name does that moves to the standby."""
        self._server = server

    # -- what a test asks for

    def at_commit(
        self,
        act: Act,
        *,
        nth: int = 1,
        matching: Callable[[bytes], bool] = lambda _: True,
        implicit: bool = False,
        refuse: bool = False,
    ) -> Trap:
        """Carry out an act at a COMMIT to come, on whichever connection; once.

        Args:
            act: what to do.
            nth: at the which of those that match, from 1.
            matching: of all the bytes that the client sent of the transaction, whether it is one to count.
            implicit: count statements outside BEGIN that may write too: their Sync, or their simple query, commits.
            refuse: refuse new connections from then on, until `accept`.
        """
        trap = Trap(act, nth, matching, implicit=implicit, refuse=refuse)
        with self._lock:
            self._traps.append(trap)
            self._set.append(trap)
        return trap

    def refuse(self) -> None:
        """Refuse new connections: nobody listens on the port."""
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listening.close()

    def turn_away(self) -> None:
        """Close new connections as soon as they are made, as a host does whose server is starting; until `accept`."""
        self._turned_away.clear()
        self._turns_away = True

    def wait_for_one_turned_away(self) -> None:
        """Wait until somebody was turned away since the last time that this was waited for."""
        assert self._turned_away.wait(WAIT_S_MAX), "nobody tried to connect"
        self._turned_away.clear()

    def accept(self) -> None:
        """Accept connections (again)."""
        self._turns_away = False
        with self._lock:
            if self._listening is not None:
                return
            self._listening = listening = socket.create_server(("127.0.0.1", self.port))
        self.run(lambda: self._accept(listening))

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse new connections for the time of a `with` block."""
        self.refuse()
        try:
            yield
        finally:
            self.accept()

    def cut(self) -> None:
        """Close every connection there is, to both sides."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def run(self, work: Callable[[], None]) -> None:
        """Run it in a thread that `__exit__` waits for."""
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- in its threads

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            if self._turns_away:
                client.close()
                self._turned_away.set()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server.port))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.start()
            if self._ended:
                link.cut()

    def over(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def trap_for(self, sent: bytes, *, explicit: bool) -> Trap | None:
        """The trap that this commit falls into, if it is one's turn."""
        with self._lock:
            self.commits += explicit
            for trap in self._traps:
                if (explicit or trap.implicit) and trap.matching(sent):
                    trap.left -= 1
                    if trap.left == 0:
                        self._traps.remove(trap)
                        return trap
        return None


class _Link:
    """One client's connection, and the one that it has to the server, with a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._lock = threading.Lock()
        self._silent = False
        self._awaited: tuple[Trap, bool] | None = None  # whose COMMIT was passed on, and whether it was an explicit one
        self._reading = 2
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        self._proxy.run(lambda: self._run(self._from_client))
        self._proxy.run(lambda: self._run(self._from_server))

    def cut(self) -> None:
        """End both connections. The sockets are closed by the last thread that reads."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self, read: Callable[[], None]) -> None:
        with suppress(OSError):
            read()
        if not self._silent:
            self.cut()
        with self._lock:
            self._reading -= 1
            last = self._reading == 0
        if last:
            self._client.close()
            self._server.close()
            self._proxy.over(self)

    # -- client to server

    def _from_client(self) -> None:
        frames, transactions = Frames(untyped_first=True), Transactions()
        first = True
        while received := self._client.recv(1 << 16):
            for message in frames.feed(received):
                if first:
                    if int.from_bytes(message[4:8], "big") in (SSL_REQUEST, GSS_REQUEST):
                        self._client.sendall(b"N")
                    else:
                        first = False
                        self._pass_on(message)
                elif transactions.commits(message):
                    trap = self._proxy.trap_for(transactions.sent, explicit=transactions.explicit)
                    transactions.over()
                    if trap is None:
                        self._pass_on(message)
                    elif not self._spring(trap, message, explicit=transactions.explicit):
                        return
                else:
                    self._pass_on(message)

    def _pass_on(self, message: bytes) -> None:
        if not self._silent:
            self._server.sendall(message)

    def _spring(self, trap: Trap, message: bytes, *, explicit: bool) -> bool:
        """Carry the act out at its message; whether this client is read on."""
        if trap.refuse:
            self._proxy.refuse()
        if trap.act.passes_commit:
            self._awaited = trap, explicit  # what is left is up to the thread that reads the server's answer
        trap.reached.set()
        match trap.act:
            case Act.CUT_BEFORE:
                self.cut()
                trap.done.set()
                return False
            case Act.HALF_CLOSE_BEFORE:
                self._silent = True
                self._client.shutdown(socket.SHUT_WR)
                trap.done.set()
            case Act.SILENCE_BEFORE:
                self._silent = True
                trap.done.set()
            case Act.HOLD_BEFORE:
                trap.done.set()
                trap.released.wait()
                self._pass_on(message)
            case Act.CUT_IN_FLIGHT:
                self._silent = True
                self._server.sendall(message + SYNC)  # without a Sync there is no answer that we could wait for
                self._client.shutdown(socket.SHUT_RDWR)
                trap.done.set()
                self._server.shutdown(socket.SHUT_WR)
                return False
            case _:
                self._pass_on(message)
        return True

    # -- server to client

    def _from_server(self) -> None:
        frames = Frames()
        while received := self._server.recv(1 << 16):
            for message in frames.feed(received):
                if self._awaited is not None and _answers(message, explicit=self._awaited[1]):
                    (trap, _), self._awaited = self._awaited, None
                    self._answered(trap)
                elif self._awaited is not None and not self._awaited[1]:
                    continue  # the result of a statement that commits by itself must not arrive before the trap
                if not self._silent:
                    self._client.sendall(message)

    def _answered(self, trap: Trap) -> None:
        """The server has answered the COMMIT that the trap was for: nothing of that has gone to the client."""
        trap.answered.set()
        match trap.act:
            case Act.CUT_IN_FLIGHT | Act.HOLD_BEFORE:
                return
            case Act.CUT_AFTER:
                self.cut()
            case Act.HALF_CLOSE_AFTER:
                self._silent = True
                self._client.shutdown(socket.SHUT_WR)
            case Act.SILENCE_AFTER:
                self._silent = True
            case _:
                trap.done.set()
                trap.released.wait()
        trap.done.set()


def _answers(message: bytes, *, explicit: bool) -> bool:
    """Whether this message of the server says how the commit went."""
    if explicit:
        return (message[:1] == b"C" and message[5:].rstrip(b"\0") in (b"COMMIT", b"ROLLBACK")) or message[:1] == b"E"
    return message[:1] == b"Z"
