"""A process never acts on what others changed since it read it, nor on tasks that it does not know."""

import pytest

from runcue.core.asking import Questions
from runcue.core.model import WorkState
from runcue.core.outcome import STOPPED
from runcue.core.plan import Cancel, Ended, Lost
from runcue.core.retry import Retry
from runcue.core.settings import Rule
from runcue.errors import DuplicateWork
from tests.core.bench_of_core import limits
from tests.core.library import Process, Shared, two

ASKED = Questions(ready=True, stale=True)


def judged() -> tuple[Shared, Process, Process]:
    """Two processes whose callbacks judge; both were asked about `a`, and the second has it in mind."""
    shared, one, other = two(questions=ASKED)
    one.may_start = other.may_start = True
    one.submit("a")
    other.turn()
    assert (one.asked, other.asked) == (["a"], ["a"])
    return shared, one, other


# what others changed ----------------------------------------------------------------------------------------


def test_what_another_runs_is_not_skipped() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    assert one.started == ["a"]
    other.answer("a", ready=True, stale=False)
    assert (other.state("a"), other.told("skipped")) == ("running", [])
    one.finish("a", result=1)
    assert (one.state("a"), one.record("a").skipped) == ("completed", False)
    assert one.scheduler.ledger.counts[WorkState.PENDING] == 0


def test_what_another_completed_cannot_be_cancelled() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    one.finish("a", result=1)
    assert other.cancel("a") is False
    assert (other.state("a"), other.record("a").result) == ("completed", 1)


def test_what_another_completed_is_no_reason_to_wait() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    one.finish("a")
    other.submit("b", needs=("a",))
    assert other.record("b").missing == 0


def test_what_another_completed_is_not_started() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    one.finish("a")
    other.answer("a", ready=True)
    assert (other.started, other.state("a")) == ([], "completed")


def test_an_id_that_another_ended_is_still_taken() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    one.finish("a")
    with pytest.raises(DuplicateWork):
        other.submit("a")


def test_work_that_another_tried_is_asked_about_anew() -> None:
    _, one, other = two(questions=ASKED, retry=2)
    one.submit("a")
    other.turn()
    other.answer("a", ready=False)
    one.answer("a", ready=True)
    one.fail("a")
    one.may_start = False
    other.after(60)
    assert other.asked == ["a"]
    other.answer("a", ready=True)
    assert (other.started, other.record("a").attempt) == (["a"], 2)


def test_what_nobody_changed_stays_in_mind() -> None:
    shared, one, other = judged()
    one.submit("b")
    other.turn()
    assert other.asked == ["b"]  # and not a once more
    assert other.answer("a", ready=True).start[0].id == "a"
    assert shared.records["a"].worker == "two"


def test_new_callbacks_ask_about_what_is_still_there() -> None:
    _, one, other = judged()
    one.answer("a", ready=True)
    one.finish("a")
    one.may_start = False
    one.submit("b")
    other.questions = Questions(ready=True)
    other.turn()
    assert other.asked == ["b"]


# code that still runs elsewhere -----------------------------------------------------------------------------


def test_what_was_cancelled_elsewhere_is_held_until_its_code_has_ended() -> None:
    _, one, other = two()
    one.submit("a")
    one.may_start = False
    other.cancel("a")
    assert other.revive("a") is True
    assert (other.started, other.why("a").reason) == ([], "overdue")
    one.turn()
    assert one.plan.stop == [one.tokens["a"]]
    other.turn()
    assert other.started == []
    one.turn(Ended("a", one.tokens["a"]))
    other.turn()
    assert (other.started, other.record("a").worker) == (["a"], "two")


def test_what_was_cancelled_here_is_held_for_others_too() -> None:
    _, one, other = two()
    one.submit("a")
    one.may_start = False
    one.cancel("a")
    other.revive("a")
    assert other.started == []
    one.turn(Ended("a", one.tokens["a"]))
    other.turn()
    assert other.started == ["a"]


def test_cancelled_work_whose_code_has_ended_is_nobodys() -> None:
    shared, one, other = two()
    one.submit("a")
    one.cancel("a")
    assert shared.records["a"].worker == "one"
    one.turn(Ended("a", one.tokens["a"]))
    assert shared.records["a"].worker is None
    other.revive("a")
    assert other.started == ["a"]


