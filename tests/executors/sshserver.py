"""Hosts on loopback that speak SSH, in the process of the tests and of the example.

`Host` runs commands with /bin/sh, as sshd would, or with the shell that it is given. It counts who connects and what
is asked of it, and can be told to misbehave. Keys and known_hosts are files in a folder of yours.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import asyncssh


def write_key(path: Path, algorithm: str = "ssh-ed25519") -> asyncssh.SSHKey:
    """Make a private key in a file of its own, and its public half beside it."""
    key = asyncssh.generate_private_key(algorithm)
    path.touch(mode=0o600)
    path.write_bytes(key.export_private_key())
    path.with_suffix(".pub").write_bytes(key.export_public_key())
    return key


class Host:
    """A host: `async with Host(folder) as host`, and then `host.port`."""

    def __init__(self, folder: Path, name: str = "host", *, home: Path | None = None, port: int = 0) -> None:
        self.port = port
        self.name = name
        self.connections: list[asyncssh.SSHServerConnection] = []
        """All that were ever made, the closed ones too."""
        self.commands: list[str] = []
        self.environments: list[dict[str, str]] = []
        self.signals: list[str] = []
        self.pids: list[int] = []
        self.most_sessions = 1000
        """Sessions on one connection; more are refused, as MaxSessions of sshd says."""
        self.is_deaf = False
        """True when signals are not passed on, as by an old sshd."""
        self.runs_commands = True
        self.passed_on: list[tuple[str, int]] | None = None
        """Who was reached through this host, as through a jump host; None when it lets nobody through."""
        self.hangs_up = False
        """True when a command's channel is closed without a word on how it ended."""
        self.gate: asyncio.Event | None = None
        """What a new session waits for before it is answered, if for anything."""
        self.waiting = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.folder = folder
        self.client_key = folder / "id_client"
        if not self.client_key.exists():
            write_key(self.client_key)
        self.key = write_key(folder / f"{name}_key")
        self.home = home
        """What commands take for their home directory; else that of this process."""
        self.shell = ("/bin/sh", "-c")
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def known_hosts(self) -> Path:
        """The file that says which keys are right; written when the host starts, each host adding its own."""
        return self.folder / "known_hosts"

    @property
    def options(self) -> dict[str, Any]:
        """What a client needs in order to be let in, and to know whom it talks to."""
        return {"config": None, "known_hosts": str(self.known_hosts), "client_keys": [str(self.client_key)]}

    @property
    def open_connections(self) -> int:
        """How many are connected now."""
        return sum(not connection.is_closed() for connection in self.connections)

    def know(self, key: asyncssh.SSHKey | None = None) -> None:
        """Add a line to known_hosts for this host: its key, or one that it does not have."""
        public = (key or self.key).export_public_key().decode().strip()
        with self.known_hosts.open("a", encoding="utf-8") as file:
            file.write(f"[127.0.0.1]:{self.port} {public}\n")

    async def start(self) -> None:
        """Begin to listen, on the same port as before if there was one."""
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            config=None,
            server_host_keys=[self.key],
            authorized_client_keys=str(self.client_key.with_suffix(".pub")),
            server_factory=lambda: _Server(self),
            encoding=None,
            line_editor=False,
        )
        self.port = self._acceptor.get_port()

    async def stop(self) -> None:
        """Listen no more, and cut everybody off."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        for connection in self.connections:
            connection.abort()
        for connection in self.connections:
            await connection.wait_closed()
        if acceptor is not None:  # who listens is gone, since Python 3.12, when all connections are
            await acceptor.wait_closed()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        self.know()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def session(self, ended: Callable[[], None]) -> _Session:
        """What a new session is."""
        return _Session(self, ended)


class _Server(asyncssh.SSHServer):
    def __init__(self, host: Host) -> None:
        self._host = host
        self._sessions = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._host.connections.append(conn)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        if self._host.passed_on is None:
            return False
        self._host.passed_on.append((dest_host, dest_port))
        return True

    async def session_requested(self) -> _Session:
        """Answered in the order of the requests, as by sshd."""
        if self._sessions >= self._host.most_sessions:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        self._sessions += 1
        if self._host.gate is not None:
            self._host.waiting += 1
            await self._host.gate.wait()
        return self._host.session(self._ended)

    def _ended(self) -> None:
        self._sessions -= 1


class _Session(asyncssh.SSHServerSession[bytes]):
    """One command, run by a shell in a session of its own."""

    def __init__(self, host: Host, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._host = host
        self._channel: asyncssh.SSHServerChannel[bytes]
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_gone = False
        self._pid: int | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self._is_gone = True
        self._may_write.set()

    def exec_requested(self, command: str) -> bool:
        if not self._host.runs_commands:
            return False
        self._host.commands.append(command)
        self._host.environments.append(dict(self._channel.get_environment()))
        self._host.tasks.append(asyncio.get_running_loop().create_task(self._run(command)))
        return True

    def eof_received(self) -> bool:
        return True

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def signal_received(self, signal: str) -> None:
        self._host.signals.append(signal)
        if self._pid is not None and not self._host.is_deaf:
            _kill_group(self._pid, _number(signal))

    async def _run(self, command: str) -> None:
        code = await self._shell(command)
        if self._host.hangs_up or self._is_gone:
            self._channel.close()
        elif code < 0:
            self._channel.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            self._channel.exit(code)

    async def _shell(self, command: str) -> int:
        home = {} if self._host.home is None else {"HOME": str(self._host.home)}
        process = await asyncio.create_subprocess_exec(
            *self._host.shell,
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **home, **self._channel.get_environment()},
            start_new_session=True,
        )
        self._pid = process.pid
        self._host.pids.append(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        passing = asyncio.gather(
            self._pass_on(process.stdout, self._channel.write),
            self._pass_on(process.stderr, self._channel.write_stderr),
        )
        try:
            await asyncio.shield(passing)
        except asyncio.CancelledError:
            if hasattr(os, "killpg"):
                _kill_group(process.pid, signal.SIGKILL)
            else:
                process.kill()
            await passing
            raise
        finally:
            code = await process.wait()
            self._pid = None
        return code

    async def _pass_on(self, stream: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
        while data := await stream.read(1 << 17):
            await self._may_write.wait()
            if not self._is_gone:
                write(data)


def _number(name: str) -> signal.Signals:
    return signal.Signals[f"SIG{name}"]


def _kill_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # it has ended
