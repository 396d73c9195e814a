"""A queue that several processes share decides as if there were one: over all of them, and past their deaths."""

import math
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from runcue.core.ledger.deadlines import armed
from runcue.core.model.failure import Failure
from runcue.core.model.record import Spec, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Grant
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.line import READY, index_key_of
from runcue.core.schedule.outcome import STOPPED
from runcue.core.schedule.plan import (
    Cancel,
    Changes,
    Declare,
    Ended,
    Entered,
    Lost,
    Outcome,
    Pause,
    Submit,
    Verdicts,
)
from runcue.core.schedule.scheduler import Scheduler
from tests.core.bench_of_core import limits
from tests.core.library import Process, Shared, two

LATE = Failure("late", "too late for its grant")
PLAIN = Rule(Retry(max_attempts=1))
INDEX_KEY = READY + '["default","task","api"]'


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records are read at once."""
    monkeypatch.setattr("runcue.core.schedule.line.SHORTEST_PAGE", 2)
    monkeypatch.setattr("runcue.core.ledger.working_set.PAGE", 2)
    monkeypatch.setattr("runcue.core.ledger.timers.PAGE", 2)
    monkeypatch.setattr("runcue.core.ledger.ages.PAGE", 2)


def names(amount: int, letter: str = "w") -> list[str]:
    return [f"{letter}{number:02}" for number in range(amount)]


# one work, one start ----------------------------------------------------------------------------------------


def test_work_that_one_process_submits_another_may_start() -> None:
    shared, one, other = two(serving=("two",))
    one.submit("a", "b")
    other.read()
    assert other.started == ["a", "b"]
    assert shared.records["a"].worker == "two"


def test_two_processes_never_start_the_same_work() -> None:
    _, one, other = two(limits(concurrent=3))
    one.submit(*names(9))
    started: list[str] = [*one.started]
    for _ in range(20):
        for process in (other, one):
            process.turn(*(process.success(run.id) for run in list(process.runs.values())))
            started += process.started
    assert sorted(started) == names(9)
    assert set(one.states().values()) == {"completed"}


def test_work_in_line_here_that_another_started_is_not_started_again() -> None:
    _, one, other = two(limits(concurrent=1), serving=("one",))
    one.submit("a", "b", "c")
    one.finish("a")
    assert one.started == ["b"]
    other.serve()
    one.serve(False)
    one.finish("b")
    other.turn()
    assert other.started == ["c"]
    one.serve()
    assert one.started == []


def test_a_turn_that_finds_nothing_new_reads_no_pages() -> None:
    shared, one, _ = two(limits(concurrent=1))
    one.submit(*names(5))
    one.turn()
    before = shared.reads
    one.turn()
    assert shared.reads == before


def test_only_what_could_start_next_is_kept_in_mind(short_pages: None) -> None:
    _, one, other = two(limits(concurrent=1))
    one.submit(*names(20))
    other.turn()
    other.turn()
    assert len(other.scheduler.ledger.working.records) < 5


def test_what_a_process_submits_is_not_all_kept_in_mind_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.line.MOST", 6)
    _, one, other = two(limits(concurrent=1), serving=("one",))
    one.submit(*names(20))
    assert len(one.scheduler.ledger.working.records) < 6
    started = [*one.started]
    for _ in range(20):
        one.turn(*(one.success(run.id) for run in list(one.runs.values())))
        started += one.started
    assert started == names(20)
    other.serve()
    assert other.started == []


def test_what_callbacks_were_not_asked_about_yet_stays_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.line.MOST", 6)
    process = Process(Shared(), "one", limits(), questions=Questions(ready=True))
    process.submit(*names(20))
    assert len(process.scheduler.ledger.working.records) == 20


def test_one_turn_starts_only_so_much_and_the_next_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others want their turn, too."""
    monkeypatch.setattr("runcue.core.schedule.ready.AT_ONCE", 3)
    shared, one, _ = two(limits(concurrent=8), serving=("one",))
    one.submit(*names(6))
    assert one.started == names(3)
    assert one.plan.wake_at == shared.now
    one.submit("urgent", priority=5)
    assert one.started == ["urgent", *names(5)[3:]]
    assert one.plan.wake_at == shared.now
    one.turn()
    assert one.started == ["w05"]
    assert one.plan.wake_at > shared.now


def test_when_nobody_runs_work_any_more_nobody_is_woken_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.ready.AT_ONCE", 3)
    shared, one, other = two(limits(concurrent=8), serving=("one",))
    one.submit(*names(8))
    one.serve(False)
    assert one.started == []
    assert one.plan.wake_at > shared.now
    other.serve()
    assert other.started == names(6)[3:]
    one.serve()
    other.turn()
    assert sorted(one.started + other.started) == ["w06", "w07"]


# limits over all processes ----------------------------------------------------------------------------------


def test_concurrency_is_counted_over_both() -> None:
    _, one, other = two(limits(concurrent=3), serving=("two",))
    one.submit(*names(5))
    other.turn()
    assert len(other.started) == 3
    one.serve()
    assert one.started == []
    assert one.active == {"api": 3}
    other.serve(False)
    other.turn(other.success("w00"), other.success("w01"))
    one.turn()
    assert one.started == ["w03", "w04"]


