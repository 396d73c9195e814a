"""Metrics for Prometheus, of a Cue or of a queue in a file.

Rules:
- Totals are what this process did since its Metrics were made, so that the sum over all processes is right. Gauges
  are how the queue stands at the scrape, whoever works on it. A Reader knows the totals of the whole file, by no
  task, and nothing of callbacks.
- A registry is never failed: a queue that cannot be read is counted in `queue_scrape_errors_total`, and its gauges
  are missing. `text()` and `scrape()` are about this queue alone, and raise.
- To count the waiting work of each task is to look at all of it. Where that is much, an older answer is shown, so
  that looking takes at most 2 % of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from runcue.core.model import WorkState
from runcue.core.state import base_name
from runcue.errors import ConfigError, RuncueError, quoted
from runcue.instrument.counters import BOUNDS, Counters, Label
from runcue.ports import Observer

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

logger = logging.getLogger("runcue")

T = TypeVar("T")
Tally = Mapping[str, Mapping[str, int]]

FEW: Final = 10_000
"""Up to so many live works they are counted anew for each scrape."""
REST: Final = 50
"""How many times as long as counting took its answer is good for, where there are more."""
ANSWER_WITHIN: Final = 10.0
"""Seconds for which a scrape waits for the event loop of a Cue."""

FAMILIES: Final = {
    "work_units_queued": ("gauge", "task", "Work that waits."),
    "work_units_running": ("gauge", "task", "Work that runs."),
    "work_units_completed": ("counter", "task", "Work that completed, or was skipped because its output was valid."),
    "work_units_failed": ("counter", "task", "Work that failed for good."),
    "service_requests": ("counter", "service", "Attempts that were started on a service."),
    "service_rate_limited": ("counter", "service", "Times that a service held work back for its rate, or said so."),
    "service_running": ("gauge", "service", "Places of a service that are taken."),
    "service_places": ("gauge", "service", "Places that a service has; an adaptive one changes them."),
    "circuit_breaker_open": ("gauge", "service", "Circuits of a service that are open or being probed."),
    "callback_duration_seconds": ("histogram", "callback", "How long the application's callbacks take."),
    "callback_errors": ("counter", "callback", "Callbacks that raised, overran or answered nonsense."),
    "queue_scrape_errors": ("counter", None, "Scrapes that could not read the queue."),
}  # fmt: skip
"""Every metric: its type, its label, what it says. Counters are shown with `_total` behind their names."""


@runtime_checkable
class Live(Protocol):
    """What Metrics ask of a Cue."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    @property
    def path(self) -> str | None: ...
    async def services(self) -> list[dict[str, Any]]: ...
    async def tally(self) -> dict[str, dict[str, int]]: ...
    def observe(self, observer: Observer) -> Callable[[], None]: ...


@runtime_checkable
class Still(Protocol):
    """What Metrics ask of a Reader."""

    def services(self) -> list[dict[str, Any]]: ...
    def tally(self) -> dict[str, dict[str, int]]: ...
    def count(self) -> dict[WorkState, int]: ...


class Glance(msgspec.Struct, frozen=True):
    """How a queue stands at one moment."""

    tally: Tally
    services: list[dict[str, Any]]
    ended: Mapping[WorkState, int] | None = None
    """How many works ever ended, where nobody counts them by task."""


class Source(Protocol):
    """Where the numbers come from."""

    @property
    def counters(self) -> Counters | None:
        """What was counted; None where nobody can."""
        ...

    def now(self) -> Glance | None:
        """How the queue stands, from any thread; None while that is not known."""
        ...

    async def later(self) -> Glance | None:
        """The same, for a coroutine."""
        ...

    def close(self) -> None:
        """Count no more."""
        ...


