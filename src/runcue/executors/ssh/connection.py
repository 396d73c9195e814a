"""One SSH connection, the host keys that the user knows, and the reasons why a connection cannot be opened."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh

from runcue.executors.command.text import shown
from runcue.executors.ssh.target import Place

USUAL_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
NEW_KEYS = "If the host was set up anew, take out its old keys (ssh-keygen -R) and connect once by hand."
KEY_PROBLEMS = {
    "changed": f"its host key is not the one in known_hosts: somebody may pretend to be that host. {NEW_KEYS}",
    "unknown": "its host key is not in known_hosts. Connect once by hand (ssh), compare the key, accept it.",
}


class Connection(asyncssh.SSHClient):
    """A connection to a host, from before it is opened, as the client that asyncssh calls back."""

    opening: asyncio.Task[asyncssh.SSHClientConnection]
    known: asyncssh.SSHKnownHosts

    def __init__(self, place: Place, lost: Callable[[Connection], None]) -> None:
        self.place = place
        self.in_use = 0  # commands that run on the connection or wait for it
        self.running = 0  # sessions that are open
        self.has_served = False
        self.is_retired = False
        self.timer: asyncio.TimerHandle | None = None
        self.patience = 0.0  # seconds that connecting may take
        self.connection: asyncssh.SSHClientConnection | None = None
        self.key_problem = ""
        self._lost = lost

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """The host answered."""
        self.connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Refuse a key that is not in known_hosts, and note why it is not."""
        found = self.known.match(host, addr, None if port == 22 else port)
        self.key_problem = "changed" if found[0] else "unknown"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._lost(self)


def known_hosts(found: Any) -> asyncssh.SSHKnownHosts:
    """The host keys that the user knows, from the files in the ssh config or else the usual ones."""
    if found is None:
        raise ValueError("UserKnownHostsFile is none, so that any host would be believed: name a file there")
    files = [found] if isinstance(found, str) else list(found) or USUAL_KNOWN_HOSTS
    paths = [Path(file).expanduser() for file in files]
    return asyncssh.read_known_hosts([str(path) for path in paths if path.is_file()])


def reason_of(error: Exception, link: Connection, seconds: float) -> str:
    """Why a connection could not be opened, and what to do."""
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
            return f"no key or cipher suits both sides ({spoken(error)}). {NEW_KEYS}"
        case asyncssh.PermissionDenied():
            return "it accepts no key of ours for this user. Check IdentityFile in ~/.ssh/config, or ssh-add."
        case NotImplementedError():  # on Windows the loop starts no processes
            return "ProxyCommand cannot be used on this system. Use ProxyJump in ~/.ssh/config."
        case ValueError():
            return f"the ssh config, keys or known_hosts cannot be used ({spoken(error)}). Correct them."
    return f"no connection ({spoken(error)}). Try ssh by hand."


def spoken(error: BaseException) -> str:
    """An error as one short line."""
    return shown(error.reason if isinstance(error, asyncssh.Error) else str(error)) or type(error).__name__
