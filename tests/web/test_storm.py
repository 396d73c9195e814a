"""A thousand who listen at once, and names that lead elsewhere (WB7, WB8)."""

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.queues import make_empty
from tests.web.conftest import BEARER, PATIENCE, TOKEN, Stage, client, comes_in

RUNCUE = "from runcue.cli.main import runcue; runcue()"
MANY = 1000
MEGABYTE = 1 << 20


class Dashboard:
    """`runcue dashboard` under way."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def memory(self) -> int:
        """Bytes that it keeps in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    async def ask(self) -> tuple[int, asyncio.StreamWriter]:
        """The status of one who wants to hear events, and the connection, which stays open.

        Whoever is too slow to ask is cut off, on a busy machine, too: that is 0.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(head.encode())
        try:
            found = re.match(rb"HTTP/1\.1 (\d+)", await reader.readline())
        except ConnectionError:
            found = None
        return 0 if found is None else int(found[1]), writer

    async def storm(self) -> Counter[int]:
        """What a thousand at once are told; then all of them leave without a word."""
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*(self.ask() for _ in range(MANY)))
        for _, writer in answers:
            writer.close()
        return Counter(status for status, _ in answers)


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    path = tmp_path / "q.db"
    await make_empty(path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNCUE, "dashboard", str(path), "--no-browser", "--port", "0", "--token", TOKEN,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    port = None
    async with asyncio.timeout(PATIENCE):
        while port is None:
            line = (await process.stdout.readline()).decode()
            assert line, "it ended"
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            port = None if found is None else int(found[1])
    try:
        yield Dashboard(process.pid, port)
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.communicate()


@pytest.fixture
def many_files(dashboard: Dashboard) -> Iterator[None]:
    """Room for a connection to each of many: as a rule a process has 1,024 files, and may ask for more."""
    import resource  # which not every system has

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if -1 < hard < 2 * MANY:
        pytest.skip(f"no more than {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft if soft < 0 else max(soft, 2 * MANY), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells memory by /proc")
async def test_of_a_thousand_who_listen_a_few_are_served_and_nothing_is_left_of_them(
    dashboard: Dashboard,
) -> None:
    async with httpx.AsyncClient(
        headers=BEARER, base_url=f"http://127.0.0.1:{dashboard.port}", timeout=PATIENCE
    ) as asker:
        first = await dashboard.storm()
        assert first.keys() <= {0, 200, 503}
        assert first[200] <= 10, "they all come from one address"
        await comes_in(asker)
        before = dashboard.memory()
        for _ in range(2):
            assert (await dashboard.storm())[200] <= 10
            await comes_in(asker)
        assert dashboard.memory() < before + 10 * MEGABYTE


# --- Files ----------------------------------------------------------------------------------------

opened: list[str] | None = None


def heard(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and opened is not None and isinstance(arguments[0], (str, bytes)):
        opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(heard)


@contextmanager
def watched() -> Iterator[list[str]]:
    """The names of all files that are opened meanwhile."""
    global opened  # noqa: PLW0603 (a hook cannot be taken back, only told to listen)
    found: list[str] = []
    opened = found
    try:
        yield found
    finally:
        opened = None


NASTY = [
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2fq.db",
    "..%252f..%252f",
    "%2fetc%2fpasswd",
    "..%5c..%5cx",
    "....//x",
]


async def test_no_name_makes_it_open_a_file_elsewhere(outside: Stage) -> None:
    assert outside.path is not None
    home = outside.path.parent
    secret = home.parent / "secret.txt"
    secret.write_text("not yours")
    (home / "q.db.files").mkdir(exist_ok=True)
    (home / "q.db.files" / "link.out").symlink_to(secret)
    async with client(outside.app) as asker:
        await asker.get("/status")
        with watched() as names:
            answers = [
                await asker.get(f"/{path}")
                for name in [*NASTY, "link", "link.out"]
                for path in (f"works/{name}", f"works/{name}/output", f"static/{name}")
            ]
            answers.append(await asker.get(f"/works/{outside.ids['done']}/output?stream=../../secret"))
            answers.append(await asker.get(f"/works/{outside.ids['done']}/output?stream=stdout&attempt=1"))
    assert {answer.status_code for answer in answers} <= {200, 400, 404, 405}
    assert not any("not yours" in answer.text for answer in answers)
    assert [name for name in names if "passwd" in name or "secret" in name or ".." in name] == []
