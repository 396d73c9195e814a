"""A recorded workload, read from a queue in a file: what came when, how long it took and how it ended.

    recording = read("run.db")
    config = recording.config()                                # its services and limits, ready for --set
    Simulation(config, arrivals=recording.arrivals(config))    # the same units at the same times

Rules:
- The file is read through `runcue.Reader`: nothing in it is changed, and processes that use it go on.
- The queue is taken as it was when reading began: later arrivals are ignored, and a unit that ended later counts as
  pending.
- About 300 bytes are kept of each unit, however large its params and results are.
- Arrivals are read from the journal of events, in order; units from before the journal begins are counted as
  `forgotten`.
- An attempt takes as long as it did, and ends as it did. A unit without a finished attempt takes the usual time of
  its kind; attempts beyond those recorded repeat the last one.
- The first arrival is second 0. A unit that was not to start before some time arrives at that time.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

import runcue
from runcue.host.address import plain
from runcue.sim.config import Behaviour, Config, Latency, RetryConfig, ServiceConfig, Workload
from runcue.sim.limits import Adaptive
from runcue.sim.mocks import ERROR, PERMANENT, RETURNED
from runcue.sim.reading import BadConfig, amount, rate, span
from runcue.sim.workload import Arrival, Submission

MOST_WORKS = 1_000_000
MOST_KINDS = 100
NOWHERE = "local"
"""The service of units that used none: it has no limits."""

OTHERS = "others"
"""The kind of all units whose own kind is too rare to be told apart."""

LEAST_PATIENCE = 3600.0

ENDINGS = {"c": RETURNED, "e": ERROR, "p": PERMANENT}
"""How an attempt ended, in one letter. A timeout is an error after so long a time."""

RECORDED = ("latency", "error_rate", "timeout_rate", "permanent_error_rate")
"""The behaviour of calls that the file says nothing about."""

NEVER_RAN = frozenset({"prerequisite_failed", "prerequisite_cancelled", "dependency_timeout", "dropped"})
"""runcue's reasons for units that failed without a start."""


class Past(msgspec.Struct, frozen=True, gc=False):
    """One unit as it was: when it came, in seconds after the first, what it needed, and how its attempts went."""

    id: str
    kind: str
    at: float
    priority: float = 0.0
    depends_on: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    """How long each attempt took."""
    endings: str = ""
    """How each attempt ended: a letter for each of `seconds`."""


class Kind(msgspec.Struct):
    """What units of one task with the same services have in common."""

    task: str
    services: tuple[str, ...]
    usual: float = 0.1
    """How long an attempt of this kind usually took."""


class Facts(msgspec.Struct, frozen=True):
    """The figures of the recorded run."""

    works: int
    completed: int
    failed: int
    attempts: int
    lasted: float
    p50: float
    p95: float
    p99: float


class Recording(msgspec.Struct):
    """A recorded run: what came, in order, its limits, and what cannot be replayed."""

    name: str
    works: list[Past]
    kinds: dict[str, Kind]
    services: dict[str, ServiceConfig]
    facts: Facts
    retry: RetryConfig
    timeout: float | None
    left_out: dict[str, int]
    """How many units are not replayed, by the reason: skipped, cancelled, forgotten."""

    def lines(self) -> list[str]:
        """The figures of the recorded run as lines, to compare a replay with."""
        facts = self.facts
        went = [
            amount(facts.works, "unit"),
            f"{facts.completed:,} completed",
            f"{facts.failed:,} failed",
            f"{amount(facts.attempts, 'attempt')} in {span(facts.lasted)}",
        ]
        times = [f"{name} {span(getattr(facts, name))}" for name in ("p50", "p95", "p99")]
        found = [f"  recorded    {' · '.join(went)}", f"              latency {' · '.join(times)}"]
        if self.left_out:
            left = ", ".join(f"{count:,} {why}" for why, count in self.left_out.items())
            found.append(f"              not replayed: {left}")
        return found

    def arrivals(self, config: Config) -> Iterator[Arrival]:
        """The arrivals of a simulation: units of one moment together, and at most `count` of them."""
        uses = config.uses()
        at, group = 0.0, list[Submission]()
        for work in self.works[: config.workload.count]:
            if group and work.at != at:
                yield Arrival(at, group, "replay")
                group = []
            at = work.at
            group.append(_submission(work, len(uses.get(work.kind, ()))))
        if group:
            yield Arrival(at, group, "replay")

    def config(self) -> Config:
        """The limits of the recorded run as a configuration, which `--set` changes."""
        last = self.works[-1].at if self.works else 0.0
        return Config(
            name=self.name,
            duration=float(int(last) + 1),
            drain=max(LEAST_PATIENCE, 2 * self.facts.lasted),
            services=self.services,
            workload=Workload(
                task_types=list(self.kinds),
                uses={name: list(kind.services) for name, kind in self.kinds.items()},
                submit_rate=None,
                count=max(1, len(self.works)),
            ),
            retry=self.retry,
            timeout=self.timeout,
        )


