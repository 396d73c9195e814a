"""Commands on other hosts, over SSH connections that are kept and shared.

1. Connections live in one thread with a loop of its own: handshakes and floods of output do not hold up the
   Cue's loop, names are looked up in threads of ours, and real timers run where the Cue's time is virtual.
2. There is one connection for each (user, host, port), opened by the first work that needs it and closed after a
   while without work. A host that allows fewer sessions on a connection than are wanted gets a second one.
3. The user's ssh config, keys, agent and known_hosts decide. No unknown key is accepted, no password asked for.
4. A command that ran and ended badly is CommandFailed. Everything else that goes wrong is Unreachable; once the
   command was sent, the message says that what it did is unknown. A command is never sent twice.
5. A command that is given up gets TERM, after `grace` seconds KILL, and then its channel is closed. The
   connection and the other commands on it go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runcue.errors import BadCommand, CommandFailed, ConfigError, Unreachable, quoted
from runcue.executors.command.output import Tail, shown
from runcue.executors.ssh.target import Place, command_of, place_of
from runcue.host.loops import hold, post_to_loop
from runcue.ports import Clock, CommandOptions, Entering, Registered

try:
    import asyncssh
except ImportError as missing:
    raise ConfigError('executor="ssh" needs asyncssh: pip install "runcue[ssh]"') from missing

logger = logging.getLogger("runcue")
T = TypeVar("T")
Result = dict[str, Any]
Began = Callable[[], None]
Tell = Callable[[str], None]
Jump = asyncssh.SSHClientConnection

SESSIONS = 10  # commands on one connection, unless the host allows fewer: what OpenSSH allows
TRIES = 5
MOST_JUMPS = 8
CONNECT_TIMEOUT = 10.0
KEPT_IDLE = 60.0
ALIVE_EVERY = 15.0  # seconds of silence after which the far side is asked if it is there; three are its end
PATIENCE = 2.0  # seconds for a command to die of KILL, and for connections to be closed
QUIET = 1.0  # seconds without output after which a command that has ended is not listened to any more
LINGERING = 30  # such seconds in which it may still say something

BATCH: Mapping[str, Any] = {"config": (), "password_auth": False, "kbdint_auth": False}
USUAL_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
NEW_KEYS = "If the host was set up anew, take out its old keys (ssh-keygen -R) and connect once by hand."
KEY_PROBLEMS = {
    "changed": f"its host key is not the one in known_hosts: somebody may pretend to be that host. {NEW_KEYS}",
    "unknown": "its host key is not in known_hosts. Connect once by hand (ssh), compare the key, accept it.",
}
PLAIN = {"send_env": None, "request_pty": False, "x11_forwarding": False, "encoding": None}
UNKNOWN = "What the command did is unknown: look before it runs again."


class SshExecutor:
    """Runs the command that a handler returns on the host that `params["host"]` names.

    `options` go to asyncssh with every connection: `config`, `known_hosts` and `client_keys` in place of the user's.
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
        self._make_side = partial(Side, grace, options or {}, connect_timeout, keep_idle)
        self._side: Side | None = None

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Ask the handler for the command, run it over there, and wait until it has really ended."""
        place = place_of(work.params)
        if task.command.cwd is not None:
            raise BadCommand("bad_command: cwd= is for commands on this host. Let the command begin with cd.")
        given = task.handler(work)
        if inspect.isawaitable(given):
            given = await given
        loop = asyncio.get_running_loop()

        def began() -> None:
            if entered is not None:
                post_to_loop(loop, entered, self._clock.now())

        remote = Remote(place, command_of(given), task.command, began, partial(work.progress, None))
        remote.entered = entered
        if self._side is None:
            self._side = self._make_side()
        return await _elsewhere(
            self._side.submit(remote), partial(post_to_loop, self._side.loop, remote.stop)
        )

    async def close(self) -> None:
        """Close the connections that nobody uses; the others go when their last command has ended."""
        side, self._side = self._side, None
        if side is not None and await _elsewhere(side.close()):
            await _elsewhere(side.ended)


# --- One command over there, and the connection to there ------------------------------------------


class Remote(asyncssh.SSHClientSession[bytes]):
    """A command: what it is, what it says, and how it ends."""

    link: Link
    _over: asyncio.Future[None]
    _gone: asyncio.Future[None]

    def __init__(self, place: Place, command: str, options: CommandOptions, began: Began, tell: Tell) -> None:
        self.place = place
        self.request: dict[str, Any] = {"command": command, "env": dict(options.env or {}), **PLAIN}
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None  # there just before the command is sent
        self.is_wanted = True
        self.is_opening = False  # to be cut off then would leave a session that nobody ends
        self.task: asyncio.Task[Any] | None = None
        self.entered: Entering | None = None
        self._check = options.check
        self._began = began
        self._tell = tell
        self._out, self._err = Tail(), Tail()
        self._chunks = 0
        self._lost: Exception | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The session is open: the command is sent next."""
        self.channel = chan
        self.link.running += 1
        self._over, self._gone = asyncio.Future(), asyncio.Future()

    def session_started(self) -> None:
        """The far side runs it."""
        self._began()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """It said something."""
        self._chunks += 1
        tail = self._out if datatype is None else self._err
        tail.add(data)
        if b"\n" in data and (line := tail.last_line(is_whole=True)):
            self._tell(line)

    def exit_status_received(self, status: int) -> None:
        """It ended by itself."""
        self._over.set_result(None)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """It was killed."""
        self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed: nothing more will be heard."""
        self.link.running -= 1
        self._lost = exc
        self._gone.set_result(None)
        if not self._over.done():
            self._over.set_result(None)

    def stop(self) -> None:
        """Nobody wants it any more."""
        self.is_wanted = False
        if self.task is not None and not self.is_opening:
            self.task.cancel()

    async def follow(self, grace: float) -> Result:
        """Wait for its end, or make an end of it."""
        assert self.channel is not None
        try:
            if not self.is_wanted:
                raise asyncio.CancelledError
            self.channel.write_eof()  # there is no stdin
            await asyncio.wait([self._over])
            for _ in range(LINGERING):  # the rest of its output, unless what it left behind holds that open
                chunks = self._chunks
                await asyncio.wait([self._gone], timeout=QUIET)
                if self._gone.done() or chunks == self._chunks:
                    break
        except asyncio.CancelledError:
            for signal, patience in (("TERM", grace), ("KILL", PATIENCE)):
                if not self._over.done():
                    self.channel.send_signal(signal)
                    await asyncio.wait([self._over], timeout=patience)
            if not self._over.done():
                logger.warning("%s: a command that was given up may still run there", self.place.given)
            raise
        finally:
            self.channel.close()
        return self._outcome(self.channel)

    def _outcome(self, channel: asyncssh.SSHClientChannel[bytes]) -> Result:
        code, signal = channel.get_returncode(), channel.get_exit_signal()
        if code is None:
            how = "the host closed its channel" if self._lost is None else _spoken(self._lost)
            reason = f"{self.place.given}: cut off while the command ran ({how}). {UNKNOWN}"
            raise Unreachable(reason) from self._lost
        result = {"stdout": self._out.text(), "stderr": self._err.text(), "exit_code": code}
        if signal is not None:
            raise CommandFailed(f"signal:{shown(signal[0])}", result, is_answer=True)
        if code != 0 and self._check:
            last = self._err.last_line()
            raise CommandFailed(
                f"exit code {code}: {last}" if last else f"exit code {code}", result, is_answer=True
            )
        return result


class Link(asyncssh.SSHClient):
    """A connection, from the moment somebody wants it."""

    opening: asyncio.Task[asyncssh.SSHClientConnection]
    known: asyncssh.SSHKnownHosts

    def __init__(self, place: Place, lost: Callable[[Link], None]) -> None:
        self.place = place
        self.in_use = 0  # commands that run on it or wait for it
        self.running = 0  # sessions that are open
        self.has_served = False
        self.is_retired = False
        self.timer: asyncio.TimerHandle | None = None
        self.patience = 0.0  # seconds that connecting may take
        self.connection: asyncssh.SSHClientConnection | None = None
        self.key_problem = ""
        self._lost = lost

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Somebody is there."""
        self.connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked about a key that is not in known_hosts. It is never accepted; only the reason is worth telling."""
        found = self.known.match(host, addr, None if port == 22 else port)
        self.key_problem = "changed" if found[0] else "unknown"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self._lost(self)


def known_hosts(found: Any) -> asyncssh.SSHKnownHosts:
    """The keys of hosts that the user knows, from the files that the ssh config names or else the usual ones."""
    if found is None:
        raise ValueError("UserKnownHostsFile is none, so that any host would be believed: name a file there")
    files = [found] if isinstance(found, str) else list(found) or USUAL_KNOWN_HOSTS
    paths = [Path(file).expanduser() for file in files]
    return asyncssh.read_known_hosts([str(path) for path in paths if path.is_file()])


def _reason(error: Exception, link: Link, seconds: float) -> str:
    """Why there is no connection, and what to do about it."""
    match error:
        case TimeoutError() if error.errno is None:
            return f"no answer within {seconds:g} s. Check the network, or raise ConnectTimeout in ~/.ssh/config."
        case ConnectionRefusedError():
            return "connection refused. Check that sshd runs there, and on that port."
        case socket.gaierror():
            return "its name cannot be looked up. Check it, or give it a HostName in ~/.ssh/config."
        case asyncssh.HostKeyNotVerifiable() if link.key_problem:
            return KEY_PROBLEMS[link.key_problem]
        case asyncssh.KeyExchangeFailed():
            return f"no key or cipher suits both sides ({_spoken(error)}). {NEW_KEYS}"
        case asyncssh.PermissionDenied():
            return "it accepts no key of ours for this user. Check IdentityFile in ~/.ssh/config, or ssh-add."
        case ValueError():
            return f"the ssh config, keys or known_hosts cannot be used ({_spoken(error)}). Correct them."
    return f"no connection ({_spoken(error)}). Try ssh by hand."


def _spoken(error: BaseException) -> str:
    return shown(error.reason if isinstance(error, asyncssh.Error) else str(error)) or type(error).__name__


# --- The thread in which all of that happens ------------------------------------------------------


class OwnLoop(asyncio.SelectorEventLoop):
    """A loop without a pool: what would block it gets a daemon thread, which keeps nobody from ending."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Like asyncio's, in a new thread."""
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()  # and so nobody can cancel it

        def call() -> None:
            try:
                outcome.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 (it is the answer)
                outcome.set_exception(error)

        threading.Thread(target=call, name="runcue-ssh-call", daemon=True).start()
        return asyncio.wrap_future(outcome, loop=self)