def test_code_that_ended_with_its_process_holds_nothing() -> None:
    shared, one, other = two()
    one.submit("a")
    other.cancel("a")
    other.revive("a")
    assert other.started == []
    other.turn(Lost("one"))
    assert (other.started, shared.records["a"].worker) == (["a"], "two")


def test_work_cancelled_before_its_worker_died_may_be_revived() -> None:
    _, one, other = two()
    one.submit("a")
    other.cancel("a")
    other.turn(Lost("one"))
    other.revive("a")
    assert other.started == ["a"]


def test_held_work_that_another_cancelled_stays_cancelled() -> None:
    _, one, other = two(retry=3)
    one.submit("a")
    one.time_out("a")
    one.may_start = False
    assert other.cancel("a") is True
    one.turn(Ended("a", one.tokens["a"]))
    assert one.state("a") == "cancelled"


def test_who_stops_and_goes_on_runs_its_own_work_once_it_has_ended() -> None:
    _, one, _ = two()
    one.submit("a")
    one.turn(Cancel("a", reason=STOPPED))
    assert one.started == []
    one.turn(Ended("a", one.tokens["a"]))
    assert one.started == ["a"]


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
    _, one, other = strangers()
    one.may_start = False
    one.submit("a")
    assert other.why("a").reason == "unknown_task"
    assert other.cancel("a") is True
    assert other.revive("a") is True
    assert other.started == []
    one.may_start = True
    one.turn()
    assert one.started == ["a"]


def test_what_falls_due_goes_where_its_own_program_finds_it() -> None:
    shared, one, other = strangers()
    one.submit("a", delay=5)
    other.after(5)
    assert (other.started, other.state("a")) == ([], "pending")
    one.turn()
    assert one.started == ["a"]
    assert shared.on(str(shared.records["a"].shelf)) == ["a"]


def test_dependents_of_another_program_go_on() -> None:
    _, one, other = strangers()
    other.may_start = False
    other.submit("a", task="other")
    one.submit("b", needs=("a",))
    other.may_start = True
    other.turn()
    other.finish("a")
    one.turn()
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
    _, one, other = strangers(max_queued=1, reject_policy="drop_oldest")
    one.may_start = False
    one.submit("a")
    other.may_start = False
    other.submit("b", task="other")
    assert (other.state("a"), other.error("a")) == ("failed", "dropped")


def test_limits_on_waiting_count_for_work_of_another_program() -> None:
    _, one, other = strangers(pending_timeout=10.0, questions=Questions(dependencies=True))
    one.may_start = False
    one.submit("a")
    other.after(10)
    assert other.state("a") == "failed"


def test_dependencies_of_another_programs_work_may_take_too_long() -> None:
    _, one, other = strangers(questions=Questions(dependencies=True))
    one.may_start = False
    one.submit("a", needs=("never",), dependency_timeout=5.0)
    other.after(5)
    assert other.error("a") == "dependency_timeout"


def test_what_another_program_was_told_to_put_off_is_no_matter_of_ours() -> None:
    _, one, other = strangers(throttle_timeout=5.0)
    one.submit("a")
    one.fail("a", "throttled", after=1.0)
    one.may_start = False
    other.after(6)
    assert other.state("a") == "pending"


def test_a_task_that_uses_what_nobody_declared_is_left_alone() -> None:
    shared = Shared()
    one = Process(shared, "one", limits("api"), limits("other"))
    other = Process(shared, "two", rules={"task": Rule(Retry(), ("#pool",))})
    one.may_start = False
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
    _, one, other = two(limits(concurrent=1))
    one.submit("a", "b")
    other.may_start = False
    other.turn()
    assert other.why("b", is_started=False).reason == "concurrency"
    one.finish("a")
    one.may_start = False
    one.finish("b")
    other.submit("c")
    assert other.why("c", is_started=False).details == "this process starts nothing; another may"


# work that kills its workers --------------------------------------------------------------------------------


def test_those_beside_a_killer_are_told_from_it_before_they_are_given_up() -> None:
    """PD8"""
    shared, one, _ = two()
    one.submit("killer", "innocent", "bystander")
    ended: list[str] = []
    for number in range(3, 12):
        process = Process(shared, f"p{number}")
        process.turn()
        died = [worker for worker in shared.workers if worker not in (process.tag, "two")]
        process.turn(*(Lost(worker) for worker in died))
        for _ in range(5):
            if "killer" in process.running:
                break  # and it dies
            ended += process.running
            process.turn(*(process.success(work_id) for work_id in process.running))
            process.after(5)
        if not process.scheduler.ledger.pending and not process.running:
            break
    assert shared.records["killer"].error == "worker_lost"
    assert sorted(ended) == ["bystander", "innocent"]


