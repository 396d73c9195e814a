"""Reads the crontab of a user, as cron does, for `queuectl schedule import`.

Rules:
- Comments are whole lines. An assignment holds for the lines below it: CRON_TZ is their time zone, SHELL runs them,
  HOME is where they run, and what cron alone uses is left out, which is said. All others go to the environment.
- In a command the first % ends it, and what follows is its input, in which each further % begins a line; \\% is a %.
- What has no meaning as a schedule is refused with the number of its line: @reboot, a column with a user, six fields
  of time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any, Final

import msgspec

from runcue.cli.failure import Failure, bad_input
from runcue.cli.fields import check, said
from runcue.cli.jobs import Job, make_job
from runcue.cli.screen import clean, cut
from runcue.host.system import files

TIMES: Final = 5
"""Fields of time in a line."""
FOR_CRON: Final = frozenset({
    "MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING", "RANDOM_DELAY", "START_HOURS_RANGE",
})  # fmt: skip
"""What only cron itself reads."""
ANSWERS: Final = {"MAILTO": "nothing is mailed. What a job prints: queuectl logs ID"}
SHELL: Final = "/bin/sh"
LONGEST_NAME: Final = 64
WRAPPERS: Final = frozenset({
    "sudo", "nice", "ionice", "nohup", "env", "exec", "command", "time", "timeout", "flock", "chronic", "setsid",
    "sh", "bash", "dash", "zsh", "ksh", "python", "python3", "perl", "ruby", "php", "node", "java",
    "then", "else", "do",
})  # fmt: skip
"""Words before a program whose name says more."""
BEFORE: Final = frozenset(
    {"cd", "test", "[", "[[", "export", "set", "umask", "ulimit", "source", ".", "sleep", "if"}
)
"""Commands that prepare for the one that is meant."""

_assigned = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([^\s"'=]+))\s*=\s*(.*?)\s*""").fullmatch
_is_time = re.compile(r"[0-9*/,-]+").fullmatch
_parts = re.compile(r"&&|\|\||[;|&(){}\n]").split
_escaped = re.compile(r"(\\.|%)").split
_ending = re.compile(r"\.(sh|bash|zsh|py|pl|rb|php|js|exe)$")
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=").match


class Entry(msgspec.Struct, frozen=True):
    """A line of a crontab that runs something."""

    line: int
    cron: str
    tz: str | None
    """The time zone that CRON_TZ names; None for the one of the machine."""
    command: str
    """As it stands in the crontab, for people."""
    job: Job


class Crontab(msgspec.Struct, frozen=True):
    """What a crontab runs, and what had to be left out."""

    entries: list[Entry]
    notes: list[str]


def read(text: str, folder: str, more: Mapping[str, Any]) -> Crontab:
    """Read a crontab. Its jobs run in `folder`, unless HOME names another; `more` are checked fields for all."""
    entries: list[Entry] = []
    notes: dict[str, str] = {}
    variables: dict[str, str] = {}
    zone: str | None = None
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.strip()
        if not line or line.startswith("#"):
            continue
        try:
            found = _assignment(line)
            if found is None:
                entries.append(_entry(number, line, zone, folder, variables, more))
                continue
            name, value = found
            if name in FOR_CRON:
                answer = ANSWERS.get(name, "only cron itself reads it.")
                notes.setdefault(name, f"line {number}: {name} is left out: {answer}")
            elif name == "CRON_TZ":
                zone = value or None
            else:
                variables[name] = value
        except Failure as error:
            raise Failure(f"line {number}: {error.text}", error.code) from error
    return Crontab(entries, [*notes.values()])


def _assignment(line: str) -> tuple[str, str] | None:
    """The name and the value that a line assigns; None for a line that runs something."""
    found = _assigned(line)
    if found is None:
        return None
    name, value = found[1] or found[2] or found[3], found[4]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return str(name), str(value)


def _entry(
    number: int,
    line: str,
    zone: str | None,
    folder: str,
    variables: Mapping[str, str],
    more: Mapping[str, Any],
) -> Entry:
    cron, command = _split(line)
    _refuse_user(command, variables)
    program, stdin = _parted(command)
    shell = variables.get("SHELL", SHELL)
    given: dict[str, Any] = {"cwd": variables.get("HOME") or folder, **more}
    if variables:
        given["env"] = dict(variables)
    if stdin is not None:
        given["command"] = f"printf %s {quote(stdin)} | {quote(shell)} -c {quote(program)}"
    elif shell == SHELL:
        given["command"] = program
    else:
        given["argv"] = [shell, "-c", program]
    return Entry(
        number, cron, zone, command, make_job({key: check(key, value) for key, value in given.items()})
    )


def _split(line: str) -> tuple[str, str]:
    """The times and the command of a line."""
    if line.startswith("@"):
        name, *rest = line.split(None, 1)
        command = rest[0] if rest else ""
        if name == "@reboot":
            raise bad_input(
                f"@reboot is no moment of the clock: {said(command)} cannot be a schedule. Leave that line out."
            )
        return name, _command(command, name)
    fields = line.split(None, TIMES)
    if len(fields) <= TIMES:
        raise bad_input(
            f"{said(line)} has {len(fields)} columns. Expected five fields of time, and a command behind them."
        )
    command = _command(fields[TIMES], line)
    if _is_time(command.split()[0]):
        raise bad_input(f"{said(line)} has six fields of time: a crontab has five, without seconds.")
    return " ".join(fields[:TIMES]), command


def _command(command: str, line: str) -> str:
    if not command:
        raise bad_input(f"{said(line)} has no command.")
    return command


def _refuse_user(command: str, variables: Mapping[str, str]) -> None:
    """Refuse a line of a system crontab, which names a user before the command."""
    first, _, rest = command.partition(" ")
    if rest and files.has_user(first) and shutil.which(first, path=variables.get("PATH")) is None:
        raise bad_input(
            f"{said(first)} is a user: this looks like a system crontab, whose sixth column is one. Jobs run as the "
            "user who starts the workers: take that column out."
        )


def _parted(command: str) -> tuple[str, str | None]:
    """The command that is run, and its input; None where it has none."""
    pieces = [""]
    for piece in _escaped(command):
        if piece == "%":
            pieces.append("")
        else:
            pieces[-1] += "%" if piece == "\\%" else piece
    program, *lines = pieces
    if not lines:
        return program, None
    stdin = "\n".join(lines)
    return program.rstrip(), stdin if stdin.endswith("\n") else f"{stdin}\n"


# names ----------------------------------------------------------------------------------------------------


def named(entries: Iterable[Entry], taken: Iterable[str]) -> list[str]:
    """A name for each entry, made from its command: none of them twice, and none that is taken."""
    used = set(taken)
    found = []
    for entry in entries:
        base = name = _name(_parted(entry.command)[0])
        number = 1
        while name in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name)
        found.append(name)
    return found


def _name(command: str) -> str:
    """What a command is called: the name of its program, without a folder and an ending."""
    for part in _parts(command):
        words = part.split()
        if words and words[0] in BEFORE:
            continue
        for word in words:
            program = word.strip("\"'").rstrip("/").rpartition("/")[2]
            is_said = not (_is_variable(word) or word.startswith(("-", ">", "<", "$")) or _is_time(word))
            name = re.sub(r"[^\w.-]+", "-", _ending.sub("", program)).strip("-.")
            if is_said and name and program not in WRAPPERS:
                return clean(cut(name, LONGEST_NAME))
    return "job"
