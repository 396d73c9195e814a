"""Mistakes planted between two processes that share a file, on virtual time: each is given away by a small story.

A story is what happens where nothing is wrong; with the mistake it does not come to its end, or it tells of something
else. The swarms find the others (tests/sim/test_planted.py, tests/core/schedule/test_planted.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

import runcue
from runcue.core.ledger.fleet import Fleet
from runcue.core.model.record import Record
from runcue.core.schedule.plan import Hello, Plan, Post
from runcue.core.schedule.scheduler import Scheduler
from runcue.engine import decision, engine
from runcue.engine.leadership import Leadership
from runcue.engine.peer import Peer
from runcue.ports import Takeover
from runcue.stores.presence.peer_monitor import PeerMonitor
from runcue.stores.sql import statements, wire
from runcue.stores.sql.inbox import Inbox
from runcue.stores.sql.mailbox import Letter
from runcue.stores.sql.store import SqlStore
from runcue.stores.sql.units import Units
from runcue.testing import Deadlock, fill_disk, kill, run
from tests.mistakes import letters_kept

BOUND = 60.0
"""Virtual seconds within which everything happens."""


class Pair:
    """Two processes: `one`, which decides, serves the queues "here" and "both", `other` serves "there" and "both"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: Counter[str] = Counter()
        self.one, self.other = self._made(), self._made()

    def _made(self) -> runcue.Cue:
        cue = runcue.Cue(self.path, durability="relaxed")

        @cue.task
        async def work(work: runcue.Work) -> None:
            self.calls[work.id] += 1

        return cue

    async def begin(self) -> None:
        """Have both known, and the first one decide."""
        self.one.start(queues=["here", "both"])
        await self.one.result(await self.one.submit("work", queue="here", id="first"))
        self.other.start(queues=["there", "both"])
        await self.other.submit("work", queue="there", id="second")
        await self.other.wait("second")

    def stuck(self, cue: runcue.Cue) -> AbstractAsyncContextManager[None]:
        """Within this, that process takes no part."""
        assert cue._system is not None
        return cue._system.engine._one_at_a_time

    def told(self, kind: str) -> list[str | None]:
        """The works that events of that kind are about."""
        with runcue.Reader(self.path) as reader:
            return [event.work_id for event in reader.events() if event.type == kind]


Story = Callable[[Pair], Awaitable[None]]
Plant = Callable[[pytest.MonkeyPatch], None]


async def what_another_submits_is_decided(pair: Pair) -> None:
    """It is answered, and it runs, though only the first one decides."""
    await pair.begin()
    assert await pair.other.submit("work", queue="here", id="a") == "a"
    await pair.other.wait("a")
    assert pair.calls["a"] == 1


async def what_runs_elsewhere_ends_once(pair: Pair) -> None:
    """Of what the other one ran, one outcome was taken, and none was too late."""
    await pair.begin()
    ids = [await pair.one.submit("work", queue="there") for _ in range(5)]
    for work_id in ids:
        await pair.one.wait(work_id)
    assert pair.calls == dict.fromkeys(("first", "second", *ids), 1)
    assert pair.told("stale_completion") == []
    assert len(pair.told("completed")) == len(pair.calls)


async def what_a_process_tells_of_itself_outlives_a_full_disk(pair: Pair) -> None:
    """It is known and serves nothing yet; when it begins to, the disk is full for a moment."""
    pair.one.start(queues=["here"])
    await pair.one.result(await pair.one.submit("work", queue="here"))
    await pair.other.submit("work", queue="there", id="a")
    fill_disk(pair.other)
    pair.other.start(queues=["there"])
    await pair.one.wait("a")


async def what_is_not_read_runs_once_and_elsewhere(pair: Pair) -> None:
    """The other one is stuck for a while, and then reads what it was given."""
    await pair.begin()
    async with pair.stuck(pair.other):
        ids = await pair.one.submit_many([{"task": "work", "queue": "both"}] * 6)
        for work_id in ids:
            await pair.one.wait(work_id)
    await pair.other.result(await pair.other.submit("work", queue="there"))
    assert {pair.calls[work_id] for work_id in ids} == {1}


async def the_place_of_one_that_is_stuck_is_taken(pair: Pair) -> None:
    """Who decides is stuck; what the other one submits is decided all the same."""
    await pair.begin()
    async with pair.stuck(pair.one):
        await pair.other.submit("work", queue="there", id="a")
        await pair.other.wait("a")


async def the_place_of_one_that_is_dead_is_taken(pair: Pair) -> None:
    """Who decides dies."""
    await pair.begin()
    kill(pair.one)
    await pair.other.submit("work", queue="there", id="a")
    await pair.other.wait("a")


async def what_was_accepted_is_found_at_once(pair: Pair) -> None:
    """Nobody has decided over it yet."""
    await pair.begin()
    async with pair.stuck(pair.one):
        work_id = await pair.other.submit("work", queue="there")
        assert await pair.other.get(work_id) is not None


# --- mistakes -------------------------------------------------------------------------------------