def test_one_that_has_run_for_a_while_lets_the_next_run_beside_it() -> None:
    shared, one, other = two()
    one.submit("a", "b")
    other.turn(Lost("one"))
    third = Process(shared, "third")
    third.turn()
    third.turn(Lost("two"))
    assert third.started == ["a"]
    assert third.why("b").until == third.now + 0.5
    third.after(5)
    assert (third.started, third.running) == (["b"], ["a", "b"])


def test_when_one_did_no_harm_the_next_runs_at_once() -> None:
    shared, one, other = two(retry=2)
    one.submit(*(f"w{number}" for number in range(5)))
    other.turn(Lost("one"))
    third = Process(shared, "third", retry=2)
    third.turn()
    third.turn(Lost("two"))
    ended = []
    for outcome in ("finish", "fail", "cancel", "finish"):
        assert len(third.started) == 1
        ended += third.started
        assert third.running == third.started
        getattr(third, outcome)(third.started[0])
    assert len(third.started) == 1
    third.finish(third.running[0])
    assert len({*ended}) == 4


def test_one_that_was_set_aside_and_has_ended_since_lets_the_next_come() -> None:
    shared, one, other = two()
    one.submit("a", "b", "c")
    other.turn(Lost("one"))
    third = Process(shared, "third")
    third.turn()
    third.turn(Lost("two"))
    assert third.started == ["a"]
    third.cancel("b")
    third.finish("a")
    assert third.started == ["c"]


# places that several processes want -------------------------------------------------------------------------


def shares(processes: list[Process], rounds: int) -> list[int]:
    """How much each starts when all end what they run and go on, turn by turn."""
    started = [0] * len(processes)
    for _ in range(rounds):
        for number, process in enumerate(processes):
            process.turn(*(process.success(run.id) for run in list(process.runs.values())))
            started[number] += len(process.started)
    return started


def test_processes_that_want_the_same_service_share_it() -> None:
    shared = Shared()
    processes = [Process(shared, tag, limits(concurrent=8)) for tag in ("one", "two", "tri", "for")]
    for process in processes:
        process.turn()
    processes[0].submit(*(f"w{number:04}" for number in range(1000)))
    assert len(processes[0].started) == 8
    started = shares(processes, 20)
    assert min(started) >= 0.8 * max(started)
    idle = processes[1]
    idle.may_start = False
    idle.turn(*(idle.success(run.id) for run in list(idle.runs.values())))
    processes[0].turn()
    assert processes[0].why("w0999").details == "2 running here, the rest is for other processes"


def test_who_is_alone_in_wanting_a_service_has_all_of_it() -> None:
    shared, one, other = two(limits(concurrent=8))
    other.may_start = False
    one.submit(*(f"w{number:03}" for number in range(100)))
    other.turn()
    started = shares([one, other], 5)
    assert started == [40, 0]
    assert shared.workers["two"][0].active == {}


def test_a_share_that_nobody_wants_any_more_is_everybodys() -> None:
    _, one, other = two(limits(concurrent=8))
    one.submit(*(f"w{number:03}" for number in range(60)))
    shares([one, other], 3)
    assert (len(one.runs), len(other.runs)) == (4, 4)
    other.may_start = False
    shares([other, one], 2)
    assert (len(one.runs), len(other.runs)) == (8, 0)


def test_the_share_of_the_dead_is_everybodys() -> None:
    _, one, other = two(limits(concurrent=8))
    one.submit(*(f"w{number:03}" for number in range(60)))
    shares([one, other], 3)
    one.turn(Lost("two"))
    assert len(one.runs) == 8


def test_what_only_one_process_has_is_counted_by_it_alone() -> None:
    rules = {"task": Rule(Retry(), implicit=("#threads",))}
    _, one, other = two(limits(), limits("#threads", concurrent=2), rules=rules)
    one.submit("a", "b", "c")
    other.turn(Lost("nobody"))
    one.turn()
    assert one.active["#threads"] == 2
    assert len(one.runs) + len(other.runs) == 3


def test_code_may_outlive_the_record_of_its_work() -> None:
    shared, one, _ = two()
    one.submit("a")
    one.cancel("a")
    del shared.records["a"]  # pruned
    one.turn(Ended("a", one.tokens["a"]))
    assert one.active == {"api": 0}
