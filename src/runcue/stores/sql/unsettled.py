"""A schedule that was added from outside, by somebody who knows only the name of its task.

What is wrong with it is its problem: it is stored and shown, and submits nothing.
"""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec

from runcue.core.model import parse
from runcue.core.model.record import Spec
from runcue.core.model.schedule import Schedule, Timing
from runcue.errors import InvalidOption, RuncueError
from runcue.host.calendar import read_cron, read_zone
from runcue.stores.sql import codec

SHORTEST, LONGEST = 1.0, 1e9
"""Seconds between two slots."""
UNKNOWN: Final = "?"
"""Stands for the task of a schedule that says none."""


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    overlap: Literal["skip", "queue", "replace"] = "skip"
    missed: Literal["latest", "all", "none"] = "latest"
    jitter: float = 0.0
    priority: float = 0.0
    queue: str = "default"
    start: float | None = None
    until: float | None = None

    def timing(self) -> Timing:
        return Timing(self.every, self.cron, self.tz, self.start, self.until, self.jitter)


_decode: Final = msgspec.json.Decoder(_Said).decode


def schedule_of(name: str, text: str) -> Schedule:
    """The schedule that a row says."""
    try:
        said = _decode(text)
        return _schedule(name, said, _checked(said.timing()))
    except (msgspec.ValidationError, RuncueError) as error:
        given = msgspec.json.decode(text)
        return _wrong(name, given if isinstance(given, dict) else {}, str(error))


def _schedule(name: str, said: _Said, timing: Timing) -> Schedule:
    params = bytes(said.params)
    if params.lstrip()[:1] != b"{":
        raise InvalidOption("params", params.decode(), "a JSON object")
    task, queue = (
        codec.same_name(parse.name(said.task, "task")),
        codec.same_name(parse.name(said.queue, "queue")),
    )
    spec = Spec("", task, params, (), priority=said.priority, queue=queue)
    return Schedule(parse.name(name, "schedule"), timing, spec, False, said.overlap, said.missed)


def _checked(timing: Timing) -> Timing:
    """A timing of which everything can be true."""
    if (timing.every is None) == (timing.cron is None):
        raise InvalidOption("cron", timing.cron, "either this or every")
    first, last = (
        None if at is None else parse.moment(at, name)
        for at, name in ((timing.start, "start"), (timing.until, "until"))
    )
    if last is not None and last <= max(first or 0.0, 0.0):
        raise InvalidOption("until", last, "a moment after start")
    if timing.jitter:
        parse.duration(timing.jitter, "jitter")
    if timing.cron is not None:
        cron = read_cron(timing.cron, read_zone(timing.tz), time.time())
        return msgspec.structs.replace(timing, cron=cron)
    if not SHORTEST <= (timing.every or 0.0) <= LONGEST:
        raise InvalidOption("every", timing.every, "1 to 1,000,000,000 seconds between two units")
    return timing


def _wrong(name: str, given: dict[str, Any], problem: str) -> Schedule:
    """A schedule that is shown with what is wrong with it."""
    cron, tz, task = (_text(given.get(key)) for key in ("cron", "tz", "task"))
    every = given.get("every")
    timing = Timing(every if isinstance(every, (int, float)) else None, cron, tz or "UTC")
    spec = Spec("", task if task and task.isprintable() else UNKNOWN, b"{}", ())
    return Schedule(parse.name(name, "schedule"), timing, spec, is_settled=False, problem=problem)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
