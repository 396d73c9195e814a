"""Serves the dashboard of a queue in a file or at an address, for the command line.

Rules:
- Only this machine can reach the server, unless the caller names another address and chooses a token.
- The server ends at SIGINT or SIGTERM: streams at once, because they have no end of their own, other requests within
  GRACE seconds. A second signal goes to the handlers that were there before. A signal that was ignored, as in the
  background of a script, stays ignored.
- What clients do is logged once a minute at most.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from urllib.parse import quote

import uvicorn

from runcue import ConfigError, Reader
from runcue.host.system import sockets as listening
from runcue.web.connection import Connection, EventWebSocket
from runcue.web.loglimit import LogLimit
from runcue.web.mount import VARIABLE, app, known_token

MOST_CONNECTIONS = 300
BACKLOG = 128
"""Connections that may wait to be accepted; also how often asyncio tries to accept while no descriptor is left."""
LONGEST_HEAD = 64 * 1024
IDLE = 5
"""Seconds between two requests of a connection."""
GRACE = 2
"""Seconds for requests under way when it ends."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_SIGNAL = 0.3
"""Seconds within which two signals count as one: a terminal and a parent process may both send one."""
NOISY = ("uvicorn.error", "asyncio")
"""Loggers of other libraries that log what clients do."""
KEPT_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""How soon a client that vanished is noticed: socket options, in seconds, the last in milliseconds."""


class Server(uvicorn.Server):
    """A server that ends its streams first and limits its log lines."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None], limit: LogLimit) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self._limit = limit

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: after its end uvicorn would raise them again, which ends the process."""
        yield

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on a loop of its own until `should_exit`."""
        with asyncio.Runner(loop_factory=listening.new_loop) as runner:
            runner.run(self.serve(sockets))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        with self._limit.over(*NOISY):
            await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Log counts that are due; uvicorn calls this ten times a second."""
        self._limit.tell_rest()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then the server."""
        self._end_streams()
        await super().shutdown(sockets)


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    token: str | None = None,
    read_only: bool = False,
    hosts: tuple[str, ...] = (),
    open_browser: bool = False,
    say: Callable[[str], None] | None = None,
    name: str = "default",
) -> None:
    """Serve the dashboard of a queue until SIGINT or SIGTERM; `say` is called with the link (default: print it).

    A second signal has its usual effect: SIGINT raises KeyboardInterrupt.

    With `port=0` the system chooses a free port. Raises ConfigError for an address that other machines can reach
    without a token of your own, OSError when the port is taken, StoreError for a file that is no queue.
    """
    with listen(host, port, has_token=known_token(token) is not None) as listener:
        Reader(path, name=name).close()  # raises what is wrong with the queue before anything is served
        server, link, once = make_server(
            path, listener, token=token, read_only=read_only, hosts=hosts, name=name
        )
        with ended_by_signals(server):  # before the link tells anybody that the server is there
            (say or _print)(link)
            if open_browser:
                webbrowser.open(once)  # the code works once: all users of this machine can read arguments
            server.run(sockets=[listener])


@contextmanager
def ended_by_signals(server: Server) -> Iterator[None]:
    """Have the first signal end the server; a second one has its usual effect."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    told_at = 0.0

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal told_at
        if not server.should_exit:
            server.should_exit, told_at = True, time.monotonic()
        elif time.monotonic() - told_at >= ONE_SIGNAL:
            give_back()
            signal.raise_signal(number)

    if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
        yield
        return
    for number in before:
        signal.signal(number, heard)
    try:
        yield
    finally:
        give_back()


def make_server(
    path: str | os.PathLike[str],
    listener: socket.socket,
    *,
    token: str | None = None,
    read_only: bool = False,
    hosts: tuple[str, ...] = (),
    name: str = "default",
) -> tuple[Server, str, str]:
    """A server for a listening socket, the link with the token, and a link that works once."""
    host, port = listener.getsockname()[:2]
    if not is_loopback(host):
        hosts = (*hosts, "*", socket.gethostname())
    made = app(path, token=token, read_only=read_only, hosts=hosts, name=name)
    config = uvicorn.Config(
        made,
        http=Connection,
        ws=EventWebSocket,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
        ws_max_size=LONGEST_HEAD,
        lifespan="on",
    )
    shown = f"[{host}]" if ":" in host else host
    page = f"http://{shown}:{port}/"
    links = f"{page}?token={quote(made.state.token, safe='')}", f"{page}?code={made.state.make_code()}"
    return Server(config, made.state.end_streams, made.state.log_limit), *links


def listen(host: str, port: int, *, has_token: bool) -> socket.socket:
    """A listening socket; ConfigError where other machines could reach it and the caller chose no token."""
    if not is_loopback(host) and not has_token:
        raise ConfigError(
            f"Others can reach {host}: give a token of your own (--token, or {VARIABLE}), or stay on 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, listening.alone(), 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEPT_ALIVE.items():
            if hasattr(socket, name):  # accepted connections inherit them
                with suppress(OSError):  # Python may have the name of an option that the system does not know
                    listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _print(link: str) -> None:
    import sys

    sys.stdout.write(f"{link}\n")
    sys.stdout.flush()