class Metrics:
    """The numbers of a Cue or a Reader for Prometheus: `runcue.Metrics(cue).text()`, or in a registry of yours.

    With a `registry`, such as `prometheus_client.REGISTRY`, they are shown by whatever shows that one.
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
        """What to say of `text()` in a Content-Type header."""
        self.registry = prometheus_client.CollectorRegistry() if registry is None else registry
        """Where they are registered."""
        self._prefix = prefix
        self._task, self._service = Label(), Label()
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
            return LiveSource(source, Counters(self._task, self._service))
        if isinstance(source, Still):
            return StillSource(source)
        raise ConfigError(f"Metrics are taken of a Cue or a Reader, not of {quoted(source)}.")

    def text(self) -> bytes:
        """These metrics as Prometheus reads them. On the loop of a Cue with a file, await `scrape()` instead."""
        return self._shown(self._source.now())

    async def scrape(self) -> bytes:
        """The same for a coroutine: nothing is blocked meanwhile. For a Cue, on its own loop."""
        return self._shown(await self._source.later())

    def close(self) -> None:
        """Count no more, and leave the registry."""
        if not self._is_closed:
            self._is_closed = True
            self.registry.unregister(self)
            self._source.close()

    # what a registry asks ---------------------------------------------------------------------------------

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

    @staticmethod
    def _summed(label: Label, amounts: Mapping[str, float]) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, amount in amounts.items():
            value = label(name)
            values[value] = values.get(value, 0) + amount
        return values

    @staticmethod
    def _add(found: dict[str, Any], name: str, label: Label | None, amounts: Mapping[str, float]) -> None:
        """One number for each value, and 0 for those that are known and have none: a rate needs a beginning."""
        known = {} if label is None else dict.fromkeys(label.known(), 0)
        for value, amount in (known | dict(amounts)).items():
            found[name].add_metric([value], amount)

    def _add_counters(self, found: dict[str, Any], counters: Counters) -> None:
        from prometheus_client.utils import floatToGoString

        self._add(found, "work_units_completed", self._task, counters.completed.copy())
        self._add(found, "work_units_failed", self._task, counters.failed.copy())
        self._add(found, "service_requests", self._service, counters.requests.copy())
        self._add(found, "service_rate_limited", self._service, counters.rate_limited.copy())
        self._add(found, "callback_errors", None, counters.errors.copy())
        ends = [*map(floatToGoString, BOUNDS), "+Inf"]
        for callback, durations in counters.durations.copy().items():
            buckets = list(zip(ends, durations.up_to(), strict=True))
            found["callback_duration_seconds"].add_metric([callback], buckets, durations.total)


class _Once:
    """Families that were made already, as a registry wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _service_gauges(services: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The gauges of services. What a service with keys has as a whole counts, else the sum over its keys."""
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
    """Each service as a whole, and its keys. (A key may be seen whose service is not declared here.)"""
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for one in services:
        base = base_name(one["name"])
        whole, keys = found.setdefault(base or one["name"], ({}, []))
        if base is None:
            whole.update(one)
        else:
            keys.append(one)
    return found


class _Tallying:
    """When to count works by task anew."""

    def __init__(self) -> None:
        self._latest: Tally | None = None
        self._good_until = 0.0

    def known(self) -> Tally | None:
        """The latest answer, as long as it is good for."""
        return self._latest if perf_counter() < self._good_until else None

    def learn(self, tally: Tally, began: float) -> None:
        """This is the answer to a question that was put then."""
        self._latest, now = tally, perf_counter()
        is_much = sum(sum(tasks.values()) for tasks in tally.values()) > FEW
        self._good_until = now + REST * (now - began) if is_much else 0.0


class StillSource:
    """A queue in a file, seen from outside."""

    counters = None

    def __init__(self, reader: Still) -> None:
        self._reader = reader
        self._tallying = _Tallying()

    def now(self) -> Glance:
        """How the queue stands, from any thread."""
        tally = self._tallying.known()
        if tally is None:
            began = perf_counter()
            tally = self._reader.tally()
            self._tallying.learn(tally, began)
        return Glance(tally, self._reader.services(), self._reader.count())

    async def later(self) -> Glance:
        """The same, in a thread."""
        return await asyncio.to_thread(self.now)

    def close(self) -> None:
        """The reader is not ours to close."""


class LiveSource:
    """A Cue, in this process."""

    def __init__(self, cue: Live, counters: Counters) -> None:
        self.counters = counters
        self._cue = cue
        self._tallying = _Tallying()
        self._latest: Glance | None = None
        self._looking: asyncio.Task[Glance] | None = None
        self.close = cue.observe(counters)
        """Count no more."""

    def now(self) -> Glance | None:
        """How the queue stands, from any thread.

        On the loop itself a queue in memory answers at once. A file does not: the latest answer is shown, and a
        new one asked for.
        """
        loop = self._cue.loop
        if loop is None or not loop.is_running():
            return self._latest
        if not _is_running_here(loop):
            return _answer_of(asyncio.run_coroutine_threadsafe(self._look(), loop))
        if self._cue.path is None:
            return _at_once(self._look())
        return self._asked_before(loop)

    async def later(self) -> Glance | None:
        """The same for a coroutine, on whatever loop."""
        loop = self._cue.loop
        if loop is None or not loop.is_running():
            return self._latest
        if _is_running_here(loop):
            return await self._look()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._look(), loop))

    async def _look(self) -> Glance:
        tally = self._tallying.known()
        if tally is None:
            began = perf_counter()
            tally = await self._cue.tally()
            self._tallying.learn(tally, began)
        self._latest = Glance(tally, await self._cue.services())
        return self._latest

    def _asked_before(self, loop: asyncio.AbstractEventLoop) -> Glance | None:
        """What the question before found, or its error; the next question is on its way."""
        before = self._looking
        if before is None or before.done():
            self._looking = loop.create_task(self._look(), name="runcue metrics")
            self._looking.add_done_callback(_heard)
        if before is not None and before.done() and not before.cancelled():
            return before.result()
        return self._latest


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _answer_of(asked: Future[T]) -> T:
    try:
        return asked.result(ANSWER_WITHIN)
    except TimeoutError:
        asked.cancel()
        raise TimeoutError(f"the event loop did not answer within {ANSWER_WITHIN:g} s") from None


def _at_once(answer: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that has nothing to wait for."""
    try:
        answer.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    answer.close()
    raise AssertionError("a queue in memory answers at once")


def _heard(looking: asyncio.Task[Glance]) -> None:
    """The next scrape is told of its error; when there is none, nobody has to be."""
    if not looking.cancelled():
        looking.exception()
