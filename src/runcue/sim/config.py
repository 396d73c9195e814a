"""What is simulated: services and how they behave, what arrives, for how long, and what goes wrong.

A configuration comes from YAML, from a scenario or from Python, and is the same thing each time: `Config`. The
names of its fields are the keys of the file, so that a report shows a configuration in the form it can be read
from again.

Rules:
- A file is untrusted: at most 1 MiB of it is looked at, and plain.py reads it.
- Whatever is wrong raises `BadConfig` with the path of the key and what was expected there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

import runcue
from runcue.sim.behaviour import Behaviour, Latency, Outage, read_behaviour
from runcue.sim.limits import (
    Adaptive,
    Amount,
    Quantities,
    Total,
    read_adaptive,
    read_amount,
    read_cost,
    read_keys,
    read_quantities,
    read_total,
    windows,
)
from runcue.sim.plain import plain
from runcue.sim.reading import (
    BadConfig,
    Given,
    choice,
    duration,
    flag,
    name,
    number,
    optional,
    quoted,
    rate,
    several,
    speed,
    unique,
    whole,
)

__all__ = ["BadConfig", "Behaviour", "Config", "Kill", "Latency", "Outage", "RetryConfig", "ServiceConfig",
           "Step", "Workload", "load", "parse", "with_changes"]  # fmt: skip

LARGEST_FILE = 1024 * 1024
MOST_WORKS = 10_000_000

PATTERNS = ("none", "single", "chain", "fan_out", "fan_in", "diamond", "complex", "circular", "random")
LINKS = ("depends_on", "is_ready")
STORES = ("memory", "file")
BACKOFFS = ("exponential", "linear", "fixed", "power")


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a service, as runcue is given them, and how its mock behaves."""

    concurrent: int | None = None
    rates: list[str] = []
    circuit_threshold: int | None = None
    circuit_timeout: float = 300.0
    quantities: Quantities = {}
    adaptive: Adaptive | None = None
    per: str | None = None
    total: Total | None = None
    behaviour: Behaviour = Behaviour()

    def windows(self) -> list[tuple[int, float]]:
        """Its rates as numbers: how many starts in how many seconds."""
        return windows(self.rates)

    @property
    def places(self) -> int | None:
        """How many calls at once at most."""
        return self.concurrent if self.adaptive is None else self.adaptive.max

    def sells(self) -> set[str]:
        """The quantities that are limited here."""
        return {*self.quantities, *(() if self.total is None else self.total.quantities)}

    def options(self) -> dict[str, Any]:
        """What `cue.service` is given."""
        adaptive = self.adaptive
        found: dict[str, Any] = {
            "rate": self.rates or None,
            "concurrent": self.concurrent
            if adaptive is None
            else runcue.adaptive(min=adaptive.min, start=adaptive.start, max=adaptive.max),
            "circuit_threshold": self.circuit_threshold,
            "circuit_timeout": self.circuit_timeout,
            **self.quantities,
        }
        if self.per is not None:
            found.update(per=self.per, total=None if self.total is None else self.total.option())
        return found


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From that second on so many works arrive in a second."""

    at: float
    rate: float


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives, how much of it, and how works hang together."""

    pattern: str = "none"
    pattern_weights: dict[str, float] = {}
    fan_out_width: int = 3
    diamond_width: int = 2
    chain_depth: int = 3
    task_types: list[str] = []
    uses: dict[str, list[str]] = {}
    submit_rate: float | None = 1.0
    submit_rates: list[Step] = []
    arrivals: str = "poisson"
    count: int | None = None
    priorities: dict[float, float] = {}
    cost: dict[str, Amount] = {}
    used: Amount | None = None
    keys: dict[str, dict[str, float]] = {}
    linked_by: str = "depends_on"
    check_every: float | None = None


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often work is tried: the fields of `runcue.Retry` that can be written down."""

    max_attempts: int = 3
    backoff: str = "exponential"
    base_delay: float = 1.0
    max_delay: float = 300.0
    jitter: bool = True

    def policy(self) -> runcue.Retry:
        """The same as runcue takes it."""
        return runcue.Retry(**{field: getattr(self, field) for field in self.__struct_fields__})


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """At that second a node dies, as by kill -9; another takes its place after `down` seconds."""

    at: float
    node: int = 0
    down: float = 5.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. Times are seconds from its beginning."""

    name: str = "custom"
    seed: int = 1
    duration: float = 600.0
    drain: float | None = None
    services: dict[str, ServiceConfig] = {}
    workload: Workload = Workload()
    retry: RetryConfig = RetryConfig()
    timeout: float | None = 30.0
    pending_timeout: float | None = None
    age_step: float | None = 60.0
    max_queued: int | None = None
    store: str = "memory"
    nodes: int = 1
    kills: list[Kill] = []

    def uses(self) -> dict[str, list[str]]:
        """The services of each task, in the order of the tasks; by default one task for each service."""
        given = self.workload.uses
        tasks = self.workload.task_types or list(given) or list(self.services)
        names = list(self.services)
        return {task: given.get(task, [names[place % len(names)]]) for place, task in enumerate(tasks)}

    def patience(self) -> float:
        """How long the run may go on after the last arrival."""
        return self.duration if self.drain is None else self.drain


