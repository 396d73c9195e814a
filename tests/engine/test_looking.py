"""Asking a Cue: why work waits, what is full, how work stands and how it ended."""

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.testing import settle
from tests.engine.seen import clock, epoch
from tests.handlers import no_op


def with_call(cue: Cue, **options: Any) -> None:
    @cue.task("call", **options)
    async def call(work: Work) -> str:
        await asyncio.sleep(work.params.get("seconds", 0))
        if work.params.get("fails"):
            raise OSError("as asked")
        return "done"


async def reason(cue: Cue, work_id: str) -> tuple[str, float | None]:
    explanation = await cue.explain(work_id)
    return explanation.reason, explanation.until


# --- explain --------------------------------------------------------------------------------------


async def test_work_of_an_unstarted_cue_waits_for_start() -> None:
    cue = Cue()
    with_call(cue)
    await cue.submit("call", id="a")
    await cue.submit("call", id="b")
    explanation = await cue.explain("b")
    assert (explanation.reason, explanation.ahead, explanation.state) == ("not_started", 1, "pending")
    assert explanation.work_id == "b"


async def test_work_with_a_delay_or_run_at_is_scheduled_until_then() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        began = epoch()
        await cue.submit("call", id="delay", delay=90)
        await cue.submit("call", id="run_at", run_at=began + 120)
        await asyncio.sleep(10)
        assert await reason(cue, "delay") == ("scheduled", began + 90)
        assert await reason(cue, "run_at") == ("scheduled", began + 120)


async def test_work_that_waits_for_others_names_them() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit("call", id="done")
        await cue.submit("call", id="slow", params={"seconds": 60})
        await cue.submit("call", id="a", depends_on=["done", "slow", "never"])
        await asyncio.sleep(1)
        explanation = await cue.explain("a")
        await cue.cancel("a")
    assert (explanation.reason, explanation.waits_for) == ("dependency", ("slow", "never"))
    assert explanation.details == "1/3 satisfied, 1 never submitted"


async def test_work_that_is_not_ready_says_when_it_is_asked_again() -> None:
    cue = Cue()
    with_call(cue)
    cue.is_ready(lambda work: False)
    async with cue:
        await cue.submit("call", id="a")
        await asyncio.sleep(60)
        why, until = await reason(cue, "a")
    assert why == "not_ready"
    assert until is not None
    assert epoch() <= until <= epoch() + 1