def read(path: str | os.PathLike[str], *, most: int = MOST_WORKS) -> Recording:
    """Read a recording from a queue; `BadConfig` when it is empty or has more than `most` units."""
    where = plain(os.fspath(path))
    with runcue.Reader(path) as reader:
        reel = _Reel()
        total, known = sum(reader.count().values()), reader.services()
        now = reader.now()
        for event in reader.events("queued"):
            if event.at > now:
                break
            work = None if event.work_id is None else reader.get(event.work_id)
            if work is not None:
                reel.add(_as_of(work, now), event.at)
            if len(reel) > most:
                raise BadConfig("--replay", f"a queue of at most {most:,} units", where)
    if not len(reel):
        raise BadConfig("--replay", "a queue in which something has happened", where)
    return reel.finish(Path(where).stem, known, total)


def check(recorded: Config, changed: Config) -> None:
    """Refuse changes of what comes from the file alone: they would have no effect, and look as if they had."""
    for field in Workload.__struct_fields__:
        is_same = getattr(recorded.workload, field) == getattr(changed.workload, field)
        if not is_same and field not in {"uses", "count"}:
            raise BadConfig(f"workload.{field}", "no change: --replay takes it from the file")
    for name, service in changed.services.items():
        was = recorded.services[name].behaviour
        for field in RECORDED:
            if getattr(service.behaviour, field) != getattr(was, field):
                path = f"services.{name}.behaviour.{field}"
                raise BadConfig(path, "no change: --replay takes it from the file")
        allows = service.behaviour.allows
        for quantity in [*service.sells(), *(() if allows is None else allows.quantities)]:
            path = f"services.{name}.{quantity}"
            raise BadConfig(path, "no quantity: the file does not say what units cost")


def _as_of(work: runcue.Work, now: float) -> runcue.Work:
    """The unit as it was at that time."""
    past = tuple(one for one in work.history if (one.at or 0.0) + (one.duration or 0.0) <= now)
    if len(past) < len(work.history):
        work = msgspec.structs.replace(work, history=past)
    if work.completed_at is None or work.completed_at <= now:
        return work
    return msgspec.structs.replace(
        work, state=runcue.WorkState.PENDING, completed_at=None, error=None, skipped=False
    )


class _Reel:
    """Collects what a replay needs, one unit after the other."""

    def __init__(self) -> None:
        self._works: list[Past] = []
        self._ids: set[str] = set()
        self._kinds: dict[tuple[str, tuple[str, ...]], str] = {}
        self._took: dict[str, array[float]] = {}
        self._latencies: array[float] = array("d")
        self._left_out: Counter[str] = Counter()
        self._begins = 0.0
        self._ends = 0.0
        self._max_attempts = 1
        self._pauses: array[float] = array("d")
        """How long units waited between their first attempt and the second."""
        self._timeouts: set[float | None] = set()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._works) + sum(self._left_out.values())

    def add(self, work: runcue.Work, at: float) -> None:
        """Add a unit that arrived at that time."""
        if not len(self):
            self._begins = self._ends = at
        if work.id in self._ids:
            return
        if reason := _why_not(work):
            self._left_out[reason] += 1
            return
        kind = self._kind(work)
        seconds, endings = _attempts(work)
        self._ids.add(work.id)
        due_at = at if work.run_at is None else max(at, work.run_at)
        since = round(due_at - self._begins, 6)
        self._works.append(Past(work.id, kind, since, work.priority, work.depends_on, seconds, endings))
        self._took.setdefault(kind, array("d")).extend(
            took for took, ending in zip(seconds, endings, strict=True) if ending == "c"
        )
        self._max_attempts = max(self._max_attempts, len(endings))
        if (pause := _pause(work)) is not None:
            self._pauses.append(pause)
        self._timeouts.add(work.timeout)
        self._counts["attempts"] += len(endings)
        if work.state.is_final and work.completed_at is not None:
            self._counts[work.state.value] += 1
            self._ends = max(self._ends, work.completed_at)
            if work.state is runcue.WorkState.COMPLETED:
                self._latencies.append(work.completed_at - at)

    def _kind(self, work: runcue.Work) -> str:
        key = (work.task, work.services or (NOWHERE,))
        name = self._kinds.get(key)
        if name is None:
            name = work.task
            if name in self._took:
                name = f"{work.task} on {' and '.join(key[1])}"[:128]
            if len(self._kinds) >= MOST_KINDS - 1:
                key, name = (OTHERS, (NOWHERE,)), OTHERS
            self._kinds[key] = name
            self._took.setdefault(name, array("d"))
        return name

    def finish(self, name: str, known: Iterable[dict[str, object]], total: int) -> Recording:
        """The recording, once every unit was taken in."""
        kinds = {kind: Kind(task, services) for (task, services), kind in self._kinds.items()}
        everything = [seconds for took in self._took.values() for seconds in took]
        usual = median(everything) if everything else 0.1
        for kind, took in self._took.items():
            kinds[kind].usual = median(took) if took else usual
        self._works.sort(key=lambda work: work.at)
        for place, work in enumerate(self._works):
            self._works[place] = self._mended(work, kinds[work.kind].usual)
        if total > len(self):
            self._left_out["forgotten"] = total - len(self)
        return Recording(
            name=name if name.isprintable() and name.strip() == name and 0 < len(name) <= 128 else "replay",
            works=self._works,
            kinds=kinds,
            services=_services(known, kinds),
            facts=self._facts(),
            retry=self._retry(),
            timeout=_timeout(self._timeouts),
            left_out=dict(sorted(self._left_out.items())),
        )

    def _mended(self, work: Past, usual: float) -> Past:
        """A unit without dependencies that are not replayed, and with an attempt if it had none."""
        if work.depends_on and not all(needed in self._ids for needed in work.depends_on):
            there = tuple(needed for needed in work.depends_on if needed in self._ids)
            work = msgspec.structs.replace(work, depends_on=there)
        return work if work.endings else msgspec.structs.replace(work, seconds=(usual,), endings="c")

    def _retry(self) -> RetryConfig:
        """A retry policy with the most attempts and the usual delay of the recording."""
        usual = runcue.Retry()
        if not self._pauses:
            return RetryConfig(max_attempts=self._max_attempts, base_delay=float(usual.base_delay))
        pause = min(round(median(self._pauses), 6), 300.0)
        return RetryConfig(max_attempts=self._max_attempts, base_delay=pause, jitter=False)

    def _facts(self) -> Facts:
        latencies, counts = sorted(self._latencies), self._counts
        figures = (counts["completed"], counts["failed"], counts["attempts"])
        lasted = round(self._ends - self._begins, 6)
        return Facts(
            len(self._works), *figures, lasted, *(_share(latencies, part) for part in (0.5, 0.95, 0.99))
        )


