"""What a work asks of another host: where, and which command. What could be anything else is refused."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from runcue.errors import BadCommand, quoted

LONGEST_COMMAND = 128 * 1024  # a request must fit into one packet, or the far side hangs up on everybody
LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})@)?"
    r"(?:(?P<bare>[0-9A-Fa-f.]{0,15}(?::[0-9A-Fa-f.]{0,15}){2,8})"
    rf"|(?:\[(?P<six>[0-9A-Fa-f:.]{{2,45}})\]|(?P<name>{LABEL}(?:\.{LABEL})*\.?))(?::(?P<port>[0-9]{{1,5}}))?)"
)


class Place(NamedTuple):
    """Where a command runs, as far as the work says; the user's ssh config says the rest."""

    given: str
    user: str | None
    host: str
    port: int | None


def place_of(params: Mapping[str, Any]) -> Place:
    """Read `params["host"]`; what could be anything but a host is refused before anybody is contacted."""
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
    """The command line for the shell over there: a str as it is, the arguments in a list quoted."""
    command, problem = "", ""
    if isinstance(given, list):
        arguments = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in given]
        wrong = [item for item in arguments if not isinstance(item, str)]
        if wrong:
            problem = f"has {quoted(wrong[0])}, which is no str"
        else:
            command = shlex.join(arguments) if any(arguments[:1]) else ""
    elif isinstance(given, str):
        command = given
    else:
        problem = f"is of type {type(given).__name__}"
    if not problem and not command.strip():
        problem = "is empty"
    elif "\0" in command:
        problem = "has a NUL character"
    elif len(command.encode("utf-8", "surrogatepass")) > LONGEST_COMMAND:
        problem = f"is longer than {LONGEST_COMMAND // 1024} KiB: copy what is long to the host first"
    elif re.search("[\ud800-\udfff]", command):
        problem = "is not valid text: part of it was no UTF-8"
    if problem:
        raise BadCommand(
            f"bad_command: what the handler returned {problem}. "
            "Expected a str for the remote shell, or a list of str, as in ['df', '-h', '/srv']."
        )
    return command
