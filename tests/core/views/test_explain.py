"""Why work waits, and until when."""

from typing import Any

import pytest

from runcue.core.model.record import WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import FIRST_WAIT, Questions
from runcue.core.schedule.plan import Post, Verdicts
from runcue.core.views.explain import OWN_POOL, THREADS, Explanation, explain, explain_pending, snapshot
from tests.core.bench_of_core import SLOW_RETRY, START, Bench, limits
from tests.core.library import two


def services_of(bench: Bench, name: str = "api") -> dict[str, object]:
    return snapshot(bench.scheduler.ledger.ready.services[name], bench.now)


# --- Work -----------------------------------------------------------------------------------------


def test_running_work_is_running() -> None:
    bench = Bench()
    bench.submit("a")
    assert (bench.why("a").reason, bench.why("a").state) == ("running", "running")


@pytest.mark.parametrize(
    ("verb", "reason", "details"),
    [("finish", "completed", ""), ("fail", "failed", "boom"), ("cancel", "cancelled", "cancelled")],
)
def test_work_that_is_over_says_how_it_ended(verb: str, reason: str, details: str) -> None:
    bench = Bench()
    bench.submit("a")
    getattr(bench, verb)("a")
    assert (bench.why("a").reason, bench.why("a").details) == (reason, details)


def test_a_dependency_is_named_with_how_many_are_satisfied_and_never_submitted() -> None:
    bench = Bench()
    bench.submit("done")
    bench.finish("done")
    bench.submit("open")
    bench.submit("a", needs=["done", "open", "unknown"])
    why = bench.why("a")
    assert (why.reason, why.details) == ("dependency", "1/3 satisfied, 1 never submitted")
    assert why.waits_for == ("open", "unknown")


def test_dependencies_that_are_all_known_say_nothing_of_others() -> None:
    bench = Bench()
    bench.submit("open")
    bench.submit("a", needs=["open"])
    assert bench.why("a").details == "0/1 satisfied"


def test_a_dependency_that_the_callback_denies_is_a_dependency() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("a", needs=["x"])
    bench.answer("a", ready=False, why="dependency")
    why = bench.why("a")
    assert (why.reason, why.details) == ("dependency", "dependency_satisfied has not said yes")
    assert (why.waits_for, why.until) == (("x",), START + FIRST_WAIT)


def test_a_dependency_that_completed_and_that_the_callback_denies_is_still_named() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("x")
    bench.answer("x")
    bench.finish("x")
    bench.submit("a", needs=["x"])
    bench.answer("a", ready=False, why="dependency")
    why = bench.why("a")
    assert (why.reason, why.details) == ("dependency", "dependency_satisfied has not said yes")
    assert why.waits_for == ("x",)
    bench.after(FIRST_WAIT)
    assert bench.asked == ["a"]
    why = bench.why("a")
    assert (why.reason, why.details, why.waits_for) == ("dependency", "is being asked", ("x",))


def test_work_that_the_dependency_callback_lets_pass_waits_for_something_else() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.pause("api")
    bench.submit("a", needs=["x"])
    bench.answer("a")
    assert bench.why("a").reason == "paused"


def test_work_that_is_not_ready_says_when_it_is_asked_again() -> None:
    bench = Bench(questions=Questions(ready=True))
    bench.submit("a")
    bench.answer("a", ready=False)
    assert (bench.why("a").reason, bench.why("a").until) == ("not_ready", START + FIRST_WAIT)


def test_work_that_is_being_asked_is_not_ready() -> None:
    bench = Bench(questions=Questions(ready=True))
    bench.submit("a")
    assert bench.asked == ["a"]
    assert (bench.why("a").reason, bench.why("a").details) == ("not_ready", "is being asked")
    bench.answer("a", ready=False)
    bench.after(FIRST_WAIT)
    assert bench.asked == ["a"]
    assert (bench.why("a").reason, bench.why("a").details) == ("not_ready", "is being asked")


