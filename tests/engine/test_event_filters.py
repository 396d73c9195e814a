"""Events of one unit and of one group: all of theirs, no others, and no more is read than that."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Event, GroupNotFound, Reader, Work, WorkNotFound
from runcue.stores.sql import journal


def program(**options: Any) -> Cue:
    cue = Cue(**options)
    cue.service("api", concurrent=2)

    @cue.task(uses="api", retry=2)
    async def call(work: Work) -> int:
        await asyncio.sleep(1)
        if work.params.get("fails") and work.attempt == 1:
            raise OSError("no line")
        work.progress(0.5, "half")
        return int(work.params.get("page", 0))

    return cue


async def of(cue: Cue, *types: str, **where: Any) -> list[Event]:
    """The events so far."""
    last, found = await cue.last_event(), []
    cue._system.bus.end()  # type: ignore[union-attr] # readers finish with what there is
    async for event in cue.events(types or None, **where):
        assert event.seq <= last
        found.append(event)
    cue._system.bus.begin()  # type: ignore[union-attr]
    return found


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_the_events_of_a_unit_are_all_of_its_own() -> None:
    async with program(progress_interval=0) as cue:
        ids = [await cue.submit("call", params={"page": n, "fails": n == 3}, group="g") for n in range(6)]
        await cue.join()
        every = await of(cue)
        for work_id in ids:
            found = await of(cue, work=work_id)
            assert found == [event for event in every if event.work_id == work_id]
            assert found[0].type == "queued"
            assert found[-1].final
        assert types(await of(cue, work=ids[3])) == [
            "queued", "started", "failed", "retrying", "started", "progress", "completed",
        ]  # fmt: skip
        assert [one.result for one in await of(cue, "completed", work=ids[5])] == [5]
        after = (await of(cue, work=ids[3]))[3].seq
        assert types(await of(cue, work=ids[3], since=after)) == ["started", "progress", "completed"]


async def test_the_events_of_a_group_are_those_of_its_units_and_that_it_is_done() -> None:
    cue = program()
    ids = await cue.submit_many([{"task": "call", "group": "gh"[n % 2]} for n in range(6)])
    await cue.submit("call")
    async with cue:
        await cue.join()
        every = await of(cue)
        found = await of(cue, group="g")
        assert {event.group for event in found} == {"g"}
        assert {event.work_id for event in found} == {*ids[::2], None}
        assert found == [event for event in every if event.group == "g"]
        assert [(one.type, one.data["total"]) for one in found if one.work_id is None] == [("group_done", 3)]
        assert types(await of(cue, "completed", group="h")) == ["completed"] * 3


async def test_events_to_come_are_read_too() -> None:
    async with program() as cue:
        first = await cue.submit("call", group="g")
        await cue.wait(first)
        other = await cue.submit("call")
        second = await cue.submit("call", group="g")
        found = []
        async for event in cue.events("completed", group="g"):
            found.append(event.work_id)
            if event.work_id == second:
                break
        assert found == [first, second]
        await cue.wait(other)


async def test_what_is_not_there_has_no_events() -> None:
    async with program() as cue:
        with pytest.raises(WorkNotFound):
            await anext(aiter(cue.events(work="nobody")))
        with pytest.raises(GroupNotFound):
            await anext(aiter(cue.events(group="nobody")))


@pytest.mark.file
async def test_only_wanted_events_are_made_and_nothing_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    cue.task("call")(lambda work: None)
    async with cue:
        await cue.submit_many([{"task": "call"} for _ in range(2000)])
        await cue.join()
        await asyncio.sleep(1)
        work_id = await cue.submit("call", group="g")
        await cue.join()
    await cue.close()
    read: list[int] = []
    plain = journal.unpack

    def counted(body: bytes, first_seq: int, *more: Any) -> list[Event]:
        read.append(first_seq)
        return plain(body, first_seq, *more)

    monkeypatch.setattr(journal, "unpack", counted)
    with Reader(tmp_path / "queue.db") as reader:
        last = reader.last_event()
        assert types([*reader.events(work=work_id)]) == ["queued", "started", "completed"]
        assert len(read) <= 4
        assert min(read) > last - 1000
        read.clear()
        assert types([*reader.events(group="g")]) == ["queued", "started", "completed", "group_done"]
        assert len(read) <= 4
        with pytest.raises(GroupNotFound):
            next(reader.events(group="h"))
        with pytest.raises(WorkNotFound):
            next(reader.events(work="nobody"))
