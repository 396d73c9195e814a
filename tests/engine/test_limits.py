"""Rates, concurrency, several services, pausing, throttling: as a handler sees them."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runcue
from runcue import Cue, Work
from runcue.testing import run, settle
from tests.engine.seen import clock, epoch, told
from tests.handlers import no_op
from tests.sample import fewer


class Starts:
    """Writes down when handlers are entered and how many are inside at once."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.ids: list[str] = []
        self.active = 0
        self.most = 0

    async def __call__(self, work: Work) -> None:
        self.at.append(epoch())
        self.ids.append(work.id)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await asyncio.sleep(work.params.get("seconds", 0))
        finally:
            self.active -= 1

    def crowded(self, limit: int, window: float) -> list[tuple[float, float]]:
        """The stretches shorter than `window` that hold more than `limit` starts."""
        stamps = sorted(self.at)
        return [
            (first, last)
            for first, last in zip(stamps, stamps[limit:], strict=False)
            if last - first < window
        ]


def using(cue: Cue, *services: str, task: str = "call") -> Starts:
    """Register a task on these services; what is seen of its starts."""
    starts = Starts()
    cue.task(task, uses=list(services))(starts)
    return starts


# --- Rates ----------------------------------------------------------------------------------------


async def test_a_burst_up_to_the_rate_starts_at_once_and_the_rest_when_the_window_lets_it() -> None:
    cue = Cue()
    cue.service("api", rate="3/min")
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(7))
        await cue.join()
    assert [round(at - starts.at[0], 6) for at in starts.at] == [0, 0, 0, 60, 60, 60, 120]


async def test_no_sliding_window_is_exceeded_at_the_edge_of_a_fixed_one() -> None:
    cue = Cue()
    cue.service("api", rate="5/10s")
    starts = using(cue, "api")
    async with cue:
        await asyncio.sleep(9)
        await cue.submit_many({"task": "call"} for _ in range(5))
        await asyncio.sleep(2)
        await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.join()
    assert starts.crowded(5, 10) == []
    assert clock() == 19


async def test_a_slow_call_counts_from_its_start_not_from_its_end() -> None:
    cue = Cue()
    cue.service("api", rate="1/10s")
    starts = using(cue, "api")
    async with cue:
        await cue.submit("call", params={"seconds": 9})
        await cue.submit("call")
        await cue.join()
    assert starts.at[1] - starts.at[0] == 10


async def test_of_several_rates_all_hold_at_once() -> None:
    cue = Cue()
    cue.service("api", rate=["2/s", "5/10s", "8/min"])
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(20))
        await cue.join()
    for limit, window in ((2, 1), (5, 10), (8, 60)):
        assert starts.crowded(limit, window) == []
    assert clock() == pytest.approx(121)


async def test_every_permitted_start_is_used() -> None:
    cue = Cue()
    cue.service("api", rate="10/s")
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(1000))
        await cue.join()
    assert starts.crowded(10, 1) == []
    assert clock() == pytest.approx(99)


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 0.37, 1.0, 2.5]),  # how long after the one before
        st.sampled_from([0.0, 0.05, 1.0, 3.3]),  # how long it runs
        st.booleans(),  # whether it fails, and is retried
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=fewer(60, 20))
@given(
    arrivals=ARRIVALS,
    rates=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.3, 1.0, 7.0])), min_size=1, max_size=3),
    concurrent=st.one_of(st.none(), st.integers(1, 4)),
)
def test_whatever_comes_no_window_and_no_cap_is_exceeded_and_everything_ends(
    arrivals: list[tuple[float, float, bool]], rates: list[tuple[int, float]], concurrent: int | None
) -> None:
    cue = Cue()
    cue.service("api", rate=rates, concurrent=concurrent)
    starts = Starts()

    @cue.task("call", uses="api", retry=runcue.Retry(max_attempts=2, base_delay=0.1))
    async def call(work: Work) -> None:
        await starts(work)
        if work.params["fails"] and work.attempt == 1:
            raise OSError("once more")

    async def main() -> None:
        async with cue:
            for wait, seconds, fails in arrivals:
                await asyncio.sleep(wait)
                await cue.submit("call", params={"seconds": seconds, "fails": fails})
            await cue.join()
            counts = await cue.count()
            assert counts[runcue.WorkState.COMPLETED] == len(arrivals)

    run(main())
    for limit, window in rates:
        assert starts.crowded(limit, window) == []
    assert concurrent is None or starts.most <= concurrent


