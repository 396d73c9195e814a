"""Whatever clients do, a dashboard prints no traceback, and each line once a minute (WB8, WB10)."""

import asyncio
import base64
import errno
import logging
import re
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from runcue import Cue
from runcue.web import app, loglimit, serving
from runcue.web.loglimit import LogLimit
from tests.patience import until
from tests.queues import make_empty
from tests.web.conftest import BEARER, PATIENCE, TOKEN, comes_in, served

LOGGERS = ("uvicorn.error", "asyncio", "runcue", "sse_starlette.sse")
AUTHORIZATION = f"Authorization: {BEARER['Authorization']}"


class Terminal(logging.Handler):
    """What would be printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def watched() -> Iterator[Terminal]:
    """The terminal of a server that was made already: it sets up logging for itself."""
    found = Terminal()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(found)
    try:
        yield found
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(found)


@asynccontextmanager
async def abused(folder: Path) -> AsyncIterator[tuple[int, Terminal]]:
    """A server, and all that it says until it has ended."""
    path = folder / "q.db"
    await make_empty(path)
    with ExitStack() as stack:
        async with served(path) as (_, port):
            yield port, stack.enter_context(watched())


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return (
        "\r\n".join([line, "Host: 127.0.0.1", AUTHORIZATION, *headers]).encode("latin-1") + b"\r\n\r\n" + body
    )


async def answered(port: int, *pieces: bytes, is_over: bool = True) -> bytes:
    """What the server says to these bytes until it closes the connection; `is_over` when nothing more will come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if is_over:
                writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def talked(port: int, said: bytes) -> bytes:
    """What a WebSocket answers to these bytes until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(HANDSHAKE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(said)
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def vanish(port: int, said: bytes, *, hears: bool = False) -> None:
    """Say that, perhaps hear the beginning of the answer, and be gone without a word."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as asker:
        asker.sendall(said)
        if hears:
            asker.recv(100)
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# WebSockets -----------------------------------------------------------------------------------------------

KEY = "Sec-WebSocket-Key: " + base64.b64encode(b"0" * 16).decode()
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", KEY)
COMPRESSED = "Sec-WebSocket-Extensions: permessage-deflate"
HANDSHAKE = request("GET /ws?types=queued HTTP/1.1", *UPGRADE, COMPRESSED)
CONTINUED, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
TOO_BIG = 1009


def frame(
    kind: int, data: bytes = b"", *, fin: bool = True, rsv: int = 0, length: int | None = None
) -> bytes:
    """A frame as a client sends it, its mask without effect; `length` is what it claims to be."""
    size = len(data) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | kind])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    return head + bytes(4) + data


def deflated(data: bytes) -> bytes:
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -12)
    return (squeezed.compress(data) + squeezed.flush(zlib.Z_SYNC_FLUSH))[:-4]


SAID = {
    "no UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "no UTF-8 in two parts": (frame(TEXT, b"\xc3", fin=False) + frame(CONTINUED, b"\x28"), 1007),
    "UTF-8 that is cut off": (frame(TEXT, b"\xc3"), 1007),
    "no UTF-8, compressed": (frame(TEXT, deflated(b"\xff\xff"), rsv=4), 1007),
    "no UTF-8 twice": (frame(TEXT, b"\xff") * 2, 1007),
    "no UTF-8 as a reason": (frame(CLOSE, b"\x03\xe8\xff\xff"), 1007),
    "half a code": (frame(CLOSE, b"\x03"), 1002),
    "a code that is none": (frame(CLOSE, struct.pack(">H", 999)), 1002),
    "no mask": (b"\x81\x02hi", 1002),
    "reserved bits": (frame(TEXT, b"hi", rsv=3), 1002),
    "a kind that is none": (frame(3, b"hi"), 1002),
    "an end without a beginning": (frame(CONTINUED, b"hi"), 1002),
    "a text inside of another": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    "a long ping": (frame(PING, b"x" * 126), 1002),
    "a ping in parts": (frame(PING, b"x", fin=False), 1002),
    "too long": (frame(TEXT, b"x" * (serving.LONGEST_HEAD + 1)), TOO_BIG),
    "a length beyond all": (frame(TEXT, length=2**63 - 1), TOO_BIG),
    "too long in parts": (
        frame(TEXT, b"x" * 30_000, fin=False) + frame(CONTINUED, b"x" * 30_000, fin=False) * 2,
        TOO_BIG,
    ),
    "a bomb": (frame(TEXT, deflated(bytes(20_000_000)), rsv=4), TOO_BIG),
    "not what was compressed": (frame(TEXT, b"\xff\xff\xff\xff", rsv=4), 1002),
    "binary": (frame(BINARY, b"\xff" * 1000) + frame(CLOSE, struct.pack(">H", 1000)), 1000),
    "text": (frame(TEXT, "ä €".encode()) + frame(CLOSE, struct.pack(">H", 1000)), 1000),
    "very many parts": (
        frame(TEXT, fin=False) + frame(CONTINUED, fin=False) * 5000 + frame(CLOSE, struct.pack(">H", 1000)),
        1002,
    ),
    "very many messages": (frame(BINARY) * 5000 + frame(CLOSE, struct.pack(">H", 1000)), 1000),
}


