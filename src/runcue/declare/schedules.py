"""What users say of a schedule: when its slots are, and what becomes of those that come at a bad moment."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runcue.core.model import parse
from runcue.core.model.schedule import TAG, Schedule, Timing
from runcue.declare.options import choice, pause, span
from runcue.errors import ConfigError, InvalidOption, SubmitError, quoted
from runcue.host.calendar import read_cron, read_zone

if TYPE_CHECKING:
    from runcue.declare.registry import Registry
    from runcue.declare.task import Task

OVERLAP: Final = ("skip", "queue", "replace")
MISSED: Final = ("latest", "all", "none")
SHORTEST: Final = 1.0
"""Seconds between two slots, at least: for less, let one unit do more."""
TIMING: Final = ("every", "cron", "tz", "start", "until", "jitter")
SETTINGS: Final = (*TIMING, "overlap", "missed")
OF_A_SLOT: Final = {
    "id": "each unit has one of its own",
    "idempotency_key": "each slot has a key of its own",
    "run_at": "its slots say when it runs",
    "delay": "its slots say when it runs; use jitter= to spread them",
    "connection": "a schedule is added by a turn of its own",
    "on_failed": "a slot is submitted once",
}
"""Options of `submit` that the units of a schedule cannot have, and why."""
HIDDEN: Final = ("make_id", "task_type")
"""Arguments of `Registry.spec` that are no options of a schedule."""
_clock = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*").fullmatch


def read_timing(
    now: float,
    every: Any = None,
    cron: Any = None,
    tz: Any = None,
    start: Any = None,
    until: Any = None,
    jitter: Any = None,
) -> Timing:
    """When the slots of a schedule are."""
    if (every is None) == (cron is None):
        given = "neither" if every is None else "both"
        raise ConfigError(f'A schedule has either every="5m" or cron="0 3 * * *", and {given} was given.')
    first, last = (
        None if at is None else _moment(at, name) for at, name in ((start, "start"), (until, "until"))
    )
    if last is not None and last <= max(first or 0.0, 0.0):
        raise InvalidOption("until", until, "a moment after start")
    late = 0.0 if jitter is None else pause(jitter, "jitter")
    if cron is None:
        if tz is not None:
            raise ConfigError("tz= is for cron=: an interval is the same in every time zone.")
        return Timing(span(every, "every", SHORTEST), None, "UTC", first, last, late)
    zone = "UTC" if tz is None else read_zone(tz)
    return Timing(None, read_cron(cron, zone, now), zone, first, last, late)


def _moment(value: object, name: str) -> float:
    if isinstance(value, str) and _clock(value):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass
    return parse.moment(value, name)


def read_schedule(
    registry: Registry,
    name: str,
    task: str | Callable[..., Any],
    now: float,
    options: Mapping[str, Any],
    source: str | None = None,
) -> Schedule:
    """A schedule of a registered task, from its settings and the options that its units are submitted with."""
    name = parse.name(name, "schedule")
    timing, overlap, missed = check_options(registry, options, now)
    rest = {option: value for option, value in options.items() if option not in SETTINGS}
    spec = registry.spec(task, make_id=str, **rest)
    return Schedule(name, timing, spec, True, overlap, missed, source)


def check_options(registry: Registry, options: Mapping[str, Any], now: float) -> tuple[Timing, str, str]:
    """When the slots of a schedule are, and what it does about overlapping and missed ones."""
    if TAG in (options.get("tags") or ()):
        raise ConfigError(
            f"The tag {TAG!r} of a unit says which schedule it is of. Choose another name for yours."
        )
    for option in options:
        if option in OF_A_SLOT:
            raise ConfigError(f"A schedule has no {option}=: {OF_A_SLOT[option]}.")
    known = (option for option in registry.spec.__kwdefaults__ or () if option not in HIDDEN)
    parse.reject_unknown(options, (*SETTINGS, *known), "A schedule")
    timing = read_timing(now, **{option: options[option] for option in TIMING if option in options})
    overlap = choice(options.get("overlap", "skip"), "overlap", OVERLAP)
    return timing, overlap, choice(options.get("missed", "latest"), "missed", MISSED)


def source_here() -> str:
    """The module whose code is calling runcue, by a name that is the same each time its program runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "runcue":
        frame = frame.f_back
    if frame is None:
        return "__main__"
    names = frame.f_globals
    module = str(names.get("__name__", "__main__"))
    if module != "__main__":
        return module
    if names.get("__spec__") is not None:  # python -m package.module
        return str(names["__spec__"].name).removesuffix(".__main__")
    # Not where a link leads to: that may be another folder with each release.
    return str(Path(names["__file__"]).absolute()) if "__file__" in names else "__main__"


class Declared(NamedTuple):
    """A schedule that code declares."""

    task: str
    options: Mapping[str, Any]
    source: str
    handler: Callable[..., Any]


class Schedules:
    """What the code of a program declares. What their units are submitted with is read when the queue is opened: only
    then all services are declared."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._declared: dict[str, Declared] = {}
        self._modules: dict[str, None] = {}
        """The modules of this program that have registered a task."""

    def __bool__(self) -> bool:
        return bool(self._declared)

    def note_module(self) -> None:
        """A module registers a task: what it declares is all that it declares."""
        self._modules[source_here()] = None

    def declare(self, name: str, task: Task, options: Mapping[str, Any], now: float) -> None:
        """Note a schedule of a registered task; what is wrong with it is said at once."""
        name = parse.name(name, "schedule")
        known = self._declared.get(name)
        if known is not None and known.task != task.name:
            raise ConfigError(
                f"Schedule {quoted(name)} is declared already, for task {quoted(known.task)}. Give one of them "
                "another name=."
            )
        if known is not None and known.handler is task.handler and known.options != options:
            raise ConfigError(f"Schedule {quoted(name)} is declared twice. Give one of them another name=.")
        check_options(self._registry, options, now)
        task.encode(options.get("params"), self._registry.options.max_params)
        self._declared[name] = Declared(task.name, options, source_here(), task.handler)

    def read(self, now: float, name: str | None = None) -> list[Schedule]:
        """All of them, or the one of that name, as schedules."""
        found = []
        for one in self._declared if name is None else (name,):
            said = self._declared[one]
            try:
                found.append(read_schedule(self._registry, one, said.task, now, said.options, said.source))
            except (ConfigError, SubmitError) as error:
                error.args = (f"Schedule {quoted(one)}: {error}",)
                raise
        return found

    def by_module(self) -> dict[str, tuple[str, ...]]:
        """The names of all schedules of each module that this program has tasks of."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self._modules, ())
        for name, said in self._declared.items():
            found[said.source] = (*found.get(said.source, ()), name)
        return found
