"""How loud each event is in the log."""

import logging
from collections.abc import Iterator

import pytest

from runcue.core.model.events import EVENTS, EventDraft
from runcue.core.schedule.plan import Plan
from runcue.instrument.logging import LEVELS, QUIET, WARNINGS, log_events


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """The logger of runcue, which lets everything through."""
    logger = logging.getLogger("runcue")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(before)


def logged(kind: str, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and message of the lines for one event of that kind."""
    plan = Plan()
    plan.is_notable = True
    plan.events.append(EventDraft(kind, 1.0, data={"work_id": "w1"}))
    caplog.clear()
    log_events(plan)
    return [(record.levelno, record.getMessage().partition(":")[0]) for record in caplog.records]


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_of_the_table_has_a_line(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    [(level, name)] = logged(kind, caplog)
    assert level == LEVELS[kind]
    assert name in {kind, f"work_{kind}"}


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ("added", logging.INFO),
        ("paused", logging.INFO),
        ("held back", logging.WARNING),
        ("refused", logging.WARNING),
    ],
)
def test_a_schedule_that_comes_to_nothing_is_a_warning(
    change: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan()
    plan.is_notable = True
    plan.events.append(EventDraft("schedule_changed", 1.0, data={"schedule": "nightly", "change": change}))
    log_events(plan)
    [record] = caplog.records
    assert (record.levelno, record.getMessage().partition(" ")[2]) == (
        level,
        f"schedule=nightly change={change!r}" if " " in change else f"schedule=nightly change={change}",
    )


def test_an_event_that_no_table_names_is_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    assert logged("invented_tomorrow", caplog) == [(logging.INFO, "invented_tomorrow")]


def test_levels_are_given_to_events_that_exist_and_once() -> None:
    assert set(LEVELS) == set(EVENTS)
    assert not QUIET & WARNINGS
