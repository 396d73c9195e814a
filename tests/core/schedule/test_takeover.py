"""Who decides next goes on where the last one was, for all programs and whatever tasks they have."""

from typing import Any

import pytest
from msgspec.structs import replace

from runcue.core.model.failure import Failure
from runcue.core.model.record import WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.outcome import STOPPED
from runcue.core.schedule.plan import Cancel, Charge, Ended, Lost, Outcome
from runcue.errors import DuplicateWork
from tests.core.bench_of_core import costs, limits, sells
from tests.core.library import Process, Shared, two

ASKED = Questions(ready=True, stale=True)


NOW_AGAIN = Retry(max_attempts=3, backoff="fixed", base_delay=0, jitter=False)


# who decides next -------------------------------------------------------------------------------------------


def test_who_took_the_last_turn_goes_on_without_reading_anything_anew() -> None:
    shared, one, _ = two(limits(concurrent=1), serving=("one",))
    one.submit("a", "b", "c")
    before, ledger = shared.reads, one.scheduler.ledger
    one.finish("a")
    assert shared.reads == before
    assert (shared.head.decider, one.scheduler.ledger) == ("one", ledger)


def test_who_takes_over_knows_rules_services_workers_and_what_runs() -> None:
    shared, one, other = two(limits(concurrent=2, rate=(5, 10.0)), room={"#running": 7})
    one.submit("a", "b", "c")
    one.pause("elsewhere")
    other.read()
    other.turn()
    ledger = other.scheduler.ledger
    assert shared.head.decider == "two"
    assert ledger.lanes.rules == shared.tasks
    assert ledger.ready.paused == {"elsewhere"}
    assert ledger.fleet is not None
    assert {one.id: one.used for one in ledger.fleet.members.values()} == {
        "one": {"#running": 1},
        "two": {"#running": 1},
    }
    assert other.active == {"api": 2}
    assert ledger.ready.services["api"].windows[0].room(other.now) == 3


def test_what_a_process_left_of_itself_is_older_than_what_it_says_when_it_takes_over() -> None:
    _, one, other = two(serving=())
    one.turn()
    other.may_start = True
    other.post()
    other.may_start = False  # it was stopped before anybody took that
    other.submit("a")
    assert (other.started, other.state("a")) == ([], "pending")
    other.serve()
    assert other.started == ["a"]


def test_what_was_given_and_not_begun_before_a_takeover_is_begun_after_it() -> None:
    _, one, other = two(serving=("two",))
    one.submit("a")
    other.turn()
    assert (other.started, other.state("a")) == (["a"], "running")


def test_what_was_decided_for_oneself_in_a_turn_one_never_heard_of_is_decided_anew() -> None:
    shared, one, _ = two(serving=("one",))
    one.turn(one.submission("a"), is_heard=False)
    lost = shared.records["a"]
    assert (lost.state, one.runs) == (WorkState.RUNNING, {})
    one.turn()
    assert one.started == ["a"]
    assert shared.records["a"].token > lost.token
    assert shared.records["a"].attempt == 1


def test_what_was_read_and_not_heard_of_is_decided_anew() -> None:
    _, one, other = two(serving=("two",))
    one.submit("a")
    other.read(is_heard=False)
    other.turn()
    assert (other.started, other.record("a").attempt) == (["a"], 1)


def test_what_was_given_up_before_its_process_heard_of_it_holds_nothing() -> None:
    shared, one, other = two(serving=("one",))
    one.turn(one.submission("a"), is_heard=False)
    other.cancel("a")
    assert shared.records["a"].worker == "one"
    other.revive("a")
    assert other.why("a").reason == "overdue"
    one.turn()
    assert one.started == ["a"]
    assert one.active == {"api": 1}


def test_an_outcome_that_was_left_counts_when_its_own_process_takes_over() -> None:
    shared, one, other = two(serving=("two",))
    one.submit("a")
    other.read()
    other.post(other.success("a", 7))
    other.turn()
    assert (shared.records["a"].state, shared.records["a"].result) == (WorkState.COMPLETED, 7)
    assert other.told("stale_completion") == []


def test_what_ended_and_left_its_outcome_is_not_put_back_when_its_own_process_takes_over() -> None:
    shared, one, other = two(serving=("two",))
    one.submit("a")
    other.read()
    other.post(other.success("a", 7))
    other.runs.clear()  # nothing of it is in mind any more
    other.turn()
    assert (shared.records["a"].state, shared.records["a"].result) == (WorkState.COMPLETED, 7)
    assert (other.started, other.told("stale_completion")) == ([], [])


