"""Plain numbers: labels that stay few, durations in buckets."""

from runcue.core.model.events import EventDraft
from runcue.core.schedule.plan import Plan
from runcue.instrument.counters import BOUNDS, MOST_LABELS, Counters, Durations, Label


def test_a_label_has_two_hundred_values_and_the_rest_are_other() -> None:
    label = Label()
    values = [label(f"task{number}") for number in range(MOST_LABELS + 50)]
    assert values == [f"task{number}" for number in range(MOST_LABELS)] + ["other"] * 50
    assert label("task7") == "task7"
    assert len(label.known()) == MOST_LABELS


def test_the_keys_of_a_service_count_under_its_name() -> None:
    label = Label()
    assert [label(name) for name in ("api[ann]", "api[bob]", "api")] == ["api"] * 3
    assert label.known() == ["api"]


def test_a_duration_is_in_the_first_bucket_that_is_long_enough() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS[0], 0.1, 0.11, 1000.0):
        durations.add(seconds)
    up_to = dict(zip((*BOUNDS, float("inf")), durations.up_to(), strict=True))
    assert up_to[BOUNDS[0]] == 2
    assert up_to[0.05] == 2
    assert up_to[0.1] == 3
    assert up_to[0.25] == 4
    assert up_to[10.0] == 4
    assert up_to[float("inf")] == 5
    assert durations.total == sum((0.0, BOUNDS[0], 0.1, 0.11, 1000.0))


def test_slots_count_by_schedule() -> None:
    counters = Counters(Label(), Label(), Label())
    plan = Plan()
    plan.is_notable = True
    for kind, name in (("fired", "nightly"), ("fired", "beat"), ("fired", "beat"), ("skipped", "beat")):
        plan.events.append(EventDraft(f"schedule_{kind}", 1.0, data={"schedule": name}))
    plan.events.append(EventDraft("schedule_changed", 1.0, data={"schedule": "beat", "change": "paused"}))
    counters.heard(plan)
    assert counters.fired == {"nightly": 1, "beat": 2}
    assert counters.skipped == {"beat": 1}
