"""Metrics for Prometheus, of a Cue or of a queue that a Reader reads.

Rules:
- Totals count what this process did since its Metrics were made, so that the sum over all processes is right. Gauges
  show the state of the whole queue at the scrape. A Reader has the totals of the whole queue, by schedule and not by
  task, and nothing of callbacks.
- A queue that cannot be read fails no scrape of a registry: it is counted in `queue_scrape_errors_total`, and
  its gauges are missing. `text()` and `scrape()` show this queue alone, and raise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from runcue.core.model.record import WorkState
from runcue.core.model.state import base_name
from runcue.errors import ConfigError, RuncueError, quoted
from runcue.instrument.counters import BOUNDS, Counters, Label
from runcue.instrument.sources import Glance, Live, LiveSource, Source, Still, StillSource

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

logger = logging.getLogger("runcue")

FAMILIES: Final = {
    "work_units_queued": ("gauge", "task", "Units that wait."),
    "work_units_running": ("gauge", "task", "Units that run."),
    "work_units_completed": ("counter", "task", "Units that completed, or were skipped (their output was valid)."),
    "work_units_failed": ("counter", "task", "Units that failed for good."),
    "service_requests": ("counter", "service", "Attempts that were started on a service."),
    "service_rate_limited": ("counter", "service", "Times that the rate or the service itself stopped all starts."),
    "service_running": ("gauge", "service", "Slots of a service that are taken."),
    "service_places": ("gauge", "service", "Slots that a service has; an adaptive one changes them."),
    "circuit_breaker_open": ("gauge", "service", "Circuits of a service that are open or being probed."),
    "schedule_fired": ("counter", "schedule", "Units that a schedule submitted."),
    "schedule_skipped": ("counter", "schedule", "Times that a schedule left slots out (overlap, missed)."),
    "callback_duration_seconds": ("histogram", "callback", "How long the application's callbacks take."),
    "callback_errors": ("counter", "callback", "Callbacks that raised, overran or answered nonsense."),
    "queue_scrape_errors": ("counter", None, "Scrapes that could not read the queue."),
}  # fmt: skip
"""Every metric: its type, its label, what it says. Counters are shown with `_total` behind their names."""


class Metrics:
    """The numbers of a Cue or a Reader for Prometheus: `runcue.Metrics(cue).text()`, or in a registry of yours.

    With a `registry`, such as `prometheus_client.REGISTRY`, they are shown wherever that registry is.
    """

    def __init__(
        self, source: Live | Still, prefix: str = "", registry: CollectorRegistry | None = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise ConfigError('Metrics need prometheus-client: pip install "runcue[metrics]"') from None
        if prefix and not (prefix.isascii() and prefix.isidentifier()):
            raise ConfigError(f"The prefix of metrics is like 'runcue_', not {quoted(prefix)}.")
        self.content_type: str = prometheus_client.CONTENT_TYPE_LATEST
        """The Content-Type of `text()`."""
        self.registry = prometheus_client.CollectorRegistry() if registry is None else registry
        """The registry that has these metrics."""
        self._prefix = prefix
        self._task, self._service, self._schedule = Label(), Label(), Label()
        self._errors = 0
        self._source = self._source_of(source)
        try:
            self.registry.register(self)
        except ValueError as error:
            self._source.close()
            raise ConfigError(f"{error}. One registry holds one queue for each prefix.") from None
        self._is_closed = False

    def _source_of(self, source: object) -> Source:
        if isinstance(source, Live):
            return LiveSource(source, Counters(self._task, self._service, self._schedule))
        if isinstance(source, Still):
            return StillSource(source)
        raise ConfigError(f"Metrics are taken of a Cue or a Reader, not of {quoted(source)}.")

    def text(self) -> bytes:
        """The metrics in Prometheus' text format. On the loop of a Cue with a file, await `scrape()` instead."""
        return self._shown(self._source.now())

    async def scrape(self) -> bytes:
        """The metrics in Prometheus' text format, for a coroutine: the loop is not blocked."""
        return self._shown(await self._source.later())

    def close(self) -> None:
        """Stop counting, and leave the registry."""
        if not self._is_closed:
            self._is_closed = True
            self.registry.unregister(self)
            self._source.close()

    # called by a registry ---------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Every metric, without its numbers."""
        return self._empty().values()

    def collect(self) -> Iterable[Metric]:
        """Every metric with its numbers, for the registry."""
        try:
            glance = self._source.now()
        except (RuncueError, TimeoutError) as error:
            self._errors += 1
            logger.warning("metrics without gauges: %s", error)
            glance = None
        return self._families(glance)

    # making them ------------------------------------------------------------------------------------------

    def _shown(self, glance: Glance | None) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest

        these = CollectorRegistry()
        these.register(_Once(self._families(glance)))
        return generate_latest(these)

    def _empty(self) -> dict[str, Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {
            "gauge": GaugeMetricFamily,
            "counter": CounterMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        return {
            name: kinds[kind](self._prefix + name, text, labels=[] if label is None else [label])
            for name, (kind, label, text) in FAMILIES.items()
        }

    def _families(self, glance: Glance | None) -> list[Metric]:
        found = self._empty()
        if glance is not None:
            self._add_gauges(found, glance)
        if self._source.counters is not None:
            self._add_counters(found, self._source.counters)
        found["queue_scrape_errors"].add_metric([], self._errors)
        return list(found.values())

    def _add_gauges(self, found: dict[str, Any], glance: Glance) -> None:
        for name, state in (("work_units_queued", "pending"), ("work_units_running", "running")):
            self._add(found, name, self._task, self._summed(self._task, glance.tally[state]))
        for name, amounts in _service_gauges(glance.services).items():
            for value, amount in self._summed(self._service, amounts).items():
                found[name].add_metric([value], amount)
        if glance.ended is not None:
            found["work_units_completed"].add_metric([], glance.ended[WorkState.COMPLETED])
            found["work_units_failed"].add_metric([], glance.ended[WorkState.FAILED])
        for name, slots in (("schedule_fired", glance.fired), ("schedule_skipped", glance.skipped)):
            for value, amount in self._summed(self._schedule, slots).items():
                found[name].add_metric([value], amount)

    @staticmethod
    def _summed(label: Label, amounts: Mapping[str, float]) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, amount in amounts.items():
            value = label(name)
            values[value] = values.get(value, 0) + amount
        return values

    @staticmethod
    def _add(found: dict[str, Any], name: str, label: Label | None, amounts: Mapping[str, float]) -> None:
        """Add one number for each value of a label; 0 for a known value without one, so that rates start at 0."""
        known = {} if label is None else dict.fromkeys(label.known(), 0)
        for value, amount in (known | dict(amounts)).items():
            found[name].add_metric([value], amount)

    def _add_counters(self, found: dict[str, Any], counters: Counters) -> None:
        from prometheus_client.utils import floatToGoString

        self._add(found, "work_units_completed", self._task, counters.completed.copy())
        self._add(found, "work_units_failed", self._task, counters.failed.copy())
        self._add(found, "service_requests", self._service, counters.requests.copy())
        self._add(found, "service_rate_limited", self._service, counters.rate_limited.copy())
        self._add(found, "schedule_fired", self._schedule, counters.fired.copy())
        self._add(found, "schedule_skipped", self._schedule, counters.skipped.copy())
        self._add(found, "callback_errors", None, counters.errors.copy())
        ends = [*map(floatToGoString, BOUNDS), "+Inf"]
        for callback, durations in counters.durations.copy().items():
            buckets = list(zip(ends, durations.up_to(), strict=True))
            found["callback_duration_seconds"].add_metric([callback], buckets, durations.total)


class _Once:
    """Finished families behind the interface that a registry collects from."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _service_gauges(services: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The gauges of services. For a service with keys, its own limit counts, else the sum over its keys."""
    running: dict[str, float] = {}
    places: dict[str, float] = {}
    circuits: dict[str, float] = {}
    for name, (whole, keys) in _by_base(services).items():
        running[name] = max(whole.get("running", 0), sum(key["running"] for key in keys))
        limits = [one["concurrent"] for one in (keys if whole.get("concurrent") is None else [whole])]
        if limits and None not in limits:
            places[name] = sum(limits)
        states = [one.get("circuit") for one in (whole, *keys)]
        if any(states):
            circuits[name] = sum(state in ("open", "half_open") for state in states)
    return {"service_running": running, "service_places": places, "circuit_breaker_open": circuits}


def _by_base(services: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each service with the list of its keys; a key may appear whose service is not declared here."""
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for one in services:
        base = base_name(one["name"])
        whole, keys = found.setdefault(base or one["name"], ({}, []))
        if base is None:
            whole.update(one)
        else:
            keys.append(one)
    return found