def test_a_window_is_exact_over_both_and_counts_from_the_latest_moment_of_a_grant() -> None:
    shared, one, other = two(limits(rate=(2, 10.0)), serving=("one",))
    one.submit("a", "b", "c")
    assert one.started == ["a", "b"]
    assert one.plan.rated == dict.fromkeys((one.tokens["a"], one.tokens["b"]), shared.now + 0.05)
    other.serve()
    assert other.started == []
    opens_at = other.scheduler.ledger.ready.wakes_at()
    assert opens_at == pytest.approx(shared.now + 10.05)
    other.after(10.0)
    assert other.started == []
    other.after(opens_at - shared.now)
    assert other.started == ["c"]


def test_whoever_granted_the_starts_counts_them_from_their_entry() -> None:
    _, one, _ = two(limits(rate=(2, 10.0)), serving=("one",))
    one.submit("a", "b", "c")
    one.turn()
    one.after(10.0)
    assert one.started == ["c"]


def test_that_a_handler_was_entered_elsewhere_whoever_decides_hears_by_post() -> None:
    shared = Shared()
    one = Process(shared, "one", limits(rate=(2, 10.0)), rules={"none": PLAIN})
    other = Process(shared, "two", limits(rate=(2, 10.0)))
    other.post(other.submission("a", "b", "c"))
    one.turn()
    shared.now += 0.03
    other.read()
    assert other.started == ["a", "b"]
    other.post()
    one.turn()
    one.after(9.99)
    other.read()
    assert other.started == []
    one.after(0.01)
    other.read()
    assert other.started == ["c"]


def test_a_grant_of_a_service_that_nobody_declared_is_passed_over() -> None:
    shared, one, other = two()
    shared.grants.append(Grant("elsewhere", shared.now))
    other.submit("a")
    one.submit("b")
    assert one.running == ["a", "b"]


def test_who_takes_over_reads_of_what_was_started_only_what_its_windows_reach_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = limits(rate=(2, 10.0)), limits("slow", rate=(1, 500.0))
    shared, one, _ = two(*services, serving=())
    asked: list[dict[str, float]] = []
    shared.grants += [
        Grant("api", shared.now - 10, 50),
        Grant("slow", shared.now - 499),
        Grant("gone", shared.now),
    ]
    read = shared.starts

    def starts(since: Mapping[str, float]) -> list[Grant]:
        asked.append(dict(since))
        return read(since)

    monkeypatch.setattr(shared, "starts", starts)
    late = Process(shared, "late", *services)
    late.submit("a", "b", "c")
    assert late.started == ["a", "b"]
    assert asked == [{"api": shared.now - 10, "slow": shared.now - 500}]
    assert late.scheduler.ledger.ready.services["slow"].room(shared.now) == 0
    one.submit("d")
    assert one.state("d") == "pending"


def test_a_longer_window_that_a_new_process_declares_counts_what_was_started_before_it_came() -> None:
    shared, one, _ = two(limits(rate=(2, 10.0)))
    one.submit("a", "b")
    shared.now += 60
    late = Process(shared, "late", limits(rate=(3, 100.0)))
    late.submit("c", "d")
    assert late.started == ["c"]


def test_the_starts_of_a_key_are_recalled_when_the_key_is_first_used_here() -> None:
    shared, _, other = two(limits("host", each=limits("host", rate=(1, 10.0))))
    shared.grants.append(Grant("host[x]", shared.now))
    other.submit("a", services=("host[x]", "host"))
    other.submit("b", services=("host[y]", "host"))
    assert other.running == ["b"]


def test_what_is_given_back_is_recalled_by_nobody() -> None:
    shared, one, _ = two(limits(rate=(2, 10.0)), serving=("one",))
    one.enters_at_once = False
    one.submit("a")
    one.may_start = False
    one.turn(Outcome("a", one.tokens["a"], None, LATE))
    late = Process(shared, "late", limits(rate=(2, 10.0)))
    late.submit("b", "c")
    assert late.started == ["a", "b"]


def test_a_late_grant_is_granted_anew_and_counts_no_attempt() -> None:
    shared, one, _ = two(limits(rate=(2, 10.0)), serving=("one",))
    one.enters_at_once = False
    one.submit("a")
    one.turn(Outcome("a", one.tokens["a"], None, LATE))
    assert one.started == ["a"]
    assert shared.records["a"].attempt == 1
    assert shared.records["a"].failures == 0


def test_a_late_grant_was_not_used_and_counts_for_nobody() -> None:
    _, one, other = two(limits(rate=(2, 10.0)), serving=("one",))
    one.enters_at_once = False
    one.submit("a")
    one.turn(Outcome("a", one.tokens["a"], None, LATE))
    one.turn(Entered([(one.tokens["a"], one.now, one.now)]))
    one.serve(False)
    one.submit("b", "c")
    other.serve()
    assert other.started == ["b"]  # the second of the two
    one.after(10)
    assert one.started == []
    other.after(0.1)
    assert other.started == ["c"]


