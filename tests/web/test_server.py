"""What a real server does with requests that mean no good, and how it ends (WB2, WB8, WB10)."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from runcue import Cue
from runcue.web import connection, serving, table
from runcue.web.loglimit import LogLimit
from runcue.web.serving import Server, ended_by_signals
from tests.queues import make_empty
from tests.web.conftest import BEARER, PATIENCE, TOKEN, comes_in, served


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    found = tmp_path / "q.db"
    await make_empty(found)
    return found


@pytest.fixture
async def port(path: Path) -> AsyncIterator[int]:
    async with served(path) as (_, number):
        yield number


async def raw(port: int, *pieces: bytes) -> bytes:
    """What the server says to these bytes until it closes the connection, or has said enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read(4096)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = [line, "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    assert found is not None, answer
    return int(found[1])


JSON = "Content-Type: application/json"
POST = "POST /works/purge HTTP/1.1"


@pytest.mark.parametrize(
    "bad",
    [
        request(
            POST, JSON, "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\nGET / HTTP/1.1\r\n"
        ),
        request(POST, JSON, "Content-Length: 5", "Content-Length: 6", body=b"{}   "),
        request(POST, JSON, "Content-Length: -1"),
        request(POST, JSON, "Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
        request(POST, JSON, "Transfer-Encoding: chunked", body=b"zz\r\n{}\r\n"),
        request(POST, JSON, f"Content-Length: {100 * 1024 * 1024}", body=b"x" * 1000),
        request(POST, JSON, f"Content-Length: {10**40}"),
        request("GET /status HTTP/1.1", "Host: 127.0.0.1"),
        request("GET http://evil.test/status HTTP/1.1"),
        request("GET /" + "x" * 65_536 + " HTTP/1.1"),
        request("GET /status HTTP/1.1", *(f"X-{number}: y" for number in range(10_000))),
        request("OPTIONS /status HTTP/1.1"),
        request("TRACE /status HTTP/1.1"),
        request("CONNECT 127.0.0.1:80 HTTP/1.1"),
        request("GET /status HTTP/1.1", "X: a\x00b"),
        b"GET /status HTTP/1.1\r\n\r\n",
        b"GET /status HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\nnonsense\r\n\r\n",
    ],
    ids=lambda bad: bad[:30].decode("latin-1").split("\r")[0],
)
async def test_a_bad_request_has_its_answer_soon(port: int, bad: bytes) -> None:
    answer = await raw(port, bad)
    assert 400 <= status(answer) < 500
    assert answer.count(b"HTTP/1.1") == 1


async def test_http_1_0_is_fine_when_it_names_the_host(port: int) -> None:
    assert status(await raw(port, request("GET /status HTTP/1.0"))) == 200


def pour(port: int, head: bytes, chunk: bytes, times: int) -> tuple[int, bytes]:
    """How often a chunk could be sent before the server hung up, and what it had said."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as asker:
        asker.sendall(head)
        for sent in range(times):
            try:
                asker.sendall(chunk)
            except ConnectionError:
                return sent, asker.recv(4096)
        return times, asker.recv(4096)


async def test_a_body_that_does_not_end_is_cut_off(port: int) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = request(POST, JSON, "Transfer-Encoding: chunked")
    times = 100 * 1024 * 1024 // 0x10000
    before = most_memory()
    sent, answer = await asyncio.to_thread(pour, port, head, chunk, times)
    assert status(answer) == 413
    assert sent < times / 2  # what is under way between the two
    assert most_memory() - before < 30_000


def most_memory() -> int:
    """The most memory that this process ever had, in KiB."""
    import resource  # which not every system has

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def test_a_body_that_does_not_come_is_not_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "SLOWEST_BODY", 0.1)
    answer = await raw(port, request(POST, JSON, "Content-Length: 20", body=b"{"))
    assert status(answer) == 408


# connections that ask for nothing -------------------------------------------------------------------------

HALF = b"GET / HTTP/1.1\r\nHost: 127"
HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
NO_TOKEN = b"POST /works/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"


def test_a_head_has_five_seconds() -> None:
    assert connection.SLOWEST_HEAD == serving.IDLE == 5


async def asked(port: int, *pieces: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which these bytes are there as soon as the server hears of it, however busy the machine is."""
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(b"".join(pieces))
    return await asyncio.open_connection(sock=link)


async def cut_off(port: int, *pieces: bytes, drip: bytes = b"") -> bytes:
    """All that is said to these bytes, and to one more each time, until the connection is cut off."""
    reader, writer = await asked(port, *pieces)
    said = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            while not reader.at_eof():
                if drip:
                    writer.write(drip)
                try:
                    async with asyncio.timeout(0.02):
                        said += await reader.read(4096)
                except TimeoutError:
                    continue
    except ConnectionError:
        return bytes(said)
    finally:
        writer.close()
    return bytes(said)


@pytest.mark.parametrize(
    ("pieces", "drip", "answers"),
    [
        ((), b"", 0),
        ((HALF,), b"", 0),
        ((HALF,), b"x", 0),
        ((request("GET /status HTTP/1.1"),), b"", 1),
        ((request("GET /status HTTP/1.1"), HALF), b"x", 1),
        ((request("GET /status HTTP/1.1"), request("GET /status HTTP/1.1")), b"", 2),
        ((NO_TOKEN,), b"x", 1),
    ],
    ids=["nothing", "half a head", "slow head", "idle", "slow second head", "idle after two", "slow body"],
)
async def test_who_asks_for_nothing_is_cut_off(
    port: int, monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...], drip: bytes, answers: int
) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEAD", 0.3)
    assert (await cut_off(port, *pieces, drip=drip)).count(b"HTTP/1.1 ") == answers


async def test_after_a_flood_of_idle_connections_it_answers_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEAD", 3.0)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 30)
    async with served(path) as (_, port):
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]  # before it hears of any
        for link in links[::2]:
            link.sendall(HALF)
        answers = [status(await raw(port, request("GET /status HTTP/1.1")))]
        idle = [await asyncio.open_connection(sock=link) for link in links]
        async with asyncio.timeout(PATIENCE):
            while answers[-1] != 200:
                answers.append(status(await raw(port, request("GET /status HTTP/1.1"))))
            for reader, writer in idle:
                assert await reader.read() == b""
                writer.close()
        assert answers[0] == 503


