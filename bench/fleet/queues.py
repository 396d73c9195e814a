"""The queues of a fleet, each with ten places in a process and a submit for each unit.

runcue: `max_running=10`, and one service for all that never binds. pgqueuer: at most ten picked in a process, in
batches of five (it wants twice a batch), on uvloop as its own command runs it. procrastinate: concurrency 10. Who
submits has up to ten connections where the queue takes a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, TypeVar

from bench.peers.part import queue
from runcue import Cue

T = TypeVar("T")

PLACES = 10
PLENTY = 1_000_000
"""Places of a service that never binds."""
CONNECTIONS = 10
"""Of who submits, at most."""
FEW = 3
"""Connections of who runs procrastinate, at most, beside the one that listens."""

Run = Callable[[], Awaitable[None]]
Submit = Callable[[int], Awaitable[Any]]
Opened = Callable[[str, Run | None], Any]


@asynccontextmanager
async def _runcue(where: str, run: Run | None) -> AsyncIterator[Submit]:
    cue = Cue(where, max_running=PLACES)
    cue.service("outside", concurrent=PLENTY)

    @cue.task("work", uses="outside")
    async def work(unit: Any) -> None:
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
    async with AsyncExitStack() as stack:
        if run is None:
            pool = await stack.enter_async_context(
                asyncpg.create_pool(where, min_size=1, max_size=CONNECTIONS)
            )
            driver = drivers.AsyncpgPoolDriver(pool)
        else:
            driver = drivers.AsyncpgDriver(await asyncpg.connect(where))
        queries = import_module("pgqueuer.queries").Queries(driver)

        async def submit(page: int) -> None:
            await queries.enqueue("work", str(page).encode(), 0)

        if run is None:
            yield submit
            return
        manager = import_module("pgqueuer").PgQueuer(driver)

        @manager.entrypoint("work")  # type: ignore[untyped-decorator] # its types are not here
        async def work(job: Any) -> None:
            await run()

        running = asyncio.create_task(manager.run(batch_size=PLACES // 2, max_concurrent_tasks=PLACES))
        yield submit
        manager.shutdown.set()
        await running


@asynccontextmanager
async def _procrastinate(where: str, run: Run | None) -> AsyncIterator[Submit]:
    module = import_module("procrastinate")
    most = CONNECTIONS if run is None else FEW
    app = module.App(connector=module.PsycopgConnector(conninfo=where, min_size=1, max_size=most))

    @app.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(page: int) -> None:
        assert run is not None
        await run()

    async def submit(page: int) -> None:
        await work.defer_async(page=page)

    async with app.open_async():
        if run is None:
            yield submit
            return
        running = asyncio.create_task(app.run_worker_async(concurrency=PLACES, install_signal_handlers=False))
        yield submit
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
