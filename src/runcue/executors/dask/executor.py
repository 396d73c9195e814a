"""Functions on a Dask cluster: one that runs somewhere, or one of its own on this host.

1. The connection is made by the first call that needs it, on the Cue's own loop. When it is lost, the calls that were
   sent over it fail, and the next one makes another. Without an address the cluster is this executor's
   (cluster.py); it is made anew like a connection, and closed with the executor.
2. A function begins when a worker asks for it and hears "go" (worker.py), which each call hears once. That moment
   is checked and told as everywhere: a call that comes too late does not begin, and no function is called twice.
3. Dask decides which worker runs a call, and nothing else: no retries, no results kept, no limits of its own.
4. A function cannot be stopped. A call that was given up before it began is taken back; one that has begun runs on,
   and `run` returns no earlier than it has ended, or is lost. On a cluster that is not ours it outlives `close`, and
   then `run` does not return at all.
5. A worker that is gone has lost the calls that it had begun (WorkerLost). What it had not begun, another one gets.
6. Functions by name where the worker can import them, else by value. What cannot be pickled fails its own attempt.
"""

from __future__ import annotations

import asyncio
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
from runcue.core.model.record import Work
from runcue.errors import ConfigError, Permanent, Unreachable, WorkerLost
from runcue.host.loops import within
from runcue.ports import Clock, Entering, Handler, Registered, TooLate

try:
    import cloudpickle  # type: ignore[import-untyped]
    import dask

    # Importing it sets up logging, unless the application had a say in that.
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
from runcue.executors.process.reporter import forward

if TYPE_CHECKING:
    from runcue.executors.process_locks import Jobs

FIELDS = Work.__struct_fields__
START_TIMEOUT = 60.0
"""Seconds that a cluster of our own is given to be there."""
CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0
LOOK_EVERY = 0.1
"""Seconds after which calls that have not begun are looked at: whoever gave one up does not say so."""
HERE = "the local Dask cluster"
UNKNOWN = "what it did is unknown, look before it runs again"


if _is_ours:
    logging.getLogger("distributed").addHandler(logging.NullHandler())
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is in the error of a work


