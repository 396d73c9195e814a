"""Whom the application's callbacks are asked about, when they are asked again, and what their answers do."""

import math

import pytest

from runcue.core.model.record import Record
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import BEST, FEW, FIRST_WAIT, LONGEST_WAIT, Allowance, Questions
from runcue.core.schedule.line import Line
from runcue.core.schedule.plan import Cancel, Revive, Verdicts
from runcue.core.schedule.ready import FRESH
from tests.core.bench_of_core import START, Bench, limits

READY = Questions(ready=True)
STALE = Questions(stale=True)
SCORE = Questions(score=True)
ALL = Questions(ready=True, stale=True, score=True)
ONE_AT_A_TIME = limits(concurrent=1)


def scored(bench: Bench, **scores: float) -> None:
    """The priority callback gives each of these its score."""
    bench.turn(Verdicts([bench.verdict(work_id, score=score) for work_id, score in scores.items()]))


def score_by_number(bench: Bench) -> None:
    """The priority callback scores everybody by the number in its id, until there is nobody left to ask."""
    while bench.asked:
        verdicts = [bench.verdict(work_id, score=int(work_id[1:]) / 10_000) for work_id in bench.asked]
        bench.turn(Verdicts(verdicts))
        bench.finish(bench.running[0])


# --- Gates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("questions", "gates", "asks"),
    [
        (Questions(), False, False),
        (READY, True, True),
        (STALE, True, True),
        (Questions(dependencies=True), True, True),
        (SCORE, False, True),
    ],
)
def test_what_can_hold_work_back_is_a_gate_and_a_score_is_not(
    questions: Questions, gates: bool, asks: bool
) -> None:
    assert (questions.gates, bool(questions)) == (gates, asks)


def test_without_callbacks_nobody_is_asked() -> None:
    bench = Bench(questions=Questions())
    bench.submit("a")
    assert (bench.asked, bench.started) == ([], ["a"])


def test_work_is_asked_about_before_its_first_attempt() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    assert (bench.asked, bench.started) == (["a"], [])


def test_work_that_is_ready_and_stale_starts() -> None:
    bench = Bench(questions=ALL)
    bench.submit("a")
    bench.answer("a", ready=True, stale=True)
    assert bench.started == ["a"]


def test_work_that_is_not_ready_stays_pending() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.answer("a", ready=False)
    assert (bench.state("a"), bench.started) == ("pending", [])


def test_work_whose_output_is_valid_is_skipped() -> None:
    bench = Bench(questions=STALE)
    bench.submit("a")
    bench.answer("a", stale=False)
    assert (bench.state("a"), bench.record("a").skipped) == ("completed", True)


def test_skipping_takes_no_slot() -> None:
    bench = Bench(limits(concurrent=1, rate=(1, 60)), questions=STALE)
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("a", "b")
    bench.answer("a", "b", stale=False)
    assert bench.states() == {"runs": "running", "a": "completed", "b": "completed"}


def test_work_that_is_neither_ready_nor_stale_is_not_skipped() -> None:
    bench = Bench(questions=ALL)
    bench.submit("a")
    bench.answer("a", ready=False, stale=False)
    assert bench.state("a") == "pending"


def test_work_is_asked_about_again_before_every_attempt() -> None:
    bench = Bench(questions=ALL, retry=Retry(max_attempts=3, base_delay=1, jitter=False))
    bench.submit("a")
    bench.answer("a")
    bench.fail("a")
    bench.after(1)
    assert (bench.asked, bench.started) == (["a"], [])
    bench.answer("a", stale=False)
    assert bench.record("a").skipped is True


def test_gates_are_asked_even_while_there_is_no_room() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=READY)
    bench.submit("a")
    bench.answer("a")
    bench.submit("b")
    assert bench.asked == ["b"]


def test_nobody_is_asked_while_nothing_may_start() -> None:
    bench = Bench(questions=READY)
    bench.may_start = False
    bench.submit("a")
    assert (bench.asked, bench.plan.wake_at) == ([], math.inf)