def test_a_late_outcome_that_was_left_is_stale_for_who_takes_over_too() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.cancel("a")
    one.post(one.success("a"))
    other.turn()
    assert other.told("stale_completion") == ["a"]
    assert other.active == {"api": 0}


def test_questions_that_were_under_way_are_asked_anew() -> None:
    _, one, other = two(questions=ASKED)
    one.submit("a")
    assert one.asked == ["a"]
    other.turn()
    assert other.asked == ["a"]
    other.answer("a")
    assert other.state("a") == "running"
    one.answer("a", stale=False)
    assert (one.state("a"), one.told("skipped")) == ("running", [])


def test_work_that_another_tried_is_asked_about_anew() -> None:
    _, one, other = two(questions=ASKED, retry=2, serving=("one",))
    one.submit("a")
    one.answer("a", ready=True)
    one.fail("a")
    one.serve(False)
    other.serve()
    other.after(60)
    assert other.asked == ["a"]
    other.answer("a", ready=True)
    assert (other.started, other.record("a").attempt) == (["a"], 2)


def test_new_callbacks_ask_about_what_is_still_there() -> None:
    _, one, _ = two(questions=ASKED, serving=("one",))
    one.submit("a", "b")
    one.answer("a", ready=True)
    one.finish("a")
    one.questions = Questions(ready=True)
    one.turn()
    assert one.asked == ["b"]


def test_an_id_that_another_ended_is_still_taken() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.finish("a")
    with pytest.raises(DuplicateWork):
        other.submit("a")


# code that still runs elsewhere -----------------------------------------------------------------------------


def test_what_was_cancelled_elsewhere_is_held_until_its_code_has_ended() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.serve(False)
    other.cancel("a")
    other.may_start = True
    assert other.revive("a") is True
    assert (other.started, other.why("a").reason) == ([], "overdue")
    one.turn()
    assert one.given_up == {one.tokens["a"]}
    other.turn()
    assert other.started == []
    one.turn(Ended("a", one.tokens["a"]))
    other.turn()
    assert (other.started, other.record("a").worker) == (["a"], "two")


def test_what_was_cancelled_here_is_held_for_others_too() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    one.serve(False)
    one.cancel("a")
    other.may_start = True
    other.revive("a")
    assert other.started == []
    one.turn(Ended("a", one.tokens["a"]))
    other.turn()
    assert other.started == ["a"]


def test_what_was_given_up_keeps_its_places_over_a_takeover() -> None:
    shared, one, other = two(limits(concurrent=1), retry=NOW_AGAIN, serving=("one",))
    one.submit("a", "b")
    one.time_out("a")
    assert [overdue.work_id for overdue in shared.workers["one"].overdue] == ["a"]
    other.serve()
    assert (other.started, other.active) == ([], {"api": 1})
    assert other.why("a").reason == "overdue"
    one.post(Ended("a", one.tokens["a"]))
    other.turn()
    assert shared.workers["one"].overdue == ()
    assert other.running == ["a"]


def test_what_was_given_up_keeps_its_place_in_the_member_it_was_started_on() -> None:
    rules = {"task": Rule(NOW_AGAIN)}
    services = limits("ssh_a", concurrent=1), limits("ssh_b", concurrent=2)
    _, one, other = two(*services, rules=rules, serving=("one",))
    one.submit("a", services=("ssh_*",))
    chosen = one.record("a").chosen
    one.time_out("a")
    other.turn()
    assert chosen is not None
    assert other.active == {"ssh_a": 0, "ssh_b": 0} | {chosen: 1}


def test_code_that_runs_on_after_its_process_passed_for_dead_holds_its_work() -> None:
    shared, one, other = two(limits(concurrent=2), serving=("one",))
    one.submit("a")
    other.turn(Lost("one"))
    one.turn()
    assert (one.started, one.why("a").reason, one.active) == ([], "overdue", {"api": 1})
    assert one.scheduler.ledger.held == {"a": one.tokens["a"]}
    assert one.plan.stop == [one.tokens["a"]]
    assert [overdue.work_id for overdue in shared.workers["one"].overdue] == ["a"]
    one.end("a")
    assert one.started == ["a"]


