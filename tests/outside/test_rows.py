"""Rows that somebody inserts in a transaction of their own: each committed one is taken once, by whoever decides."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runcue import Cue, Reader, Work, WorkState
from runcue.stores.sql import submissions
from tests.outside.inserting import Outsider, on_file
from tests.patience import until
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)


async def test_a_committed_row_runs_and_one_that_was_rolled_back_never_was(outsider: Outsider) -> None:
    cue, ran = Cue(outsider.target), []

    @cue.task
    async def task(page: int) -> int:
        ran.append(page)
        return page

    async with cue:
        await cue.count()
        with pytest.raises(ZeroDivisionError):
            roll_back(outsider, "gone")
        outsider.submit("kept", params={"page": 2})
        work = await until_ended(cue, "kept")
        assert (work.result, ran) == (2, [2])
        assert await cue.get("gone") is None
        assert outsider.left() == 0


def roll_back(outsider: Outsider, id: str) -> None:
    """Submit a unit in a transaction that does not end well."""
    with outsider.transaction() as execute:
        outsider.insert(execute, "submit", id, {"task": "task", "params": {"page": 1}})
        raise ZeroDivisionError


async def until_ended(cue: Cue, id: str) -> Work:
    """Wait for a unit that nobody has told this process of."""
    work = await cue.get(id)
    assert work is not None
    return await cue.wait(id, 60)


async def test_wake_has_a_row_taken_that_no_look_would_find(
    outsider: Outsider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.stores.sql.submission_watch.EVERY", 1000.0)
    cue = Cue(outsider.target)
    cue.task("task")(handler)
    async with cue:
        await cue.count()
        outsider.submit("a")
        cue.wake()
        assert (await cue.wait("a", 60)).state is WorkState.COMPLETED


async def handler() -> None: ...


async def test_a_row_is_a_pending_unit_in_the_inbox_until_it_is_taken(
    outsider: Outsider, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_empty(outsider.target)
    outsider.submit("a", params={"page": 1}, priority=2)
    outsider.submit("b", "other", depends_on=["a"])
    with Reader(outsider.target) as reader:
        work = reader.get("a")
        assert work is not None
        assert (work.state, work.params, work.priority) == (WorkState.PENDING, {"page": 1}, 2)
        assert [one.id for one in reader.list()] == ["b", "a"]
        assert reader.count()[WorkState.PENDING] == 2
        assert reader.tally()["pending"] == {"task": 1, "other": 1}
        assert reader.explain("b").reason == "inbox"


async def test_rows_that_were_there_before_anybody_came_are_taken(outsider: Outsider) -> None:
    await make_empty(outsider.target)
    outsider.submit("a")
    outsider.submit("b")
    outsider.change("cancel", "b")
    cue = Cue(outsider.target)
    cue.task("task")(handler)
    async with cue:
        await cue.join(timeout=60)
        assert [str((await until_ended(cue, id)).state) for id in "ab"] == ["completed", "cancelled"]
        outsider.change("retry", "b", cascade=True)
        cue.wake()
        await cue.join(timeout=60)
        work = await cue.get("b")
        assert work is not None
        assert work.state is WorkState.COMPLETED


async def test_more_rows_than_a_turn_takes_are_all_taken_once_and_in_order(
    outsider: Outsider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MOST", 7)
    cue, ran = Cue(outsider.target), []

    @cue.task
    async def task(n: int) -> None:
        ran.append(n)

    cue.service("one", concurrent=1)
    async with cue:
        await cue.count()
        with outsider.transaction() as execute:
            for n in range(50):
                outsider.insert(execute, "submit", f"u{n}", {"task": "task", "params": {"n": n}})
        cue.wake()
        await until(lambda: len(ran) == 50)
        await cue.join(timeout=60)
        assert sorted(ran) == list(range(50))
        assert (await cue.count())[WorkState.COMPLETED] == 50


async def test_rows_that_say_something_wrong_become_failed_units(outsider: Outsider) -> None:
    cue = Cue(outsider.target)
    wrong = {
        "params": {"task": "task", "params": [1]},
        "field": {"task": "task", "colour": "red"},
        "task": {"params": {}},
        "queue": {"task": "task", "queue": "\n"},
        "retry": {"task": "task", "retry": {"max_attempts": "many"}},
        "key": {"task": "task", "idempotency_key": ""},
        "need": {"task": "task", "depends_on": [""]},
        "type": {"task": "task", "priority": "high"},
    }
    async with cue:
        await cue.count()
        with outsider.transaction() as execute:
            for id, item in wrong.items():
                outsider.insert(execute, "submit", id, item)
            outsider.insert(execute, "submit", "\n", {"task": "task"})
        cue.wake()
        await until(lambda: not outsider.left())
        dead = {work.id: work for work in await cue.dead()}
        assert {*wrong} <= {*dead}
        assert len(dead) == len(wrong) + 1
        assert all("Error: " in str(work.error) for work in dead.values())
        assert "no JSON object" in str(dead["params"].error)


async def test_a_row_without_sense_is_left_and_reported_and_holds_up_no_other(
    outsider: Outsider, caplog: pytest.LogCaptureFixture
) -> None:
    cue = Cue(outsider.target)
    cue.task("task")(handler)
    async with cue:
        await cue.count()
        with outsider.transaction() as execute:
            outsider.insert(execute, "submit", "broken", '{"task": ')
            outsider.insert(execute, "teleport", "a", {})
            outsider.insert(execute, "submit", "a", {"task": "task"})
        cue.wake()
        await until(lambda: outsider.left() == 2)
        assert (await cue.wait("a", 60)).state is WorkState.COMPLETED
        outsider.submit("b")
        cue.wake()
        assert (await until_ended(cue, "b")).state is WorkState.COMPLETED
        assert (await cue.count())[WorkState.FAILED] == 0
    left = [record.message for record in caplog.records if "left to others" in record.message]
    assert len(left) == 2
    assert {record.levelno for record in caplog.records if record.message in left} == {logging.ERROR}


PROGRAM = """
import asyncio, sys, runcue
async def main():
    cue = runcue.Cue(sys.argv[1])
    @cue.task
    async def task(): pass
    async with cue:
        await cue.join(timeout=60)
asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["turn.decided", "turn.written", "turn.committed"])
async def test_a_row_is_neither_lost_nor_taken_twice_by_a_process_that_is_killed(
    outsider: Outsider, place: str, tmp_path: Path
) -> None:
    await make_empty(outsider.target)
    for number in range(5):
        outsider.submit(f"u{number}")
    for passing in (1, 2):  # a unit that three processes died with would fail
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", PROGRAM, outsider.target],
            env={**os.environ, "RUNCUE_CRASH_AT": f"{place}:{passing}"},
            capture_output=True,
            check=False,
        )
        with Reader(outsider.target) as reader:
            assert sum(reader.count().values()) == 5, (passing, killed.stderr)
    cue = Cue(outsider.target)
    cue.task("task")(handler)
    async with cue:
        await cue.join(timeout=60)
        counts = await cue.count()
        assert counts[WorkState.COMPLETED] == 5
        assert sum(counts.values()) == 5


async def test_another_process_speaks_up_when_the_deciding_one_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outsider = on_file(tmp_path / "queue.db")
    one, other = (Cue(outsider.target) for _ in range(2))
    for cue in (one, other):
        cue.task("task")(handler)
    await one.count()
    other.start()
    await other.count()
    assert one._system is not None
    never = asyncio.Event()

    async def stopped(*given: object) -> None:
        await never.wait()

    monkeypatch.setattr(one._system.store, "turn", stopped)  # as if its process were stopped
    outsider.submit("a")
    assert (await until_ended(other, "a")).state is WorkState.COMPLETED
    await other.close()
    one._system.engine.abandon()
    await one.close()
