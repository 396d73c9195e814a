"""Exceptions say what, which and what to do, keep facts as fields, and survive the way between processes."""

import copy
import pickle
from datetime import timedelta

import pytest

from runcue import errors
from runcue.core.model.record import Work
from runcue.errors import (
    ConfigError,
    CueClosed,
    DependencyCycle,
    DuplicateWork,
    InvalidOption,
    InvalidParams,
    InvalidRate,
    Permanent,
    QueueFull,
    RateLimited,
    RetryLater,
    RuncueError,
    Snooze,
    StoreError,
    SubmitError,
    UnknownOption,
    UnknownService,
    UnknownTask,
    WorkCancelled,
    WorkFailed,
    WorkNotFound,
    WorkTimedOut,
    nearest,
    quoted,
)

WORK = Work(id="w1", task="extract", error="ValueError: oops\nand more")

ONE_OF_EACH: list[RuncueError] = [
    UnknownTask("extrct", ["extract"]),
    UnknownService("opnai", ["openai"]),
    InvalidRate("60"),
    InvalidRate("60/fortnight", "fortnight"),
    InvalidOption("timeout", "soon", "seconds"),
    UnknownOption("tmeout", ["timeout"], "Cue()"),
    InvalidParams("params.when", "is of type datetime."),
    QueueFull(10, 10),
    DependencyCycle(["a", "b", "a"]),
    DuplicateWork("w1"),
    DuplicateWork("w1", key="k", state="failed"),
    CueClosed(),
    WorkNotFound("w1", forgotten=True),
    WorkFailed(WORK),
    WorkCancelled(WORK),
    WorkTimedOut(WORK),
    errors.WrongThread("Use await cue.submit() here."),
    errors.StorageFull("The disk is full.", store="queue.db"),
    RateLimited(retry_after=12, service="openai"),
    RetryLater(after=timedelta(seconds=30)),
    Snooze("30s"),
    Permanent("no such page"),
]