def test_what_nobody_knows_of_cannot_be_taken_back() -> None:
    shared, one, other = two(limits(rate=(2, 10.0)))
    one.submit("a", "b")
    shared.grants.append(Grant("api", one.now - 1, -1))
    other.submit("c")
    assert other.state("c") == "pending"


def test_a_late_grant_gives_a_probe_back() -> None:
    shared, one, _ = two(limits(rate=(5, 1.0), circuit_threshold=1, circuit_timeout=10), serving=("one",))
    one.submit("a")
    one.fail("a", "error")
    one.submit("b")
    one.after(10)
    assert one.started == ["b"]
    one.may_start = False
    one.turn(Outcome("b", one.tokens["b"], None, LATE))
    breaker = shared.services["api"].breaker
    assert breaker is not None
    assert (breaker.state, breaker.probe_deadline) == ("half_open", None)


# pages ------------------------------------------------------------------------------------------------------


def test_the_order_of_rank_holds_over_the_ends_of_pages(short_pages: None) -> None:
    _, one, other = two(limits(concurrent=1), serving=())
    for number, work_id in enumerate(names(9)):
        one.submit(one.spec(work_id, priority=number % 3))
    order: list[str] = []
    other.may_start = True
    for _ in range(9):
        other.turn(*(other.success(run.id) for run in list(other.runs.values())))
        order += other.started
    assert order == [work_id for best in (2, 1, 0) for work_id in names(9)[best::3]]


def test_what_comes_in_a_turn_takes_its_place_among_what_is_stored(short_pages: None) -> None:
    _, one, other = two(limits(concurrent=4), serving=())
    one.submit("a", "b", "c", "d", "e")
    other.may_start = True
    other.submit(other.spec("early", priority=1))
    assert other.started == ["early", "a", "b", "c"]
    other.turn(*(other.success(work_id) for work_id in ("early", "a", "b", "c")), other.submission("last"))
    assert other.started == ["d", "e", "last"]


def test_what_came_beyond_the_page_in_an_earlier_turn_is_found_when_it_is_its_turn(short_pages: None) -> None:
    _, one, other = two(limits(concurrent=1))
    one.may_start = False
    one.submit("a", "b", "c")
    other.turn()
    other.submit("last")
    order = []
    for work_id in ("a", "b", "c"):
        other.finish(work_id)
        order += other.started
    assert order == ["b", "c", "last"]


def test_what_was_submitted_here_is_not_forgotten_when_others_wrote_something_else() -> None:
    _, one, other = two()
    other.may_start = False
    other.pause("api")
    one.submit("a")
    other.resume("api")
    one.turn()
    assert one.started == ["a"]


def test_two_lanes_are_chosen_among_by_rank_though_neither_was_read(short_pages: None) -> None:
    rules = {"task": PLAIN, "more": PLAIN}
    shared, one, other = two(limits(concurrent=3), rules=rules)
    one.may_start = False
    for work_id, task in (("a", "task"), ("b", "more"), ("c", "more"), ("d", "task")):
        shared.now += 1
        one.submit(work_id, task=task)
    other.turn()
    assert other.started == ["a", "b", "c"]


def test_a_lane_made_late_knows_what_is_under_its_index_key() -> None:
    shared, one, _ = two(limits(concurrent=1), serving=())
    one.submit("a", "b")
    late = Process(shared, "late", limits(concurrent=1))
    late.submit("c")
    assert late.started == ["a"]


def test_a_task_registered_later_finds_the_work_that_waited_for_it() -> None:
    shared = Shared()
    one = Process(shared, "one", rules={"task": PLAIN, "other": PLAIN}, may_start=False)
    late = Process(shared, "late", rules={"task": PLAIN})
    one.submit("a", task="other")
    late.turn()
    assert late.started == []
    late.rules["other"] = PLAIN
    late.turn()
    assert late.started == ["a"]


def test_a_service_that_a_task_needs_and_that_is_declared_later_lets_its_work_go() -> None:
    shared = Shared()
    one = Process(shared, "one", may_start=False)
    late = Process(shared, "late", rules={"task": Rule(Retry(), services=("api", "gpu"))})
    one.submit("a", services=("api",))
    late.turn()
    assert late.started == []
    late.turn(Declare(limits("gpu")))
    assert late.started == ["a"]
    assert late.active["gpu"] == 1


def test_work_of_a_task_that_chooses_its_services_in_another_way_by_now_changes_its_index_key() -> None:
    shared = Shared()
    one = Process(shared, "one", limits(), limits("gpu"))
    one.may_start = False
    one.submit("a", "b")
    assert shared.under(INDEX_KEY) == ["a", "b"]
    late = Process(
        shared,
        "late",
        limits(),
        limits("gpu", concurrent=1),
        rules={"task": Rule(Retry(), services=("gpu",))},
    )
    late.turn()
    assert late.started == ["a"]
    assert late.active == {"api": 0, "gpu": 1}
    assert shared.under(INDEX_KEY) == []
    assert shared.under(READY + '["default","task"]') == ["b"]