async def test_waiting_for_a_rate_burns_no_attempt() -> None:
    cue = Cue()
    cue.service("api", rate="1/h")
    using(cue, "api")
    async with cue:
        ids = await cue.submit_many({"task": "call"} for _ in range(3))
        await cue.join()
    assert [(await cue.wait(work_id)).attempt for work_id in ids] == [1, 1, 1]


async def test_failed_attempts_count_against_the_rate() -> None:
    cue = Cue()
    cue.service("api", rate="1/10s")
    times: list[float] = []

    @cue.task("call", uses="api", retry=runcue.Retry(max_attempts=3, base_delay=0.1))
    async def call(work: Work) -> None:
        times.append(clock())
        raise OSError("no")

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert times == [0, 10, 20]


@pytest.mark.memory
async def test_a_start_cancelled_before_its_handler_was_called_is_not_counted() -> None:
    cue = Cue()
    cue.service("api", rate="1/h", concurrent=1)
    starts = using(cue, "api")
    async with cue:
        unlucky = await cue.submit("call")
        cancelling = asyncio.create_task(cue.cancel(unlucky))  # steps between the grant and the handler
        assert await cancelling
        await cue.wait(await cue.submit("call", id="next"), timeout=60)
    assert starts.ids == ["next"]


async def test_history_counts_after_a_stop_and_a_start() -> None:
    cue = Cue()
    cue.service("api", rate="1/min")
    starts = using(cue, "api")
    async with cue:
        await cue.wait(await cue.submit("call"))
    await asyncio.sleep(20)
    async with cue:
        await cue.wait(await cue.submit("call"))
    assert starts.at[1] - starts.at[0] == 60


async def test_a_full_rate_is_told_with_the_service() -> None:
    cue = Cue()
    cue.service("api", rate="1/min")
    using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(2))
        await cue.join()
    events = await told(cue, "service_rate_limited")
    assert [event.service for event in events] == ["api"]


# --- Concurrency ----------------------------------------------------------------------------------


async def test_never_more_than_concurrent_run_at_once_and_never_fewer_without_need() -> None:
    cue = Cue()
    cue.service("api", concurrent=3)
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call", "params": {"seconds": 10}} for _ in range(9))
        await cue.join()
    assert (starts.most, clock()) == (3, 30)


async def test_tasks_share_their_service() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    starts = Starts()
    for name in ("one", "two", "three"):
        cue.task(name, uses="api")(starts)
    async with cue:
        for name in ("one", "two", "three"):
            await cue.submit(name, params={"seconds": 1})
        await cue.join()
    assert (starts.most, clock()) == (1, 3)


async def test_a_failed_attempt_gives_its_slot_back_while_it_waits_to_retry() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    times: list[tuple[str, float]] = []

    @cue.task("call", uses="api", retry=runcue.Retry(max_attempts=2, base_delay=60, jitter=False))
    async def call(work: Work) -> None:
        times.append((work.id, clock()))
        if work.id == "flaky" and work.attempt == 1:
            raise OSError("no")

    async with cue:
        await cue.submit("call", id="flaky")
        await cue.submit("call", id="other")
        await cue.join()
    assert times == [("flaky", 0), ("other", 0), ("flaky", 60)]


async def test_without_a_service_nothing_is_limited() -> None:
    cue = Cue()
    starts = Starts()
    cue.task("free")(starts)
    async with cue:
        await cue.submit_many({"task": "free", "params": {"seconds": 1}} for _ in range(500))
        await cue.join()
    assert (starts.most, clock()) == (500, 1)


# --- Several services -----------------------------------------------------------------------------


async def test_several_services_are_taken_all_or_none() -> None:
    cue = Cue()
    cue.service("cpu", concurrent=4)
    cue.service("disk", concurrent=1)
    both = using(cue, "cpu", "disk", task="both")
    cpu = using(cue, "cpu", task="cpu")
    async with cue:
        await cue.submit_many({"task": "both", "params": {"seconds": 10}} for _ in range(3))
        await cue.submit_many({"task": "cpu", "params": {"seconds": 10}} for _ in range(3))
        await asyncio.sleep(1)
        running = {service["name"]: service["running"] for service in await cue.services()}
        await cue.join()
    assert running["disk"] == 1
    assert running["cpu"] >= 3  # those that wait for the disk hold no more than one place
    assert (both.most, cpu.most) <= (1, 3)