def test_nobody_is_asked_about_work_that_waits_for_a_dependency_or_a_time() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", needs=["x"])
    bench.submit("b", delay=5)
    assert bench.asked == []
    bench.after(5)
    assert bench.asked == ["b"]


def test_the_never_asked_are_asked_in_order_of_rank() -> None:
    bench = Bench(questions=READY)
    bench.submit(bench.spec("a"), bench.spec("b", priority=5), bench.spec("c", priority=2))
    assert bench.asked == ["b", "c", "a"]


def test_what_passed_its_gates_starts_in_order_of_rank() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=READY)
    bench.submit(bench.spec("a"), bench.spec("b", priority=5), bench.spec("c", priority=2))
    bench.answer("a", "c", "b")
    assert bench.started == ["b"]


def test_an_answer_about_work_that_is_gone_changes_nothing() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.cancel("a")
    bench.answer("a")
    assert (bench.state("a"), bench.started) == ("cancelled", [])


def test_an_answer_about_work_that_runs_by_now_changes_nothing() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.turn(Cancel("a"), Revive("a"))
    bench.answer("a")
    assert bench.started == ["a"]
    bench.answer("a", ready=False)
    assert bench.state("a") == "running"


def test_an_answer_nobody_asked_for_changes_nothing() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", needs=["x"])
    bench.answer("a", stale=False)
    assert bench.state("a") == "pending"


def test_answers_without_any_callback_change_nothing() -> None:
    bench = Bench()
    bench.may_start = False
    bench.submit("a")
    bench.answer("a", stale=False)
    assert bench.state("a") == "pending"


def test_work_cancelled_while_it_passed_its_gates_does_not_start() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=READY)
    bench.submit("runs", "a", "b")
    bench.answer("runs", "a", "b")
    bench.cancel("a")
    bench.finish("runs")
    assert bench.started == ["b"]


def test_the_never_asked_are_asked_in_order_of_rank_across_lanes() -> None:
    bench = Bench(limits("one"), limits("two"), questions=READY, allowance=Allowance(first=3))
    bench.may_start = False
    bench.submit("a", "b", "c", "d", services=["one"])
    bench.submit("late", "urgent", services=["two"])
    bench.submit(
        bench.spec("first", services=["two"], priority=1000), bench.spec("e", services=["one"], priority=5)
    )
    bench.may_start = True
    bench.turn()
    assert bench.asked == ["first", "e", "a"]
    bench.wake()
    assert bench.asked == ["b", "c", "d"]
    bench.wake()
    assert bench.asked == ["late", "urgent"]


def test_who_went_away_before_it_was_asked_gives_its_lane_no_advantage() -> None:
    bench = Bench(limits("one"), limits("two"), questions=READY)
    bench.may_start = False
    bench.submit(bench.spec("gone", services=["one"], priority=9), bench.spec("b", services=["one"]))
    bench.submit(bench.spec("gone too", services=["two"], priority=9))
    bench.cancel("gone")
    bench.cancel("gone too")
    bench.submit(bench.spec("a", services=["two"], priority=5))
    bench.may_start = True
    bench.turn()
    assert bench.asked == ["a", "b"]


def test_the_cost_of_a_first_question_does_not_depend_on_how_many_lanes_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(questions=READY, allowance=Allowance(first=1))
    bench.may_start = False
    bench.submit(*[bench.spec(f"w{number}", queue=f"q{number}") for number in range(500)])
    bench.may_start = True
    heads = 0
    head = Line.head

    def counting(line: Line) -> Record | None:
        nonlocal heads
        heads += 1
        return head(line)

    monkeypatch.setattr(Line, "head", counting)
    for number in range(10):
        bench.turn()
        assert bench.asked == [f"w{number}"]
    assert heads < 100


# --- Queues that are paused or not served ---------------------------------------------------------


