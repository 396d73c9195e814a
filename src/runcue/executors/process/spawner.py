"""Starts the workers of a pool on Windows, each in a job object of its own, and reports their ends to the owner.

The owner does here what the keeper process does elsewhere. A worker gets its end of the channel through its input. A
thread for each worker starts it, which takes a while, and waits for its end; then its job ends what it started. The
jobs end with this process, however that ends.
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"

import asyncio
import socket
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from runcue.executors.job_objects import Jobs, Started
from runcue.executors.process.protocol import CLOSE, GIVE_UP_AFTER, GONE, LAST_GRACE, NOT_STARTED, START, STOP
from runcue.executors.process.sockets import Sockets
from runcue.host.interpreter import python_command
from runcue.host.loops import later, post_to_loop

if TYPE_CHECKING:
    from runcue.executors.process.executor import Heard, Lost

LOOK_EVERY = 0.005


class Spawner:
    """Starts and ends workers."""

    def __init__(
        self,
        jobs: Jobs,
        loop: asyncio.AbstractEventLoop,
        number: int,
        sockets: Sockets,
        heard: Heard,
        lost: Lost,
    ) -> None:
        """It has no number and no socket of its own."""
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self.is_lost = False
        self._jobs = jobs
        self._heard = heard
        self._lost = lost
        self._channels: dict[int, socket.socket] = {}
        """The other ends of the channels of workers that have not reported yet."""
        self._workers: dict[int, Started | None] = {}
        self._kill_at: dict[int, float] = {}
        self._is_closing = False

    def order(
        self, what: bytes, number: int, grace: float = 0.0, channel: socket.socket | None = None
    ) -> None:
        """Carry out an order; a channel that goes with it is closed on this side."""
        if what == START:
            assert channel is not None
            self._workers[number] = None
            self._channels[number] = channel
            try:
                threading.Thread(
                    target=self._run, args=(number, channel), name="runcue-pool", daemon=True
                ).start()
            except RuntimeError:
                self.loop.call_soon(self._over, NOT_STARTED, number, 11)
        elif what == STOP:
            later(self.loop, grace, partial(self._end, number))
        elif what == CLOSE:
            self._is_closing = True
            for one in self._workers:
                later(self.loop, LAST_GRACE, partial(self._end, one))
            self._conclude()

    def awake(self, number: int, pid: int) -> None:
        """That worker has reported, so it has its end of the channel."""
        self._close_channel(number)

    def gone(self, pid: int) -> None:
        """Nothing: the job of a worker ended before its end was reported."""

    def _end(self, number: int) -> None:
        started = self._workers.get(number)
        if started is not None:
            started.job.end()

    def _run(self, number: int, channel: socket.socket) -> None:
        """Start a worker, and wait for its end and that of everything that it started. In a thread."""
        token = f"pool-{number}"
        try:
            started = self._jobs.start(
                token, python_command(WORK), stdin=subprocess.PIPE, stdout=None, stderr=None
            )
        except OSError as error:
            post_to_loop(self.loop, self._over, NOT_STARTED, number, error.errno or 0)
            return
        post_to_loop(self.loop, self._started, number, started)
        started.send(channel.share(started.pid))
        code = started.wait()
        started.job.end()
        until = time.monotonic() + GIVE_UP_AFTER
        while started.job.running and time.monotonic() < until:
            time.sleep(LOOK_EVERY)
        post_to_loop(self.loop, self._over, GONE, number, code)
        started.close()
        self._jobs.release(token)

    def _started(self, number: int, started: Started) -> None:
        self._workers[number] = started

    def _over(self, what: bytes, number: int, value: int) -> None:
        self._close_channel(number)
        self._workers.pop(number, None)
        self._heard(what, number, value)
        self._conclude()

    def _close_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()

    def _conclude(self) -> None:
        if self._is_closing and not self._workers and not self.ended.done():
            self.is_lost = True
            self._lost(self, "")
            self.ended.set_result(None)


WORK = "from runcue.executors.process.spawner import work; work()"
"""What a worker runs."""


def work() -> None:
    """Be a worker of a pool: the process runs nothing else."""
    from runcue.executors.process.windows_surroundings import Surroundings
    from runcue.executors.process.worker import Server, flush

    channel = socket.fromshare(sys.stdin.buffer.read())
    try:
        Server(channel, Surroundings(channel)).run()
    finally:
        flush()