async def test_services_named_in_different_orders_do_not_deadlock() -> None:
    cue = Cue()
    cue.service("a", concurrent=1)
    cue.service("b", concurrent=1)
    one = using(cue, "a", "b", task="one")
    two = using(cue, "b", "a", task="two")
    async with cue:
        for _ in range(100):
            await cue.submit("one", params={"seconds": 1})
            await cue.submit("two", params={"seconds": 1})
        await cue.join()
    assert (len(one.at), len(two.at), clock()) == (100, 100, 200)


async def test_work_on_several_services_is_not_starved_by_work_on_one_of_them() -> None:
    cue = Cue()
    cue.service("a", concurrent=1)
    cue.service("b", concurrent=1)
    both = using(cue, "a", "b", task="both")
    using(cue, "a", task="only_a")
    using(cue, "b", task="only_b")
    async with cue:
        for n in range(50):
            await cue.submit("only_a", params={"seconds": 1.0 + n % 3})
            await cue.submit("only_b", params={"seconds": 1.5 + n % 2})
            if n == 5:
                await cue.submit("both", id="both")
        await cue.wait("both", timeout=40)
        await cue.cancel("none")
        await cue.stop(timeout=0)
    assert len(both.at) == 1


async def test_all_rates_of_all_services_hold() -> None:
    cue = Cue()
    cue.service("a", rate="3/10s")
    cue.service("b", rate="5/20s")
    starts = using(cue, "a", "b")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(15))
        await cue.join()
    assert starts.crowded(3, 10) == []
    assert starts.crowded(5, 20) == []


# --- No head-of-line blocking ---------------------------------------------------------------------


async def test_a_blocked_service_blocks_nobody_else() -> None:
    cue = Cue()
    cue.service("slow", rate="1/h")
    cue.service("fast", concurrent=10)
    using(cue, "slow", task="slow")
    fast = using(cue, "fast", task="fast")
    async with cue:
        await cue.submit_many({"task": "slow", "priority": 100} for _ in range(100))
        ids = await cue.submit_many({"task": "fast"} for _ in range(100))
        await cue.join(ids)
        assert (len(fast.at), clock()) == (100, 0)
        await cue.stop(timeout=0)


# --- Chosen services ------------------------------------------------------------------------------


async def test_a_place_in_uses_is_filled_from_params() -> None:
    cue = Cue()
    for host in ("one", "two"):
        cue.service(f"ssh_{host}", concurrent=1)
    chosen: Counter[str | None] = Counter()
    starts = Starts()

    @cue.task("run", uses="ssh_{host}")
    async def run_on(work: Work) -> None:
        chosen[work.service] += 1
        await starts(work)

    async with cue:
        for _ in range(3):
            await cue.submit("run", params={"host": "one", "seconds": 1})
        await cue.submit("run", params={"host": "two", "seconds": 1})
        await cue.join()
    assert chosen == {"ssh_one": 3, "ssh_two": 1}
    assert (starts.most, clock()) == (2, 3)


@pytest.mark.parametrize("params", [{"host": "three"}, {}, {"host": None}, {"host": ["one"]}])
async def test_a_chosen_service_that_is_not_there_is_refused_at_submit(params: dict[str, Any]) -> None:
    cue = Cue()
    cue.service("ssh_one", concurrent=1)
    cue.task("run", uses="ssh_{host}")(no_op)
    with pytest.raises(runcue.SubmitError):
        await cue.submit("run", params=params)
    assert sum((await cue.count()).values()) == 0


async def test_a_function_may_choose_the_services() -> None:
    cue = Cue()
    cue.service("large", concurrent=1)
    cue.service("small", concurrent=5)

    @cue.task("call", uses=lambda work: ["large", "small"] if work.params.get("big") else "small")
    async def call(work: Work) -> tuple[str, ...]:
        return work.services

    async with cue:
        big = await cue.result(await cue.submit("call", params={"big": True}))
        small = await cue.result(await cue.submit("call"))
    assert (list(big), list(small)) == (["large", "small"], ["small"])


