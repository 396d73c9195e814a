"""Simulations: the real engine, a workload, and what happens to it."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

import runcue
from runcue.sim.config import Config, load
from runcue.sim.scenarios import scenario
from runcue.sim.workload import Arrival, Submission
from runcue.sim.world import Outcome, Simulation, simulate
from runcue.testing import run


def config(text: str) -> Config:
    return load(text, name="test")


SMALL = config("""
services: {api: {concurrent: 2, rate: 30/10s, behavior: {latency: 500ms, error_rate: 0.1}}}
workload: {submit_rate: 2, pattern: random}
duration: 60s
""")


def heard(config: Config, seed: int | None = None) -> tuple[list[runcue.Event], Outcome]:
    events: list[runcue.Event] = []
    return events, simulate(config, seed, events.append)


def test_one_seed_gives_one_stream_of_events() -> None:
    (one, _), (other, _), (third, _) = heard(SMALL, 7), heard(SMALL, 7), heard(SMALL, 8)
    assert one == other
    assert one != third


def test_listeners_get_every_event_in_order_and_once() -> None:
    events, outcome = heard(SMALL)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert (outcome.events, outcome.missed) == (len(events), 0)
    kinds = Counter(event.type for event in events)
    assert kinds["queued"] == outcome.submitted
    assert kinds["started"] == len(outcome.calls)


def test_a_queued_event_says_what_was_submitted() -> None:
    ranked = replace(SMALL, workload=replace(SMALL.workload, pattern="single", priorities={3.0: 1.0}))
    events, _ = heard(ranked)
    queued = {event.work_id: event for event in events if event.type == "queued"}
    assert queued["w1"].data == {"priority": 3.0, "needs": []}
    assert queued["w2"].data == {"priority": 3.0, "needs": ["w1"]}


def test_everything_ends_and_is_counted() -> None:
    _, outcome = heard(SMALL)
    assert outcome.counts["completed"] + outcome.counts["failed"] == outcome.submitted > 50
    assert outcome.counts["pending"] == outcome.counts["running"] == 0


def test_limits_hold_at_the_service() -> None:
    _, outcome = heard(SMALL)
    times = [call.entered_at for call in outcome.calls]
    assert all(later - earlier >= 10 - 1e-6 for earlier, later in zip(times, times[30:], strict=False))
    moments = sorted(
        [(call.entered_at, 1) for call in outcome.calls] + [(call.left_at, -1) for call in outcome.calls]
    )
    running = 0
    for _, step in moments:
        running += step
        assert running <= 2


def test_a_circle_is_rejected_at_submit_and_counted() -> None:
    events, outcome = heard(config("services: {api: }\nworkload: {pattern: circular, count: 10}"))
    assert outcome.rejected == {"circular": 10}
    assert outcome.submitted == 0
    assert not [event for event in events if event.type == "queued"]


def test_a_full_queue_rejects_and_is_counted() -> None:
    _, outcome = heard(config("services: {api: {concurrent: 1}}\nworkload: {count: 50}\nmax_queued: 20"))
    assert outcome.rejected["QueueFull"] + outcome.submitted == 50
    assert 20 <= outcome.submitted < 30


def test_calls_are_not_kept_if_nobody_wants_them() -> None:
    outcome = simulate(SMALL, 1, keep_calls=False)
    assert outcome.calls == []
    assert outcome.counts == simulate(SMALL, 1).counts


def test_work_on_several_services_is_one_call_in_the_log() -> None:
    both = config("""
