"""What is simulated: services and how they behave, what arrives, for how long, and what goes wrong.

A configuration comes from YAML, from a scenario or from Python, and is always a `Config`. The names of its fields
are the keys of the file, and each field carries the reader of its value; so a report shows a configuration in a
form that can be loaded again.

Rules:
- A file is untrusted: at most 1 MiB of it is looked at, and plain.py reads it.
- Whatever is wrong raises `BadConfig` with the path of the key and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

import runcue
from runcue.sim import reading as read
from runcue.sim.behaviour import Behaviour, Latency, Outage, read_behaviour
from runcue.sim.limits import (
    MOST_PLACES,
    Adaptive,
    Amount,
    Quantities,
    Total,
    limited,
    read_adaptive,
    read_amount,
    read_cost,
    read_keys,
    read_quantities,
    read_rates,
    read_total,
    windows,
)
from runcue.sim.plain import plain
from runcue.sim.reading import ALSO, BadConfig
from runcue.sim.timetable import MIDNIGHT, ScheduleConfig, read_schedules

__all__ = ["BadConfig", "Behaviour", "Config", "Kill", "Latency", "Outage", "RetryConfig", "ScheduleConfig",
           "ServiceConfig", "Step", "Workload", "load", "parse", "with_changes"]  # fmt: skip

LARGEST_FILE = 1024 * 1024
MOST_UNITS = 10_000_000

PATTERNS = ("none", "single", "chain", "fan_out", "fan_in", "diamond", "complex", "circular", "random")
LINKS = ("depends_on", "is_ready")
STORES = ("memory", "file")
BACKOFFS = ("exponential", "linear", "fixed", "power")

_time = read.duration(0.001)
_width = read.whole(1, 1000)


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a service, as runcue is given them, and how its mock behaves."""

    concurrent: Annotated[int | None, read.optional(read.whole(1, MOST_PLACES))] = None
    rates: Annotated[list[str], read_rates] = []
    circuit_threshold: Annotated[int | None, read.optional(read.whole(1, 1_000_000))] = None
    circuit_timeout: Annotated[float, _time] = 300.0
    quantities: Annotated[Quantities, read_quantities] = {}
    adaptive: Annotated[Adaptive | None, read.optional(read_adaptive)] = None
    per: Annotated[str | None, read.optional(read.name)] = None
    total: Annotated[Total | None, read.optional(read_total)] = None
    behaviour: Annotated[Behaviour, read_behaviour] = Behaviour()

    def windows(self) -> list[tuple[int, float]]:
        """Its rates as numbers: how many starts in how many seconds."""
        return windows(self.rates)

    @property
    def places(self) -> int | None:
        """The most calls at once, or None if nothing limits them."""
        return self.concurrent if self.adaptive is None else self.adaptive.max

    def sells(self) -> set[str]:
        """The quantities that are limited here."""
        return {*self.quantities, *(() if self.total is None else self.total.quantities)}

    def options(self) -> dict[str, Any]:
        """The options of `cue.service`."""
        adaptive = self.adaptive
        found: dict[str, Any] = {
            "rate": self.rates or None,
            "concurrent": self.concurrent,
            "circuit_threshold": self.circuit_threshold,
            "circuit_timeout": self.circuit_timeout,
            **self.quantities,
        }
        if adaptive is not None:
            found["concurrent"] = runcue.adaptive(min=adaptive.min, start=adaptive.start, max=adaptive.max)
        if self.per is not None:
            found.update(per=self.per, total=None if self.total is None else self.total.option())
        return found


