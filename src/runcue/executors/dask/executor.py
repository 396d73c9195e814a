"""Runs functions on a Dask cluster: one at an address, or one of its own on this host.

1. The first call opens the connection, on the Cue's own loop. When the connection is lost, the calls that were sent
   over it fail, and the next call opens another. Without an address this executor starts its own cluster (cluster.py)
   together with the connection, and closes it at its own end.
2. A function begins when a worker asks and is told "go" (worker.py), which happens once for each call. At that moment
   the call is checked: if it comes too late it does not begin, and no function is called twice.
3. Dask decides which worker runs a call, and nothing else: no retries, no results kept, no limits of its own.
4. A function cannot be stopped. A call that was given up before it began is taken back; one that has begun runs on,
   and `run` returns no earlier than its end or loss. On a foreign cluster it outlives `close`, and then `run` never
   returns.
5. A worker that dies loses the calls that it had begun (WorkerLost). Calls that it had not begun go to another.
6. A function travels by name where the worker can import it, else by value. A value that cannot be pickled fails its
   own attempt.
"""

from __future__ import annotations

import asyncio
import io
import logging
import pickle
import sys
from collections.abc import Coroutine
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from runcue.core.model.failure import describe
from runcue.errors import ConfigError, Permanent, Unreachable, WorkerLost
from runcue.host.loops import within
from runcue.ports import Clock, Entering, Handler, Registered, TooLate

try:
    import cloudpickle  # type: ignore[import-untyped]
    import dask

    # Importing distributed sets up logging: keep it from that, unless the application configured Dask's logging.
    _is_ours = "distributed" not in sys.modules and not any(
        dask.config.get(name, None) for name in ("logging", "distributed.logging", "logging-file-config")
    )
    with dask.config.set({"logging": {"version": 1, "incremental": True}} if _is_ours else {}):
        import distributed
except ImportError as missing:
    raise ConfigError('executor="dask" needs distributed: pip install "runcue[dask]"') from missing

from runcue.executors.dask import worker as dask_worker
from runcue.executors.dask.cluster import Cluster
from runcue.executors.process.answer_reader import Answer, raising, read_answer, read_error, read_result
from runcue.executors.process.reporter import forward, pack_call

if TYPE_CHECKING:
    from runcue.executors.process_locks import Jobs

START_TIMEOUT = 60.0
"""Seconds that a cluster of our own has to start."""
CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0
LOOK_EVERY = 0.1
"""Seconds between two looks for calls that were given up before they began: nothing announces that."""
NOTED = "__msgspec_cache__"
HERE = "the local Dask cluster"
UNKNOWN = "what it did is unknown, look before it runs again"


if _is_ours:
    logging.getLogger("distributed").addHandler(logging.NullHandler())
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is in the error of a work unit


class Call(msgspec.Struct, eq=False):
    """One function to be called."""

    key: str
    work: Any
    entered: Entering | None
    answer: asyncio.Future[Answer]
    future: Any = None
    """Dask's future of the call."""
    worker: str | None = None
    """The worker that was told "go"; None while the call has not begun."""