class Rude:
    """Cannot be shown: its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError


class Wordy:
    """Has a repr of several lines."""

    def __repr__(self) -> str:
        return "first\nsecond\x1b[31m"


# --- Kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_every_exception_is_a_runcue_error(error: RuncueError) -> None:
    assert isinstance(error, RuncueError)


@pytest.mark.parametrize("kind", [UnknownTask, UnknownService, InvalidRate, InvalidOption, UnknownOption])
def test_what_is_declared_wrongly_is_a_config_error_and_a_value_error(kind: type) -> None:
    assert issubclass(kind, ConfigError)
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize("kind", [InvalidParams, QueueFull, DependencyCycle, DuplicateWork])
def test_what_is_not_accepted_is_a_submit_error_and_a_value_error(kind: type) -> None:
    assert issubclass(kind, SubmitError)
    assert issubclass(kind, ValueError)


def test_missing_work_is_a_lookup_error() -> None:
    assert issubclass(WorkNotFound, LookupError)


def test_a_timeout_is_a_failure_and_a_cancellation_is_none() -> None:
    assert issubclass(WorkTimedOut, WorkFailed)
    assert not issubclass(WorkCancelled, WorkFailed)


@pytest.mark.parametrize(
    "name",
    ["StorageFull", "StorageCorrupt", "StorageReplaced", "StorageBusy", "SchemaTooNew", "ForkedConnection"],
)
def test_every_trouble_with_storage_is_a_store_error_that_names_its_store(name: str) -> None:
    error = getattr(errors, name)("It is so.", store="queue.db")
    assert isinstance(error, StoreError)
    assert (str(error), error.store) == ("It is so.", "queue.db")


# --- Between processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("carry", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_exception_arrives_elsewhere_with_its_text_and_fields(error: RuncueError, carry: object) -> None:
    assert callable(carry)
    arrived = carry(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.__dict__ == error.__dict__


# --- Messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_a_message_is_one_printable_line(error: RuncueError) -> None:
    assert str(error)
    assert str(error).isprintable()


def test_an_unknown_task_shows_what_is_registered_and_what_was_probably_meant() -> None:
    error = UnknownTask("extrct", ["upload", "extract"])
    assert str(error) == (
        "Unknown task type: 'extrct'. Registered: 'extract', 'upload'. Did you mean 'extract'?"
    )
    assert (error.name, error.known) == ("extrct", ("upload", "extract"))


def test_an_unknown_task_without_any_registered_says_how_to_register_one() -> None:
    assert "@cue.task(name)" in str(UnknownTask("extract"))


def test_an_unknown_service_shows_what_is_registered_and_what_was_probably_meant() -> None:
    error = UnknownService("opnai", ["openai"])
    assert str(error) == "Unknown service: 'opnai'. Registered: 'openai'. Did you mean 'openai'?"
    assert (error.name, error.known) == ("opnai", ("openai",))


def test_an_unknown_service_without_any_registered_says_how_to_register_one() -> None:
    assert "cue.service(name" in str(UnknownService("openai"))


def test_of_many_names_the_first_eight_are_shown_and_the_rest_counted() -> None:
    message = str(UnknownTask("zzz", [f"task{number:02}" for number in range(50)]))
    assert "'task07' and 42 more." in message
    assert "'task08'" not in message


@pytest.mark.parametrize(("count", "are_all_shown"), [(8, True), (9, False)])
def test_eight_names_are_all_shown(count: int, are_all_shown: bool) -> None:
    names = [f"n{number}" for number in range(count)]
    assert ("1 more" not in str(UnknownTask("zzz", names))) is are_all_shown
    assert ("1 more" not in str(DependencyCycle(names))) is are_all_shown
    assert "0 more" not in str(DependencyCycle(names))


def test_an_unknown_option_without_a_near_name_lists_those_there_are() -> None:
    assert str(UnknownOption("zzz", ["rate", "concurrent"], "cue.service()")) == (
        "cue.service() has no option 'zzz'. It takes 'concurrent', 'rate'."
    )


def test_an_unknown_option_where_there_are_none_says_so() -> None:
    assert str(UnknownOption("zzz", [], "stop()")) == "stop() has no option 'zzz'. It takes none."


def test_a_full_queue_tells_its_numbers() -> None:
    error = QueueFull(pending=10, limit=10)
    assert "10 pending" in str(error)
    assert "reject_policy='block'" in str(error)
    assert (error.pending, error.limit, error.asked) == (10, 10, 1)


def test_a_batch_larger_than_the_queue_is_told_to_be_smaller() -> None:
    assert "smaller batches" in str(QueueFull(pending=0, limit=10, asked=11))
    assert "smaller batches" not in str(QueueFull(pending=1, limit=10, asked=10))


def test_a_cycle_is_shown_as_the_way_around() -> None:
    error = DependencyCycle(["a", "b", "a"])
    assert "'a' → 'b' → 'a'." in str(error)
    assert error.cycle == ("a", "b", "a")


def test_a_long_cycle_is_cut_in_the_message_and_whole_in_the_field() -> None:
    error = DependencyCycle([f"w{number}" for number in range(1000)])
    assert "'w7' → … (992 more)." in str(error)
    assert len(error.cycle) == 1000


def test_a_taken_id_a_taken_key_and_other_work_under_a_key_are_told_apart() -> None:
    assert "Unit 'w1' exists already" in str(DuplicateWork("w1"))
    assert "which is failed. Use on_failed='resubmit'" in str(DuplicateWork("w1", key="k", state="failed"))
    assert "which has other params" in str(DuplicateWork("w1", key="k", differs="other params"))


def test_a_closed_cue_names_what_was_tried() -> None:
    assert str(CueClosed("retry")).startswith("Cannot retry: this Cue is closed.")


def test_forgotten_work_names_the_option_that_keeps_more() -> None:
    assert "keep_finished" in str(WorkNotFound("w1", forgotten=True))
    assert "keep_finished" not in str(WorkNotFound("w1"))


def test_failed_work_is_shown_with_the_first_line_of_its_error_and_carried_whole() -> None:
    error = WorkFailed(WORK)
    assert str(error) == "Unit 'w1' (task 'extract') failed: ValueError: oops"
    assert error.work is WORK


def test_cancelled_and_timed_out_work_say_so() -> None:
    assert str(WorkCancelled(Work(id="w1", task="t"))) == "Unit 'w1' (task 't') was cancelled"
    assert "timed out" in str(WorkTimedOut(WORK))


def test_steering_exceptions_keep_what_they_were_given() -> None:
    limited = RateLimited(retry_after="12", service="openai")
    assert (limited.retry_after, limited.service) == ("12", "openai")
    assert str(limited) == "Service 'openai' asked to slow down, retry after '12'"
    assert str(RateLimited()) == "The service asked to slow down"
    assert (Snooze(30).after, str(Snooze(30))) == (30, "The handler asked to run again after 30 s")
    assert RetryLater(after="5m").after == "5m"
    assert str(RetryLater(1.5)) == "The handler asked for another attempt after 1.5 s"


# --- Quoting --------------------------------------------------------------------------------------


def test_short_text_is_quoted_whole() -> None:
    assert quoted("60/min") == "'60/min'"
    assert quoted("x" * 80) == repr("x" * 80)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 81,
        "x" * 1_000_000,
        "\x00" * 100,
        "\ud800" * 100,
        b"x" * 1000,
        ["x" * 1000] * 1000,
        10**5000,
        Rude(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_quoted_takes_at_most_82_printable_characters(value: object) -> None:
    assert len(quoted(value)) <= 82
    assert quoted(value).isprintable()


def test_cut_text_shows_its_beginning_and_that_it_was_cut() -> None:
    assert quoted("ab" + "x" * 100) == "'ab" + "x" * 77 + "…'"


def test_what_cannot_be_shown_is_named_by_its_type() -> None:
    assert quoted(Rude()).startswith("<Rude")
    assert quoted(10**5000).startswith("<int")


def test_line_breaks_and_escapes_of_a_repr_do_not_reach_the_message() -> None:
    assert quoted(Wordy()) == "first second [31m"


def test_a_value_of_ordinary_length_is_shown_whole() -> None:
    assert quoted(timedelta(days=1, seconds=3)) == "datetime.timedelta(days=1, seconds=3)"


# --- Suggestions ----------------------------------------------------------------------------------


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("extrct", ["upload", "extract", "extra"]) == " Did you mean 'extract'?"


@pytest.mark.parametrize("name", ["zzz", "", 5, None, "extract" * 100_000], ids=lambda name: repr(name)[:10])
def test_nothing_is_suggested_for_what_resembles_nothing(name: object) -> None:
    assert nearest(name, ["upload", "extract"]) == ""
