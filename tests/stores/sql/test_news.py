"""News that come while somebody looks are not missed, although what he finds was read before them."""

import asyncio
from typing import Any

from runcue.core.model.events import Event, EventFilter, Passage
from runcue.core.model.record import Record, Spec, WorkState
from runcue.engine.bus import Bus
from runcue.engine.waiters import Waiters

PATIENCE = 240.0


def record(state: WorkState) -> Record:
    return Record("one", Spec("one", "task", b"{}", ()), 1, 0.0, 0.0, state)


class SnapshotReader:
    """Says what it read in the moment before something happened, and only then lets that be told."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.tell: Any = None

    def next(self) -> Any:
        answer = self._answers.pop(0)
        if self._answers:
            self.tell()
        return answer

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        found: Record = self.next()
        return {found.id: found}

    async def log(self, after: int, limit: int, wanted: EventFilter) -> Passage:
        found: list[Event] = self.next()
        return Passage(found, found[-1].seq if found else after)


async def test_who_waits_hears_of_an_end_that_came_while_it_was_looked_for() -> None:
    looks = SnapshotReader(record(WorkState.RUNNING), record(WorkState.COMPLETED))
    waiters = Waiters(asyncio.get_running_loop(), looks)  # type: ignore[arg-type] # nothing else is asked of it
    looks.tell = waiters.recheck
    future = waiters.final("one")
    waiters.recheck()
    async with asyncio.timeout(PATIENCE):
        found = await future
    assert found is not None
    assert found.state is WorkState.COMPLETED


async def test_a_reader_goes_on_with_an_event_that_was_told_while_it_looked() -> None:
    looks = SnapshotReader([], [Event("queued", 1, 0.0)])
    bus = Bus(None, looks.log)
    looks.tell = bus.wake
    async with asyncio.timeout(PATIENCE):
        async for event in bus.read():
            assert event.seq == 1
            break


async def test_a_reader_reads_what_was_told_before_the_end_while_it_looked() -> None:
    looks = SnapshotReader([], [Event("queued", 1, 0.0)], [])
    bus = Bus(None, looks.log)
    looks.tell = bus.end
    async with asyncio.timeout(PATIENCE):
        assert [event.seq async for event in bus.read()] == [1]