def test_work_that_was_never_asked_is_not_ready_but_not_started_when_nothing_is() -> None:
    bench = Bench(questions=Questions(ready=True))
    bench.may_start = False
    bench.submit("a")
    assert bench.asked == []
    assert (bench.why("a").reason, bench.why("a").details) == ("not_ready", "is being asked")
    assert bench.why("a", is_started=False).reason == "not_started"


def test_work_of_a_paused_queue_is_paused_and_not_asked() -> None:
    bench = Bench(questions=Questions(ready=True))
    bench.submit("asked", "refused", queue="nightly")
    bench.answer("refused", ready=False)
    bench.pause("nightly")
    bench.submit("a", queue="nightly")
    assert bench.asked == []
    assert (bench.why("a").reason, bench.why("a").details) == ("paused", "queue 'nightly'")
    assert (bench.why("asked").reason, bench.why("asked").details) == ("not_ready", "is being asked")
    assert (bench.why("refused").reason, bench.why("refused").until) == ("not_ready", None)


def test_work_whose_score_is_being_asked_is_not_ready_unless_a_limit_holds_it_back() -> None:
    bench = Bench(questions=Questions(score=True))
    bench.submit("a")
    assert bench.asked == ["a"]
    assert (bench.why("a").reason, bench.why("a").details) == ("not_ready", "is being asked")
    bench.pause("api")
    assert bench.why("a").reason == "paused"


def test_a_candidate_is_ready_unless_it_is_asked_once_more() -> None:
    bench = Bench(questions=Questions(ready=True))
    bench.pause("api")
    bench.submit("a")
    bench.answer("a")
    bench.may_start = False
    bench.resume("api")
    assert bench.why("a").reason == "ready"
    bench.may_start = True
    bench.after(1)
    assert bench.asked == ["a"]
    assert (bench.why("a").reason, bench.why("a").details) == ("not_ready", "is being asked")


def test_a_retry_says_which_attempt_and_when() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    why = bench.why("a")
    assert (why.reason, why.details, why.until) == ("retry", "attempt 2", START + 10)


def test_snoozed_work_says_until_when() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "snoozed", after=30)
    why = bench.why("a")
    assert (why.reason, why.details, why.until) == ("snoozed", "attempt 1", START + 30)


def test_a_snooze_after_a_failure_is_a_snooze() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    bench.after(10)
    bench.fail("a", "snoozed", after=30)
    why = bench.why("a")
    assert (why.reason, why.details, why.until) == ("snoozed", "attempt 2", START + 40)
    bench.after(30)
    bench.fail("a")
    assert (bench.why("a").reason, bench.why("a").details) == ("retry", "attempt 3")


def test_throttled_work_without_a_service_is_throttled() -> None:
    bench = Bench()
    bench.submit("a", services=[])
    bench.fail("a", "throttled", after=12)
    why = bench.why("a")
    assert (why.reason, why.service, why.until) == ("throttled", None, START + 12)


def test_work_whose_last_attempt_still_runs_says_so() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.time_out("a")
    assert bench.why("a").reason == "overdue"


def test_scheduled_work_says_when_in_queue_time_even_when_the_wall_clock_differs() -> None:
    bench = Bench()
    bench.wall += 3600
    bench.submit("a", run_at=bench.wall + 60)
    why = bench.why("a")
    assert (why.reason, why.details, why.until) == ("scheduled", "run_at", bench.now + 60)


def test_delayed_work_says_until_when() -> None:
    bench = Bench()
    bench.submit("a", delay=60)
    why = bench.why("a")
    assert (why.reason, why.details, why.until) == ("scheduled", "delay", START + 60)


def test_work_of_a_cue_that_was_not_started_says_so() -> None:
    bench = Bench()
    bench.may_start = False
    bench.submit("a", "b")
    why = bench.why("b", is_started=False)
    assert (why.reason, why.ahead) == ("not_started", 1)


def test_a_paused_queue_is_named() -> None:
    bench = Bench()
    bench.pause("nightly")
    bench.submit("a", queue="nightly")
    assert (bench.why("a").reason, bench.why("a").details) == ("paused", "queue 'nightly'")


