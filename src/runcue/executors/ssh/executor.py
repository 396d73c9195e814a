"""Runs commands on other hosts, over SSH connections that are kept and shared.

1. Connections live in one thread with a loop of its own (connection_pool.py): handshakes and floods of output do not
   slow the Cue's loop, names are looked up in daemon threads, and timers are real where the Cue's time is virtual.
2. There is one connection for each (user, host, port). The first unit that needs it opens it; it closes after a while
   without commands. A host that allows too few sessions on one connection gets a second one.
3. The user's ssh config, keys, agent and known_hosts decide. No unknown key is accepted, no password asked for.
4. A command that ran and failed is CommandFailed. Any other failure is Unreachable; once the command was sent, the
   message says that what it did is unknown. A command is never sent twice.
5. A command that is given up gets TERM, after `grace` seconds KILL, and then its channel is closed. The connection
   and the other commands on it go on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from runcue.errors import BadCommand, ConfigError
from runcue.executors.ssh.target import command_of, place_of
from runcue.host.loops import hold, post_to_loop
from runcue.ports import Clock, Entering, Registered

try:
    import asyncssh  # noqa: F401 (what the modules below need)
except ImportError as missing:
    raise ConfigError('executor="ssh" needs asyncssh: pip install "runcue[ssh]"') from missing

from runcue.executors.ssh.connection_pool import ConnectionPool
from runcue.executors.ssh.remote_command import RemoteCommand

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
KEPT_IDLE = 60.0


class SshExecutor:
    """Runs the command that a handler returns on the host that `params["host"]` names.

    `options` go to asyncssh with every connection: for example `config`, `known_hosts`, `client_keys`.
    """

    can_stop = True

    def __init__(
        self,
        clock: Clock,
        grace: float,
        options: Mapping[str, Any] | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        keep_idle: float = KEPT_IDLE,
    ) -> None:
        self._clock = clock
        self.grace = grace
        self._make_pool = partial(ConnectionPool, grace, options or {}, connect_timeout, keep_idle)
        self._pool: ConnectionPool | None = None

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Ask the handler for the command, run it on the host, and wait until it has really ended."""
        place = place_of(work.params)
        if task.command.cwd is not None:
            raise BadCommand("bad_command: cwd= is for commands on this host. Let the command begin with cd.")
        given = task.call(work)
        if inspect.isawaitable(given):
            given = await given
        loop = asyncio.get_running_loop()

        def began() -> None:
            if entered is not None:
                post_to_loop(loop, entered, self._clock.now())

        remote = RemoteCommand(place, command_of(given), task.command, began, partial(work.progress, None))
        remote.entered = entered
        if self._pool is None:
            self._pool = self._make_pool()
        return await _elsewhere(
            self._pool.submit(remote), partial(post_to_loop, self._pool.loop, remote.stop)
        )

    async def close(self) -> None:
        """Close idle connections now, the others when their last command has ended."""
        pool, self._pool = self._pool, None
        if pool is not None and await _elsewhere(pool.close()):
            await _elsewhere(pool.ended)


async def _elsewhere(doing: Future[T], stop: Callable[[], None] | None = None) -> T:
    """Wait for something that the pool's thread does; a cancellation calls `stop` and waits on for its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    release = hold(loop)

    def deliver() -> None:
        release()
        done.set_result(None)

    doing.add_done_callback(lambda _: post_to_loop(loop, deliver))
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            if cancelled is None and stop is not None:
                stop()
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return doing.result()