@pytest.mark.parametrize("answer", [None, 5, "unknown", ["large", 5], ZeroDivisionError])
async def test_a_function_that_chooses_nonsense_is_refused_at_submit(answer: Any) -> None:
    cue = Cue()
    cue.service("large", concurrent=1)

    def choose(work: Work) -> Any:
        if answer is ZeroDivisionError:
            raise ZeroDivisionError
        return answer

    cue.task("call", uses=choose)(no_op)
    with pytest.raises(runcue.SubmitError, match=r"'call'|'unknown'"):
        await cue.submit("call")
    assert sum((await cue.count()).values()) == 0


# --- Pausing --------------------------------------------------------------------------------------


async def test_a_paused_service_starts_nothing_until_it_is_resumed() -> None:
    cue = Cue()
    cue.service("api", concurrent=5)
    starts = using(cue, "api")
    async with cue:
        await cue.pause("api")
        work_id = await cue.submit("call")
        await asyncio.sleep(100)
        assert starts.at == []
        assert (await cue.explain(work_id)).reason == "paused"
        await cue.resume("api")
        await cue.join()
    assert clock() == 100
    assert [event.paused for event in await told(cue, "service_status")] == [True, False]


async def test_pausing_lets_what_runs_come_to_its_end() -> None:
    cue = Cue()
    cue.service("api", concurrent=5)
    using(cue, "api")
    async with cue:
        work_id = await cue.submit("call", params={"seconds": 10})
        await settle()
        await cue.pause("api")
        assert (await cue.wait(work_id)).state == "completed"


async def test_a_paused_queue_holds_only_its_own_work() -> None:
    cue = Cue()
    starts = Starts()
    cue.task("call")(starts)
    async with cue:
        await cue.pause("bulk")
        await cue.submit("call", id="held", queue="bulk")
        await cue.submit("call", id="free")
        await asyncio.sleep(10)
        assert starts.ids == ["free"]
        await cue.resume("bulk")
        await cue.wait("held")
    assert starts.ids == ["free", "held"]


async def test_a_pause_before_start_holds() -> None:
    cue = Cue()
    cue.service("api", concurrent=5)
    starts = using(cue, "api")
    await cue.pause("api")
    await cue.submit("call")
    async with cue:
        await asyncio.sleep(10)
        assert starts.at == []
        await cue.resume("api")
        await cue.join()


# --- Limits changed live --------------------------------------------------------------------------


async def test_a_higher_cap_is_used_at_once() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call", "params": {"seconds": 10}} for _ in range(4))
        await asyncio.sleep(1)
        cue.service("api", concurrent=4)
        await settle()
        assert starts.active == 4
        await cue.join()
    assert clock() == 11


async def test_a_lower_cap_holds_from_the_next_start_on() -> None:
    cue = Cue()
    cue.service("api", concurrent=4)
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call", "params": {"seconds": 10}} for _ in range(6))
        await asyncio.sleep(1)
        cue.service("api", concurrent=1)
        await cue.join()
    assert starts.most == 4
    assert [round(at - starts.at[0]) for at in starts.at] == [0, 0, 0, 0, 10, 20]


async def test_a_new_rate_counts_what_was_started_before_it() -> None:
    cue = Cue()
    cue.service("api", rate="100/min")
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(3))
        await asyncio.sleep(1)
        cue.service("api", rate="3/min")
        await cue.submit("call")
        await cue.join()
    assert starts.at[-1] - starts.at[0] == 60


async def test_a_limit_taken_away_frees_what_waited_for_it() -> None:
    cue = Cue()
    cue.service("api", rate="1/h")
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(5))
        await asyncio.sleep(1)
        cue.service("api")
        await cue.join()
    assert (len(starts.at), clock()) == (5, 1)


@pytest.mark.parametrize("limits", [{"rate": "0/min"}, {"rate": "60"}, {"concurrent": 0}, {"concurent": 5}])
async def test_a_bad_change_is_refused_and_the_old_limits_stay(limits: dict[str, Any]) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    starts = using(cue, "api")
    async with cue:
        await settle()
        with pytest.raises(ValueError, match=r"\w"):
            cue.service("api", **limits)
        await cue.submit_many({"task": "call", "params": {"seconds": 1}} for _ in range(3))
        await cue.join()
    assert starts.most == 1


