"""`runcue.map`: results in order, limits, failures, and loops that run already. It has a thread and real time."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import runcue
import runcue.api.batch


async def double(item: int) -> int:
    return 2 * item


def half(item: int) -> float:
    return item / 2


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runcue.api.batch, "GRACE", 0.1)


# -------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    "function", [double, lambda item: 2 * item, partial(double), partial(lambda two, item: two * item, 2)]
)
def test_results_come_in_the_order_of_the_items(function: Any) -> None:
    assert runcue.map(function, range(250), concurrent=50) == [2 * item for item in range(250)]


def test_results_are_in_order_whatever_ends_first() -> None:
    ended: list[int] = []
    last = threading.Event()

    def step(item: int) -> int:
        if item == 0:
            assert last.wait(240)
        ended.append(item)
        if item == 4:
            last.set()
        return item

    assert runcue.map(step, range(5), concurrent=5) == [0, 1, 2, 3, 4]
    assert ended.index(4) < ended.index(0)


def test_nothing_to_do_is_an_empty_list() -> None:
    assert runcue.map(double, []) == []


def test_plain_functions_run_in_other_threads() -> None:
    idents = runcue.map(lambda item: threading.get_ident(), range(3))
    assert threading.get_ident() not in idents


def test_a_loop_that_runs_in_the_calling_thread_is_no_hindrance() -> None:
    async def main() -> list[Any]:
        return runcue.map(double, [1, 2, 3])

    assert asyncio.run(main()) == [2, 4, 6]


def test_items_and_results_in_memory_may_be_anything() -> None:
    items = [object(), {1, 2}, lambda: None]
    assert all(a is b for a, b in zip(runcue.map(lambda item: item, items), items, strict=True))


def test_items_are_pulled_in_the_calling_thread(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "items.db")  # which objects to every other thread
    database.execute("create table items (number)")
    database.executemany("insert into items values (?)", [(number,) for number in range(300)])
    items = (row[0] for row in database.execute("select number from items order by number"))
    assert runcue.map(double, items) == [2 * number for number in range(300)]
    database.close()


def test_items_that_come_late_do_not_hold_up_those_before() -> None:
    has_run = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        assert has_run.wait(240)
        yield 2

    def step(item: int) -> int:
        has_run.set()
        return item

    assert runcue.map(step, items()) == [1, 2]


def test_functions_see_the_context_of_the_caller() -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    user.set("somebody")

    async def who(item: int) -> str:
        return user.get()

    assert runcue.map(who, [1]) == runcue.map(lambda item: user.get(), [1]) == ["somebody"]


def test_items_that_share_a_key_share_one_call() -> None:
    calls: list[str] = []

    def step(item: str) -> str:
        calls.append(item)
        return item.upper()

    assert runcue.map(step, ["a", "b", "a", "a"], key=str) == ["A", "B", "A", "A"]
    assert sorted(calls) == ["a", "b"]
    assert runcue.map(lambda item: item["n"], [{"n": 1}, {"n": 1}], key="n") == [1, 1]


# --------------------------------------------------------------------------------------------------- limits


def test_no_more_run_at_once_than_was_said() -> None:
    running = most = 0

    async def step(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    runcue.map(step, range(100), concurrent=3)
    assert most == 3
    runcue.map(step, range(100))
    assert most == 5


def test_more_may_run_at_once_than_a_window_usually_holds() -> None:
    running = 0
    full = asyncio.Event()

    async def step(item: int) -> None:
        nonlocal running
        running += 1
        if running == 1200:
            full.set()
        await full.wait()

    assert len(runcue.map(step, range(1200), concurrent=1200)) == 1200


def test_a_rate_is_kept_by_the_engine() -> None:
    with pytest.raises(runcue.InvalidRate):
        runcue.map(double, [1], rate="60/fortnight")
    assert runcue.map(double, range(10), rate="1000/s", concurrent=None) == list(range(0, 20, 2))


def test_failed_calls_are_tried_as_often_as_was_said() -> None:
    calls: list[int] = []

    def step(item: int) -> int:
        calls.append(item)
        if len(calls) < 3:
            raise OSError("again")
        return item

    retry = runcue.Retry(max_attempts=3, base_delay=0)
    assert runcue.map(step, [7], retry=retry) == [7]
    assert calls == [7, 7, 7]


# ------------------------------------------------------------------------------------------------- failures


def fail_at_three(item: int) -> int:
    if item == 3:
        raise ValueError("three")
    return item


def test_the_first_failure_is_raised_with_its_cause_and_its_item() -> None:
    with pytest.raises(runcue.WorkFailed, match=r"failed: ValueError: three") as caught:
        runcue.map(fail_at_three, range(10))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__notes__ == ["(raised for the item 3)"]
    assert caught.value.work.attempt == 1


def test_after_a_failure_nothing_more_is_started() -> None:
    calls: list[int] = []

    async def step(item: int) -> None:
        calls.append(item)
        if item == 3:
            raise ValueError("three")

    with pytest.raises(runcue.WorkFailed):
        runcue.map(step, iter(range(100_000)), concurrent=1)
    assert len(calls) < 5_000


def test_failures_take_their_places_among_the_results() -> None:
    results = runcue.map(fail_at_three, range(5), errors="return")
    assert isinstance(results[3], runcue.WorkFailed)
    assert isinstance(results[3].__cause__, ValueError)
    assert [results[place] for place in (0, 1, 2, 4)] == [0, 1, 2, 4]


def test_a_call_that_takes_too_long_has_timed_out() -> None:
    async def step(item: int) -> None:
        await asyncio.Event().wait()

    [result] = runcue.map(step, [1], timeout=0.01, errors="return")
    assert isinstance(result, runcue.WorkTimedOut)


def test_the_cause_is_that_of_the_last_attempt() -> None:
    calls: list[int] = []

    async def step(item: int) -> None:
        calls.append(item)
        if len(calls) == 1:
            raise ValueError("only the first time")
        await asyncio.Event().wait()

    retry = runcue.Retry(max_attempts=2, base_delay=0)
    [result] = runcue.map(step, [1], timeout=0.01, retry=retry, errors="return")
    assert isinstance(result, runcue.WorkTimedOut)
    assert result.__cause__ is None


def test_a_function_that_cannot_be_stopped_does_not_keep_a_failure_from_being_raised() -> None:
    release = threading.Event()
    begun = threading.Event()

    def step(item: int) -> None:
        if item == 0:
            begun.set()
            release.wait(240)
        begun.wait(240)
        raise ValueError("no")

    with pytest.raises(runcue.WorkFailed):
        runcue.map(step, [0, 1], concurrent=2)
    release.set()


def test_an_error_in_the_items_is_raised_as_it_is() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("nobody knows")

    with pytest.raises(LookupError, match="nobody knows"):
        runcue.map(double, items())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((5, []), {}, "map() calls a function with each item, which 5 does not take."),
        ((lambda: None, []), {}, "map() calls a function with each item, which "),
        ((lambda item: (yield), []), {}, "yields, so that calling it does nothing. Return the result."),
        ((double, "text"), {}, "Invalid items: 'text'. Expected an iterable of items."),
        ((double, {"a": 1}), {}, "Invalid items: "),
        ((double, 5), {}, "Invalid items: 5"),
        ((double, []), {"errors": "ignore"}, "Invalid errors: 'ignore'. Expected one of 'raise', 'return'."),
        ((double, []), {"concurrent": 0}, "Invalid concurrent: 0"),
        ((double, []), {"retry": "often"}, "Invalid retry"),
        ((double, []), {"key": 5}, "Invalid key: 5"),
        ((double, []), {"store": "queue.db"}, "store='queue.db' needs a key="),
        ((double, []), {"store": "mysql://host/db"}, "Cannot open "),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(runcue.ConfigError) as caught:
        runcue.map(*arguments, **options)
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------------ with a file


def test_a_second_run_calls_only_for_what_is_new(tmp_path: Path) -> None:
    calls: list[int] = []

    def step(item: int) -> int:
        calls.append(item)
        return item * item

    for count in (3, 5, 5):
        assert runcue.map(step, range(count), store=tmp_path / "queue.db", key=str) == [
            number * number for number in range(count)
        ]
    assert sorted(calls) == [0, 1, 2, 3, 4]


def test_a_second_run_tries_what_failed_again(tmp_path: Path) -> None:
    is_broken = True

    def step(item: int) -> int:
        if is_broken and item == 1:
            raise ValueError("no")
        return item

    path = tmp_path / "queue.db"
    first = runcue.map(step, range(3), store=path, key=str, errors="return")
    is_broken = False
    assert isinstance(first[1], runcue.WorkFailed)
    assert runcue.map(step, range(3), store=path, key=str) == [0, 1, 2]


def test_a_result_that_a_file_cannot_keep_is_a_failure_that_says_so(tmp_path: Path) -> None:
    calls: list[int] = []

    def step(item: int) -> object:
        calls.append(item)
        return object()

    with pytest.raises(runcue.WorkFailed, match="its result cannot be kept: result is of type object"):
        runcue.map(step, [1], store=tmp_path / "queue.db", key=str, retry=3)
    assert calls == [1]


def test_an_item_that_a_file_cannot_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(runcue.InvalidParams, match=r"^items\[1\]: params\.item"):
        runcue.map(
            str, [1, object()], store=tmp_path / "queue.db", key=lambda item: "a" if item == 1 else "b"
        )


def test_the_same_key_for_another_item_is_refused(tmp_path: Path) -> None:
    runcue.map(double, [1], store=tmp_path / "queue.db", key=lambda item: "same")
    with pytest.raises(runcue.DuplicateWork):
        runcue.map(double, [2], store=tmp_path / "queue.db", key=lambda item: "same")


@pytest.mark.parametrize("key", [lambda item: None, lambda item: "", "n"])
def test_a_key_has_to_be_text(key: Any) -> None:
    with pytest.raises(runcue.SubmitError):
        runcue.map(double, [1], key=key)


# ------------------------------------------------------------------------------------------------- progress


def test_progress_is_one_line_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    runcue.map(double, range(20), progress=True)
    assert capsys.readouterr().err.startswith("20/20 done in 0:0")


def test_progress_counts_what_was_done_before_and_what_shares_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "queue.db"
    runcue.map(double, range(3), store=path, key=str)
    runcue.map(double, [0, 1, 2, 2, 3], store=path, key=str, progress=True)
    assert capsys.readouterr().err.startswith("4/4 done in ")


def test_progress_tells_failures(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "runcue")
    runcue.map(fail_at_three, iter(range(5)), progress=True, errors="return")
    assert capsys.readouterr().err.startswith("5 done, 1 failed in ")
