"""The store in PostgreSQL: the contract of all stores, traces as in memory, and what becomes of a bad connection."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runcue
from runcue.core.model.lifecycle import started
from runcue.core.schedule.plan import Cancel, Plan
from runcue.ports import Outgoing, Turn
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link, is_gone, translate
from runcue.stores.postgres.statements import POSTGRES
from runcue.stores.postgres.store import postgres_store
from runcue.stores.sql.store import SqlStore
from runcue.testing import contract
from runcue.testing.manual_turns import NOW, Hand, pending
from tests.handlers import no_op
from tests.patience import until
from tests.pg.proxy import Proxy
from tests.pg.server import Server
from tests.stores.test_traces import compare
from tests.stores.traces import TRAITS, make, played

BOUND = 240.0


def opened(url: str, **options: Any) -> SqlStore:
    """A store at that address."""
    return postgres_store(Address(url), **{"durability": "full", "lease": 30.0, **options})


@asynccontextmanager
async def hand_on(url: str, **options: Any) -> AsyncIterator[Hand]:
    """A hand on the queue at that address."""
    store = opened(url, **options)
    try:
        yield Hand(store, {})
    finally:
        await store.close()


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What the database itself says."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    "check", [*contract.EVERY, *contract.SHARED], ids=lambda check: getattr(check, "__name__", "")
)
async def test_postgres_keeps_the_contract(check: contract.Check, pg: str) -> None:
    await check(lambda: opened(pg))


@pytest.mark.parametrize("seed", range(5))
def test_a_random_trace_is_as_in_memory(seed: int, pg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_as_in_memory(seed, pg, monkeypatch)


def is_as_in_memory(seed: int, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play the trace of that number in memory and at that address, and compare what is there then."""
    monkeypatch.setattr(logging.getLogger("runcue"), "disabled", True)
    trace = make(seed, traits=TRAITS)
    compare(played(trace, None, monkeypatch), played(trace, url, monkeypatch))


# --- Connections that are lost --------------------------------------------------------------------


async def test_a_commit_whose_answer_was_lost_stands(pg: str, pg_proxy: Proxy) -> None:
    async with hand_on(pg_proxy.dsn(pg)) as hand:
        await hand.write(pending(1))
        pg_proxy.cut_after_commit()
        await hand.write(pending(2))
        pg_proxy.wait_done("cut after")
        await hand.write(pending(3))
        await hand.compare()
    assert asked(pg, "SELECT id FROM runcue.work_units ORDER BY seq") == [("w1",), ("w2",), ("w3",)]


async def test_a_commit_that_never_arrived_is_refused(pg: str, pg_proxy: Proxy) -> None:
    async with hand_on(pg_proxy.dsn(pg)) as hand:
        await hand.write(pending(1))
        pg_proxy.cut_before_commit()
        with pytest.raises(runcue.StoreError, match="cannot be reached"):
            await hand.write(pending(2))
        pg_proxy.wait_done("cut before")
        await hand.write(pending(2))
        await hand.compare()


EXCHANGE = r"with kept as .*"


async def test_a_post_whose_answer_was_lost_is_there_once(pg: str, pg_proxy: Proxy) -> None:
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        await one.turn()
        for number, cut in enumerate((pg_proxy.cut_before, pg_proxy.cut_after)):
            cut(EXCHANGE)
            received = await other.shared.exchange(Outgoing(number, [Cancel("w1")]))
            assert received.unread == {number}
            await one.turn()
            assert [post.number for post in one.posts] == [number]


