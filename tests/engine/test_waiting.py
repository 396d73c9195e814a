"""What waiting says when nothing comes of it."""

import asyncio
import logging
from typing import Any, cast

import pytest

import runcue
from runcue import Cue
from tests.handlers import no_op


def declared(cue: Cue) -> None:
    cue.task("work")(no_op)


async def test_a_wait_that_takes_too_long_says_for_what_and_where_to_ask() -> None:
    cue = Cue()
    declared(cue)
    async with cue:
        await cue.submit("work", id="a", delay=60)
        for waiting in (cue.wait("a", timeout=3), cue.result("a", timeout="3s")):
            with pytest.raises(TimeoutError, match=r"^Unit 'a' has not ended within 3 s\. cue\.explain"):
                await waiting
        with pytest.raises(TimeoutError, match=r"^Not everything has ended within 3 s\. cue\.debug_blocked"):
            await cue.join(timeout=3)
    await cue.close()


NOT_STARTED = "nothing runs: this Cue was not started (use `async with cue`, or cue.start())"
STOPPED = "nothing runs: this Cue was stopped (cue.start() continues)"


@pytest.mark.memory
@pytest.mark.parametrize("ids", [None, "a"])
async def test_who_waits_for_work_of_a_cue_in_memory_that_was_not_started_is_told_once(
    caplog: pytest.LogCaptureFixture, ids: str | None
) -> None:
    cue = Cue()
    declared(cue)
    caplog.set_level(logging.WARNING, "runcue")
    await cue.submit("work", id="a")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await cue.join(ids, timeout=60)
    assert [one.message for one in caplog.records] == [NOT_STARTED]
    await cue.close()


@pytest.mark.memory
async def test_a_time_out_says_that_nothing_runs_and_whether_it_ever_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue()
    declared(cue)
    caplog.set_level(logging.WARNING, "runcue")
    await cue.submit("work", id="a", delay=60)
    for why in (NOT_STARTED, STOPPED):
        for waiting, what in (
            (cue.wait("a", timeout=1), "Unit 'a' has not"),
            (cue.join("a", timeout=1), "Not everything has"),
            (cue.join(timeout=1), "Not everything has"),
        ):
            with pytest.raises(TimeoutError) as caught:
                await waiting
            assert str(caught.value) == f"{what} ended within 1 s: {why}."
        cue.start()
        await cue.stop()
    with pytest.raises(TimeoutError):
        await cue.join(timeout=60)
    assert [one.message for one in caplog.records] == [STOPPED]
    await cue.close()


async def test_who_waits_and_then_starts_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    declared(cue)
    caplog.set_level(logging.WARNING, "runcue")
    await cue.submit("work", id="a")
    waiting = asyncio.create_task(cue.wait("a"))
    await asyncio.sleep(1)
    async with cue:
        assert (await waiting).state == runcue.WorkState.COMPLETED
        await asyncio.sleep(60)
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("retries", "retry=3"),
        ("rate", "cue.service"),
        ("queue", "submit"),
        ("kwargs", "params"),
        ("eta", "run_at"),
    ],
)
def test_what_other_libraries_call_it_leads_to_what_it_is_called_here(given: str, advice: str) -> None:
    with pytest.raises(runcue.UnknownOption, match=advice):
        Cue().task("work", **cast("dict[str, Any]", {given: 3}))