# --- from text -----------------------------------------------------------------------------------------------


def load(text: str, *, name: str) -> Config:
    """The configuration that a YAML text describes; `name` is what the file is called."""
    if len(text) > LARGEST_FILE or len(text.encode("utf-8", "surrogatepass")) > LARGEST_FILE:
        raise BadConfig("", f"at most {LARGEST_FILE:,} bytes", is_given=False)
    value = plain(text, "")
    return parse({} if value is None else value, name=name)


# --- from plain values ---------------------------------------------------------------------------------------


def parse(value: object, *, name: str) -> Config:
    """The configuration that plain values describe, as they come from YAML or JSON."""
    given = Given(value, "", "services: and workload:")
    if not given.has("services"):
        raise BadConfig("services", "at least one service", is_given=False)
    config = Config(
        name=given.take("name", _name, name),
        seed=given.take("seed", whole(0, 2**63), 1),
        duration=given.take("duration", duration(0.001), 600.0),
        drain=given.take("drain", optional(duration()), None),
        services=given.take("services", _services, {}),
        workload=given.take("workload", _workload, Workload()),
        retry=given.take("retry", _retry, RetryConfig()),
        timeout=given.take("timeout", optional(duration(0.001)), 30.0),
        pending_timeout=given.take("pending_timeout", optional(duration(0.001)), None),
        age_step=given.take("age_step", optional(duration(0.001)), 60.0),
        max_queued=given.take("max_queued", optional(whole(1, MOST_WORKS)), None),
        store=given.take("store", choice(*STORES), "memory"),
        nodes=given.take("nodes", whole(1, 16), 1),
        kills=given.take("kills", several(_kill), []),
    )
    given.end()
    _fits_together(config)
    return config


def _name(value: object, path: str) -> str:
    return name(value, path)


def _services(value: object, path: str) -> dict[str, ServiceConfig]:
    given = Given(value, path, "a service for each key")
    found = {name(key, path): _service(item, given.at(key)) for key, item in given.rest().items()}
    if not found:
        raise BadConfig(path, "at least one service", value)
    return found


def _service(value: object, path: str) -> ServiceConfig:
    given = Given({} if value is None else value, path, "limits and behavior of a service")
    rates: list[str] = given.take("rate rates", several(rate), [])
    limit = given.take("rate_limit", lambda item, where: (item, where), (None, ""))
    window = given.take("rate_window", optional(duration(0.001)), None)
    rates += _older_rate(limit, window, given.at("rate_window"))
    behaviour = given.take("behaviour behavior", read_behaviour, Behaviour())
    threshold = given.take("circuit_threshold", optional(whole(1, 1_000_000)), None)
    concurrent = given.take("concurrent max_concurrent", optional(whole(1, 1_000_000)), None)
    circuit_timeout = given.take("circuit_timeout", duration(0.001), 300.0)
    adaptive = given.take("adaptive", optional(read_adaptive), None)
    per = given.take("per", optional(name), None)
    total = given.take("total", optional(read_total), None)
    service = ServiceConfig(
        concurrent=concurrent,
        rates=unique(rates),
        circuit_threshold=5 if threshold is None and behaviour.circuit_test else threshold,
        circuit_timeout=circuit_timeout,
        quantities=read_quantities(given),
        adaptive=adaptive,
        per=per,
        total=total,
        behaviour=behaviour,
    )
    given.end()
    if adaptive is not None and concurrent is not None:
        raise BadConfig(given.at("adaptive"), "no concurrent beside it", is_given=False)
    if total is not None and per is None:
        raise BadConfig(
            given.at("total"), "per beside it: it is what all keys together may have", is_given=False
        )
    return service


def _older_rate(limit: tuple[object, str], window: float | None, path: str) -> list[str]:
    value, where = limit
    if value is None:
        if window is not None:
            raise BadConfig(path, "rate_limit beside it", is_given=False)
        return []
    if isinstance(value, str):
        if window is not None:
            raise BadConfig(path, f"none, because rate_limit {quoted(value)} has one", window)
        return [rate(value, where)]
    return [rate([whole(1, 1_000_000_000)(value, where), 60.0 if window is None else window], where)]


def _step(value: object, path: str) -> Step:
    given = Given(value, path, "at: and rate:")
    step = Step(at=given.take("at", duration(), 0.0), rate=given.take("rate", speed, 1.0))
    given.end()
    return step


def _kill(value: object, path: str) -> Kill:
    given = Given(value, path, "at:, node: and down:")
    kill = Kill(
        at=given.take("at", duration(), 0.0),
        node=given.take("node", whole(0, 15), 0),
        down=given.take("down", duration(0.001), 5.0),
    )
    given.end()
    return kill


