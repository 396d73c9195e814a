"""Checks the options of a Cue, with checks that services, tasks and submissions use as well.

Every option has one line in `CHECKS`: which values it takes, and how looser forms become exact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from runcue.core.model import parse
from runcue.core.model.settings import Settings
from runcue.errors import ConfigError, InvalidOption, quoted
from runcue.ports import CommandOptions

REJECT_POLICIES: Final = ("reject", "drop_oldest", "block")
DURABILITIES: Final = ("full", "relaxed")
MOST_PROCESSES: Final = 10_000
MOST_THREADS: Final = 10_000
SMALLEST_OUTPUT: Final = 128 * 1024
SHORTEST: Final = parse.SHORTEST_WINDOW
LONGEST: Final = parse.LONGEST_WINDOW
DASK_ADDRESS: Final = re.compile(r"(tcp|tls)://([^\s/:@\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")

Check: TypeAlias = Callable[[object, str], Any]


def span(value: object, name: str, low: float = SHORTEST) -> float:
    """Read a duration of at least a millisecond."""
    seconds = parse.duration(value, name)
    if not low <= seconds <= LONGEST:
        raise InvalidOption(name, value, f"a duration from {low:g} to {LONGEST:,.0f} seconds")
    return seconds


def pause(value: object, name: str) -> float:
    """Read a duration that may be 0."""
    return span(value, name, low=0)


def choice(value: object, name: str, choices: tuple[str, ...]) -> str:
    """Read one of a few words."""
    word = str.__str__(value) if isinstance(value, str) else None
    if word not in choices:
        raise InvalidOption(name, value, f"one of {', '.join(map(repr, choices))}")
    return word


def whole(low: int, high: int = parse.HIGHEST_LIMIT) -> Check:
    """A check for whole numbers within bounds, both included."""
    return lambda value, name: parse.number(value, name, low, high, whole=True)


def flag(value: object, name: str) -> bool:
    """Read True or False, and no other value that counts as one of them."""
    if not isinstance(value, bool):
        raise InvalidOption(name, value, "True or False")
    return value


def or_none(check: Check) -> Check:
    """Let a check also take None."""
    return lambda value, name: None if value is None else check(value, name)


def scheduler_address(value: object, name: str) -> str:
    """Read the address of a Dask scheduler."""
    address = str.__str__(value) if isinstance(value, str) else ""
    if not DASK_ADDRESS.fullmatch(address):
        value = re.sub(r"//[^@/]*@", "//***@", address) if address else value  # no password in an error
        raise InvalidOption(
            name, value, "the address of a Dask scheduler, as 'tcp://host:8786' or 'tls://host:8786'"
        )
    return address


CHECKS: Final[dict[str, Check]] = {
    "name": lambda value, name: parse.name(value, "Cue"),
    "max_queued": or_none(whole(1)),
    "reject_policy": lambda value, name: choice(value, name, REJECT_POLICIES),
    "block_timeout": or_none(pause),
    "default_timeout": or_none(span),
    "max_threads": whole(1, MOST_THREADS),
    "max_running": or_none(whole(1)),
    "output_limit": whole(SMALLEST_OUTPUT),
    "callback_timeout": span,
    "grace": pause,
    "keep_finished": or_none(whole(0)),
    "status_interval": span,
    "progress_interval": pause,
    "pending_timeout": or_none(span),
    "pending_warn_after": or_none(span),
    "stall_timeout": or_none(span),
    "stall_warn_after": or_none(span),
    "max_params": whole(2),
    "age_step": or_none(span),
    "throttle_timeout": pause,
    "pool_size": or_none(whole(1, MOST_PROCESSES)),
    "lease": span,
    "retention": or_none(pause),
    "service_log_retention": pause,
    "durability": lambda value, name: choice(value, name, DURABILITIES),
    "insecure": flag,
    "dask": or_none(scheduler_address),
}


COMMAND_OPTIONS: Final = {
    "shell": ("subprocess",),
    "check": ("subprocess", "ssh"),
    "cwd": ("subprocess",),
    "env": ("subprocess", "ssh"),
}
"""The executors that use each option of a command."""


def command(executor: str | None, **given: Any) -> CommandOptions:
    """Read the command options of a task; those that its executor does not use are refused."""
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if executor not in COMMAND_OPTIONS[name]:
            users = " or ".join(f"executor={user!r}" for user in COMMAND_OPTIONS[name])
            raise ConfigError(f"{name}={quoted(value)} means something only with {users}. Leave it out.")
        found[name] = COMMAND_CHECKS[name](value, name)
    return CommandOptions(**found)


def _folder(value: object, name: str) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidOption(name, value, "the path of a directory")
    return path


def _variables(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidOption(name, value, "a dict of names and texts")
    for key, text in value.items():
        is_name = isinstance(key, str) and key and "=" not in key and "\0" not in key
        if not is_name or not isinstance(text, str) or "\0" in text:
            raise InvalidOption(name, {key: text}, "names without '=' and texts, neither with a NUL")
    return dict(value)


COMMAND_CHECKS: Final[dict[str, Check]] = {"shell": flag, "check": flag, "cwd": _folder, "env": _variables}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Cue, checked and exact: times are seconds."""

    name: str = "default"
    max_queued: int | None = None
    reject_policy: str = "reject"
    block_timeout: float | None = None
    default_timeout: float | None = None
    max_threads: int = 256
    max_running: int | None = None
    output_limit: int = 10 * 1024 * 1024
    callback_timeout: float = 0.1
    grace: float = 10.0
    keep_finished: int | None = 100_000
    status_interval: float = 1.0
    progress_interval: float = 1.0
    pending_timeout: float | None = None
    pending_warn_after: float | None = None
    stall_timeout: float | None = None
    stall_warn_after: float | None = None
    max_params: int = 256 * 1024
    age_step: float | None = 60.0
    throttle_timeout: float = 3600.0

    # For other stores and executors. With a queue in memory they are checked and have no effect, so that a program
    # can change its store and nothing else.
    pool_size: int | None = None
    lease: float = 30.0
    retention: float | None = 7 * 86400.0
    service_log_retention: float = 86400.0
    durability: str = "full"
    insecure: bool = False
    dask: str | None = None

    @classmethod
    def of(cls, **given: Any) -> Options:
        """Read the keywords of a Cue."""
        parse.reject_unknown(given, cls.__struct_fields__, "Cue")
        return cls(**{name: CHECKS[name](value, name) for name, value in given.items()})

    def settings(self) -> Settings:
        """The options that affect decisions."""
        return Settings(**{name: getattr(self, name) for name in Settings.__struct_fields__})