def test_a_paused_service_is_named() -> None:
    bench = Bench()
    bench.pause("api")
    bench.submit("a")
    assert (bench.why("a").reason, bench.why("a").service) == ("paused", "api")


def test_a_full_service_is_named_with_how_many_run_and_are_ahead() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("runs", "a", "b")
    why = bench.why("b")
    assert (why.reason, why.details, why.service, why.ahead) == ("concurrency", "1/1 running", "api", 1)


def test_a_rate_says_the_exact_moment_of_this_work_given_those_ahead() -> None:
    bench = Bench(limits(rate=(2, 60)))
    bench.submit("one")
    bench.after(10)
    bench.submit("two", "a", "b", "c")
    bench.turn()
    assert [bench.why(work_id).until for work_id in "abc"] == [START + 60, START + 70, START + 120]
    assert bench.why("a").reason == "rate"


TWO_TASKS = {"task": Rule(Retry.of(None)), "other": Rule(Retry.of(None))}
SLOWLY = limits(rate=(1, 10))
HELD_BACK: list[dict[str, Any]] = [{}, {}, {"delay": 60}, {"needs": ["x"]}, {"queue": "nightly"}]
SCORES = {"low": 0.2, "high": 0.9, "middle": 0.5}


def ahead_of(bench: Bench, work_id: str) -> tuple[int, float | None]:
    why = bench.why(work_id)
    return why.ahead, why.until


def really_starts(bench: Bench, work_id: str) -> float:
    while work_id not in bench.running:
        bench.wake()
    return bench.now


def test_work_of_other_tasks_at_the_same_service_is_ahead() -> None:
    bench = Bench(SLOWLY, rules=TWO_TASKS)
    bench.submit("runs")
    bench.submit(*(None for _ in range(5)), task="other")
    bench.submit("a")
    assert ahead_of(bench, "a") == (5, START + 60)
    assert really_starts(bench, "a") == START + 60


@pytest.mark.parametrize(
    "held_back", [{"delay": 3600}, {"run_at": START + 3600}, {"needs": ["nobody"]}, {"queue": "paused"}]
)
def test_work_that_could_not_start_anyway_is_ahead_of_nobody(held_back: dict[str, Any]) -> None:
    bench = Bench(SLOWLY)
    bench.pause("paused")
    bench.submit("runs")
    for n in range(5):
        bench.submit(f"held {n}", priority=100, **held_back)
    bench.submit("a")
    assert ahead_of(bench, "a") == (0, START + 10)
    assert really_starts(bench, "a") == START + 10


def test_work_that_waits_for_its_retry_is_ahead_of_nobody() -> None:
    bench = Bench(SLOWLY, retry=Retry(max_attempts=3, backoff="fixed", base_delay=100, jitter=False))
    bench.submit("failed", priority=9)
    bench.submit("a")
    bench.fail("failed")
    assert ahead_of(bench, "a") == (0, START + 10)
    assert really_starts(bench, "a") == START + 10


def test_work_that_is_not_ready_is_ahead_of_nobody() -> None:
    bench = Bench(SLOWLY, questions=Questions(ready=True))
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("unready", "asked", "a")
    bench.answer("unready", ready=False)
    bench.answer("a")
    assert ahead_of(bench, "a") == (0, START + 10)


def test_work_that_another_service_shuts_out_is_ahead_of_nobody_but_its_own_kind() -> None:
    bench = Bench(SLOWLY, limits("down"), limits("off"))
    bench.pause("down")
    bench.submit("runs")
    bench.submit("both 1", "both 2", services=["api", "down"])
    bench.submit("a")
    assert ahead_of(bench, "a") == (0, START + 10)
    why = bench.why("both 2")
    assert (why.reason, why.service, why.ahead) == ("paused", "down", 1)
    bench.pause("off")
    bench.submit("all 1", "all 2", services=["down", "off"])
    why = bench.why("all 2")
    assert (why.reason, why.service, why.ahead) == ("paused", "down", 1)