def test_work_whose_code_runs_on_in_two_processes_is_held_by_the_one_that_was_thought_alive() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.may_start = True
    other.turn(Lost("one"))
    other.turn(Cancel("a", reason=STOPPED))
    one.turn()
    one.end("a")
    assert (one.started, one.why("a").reason) == ([], "overdue")
    other.end("a")
    assert other.state("a") == "running"


def test_code_that_runs_on_after_another_took_its_work_only_keeps_its_places() -> None:
    shared, one, other = two(limits(concurrent=2), serving=("one",))
    one.submit("a")
    other.may_start = True
    other.turn(Lost("one"))
    assert other.started == ["a"]
    one.turn()
    assert (one.active, one.given_up) == ({"api": 2}, {one.tokens["a"]})
    one.end("a")
    assert (one.active, shared.records["a"].worker) == ({"api": 1}, "two")


def test_cancelled_work_whose_code_has_ended_is_nobodys() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    one.cancel("a")
    assert shared.records["a"].worker == "one"
    one.turn(Ended("a", one.tokens["a"]))
    assert shared.records["a"].worker is None
    other.revive("a")
    assert other.state("a") == "running"


def test_code_that_ended_with_its_process_holds_nothing() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    other.cancel("a")
    other.may_start = True
    other.revive("a")
    assert other.started == []
    other.turn(Lost("one"))
    assert (other.started, shared.records["a"].worker) == (["a"], "two")


def test_work_cancelled_before_its_worker_died_may_be_revived() -> None:
    _, one, other = two(serving=("one",))
    one.submit("a")
    other.cancel("a")
    other.may_start = True
    other.turn(Lost("one"))
    other.revive("a")
    assert other.started == ["a"]


def test_held_work_that_another_cancelled_stays_cancelled() -> None:
    _, one, other = two(retry=3, serving=("one",))
    one.submit("a")
    one.time_out("a")
    assert other.cancel("a") is True
    one.turn(Ended("a", one.tokens["a"]))
    assert one.state("a") == "cancelled"


def test_who_stops_and_goes_on_runs_its_own_work_once_it_has_ended() -> None:
    _, one, _ = two(serving=("one",))
    one.submit("a")
    one.turn(Cancel("a", reason=STOPPED))
    assert one.started == []
    one.turn(Ended("a", one.tokens["a"]))
    assert one.started == ["a"]


def test_work_that_waits_for_code_of_which_nothing_is_known_goes_on() -> None:
    shared, one, other = two(retry=NOW_AGAIN, serving=("one",))
    one.submit("a")
    one.time_out("a")
    shared.workers["one"] = replace(shared.workers["one"], overdue=())  # as an earlier release left it
    other.turn()
    assert other.state("a") == "running"


# tasks of other programs ------------------------------------------------------------------------------------


def strangers(**options: object) -> tuple[Shared, Process, Process]:
    """Two programs, each with a task that the other does not know."""
    shared = Shared()
    one = Process(shared, "one", rules={"task": Rule(Retry(max_attempts=2))}, **options)  # type: ignore[arg-type]
    other = Process(shared, "two", rules={"other": Rule(Retry())}, **options)  # type: ignore[arg-type]
    one.turn()
    other.turn()
    return shared, one, other


def test_work_of_another_program_can_be_cancelled_and_revived() -> None:
    _, one, other = strangers(may_start=False)
    one.submit("a")
    other.serve()
    assert other.why("a").reason == "unknown_task"
    assert other.cancel("a") is True
    assert other.revive("a") is True
    assert other.started == []
    one.serve()
    assert one.started == ["a"]


def test_what_falls_due_goes_where_its_own_program_finds_it() -> None:
    shared, one, other = strangers()
    one.submit("a", delay=5)
    other.after(5)
    assert (other.started, other.state("a")) == ([], "running")
    one.read()
    assert one.started == ["a"]
    assert shared.under(str(shared.records["a"].index_key)) == ["a"]


def test_dependents_of_another_program_go_on() -> None:
    _, one, other = strangers()
    other.submit("a", task="other")
    one.submit("b", needs=("a",))
    assert one.started == []
    other.finish("a")
    one.read()
    assert one.started == ["b"]


def test_work_of_a_program_that_died_waits_for_it() -> None:
    _, one, other = strangers()
    one.submit("a")
    other.turn(Lost("one"))
    assert (other.started, other.state("a")) == ([], "pending")
    again = Process(other.store, "three", rules=one.rules)
    again.turn()
    assert again.started == ["a"]


