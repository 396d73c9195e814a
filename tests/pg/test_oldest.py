"""Older servers take less than newer ones: what is asked of the store is asked on the oldest that can be had, too."""

from __future__ import annotations

import asyncio

import pytest

import runcue
from runcue.testing import contract
from tests.pg.test_reader import tells_what_a_cue_tells
from tests.pg.test_store import is_as_in_memory, opened

BOUND = 240.0


async def test_a_unit_that_failed_more_than_once_is_read_with_its_attempts(pg_oldest: str) -> None:
    cue = runcue.Cue(pg_oldest)

    @cue.task(retry={"max_attempts": 2, "backoff": "fixed", "base_delay": 0.001, "jitter": False})
    async def call(work: runcue.Work) -> None:
        raise ConnectionError(f"no line {work.attempt}")

    async with cue, asyncio.timeout(BOUND):
        await cue.submit("call", id="bad", idempotency_key="k")
        await cue.join()
        found = await cue.get("bad")
        assert found is not None
        assert [line.error for line in found.history] == [f"ConnectionError: no line {n}" for n in (1, 2)]
        assert await cue.submit("call", idempotency_key="k", on_failed="return") == "bad"


@pytest.mark.parametrize(
    "check", [*contract.EVERY, *contract.SHARED], ids=lambda check: getattr(check, "__name__", "")
)
async def test_the_oldest_server_keeps_the_contract(check: contract.Check, pg_oldest: str) -> None:
    await check(lambda: opened(pg_oldest))


@pytest.mark.parametrize("seed", range(5, 8))
def test_a_random_trace_is_as_in_memory(seed: int, pg_oldest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_as_in_memory(seed, pg_oldest, monkeypatch)


def test_a_reader_tells_what_a_cue_tells(pg_oldest: str) -> None:
    tells_what_a_cue_tells(pg_oldest)