async def test_who_is_being_answered_is_not_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEAD", 0.1)
    cue = Cue(str(path))

    @cue.task
    async def call(work: object) -> None:
        return None

    async with served(path) as (_, port), asyncio.timeout(PATIENCE):
        events, asker = await asked(port, request("GET /events?types=queued HTTP/1.1"))
        talk, talker = await asked(port, request("GET /ws?types=queued HTTP/1.1", *HANDSHAKE))
        assert await cut_off(port) == b""  # who came later
        await cue.submit("call")
        assert b"work_queued" in await events.readuntil(b"work_queued")
        assert b"work_queued" in await talk.readuntil(b"work_queued")
        asker.close()
        talker.close()
    await cue.close()


# coming and going -----------------------------------------------------------------------------------------


async def test_clients_that_come_and_go_leave_nothing_behind(path: Path) -> None:
    async with served(path) as (server, port):
        for number in range(30):
            last = ["-1", str(2**63), "abc", "99999999"][number % 4]
            asker = socket.create_connection(("127.0.0.1", port))
            asker.sendall(request("GET /events HTTP/1.1", f"Last-Event-ID: {last}"))
            if number % 2:
                asker.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )  # gone without a word
            asker.close()
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=PATIENCE
        ) as asker2:
            await comes_in(asker2)
        assert server.started