def test_work_of_a_task_that_is_not_known_here_is_left_alone() -> None:
    shared = Shared()
    one = Process(shared, "one", rules={"task": PLAIN, "other": PLAIN})
    late = Process(shared, "late")
    one.may_start = False
    one.submit("a", task="other")
    late.submit("b")
    assert late.started == ["b"]
    assert late.state("a") == "pending"


def test_what_is_due_is_placed_by_whoever_looks_and_what_ended_meanwhile_is_not(short_pages: None) -> None:
    shared, one, other = two()
    one.may_start = False
    one.submit(*names(5), delay=10)
    one.submit("later", delay=20)
    one.submit("by_wall", run_at=shared.wall + 10)
    assert one.plan.wake_at <= shared.now + 10
    other.after(10, Cancel("w01"))
    assert other.started == ["w00", "w02", "w03", "w04", "by_wall"]
    assert other.scheduler.ledger.working.heads["later"] == (shared.now + 10, 6)
    other.after(10)
    assert other.started == ["later"]


# queues, services and circuits of others --------------------------------------------------------------------


def test_a_queue_that_is_paused_elsewhere_is_paused_here() -> None:
    _, one, other = two()
    other.pause("default")
    one.submit("a")
    one.turn()
    assert one.started == []
    other.may_start = False
    other.resume("default")
    one.turn()
    assert one.started == ["a"]


def test_a_service_that_is_paused_or_changed_elsewhere_is_so_here() -> None:
    _, one, other = two(limits(concurrent=1))
    other.turn(Pause("api", True))
    one.submit("a", "b", "c")
    one.turn()
    assert one.started == []
    other.may_start = False
    other.turn(Pause("api", False), Declare(limits(concurrent=2)))
    one.turn()
    assert one.started == ["a", "b"]
    assert one.scheduler.ledger.ready.services["api"].limits == limits(concurrent=2)


def test_a_service_that_was_only_declared_elsewhere_is_known_here() -> None:
    _, one, other = two()
    other.declare(limits("gpu", concurrent=1))
    one.submit("a", "b", services=("gpu",))
    assert one.started == ["a"]


def test_a_service_that_asked_another_to_slow_down_is_left_alone_here() -> None:
    _, one, other = two(serving=("two",))
    other.submit("a")
    other.fail("a", "throttled", after=30)
    other.serve(False)
    one.serve()
    one.after(29)
    assert one.started == []
    one.after(1)
    assert one.started == ["a"]


def test_a_circuit_that_tripped_elsewhere_is_open_here_and_the_probe_is_one_for_all() -> None:
    _, one, other = two(limits(circuit_threshold=2, circuit_timeout=10), serving=("two",))
    for work_id in ("a", "b"):
        other.submit(work_id)
        other.fail(work_id)
    one.submit("c", "d")
    assert one.started == []
    other.after(10)
    assert other.started == ["c"]
    one.serve()
    assert one.started == []
    assert one.plan.wake_at <= one.now + 10  # when the probe is overdue
    other.serve(False)
    other.finish("c")
    one.turn()
    assert one.started == ["d"]
    assert one.told("circuit_opened") == []


def test_a_probe_that_is_overdue_elsewhere_trips_the_circuit_again() -> None:
    shared, one, other = two(limits(circuit_threshold=1, circuit_timeout=10), serving=("two",))
    other.submit("a")
    other.fail("a")
    other.submit("b")
    other.after(10)
    assert other.started == ["b"]
    one.turn()
    one.after(10)
    breaker = shared.services["api"].breaker
    assert breaker is not None
    assert (breaker.state, breaker.wait) == ("open", 20)


# cancelling what runs elsewhere -----------------------------------------------------------------------------


def test_work_that_runs_elsewhere_is_cancelled_at_once_and_its_code_is_told_to_stop() -> None:
    _, one, other = two(limits(concurrent=1), serving=("one",))
    one.submit("a", "b")
    token = one.tokens["a"]
    assert other.cancel("a") is True
    assert other.state("a") == "cancelled"
    assert other.plan.parts["one"].stop == [token]
    assert other.plan.stop == []
    assert other.state("b") == "pending"  # its code still runs and keeps its place
    one.read()
    assert one.given_up == {token}
    one.turn(Ended("a", token))
    assert one.started == ["b"]


def test_the_late_answer_of_what_was_cancelled_elsewhere_is_stale() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.cancel("a")
    one.finish("a", result=1)
    assert one.state("a") == "cancelled"
    assert one.told("stale_completion") == ["a"]
    assert one.facts("stale_completion") == [{"work_id": "a", "task": "task"}]
    assert one.active == {"api": 0}


def test_cancelling_pending_work_of_another_ends_it() -> None:
    _, one, other = two(serving=())
    one.submit("a")
    assert other.cancel("a") is True
    assert other.cancel("a") is False
    assert one.cancel("nobody") is False
    one.serve()
    assert one.started == []


# dead workers -----------------------------------------------------------------------------------------------