async def test_a_service_declared_while_running_can_be_used() -> None:
    cue = Cue()
    async with cue:
        await settle()
        cue.service("late", concurrent=1)
        starts = using(cue, "late")
        await cue.submit_many({"task": "call", "params": {"seconds": 1}} for _ in range(3))
        await cue.join()
    assert (starts.most, clock()) == (1, 3)


# --- The far side says "slow down" ----------------------------------------------------------------


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpxError(Exception):
    """The shape of httpx and requests."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.response = Response(status, **headers)


class AiohttpError(Exception):
    """The shape of aiohttp."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def throttled_once(cue: Cue, error: Exception, *, retry: int = 1) -> list[tuple[str, int, float]]:
    """Register "call", whose first start raises; what started, with its attempt, when."""
    starts: list[tuple[str, int, float]] = []

    @cue.task("call", uses="api", retry=retry)
    async def call(work: Work) -> None:
        starts.append((work.id, work.attempt, clock()))
        if len(starts) == 1:
            raise error

    return starts


SLOW_DOWN: dict[str, tuple[Exception, float]] = {
    "RateLimited": (runcue.RateLimited(retry_after=12), 12),
    "RateLimited with text": (runcue.RateLimited(retry_after="2m"), 120),
    "RateLimited without a time": (runcue.RateLimited(), 1),
    "httpx 429": (HttpxError(429), 1),
    "httpx 429 with Retry-After": (HttpxError(429, Retry_After="30"), 30),
    "httpx 503 with Retry-After": (HttpxError(503, retry_after="7"), 7),
    "aiohttp 429": (AiohttpError(429, Retry_After="5"), 5),
}


@pytest.mark.parametrize(("error", "pause"), SLOW_DOWN.values(), ids=SLOW_DOWN.keys())
async def test_slow_down_pauses_the_whole_service_and_counts_no_attempt(
    error: Exception, pause: float
) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    starts = throttled_once(cue, error)
    async with cue:
        await cue.submit("call", id="a")
        await cue.submit("call", id="b")
        await cue.join()
    assert [(work_id, attempt) for work_id, attempt, _ in starts] == [("a", 1), ("a", 1), ("b", 1)]
    assert [at for *_, at in starts] == pytest.approx([0, pause, pause])
    assert (await cue.wait("a")).state == "completed"


async def test_503_without_retry_after_is_an_ordinary_failure() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    throttled_once(cue, HttpxError(503))
    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert work.state == "failed"


async def test_slow_down_may_name_another_of_the_services() -> None:
    cue = Cue()
    cue.service("api", concurrent=5)
    cue.service("storage", concurrent=5)
    times: dict[str, float] = {}

    @cue.task("both", uses=["api", "storage"])
    async def both(work: Work) -> None:
        if "both" not in times:
            times["both"] = clock()
            raise runcue.RateLimited(retry_after=30, service="storage")

    @cue.task("api", uses="api")
    async def api(work: Work) -> None:
        times["api"] = clock()

    @cue.task("storage", uses="storage")
    async def storage(work: Work) -> None:
        times["storage"] = clock()

    async with cue:
        await cue.submit("both")
        await asyncio.sleep(1)
        await cue.submit("api")
        await cue.submit("storage")
        await cue.join()
    assert times == {"both": 0, "api": 1, "storage": 30}


async def test_429_without_a_time_doubles_up_to_a_minute_and_starts_over_after_a_success() -> None:
    cue = Cue(throttle_timeout=10_000)
    cue.service("api", concurrent=1)
    times: list[float] = []
    plan = ["no"] * 9 + ["yes", "no", "yes"]

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        times.append(clock())
        if plan[len(times) - 1] == "no":
            raise HttpxError(429)

    async with cue:
        await cue.submit("call")
        await cue.submit("call")
        await cue.join()
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60, 0, 1])


async def test_one_burst_of_429_counts_as_one() -> None:
    cue = Cue()
    cue.service("api", concurrent=10)
    times: list[float] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        times.append(clock())
        await asyncio.sleep(0.1)
        if len(times) <= 10:
            raise HttpxError(429)

    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(10))
        await cue.join()
    assert times == pytest.approx([0] * 10 + [1.1] * 10)