async def test_no_word_is_lost_about_what_a_websocket_says(tmp_path: Path) -> None:
    async with abused(tmp_path) as (port, terminal):
        for name, (said, code) in SAID.items():
            answer = await talked(port, said)
            last = bytes([0x80 | CLOSE]) + struct.pack(">H", code)
            is_reset = answer == b"" and code == TOO_BIG  # for what was not read
            assert is_reset or answer[:1] + answer[2:4] == last, (name, answer)
            assert terminal.lines == [], name
        for number in range(10):
            await asyncio.to_thread(vanish, port, HANDSHAKE, hears=number % 2 == 0)
            await asyncio.to_thread(
                vanish, port, HANDSHAKE + frame(TEXT, b"x" * 60_000), hears=number % 2 == 0
            )
        await answered(port, HANDSHAKE)
        await answered(port, HANDSHAKE + frame(TEXT, b"\xff"))
    assert terminal.lines == []


HANDSHAKES = {
    "no key": (UPGRADE[:3], 400),
    "two keys": ((*UPGRADE, KEY), 400),
    "a key that is none": ((*UPGRADE[:3], "Sec-WebSocket-Key: \xff"), 400),
    "an old version": ((*UPGRADE[:2], "Sec-WebSocket-Version: 8", KEY), 400),
    "nonsense for extensions": ((*UPGRADE, "Sec-WebSocket-Extensions: ,,;;="), 400),
    "nonsense for protocols": ((*UPGRADE, "Sec-WebSocket-Protocol: ,, x y"), 400),
    "two origins": ((*UPGRADE, "Origin: a", "Origin: b"), 400),
    "a body": ((*UPGRADE, "Content-Length: 5"), 400),
    "chunks": ((*UPGRADE, "Transfer-Encoding: chunked"), 400),
    "a long header": ((*UPGRADE, "X: " + "y" * 20_000), 431),
    "many headers": ((*UPGRADE, *(f"X-{number}: y" for number in range(300))), 431),
}


async def test_a_handshake_that_cannot_be_read_is_answered_and_its_connection_closed(tmp_path: Path) -> None:
    async with abused(tmp_path) as (port, terminal):
        for name, (headers, status) in HANDSHAKES.items():
            answer = await answered(port, request("GET /ws HTTP/1.1", *headers, body=b"hello"), is_over=False)
            assert re.match(rb"HTTP/1\.1 (\d+)", answer)[1] == str(status).encode(), (name, answer)  # type: ignore[index]
        answer = await answered(port, request(f"GET /ws?{'x' * 60_000} HTTP/1.1", *UPGRADE), is_over=False)
        assert answer.startswith(b"HTTP/1.1 414 ")
    assert terminal.lines == []


# HTTP -----------------------------------------------------------------------------------------------------


async def test_clients_that_vanish_are_not_worth_a_word(tmp_path: Path) -> None:
    half = request(
        "POST /works/purge HTTP/1.1", "Content-Type: application/json", "Content-Length: 100", body=b"{"
    )
    async with abused(tmp_path) as (port, terminal):
        for address in ("/live", "/events?since=0", "/status", "/works"):
            for hears in (True, False):
                await asyncio.to_thread(vanish, port, request(f"GET {address} HTTP/1.1"), hears=hears)
            await answered(port, request(f"GET {address} HTTP/1.1"))
        await asyncio.to_thread(vanish, port, request("GET /status HTTP/1.1") * 20)
        await asyncio.to_thread(vanish, port, half)
        await answered(port, half)
        asker = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=PATIENCE)
        async with asker:
            await comes_in(asker)
    assert terminal.lines == []