class Call(msgspec.Struct, eq=False):
    """One function to be called."""

    key: str
    work: Any
    entered: Entering | None
    answer: asyncio.Future[Answer]
    """What to do in order to return what the function returned, or to raise what it raised."""
    future: Any = None
    """Dask's idea of it."""
    worker: str | None = None
    """Who may call it, from when that was said; it has not begun as long as there is nobody."""


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
        """Those that are not over."""

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Call the task's function with a plain Work on a worker, however long that takes."""
        loop = asyncio.get_running_loop()
        if hasattr(loop, "hold"):
            raise Permanent(
                'executor="dask" runs in real time only: test its function by itself, or on a real loop'
            )
        body = _packed(work, task.handler)
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
        """Let go of the connection, and end a cluster of our own, whatever runs there."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()  # it has no effect on one that is there
            await asyncio.wait([connecting])
        links = list(self._links)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.over for link in links])

    async def _linked(self) -> Link:
        """The connection; all who need it wait for the same one."""
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
            if isinstance(error, Exception):  # what is there may be no scheduler, and say anything
                said = f"cannot reach {place} ({describe(error)}): nothing of it was done"
                raise Unreachable(said) from error
            raise
        link = Link(self._clock, client, place, cluster)
        self._links.add(link)
        link.over.add_done_callback(lambda _: self._links.discard(link))
        return link


def _is_over(connecting: asyncio.Task[Link]) -> bool:
    """True when no connection came of it, or one that is lost."""
    if not connecting.done():
        return False
    return connecting.cancelled() or connecting.exception() is not None or connecting.result().is_lost()


async def _client(address: str, timeout: float) -> Any:
    """A client that is connected, or none that is left behind."""
    make: Any = distributed.Client
    client = make(address, asynchronous=True, set_as_default=False, timeout=timeout, name="runcue")
    try:
        async with asyncio.timeout(timeout):
            return await client
    except BaseException:
        await _closed(client)
        raise


async def _closed(client: Any) -> None:
    """Close a client, also when the scheduler says nothing to that."""
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
        """Done when the connection is closed, and a cluster of our own is gone."""
        client.subscribe_topic(self._topic, self._hears)
        client.subscribe_topic("all", self._hears_of_workers)

    def send(self, call: Call, body: bytes) -> None:
        """Have a function called by whichever worker is free."""
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
        """Nobody waits for this call any more: what has not begun never begins, and no result is kept."""
        del self._calls[call.key]
        if call.future is not None and not self.is_lost():
            self._spawn(self._take_back(call.future))

    def is_lost(self) -> bool:
        """True when the scheduler can no longer be heard."""
        return self._leaving.is_set() or self._client.status != "running"

    def lose(self) -> None:
        """The connection broke: its calls fail, once a cluster of our own is gone."""
        if not self._leaving.is_set():
            self._is_broken = True
            self._leaving.set()

    def close(self) -> None:
        """Let go of the scheduler."""
        self._leaving.set()

    async def _stay(self) -> None:
        """As long as the connection is wanted; then, or when the loop ends, everything is closed."""
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
        if self._is_broken or self._cluster is not None:  # else they run on, which must not look like an end
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
        except Exception as error:  # noqa: BLE001 (Dask says in many ways that it has no result)
            if call.key not in self._calls or self._leaving.is_set():
                return  # nobody waits for it, or they are told why
            if isinstance(error, distributed.client.FutureCancelledError) and self.is_lost():
                self.lose()
            else:
                self._settle(call, raising(_not_run(error)))
            return
        if body[:1] == dask_worker.REFUSED:  # else a call that was refused is settled
            self._settle(call, raising(TooLate()))
            return
        reading = read_result if body[:1] == dask_worker.RESULT else read_error
        read_answer(self._loop, reading, memoryview(body)[1:], partial(self._settle, call))

    async def _take_back(self, future: Any) -> None:
        try:
            await future.cancel()
        except (OSError, distributed.client.FutureCancelledError):
            return  # the scheduler is gone, and has forgotten it

    def _look(self) -> None:
        """Take back what was given up before it began."""
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

    def _hears(self, event: tuple[float, list[Any]]) -> None:
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
        """Once for each call, while somebody wants it and it is in time."""
        if call is None or call.answer.done():
            return False
        if call.worker is not None:  # Dask runs it again, so the first run is lost
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
            return  # the connection is lost, of which everybody hears

    def _hears_of_workers(self, event: tuple[float, Any]) -> None:
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
    """A call as bytes; what cannot be sent to a worker fails here."""
    try:
        function: bytes = cloudpickle.dumps(handler)
    except Exception as error:
        raise Permanent(
            f"its handler cannot be sent to a Dask worker ({describe(error)}): define it at the top of a module"
        ) from error
    try:
        return pickle.dumps((function, tuple(getattr(work, name) for name in FIELDS)))
    except Exception as error:
        raise Permanent(
            f"its params cannot be sent to another process ({describe(error)}): use plain values"
        ) from error


def _lost(worker: str | None) -> WorkerLost:
    return WorkerLost(f"the Dask worker that ran it died, or was cut off: {worker}")


def _not_run(error: Exception) -> Exception:
    """What it means that Dask has an error of its own."""
    if isinstance(error, distributed.scheduler.KilledWorker):
        return WorkerLost("the Dask workers that were to run it died before it began")
    if isinstance(error, distributed.client.FutureCancelledError):
        return WorkerLost(f"Dask gave it up ({describe(error)}): {UNKNOWN}")
    return Permanent(
        f"Dask could not run it ({describe(error)}): runcue and Dask have to be installed, in the same versions, "
        "on the scheduler and the workers"
    )