async def test_throttling_is_told_with_its_end() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    throttled_once(cue, runcue.RateLimited(retry_after=12))
    async with cue:
        began = epoch()
        work_id = await cue.submit("call")
        await asyncio.sleep(1)
        explanation = await cue.explain(work_id)
        await cue.join()
    assert (explanation.reason, explanation.service) == ("throttled", "api")
    assert explanation.until == pytest.approx(began + 12)
    assert [event.until for event in await told(cue, "service_rate_limited")] == [explanation.until]
    assert [event.type for event in await told(cue, "failed", "retrying")] == []


async def test_work_throttled_for_longer_than_the_limit_fails_with_rate_limited() -> None:
    cue = Cue(throttle_timeout=60)
    cue.service("api", concurrent=1)
    times: list[float] = []

    @cue.task("call", uses="api", retry=5)
    async def call(work: Work) -> None:
        times.append(clock())
        raise runcue.RateLimited(retry_after=25)

    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert (work.state, work.error, work.attempt) == ("failed", "rate_limited", 1)
    assert times == [0, 25, 50]
    assert clock() == 60


async def test_a_pause_longer_than_the_limit_fails_the_work_at_the_limit() -> None:
    cue = Cue(throttle_timeout=5)
    cue.service("api", concurrent=1)
    failures: list[tuple[BaseException, bool]] = []

    @cue.task("call", uses="api", retry=5)
    async def call(work: Work) -> None:
        raise runcue.RateLimited(retry_after=100)

    @cue.on_failure
    def note(work: Work, error: BaseException, will_retry: bool) -> None:
        failures.append((error, will_retry))

    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert (work.error, clock()) == ("rate_limited", 5)
    [(error, will_retry)] = failures
    assert (type(error), will_retry) == (runcue.RateLimited, False)


async def test_the_last_refusal_is_what_the_callback_gets() -> None:
    cue = Cue(throttle_timeout=5)
    errors: list[BaseException] = []
    raised: list[BaseException] = []

    @cue.task("call")
    async def call(work: Work) -> None:
        await asyncio.sleep(3)
        raised.append(runcue.RateLimited(retry_after=4))
        raise raised[-1]

    cue.on_failure(lambda work, error: errors.append(error))
    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert (work.error, len(raised)) == ("rate_limited", 2)
    assert errors == raised[1:]
    assert [line.error for line in work.history] == [f"RateLimited: {raised[1]}"]


async def test_429_without_a_service_doubles_too() -> None:
    cue = Cue()
    times: list[float] = []

    @cue.task("call")
    async def call(work: Work) -> None:
        times.append(clock())
        if len(times) < 6:
            raise HttpxError(429)

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert times == pytest.approx([0, 1, 3, 7, 15, 31])


async def test_a_throttled_work_without_a_service_waits_alone() -> None:
    cue = Cue()
    times: dict[str, list[float]] = {"a": [], "b": []}

    @cue.task("call")
    async def call(work: Work) -> None:
        times[work.id].append(clock())
        if work.id == "a" and len(times["a"]) == 1:
            raise runcue.RateLimited(retry_after=9)

    async with cue:
        await cue.submit("call", id="a")
        await settle()
        await cue.submit("call", id="b")
        await cue.join()
    assert times == {"a": [0, 9], "b": [0]}


async def test_a_longer_pause_is_not_shortened_by_a_later_shorter_one() -> None:
    cue = Cue()
    cue.service("api", concurrent=2)
    times: list[tuple[str, float]] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        first = work.id not in [work_id for work_id, _ in times]
        times.append((work.id, clock()))
        if first:
            await asyncio.sleep(0 if work.id == "long" else 1)
            raise runcue.RateLimited(retry_after=100 if work.id == "long" else 5)

    async with cue:
        await cue.submit("call", id="long")
        await cue.submit("call", id="short")
        await cue.join()
    assert [at for _, at in times] == [0, 0, 100, 100]


# --- The clock on the wall ------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [3600, -3600, 10 * 365 * 86400])
async def test_setting_the_wall_clock_does_not_touch_a_window(jump: float) -> None:
    cue = Cue()
    cue.service("api", rate="2/min")
    starts = using(cue, "api")
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(5))
        await asyncio.sleep(1)
        asyncio.get_running_loop().jump_wall(jump)  # type: ignore[attr-defined]
        await cue.join()
    assert starts.crowded(2, 60) == []
    assert clock() == 120
