"""What users say of schedules: what is taken, and what is refused with which words."""

from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest

import runcue
from runcue.core.model.schedule import Timing
from runcue.declare.schedules import read_timing
from runcue.errors import ConfigError, InvalidOption, InvalidParams, UnknownTask

NOW = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("given", "timing"),
    [
        ({"every": "5m"}, Timing(every=300.0)),
        ({"every": 1}, Timing(every=1.0)),
        ({"every": "1h", "jitter": "30s"}, Timing(every=3600.0, jitter=30.0)),
        ({"every": "1h", "jitter": 0}, Timing(every=3600.0)),
        ({"cron": "@daily"}, Timing(cron="@daily")),
        ({"cron": "0 3 * * *", "tz": "Europe/Zurich"}, Timing(cron="0 3 * * *", tz="Europe/Zurich")),
        ({"every": 60, "start": "2026-04-01T00:00:00+00:00"}, Timing(every=60.0, start=NOW + 31 * 86400)),
        ({"every": 60, "until": datetime(2026, 3, 2, tzinfo=UTC)}, Timing(every=60.0, until=NOW + 86400)),
    ],
)
def test_when_slots_are(given: dict[str, Any], timing: Timing) -> None:
    assert read_timing(NOW, **given) == timing


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({}, "either every=.* or cron=.*neither was given"),
        ({"every": "5m", "cron": "@daily"}, "both was given"),
        ({"every": "0s"}, "Invalid every: '0s'"),
        ({"every": 0.5}, "a duration from 1 to"),
        ({"every": -5}, "Invalid every"),
        ({"every": "often"}, "Invalid every"),
        ({"every": "5m", "tz": "UTC"}, "tz= is for cron="),
        ({"cron": "0 3 * *"}, "Invalid cron"),
        ({"cron": "@daily", "tz": "Mars"}, "Invalid tz"),
        ({"every": 60, "start": "tomorrow"}, "Invalid start"),
        ({"every": 60, "start": "2026-04-01T00:00:00"}, "a time zone with it"),
        ({"every": 60, "start": "2026-13-01T00:00:00Z"}, "Invalid start"),
        ({"every": 60, "start": NOW + 9, "until": NOW + 8}, "Invalid until.*a moment after start"),
        ({"every": 60, "jitter": "-1s"}, "Invalid jitter"),
    ],
)
def test_what_is_refused(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        read_timing(NOW, **given)


def test_a_decorator_registers_a_function_once() -> None:
    cue = runcue.Cue()

    @cue.every("5m")
    async def plain() -> None: ...

    @cue.cron("@daily", name="other")
    @cue.task("named", retry=3)
    async def task() -> None: ...

    assert cue.get_task("plain").handler is plain
    assert cue.get_task("named").handler is task
    with pytest.raises(UnknownTask):
        cue.get_task("task")


def test_a_function_may_have_several_schedules_under_several_names() -> None:
    cue = runcue.Cue()

    @cue.every("5m", name="often")
    @cue.cron("@daily", name="daily")
    async def sweep() -> None: ...

    with pytest.raises(ConfigError, match="declared already, for task 'sweep'"):

        @cue.every("1m", name="often")
        async def other() -> None: ...


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"overlap": "maybe"}, "Invalid overlap: 'maybe'. Expected one of 'skip', 'queue', 'replace'"),
        ({"missed": "some"}, "Invalid missed"),
        ({"id": "x"}, "A schedule has no id=: each unit has one of its own"),
        ({"idempotency_key": "x"}, "each slot has a key of its own"),
        ({"run_at": 5}, "no run_at="),
        ({"delay": 5}, "use jitter="),
        ({"connection": object()}, "no connection="),
        ({"params": {"n": object()}}, "params.n"),
        ({"name": ""}, "Invalid schedule name"),
        ({"tags": {"schedule": "mine"}}, "The tag 'schedule'"),
        ({"jiter": 3}, "no option 'jiter'.*Did you mean 'jitter'"),
    ],
)
def test_what_a_decorator_refuses_is_said_at_once(options: dict[str, Any], refusal: str) -> None:
    cue = runcue.Cue()

    async def sweep(work: Any) -> None: ...

    with pytest.raises((ConfigError, runcue.SubmitError), match=refusal):
        cue.every("5m", **options)(sweep)
    assert not cue._registry.schedules


def test_params_that_the_function_needs_have_to_be_given() -> None:
    cue = runcue.Cue()
    with pytest.raises(InvalidParams, match="page"):

        @cue.every("5m")
        async def sweep(page: int) -> None: ...


def test_a_method_is_registered_as_a_task_before() -> None:
    cue = runcue.Cue()

    class Sweeper:
        async def sweep(self) -> None: ...

    sweeper = Sweeper()
    cue.every("5m")(sweeper.sweep)
    assert cue.get_task("sweep").name == "sweep"


def test_two_tasks_of_one_function_need_to_be_told_apart() -> None:
    cue = runcue.Cue()

    async def sweep() -> None: ...

    cue.task("one")(sweep)
    cue.task("two")(sweep)
    with pytest.raises(ConfigError, match="registered as 2 tasks"):
        cue.every("5m")(sweep)


def test_a_schedule_belongs_to_the_module_that_declares_it_wherever_its_function_is_from() -> None:
    cue = runcue.Cue()
    shop, library = ModuleType("shop.tasks"), ModuleType("library")
    exec("def sweep(): ...", library.__dict__)
    shop.cue, shop.sweep = cue, library.sweep  # type: ignore[attr-defined]
    exec("cue.every('5m')(sweep)\ncue.task('other')(lambda: None)", shop.__dict__)
    cue.task("mine")(lambda: None)
    assert cue._registry.schedules.by_module() == {"shop.tasks": ("sweep",), __name__: ()}
    [found] = cue._registry.schedules.read(NOW)
    assert found.source == "shop.tasks"


def test_one_name_for_two_schedules_of_a_function_is_refused() -> None:
    cue = runcue.Cue()

    @cue.cron("0 3 * * *")
    async def sweep() -> None: ...

    with pytest.raises(ConfigError, match=r"declared twice\. Give one of them another name="):
        cue.every("5m")(sweep)
    cue.cron("0 3 * * *")(sweep)  # the same once more is nothing new


def test_what_is_wrong_with_a_declaration_names_its_schedule() -> None:
    cue = runcue.Cue()
    wrong: dict[str, Any] = {"priority": "high"}
    cue.every("5m", name="often", **wrong)(print_nothing)
    with pytest.raises(ConfigError, match="Schedule 'often': Invalid priority"):
        cue._registry.schedules.read(NOW)


async def print_nothing() -> None: ...


def test_an_interval_of_nothing_is_an_invalid_option() -> None:
    with pytest.raises(InvalidOption):
        runcue.Cue().every("0s")(print)