def test_what_a_dead_worker_ran_becomes_pending_and_its_places_are_free() -> None:
    shared, one, other = two(limits(concurrent=2), serving=("one",))
    one.submit("a", "b", "c")
    other.may_start = True
    other.turn(Lost("one"))
    assert other.started == ["a", "b"]
    assert [shared.records[work_id].crashes for work_id in "abc"] == [1, 1, 0]
    assert shared.records["a"].worker == "two"
    assert shared.records["a"].attempt == 2
    assert list(shared.workers) == ["two"]
    assert other.active == {"api": 2}
    assert other.told("lease_lost") == ["a", "b"]


def test_a_dead_worker_is_seen_to_once() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    third = Process(shared, "three", may_start=False)
    third.turn()
    other.turn(Lost("one"))
    third.turn(Lost("one"))
    assert shared.records["a"].crashes == 1
    assert third.plan.lost == []


def test_the_answer_of_a_worker_that_was_thought_dead_is_stale() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    other.may_start = True
    other.turn(Lost("one"))
    token = shared.records["a"].token
    one.turn(one.success("a"))
    assert shared.records["a"].token == token
    assert one.told("stale_completion") != []


def test_the_code_of_a_worker_that_was_thought_dead_is_told_to_stop() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.turn(Lost("one"))
    one.read()
    assert one.given_up == {one.tokens["a"]}


def test_work_that_three_workers_died_of_fails_with_its_dependents() -> None:
    shared = Shared()
    first = Process(shared, "0")
    first.submit("a")
    first.submit("b", needs=["a"])
    for number in range(1, 4):
        Process(shared, str(number)).turn(Lost(str(number - 1)))
    assert shared.records["a"].state is WorkState.FAILED
    assert shared.records["a"].error == "worker_lost"
    assert shared.records["a"].crashes == 3
    assert shared.records["b"].error == "prerequisite_failed"
    assert (shared.head.pending, shared.head.running, shared.head.failed) == (0, 0, 2)


def test_work_that_waited_for_the_code_of_a_dead_worker_waits_no_longer() -> None:
    retry = Retry(max_attempts=3, backoff="fixed", base_delay=0, jitter=False)
    shared, one, other = two(retry=retry, serving=("one",))
    one.submit("a")
    one.time_out("a")
    assert shared.under("held/one") == ["a"]
    other.serve()
    assert other.started == []
    other.turn(Lost("one"))
    assert other.started == ["a"]
    assert shared.records["a"].crashes == 0
    assert other.active == {"api": 1}


def test_a_dead_workers_call_from_before_the_trip_says_nothing_about_the_circuit() -> None:
    shared, one, other = two(limits(circuit_threshold=1, circuit_timeout=10), serving=("one",))
    one.submit("a", "b")
    one.serve(False)
    one.fail("b")
    before = shared.services["api"].breaker
    other.turn(Lost("one"))
    assert shared.services["api"].breaker == before


def test_the_probe_of_a_dead_worker_is_given_back() -> None:
    _, one, other = two(limits(circuit_threshold=1, circuit_timeout=10), serving=("one",))
    one.submit("a")
    one.fail("a")
    one.submit("b")
    one.after(10)
    assert one.started == ["b"]
    other.may_start = True
    other.submit("c")
    assert other.started == []
    other.turn(Lost("one"))
    assert other.started == ["b"]


def test_work_of_a_dead_worker_whose_service_nobody_has_declared_goes_back_all_the_same() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    record = shared.records["a"]
    shared.records["a"] = replace(record, spec=replace(record.spec, services=("api", "gone")))
    other.turn()
    assert other.active == {"api": 1}
    other.rules["task"] = Rule(Retry(), services=("api",))
    other.may_start = True
    other.turn(Lost("one"))
    assert other.started == ["a"]
    assert other.active == {"api": 1}


def test_what_a_worker_was_given_while_it_signed_off_is_taken_over_by_who_never_knew_it() -> None:
    retry = Retry(max_attempts=3, backoff="fixed", base_delay=0, jitter=False)
    shared, one, other = two(limits(concurrent=3), retry=retry, serving=("one",))
    one.submit("a", "b")
    one.time_out("b")
    other.post(other.submission("c"))
    one.turn()
    assert (shared.under("running/one"), shared.under("held/one")) == (["a", "c"], ["b"])
    del shared.workers["one"]
    other.serve()
    assert other.started == []
    other.turn(Lost("one"))
    assert other.started == ["a", "b", "c"]
    assert [shared.records[work_id].crashes for work_id in "abc"] == [1, 0, 1]
    assert (shared.under("running/one"), shared.under("held/one"), other.active) == ([], [], {"api": 3})
    assert list(shared.workers) == ["two"]
    other.turn(Lost("one"))
    assert other.plan.lost == []


# a scheduler that was forgotten -----------------------------------------------------------------------------


def test_a_turn_that_was_not_kept_has_not_happened() -> None:
    shared, one, _ = two()
    one.turn(one.submission("a"), is_kept=False)
    assert shared.records == {}
    one.submit("a")
    assert one.started == ["a"]


