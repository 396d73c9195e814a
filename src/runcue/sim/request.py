"""What one call of `runcue-sim` is to do: which configuration, changed how, run how often, and judged by what."""

from __future__ import annotations

import asyncio
import math
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

import runcue
from runcue.host.address import is_address, plain
from runcue.sim import conditions, output, pace, replay, report
from runcue.sim.check import Asked, Checker
from runcue.sim.compare import compare
from runcue.sim.config import LARGEST_FILE, BadConfig, Config, Latency, load, parse, with_changes
from runcue.sim.metrics import Metrics
from runcue.sim.reading import Reader, duration, number, rate, span, whole
from runcue.sim.replay import Recording
from runcue.sim.report import Run
from runcue.sim.scenarios import SCENARIOS, scenario
from runcue.sim.workload import Arrival
from runcue.sim.world import Outcome, Simulation
from runcue.testing import run

FASTEST = 1_000_000.0
SHOWN_VIOLATIONS = 5

T = TypeVar("T")
Arrivals = Callable[[Config], Iterable[Arrival]]


class Request(msgspec.Struct, kw_only=True):
    """Everything that one call of `runcue-sim` asks for."""

    config: Config
    changes: list[str] = []
    arrivals: Arrivals | None = None
    fail_on: list[conditions.Condition] = []
    is_checked: bool = False
    is_real: bool = False
    is_watched: bool = False
    speed: float | None = None
    report: str | None = None
    html: str | None = None
    recording: Recording | None = None
    """The recording that is replayed, if any."""
    command: str | None = None
    """The command that repeats this run, where the configuration alone does not tell."""

    def runs(self) -> list[Run]:
        """Run the configuration, and with `--set` the changed one, too."""
        if not self.changes:
            return [self._run("", self.config)]
        changed = with_changes(self.config, self.changes)
        return [self._run("base", self.config), self._run("changed", changed)]

    def _run(self, name: str, config: Config) -> Run:
        metrics = Metrics(config)
        checker = Checker(config) if self.is_checked else None
        arrivals = None if self.arrivals is None else self.arrivals(config)
        if self.is_watched:
            outcome = self._watched(config, metrics, arrivals)
        else:
            # a check needs every call, and the calls of nodes in processes of their own are not known here
            is_apart = bool(config.kills) and config.workload.linked_by == "depends_on"
            in_processes = self.is_real and is_apart and checker is None
            simulation = Simulation(
                config, arrivals=arrivals, keep_calls=self.is_checked, in_processes=in_processes
            )
            simulation.listeners.append(metrics)
            if checker is not None:
                attach(checker, simulation)
            if self.speed is not None:
                outcome = run(pace.at_speed(simulation, self.speed))
            else:
                outcome = asyncio.run(simulation.run()) if self.is_real else run(simulation.run())
        found = Run(metrics.finish(outcome), outcome, config, name=name)
        if checker is not None:
            found.violations = checker.finish(outcome.calls, outcome.counts, outcome.ended_at)
        return found

    def _watched(self, config: Config, metrics: Metrics, arrivals: Iterable[Arrival] | None) -> Outcome:
        from runcue.sim import tui

        def snapshot(player: Any) -> bytes:
            return report.document(metrics.look(player.simulation), config)

        return tui.play(config, metrics, speed=self.speed or 1.0, arrivals=arrivals, save=snapshot)

    def document(self, runs: list[Run]) -> bytes:
        """The JSON report of what was run."""
        base, last = runs[0], runs[-1]
        more: dict[str, Any] = {}
        if self.recording is not None:
            more["recorded"] = {"facts": self.recording.facts, "left_out": self.recording.left_out}
        if not base.outcome.is_whole:
            more["left_at"] = base.summary.took
        if last is not base:
            more["changes"] = self.changes
            more["changed"] = {"config": last.config, "summary": last.summary, "violations": last.violations}
            more["differences"] = compare(base.summary, last.summary)
        return report.document(base.summary, base.config, base.violations, more)

    def page(self, runs: list[Run]) -> bytes:
        """The HTML report of what was run."""
        from runcue.sim.page import page

        last, before = runs[-1], runs[0] if self.changes else None
        return page(
            last.summary,
            last.outcome,
            last.config,
            violations=last.violations,
            command=self.command,
            before=before,
            changes=self.changes,
        ).encode()

    def verdict(self, runs: list[Run]) -> tuple[list[str], int]:
        """What checks and conditions say, and the exit code."""
        lines: list[str] = [] if self.recording is None else self.recording.lines()
        code = 0
        for one in runs:
            if not one.outcome.is_whole:
                lines.append(f"  left        after {span(one.summary.took)}, before its end")
            if one.violations:
                code = 1
                lines += _broken(one)
            elif one.violations is not None:
                lines.append(f"  check       {_named(one)}every promise was kept")
        for condition in self.fail_on:
            if conditions.holds(condition, runs[-1].summary):
                code = 1
                value = conditions.measured(condition, runs[-1].summary)
                lines.append(f"  failed      {_named(runs[-1])}{condition.text}: it is {value:g}")
        return lines, code