async def test_starts_whose_answer_was_lost_come_again_too_late_to_begin(pg: str, pg_proxy: Proxy) -> None:
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        me = other.shared.me().id
        running = started(pending(1), 1, NOW, me, f"running/{me}")

        def give(plan: Plan, turn: Turn) -> None:
            one.put(plan, running)
            plan.part(me).start = [running]

        await one.turn(give)
        await other.shared.exchange(Outgoing(1, []))
        await one.turn(lambda plan, turn: plan.part(me).start.append(running))
        pg_proxy.cut_before(EXCHANGE)
        assert (await other.shared.exchange(None)).plan.start == [running], "nothing was lost"
        await one.turn(lambda plan, turn: plan.part(me).start.append(running))
        pg_proxy.cut_after(EXCHANGE)
        received = await other.shared.exchange(Outgoing(2, []))
        assert received.unread == {2}, "its post is there"
        assert (received.plan.start, received.plan.rated) == ([running], {}), (
            "and letters were not taken with it"
        )
        await one.turn(lambda plan, turn: plan.part(me).start.append(running))
        pg_proxy.cut_after(EXCHANGE)
        received = await other.shared.exchange(None)
        assert (received.plan.start, received.plan.rated) == ([running], {1: 0.0})
        assert received.has_missed, "what was answered to it is lost"
        assert not (await other.shared.exchange(None)).has_missed


async def test_a_post_is_there_though_the_letters_behind_it_cannot_be_read(pg: str, pg_proxy: Proxy) -> None:
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        me = other.shared.me().id

        def tell(plan: Plan, turn: Turn) -> None:
            plan.part(me).stop = [7]

        await one.turn(tell)
        pg_proxy.cut_before(r"with kept as .* taken as .*")
        pg_proxy.refuse()
        received = await other.shared.exchange(Outgoing(1, []))
        assert not received.is_whole
        assert asked(pg, "SELECT number FROM runcue.inbox") == [(1,)]
        pg_proxy.allow()
        assert (await other.shared.exchange(None)).plan.stop == [7]


