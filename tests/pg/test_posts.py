"""Posts and letters in PostgreSQL: what is there is not called lost, and is seen."""

from __future__ import annotations

import pytest

from runcue.core.plan import Cancel
from runcue.ports import Outgoing
from runcue.stores import mailbox
from runcue.stores.postgres import tables
from tests.pg.test_store import hand_on


async def test_what_waits_behind_a_post_that_is_more_than_one_turn_takes_is_known_of(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = mailbox.MOST_SIGNS
    monkeypatch.setattr(mailbox, "MOST_SIGNS", 100)
    monkeypatch.setattr(tables, "OPENING", tables.OPENING.replace(str(most), "100"))
    async with hand_on(pg) as one, hand_on(pg) as other:
        await one.turn()
        await other.store.exchange(Outgoing(1, [Cancel("w" * 200)]))
        await other.store.exchange(Outgoing(2, [Cancel("w2")]))
        plan = await one.turn()
        assert [post.number for post in one.posts] == [1]
        assert plan.wake_at < float("inf"), "the next turn follows at once"
        await one.turn()
        assert [post.number for post in one.posts] == [2]
        assert (await one.turn()).wake_at == float("inf")
