"""A server that responds by a script: failures, stalls and nonsense, which a daemon does not make on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Scripted:
    """One response: a status, a body, headers; `stall` seconds come first, and `cut` closes in place of a response."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    stall: float = 0.0
    cut: bool = False


@dataclass
class Seen:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """The address, and the requests so far."""

    url: str
    seen: list[Seen]


def refusal(status: int, error_type: str, retry_after: float | None = None, **details: object) -> Scripted:
    """An error as the daemon writes it."""
    body = {"error": "on purpose", "error_type": error_type, "details": details, "request_id": "id-1"}
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return Scripted(status, json.dumps(body).encode(), headers)


@contextmanager
def serving(script: Sequence[Scripted]) -> Iterator[Server]:
    """A server that sends these responses in order, the last one again and again."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen.append(Seen(self.command, self.path, headers, body))
            response = script[min(len(seen), len(script)) - 1]
            time.sleep(response.stall)
            if response.cut:
                self.close_connection = True
                return
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        do_GET = do_POST = do_PUT = respond  # noqa: N815

        def log_message(self, *_words: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_address[1]}", seen)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