def test_nobody_is_asked_about_work_of_a_paused_queue_until_it_is_resumed() -> None:
    bench = Bench(questions=STALE)
    bench.pause("slow")
    bench.submit("a", "b", queue="slow")
    bench.submit("c")
    assert bench.asked == ["c"]
    bench.answer("c", stale=False)
    assert (bench.asked, bench.plan.wake_at) == ([], math.inf)
    bench.submit(bench.spec("urgent", queue="slow", priority=5))
    assert bench.asked == []
    bench.resume("slow")
    assert bench.asked == ["urgent", "a", "b"]


def test_nobody_is_asked_about_work_of_a_queue_that_is_not_served_here() -> None:
    bench = Bench(questions=STALE)
    bench.scheduler.ledger.ready.serve(frozenset({"mine"}))
    bench.submit("a", queue="other")
    bench.submit("b", queue="mine")
    assert bench.asked == ["b"]
    bench.turn()
    bench.scheduler.ledger.ready.serve(None)
    bench.turn()
    assert bench.asked == ["a"]


def test_work_cancelled_while_its_queue_was_paused_is_not_asked_about() -> None:
    bench = Bench(questions=READY)
    bench.pause("slow")
    bench.submit("a", "b", queue="slow")
    bench.cancel("a")
    bench.resume("slow")
    assert bench.asked == ["b"]


def test_a_queue_whose_work_was_given_to_other_callbacks_while_paused_is_asked_once() -> None:
    bench = Bench(questions=READY)
    bench.pause("slow")
    bench.submit("a", queue="slow")
    bench.scheduler.ask_with(ALL)
    bench.turn()
    assert bench.asked == []
    bench.resume("slow")
    assert bench.asked == ["a"]


def test_a_queue_paused_twice_before_a_question_is_asked_once() -> None:
    bench = Bench(questions=READY)
    bench.pause("slow")
    bench.submit("a", queue="slow")
    bench.submit(bench.spec("b", queue="slow", priority=1))
    bench.may_start = False
    bench.submit(bench.spec("c", queue="slow", priority=2))
    bench.resume("slow")
    bench.pause("slow")
    bench.resume("slow")
    bench.may_start = True
    bench.turn()
    assert bench.asked == ["c", "b", "a"]


def test_work_that_is_not_ready_is_not_asked_again_while_its_queue_is_paused() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b", queue="slow")
    bench.answer("a", "b", ready=False)
    bench.pause("slow")
    bench.after(FIRST_WAIT * 2)
    assert (bench.asked, bench.plan.wake_at) == ([], math.inf)
    bench.after(60)
    assert bench.asked == []
    bench.resume("slow")
    assert bench.asked == ["a", "b"]


def test_a_completion_asks_nobody_again_whose_queue_is_paused() -> None:
    bench = Bench(questions=READY)
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("a", "b", "c", queue="slow")
    bench.submit("d")
    bench.answer("a", "b", "c", "d", ready=False)
    bench.pause("slow")
    bench.finish("runs")
    assert bench.asked == ["d"]
    bench.cancel("b")
    bench.resume("slow")
    assert bench.asked == ["a", "c"]


# --- How much is asked ----------------------------------------------------------------------------


def test_no_more_are_asked_for_the_first_time_than_allowed() -> None:
    bench = Bench(questions=READY, allowance=Allowance(first=2))
    bench.submit("a", "b", "c")
    assert bench.asked == ["a", "b"]
    assert bench.plan.wake_at == pytest.approx(START + FIRST_WAIT / 5)
    bench.wake()
    assert bench.asked == ["c"]


def test_the_allowance_is_one_for_all_lanes() -> None:
    bench = Bench(limits("one"), limits("two"), questions=READY, allowance=Allowance(first=3))
    bench.submit("a", "b", services=["one"])
    bench.turn()
    bench.may_start = False
    bench.submit("c", "d", services=["one"])
    bench.submit("e", "f", services=["two"])
    bench.may_start = True
    bench.turn()
    assert bench.asked == ["c", "d", "e"]


