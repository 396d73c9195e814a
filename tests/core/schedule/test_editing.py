"""Units that are edited before they start or after they have failed, and how far a handler says that it is."""

import pytest

from runcue.core.model.record import Progress
from runcue.core.schedule.plan import Edit, Tell
from runcue.errors import WorkNotEditable, WorkNotFound
from tests.core.bench_of_core import SLOW_RETRY, Bench, costs, limits, sells
from tests.core.library import two


def closed() -> Bench:
    """A bench on which "a" is pending until the service is resumed."""
    bench = Bench(limits(), limits("other"))
    bench.pause("api")
    bench.submit("a")
    return bench


def test_a_pending_unit_starts_with_the_params_it_was_edited_to_and_once() -> None:
    bench = closed()
    assert bench.edit("a", params=b'{"n":2}') is None
    assert bench.told("edited") == ["a"]
    bench.resume("api")
    bench.turn()
    assert [record.spec.params for plan in bench.plans for record in plan.start] == [b'{"n":2}']


def test_what_an_edit_does_not_name_stays_as_it_is() -> None:
    bench = closed()
    before = bench.record("a").spec
    bench.edit("a", priority=5)
    assert bench.record("a").spec.priority == 5
    assert (bench.record("a").spec.params, bench.record("a").spec.services) == (
        before.params,
        before.services,
    )


def test_an_edited_unit_uses_the_services_that_its_task_chooses_for_its_new_params() -> None:
    bench = closed()
    bench.edit("a", params=b'{"n":2}', services=("other",))
    assert bench.started == ["a"]


def test_an_edited_unit_costs_what_its_task_says_of_its_new_params() -> None:
    bench = Bench(sells(tokens=(10, 60)))
    bench.submit("first", cost=costs(tokens=8))
    bench.submit("a", cost=costs(tokens=8))
    bench.edit("a", params=b'{"n":2}', cost=costs(tokens=2))
    assert bench.started == ["a"]


def test_a_unit_with_another_priority_goes_first() -> None:
    bench = Bench(limits(concurrent=1), age_step=None)
    bench.pause("api")
    bench.submit("first", "a")
    bench.edit("a", priority=1)
    bench.resume("api")
    assert bench.started == ["a"]


def test_a_failed_unit_stays_failed_and_is_retried_with_its_new_params() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a")
    bench.edit("a", params=b'{"n":2}')
    assert (bench.state("a"), bench.error("a")) == ("failed", "boom")
    bench.revive("a")
    assert [record.spec.params for record in bench.plan.start] == [b'{"n":2}']


def test_a_unit_that_waits_for_its_retry_goes_on_waiting() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    bench.edit("a", params=b'{"n":2}')
    assert bench.after(9).start == []
    assert [record.spec.params for record in bench.after(1).start] == [b'{"n":2}']


def test_a_unit_that_expires_does_so_when_it_would_have_without_the_edit() -> None:
    bench = closed()
    bench.pause("other")
    bench.submit(bench.expiring("b", 10))
    bench.after(5)
    bench.edit("b", params=b'{"n":2}')
    bench.after(5)
    assert bench.error("b") == "expired"


@pytest.mark.parametrize("end", ["", "finish", "cancel"])
def test_other_units_are_refused_and_stay_as_they_were(end: str) -> None:
    bench = Bench()
    bench.submit("a")
    if end:
        getattr(bench, end)("a")
    before = bench.record("a")
    with pytest.raises(WorkNotEditable, match=f"'a' is {before.state.value}: only pending and failed"):
        bench.edit("a", params=b'{"n":2}')
    assert bench.record("a") == before
    assert bench.told("edited") == []


def test_an_unknown_unit_is_an_error() -> None:
    with pytest.raises(WorkNotFound):
        Bench().edit("nobody", priority=1)


def test_in_a_shared_queue_a_unit_of_another_process_is_edited() -> None:
    _, one, other = two(serving=["one"])
    one.pause("api")
    one.turn(one.submission("a"))
    item = Edit("a", params=b'{"n":2}')
    other.turn(item)
    assert other.answer_to(item) is None
    one.resume("api")
    assert [record.spec.params for record in one.begun] == [b'{"n":2}']


# --- Progress ---------------------------------------------------------------------------------------


def test_what_a_handler_says_of_its_progress_is_in_the_record_and_emitted() -> None:
    bench = Bench()
    bench.submit("a")
    bench.progress("a", 0.5, "half")
    assert bench.record("a").progress == Progress(0.5, "half")
    assert bench.facts("progress") == [{"fraction": 0.5, "text": "half"}]
    bench.finish("a")
    assert bench.record("a").progress == Progress(0.5, "half")


def test_a_new_attempt_has_made_no_progress() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.progress("a", 0.5)
    bench.fail("a")
    assert bench.record("a").progress is None


def test_a_unit_that_is_retried_by_hand_has_made_no_progress() -> None:
    bench = Bench()
    bench.submit("a")
    bench.progress("a", 0.5)
    bench.fail("a")
    assert bench.record("a").progress == Progress(0.5)
    bench.revive("a")
    assert bench.record("a").progress is None


def test_the_progress_of_an_attempt_that_is_over_changes_nothing() -> None:
    bench = Bench()
    bench.submit("a")
    token = bench.tokens["a"]
    bench.finish("a")
    bench.turn(Tell("progress", "a", {"fraction": 0.9}, token))
    assert bench.record("a").progress is None
    assert bench.told("progress") == []


def test_a_report_about_no_unit_is_emitted() -> None:
    bench = Bench()
    bench.turn(Tell("callback_failed", data={"callback": "on_start"}))
    assert bench.facts("callback_failed") == [{"callback": "on_start"}]
