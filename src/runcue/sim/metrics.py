"""What a simulation showed, from its events alone, in room that does not grow with its length.

    metrics = Metrics(config)
    outcome = simulate(config, 7, metrics)
    summary = metrics.finish(outcome)

Rules:
- Latency is from submission to completion, wait from submission to the first start, run one attempt.
- A unit that uses several services waits for all of them, and takes its place on each.
- A priority inversion is a unit that finishes (completes, or fails for good) before an older one of higher priority,
  whatever that one waits for or does.
- An out-of-order start is a first start while an older unit of higher priority, which needs nothing more, waits for
  the same services, with the same keys: one that uses another service too may be waiting for that.
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
"""How many points a run of the expected length has; where it takes longer and has twice as many, two become one."""
WIDTHS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400,
          604800)  # fmt: skip
"""Seconds that a point of a series may stand for."""
MOST_TRANSITIONS = 2000
MOST_ERRORS = 20
SPENT = 0.9
"""A quantity of which this share is used counts as a bottleneck."""
NOTHING: Mapping[str, float] = {}
PRESSING = 0.1
"""A limit that holds work up for this share of the time counts as a bottleneck."""


class Summary(msgspec.Struct, kw_only=True):
    """All metrics of one run."""

    name: str
    seed: int
    duration: float
    took: float
    """Seconds until everything had ended, or `drain` was over."""
    submitted: int
    rejected: dict[str, int]
    completed: int
    skipped: int
    failed: int
    cancelled: int
    unfinished: int
    attempts: int
    retries: int
    retried: int
    """Units that were tried more than once."""
    retry_rate: float
    recovered: int
    """Units that completed after a retry."""
    success_after_retry: float
    lost: int
    """Attempts that ended with their node."""
    success_rate: float
    throughput: float
    """Completed units in a minute."""
    latency: Spread
    wait: Spread
    run: Spread
    waits: dict[str, Spread]
    """Wait by priority."""
    depth_peak: int
    depth_peak_at: float
    depth_mean: float
    depth_end: int
    inversions: int
    """Units that finished before an older one of higher priority."""
    inversion_pairs: int
    """Pairs of such a unit and an older one."""
    out_of_order_starts: int
    """First starts while an older unit of higher priority could have started in their place."""
    services: dict[str, ServiceSummary]
    circuits: list[tuple[float, str, str]]
    """When which circuit became what."""
    errors: dict[str, int]
    events: dict[str, int]
    missed: int
    kills: int
    rebuilds: int
    bottleneck: str
    step: float
    """Seconds between two points of a series."""
    depth: Series
    completed_per_minute: Series
    failed_per_minute: Series
    latency_p50: Series
    latency_p95: Series
    latency_p99: Series


class _Live:
    """A unit that has not ended."""

    __slots__ = (
        "age",
        "cost",
        "gauges",
        "has_retried",
        "is_running",
        "is_waiting",
        "lacks",
        "lane",
        "priority",
        "queued_at",
        "tries",
    )

    def __init__(
        self,
        queued_at: float,
        age: int,
        priority: float,
        gauges: Sequence[Gauge],
        lane: Ranks,
        lacks: int,
        cost: Mapping[str, float],
    ) -> None:
        self.cost = cost
        self.queued_at = queued_at
        self.age = age
        self.priority = priority
        self.gauges = gauges
        self.lane = lane
        self.lacks = lacks
        self.tries = 0
        self.is_running = self.is_waiting = self.has_retried = False


class Metrics:
    """Listens to a simulation and sums it up."""

    def __init__(self, config: Config) -> None:
        self._config = config
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
        self._events: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._circuits: list[tuple[float, str, str]] = []
        self._latency, self._wait, self._run = Histogram(), Histogram(), Histogram()
        self._waits: dict[float, Histogram] = {}
        self._latency_here = Histogram()
        self._completed_here = self._failed_here = 0
        self._depth = Level()
        self._count = dict.fromkeys(
            ("attempts", "retries", "retried", "recovered", "lost", "inversions", "pairs", "out_of_order",
             "completed", "skipped", "failed", "cancelled", "queued"), 0)  # fmt: skip
        self._series: dict[str, Series] = {
            name: [] for name in ("depth", "completed", "failed", "p50", "p95", "p99")
        }

    # listening --------------------------------------------------------------------------------------------

    def begin(self, at: float) -> None:
        """Set second 0, which is else the first event."""
        self._began_at = at

    def __call__(self, event: runcue.Event) -> None:
        """Take in what happened."""
        if self._began_at is None:
            self._began_at = event.at
        at = event.at - self._began_at
        while at >= (self._bin + 1) * self._width:
            self._close_bin()
        kind = event.type
        self._events[kind] = self._events.get(kind, 0) + 1
        if event.work_id is not None:
            self._of_work(kind, event, at, event.work_id)
        elif kind.startswith("circuit_") and event.service in self._services:
            state = kind.removeprefix("circuit_")
            self._services[event.service].turn(state, at)
            if len(self._circuits) < MOST_TRANSITIONS:
                self._circuits.append((rounded(at), event.service, state))

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
            self._count["retries"] += 1
            if not live.has_retried:
                live.has_retried = True
                self._count["retried"] += 1

    def _queued(self, event: runcue.Event, at: float, work_id: str) -> None:
        self._count["queued"] += 1
        needs = [need for need in event.data.get("needs", ()) if need in self._live]
        task, data = event.task or "", event.data
        cost, keys = data.get("cost", NOTHING), data.get("keys")
        uses = self._sets.get(task, ())
        lane = self._lanes.setdefault((uses, tuple(keys.items()) if keys else (), bool(cost)), Ranks())
        if at > self._newest:  # who came at the same moment is of the same age
            self._age, self._newest = self._age + 1, at
        gauges, priority = self._gauges.get(task, ()), float(data.get("priority", 0.0))
        live = _Live(at, self._age, priority, gauges, lane, len(needs), cost)
        self._live[work_id] = live
        self._ranks.come(live.age, priority)
        for need in needs:
            self._dependents.setdefault(need, []).append(work_id)
        self._depth.change(1, at)
        if not live.lacks:
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
        self._count["attempts"] += 1
        self._wait_no_more(live, at)
        if live.is_running:  # its node died
            self._count["lost"] += 1
            for gauge in live.gauges:
                gauge.leave(at)
        else:
            self._depth.change(-1, at)
        live.is_running = True
        live.tries += 1
        if live.tries == 1:
            self._wait.add(at - live.queued_at)
            self._waits.setdefault(live.priority, Histogram()).add(at - live.queued_at)
            self._count["out_of_order"] += live.lane.above(live.age, live.priority) > 0
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
                gauge.completed += kind == "completed"
                gauge.failed += kind == "failed"
        if kind == "failed":
            self._failed_here += 1
            text = (event.error or "unknown").partition("\n")[0][:100]
            if text in self._errors or len(self._errors) < MOST_ERRORS:
                self._errors[text] = self._errors.get(text, 0) + 1
            if not event.final:
                self._depth.change(1, at)
                return
        self._over(kind, live, at, work_id)

    def _over(self, kind: str, live: _Live, at: float, work_id: str) -> None:
        self._count[kind] += 1
        if kind == "completed":
            self._completed_here += 1
            self._latency.add(at - live.queued_at)
            self._latency_here.add(at - live.queued_at)
            self._count["recovered"] += live.has_retried
        self._wait_no_more(live, at)
        self._ranks.go(live.age, live.priority)
        if kind in {"completed", "failed"}:
            passed_over = self._ranks.above(live.age, live.priority)
            self._count["inversions"] += passed_over > 0
            self._count["pairs"] += passed_over
        del self._live[work_id]
        for name in self._dependents.pop(work_id, ()):
            waiting = self._live.get(name)
            if waiting is not None:
                waiting.lacks -= 1
                if not waiting.lacks:
                    self._wait_for(waiting, at)

    # summing up -------------------------------------------------------------------------------------------

    def _close_bin(self) -> None:
        at, width, series = round(self._bin * self._width, 6), self._width, self._series
        series["depth"].append((at, rounded(self._depth.mean(at + width))))
        series["completed"].append((at, rounded(self._completed_here * 60 / width)))
        series["failed"].append((at, rounded(self._failed_here * 60 / width)))
        if self._latency_here.count:
            found = self._latency_here.percentiles(0.5, 0.95, 0.99)
            for name, value in zip(("p50", "p95", "p99"), found, strict=True):
                series[name].append((at, rounded(value)))
        for gauge in self._services.values():
            gauge.point(at, width)
        self._completed_here = self._failed_here = 0
        self._latency_here = Histogram()
        self._bin += 1
        if self._bin == 2 * POINTS:
            self._coarsen()

    def _coarsen(self) -> None:
        """Merge every two points, because the run takes longer than expected."""
        for name in ("depth", "completed", "failed"):
            self._series[name] = halved(self._series[name])
        self._width *= 2
        for name in ("p50", "p95", "p99"):
            worst: dict[float, float] = {}
            for at, value in self._series[name]:
                begin = round(at // self._width * self._width, 6)
                worst[begin] = max(value, worst.get(begin, 0.0))
            self._series[name] = list(worst.items())
        for gauge in self._services.values():
            gauge.coarsen()
        self._bin //= 2

    def look(self, simulation: Simulation) -> Summary:
        """The summary so far, while the run goes on."""
        return deepcopy(self).finish(simulation.outcome_so_far())

    def finish(self, outcome: Outcome) -> Summary:
        """The summary of a run that is over."""
        took = outcome.ended_at - outcome.began_at
        while self._bin * self._width < took:
            self._close_bin()
        services = {name: service.summary(took) for name, service in self._services.items()}
        for name, amount in outcome.refused.items():
            services[name].refused = amount
        count, ended = self._count, self._count["completed"] + self._count["skipped"] + self._count["failed"]
        return Summary(
            name=self._config.name,
            seed=self._config.seed,
            duration=rounded(self._config.duration),
            took=rounded(took),
            submitted=outcome.submitted,
            rejected=dict(sorted(outcome.rejected.items())),
            completed=count["completed"],
            skipped=count["skipped"],
            failed=count["failed"],
            cancelled=count["cancelled"],
            unfinished=len(self._live),
            attempts=count["attempts"],
            retries=count["retries"],
            retried=count["retried"],
            retry_rate=_share(count["retries"], count["attempts"]),
            recovered=count["recovered"],
            success_after_retry=_share(count["recovered"], count["retried"]),
            lost=count["lost"],
            success_rate=_share(ended - count["failed"], ended),
            throughput=rounded(count["completed"] * 60 / max(took, 1e-9)),
            latency=self._latency.spread(),
            wait=self._wait.spread(),
            run=self._run.spread(),
            waits={f"{key:g}": self._waits[key].spread() for key in sorted(self._waits, reverse=True)},
            depth_peak=self._depth.peak,
            depth_peak_at=rounded(self._depth.peak_at),
            depth_mean=rounded(self._depth.total / max(took, 1e-9)),
            depth_end=self._depth.value,
            inversions=count["inversions"],
            inversion_pairs=count["pairs"],
            out_of_order_starts=count["out_of_order"],
            services=services,
            circuits=self._circuits,
            errors=dict(sorted(self._errors.items(), key=lambda pair: (-pair[1], pair[0]))),
            events=dict(sorted(self._events.items())),
            missed=outcome.missed,
            kills=outcome.kills,
            rebuilds=outcome.rebuilds,
            bottleneck=bottleneck(services),
            step=float(self._width),
            depth=self._series["depth"],
            completed_per_minute=self._series["completed"],
            failed_per_minute=self._series["failed"],
            latency_p50=self._series["p50"],
            latency_p95=self._series["p95"],
            latency_p99=self._series["p99"],
        )


def bottleneck(services: dict[str, ServiceSummary]) -> str:
    """What held the work up most, in words."""
    found: list[tuple[float, str]] = []
    for name, service in services.items():
        if service.circuit_open_share >= PRESSING:
            share = service.circuit_open_share
            found.append((share, f"circuit of {name}: open for {span(service.circuit_open)} ({share:.0%})"))
        if service.rate_limited_share >= PRESSING:
            share = service.rate_limited_share
            rates = ", ".join(map(pretty_rate, service.rates))
            found.append((share, f"rate of {name} ({rates}): let nothing start {share:.0%} of the time"))
        for quantity, one in service.quantities.items():
            if one.share >= SPENT:
                rates = ", ".join(map(pretty_rate, one.rates))
                found.append((one.share, f"{quantity} of {name} ({rates}): {one.share:.0%} of it used"))
        if service.full_share >= PRESSING:
            share = service.full_share
            found.append(
                (share, f"concurrency of {name} ({service.concurrent}): full {share:.0%} of the time")
            )
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