def nobody_wakes_and_nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """Who leaves something wakes nobody, and does not look again whether it was taken."""
    meet = PeerMonitor.meet

    def content(self: PeerMonitor) -> None:
        meet(self)
        self._turn_at = float("inf")

    patch.setattr(PeerMonitor, "meet", content)
    patch.setattr(SqlStore, "_poke", lambda self, workers, urgent: None)
    patch.setattr(Peer, "_watch_decider", lambda self: None)


def replies_dropped(patch: pytest.MonkeyPatch) -> None:
    """A post is taken, and what it asked for is not answered."""
    letters_of = wire.letters_of

    def silent(part: Plan) -> list[Letter]:
        part.replies = []
        return list(letters_of(part))

    patch.setattr(wire, "letters_of", silent)


def starts_dropped(patch: pytest.MonkeyPatch) -> None:
    """Who is to run something is not told."""
    letters_of = wire.letters_of

    def silent(part: Plan) -> list[Letter]:
        part.start = []
        return list(letters_of(part))

    patch.setattr(wire, "letters_of", silent)


def taken_twice(patch: pytest.MonkeyPatch) -> None:
    """What is in a post is taken in twice."""
    take = Scheduler.take_posts

    def eager(self: Scheduler, posts: Iterable[Post]) -> None:
        for post in posts:
            take(self, [post])
            take(self, [post])

    patch.setattr(Scheduler, "take_posts", eager)


def posts_kept(patch: pytest.MonkeyPatch) -> None:
    """A post is deleted by the second turn that takes it."""
    delete = Inbox.delete_posts
    seen: set[int] = set()

    def late(self: Inbox) -> None:
        kept = [number for number in self._taken if number not in seen]
        seen.update(kept)
        self._taken = [number for number in self._taken if number not in kept]
        delete(self)
        self.has_more |= bool(kept)

    patch.setattr(Inbox, "delete_posts", late)


def hello_lost(patch: pytest.MonkeyPatch) -> None:
    """What a process told of itself is forgotten when it could not be kept."""
    patch.setattr(engine, "MUST_BE_KEPT", tuple(kind for kind in decision.MUST_BE_KEPT if kind is not Hello))


def taken_back_and_begun(patch: pytest.MonkeyPatch) -> None:
    """What is taken back is left where its process reads it, and that believes what it reads."""
    read_letter = wire.read_letter

    def trusting(plan: Plan, kind: str, text: str, records: Mapping[str, Record]) -> wire.Given:
        given = wire.given_in(kind, text) if kind == wire.START else ()
        as_told = {work_id: replace(records[work_id], token=token) for work_id, token in given}
        return read_letter(plan, kind, text, {**records, **as_told})

    patch.setattr(wire, "read_letter", trusting)
    patch.setattr(statements, "TAKE_BACK", statements.UNSTARTED)


def never_taken_back(patch: pytest.MonkeyPatch) -> None:
    """What a process has not read stays with it, however long."""
    patch.setattr(Fleet, "unread", lambda self, now: [])
    patch.setattr(Fleet, "wakes_at", lambda self: float("inf"))


def boundless_patience(patch: pytest.MonkeyPatch) -> None:
    """Nobody takes the place of one that lives."""
    due = Leadership.due

    def patient(self: Leadership, queue_time: float) -> Takeover | None:
        takeover = due(self, queue_time)
        return None if takeover is not None and takeover.revision is not None else takeover

    patch.setattr(Leadership, "due", patient)


def deaths_unseen(patch: pytest.MonkeyPatch) -> None:
    """The same of one that is dead."""
    boundless_patience(patch)
    patch.setattr(SqlStore, "is_alive", lambda self, worker: True)
    patch.setattr(PeerMonitor, "_ask", lambda self, worker: None)


def inbox_unseen(patch: pytest.MonkeyPatch) -> None:
    """Who looks for work does not look into the inbox."""
    patch.setattr(Units, "_submitted", lambda self, work_id: None)


STORIES: dict[Story, tuple[Plant, ...]] = {
    what_another_submits_is_decided: (nobody_wakes_and_nobody_looks, replies_dropped),
    what_runs_elsewhere_ends_once: (starts_dropped, taken_twice, posts_kept, letters_kept),
    what_a_process_tells_of_itself_outlives_a_full_disk: (hello_lost,),
    what_is_not_read_runs_once_and_elsewhere: (taken_back_and_begun, never_taken_back),
    the_place_of_one_that_is_stuck_is_taken: (boundless_patience,),
    the_place_of_one_that_is_dead_is_taken: (deaths_unseen,),
    what_was_accepted_is_found_at_once: (inbox_unseen,),
}
PLANTED = [(story, plant) for story, plants in STORIES.items() for plant in plants]


def tell(story: Story, path: Path) -> None:
    """Have that happen, in a file of its own."""

    async def main() -> None:
        pair = Pair(path)
        try:
            async with asyncio.timeout(BOUND):
                await story(pair)
        finally:
            kill(pair.one)
            kill(pair.other)

    run(main())


@pytest.mark.parametrize("story", STORIES, ids=[story.__name__ for story in STORIES])
def test_a_story_is_true_where_nothing_is_wrong(story: Story, tmp_path: Path) -> None:
    tell(story, tmp_path / "queue.db")


@pytest.mark.parametrize(("story", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_mistake_is_given_away(
    story: Story, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError, Deadlock)):
        tell(story, tmp_path / "queue.db")
