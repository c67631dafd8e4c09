"""A payment provider to try against: a process of its own on the loopback interface.

    python payment_sandbox.py --ledger ledger.jsonl --requests requests.jsonl

It prints its address, then serves `POST /charges`. As the real ones do, it honours the header `Idempotency-Key`: the
first request with a key makes one charge; a repeat gets the saved answer and makes none; the same key with another body
is refused (422), and so is a request without a key (400). What it charged stands in its ledger, one line for each
charge; what it was asked stands in its list of requests, repeats included. Both belong to it alone, so that they can
bear witness to what a client did, whatever the client's own records say.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

BODY_BYTES_MAX = 10_000


class Answer(NamedTuple):
    """What a request is answered with."""

    status: HTTPStatus
    content: dict[str, Any]
    is_repeat: bool = False


class Ledger:
    """Every charge that was made, by its key. Safe from any thread."""

    def __init__(self, path: Path, requests: Path) -> None:
        self._path = path
        self._requests = requests
        self._lock = Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._charges = {charge["key"]: charge for charge in map(json.loads, lines)}

    def charge(self, key: str, body: str, intent: str) -> Answer:
        """Charge, or repeat the answer, or refuse; in any case the request is listed."""
        with self._lock:  # held over look-up and append: two requests with one key at the same moment are one charge
            answer = self._answer(key, body)
            _append(self._requests, {"key": key, "intent": intent, "status": int(answer.status)})
            if answer.status is HTTPStatus.CREATED and not answer.is_repeat:
                charge = {"key": key, "intent": intent, "body": body, "receipt": answer.content["receipt"]}
                _append(self._path, charge)
                self._charges[key] = charge
            return answer

    def _answer(self, key: str, body: str) -> Answer:
        if not key:
            return Answer(HTTPStatus.BAD_REQUEST, {"error": "the header Idempotency-Key is missing"})
        known = self._charges.get(key)
        if known is None:
            return Answer(HTTPStatus.CREATED, {"receipt": f"receipt-{len(self._charges) + 1}"})
        if known["body"] != body:
            return Answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "this key was used with another body"})
        return Answer(HTTPStatus.CREATED, {"receipt": known["receipt"]}, is_repeat=True)


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def serve(ledger: Ledger) -> ThreadingHTTPServer:
    """A server on a free port of the loopback interface; the caller runs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path != "/charges" or not length.isdigit() or int(length) > BODY_BYTES_MAX:
                self._send(Answer(HTTPStatus.NOT_FOUND, {"error": "POST /charges, with a small body"}))
                return
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                return  # the client died while it was sending: nothing was asked
            key, intent = self.headers.get("Idempotency-Key", ""), self.headers.get("Intent-Id", "")
            self._send(ledger.charge(key, body.decode("utf-8", "replace"), intent))

        def _send(self, answer: Answer) -> None:
            content = json.dumps(answer.content).encode()
            try:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                if answer.is_repeat:
                    self.send_header("Idempotent-Replayed", "true")
                self.end_headers()
                self.wfile.write(content)
            except ConnectionError:
                self.close_connection = True  # the client is gone; what was charged stays charged

        def log_message(self, *_: object) -> None:
            """Keep quiet: the two files tell everything."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _stop_with_stdin(server: ThreadingHTTPServer) -> None:
    """Whoever started us holds the other end of the pipe, and lets go of it however it ends, SIGKILL included."""
    sys.stdin.buffer.read()
    server.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledger", type=Path, required=True, help="one line for each charge")
    parser.add_argument("--requests", type=Path, required=True, help="one line for each request")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    given = parser.parse_args(arguments)
    server = serve(Ledger(given.ledger, given.requests))
    if given.stop_with_stdin:
        Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
    host, port = server.server_address[:2]
    print(f"{host!s}:{port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
