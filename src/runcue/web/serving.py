"""Serves the dashboard of a queue in a file or at an address, for the command line.

Only this machine can reach it unless another address is named, and that needs a token which somebody chose. When it
is told to end, it sends everybody away at once instead of waiting for streams that never end.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import webbrowser
from collections.abc import Callable
from urllib.parse import quote

import uvicorn

from runcue import ConfigError, Reader
from runcue.web.connection import Connection
from runcue.web.mount import VARIABLE, app, known_token

MOST_CONNECTIONS = 300
LONGEST_HEAD = 64 * 1024
IDLE = 5
"""Seconds between two requests of a connection."""
GRACE = 2
"""Seconds for requests under way when it ends."""
KEPT_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""After how long a client that is gone without a word is noticed: seconds, and milliseconds in the last."""


class Server(uvicorn.Server):
    """A server that ends its streams first."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send everybody away, and close."""
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
    """Serve the dashboard of that file until SIGINT or SIGTERM; `say` is given the link (default: it is printed).

    A `port` of 0 takes a free one. ConfigError for an address that others can reach without a token of your own;
    OSError when the address is taken; StoreError for a file that is no queue.
    """
    with listen(host, port, has_token=known_token(token) is not None) as listener:
        Reader(path, name=name).close()  # what is wrong with it is said before anything is served
        server, link, once = make_server(
            path, listener, token=token, read_only=read_only, hosts=hosts, name=name
        )
        (say or _print)(link)
        if open_browser:
            webbrowser.open(once)  # what a process is started with can be read by all on this machine
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            return


def make_server(
    path: str | os.PathLike[str],
    listener: socket.socket,
    *,
    token: str | None = None,
    read_only: bool = False,
    hosts: tuple[str, ...] = (),
    name: str = "default",
) -> tuple[Server, str, str]:
    """A server for a socket that listens, the link to it, and one that is good once."""
    host, port = listener.getsockname()[:2]
    if not is_loopback(host):
        hosts = (*hosts, "*", socket.gethostname())
    made = app(path, token=token, read_only=read_only, hosts=hosts, name=name)
    config = uvicorn.Config(
        made,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
        ws_max_size=LONGEST_HEAD,
        lifespan="on",
    )
    shown = f"[{host}]" if ":" in host else host
    page = f"http://{shown}:{port}/"
    links = f"{page}?token={quote(made.state.token, safe='')}", f"{page}?code={made.state.make_code()}"
    return Server(config, made.state.end_streams), *links


def listen(host: str, port: int, *, has_token: bool) -> socket.socket:
    """A socket that listens there; refused where others could come in and nobody chose a token."""
    if not is_loopback(host) and not has_token:
        raise ConfigError(
            f"Others can reach {host}: give a token of your own (--token, or {VARIABLE}), or stay on 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEPT_ALIVE.items():
            if hasattr(socket, name):  # Linux; what comes in inherits them
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """True when only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _print(link: str) -> None:
    import sys

    sys.stdout.write(f"{link}\n")
    sys.stdout.flush()
