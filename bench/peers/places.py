"""Where units are kept: in memory, in a file, in a Redis or in a PostgreSQL, fresh for each run.

Files and servers are in temporary folders on the disk, never in memory. Everything is reached by a Unix socket.
PostgreSQL has its usual settings (fsync, synchronous_commit and full_page_writes on); Redis keeps nothing on the disk
(`redis`), or writes and syncs its log before each answer (`redis-aof`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import NamedTuple, Self

from bench.peers import homes
from bench.peers.processor import used, with_parent
from tests.pg.server import Missing, Server

PATIENCE = 30.0
SETTINGS = {"synchronous_commit": "on", "max_connections": "200"}
REDIS = {
    "redis": ["--appendonly", "no", "--save", ""],
    "redis-aof": ["--appendonly", "yes", "--appendfsync", "always", "--save", ""],
}


class Place(NamedTuple):
    """A fresh store: what opens it, and the process that serves it, if there is one."""

    where: str
    server: int = 0

    def used(self) -> float:
        """Seconds of the processor that its server has used."""
        return used(self.server) if self.server else 0.0


class Absent(RuntimeError):
    """There is no such place on this machine."""


@contextmanager
def redis_server(kind: str) -> Iterator[Place]:
    """A Redis of our own; it is ended, and its folder taken away."""
    found = homes.redis()
    if found is None:
        raise Absent(f"there is no redis-server or valkey-server; {homes.INSTALL}")
    program, environment = found
    with TemporaryDirectory(prefix="runcue-redis-", dir="/tmp") as folder:
        path = Path(folder, "socket")
        call = [program, "--port", "0", "--unixsocket", str(path), "--dir", folder, "--daemonize", "no"]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [*call, *REDIS[kind]],
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=with_parent,  # noqa: PLW1509 (it calls one function of the system, and takes no lock)
            )
        try:
            deadline = monotonic() + PATIENCE
            while not path.exists():
                if process.poll() is not None or monotonic() > deadline:
                    said = Path(folder, "log").read_text().strip().splitlines()
                    raise Absent(f"Redis did not start: {said[-1] if said else process.returncode}")
                time.sleep(0.01)
            yield Place(str(path), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Places:
    """Gives out fresh places; the one PostgreSQL server lasts as long as this."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._postgres: Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def fresh(self, kind: str) -> Iterator[Place]:
        """A place of a kind: memory, file, redis, redis-aof or postgres."""
        if kind == "memory":
            yield Place("memory")
        elif kind == "file":
            with TemporaryDirectory(prefix="runcue-file-") as folder:
                yield Place(str(Path(folder, "queue.db")))
        elif kind == "postgres":
            server = self._server()
            dsn = server.database()
            try:
                with server.connection() as connection:
                    connection.execute("CHECKPOINT")
                yield Place(dsn, server.pid)
            finally:
                server.drop(dsn)
        else:
            with redis_server(kind) as place:
                yield place

    def _server(self) -> Server:
        if self._postgres is None:
            try:
                self._postgres = self._stack.enter_context(Server(fsync=True, settings=SETTINGS))
            except Missing as missing:
                raise Absent(str(missing)) from missing
        return self._postgres
