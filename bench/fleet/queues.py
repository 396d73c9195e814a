"""The queues of a fleet, each with ten places in a process.

runcue: `max_running=10`, one service for all that never binds, a call of `submit` for each unit. pgqueuer: at most
ten picked in a process, in batches of five (it wants twice a batch), on uvloop as its own command runs it.
procrastinate: concurrency 10. Both peers wake every worker for every call that submits: with one call for each unit
16 workers did about 200 units/s here, busy with nothing but waking. So the peers submit in batches (`Batches`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, TypeVar

from bench.peers.part import queue
from runcue import Cue

T = TypeVar("T")

PLACES = 10
PLENTY = 1_000_000
"""Places of a service that never binds."""
FEW = 3
"""Connections of a process of procrastinate, at most, beside the one that listens."""

Run = Callable[[], Awaitable[None]]
Submit = Callable[[int], Awaitable[Any]]
Opened = Callable[[str, Run | None], Any]


class Batches:
    """Submits of single units that share calls: what comes during one call goes into the next."""

    def __init__(self, submit: Callable[[list[int]], Awaitable[Any]]) -> None:
        self._submit = submit
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def __call__(self, page: int) -> None:
        """Submit one unit; returns when the call that it was part of does."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((page, done))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._submit([page for page, _ in batch])
            except Exception as error:  # noqa: BLE001 (whoever submitted gets it)
                for _, done in batch:
                    done.set_exception(error)
            else:
                for _, done in batch:
                    done.set_result(None)


@asynccontextmanager
async def _runcue(where: str, run: Run | None) -> AsyncIterator[Submit]:
    cue = Cue(where, max_running=PLACES)
    cue.service("outside", concurrent=PLENTY)

    @cue.task("work", uses="outside")
    async def run_one(work: Any) -> None:
        assert run is not None
        await run()

    async def submit(page: int) -> None:
        await cue.submit("work", params={"page": page})

    await cue.count()
    if run is not None:
        cue.start()
    yield submit
    await cue.close()


@asynccontextmanager
async def _pgqueuer(where: str, run: Run | None) -> AsyncIterator[Submit]:
    asyncpg, drivers = import_module("asyncpg"), import_module("pgqueuer.db")
    driver = drivers.AsyncpgDriver(await asyncpg.connect(where))
    queries = import_module("pgqueuer.queries").Queries(driver)

    async def submit(pages: list[int]) -> None:
        await queries.enqueue(["work"] * len(pages), [str(page).encode() for page in pages], [0] * len(pages))

    if run is None:
        yield Batches(submit)
        return
    manager = import_module("pgqueuer").PgQueuer(driver)

    @manager.entrypoint("work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(job: Any) -> None:
        await run()

    running = asyncio.create_task(manager.run(batch_size=PLACES // 2, max_concurrent_tasks=PLACES))
    yield Batches(submit)
    manager.shutdown.set()
    await running


@asynccontextmanager
async def _procrastinate(where: str, run: Run | None) -> AsyncIterator[Submit]:
    module = import_module("procrastinate")
    app = module.App(connector=module.PsycopgConnector(conninfo=where, min_size=1, max_size=FEW))

    @app.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(page: int) -> None:
        assert run is not None
        await run()

    async def submit(pages: list[int]) -> None:
        await work.batch_defer_async(*({"page": page} for page in pages))

    async with app.open_async():
        if run is None:
            yield Batches(submit)
            return
        running = asyncio.create_task(app.run_worker_async(concurrency=PLACES, install_signal_handlers=False))
        yield Batches(submit)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


QUEUES: dict[str, Opened] = {"runcue": _runcue, "pgqueuer": _pgqueuer, "procrastinate": _procrastinate}
PEERS = ("pgqueuer", "procrastinate")


def opened(name: str, where: str, run: Run | None) -> Any:
    """A queue, open, that runs what is there if it is told how; it gives what submits one unit."""
    return QUEUES[name](where, run)


def on_its_loop(name: str, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that a queue is run on."""
    runner: Any = import_module("uvloop").run if "uvloop" in queue(name).NEEDS else asyncio.run
    found: T = runner(main)
    return found