def test_a_new_scheduler_takes_the_answers_of_what_runs() -> None:
    _, one, _ = two(limits(concurrent=2), serving=("one",))
    one.submit("a")
    one.turn(one.success("a", 7), is_kept=False)
    one.turn()
    assert one.record("a").result == 7
    assert one.scheduler.ledger.capacity._slots == {}


def test_places_that_became_free_in_the_first_turn_of_a_new_scheduler_are_free_for_others() -> None:
    _, one, other = two(limits(concurrent=1), serving=("one",))
    one.submit("a")
    one.turn(one.success("a"), is_kept=False)
    one.serve(False)
    other.may_start = True
    other.submit("b")
    assert other.started == ["b"]


def test_a_new_scheduler_keeps_the_places_of_what_runs() -> None:
    _, one, _ = two(limits(concurrent=1), serving=("one",))
    one.submit("a", "b")
    one.turn(is_kept=False)
    one.turn()
    assert one.started == []
    assert one.active == {"api": 1}
    one.finish("a")
    assert one.started == ["b"]


def test_a_new_scheduler_tells_circuits_how_its_probe_ended() -> None:
    shared, one, _ = two(limits(circuit_threshold=1, circuit_timeout=10), serving=("one",))
    one.submit("a")
    one.fail("a")
    one.submit("b")
    one.after(10)
    one.turn(is_kept=False)
    one.finish("b")
    breaker = shared.services["api"].breaker
    assert breaker is not None
    assert breaker.state == "closed"


def test_a_new_scheduler_goes_on_with_what_was_given_up() -> None:
    retry = Retry(max_attempts=3, backoff="fixed", base_delay=0, jitter=False)
    shared, one, _ = two(retry=retry, serving=("one",))
    one.submit("a", "b")
    one.time_out("a")
    one.cancel("b")
    held, cancelled = one.tokens["a"], one.tokens["b"]
    one.turn(is_kept=False)
    one.turn()
    assert one.started == []
    assert shared.under("held/one") == ["a"]
    assert one.scheduler.ledger.held == {"a": held}
    one.turn(Ended("a", held), Ended("b", cancelled, has_answer=True))
    assert one.started == ["a"]
    assert [fact["work_id"] for fact in one.facts("stale_completion")] == ["b"]


# dependencies over processes --------------------------------------------------------------------------------


def test_work_goes_on_when_what_it_needs_completed_elsewhere() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    other.submit("b", needs=["a"])
    assert other.started == []
    assert shared.under("blocked") == ["b"]
    other.serve()
    one.may_start = False
    one.finish("a")
    other.turn()
    assert other.started == ["b"]
    assert shared.head.blocked == 0


def test_work_fails_when_what_it_needs_failed_elsewhere_however_deep() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    other.submit("b", needs=["a"])
    other.submit("c", needs=["b"])
    one.fail("a", "permanent")
    assert one.states() == {"a": "failed", "b": "failed", "c": "failed"}
    assert (shared.head.pending, shared.head.blocked) == (0, 0)


def test_a_cascade_cancels_what_waits_and_what_runs_elsewhere() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.submit("b", needs=["a"])
    assert other.cancel("a", cascade=True) is True
    assert other.states() == {"a": "cancelled", "b": "cancelled"}
    assert other.plan.parts["one"].stop == [one.tokens["a"]]


def test_work_may_need_what_completed_elsewhere_long_ago() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.finish("a")
    other.submit("b", needs=["a"])
    assert other.state("b") == "running"


def test_work_that_failed_elsewhere_can_be_revived_with_those_that_failed_with_it() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.submit("b", needs=["a"])
    one.fail("a", "permanent")
    one.serve(False)
    other.may_start = True
    assert other.revive("a", cascade=True) is True
    assert other.started == ["a"]
    other.finish("a")
    assert other.started == ["b"]


# deadlines of others' work ----------------------------------------------------------------------------------


def test_a_deadline_of_work_of_another_is_kept_by_whoever_looks() -> None:
    shared, one, other = two(pending_timeout=5, pending_warn_after=2, serving=())
    one.submit("a")
    other.turn()
    assert other.plan.wake_at <= shared.now + 2
    other.after(2)
    assert other.told("pending_warning") == ["a"]
    one.after(3)
    assert "Pending timeout" in str(one.error("a"))
    assert shared.next_watch(0.0) == math.inf


def test_what_ends_in_a_turn_is_not_looked_at_for_its_deadline() -> None:
    _, one, other = two(pending_timeout=5, serving=())
    one.submit("a", "b")
    other.after(5, Cancel("a"))
    assert other.state("a") == "cancelled"
    assert other.told("failed") == ["b"]


def test_dependencies_that_do_not_come_are_noticed_in_another_process() -> None:
    _, one, other = two(serving=())
    one.submit("b", needs=["a"], dependency_timeout=5)
    other.after(5)
    assert other.error("b") == "dependency_timeout"


def test_a_limit_is_seen_in_a_turn_that_changes_its_work_for_another_reason() -> None:
    _, one, _ = two(serving=("one",))
    one.submit("a", "x")
    one.submit("b", needs=["a", "x"], dependency_timeout=5)
    one.now += 6
    one.finish("a")
    assert one.error("b") == "dependency_timeout"


