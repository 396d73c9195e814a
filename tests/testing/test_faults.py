"""Faults on virtual time: a Cue that is killed, and one whose disk says no."""

import asyncio
from pathlib import Path

import pytest

import runcue
from runcue.testing import fail_commit, fill_disk, kill, run


def node(path: Path, calls: list[tuple[str, str]], name: str) -> runcue.Cue:
    cue = runcue.Cue(path, durability="relaxed")
    cue.service("api", concurrent=2)

    @cue.task("work", uses="api")
    async def work(work: runcue.Work) -> str:
        calls.append((name, work.id))
        await asyncio.sleep(10)
        calls.append((f"{name} ended", work.id))
        return name

    return cue


def test_what_a_killed_cue_ran_runs_elsewhere_and_nothing_of_it_goes_on(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    async def main() -> list[runcue.Work]:
        one, other = (node(tmp_path / "queue.db", calls, name) for name in ("one", "other"))
        one.start()
        await one.submit_many([{"task": "work", "id": name} for name in "abc"])
        await asyncio.sleep(1)
        kill(one)
        with pytest.raises(runcue.CueClosed):
            await one.submit("work")
        other.start()
        await other.join()
        works = [await other.wait(name) for name in "abc"]
        await other.stop()
        await other.close()
        return works

    works = run(main(), limit=1000)
    assert {work.result for work in works} == {"other"}
    assert [(work.id, work.attempt) for work in works] == [("a", 2), ("b", 2), ("c", 1)]
    assert calls[:2] == [("one", "a"), ("one", "b")]
    assert not [call for call in calls if call[0] == "one ended"]


def test_killing_what_was_never_opened_or_is_in_memory_is_harmless() -> None:
    async def main() -> int:
        kill(runcue.Cue())
        cue = runcue.Cue()
        seen = []

        @cue.task
        async def work(work: runcue.Work) -> None:
            seen.append(work.id)
            await asyncio.sleep(1)
            seen.append(work.id)

        cue.start()
        await cue.submit(work)
        await asyncio.sleep(0.5)
        kill(cue)
        await asyncio.sleep(5)
        return len(seen)

    assert run(main(), limit=100) == 1


@pytest.mark.parametrize("took_place", [True, False])
def test_a_commit_that_fails_is_accepted_once_if_it_took_place_and_refused_if_not(
    tmp_path: Path, took_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[str, str]] = []

    async def main() -> tuple[bool, int]:
        cue = node(tmp_path / "queue.db", calls, "one")
        await cue.count()
        await asyncio.sleep(1)
        fail_commit(cue, took_place=took_place)
        try:
            await cue.submit("work", id="a")
        except runcue.StoreError:
            is_refused = True
        else:
            is_refused = False
        cue.start()
        await asyncio.sleep(5)
        await cue.join()
        amount = sum((await cue.count()).values())
        await cue.stop()
        await cue.close()
        return is_refused, amount

    assert run(main(), limit=1000) == (not took_place, int(took_place))
    assert calls == ([("one", "a"), ("one ended", "a")] if took_place else [])


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    async def main() -> str:
        cue = node(tmp_path / "queue.db", [], "one")
        await cue.count()
        await asyncio.sleep(1)
        fill_disk(cue)
        with pytest.raises(runcue.StorageFull):
            await cue.submit("work", id="a")
        work_id = await cue.submit("work", id="a")
        await cue.close()
        return work_id

    assert run(main(), limit=1000) == "a"


def test_a_queue_in_memory_has_no_disk() -> None:
    async def main() -> None:
        cue = runcue.Cue()
        await cue.count()
        with pytest.raises(runcue.ConfigError, match="in a file"):
            fill_disk(cue)

    run(main())
