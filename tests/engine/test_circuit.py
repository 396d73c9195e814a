"""The circuit breaker, as a service and its work see it."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from tests.engine.seen import clock, epoch, told
from tests.handlers import no_op

CIRCUIT = ("circuit_opened", "circuit_half_open", "circuit_closed")


class Backend:
    """A service that can be down; writes down when it is called."""

    def __init__(self, cue: Cue, **limits: Any) -> None:
        self.is_down = True
        self.error: type[BaseException] = ConnectionError
        self.calls: list[float] = []
        self.seconds = 0.0
        limits = {"circuit_threshold": 3, "circuit_timeout": 60, **limits}
        cue.service("api", **limits)
        cue.task("call", uses="api")(self)

    async def __call__(self, work: Work) -> None:
        self.calls.append(clock())
        await asyncio.sleep(self.seconds)
        if self.is_down:
            raise self.error("down")


async def turns(cue: Cue) -> list[str]:
    return [event.type for event in await told(cue, *CIRCUIT)]


async def fail(cue: Cue, times: int) -> None:
    """Let that many calls fail, one after the other."""
    for _ in range(times):
        await cue.wait(await cue.submit("call"))


async def test_there_is_no_breaker_unless_it_is_asked_for() -> None:
    cue = Cue()
    backend = Backend(cue, circuit_threshold=None)
    async with cue:
        await fail(cue, 50)
    assert len(backend.calls) == 50
    assert await turns(cue) == []


async def test_so_many_failures_in_a_row_open_it_and_nothing_starts() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        opened = epoch()
        await cue.submit("call", id="waits")
        await asyncio.sleep(59)
        assert len(backend.calls) == 3
        explanation = await cue.explain("waits")
        assert (explanation.reason, explanation.until) == ("circuit", opened + 60)
        work = await cue.get("waits")
        assert work is not None
        assert (work.state, work.attempt) == ("pending", 1)
        await cue.stop(timeout=0)
    assert await turns(cue) == ["circuit_opened"]


async def test_a_success_in_between_starts_the_count_over() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        for _ in range(5):
            await fail(cue, 2)
            backend.is_down = False
            await cue.wait(await cue.submit("call"))
            backend.is_down = True
    assert await turns(cue) == []


@pytest.mark.parametrize("error", [runcue.Permanent, runcue.RateLimited, runcue.Snooze])
async def test_permanent_errors_and_throttling_do_not_count(error: type[Exception]) -> None:
    cue = Cue()
    cue.service("api", circuit_threshold=2)
    calls: list[float] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        calls.append(clock())
        if len(calls) <= 6:
            raise error(1)

    async with cue:
        for _ in range(8):
            await cue.wait(await cue.submit("call"))
    assert await turns(cue) == []


async def test_cancelled_work_does_not_count() -> None:
    cue = Cue()
    backend = Backend(cue, circuit_threshold=1)
    backend.seconds = 10
    async with cue:
        for _ in range(3):
            work_id = await cue.submit("call")
            await asyncio.sleep(1)
            await cue.cancel(work_id)
            await asyncio.sleep(1)
    assert await turns(cue) == []


async def test_timeouts_count() -> None:
    cue = Cue()
    backend = Backend(cue, circuit_threshold=2)
    backend.seconds = 100
    async with cue:
        for _ in range(2):
            await cue.wait(await cue.submit("call", timeout=1))
    assert await turns(cue) == ["circuit_opened"]


async def test_after_the_wait_exactly_one_probe_goes_out_and_success_closes_it() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.is_down, backend.seconds = False, 5
        await cue.submit_many({"task": "call"} for _ in range(10))
        await asyncio.sleep(62)
        assert backend.calls[3:] == [60]
        await cue.join()
    assert await turns(cue) == ["circuit_opened", "circuit_half_open", "circuit_closed"]


async def test_the_probe_is_the_best_work_waiting() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.is_down, backend.seconds = False, 5
        await cue.submit("call", id="good")
        await cue.submit("call", id="best", priority=5)
        await asyncio.sleep(61)
        running = await cue.list(state="running")
        assert [work.id for work in running] == ["best"]
        await cue.join()


async def test_after_closing_capacity_ramps_up_instead_of_a_stampede() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.is_down, backend.seconds = False, 1
        await cue.submit_many({"task": "call"} for _ in range(100))
        await cue.join()
    starts: dict[float, int] = {}
    for at in backend.calls[3:]:
        starts[at] = starts.get(at, 0) + 1
    crowds = list(starts.values())
    assert crowds[:7] == [1, 1, 2, 4, 8, 16, 32]


async def test_a_failed_probe_opens_it_again_for_longer() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        await cue.submit_many({"task": "call"} for _ in range(4))
        await cue.join()
    waits = [later - earlier for earlier, later in pairwise(backend.calls[2:])]
    assert waits == pytest.approx([60, 120, 240, 480])


async def test_the_wait_is_short_again_once_it_had_closed() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 5)  # opens, and two probes fail
        backend.is_down = False
        await cue.wait(await cue.submit("call"))
        backend.is_down = True
        await fail(cue, 3)
        before = clock()
        await fail(cue, 1)
    assert clock() - before == pytest.approx(60)


async def test_results_of_calls_from_before_the_trip_are_ignored() -> None:
    cue = Cue()
    backend = Backend(cue)

    @cue.task("slow", uses="api")
    async def slow(work: Work) -> None:
        await asyncio.sleep(work.params["seconds"])

    async with cue:
        await cue.submit("slow", params={"seconds": 30})
        await cue.submit("slow", params={"seconds": 70})
        await fail(cue, 3)
        await asyncio.sleep(40)
        assert (await cue.services())[0]["circuit"] == "open"
        backend.seconds = 50
        await cue.submit("call")
        await asyncio.sleep(40)  # the second slow call ended well while the probe was out
        assert (await cue.services())[0]["circuit"] == "half_open"
        await cue.join()
    assert await turns(cue) == ["circuit_opened", "circuit_half_open", "circuit_opened"]


async def test_a_cancelled_probe_gives_its_place_back() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.is_down, backend.seconds = False, 20
        await cue.submit("call", id="probe")
        await cue.submit("call", id="next")
        await asyncio.sleep(65)
        assert await cue.cancel("probe")
        assert (await cue.wait("next", timeout=30)).state == "completed"
    assert await turns(cue) == ["circuit_opened", "circuit_half_open", "circuit_closed"]


class NotFound(Exception):
    status_code = 404


async def test_a_probe_that_is_answered_with_a_refusal_closes_it() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.error = NotFound
        assert (await cue.wait(await cue.submit("call"))).state == "failed"
        assert clock() == 60
    assert await turns(cue) == ["circuit_opened", "circuit_half_open", "circuit_closed"]


async def test_a_probe_that_fails_for_good_without_an_answer_gives_its_place_back() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.error = runcue.Permanent
        await cue.wait(await cue.submit("call"))
        assert (await cue.services())[0]["circuit"] == "half_open"
        await cue.wait(await cue.submit("call"))
        assert clock() == 60
    assert await turns(cue) == ["circuit_opened", "circuit_half_open"]


async def test_a_probe_that_does_not_come_back_counts_as_failed() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        backend.seconds = 3600
        await cue.submit_many({"task": "call"} for _ in range(2))
        await asyncio.sleep(125)
        assert await cue.services() != []
        assert (await cue.services())[0]["circuit"] == "open"
        await cue.stop(timeout=0)
    assert await turns(cue) == ["circuit_opened", "circuit_half_open", "circuit_opened"]


async def test_the_probe_respects_the_other_limits() -> None:
    cue = Cue()
    backend = Backend(cue, rate="3/h")
    async with cue:
        await fail(cue, 3)
        backend.is_down = False
        await cue.wait(await cue.submit("call"))
    assert backend.calls[3] - backend.calls[0] == 3600


async def test_an_open_circuit_blocks_no_other_service() -> None:
    cue = Cue()
    Backend(cue)
    cue.service("other", circuit_threshold=3)
    cue.task("other", uses="other")(no_op)
    async with cue:
        await fail(cue, 3)
        await cue.submit("call", priority=9)
        await cue.wait(await cue.submit("other"))
        assert clock() == 0
        await cue.stop(timeout=0)


async def test_retries_wait_for_the_circuit_without_burning_attempts() -> None:
    cue = Cue()
    cue.service("api", circuit_threshold=2, circuit_timeout=60)
    calls: list[tuple[int, float]] = []

    @cue.task(
        "call", uses="api", retry=runcue.Retry(max_attempts=4, backoff="fixed", base_delay=1, jitter=False)
    )
    async def call(work: Work) -> None:
        calls.append((work.attempt, clock()))
        if len(calls) < 4:
            raise ConnectionError("down")

    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert work.state == "completed"
    assert [attempt for attempt, _ in calls] == [1, 2, 3, 4]
    assert [at for _, at in calls] == pytest.approx([0, 1, 61, 181])


async def test_a_breaker_declared_anew_without_one_lets_everything_through() -> None:
    cue = Cue()
    backend = Backend(cue)
    async with cue:
        await fail(cue, 3)
        work_id = await cue.submit("call")
        await asyncio.sleep(1)
        backend.is_down = False
        cue.service("api")
        await cue.wait(work_id)
    assert clock() == 1