def unique(names: Iterable[str]) -> list[str]:
    """Names without repetition, in their order."""
    return list(dict.fromkeys(names))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From second `at` on, `rate` units arrive in a second."""

    at: Annotated[float, read.duration()] = 0.0
    rate: Annotated[float, read.speed] = 1.0


_each_step = read.several(read.struct(Step, "at: and rate:"))


def _steps(value: object, path: str) -> list[Step]:
    return sorted(_each_step(value, path), key=lambda step: step.at)


def _tasks(value: object, path: str) -> list[str]:
    return unique(read.several(read.name, 100)(value, path))


def _priority(key: Any, path: str) -> float:
    try:
        return read.number(-1e9, 1e9)(float(key), path)
    except (TypeError, ValueError):
        raise BadConfig(path, "priorities that are numbers", key) from None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives, how much of it, and how units depend on each other."""

    pattern: Annotated[str, read.choice(*PATTERNS)] = "none"
    pattern_weights: Annotated[
        dict[str, float], read.weights(read.choice(*PATTERNS[:-1]), "a weight for each pattern")
    ] = {}
    fan_out_width: Annotated[int, _width] = 3
    diamond_width: Annotated[int, _width] = 2
    chain_depth: Annotated[int, _width] = 3
    task_types: Annotated[list[str], _tasks] = []
    uses: Annotated[
        dict[str, list[str]],
        read.mapping(read.name, read.several(read.name, 100), "the services of each task"),
    ] = {}
    submit_rate: Annotated[float | None, read.optional(read.speed)] = 1.0
    submit_rates: Annotated[list[Step], _steps] = []
    arrivals: Annotated[str, read.choice("poisson", "regular")] = "poisson"
    count: Annotated[int | None, read.optional(read.whole(1, MOST_UNITS))] = None
    priorities: Annotated[dict[float, float], read.weights(_priority, "a weight for each priority")] = {}
    cost: Annotated[dict[str, Amount], read_cost] = {}
    used: Annotated[Amount | None, read.optional(read_amount)] = None
    keys: Annotated[dict[str, dict[str, float]], read_keys] = {}
    linked_by: Annotated[str, read.choice(*LINKS)] = "depends_on"
    check_every: Annotated[float | None, read.optional(_time)] = None


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often a unit is tried: the fields of `runcue.Retry` that can be written down."""

    max_attempts: Annotated[int, _width] = 3
    backoff: Annotated[str, read.choice(*BACKOFFS)] = "exponential"
    base_delay: Annotated[float, read.duration()] = 1.0
    max_delay: Annotated[float, read.duration()] = 300.0
    jitter: Annotated[bool, read.flag] = True

    def policy(self) -> runcue.Retry:
        """The `Retry` with these fields."""
        return runcue.Retry(**{field: getattr(self, field) for field in self.__struct_fields__})


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """At second `at` a node dies, as by kill -9; another takes its place after `down` seconds."""

    at: Annotated[float, read.duration()] = 0.0
    node: Annotated[int, read.whole(0, 15)] = 0
    down: Annotated[float, _time] = 5.0


def _services(value: object, path: str) -> dict[str, ServiceConfig]:
    found = read.mapping(read.name, _service, "a service for each key")(value, path)
    if not found:
        raise BadConfig(path, "at least one service", value)
    return found


def _service(value: object, path: str) -> ServiceConfig:
    given = {} if value is None else value
    older: list[str] = []
    if isinstance(given, dict):
        older = _older_rate(given.get("rate_limit"), given.get("rate_window"), path)
        given = {key: item for key, item in given.items() if key not in OLDER}
    service = limited(ServiceConfig, given, path, "limits and behavior of a service", also=OLDER)
    if service.adaptive is not None and service.concurrent is not None:
        raise BadConfig(read.at(path, "adaptive"), "no concurrent beside it")
    if service.total is not None and service.per is None:
        raise BadConfig(read.at(path, "total"), "per beside it: it is what all keys together may have")
    threshold = service.circuit_threshold
    return replace(
        service,
        rates=unique([*service.rates, *older]),
        circuit_threshold=5 if threshold is None and service.behaviour.circuit_test else threshold,
    )


OLDER = ("rate_limit", "rate_window")
"""Keys that write a rate as two numbers."""


def _older_rate(limit: object, window: object, path: str) -> list[str]:
    limit_path, window_path = (read.at(path, key) for key in OLDER)
    per = read.optional(_time)(window, window_path)
    if limit is None:
        if per is not None:
            raise BadConfig(window_path, "rate_limit beside it")
        return []
    if isinstance(limit, str):
        if per is not None:
            raise BadConfig(window_path, f"none, because rate_limit {read.quoted(limit)} has one", per)
        return [read.rate(limit, limit_path)]
    exact = read.whole(1, 1_000_000_000)(limit, limit_path)
    return [read.rate([exact, 60.0 if per is None else per], limit_path)]


def _workload(value: object, path: str) -> Workload:
    workload = read.record(Workload, value, path)
    assert isinstance(value, dict)
    if "submit_rate" not in value and (workload.count or "submit_rates" in value):
        return replace(workload, submit_rate=None)
    return workload


def _retry(value: object, path: str) -> RetryConfig:
    if isinstance(value, int):
        return RetryConfig(max_attempts=max(1, read.whole(0, 1000)(value, path)))
    return read.record(RetryConfig, value, path, "a number of attempts, or keys and values")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. Times are seconds from its beginning."""

    name: Annotated[str, read.name] = "custom"
    seed: Annotated[int, read.whole(0, 2**63)] = 1
    duration: Annotated[float, _time] = 600.0
    drain: Annotated[float | None, read.optional(read.duration())] = None
    services: Annotated[dict[str, ServiceConfig], _services] = {}
    workload: Annotated[Workload, _workload] = Workload()
    schedules: Annotated[dict[str, ScheduleConfig], read_schedules] = {}
    begins: Annotated[str, read.moment] = MIDNIGHT
    retry: Annotated[RetryConfig, _retry] = RetryConfig()
    timeout: Annotated[float | None, read.optional(_time)] = 30.0
    pending_timeout: Annotated[float | None, read.optional(_time)] = None
    age_step: Annotated[float | None, read.optional(_time)] = 60.0
    max_queued: Annotated[int | None, read.optional(read.whole(1, MOST_UNITS))] = None
    store: Annotated[str, read.choice(*STORES)] = "memory"
    nodes: Annotated[int, read.whole(1, 16)] = 1
    kills: Annotated[list[Kill], read.several(read.struct(Kill, "at:, node: and down:"))] = []

    def arriving(self) -> dict[str, list[str]]:
        """The services of each task that arrives, in the order of the tasks; by default one task for each service."""
        given = self.workload.uses
        tasks = self.workload.task_types or list(given) or list(self.services)
        names = list(self.services)
        return {task: given.get(task, [names[place % len(names)]]) for place, task in enumerate(tasks)}

    def uses(self) -> dict[str, list[str]]:
        """The services of every task: of those that arrive, and of those that only schedules submit."""
        found = self.arriving()
        for name, schedule in self.schedules.items():
            found.setdefault(schedule.task or name, schedule.uses or [next(iter(self.services))])
        return found

    @property
    def begins_at(self) -> float:
        """When it begins, by the clock on the wall."""
        return datetime.fromisoformat(self.begins).timestamp()

    @property
    def is_silent(self) -> bool:
        """True when nothing arrives but what schedules submit."""
        workload = self.workload
        return workload.submit_rate is None and workload.count is None and not workload.submit_rates

    def patience(self) -> float:
        """How long the run may go on after the last arrival."""
        return self.duration if self.drain is None else self.drain


