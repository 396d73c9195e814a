"""Quantities, keys, totals and adaptive concurrency in the simulator: read, run, reported and checked."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import runcue
from runcue.sim import report
from runcue.sim.again import as_yaml
from runcue.sim.check import Checker
from runcue.sim.config import BadConfig, Config, load, parse, with_changes
from runcue.sim.limits import Adaptive, Allows, Amount, Total
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.mocks import FarSide
from runcue.sim.page import page
from runcue.sim.request import attach
from runcue.sim.scenarios import scenario
from runcue.sim.workload import arrivals
from runcue.sim.world import Outcome, Simulation
from runcue.testing import run

LLM: dict[str, Any] = {
    "services": {"llm": {"tokens": "1000/min", "behavior": {"latency": "1s"}}},
    "workload": {"submit_rate": "20/min", "arrivals": "regular", "cost": {"tokens": 100}},
    "duration": "5m",
}
MAIL: dict[str, Any] = {
    "services": {"mail": {"per": "account", "rate": "10/min", "total": 2, "behavior": {"latency": "2s"}}},
    "workload": {"count": 60, "keys": {"account": {"ann": 8, "bob": 1, "eve": 1}}},
    "duration": "1m",
    "drain": "1h",
}


def config(value: dict[str, Any], **service: Any) -> Config:
    """One of the above, with more said of its service."""
    name, one = next(iter(value["services"].items()))
    return parse({**value, "services": {name: {**one, **service}}}, name="test")


def played(plan: Config) -> tuple[Summary, Outcome, list[str]]:
    """What came of it, and the rules that were broken."""
    metrics, checker = Metrics(plan), Checker(plan)
    simulation = Simulation(plan)
    simulation.listeners.append(metrics)
    attach(checker, simulation)
    outcome = run(simulation.run())
    return (
        metrics.finish(outcome),
        outcome,
        [str(one) for one in checker.finish(outcome.calls, outcome.counts, outcome.ended_at)],
    )


# --- reading ---------------------------------------------------------------------------------------


def test_any_other_key_with_a_rate_is_a_quantity() -> None:
    service = config(LLM, bytes=["1M/min", "10M/h"]).services["llm"]
    assert service.quantities == {"tokens": ["1000/60s"], "bytes": ["1000000/60s", "10000000/3600s"]}
    assert service.options()["tokens"] == ["1000/60s"]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"token": 5}, "services.llm.token"),
        ({"concurent": "5/min"}, "services.llm.concurent"),
        ({"adaptive": {"min": 5, "max": 4}}, "services.llm.adaptive.max"),
        ({"adaptive": {"max": 4}, "concurrent": 4}, "services.llm.adaptive"),
        ({"total": 4}, "services.llm.total"),
        ({"per": "account"}, "services.llm.per"),
        ({"to-kens": "5/min"}, "services.llm.to-kens"),
        ({"behavior": {"allows": {"retry_after": "never"}}}, "services.llm.behavior.allows.retry_after"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(given: dict[str, Any], path: str) -> None:
    with pytest.raises(BadConfig) as caught:
        config(LLM, **given)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"cost": {"words": 5}}, "workload.cost.words"),
        ({"cost": {"tokens": {"distribution": "normal"}}}, "workload.cost.tokens.mean"),
        ({"cost": {"tokens": {"mean": 5, "min": 9, "max": 3}}}, "workload.cost.tokens.min"),
        ({"cost": {"tokens": -1}}, "workload.cost.tokens"),
        ({"keys": {"account": {"ann": 0}}}, "workload.keys.account"),
        ({"keys": {"account": 0}}, "workload.keys.account"),
    ],
)
def test_what_is_wrong_with_a_workload_is_named_too(given: dict[str, Any], path: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse({**LLM, "workload": given}, name="test")
    assert caught.value.path == path


def test_a_total_is_a_number_a_rate_or_both() -> None:
    def total(value: Any) -> Total | None:
        return config(MAIL, total=value).services["mail"].total

    assert total(3) == Total(concurrent=3)
    assert total("5/s") == Total(rates=["5/1s"])
    assert total({"concurrent": 3, "rate": "5/s", "tokens": "9/s"}) == Total(
        concurrent=3, rates=["5/1s"], quantities={"tokens": ["9/1s"]}
    )


def test_keys_are_weighed_listed_or_counted() -> None:
    def keys(value: Any) -> dict[str, float]:
        return parse({**MAIL, "workload": {"keys": {"account": value}}}, name="test").workload.keys["account"]

    assert keys({"ann": 2, 7: 1}) == {"ann": 2, "7": 1}
    assert keys(["ann", "bob"]) == {"ann": 1, "bob": 1}
    assert keys(2) == {"k1": 1, "k2": 1}


@pytest.mark.parametrize("plan", [scenario("llm"), config(MAIL), config(LLM, adaptive={"max": 9})])
def test_a_configuration_is_read_from_what_a_report_shows(plan: Config) -> None:
    assert load(as_yaml(plan), name=plan.name) == plan
    assert parse(msgspec.to_builtins(plan), name=plan.name) == plan


def test_a_quantity_is_set_like_a_rate() -> None:
    changed = with_changes(scenario("llm"), ["llm.tokens=100k/min", "llm.adaptive.max=50"]).services["llm"]
    assert changed.quantities == {"tokens": ["100000/60s"]}
    assert changed.adaptive == Adaptive(min=4, start=20, max=50)
    assert changed.options()["concurrent"] == runcue.adaptive(min=4, start=20, max=50)


# --- what arrives ----------------------------------------------------------------------------------


def test_costs_and_keys_are_drawn_from_lots_of_their_own() -> None:
    plan = scenario("llm", 60.0)
    plain = msgspec.structs.replace(plan, workload=msgspec.structs.replace(plan.workload, cost={}))
    priced, free = list(arrivals(plan)), list(arrivals(plain))
    assert [(one.at, one.works[0].id) for one in priced] == [(one.at, one.works[0].id) for one in free]
    costs = [one.works[0].cost["tokens"] for one in priced]
    assert len(set(costs)) > 100
    assert all(50 <= cost <= 4000 and cost == int(cost) for cost in costs)
    owners = [work.keys["account"] for one in arrivals(config(MAIL)) for work in one.works]
    assert owners.count("ann") > 30
    assert set(owners) == {"ann", "bob", "eve"}


def test_work_costs_nothing_that_its_services_do_not_limit() -> None:
    services = {**LLM["services"], "disk": {"concurrent": 1}}
    workload = {**LLM["workload"], "task_types": ["ask", "save"], "uses": {"ask": "llm", "save": "disk"}}
    plan = parse({**LLM, "services": services, "workload": workload}, name="test")
    costs = {work.task: work.cost for one in arrivals(plan) for work in one.works}
    assert costs == {"ask": {"tokens": 100.0}, "save": {}}


# --- the far side ----------------------------------------------------------------------------------


def test_the_far_side_takes_what_it_allows_and_says_when_there_is_room() -> None:
    side = FarSide(Allows(rates=["2/10s"], quantities={"tokens": ["100/10s"]}, concurrent=3))
    assert side.refuses(0.0, [("tokens", 60)], 0) is None
    assert side.refuses(4.0, [("tokens", 50)], 0) == 6.0
    assert side.refuses(4.0, [("tokens", 40)], 3) == 1.0
    assert side.refuses(4.0, [("tokens", 40)], 2) is None
    assert side.refuses(5.0, [], 0) == 5.0
    assert side.refuses(10.0, [], 0) is None


def test_it_may_ask_for_another_time() -> None:
    side = FarSide(Allows(rates=["1/10s"], retry_after=2.5))
    assert [side.refuses(at, (), 0) for at in (0.0, 1.0, 9.9, 10.0)] == [None, 2.5, 2.5, None]


def test_what_was_refused_is_tried_again_and_costs_no_attempt() -> None:
    allows = {"allows": {"rate": "10/min"}, "latency": "1s"}
    summary, outcome, broken = played(config(LLM, tokens="100k/min", behavior=allows))
    assert broken == []
    assert summary.completed == summary.submitted == 99
    assert summary.services["llm"].refused == outcome.refused["llm"] > 0
    assert summary.attempts == summary.completed + outcome.refused["llm"]
    assert (summary.retries, summary.failed, summary.lost, summary.depth_end) == (0, 0, 0, 0)
    assert summary.services["llm"].quantities["tokens"].used == 9900


# --- what is shown ---------------------------------------------------------------------------------


def test_the_use_of_a_quantity_is_shown_like_that_of_a_rate() -> None:
    plan = config(LLM)
    summary, outcome, broken = played(plan)
    assert broken == []
    tokens = summary.services["llm"].quantities["tokens"]
    assert tokens.used == 9900
    assert tokens.share > 0.9
    assert summary.bottleneck.startswith("tokens of llm (1000/min): ")
    assert sum(value for _, value in tokens.per_minute) * summary.step / 60 == pytest.approx(9900)
    assert any("9,900 tokens, " in line and "% of 1000/min" in line for line in report.lines(summary))
    document = json.loads(report.document(summary, plan))
    assert document["summary"]["services"]["llm"]["quantities"]["tokens"]["used"] == 9900
    text = page(summary, outcome, plan)
    assert "tokens per min" in text
    assert "tokens 1000/min" in text


def test_what_was_really_used_is_what_counts() -> None:
    plan = parse({**LLM, "workload": {**LLM["workload"], "used": 0.5}}, name="test")
    summary, _, broken = played(plan)
    assert broken == []
    assert summary.services["llm"].quantities["tokens"].used == 99 * 50
    assert summary.took < played(config(LLM))[0].took, "so that more of them fit"


def test_keys_have_their_own_limits_and_one_total() -> None:
    plan = config(MAIL)
    summary, outcome, broken = played(plan)
    assert broken == []
    assert summary.completed == 60
    assert (summary.services["mail"].concurrent, summary.services["mail"].running_peak) == (2, 2)
    assert {call.services for call in outcome.calls} == {
        ("mail[ann]", "mail"),
        ("mail[bob]", "mail"),
        ("mail[eve]", "mail"),
    }
    anns = [call.entered_at for call in outcome.calls if call.services[0] == "mail[ann]"]
    assert all(later - first >= 60 for first, later in zip(anns, anns[10:], strict=False))


def test_an_adaptive_concurrency_is_what_holds_work_up_when_nothing_else_does() -> None:
    plan = config(LLM, tokens="1M/min", adaptive={"min": 1, "max": 2}, behavior={"latency": "10s"})
    summary, _, broken = played(plan)
    assert broken == []
    assert summary.services["llm"].running_peak == 2
    assert summary.services["llm"].concurrent == 2
    changed = config(LLM, tokens="1M/min", adaptive={"min": 1, "max": 50}, behavior={"latency": "10s"})
    assert "adaptive, up to 50" in played(changed)[0].bottleneck


def test_the_scenario_of_an_llm_keeps_every_promise() -> None:
    summary, _, broken = played(scenario("llm", 120.0))
    assert broken == []
    assert summary.unfinished == 0
    assert summary.services["llm"].refused > 0


@pytest.mark.parametrize("value", [3, {"mean": 3}, {"distribution": "uniform", "min": 1, "max": 5}])
def test_an_amount_is_a_number_or_a_distribution(value: Any) -> None:
    plan = parse({**LLM, "workload": {"cost": {"tokens": value}}}, name="test")
    assert isinstance(plan.workload.cost["tokens"], Amount)
