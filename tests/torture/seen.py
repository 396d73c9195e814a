"""A history, sorted out: starts with their ends, deaths, pauses, submissions with their answers.

What the queue was told to keep to is here as well, because some of it says how a history is to be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tests.torture.history import Line

NEVER: Final = float("inf")

Row = dict[str, Any]
"""One work as it stands in the end: id, tag, task, state, attempt, result, depends_on and what else is known."""


class Rate(NamedTuple):
    """So many starts in any window of so many seconds."""

    most: int
    window: float

    def __str__(self) -> str:
        return f"{self.most} in {self.window:g} s"


class Circuit(NamedTuple):
    """After so many failures in a row nothing starts for so many seconds, and then one call at a time."""

    threshold: int
    timeout: float


class Service(msgspec.Struct, frozen=True):
    """What one service allows."""

    rates: tuple[Rate, ...] = ()
    concurrent: int | None = None
    circuit: Circuit | None = None
    """Checked where one call runs at a time, so that the order of the answers is known."""


class Policy(msgspec.Struct, frozen=True):
    """How a task is retried."""

    attempts: int = 1
    delay: float = 0.0
    """The shortest wait between a failed attempt and the next one."""


class Limits(msgspec.Struct, frozen=True):
    """What the queue was told to keep to, and how exactly the witnesses can tell."""

    services: dict[str, Service] = {}
    tasks: dict[str, Policy] = {}
    crashes: int = 3
    recovery: float = 2.0
    tolerance: float = 0.005
    """How much later than it was allowed a start may be witnessed."""
    after_pause: float = 0.05
    """A start witnessed so soon after its process was let go on says nothing about when it was allowed."""
    stop_within: float = NEVER
    """Seconds that a worker leaves to what it runs when it is told to leave; then it puts it back."""
    one_host: bool = True
    """False where a stopped owner loses its work: starts may overlap then, and a pause calls for another start."""


class Run(msgspec.Struct):
    """One start that a handler witnessed."""

    work: str
    tag: str
    task: str
    attempt: int
    token: str
    actor: str
    services: tuple[str, ...]
    start: float
    end: float | None = None
    outcome: str | None = None


class Death(NamedTuple):
    """When an actor died: not before `after`, and seen at `t`; `clean` when it ended by itself, as it should."""

    after: float
    t: float
    clean: bool


class Submission(NamedTuple):
    """One call of submit or submit_many."""

    t: float
    tags: tuple[str, ...]
    key: str | None
    answer: Line | None


class Seen:
    """A history, sorted out."""

    def __init__(self, history: Sequence[Line], dump: Sequence[Row], limits: Limits) -> None:
        self.history = sorted(history, key=lambda line: line.t)
        self.limits = limits
        self.rows: dict[str, Row] = {row["id"]: row for row in dump}
        self.dump = list(dump)
        self.deaths = self._deaths()
        self.told_to_leave = {line.actor: line.t for line in self.history if line.op == "down"}
        self.runs = self._runs()
        self.runs_of: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            self.runs_of[run.work].append(run)
        self.run_by_token = {run.token: run for run in self.runs}
        self.submissions = self._submissions()
        self.pauses = self._pauses()
        self.service_time = self._service_time()

    def over(self, run: Run) -> float:
        """The earliest moment at which that start can have been over."""
        if run.end is not None:
            return run.end
        death = self.deaths.get(run.actor)
        return NEVER if death is None else max(run.start, death.after)

    def died_before(self, run: Run, t: float) -> bool:
        """True when the owner may have died by `t` without having told how that start ended."""
        death = self.deaths.get(run.actor)
        return death is not None and death.after <= t and (not death.clean or run.end is None)

    def was_put_back(self, run: Run) -> bool:
        """True when its owner, leaving, may have given that start up; its answer came too late, whatever it was."""
        if run.outcome == "stopped":
            return True
        told = self.told_to_leave.get(run.actor)
        return told is not None and self.over(run) >= told + self.limits.stop_within

    def is_crashed(self, actor: str) -> bool:
        """True when that actor did not end by itself."""
        death = self.deaths.get(actor)
        return death is not None and not death.clean

    def is_cut(self, run: Run) -> bool:
        """True when its owner died in the middle of it."""
        return run.end is None and run.actor in self.deaths

    def available(self, since: float, until: float) -> float:
        """Seconds between the two in which a worker was up and nobody was stopped.

        Only such as the machine gave the actors count: while they waited for a processor that others had, nobody can
        say how long they would have taken.
        """
        return self._served(until) - self._served(since)

    def _served(self, t: float) -> float:
        moments, served, paces = self.service_time
        place = bisect_right(moments, t) - 1
        if place < 0:
            return 0.0
        return served[place] + (t - moments[place]) * paces[place]

    def _deaths(self) -> dict[str, Death]:
        last: dict[str, float] = {}
        deaths: dict[str, Death] = {}
        for line in self.history:
            if line.op == "death":
                after = line.data.get("after")
                target = line.data["target"]
                earliest = last.get(target, 0.0) if after is None else after
                deaths[target] = Death(earliest, line.t, line.data.get("clean", False))
            else:
                last[line.actor] = line.t
        return deaths

    def _runs(self) -> list[Run]:
        runs: dict[str, Run] = {}
        for line in self.history:
            if line.op == "start" and line.kind == "info":
                assert line.work is not None
                assert line.token is not None
                data = line.data
                runs[line.token] = Run(line.work, data["tag"], data["task"], line.attempt, line.token, line.actor,
                                       line.services, line.t)  # fmt: skip
            elif line.op == "end" and line.kind == "info" and line.token in runs:
                runs[line.token].end = line.t
                runs[line.token].outcome = line.data["outcome"]
        return list(runs.values())

    def _submissions(self) -> list[Submission]:
        answers = {
            (line.actor, line.call): line
            for line in self.history
            if line.op == "submit" and line.kind != "invoke"
        }
        return [
            Submission(line.t, tuple(line.data["tags"]), line.data.get("key"), answers.get((line.actor, line.call)))
            for line in self.history
            if line.op == "submit" and line.kind == "invoke"
        ]  # fmt: skip

    def _pauses(self) -> dict[str, list[tuple[float, float]]]:
        """From when to when each actor was stopped; an actor that died stopped is not let go on."""
        pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        begun: dict[str, float] = {}
        for line in self.history:
            target = line.data.get("target")
            if line.op == "stop":
                begun.setdefault(str(target), line.t)
            elif line.op in {"go", "death"} and target in begun:
                pauses[target].append((begun.pop(target), line.t))
        for target, t in begun.items():
            pauses[target].append((t, NEVER))
        return pauses

    def _service_time(self) -> tuple[list[float], list[float], list[float]]:
        """Moments at which it changes how quickly work can be taken up, how long it could so far, and the pace."""
        steps: list[tuple[float, int, int, float]] = []
        for line in self.history:
            if line.op == "up":
                death = self.deaths.get(line.actor)
                downs = [x.t for x in self.history if x.op == "down" and x.actor == line.actor]
                until = min([NEVER if death is None else death.after, *downs])
                steps += [(line.t, 1, 0, 0.0), (max(line.t, until), -1, 0, 0.0)]
            elif line.op == "share":
                taken = 1.0 - line.data["share"]
                steps += [(line.data["since"], 0, 0, taken), (line.t, 0, 0, -taken)]
        for spans in self.pauses.values():
            for begin, end in spans:
                steps += [(begin, 0, 1, 0.0), (end, 0, -1, 0.0)]
        steps.sort()
        moments, served, paces = [0.0], [0.0], [0.0]
        up = stopped = 0
        taken = 0.0
        for t, more_up, more_stopped, more_taken in steps:
            if t == NEVER:
                break
            served.append(served[-1] + (t - moments[-1]) * paces[-1])
            moments.append(t)
            up, stopped, taken = up + more_up, stopped + more_stopped, taken + more_taken
            paces.append(1.0 - taken if up > 0 and stopped == 0 else 0.0)
        return moments, served, paces
