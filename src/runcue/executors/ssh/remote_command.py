"""One command on another host: sends it, collects its output, and ends it when the unit is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncssh

from runcue.errors import CommandFailed, Unreachable
from runcue.executors.command.text import Tail, shown
from runcue.executors.ssh.connection import Connection, spoken
from runcue.executors.ssh.target import Place
from runcue.ports import CommandOptions, Entering

logger = logging.getLogger("runcue")
Result = dict[str, Any]

KILL_PATIENCE = 2.0
"""Seconds that a command has to die of KILL."""
QUIET = 1.0
"""Seconds without output after which a command that has ended is not listened to any more."""
LINGERING = 30
"""How many times `QUIET` a command that has ended may go on printing."""
PLAIN = {"send_env": None, "request_pty": False, "x11_forwarding": False, "encoding": None}
UNKNOWN = "What the command did is unknown: look before it runs again."


class RemoteCommand(asyncssh.SSHClientSession[bytes]):
    """A command on another host, as the session that asyncssh calls back."""

    link: Connection
    _over: asyncio.Future[None]
    _gone: asyncio.Future[None]

    def __init__(
        self,
        place: Place,
        command: str,
        options: CommandOptions,
        began: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self.place = place
        self.request: dict[str, Any] = {"command": command, "env": dict(options.env or {}), **PLAIN}
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None  # set just before the command is sent
        self.is_wanted = True
        self.is_opening = False  # a cancellation then would leave a session that nothing ends
        self.task: asyncio.Task[Any] | None = None
        self.entered: Entering | None = None
        self._check = options.check
        self._began = began
        self._report = report
        self._out, self._err = Tail(), Tail()
        self._chunks = 0
        self._lost: Exception | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The session is open; asyncssh sends the command next."""
        self.channel = chan
        self.link.running += 1
        self._over, self._gone = asyncio.Future(), asyncio.Future()

    def session_started(self) -> None:
        """The host runs the command."""
        self._began()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Keep a piece of output, and report its last line."""
        self._chunks += 1
        tail = self._out if datatype is None else self._err
        tail.add(data)
        if b"\n" in data and (line := tail.last_line(is_whole=True)):
            self._report(line)

    def exit_status_received(self, status: int) -> None:
        """The command ended by itself."""
        self._over.set_result(None)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """A signal ended the command."""
        self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed: nothing more will come."""
        self.link.running -= 1
        self._lost = exc
        self._gone.set_result(None)
        if not self._over.done():
            self._over.set_result(None)

    def stop(self) -> None:
        """Give the command up; it ends as `follow` says."""
        self.is_wanted = False
        if self.task is not None and not self.is_opening:
            self.task.cancel()

    async def follow(self, grace: float) -> Result:
        """Wait for the end of the command; when it is cancelled, end it by signals."""
        assert self.channel is not None
        try:
            if not self.is_wanted:
                raise asyncio.CancelledError
            self.channel.write_eof()  # there is no stdin
            await asyncio.wait([self._over])
            # The rest of its output, unless a process that it left holds the channel open.
            for _ in range(LINGERING):
                chunks = self._chunks
                await asyncio.wait([self._gone], timeout=QUIET)
                if self._gone.done() or chunks == self._chunks:
                    break
        except asyncio.CancelledError:
            for signal, patience in (("TERM", grace), ("KILL", KILL_PATIENCE)):
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
            how = "the host closed its channel" if self._lost is None else spoken(self._lost)
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
