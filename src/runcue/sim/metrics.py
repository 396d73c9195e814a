"""The metrics of a simulation, from its events alone, in memory that does not grow with its length.

    metrics = Metrics(config)
    outcome = simulate(config, 7, metrics)
    summary = metrics.finish(outcome)

Rules:
- Latency is from submission to completion, wait from submission to the first start, run one attempt.
- A unit that uses several services waits for all of them, and takes a place on each.
- A priority inversion is a unit that finishes (completes, or fails for good) before an older one of higher priority,
  whatever that one waits for or does.
- An out-of-order start is a first start while an older unit of higher priority, whose dependencies have ended, waits
  for exactly the same services with the same keys. (A unit that uses one more service may wait for that one.)
- Series have a point for each of some hundred stretches of time. Times are seconds from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy

import msgspec

import runcue
from runcue.sim.config import Config
from runcue.sim.gauges import Gauge, Series, ServiceSummary, halved
from runcue.sim.histogram import Histogram, Level, Spread, rounded
from runcue.sim.ranks import Ranks
from runcue.sim.reading import pretty_rate, span
from runcue.sim.world import Outcome, Simulation

__all__ = ["Metrics", "Series", "ServiceSummary", "Summary", "bottleneck"]

POINTS = 240
"""Points of a series for a run of the expected length; at twice as many, every two are merged."""
WIDTHS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400,
          604800)  # fmt: skip
"""Seconds that a point of a series may stand for."""
MOST_TRANSITIONS = 2000
MOST_ERRORS = 20
SPENT = 0.9
"""A quantity of which this share is used counts as a bottleneck."""
NOTHING: Mapping[str, float] = {}
PRESSING = 0.1
"""A limit that delays units for this share of the time counts as a bottleneck."""


class ScheduleSummary(msgspec.Struct):
    """What became of the slots of a schedule."""

    fired: int = 0
    overlap: int = 0
    """How often it left slots out because its last unit had not ended."""
    missed: int = 0
    """How often it left slots out because nothing ran when they came."""


class Summary(msgspec.Struct, kw_only=True):
    """All metrics of one run."""

    name: str
    seed: int
    duration: float
    took: float = 0.0
    """Seconds until all units had ended, or until `drain` was over."""
    submitted: int = 0
    rejected: dict[str, int] = {}
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    unfinished: int = 0
    attempts: int = 0
    retries: int = 0
    retried: int = 0
    """Units that were tried more than once."""
    retry_rate: float = 0.0
    recovered: int = 0
    """Units that completed after a retry."""
    success_after_retry: float = 0.0
    lost: int = 0
    """Attempts that ended because their node died."""
    success_rate: float = 0.0
    throughput: float = 0.0
    """Completed units in a minute."""
    latency: Spread = Spread()
    wait: Spread = Spread()
    run: Spread = Spread()
    waits: dict[str, Spread] = {}
    """Wait by priority."""
    depth_peak: int = 0
    depth_peak_at: float = 0.0
    depth_mean: float = 0.0
    depth_end: int = 0
    inversions: int = 0
    """Units that finished before an older one of higher priority."""
    inversion_pairs: int = 0
    """Pairs of such a unit and an older one."""
    out_of_order_starts: int = 0
    """First starts while an older unit of higher priority could have started instead."""
    services: dict[str, ServiceSummary] = {}
    schedules: dict[str, ScheduleSummary] = {}
    circuits: list[tuple[float, str, str]] = []
    """Each change of a circuit: when, of which service, its new state."""
    errors: dict[str, int] = {}
    events: dict[str, int] = {}
    missed: int = 0
    kills: int = 0
    rebuilds: int = 0
    bottleneck: str = ""
    step: float
    """Seconds between two points of a series."""
    depth: Series = []
    completed_per_minute: Series = []
    failed_per_minute: Series = []
    latency_p50: Series = []
    latency_p95: Series = []
    latency_p99: Series = []


MEANS = ("depth", "completed_per_minute", "failed_per_minute")
PERCENTILES = {"latency_p50": 0.5, "latency_p95": 0.95, "latency_p99": 0.99}


class _Live(msgspec.Struct, eq=False):
    """A unit that has not ended."""

    queued_at: float
    age: int
    priority: float
    gauges: Sequence[Gauge]
    lane: Ranks
    missing: int
    """How many of its dependencies have not ended."""
    cost: Mapping[str, float]
    tries: int = 0
    is_running: bool = False
    is_waiting: bool = False
    has_retried: bool = False


class Metrics:
    """Listens to a simulation and sums it up."""

    def __init__(self, config: Config) -> None:
        self._began_at: float | None = None
        self._width = next((width for width in WIDTHS if config.duration / width <= POINTS), WIDTHS[-1])
        self._services = {name: Gauge(service) for name, service in config.services.items()}
        self._gauges = {task: [self._services[name] for name in uses] for task, uses in config.uses().items()}
        self._sets = {task: tuple(sorted(uses)) for task, uses in config.uses().items()}
        self._ranks = Ranks()
        """Units that have not ended."""
        self._lanes: dict[object, Ranks] = {}
        """Units that could start, by what makes them interchangeable as far as limits go."""
        self._age, self._newest = 0, -math.inf
        self._live: dict[str, _Live] = {}
        self._dependents: dict[str, list[str]] = {}
        self._bin = 0
        self._sum = Summary(
            name=config.name, seed=config.seed, duration=rounded(config.duration), step=self._width,
            schedules={name: ScheduleSummary() for name in config.schedules},
        )  # fmt: skip
        self._latency, self._wait, self._run = Histogram(), Histogram(), Histogram()
        self._waits: dict[float, Histogram] = {}
        self._latency_here = Histogram()
        self._completed_here = self._failed_here = 0
        self._depth = Level()

    # listening --------------------------------------------------------------------------------------------

    def begin(self, at: float) -> None:
        """Set second 0; without this it is the time of the first event."""
        self._began_at = at

    def __call__(self, event: runcue.Event) -> None:
        """Take in what happened."""
        if self._began_at is None:
            self._began_at = event.at
        at = event.at - self._began_at
        while at >= (self._bin + 1) * self._width:
            self._close_bin()
        kind, found = event.type, self._sum
        found.events[kind] = found.events.get(kind, 0) + 1
        if event.work_id is not None:
            self._of_work(kind, event, at, event.work_id)
        elif kind.startswith("circuit_") and event.service in self._services:
            state = kind.removeprefix("circuit_")
            self._services[event.service].turn(state, at)
            if len(found.circuits) < MOST_TRANSITIONS:
                found.circuits.append((rounded(at), event.service, state))
        elif kind == "schedule_fired":
            found.schedules[event.data["schedule"]].fired += 1
        elif kind == "schedule_skipped":
            schedule, reason = found.schedules[event.data["schedule"]], event.data["reason"]
            setattr(schedule, reason, getattr(schedule, reason) + 1)

    def _of_work(self, kind: str, event: runcue.Event, at: float, work_id: str) -> None:
        if kind == "queued":
            self._queued(event, at, work_id)
            return
        live = self._live.get(work_id)
        if live is None:
            return
        if kind == "started":
            self._started(live, at)
            if event.data.get("refused"):
                self._refused(live, at)
        elif kind in {"completed", "skipped", "failed", "cancelled"}:
            self._ended(kind, live, event, at, work_id)
        elif kind == "retrying":
            self._sum.retries += 1
            self._sum.retried += not live.has_retried
            live.has_retried = True

    def _queued(self, event: runcue.Event, at: float, work_id: str) -> None:
        needs = [need for need in event.data.get("needs", ()) if need in self._live]
        task, data = event.task or "", event.data
        cost, keys = data.get("cost", NOTHING), data.get("keys")
        uses = self._sets.get(task, ())
        lane = self._lanes.setdefault((uses, tuple(keys.items()) if keys else (), bool(cost)), Ranks())
        if at > self._newest:  # units that came at the same moment have the same age
            self._age, self._newest = self._age + 1, at
        gauges, priority = self._gauges.get(task, ()), float(data.get("priority", 0.0))
        live = _Live(at, self._age, priority, gauges, lane, len(needs), cost)
        self._live[work_id] = live
        self._ranks.come(live.age, priority)
        for need in needs:
            self._dependents.setdefault(need, []).append(work_id)
        self._depth.change(1, at)
        if not live.missing:
            self._wait_for(live, at)

    @staticmethod
    def _wait_for(live: _Live, at: float) -> None:
        live.is_waiting = True
        live.lane.come(live.age, live.priority)
        for gauge in live.gauges:
            gauge.come(at)

    @staticmethod
    def _wait_no_more(live: _Live, at: float) -> None:
        if live.is_waiting:
            live.is_waiting = False
            live.lane.go(live.age, live.priority)
            for gauge in live.gauges:
                gauge.go(at)

    def _started(self, live: _Live, at: float) -> None:
        self._sum.attempts += 1
        self._wait_no_more(live, at)
        if live.is_running:  # its node died
            self._sum.lost += 1
            for gauge in live.gauges:
                gauge.leave(at)
        else:
            self._depth.change(-1, at)
        live.is_running = True
        live.tries += 1
        if live.tries == 1:
            self._wait.add(at - live.queued_at)
            self._waits.setdefault(live.priority, Histogram()).add(at - live.queued_at)
            self._sum.out_of_order_starts += live.lane.above(live.age, live.priority) > 0
        for gauge in live.gauges:
            gauge.start(at)
            gauge.use(live.cost)

    def _refused(self, live: _Live, at: float) -> None:
        """Note that the service refused a call: the unit waits again, and the attempt does not count."""
        live.is_running = False
        self._depth.change(1, at)
        for gauge in live.gauges:
            gauge.leave(at)
            gauge.use(dict.fromkeys(live.cost, 0.0), live.cost)
        self._wait_for(live, at)

    def _ended(self, kind: str, live: _Live, event: runcue.Event, at: float, work_id: str) -> None:
        if not live.is_running:
            self._depth.change(-1, at)
        else:
            live.is_running = False
            if event.duration is not None:
                self._run.add(event.duration)
            for gauge in live.gauges:
                gauge.leave(at)
                gauge.use(event.data.get("charged", live.cost), live.cost)
                gauge.found.completed += kind == "completed"
                gauge.found.failed += kind == "failed"
        if kind == "failed":
            self._failed_here += 1
            text = (event.error or "unknown").partition("\n")[0][:100]
            errors = self._sum.errors
            if text in errors or len(errors) < MOST_ERRORS:
                errors[text] = errors.get(text, 0) + 1
            if not event.final:
                self._depth.change(1, at)
                return
        self._over(kind, live, at, work_id)

    def _over(self, kind: str, live: _Live, at: float, work_id: str) -> None:
        setattr(self._sum, kind, getattr(self._sum, kind) + 1)
        if kind == "completed":
            self._completed_here += 1
            self._latency.add(at - live.queued_at)
            self._latency_here.add(at - live.queued_at)
            self._sum.recovered += live.has_retried
        self._wait_no_more(live, at)
        self._ranks.go(live.age, live.priority)
        if kind in {"completed", "failed"}:
            passed_over = self._ranks.above(live.age, live.priority)
            self._sum.inversions += passed_over > 0
            self._sum.inversion_pairs += passed_over
        del self._live[work_id]
        for name in self._dependents.pop(work_id, ()):
            waiting = self._live.get(name)
            if waiting is not None:
                waiting.missing -= 1
                if not waiting.missing:
                    self._wait_for(waiting, at)

    # summing up -------------------------------------------------------------------------------------------

    def _close_bin(self) -> None:
        at, width, found = round(self._bin * self._width, 6), self._width, self._sum
        found.depth.append((at, rounded(self._depth.mean(at + width))))
        found.completed_per_minute.append((at, rounded(self._completed_here * 60 / width)))
        found.failed_per_minute.append((at, rounded(self._failed_here * 60 / width)))
        if self._latency_here.count:
            values = self._latency_here.percentiles(*PERCENTILES.values())
            for name, value in zip(PERCENTILES, values, strict=True):
                getattr(found, name).append((at, rounded(value)))
        for gauge in self._services.values():
            gauge.point(at, width)
        self._completed_here = self._failed_here = 0
        self._latency_here = Histogram()
        self._bin += 1
        if self._bin == 2 * POINTS:
            self._coarsen()

    def _coarsen(self) -> None:
        """Merge every two points, because the run takes longer than expected."""
        self._width *= 2
        for name in MEANS:
            setattr(self._sum, name, halved(getattr(self._sum, name)))
        for name in PERCENTILES:
            worst: dict[float, float] = {}
            for at, value in getattr(self._sum, name):
                begin = round(at // self._width * self._width, 6)
                worst[begin] = max(value, worst.get(begin, 0.0))
            setattr(self._sum, name, list(worst.items()))
        for gauge in self._services.values():
            gauge.coarsen()
        self._bin //= 2

    def look(self, simulation: Simulation) -> Summary:
        """The summary so far, while the run goes on."""
        return deepcopy(self).finish(simulation.outcome_so_far())

    def finish(self, outcome: Outcome) -> Summary:
        """The summary of a run that is over."""
        took, found = outcome.ended_at - outcome.began_at, self._sum
        while self._bin * self._width < took:
            self._close_bin()
        found.took, found.step = rounded(took), float(self._width)
        found.submitted, found.missed = outcome.submitted, outcome.missed
        found.kills, found.rebuilds = outcome.kills, outcome.rebuilds
        found.rejected = dict(sorted(outcome.rejected.items()))
        found.unfinished = len(self._live)
        found.retry_rate = _share(found.retries, found.attempts)
        found.success_after_retry = _share(found.recovered, found.retried)
        succeeded = found.completed + found.skipped
        found.success_rate = _share(succeeded, succeeded + found.failed)
        found.throughput = rounded(found.completed * 60 / max(took, 1e-9))
        found.latency, found.wait, found.run = (
            one.spread() for one in (self._latency, self._wait, self._run)
        )
        found.waits = {f"{key:g}": self._waits[key].spread() for key in sorted(self._waits, reverse=True)}
        found.depth_peak, found.depth_peak_at = self._depth.peak, rounded(self._depth.peak_at)
        found.depth_mean, found.depth_end = rounded(self._depth.total / max(took, 1e-9)), self._depth.value
        found.errors = dict(sorted(found.errors.items(), key=lambda pair: (-pair[1], pair[0])))
        found.events = dict(sorted(found.events.items()))
        found.services = {name: service.summary(took) for name, service in self._services.items()}
        for name, amount in outcome.refused.items():
            found.services[name].refused = amount
        found.bottleneck = bottleneck(found.services)
        return found


def bottleneck(services: dict[str, ServiceSummary]) -> str:
    """The limit that delayed units most, in words."""
    found: list[tuple[float, str]] = []
    for name, service in services.items():
        is_open, limited, full = service.circuit_open_share, service.rate_limited_share, service.full_share
        rates = ", ".join(map(pretty_rate, service.rates))
        if is_open >= PRESSING:
            text = f"circuit of {name}: open for {span(service.circuit_open)} ({is_open:.0%})"
            found.append((is_open, text))
        if limited >= PRESSING:
            found.append((limited, f"rate of {name} ({rates}): let nothing start {limited:.0%} of the time"))
        for quantity, one in service.quantities.items():
            if one.share >= SPENT:
                rates = ", ".join(map(pretty_rate, one.rates))
                found.append((one.share, f"{quantity} of {name} ({rates}): {one.share:.0%} of it used"))
        if full >= PRESSING:
            text = f"concurrency of {name} ({service.concurrent}): full {full:.0%} of the time"
            found.append((full, text))
    for name, service in () if found else services.items():
        share = service.waiting_share
        if service.is_adaptive and share >= PRESSING:
            most = f"adaptive, up to {service.concurrent}"
            found.append((share, f"concurrency of {name} ({most}): work waited {share:.0%} of the time"))
    if found:
        return max(found, key=lambda pair: pair[0])[1]
    busiest = max(
        services, key=lambda name: max(services[name].rate_share, services[name].full_share), default=""
    )
    if busiest and services[busiest].rate_share:
        return f"none; {busiest} used {services[busiest].rate_share:.0%} of its rate"
    return "none"


def _share(part: float, whole: float) -> float:
    return rounded(part / whole) if whole and math.isfinite(whole) else 0.0
