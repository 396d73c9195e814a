"""One process decides for all: who runs what, how much at once, who is asked, and who is told."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import asdict

from runcue.core.ledger.fleet import LATELY, UNREAD, Fleet
from runcue.core.limits.service import Limits
from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure
from runcue.core.model.record import Record
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Worker
from runcue.core.schedule.gates import SCORE_STEP, Questions
from runcue.core.schedule.plan import (
    Cancel,
    Configure,
    Ended,
    Lost,
    Missed,
    Pause,
    Plan,
    Tell,
    Verdicts,
    Withdraw,
)
from runcue.errors import QueueFull
from tests.core.bench_of_core import Bench, costs, limits, sells
from tests.core.library import Process, Shared

PLAIN = Rule(Retry(max_attempts=1))
HERE = Rule(Retry(max_attempts=1), ("#running",))
THREADED = Rule(Retry(max_attempts=1), ("#running", "#threads"))


def processes(*rooms: int | None, shared: Shared | None = None, **options: Any) -> list[Process]:
    """Several with so much room each, the first of which decides; they are called p0, p1, …"""
    shared = shared or Shared()
    options = {"rules": {"task": HERE}} | options
    found = [
        Process(shared, f"p{number}", room={} if room is None else {"#running": room}, **options)
        for number, room in enumerate(rooms)
    ]
    for process in found[1:]:
        process.post()
    found[0].turn()
    return found


def runs(*some: Process) -> list[list[str]]:
    """What each of them runs, once they have read what they were given."""
    for process in some:
        process.read()
    return [[record.id for record in process.runs.values()] for process in some]


def names(amount: int) -> list[str]:
    return [f"w{number:02}" for number in range(amount)]


# who gets a start -------------------------------------------------------------------------------------------


def test_work_goes_only_to_who_knows_its_task() -> None:
    shared = Shared()
    first, second = (Process(shared, tag, rules={tag: PLAIN}) for tag in ("one", "two"))
    second.post()
    first.turn(first.submission("a", task="two"), first.submission("b", task="one"))
    assert runs(first, second) == [["b"], ["a"]]


def test_work_goes_only_to_who_serves_its_queue() -> None:
    shared = Shared()
    first, second = Process(shared, "one", queues=("fast",)), Process(shared, "two", queues=("slow", "fast"))
    second.post()
    first.turn(first.submission("a", queue="slow"), first.submission("b", queue="other"))
    assert runs(first, second) == [[], ["a"]]
    assert first.why("b").details == "queue 'other' is not one that start(queues=…) named"


def test_work_goes_only_to_who_is_started() -> None:
    first, second = processes(None, None)
    first.serve(False)
    first.submit("a", "b")
    assert runs(first, second) == [[], ["a", "b"]]


def test_work_goes_only_to_who_has_room() -> None:
    first, second, third = processes(1, 0, 2)
    first.submit(*names(5))
    assert [len(some) for some in runs(first, second, third)] == [1, 0, 2]
    assert first.why("w04").reason == "max_running"
    assert first.why("w04").details == "3/3 running"


def test_the_least_loaded_by_its_share_of_room_is_next() -> None:
    first, second = processes(2, 8)
    first.submit(*names(5))
    assert [len(some) for some in runs(first, second)] == [1, 4]


def test_where_room_has_no_limit_who_runs_least_is_next() -> None:
    first, second = processes(None, None)
    second.serve(False)
    second.submit("a", "b")
    first.read()
    second.may_start = True
    second.submit(*names(4))
    assert [len(some) for some in runs(first, second)] == [3, 3]


def test_among_equals_who_waited_longest_is_next() -> None:
    some = processes(5, 5, 5)
    order: list[str] = []
    for _ in range(6):
        some[0].now += 1
        some[0].submit(None)
        [[work_id]] = [found for found in runs(*some) if found]
        runner = next(one for one in some if work_id in [record.id for record in one.runs.values()])
        order.append(runner.tag)
        runner.post(runner.success(work_id))
    assert order == ["p0", "p1", "p2", "p0", "p1", "p2"]


def test_two_needs_at_once_have_to_have_room() -> None:
    shared = Shared()
    rules = {"task": THREADED, "plain": HERE}
    first = Process(shared, "one", rules=rules, room={"#running": 5, "#threads": 1})
    second = Process(shared, "two", rules=rules, room={"#running": 1, "#threads": 5})
    second.post()
    first.turn(first.submission("a", "b", "c"))
    assert [len(some) for some in runs(first, second)] == [1, 1]
    first.submit("d", task="plain")
    assert runs(first)[0][-1] == "d"


def test_why_work_waits_names_what_there_is_too_little_of() -> None:
    [only] = processes(None, rules={"task": THREADED})
    only.room = {"#running": 5, "#threads": 1}
    only.submit("a", "b")
    assert (only.why("b").reason, only.why("b").details) == ("threads", "1/1 running")
    only.room = {"#running": 1, "#threads": 5}
    only.turn()
    assert (only.why("b").reason, only.why("b").details) == ("max_running", "1/1 running")


def test_what_is_used_most_says_how_loaded_a_worker_is() -> None:
    shared = Shared()
    rules = {"task": THREADED, "plain": HERE}
    first = Process(shared, "one", rules=rules, room={"#running": 10, "#threads": 2})
    second = Process(shared, "two", rules=rules, room={"#running": 10, "#threads": 10})
    second.post()
    first.turn(first.submission(*names(4)))
    assert [len(some) for some in runs(first, second)] == [1, 3]


def test_a_start_is_committed_with_who_runs_it_before_that_one_is_told() -> None:
    first, second = processes(0, 1)
    first.submit("a")
    record = first.record("a")
    assert (record.worker, record.index_key, second.runs) == ("p1", "running/p1", {})
    assert first.plan.start == []
    assert [one.token for one in first.plan.parts["p1"].start] == [record.token]


def test_a_rated_start_of_another_has_its_last_moment_in_its_part() -> None:
    first, _ = processes(0, 5)
    first.declare(limits("rated", rate=(5, 10.0)))
    first.submit("b", services=("rated",))
    [token] = [one.token for one in first.plan.parts["p1"].start if one.id == "b"]
    assert first.plan.parts["p1"].rated[token] > first.now
    assert first.plan.rated == {}


def test_units_of_a_short_task_stay_with_whoever_decides() -> None:
    first, second = processes(None, None)
    first.scheduler.keep_here(frozenset({"task"}))
    first.submit(*names(4))
    assert runs(first, second) == [names(4), []]


def test_a_task_that_is_short_no_longer_is_shared_again() -> None:
    first, second = processes(None, None)
    first.scheduler.keep_here(frozenset({"task"}))
    first.submit("a")
    first.scheduler.keep_here(frozenset())
    first.submit("b")
    assert runs(first, second) == [["a"], ["b"]]


def test_units_of_a_short_task_wait_for_room_with_whoever_decides() -> None:
    first, second = processes(1, 5)
    first.scheduler.keep_here(frozenset({"task"}))
    first.submit("a", "b")
    assert runs(first, second) == [["a"], []]
    assert (first.why("b").reason, first.why("b").details) == ("max_running", "1/1 running")
    first.scheduler.keep_here(frozenset())
    first.turn()
    assert runs(first, second) == [["a"], ["b"]]


def test_whoever_decides_and_cannot_run_a_short_task_leaves_it_to_others() -> None:
    shared = Shared()
    first, second = (
        Process(shared, "one", rules={"own": PLAIN}),
        Process(shared, "two", rules={"task": PLAIN}),
    )
    second.post()
    first.turn()
    first.scheduler.keep_here(frozenset({"task"}))
    first.submit("a")
    assert runs(first, second) == [[], ["a"]]


# crews ------------------------------------------------------------------------------------------------------


def test_room_that_becomes_free_wakes_those_who_wait_for_it() -> None:
    first, second = processes(0, 1)
    first.submit("a", "b")
    assert runs(second) == [["a"]]
    second.post(second.success("a"))
    first.turn()
    assert runs(second) == [["b"]]


def test_room_that_becomes_free_goes_to_the_best_of_all_tasks_and_queues() -> None:
    first, second = processes(0, 1, rules={"task": HERE, "other": HERE})
    first.submit("a")
    first.submit("b", task="other")
    first.submit("c", queue="elsewhere", priority=5)
    second.read()
    second.post(second.success("a"))
    first.turn()
    assert runs(second) == [["c"]]


def test_room_of_which_more_is_told_is_used() -> None:
    first, second = processes(0, 1)
    first.submit("a", "b", "c")
    second.read()
    second.room = {"#running": 2}
    second.post()
    first.turn()
    assert runs(second) == [["a", "b"]]


def test_room_of_which_less_is_told_is_used_no_more() -> None:
    first, second = processes(0, 3)
    first.submit("a", "b", "c", "d")
    second.read()
    second.room = {"#running": 1}
    second.post(second.success("a"))
    first.turn()
    assert runs(second) == [["b", "c"]]
    second.post(second.success("b"), second.success("c"))
    first.turn()
    assert runs(second) == [["d"]]


def test_a_lane_that_nobody_may_run_holds_no_places_of_other_services() -> None:
    shared = Shared()
    one = Process(shared, "one", limits(concurrent=1), rules={"task": PLAIN}, may_start=False)
    other = Process(shared, "two", limits(concurrent=1), rules={"other": PLAIN})
    one.turn(one.submission("a"))
    other.turn(other.submission("b", task="other"))
    assert (other.started, other.why("a").reason) == (["b"], "unknown_task")
    other.finish("b")
    one.serve()
    assert one.started == ["a"]


def test_when_nobody_runs_work_nothing_starts_and_the_first_who_does_gets_it() -> None:
    first, second = processes(None, None, may_start=False)
    first.submit("a")
    assert first.why("a").reason == "not_started"
    second.may_start = True
    second.post()
    first.turn()
    assert runs(second) == [["a"]]


def test_a_crew_has_as_many_places_as_its_members() -> None:
    fleet = Fleet(lambda service: None)
    worker = Worker("one", "host", "boot", 1, 0.0, is_serving=True, tasks=("task",), room={"#running": 3})
    crew = fleet.crew("task", "default", ("#running",))
    assert (crew.cap, crew.room(0.0), crew.scarce()) == (0, 0, ("", 0, 0))
    fleet.join(worker)
    assert (crew.cap, crew.room(0.0), crew.blocked(0.0)) == (3, 3, None)
    assert fleet.crew("task", "default", ()).room(0.0) == 3  # whatever a task says, it is of the process
    fleet.leave("one")
    why = crew.blocked(0.0)
    assert why is not None
    assert (crew.cap, why.reason) == (0, "unserved")


def test_crews_without_lanes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.ready.FEW_LANES", 4)
    first, second = processes(0, 3)
    fleet = first.scheduler.ledger.fleet
    assert fleet is not None
    for number in range(20):
        first.submit(f"w{number}", queue=f"q{number}")
        second.read()
        if number:
            second.post(second.success(f"w{number}"))
            first.turn()
    assert len(fleet._crews) <= 10
    assert {*fleet.members["p1"].crews} == {*fleet._crews.values()}
    assert "q0" in {queue for _, queue, _ in fleet._crews}, "its work runs"
    second.post(second.success("w0"))
    first.turn()
    assert fleet.members["p1"].used == {"#running": 0}


def test_nothing_is_heard_of_who_is_not_there() -> None:
    fleet = Fleet(lambda service: None)
    fleet.heard_of("nobody", 0.0)
    assert fleet.members == {}


# what processes tell of themselves --------------------------------------------------------------------------


def test_a_task_that_a_process_comes_to_know_is_given_to_it() -> None:
    first, second = processes(0, 5, rules={"task": HERE})
    first.submit("a", task="new")
    assert first.why("a").reason == "unknown_task"
    second.rules = {"task": HERE, "new": PLAIN}
    second.post()
    first.turn()
    assert runs(second) == [["a"]]


def test_a_task_that_a_process_no_longer_knows_is_not_given_to_it() -> None:
    first, second = processes(None, None, rules={"task": PLAIN, "other": PLAIN})
    second.rules = {"other": PLAIN}
    second.post()
    first.turn()
    first.submit(*names(3))
    assert [len(some) for some in runs(first, second)] == [3, 0]


def test_queues_that_a_process_comes_to_serve_are_given_to_it() -> None:
    first, second = processes(0, 5, queues=("fast",))
    first.submit("a", queue="slow")
    second.queues = ("fast", "slow")
    second.post()
    first.turn()
    assert runs(second) == [["a"]]


def test_the_last_declaration_of_a_task_holds_and_that_it_changed_is_told() -> None:
    first, second = processes(None, None, rules={"task": Rule(Retry(max_attempts=1))}, hears=True)
    assert first.facts("task_changed") == []
    second.rules = {"task": Rule(Retry(max_attempts=7))}
    second.post()
    first.turn()
    assert first.facts("task_changed") == [{"task": "task"}]
    assert first.scheduler.ledger.lanes.rule_of("task").retry.max_attempts == 7
    assert first.store.tasks["task"].retry.max_attempts == 7
    second.read()
    assert [draft_of(news).type for news in second.heard] == ["task_changed"]


def test_what_a_process_says_again_changes_nothing() -> None:
    first, second = processes(None, None)
    second._said = None
    second.post()
    before = dict(first.store.workers)
    first.turn()
    assert (first.plan.workers, first.plan.tasks, first.store.workers) == ({}, {}, before)


def test_who_tells_of_itself_keeps_what_was_given_up_with_it() -> None:
    first, second = processes(0, 2)
    first.submit("a")
    second.read()
    first.cancel("a")
    second.room = {"#running": 3}
    second.post()
    first.turn()
    assert [one.work_id for one in first.store.workers["p1"].overdue] == ["a"]


def test_options_and_callbacks_are_those_of_the_program_whose_work_it_is() -> None:
    shared = Shared()
    rules = {"patient": PLAIN}
    first = Process(shared, "one", rules=rules, may_start=False, questions=Questions(ready=True))
    second = Process(shared, "two", may_start=False, pending_timeout=5.0)
    second.post(second.submission("b"))
    first.turn(first.submission("a", task="patient"))
    ledger = first.scheduler.ledger
    assert ledger.lanes.questions_of("patient") == Questions(ready=True)
    assert ledger.lanes.questions_of("task") == Questions()
    assert ledger.lanes.settings_of("task").pending_timeout == 5.0
    assert ledger.lanes.settings_of("nobody") == Settings()
    first.after(5)
    assert (first.state("a"), first.state("b")) == ("pending", "failed")


def test_whose_callbacks_say_whether_dependencies_are_there_has_its_blocked_work_asked_about() -> None:
    decider, other = gates()
    other.questions = Questions()
    other.post(other.submission("b", needs=["a"]))
    decider.turn()
    assert decider.store.under("blocked") == ["b"]
    other.questions = Questions(dependencies=True)
    other.post()
    decider.turn()
    other.read()
    assert other.asked == ["b"]
    other.post(Verdicts([other.verdict("b")]))
    decider.turn()
    assert runs(other) == [["b"]]


def test_whose_callbacks_no_longer_say_so_has_its_work_wait_for_its_dependencies() -> None:
    first, second = processes(0, 5, questions=Questions(dependencies=True))
    first.submit("b", needs=["a"])
    assert first.store.under("blocked") == []
    second.questions = Questions()
    second.post()
    first.turn()
    assert first.store.under("blocked") == ["b"]
    first.submit("a")
    assert runs(second) == [["a"]]
    second.post(second.success("a"))
    first.turn()
    assert runs(second) == [["b"]]


# posts and answers ------------------------------------------------------------------------------------------


def test_what_was_left_is_answered_by_its_place() -> None:
    first, second = processes(None, None)
    submitted, cancelled, paused, kept = second.post(
        second.submission("a", "b"), Cancel("a"), Pause("api", True), Configure({"x": "y"})
    )
    first.turn()
    assert first.plan.replies == []
    second.read()
    assert second.answers[submitted] == ["a", "b"]
    assert (second.answers[cancelled], second.answers[paused], second.answers[kept]) == (True, True, None)


def test_a_refusal_is_an_answer() -> None:
    first, second = processes(None, None, max_queued=1, may_start=False)
    first.submit("a")
    [ref] = second.post(second.submission("b"))
    first.turn()
    second.read()
    assert isinstance(second.answers[ref], QueueFull)
    assert list(first.store.records) == ["a"]


def test_what_needs_no_answer_gets_none() -> None:
    first, second = processes(None, None)
    submit = second.submission(None)
    submit.is_answered = False
    second.post(submit)
    first.turn()
    assert len(first.store.records) == 1
    assert "p1" not in first.plan.parts or first.plan.parts["p1"].replies == []


def test_a_submission_that_was_left_and_waits_for_room_is_answered_when_there_is_some() -> None:
    first, second = processes(0, 1, max_queued=1, reject_policy="block")
    first.submit("a")
    second.read()
    first.submit("b")
    [ref] = second.post(second.submission("c", may_wait=True))
    first.turn()
    second.read()
    assert ref not in second.answers
    second.post(second.success("a"))
    first.turn()
    second.read()
    assert second.answers[ref] == ["c"]


def test_a_submission_that_was_left_and_waits_is_withdrawn_by_its_place() -> None:
    first, second = processes(None, None, max_queued=1, reject_policy="block", may_start=False)
    first.submit("a")
    [ref] = second.post(second.submission("c", may_wait=True))
    first.turn()
    [withdrawn] = second.post(Withdraw(None, ref))
    first.turn()
    [again] = second.post(Withdraw(None, ref))
    first.turn()
    second.read()
    assert (second.answers[withdrawn], second.answers[again]) == (True, False)
    first.cancel("a")
    assert list(first.store.records) == ["a"]


def test_posts_are_taken_in_the_order_they_came_and_once() -> None:
    first, second, third = processes(None, None, None, may_start=False)
    second.post(second.submission("a"))
    third.post(third.submission("b"))
    second.post(second.submission("c"))
    first.turn()
    assert list(first.store.records) == ["a", "b", "c"]
    assert first.store.inbox == []


def test_a_turn_that_was_not_kept_leaves_the_posts_where_they_are() -> None:
    first, second = processes(None, None, may_start=False)
    second.post(second.submission("a"))
    first.turn(is_kept=False)
    assert first.store.records == {}
    first.turn()
    assert list(first.store.records) == ["a"]


def test_one_that_passed_for_dead_is_heard_of_by_what_it_leaves() -> None:
    first, second = processes(0, 2)
    first.turn(Lost("p1"))
    assert list(first.store.workers) == ["p0"]
    second.post()
    first.submit("a")
    assert runs(second) == [["a"]]


# events -----------------------------------------------------------------------------------------------------


def test_who_brought_something_hears_of_it_if_it_wants_to() -> None:
    first, second = processes(None, None, may_start=False, hears=True)
    second.post(second.submission("a"))
    first.turn(first.submission("b"))
    second.read()
    assert second.told_of("queued") == ["a"]
    assert first.told_of("queued") == ["b"]
    assert [draft_of(news).record.id for news in first.plan.events if isinstance(news, Record)] == ["a", "b"]  # type: ignore[union-attr]


def test_of_everyday_events_only_those_hear_who_want_to() -> None:
    first, second = processes(None, None, may_start=False)
    second.post(second.submission("a"), Tell("complaint", None, {"x": 1}))
    first.turn()
    second.read()
    assert (second.told_of("queued"), second.told_of("complaint")) == ([], [None])
    assert first.told_of("complaint") == []


def test_who_runs_work_hears_that_it_started_and_how_it_ended() -> None:
    first, second = processes(0, 2, hears=True)
    first.submit("a", "b")
    second.read()
    second.post(second.success("a"), second.failure("b"))
    first.turn()
    second.read()
    kinds = [draft_of(news).type for news in second.heard if not isinstance(news, Plan)]
    assert kinds == ["started", "started", "completed", "failed"]
    assert first.told_of("started") == first.told_of("completed") == first.told_of("failed") == []


def test_which_of_the_events_of_a_part_are_final_it_says() -> None:
    first, second = processes(0, 2, hears=True)
    first.submit("a", "b")
    second.read()
    second.post(second.success("a"), second.failure("b"))
    first.turn()
    part = first.plan.parts["p1"]
    assert {draft_of(news).type for news in part.finals.values()} == {"completed", "failed"}
    assert [part.events[place] for place in part.finals] == [*part.finals.values()]
    assert part.is_notable


def test_what_is_ones_own_to_hear_of_is_the_plan_itself_where_nothing_is_anothers() -> None:
    plan = Plan()
    assert plan.heard() is plan


def test_what_is_left_to_hear_of_has_its_errors_and_ends_in_their_places() -> None:
    first, second = processes(1, 1)
    second.post(second.submission("a"))
    first.turn(first.submission("b"))
    error = ValueError("boom")
    failure = first.failure("b") if "b" in first.tokens else first.failure("a")
    failure.error = error
    second.read()
    second.post(*(second.success(record.id) for record in second.runs.values()))
    first.turn(failure)
    heard = first.plan.heard()
    assert heard is not first.plan
    assert [draft_of(news).type for news in heard.events if draft_of(news).type != "queue_status"] == [
        "failed"
    ]
    assert [draft_of(heard.events[place]).type for place in heard.errors] == ["failed"]
    assert [draft_of(news).type for news in heard.finals.values()] == ["failed"]
    assert heard.is_notable


def test_nobody_is_told_of_what_one_brought_who_is_gone() -> None:
    first, second = processes(None, None, may_start=False, hears=True)
    second.post(second.submission("a"))
    first.turn(Lost("p1"))
    assert first.plan.parts["p1"].events == []
    assert list(first.store.records) == ["a"]


# what was given and not read --------------------------------------------------------------------------------


def stuck() -> tuple[Process, Process]:
    """Two, of which the second was given some work and does not read it."""
    first, second = processes(0, 5)
    first.submit("a", "b")
    assert first.running == ["a", "b"]
    return first, second


def test_what_was_given_and_not_begun_is_told_from_what_runs() -> None:
    first, second = processes(1, 1)
    first.submit("a", "b")
    [mine], [theirs] = first.started, {"a", "b"} - {*first.started}
    assert first.why(mine).reason == "running"
    why = first.why(theirs)
    assert (why.reason, why.details, why.brief) == ("given", "worker p1 has yet to begin it", "given")
    second.read()
    assert first.why(theirs).reason == "running"


def test_what_was_given_and_not_read_is_taken_back_and_counts_no_attempt() -> None:
    first, second = stuck()
    assert first.plan.wake_at <= first.now + UNREAD
    first.room = {"#running": 5}
    first.after(UNREAD / 2)
    assert first.started == []
    first.after(UNREAD / 2)
    assert first.started == ["a", "b"]
    assert [first.record(work_id).attempt for work_id in "ab"] == [1, 1]
    assert first.record("a").crashes == 0
    assert runs(second) == [[]]


def test_who_left_something_unread_is_given_nothing_more_until_it_says_something() -> None:
    first, second = stuck()
    first.after(UNREAD)
    first.submit("c")
    first.after(10)
    assert first.states() == dict.fromkeys("abc", "pending")
    assert first.why("a").details == "0/5 running"
    second.post()
    first.turn()
    assert sorted(runs(second)[0]) == ["a", "b", "c"]


def test_who_has_read_what_it_was_given_keeps_it_however_long_it_says_nothing() -> None:
    first, second = stuck()
    assert runs(second) == [["a", "b"]]
    first.after(UNREAD)
    first.after(10)
    assert first.running == ["a", "b"]
    first.submit("c")
    assert runs(second) == [["a", "b", "c"]]


def test_who_says_something_has_a_while_to_read_what_it_is_given_next() -> None:
    first, second = stuck()
    first.now += UNREAD
    second.post()
    first.turn()
    assert first.running == ["a", "b"]


def test_what_was_given_up_before_it_was_read_is_over_when_it_is_taken_back() -> None:
    first, _ = stuck()
    first.cancel("a")
    first.revive("a")
    assert first.why("a").reason == "overdue"
    first.after(UNREAD)
    assert first.scheduler.ledger.capacity._slots == {}
    assert first.store.workers["p1"].overdue == ()
    assert first.why("a").reason != "overdue"


def test_a_grant_that_is_taken_back_was_not_used() -> None:
    first, _ = processes(0, 5)
    first.declare(limits("rated", rate=(2, 60.0)))
    first.submit("a", "b", services=("rated",))
    service = first.scheduler.ledger.ready.services["rated"]
    assert service.room(first.now) == 0
    first.after(UNREAD)
    assert service.room(first.now) == 2
    assert first.store.starts({"rated": 0.0}) == []


def test_who_decides_never_takes_back_what_it_gave_itself() -> None:
    first, second = processes(5, 0)
    second.submit("a")
    first.turn()
    assert first.started == ["a"]
    ledger = first.scheduler.ledger
    assert ledger.fleet is not None
    ledger.fleet.given("p0", first.now)
    first.after(UNREAD)
    assert first.running == ["a"]


def test_what_was_given_before_a_takeover_and_is_not_read_is_taken_back_as_well() -> None:
    first, _ = stuck()
    third = Process(first.store, "third", rules={"task": HERE})
    third.turn()
    third.after(UNREAD)
    assert sorted(third.started) == ["a", "b"]


def test_a_start_of_a_worker_that_died_counts_as_made_at_its_last_moment() -> None:
    first, second = processes(0, 5)
    first.declare(limits("rated", rate=(1, 10.0)))
    second.enters_at_once = False
    first.submit("a", services=("rated",))
    second.read()
    first.room = {"#running": 5}
    first.turn(Lost("p1"))
    assert first.started == []
    first.after(10.0)
    assert first.started == []
    first.after(0.5)
    assert first.started == ["a"]


def test_what_a_worker_that_died_was_expected_to_use_counts_as_used() -> None:
    first, second = processes(0, 5)
    first.declare(sells("paid", tokens=(100, 60.0)))
    second.enters_at_once = False
    first.submit("a", services=("paid",), cost=costs(tokens=60))
    second.read()
    first.turn(Lost("p1"))
    assert first.scheduler.ledger.ready.services["paid"].meters[0].room(first.now) == 40


def test_what_a_worker_that_died_had_not_read_was_never_begun() -> None:
    first, _ = stuck()
    first.room = {"#running": 5}
    first.turn(Lost("p1"))
    assert first.started == ["a", "b"]
    assert (first.record("a").crashes, first.record("a").attempt) == (0, 1)


# questions that travel --------------------------------------------------------------------------------------

ASKED = Questions(ready=True)


def gates(amount: int = 1, **options: Any) -> list[Process]:
    """One that decides and has no such task, and others that have callbacks for theirs."""
    shared = Shared()
    decider = Process(shared, "p0", rules={"none": PLAIN})
    others = [Process(shared, f"p{number}", questions=ASKED, **options) for number in range(1, amount + 1)]
    for process in others:
        process.post()
    decider.turn()
    return [decider, *others]


def test_a_question_goes_to_a_process_that_has_the_callback_and_its_verdict_comes_back() -> None:
    decider, other = gates()
    other.post(other.submission("a"))
    decider.turn()
    assert decider.asked == []
    other.read()
    assert other.asked == ["a"]
    other.post(Verdicts([other.verdict("a")]))
    decider.turn()
    assert runs(other) == [["a"]]


def test_who_decides_asks_itself_if_it_can() -> None:
    first, second = processes(None, None, questions=ASKED)
    first.submit("a")
    second.read()
    assert (first.asked, second.asked) == (["a"], [])


def test_questions_go_to_the_one_that_was_given_nothing_for_longest() -> None:
    decider, *others = gates(2)
    asked: list[str] = []
    for work_id in ("a", "b", "c"):
        decider.now += UNREAD / 5
        decider.submit(work_id)
        for process in others:
            process.read()
            asked += [process.tag] * len(process.asked)
    assert asked == ["p1", "p2", "p1"]


def test_a_question_goes_to_nobody_who_knows_the_task_and_has_no_such_callback() -> None:
    shared = Shared()
    decider = Process(shared, "p0", rules={"none": PLAIN})
    plain, able = (
        Process(shared, "p1", questions=Questions(score=True)),
        Process(shared, "p2", questions=ASKED),
    )
    plain.post()
    able.post()
    decider.turn()
    for work_id in ("a", "b"):
        decider.now += 1
        decider.submit(work_id)
        able.read()
        assert able.asked == [work_id]
    plain.read()
    assert plain.asked == []
    decider.turn(Lost("p2"))
    decider.after(1)
    plain.read()
    assert plain.asked == ["a", "b"], "nobody who runs work has it: nothing waits for ever"


def test_a_question_to_one_that_died_is_put_to_another() -> None:
    decider, first, second = gates(2)
    decider.submit("a")
    first.read()
    assert first.asked == ["a"]
    decider.turn(Lost("p1"))
    decider.after(1)
    second.read()
    assert second.asked == ["a"]


def test_a_question_to_one_that_is_stuck_is_put_to_another() -> None:
    rules = {"task": PLAIN, "free": Rule(Retry(), questions=Questions())}
    decider, first, second = gates(2, rules=rules)
    second.may_start = False
    second.post(second.submission("b", task="free"), second.submission("a"))
    decider.turn()
    second.may_start = True
    second.post()
    decider.after(UNREAD)
    second.read()
    assert (second.started, second.asked) == (["b"], [])
    decider.after(UNREAD)
    second.read()
    assert second.asked == ["a"]
    first.read()
    assert (first.asked, first.started) == ([], [])
    first.post(Verdicts([first.verdict("a", ready=False, why="not_ready")]))  # who answers first is believed
    decider.turn()
    assert decider.why("a").details == "is_ready has not said yes"


@pytest.mark.parametrize("is_read", [False, True])
def test_a_question_that_somebody_leaves_unanswered_is_put_to_another(is_read: bool) -> None:
    """Though it was given nothing else, and whether or not it has read it."""
    decider, first, second = gates(2)
    decider.submit("a")
    if is_read:
        first.read()
        assert first.asked == ["a"]
    decider.after(UNREAD)
    decider.after(UNREAD / 5)  # it is asked again after a rest
    second.read()
    assert second.asked == ["a"]
    second.post(Verdicts([second.verdict("a")]))
    decider.turn()
    assert sorted(runs(first, second)) == [[], ["a"]]


def test_who_lost_what_it_was_asked_is_asked_anew_though_much_is_heard_of_it() -> None:
    decider, other = gates()
    decider.submit("a", "b")
    other.read(is_heard=False)
    other.is_unsure = False
    for _ in range(10):
        other.post(Tell("progress"))
        decider.after(UNREAD / 2)
    other.read()
    assert other.asked == []
    other.post(Missed())
    decider.turn()
    decider.after(1)
    other.read()
    assert other.asked == ["a", "b"]
    decider.turn(Missed())
    assert decider.asked == []


def test_where_nobody_can_be_asked_it_is_asked_again_later() -> None:
    decider, other = gates()
    other.may_start = False
    other.post(other.submission("a"))
    decider.turn()
    assert decider.plan.parts.get("p1", Plan()).ask == []
    other.may_start = True
    other.post()
    decider.turn()
    decider.after(1)
    other.read()
    assert other.asked == ["a"]


def test_a_priority_callback_elsewhere_sees_how_deep_the_queue_is_and_how_loaded_services_are() -> None:
    decider, other = gates()
    other.questions = Questions(score=True)
    other.post(other.submission("a", "b"))
    decider.turn()
    part = decider.plan.parts["p1"]
    assert ([one.id for one in part.ask], part.depth, part.pressure) == (["a", "b"], 2, {"api": 0.0})


def test_verdicts_of_what_nobody_asked_about_are_passed_over() -> None:
    first, second = processes(None, None)
    second.post(Verdicts([second.verdict("a")]))
    first.turn()
    assert first.store.records == {}


def test_work_that_is_scored_stands_in_one_line_with_work_that_is_not() -> None:
    """The best score is worth as much as some time of waiting, and the worst nothing."""
    shared = Shared()
    questions = Questions(ready=True, score=True)
    plain = Process(shared, "plain", limits(concurrent=1), rules={"plain": PLAIN})
    scored = Process(shared, "scored", rules={"scored": PLAIN}, questions=questions)
    scored.post()
    plain.turn(plain.submission("running", task="plain"))
    plain.submit("old", task="plain")
    plain.now += SCORE_STEP / 2
    plain.submit("young", task="plain")
    scored.post(scored.submission("worst", "best", task="scored"))
    order = []
    for _ in range(5):
        plain.turn(*(plain.success(record.id) for record in list(plain.runs.values())))
        order += plain.started
        scored.read()
        order += scored.started
        scores = {"worst": 0.0, "best": 1.0}
        scored.post(
            Verdicts([scored.verdict(work_id, score=scores[work_id]) for work_id in scored.asked]),
            *(scored.success(record.id) for record in list(scored.runs.values())),
        )
    assert order == ["old", "best", "young", "worst"]


def test_where_all_work_is_scored_the_score_alone_decides() -> None:
    decider, other = gates()
    other.questions = Questions(ready=True, score=True)
    decider.rules = {}
    decider.declare(limits(concurrent=1))
    other.post(other.submission("a", priority=100), other.submission("b"))
    decider.turn()
    other.read()
    other.post(Verdicts([other.verdict("a", score=0.1), other.verdict("b", score=0.2)]))
    decider.turn()
    assert runs(other) == [["b"]]


# fairness over programs -------------------------------------------------------------------------------------


def programs(amount: int, *services: Limits) -> list[Process]:
    """Programs with a task each that no other one has; the first decides."""
    shared = Shared()
    found = [
        Process(shared, f"p{number}", *services, rules={f"task{number}": PLAIN}) for number in range(amount)
    ]
    for process in found[1:]:
        process.post()
    found[0].turn()
    return found


def work_off(some: Sequence[Process], steps: int, seconds: float = 1.0) -> list[str]:
    """What is started in which order, when each attempt takes so long and only the first decides."""
    order: list[str] = []
    for _ in range(steps):
        for process in some[1:]:
            process.read()
            order += process.started
            process.post(*(process.success(record.id) for record in list(process.runs.values())))
        some[0].after(seconds, *(some[0].success(record.id) for record in list(some[0].runs.values())))
        order += some[0].started
    return order


def test_the_best_unit_of_all_programs_is_next() -> None:
    first, second, third = programs(3, limits(concurrent=1))
    first.submit("running", task="task0")
    for number in range(5):
        first.submit(f"first{number}", task="task0")
        second.post(second.submission(f"second{number}", task="task1"))
    third.post(third.submission("urgent", task="task2", priority=1000))
    first.turn()
    first.finish("running")
    assert runs(third) == [["urgent"]]


def test_six_programs_on_one_place_wait_about_as_long_as_each_other() -> None:
    some = programs(6, limits(concurrent=1))
    came: dict[str, int] = {}
    for number in range(10):
        for place, process in enumerate(some):
            work_id = f"{place}-{number}"
            came[work_id] = len(came)
            process.post(process.submission(work_id, task=f"task{place}"))
        some[0].turn()
    order = [*some[0].running, *work_off(some, 80)]
    assert len(order) == len(came)
    waits = [place - came[work_id] for place, work_id in enumerate(order)]
    assert max(waits) <= 6  # as if they stood in one line


def test_six_programs_on_a_used_up_rate_start_in_the_order_they_came() -> None:
    some = programs(6, limits(rate=(1, 10.0)))
    came: list[str] = []
    for number in range(3):
        for place, process in enumerate(some):
            some[0].now += 0.001
            came.append(f"{place}-{number}")
            process.post(process.submission(came[-1], task=f"task{place}"))
            some[0].turn()
    for process in some:
        process.read()
    begun = some[0].running
    assert begun + work_off(some, 250) == came


# when to look again -----------------------------------------------------------------------------------------


def test_when_whoever_decides_wants_to_look_again_is_stored() -> None:
    first, _ = processes(None, None)
    first.submit("a", delay=5)
    assert first.store.head.wake_at == first.plan.wake_at <= first.now + 5


def test_with_nothing_to_look_at_no_moment_is_stored() -> None:
    first, _ = processes(None, None)
    first.after(5)
    assert first.plan.wake_at == float("inf")
    first.turn(Configure({"x": "y"}))
    assert first.store.head.wake_at is None


def test_that_the_moment_has_passed_is_stored_though_nothing_else_is() -> None:
    """Others take over from one that is late: they have to see that it is not."""
    first, _ = processes(None, None, may_start=False)
    first.submit("a", delay=5)
    assert not first.plan.has_moved_alarm
    first.wake()
    assert first.plan.has_moved_alarm
    plan = Plan()
    assert not plan.writes
    plan.has_moved_alarm = True
    assert plan.writes


def test_one_alone_need_not_store_that_the_moment_has_passed() -> None:
    [only] = processes(None, may_start=False)
    only.submit("a", delay=5)
    only.after(5)
    only.after(5)
    assert not only.plan.has_moved_alarm


def test_a_turn_that_only_takes_its_inbox_leaves_that_moment_as_it_is() -> None:
    first, _ = processes(None, None)
    first.submit("a", delay=5)
    scheduler, wake_at = first.scheduler, first.store.head.wake_at
    scheduler.begin(first.now, first.wall, first.store)
    scheduler.take_in([first.submission("b")])
    plan = scheduler.finish()
    assert (plan.is_whole, plan.head.wake_at, plan.head.decider) == (False, wake_at, "p0")


# who decides next -------------------------------------------------------------------------------------------


def test_who_runs_nothing_leaves_deciding_to_one_that_does_and_was_just_heard_of() -> None:
    first, second, third = processes(None, None, None)
    second.post()
    first.turn()
    first.may_start = False
    third.post()
    first.after(0.5)
    assert first.store.head.decider == "p2"
    assert "p2" in first.plan.parts  # it is woken


def test_who_runs_work_goes_on_deciding() -> None:
    first, second = processes(None, None)
    second.post(second.submission("a"))
    first.turn()
    assert first.store.head.decider == "p0"


def test_who_runs_nothing_goes_on_while_of_the_others_nothing_was_heard_lately() -> None:
    first, _ = processes(None, None)
    first.may_start = False
    first.after(LATELY + 0.1)
    assert first.store.head.decider == "p0"


def test_who_runs_nothing_goes_on_while_those_who_do_are_stuck() -> None:
    first, second = stuck()
    first.may_start = False
    first.after(UNREAD)
    assert first.store.head.decider == "p0"
    second.post()
    first.turn()
    assert first.store.head.decider == "p1"


def test_who_runs_nothing_goes_on_while_submissions_wait_for_room() -> None:
    """They are in its mind alone."""
    first, second = processes(0, None, max_queued=1, reject_policy="block", queues=("none",))
    first.may_start = False
    second.post(second.submission("a"), second.submission("b", may_wait=True))
    first.turn()
    assert first.store.head.decider == "p0"


# small things -----------------------------------------------------------------------------------------------


def test_an_attempt_of_a_task_that_nobody_declared_any_more_counts_where_it_can() -> None:
    first, second = processes(0, 5)
    first.submit("a")
    second.read()
    del first.store.tasks["task"]
    second.rules = {"other": PLAIN}
    third = Process(first.store, "third", rules={"third": PLAIN})
    third.turn()
    assert (third.active, third.state("a")) == ({"api": 1}, "running")
    second.post(second.success("a"))
    third.turn()
    assert (third.active, third.state("a")) == ({"api": 0}, "completed")


def test_a_stop_goes_to_who_runs_it_and_its_places_are_free_when_its_code_has_ended() -> None:
    first, second = processes(0, 1)
    first.submit("a", "b")
    second.read()
    first.cancel("a")
    second.read()
    assert second.given_up == {second.tokens["a"]}
    assert first.state("b") == "pending"
    second.post(Ended("a", second.tokens["a"]))
    first.turn()
    assert runs(second) == [["b"]]


def test_an_attempt_that_a_process_could_not_begin_is_given_to_another() -> None:
    first, second, third = processes(0, 1, 1)
    first.submit("a")
    second.read()
    second.may_start = False
    outcome = second.failure("a")
    outcome.failure = Failure("unbegun", "not here")
    second.post(outcome)
    first.turn()
    assert runs(third) == [["a"]]
    assert first.record("a").attempt == 1


@pytest.mark.parametrize("amount", [1, 3])
def test_what_is_given_at_once_is_one_letter(amount: int) -> None:
    first, second = processes(0, 5)
    second.read()
    first.submit(*names(amount))
    assert len(first.store.letters["p1"]) == 1
    assert runs(second) == [names(amount)]


def test_work_of_a_task_that_nobody_knows_can_be_cancelled() -> None:
    first, _ = processes(None, None)
    first.submit("a", task="unknown")
    assert first.cancel("a") is True
    assert (first.state("a"), first.store.head.pending) == ("cancelled", 0)


def test_who_has_the_queue_open_alone_knows_so() -> None:
    [only] = processes(None)
    assert only.scheduler.is_alone
    first, _ = processes(None, None)
    assert not first.scheduler.is_alone
    assert Bench().scheduler.is_alone


# whose options hold -----------------------------------------------------------------------------------------


def with_options(one: Settings, two: Settings) -> tuple[Process, Process]:
    """Two processes with a task each and options of their own, the first of which decides; neither runs work."""
    shared = Shared()
    first, second = (
        Process(shared, tag, rules={tag: PLAIN}, may_start=False, **asdict(options))
        for tag, options in (("one", one), ("two", two))
    )
    second.post()
    first.turn()
    return first, second


def test_a_standstill_fails_only_the_work_of_programs_that_limit_it() -> None:
    first, _ = with_options(Settings(stall_timeout=5), Settings())
    first.turn(first.submission("a", task="one"), first.submission("b", task="two"))
    assert first.plan.wake_at == first.now + 5
    first.after(5)
    assert first.states() == {"a": "failed", "b": "pending"}
    assert first.plan.wake_at <= first.now
    first.turn()
    first.after(5)
    assert first.states() == {"a": "failed", "b": "pending"}
    assert first.plan.wake_at > first.now


def test_a_standstill_is_limited_by_a_program_that_does_not_decide() -> None:
    first, second = with_options(Settings(), Settings(stall_timeout=20, stall_warn_after=10))
    first.turn(first.submission("a", task="one"), first.submission("b", task="two"))
    assert first.plan.wake_at == first.now + 10
    first.after(10)
    assert first.facts("stall_warning") == [{"seconds": 10.0, "pending": 1}]
    second.read()
    assert (first.told_of("stall_warning"), second.told_of("stall_warning")) == ([], [None])
    assert first.plan.wake_at == first.now + 10
    first.after(10)
    assert first.states() == {"a": "pending", "b": "failed"}
    assert len(first.facts("stall_warning")) == 1


def test_each_program_is_warned_of_a_standstill_in_its_own_time() -> None:
    first, _ = with_options(Settings(stall_warn_after=5), Settings(stall_warn_after=8))
    first.turn(first.submission("a", task="one"), *(first.submission(name, task="two") for name in "bc"))
    first.after(5)
    first.after(3)
    first.after(3)
    assert [fact["pending"] for fact in first.facts("stall_warning")] == [1, 2]
    assert first.plan.wake_at > first.now


def test_a_full_queue_is_told_to_who_submits_by_its_own_limit() -> None:
    first, second = with_options(Settings(max_queued=1), Settings(max_queued=5))
    second.post(*(second.submission(name, task="two") for name in "abc"))
    first.turn()
    assert first.facts("backpressure_active") == []
    second.post(second.submission("d", task="two"))
    first.turn()
    second.read()
    assert second.told_of("backpressure_active") == [None]
    assert first.told_of("backpressure_active") == []
    assert first.facts("backpressure_active") == [{"depth": 4, "limit": 5, "active": True}]
    first.cancel("a")
    second.read()
    assert len(second.told_of("backpressure_active")) == 2
    assert first.facts("backpressure_active")[1:] == [{"depth": 3, "limit": 5, "active": False}]
    assert first.told_of("backpressure_active") == []


def test_what_waited_for_room_is_told_to_who_submitted_it() -> None:
    first, second = with_options(Settings(), Settings(max_queued=1, reject_policy="block"))
    second.post(second.submission("a", task="two"), second.submission("b", task="two", may_wait=True))
    first.turn()
    first.cancel("a")
    second.read()
    assert first.states() == {"a": "cancelled", "b": "pending"}
    assert len(second.told_of("backpressure_active")) == 1
    assert first.told_of("queued") == first.told_of("backpressure_active") == []
