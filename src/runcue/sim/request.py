"""What one call of `runcue-sim` is to do: which configuration, changed how, run how often, and judged by what."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

import runcue
from runcue.host.address import is_address, plain
from runcue.sim import conditions, output, pace, replay, report
from runcue.sim.check import Asked, Checker, Violation
from runcue.sim.compare import compare
from runcue.sim.config import LARGEST_FILE, BadConfig, Config, Latency, load, parse, with_changes
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.reading import duration, number, rate, share, span, whole
from runcue.sim.replay import Recording
from runcue.sim.scenarios import SCENARIOS, scenario
from runcue.sim.workload import Arrival
from runcue.sim.world import Outcome, Simulation

FASTEST = 1_000_000.0
SHOWN_VIOLATIONS = 5

Arrivals = Callable[[Config], Iterable[Arrival]]


class Done(msgspec.Struct):
    """One run and its results; `name` tells two runs apart."""

    name: str
    config: Config
    outcome: Outcome
    summary: Summary
    violations: list[Violation] | None = None


class Request(msgspec.Struct, kw_only=True):
    """Everything that one call of the program asks for."""

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

    def runs(self) -> list[Done]:
        """Run the configuration, and with `--set` the changed one, too."""
        if not self.changes:
            return [self._run("", self.config)]
        changed = with_changes(self.config, self.changes)
        return [self._run("base", self.config), self._run("changed", changed)]

    def _run(self, name: str, config: Config) -> Done:
        metrics = Metrics(config)
        checker = Checker(config) if self.is_checked else None
        arrivals = None if self.arrivals is None else self.arrivals(config)
        if self.is_watched:
            outcome = self._watched(config, metrics, arrivals)
        else:
            # a check looks at every call, and processes of their own would keep theirs to themselves
            is_apart = bool(config.kills) and config.workload.linked_by == "depends_on"
            in_processes = self.is_real and is_apart and checker is None
            simulation = Simulation(
                config, arrivals=arrivals, keep_calls=self.is_checked, in_processes=in_processes
            )
            simulation.listeners.append(metrics)
            if checker is not None:
                attach(checker, simulation)
            outcome = self._paced(simulation)
        violations = (
            None if checker is None else checker.finish(outcome.calls, outcome.counts, outcome.ended_at)
        )
        return Done(name, config, outcome, metrics.finish(outcome), violations)

    def _paced(self, simulation: Simulation) -> Outcome:
        if self.speed is not None:
            return pace.at_speed(simulation, self.speed)
        return pace.in_real_time(simulation) if self.is_real else pace.at_full_speed(simulation)

    def _watched(self, config: Config, metrics: Metrics, arrivals: Iterable[Arrival] | None) -> Outcome:
        from runcue.sim import tui

        def snapshot(player: Any) -> bytes:
            return report.document(metrics.look(player.simulation), config)

        return tui.play(config, metrics, speed=self.speed or 1.0, arrivals=arrivals, save=snapshot)

    def document(self, done: list[Done]) -> bytes:
        """The JSON report of what was run."""
        base = done[0]
        more: dict[str, Any] = {}
        if self.recording is not None:
            more["recorded"] = {"facts": self.recording.facts, "left_out": self.recording.left_out}
        if not base.outcome.is_whole:
            more["left_at"] = base.summary.took
        if len(done) == 1:
            return report.document(base.summary, base.config, base.violations, more)
        changed = done[1]
        return report.document(
            base.summary,
            base.config,
            base.violations,
            {
                **more,
                "changes": self.changes,
                "changed": {
                    "config": changed.config,
                    "summary": changed.summary,
                    "violations": changed.violations,
                },
                "differences": compare(base.summary, changed.summary),
            },
        )

    def page(self, done: list[Done]) -> bytes:
        """The HTML report of what was run."""
        from runcue.sim.page import Before, page

        last, before = done[-1], None
        if len(done) > 1:
            base = done[0]
            before = Before(base.summary, base.outcome, base.config, self.changes, base.violations)
        found = page(
            last.summary,
            last.outcome,
            last.config,
            violations=last.violations,
            command=self.command,
            before=before,
        )
        return found.encode()

    def verdict(self, done: list[Done]) -> tuple[list[str], int]:
        """What checks and conditions say, and the exit code."""
        lines: list[str] = [] if self.recording is None else self.recording.lines()
        code = 0
        for one in done:
            if not one.outcome.is_whole:
                lines.append(f"  left        after {span(one.summary.took)}, before its end")
            if one.violations:
                code = 1
                lines += _broken(one)
            elif one.violations is not None:
                lines.append(f"  check       {_named(one)}every promise was kept")
        for condition in self.fail_on:
            if conditions.holds(condition, done[-1].summary):
                code = 1
                value = conditions.measured(condition, done[-1].summary)
                lines.append(f"  failed      {_named(done[-1])}{condition.text}: it is {value:g}")
        return lines, code


def _named(done: Done) -> str:
    """The name of a run as a prefix, where there are two."""
    return f"{done.name}: " if done.name else ""


def _broken(done: Done) -> list[str]:
    violations = done.violations or []
    first = [
        f"  broken      {_named(done)}{one.rule} at {span(one.at - done.outcome.began_at)}: {one.text}"
        for one in violations[:SHOWN_VIOLATIONS]
    ]
    more = len(violations) - len(first)
    rest = [f"              and {more:,} more"] if more else []
    return [*first, *rest, f"              seed {done.config.seed}"]


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
        speed=None if given["speed"] is None else _number(given["speed"], "--speed", 0.001, FASTEST),
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
        config = replace(config, seed=whole_of(given["seed"], "--seed", 0, 2**63))
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
    workload, services = config.workload, dict(config.services)
    if given["count"] is not None:
        workload = replace(workload, count=whole_of(given["count"], "--count", 1, 10_000_000))
    for name, service in services.items():
        behaviour, latency = service.behaviour, service.behaviour.latency
        if given["latency"] is not None:
            latency = Latency(mean=_number(given["latency"], "--latency", 0, 86_400_000) / 1000)
        if given["jitter"] is not None:
            part = share(_number(given["jitter"], "--jitter", 0, 1), "--jitter")
            latency = Latency(
                distribution="uniform",
                mean=latency.mean,
                min=latency.mean * (1 - part),
                max=latency.mean * (1 + part),
            )
        behaviour = replace(behaviour, latency=latency)
        if given["error_rate"] is not None:
            behaviour = replace(
                behaviour, error_rate=share(_number(given["error_rate"], "--error-rate", 0, 1), "")
            )
        service = replace(service, behaviour=behaviour)
        if given["rate_limit"] is not None:
            service = replace(service, rates=[rate(given["rate_limit"], "--rate-limit")])
        if given["concurrent"] is not None:
            service = replace(service, concurrent=whole_of(given["concurrent"], "--concurrent", 1, 1_000_000))
        services[name] = service
    return replace(config, workload=workload, services=services)


def whole_of(text: str, option: str, low: int, high: int) -> int:
    """The whole number that an option was given."""
    try:
        return whole(low, high)(int(text), option)
    except ValueError:
        raise BadConfig(option, f"a whole number from {low:,} to {high:,}", text) from None


def _number(text: str, option: str, low: float, high: float) -> float:
    try:
        return number(low, high)(float(text), option)
    except ValueError:
        raise BadConfig(option, f"a number from {low:,} to {high:,}", text) from None
