"""A queue that cannot be read is unavailable, and shown again when it can be; nobody waits for it (WB13)."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from runcue import Cue, Reader
from runcue.web import app, broadcast, file
from runcue.web.source import Unavailable
from tests.web.conftest import TOKEN, client, prepared


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "PAUSE", 0.02)
    monkeypatch.setattr(broadcast, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(file, "PATIENCE", 0.3)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[tuple[Path, Cue]]:
    """A queue that is being worked on."""
    path = tmp_path / "q.db"
    cue = prepared(str(path))
    async with cue:
        await cue.wait(await cue.submit("call"), 10)
        yield path, cue
    await cue.close()


@pytest.fixture
async def asker(queue: tuple[Path, Cue]) -> AsyncIterator[httpx.AsyncClient]:
    made = app(queue[0], token=TOKEN)
    async with made.router.lifespan_context(made), client(made) as found:
        found.made = made  # type: ignore[attr-defined]
        yield found


async def status_until(asker: httpx.AsyncClient, wanted: int) -> Any:
    """The overview once it is answered like that."""
    answer = await asker.get("/status")
    for _ in range(200):
        if answer.status_code == wanted:
            return answer.json()
        answer = await asker.get("/status")
    raise AssertionError(f"no {wanted}, but {answer.status_code}: {answer.text}")


def tellings(asker: Any) -> Any:
    return asker.made.routes[0].app.app._site.broadcast.listen()


async def told_until(listener: Any, wanted: str) -> Any:
    async with asyncio.timeout(15):
        async for name, data in listener:
            if name == wanted:
                return json.loads(data)
    raise AssertionError("it has ended")


async def test_a_file_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "q.db", tmp_path / "aside.db"
    cue = prepared(str(path))
    await cue.submit("call")
    await cue.close()
    made = app(path, token=TOKEN)
    async with made.router.lifespan_context(made), client(made) as asker:
        asker.made = made  # type: ignore[attr-defined]
        listener = tellings(asker)
        assert (await told_until(listener, "status"))["counts"]["pending"] == 1
        path.rename(aside)
        assert "q.db" in (await told_until(listener, "unavailable"))["error"]
        answer = await asker.get("/status")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        for path_of in ("/works", "/works/x", "/metrics", "/events", "/works/x/output"):
            assert (await asker.get(path_of)).status_code == 503
        for verb in ("retry", "cancel", "purge"):
            assert (await asker.post(f"/works/x/{verb}", json={})).status_code == 503
        assert not path.exists()
        aside.rename(path)
        assert (await told_until(listener, "status"))["counts"]["pending"] == 1
        await listener.aclose()


async def test_a_file_that_is_damaged_and_then_exchanged_for_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    cue = prepared(str(path))
    await cue.submit("call")
    await cue.close()
    good = tmp_path / "good.db"
    shutil.copyfile(path, good)
    made = app(path, token=TOKEN)
    async with made.router.lifespan_context(made), client(made) as asker:
        await status_until(asker, 200)
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
        damaged.replace(path)
        error = (await status_until(asker, 503))["error"]
        assert "\n" not in error
        good.replace(path)
        assert (await status_until(asker, 200))["counts"]["pending"] == 1


async def test_a_locked_file_holds_nobody_up(
    queue: tuple[Path, Cue], asker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    listener = tellings(asker)
    await told_until(listener, "status")
    locked = threading.Event()

    class Stuck:
        """A Reader of a file that somebody has locked: it waits."""

        def __init__(self, path: str) -> None:
            locked.wait(20)
            self.inner = real(path)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    site = asker.made.routes[0].app.app._site  # type: ignore[attr-defined]
    real = Reader
    monkeypatch.setattr(file, "Reader", Stuck)
    desk = site.source._glances
    await desk.ask(lambda reader: desk._let_go())
    assert "does not answer" in (await told_until(listener, "unavailable"))["error"]
    assert (await asker.get("/works")).status_code == 503
    path, cue = queue
    await cue.wait(await cue.submit("call"), 10)  # the work goes on
    locked.set()
    assert (await told_until(listener, "status"))["counts"]["completed"] == 2
    await listener.aclose()
    assert path.exists()


async def test_looking_never_keeps_a_writer_waiting(
    queue: tuple[Path, Cue], asker: httpx.AsyncClient
) -> None:
    listener = tellings(asker)
    await told_until(listener, "status")
    other = apsw.Connection(str(queue[0]))
    try:
        other.set_busy_timeout(0)
        for _ in range(20):
            await asker.get("/status")
            other.execute("BEGIN IMMEDIATE")
            assert (await asker.get("/works")).status_code == 200  # nor the other way round
            other.execute("ROLLBACK")
            busy, *_ = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()[0]
            assert busy == 0
    finally:
        other.close()
        await listener.aclose()


async def test_an_action_makes_no_file_where_there_is_none(tmp_path: Path) -> None:
    source = file.InFile(str(tmp_path / "none.db"))
    with pytest.raises(Unavailable):
        await source.act(lambda cue: cue.count())
    await source.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_cue_that_was_closed_is_unavailable() -> None:
    cue = prepared()
    await cue.count()
    made = app(cue, token=TOKEN)
    await cue.close()
    async with client(made) as asker:
        for path in ("/status", "/works", "/works/x", "/events"):
            answer = await asker.get(path)
            assert answer.status_code == 503
            assert "closed" in answer.json()["error"]