# --- reading -------------------------------------------------------------------------------------------------


def load(text: str, *, name: str) -> Config:
    """The configuration that a YAML text describes; `name` is what the file is called."""
    if len(text) > LARGEST_FILE or len(text.encode("utf-8", "surrogatepass")) > LARGEST_FILE:
        raise BadConfig("", f"at most {LARGEST_FILE:,} bytes")
    value = plain(text, "")
    return parse({} if value is None else value, name=name)


def parse(value: object, *, name: str) -> Config:
    """Read a configuration from plain values, as they come from YAML or JSON; `name` unless they have one."""
    if isinstance(value, dict):
        if "services" not in value:
            raise BadConfig("services", "at least one service")
        value = {"name": name, **value}
    config = read.record(Config, value, "", "services: and workload:")
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """Refuse values that are right by themselves and do not fit each other."""
    workload = config.workload
    tasks = config.arriving()
    for task, services in workload.uses.items():
        if task not in tasks:
            raise BadConfig(
                f"workload.uses.{task}", f"one of task_types ({', '.join(tasks)})", task, names=tasks
            )
        for service in services:
            if service not in config.services:
                known = config.services
                raise BadConfig(
                    f"workload.uses.{task}", f"a service ({', '.join(known)})", service, names=known
                )
    _check_limits(config)
    _check_schedules(config)
    if config.is_silent and not config.schedules:
        raise BadConfig("workload.submit_rate", "a rate, unless there is a count or a schedule")
    steps = [step.rate for step in workload.submit_rates] + [workload.submit_rate or 0.0]
    if workload.count is None and max(steps) * config.duration > MOST_UNITS:
        raise BadConfig(
            "workload.submit_rate", f"at most {MOST_UNITS:,} units in all", f"{max(steps):g} a second"
        )
    if config.timeout is None:
        for key, one in config.services.items():
            if one.behaviour.timeout_rate:
                raise BadConfig("timeout", f"a time, because services.{key} has a timeout_rate", None)
    if config.store == "memory" and (config.nodes > 1 or config.kills):
        raise BadConfig("store", "file, because several nodes and kills need one", config.store)
    for place, kill in enumerate(config.kills):
        if kill.node >= config.nodes:
            raise BadConfig(f"kills[{place}].node", f"a number below nodes ({config.nodes})", kill.node)


