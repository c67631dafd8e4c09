"""The least guard of the same duties between pipes: each line is an effect of the stand-in (`standin`), and passed on.

    python -m bench.mcp_standin LOG COMMAND ARGS...

It reads no message, knows no class and no key, and answers nothing but what the server does: what it takes beyond the
direct call is three commits in a process that waits between them, and one more pair of pipes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.standin import Writer, effect


def relay(writer: Writer, number: int, call: Callable[[], bytes]) -> bytes:
    """Write a call ahead, make it, and record what came of it."""
    script, reply = effect("order-0", str(number)), b""
    try:
        action = next(script)
        while True:
            if action is None:
                reply = call()
                action = script.send(reply.decode())
            else:
                writer.append([action])
                action = next(script)
    except StopIteration:
        return reply


def main(log: str, *command: str) -> None:
    """Relay until the client closes its end."""
    writer = Writer(Path(log))
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # this bench's own
    if server.stdin is None or server.stdout is None:
        raise AssertionError(command)
    to_server, from_server = server.stdin, server.stdout
    made = 0
    for line in sys.stdin.buffer:

        def call(line: bytes = line) -> bytes:
            to_server.write(line)
            return from_server.readline()

        sys.stdout.buffer.write(relay(writer, made, call))
        sys.stdout.buffer.flush()
        made += 1
        writer.upkeep()
    to_server.close()
    server.wait()
    writer.close(made)


if __name__ == "__main__":
    main(*sys.argv[1:])