def test_no_more_are_asked_again_than_allowed_longest_unasked_first() -> None:
    bench = Bench(questions=READY, allowance=Allowance(again=2))
    bench.submit("a", "b", "c")
    for work_id in "bac":
        bench.now += 0.001
        bench.answer(work_id, ready=False)
    bench.after(FIRST_WAIT * 2)
    assert bench.asked == ["b", "a"]
    assert bench.now < bench.plan.wake_at <= bench.now + FIRST_WAIT
    bench.wake()
    assert bench.asked == ["c"]


def test_after_a_completion_no_more_are_asked_again_than_allowed() -> None:
    bench = Bench(questions=READY, allowance=Allowance(again=1))
    bench.submit("a", "b", "c")
    bench.answer("a")
    bench.answer("b", "c", ready=False)
    bench.finish("a")
    assert bench.asked == ["b"]
    assert bench.now < bench.plan.wake_at <= bench.now + FIRST_WAIT
    bench.wake()
    assert bench.asked == ["c"]


# --- Asking again ---------------------------------------------------------------------------------


def test_work_that_is_not_ready_is_asked_again_after_50_ms_growing_to_a_second() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    rests = []
    for _ in range(10):
        bench.answer("a", ready=False)
        rests.append(bench.plan.wake_at - bench.now)
        bench.wake()
        assert bench.asked == ["a"]
    assert rests[:3] == pytest.approx([FIRST_WAIT, FIRST_WAIT * 1.5, FIRST_WAIT * 1.5**2])
    assert rests[-2:] == pytest.approx([LONGEST_WAIT, LONGEST_WAIT])


def test_work_that_was_ready_once_begins_with_short_waits_again() -> None:
    bench = Bench(questions=READY, retry=Retry(max_attempts=2, base_delay=0, jitter=False))
    bench.submit("a")
    for _ in range(5):
        bench.answer("a", ready=False)
        bench.wake()
    bench.answer("a")
    bench.fail("a")
    bench.answer("a", ready=False)
    assert bench.plan.wake_at == pytest.approx(bench.now + FIRST_WAIT)


def test_nobody_is_asked_again_before_the_wait_is_over() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.answer("a", ready=False)
    bench.after(FIRST_WAIT / 2)
    assert bench.asked == []


def test_nobody_is_asked_twice_while_the_answer_is_out() -> None:
    bench = Bench(questions=ALL)
    bench.submit("a")
    bench.after(10)
    bench.after(10)
    assert (bench.asked, bench.plan.wake_at) == ([], math.inf)


def test_whoever_was_not_ready_is_asked_again_when_any_work_completes() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b")
    bench.turn(Verdicts([bench.verdict("a"), bench.verdict("b", ready=False)]))
    bench.finish("a")
    assert bench.asked == ["b"]


def test_work_that_another_answer_of_the_same_turn_lets_go_on_is_asked_about_anew() -> None:
    bench = Bench(questions=Questions(stale=True, dependencies=True))
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.answer("a", "b", stale=False)
    assert (bench.state("a"), bench.state("b")) == ("completed", "pending")
    assert bench.asked == ["b"]
    bench.answer("b", stale=False)
    assert bench.state("b") == "completed"


def test_a_skip_is_a_completion_too() -> None:
    bench = Bench(questions=ALL)
    bench.submit("a", "b")
    bench.answer("b", ready=False)
    bench.answer("a", stale=False)
    assert bench.asked == ["b"]


def test_a_completion_while_the_question_is_out_is_not_missed() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "late", "early")
    bench.answer("a")
    bench.finish("a")
    bench.answer("early", ready=False)
    assert bench.asked == ["early"]
    bench.answer("early", ready=False)
    assert bench.asked == []
    bench.answer("late", ready=False)
    assert bench.asked == ["late"]


def test_one_completion_asks_once_however_long_the_clock_stands_still() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b")
    bench.answer("a")
    bench.finish("a")
    bench.answer("b", ready=False)
    bench.answer("b", ready=False)
    assert bench.asked == []


