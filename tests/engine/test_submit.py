"""What submit takes, what it refuses, and that a refusal changes nothing."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.testing import settle
from tests.engine.seen import clock, epoch, virtual
from tests.handlers import no_op, taking


def made() -> Cue:
    """A Cue with one task that gives back its params."""
    cue = Cue()
    cue.service("api", concurrent=2)

    @cue.task("echo", uses="api")
    async def echo(work: Work) -> dict[str, Any]:
        return work.params

    return cue


async def total(cue: Cue) -> int:
    """How much work there is, in whatever state."""
    return sum((await cue.count()).values())


async def known(cue: Cue, work_id: str) -> Work:
    work = await cue.get(work_id)
    assert work is not None
    return work


# --- Every argument -------------------------------------------------------------------------------


async def test_the_fields_of_new_work_have_their_defaults() -> None:
    cue = made()
    work = await known(cue, await cue.submit("echo"))
    assert work == Work(
        id=work.id, task="echo", created_at=epoch(), services=("api",), state=WorkState.PENDING, attempt=1
    )


async def test_every_argument_is_kept_as_submitted() -> None:
    cue = made()
    await cue.submit("echo", id="before")
    work_id = await cue.submit(
        "echo",
        params={"page": 1},
        target="out/1.txt",
        queue="bulk",
        depends_on=["before"],
        timeout="90s",
        dependency_timeout=timedelta(minutes=5),
        idempotency_key="page-1",
        on_failed="reject",
        id="page-1",
        priority=2.5,
        run_at=epoch() + 60,
    )
    work = await known(cue, work_id)
    assert (work.id, work.params, work.target, work.queue) == ("page-1", {"page": 1}, "out/1.txt", "bulk")
    assert (work.depends_on, work.timeout, work.dependency_timeout) == (("before",), 90, 300)
    assert (work.idempotency_key, work.priority, work.run_at) == ("page-1", 2.5, epoch() + 60)


async def test_a_handler_sees_what_was_submitted() -> None:
    cue = Cue()
    seen: list[tuple[Any, ...]] = []

    @cue.task("look")
    async def look(work: Work) -> None:
        seen.append((work.id, work.task, work.params, work.target, work.queue, work.state, work.attempt))

    async with cue:
        await cue.submit("look", id="a", params={"x": [1, {"y": None}]}, target="t", queue="q")
        await cue.join()
    assert seen == [("a", "look", {"x": [1, {"y": None}]}, "t", "q", "running", 1)]


async def test_params_are_copied() -> None:
    cue = made()
    params = {"pages": [1]}
    work_id = await cue.submit("echo", params=params)
    params["pages"].append(2)
    assert (await known(cue, work_id)).params == {"pages": [1]}


async def test_what_get_gives_cannot_change_the_work() -> None:
    cue = made()
    work_id = await cue.submit("echo", params={"pages": [1]})
    (await known(cue, work_id)).params["pages"].append(2)
    assert (await known(cue, work_id)).params == {"pages": [1]}


async def test_a_target_may_be_a_path() -> None:
    cue = made()
    work = await known(cue, await cue.submit("echo", target=Path("out") / "a.txt"))
    assert work.target == str(Path("out/a.txt"))


async def test_the_task_may_be_its_function() -> None:
    cue = Cue()

    @cue.task
    async def extract(work: Work) -> str:
        return "done"

    async with cue:
        work = await cue.wait(await cue.submit(extract))
    assert (work.task, work.result) == ("extract", "done")


async def test_run_at_may_be_an_aware_datetime() -> None:
    cue = made()
    moment = datetime.fromtimestamp(epoch(), UTC) + timedelta(hours=1)
    async with cue:
        work = await cue.wait(await cue.submit("echo", run_at=moment))
    assert (clock(), work.run_at) == (3600, epoch())


@pytest.mark.parametrize("delay", [90, "90s", "1.5m", timedelta(seconds=90)])
async def test_a_delay_takes_every_form_of_duration(delay: Any) -> None:
    cue = made()
    async with cue:
        await cue.wait(await cue.submit("echo", delay=delay))
    assert clock() == pytest.approx(90)


@pytest.mark.memory
async def test_submit_returns_without_yielding_in_memory() -> None:
    cue = made()
    ran: list[str] = []
    other = asyncio.get_running_loop().call_soon(ran.append, "something else")
    await cue.submit("echo")
    await cue.submit_many([{"task": "echo"}, {"task": "echo"}])
    assert ran == []
    other.cancel()


# --- Ids ------------------------------------------------------------------------------------------


async def test_made_ids_are_unique_and_sort_by_time() -> None:
    cue = made()
    ids = []
    for _ in range(20):
        ids += [await cue.submit("echo") for _ in range(5)]
        await asyncio.sleep(0.01)
    assert ids == sorted(set(ids))


async def test_a_given_id_is_kept() -> None:
    cue = made()
    assert await cue.submit("echo", id="página 1/2") == "página 1/2"


async def test_an_id_is_taken_whatever_became_of_its_work() -> None:
    cue = made()
    await cue.submit("echo", id="a")
    with pytest.raises(runcue.DuplicateWork, match="'a' exists already"):
        await cue.submit("echo", id="a")
    async with cue:
        await cue.wait("a")
    with pytest.raises(runcue.DuplicateWork):
        await cue.submit("echo", id="a")
    assert await total(cue) == 1


@pytest.mark.memory
async def test_the_id_of_forgotten_work_stays_taken() -> None:
    cue = Cue(keep_finished=0)
    cue.task("noop")(no_op)
    async with cue:
        await cue.submit("noop", id="a")
        await cue.join()
        assert await cue.get("a") is None
        with pytest.raises(runcue.DuplicateWork):
            await cue.submit("noop", id="a")


@pytest.mark.parametrize("work_id", ["", "x" * 129, "a\nb", "a\0", 5, b"a", True])
async def test_an_id_of_another_form_is_refused(work_id: Any) -> None:
    cue = made()
    with pytest.raises(runcue.SubmitError, match="Invalid id"):
        await cue.submit("echo", id=work_id)
    assert await total(cue) == 0


# --- Refusals change nothing ----------------------------------------------------------------------


async def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    cue = made()
    with pytest.raises(ValueError, match=r"Unknown task type: 'ecoh'.*Did you mean 'echo'"):
        await cue.submit("ecoh")
    assert await total(cue) == 0


async def test_a_submission_needs_a_task() -> None:
    cue = made()
    with pytest.raises(runcue.SubmitError, match="needs a task"):
        await cue.submit()


BAD_PARAMS = {
    "not a dict": [1],
    "bytes": {"a": b"x"},
    "a set": {"a": {1}},
    "NaN": {"a": float("nan")},
    "infinity": {"a": float("inf")},
    "a number of 70 bits": {"a": 2**70},
    "a lone surrogate": {"a": "\ud800"},
    "keys that are no text": {1: "a"},
    "an object": {"a": object()},
}


@pytest.mark.parametrize("params", BAD_PARAMS.values(), ids=BAD_PARAMS.keys())
async def test_params_that_are_no_json_are_refused(params: Any) -> None:
    cue = made()
    with pytest.raises(runcue.InvalidParams):
        await cue.submit("echo", params=params)
    assert await total(cue) == 0


async def test_params_that_contain_themselves_or_are_too_deep_are_refused() -> None:
    cue = made()
    ring: dict[str, Any] = {}
    ring["self"] = ring
    deep: Any = 1
    for _ in range(101):
        deep = [deep]
    for params in (ring, {"deep": deep}):
        with pytest.raises(runcue.InvalidParams, match="100 deep"):
            await cue.submit("echo", params=params)
    assert await total(cue) == 0


async def test_params_larger_than_allowed_are_refused() -> None:
    cue = Cue(max_params=100)
    cue.task("noop")(no_op)
    await cue.submit("noop", params={"text": "x" * 80})
    with pytest.raises(runcue.InvalidParams, match="max_params=100"):
        await cue.submit("noop", params={"text": "x" * 100})
    assert await total(cue) == 1


BAD_OPTIONS: list[tuple[str, Any]] = [
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", "soon"),
    ("dependency_timeout", float("nan")),
    ("idempotency_key", ""),
    ("idempotency_key", "x" * 513),
    ("on_failed", "explode"),
    ("priority", "high"),
    ("priority", float("inf")),
    ("priority", True),
    ("run_at", "tomorrow"),
    ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 (a datetime without a zone is the mistake)
    ("run_at", -1),
    ("delay", -1),
    ("delay", float("inf")),
    ("queue", ""),
    ("queue", 5),
    ("target", 5),
    ("depends_on", 5),
    ("depends_on", [5]),
    ("depends_on", {"a": 1}),
    ("colour", "red"),
]


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS)
async def test_a_bad_option_is_refused_by_name_and_nothing_is_queued(option: str, value: Any) -> None:
    cue = made()
    with pytest.raises(ValueError, match=option):
        await cue.submit("echo", **{option: value})
    assert await total(cue) == 0


async def test_run_at_and_delay_exclude_each_other() -> None:
    cue = made()
    with pytest.raises(runcue.SubmitError, match="run_at and delay"):
        await cue.submit("echo", run_at=epoch(), delay=1)


async def test_a_run_at_in_the_past_means_now() -> None:
    cue = made()
    async with cue:
        await cue.wait(await cue.submit("echo", run_at=epoch() - 1000))
    assert clock() == 0


# --- Older spellings ------------------------------------------------------------------------------


async def test_older_spellings_mean_the_same() -> None:
    cue = Cue()
    cue.service("api", rate_limit=2, rate_window=10, max_concurrent=1)
    times: list[float] = []

    @cue.task("old", services=["api"])
    async def old(work: Work) -> str:
        times.append(clock())
        return f"{work.task_type} {work.attempt_count}"

    async with cue:
        ids = [await cue.submit(task_type="old") for _ in range(3)]
        await cue.join()
    assert times == [0, 0, 10]
    work = await known(cue, ids[0])
    assert (work.result, work.task_type, work.last_error) == ("old 1", "old", None)
    assert cue.get_task("old").service == "api"


async def test_the_same_thing_said_twice_must_agree() -> None:
    cue = made()
    cue.task("other")(no_op)
    assert await cue.submit("echo", task_type="echo")
    with pytest.raises(ValueError, match="mean the same"):
        await cue.submit("echo", task_type="other")
    assert await total(cue) == 1


async def test_queued_is_the_older_name_of_pending() -> None:
    cue = made()
    work_id = await cue.submit("echo")
    assert [work.id for work in await cue.list(state="queued")] == [work_id]
    assert WorkState("queued") is WorkState.PENDING
    assert WorkState.QUEUED is WorkState.PENDING
    assert (await known(cue, work_id)).state.value == "pending"


async def test_services_may_be_declared_after_the_task_that_names_them_in_the_older_way() -> None:
    cue = Cue()
    cue.task("late", services=["api"])(no_op)
    with pytest.raises(ValueError, match="Unknown service: 'api'"):
        await cue.submit("late")
    cue.service("api", concurrent=1)
    assert await cue.submit("late")


# --- Idempotency ----------------------------------------------------------------------------------


async def test_a_key_in_use_gives_back_the_id_and_queues_nothing() -> None:
    cue = made()
    first = await cue.submit("echo", params={"a": 1}, idempotency_key="k")
    assert await cue.submit("echo", params={"a": 1}, idempotency_key="k") == first
    async with cue:
        await settle()
        assert await cue.submit("echo", params={"a": 1}, idempotency_key="k") == first
        await cue.join()
    assert await cue.submit("echo", params={"a": 1}, idempotency_key="k") == first
    assert await total(cue) == 1


async def test_a_key_is_still_in_use_while_its_work_runs() -> None:
    cue = Cue()
    cue.task("slow")(taking(10))
    async with cue:
        first = await cue.submit("slow", idempotency_key="k")
        await asyncio.sleep(5)
        assert await cue.submit("slow", idempotency_key="k") == first


@pytest.mark.parametrize("other", [{"params": {"a": 2}}, {"task": "other", "params": {"a": 1}}])
async def test_a_key_with_another_task_or_other_params_is_refused(other: dict[str, Any]) -> None:
    cue = made()
    cue.task("other")(no_op)
    await cue.submit("echo", params={"a": 1}, idempotency_key="k")
    with pytest.raises(runcue.DuplicateWork, match="'k'"):
        await cue.submit(**{"task": "echo", "idempotency_key": "k", **other})
    assert await total(cue) == 1


@pytest.mark.memory
@pytest.mark.parametrize(
    ("misplaced", "advice"),
    [
        (({"page": 1},), r"submit\('echo', params=\{'page': 1\}\)"),
        (("page", 1), r"submit\('echo', params=\{…\}\)"),
    ],
)
@pytest.mark.parametrize("is_function", [False, True])
async def test_params_that_are_given_by_position_are_refused_with_the_right_call(
    misplaced: tuple[Any, ...], advice: str, is_function: bool
) -> None:
    cue = Cue()

    @cue.task("echo")
    async def echo(work: Work) -> None: ...

    with pytest.raises(runcue.SubmitError, match=advice.replace("'echo'", "echo") if is_function else advice):
        await cue.submit(echo if is_function else "echo", *misplaced)
    async with cue:
        with pytest.raises(runcue.SubmitError, match="params="):
            await asyncio.to_thread(cue.sync.submit, "echo", *misplaced)
    assert await total(cue) == 0


@pytest.mark.memory
async def test_a_tuple_among_many_is_refused_with_the_right_form() -> None:
    cue = made()
    with pytest.raises(runcue.SubmitError, match=r"items\[0\]: .*\{'task': 'echo', 'params': \{…\}\}"):
        await cue.submit_many([("echo", {"page": 1})])  # type: ignore[arg-type]


async def test_a_key_with_other_dependencies_is_refused_one_by_one_and_among_many() -> None:
    cue = made()
    await cue.submit("echo", id="a")
    await cue.submit("echo", idempotency_key="k", depends_on=["a"])
    with pytest.raises(runcue.DuplicateWork, match="other depends_on"):
        await cue.submit("echo", idempotency_key="k")
    with pytest.raises(runcue.DuplicateWork, match="other depends_on"):
        await cue.submit_many([{"task": "echo"}, {"task": "echo", "idempotency_key": "k", "depends_on": "b"}])
    assert await total(cue) == 2


async def test_a_run_that_is_repeated_gets_the_same_work_whatever_became_of_its_dependencies(
    store: str,
) -> None:
    cue = Cue(keep_finished=3) if store == "memory" else Cue(retention="1d")

    @cue.task("echo")
    async def echo(work: Work) -> None:
        if work.params.get("fails"):
            raise ValueError("no")

    async def run() -> list[str]:
        after = ["done", "lost", "done"]
        return [
            await cue.submit("echo", idempotency_key="k", depends_on=after, on_failed="return"),
            await cue.submit("echo", idempotency_key="l", depends_on=["done"]),
        ]

    await cue.submit("echo", id="done")
    await cue.submit("echo", id="lost", params={"fails": True})
    first = await run()
    async with cue:
        await cue.join()
        assert await run() == first
        await cue.purge("lost")
        if store == "memory":
            await cue.submit("echo")
            await cue.join()
            assert await cue.get("done") is None
        assert await run() == first


async def test_the_order_of_params_does_not_make_them_other_params() -> None:
    cue = made()
    first = await cue.submit("echo", params={"a": 1, "b": 2}, idempotency_key="k")
    assert await cue.submit("echo", params={"b": 2, "a": 1}, idempotency_key="k") == first


async def with_a_lost_key(cue: Cue, how: str) -> str:
    """Work with the key "k" that failed, or was cancelled."""

    @cue.task("fails")
    async def fails(work: Work) -> None:
        raise ValueError("no")

    work_id = await cue.submit("fails", idempotency_key="k")
    if how == "cancelled":
        await cue.cancel(work_id)
    else:
        async with cue:
            await cue.wait(work_id)
    return work_id


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_after_a_failure_a_new_work_takes_over_the_key(how: str) -> None:
    cue = Cue()
    lost = await with_a_lost_key(cue, how)
    second = await cue.submit("fails", idempotency_key="k")
    assert second != lost
    assert await cue.submit("fails", idempotency_key="k") == second


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_on_failed_reject_raises_and_names_the_state(how: str) -> None:
    cue = Cue()
    lost = await with_a_lost_key(cue, how)
    with pytest.raises(runcue.DuplicateWork, match=how) as raised:
        await cue.submit("fails", idempotency_key="k", on_failed="reject")
    assert (raised.value.work_id, raised.value.key) == (lost, "k")


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_on_failed_return_gives_back_the_old_id(how: str) -> None:
    cue = Cue()
    lost = await with_a_lost_key(cue, how)
    assert await cue.submit("fails", idempotency_key="k", on_failed="return") == lost
    assert await total(cue) == 1


async def test_many_submitters_of_one_key_get_one_work() -> None:
    cue = made()
    async with cue:
        ids = await asyncio.gather(*(cue.submit("echo", idempotency_key="k") for _ in range(64)))
        await cue.join()
    assert len(set(ids)) == 1
    assert await total(cue) == 1


@pytest.mark.memory
async def test_a_key_lives_as_long_as_its_record() -> None:
    cue = Cue(keep_finished=1)
    cue.task("noop")(no_op)
    async with cue:
        first = await cue.submit("noop", idempotency_key="k")
        await cue.join()
        await cue.submit("noop")
        await cue.join()
        assert await cue.get(first) is None
        assert await cue.submit("noop", idempotency_key="k") != first


async def test_keys_are_compared_byte_by_byte() -> None:
    cue = made()
    composed = await cue.submit("echo", idempotency_key="caf\u00e9")
    assert await cue.submit("echo", idempotency_key="cafe\u0301") != composed


# --- submit_many ----------------------------------------------------------------------------------


async def test_submit_many_gives_back_the_ids_in_order() -> None:
    cue = made()
    ids = await cue.submit_many({"task": "echo", "params": {"n": n}, "id": f"n{n}"} for n in range(10))
    assert ids == [f"n{n}" for n in range(10)]
    async with cue:
        await cue.join(ids)
    assert [(await known(cue, work_id)).result for work_id in ids] == [{"n": n} for n in range(10)]


async def test_submit_many_of_nothing_is_nothing() -> None:
    cue = made()
    assert await cue.submit_many([]) == []


async def test_submit_many_takes_a_whole_graph_with_forward_references() -> None:
    cue = Cue()
    order: list[str] = []

    @cue.task("step")
    async def step(work: Work) -> None:
        order.append(work.id)

    async with cue:
        await cue.submit_many(
            [
                {"task": "step", "id": "last", "depends_on": ["left", "right"]},
                {"task": "step", "id": "left", "depends_on": ["first"]},
                {"task": "step", "id": "right", "depends_on": ["first"]},
                {"task": "step", "id": "first"},
            ]
        )
        await cue.join()
    assert order == ["first", "left", "right", "last"]


BAD_ITEMS: dict[str, dict[str, Any]] = {
    "an unknown task": {"task": "ehco"},
    "bad params": {"task": "echo", "params": {"a": object()}},
    "a taken id": {"task": "echo", "id": "taken"},
    "an id given twice": {"task": "echo", "id": "n0"},
    "a cycle": {"task": "echo", "id": "n9", "depends_on": ["n9"]},
    "an unknown option": {"task": "echo", "parms": {}},
}


@pytest.mark.parametrize("bad", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
async def test_submit_many_accepts_all_or_none(bad: dict[str, Any]) -> None:
    cue = made()
    await cue.submit("echo", id="taken")
    items = [{"task": "echo", "id": f"n{n}"} for n in range(5)]
    with pytest.raises(ValueError, match=r"\w"):
        await cue.submit_many([*items, bad])
    assert await total(cue) == 1
    assert await cue.submit_many(items) == [f"n{n}" for n in range(5)]


async def test_submit_many_refuses_a_cycle_through_its_items_and_names_it() -> None:
    cue = made()
    with pytest.raises(runcue.DependencyCycle) as raised:
        await cue.submit_many(
            [
                {"task": "echo", "id": "a", "depends_on": ["c"]},
                {"task": "echo", "id": "b", "depends_on": ["a"]},
                {"task": "echo", "id": "c", "depends_on": ["b"]},
            ]
        )
    assert set(raised.value.cycle) == {"a", "b", "c"}
    assert await total(cue) == 0


async def test_submit_many_with_one_key_twice_queues_it_once() -> None:
    cue = made()
    item = {"task": "echo", "idempotency_key": "k"}
    first, second, third = await cue.submit_many([item, {"task": "echo"}, item])
    assert first == third != second
    assert await total(cue) == 2


async def test_an_iterable_that_raises_queues_nothing() -> None:
    cue = made()

    def items() -> Any:
        yield {"task": "echo"}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await cue.submit_many(items())
    assert await total(cue) == 0


@pytest.mark.parametrize("items", [5, [5], ["echo"], {"task": "echo"}])
async def test_submit_many_refuses_what_is_no_list_of_dicts(items: Any) -> None:
    cue = made()
    with pytest.raises((ValueError, TypeError)):
        await cue.submit_many(items)
    assert await total(cue) == 0


# --- What a refusal of one call means for others ---------------------------------------------------


REFUSED: list[Callable[[Cue], Awaitable[Any]]] = [
    lambda cue: cue.submit("nope"),
    lambda cue: cue.submit("echo", id="a"),
    lambda cue: cue.submit("echo", id="b", depends_on=["b"]),
    lambda cue: cue.submit_many([{"task": "echo", "id": "b"}, {"task": "nope"}]),
]


@pytest.mark.parametrize("refused", REFUSED)
async def test_a_refused_submission_tells_nothing_and_the_queue_goes_on(
    refused: Callable[[Cue], Awaitable[Any]],
) -> None:
    cue = made()
    async with cue:
        await cue.submit("echo", id="a")
        with pytest.raises(ValueError, match=r"\w"):
            await refused(cue)
        await cue.join()
        assert await cue.submit("echo", id="b") == "b"
        await cue.join()
    queued = [event.work_id async for event in cue.events("queued")]
    assert queued == ["a", "b"]


# --- Ids that are asked for -----------------------------------------------------------------------


@pytest.mark.parametrize("work_id", [None, {}, [], 5, "", b"a"])
@pytest.mark.parametrize("method", ["get", "cancel", "retry", "wait", "result", "explain", "join"])
async def test_what_cannot_be_an_id_is_refused_and_the_queue_goes_on(method: str, work_id: Any) -> None:
    cue = made()
    async with cue:
        with pytest.raises(runcue.InvalidOption, match=r"^Invalid id: "):
            await getattr(cue, method)([work_id] if method == "join" else work_id)
        assert await cue.result(await cue.submit("echo", params={"a": 1})) == {"a": 1}


@pytest.mark.parametrize("method", ["get", "cancel", "retry", "wait", "result", "explain", "join"])
async def test_a_forgotten_await_is_named_and_nothing_was_submitted(method: str) -> None:
    cue = made()
    forgotten = cue.submit("echo")
    with pytest.raises(runcue.InvalidOption, match="did you forget await"):
        await getattr(cue, method)(forgotten)
    assert inspect.getcoroutinestate(forgotten) == inspect.CORO_CLOSED
    assert await total(cue) == 0


@pytest.mark.parametrize("method", ["get", "cancel", "wait", "result"])
async def test_other_threads_are_told_of_a_bad_id_at_once(method: str) -> None:
    cue = made()
    forgotten = cue.submit("echo")
    mistakes: list[Any] = [None, {}, forgotten]
    for work_id in mistakes:
        with pytest.raises(runcue.InvalidOption, match=r"^Invalid id: "):
            getattr(cue.sync, method)(work_id)
    assert inspect.getcoroutinestate(forgotten) == inspect.CORO_CLOSED


async def test_an_unknown_id_is_no_mistake_of_form() -> None:
    cue = made()
    assert await cue.get("nobody") is None
    assert await cue.cancel("nobody") is False
    for ask in (cue.retry, cue.wait, cue.result, cue.explain, cue.join):
        with pytest.raises(runcue.WorkNotFound):
            await ask("nobody")


async def test_join_takes_one_id_alone() -> None:
    cue = made()
    async with cue:
        work_id = await cue.submit("echo")
        await cue.join(work_id)
        assert (await known(cue, work_id)).state == "completed"


async def test_an_id_that_a_refused_submission_might_have_had_is_nobodys() -> None:
    cue = made()
    seen: list[str] = []

    def pick(work: Work) -> str:
        seen.append(work.id)
        return "nope"

    cue.task("picks", uses=pick)(lambda work: None)
    with pytest.raises(runcue.SubmitError, match="Unknown service"):
        await cue.submit("picks")
    assert seen == [""]


async def test_a_clock_set_back_does_not_make_an_id_twice() -> None:
    cue = made()
    first = await cue.submit("echo")
    virtual().jump_wall(-3600)
    assert await cue.submit("echo") != first
