"""Posts and letters in PostgreSQL: what is there is not called lost, and is seen."""

from __future__ import annotations

import psycopg
import pytest

import runcue
from runcue.core.model.lifecycle import started
from runcue.core.model.record import Record
from runcue.core.schedule.plan import Cancel, Plan
from runcue.ports import Outgoing, SharedStore, Turn
from runcue.stores.postgres import statements
from runcue.stores.postgres.exchange import Exchange
from runcue.stores.sql import inbox
from runcue.stores.sql.mailbox import Mailbox
from runcue.testing.manual_turns import NOW, Change, Hand, pending
from tests.pg.proxy import Proxy
from tests.pg.test_store import EXCHANGE, asked, hand_on


async def test_what_waits_behind_a_post_that_is_more_than_one_turn_takes_is_known_of(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = inbox.MOST_SIGNS
    monkeypatch.setattr(inbox, "MOST_SIGNS", 100)
    monkeypatch.setattr(statements, "OPENING", statements.OPENING.replace(str(most), "100"))
    async with hand_on(pg) as one, hand_on(pg) as other:
        await one.turn()
        await other.shared.exchange(Outgoing(1, [Cancel("w" * 200)]))
        await other.shared.exchange(Outgoing(2, [Cancel("w2")]))
        plan = await one.turn()
        assert [post.number for post in one.posts] == [1]
        assert plan.wake_at < float("inf"), "the next turn follows at once"
        await one.turn()
        assert [post.number for post in one.posts] == [2]
        assert (await one.turn()).wake_at == float("inf")


def start_for(one: Hand, store: SharedStore, seq: int) -> tuple[Record, Change]:
    """A start of a work for that process, as a turn decides it."""
    me = store.me().id
    running = started(pending(seq), seq, NOW, me, f"running/{me}")

    def give(plan: Plan, turn: Turn) -> None:
        one.put(plan, running)
        plan.part(me).start = [running]

    return running, give


def broken_reading(monkeypatch: pytest.MonkeyPatch, *errors: psycopg.Error) -> None:
    """Have the next readings of records fail so."""
    left, read = [*errors], Mailbox._loaded

    def loaded(letters: Mailbox, ids: list[str]) -> dict[str, Record]:
        if left:
            raise left.pop(0)
        return read(letters, ids)

    monkeypatch.setattr(Mailbox, "_loaded", loaded)


LOST, CANCELLED = (
    psycopg.OperationalError("the connection is lost"),
    psycopg.errors.QueryCanceled("by the user"),
)


@pytest.mark.parametrize("error", [LOST, CANCELLED], ids=["lost", "cancelled"])
async def test_a_post_is_there_though_the_letters_that_came_with_it_could_not_be_read_at_once(
    pg: str, monkeypatch: pytest.MonkeyPatch, error: psycopg.Error
) -> None:
    async with hand_on(pg) as one, hand_on(pg) as other:
        running, give = start_for(one, other.shared, 1)
        await one.turn(give)
        broken_reading(monkeypatch, error)
        received = await other.shared.exchange(Outgoing(1, [Cancel("w9")]))
        assert (received.unread, received.plan.start, received.is_whole) == ({1}, [running], True)
        await one.turn()
        assert [post.number for post in one.posts] == [1]


@pytest.mark.parametrize("error", [LOST, CANCELLED], ids=["lost", "cancelled"])
async def test_a_post_is_there_though_its_letters_cannot_be_read_and_they_are_read_later(
    pg: str, monkeypatch: pytest.MonkeyPatch, error: psycopg.Error
) -> None:
    async with hand_on(pg) as one, hand_on(pg) as other:
        running, give = start_for(one, other.shared, 1)
        await one.turn(give)
        broken_reading(monkeypatch, error, error)
        received = await other.shared.exchange(Outgoing(1, [Cancel("w9")]))
        assert (received.unread, received.plan.start, received.is_whole) == ({1}, [], False)
        await one.turn()
        assert [post.number for post in one.posts] == [1]
        received = await other.shared.exchange(None)
        assert (received.plan.start, received.plan.rated, received.is_whole) == ([running], {}, True)
        assert (await other.shared.exchange(None)).plan.start == []


async def test_a_post_whose_answer_was_lost_is_there_though_nothing_can_be_asked_after_that(
    pg: str, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        await one.turn()
        pg_proxy.cut_after(EXCHANGE)
        fence = Exchange._fence

        def cutting(exchange: Exchange, number: int, **options: bool) -> bool | None:
            found = fence(exchange, number, **options)
            pg_proxy.cut_before(EXCHANGE)
            return found

        monkeypatch.setattr(Exchange, "_fence", cutting)
        received = await other.shared.exchange(Outgoing(1, [Cancel("w9")]))
        assert (received.unread, received.is_whole) == (None, False)
        assert (await other.shared.exchange(None)).unread == {1}
        await one.turn()
        assert [post.number for post in one.posts] == [1]


async def test_a_post_is_not_taken_for_there_by_a_question_that_was_asked_twice(
    pg: str, pg_proxy: Proxy
) -> None:
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        await one.turn()
        await other.shared.exchange(Outgoing(1, []))
        pg_proxy.cut_before(EXCHANGE)
        pg_proxy.cut_after(r"insert into commits values .*")
        with pytest.raises(runcue.StoreError, match="unknown"):
            await other.shared.exchange(Outgoing(2, [Cancel("w9")]))
        assert (await other.shared.exchange(None)).unread == {1}


async def test_a_queue_that_was_made_anew_gets_no_posts_of_the_one_before(pg: str) -> None:
    async with hand_on(pg) as one, hand_on(pg) as other:
        await one.turn()
        with psycopg.connect(pg, autocommit=True) as connection:
            connection.execute("UPDATE runcue.head SET identity = 'another'")
        with pytest.raises(runcue.StorageReplaced):
            await other.shared.exchange(Outgoing(1, [Cancel("w9")]))
        assert asked(pg, "SELECT count(*) FROM runcue.inbox") == [(0,)]
