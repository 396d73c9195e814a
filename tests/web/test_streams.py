"""What is told while a connection lasts: the live overview, events, and a WebSocket of the same (WB8, WB9, WB11)."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from runcue import Cue
from runcue.web import broadcast, file, streams
from runcue.web.broadcast import Broadcast, Overview
from runcue.web.guard import Refused
from runcue.web.shapes import EventsQuery
from runcue.web.site import Site
from runcue.web.source import InMemory
from tests.patience import until
from tests.web.conftest import BEARER, CANARY, PATIENCE, Stage, comes_in, prepared, served, staged

Told = tuple[str, str | None, Any]
"""The name, the id and the data of an event."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "PAUSE", 0.02)


class Stream:
    """A stream that is being read."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> Told:
        """The next event, within forty seconds."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                if line.startswith(":"):
                    continue
                if not line and fields:
                    return fields["event"], fields.get("id"), json.loads(fields["data"])
                name, _, value = line.partition(": ")
                assert name not in fields, f"{name} comes twice: {fields}"
                if name:
                    fields[name] = value
        raise AssertionError("the stream has ended")

    async def until(self, name: str, check: Callable[[Any], bool] = lambda data: True) -> Told:
        """The next event of that name for whose data that is true."""
        for _ in range(100):
            told = await self.next()
            if told[0] == name and check(told[2]):
                return told
        raise AssertionError(f"no {name}")


@asynccontextmanager
async def opened(port: int, path: str, **headers: str) -> AsyncIterator[Stream]:
    """A stream of a real server."""
    async with (
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={**BEARER, **headers}, timeout=PATIENCE
        ) as asker,
        asker.stream("GET", path, timeout=PATIENCE) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield Stream(answer.aiter_lines())


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[tuple[Stage, int]]:
    async with staged("outside", tmp_path) as stage:
        assert stage.path is not None
        async with served(stage.path) as (_, port):
            yield stage, port


# the live overview ----------------------------------------------------------------------------------------


async def test_the_live_overview_begins_at_once_and_follows_what_happens(live: tuple[Stage, int]) -> None:
    stage, port = live
    async with opened(port, "/live") as stream:
        name, _, first = await stream.next()
        assert name == "status"
        assert first["counts"]["completed"] == 1
        assert "history" not in first
        assert set(first["sample"]) == {"at", "pending", "running", "completed", "failed"}
        await stage.cue.wait(await stage.cue.submit("call"), PATIENCE)
        await stream.until("status", lambda status: status["counts"]["completed"] == 2)


async def test_an_action_is_told_at_once_to_all(
    live: tuple[Stage, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = live
    monkeypatch.setattr(broadcast, "PAUSE", 60.0)
    monkeypatch.setattr(broadcast, "LONGEST_PAUSE", 60.0)
    async with opened(port, "/live") as one, opened(port, "/live") as other:
        await one.next()
        await other.next()
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=PATIENCE
        ) as asker:
            await asker.post("/services/api/pause", json={})
        for stream in (one, other):
            await stream.until("status", lambda status: status["services"][0]["paused"])


class Counting:
    """A source that counts how often it is asked, and is in the way of nothing."""

    def __init__(self, cue: Cue) -> None:
        self.inner = InMemory(cue)
        self.path = None
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def facts(self, with_dead: bool) -> Any:
        self.asked += 1
        return await self.inner.facts(with_dead)


async def test_one_look_serves_all_and_nobody_looks_when_nobody_watches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "PAUSE", 0.01)
    cue = prepared()
    source: Any = Counting(cue)
    told = Broadcast(Overview(source, read_only=False))
    listeners = [told.listen() for _ in range(20)]
    for listener in listeners:
        name, _ = await anext(listener)
        assert name == "status"
    few = source.asked
    assert few < 20
    await until(lambda: source.asked > few)  # it goes on while somebody is there
    for listener in listeners:
        await listener.aclose()
    await asyncio.sleep(0)
    asked = source.asked
    assert "runcue dashboard" not in {task.get_name() for task in asyncio.all_tasks()}
    async for name, _ in told.listen():  # and begins anew
        assert name == "status"
        break
    assert source.asked <= asked + 1
    await cue.close()