def test_a_standstill_concerns_the_work_of_all() -> None:
    _, one, other = two(stall_timeout=5, serving=())
    one.submit("a")
    other.submit("b", delay=1_000)
    other.after(5)
    assert "Stall timeout" in str(other.error("a"))
    assert other.state("b") == "pending"


def test_more_deadlines_than_a_page_holds_are_all_kept(short_pages: None) -> None:
    _, one, other = two(pending_timeout=5, serving=())
    one.submit(*names(5))
    other.after(5)
    assert set(other.states().values()) == {"failed"}


# work that callbacks judge ----------------------------------------------------------------------------------


def test_work_of_another_is_judged_before_it_starts_here() -> None:
    _, one, other = two(limits(concurrent=1), questions=Questions(ready=True), serving=())
    one.submit("a", "b")
    other.serve()
    assert other.asked == ["a", "b"]
    other.answer("b")
    assert other.started == ["b"]


def test_scored_work_of_another_starts_best_first() -> None:
    _, one, other = two(limits(concurrent=1), questions=Questions(score=True), serving=())
    one.submit("a", "b")
    other.serve()
    assert other.asked == ["a", "b"]
    other.turn(Verdicts([other.verdict("a", score=0.1), other.verdict("b", score=0.9)]))
    assert other.started == ["b"]


def test_what_callbacks_said_is_kept_when_others_left_something() -> None:
    shared, one, other = two(limits(concurrent=1), questions=Questions(ready=True), serving=("one",))
    one.submit("a", "b")
    assert one.asked == ["a", "b"]
    other.post(other.submission("c", queue="elsewhere"))
    one.answer("a", "b")
    assert shared.head.pending + shared.head.running == 3
    assert one.started == ["a"]


def test_what_was_judged_here_and_cancelled_elsewhere_is_not_started() -> None:
    _, one, other = two(limits(concurrent=1), questions=Questions(ready=True), serving=("one",))
    one.submit("a", "b")
    one.answer("a", "b")
    assert one.started == ["a"]
    other.post(Cancel("b"))
    one.finish("a")
    one.answer("b")
    assert one.started == []
    assert one.state("b") == "cancelled"


def test_what_was_judged_here_and_started_elsewhere_is_not_started_again() -> None:
    _, one, other = two(limits(concurrent=2), questions=Questions(score=True))
    one.submit("a")
    assert one.asked == ["a"]
    other.turn()
    other.answer("a")
    assert other.state("a") == "running"
    one.answer("a")
    assert [*one.runs, *other.runs] == [other.record("a").token]


# small things -----------------------------------------------------------------------------------------------


def test_what_runs_has_no_deadline() -> None:
    _, one, _ = two(pending_timeout=5)
    one.submit("a")
    running = replace(one.record("a"), watch_at=1.0)
    assert armed(running, one.settings, one.now, one.wall).watch_at is None
    assert one.record("a").watch_at is None


def test_a_queue_that_is_full_of_the_work_of_others_drops_the_oldest() -> None:
    shared, one, other = two(max_queued=1, reject_policy="drop_oldest", serving=())
    one.submit("a")
    other.submit("b")
    assert other.states() == {"a": "failed", "b": "pending"}
    assert shared.records["a"].error == "dropped"


def test_the_oldest_are_dropped_over_the_ends_of_pages(short_pages: None) -> None:
    _, one, other = two(max_queued=4, reject_policy="drop_oldest", serving=())
    one.submit(*names(4))
    other.submit("x", "y", "z")
    assert [work_id for work_id, state in other.states().items() if state == "failed"] == names(3)


def test_work_that_runs_stays_in_mind_when_another_process_completes_what_it_did_not_wait_for() -> None:
    shared, one, other = two(questions=Questions(dependencies=True), serving=("one",))
    one.submit("b", needs=["a"])
    one.answer("b", ready=True)
    one.serve(False)
    other.may_start = True
    other.submit("a")
    other.answer("a")
    assert (shared.records["b"].state, shared.records["b"].missing) == (WorkState.RUNNING, 1)
    other.turn(other.success("a"))
    assert shared.records["b"].missing == 0
    one.turn(one.success("b"))
    assert shared.records["b"].state is WorkState.COMPLETED


def test_work_that_a_callback_let_start_before_its_needs_were_there_waits_for_nobody_once_it_is_done() -> (
    None
):
    shared, one, _ = two(questions=Questions(dependencies=True), serving=("one",))
    one.submit("b", needs=["a"])
    assert one.asked == ["b"]
    one.answer("b")
    assert one.started == ["b"]
    assert shared.head.blocked == 1
    one.finish("b")
    assert shared.head.blocked == 0
    assert shared.records["b"].state is WorkState.COMPLETED


def test_what_work_waits_for_is_looked_up_when_somebody_asks_why() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a", "b")
    one.finish("b")
    one.submit("c", needs=["a", "b"])
    why = str(other.why("c"))
    assert other.ledger.working.missing(other.record("c")) == ["a"]
    assert "dependency" in why


