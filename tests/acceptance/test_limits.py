"""Limits as a user feels them: never more at once, never more in a window, the best one first."""

import asyncio
from collections import deque
from time import monotonic

import runcue
from runcue import PriorityContext, Work, WorkState
from tests.patience import BOUND, happens


async def test_no_more_run_at_once_than_a_service_allows() -> None:
    cue = runcue.Cue()
    cue.service("ferry", concurrent=3, rate="1000/s")
    aboard = 0
    most = 0

    @cue.task("cross", uses="ferry")
    async def cross(work: Work) -> None:
        nonlocal aboard, most
        aboard += 1
        most = max(most, aboard)
        await asyncio.sleep(0.01)
        aboard -= 1

    async with cue:
        for _ in range(12):
            await cue.submit("cross")
        await cue.join(timeout=BOUND)

    assert most == 3
    assert (await cue.count())[WorkState.COMPLETED] == 12


async def test_no_window_holds_more_starts_than_the_rate() -> None:
    cue = runcue.Cue()
    cue.service("gate", rate="4/300ms", concurrent=50)
    entered: list[float] = []

    @cue.task("enter", uses="gate")
    async def enter(work: Work) -> None:
        entered.append(monotonic())

    async with cue:
        await cue.submit_many({"task": "enter"} for _ in range(10))
        await cue.join(timeout=BOUND)

    assert len(entered) == 10
    last: deque[float] = deque(maxlen=5)
    for moment in entered:
        last.append(moment)
        if len(last) == 5:  # the fifth of any five in a row comes a window after the first
            assert last[-1] - last[0] > 0.2  # a window counts from a hair before the handler's first line


async def test_a_full_service_does_not_hold_up_another() -> None:
    cue = runcue.Cue()
    cue.service("slow lane", concurrent=1)
    cue.service("fast lane", concurrent=1)
    release = asyncio.Event()

    @cue.task("slow", uses="slow lane")
    async def slow(work: Work) -> None:
        await happens(release)

    @cue.task("fast", uses="fast lane")
    async def fast(work: Work) -> None: ...

    async with cue:
        await cue.submit("slow")
        stuck = await cue.submit("slow")
        passed = await cue.submit("fast")
        assert (await cue.wait(passed, BOUND)).state is WorkState.COMPLETED
        reason = await cue.explain(stuck)
        assert (reason.reason, reason.service) == ("concurrency", "slow lane")
        release.set()
        await cue.join(timeout=BOUND)


async def test_the_best_of_three_submitted_in_a_row_goes_first() -> None:
    cue = runcue.Cue()
    cue.service("lift", concurrent=1, rate="600/min")
    rode: list[str] = []

    @cue.task("ride", uses="lift")
    async def ride(work: Work) -> None:
        rode.append(work.params["who"])

    @cue.priority
    def by_rank(ctx: PriorityContext) -> float:
        assert ctx.wait_time >= 0
        assert 1 <= ctx.queue_depth <= 3
        rank: float = ctx.work.params["rank"]
        return rank

    cue.start()
    await cue.submit("ride", params={"who": "clerk", "rank": 0.2})
    await cue.submit("ride", params={"who": "doctor", "rank": 0.95})
    await cue.submit("ride", params={"who": "visitor", "rank": 0.4})
    await cue.join(timeout=BOUND)
    await cue.stop()

    assert rode == ["doctor", "visitor", "clerk"]


async def test_without_a_callback_the_number_given_at_submit_decides_then_the_order() -> None:
    cue = runcue.Cue()
    cue.service("desk", concurrent=1)
    served: list[int] = []

    @cue.task("serve", uses="desk")
    async def serve(work: Work) -> None:
        served.append(work.params["ticket"])

    for ticket, priority in ((1, 0), (2, 0), (3, 5)):
        await cue.submit("serve", params={"ticket": ticket}, priority=priority)
    async with cue:
        await cue.join(timeout=BOUND)

    assert served == [3, 1, 2]


async def test_a_paused_service_starts_nothing_until_it_is_resumed() -> None:
    cue = runcue.Cue()
    cue.service("crane", concurrent=2)

    @cue.task("hoist", uses="crane")
    async def hoist(work: Work) -> None: ...

    async with cue:
        await cue.pause("crane")
        work_id = await cue.submit("hoist")
        assert (await cue.explain(work_id)).reason == "paused"
        await cue.resume("crane")
        assert (await cue.wait(work_id, BOUND)).state is WorkState.COMPLETED


async def test_a_service_declared_again_has_its_new_limit_at_once() -> None:
    cue = runcue.Cue()
    cue.service("pool", concurrent=1)
    together = asyncio.Event()
    inside = 0

    @cue.task("swim", uses="pool")
    async def swim(work: Work) -> None:
        nonlocal inside
        inside += 1
        if inside == 2:
            together.set()
        await happens(together)

    async with cue:
        await cue.submit_many([{"task": "swim"}, {"task": "swim"}])
        cue.service("pool", concurrent=2)
        await happens(together)
        await cue.join(timeout=BOUND)
