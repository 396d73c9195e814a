"""Nobody waits for ever where another process decides: for room, for an answer, or for what it did itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work, WorkState
from runcue.engine.peer import Peer
from runcue.ports import Takeover

PATIENCE = 120.0


async def work(work: Work) -> None: ...


@asynccontextmanager
async def pair(path: Path, **options: Any) -> AsyncIterator[tuple[Cue, Cue]]:
    """One that decides, and another."""
    one, other = (Cue(path / "queue.db", durability="relaxed", **options) for _ in range(2))
    for cue in (one, other):
        cue.task("work")(work)
    try:
        async with asyncio.timeout(PATIENCE):
            await one.count()
            await other.count()
            yield (other, one) if peer_of(other).decides else (one, other)
    finally:
        await other.close()
        await one.close()


def peer_of(cue: Cue) -> Peer:
    assert cue._system is not None
    peer = cue._system.engine._peer
    assert peer is not None
    return peer


async def test_a_submission_that_waits_for_room_goes_on_waiting_where_somebody_else_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, max_queued=1, reject_policy="block") as (one, other):
        await one.submit("work", id="first")
        blocked = asyncio.create_task(one.submit("work", id="second"))
        await one.count()
        leadership = peer_of(other)._leadership
        with monkeypatch.context() as patch:  # as if the one had stood still
            patch.setattr(leadership, "due", lambda now: Takeover(leadership.head.decider, None))
            assert await other.cancel("first")
        assert await blocked == "second"


async def test_answers_go_to_who_asked(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        for number in range(10):
            other.service(f"service-{number}", concurrent=1)
        third = Cue(tmp_path / "queue.db", durability="relaxed")
        third.service("another", concurrent=1)
        await third.count()
        await other.count()
        await one.count()
        deciding = [
            scheduler for cue in (one, other, third) if (scheduler := peer_of(cue)._scheduler) is not None
        ]
        assert [scheduler.ledger.answers._refs for scheduler in deciding] == [{} for _ in deciding]
        for number in range(20):
            await one.pause(f"queue-{number}")
        await third.close()


async def test_who_goes_on_submitting_sees_what_it_has_done_so_far(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other):
        is_over = False

        async def submit() -> None:
            while not is_over:
                await other.submit("work")

        busy = [asyncio.create_task(submit()) for _ in range(2)]
        work_id = await other.submit("work", id="mine")
        assert (await other.count())[WorkState.PENDING]
        assert (await other.explain(work_id)).reason
        is_over = True
        await asyncio.gather(*busy)


async def test_who_is_not_told_looks_before_it_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (one, other):
        takeovers: list[Takeover | None] = []
        assert other._system is not None
        store = other._system.store
        turn = store.turn

        async def noted(decide: Any, post: Any, takeover: Takeover | None) -> Any:
            takeovers.append(takeover)
            return await turn(decide, post, takeover)

        monkeypatch.setattr(store, "turn", noted)
        peer = peer_of(other)
        monkeypatch.setattr(
            "runcue.engine.leadership.LONGEST", 1e6
        )  # it is patient, whatever the machine is at
        monkeypatch.setattr(peer._leadership, "_slowness", lambda now: 1e6)
        await other.submit("work")
        await one.pause("elsewhere")  # with that it has decided over all that was left
        takeovers.clear()
        monkeypatch.setattr(
            peer._leadership, "_unread_since", -1e9
        )  # for long it has not, as far as the other knows
        await other.count()
        assert takeovers == []