async def test_work_that_waits_for_a_rate_knows_its_exact_time() -> None:
    cue = Cue()
    cue.service("api", rate="2/min")
    with_call(cue, uses="api")
    async with cue:
        began = epoch()
        await cue.submit_many({"task": "call", "id": f"w{n}"} for n in range(7))
        await asyncio.sleep(5)
        expected = {f"w{n}": began + n // 2 * 60 for n in range(2, 7)}
        for work_id, until in expected.items():
            explanation = await cue.explain(work_id)
            assert (explanation.reason, explanation.service) == ("rate", "api")
            assert explanation.until == pytest.approx(until)
        await cue.join()
        starts = {f"w{n}": (await cue.wait(f"w{n}")).started_at for n in range(2, 7)}
    assert starts == pytest.approx(expected)


async def test_the_exact_time_takes_other_tasks_in_and_leaves_out_what_could_not_start() -> None:
    cue = Cue()
    cue.service("api", rate="1/10s")
    with_call(cue, uses="api")
    cue.task("other", uses="api")(no_op)
    async with cue:
        began = epoch()
        await cue.submit_many({"task": "other"} for _ in range(5))
        await cue.submit_many({"task": "call", "delay": "1h", "priority": 100} for _ in range(5))
        await cue.submit("call", id="a")
        await settle()
        explanation = await cue.explain("a")
        work = await cue.wait("a")
        await cue.stop(timeout=0)
    assert (explanation.reason, explanation.ahead) == ("rate", 4)
    assert explanation.until == pytest.approx(began + 50)
    assert work.started_at == pytest.approx(began + 50)


async def test_a_dependency_that_the_callback_denies_says_so_and_names_it() -> None:
    cue = Cue()
    with_call(cue)
    cue.dependency_satisfied(lambda work_id: False)
    async with cue:
        await cue.submit("call", id="x")
        await cue.submit("call", id="a", depends_on=["x"])
        await asyncio.sleep(10)
        explanation = await cue.explain("a")
        await cue.cancel("a")
    assert (explanation.reason, explanation.waits_for) == ("dependency", ("x",))
    assert explanation.details == "dependency_satisfied has not said yes"


async def test_work_that_waits_for_a_slot_names_the_service_and_who_is_ahead() -> None:
    cue = Cue()
    cue.service("api", concurrent=2)
    with_call(cue, uses="api")
    async with cue:
        await cue.submit_many({"task": "call", "id": f"w{n}", "params": {"seconds": 5}} for n in range(5))
        await settle()
        explanation = await cue.explain("w4")
    assert (explanation.reason, explanation.until, explanation.service) == ("concurrency", None, "api")
    assert (explanation.ahead, explanation.details) == (2, "2/2 running")


async def test_work_of_a_paused_service_or_queue_says_so() -> None:
    cue = Cue()
    cue.service("api", concurrent=2)
    with_call(cue, uses="api")
    async with cue:
        await cue.pause("api")
        await cue.pause("bulk")
        await cue.submit("call", id="service")
        await cue.submit("call", id="queue", queue="bulk")
        await settle()
        service, queue = await cue.explain("service"), await cue.explain("queue")
        await cue.resume("api")
        await cue.resume("bulk")
    assert (service.reason, service.service, queue.reason, queue.details) == (
        "paused",
        "api",
        "paused",
        "queue 'bulk'",
    )


async def test_work_behind_an_open_circuit_knows_when_it_is_tried_again() -> None:
    cue = Cue()
    cue.service("api", circuit_threshold=1, circuit_timeout=300)
    with_call(cue, uses="api")
    async with cue:
        await cue.wait(await cue.submit("call", params={"fails": True}))
        opened = epoch()
        await cue.submit("call", id="a")
        await asyncio.sleep(10)
        assert await reason(cue, "a") == ("circuit", opened + 300)
        await cue.stop(timeout=0)


async def test_work_that_waits_to_retry_knows_when() -> None:
    cue = Cue()
    with_call(cue, retry=runcue.Retry(max_attempts=2, base_delay=60, jitter=False))
    async with cue:
        began = epoch()
        await cue.submit("call", id="a", params={"fails": True})
        await asyncio.sleep(10)
        explanation = await cue.explain("a")
        await cue.cancel("a")
    assert (explanation.reason, explanation.until) == ("retry", began + 60)
    assert explanation.details == "attempt 2"


async def test_snoozed_work_knows_when() -> None:
    cue = Cue()

    @cue.task("nap")
    async def nap(work: Work) -> None:
        if clock() < 30:
            raise runcue.Snooze(30)

    async with cue:
        began = epoch()
        await cue.submit("nap", id="a")
        await asyncio.sleep(10)
        assert await reason(cue, "a") == ("snoozed", began + 30)


async def test_running_and_ended_work_is_explained_by_its_state() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit("call", id="running", params={"seconds": 10})
        await cue.submit("call", id="failed", params={"fails": True})
        await cue.submit("call", id="completed")
        await cue.submit("call", id="cancelled", delay=5)
        await cue.cancel("cancelled")
        await settle()
        for name in ("running", "failed", "completed", "cancelled"):
            assert (await cue.explain(name)).reason == name
        assert (await cue.explain("failed")).details == "OSError: as asked"


async def test_explaining_unknown_work_is_an_error() -> None:
    cue = Cue()
    with pytest.raises(runcue.WorkNotFound, match="'nobody'"):
        await cue.explain("nobody")


async def test_looking_changes_nothing() -> None:
    cue = Cue()
    cue.service("api", rate="1/min", concurrent=1)
    with_call(cue, uses="api")
    async with cue:
        ids = await cue.submit_many({"task": "call"} for _ in range(5))
        for _ in range(50):
            for work_id in ids:
                await cue.explain(work_id)
            await cue.debug_blocked()
            await cue.services()
            await cue.list()
            await cue.count()
            await asyncio.sleep(4.9)
        await cue.join()
        starts = [(await cue.wait(work_id)).started_at or 0 for work_id in ids]
    assert [round(at - starts[0], 3) for at in starts] == [0, 60, 120, 180, 240]


# --- debug_blocked --------------------------------------------------------------------------------


async def test_debug_blocked_lists_everything_that_cannot_start_best_first() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    with_call(cue, uses="api")
    cue.task("free")(no_op)
    cue.is_ready(lambda work: work.id != "unready")
    async with cue:
        await cue.submit("call", id="running", params={"seconds": 60})
        await asyncio.sleep(1)
        await cue.submit("call", id="full")
        await cue.submit("free", id="waits", depends_on=["full"])
        await cue.submit("free", id="unready", priority=5)
        await asyncio.sleep(1)
        blocked = await cue.debug_blocked()
        for work_id in ("waits", "unready"):
            await cue.cancel(work_id)
    assert [(entry["work"].id, entry["reason"]) for entry in blocked] == [
        ("unready", "not_ready"),
        ("full", "service_full"),
        ("waits", "dependency"),
    ]
    details = {entry["work"].id: entry["details"] for entry in blocked}
    assert details["full"]["service"] == "api"
    assert details["full"]["limit"] == "concurrency"
    assert details["waits"]["waits_for"] == ["full"]


async def test_work_whose_question_is_under_way_is_listed_as_not_ready() -> None:
    cue = Cue()
    with_call(cue)

    @cue.is_ready
    async def look(work: Work) -> bool:
        await asyncio.sleep(0.05)
        return True

    async with cue:
        await cue.submit("call", id="a")
        await asyncio.sleep(0.02)
        explanation = await cue.explain("a")
        [blocked] = await cue.debug_blocked()
    assert (explanation.reason, explanation.details) == ("not_ready", "is being asked")
    assert (blocked["work"].id, blocked["reason"]) == ("a", "not_ready")


async def test_debug_blocked_counts_nobody_twice_however_many_wait() -> None:
    cue = Cue()
    cue.service("api", rate="1/min")
    with_call(cue, uses="api")
    async with cue:
        began = epoch()
        await cue.submit_many({"task": "call"} for _ in range(20_001))
        await settle()
        started = time.process_time()
        blocked = await cue.debug_blocked()
        took = time.process_time() - started
        await cue.stop(timeout=0)
    assert len(blocked) == 20_000
    assert blocked[-1]["details"]["until"] == pytest.approx(began + 20_000 * 60)
    assert took < 10  # a square of that many takes minutes


async def test_debug_blocked_of_an_idle_cue_is_empty() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call"))
        assert await cue.debug_blocked() == []


# --- services -------------------------------------------------------------------------------------


async def test_services_show_limits_use_and_what_blocks() -> None:
    cue = Cue()
    cue.service("api", rate="3/min", concurrent=2, circuit_threshold=5)
    cue.service("free")
    with_call(cue, uses="api")
    async with cue:
        began = epoch()
        await cue.submit_many({"task": "call", "params": {"seconds": 5}} for _ in range(5))
        await asyncio.sleep(1)
        busy, free = await cue.services()
        assert (busy["name"], busy["running"], busy["concurrent"]) == ("api", 2, 2)
        assert busy["rates"] == [{"rate": "3/min", "used": 2, "limit": 3}]
        assert (busy["circuit"], busy["paused"], busy["blocked"]) == ("closed", False, "concurrency")
        assert (free["running"], free["rates"], free["blocked"]) == (0, [], None)
        await asyncio.sleep(10)
        busy = (await cue.services())[0]
        assert (busy["blocked"], busy["until"]) == ("rate", pytest.approx(began + 60))
        await cue.join()


async def test_the_threads_are_no_service_of_the_users() -> None:
    cue = Cue()

    @cue.task("call")
    def call(work: Work) -> None: ...

    async with cue:
        await cue.wait(await cue.submit("call"))
        assert await cue.services() == []


# --- get, list, count, dead -----------------------------------------------------------------------


async def test_get_gives_none_for_what_is_unknown() -> None:
    cue = Cue()
    assert await cue.get("nobody") is None


async def test_get_follows_a_work_through_its_life() -> None:
    cue = Cue()
    with_call(cue)
    began = epoch()
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 5}, delay=10)
        seen = [await cue.get(work_id)]
        await asyncio.sleep(12)
        seen.append(await cue.get(work_id))
        await cue.join()
        seen.append(await cue.get(work_id))
    assert [
        (work.state, work.created_at - began, work.started_at, work.completed_at, work.result)
        for work in seen
        if work
    ] == [
        ("pending", 0, None, None, None),
        ("running", 0, began + 10, None, None),
        ("completed", 0, began + 10, began + 15, "done"),
    ]