async def test_nonsense_is_told_once_a_minute_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(loglimit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with abused(tmp_path) as (port, terminal):
        for nonsense in (
            b"\0\1\2\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /\xff HTTP/1.1\r\n\r\n",
        ):
            for _ in range(5):
                assert b" 400 " in await answered(port, nonsense)
        assert terminal.lines == ["Invalid HTTP request received."]
        now[0] += 61
        await until(lambda: len(terminal.lines) > 1)
        assert terminal.lines[1:] == ["Invalid HTTP request received. (and 14 more of these)"]
        await answered(port, b"\0\1\2\r\n\r\n")
        assert len(terminal.lines) == 2  # the minute of that line is not over
    assert terminal.lines[2:] == ["Invalid HTTP request received. (and 1 more of these)"]


async def test_refused_connections_are_told_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 5)
    async with abused(tmp_path) as (port, terminal):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for _ in range(10):
            assert b" 503 " in await answered(port, request("GET /status HTTP/1.1"))
        for _, writer in idle:
            writer.close()
        assert terminal.lines == ["Exceeded concurrency limit."]


async def test_what_the_system_refuses_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    async with abused(tmp_path) as (_, terminal):
        for _ in range(1000):  # what asyncio does for each connection that it has no descriptor for
            error = OSError(errno.EMFILE, "Too many open files")
            told = {
                "message": "socket.accept() out of system resource",
                "exception": error,
                "socket": object(),
            }
            asyncio.get_running_loop().call_exception_handler(told)
        assert terminal.lines == ["socket.accept() out of system resource: [Errno 24] Too many open files"]


async def test_a_mistake_of_ours_has_its_traceback_once_a_minute(tmp_path: Path) -> None:
    def told(error: Exception) -> None:
        try:
            raise error
        except type(error) as caught:
            asyncio.get_running_loop().call_exception_handler({"message": "it failed", "exception": caught})

    async with abused(tmp_path) as (_, terminal):
        for number in range(5):
            told(ZeroDivisionError(number))
            told(KeyError(number))
    first, second, *rest = terminal.lines
    assert first.startswith("it failed")
    assert "ZeroDivisionError: 0" in first
    assert "KeyError: 0" in second
    assert [line.splitlines() for line in rest] == [["it failed (and 4 more of these)"]] * 2


async def test_what_is_under_way_at_the_end_is_given_up_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "GRACE", 1)
    async with abused(tmp_path) as (port, terminal):
        head = request("POST /works/purge HTTP/1.1", "Content-Type: application/json", "Content-Length: 100")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET /status HTTP/1.1") + head)
        assert await reader.read(5) == b"HTTP/"  # and the second is waited for
    writer.close()
    assert not [line for line in terminal.lines if "Traceback" in line]


# our own lines --------------------------------------------------------------------------------------------


async def test_wrong_tokens_are_told_once_a_minute_wherever_they_come_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(loglimit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = app(Cue(), token=TOKEN)

    async def tries(*peers: str) -> None:
        for peer in peers:
            transport = httpx.ASGITransport(made, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asker:
                answer = await asker.get("/status", headers={"Authorization": "Bearer no"})
                assert answer.status_code == 401

    await tries("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    now[0] += 100
    await tries("10.0.0.4", "10.0.0.5")
    assert caplog.messages == [
        "dashboard: a wrong token from 10.0.0.1",
        "dashboard: a wrong token from 10.0.0.4 (and 3 more of these)",
    ]


def test_what_is_not_logged_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = LogLimit()
    caplog.set_level("ERROR", "runcue")
    limit.warning("said %s", 1)
    caplog.set_level("WARNING", "runcue")
    limit.warning("said %s", 2)
    limit.warning("said %s", 3)
    limit.tell_rest(is_end=True)
    limit.tell_rest(is_end=True)
    assert caplog.messages == ["said 2", "said 2 (and 1 more of these)"]
