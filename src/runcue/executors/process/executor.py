"""Functions in worker processes, each of which can be ended without touching another.

The owner starts one keeper process, and the keeper forks the workers (keeper.py, worker.py, protocol.py); on Windows
it starts each by itself (spawner.py). Rules here:

- All messages go through sockets that the loop watches. The only thread starts the keeper and waits for its end.
- A worker is started when a call finds none idle and there are fewer than `size`; it is kept and used again.
- A worker has at most one call. It is free when its answer has arrived, and gone when the keeper reports that: `run`
  returns, or raises its cancellation, no earlier.
- A call that a worker had not begun when it died is sent to another worker. A call that it had begun is `WorkerLost`.
- Functions travel by name, once to each worker. A value that cannot be pickled fails its own attempt.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias

import msgspec

from runcue.errors import WorkerLost
from runcue.executors.process import protocol
from runcue.executors.process.answer_reader import Answer, raising, read_answer, read_error, read_result
from runcue.executors.process.functions import main_module, not_started, pickled
from runcue.executors.process.reporter import forward, pack_call
from runcue.executors.process.sockets import NO_SIGNAL, Sockets, add, close_all, close_one
from runcue.executors.process.worker import refuse_while_importing
from runcue.host.interpreter import search_path
from runcue.host.loops import hold
from runcue.host.system import processes, wake
from runcue.ports import Clock, Entering, Handler, Registered, TooLate

CHUNK = 256 * 1024


class Keeper(Protocol):
    """What starts and ends the workers of a pool: a process of its own (keeper_link.py), or a job for each."""

    ended: asyncio.Future[None]
    is_lost: bool
    """True from when it takes no more orders."""

    def order(
        self, what: bytes, number: int, grace: float = 0.0, channel: socket.socket | None = None
    ) -> None:
        """Send an order; a channel that goes with it is closed on this side."""
        ...

    def awake(self, number: int, pid: int) -> None:
        """That worker has reported with its pid."""
        ...

    def gone(self, pid: int) -> None:
        """The worker with that pid is gone."""
        ...


Heard: TypeAlias = Callable[[bytes, int, int], None]
"""Takes in what became of a worker: GONE or NOT_STARTED, its number, and its exit code or an errno."""
Lost: TypeAlias = Callable[[Any, str | OSError], None]
"""Takes in that a keeper is gone, and why."""
MakeKeeper: TypeAlias = Callable[[asyncio.AbstractEventLoop, int, Sockets, Heard, Lost], Keeper]
"""Starts a keeper, the number of which no other has; OSError when the system has no room for it."""


class Call(msgspec.Struct, eq=False):
    """One function to be called."""

    number: int
    key: int
    """The number under which workers know the function."""
    body: bytes
    work: Any
    entered: Entering | None
    answer: asyncio.Future[Answer]
    worker: Worker | None = None
    has_begun: bool = False


class Worker(msgspec.Struct, eq=False):
    """One worker process, from its owner."""

    number: int
    keeper: Keeper
    channel: socket.socket
    gone: asyncio.Future[None]
    pid: int = 0
    call: Call | None = None
    imported: set[int] = msgspec.field(default_factory=set)
    is_ending: bool = False
    has_answered: bool = False
    incoming: bytearray = msgspec.field(default_factory=bytearray)
    outgoing: deque[memoryview] = msgspec.field(default_factory=deque)


class ProcessExecutor:
    """Calls functions in a pool of worker processes."""

    can_stop = True

    def __init__(self, clock: Clock, size: int, grace: float, make_keeper: MakeKeeper) -> None:
        refuse_while_importing()
        self._clock = clock
        self._size = size
        self.grace = grace
        self._make_keeper = make_keeper
        self._numbers = count(1)
        self._functions: dict[int, tuple[Handler, int, bytes]] = {}
        self._workers: dict[int, Worker] = {}
        self._idle: list[Worker] = []
        self._waiting: deque[Call] = deque()
        self._keeper: Keeper | None = None
        self._sockets: Sockets = set()
        # The processes end also when a pool is collected that was never closed.
        weakref.finalize(self, close_all, self._sockets)

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Call the task's function with a plain Work in a worker, however long that takes."""
        loop = asyncio.get_running_loop()
        call = self._packed(work, task.call, entered, loop.create_future())
        release = hold(loop)  # virtual time stands still meanwhile
        try:
            self._waiting.append(call)
            self._dispatch()
            settle = await call.answer
        except asyncio.CancelledError:
            await self._give_up(call)
            raise
        finally:
            release()
        return settle()

    async def close(self) -> None:
        """End all workers; functions that still run have `LAST_GRACE` seconds."""
        for call in list(self._waiting):
            call.answer.cancel()
        # A keeper that was killed may still have workers.
        keepers = {worker.keeper for worker in self._workers.values()}
        if self._keeper is not None:
            keepers.add(self._keeper)
        if not keepers:
            return
        for worker in self._workers.values():
            worker.is_ending = True
            self._send(worker, protocol.QUIT, 0)
        self._idle.clear()
        for keeper in keepers:
            keeper.order(protocol.CLOSE, 0)
        release = hold(asyncio.get_running_loop())
        try:
            ended = [keeper.ended for keeper in keepers]
            await asyncio.wait(ended, timeout=protocol.LAST_GRACE + 2 * protocol.GIVE_UP_AFTER)
        finally:
            release()

    # calls ------------------------------------------------------------------------------------------------

    def _packed(
        self, work: Any, handler: Handler, entered: Entering | None, answer: asyncio.Future[Any]
    ) -> Call:
        """The call as bytes; raises Permanent when its function or params cannot be pickled."""
        if id(handler) not in self._functions:
            self._functions[id(handler)] = handler, next(self._numbers), pickled(handler)
        key = self._functions[id(handler)][1]
        return Call(next(self._numbers), key, pack_call(key, work), work, entered, answer)

    def _dispatch(self) -> None:
        """Give waiting calls to idle workers, or to new ones while there are fewer than `size`."""
        while self._waiting and (self._idle or len(self._workers) < self._size):
            if self._idle and self._idle[-1].keeper.is_lost:
                self._idle.pop()  # the worker dies with its keeper
                continue
            call = self._waiting.popleft()
            try:
                worker = self._idle.pop() if self._idle else self._start()
            except OSError as error:
                self._settle(call, raising(not_started(error)))
                continue
            worker.call, call.worker = call, worker
            if call.key in worker.imported:
                self._begin(worker, call)
            else:
                function = next(data for _, key, data in self._functions.values() if key == call.key)
                self._send(worker, protocol.FUNCTION, call.key, function)

    def _begin(self, worker: Worker, call: Call) -> None:
        """Send the call to a worker that has imported its function: nothing slow is left to do before it begins."""
        if call.entered is not None:
            try:
                call.entered.check()
            except TooLate as error:
                self._free(worker)
                self._settle(call, raising(error))
                return
        self._send(worker, protocol.CALL, call.number, call.body)

    def _free(self, worker: Worker) -> None:
        worker.call = None
        self._idle.append(worker)

    def _settle(self, call: Call, answer: Answer) -> None:
        if not call.answer.done():
            call.answer.set_result(answer)

    async def _give_up(self, call: Call) -> None:
        """Stop a call that was cancelled; return when its function certainly does not run."""
        if call in self._waiting:
            self._waiting.remove(call)
        worker = call.worker
        if worker is None or worker.call is not call:
            return
        if not worker.is_ending:
            worker.is_ending = True
            self._send(worker, protocol.QUIT, 0)
            worker.keeper.order(protocol.STOP, worker.number, self.grace)
        while not worker.gone.done():
            try:
                await asyncio.shield(worker.gone)
            except asyncio.CancelledError:
                continue  # the process has to be gone first, however often this is cancelled

    # workers ----------------------------------------------------------------------------------------------

    def _start(self) -> Worker:
        """Order a worker from the keeper; frames can be sent to it at once."""
        loop = asyncio.get_running_loop()
        hello = pickle.dumps((search_path(), sys.argv, os.getcwd(), main_module()))  # noqa: PTH109 (as text)
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        if self._keeper is None or self._keeper.is_lost:
            try:
                self._keeper = self._make_keeper(loop, number, self._sockets, self._heard, self._keeper_lost)
            except OSError:
                ours.close()
                theirs.close()
                raise
        worker = Worker(number, self._keeper, ours, loop.create_future())
        add(ours, self._sockets)
        self._workers[number] = worker
        wake.watcher(loop).add_reader(ours, self._read, worker)
        worker.keeper.order(protocol.START, number, channel=theirs)
        self._send(worker, protocol.HELLO, 0, hello)
        return worker

    def _heard(self, what: bytes, number: int, value: int) -> None:
        """Take in a report of the keeper about a worker."""
        worker = self._workers.get(number)
        if worker is None:
            return
        if what == protocol.NOT_STARTED:
            self._gone(worker, not_started(OSError(value, os.strerror(value))))
        else:
            self._gone(worker, WorkerLost(f"the process that ran it died: {processes.cause_of_death(value)}"))

    def _keeper_lost(self, keeper: Keeper, reason: str | OSError) -> None:
        """Settle the calls of a keeper that is gone, and with it its workers and all that they started."""
        if self._keeper is keeper:
            self._keeper = None
        text = f"the process that ran it died: {reason}" if reason else "the pool was closed while it ran"
        for worker in [worker for worker in self._workers.values() if worker.keeper is keeper]:
            self._gone(worker, not_started(reason) if isinstance(reason, OSError) else WorkerLost(text))

    def _gone(self, worker: Worker, reason: Exception) -> None:
        """Settle the call of a worker that is gone, with all that it started; start what now has room."""
        if worker.gone.done():
            return
        while self._read(worker):
            pass  # its last frames
        watcher = wake.watcher(worker.gone.get_loop())
        watcher.remove_reader(worker.channel)
        watcher.remove_writer(worker.channel)
        close_one(worker.channel, self._sockets)
        worker.keeper.gone(worker.pid)
        del self._workers[worker.number]
        if worker in self._idle:
            self._idle.remove(worker)
        worker.gone.set_result(None)
        call = worker.call
        if call is not None:
            if worker.has_answered and not (call.has_begun or worker.is_ending):
                call.worker = None  # the worker died before it received this call: nothing of it was done
                self._waiting.appendleft(call)
            else:
                self._settle(call, raising(reason))
        self._dispatch()

    # the channel ------------------------------------------------------------------------------------------

    def _send(self, worker: Worker, what: bytes, number: int, body: bytes = b"") -> None:
        worker.outgoing.append(memoryview(protocol.FRAME.pack(what, number, len(body)) + body))
        if len(worker.outgoing) == 1:
            self._write(worker)

    def _write(self, worker: Worker) -> None:
        """Send frames until the channel is full; the loop calls this again when it has room."""
        watcher = wake.watcher(worker.gone.get_loop())
        outgoing = worker.outgoing
        try:
            while outgoing:
                sent = worker.channel.send(outgoing[0], NO_SIGNAL)
                outgoing[0] = outgoing[0][sent:]
                if not outgoing[0]:
                    outgoing.popleft()
        except BlockingIOError:
            watcher.add_writer(worker.channel, self._write, worker)
            return
        except OSError:
            outgoing.clear()  # the worker is dead: the keeper will report its end
        watcher.remove_writer(worker.channel)

    def _read(self, worker: Worker) -> bool:
        """Read some of a worker's frames; True if there may be more."""
        try:
            chunk = worker.channel.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            # The worker is dead or dying: the keeper will report its end.
            wake.watcher(worker.gone.get_loop()).remove_reader(worker.channel)
            return False
        worker.incoming += chunk
        while len(worker.incoming) >= protocol.FRAME.size:
            what, number, size = protocol.FRAME.unpack_from(worker.incoming)
            if len(worker.incoming) < protocol.FRAME.size + size:
                break
            frame, worker.incoming = worker.incoming, worker.incoming[protocol.FRAME.size + size :]
            self._take_in(
                worker, what, number, memoryview(frame)[protocol.FRAME.size : protocol.FRAME.size + size]
            )
        return True

    def _take_in(self, worker: Worker, what: bytes, number: int, body: memoryview) -> None:
        call = worker.call
        if what == protocol.AWAKE:
            worker.pid = number
            worker.keeper.awake(worker.number, number)
            return
        if what == protocol.IMPORTED:
            worker.imported.add(number)
            if call is not None and call.key == number and not worker.is_ending:
                self._begin(worker, call)
                self._dispatch()
            return
        if call is None or call.number != number or worker.is_ending:
            return
        if what == protocol.BEGUN:
            call.has_begun = True
            if call.entered is not None:
                call.entered(self._clock.now())
        elif what == protocol.SAID:
            forward(call.work, *pickle.loads(body))
        else:
            worker.has_answered = True
            self._free(worker)
            reading = read_result if what == protocol.RESULT else read_error
            read_answer(call.answer.get_loop(), reading, body, partial(self._settle, call))
            self._dispatch()