services: {api: {behavior: {latency: 1s}}, disk: {behavior: {latency: 2s}}}
workload: {count: 3, task_types: [copy], uses: {copy: [api, disk]}}
""")
    _, outcome = heard(both)
    assert [(call.work_id, round(call.left_at - call.entered_at, 6)) for call in outcome.calls] == [
        ("w1", 3.0), ("w2", 3.0), ("w3", 3.0)]  # fmt: skip


# --- a file, nodes and crashes -------------------------------------------------------------------------------


def test_recovery_kills_a_node_and_loses_nothing(tmp_path: Path) -> None:
    plan = scenario("recovery", 40.0)
    events: list[runcue.Event] = []
    deaths: list[tuple[int, float]] = []
    simulation = Simulation(plan, tmp_path)
    simulation.listeners.append(events.append)
    simulation.deaths.append(lambda node, at: deaths.append((node, at - simulation.began_at)))
    outcome = run(simulation.run())
    assert deaths == [(0, 20.0)]
    assert outcome.counts["completed"] == outcome.submitted > 80
    lost = [call for call in outcome.calls if call.how == "cancelled"]
    assert lost
    assert all(call.left_at == outcome.began_at + 20.0 for call in lost)
    attempts = Counter(event.work_id for event in events if event.type == "started")
    calls = Counter(call.work_id for call in outcome.calls)
    again = {work_id for work_id, count in attempts.items() if count > 1}
    assert {work_id for work_id in again if calls[str(work_id)] > 1} == {call.work_id for call in lost}
    assert again - {call.work_id for call in lost} <= {
        work_id for work_id, count in calls.items() if count == 1
    }
    assert not [call for call in outcome.calls if 20.0 < call.entered_at - outcome.began_at < 24.0]
    assert (tmp_path / "queue.db").exists()


def test_recovery_takes_the_same_course_each_time() -> None:
    assert heard(scenario("recovery", 20.0), 5)[0] == heard(scenario("recovery", 20.0), 5)[0]


def test_two_nodes_share_a_file_and_the_survivor_takes_over() -> None:
    plan = replace(scenario("recovery", 20.0), nodes=2, kills=[])
    simulation = Simulation(plan)

    def strike(event: runcue.Event) -> None:
        if event.type == "started" and simulation.outcome.kills == 0 and simulation.now > 10:
            assert simulation.kill(1)
            assert not simulation.kill(1)

    simulation.listeners.append(strike)
    outcome = run(simulation.run())
    assert outcome.counts["completed"] == outcome.submitted
    assert {call.node for call in outcome.calls} == {0, 1}
    assert (outcome.kills, simulation.nodes[1]) == (1, None)


def test_a_queue_in_memory_has_no_node_to_kill() -> None:
    simulation = Simulation(SMALL)
    answers: list[bool] = []
    simulation.listeners.append(lambda event: answers.append(simulation.kill(0)))
    assert run(simulation.run()).kills == 0
    assert set(answers) == {False}


# --- artifacts -----------------------------------------------------------------------------------------------


def test_a_pipeline_runs_in_order_by_is_ready_alone() -> None:
    _, outcome = heard(scenario("pipeline", 60.0))
    ended = {call.work_id: call.left_at for call in outcome.calls if call.how == "ok"}
    began = {call.work_id: call.entered_at for call in outcome.calls}
    chains = [(f"w{number}", f"w{number + 1}") for number in range(1, outcome.submitted) if number % 3]
    assert len(chains) > 50
    assert all(ended[first] <= began[second] for first, second in chains if second in began)


def test_dynamic_rebuilds_what_a_checker_invalidated_and_skips_the_rest() -> None:
    events, outcome = heard(scenario("dynamic", 120.0))
    skipped = {event.work_id for event in events if event.type == "skipped"}
    rebuilt = {
        event.work_id for event in events if event.type == "completed" and str(event.work_id).startswith("r")
    }
    assert outcome.rebuilds > 5
    assert skipped
    assert rebuilt
    assert not skipped & rebuilt
    assert not {str(work_id) for work_id in skipped if not str(work_id).startswith("r")}


# --- knobs ---------------------------------------------------------------------------------------------------


def test_a_pause_holds_back_what_arrives() -> None:
    regular = replace(SMALL, workload=replace(SMALL.workload, arrivals="regular", pattern="none"))
    simulation = Simulation(regular)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        loop.call_later(10, setattr, simulation, "is_paused", True)
        loop.call_later(50, setattr, simulation, "is_paused", False)
        return (await simulation.run()).submitted

    assert run(main()) == pytest.approx(40, abs=2)


def test_arrivals_can_be_hurried() -> None:
    regular = replace(SMALL, workload=replace(SMALL.workload, arrivals="regular", pattern="none"))
    simulation = Simulation(regular)
    simulation.rate_factor = 3.0
    assert run(simulation.run()).submitted == pytest.approx(360, abs=3)
    assert simulate(regular).submitted == pytest.approx(120, abs=1)


def test_arrivals_of_ones_own_are_taken_as_they_are() -> None:
    works = [Submission(id=name, task="api", script=((2.0, "error"), (1.0, "ok"))) for name in "ab"]
    simulation = Simulation(SMALL, arrivals=[Arrival(5.0, works)])
    outcome = run(simulation.run())
    assert Counter(call.how for call in outcome.calls) == {"error": 2, "ok": 2}
    assert {call.entered_at - outcome.began_at for call in outcome.calls if call.attempt == 1} == {5.0}


def test_patience_has_an_end() -> None:
    stuck = config("""
services: {api: {concurrent: 1, behavior: {latency: 1h}}}
workload: {count: 3}
timeout: null
duration: 10s
drain: 20s
""")
    _, outcome = heard(stuck)
    assert outcome.ended_at - outcome.began_at == 20.0
    assert (outcome.counts["pending"], outcome.counts["running"]) == (2, 1)


def test_a_listener_that_fails_fails_the_run() -> None:
    def listener(event: runcue.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(scenario("single_queue"), 1, listener)