def _workload(value: object, path: str) -> Workload:
    given = Given(value, path)
    has_rates = given.has("submit_rates")
    count = given.take("count", optional(whole(1, MOST_WORKS)), None)
    workload = Workload(
        pattern=given.take("pattern", choice(*PATTERNS), "none"),
        pattern_weights=given.take("pattern_weights", _pattern_weights, {}),
        fan_out_width=given.take("fan_out_width", whole(1, 1000), 3),
        diamond_width=given.take("diamond_width", whole(1, 1000), 2),
        chain_depth=given.take("chain_depth", whole(1, 1000), 3),
        task_types=unique(given.take("task_types", several(name, 100), [])),
        uses=given.take("uses", _uses, {}),
        submit_rate=given.take("submit_rate", optional(speed), None if count or has_rates else 1.0),
        submit_rates=sorted(given.take("submit_rates", several(_step), []), key=lambda step: step.at),
        arrivals=given.take("arrivals", choice("poisson", "regular"), "poisson"),
        count=count,
        priorities=given.take("priorities", _priorities, {}),
        cost=given.take("cost", read_cost, {}),
        used=given.take("used", optional(read_amount), None),
        keys=given.take("keys", read_keys, {}),
        linked_by=given.take("linked_by", choice(*LINKS), "depends_on"),
        check_every=given.take("check_every", optional(duration(0.001)), None),
    )
    given.end()
    return workload


def _pattern_weights(value: object, path: str) -> dict[str, float]:
    given = Given(value, path, "a weight for each pattern")
    read = choice(*PATTERNS[:-1])
    return _weighed({read(key, path): item for key, item in given.rest().items()}, path)


def _priorities(value: object, path: str) -> dict[float, float]:
    if isinstance(value, list):
        value = dict.fromkeys(value, 1.0)
    given = Given(value, path, "a weight for each priority")
    found = {}
    for key, item in given.rest().items():
        try:
            exact = number(-1e9, 1e9)(float(key), path)
        except ValueError:
            raise BadConfig(path, "priorities that are numbers", key) from None
        found[exact] = item
    return _weighed(found, path)


def _weighed(found: dict[Any, Any], path: str) -> dict[Any, float]:
    weights = {key: number(0, 1e9)(item, f"{path}.{key}") for key, item in found.items()}
    if weights and not sum(weights.values()):
        raise BadConfig(path, "a weight of more than 0", is_given=False)
    return weights


def _uses(value: object, path: str) -> dict[str, list[str]]:
    given = Given(value, path, "the services of each task")
    return {name(key, path): several(name, 100)(item, given.at(key)) for key, item in given.rest().items()}


def _retry(value: object, path: str) -> RetryConfig:
    if isinstance(value, int) and not isinstance(value, bool):
        return RetryConfig(max_attempts=max(1, whole(0, 1000)(value, path)))
    given = Given(value, path, "a number of attempts, or keys and values")
    retry = RetryConfig(
        max_attempts=given.take("max_attempts", whole(1, 1000), 3),
        backoff=given.take("backoff", choice(*BACKOFFS), "exponential"),
        base_delay=given.take("base_delay", duration(), 1.0),
        max_delay=given.take("max_delay", duration(), 300.0),
        jitter=given.take("jitter", flag, True),
    )
    given.end()
    return retry


def _fits_together(config: Config) -> None:
    """Refuse what is right by itself and wrong beside the rest."""
    workload = config.workload
    tasks = config.uses()
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
    _limits_fit(config)
    if workload.submit_rate is None and workload.count is None and not workload.submit_rates:
        raise BadConfig("workload.submit_rate", "a rate, unless there is a count", is_given=False)
    steps = [step.rate for step in workload.submit_rates] + [workload.submit_rate or 0.0]
    if workload.count is None and max(steps) * config.duration > MOST_WORKS:
        raise BadConfig(
            "workload.submit_rate", f"at most {MOST_WORKS:,} works in all", f"{max(steps):g} a second"
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
        if not math.isfinite(kill.at):
            raise BadConfig(f"kills[{place}].at", "a time", kill.at)


def _limits_fit(config: Config) -> None:
    """Costs are of something that is limited, and a service with keys is given some."""
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


# --- changes -------------------------------------------------------------------------------------------------

SHORT = {"rate": "rates", "max_concurrent": "concurrent", "behavior": "behaviour"}


def with_changes(config: Config, changes: Iterable[str]) -> Config:
    """The same configuration but for `path=value`: `api.rate=120/min`, `workload.submit_rate=5`, `retry=5`."""
    value = msgspec.to_builtins(config)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise BadConfig(change[:64], "a path, = and a value, such as api.rate=120/min", is_given=False)
        _put(value, path.strip(), plain(text.strip(), path.strip()), config)
    return parse(value, name=config.name)


def _put(value: dict[Any, Any], path: str, given: object, config: Config) -> None:
    steps = path.split(".")
    if steps[0] in config.services and steps[0] not in value:
        steps.insert(0, "services")
    if steps[0] == "services" and len(steps) > 2:
        steps[2] = SHORT.get(steps[2], steps[2])
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