def test_the_oldest_may_be_of_another_program() -> None:
    _, one, other = strangers(max_queued=1, reject_policy="drop_oldest", may_start=False)
    one.submit("a")
    other.submit("b", task="other")
    assert (other.state("a"), other.error("a")) == ("failed", "dropped")


def test_limits_on_waiting_count_for_work_of_another_program() -> None:
    _, one, other = strangers(pending_timeout=10.0, questions=Questions(dependencies=True), may_start=False)
    one.submit("a")
    other.after(10)
    assert other.state("a") == "failed"


def test_dependencies_of_another_programs_work_may_take_too_long() -> None:
    _, one, other = strangers(questions=Questions(dependencies=True), may_start=False)
    one.submit("a", needs=("never",), dependency_timeout=5.0)
    other.after(5)
    assert other.error("a") == "dependency_timeout"


def test_work_of_another_program_is_put_off_only_for_so_long_too() -> None:
    _, one, other = strangers(throttle_timeout=5.0)
    one.submit("a")
    one.fail("a", "throttled", after=10.0)
    other.after(6)
    assert other.error("a") == "rate_limited"


def test_a_task_that_uses_what_nobody_declared_is_left_alone() -> None:
    shared = Shared()
    one = Process(shared, "one", limits("api"), limits("other"), may_start=False)
    other = Process(shared, "two", rules={"task": Rule(Retry(), ("pool",))})
    one.submit("a")
    other.turn()
    assert (other.started, other.why("a").reason) == ([], "unknown_task")


@pytest.mark.parametrize("work_id", ["2NfWBBDvIAAWQyxmDlYBcbvGaF1", "forward_reference_of_27_chr", "f" * 27])
def test_an_id_that_only_looks_like_one_of_ours_is_not_taken_for_it(work_id: str) -> None:
    _, one, _ = two()
    one.submit("b", needs=(work_id,))
    assert one.started == []
    assert one.submit(work_id) == [work_id]


def test_an_id_of_ours_that_nobody_keeps_ended_well() -> None:
    _, one, _ = two()
    one.submit("b", needs=(f"{int(one.wall * 1000):011x}0badcafe00000001",))
    assert one.started == ["b"]


def test_who_starts_nothing_tells_what_holds_work_back_for_everybody() -> None:
    _, one, other = two(limits(concurrent=1), serving=("one",))
    one.submit("a", "b")
    assert other.why("b", is_started=False).reason == "concurrency"
    one.serve(False)
    one.finish("a")
    assert other.why("b", is_started=False).reason == "not_started"
    assert other.why("b").details == "no process that has the queue open runs units"


# work that kills its workers --------------------------------------------------------------------------------


def test_those_beside_a_killer_are_told_from_it_before_they_are_given_up() -> None:
    """PD8"""
    shared, one, _ = two(serving=("one",))
    one.submit("killer", "innocent", "bystander")
    ended: list[str] = []
    for number in range(3, 12):
        process = Process(shared, f"p{number}")
        died = [worker for worker in shared.workers if worker not in (process.tag, "two")]
        process.turn(*(Lost(worker) for worker in died))
        for _ in range(5):
            if "killer" in process.running:
                break  # and it dies
            ended += process.running
            process.turn(*(process.success(work_id) for work_id in process.running))
            process.after(5)
        if not process.scheduler.ledger.counters.pending and not process.running:
            break
    assert shared.records["killer"].error == "worker_lost"
    assert sorted(ended) == ["bystander", "innocent"]


def after_two_deaths(*ids: str, **options: object) -> Process:
    """Who runs that work after two processes died with it."""
    shared, one, other = two(serving=("one",), **options)
    one.submit(*ids)
    other.may_start = True
    other.turn(Lost("one"))
    third = Process(shared, "third", **options)  # type: ignore[arg-type]
    third.turn(Lost("two"))
    return third


def test_one_that_has_run_for_a_while_lets_the_next_run_beside_it() -> None:
    third = after_two_deaths("a", "b")
    assert third.started == ["a"]
    assert third.why("b").until == third.now + 0.5
    third.after(5)
    assert (third.started, third.running) == (["b"], ["a", "b"])


def test_when_one_did_no_harm_the_next_runs_at_once() -> None:
    third = after_two_deaths(*(f"w{number}" for number in range(5)), retry=2)
    ended = []
    for outcome in ("finish", "fail", "cancel", "finish"):
        assert len(third.started) == 1
        ended += third.started
        assert third.running == third.started
        getattr(third, outcome)(third.started[0])
    assert len(third.started) == 1
    third.finish(third.running[0])
    assert len({*ended}) == 4