def test_the_exact_moment_is_that_of_the_slowest_rate() -> None:
    bench = Bench(SLOWLY, limits("slow", rate=(1, 60)))
    bench.submit("runs", "a", "b", services=["api", "slow"])
    bench.turn()
    assert [ahead_of(bench, work_id) for work_id in "ab"] == [(0, START + 60), (1, START + 120)]
    assert really_starts(bench, "b") == START + 120


def test_a_score_decides_who_is_ahead_and_the_unasked_are_behind() -> None:
    bench = Bench(SLOWLY, questions=Questions(score=True), rules=TWO_TASKS)
    bench.submit("low", "high")
    bench.submit("middle", task="other")
    bench.turn(Verdicts([bench.verdict(name, score=score) for name, score in SCORES.items()]))
    assert bench.running == ["high"]
    bench.turn()
    bench.submit("late 1", "late 2", priority=100)
    assert {name: bench.why(name).ahead for name in ("middle", "low", "late 1", "late 2")} == {
        "middle": 0,
        "low": 1,
        "late 1": 2,
        "late 2": 3,
    }
    assert bench.why("low").until == START + 20


def test_work_that_just_left_is_explained_as_it_was() -> None:
    bench = Bench(SLOWLY)
    bench.submit("runs", "a")
    was = bench.record("a")
    bench.cancel("a")
    why = explain(bench.scheduler.ledger, was, bench.now, bench.wall, True)
    assert (why.reason, why.ahead) == ("rate", 0)


def test_everything_pending_is_explained_at_once_by_rank_as_one_by_one() -> None:
    bench = Bench(SLOWLY, limits("gpu", concurrent=1), limits("off"), rules=TWO_TASKS)
    bench.pause("off")
    bench.pause("nightly")
    bench.submit("runs", services=["api", "gpu"])
    for n in range(40):
        services = [["api"], ["gpu"], ["api", "gpu"], ["off", "api"], []][n % 5]
        held_back = HELD_BACK[n // 3 % 5]
        bench.submit(
            f"w{n}", services=services, task="other" if n % 2 else "task", priority=n % 3, **held_back
        )
    for is_started in (True, False):
        pending = explain_pending(bench.scheduler.ledger, bench.now, bench.wall, is_started)
        ranks = [(record.rank, record.seq) for record, _ in pending]
        assert ranks == sorted(ranks)
        assert [why for _, why in pending] == [
            bench.why(record.id, is_started=is_started) for record, _ in pending
        ]
        assert len(pending) == bench.scheduler.ledger.counters.pending > 30


def test_a_rate_that_hangs_on_grants_not_yet_entered_knows_no_moment() -> None:
    bench = Bench(limits(rate=(1, 60)))
    bench.enters_at_once = False
    bench.submit("one", "a")
    assert (bench.why("a").reason, bench.why("a").until) == ("rate", None)


def test_a_throttled_service_says_until_when() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "throttled", after=12)
    assert (bench.why("a").reason, bench.why("a").until) == ("throttled", START + 12)


def test_an_open_circuit_says_until_when() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=30))
    bench.submit("a")
    bench.fail("a")
    bench.submit("b")
    why = bench.why("b")
    assert (why.reason, why.details, why.until) == ("circuit", "open", START + 30)


def test_missing_threads_are_called_threads() -> None:
    bench = Bench(limits(), limits(THREADS, concurrent=1), rules={"task": Rule(Retry.of(None), (THREADS,))})
    bench.submit("runs", "a")
    assert (bench.why("a").reason, bench.why("a").details) == ("threads", "1/1 running")


def test_work_that_others_precede_says_how_many() -> None:
    bench = Bench()
    bench.may_start = False
    bench.submit(bench.spec("a"), bench.spec("b", priority=1), bench.spec("c", priority=2))
    bench.submit("elsewhere", queue="other", priority=9)
    why = bench.why("a")
    assert (why.reason, why.details, why.ahead) == ("order", "2 ahead of it", 2)