async def test_it_ends_soon_though_streams_are_open(path: Path) -> None:
    async with (
        served(path) as (server, port),
        httpx.AsyncClient(headers=BEARER, base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as asker,
        asker.stream("GET", "/live") as live,
        asker.stream("GET", "/events") as events,
    ):
        lines = live.aiter_lines()
        assert await anext(lines) == "event: status"
        server.should_exit = True
        async with asyncio.timeout(PATIENCE):
            async for _ in lines:
                continue
            async for _ in events.aiter_lines():
                continue


# how it ends -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(code: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that serves a dashboard, and is ended with the test."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "RUNCUE_TOKEN"},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
async def test_serve_prints_its_link_and_ends_at_a_signal(path: Path, way: signal.Signals) -> None:
    code = f"import runcue.web; runcue.web.serve({str(path)!r}, port=0)"
    async with running(code) as process, httpx.AsyncClient(follow_redirects=True, timeout=PATIENCE) as asker:
        link = await line_of(process)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
        assert (await asker.get(link)).status_code == 200
        async with asker.stream("GET", httpx.URL(link).join("live")) as live:
            assert await anext(live.aiter_lines()) == "event: status"
            process.send_signal(way)
            assert await process.wait() == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""


HELD_UP = """
import asyncio, sys
from runcue.cli.main import runcue
from runcue.web.site import Site

async def close(site):
    print("closing", flush=True)
    await asyncio.Event().wait()

Site.close = close
sys.argv = ["runcue", "dashboard", {path!r}, "--port", "0", "--no-browser"]
runcue()
"""
WITHOUT_AN_ANSWER = """
import sys, threading
from runcue import Reader
from runcue.cli.main import runcue

def listed(reader, *_, **__):
    print("asked", flush=True)
    threading.Event().wait()

Reader.list = listed
sys.argv = ["runcue", "dashboard", {path!r}, "--port", "0", "--no-browser"]
runcue()
"""


async def test_a_second_signal_ends_it_at_once(path: Path) -> None:
    async with running(HELD_UP.format(path=str(path))) as process:
        assert (await line_of(process)).startswith("http://")
        process.send_signal(signal.SIGTERM)
        assert await line_of(process) == "closing"
        while process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.1)
        assert process.returncode == 130
        assert process.stderr is not None
        assert await process.stderr.read() == b"Ctrl-C ends it.\n"


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that come to whoever handled them before; SIGINT is ignored."""
    found: list[int] = []
    before = {number: signal.getsignal(number) for number in serving.SIGNALS}
    signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_that_come_together_are_one(heard: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(uvicorn.Config(None), lambda: None, LogLimit())  # type: ignore[arg-type]  # nothing is served
    now = [1000.0]
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with ended_by_signals(server):
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert (server.should_exit, heard) == (True, [])
        now[0] += 1
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]


def test_a_signal_that_was_ignored_still_is(heard: list[int]) -> None:
    server = Server(uvicorn.Config(None), lambda: None, LogLimit())  # type: ignore[arg-type]  # as above
    with ended_by_signals(server):
        signal.raise_signal(signal.SIGINT)
        assert not server.should_exit
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


async def test_a_queue_that_does_not_answer_does_not_hold_it_up(path: Path) -> None:
    async with running(WITHOUT_AN_ANSWER.format(path=str(path))) as process:
        link = httpx.URL(await line_of(process))
        bearer = {"Authorization": f"Bearer {link.params['token']}"}
        async with httpx.AsyncClient(headers=bearer, base_url=link.join("/"), timeout=PATIENCE) as asker:
            asking = [asyncio.create_task(asker.get(name)) for name in ("status", "works")]
            assert [await line_of(process), await line_of(process)] == ["asked"] * 2
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            await asyncio.gather(*asking, return_exceptions=True)


def test_a_file_that_is_no_queue_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    from runcue import StoreError
    from runcue.web import serve

    said: list[str] = []
    with pytest.raises(StoreError):
        serve(tmp_path / "none.db", port=0, say=said.append)
    assert said == []
    assert list(tmp_path.iterdir()) == []