def test_one_that_was_put_aside_and_has_ended_since_lets_the_next_come() -> None:
    third = after_two_deaths("a", "b", "c")
    assert third.started == ["a"]
    third.cancel("b")
    third.finish("a")
    assert third.started == ["c"]


def test_code_may_outlive_the_record_of_its_work() -> None:
    shared, one, _ = two(serving=("one",))
    one.submit("a")
    one.cancel("a")
    del shared.records["a"]  # pruned
    one.turn(Ended("a", one.tokens["a"]))
    assert one.active == {"api": 0}


def test_what_a_running_work_has_charged_so_far_is_known_to_who_takes_over() -> None:
    _, one, other = two(serving=("two",))
    one.declare(sells("paid", tokens=(100, 60.0)))
    one.submit("a", services=("paid",), cost=costs(tokens=40))
    other.read()
    token = other.tokens["a"]
    one.turn(Charge(token, {"tokens": 10}))
    other.turn(Charge(token, {"tokens": 90}))
    assert other.scheduler.ledger.ready.services["paid"].meters[0].room(other.now) == 10


def test_what_a_running_work_did_not_use_is_given_back_by_who_took_over() -> None:
    shared, one, other = two(serving=("two",))
    one.declare(sells("paid", tokens=(100, 60.0)))
    one.submit("a", services=("paid",), cost=costs(tokens=80))
    other.read()
    shared.now += 1  # what was counted counts from the start, not from now
    other.turn(Charge(other.tokens["a"], {"tokens": 30}))
    assert other.scheduler.ledger.ready.services["paid"].meters[0].room(other.now) == 70
    one.turn()  # a process that takes over later counts the same
    assert one.scheduler.ledger.ready.services["paid"].meters[0].room(one.now) == 70


def test_a_start_that_its_worker_never_read_is_given_back_by_who_took_over() -> None:
    paid = sells("paid", rate=(2, 60.0), tokens=(100, 60.0))
    shared, one, _ = two(paid, serving=("two",))
    one.submit("a", services=("paid",), cost=costs(tokens=80))
    late = Process(shared, "late", paid)
    late.turn()
    service = late.scheduler.ledger.ready.services["paid"]
    assert (service.windows[0].room(late.now), service.meters[0].room(late.now)) == (1, 20)
    late.after(1.1)
    assert late.started == ["a"]
    assert (service.windows[0].room(late.now), service.meters[0].room(late.now)) == (1, 20), "counted once"


def test_who_takes_over_gives_back_what_it_never_began_itself() -> None:
    shared, one, other = two(limits(rate=(2, 60.0)), serving=("two",))
    one.submit("a")
    shared.letters.clear()
    other.submit("b")
    assert other.scheduler.ledger.ready.services["api"].windows[0].room(other.now) == 0
    assert sorted(other.started) == ["a", "b"]


def test_who_takes_over_gives_nothing_back_that_was_given_back_before() -> None:
    shared, one, other = two(limits(rate=(2, 60.0)), serving=("two",))
    one.submit("a")
    shared.letters.clear()
    [granted] = shared.grants
    shared.grants.append(replace(granted, amount=-granted.amount))
    other.submit("b")
    assert other.scheduler.ledger.ready.services["api"].windows[0].room(other.now) == 0
    assert sorted(other.started) == ["a", "b"]
    assert [grant.amount for grant in shared.grants] == [1, -1, 1, 1]


@pytest.mark.parametrize("kind", ["late", "unbegun"])
def test_a_call_that_came_too_late_is_given_back_by_who_took_over(kind: Any) -> None:
    _, one, other = two(limits(rate=(2, 60.0)), serving=("one",))
    one.enters_at_once = False
    one.submit("a")
    token = one.tokens["a"]
    other.turn()
    one.post(Outcome("a", token, None, Failure(kind, "")))
    other.turn()
    assert other.record("a").token > token, "it was started anew"
    assert other.scheduler.ledger.ready.services["api"].windows[0].room(other.now) == 1, "and counts once"


def test_who_no_longer_decides_knows_which_of_its_own_submissions_wait_for_room() -> None:
    _, one, other = two(max_queued=1, reject_policy="block", serving=())
    one.submit("a")
    own = one.submission("b", may_wait=True)
    other.post(other.submission("c", may_wait=True))
    one.turn(own)
    assert len(one.scheduler.ledger.waiting_submits) == 2
    assert one.scheduler.waiting_here() == [own]
