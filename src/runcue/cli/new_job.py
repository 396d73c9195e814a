"""A new job as it is typed: the options that `enqueue` and `schedule add` share, what stands behind `--`, and what is
checked before the job is stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from runcue.cli.completion import queue, service
from runcue.cli.failure import bad_input, not_found
from runcue.cli.fields import check, said
from runcue.cli.groups import Verb, declared
from runcue.cli.home import Home
from runcue.cli.jobs import Job
from runcue.cli.reasons import Crew
from runcue.cli.screen import is_terminal, note, shown, typed_with, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

ARGV: Final = "runcue.cli.argv"
"""The key under which a command's context keeps what stands behind `--`."""

Numbered = tuple[int, Job]
"""The number of a line, 0 where there are no lines, and its job."""


class Commanding(Verb):
    """A verb that takes everything after `--` as a command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--` as options."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[ARGV] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line, with what stands behind the options."""
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM ARGUMENT…]"]


run_options = declared(
    click.option("--priority", type=int, metavar="N", help="Higher runs first.  [default: 0]"),
    click.option("--max-retries", type=int, metavar="N", help="How many attempts it has in all."),
    click.option("--timeout", metavar="TIME", help="How long it may run: 90, 90s, 5m, 2h, or none."),
    click.option(
        "--queue", metavar="NAME", shell_complete=queue, help="The queue it waits in.  [default: default]"
    ),
    click.option(
        "--uses",
        multiple=True,
        metavar="SERVICE",
        shell_complete=service,
        help="Keep to that service's limits. Repeatable.",
    ),
)
"""Options that say how a job is run."""
place_options = declared(
    click.option("--cwd", metavar="DIR", help="The folder it runs in.  [default: this one]"),
    click.option("--env", multiple=True, metavar="K=V", help="Set an environment variable. Repeatable."),
)
"""Options that say where a job runs."""


def typed_fields(flags: Mapping[str, Any], argv: list[str] | None, example: str) -> dict[str, Any]:
    """The fields of a job that its flags and what stands behind `--` give, checked."""
    found = {name: utf8(value) for name, value in flags.items() if value not in (None, ())}
    if "env" in found:
        found["env"] = _variables(found["env"])
    if argv is not None:
        if not argv:
            raise bad_input(f"A program is missing after --, as in: {example}")
        found["argv"] = utf8(argv)
    return {name: check(name, value) for name, value in found.items()}


def utf8(value: Any) -> Any:
    """The typed text, decoded as UTF-8 where the locale could not decode it."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(utf8, value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return os.fsencode(value).decode("utf-8", "surrogateescape")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise bad_input(f"--env {said(name)} has no value: write NAME=VALUE.")
    return name, value


def _variables(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_pair, texts):
        if found.setdefault(name, value) != value:  # values may be secrets: they are not shown
            raise bad_input(f"--env {said(name)} is given twice with different values. Give it once.")
    return found


def say_local(name: str, times: Sequence[float]) -> None:
    """Say how times were understood that name no time zone."""
    if times:
        more = f" ({len(times) - 1:,} more like that)" if len(times) > 1 else ""
        local = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(times[0]))
        note(f"{name} names no time zone: taken as local time, {local}{more}")


async def check_services(cue: Cue, jobs: Sequence[Numbered]) -> None:
    """Refuse a job that uses an unknown service: it would wait for ever."""
    if not any(job.uses for _, job in jobs):
        return
    known = {one["name"] for one in await cue.services()}
    for number, job in jobs:
        for name in job.uses:
            if name not in known:
                raise not_found(
                    f"{at_line(number)}No service {said(name)}. "
                    f"Make it: queuectl service set {typed_with(name, '--concurrent 1')}"
                )


def check_folders(jobs: Sequence[Numbered]) -> None:
    """Warn of folders that are not there."""
    for folder in {job.cwd for _, job in jobs if job.cwd is not None}:
        if not os.path.isdir(folder):  # noqa: PTH112 (a path may be too long for anything but this)
            warn(f"There is no folder {shown(folder)} yet: jobs there fail until there is.")


def at_line(number: int) -> str:
    """The beginning of a message about a job in that line."""
    return f"line {number}: " if number else ""


def say_if_alone(home: Home, queues: set[str]) -> None:
    """Say on a terminal that nobody serves one of these queues."""
    if is_terminal():
        with home.reader() as reader:
            crew = Crew(reader.workers())
        if not all(map(crew.serves, queues)):
            note("No worker is running for that. Start one: queuectl worker start")