def test_several_completions_at_one_moment_each_ask_again() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b", "c", "waits")
    for _ in range(12):
        bench.answer("waits", ready=False)
        bench.wake()
    bench.answer("waits", ready=False)
    bench.answer("a", "b", "c")
    for work_id in "abc":
        bench.finish(work_id)
        assert bench.asked == ["waits"]
        bench.answer("waits", ready=False)


def test_work_that_comes_back_within_one_moment_is_held_back_like_any_other() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b")
    bench.answer("a", ready=False)
    bench.answer("b", ready=False)
    for why in ("not_ready", "dependency", "not_ready"):
        bench.turn(Cancel("b"), Revive("b"))
        bench.answer("b", ready=False, why=why)
    bench.wake()
    assert sorted(bench.asked) == ["a", "b"]


def test_a_failure_asks_nobody_again() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b")
    bench.answer("a")
    bench.answer("b", ready=False)
    bench.fail("a")
    assert bench.asked == []


def test_work_that_flaps_for_ever_is_neither_lost_nor_asked_without_pause() -> None:  # CB3
    bench = Bench(questions=READY)
    bench.submit("a")
    asks = 0
    while bench.now < START + 60:
        asks += len(bench.asked)
        bench.answer("a", ready=False) if bench.asked else bench.wake()
    assert bench.state("a") == "pending"
    assert asks <= 70


def test_waits_that_were_cancelled_wake_nobody() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.answer("a", ready=False)
    bench.cancel("a")
    assert bench.plan.wake_at == math.inf
    bench.after(1)
    assert bench.asked == []


def test_a_cancelled_wait_is_passed_over_after_a_completion() -> None:
    bench = Bench(questions=READY)
    bench.submit("a", "b", "c")
    bench.answer("a")
    bench.answer("b", "c", ready=False)
    bench.turn(Cancel("b"), bench.success("a"))
    assert bench.asked == ["c"]


def test_what_waited_and_went_leaves_nothing_behind_and_takes_nobody_along() -> None:
    bench = Bench(questions=READY, keep_finished=0)
    bench.submit("stays")
    bench.answer("stays", ready=False)
    for _ in range(20):
        ids = bench.submit(*[None] * 100)
        bench.answer(*ids, ready=False)
        bench.turn(*[Cancel(work_id) for work_id in ids])
    bench.after(FIRST_WAIT)
    assert bench.asked == ["stays"]


def test_asking_the_same_work_again_and_again_keeps_the_order_of_the_longest_unasked() -> None:
    bench = Bench(questions=READY, allowance=Allowance(again=10_000))
    ids = bench.submit("slow", *[None] * 300)[1:]
    for _ in range(8):
        bench.answer(*ids, ready=False)
        bench.answer("slow", ready=False)
        bench.after(LONGEST_WAIT)
        assert set(bench.asked) == {"slow", *ids}


# --- Fresh answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("questions", [READY, ALL])
def test_an_answer_older_than_100_ms_is_not_acted_on_but_asked_again(questions: Questions) -> None:
    bench = Bench(ONE_AT_A_TIME, questions=questions)
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("a")
    bench.answer("a")
    bench.now += FRESH * 2
    bench.finish("runs")
    assert (bench.asked, bench.started) == (["a"], [])
    bench.answer("a")
    assert bench.started == ["a"]


def test_an_answer_younger_than_100_ms_is_acted_on() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=READY)
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("a")
    bench.answer("a")
    bench.now += FRESH / 2
    bench.finish("runs")
    assert bench.started == ["a"]


def test_work_found_not_ready_when_asked_again_gives_its_turn_to_the_next() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=READY)
    bench.submit("runs", "a", "b")
    bench.answer("runs", "a", "b")
    bench.now += 1
    bench.finish("runs")
    assert bench.asked == ["a"]
    bench.answer("a", ready=False)
    assert bench.asked == ["b"]
    bench.answer("b")
    assert bench.started == ["b"]


