"""The host and the command of a work unit, checked: anything that could mean something else is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from runcue.errors import BadCommand, quoted
from runcue.executors.command.arguments import bad_command, checked

LONGEST_COMMAND = 128 * 1024  # a request must fit into one packet, or the host closes the whole connection
LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})@)?"
    r"(?:(?P<bare>[0-9A-Fa-f.]{0,15}(?::[0-9A-Fa-f.]{0,15}){2,8})"
    rf"|(?:\[(?P<six>[0-9A-Fa-f:.]{{2,45}})\]|(?P<name>{LABEL}(?:\.{LABEL})*\.?))(?::(?P<port>[0-9]{{1,5}}))?)"
)


class Place(NamedTuple):
    """The host that a unit names, with user and port; the user's ssh config says the rest."""

    given: str
    user: str | None
    host: str
    port: int | None

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments for asyncssh."""
        given = {"host": self.host, "username": self.user, "port": self.port}
        return {name: value for name, value in given.items() if value is not None}


def place_of(params: Mapping[str, Any]) -> Place:
    """Read `params["host"]`; BadCommand for anything but a host, before a connection is tried."""
    given = params.get("host")
    match = HOST.fullmatch(given) if isinstance(given, str) and len(given) <= 330 else None
    if match is not None:
        port = None if match["port"] is None else int(match["port"])
        if port is None or 0 < port < 65536:
            return Place(match[0], match["user"], match["name"] or match["six"] or match["bare"], port)
    raise BadCommand(
        f"bad_command: params['host'] is no host: {quoted(given)}. Expected a name or an address, as in 'web1', "
        "'deploy@10.0.0.7:2222' or '[::1]:22'; everything else belongs into ~/.ssh/config."
    )


def command_of(given: object) -> str:
    """The command line for the shell on the host: a str as it is, the arguments of a list quoted."""
    found = checked(given, may_be_text=True)
    command = found if isinstance(found, str) else shlex.join(found)
    if re.search("[\ud800-\udfff]", command):
        raise bad_command(given, "is not valid text", "leave out what is no UTF-8")
    if len(command.encode()) > LONGEST_COMMAND:
        longest = f"is longer than {LONGEST_COMMAND // 1024} KiB"
        raise bad_command(given, longest, "copy what is long to the host first")
    return command
