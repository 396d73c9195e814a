"""A start that was given up before its process has read it takes up no place."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from runcue import Cue, Work, WorkState
from runcue.core.model.state import Head
from runcue.ports import Received

PATIENCE = 60.0


def lose_letters(cue: Cue, monkeypatch: pytest.MonkeyPatch, is_enough: Callable[[str], bool]) -> None:
    """Have the next letters of that process lost that say this, once, as with a connection."""
    assert cue._system is not None
    mailbox: Any = cue._system.store._tables.mailbox  # type: ignore[union-attr] # it is one in a file
    received = mailbox.received
    lost: list[tuple[str, str]] = []

    def losing(head: Head, letters: list[tuple[str, str]]) -> Received:
        if not lost and any(is_enough(body) for _, body in letters):
            lost.extend(letters)
            mailbox.letters_may_be_lost()
            letters = []
        return cast(Received, received(head, letters))

    monkeypatch.setattr(mailbox, "received", losing)


async def test_who_lost_the_word_that_its_work_is_cancelled_stops_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work(work: Work) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    one, other = (Cue(tmp_path / "queue.db", durability="relaxed") for _ in range(2))
    for cue in (one, other):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE):
        await one.count()
        one.start(queues=["elsewhere"])
        await one.count()
        other.start(queues=["default"])
        await other.count()
        await one.submit("work", id="a")
        await began.wait()
        lose_letters(other, monkeypatch, lambda body: "stop" in body)
        assert await one.cancel("a")
        await ended.wait()
        await other.close()
        await one.close()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_was_cancelled_before_it_was_read_leaves_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    ran: list[str] = []

    async def work(work: Work) -> None:
        ran.append(work.id)

    one, other = (Cue(tmp_path / "queue.db", durability="relaxed", max_running=1) for _ in range(2))
    for cue in (one, other):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE):
        await one.count()
        one.start(queues=["elsewhere"])
        await one.count()
        await other.count()
        other.start(queues=["default"])
        await other.count()
        assert other._system is not None
        store, may_read, under_way = other._system.store, asyncio.Event(), asyncio.Lock()
        may_read.set()

        def later(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def gated(*given: Any) -> Any:
                await may_read.wait()
                async with under_way:
                    return await step(*given)

            return gated

        for name in ("exchange", "turn"):
            monkeypatch.setattr(store, name, later(getattr(store, name)))
        await other.pause(
            "nowhere"
        )  # with that it is known to serve, and whatever was under way before is over
        may_read.clear()
        async with under_way:
            await one.submit("work", id="a")
        while not (await one.count())[WorkState.RUNNING]:
            pass
        assert await one.cancel("a")
        if is_lost:
            lose_letters(other, monkeypatch, lambda body: True)
        may_read.set()
        await one.submit("work", id="b")
        await one.result("b")
        assert ran == ["b"]
        await other.close()
        await one.close()