def _submission(work: Past, services: int) -> Submission:
    """A submission with the script of its attempts; one that succeeds spends its time on all services in turn."""
    script = [
        (seconds / max(1, services) if ending == "c" else seconds, ENDINGS[ending])
        for seconds, ending in zip(work.seconds, work.endings, strict=True)
    ]
    return Submission(
        id=work.id, task=work.kind, priority=work.priority, needs=work.depends_on, script=script
    )


def _why_not(work: runcue.Work) -> str | None:
    """Why a unit is not replayed: it was skipped, or cancelled before anybody could know how long it takes."""
    if work.skipped:
        return "skipped"
    return "cancelled" if work.state is runcue.WorkState.CANCELLED else None


def _attempts(work: runcue.Work) -> tuple[tuple[float, ...], str]:
    """How long each attempt took, and how it ended."""
    if work.error in NEVER_RAN:
        return (), ""
    seconds, endings = [], []
    for attempt in work.history:
        seconds.append(round(attempt.duration or 0.0, 6))
        endings.append("e")
    if work.state is runcue.WorkState.COMPLETED and work.started_at is not None:
        seconds.append(round((work.completed_at or work.started_at) - work.started_at, 6))
        endings.append("c")
    elif work.state is runcue.WorkState.FAILED and endings and _is_permanent(work):
        endings[-1] = "p"
    return tuple(seconds), "".join(endings)


def _pause(work: runcue.Work) -> float | None:
    """How long after its first failure a unit was started again, if it was."""
    if not work.history:
        return None
    first = work.history[0]
    again_at = work.history[1].at if len(work.history) > 1 else work.started_at
    if first.at is None or first.duration is None or again_at is None or again_at <= first.at:
        return None
    return max(0.0, again_at - first.at - first.duration)


def _is_permanent(work: runcue.Work) -> bool:
    return work.error is not None and work.error.partition(":")[0] in {"Permanent", "BadCommand"}


def _services(known: Iterable[dict[str, object]], kinds: dict[str, Kind]) -> dict[str, ServiceConfig]:
    """The limits as they stand in the file; a service that is no longer declared has none."""
    instant = Behaviour(latency=Latency(mean=0.0))
    found: dict[str, ServiceConfig] = {}
    for one in msgspec.convert(list(known), list[_Known]):
        found[one.name] = ServiceConfig(
            concurrent=one.concurrent if one.adaptive is None else None,
            adaptive=one.adaptive,
            rates=[rate(each.rate, f"services.{one.name}.rate") for each in one.rates],
            circuit_threshold=one.circuit_threshold,
            circuit_timeout=one.circuit_timeout,
            behaviour=instant,
        )
    used = {service for kind in kinds.values() for service in kind.services}
    for service in sorted(used - found.keys()):
        found[service] = ServiceConfig(behaviour=instant)
    return {service: found[service] for service in found if service in used}


class _Rate(msgspec.Struct):
    rate: str


class _Known(msgspec.Struct):
    """A service as a Reader shows it."""

    name: str
    concurrent: int | None
    adaptive: Adaptive | None
    rates: list[_Rate]
    circuit_threshold: int | None
    circuit_timeout: float


def _timeout(seen: set[float | None]) -> float | None:
    """A time that is long enough for all; None when some had none."""
    times = [timeout for timeout in seen if timeout is not None]
    return max(times) if times and len(times) == len(seen) else None


def _share(values: Sequence[float], part: float) -> float:
    """The value below which that share of the sorted values lies."""
    return round(values[min(len(values) - 1, int(part * len(values)))], 6) if values else 0.0
