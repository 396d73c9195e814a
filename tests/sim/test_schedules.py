"""Schedules of a simulation: what may be written, what they submit, and that no slot is lost with a node."""

from __future__ import annotations

from datetime import datetime

import pytest

import runcue
from runcue.sim.check import Checker
from runcue.sim.config import BadConfig, Config, load
from runcue.sim.metrics import Metrics, ScheduleSummary
from runcue.sim.promise import Violation
from runcue.sim.report import lines
from runcue.sim.request import attach
from runcue.sim.scenarios import scenario
from runcue.sim.world import Simulation, simulate
from runcue.testing import run

API = "services: {api: {concurrent: 2, behavior: {latency: 500ms}}, db: }\n"
ONLY = API + "workload: {submit_rate: none, task_types: [call], uses: {call: api}}\n"


def config(text: str, name: str = "test") -> Config:
    return load(text, name=name)


def slots(config: Config) -> dict[str, list[str]]:
    """The slots of each schedule whose units were submitted."""
    found: dict[str, list[str]] = {}

    def hear(event: runcue.Event) -> None:
        if event.type == "schedule_fired":
            found.setdefault(event.data["schedule"], []).append(event.data["slot"])

    simulate(config, None, hear)
    return found


def judged(config: Config) -> tuple[list[Violation], Simulation]:
    checker, simulation = Checker(config), Simulation(config)
    attach(checker, simulation)
    outcome = run(simulation.run())
    return checker.finish(outcome.calls, outcome.counts, outcome.ended_at), simulation


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("schedules: {a: {}}", "schedules.a", "either every: or cron:"),
        ("schedules: {a: {every: 5m, cron: '@daily'}}", "schedules.a", "either every: or cron:"),
        ("schedules: {a: {every: 0s}}", "schedules.a.every", "a time from 1 s"),
        ("schedules: {a: {every: 1h, tz: Europe/Zurich}}", "schedules.a.tz", "cron: beside it"),
        ("schedules: {a: {cron: '0 3 * *'}}", "schedules.a.cron", "five fields"),
        ("schedules: {a: {cron: '0 0 30 2 *'}}", "schedules.a.cron", "moments that come"),
        ("schedules: {a: {cron: '@daily', tz: Mars/Base}}", "schedules.a.tz", "the name of a time zone"),
        ("schedules: {a: {every: 1h, overlap: both}}", "schedules.a.overlap", "one of skip, queue, replace"),
        ("schedules: {a: {every: 1h, task: b}}", "schedules.a.task", "a task that arrives (api, db)"),
        ("schedules: {a: {every: 1h, uses: mail}}", "schedules.a.uses", "a service (api, db)"),
        ("schedules: {a: {every: 1h, uses: db, task: api}}", "schedules.a.uses", "no task: beside it"),
        ("schedules: {a: {every: 1s}}\nduration: 366d", "schedules", "at most 10,000,000 units"),
        ("begins: yesterday", "begins", "a moment with its time zone"),
        ("begins: 2026-01-01T00:00", "begins", "a moment with its time zone"),
        ("workload: {submit_rate: none}", "workload.submit_rate", "unless there is a count or a schedule"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said_at_its_key(text: str, path: str, expected: str) -> None:
    with pytest.raises(BadConfig) as refused:
        config(API + text)
    assert refused.value.path == path
    assert expected in refused.value.expected


def test_a_schedule_has_a_task_of_its_own_that_does_not_arrive() -> None:
    found = config(
        API
        + "schedules: {report: {every: 1h, uses: [db, api]}, sweep: {every: 1h}, more: {every: 1h, task: db}}"
    )
    assert found.arriving() == {"api": ["api"], "db": ["db"]}
    assert found.uses() == {"api": ["api"], "db": ["db"], "report": ["db", "api"], "sweep": ["api"]}


def test_slots_are_those_of_the_clock_on_the_wall() -> None:
    text = "schedules: {night: {cron: 30 2 * * *, tz: Europe/Zurich}}\nduration: 3d\nbegins: 2026-03-28T00:00+01:00"
    assert slots(config(ONLY + text)) == {
        "night": ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    }


def test_schedules_end_with_the_arrivals() -> None:
    found = slots(config(ONLY + "schedules: {s: {every: 10s}}\nduration: 1m"))
    assert len(found["s"]) == 6


def test_a_schedule_may_submit_a_task_that_arrives_with_its_cost_and_its_key() -> None:
    found = config(
        "services: {api: {per: who, tokens: 1000/min}}\n"
        "workload: {cost: {tokens: 7}, keys: {who: [ann]}, submit_rate: 1}\n"
        "schedules: {s: {every: 10s, task: api, priority: 5}}\nduration: 1m"
    )
    metrics = Metrics(found)
    summary = metrics.finish(simulate(found, None, metrics))
    assert summary.completed == summary.submitted > 50
    assert summary.services["api"].quantities["tokens"].used == 7 * summary.submitted
    assert set(summary.waits) == {"0", "5"}


def test_units_linked_by_artifacts_stand_beside_those_of_schedules() -> None:
    text = "workload: {linked_by: is_ready, pattern: chain, submit_rate: 1}\nduration: 1m\n"
    violations, simulation = judged(config(API + text + "schedules: {s: {every: 10s}}"))
    assert violations == []
    assert simulation.outcome.submitted > 50


def test_a_report_says_what_became_of_slots() -> None:
    found = config(
        ONLY.replace("500ms", "15s")
        + "schedules: {slow: {every: 10s, task: call}, other: {every: 30s}}\nduration: 2m"
    )
    metrics = Metrics(found)
    summary = metrics.finish(simulate(found, None, metrics))
    assert summary.schedules == {"slow": ScheduleSummary(6, 6), "other": ScheduleSummary(4)}
    [line] = [line for line in lines(summary) if line.startswith("  schedules")]
    assert line.split(maxsplit=1)[1] == "slow 6×, 6 left out (overlap) · other 4×"


def test_a_week_of_the_built_in_scenario_keeps_every_promise() -> None:
    week = scenario("nightly")
    began = datetime.fromisoformat(week.begins)
    assert (began.isoweekday(), began.hour) == (1, 0)
    violations, simulation = judged(week)
    assert violations == []
    assert simulation.outcome.submitted > 4000


def test_no_slot_is_lost_with_a_node() -> None:
    kills = "kills: [{at: 9.9, node: 0}, {at: 20, node: 1}, {at: 30.2, node: 0}]\n"
    text = "store: file\nnodes: 2\nduration: 1m\nschedules: {s: {every: 2s, missed: all, overlap: queue}}"
    found = config(ONLY + kills + text)
    violations, simulation = judged(found)
    assert violations == []
    assert simulation.outcome.submitted == 30
