"""A work's own retries, services that only the queue knows, and what many works wait for at a glance."""

from typing import Any

import pytest

from runcue.core.ledger.fleet import HERE
from runcue.core.limits.service import Limits
from runcue.core.model.retry import Retry, retry_of_work
from runcue.core.model.settings import Rule
from runcue.core.schedule.plan import Submit
from runcue.core.views.explain import explain_alone
from runcue.errors import ConfigError, InvalidOption, SubmitError
from tests.core.bench_of_core import SLOW_RETRY, START, Bench, limits
from tests.core.library import two

OWN = Retry(max_attempts=2, backoff="linear", base_delay=7, jitter=False)


# --- Reading it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "attempts"), [(0, 1), (1, 1), (5, 5), ({"max_attempts": 4}, 4), (Retry(6), 6), ({}, 3)]
)
def test_it_is_given_in_the_ways_of_a_task(given: Any, attempts: int) -> None:
    assert retry_of_work(given).max_attempts == attempts


@pytest.mark.parametrize("given", [Retry(retry_on=OSError), {"retry_on": (OSError,)}, {"retry_on": callable}])
def test_what_only_a_task_can_have_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match="only a task can have it"):
        retry_of_work(given)


@pytest.mark.parametrize("given", [-1, 2.5, True, "3", {"tries": 2}, {"backoff": "no"}, [3]])
def test_nonsense_is_refused_as_it_is_for_a_task(given: Any) -> None:
    with pytest.raises(ConfigError):
        retry_of_work(given)


def test_retry_on_nothing_is_no_retry_on() -> None:
    assert retry_of_work({"max_attempts": 2, "retry_on": None}) == Retry(2)


# --- It wins over the task's ------------------------------------------------------------------------


@pytest.mark.parametrize("of_the_task", [None, 1, SLOW_RETRY, 10])
def test_its_attempts_and_its_delays_count_instead_of_those_of_the_task(of_the_task: Any) -> None:
    bench = Bench(retry=of_the_task)
    bench.submit("a", retry=OWN)
    bench.fail("a")
    assert (bench.state("a"), bench.record("a").next_retry_at) == ("pending", START + 7)
    bench.wake()
    assert bench.started == ["a"]
    bench.fail("a")
    assert (bench.state("a"), bench.record("a").failures) == ("failed", 2)


def test_delays_grow_as_it_says() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a", retry=Retry(4, "power", 3, max_delay=20, jitter=False))
    delays = []
    for _ in range(3):
        bench.fail("a")
        delays.append((bench.record("a").next_retry_at or 0) - bench.now)
        bench.wake()
    assert delays == [3, 9, 20]


def test_work_without_its_own_goes_by_its_task_beside_work_that_has_one() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("own", retry=Retry(1))
    bench.submit("plain")
    bench.turn(bench.failure("own"), bench.failure("plain"))
    assert bench.states() == {"own": "failed", "plain": "pending"}


def test_what_the_task_calls_hopeless_is_not_tried_again() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a", retry=OWN)
    bench.fail("a", "permanent")
    assert bench.state("a") == "failed"


def test_what_the_far_side_says_about_the_delay_counts_more() -> None:
    bench = Bench()
    bench.submit("a", retry=OWN)
    bench.fail("a", after=100)
    assert bench.record("a").next_retry_at == START + 100


def test_a_retry_by_hand_gives_it_its_own_budget_anew() -> None:
    bench = Bench()
    bench.submit("a", retry=OWN)
    bench.fail("a")
    bench.wake()
    bench.fail("a")
    assert bench.state("a") == "failed"
    bench.revive("a")
    assert (bench.record("a").failures, bench.record("a").spec.retry) == (0, OWN)
    bench.fail("a")
    assert (bench.state("a"), bench.record("a").next_retry_at) == ("pending", bench.now + 7)
    bench.wake()
    bench.fail("a")
    assert (bench.state("a"), bench.record("a").attempt) == ("failed", 4)


def test_whoever_runs_it_goes_by_its_own() -> None:
    shared, one, other = two()
    one.submit("a", retry=OWN)
    one.fail("a")
    one.may_start = False
    one.after(7)
    other.turn()
    assert other.started == ["a"]
    other.fail("a")
    assert (shared.records["a"].state.value, shared.records["a"].failures) == ("failed", 2)


