"""A far side on loopback that answers as it is told to, and writes down when it was called."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic
from typing import NamedTuple, Self

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


class Answer(NamedTuple):
    """What the far side says to one call. Its clock is always at DATE."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b"{}"
    media_type: str = "application/json"


class Call(NamedTuple):
    """One call: when it arrived, and what it got."""

    at: float
    path: str
    status: int


class FarSide:
    """Gives its answers in order, one to each call, and says that all is well after the last of them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.calls: list[Call] = []
        self.clock: Callable[[], float] = monotonic
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="far side")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def arrivals(self) -> list[float]:
        """When it was called."""
        return [call.at for call in self.calls]

    def answer(self, path: str) -> Answer:
        """Write a call down, and choose what it gets."""
        with self._lock:
            chosen = self.answers.popleft() if self.answers else Answer(200)
            self.calls.append(Call(self.clock(), path, chosen.status))
            return chosen

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(240)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, far_side: FarSide) -> None:
        self.far_side = far_side
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of a host name, which may take long and go out."""
        TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.server.far_side.answer(self.path)
        self.send_response_only(answer.status)
        headers = {"Date": DATE, "Content-Type": answer.media_type, **answer.headers}
        for name, value in {**headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_POST = do_PUT = do_GET  # noqa: N815 (the names that http.server calls)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in http.server)
        """Say nothing on stderr."""
