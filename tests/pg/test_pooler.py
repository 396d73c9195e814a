"""A pooler between us and the server: one that keeps a session for us is as good as none, any other is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import runcue
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from tests.pg.pooler import pooler
from tests.pg.server import Server

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
    with pooler(pg_server.dsn(pg, tcp=True), request.param) as address:
        yield address


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