async def test_list_gives_the_newest_first_and_filters() -> None:
    cue = Cue()
    with_call(cue)
    cue.task("other")(no_op)
    for number in range(5):
        await cue.submit("call", id=f"c{number}")
    await cue.submit("other", id="o")
    await cue.cancel("c1")
    assert [work.id for work in await cue.list()] == ["o", "c4", "c3", "c2", "c1", "c0"]
    assert [work.id for work in await cue.list(state="cancelled")] == ["c1"]
    assert [work.id for work in await cue.list(state=WorkState.PENDING, task="call", limit=2)] == ["c4", "c3"]
    assert await cue.list(task="unheard of") == []


@pytest.mark.parametrize("bad", [{"state": "sleeping"}, {"limit": 0}, {"limit": "all"}, {"state": 5}])
async def test_list_refuses_what_it_cannot_read(bad: dict[str, Any]) -> None:
    cue = Cue()
    with pytest.raises(ValueError, match=r"state|limit"):
        await cue.list(**bad)


async def test_count_has_every_state_and_counts_forgotten_work() -> None:
    cue = Cue(keep_finished=1)
    with_call(cue)
    assert await cue.count() == dict.fromkeys(WorkState, 0)
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.submit("call", params={"fails": True})
        await cue.join()
        await cue.submit("call", params={"seconds": 60})
        await cue.submit("call", id="later", delay=60)
        await settle()
        assert await cue.count() == {"pending": 1, "running": 1, "completed": 5, "failed": 1, "cancelled": 0}
        await cue.cancel("later")