def _check_limits(config: Config) -> None:
    """Refuse costs that no service limits, and a service whose key has no values."""
    sold = {quantity for service in config.services.values() for quantity in service.sells()}
    for quantity in config.workload.cost:
        if quantity not in sold:
            known = ", ".join(sorted(sold)) or "there is none"
            raise BadConfig(
                f"workload.cost.{quantity}", f"a quantity of a service ({known})", quantity, names=sold
            )
    for key, service in config.services.items():
        if service.per is not None and service.per not in config.workload.keys:
            keys = config.workload.keys
            raise BadConfig(f"services.{key}.per", "a key of workload.keys", service.per, names=keys)


def _check_schedules(config: Config) -> None:
    """Refuse schedules of tasks and services that are not there, and of more units than a simulation may have."""
    tasks, known = config.arriving(), config.services
    for name, schedule in config.schedules.items():
        if schedule.task is not None and schedule.task not in tasks:
            path = f"schedules.{name}.task"
            raise BadConfig(path, f"a task that arrives ({', '.join(tasks)})", schedule.task, names=tasks)
        for service in schedule.uses:
            if service not in known:
                path = f"schedules.{name}.uses"
                raise BadConfig(path, f"a service ({', '.join(known)})", service, names=known)
    if sum(one.most for one in config.schedules.values()) * config.duration > MOST_UNITS:
        raise BadConfig("schedules", f"at most {MOST_UNITS:,} units in all")


# --- changes -------------------------------------------------------------------------------------------------


def with_changes(config: Config, changes: Iterable[str]) -> Config:
    """Change a configuration by `path=value`: `api.rate=120/min`, `workload.submit_rate=5`, `retry=5`."""
    value = msgspec.to_builtins(config)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise BadConfig(change[:64], "a path, = and a value, such as api.rate=120/min")
        _put(value, path.strip(), plain(text.strip(), path.strip()), config)
    return parse(value, name=config.name)


def _put(value: dict[Any, Any], path: str, given: object, config: Config) -> None:
    steps = path.split(".")
    if steps[0] in config.services and steps[0] not in value:
        steps.insert(0, "services")
    if steps[0] == "services" and len(steps) > 2:
        steps[2] = ALSO.get(steps[2], steps[2])
        if steps[2] in Behaviour.__struct_fields__:
            steps.insert(2, "behaviour")
        if steps[2] == "rate_limit":
            steps[2] = "rates"
    here: Any = value
    for place, step in enumerate(steps[:-1]):
        inside = here.get(step) if isinstance(here, dict) else None
        if not isinstance(inside, dict):
            names = [*map(str, here), *(() if place else config.services)] if isinstance(here, dict) else []
            known = ", ".join(names) or "nothing below it"
            raise BadConfig(".".join(steps[: place + 1]), f"one of {known}", step, names=names)
        here = inside
    here[steps[-1]] = given
