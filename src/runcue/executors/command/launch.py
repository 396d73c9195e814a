"""What a command sees of this process, why it could not be started, and what its end means."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any

from runcue.errors import CommandFailed, RetryLater, quoted
from runcue.executors.command.arguments import bad_command, meant
from runcue.executors.command.output import Complain, is_lack, make_folder
from runcue.executors.command.text import last_line
from runcue.host import shortage
from runcue.host.system import processes
from runcue.ports import CommandOptions, Registered

HIDDEN_PREFIXES = ("RUNCUE_", "QUEUECTL_")
HIDDEN = frozenset({"PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY"})
"""Variables of this process that commands do not see, unless the task's `env=` gives them."""

NO_ROOM = shortage.NO_ROOM | {errno.ETXTBSY}
"""Errors after which the command may start a little later; ETXTBSY: the program is being written just now."""


async def asked(work: Any, task: Registered) -> tuple[object, CommandOptions]:
    """The command that the handler returns, and its options."""
    command = task.call(work)
    if isawaitable(command):
        command = await command
    return meant(command, task.command)


def environment(extra: Mapping[str, str] | None) -> dict[str, str] | None:
    """The environment of a command: that of this process without the queue's secrets, and what the task adds.

    None when it equals the environment of this process: inheriting it costs least.
    """
    here, shown = _environment.shown()
    if not extra and len(shown) == len(here):
        return None
    return {**shown, **(extra or {})}


class _Environment:
    """The variables of this process: they are looked through anew when one has changed, which takes Python as long as
    the start of a command."""

    def __init__(self) -> None:
        self._last: tuple[dict[Any, Any], dict[str, str]] = {}, {}

    def shown(self) -> tuple[Mapping[Any, Any], Mapping[str, str]]:
        """All variables, as Python keeps them, and those that commands see."""
        last, here = self._last, getattr(os.environ, "_data", os.environ)
        if here != last[0]:
            some = {name: value for name, value in os.environ.items() if not is_hidden(name)}
            last = self._last = dict(here), some
        return last


_environment = _Environment()


def program(name: str, search: str | None) -> str | None:
    """Where the command of that name is, by the folders of PATH; None where that is left to the system.

    Popen would have the new process try every folder, and make the path of each anew for every command. A folder that
    is not absolute means another one in the folder of the command.
    """
    if "/" in name or not name or not search:
        return None
    for folder in search.split(":"):
        if folder[:1] != "/":
            return None
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 (for every command)
            return path
    return None


def is_hidden(name: str) -> bool:
    """Whether this variable is hidden from commands."""
    return name in HIDDEN or name.startswith(HIDDEN_PREFIXES)


def refusal(error: OSError, argv: list[str], cwd: str | None) -> CommandFailed | RetryLater:
    """What to raise in an attempt whose command could not be started."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return no_room(error)
    name = quoted(argv[0])
    if cwd is not None and error.filename == cwd:
        return CommandFailed(f"no such folder: cwd {quoted(cwd)} ({reason})")
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        advice = "install it, give its full path, or look at the first line of the script"
        return CommandFailed(f"not found: {name} or the interpreter it names: {advice}")
    if error.errno in {errno.EACCES, errno.EPERM, errno.ENOEXEC}:
        return CommandFailed(f"not executable: {name} ({reason}): chmod +x, or name its interpreter first")
    if error.errno == errno.E2BIG:
        return CommandFailed(f"too long: the arguments and environment of {name}: pass data in a file")
    return CommandFailed(f"cannot run {name}: {reason}")


def not_started(error: BaseException, argv: list[str], cwd: str | None) -> BaseException:
    """What to raise in an attempt whose command was not started because of this error; else the error itself."""
    if isinstance(error, OSError):
        return refusal(error, argv, cwd)
    if isinstance(error, RuntimeError):
        return no_room(error)
    if isinstance(error, ValueError):  # a variable with a NUL, or with "=" in its name
        return bad_command(argv, f"cannot be run ({error})", "correct the task's env or cwd")
    return error


def not_prepared(error: OSError | RuntimeError) -> CommandFailed | RetryLater:
    """What to raise in an attempt for whose output there is no place."""
    if isinstance(error, RuntimeError) or error.errno in NO_ROOM:
        return no_room(error)
    where = f" {quoted(error.filename)}" if error.filename else ""
    return CommandFailed(f"cannot prepare the command{where}: {error.strerror or error}")


def usable(folder: Path | None, complain: Complain) -> Path | None:
    """The folder for output, made where it is missing; None, after a complaint, where it cannot be used."""
    if folder is not None:
        try:
            make_folder(folder)
        except OSError as error:
            if is_lack(error):
                raise
            complain(error)
            folder = None
    return folder


def no_room(error: OSError | RuntimeError) -> RetryLater:
    """What to raise in an attempt that the system has no room for just now."""
    return shortage.no_room("command", error, "raise the limits of processes, open files or memory")


def outcome(result: dict[str, Any], options: CommandOptions) -> dict[str, Any]:
    """The result of a command that has ended; raises CommandFailed when it failed."""
    exit_code = result["exit_code"]
    if exit_code is None:
        raise CommandFailed("exit code lost: something else in this process waited for its children", result)
    if exit_code < 0:
        raise CommandFailed(f"signal:{processes.signal_name(-exit_code)}", result)
    if exit_code and options.check:
        line = last_line(result["stderr"]) or last_line(result["stdout"])
        raise CommandFailed(f"exit code {exit_code}" + (f": {line}" if line else ""), result)
    return result