class Side:
    """The connections, who uses which, and the thread they live in. Its public methods are for other threads."""

    def __init__(self, grace: float, options: Mapping[str, Any], patience: float, keep_idle: float) -> None:
        self.ended: Future[None] = Future()
        self._grace = grace
        self._options = options
        self._patience = patience
        self._keep_idle = keep_idle
        self._links: dict[Place, list[Link]] = {}
        self._limits: dict[Place, int] = {}
        self._all: set[Link] = set()  # those that are not closed yet, retired ones too
        self._jobs = 0
        self._is_closing = False
        self._finished = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=OwnLoop)
        self.loop = self._runner.get_loop()
        try:
            threading.Thread(target=self._run, name="runcue-ssh", daemon=True).start()
        except RuntimeError:  # no room for it: the attempt fails, and the next one tries again
            self.loop.close()
            raise

    def submit(self, remote: Remote) -> Future[Result]:
        """Run a command. A connection outlives the work that opened it, and so must not hold on to its context."""
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, self._perform(remote), self.loop)

    def close(self) -> Future[bool]:
        """Close what is idle. True when that is all, and so the end of this thread; else it ends later."""
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
            await asyncio.wait([self.loop.create_task(one.wait_closed()) for one in idle], timeout=PATIENCE)
            for connection in idle:
                connection.abort()
        if not self._jobs:
            self._finished.set()
        return not self._jobs

    async def _perform(self, remote: Remote) -> Result:
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
            raise Unreachable(f"{remote.place.given}: it opens no session. Let fewer works use it at once.")
        finally:
            self._jobs -= 1
            if self._is_closing:
                await self._close()

    async def _is_sent(self, remote: Remote, link: Link) -> bool:
        """Send the command; False when it was not sent on this connection, but may be on another."""
        name, seconds, connection = remote.place.given, self._patience, link.opening.result()
        if remote.entered is not None:
            remote.entered.check()  # connecting may have taken long
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
                raise Unreachable(f"{name}: cut off as the command was sent ({_spoken(error)}). {UNKNOWN}")
            raise CommandFailed(f"refused: {name} runs no commands for this user. Check its sshd settings.")
        if link.is_retired and link.has_served:
            return False  # it died while nobody used it
        if link.in_use > 1 and not link.is_retired:
            self._limits[link.place] = max(1, link.running)  # as many as it allows on one connection
            return False
        raise Unreachable(f"{name}: it opens no session ({_spoken(error)}). Check its sshd settings.")

    async def _take(self, place: Place) -> Link:
        """A connection with room for one more command; whoever comes first opens it, for all who wait."""
        limit = self._limits.get(place, SESSIONS)
        links = self._links.setdefault(place, [])
        link = next((link for link in links if link.in_use < limit), None)
        if link is None:
            link = Link(place, self._lost)
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
            if isinstance(error, Unreachable):  # each who waited has an exception to himself
                raise Unreachable(str(error)) from error
            raise
        return link

    def _give_back(self, link: Link) -> None:
        """One command less on it."""
        link.in_use -= 1
        link.has_served = True
        if link.in_use:
            return
        if link.is_retired or not link.opening.done():
            self._retire(link)
        else:
            link.timer = self.loop.call_later(self._keep_idle, self._retire, link)

    def _retire(self, link: Link) -> None:
        """Let nobody use it any more, and close it when nobody does."""
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

    def _lost(self, link: Link) -> None:
        self._all.discard(link)
        self._retire(link)

    async def _connect(self, link: Link) -> asyncssh.SSHClientConnection:
        way, link.patience = [link], self._patience
        try:
            async with asyncio.timeout(self._patience) as limit:
                return await self._reach(way, None, limit)
        except BaseException as error:
            self._lost(link)
            if isinstance(error, (OSError, asyncssh.Error, ValueError)):  # a TimeoutError is an OSError
                raise Unreachable(f"{_named(way)}: {_reason(error, way[-1], way[0].patience)}") from error
            raise

    async def _reach(self, way: list[Link], jump: Jump | None, limit: asyncio.Timeout) -> Jump:
        """Connect to the last on the way, through `jump` or where the config says; all of them with the same care."""
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
                    raise ValueError("ProxyJump names more hosts than anybody has, or goes round in a circle")
                way.append(Link(place, _forget))
                jump = await self._reach(way, jump, limit)
                way.pop()
            asked |= {"known_hosts": link.known, "client_factory": lambda: link, "connect_timeout": None}
            asked["tunnel"] = jump  # said always: else asyncssh would open those of the config by itself
            if not found.keepalive_interval:
                asked["keepalive_interval"] = ALIVE_EVERY
            made = await asyncssh.connect(**asked)
        except BaseException:
            if jump is not None:
                jump.close()
            raise
        made.set_tunnel(jump)  # which is closed with it
        return made


def jumps(found: object, place: Place) -> list[Place]:
    """The hosts that ProxyJump names, first to last. A host is not reached through itself: `Host *` names it, too."""
    if found is None or found == "none":
        return []
    try:
        places = [place_of({"host": name.strip()}) for name in str(found).split(",")]
    except BadCommand:
        raise ValueError(f"ProxyJump {quoted(found)} names what is no host") from None
    return [one for one in places if one.host != place.host]


def _named(way: list[Link]) -> str:
    names = [link.place.given for link in way]
    return ": jump host ".join(names)


def _forget(link: Link) -> None:
    """Nobody keeps a list of jump hosts: each belongs to what is reached through it."""


async def _elsewhere(doing: Future[T], stop: Callable[[], None] | None = None) -> T:
    """Wait for what the other thread does until that has ended, also when it is stopped on the way."""
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
