"""Processes that cannot see each other's files, as if on other hosts: who is there, who is lost, who is woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runcue
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.beats import Signs
from runcue.stores.postgres.store import postgres_store
from runcue.testing.manual_turns import Hand, pending
from tests.patience import until
from tests.pg.proxy import Proxy
from tests.stores.hands import inside

BOUND = 240.0


class Host:
    """One host with one process on it, which takes its turns by hand."""

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, lease: float) -> None:
        folder.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(folder))
            self.store = postgres_store(Address(url), durability="full", lease=lease)
        self.hand = Hand(self.store, {})
        self.news: list[bool | None] = []
        self.lost: list[str] = []
        self.store.listen(self.news.append, self.lost.append)

    def knows_others_elsewhere(self) -> bool:
        """True once its looks have found workers of other hosts."""
        beats = inside(self.store)._beats
        return beats is not None and bool(beats.are_others_elsewhere)


Made = Callable[..., Host]


@pytest.fixture
async def hosts(pg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Made]:
    """Makes hosts; those that live are closed in the end."""
    made: list[Host] = []

    def make(name: str, *, url: str = pg, lease: float = 30.0) -> Host:
        made.append(Host(url, tmp_path / name, monkeypatch, lease))
        return made[-1]

    yield make
    for one in made:
        if not one.store._is_closed:
            await one.store.close()


def ids(url: str) -> set[str]:
    """Who is registered."""
    with psycopg.connect(url) as connection:
        return {str(name) for (name,) in connection.execute("SELECT id FROM runcue.workers")}


async def test_who_cannot_see_the_other_s_files_is_elsewhere(hosts: Made) -> None:
    one, two, beside = hosts("a"), hosts("b"), hosts("a")
    for host in (one, two, beside):
        await host.hand.join()
    await one.hand.turn()
    assert one.store.me().boot == beside.store.me().boot != two.store.me().boot
    assert set(one.store._database.peers()) == {one.store.worker, beside.store.worker}


async def test_who_gives_no_sign_of_life_for_a_lease_is_lost(hosts: Made, pg: str) -> None:
    living, dead = hosts("a", lease=1.0), hosts("b", lease=1.0)
    for host in (living, dead):
        await host.hand.join()
    await until(living.knows_others_elsewhere)
    dead.store.abandon()
    await until(lambda: bool(living.lost))
    assert set(living.lost) == {dead.store.worker}
    assert ids(pg) == {living.store.worker, dead.store.worker}, "to strike it off is the engine's to decide"


async def test_who_beats_is_not_lost(hosts: Made) -> None:
    one, two = hosts("a", lease=1.5), hosts("b", lease=1.5)
    for host in (one, two):
        await host.hand.join()
    async with asyncio.timeout(BOUND):
        for _ in range(30):  # three leases
            await asyncio.sleep(0.15)
    assert (one.lost, two.lost) == ([], [])


def test_a_sign_that_does_not_change_for_a_lease_is_the_last() -> None:
    signs = Signs(lease=30.0)
    assert signs.look({"a": 5.0, "b": 0.0}, now=100.0) == []
    assert signs.look({"a": 9.0, "b": 0.0}, now=130.0) == [], "a whole lease"
    assert signs.look({"a": 9.0, "b": 0.0}, now=131.0) == ["b"]
    assert signs.look({"a": -3600.0}, now=161.5) == [], "whatever the clock of the server says"
    assert signs.look({"a": -3600.0, "b": 0.0}, now=170.0) == [], "who comes again is seen anew"


async def test_nobody_is_lost_because_this_process_was_cut_off(hosts: Made, pg: str, pg_proxy: Proxy) -> None:
    """Who comes back gives everybody a whole lease to be seen, whatever the table says of them."""
    one, two = hosts("a", url=pg_proxy.dsn(pg), lease=2.0), hosts("b", url=pg_proxy.dsn(pg), lease=2.0)
    for host in (one, two):
        await host.hand.join()
    await until(one.knows_others_elsewhere)
    pg_proxy.refuse()
    pg_proxy.cut_all()
    async with asyncio.timeout(BOUND):
        for _ in range(25):  # longer than a lease
            await asyncio.sleep(0.1)
    pg_proxy.allow()
    one.news.clear()
    await until(lambda: bool(one.news))  # it is connected again
    await until(lambda: bool(two.news))
    async with asyncio.timeout(BOUND):
        for _ in range(10):
            await asyncio.sleep(0.1)
    assert (one.lost, two.lost) == ([], [])


async def test_a_commit_wakes_who_is_elsewhere(hosts: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.stores.postgres.beats.LOOK", BOUND)  # nobody looks around by himself
    one, two = hosts("a"), hosts("b")
    monkeypatch.setattr(two.store._wakeups, "_poke", lambda workers, urgent: None)  # it tells nobody anything
    for host in (one, two):
        await host.hand.join()
    await until(lambda: bool(one.news and two.news))  # both listen
    inside(one.store)._beats.are_others_elsewhere = True  # as the next look would find
    await one.hand.write(pending(1))
    await until(lambda: False in two.news)  # who looks by himself is told True
    assert False not in one.news, "its own commits are no news"


async def test_work_of_a_host_that_is_gone_runs_elsewhere(pg: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The whole engine: a process dies without a word while it runs something, on a host that nobody can see."""
    began: asyncio.Queue[str] = asyncio.Queue()
    never = asyncio.Event()

    def process(name: str) -> runcue.Cue:
        cue = runcue.Cue(pg, lease=1.0)
        cue.service("api", concurrent=1)

        @cue.task(uses="api")
        async def call(work: runcue.Work) -> str:
            began.put_nowait(name)
            if name == "first":
                await never.wait()
            return name

        return cue

    @asynccontextmanager
    async def on(name: str) -> AsyncIterator[runcue.Cue]:
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        cue = process(name)
        cue.start()
        yield cue

    async with on("first") as first:
        work_id = await first.submit("call")
        async with asyncio.timeout(BOUND):
            assert await began.get() == "first"
    async with on("second") as second:
        await second.count()
        first._system.abandon()  # type: ignore[union-attr] # as kill -9 does
        work = await second.wait(work_id, timeout=BOUND)
        assert (work.state, work.result, work.attempt) == (runcue.WorkState.COMPLETED, "second", 2)
        await second.stop()
        await second.close()


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
