"""How works are found, page by page, and what hangs together; the same from a Cue and from a Reader."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Reader, Work, WorkNotFound
from runcue.errors import InvalidOption
from runcue.testing import settle
from tests.handlers import no_op


def program(**options: Any) -> Cue:
    cue = Cue(**options)
    cue.service("api", concurrent=1)
    cue.service("db", per="customer", concurrent=1)

    @cue.task(uses="api")
    async def call(work: Work) -> None:
        if work.params.get("fails"):
            raise OSError("no line to Host 7")

    cue.task("store", uses="db")(no_op)
    return cue


async def some(cue: Cue) -> list[str]:
    """Ten works, the newest first."""
    ids = []
    for number in range(8):
        params = {"page": f"Seite {number}", "fails": number % 2}
        ids.append(await cue.submit("call", params=params, queue="night" if number < 4 else "default"))
    ids.append(await cue.submit("store", params={"customer": "c1"}, target="/out/x"))
    ids.append(await cue.submit("store", params={"customer": "c2"}, depends_on=[ids[0], ids[8]]))
    await cue.join()
    return list(ids[::-1])


async def test_pages_follow_each_other_until_there_is_nothing_left() -> None:
    cue = program()
    async with cue:
        ids = await some(cue)
        pages, before = [], None
        for _ in range(5):
            page = [work.id for work in await cue.list(limit=3, before=before)]
            if not page:
                break
            pages.append(page)
            before = page[-1]
        assert pages == [ids[0:3], ids[3:6], ids[6:9], ids[9:]]


async def test_works_are_found_by_what_is_true_of_them() -> None:
    cue = program()
    async with cue:
        ids = await some(cue)

        async def found(**query: Any) -> list[str]:
            return [work.id for work in await cue.list(**query)]

        assert await found(queue="night") == ids[6:]
        assert await found(service="db") == ids[:2]
        assert await found(service="api", state="failed") == [ids[2], ids[4], ids[6], ids[8]]
        assert await found(search="SEITE 3") == [ids[6]]
        assert await found(search="host 7", limit=1) == [ids[2]]
        assert await found(search="/out/") == [ids[1]]
        assert await found(search=ids[5][-8:]) == [ids[5]]
        assert await found(search="%") == await found(search="page*") == []
        assert await found(queue="night", search="seite", before=ids[7]) == ids[8:]


async def test_a_page_after_work_that_is_gone_is_an_error() -> None:
    cue = program()
    async with cue:
        with pytest.raises(WorkNotFound):
            await cue.list(before="nobody")
        for wrong in ({"before": ""}, {"search": ""}, {"search": 7}, {"queue": "a\nb"}, {"service": ""}):
            with pytest.raises(InvalidOption):
                await cue.list(**wrong)


@pytest.mark.memory
async def test_a_long_search_lets_others_go_on() -> None:
    cue = program()
    ids = await cue.submit_many(
        [{"task": "call", "params": {"page": f"no. {number}"}, "delay": 60} for number in range(10_000)]
    )
    steps = 0

    async def others() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    sevens = [work_id for number, work_id in enumerate(ids) if str(number).startswith("7")]
    assert [work.id for work in await cue.list(search="no. 7")] == sevens[:-101:-1]
    assert [work.id for work in await cue.list(search="no. 123", limit=3)] == [
        ids[1239],
        ids[1238],
        ids[1237],
    ]
    assert steps >= 4
    assert [work.id for work in await cue.list(search="nowhere")] == []
    beside.cancel()
    await cue.close()


async def test_who_runs_after_a_work_is_told() -> None:
    cue = program()
    async with cue:
        ids = await some(cue)
        assert [work.id for work in await cue.dependents(ids[9])] == [ids[0]]
        assert await cue.dependents(ids[0]) == await cue.dependents("nobody") == []
        more = [await cue.submit("call", depends_on=[ids[9]]) for _ in range(3)]
        assert [work.id for work in await cue.dependents(ids[9], limit=3)] == [ids[0], *more[:2]]


async def test_many_are_explained_at_once() -> None:
    cue = program()
    await cue.submit("call", id="first")
    await cue.submit("call", id="later", delay=60)
    answers = await cue.explain_many(["later", "first", "nobody"])
    assert {name: why.reason for name, why in answers.items()} == {
        "later": "scheduled",
        "first": "not_started",
    }
    assert answers["later"].until == pytest.approx(await cue.now() + 60)
    await cue.close()


async def test_what_is_alive_is_counted_by_task() -> None:
    cue = program()
    await cue.submit("call", delay=60)
    await cue.submit("call", delay=60)
    await cue.submit("store", params={"customer": "c"}, delay=60)
    assert await cue.tally() == {"pending": {"call": 2, "store": 1}, "running": {}}
    await cue.close()


async def test_the_latest_event_is_where_to_read_on_from() -> None:
    cue = program()
    async with cue:
        assert await cue.last_event() == 0
        await some(cue)
        numbers = []
        async for event in cue.events():
            numbers.append(event.seq)
            if event.seq == await cue.last_event():
                break
        assert len(numbers) >= 30
        last = await cue.last_event()
        assert numbers[-1] == last
        await cue.submit("call")
        async for event in cue.events(since=last):
            assert (event.seq, event.type) == (last + 1, "queued")
            break


async def test_paused_queues_are_told() -> None:
    cue = program()
    assert await cue.paused() == []
    await cue.pause("night")
    await cue.pause("api")
    assert await cue.paused() == ["night"], "a service is none"
    await cue.resume("night")
    assert await cue.paused() == []
    await cue.close()


@pytest.mark.file
async def test_a_reader_finds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    cue = program(store=str(path))
    async with cue:
        ids = await some(cue)
        await cue.submit("call", delay=60, queue="night")
        await settle()
        with Reader(path) as reader:
            for query in (
                {},
                {"queue": "night"},
                {"service": "db"},
                {"search": "SEITE"},
                {"before": ids[3], "limit": 2},
                {"state": "failed", "task": "call", "search": "host", "before": ids[4]},
            ):
                assert reader.list(**query) == await cue.list(**query), query
            assert reader.dependents(ids[9]) == await cue.dependents(ids[9])
            assert reader.tally() == await cue.tally()
            assert reader.last_event() == await cue.last_event() > 30
            with pytest.raises(WorkNotFound):
                reader.list(before="nobody")