# --- Services that only the queue knows -------------------------------------------------------------


def submission(bench: Bench, work_id: str, service: str) -> Submit:
    """What an application submits that did not declare that service itself."""
    submit = bench.submission(work_id, services=(service,))
    submit.services = frozenset({service})
    return submit


def loose() -> dict[str, Rule]:
    return {"task": Rule(Retry(), services=None)}


def test_a_service_that_the_queue_knows_is_taken_and_its_limits_hold() -> None:
    bench = Bench(limits("api", concurrent=1), rules=loose())
    assert bench.reply(submission(bench, "a", "api")) == ["a"]
    assert bench.reply(submission(bench, "b", "api")) == ["b"]
    assert bench.states() == {"a": "running", "b": "pending"}


def test_a_service_that_nobody_declared_is_refused_and_nothing_is_queued() -> None:
    bench = Bench(limits("api"), Limits(HERE, 1), rules=loose())
    bench.turn()  # writes the services
    submit = submission(bench, "a", "apu")
    bench.turn(submit)
    with pytest.raises(SubmitError, match="'apu'") as caught:
        bench.answer_to(submit)
    assert not isinstance(caught.value, ConfigError)
    assert "api" in str(caught.value)
    assert "#" not in str(caught.value)
    assert (bench.states(), bench.plan.writes) == ({}, False)


def test_a_service_that_another_process_declared_is_known_to_all() -> None:
    shared, one, other = two(limits("api"), rules=loose())
    one.declare(limits("printer", concurrent=1))
    assert other.reply(submission(other, "a", "printer")) == ["a"]
    assert other.reply(submission(other, "b", "printer")) == ["b"]
    assert [record.state.value for record in shared.records.values()] == ["running", "pending"]


# --- At most so many in one process -----------------------------------------------------------------


def narrow(amount: int | None) -> tuple[list[Limits], dict[str, Rule]]:
    """The services and rules of a process with that `max_running`."""
    rules = {name: Rule(Retry(), (HERE,)) for name in ("task", "other")}
    return [limits("api"), Limits(HERE, amount)], rules


def test_works_of_different_tasks_do_not_run_beside_each_other() -> None:
    services, rules = narrow(1)
    bench = Bench(*services, rules=rules)
    bench.submit("a")
    bench.submit("b", task="other", services=())
    assert bench.running == ["a"]
    why = bench.why("b")
    assert (why.reason, why.service, why.ahead) == ("max_running", None, 0)
    bench.finish("a")
    assert bench.started == ["b"]


def test_another_process_has_places_of_its_own() -> None:
    services, rules = narrow(1)
    shared, one, other = two(*services, rules=rules)
    one.submit("a", "b", "c")
    other.turn()
    assert sorted(record.id for record in shared.records.values() if record.token) == ["a", "b"]
    assert HERE not in shared.services
    assert one.why("c").reason == "max_running"


# --- Many at a glance -------------------------------------------------------------------------------


def test_each_is_explained_as_if_there_were_only_these() -> None:
    bench = Bench(limits("api", concurrent=1))
    bench.submit("running", "first", "other", "second")
    bench.submit("later", delay=60.0)
    bench.submit("after", needs=["first"])
    records = [bench.record(work_id) for work_id in ("second", "first", "running", "later", "after")]
    ledger = bench.scheduler.ledger
    answers = list(explain_alone(ledger, records, bench.now, bench.wall, True))
    assert {why.work_id: (why.reason, why.ahead) for why in answers} == {
        "first": ("concurrency", 0),
        "second": ("concurrency", 1),
        "running": ("running", 0),
        "later": ("scheduled", 0),
        "after": ("dependency", 0),
    }
    assert bench.why("second").ahead == 2
    assert {why.work_id: why.waits_for for why in answers}["after"] == ("first",)
    assert list(explain_alone(ledger, [], bench.now, bench.wall, True)) == []


def test_at_a_glance_nothing_starts_where_nobody_starts_anything() -> None:
    bench = Bench(limits("api", concurrent=1))
    bench.may_start = False
    bench.submit("a")
    [why] = explain_alone(bench.scheduler.ledger, [bench.record("a")], bench.now, bench.wall, False)
    assert why.reason == "not_started"