# --- wait -----------------------------------------------------------------------------------------


async def test_wait_gives_the_work_in_any_final_state() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        done = await cue.submit("call", params={"seconds": 5})
        failed = await cue.submit("call", params={"fails": True})
        cancelled = await cue.submit("call", delay=60)
        waiting = [asyncio.create_task(cue.wait(work_id)) for work_id in (done, failed, cancelled)]
        await asyncio.sleep(1)
        await cue.cancel(cancelled)
        works = await asyncio.gather(*waiting)
    assert [work.state for work in works] == ["completed", "failed", "cancelled"]


async def test_wait_for_what_has_ended_returns_at_once_even_unstarted() -> None:
    cue = Cue()
    with_call(cue)
    work_id = await cue.submit("call")
    await cue.cancel(work_id)
    assert (await cue.wait(work_id)).state == "cancelled"


async def test_many_may_wait_for_one_work() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 5})
        results = await asyncio.gather(*(cue.result(work_id) for _ in range(100)))
    assert results == ["done"] * 100


async def test_a_wait_that_is_too_late_raises_and_the_work_goes_on() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 60})
        with pytest.raises(TimeoutError):
            await cue.wait(work_id, timeout=5)
        with pytest.raises(TimeoutError):
            await cue.result(work_id, timeout="5s")
        assert clock() == 10
        assert (await cue.wait(work_id)).state == "completed"


async def test_waiting_for_unknown_work_is_an_error() -> None:
    cue = Cue()
    for call in (cue.wait("nobody"), cue.result("nobody"), cue.join(["nobody"])):
        with pytest.raises(runcue.WorkNotFound, match="No unit has this id") as raised:
            await call
        assert isinstance(raised.value, LookupError)
        assert not raised.value.forgotten


@pytest.mark.memory
async def test_asking_for_the_result_of_forgotten_work_names_the_option() -> None:
    cue = Cue(keep_finished=1)
    with_call(cue)
    async with cue:
        old = await cue.submit("call")
        await cue.join()
        await cue.wait(await cue.submit("call"))
        for call in (cue.wait(old), cue.result(old), cue.explain(old)):
            with pytest.raises(runcue.WorkNotFound, match="keep_finished") as raised:
                await call
            assert raised.value.forgotten


