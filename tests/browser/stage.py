"""A queue in a file with a live worker, and the dashboard that is served for it, all on one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

import runcue
import runcue.web
from runcue import Cue, Work

TOKEN = "a token for browser tests only"
LINK = f"?token={TOKEN.replace(' ', '%20')}"
"""What follows a dashboard's address for whoever comes in."""


class Server(uvicorn.Server):
    """A server that leaves the signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


class Stage:
    """What a test plays on."""

    def __init__(self, path: Path, cue: Cue) -> None:
        self.path = path
        self.cue = cue
        self.gate = asyncio.Event()
        """Works of `hold` run until it opens."""
        self.mood = "bad"
        """Works of `moody` fail until it is good."""
        self.base = ""

    @property
    def link(self) -> str:
        """The link with the token."""
        return self.base + LINK


def tasks(stage: Stage) -> None:
    """What the worker of a stage can do."""
    cue = stage.cue
    cue.service("api", rate="1000/min", concurrent=5, circuit_threshold=9)
    cue.service("slow", concurrent=1)

    @cue.task("quick", uses="api")
    async def quick(work: Work) -> Any:
        return {"echo": work.params}

    @cue.task("tick")
    async def tick(work: Work) -> None:
        pass

    @cue.task("hold", uses="slow")
    async def hold(work: Work) -> None:
        await stage.gate.wait()

    @cue.task("fail", retry=0)
    async def fail(work: Work) -> None:
        raise ValueError(work.params.get("error", "no luck"))

    @cue.task("moody", retry=0)
    async def moody(work: Work) -> str:
        if stage.mood != "good":
            raise ValueError("not now")
        return "done"

    @cue.task("shell", executor="subprocess", shell=True)
    def shell(work: Work) -> str:
        return str(work.params["script"])


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on that port of this machine, or on a free one; its address."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        server = Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            app.state.end_streams()
            server.should_exit = True
            await running


@asynccontextmanager
async def play(path: Path, **options: Any) -> AsyncIterator[Stage]:
    """A stage with its worker at work; `options` are those of the dashboard."""
    cue = Cue(path)
    stage = Stage(path, cue)
    tasks(stage)
    async with cue:
        await cue.count()
        async with served(runcue.web.app(path, token=TOKEN, **options)) as stage.base:
            yield stage
        stage.gate.set()
    await cue.close()