def test_answers_that_took_long_still_count_for_the_round_they_were_asked_in() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=ALL)
    bench.submit("runs", "a")
    bench.answer("runs", "a")
    bench.now += 1
    bench.finish("runs")
    verdict = bench.verdict("a")
    bench.now += 1
    bench.turn(Verdicts([verdict]))
    assert bench.started == ["a"]


def test_a_candidate_that_is_being_asked_is_not_asked_once_more_and_is_waited_for() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=ALL)
    bench.submit("runs", "a")
    bench.answer("runs", "a")
    bench.now += 1
    bench.finish("runs")
    assert bench.asked == ["a"]
    bench.submit("b")
    bench.answer("b", score=0.1)
    assert (bench.asked, bench.started) == ([], [])
    bench.answer("a")
    assert bench.started == ["a"]


# --- Scores ---------------------------------------------------------------------------------------


def test_the_highest_score_starts_first() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    bench.submit("a", "b", "c")
    assert bench.asked == ["a", "b", "c"]
    scored(bench, a=0.2, b=0.9, c=0.5)
    assert bench.started == ["b"]


def test_equal_scores_start_in_order_of_submission() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    bench.submit(bench.spec("a"), bench.spec("b", priority=100))
    bench.answer("b", "a")
    assert bench.started == ["a"]


def test_the_highest_score_among_lanes_that_may_start_wins() -> None:
    rules = {name: Rule(Retry.of(None)) for name in ("x", "y")}
    bench = Bench(ONE_AT_A_TIME, questions=SCORE, rules=rules)
    bench.submit(bench.spec("a", task="x"), bench.spec("b", task="y"))
    scored(bench, a=0.2, b=0.9)
    assert bench.started == ["b"]


def test_a_score_is_asked_only_when_something_could_start() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    bench.submit("a")
    bench.answer("a")
    bench.submit("b")
    assert bench.asked == []
    bench.finish("a")
    assert bench.asked == ["b"]


def test_a_newcomer_with_a_higher_score_goes_first() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    bench.submit("runs", "a")
    scored(bench, runs=0.9, a=0.5)
    bench.submit("b")
    bench.finish("runs")
    assert bench.asked == ["b"]
    scored(bench, b=0.7)
    assert bench.started == ["b"]


def test_scores_are_asked_again_at_a_choice_when_they_are_older_than_100_ms() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    bench.submit("runs", "a", "b")
    scored(bench, runs=0.9, a=0.5, b=0.4)
    bench.now += 1
    bench.finish("runs")
    assert sorted(bench.asked) == ["a", "b"]
    scored(bench, a=0.1, b=0.6)
    assert bench.started == ["b"]


def test_scores_that_change_with_every_question_lose_no_work() -> None:  # CB2
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    ids = bench.submit(*[f"w{number}" for number in range(20)])
    for turn in range(200):
        verdicts = [
            bench.verdict(work_id, score=(turn * 7 + len(work_id)) % 10 / 10) for work_id in bench.asked
        ]
        bench.turn(Verdicts(verdicts))
        bench.after(0.07, *[bench.success(work_id) for work_id in bench.running])
    assert {bench.state(work_id) for work_id in ids} == {"completed"}


@pytest.mark.parametrize("score", [math.inf, -1.0, 2.0])
def test_a_score_beyond_all_bounds_does_not_break_the_order_of_the_others(score: float) -> None:  # CB1
    bench = Bench(questions=SCORE)
    bench.submit("a", "odd", "b")
    scored(bench, a=0.2, odd=score, b=0.9)
    assert sorted(bench.started) == ["a", "b", "odd"]
    assert bench.started.index("b") < bench.started.index("a")