class DaskExecutor:
    """Calls functions on the Dask cluster at an address, or on one of its own."""

    can_stop = False
    grace = 0.0

    def __init__(
        self,
        clock: Clock,
        address: str | None,
        size: int,
        jobs: Jobs,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._address = address
        self._size = size
        self._jobs = jobs
        self._numbers = count(1)
        self._connecting: asyncio.Task[Link] | None = None
        self._links: set[Link] = set()
        """Links that have not ended."""

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Call the task's function with a plain Work on a worker, however long that takes."""
        loop = asyncio.get_running_loop()
        if hasattr(loop, "hold"):
            raise Permanent(
                'executor="dask" runs in real time only: test its function by itself, or on a real loop'
            )
        body = _packed(work, task.call)
        link = await self._linked()
        key = f"runcue:{work.task}-{work.id}-{work.attempt}-{uuid4().hex}"
        call = Call(key, work, entered, loop.create_future())
        try:
            link.send(call, body)
            settle = await call.answer
        finally:
            link.forget(call)
        return settle()

    async def close(self) -> None:
        """Close the connection, and end a cluster of our own, even if functions run there."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()  # no effect on one that is done
            await asyncio.wait([connecting])
        links = list(self._links)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.over for link in links])

    async def _linked(self) -> Link:
        """The connection; calls that need it at the same time wait for one attempt to connect."""
        if self._connecting is None or _is_over(self._connecting):
            self._connecting = asyncio.create_task(self._connect(), name="runcue dask")
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Link:
        for link in list(self._links):
            link.lose()
        address, place, cluster = self._address, f"the Dask scheduler at {self._address}", None
        if address is None:
            token = f"dask-{next(self._numbers)}"
            cluster, place = Cluster(asyncio.get_running_loop(), self._size, self._jobs, token), HERE
        try:
            if cluster is not None:
                async with asyncio.timeout(START_TIMEOUT):
                    address = await cluster.address
            client = await _client(str(address), self._connect_timeout)
        except BaseException as error:
            if cluster is not None:
                await cluster.close()
            if isinstance(error, Exception):  # the address may be that of any other program
                said = f"cannot reach {place} ({describe(error)}): nothing of it was done"
                raise Unreachable(said) from error
            raise
        link = Link(self._clock, client, place, cluster)
        self._links.add(link)
        link.over.add_done_callback(lambda _: self._links.discard(link))
        return link


def _is_over(connecting: asyncio.Task[Link]) -> bool:
    """Whether connecting failed, or the connection is lost."""
    if not connecting.done():
        return False
    return connecting.cancelled() or connecting.exception() is not None or connecting.result().is_lost()


async def _client(address: str, timeout: float) -> Any:
    """A connected client; one that cannot connect is closed."""
    make: Any = distributed.Client
    client = make(address, asynchronous=True, set_as_default=False, timeout=timeout, name="runcue")
    try:
        async with asyncio.timeout(timeout):
            return await client
    except BaseException:
        await _closed(client)
        raise


async def _closed(client: Any) -> None:
    """Close a client, also when the scheduler does not answer."""
    try:
        async with within(CLOSE_TIMEOUT):
            await client._close(fast=True)
    except (TimeoutError, OSError):
        comm = client.scheduler_comm
        if comm is not None:
            comm.abort()
        await client.rpc.close()


class Link:
    """A connection to a scheduler, and the calls that were sent over it."""

    def __init__(self, clock: Clock, client: Any, place: str, cluster: Cluster | None) -> None:
        self._clock = clock
        self._client = client
        self._place = place
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._topic = f"runcue-{uuid4().hex}"
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_looking = False
        self._is_broken = False
        self._leaving = asyncio.Event()
        self.over = self._loop.create_task(self._stay(), name="runcue dask")
        """Done when the connection is closed and a cluster of our own has ended."""
        client.subscribe_topic(self._topic, self._on_report)
        client.subscribe_topic("all", self._on_worker_event)

    def send(self, call: Call, body: bytes) -> None:
        """Submit a call to Dask, which chooses a worker."""
        self._calls[call.key] = call
        submit = self._client.submit
        call.future = submit(
            dask_worker.call, self._topic, call.key, body, key=call.key, pure=False, retries=0
        )
        self._spawn(self._await_answer(call))
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_EVERY, self._look)

    def forget(self, call: Call) -> None:
        """Drop a call that is over or given up: if it has not begun it never will, and Dask keeps no result of it."""
        del self._calls[call.key]
        if call.future is not None and not self.is_lost():
            self._spawn(self._take_back(call.future))

    def is_lost(self) -> bool:
        """True when the connection to the scheduler is gone."""
        return self._leaving.is_set() or self._client.status != "running"

    def lose(self) -> None:
        """Treat the connection as broken: its calls fail, once a cluster of our own has ended."""
        if not self._leaving.is_set():
            self._is_broken = True
            self._leaving.set()

    def close(self) -> None:
        """Close the connection."""
        self._leaving.set()

    async def _stay(self) -> None:
        """Wait until the connection is closed or lost, or the loop ends; then close everything."""
        try:
            await self._leaving.wait()
        finally:
            self._leaving.set()
            await self._end()

    async def _end(self) -> None:
        calls = list(self._calls.values())
        why = f"the connection to {self._place} was {'lost' if self._is_broken else 'closed'}"
        for call in calls:
            if call.worker is None:
                said = f"{why} before it began: nothing of it was done"
                self._settle(call, raising(Unreachable(said)))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await _closed(self._client)
        if self._cluster is not None:
            await self._cluster.close()
        # On a foreign cluster the calls run on after close(), which must not look like an end.
        if self._is_broken or self._cluster is not None:
            for call in calls:
                self._settle(call, raising(Unreachable(f"{why} while it ran: {UNKNOWN}")))

    # what comes of a call --------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine, name="runcue dask")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _settle(self, call: Call, answer: Answer) -> None:
        if not call.answer.done():
            call.answer.set_result(answer)

    async def _await_answer(self, call: Call) -> None:
        try:
            body = await call.future.result()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (Dask has many exceptions for a missing result)
            if call.key not in self._calls or self._leaving.is_set():
                return  # no `run` waits for it, or `_end` tells it why
            if isinstance(error, distributed.client.FutureCancelledError) and self.is_lost():
                self.lose()
            else:
                self._settle(call, raising(_not_run(error)))
            return
        if body[:1] == dask_worker.REFUSED:  # a call that the owner refused is settled already
            self._settle(call, raising(TooLate()))
            return
        reading = read_result if body[:1] == dask_worker.RESULT else read_error
        read_answer(self._loop, reading, memoryview(body)[1:], partial(self._settle, call))

    async def _take_back(self, future: Any) -> None:
        try:
            await future.cancel()
        except (OSError, distributed.client.FutureCancelledError):
            return  # the scheduler is gone, and the call with it

    def _look(self) -> None:
        """Settle calls that were given up before they began, and notice a lost connection."""
        waiting = [call for call in self._calls.values() if call.worker is None]
        for call in waiting:
            if call.work.cancelled:
                self._settle(call, raising(asyncio.CancelledError()))
        if self.is_lost():
            self.lose()
        self._is_looking = bool(self._calls) and not self.is_lost()
        if self._is_looking:
            self._loop.call_later(LOOK_EVERY, self._look)

    # what workers say ------------------------------------------------------------------------------------

    def _on_report(self, event: tuple[float, list[Any]]) -> None:
        what, key, *words = event[1]
        call = self._calls.get(key)
        if what == dask_worker.ASK:
            ticket, worker = words
            self._spawn(self._answer(ticket, self._may_begin(call, worker)))
        elif call is None or call.answer.done():
            return
        elif what == dask_worker.BEGUN:
            if call.entered is not None:
                call.entered(self._clock.now())
        else:
            forward(call.work, *pickle.loads(words[0]))

    def _may_begin(self, call: Call | None, worker: str) -> bool:
        """Whether a call may begin: once, while it is wanted and in time."""
        if call is None or call.answer.done():
            return False
        if call.worker is not None:  # Dask runs the call again, so its first run is lost
            self._settle(call, raising(_lost(call.worker)))
            return False
        if call.work.cancelled:
            self._settle(call, raising(asyncio.CancelledError()))
            return False
        try:
            if call.entered is not None:
                call.entered.check()
        except TooLate as error:
            self._settle(call, raising(error))
            return False
        call.worker = worker
        return True

    async def _answer(self, ticket: str, is_yes: bool) -> None:
        scheduler = self._client.scheduler
        try:
            if not is_yes:
                await scheduler.event_set(name=ticket + dask_worker.NO)
            await scheduler.event_set(name=ticket)
        except (OSError, AttributeError):
            return  # the connection is lost, and `lose` settles the call

    def _on_worker_event(self, event: tuple[float, Any]) -> None:
        said = event[1]
        if not isinstance(said, dict) or said.get("action") != "remove-worker":
            return
        lost = said.get("lost-computed-tasks", ())
        for call in list(self._calls.values()):
            is_its = call.worker is not None and call.worker == said.get("worker")
            if is_its and (call.future.status != "finished" or call.key in lost):
                self._settle(call, raising(_lost(call.worker)))


# --- Words and bytes ------------------------------------------------------------------------------------


def _packed(work: Any, handler: Handler) -> bytes:
    """The call as bytes; raises Permanent when its function or params cannot be pickled."""
    try:
        function = _by_value(handler)
    except Exception as error:
        raise Permanent(
            f"its handler cannot be sent to a Dask worker ({describe(error)}): define it at the top of a module"
        ) from error
    return pack_call(function, work)


def _by_value(handler: Handler) -> bytes:
    """A function as bytes, with the classes that it needs."""
    buffer = io.BytesIO()
    Pickler(buffer).dump(handler)
    return buffer.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """Pickles classes without what msgspec has noted on them, which it notes again where it is missing."""

    def reducer_override(self, value: Any) -> Any:
        """How to pickle a function or a class by value."""
        if isinstance(value, type) and NOTED in vars(value):
            delattr(value, NOTED)
        return super().reducer_override(value)


def _lost(worker: str | None) -> WorkerLost:
    return WorkerLost(f"the Dask worker that ran it died, or was cut off: {worker}")


def _not_run(error: Exception) -> Exception:
    """What to raise in an attempt for which Dask has an error instead of an answer."""
    if isinstance(error, distributed.scheduler.KilledWorker):
        return WorkerLost("the Dask workers that were to run it died before it began")
    if isinstance(error, distributed.client.FutureCancelledError):
        return WorkerLost(f"Dask gave it up ({describe(error)}): {UNKNOWN}")
    return Permanent(
        f"Dask could not run it ({describe(error)}): runcue and Dask have to be installed, in the same versions, "
        "on the scheduler and the workers"
    )
