"""A proxy on the loopback between a client and a PostgreSQL server, which can be told to misbehave.

- It passes whole messages of the protocol, so that it knows what the client is about to ask for: as a simple query,
  or by Parse, Bind and Execute, alone or in a pipeline, with prepared statements too.
- A cut *before* a statement passes everything up to it and drops the connection: the server never sees it.
- A cut *after* a statement lets the server see it, holds back all replies from then on until the server is through
  with it (its ReadyForQuery, one for each simple query or Sync), and drops the connection: the client never knows. If
  the server answers with an error, or rolls back where it should have committed, the replies are passed and the cut
  waits for the next time.
- Each order is for a number of times (one, unless told), over all connections; `done` counts what happened.
- An encrypted connection cannot be read; servers for tests offer none.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self

from tests.pg.server import moved

COMMIT = r"(?:commit|end)(?:\s+(?:work|transaction))?"
PATIENCE = 240.0
"""Seconds that anything may take on a busy machine."""
CHUNK = 1 << 16
ENCRYPTION = {80877103, 80877104}

Side = Literal["before", "after"]


@dataclass
class Order:
    """What to cut: a connection, at a statement, so many times."""

    side: Side
    statement: re.Pattern[str]
    times: int
    skip: int


def pattern(statement: str) -> re.Pattern[str]:
    """What a statement has to look like."""
    return re.compile(statement, re.IGNORECASE | re.DOTALL)


def says(statement: re.Pattern[str], query: str) -> bool:
    """Is one of the statements of a query the one that is looked for?"""
    parts = [query] if "$$" in query else query.split(";")  # the body of a function has statements of its own
    return any(statement.fullmatch(part.strip()) for part in parts)


@dataclass
class Talk:
    """What one side of a connection has said, and what is known of both."""

    client: socket.socket
    server: socket.socket
    started: bool = False
    prepared: dict[bytes, str] = field(default_factory=dict)
    portals: dict[bytes, str] = field(default_factory=dict)
    asked: int = 0
    """Simple queries and Syncs so far, each of which gets one ReadyForQuery."""
    answered: int = 0
    holding: Order | None = None
    until: int = 0
    """The ReadyForQuery that ends the holding back."""
    held: bytearray = field(default_factory=bytearray)
    failed: bool = False

    def query(self, kind: bytes, body: bytes) -> str | None:
        """The text of the statement that a message makes the server run, if it does."""
        if kind == b"Q":
            return body[:-1].decode("utf-8", "replace")
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.prepared[name] = text.decode("utf-8", "replace")
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self.portals[portal] = self.prepared.get(name, "")
        elif kind == b"E":
            return self.portals.get(body.split(b"\0", 1)[0], "")
        return None

    def close(self) -> None:
        """Drop both sides; whoever reads or writes there notices."""
        for end in (self.client, self.server):
            with suppress(OSError):  # it may be closed by the other side already
                end.shutdown(socket.SHUT_RDWR)


class Gone(Exception):
    """The connection has ended, or was cut."""


class Proxy:
    """Listens on a free port from the start, and passes everything on to a server until told otherwise.

    The server is at a port of a host, or has its socket in a folder.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = host, port
        self.done: Counter[str] = Counter()
        self._state = threading.Condition()
        self._orders: list[Order] = []
        self._frozen = False
        self._closed = False
        self._talks: list[Talk] = []
        self._threads: list[threading.Thread] = []
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self.allow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def dsn(self, dsn: str) -> str:
        """The URL of the same database through this proxy."""
        return moved(dsn, self.port)

    # --- Orders -----------------------------------------------------------------------------------

    def cut_before(self, statement: str, *, times: int = 1, skip: int = 0) -> None:
        """Drop the connection when a client asks for a statement, before the server sees it.

        The statement is given by a pattern for all of it; upper or lower case does not matter.
        """
        self._order("before", statement, times, skip)

    def cut_after(self, statement: str, *, times: int = 1, skip: int = 0) -> None:
        """Let the server run a statement, and drop the connection instead of passing its reply."""
        self._order("after", statement, times, skip)

    def cut_before_commit(self, *, times: int = 1, skip: int = 0) -> None:
        """Drop the connection when a client commits, before the server sees it: nothing is committed."""
        self.cut_before(COMMIT, times=times, skip=skip)

    def cut_after_commit(self, *, times: int = 1, skip: int = 0) -> None:
        """Let the server commit, and drop the connection instead of passing its reply: the client cannot know."""
        self.cut_after(COMMIT, times=times, skip=skip)

    def pass_all(self) -> None:
        """Forget all orders to cut, thaw, and let new connections in."""
        with self._state:
            self._orders.clear()
        self.thaw()
        self.allow()

    def freeze(self) -> None:
        """Pass nothing more in either direction; connections stay open, and new ones are taken."""
        with self._state:
            self._frozen = True
            self.done["frozen"] += 1

    def thaw(self) -> None:
        """Pass what has come in meanwhile, and everything from now on."""
        with self._state:
            self._frozen = False
            self._state.notify_all()

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        listener = self._listener
        with suppress(OSError):  # it refuses already
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self._listener = _bound(self.port)  # not listening, but nobody else gets the port

    def allow(self) -> None:
        """Let new connections in (again)."""
        if self._listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        self._listener.listen()
        self._thread(self._accept, self._listener)

    def cut_all(self) -> int:
        """Drop every connection that is open now; how many there were."""
        with self._state:
            talks = list(self._talks)
            self.done["cut"] += len(talks)
        for talk in talks:
            talk.close()
        return len(talks)

    def wait_done(self, what: str, times: int = 1) -> None:
        """Wait until something was done that often."""
        with self._state:
            if not self._state.wait_for(lambda: self.done[what] >= times, PATIENCE):
                raise TimeoutError(f"the proxy has not done {what!r} {times} times: {dict(self.done)}")

    def close(self) -> None:
        """Drop everything, and wait for the threads."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self.refuse()
        self._listener.close()
        self.cut_all()
        with self._state:
            threads = self._threads
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                raise RuntimeError("a thread of the proxy did not end")

    def _order(self, side: Side, statement: str, times: int, skip: int) -> None:
        with self._state:
            self._orders.append(Order(side, pattern(statement), times, skip))

    # --- Passing ----------------------------------------------------------------------------------

    def _thread(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)
        with self._state:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # told to refuse, or to close
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = _reached(*self._target)
            except OSError:  # the server is not there, so the client finds nobody either
                client.close()
                continue
            talk = Talk(client, server)
            with self._state:
                self._talks.append(talk)
                self._note("connections")
            self._thread(self._serve, talk)

    def _serve(self, talk: Talk) -> None:
        """Pass in both directions, until one of them ends."""
        back = threading.Thread(target=self._pump, args=(talk, self._from_server), name="proxy", daemon=True)
        back.start()
        self._pump(talk, self._from_client)
        back.join()
        with self._state:
            self._talks.remove(talk)
        talk.client.close()
        talk.server.close()

    def _pump(self, talk: Talk, passing: Callable[[Talk], None]) -> None:
        try:
            passing(talk)
        except (Gone, OSError):  # either end went away, which is passed on below
            pass
        finally:
            talk.close()

    def _gate(self) -> None:
        """Wait while frozen; the state is held."""
        self._state.wait_for(lambda: not self._frozen or self._closed)
        if self._closed:
            raise Gone

    def _from_client(self, talk: Talk) -> None:
        source = _Messages(talk.client)
        while True:
            raw = source.start() if not talk.started else source.message()
            with self._state:
                self._gate()
                if not talk.started:
                    talk.started = struct.unpack("!i", raw[4:8])[0] not in ENCRYPTION
                elif self._judge(talk, raw):
                    raise Gone
            talk.server.sendall(raw)

    def _judge(self, talk: Talk, raw: bytes) -> bool:
        """Note what a message of the client does; is the connection to be cut instead of passing it?"""
        kind = raw[:1]
        query = talk.query(kind, raw[5:])
        order = None if query is None or talk.holding else self._matching(query)
        if order is not None and order.side == "before":
            self._note("cut before")
            return True
        if order is not None:
            talk.holding, talk.until, talk.failed = order, talk.asked + 1, False
        if kind in {b"Q", b"S"}:
            talk.asked += 1
        return False

    def _matching(self, query: str) -> Order | None:
        for order in self._orders:
            if order.times > 0 and says(order.statement, query):
                if order.skip:
                    order.skip -= 1
                    continue
                order.times -= 1
                return order
        return None

    def _from_server(self, talk: Talk) -> None:
        source = _Messages(talk.server)
        while not talk.started:  # a yes or no to encryption is a byte, not a message
            raw = source.byte()
            with self._state:
                self._gate()
            if raw not in {b"N", b"S"}:
                source.unread(raw)
                break
            talk.client.sendall(raw)
        while True:
            raw = source.message()
            with self._state:
                self._gate()
                passed = self._passed(talk, raw)
            if passed:
                talk.client.sendall(passed)

    def _passed(self, talk: Talk, raw: bytes) -> bytes:
        """What the client gets to see now of what the server says."""
        kind = raw[:1]
        talk.answered += kind == b"Z"
        if talk.holding is None:
            return raw
        talk.held += raw
        commits = talk.holding.statement.fullmatch("commit") is not None
        talk.failed = talk.failed or kind == b"E" or (commits and kind == b"C" and raw[5:13] == b"ROLLBACK")
        if kind != b"Z" or talk.answered < talk.until + 1:
            return b""
        if not talk.failed:
            self._note("cut after")
            raise Gone
        talk.holding.times += 1
        talk.holding = None
        held, talk.held = bytes(talk.held), bytearray()
        return held

    def _note(self, what: str) -> None:
        self.done[what] += 1
        self._state.notify_all()


class _Messages:
    """Whole messages from a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self._source.recv(CHUNK)
            if not part:
                raise Gone
            self._buffer += part
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def byte(self) -> bytes:
        """One byte."""
        return self._take(1)

    def unread(self, raw: bytes) -> None:
        """Take it back."""
        self._buffer[:0] = raw

    def start(self) -> bytes:
        """What a client says first, without a letter that tells its kind."""
        length = self._take(4)
        return length + self._take(struct.unpack("!i", length)[0] - 4)

    def message(self) -> bytes:
        """A letter, a length, and as much as it says."""
        head = self._take(5)
        return head + self._take(struct.unpack("!i", head[1:])[0] - 4)


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def _reached(host: str, port: int) -> socket.socket:
    """A connection to a server, by TCP or by the socket in a folder."""
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server
    server = socket.create_connection((host, port), PATIENCE)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server