def test_a_standstill_concerns_what_is_in_mind_here_too() -> None:
    _, one, _ = two(stall_timeout=5)
    one.pause("api")
    one.submit("a")
    one.turn()
    one.after(5)
    assert "Stall timeout" in str(one.error("a"))


def test_work_that_waits_for_others_is_warned_about_and_goes_on_waiting() -> None:
    shared, one, other = two(pending_warn_after=2)
    one.submit("b", needs=["a"])
    other.after(2)
    assert other.told("pending_warning") == ["b"]
    assert shared.under("blocked") == ["b"]
    assert shared.records["b"].watch_at is None


def test_a_start_that_was_stopped_reuses_its_number() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.serve(False)
    one.turn(Cancel("a", reason=STOPPED))
    assert one.plan.stop == [one.tokens["a"]]
    other.serve()
    assert other.started == []  # its code may still run
    assert other.why("a").reason == "overdue"
    one.turn(Ended("a", one.tokens["a"]))
    other.turn()
    assert other.started == ["a"]
    assert (other.record("a").attempt, other.record("a").history) == (1, ())


def test_a_process_stops_only_what_it_runs_itself() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.turn(Cancel("a", reason=STOPPED))
    assert (other.state("a"), other.plan.parts, other.plan.stop) == ("running", {}, [])
    one.post(Cancel("a", reason=STOPPED))
    other.turn()
    assert (other.state("a"), other.plan.parts["one"].stop) == ("pending", [one.tokens["a"]])


def test_what_only_this_process_has_is_not_shared() -> None:
    rules = {"task": Rule(Retry(), implicit=("#threads",))}
    shared, one, other = two(limits(), limits("#threads", concurrent=1), rules=rules)
    one.submit("a", "b", "c")
    other.read()
    assert (one.started, other.started) == (["a"], ["b"])
    assert "#threads" not in shared.services
    assert one.why("c").reason == "threads"


def test_a_process_starts_only_the_work_of_the_queues_it_serves() -> None:
    _, one, other = two(serving=())
    one.submit("a", queue="fast")
    one.submit("b", queue="slow")
    other.queues = ("slow",)
    other.serve()
    assert other.started == ["b"]
    one.serve()
    assert one.started == ["a"]


def test_a_scheduler_that_shares_nothing_counts_for_its_store_too() -> None:
    scheduler = Scheduler(Settings(), {"task": PLAIN}, "alone")
    scheduler.declare(limits("#threads"))
    scheduler.declare(limits())
    scheduler.begin(1.0, 1.0)
    scheduler.take_in([Submit([Spec("a", "task", b"{}", ("api",))], True)])
    scheduler.plan(True, Allowance())
    plan = scheduler.finish()
    assert (plan.head.seq, plan.head.running, plan.head.now) == (1, 1, 1.0)
    assert list(plan.services) == ["api"]
    assert (plan.workers, plan.head.decider) == ({}, None)


def test_a_call_from_the_moment_of_the_trip_has_no_part_in_the_probe() -> None:
    service = limits(concurrent=5, circuit_threshold=1, circuit_timeout=10)
    _, one, other = two(service, serving=("one",))
    one.submit("a", "b")
    one.turn(Outcome("a", one.tokens["a"], None, Failure("error", "boom")))  # in the very moment of the start
    one.serve(False)
    other.may_start = True
    other.after(10)
    other.submit("c")
    third = Process(other.store, "three", service, may_start=False)
    third.turn()
    breaker = third.scheduler.ledger.ready.services["api"].breaker
    assert breaker is not None
    assert (breaker.state, breaker.running) == ("half_open", 1)
    third.turn(Lost("one"))
    assert (breaker.state, breaker.running) == ("half_open", 1)


def test_the_answer_of_an_attempt_that_nobody_knows_changes_nothing() -> None:
    shared, one, _ = two(limits(concurrent=1))
    one.submit("a")
    before = dict(shared.records)
    one.turn(Outcome("nobody", 77, "late"), Ended("nobody either", 78))
    assert shared.records == before


def test_news_of_its_own_about_an_index_key_that_is_no_lane_of_its_own_are_only_noted() -> None:
    _, one, _ = two(limits(concurrent=1), rules={"task": Rule(Retry(), services=("api",))})
    one.submit("a")
    ledger = one.scheduler.ledger
    index_key = index_key_of("task", "default", ("api",))
    one.scheduler.catch_up(Changes(ledger.counters._head, index_heads={index_key: (5.0, 99)}))
    assert ledger.working.heads[index_key] == (5.0, 99)
    assert one.running == ["a"]


def test_work_that_is_in_mind_for_its_dependents_is_in_its_line_as_well() -> None:
    _, one, other = two(limits(concurrent=9), serving=())
    one.submit("a")
    other.may_start = True
    other.submit(other.spec("b"), other.spec("c", needs=["a"]))
    assert sorted(other.started) == ["a", "b"]
    other.finish("a")
    assert other.started == ["c"]
