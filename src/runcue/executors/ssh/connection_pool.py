"""The SSH connections of one executor, and the thread with the loop that they live in."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import asyncssh

from runcue.errors import BadCommand, CommandFailed, Unreachable, quoted
from runcue.executors.ssh.connection import Connection, known_hosts, reason_of, spoken
from runcue.executors.ssh.remote_command import UNKNOWN, RemoteCommand, Result
from runcue.executors.ssh.target import Place, place_of

Jump = asyncssh.SSHClientConnection

SESSIONS = 10
"""Commands on one connection, unless the host allows fewer: the default of OpenSSH."""
TRIES = 5
MOST_JUMPS = 8
ALIVE_EVERY = 15.0
"""Seconds of silence after which the host is asked for a sign of life; the third one in vain ends the connection."""
CLOSE_PATIENCE = 2.0
"""Seconds that connections have to close."""
BATCH: Mapping[str, Any] = {"config": (), "password_auth": False, "kbdint_auth": False}


class OwnLoop(asyncio.SelectorEventLoop):
    """A loop without a thread pool: a blocking call gets a daemon thread, which does not delay the program's end."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function in a new daemon thread."""
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()  # so that it cannot be cancelled

        def call() -> None:
            try:
                outcome.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 (it is the answer)
                outcome.set_exception(error)

        threading.Thread(target=call, name="runcue-ssh-call", daemon=True).start()
        return asyncio.wrap_future(outcome, loop=self)