def _named(run: Run) -> str:
    """The name of a run as a prefix, where there are two."""
    return f"{run.name}: " if run.name else ""


def _broken(run: Run) -> list[str]:
    violations = run.violations or []
    first = [
        f"  broken      {_named(run)}{one.rule} at {span(one.at - run.outcome.began_at)}: {one.text}"
        for one in violations[:SHOWN_VIOLATIONS]
    ]
    more = len(violations) - len(first)
    rest = [f"              and {more:,} more"] if more else []
    return [*first, *rest, f"              seed {run.config.seed}"]


def attach(checker: Checker, simulation: Simulation) -> None:
    """Connect a checker to a simulation: events, submissions and deaths of nodes."""
    is_linked = simulation.config.workload.linked_by == "depends_on"

    def hear(event: runcue.Event) -> None:
        if event.type == "queued" and event.work_id is not None:
            needs = tuple(event.data.get("needs", ())) if is_linked else ()
            priority = float(event.data.get("priority", 0.0))
            cost, keys = event.data.get("cost", {}), event.data.get("keys", {})
            checker.submitted(
                Asked(event.work_id, needs, priority, has_time=not is_linked, cost=cost, keys=keys)
            )
        checker(event)

    def begin(at: float) -> None:
        checker.slots.clock_set(-math.inf, simulation.ahead)
        checker.slots.ends_at = at + simulation.config.duration

    hear.begin = begin  # type: ignore[attr-defined]  # what a listener may have
    simulation.listeners.append(hear)
    simulation.deaths.append(checker.died)


# --- from the command line -----------------------------------------------------------------------------------


