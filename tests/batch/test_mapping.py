"""`cue.map`: one work for each item, at most a window ahead, and what is done is not done again."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.testing import settle

PATIENCE = 240.0
"""Real seconds after which a thread gives up on what should have come at once."""


def echo(cue: Cue) -> list[Any]:
    """Register a task that returns its item; the items it was called with."""
    calls: list[Any] = []

    @cue.task("echo")
    async def handler(work: Work) -> Any:
        calls.append(work.params["item"])
        return work.params["item"]

    return calls


async def results(works: AsyncIterator[Work]) -> list[Any]:
    return [work.result async for work in works]


async def asynchronous(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


# ------------------------------------------------------------------------------------------ items and works


async def test_every_item_becomes_a_work_that_comes_when_it_has_ended(cue: Cue) -> None:
    echo(cue)
    async with cue:
        works = [work async for work in cue.map("echo", range(5))]
    assert sorted(work.result for work in works) == [0, 1, 2, 3, 4]
    assert {work.state for work in works} == {WorkState.COMPLETED}
    assert (await cue.count())[WorkState.COMPLETED] == 5


async def test_works_come_in_the_order_in_which_they_end(cue: Cue) -> None:
    gate = asyncio.Event()

    @cue.task
    async def step(work: Work) -> None:
        if work.params["item"] == "slow":
            await gate.wait()

    seen = []
    async with cue:
        async for work in cue.map(step, ["slow", "quick"]):
            seen.append(work.params["item"])
            gate.set()
    assert seen == ["quick", "slow"]


async def test_no_items_are_no_works(cue: Cue) -> None:
    echo(cue)
    async with cue:
        assert await results(cue.map("echo", [])) == []
        assert await results(cue.map("echo", iter([]))) == []
        assert await results(cue.map("echo", asynchronous([]))) == []


async def test_a_dict_is_taken_for_params_and_all_else_is_their_item(cue: Cue) -> None:
    @cue.task
    async def step(work: Work) -> dict[str, Any]:
        return work.params

    async with cue:
        assert await results(cue.map(step, [{"page": 1}])) == [{"page": 1}]
        assert await results(cue.map(step, ["a.png"])) == [{"item": "a.png"}]
        assert await results(cue.map(step, [7], params=lambda item: {"page": item})) == [{"page": 7}]


async def test_failed_work_comes_like_any_other(cue: Cue) -> None:
    @cue.task
    async def step(work: Work) -> None:
        raise ValueError("no")

    async with cue:
        [work] = [work async for work in cue.map(step, [1])]
    assert (work.state, work.error) == (WorkState.FAILED, "ValueError: no")


async def test_limits_hold_for_a_map(cue: Cue) -> None:
    cue.service("api", rate="1/s")
    cue.task("step", uses="api")(lambda work: None)
    loop = asyncio.get_running_loop()
    async with cue:
        began = loop.time()
        assert len(await results(cue.map("step", range(5)))) == 5
        assert 4.0 <= loop.time() - began < 5.0


@pytest.mark.parametrize("kind", ["list", "generator", "async generator"])
async def test_many_more_items_than_the_window_get_through(cue: Cue, kind: str) -> None:
    echo(cue)
    items: Any = {
        "list": list(range(300)),
        "generator": iter(range(300)),
        "async generator": asynchronous(range(300)),
    }[kind]
    async with cue:
        assert sorted(await results(cue.map("echo", items, window=7))) == list(range(300))


# ---------------------------------------------------------------------------------------------- the window


@pytest.mark.parametrize("is_async", [False, True])
async def test_no_more_than_the_window_is_pulled_while_nothing_ends(cue: Cue, is_async: bool) -> None:
    gate = asyncio.Event()
    pulled: list[int] = []

    @cue.task
    async def step(work: Work) -> None:
        await gate.wait()

    def numbers() -> Iterator[int]:
        for number in range(50):
            pulled.append(number)
            yield number

    async with cue:
        items = asynchronous(numbers()) if is_async else numbers()
        reading = asyncio.create_task(results(cue.map(step, items, window=8)))
        await settle()
        assert len(pulled) == 8
        counts = await cue.count()
        assert counts[WorkState.PENDING] + counts[WorkState.RUNNING] == 8
        gate.set()
        assert len(await reading) == 50


async def test_a_slow_reader_is_never_more_than_the_window_behind(cue: Cue) -> None:
    echo(cue)
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(60):
            pulled.append(number)
            yield number

    ahead, read = [], 0
    async with cue:
        async for _ in cue.map("echo", numbers(), window=10):
            read += 1
            await settle()  # everything that can happen happens before the next is read
            ahead.append(len(pulled) - read)
    assert read == 60
    assert max(ahead) <= 10


async def test_work_is_submitted_while_a_slow_reader_still_has_some_to_read(cue: Cue) -> None:
    calls = echo(cue)
    async with cue:
        works = cue.map("echo", range(100), window=20)
        for _ in range(10):
            await anext(works)
            await settle()
        assert len(calls) > 20


async def test_a_generator_that_blocks_does_not_hold_up_the_loop(cue: Cue) -> None:
    has_run = threading.Event()

    @cue.task
    async def step(work: Work) -> None:
        has_run.set()

    def numbers() -> Iterator[int]:
        yield 1
        assert has_run.wait(PATIENCE)  # the first work runs while this one waits
        yield 2

    async with cue:
        assert len(await results(cue.map(step, numbers()))) == 2


async def test_all_items_are_pulled_in_one_thread(cue: Cue) -> None:
    echo(cue)
    threads: set[int] = set()

    def numbers() -> Iterator[int]:
        for number in range(40):
            threads.add(threading.get_ident())
            yield number

    async with cue:
        await results(cue.map("echo", numbers(), window=3))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_async_iterable_that_waits_does_not_hold_up_what_came_before(cue: Cue) -> None:
    echo(cue)
    gate = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await gate.wait()
        yield 2

    seen = []
    async with cue:
        async for work in cue.map("echo", numbers()):
            seen.append(work.result)
            gate.set()
    assert seen == [1, 2]


@pytest.mark.parametrize("policy", ["reject", "block", "drop_oldest"])
async def test_a_full_queue_narrows_the_window(path: Path | None, policy: str) -> None:
    cue = Cue(path, max_queued=5, reject_policy=policy)
    echo(cue)
    async with cue:
        works = [work async for work in cue.map("echo", range(40))]
    assert sorted(work.result for work in works) == list(range(40))
    await cue.close()


# ----------------------------------------------------------------------------------------------------- keys


async def test_what_is_done_comes_from_the_store_without_being_done_again(cue: Cue) -> None:
    calls = echo(cue)
    async with cue:
        first = await results(cue.map("echo", range(6), key=str))
        second = await results(cue.map("echo", range(9), key=str))
    assert sorted(first) == list(range(6))
    assert sorted(second) == list(range(9))
    assert sorted(calls) == list(range(9))


async def test_another_cue_on_the_same_file_resumes(tmp_path: Path) -> None:
    calls = []
    for count in (4, 7):
        cue = Cue(tmp_path / "queue.db")
        calls.append(echo(cue))
        async with cue:
            assert sorted(await results(cue.map("echo", range(count), key="item"))) == list(range(count))
        await cue.close()
    assert [sorted(one) for one in calls] == [[0, 1, 2, 3], [4, 5, 6]]


async def test_what_failed_is_tried_again_by_the_next_map(cue: Cue) -> None:
    is_broken = True

    @cue.task
    async def step(work: Work) -> int:
        if is_broken and work.params["item"] == 1:
            raise ValueError("no")
        return int(work.params["item"])

    async with cue:
        states = [work.state.value async for work in cue.map(step, [0, 1], key=str)]
        is_broken = False
        again = [work.state.value async for work in cue.map(step, [0, 1], key=str)]
    assert sorted(states) == ["completed", "failed"]
    assert again == ["completed", "completed"]


async def test_work_of_the_same_key_that_is_under_way_is_waited_for(cue: Cue) -> None:
    calls = echo(cue)
    await cue.submit("echo", params={"item": "a"}, idempotency_key="a")
    reading = asyncio.create_task(results(cue.map("echo", ["a"], key="item")))
    await settle()
    async with cue:
        assert await reading == ["a"]
    assert calls == ["a"]


async def test_items_that_share_a_key_share_a_work_that_comes_for_each(cue: Cue) -> None:
    calls = echo(cue)
    async with cue:
        together = [work async for work in cue.map("echo", ["a", "b", "a"], key="item")]
        apart = [work async for work in cue.map("echo", ["c", "d", "c"], key="item", window=1)]
    assert sorted(work.result for work in together) == ["a", "a", "b"]
    assert [work.result for work in apart] == ["c", "d", "c"]
    assert sorted(calls) == ["a", "b", "c", "d"]
    assert len({work.id for work in together}) == 2


@pytest.mark.parametrize(
    ("key", "text"), [("page", "7"), (lambda item: f"page-{item['page']}", "page-7"), (len, "1")]
)
async def test_a_key_is_a_param_or_a_function_of_the_item(cue: Cue, key: Any, text: str) -> None:
    cue.task("step")(lambda work: None)
    async with cue:
        [work] = [work async for work in cue.map("step", [{"page": 7}], key=key)]
    assert work.idempotency_key == text


async def test_work_does_not_wait_for_itself(cue: Cue) -> None:
    @cue.task
    async def step(work: Work) -> None:
        async for _ in cue.map(step, [1], key=str):
            pass

    async with cue:
        [work] = [work async for work in cue.map(step, [1], key=str)]
    assert work.error is not None
    assert "waits for itself" in work.error


# --------------------------------------------------------------------------------------------- leaving early


async def test_leaving_early_cancels_nothing_and_submits_no_more(cue: Cue) -> None:
    calls = echo(cue)
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            pulled.append(number)
            yield number

    async with cue:
        async for _ in cue.map("echo", numbers(), window=10):
            break
        await settle()
        accepted = sum((await cue.count()).values())
        await cue.join()
        counts = await cue.count()
    assert 1 <= accepted <= 11
    assert counts[WorkState.COMPLETED] == accepted == len(calls)
    assert len(pulled) <= 11


async def test_whoever_leaves_is_waited_for_no_more(cue: Cue) -> None:
    gate = asyncio.Event()

    @cue.task
    async def step(work: Work) -> None:
        if work.params["item"]:
            await gate.wait()

    async with cue:
        works = cue.map(step, [0, 1, 2])
        assert cue._system is not None
        listeners = list(cue._system.bus.listeners)
        async for _ in works:
            break
        await works.aclose()  # type: ignore[attr-defined]  # (it is a generator, as any async iterator may be)
        await settle()
        assert not cue._system.engine.waiters
        assert cue._system.bus.listeners == listeners
        gate.set()


async def test_whoever_leaves_lets_go_of_what_pulls_the_items(cue: Cue) -> None:
    async def without_end() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    echo(cue)
    async with cue:
        async for _ in cue.map("echo", iter(range(9)), window=2):
            break
        async for _ in cue.map("echo", without_end()):
            break
        await settle()
    assert "runcue items" not in [task.get_name() for task in asyncio.all_tasks()]
    until_pulled()


async def test_a_generator_that_blocks_when_its_reader_leaves_is_asked_no_more(cue: Cue) -> None:
    go = threading.Event()
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(50):
            pulled.append(number)
            yield number
            assert go.wait(PATIENCE)

    echo(cue)
    async with cue:
        works = cue.map("echo", numbers())
        await anext(works)
        await works.aclose()  # type: ignore[attr-defined]  # (it is a generator, as any async iterator may be)
        go.set()
        until_pulled()
    assert pulled in ([0], [0, 1])  # whether the thread was waiting for the second already


def until_pulled() -> None:
    """Wait until nothing is pulled in a thread any more."""
    for thread in threading.enumerate():
        if thread.name == "runcue items":
            thread.join(PATIENCE)
            assert not thread.is_alive()


async def test_a_reader_that_is_cancelled_leaves_what_it_submitted(cue: Cue) -> None:
    gate = asyncio.Event()

    @cue.task
    async def step(work: Work) -> None:
        await gate.wait()

    async with cue:
        reading = asyncio.create_task(results(cue.map(step, range(3))))
        await settle()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        gate.set()
        await cue.join()
        assert (await cue.count())[WorkState.COMPLETED] == 3


# --------------------------------------------------------------------------------------------------- errors


def failing(items: Iterable[Any], error: Exception) -> Iterator[Any]:
    yield from items
    raise error


async def until_error(works: AsyncIterator[Work]) -> tuple[list[Any], Exception]:
    """What came, and what was raised in the end."""
    seen = []
    try:
        async for work in works:
            seen.append(work.result)  # noqa: PERF401 (what came before the error counts)
    except Exception as error:  # noqa: BLE001 (that is what is asked for)
        return sorted(seen), error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_in_the_items_is_raised_after_the_items_before_it(cue: Cue, is_async: bool) -> None:
    echo(cue)
    items: Any = failing(range(5), OSError("gone"))
    async with cue:
        seen, error = await until_error(cue.map("echo", asynchronous(items) if is_async else items, window=2))
    assert seen == [0, 1, 2, 3, 4]
    assert isinstance(error, OSError)


async def test_an_iterable_that_cannot_even_begin_raises_its_error(cue: Cue) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("closed")

    echo(cue)
    async with cue:
        with pytest.raises(OSError, match="closed"):
            await results(cue.map("echo", Broken()))


@pytest.mark.parametrize("option", ["params", "key"])
async def test_an_error_in_params_or_key_is_raised_at_its_item(cue: Cue, option: str) -> None:
    def function(item: int) -> Any:
        if item == 3:
            raise LookupError("nobody knows")
        return {"item": item} if option == "params" else str(item)

    calls = echo(cue)
    async with cue:
        seen, error = await until_error(cue.map("echo", range(9), **{option: function}))  # type: ignore[arg-type]
    assert seen == sorted(calls) == [0, 1, 2]
    assert isinstance(error, LookupError)
    assert error.__notes__ == ["(raised for items[3] of a map)"]


async def test_params_that_are_refused_are_told_with_their_place(cue: Cue) -> None:
    calls = echo(cue)
    async with cue:
        seen, error = await until_error(cue.map("echo", [0, 1, {1, 2}, 3], window=2))
    assert seen == sorted(calls) == [0, 1]
    assert isinstance(error, runcue.InvalidParams)
    assert str(error).startswith("items[2]: ")


async def test_the_first_of_several_mistakes_is_the_one_that_is_told(cue: Cue) -> None:
    def key(item: Any) -> Any:
        return None if item is None else "a"

    echo(cue)
    async with cue:
        seen, error = await until_error(cue.map("echo", [0, object(), None], key=key))
    assert seen == [0]
    assert str(error).startswith("items[1]: ")


async def test_a_key_that_belongs_to_other_work_is_told_with_its_place(cue: Cue) -> None:
    echo(cue)
    await cue.submit("echo", params={"item": "other"}, idempotency_key="2")
    async with cue:
        seen, error = await until_error(cue.map("echo", range(5), key=str))
    assert seen == [0, 1]
    assert isinstance(error, runcue.DuplicateWork)
    assert str(error).startswith("items[2]: Idempotency key '2' belongs to unit ")


@pytest.mark.parametrize("item", [{"page": None}, {"page": True}, {"page": 1.5}, {}, "text"])
async def test_a_key_is_text_or_a_whole_number(cue: Cue, item: Any) -> None:
    cue.task("step")(lambda work: None)
    async with cue:
        with pytest.raises(runcue.SubmitError, match=r"^items\[0\]: params\['page'\], which is the key, is "):
            await results(cue.map("step", [item], key="page"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "Invalid window: 0"),
        ({"window": True}, "Invalid window: True"),
        ({"key": 5}, "Invalid key: 5. Expected a plain function of an item, or the name of a param"),
        ({"params": "page"}, "Invalid params: 'page'. Expected a plain function of an item."),
        ({"params": asyncio.sleep}, "Invalid params: "),
        ({"items": "text"}, "Invalid items: 'text'. Expected an iterable of items, plain or async."),
        ({"items": {"a": 1}}, "Invalid items: "),
        ({"items": None}, "Invalid items: None"),
        ({"task": "ehco"}, "Unknown task type: 'ehco'"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(cue: Cue, options: dict[str, Any], message: str) -> None:
    echo(cue)
    with pytest.raises(runcue.ConfigError) as caught:
        cue.map(**{"task": "echo", "items": [1], **options})
    assert str(caught.value).startswith(message)
    assert sum((await cue.count()).values()) == 0


# --------------------------------------------------------------------------------- a Cue that does not run


async def test_a_cue_that_is_not_started_accepts_a_window_and_waits(cue: Cue) -> None:
    echo(cue)
    reading = asyncio.create_task(results(cue.map("echo", range(20), window=4)))
    await settle()
    assert (await cue.count())[WorkState.PENDING] == 4
    assert not reading.done()
    async with cue:
        assert sorted(await reading) == list(range(20))


async def test_what_another_process_ends_is_heard_of(tmp_path: Path) -> None:
    here, there = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    echo(here)
    calls = echo(there)
    there.start()
    assert sorted(await results(here.map("echo", range(20), window=4))) == list(range(20))
    assert sorted(calls) == list(range(20))
    await here.close()
    await there.close()


async def test_closing_the_cue_ends_a_map_that_waits(cue: Cue) -> None:
    echo(cue)
    reading = asyncio.create_task(results(cue.map("echo", range(20), window=4)))
    await settle()
    await cue.close()
    with pytest.raises(runcue.CueClosed):
        await reading
