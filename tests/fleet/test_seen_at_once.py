"""What one process accepted is seen by all others at once, also while nobody has decided over it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState


@asynccontextmanager
async def three(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Cue, Cue, asyncio.Event]]:
    """One that submits and one that looks, beside a third that decides when the event is set."""
    decider, one, other = cues = [Cue(path / "queue.db", durability="relaxed") for _ in range(3)]
    may_decide = asyncio.Event()

    async def work(work: Work) -> None: ...

    for cue in cues:
        cue.task("work")(work)
    decider.start()
    for cue in cues:
        await cue.services()  # everybody knows of it by then
    assert decider._system is not None
    store = decider._system.store
    turn = store.turn

    async def later(*given: Any) -> Any:
        await may_decide.wait()
        return await turn(*given)

    monkeypatch.setattr(store, "turn", later)
    monkeypatch.setattr("runcue.engine.leadership.SHORTEST", 30.0)
    monkeypatch.setattr("runcue.engine.leadership.LONGEST", 30.0)
    try:
        yield one, other, may_decide
    finally:
        may_decide.set()
        for cue in (other, one, decider):
            await cue.close()


async def test_what_another_process_accepted_is_counted_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path, monkeypatch) as (one, other, _):
        ids = [await one.submit("work", params={"n": number}) for number in range(3)]
        assert (await other.count())[WorkState.PENDING] == 3
        assert [work.id for work in await other.list()] == ids[::-1]
        with runcue.Reader(tmp_path / "queue.db") as reader:
            assert reader.count()[WorkState.PENDING] == 3
            assert [work.id for work in reader.list("pending")] == ids[::-1]
            assert [work.id for work in reader.list(before=ids[1])] == ids[:1]
            assert reader.tally()["pending"] == {"work": 3}
            assert reader.job_counts()["pending"] == 3
            assert [job["id"] for job in reader.jobs()] == ids[::-1]
            assert [job["state"] for job in reader.jobs("pending", limit=2)] == ["pending"] * 2
            assert [job["id"] for job in reader.jobs(ids=ids[:1])] == ids[:1]
            assert reader.jobs("dead") == reader.jobs(queue="nowhere") == []


async def test_join_waits_for_what_another_process_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path, monkeypatch) as (one, other, may_decide):
        work_id = await one.submit("work")
        joined = asyncio.create_task(other.join())
        for _ in range(3):
            assert (await other.count())[WorkState.PENDING] == 1
        assert not joined.done()
        may_decide.set()
        await joined
        work = await other.get(work_id)
        assert work is not None
        assert work.state == "completed"


async def test_what_nobody_has_decided_over_is_explained_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path, monkeypatch) as (one, other, may_decide):
        first, second = [await one.submit("work", params={"n": number}) for number in range(2)]
        why = await other.explain(first)
        assert (why.reason, why.state) == ("inbox", WorkState.PENDING)
        assert why.details == "accepted; the deciding process has yet to take it in"
        assert [(row["work"].id, row["reason"]) for row in await other.debug_blocked()] == [
            (first, "inbox"),
            (second, "inbox"),
        ]
        assert {why.reason for why in (await other.explain_many([first, second])).values()} == {"inbox"}
        with runcue.Reader(tmp_path / "queue.db") as reader:
            assert reader.explain(first).reason == "inbox"
            assert {why.reason for why in reader.explain_many([first, second]).values()} == {"inbox"}
        may_decide.set()
        await other.join()
        assert (await other.explain(first)).reason == "completed"
        assert await other.debug_blocked() == []
