"""A queue that cannot be read is unavailable, and shown again when it can be; nobody waits for it (WB13)."""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from runcue import Cue, Reader, StorageReplaced
from runcue.web import app, broadcast, file, reader_thread
from runcue.web.source import Unavailable, at_home
from tests.web.conftest import PATIENCE, TOKEN, client, prepared


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "PAUSE", 0.02)
    monkeypatch.setattr(broadcast, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(
        reader_thread, "PATIENCE", PATIENCE
    )  # who is asked on a busy machine may take that long


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[tuple[Path, Cue]]:
    """A queue that is being worked on."""
    path = tmp_path / "q.db"
    cue = prepared(str(path))
    async with cue:
        await cue.wait(await cue.submit("call"), PATIENCE)
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
    async with asyncio.timeout(PATIENCE):
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
        assert (await told_until(listener, "unavailable"))["error"].startswith("The file is gone.")
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


async def test_what_became_of_the_file_is_told_to_people_and_it_goes_on(tmp_path: Path) -> None:
    path, other = tmp_path / "q.db", tmp_path / "other.db"
    for one in (path, other):
        cue = prepared(str(one))
        await cue.submit("call")
        await cue.close()
    made = app(path, token=TOKEN)
    async with made.router.lifespan_context(made), client(made) as asker:
        await status_until(asker, 200)
        other.replace(path)
        assert (await status_until(asker, 503))["error"] == "The file was replaced; looking again."
        await status_until(asker, 200)
        path.unlink()
        assert (await status_until(asker, 503))["error"] == "The file is gone. It is looked for again."
        assert (await asker.get("/status")).json()["error"] == "The file is gone. It is looked for again."


async def test_a_cue_whose_file_was_replaced_is_told_without_advice_for_programs() -> None:
    class Lost:
        path = None

        async def facts(self, with_dead: bool) -> None:
            raise StorageReplaced("'q.db' was deleted or exchanged. Close it and open it anew.", "q.db")

    made = app(Cue(), token=TOKEN)
    made.routes[0].app.app._site.overview._source = Lost()  # type: ignore[attr-defined]
    async with client(made) as asker:
        asker.made = made  # type: ignore[attr-defined]
        listener = tellings(asker)
        told = [
            (await told_until(listener, "unavailable"))["error"],
            (await asker.get("/status")).json()["error"],
        ]
        await listener.aclose()
    assert set(told) == {"The file was deleted or replaced. Start the application that works on it anew."}


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
    listener = tellings(asker)
    await told_until(listener, "status")
    locked = threading.Event()

    class Stuck:
        """A Reader of a file that somebody has locked: it waits."""

        def __init__(self, path: str, *, name: str) -> None:
            locked.wait(PATIENCE)
            self.inner = real(path, name=name)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    site = asker.made.routes[0].app.app._site  # type: ignore[attr-defined]
    real = Reader
    monkeypatch.setattr(reader_thread, "Reader", Stuck)
    monkeypatch.setattr(reader_thread, "PATIENCE", 0.3)
    overview = site.source._overview
    await overview.ask(lambda reader: overview._drop_reader())
    assert "does not answer" in (await told_until(listener, "unavailable"))["error"]
    assert (await asker.get("/works")).status_code == 503
    monkeypatch.setattr(reader_thread, "PATIENCE", PATIENCE)
    path, cue = queue
    await cue.wait(await cue.submit("call"), PATIENCE)  # the work goes on
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


async def test_a_cue_that_has_not_begun_is_opened_by_whoever_asks_first(tmp_path: Path) -> None:
    asks = (
        "/status",
        "/works",
        "/works/x",
        "/events?types=nonsense",
        "/metrics",
        "/works?search=x",
        "/services",
    )
    for number, path in enumerate(asks):
        cue = prepared(str(tmp_path / f"{number}.db"))
        async with client(app(cue, token=TOKEN)) as asker:
            answer = await asker.get(path)
            assert answer.status_code in (200, 400, 404), path
        await cue.close()


async def test_a_cue_whose_loop_has_ended_is_unavailable() -> None:
    cue = prepared()
    await asyncio.to_thread(lambda: asyncio.run(cue.submit("call")))
    async with client(app(cue, token=TOKEN)) as asker:
        for path in ("/status", "/works", "/works/x", "/events", "/metrics"):
            answer = await asker.get(path)
            assert answer.status_code == 503, path
            assert "has ended" in answer.json()["error"]
        assert (await asker.post("/works/x/retry", json={})).status_code == 503


@pytest.mark.parametrize("way", ["run", "stop"])
async def test_a_loop_that_ends_while_it_is_asked_keeps_nobody_waiting(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.web.source.GLANCE", 0.02)
    cue = prepared()
    loop = asyncio.new_event_loop()
    asked = asyncio.Event()
    here = asyncio.get_running_loop()
    end, answered = threading.Event(), threading.Event()

    async def live() -> None:
        await cue.count()
        here.call_soon_threadsafe(asked.set)
        await asyncio.to_thread(end.wait, PATIENCE)
        if way == "stop":
            loop.stop()
            await asyncio.Event().wait()

    def there() -> None:
        asyncio.set_event_loop(loop)
        if way == "run":
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(live())
        else:
            task = loop.create_task(live())
            loop.run_forever()
            answered.wait(PATIENCE)
            task.cancel()
            for one in asyncio.all_tasks(loop):
                one.cancel()
            loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = asyncio.create_task(asyncio.to_thread(there))
    await asked.wait()

    async def forever(_: Cue) -> None:
        end.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable, match="has ended"):
            await at_home(cue, forever)
        answered.set()
        await thread


async def test_whatever_goes_wrong_is_told_and_logged_and_it_goes_on(
    queue: tuple[Path, Cue],
    asker: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = tellings(asker)
    await told_until(listener, "status")
    overview = asker.made.routes[0].app.app._site.overview  # type: ignore[attr-defined]

    async def broken() -> None:
        raise ZeroDivisionError("secret of the inside")

    monkeypatch.setattr(overview, "status", broken)
    with caplog.at_level(logging.ERROR, "runcue"):
        assert "log says why" in (await told_until(listener, "unavailable"))["error"]
    assert caplog.text.count("ZeroDivisionError: secret") == 1
    monkeypatch.undo()
    assert (await told_until(listener, "status"))["counts"]["completed"] == 1
    await listener.aclose()


async def test_a_list_that_takes_long_is_cut_off_and_holds_nobody_up(
    asker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    calls: list[str | None] = []
    real = Reader.list

    def slow(self: Reader, *given: Any, **more: Any) -> Any:
        if more.get("search") is not None:
            calls.append(more["search"])
            go_on.wait(PATIENCE)
        return real(self, *given, **more)

    monkeypatch.setattr(Reader, "list", slow)
    monkeypatch.setattr(reader_thread, "PATIENCE", 0.3)
    try:
        first, second = await asyncio.gather(asker.get("/works?search=one"), asker.get("/works?search=two"))
        for answer in (first, second):
            assert answer.status_code == 503
            assert "Narrow the filter" in answer.json()["error"]
        monkeypatch.setattr(reader_thread, "PATIENCE", PATIENCE)
        assert (await asker.get("/works/x")).status_code == 404
        assert (await asker.get("/status")).status_code == 200
    finally:
        go_on.set()
    async with asyncio.timeout(PATIENCE):
        while (await asker.get("/works")).status_code != 200:
            continue
    assert calls == ["one"]  # nobody waited for the other any more


async def test_the_numbers_of_a_file_are_counted_once_for_a_while(
    queue: tuple[Path, Cue], asker: httpx.AsyncClient
) -> None:
    source = asker.made.routes[0].app.app._site.source  # type: ignore[attr-defined]
    assert b"work_units" in (await asker.get("/metrics")).content
    first = source._metrics
    assert (await asker.get("/metrics")).status_code == 200
    assert source._metrics is first
    thread = source._others
    await thread.ask(lambda reader: thread._drop_reader())
    assert (await asker.get("/metrics")).status_code == 200
    assert source._metrics is not first  # that was of a Reader that is closed