@pytest.mark.memory
async def test_whoever_waits_gets_the_result_even_if_nothing_is_kept() -> None:
    cue = Cue(keep_finished=0)
    with_call(cue)
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 5})
        assert await cue.result(work_id) == "done"
        assert await cue.get(work_id) is None


# --- result ---------------------------------------------------------------------------------------


async def test_result_raises_what_became_of_the_work() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        failed = await cue.submit("call", params={"fails": True})
        timed_out = await cue.submit("call", params={"seconds": 60}, timeout=1)
        cancelled = await cue.submit("call", delay=60)
        await cue.cancel(cancelled)
        with pytest.raises(runcue.WorkFailed, match="OSError: as asked") as raised:
            await cue.result(failed)
        assert raised.value.work.id == failed
        with pytest.raises(runcue.WorkTimedOut, match="timed out"):
            await cue.result(timed_out)
        with pytest.raises(runcue.WorkCancelled, match="was cancelled"):
            await cue.result(cancelled)


@pytest.mark.memory
@pytest.mark.parametrize("value", [None, 0, "", [], {"a": 1}, {1, 2}, b"bytes", object()])
async def test_in_memory_a_result_may_be_anything(value: object) -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: Work) -> object:
        return value

    async with cue:
        assert await cue.result(await cue.submit("call")) is value


# --- join -----------------------------------------------------------------------------------------


async def test_join_waits_until_nothing_is_pending_or_running() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit("call", params={"seconds": 5})
        await cue.submit("call", delay=30)
        await cue.join()
        assert clock() == 30
        await cue.join()


async def test_join_waits_for_what_is_submitted_meanwhile() -> None:
    cue = Cue()

    @cue.task("chain")
    async def chain(work: Work) -> None:
        await asyncio.sleep(10)
        if work.params["left"]:
            await cue.submit("chain", params={"left": work.params["left"] - 1})

    async with cue:
        await cue.submit("chain", params={"left": 3})
        await cue.join()
    assert clock() == 40


async def test_join_of_ids_waits_for_these_only() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        ids = [await cue.submit("call", params={"seconds": number}) for number in (3, 1, 2)]
        await cue.submit("call", id="long", params={"seconds": 100})
        await cue.join(ids)
        assert clock() == 3
        await cue.join([])


async def test_join_of_more_ids_than_are_kept_still_ends() -> None:
    cue = Cue(keep_finished=5)
    with_call(cue)
    async with cue:
        ids = await cue.submit_many({"task": "call", "params": {"seconds": n % 7}} for n in range(100))
        await cue.join(ids)
        assert (await cue.count())[WorkState.COMPLETED] == 100


async def test_join_that_is_too_late_raises() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 60})
        with pytest.raises(TimeoutError):
            await cue.join(timeout=5)
        with pytest.raises(TimeoutError):
            await cue.join([work_id], timeout=5)
        assert clock() == 10


async def test_join_of_an_empty_queue_returns_at_once_even_unstarted() -> None:
    cue = Cue()
    await cue.join()
    await cue.join([])
    assert clock() == 0


# --- What asking costs ----------------------------------------------------------------------------


def calls_of(coroutine: Coroutine[Any, Any, object]) -> int:
    """How many calls a coroutine makes until it first waits or returns."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        coroutine.send(None)
    except StopIteration:
        pass
    finally:
        sys.setprofile(None)
        coroutine.close()
    return calls


@pytest.mark.memory
async def test_asking_costs_the_same_however_much_runs() -> None:
    cue = Cue()
    with_call(cue)
    costs: list[list[int]] = []
    async with cue:
        for amount in (10, 10, 1000):
            ids = await cue.submit_many({"task": "call", "params": {"seconds": 60}} for _ in range(amount))
            await asyncio.sleep(1)
            costs.append([calls_of(ask(ids[5])) for ask in (cue.wait, cue.result, cue.get, cue.cancel)])
            costs[-1] += [calls_of(cue.submit("call")), calls_of(cue.join(ids[:1])), calls_of(cue.count())]
    _, few, many = costs  # the first time, some things are only made
    assert many == pytest.approx(few, abs=10)