def test_of_more_than_a_thousand_candidates_only_the_best_64_are_asked_again_and_some_in_rotation() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE, allowance=Allowance(first=10_000, again=0))
    ids = [f"w{number:04}" for number in range(2 * FEW)]
    bench.submit(*ids)
    score_by_number(bench)
    bench.now += 1
    bench.finish(bench.running[0])
    waiting = [work_id for work_id in ids if bench.state(work_id) == "pending"]
    assert sorted(bench.asked) == waiting[-BEST:]
    score_by_number(bench)
    bench.now += 1
    bench.allowance = Allowance(again=5)
    bench.finish(bench.running[0])
    assert bench.asked[BEST:] == waiting[:5]


def test_rotation_passes_over_who_has_gone_or_was_just_asked() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=SCORE)
    ids = [f"w{number:04}" for number in range(FEW + 200)]
    bench.submit(*ids)
    score_by_number(bench)
    bench.cancel(ids[0])
    bench.now += 1
    bench.allowance = Allowance(again=10_000)
    bench.finish(bench.running[0])
    assert len(bench.asked) == len(set(bench.asked))
    assert set(bench.asked) == {work_id for work_id in ids if bench.state(work_id) == "pending"}


def test_candidates_asked_again_and_again_leave_nothing_behind() -> None:
    bench = Bench(ONE_AT_A_TIME, questions=ALL)
    ids = bench.submit(*[f"w{number}" for number in range(20)])
    for number in range(100):
        bench.answer(*bench.asked, score=number / 1000)
        assert len(bench.running) == 1
        bench.after(1, *[bench.failure(work_id, "snoozed") for work_id in bench.running])
    lane = bench.scheduler.ledger.lanes.lane_of(bench.record(ids[0]).spec)
    assert len(lane.candidates) <= 4 * 20 + FEW
    assert len(lane.rotation) <= 4 * 20 + FEW
    assert set(bench.states().values()) <= {"pending", "running"}


def test_several_that_start_together_pass_over_who_was_cancelled() -> None:
    bench = Bench(questions=ALL)
    bench.pause("api")
    bench.submit("a", "b", "c")
    bench.answer("a", "b", "c")
    bench.cancel("b")
    bench.resume("api")
    assert bench.started == ["a", "c"]


# --- Callbacks that are registered later ----------------------------------------------------------


def test_callbacks_registered_later_are_asked_about_everything_that_is_pending() -> None:
    bench = Bench(ONE_AT_A_TIME, retry=Retry(max_attempts=2, base_delay=5, jitter=False))
    bench.submit("runs", "a", "b")
    bench.submit("later", delay=3)
    bench.submit("scheduled", run_at=START + 4)
    bench.scheduler.ask_with(READY)
    bench.turn()
    assert bench.asked == ["a", "b"]
    bench.after(3)
    assert bench.asked == ["later"]
    bench.after(1)
    assert bench.asked == ["scheduled"]


def test_the_same_callbacks_registered_again_change_nothing() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.scheduler.ask_with(READY)
    bench.answer("a")
    assert bench.started == ["a"]


def test_an_answer_of_callbacks_that_were_replaced_does_not_count() -> None:
    bench = Bench(questions=READY)
    bench.submit("a")
    bench.scheduler.ask_with(ALL)
    bench.answer("a")
    assert (bench.started, bench.asked) == ([], ["a"])


def test_callbacks_registered_later_do_not_let_work_overlap_with_its_last_attempt() -> None:
    bench = Bench(retry=Retry(max_attempts=2, base_delay=0, jitter=False))
    bench.submit("a")
    bench.time_out("a")
    bench.scheduler.ask_with(READY)
    bench.turn()
    assert bench.asked == []
    bench.end("a")
    assert bench.asked == ["a"]


# --- Dependencies by callback ---------------------------------------------------------------------


def test_work_that_waits_for_a_dependency_by_callback_is_asked_again_like_work_that_is_not_ready() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("a", needs=["x"])
    bench.answer("a", ready=False, why="dependency")
    assert bench.plan.wake_at == pytest.approx(START + FIRST_WAIT)
    bench.wake()
    assert bench.asked == ["a"]