async def test_whether_a_commit_lasts_is_unknown_when_nobody_can_be_asked(
    pg: str, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.stores.postgres.transaction.ASKING", 0.2)
    async with hand_on(pg_proxy.dsn(pg)) as hand:
        await hand.write(pending(1))
        pg_proxy.cut_after_commit()
        pg_proxy.refuse()
        with pytest.raises(runcue.StoreError, match="whether it lasts is unknown"):
            await hand.write(pending(2))
        pg_proxy.allow()
        found = await hand.store.get("w2")
        assert found is not None


async def test_whether_a_commit_lasts_is_unknown_to_who_passed_for_dead_meanwhile(
    pg: str, pg_proxy: Proxy
) -> None:
    """Whoever takes a worker for dead forgets what is known of its turns."""
    async with hand_on(pg_proxy.dsn(pg)) as hand:
        await hand.write(pending(1))
        pg_proxy.cut_after_commit()
        store: Any = hand.store
        renew = store._database.transaction.renew

        def forgotten() -> Any:
            asked(pg, f"DELETE FROM runcue.commits WHERE worker = '{store.worker}' RETURNING 1")
            return renew()

        store._database.transaction.renew = forgotten
        with pytest.raises(runcue.StoreError, match="whether it lasts is unknown"):
            await hand.write(pending(2))
        store._database.transaction.renew = renew
        assert await store.get("w2") is not None


async def test_words_that_a_crash_of_the_server_brings_back_are_not_told_twice(pg: str) -> None:
    """That they were read is not synced; here the row is put back by hand."""
    async with hand_on(pg) as one, hand_on(pg) as other:
        me = other.shared.me().id

        def tell(plan: Plan, turn: Turn) -> None:
            plan.part(me).stop = [7]

        await one.turn(tell)
        [letter] = asked(pg, "SELECT quote_literal(l::text) FROM runcue.letters AS l")
        bring_back = f"INSERT INTO runcue.letters SELECT ({letter[0]}::runcue.letters).* RETURNING 1"
        assert (await other.shared.exchange(None)).plan.stop == [7]
        asked(pg, bring_back)
        assert (await other.shared.exchange(None)).plan.stop == []
        await one.turn(tell)
        assert (await other.shared.exchange(None)).plan.stop == [7], "the same words in another letter"
        await other.shared.exchange(Outgoing(1, []))
        asked(pg, bring_back)
        assert (await other.shared.exchange(None)).plan.stop == [7], "after a post it would have lasted"


@pytest.mark.parametrize("is_there", [False, True])
async def test_whether_a_post_is_there_is_unknown_to_who_passed_for_dead_meanwhile(
    pg: str, pg_proxy: Proxy, is_there: bool
) -> None:
    """It is not left once more: whoever decides may have taken it."""
    async with hand_on(pg) as one, hand_on(pg_proxy.dsn(pg)) as other:
        await one.turn()
        store: Any = other.store
        await store.exchange(Outgoing(1, [Cancel("w1")]))
        renew = store._database.transaction.renew

        def forgotten() -> Any:
            asked(pg, f"DELETE FROM runcue.commits WHERE worker = '{store.worker}' RETURNING 1")
            return renew()

        store._database.transaction.renew = forgotten
        (pg_proxy.cut_after if is_there else pg_proxy.cut_before)(EXCHANGE)
        with pytest.raises(runcue.StoreError, match="whether it lasts is unknown"):
            await store.exchange(Outgoing(2, [Cancel("w1")]))
        store._database.transaction.renew = renew
        assert (await store.exchange(Outgoing(3, []))).unread == {1, 3} | ({2} if is_there else set())
        await one.turn()
        assert [post.number for post in one.posts] == [1, *([2] if is_there else []), 3]


async def test_a_session_that_was_ended_between_turns_costs_nothing(pg: str) -> None:
    async with hand_on(pg) as hand:
        await hand.write(pending(1))
        assert await hand.store.get("w1") is not None
        ended = asked(pg, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                          "WHERE pid != pg_backend_pid() AND datname = current_database()")  # fmt: skip
        assert len(ended) >= 2
        await hand.write(pending(2))
        await hand.compare()


async def test_a_queue_that_is_gone_is_said_to_be(pg: str) -> None:
    async with hand_on(pg) as hand:
        await hand.write(pending(1))
        asked(pg, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                  "WHERE pid != pg_backend_pid() AND datname = current_database()")  # fmt: skip
        with psycopg.connect(pg, autocommit=True) as connection:
            connection.execute("DROP SCHEMA runcue CASCADE")
        with pytest.raises(runcue.StoreError, match="holds no queue any more"):
            await hand.write(pending(2))


async def test_a_network_that_is_dead_and_does_not_say_so_is_given_up(
    pg: str, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANSWER", "LOCKED", "STATEMENT"):
        monkeypatch.setattr(f"runcue.stores.postgres.link.{name}", 0.5)
    async with hand_on(pg_proxy.dsn(pg)) as hand:
        await hand.write(pending(1))
        pg_proxy.freeze()
        with pytest.raises(runcue.StoreError, match="cannot be reached"):
            await asyncio.wait_for(hand.write(pending(2)), BOUND)
        pg_proxy.thaw()
        await hand.write(pending(3))
        await hand.compare()


async def test_to_close_takes_no_longer_than_a_farewell_when_nobody_answers(
    pg: str, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.stores.postgres.store.LEAVING", 0.5)
    store = opened(pg_proxy.dsn(pg))
    await Hand(store, {}).write(pending(1))
    pg_proxy.freeze()
    await asyncio.wait_for(store.close(), BOUND)
    pg_proxy.thaw()


async def test_a_statement_that_fails_while_it_is_being_prepared_does_no_lasting_harm(pg: str) -> None:
    """psycopg prepares what it has seen a few times, and would go on with what was never prepared."""
    async with hand_on(pg) as hand:
        for number in range(1, 12):
            with psycopg.connect(pg, autocommit=True) as connection:
                connection.execute(
                    "ALTER TABLE runcue.work_units ADD CONSTRAINT full_up CHECK (false) NOT VALID"
                )
            with pytest.raises(runcue.StoreError):
                await hand.write(pending(number))
            with psycopg.connect(pg, autocommit=True) as connection:
                connection.execute("ALTER TABLE runcue.work_units DROP CONSTRAINT full_up")
            await hand.write(pending(number))
        await hand.compare()


def prepared(url: str) -> list[str]:
    """What a session has prepared after some turns that were undone, and some that were not."""
    address = Address(url)
    link = Link(address)
    schema.migrate(link)
    for number in range(8):
        opening = link.prepared("runcue_0", "SELECT revision FROM head WHERE revision > $1", (-1,))
        link.begin_with(schema.turn_of(address), opening)
        link.execute("SELECT turn FROM commits WHERE worker = $1", ("nobody",)).fetchall()
        if number % 2:
            link.undo()
        else:
            link.leave()
    found = link.execute("SELECT name FROM pg_prepared_statements").fetchall()
    link.close()
    return [name for (name,) in found if name.startswith("runcue_")]


def test_turns_that_are_undone_cost_nothing_that_is_prepared(pg: str) -> None:
    assert prepared(pg) == ["runcue_0"]


def test_a_queue_of_an_earlier_version_gets_the_names_of_this_one(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> list[Any]:
        columns = (
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'runcue'"
        )
        indexes = "SELECT tablename, indexname FROM pg_indexes WHERE schemaname = 'runcue'"
        return sorted(link.execute(f"{columns} UNION ALL {indexes}").fetchall())

    link = Link(Address(pg))
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        earlier.setattr(schema, "VERSION", 3)
        schema.migrate(link)
    assert ("shelves", "place") in names()
    link.execute("INSERT INTO shelves VALUES ('later', 2.0, 1, 7)")
    link.execute("INSERT INTO set_aside VALUES (1, 'blocked', NULL)")
    link.execute("UPDATE head SET told = 9")
    schema.migrate(link)
    assert link.execute("SELECT name, sort_key, seq, revision FROM index_heads").fetchall() == [
        ("later", 2.0, 1, 7)
    ]
    assert link.execute("SELECT seq, index_key, watch_at FROM quarantine").fetchall() == [
        (1, "blocked", None)
    ]
    assert link.execute("SELECT last_event_seq FROM head").fetchall() == [(9,)]
    assert [one for one in names() if re.search("shel(f|ves)|set_aside|place|told", " ".join(one))] == []
    link.close()


def test_who_has_a_session_forget_what_is_prepared_costs_one_turn(pg: str) -> None:
    address = Address(pg)
    link = Link(address)
    schema.migrate(link)
    link.prepared("seven", "SELECT 7 WHERE 1 > $1", (0,))
    link.raw.pgconn.exec_(b"DEALLOCATE ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        link.begin_with(link.prepared("seven", "SELECT 7 WHERE 1 > $1", (0,)))
    link.undo()
    assert link.begin_with(link.prepared("seven", "SELECT 7 WHERE 1 > $1", (0,))) == (7,)
    link.undo()
    link.close()


async def test_news_that_come_after_a_turn_are_not_taken_for_what_it_saw(pg: str) -> None:
    async with hand_on(pg) as hand:
        store: Any = hand.store
        heard: list[bool] = []
        store.listen(heard.append, heard.append)
        await hand.write(pending(1))  # from now on it is busy
        store._debounce.hear(False)
        await hand.write(pending(2))  # sees that, and not what comes next
        heard.clear()
        store._debounce.hear(False)
        await until(
            lambda: False in heard
        )  # on a busy machine others may be heard as well, before it and after


async def test_a_queue_that_was_made_anew_is_not_ours(pg: str) -> None:
    async with hand_on(pg) as hand:
        await hand.write(pending(1))
        with psycopg.connect(pg, autocommit=True) as connection:
            connection.execute("DROP SCHEMA runcue CASCADE")
        async with hand_on(pg) as other:
            await other.write(pending(1))
            with pytest.raises(runcue.StorageReplaced, match="holds another queue now"):
                await hand.write(pending(2))
        assert asked(pg, "SELECT id FROM runcue.work_units") == [("w1",)]


async def test_commits_that_were_lost_are_noticed(pg: str) -> None:
    async with hand_on(pg) as hand:
        await hand.write(pending(1))
        with psycopg.connect(pg, autocommit=True) as connection:
            connection.execute("UPDATE runcue.head SET revision = 0")
        with pytest.raises(runcue.StoreError, match="has lost commits"):
            await hand.write(pending(2))
        await hand.turn()


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_what_is_worth_another_try_is_called_busy(code: str) -> None:
    error = psycopg.errors.lookup(code)("as the server says")
    assert not is_gone(error)
    assert isinstance(translate(error, Address("postgresql://host/queue")), runcue.StorageBusy)


TEXTS = ["\uf8ff", "\uf8ff0\uf8ff1", "a\0b", "\0", "\\u0000", "é\u2028 ' \" % ? $1 :x 🎈"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
async def test_every_text_comes_back_as_it_was(pg: str, text: str) -> None:
    cue = runcue.Cue(pg)
    is_key = "\0" not in text

    @cue.task(retry=1)
    async def echo(work: runcue.Work) -> Any:
        if work.params["fail"]:
            raise ValueError(text)
        return {"said": text}

    async with cue:
        given: dict[str, Any] = {
            "task": "echo",
            "target": text,
            "params": {"fail": False, "text": text, text: 1},
        }
        if is_key:
            given["idempotency_key"] = text
        ids = [await cue.submit(**given)]
        if is_key:
            ids.append(await cue.submit(**given))
            assert ids[0] == ids[1]
        work = await cue.wait(ids[0], timeout=BOUND)
        assert (work.target, work.params, work.result) == (text, given["params"], {"said": text})
        failed = await cue.wait(await cue.submit("echo", params={"fail": True}), timeout=BOUND)
        assert [line.error for line in failed.history] == [failed.error]
        found = await cue.list(search=work.id)
        assert [one.id for one in found] == [work.id]
    await cue.close()


async def test_the_next_under_an_index_key_are_found_by_its_index_alone(pg: str) -> None:
    async with hand_on(pg) as hand:
        await hand.write(*[pending(number, sort_key=1.0) for number in range(1, 500)])
        link: Any = hand.store._tables.connection  # type: ignore[attr-defined]
        plan = "\n".join(
            line
            for (line,) in link.execute(f"EXPLAIN {POSTGRES.page}", ("ready/call", 1.0, 100, 20)).fetchall()
        )
        assert "work_units_by_index_key" in plan
        assert "Sort" not in plan
        assert "Bitmap" not in plan


async def test_a_process_that_stops_inside_its_turn_loses_it(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, so that others go on; it begins anew when it wakes up."""
    monkeypatch.setattr("runcue.stores.postgres.link.STANDSTILL", 0.3)
    stopped, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    async with hand_on(pg) as hand, hand_on(pg) as other:
        other.kept = hand.kept

        def stop(plan: Plan, turn: Turn) -> None:
            hand.put(plan, pending(1))
            loop.call_soon_threadsafe(stopped.set)
            go_on.wait(BOUND)

        turn = asyncio.create_task(hand.turn(stop))
        await asyncio.wait_for(stopped.wait(), BOUND)
        await asyncio.wait_for(other.write(pending(2)), BOUND)
        go_on.set()
        with pytest.raises(runcue.StoreError):
            await turn
        await hand.turn()
        await hand.write(pending(3))
        await hand.compare()


async def test_a_process_that_stops_while_it_writes_loses_its_turn_to_who_waits(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the server does not notice that the session stands still."""
    monkeypatch.setattr("runcue.stores.postgres.link.LOCKED", 0.5)
    monkeypatch.setattr("runcue.stores.postgres.schema.STANDSTILL", 0.3)
    stopped, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    async with hand_on(pg) as hand, hand_on(pg) as other:
        other.kept = hand.kept
        await hand.turn()
        write = hand.store._tables.writer.write  # type: ignore[attr-defined]

        def stop(*given: Any) -> None:
            write(*given)
            hand.store._tables.records.head()  # type: ignore[attr-defined] # the server has it all, and waits for more
            loop.call_soon_threadsafe(stopped.set)
            go_on.wait(BOUND)

        with monkeypatch.context() as patch:
            patch.setattr(hand.store._tables.writer, "write", stop)  # type: ignore[attr-defined]
            turn = asyncio.create_task(hand.write(pending(1)))
            await asyncio.wait_for(stopped.wait(), BOUND)
            await asyncio.wait_for(other.write(pending(2)), BOUND)
            go_on.set()
            with pytest.raises(runcue.StoreError):
                await turn
        await hand.turn()
        await hand.write(pending(3))
        await hand.compare()


async def test_a_server_that_was_away_is_noticed_by_nobody_who_waits(pg_own: Server) -> None:
    """Readers of events, and who waits for a result, go on when it is there again."""
    cue = runcue.Cue(pg_own.database())
    told: asyncio.Queue[runcue.Event] = asyncio.Queue()

    @cue.task
    async def note(work: runcue.Work) -> str:
        return "done"

    async def listen() -> None:
        async for event in cue.events("completed"):
            told.put_nowait(event)

    async with cue:
        listener = asyncio.create_task(listen())
        await cue.wait(await cue.submit("note", id="before"), timeout=BOUND)
        assert (await asyncio.wait_for(told.get(), BOUND)).work_id == "before"
        later = await cue.submit("note", id="later", delay=1.0)
        waiting = asyncio.create_task(cue.wait(later, timeout=BOUND))
        await asyncio.sleep(0)
        assert await cue.get(later) is not None  # looks come one after the other: who waits has looked by now
        await asyncio.to_thread(pg_own.crash)
        with pytest.raises(runcue.StoreError):
            await cue.submit("note")
        await asyncio.to_thread(pg_own.start)
        assert (await waiting).result == "done"
        assert (await asyncio.wait_for(told.get(), BOUND)).work_id == "later"
    await asyncio.wait_for(listener, BOUND)
    await cue.close()


# --- Clocks ---------------------------------------------------------------------------------------


async def test_queue_time_goes_on_when_the_server_s_clock_jumps(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump is made of the only thing that can be moved here: what the server says."""
    async with hand_on(pg) as hand:
        store: Any = hand.store
        await hand.write(pending(1))
        before = store.clock.now()
        hear, jump = store._database.transaction._server_clock.hear, 3600.0

        def jumped(asked_at: float, server: float, offset: float, at_least: float) -> tuple[float, float]:
            return hear(asked_at, server + jump, offset, at_least)  # type: ignore[no-any-return]

        monkeypatch.setattr(store._database.transaction._server_clock, "hear", jumped)
        for jump in (3600.0, -3600.0, 86400.0):
            await hand.write(pending(2 + int(abs(jump))))
            after = store.clock.now()
            assert 0 <= after - before < BOUND, jump
            before = after
        assert asked(pg, "SELECT clock_offset FROM runcue.head") != [(0.0,)]


async def test_an_offset_that_another_process_moved_is_taken_as_it_is(pg: str) -> None:
    async with hand_on(pg) as hand:
        store: Any = hand.store
        await hand.write(pending(1))
        with psycopg.connect(pg, autocommit=True) as connection:
            connection.execute("UPDATE runcue.head SET clock_offset = 100")
        before = store.clock.now()
        await hand.write(pending(2))
        assert 99 < store.clock.now() - before < 100 + BOUND
        assert asked(pg, "SELECT clock_offset FROM runcue.head") == [(100.0,)]


# --- Namespaces -----------------------------------------------------------------------------------


async def test_queues_of_other_names_are_other_queues(pg: str) -> None:
    async def count_after(name: str, works: int) -> int:
        cue = runcue.Cue(pg, name=name)
        cue.task("note")(no_op)
        async with cue:
            await cue.submit_many([{"task": "note"}] * works)
            await cue.join(timeout=BOUND)
            found = (await cue.count())[runcue.WorkState.COMPLETED]
        await cue.close()
        return found

    assert await asyncio.gather(count_after("one", 3), count_after("two", 5)) == [3, 5]
    schemas = asked(pg, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'runcue%' ORDER BY 1")
    assert schemas == [("runcue_one",), ("runcue_two",)]


@pytest.mark.parametrize("name", ["Über", "a-b", "1st", "x" * 41])
async def test_a_name_that_no_schema_can_have_is_refused(pg: str, name: str) -> None:
    cue = runcue.Cue(pg, name=name)
    with pytest.raises(runcue.ConfigError, match="small letters"):
        await cue.count()


# --- What lies on this host -----------------------------------------------------------------------


async def test_what_belongs_to_a_queue_on_this_host_is_private(pg: str) -> None:
    store = opened(pg)
    try:
        folder = Path(store.local).parent
        assert folder.stat().st_mode & 0o077 == 0
        assert folder.stat().st_uid == os.getuid()
        assert Path(f"{store.local}.runcue").is_dir()
    finally:
        await store.close()


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on this host lies in the folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