def request_of(given: dict[str, Any]) -> Request:
    """What the options of the command line ask for; `BadConfig` names the option that is wrong."""
    named = [name for name in ("scenario", "config", "replay") if given[name] is not None]
    if len(named) > 1:
        raise BadConfig(f"--{named[1]}", f"no --{named[0]} beside it")
    for name in ("latency", "jitter", "error_rate") if given["replay"] is not None else ():
        if given[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadConfig(option, "no --replay beside it: calls go as they went")
    sources = {"--config": given["config"], "--replay": given["replay"]}
    output.check({"--report": given["report"], "--html": given["html"]}, sources)
    config, recording = _source(given)
    for place, change in enumerate(given["changes"]):
        if "=" not in change:
            raise BadConfig(f"--set[{place}]", "a path, = and a value, such as api.rate=120/min", change)
    request = Request(
        config=config,
        changes=list(given["changes"]),
        arrivals=None if recording is None else recording.arrivals,
        fail_on=[conditions.condition(text) for text in given["fail_on"]],
        is_checked=given["check"] and not given["tui"],
        is_real=given["realtime"],
        is_watched=given["tui"],
        speed=None
        if given["speed"] is None
        else typed(given["speed"], "--speed", float, number(0.001, FASTEST)),
        report=given["report"],
        html=given["html"],
        recording=recording,
        command=None if recording is None else _typed(given, config.seed),
    )
    _try(request)
    return request


def _try(request: Request) -> None:
    """Find mistakes before the run, which may take a while."""
    changed = with_changes(request.config, request.changes)
    if request.recording is not None:
        replay.check(request.config, changed)
    blank = Metrics(request.config).finish(Simulation(request.config).outcome_so_far())
    for condition in request.fail_on:
        conditions.measured(condition, blank)


def _typed(given: dict[str, Any], seed: int) -> str:
    """The command that repeats this replay, without its outputs."""
    parts = ["runcue-sim", "--replay", plain(given["replay"]), "--seed", str(seed)]
    for name in ("duration", "count", "rate_limit", "concurrent"):
        if given[name] is not None:
            parts += [f"--{name.replace('_', '-')}", given[name]]
    for change in given["changes"]:
        parts += ["--set", change]
    return shlex.join(parts)


def _source(given: dict[str, Any]) -> tuple[Config, Recording | None]:
    length = None if given["duration"] is None else duration(0.001)(given["duration"], "--duration")
    recording: Recording | None = None
    if given["replay"] is not None:
        recording = replay.read(given["replay"])
        config = recording.config()
    elif given["config"] is not None:
        config = load(_text_of(given["config"]), name="custom")
    else:
        name = given["scenario"] or "single_queue"
        if name not in SCENARIOS:
            raise BadConfig("--scenario", f"one of {', '.join(SCENARIOS)}", name, names=SCENARIOS)
        config = scenario(name, length)
    if length is not None:
        config = replace(config, duration=length)
    if given["seed"] is not None:
        config = replace(config, seed=typed(given["seed"], "--seed", int, whole(0, 2**63)))
    config = _adjusted(config, given)
    return parse(msgspec.to_builtins(config), name=config.name), recording


def _text_of(path: str) -> str:
    """A file as text, and no more of it than a configuration may hold."""
    if is_address(path):
        raise BadConfig("--config", "a file, and no address", plain(path))
    if path == "-":
        data = sys.stdin.buffer.read(LARGEST_FILE + 1)
    else:
        with open(path, "rb") as file:  # noqa: PTH123 (a Path would name the file in another way in its errors)
            data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise BadConfig("--config", f"at most {LARGEST_FILE:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfig("--config", f"text in UTF-8 (byte {error.start} is not)") from error


def _adjusted(config: Config, given: dict[str, Any]) -> Config:
    """Apply the options that hold for every service."""

    def option(name: str, kind: type, read: Reader[Any]) -> Any:
        return None if given[name] is None else typed(given[name], f"--{name.replace('_', '-')}", kind, read)

    count = option("count", int, whole(1, 10_000_000))
    latency = option("latency", float, number(0, 86_400_000))
    jitter = option("jitter", float, number(0, 1))
    error_rate = option("error_rate", float, number(0, 1))
    rates = option("rate_limit", str, rate)
    concurrent = option("concurrent", int, whole(1, 1_000_000))
    services = {}
    for name, service in config.services.items():
        calls = service.behaviour
        if latency is not None:
            calls = replace(calls, latency=Latency(mean=latency / 1000))
        if jitter is not None:
            mean = calls.latency.mean
            spread = Latency(
                distribution="uniform", mean=mean, min=mean * (1 - jitter), max=mean * (1 + jitter)
            )
            calls = replace(calls, latency=spread)
        if error_rate is not None:
            calls = replace(calls, error_rate=error_rate)
        services[name] = replace(
            service,
            behaviour=calls,
            rates=service.rates if rates is None else [rates],
            concurrent=service.concurrent if concurrent is None else concurrent,
        )
    workload = config.workload if count is None else replace(config.workload, count=count)
    return replace(config, workload=workload, services=services)


def typed(text: str, option: str, kind: type[int | float | str], read: Reader[T]) -> T:
    """Read the text of an option with the reader of its value, which refuses text that is no number."""
    try:
        return read(kind(text), option)
    except ValueError:
        return read(text, option)