async def test_nothing_is_told_twice_unless_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "PAUSE", 0.01)
    cue = prepared()
    source: Any = Counting(cue)
    told = Broadcast(Overview(source, read_only=False))
    listener = told.listen()
    await anext(listener)
    following = asyncio.ensure_future(anext(listener))
    await until(lambda: source.asked > 5)
    assert not following.done()
    monkeypatch.setattr(broadcast, "HEARTBEAT", 0.0)
    await asyncio.wait_for(following, PATIENCE)
    await listener.aclose()
    await cue.close()


async def test_who_is_slow_gets_the_latest_and_nothing_is_kept_for_him(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "PAUSE", 0.001)
    monkeypatch.setattr(broadcast, "HEARTBEAT", 0.0)
    cue = prepared()
    source: Any = Counting(cue)
    told = Broadcast(Overview(source, read_only=False))
    listener = told.listen()
    await anext(listener)
    await cue.submit("call", delay=3600)
    before = source.asked
    await until(lambda: source.asked > before + 20)
    _, data = await anext(listener)
    assert json.loads(data)["counts"]["pending"] == 1
    await listener.aclose()
    await cue.close()


# events ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file", "outside"])
async def test_events_go_on_after_the_last_one_that_was_seen(kind: str, tmp_path: Path) -> None:
    async with staged(kind, tmp_path) as stage:
        site = site_of(stage)
        last = await site.source.last_event(None)
        everything = [event async for event in bounded(site, None, 0, last)]
        assert everything[-1].seq == last
        assert [event.seq for event in everything] == sorted(event.seq for event in everything)
        middle = everything[len(everything) // 2].seq
        rest = [event async for event in bounded(site, None, middle, last)]
        assert rest == [event for event in everything if event.seq > middle]
        wanted = [event for event in everything if event.name in {"work_completed", "work_cancelled"}]
        some = bounded(site, ["work_completed", "cancelled"], 0, wanted[-1].seq)
        assert [event async for event in some] == wanted


def site_of(stage: Stage) -> Site:
    """The parts behind the routes of a stage."""
    found: Any = stage.app
    site: Site = found.routes[0].app.app._site
    return site


async def bounded(site: Site, types: list[str] | None, since: int, last: int) -> AsyncIterator[Any]:
    """Events up to that number. The queue tells of itself now and then, so that there is always one more."""
    ended = asyncio.ensure_future(asyncio.wait_for(asyncio.Event().wait(), PATIENCE))
    stream = site.source.events(types, since)
    try:
        while True:
            following: asyncio.Future[Any] = asyncio.ensure_future(anext(stream, None))
            await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
                return
            event = following.result()
            if event is None or event.seq > last:
                return
            yield event
            if event.seq == last:
                return
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


@pytest.mark.parametrize("kind", ["memory", "outside"])
async def test_a_place_that_cannot_be_is_as_good_as_none(kind: str, tmp_path: Path) -> None:
    async with staged(kind, tmp_path) as stage:
        events = site_of(stage).events
        last = await site_of(stage).source.last_event(None)
        assert last > 5

        async def start(last_id: str | None, since: int | None = None) -> int:
            return (await events.start_of(EventsQuery(since=since), last_id))[1]

        for odd in ("abc", "", "1.5", "٣", "9" * 31, str(2**63), str(last + 50), "-", "0x3"):
            assert last <= await start(odd) <= last + 20, odd
        assert await start(None) >= last
        assert await start("-1") == await start("-99") == await start(None, -5) == 0
        assert await start("3") == 3
        assert await start("3", since=4) == 3  # where a browser was counts, not where it began
        assert await start(None, since=4) == 4


async def test_events_carry_their_name_their_number_and_one_line(live: tuple[Stage, int]) -> None:
    _, port = live
    async with opened(port, "/events?since=0&types=failed,completed") as stream:
        first = await stream.next()
        second = await stream.next()
        third = await stream.next()
    assert {first[0], second[0], third[0]} == {"work_completed", "work_failed"}
    assert first[1] == str(first[2]["seq"])
    assert CANARY not in json.dumps([first, second, third])
    async with opened(port, "/events?types=failed,completed", **{"Last-Event-ID": first[1] or ""}) as stream:
        assert await stream.next() == second


async def test_from_now_on_is_where_events_begin(live: tuple[Stage, int]) -> None:
    stage, port = live
    async with opened(port, "/events?types=queued") as stream:
        work_id = await stage.cue.submit("call")
        assert (await stream.until("work_queued"))[2]["work_id"] == work_id


@pytest.mark.parametrize("text", ["x\n\ndata: y", "x\r\nevent: z\r", "\u2028\u0085"])
async def test_no_text_can_pose_as_another_event(live: tuple[Stage, int], text: str) -> None:
    stage, port = live
    async with opened(port, "/events?types=completed") as stream:
        await stage.cue.submit("echo", params={"text": text})
        told = await stream.next()
    assert told[0] == "work_completed"
    assert told[2]["result"] == text


async def test_a_websocket_tells_the_same(live: tuple[Stage, int]) -> None:
    stage, port = live
    async with connect(f"ws://127.0.0.1:{port}/ws?types=queued", additional_headers=BEARER) as talk:
        work_id = await stage.cue.submit("call")
        told = json.loads(await asyncio.wait_for(talk.recv(), PATIENCE))
    assert (told["name"], told["work_id"]) == ("work_queued", work_id)


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({}, "", 401),
        ({**BEARER, "Origin": "http://evil.test"}, "", 403),
        (BEARER, "?types=odd", 400),
        (BEARER, "?since=x", 400),
    ],
)
async def test_a_websocket_is_guarded_like_the_rest(
    live: tuple[Stage, int],
    headers: dict[str, str],
    query: str,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)  # its parent keeps what it says to itself
    try:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(f"ws://127.0.0.1:{live[1]}/ws{query}", additional_headers=headers):
                pass
        await until(lambda: not [task for task in asyncio.all_tasks() if "run_asgi" in repr(task)])
    finally:
        logger.removeHandler(caplog.handler)
    assert caught.value.response.status_code == status
    assert [record.message for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_what_goes_wrong_in_a_websocket_is_logged(
    live: tuple[Stage, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, port = live

    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(streams, "event_line", broken)
    async with connect(f"ws://127.0.0.1:{port}/ws", additional_headers=BEARER) as talk:
        await stage.cue.submit("call")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(talk.recv(), PATIENCE)
    assert "sending events to a WebSocket failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# how many -------------------------------------------------------------------------------------------------


async def test_an_address_has_ten_connections_and_gets_them_back(live: tuple[Stage, int]) -> None:
    _, port = live
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=PATIENCE
    ) as asker:
        for path in ("/live", "/events"):
            opens = [asker.stream("GET", path) for _ in range(10)]
            answers = [await one.__aenter__() for one in opens]
            assert {answer.status_code for answer in answers} == {200}
            refused = await asker.get("/live")
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            with pytest.raises(InvalidStatus):
                async with connect(f"ws://127.0.0.1:{port}/ws", additional_headers=BEARER):
                    pass
            for one in opens:
                await one.__aexit__(None, None, None)
            await comes_in(asker)


def test_a_hundred_connections_are_enough() -> None:
    seats = streams.Seats()
    taken = [seats.take(f"10.0.0.{number % 50}") for number in range(100)]
    for seat in taken:
        seat.__enter__()
    with pytest.raises(Refused, match="Too many live connections"):
        seats.check("10.0.1.1")
    for seat in taken:
        seat.__exit__(None, None, None)
    seats.check("10.0.1.1")
    assert seats.taken == 0


async def test_a_client_that_takes_nothing_is_let_go(
    live: tuple[Stage, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, port = live
    caplog.set_level("INFO", "runcue")
    monkeypatch.setattr(streams, "PATIENCE", 0.2)
    texts = [
        {"task": "echo", "params": {"text": "x" * 50_000}}
    ] * 120  # more than the buffers of a connection hold
    await stage.cue.join(await stage.cue.submit_many(texts), timeout=PATIENCE)
    asker = socket.socket()
    asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asker.connect(("127.0.0.1", port))
    head = (
        f"GET /events?since=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n"
    )
    asker.sendall(head.encode())
    try:
        await until(lambda: "read nothing any more" in caplog.text)
    finally:
        asker.close()
