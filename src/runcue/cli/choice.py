"""The options by which verbs of `runcue` choose units, and what they mean.

Rules:
- The names are those of `Cue.list`. `--tag` may be given several times: a unit has to have all of them.
- A time is a moment (2026-01-31T18:00:00Z, epoch seconds) or how long ago it was (90s, 2h, 7d).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from runcue.cli.completion import queue, service
from runcue.cli.failure import bad_input
from runcue.cli.fields import CHECKS, duration, said, unicode
from runcue.cli.groups import F, declared
from runcue.cli.words import RUNCUE

NAMES = ("state", "task", "queue", "service", "tag", "group", "key", "search", "since", "until")


def choosing(*, state: bool = True) -> Callable[[F], F]:
    """The options of a verb that chooses units; it passes their values to `chosen`."""
    options = [
        click.option("--task", metavar="NAME", help="Only units of this task."),
        click.option("--queue", metavar="NAME", shell_complete=queue, help="Only units of this queue."),
        click.option(
            "--service", metavar="NAME", shell_complete=service, help="Only units that use this service."
        ),
        click.option(
            "--tag",
            metavar="NAME=VALUE",
            multiple=True,
            help="Only units with this tag; may be given several times.",
        ),
        click.option("--group", metavar="NAME", help="Only units of this group."),
        click.option("--key", metavar="KEY", help="Only units with this idempotency key."),
        click.option(
            "--search",
            metavar="TEXT",
            help="Only with this text in id, key, label, target, error or params; the newest 200,000 are searched.",
        ),
        click.option("--since", metavar="TIME", help="Only units submitted since then: 2h ago, or a moment."),
        click.option("--until", metavar="TIME", help="Only units submitted before: 2h ago, or a moment."),
    ]
    if state:
        states = click.Choice(RUNCUE.states)
        options.insert(0, click.option("--state", type=states, help="Only units in this state."))
    return declared(*options)


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """What these options choose, as `Cue.list` takes it; empty where none was given."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == ():
            continue
        if name == "tag":
            found["tags"] = dict(map(_tag, value))
        elif name in {"since", "until"}:
            found[name] = _moment(name, value)
        else:
            found[name] = unicode(f"--{name}", value)
    return found


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = unicode("--tag", text).partition("=")
    if not (name and equals and value):
        raise bad_input(f"--tag cannot be {said(text)}: expected a name and a value, such as run=nightly.")
    return name, value


def _moment(name: str, text: str) -> float:
    """A moment, or a length of time before now."""
    if text[-1:].isalpha() and text[-1:] != "Z":
        return time.time() - duration(f"--{name}", text)
    moment: float = CHECKS["run_at"](f"--{name}", text)
    return float(moment)