class ConnectionPool:
    """Shared connections and the thread they live in. Its public methods are for other threads."""

    def __init__(self, grace: float, options: Mapping[str, Any], patience: float, keep_idle: float) -> None:
        self.ended: Future[None] = Future()
        self._grace = grace
        self._options = options
        self._patience = patience
        self._keep_idle = keep_idle
        self._links: dict[Place, list[Connection]] = {}
        self._limits: dict[Place, int] = {}
        self._all: set[Connection] = set()  # connections that are not closed yet, retired ones too
        self._jobs = 0
        self._is_closing = False
        self._finished = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=OwnLoop)
        self.loop = self._runner.get_loop()
        try:
            threading.Thread(target=self._run, name="runcue-ssh", daemon=True).start()
        except RuntimeError:  # no room for a thread: the attempt fails, and the next one tries again
            self.loop.close()
            raise

    def submit(self, remote: RemoteCommand) -> Future[Result]:
        """Run a command in an empty context: a connection outlives the unit that opened it, with its context."""
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, self._perform(remote), self.loop)

    def close(self) -> Future[bool]:
        """Close idle connections. True when no other is left and the thread ends now; else it ends later."""
        return asyncio.run_coroutine_threadsafe(self._close(), self.loop)

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._finished.wait())
        self.ended.set_result(None)

    async def _close(self) -> bool:
        self._is_closing = True
        idle = [link.connection for link in self._all if not link.in_use and link.connection]
        for link in list(self._all):
            self._retire(link)
        if idle:
            await asyncio.wait(
                [self.loop.create_task(one.wait_closed()) for one in idle], timeout=CLOSE_PATIENCE
            )
            for connection in idle:
                connection.abort()
        if not self._jobs:
            self._finished.set()
        return not self._jobs

    async def _perform(self, remote: RemoteCommand) -> Result:
        remote.task = asyncio.current_task()
        self._jobs += 1
        try:
            for _ in range(TRIES):
                if not remote.is_wanted:
                    raise asyncio.CancelledError
                remote.link = await self._take(remote.place)
                try:
                    if await self._is_sent(remote, remote.link):
                        return await remote.follow(self._grace)
                finally:
                    self._give_back(remote.link)
            raise Unreachable(f"{remote.place.given}: it opens no session. Let fewer units use it at once.")
        finally:
            self._jobs -= 1
            if self._is_closing:
                await self._close()

    async def _is_sent(self, remote: RemoteCommand, link: Connection) -> bool:
        """Send the command; False when it was not sent and should be tried on another connection."""
        name, seconds, connection = remote.place.given, self._patience, link.opening.result()
        if remote.entered is not None:
            remote.entered.check()  # connecting may have taken a while
        remote.is_opening = True
        opening = self.loop.create_task(connection.create_session(lambda: remote, **remote.request))
        await asyncio.wait([opening], timeout=seconds)
        remote.is_opening = False
        error = opening.exception() if opening.done() else TimeoutError(f"no answer within {seconds:g} s")
        if error is None:
            return True
        if not opening.done():
            opening.cancel()
            self._retire(link)
        if remote.channel is not None:
            remote.channel.close()
            if link.is_retired:
                raise Unreachable(f"{name}: cut off as the command was sent ({spoken(error)}). {UNKNOWN}")
            raise CommandFailed(f"refused: {name} runs no commands for this user. Check its sshd settings.")
        if link.is_retired and link.has_served:
            return False  # the connection died while it was idle
        if link.in_use > 1 and not link.is_retired:
            # The host allows no more sessions on one connection than are open now.
            self._limits[link.place] = max(1, link.running)
            return False
        raise Unreachable(f"{name}: it opens no session ({spoken(error)}). Check its sshd settings.")

    async def _take(self, place: Place) -> Connection:
        """A connection with room for one more command; the first command opens it, the others wait for that."""
        limit = self._limits.get(place, SESSIONS)
        links = self._links.setdefault(place, [])
        link = next((link for link in links if link.in_use < limit), None)
        if link is None:
            link = Connection(place, self._lost)
            link.opening = self.loop.create_task(self._connect(link))
            links.append(link)
            self._all.add(link)
        link.in_use += 1
        if link.timer is not None:
            link.timer.cancel()
        try:
            await asyncio.wait([link.opening])
            link.opening.result()
        except BaseException as error:
            self._give_back(link)
            if isinstance(error, Unreachable):  # a fresh exception for each command that waited
                raise Unreachable(str(error)) from error
            raise
        return link

    def _give_back(self, link: Connection) -> None:
        """End the use of a connection by one command; an idle connection is closed after a while."""
        link.in_use -= 1
        link.has_served = True
        if link.in_use:
            return
        if link.is_retired or not link.opening.done():
            self._retire(link)
        else:
            link.timer = self.loop.call_later(self._keep_idle, self._retire, link)

    def _retire(self, link: Connection) -> None:
        """Give a connection to no more commands, and close it when it is idle."""
        if not link.is_retired:
            link.is_retired = True
            links = self._links[link.place]
            links.remove(link)
            if not links:
                del self._links[link.place]
                self._limits.pop(link.place, None)
        if not link.in_use:
            link.opening.cancel()
            if link.connection is not None:
                link.connection.close()

    def _lost(self, link: Connection) -> None:
        self._all.discard(link)
        self._retire(link)

    async def _connect(self, link: Connection) -> asyncssh.SSHClientConnection:
        way, link.patience = [link], self._patience
        try:
            async with asyncio.timeout(self._patience) as limit:
                return await self._reach(way, None, limit)
        except BaseException as error:
            self._lost(link)
            # A TimeoutError is an OSError; NotImplementedError comes of a ProxyCommand on Windows.
            if isinstance(error, (OSError, asyncssh.Error, ValueError, NotImplementedError)):
                raise Unreachable(f"{_named(way)}: {reason_of(error, way[-1], way[0].patience)}") from error
            raise

    async def _reach(self, way: list[Connection], jump: Jump | None, limit: asyncio.Timeout) -> Jump:
        """Connect to the last host of `way`, through `jump` or the config's jump hosts; all are checked alike."""
        link = way[-1]
        asked = {**BATCH, **self._options, **link.place.asked}
        found = await asyncssh.SSHClientConnectionOptions.construct(**asked)
        if len(way) == 1 and found.connect_timeout:
            link.patience = found.connect_timeout
            limit.reschedule(self.loop.time() + link.patience)
        link.known = await self.loop.run_in_executor(None, known_hosts, found.known_hosts)
        try:
            for place in jumps(found.tunnel, link.place) if jump is None else ():
                if len(way) > MOST_JUMPS:
                    raise ValueError("ProxyJump names too many hosts, or goes round in a circle")
                way.append(Connection(place, _forget))
                jump = await self._reach(way, jump, limit)
                way.pop()
            asked |= {"known_hosts": link.known, "client_factory": lambda: link, "connect_timeout": None}
            asked["tunnel"] = (
                jump  # always given: else asyncssh would open the jump hosts of the config by itself
            )
            if not found.keepalive_interval:
                asked["keepalive_interval"] = ALIVE_EVERY
            made = await asyncssh.connect(**asked)
        except BaseException:
            if jump is not None:
                jump.close()
            raise
        made.set_tunnel(jump)  # the jump host's connection closes with this one
        return made


def jumps(found: object, place: Place) -> list[Place]:
    """The hosts that ProxyJump names, first to last, without the target itself, which `Host *` names, too."""
    if found is None or found == "none":
        return []
    try:
        places = [place_of({"host": name.strip()}) for name in str(found).split(",")]
    except BadCommand:
        raise ValueError(f"ProxyJump {quoted(found)} names something that is not a host") from None
    return [one for one in places if one.host != place.host]


def _named(way: list[Connection]) -> str:
    names = [link.place.given for link in way]
    return ": jump host ".join(names)


def _forget(link: Connection) -> None:
    """Do nothing: the pool keeps no list of jump hosts."""