def test_a_place_kept_for_older_work_is_explained() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("runs", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("a", services=["one"])
    why = bench.why("a")
    assert (why.reason, why.details, why.service) == (
        "concurrency",
        "a slot is held for an older unit",
        "one",
    )


def test_work_that_nothing_holds_back_starts_next() -> None:
    bench = Bench(limits("one"), limits("two"))
    bench.may_start = False
    bench.submit("a", services=["one", "two"])
    assert bench.why("a").reason == "ready"


# --- Services -------------------------------------------------------------------------------------


def test_work_that_waits_for_the_pool_of_this_process_says_so() -> None:
    rules = {"task": Rule(Retry.of(None), (OWN_POOL,))}
    bench = Bench(limits(), limits(OWN_POOL, concurrent=1), rules=rules)
    bench.submit("a", "b")
    why = bench.why("b")
    assert (why.reason, why.service, why.details) == ("concurrency", "process_pool", "1/1 running")


def test_a_service_without_limits_shows_only_what_runs() -> None:
    bench = Bench()
    bench.submit("a", "b")
    assert services_of(bench) == {
        "name": "api",
        "running": 2,
        "concurrent": None,
        "adaptive": None,
        "rates": [],
        "quantities": [],
        "circuit": None,
        "circuit_threshold": None,
        "circuit_timeout": 300.0,
        "paused": False,
        "each": None,
        "declared": None,
        "blocked": None,
        "until": None,
    }


@pytest.mark.parametrize(
    ("reason", "more", "brief"),
    [
        ("rate", {"service": "openai", "details": "60/min"}, "rate openai"),
        ("concurrency", {"service": "openai", "details": "5/5 running"}, "concurrency openai, 5/5 running"),
        ("circuit", {"service": "ssh", "details": "open"}, "circuit ssh open"),
        ("dependency", {"details": "2/5 satisfied", "waits_for": ("a", "b", "c")}, "after 2/5"),
        ("dependency", {"details": "1/2 satisfied", "waits_for": ("a",)}, "after a"),
        (
            "dependency",
            {"details": "0/1 satisfied, 1 never submitted", "waits_for": ("a",)},
            "after 0/1, 1 never submitted",
        ),
        ("dependency", {"details": "dependency_satisfied has not said yes"}, "dependencies not satisfied"),
        ("not_ready", {"details": "is_ready has not said yes"}, "not ready"),
        ("paused", {"service": "openai"}, "paused openai"),
        ("retry", {}, "retry"),
    ],
)
def test_a_reason_is_told_in_few_words(reason: str, more: dict[str, Any], brief: str) -> None:
    assert Explanation("a", WorkState.PENDING, reason, **more).brief == brief


def test_a_service_shows_how_much_of_its_limits_is_used_and_what_blocks_it() -> None:
    bench = Bench(limits(rate=(2, 60), concurrent=5, circuit_threshold=3))
    bench.submit("a", "b")
    bench.turn()
    shown = services_of(bench)
    assert shown["rates"] == [{"rate": "2/min", "used": 2, "limit": 2}]
    assert (shown["concurrent"], shown["circuit"]) == (5, "closed")
    assert (shown["blocked"], shown["until"]) == ("rate", START + 60)


def test_a_paused_service_is_shown_as_paused() -> None:
    bench = Bench()
    bench.pause("api")
    assert (services_of(bench)["paused"], services_of(bench)["blocked"]) == (True, "paused")


def test_what_nobody_has_decided_over_yet_is_in_the_inbox() -> None:
    shared, one, other = two(serving=())
    one.submit("a")
    other.post(other.submission("b"), other.submission("c"))
    found = explain_pending(one.ledger, one.now, one.wall, is_started=True)
    assert [(record.id, why.reason) for record, why in found] == [
        ("a", "not_started"),
        ("b", "inbox"),
        ("c", "inbox"),
    ]
    one.turn()
    shared.inbox.append(Post("two", 9, [other.submission("b")]))  # as in the turn that takes it
    found = explain_pending(one.ledger, one.now, one.wall, is_started=True)
    assert [record.id for record, _ in found] == ["a", "b", "c"]
