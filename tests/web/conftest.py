"""Queues to look at, and ways to ask for them: in this process, or over a real connection."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from runcue import Cue, Permanent
from runcue.host.system import sockets
from runcue.web import app
from runcue.web.serving import Server, listen, make_server
from tests.patience import until


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"serving": sockets.new_loop}


TOKEN = "0123456789abcdef-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CANARY = "hunter2canary"
"""A secret that must not turn up anywhere."""
PATIENCE = 300.0
"""Seconds after which something hangs; a busy machine takes its time for all else."""


def client(made: ASGIApp, **options: Any) -> httpx.AsyncClient:
    """A client in this process, with the token unless other headers are given."""
    options = {"headers": BEARER, "base_url": "http://127.0.0.1"} | options
    return httpx.AsyncClient(transport=httpx.ASGITransport(made), **options)


async def comes_in(asker: httpx.AsyncClient) -> None:
    """See that there is room for one more, once those who left are gone."""
    for _ in range(500):
        async with asker.stream("GET", "/live") as answer:
            if answer.status_code == 200:
                return
    raise AssertionError("there is no room")


def prepared(path: str | None = None) -> Cue:
    """A Cue with a service and tasks: one that fails when it is told to, an echo, and one that never ends."""
    cue = Cue(path)
    cue.service("api", rate="1000/min", concurrent=5, circuit_threshold=1000)

    @cue.task(uses="api")
    async def call(work: Any) -> dict[str, Any]:
        if "fail" in work.params:
            raise Permanent(f"{work.params['fail']} at postgres://user:{CANARY}@host/db")
        return {"page": 1, "token": CANARY}

    @cue.task
    async def echo(work: Any) -> Any:
        return work.params["text"]

    @cue.task
    async def hang(work: Any) -> None:
        await asyncio.Event().wait()

    return cue


async def fill(cue: Cue) -> dict[str, str]:
    """Some work in each state; ids by a name."""
    secrets = {"password": CANARY, "url": f"https://me:{CANARY}@example.com/x", "page": 7}
    ids: dict[str, str] = {
        "done": await cue.submit("call", params=secrets),
        "dead": await cue.submit("call", params={"fail": "no page 12"}),
        "dead2": await cue.submit("call", params={"fail": "no page 13"}),
    }
    for work_id in ids.values():
        await cue.wait(work_id, PATIENCE)
    ids["later"] = await cue.submit("call", delay=3600)
    ids["needs"] = await cue.submit("call", depends_on=[ids["later"], ids["done"]])
    ids["last"] = await cue.submit("call", depends_on=[ids["needs"]])
    ids["gone"] = await cue.submit("call", delay=3600)
    await cue.cancel(ids["gone"])
    await cue.schedule("nightly", "call", cron="0 3 * * *", tz="Europe/Zurich", params=secrets)
    return ids


class Stage:
    """A queue with some work in it, and its dashboard."""

    def __init__(self, made: ASGIApp, cue: Cue, ids: dict[str, str], path: Path | None) -> None:
        self.app = made
        self.cue = cue
        self.ids = ids
        self.path = path

    def digest(self) -> str:
        """What the files of the queue hold."""
        whole = hashlib.sha256()
        for path in sorted(self.path.parent.iterdir()) if self.path is not None else []:
            if path.is_file() and not path.name.endswith("-shm"):  # that is where readers take their marks
                whole.update(path.name.encode() + path.read_bytes())
        return whole.hexdigest()


@asynccontextmanager
async def staged(kind: str, folder: Path, **options: Any) -> AsyncIterator[Stage]:
    """A stage whose dashboard looks at a Cue in `memory`, at one with a `file`, or `outside` at the file alone."""
    path = None if kind == "memory" else folder / "queue" / "q.db"
    if path is not None:
        path.parent.mkdir()
    cue = prepared(None if path is None else str(path))
    async with cue:
        ids = await fill(cue)
        made = app(str(path) if kind == "outside" else cue, **{"token": TOKEN, **options})
        async with made.router.lifespan_context(made):
            yield Stage(made, cue, ids, path)
    await cue.close()


@pytest.fixture(params=["memory", "file", "outside"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(request.param, tmp_path) as found:
        yield found


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged("memory", tmp_path) as found:
        yield found


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged("outside", tmp_path) as found:
        yield found


@asynccontextmanager
async def served(path: Path, **options: Any) -> AsyncIterator[tuple[Server, int]]:
    """The dashboard of a file on a port of this machine."""
    listener = listen("127.0.0.1", 0, has_token=True)
    server, *_ = make_server(path, listener, token=TOKEN, **options)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE)
        listener.close()
