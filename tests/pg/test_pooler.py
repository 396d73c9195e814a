"""A pooler between us and the server: one that keeps a session for us is as good as none, any other is refused."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import runcue
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from tests.pg.server import Server

PGBOUNCER = shutil.which(
    "pgbouncer", path=f"{os.defpath}:/usr/sbin:/usr/local/bin:{os.environ.get('PATH', '')}"
)
BOUND = 240.0


class Session:
    """A link whose transactions are given to backends by a pooler."""

    def __init__(self, pool: list[int], *, is_kept: bool, takes: int) -> None:
        self.address = Address("postgresql://host/queue")
        self._pool = pool
        self._is_kept = is_kept
        self._takes = takes
        self._backend: int | None = None

    def begin_with(self, statement: str) -> tuple[int | None]:
        """Get a backend, the same as before or whichever is free, and say which it is."""
        if self._backend is None or not self._is_kept:
            self._backend = self._pool.pop(self._takes)
        return (self._backend,)

    def undo(self) -> None:
        """Give it back."""
        if not self._is_kept:
            assert self._backend is not None
            self._pool.append(self._backend)

    def close(self) -> None:
        """It is over."""


@pytest.mark.parametrize("takes", [0, -1], ids=["the longest unused first", "the last used first"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_sessions_that_change_between_transactions_are_noticed(
    takes: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = [1, 2, 3]
    sessions = [Session(pool, is_kept=is_kept, takes=takes) for _ in range(2)]
    monkeypatch.setattr(schema, "Link", lambda address: sessions[1])
    if is_kept:
        schema._check_pooler(sessions[0])  # type: ignore[arg-type]
    else:
        with pytest.raises(runcue.StoreError, match="pool_mode=transaction"):
            schema._check_pooler(sessions[0])  # type: ignore[arg-type]


@pytest.fixture
def pooled(request: pytest.FixtureRequest, pg: str, pg_server: Server) -> Iterator[str]:
    """The way to the database through pgbouncer, in the mode that the test asks for."""
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    server = conninfo_to_dict(pg_server.dsn(pg, tcp=True))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="runcue-pooler-"))
    folder.chmod(0o755)
    (folder / "pooler.ini").write_text(
        f"[databases]\n* = host={server['host']} port={server['port']} user={server['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"pool_mode = {request.param}\n"
    )
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    process = subprocess.Popen(
        [PGBOUNCER, "-q", str(folder / "pooler.ini")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **who,
    )
    try:
        _until_open(port)
        yield f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
    finally:
        process.terminate()
        process.wait(BOUND)
        shutil.rmtree(folder)


def _until_open(port: int) -> None:
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise TimeoutError("pgbouncer does not listen")


@pytest.mark.parametrize("pooled", ["transaction"], indirect=True)
async def test_pgbouncer_that_shares_sessions_is_refused(pooled: str) -> None:
    cue = runcue.Cue(pooled)
    with pytest.raises(runcue.StoreError, match="pool_mode=transaction"):
        await cue.count()


@pytest.mark.parametrize("pooled", ["session"], indirect=True)
async def test_pgbouncer_that_keeps_sessions_is_as_good_as_none(pooled: str) -> None:
    cue = runcue.Cue(pooled)

    @cue.task
    async def note(work: runcue.Work) -> str:
        return "done"

    async with cue:
        work = await cue.wait(await cue.submit("note"), timeout=BOUND)
        assert work.result == "done"
    await cue.close()
