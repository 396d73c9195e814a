"""A queue in a file: what a turn survives, what opening and closing leave behind, and pruning."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from runcue import Cue, DuplicateWork, WorkNotFound
from runcue.api.reader import Reader
from runcue.core.model.events import EventDraft
from runcue.core.model.lifecycle import finished, started
from runcue.core.model.parse import Rate
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Grant, Limits, ServiceState
from runcue.core.schedule.plan import Plan, ReadRequest
from runcue.core.views.query import Query
from runcue.engine.bus import Bus
from runcue.errors import StorageBusy, StorageCorrupt, StorageFull, StorageReplaced, StoreError
from runcue.ports import Turn
from runcue.stores.presence.presence import Presence, Turnstile, is_alive, side_directory
from runcue.stores.sql import mailbox, pruning
from runcue.stores.sql import store as sql_store
from runcue.stores.sql.store import SqlStore
from runcue.stores.sqlite import file as files
from runcue.stores.sqlite import store as file_store
from runcue.stores.sqlite import transaction
from runcue.stores.sqlite.file import open_file
from runcue.testing import run
from runcue.testing.manual_turns import NOW, Hand, pending
from tests.handlers import no_op
from tests.patience import until
from tests.stores.beside import PATIENCE
from tests.stores.hands import change, hand_on, inside, opened

INDEX_KEY = "ready/call"


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


# --- After a commit -------------------------------------------------------------------------------


async def test_a_turn_stands_when_the_others_cannot_be_woken(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(presence: Presence, *given: Any) -> list[str]:
        raise StoreError("Too many open files")

    monkeypatch.setattr(Presence, "poke", fail)
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        await hand.write(pending(2))
        assert [record.id for record in await store.find(Query(limit=10))] == ["w2", "w1"]
    assert len(told(caplog, "Too many open files")) == 1


# --- Damaged rows ---------------------------------------------------------------------------------

DAMAGE = [("state", "parked"), ("params", "{"), ("services", "x"), ("failures", "many"), ("history", "long")]


@pytest.mark.parametrize(("column", "value"), DAMAGE)
@pytest.mark.parametrize("seq", [1, 2, 4])
async def test_a_damaged_work_is_passed_over_and_the_rest_goes_on(
    path: Path, seq: int, column: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DK15."""
    async with hand_on(path) as (hand, store):
        await hand.write(*[pending(number, watch_at=NOW) for number in range(1, 5)])
        change(path, f"UPDATE work_units SET {column} = ? WHERE seq = ?", value, seq)
        sound = [f"w{number}" for number in range(1, 5) if number != seq]

        def page(turn: Turn) -> list[Record]:
            assert turn.reader is not None
            return turn.reader.page(INDEX_KEY, None, 4)

        for _ in range(2):
            assert [record.id for record in await hand.look(page)] == sound
        assert [record.id for record in await store.find(Query(limit=3))] == sound[::-1]
        assert list(await store.get_many([f"w{number}" for number in range(1, 5)])) == sound
        with pytest.raises(StorageCorrupt, match=f"'w{seq}'"):
            await store.get(f"w{seq}")
        await hand.write(pending(9))
        with Reader(path) as reader:
            assert [work.id for work in reader.list()] == ["w9", *sound[::-1]]
    [(index_key, there)] = open_file(str(path), read_only=True).execute(
        f"SELECT index_key, {column} FROM work_units WHERE seq = ?", (seq,)
    )
    assert (index_key, there) == (None, value)
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told(caplog, "left out")) == len(lines) == 2  # of the store, and of the Reader
    assert all(f"'w{seq}'" in line.getMessage() for line in lines)


@pytest.mark.parametrize("kind", ["watched", "oldest"])
async def test_a_damaged_work_shortens_no_page(path: Path, kind: str) -> None:
    async with hand_on(path) as (hand, _):
        await hand.write(*[pending(number, watch_at=NOW + number) for number in range(1, 6)])
        change(path, "UPDATE work_units SET params = '{' WHERE seq IN (1, 3)")

        def page(turn: Turn) -> list[Record]:
            assert turn.reader is not None
            if kind == "watched":
                return turn.reader.watched(NOW + 10, 2)
            return turn.reader.oldest(0, 2)

        for _ in range(2):
            assert [record.id for record in await hand.look(page)] == ["w2", "w4"]


async def test_others_are_told_which_work_is_the_first_when_the_first_is_damaged(path: Path) -> None:
    async with hand_on(path) as (one, _), hand_on(path) as (other, _):
        await one.write(pending(1), pending(2))
        await other.look(lambda turn: None)
        change(path, "UPDATE work_units SET state = 'parked' WHERE seq = 1")
        await one.look(lambda turn: turn.reader.page(INDEX_KEY, None, 1) if turn.reader else None)
        await other.look(lambda turn: None)
        assert other.changes is not None
        assert other.changes.index_heads == {INDEX_KEY: (NOW + 2, 2)}


async def test_a_damaged_work_keeps_its_index_key_when_the_turn_fails(path: Path) -> None:
    async with hand_on(path) as (hand, _):
        await hand.write(pending(1), pending(2))
        change(path, "UPDATE work_units SET state = 'parked' WHERE seq = 1")

        def fail(plan: Plan, turn: Turn) -> None:
            assert turn.reader is not None
            assert [record.id for record in turn.reader.page(INDEX_KEY, None, 2)] == ["w2"]
            raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await hand.turn(fail)


# --- Trouble with the disk ------------------------------------------------------------------------


class Unwell:
    """A connection whose next COMMIT, or next write, fails as it does when the disk does."""

    def __init__(self, connection: apsw.Connection, statement: str, instead: str = "") -> None:
        self._connection = connection
        self._statement = statement
        self._instead = instead
        self.is_well = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, bindings: Any = ()) -> Any:
        if statement.startswith(self._statement) and not self.is_well:
            self.is_well = True
            if self._instead:
                self._connection.execute(self._instead)
            raise apsw.IOError("disk I/O error")
        return self._connection.execute(statement, bindings)


def make_unwell(store: SqlStore, statement: str, instead: str = "") -> Unwell:
    unwell = Unwell(store._tables.connection, statement, instead)
    store._tables.use(unwell)
    return unwell


async def test_a_full_file_is_called_full_and_goes_on_when_there_is_room(path: Path) -> None:
    """DK1."""
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        connection = store._tables.connection
        [(pages,)] = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        big = pending(2, params=b'{"a":"%b"}' % (b"x" * 100_000))
        for _ in range(2):
            with pytest.raises(StorageFull):
                await hand.write(big)
        assert await store.get("w2") is None
        connection.execute("PRAGMA max_page_count = 100000").fetchall()
        await hand.write(big)
        assert await store.get("w2") == big


async def test_a_commit_that_failed_is_unknown_and_its_connection_is_not_used_on(path: Path) -> None:
    """DK3."""
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        unwell = make_unwell(store, "COMMIT", "ROLLBACK")
        with pytest.raises(StoreError, match=r"unknown.*same idempotency_key"):
            await hand.write(pending(2))
        assert await store.get("w2") is None
        await hand.write(pending(2))
        assert store._tables.connection is not unwell
        with pytest.raises(apsw.ConnectionClosedError):
            unwell.in_transaction  # noqa: B018
        assert await store.get("w2") == pending(2)
        [(mode,)] = store._tables.connection.execute("PRAGMA synchronous")
        assert mode == 1, "as durable as it was asked for"


async def test_a_commit_that_took_place_all_the_same_stands(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        make_unwell(store, "COMMIT", "COMMIT")
        await hand.write(pending(2))
        assert await store.get("w2") == pending(2)
        await hand.write(pending(3))
        assert hand.changes is None or not hand.changes.is_first


async def test_a_commit_of_which_nothing_can_be_learnt_is_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        make_unwell(store, "COMMIT", "ROLLBACK")
        with monkeypatch.context() as patch:
            patch.setattr(
                transaction, "open_file", lambda *_, **__: (_ for _ in ()).throw(StoreError("no disk"))
            )
            with pytest.raises(StoreError, match="unknown"):
                await hand.write(pending(2))
            with pytest.raises(StoreError, match="no disk"):
                await hand.write(pending(2))
        await hand.write(pending(2))
        assert await store.get("w2") == pending(2)


async def test_a_connection_that_could_not_write_is_exchanged(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        unwell = make_unwell(store, "UPDATE head")
        with pytest.raises(StoreError, match="cannot be read or written"):
            await hand.write(pending(2))
        await hand.write(pending(2))
        assert store._tables.connection is not unwell


async def test_no_connection_is_made_to_another_file_of_the_same_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "CHECK_EVERY", 1000.0)
    store = opened(path)
    hand = Hand(store, {})
    await hand.write(pending(1))
    make_unwell(store, "UPDATE head")
    with pytest.raises(StoreError):
        await hand.write(pending(2))
    another = tmp_path / "another.db"
    open_file(str(another)).close()
    another.rename(path)
    with pytest.raises(StorageReplaced):
        await hand.write(pending(2))
    store.abandon()


async def test_a_turn_that_was_refused_begins_anew_and_what_is_wrong_stays_so(
    path: Path, tmp_path: Path
) -> None:
    """DK8."""
    store = opened(path)
    hand = Hand(store, {})
    await hand.write(pending(1))
    inside(store)._looked_at = 0.0
    path.rename(tmp_path / "moved.db")
    for _ in range(3):
        with pytest.raises(StorageReplaced):
            await hand.write(pending(2))
    (tmp_path / "moved.db").rename(path)
    await hand.write(pending(2))
    assert hand.changes is not None
    assert hand.changes.is_first, "a scheduler that forgot everything is told everything"
    await store.close()


async def test_who_waits_for_the_turn_in_vain_is_told_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await one.write(pending(1))
        monkeypatch.setattr(transaction, "PATIENCE", 0.01)
        assert inside(store)._turnstile.acquire(0.0)
        with pytest.raises(StorageBusy, match="stopped or hanging process"):
            await other.write(pending(2))
        inside(store)._turnstile.release()


async def test_a_turn_that_was_given_up_is_not_taken_when_it_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await one.write(pending(1))
        decided: list[int] = []

        def decide(number: int) -> Callable[[Turn], None]:
            return lambda turn: decided.append(number)

        tries: list[float | None] = []
        acquire = Turnstile.acquire

        def noted(self: Turnstile, timeout: float | None = None) -> bool:
            tries.append(timeout)
            return acquire(self, timeout)

        assert inside(store)._turnstile.acquire(0.0)
        monkeypatch.setattr(Turnstile, "acquire", noted)
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "PATIENCE", 0.01)
            for number in (1, 2):  # the second waits behind the first, in the same thread
                with pytest.raises(StorageBusy):
                    await other.look(decide(number))
        given_up = asyncio.ensure_future(other.look(decide(3)))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        last = asyncio.ensure_future(other.look(decide(4)))
        await asyncio.sleep(0.01)
        assert decided == []
        inside(store)._turnstile.release()
        await last
        assert decided == [4]
        assert len(tries) == 3, "who was given up while another was waited for is not waited for at all"
        assert other.changes is not None
        assert other.changes.is_first, "whoever gave up has forgotten everything"


async def test_closing_does_not_wait_for_ever_for_a_turn_that_another_process_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with hand_on(path) as (one, store):
        await one.write(pending(1))
        other = opened(path)
        monkeypatch.setattr(transaction, "PATIENCE", 0.01)
        monkeypatch.setattr(sql_store, "CLOSING", 0.01)
        assert inside(store)._turnstile.acquire(0.0)
        with pytest.raises(StorageBusy):
            await Hand(other, {}).look(lambda turn: None)
        await other.close()
        assert told(caplog, "is closed when its turn comes")
        assert is_alive(side_directory(path), other.worker), "its thread still waits"
        inside(store)._turnstile.release()
        await until(lambda: not is_alive(side_directory(path), other.worker))


# --- Opening and closing --------------------------------------------------------------------------


def heartbeats() -> int:
    return sum(thread.name == "runcue-heart" for thread in threading.enumerate())


async def test_a_new_file_that_somebody_holds_is_busy_and_nothing_is_left_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file(str(path)).close()
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(files, "OPENING", 0.05)
    before = heartbeats()
    with pytest.raises(StorageBusy, match="Close what holds it"):
        opened(path)
    assert heartbeats() == before
    assert not list(side_directory(path).glob("*.lock"))
    holder.execute("ROLLBACK")
    holder.close()
    await opened(path).close()


async def test_a_queue_that_somebody_writes_to_can_be_opened_meanwhile(path: Path) -> None:
    await opened(path).close()
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    store = opened(path)
    holder.close()
    await store.close()


async def test_what_was_made_is_taken_back_when_opening_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(found: mailbox.Workers) -> None:
        raise apsw.BusyError("busy")

    before = heartbeats()
    with monkeypatch.context() as patch:
        patch.setattr(mailbox.Workers, "all", fail)
        with pytest.raises(StorageBusy):
            opened(path)
    assert heartbeats() == before
    assert {one.name for one in side_directory(path).iterdir()} == {"turn", "pair"}
    assert not Path(f"{path}-wal").exists(), "the connection is closed"


async def test_a_worker_is_registered_with_the_time_it_came(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        before = store.clock.now()
        await hand.join()
        with Reader(path) as reader:
            [worker] = reader.workers()
        assert before - 60 < worker["started_at"] <= before


async def test_a_store_whose_code_still_runs_stays_alive_to_the_others(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        leaving = opened(path)
        await Hand(leaving, {}).join()
        threads = heartbeats()
        await leaving.close(still_running=True)
        assert heartbeats() == threads - 1
        assert is_alive(side_directory(path), leaving.worker)
        with Reader(path) as reader:
            assert leaving.worker in [worker["id"] for worker in reader.workers()]
        with pytest.raises(apsw.ConnectionClosedError):
            leaving._tables.connection.execute("SELECT 1")
        await hand.write(pending(2))
        assert await store.get("w2") == pending(2)
        leaving.abandon()
        assert not is_alive(side_directory(path), leaving.worker)


# --- The dead and those who only seem so ----------------------------------------------------------


def leave_files(path: Path, worker: str) -> list[Path]:
    directory = side_directory(path)
    left = [directory / f"{worker}.lock", directory / f"{worker}.wake"]
    for one in left:
        one.touch()
    return left


def lose(worker: str) -> Callable[[Plan, Turn], None]:
    return lambda plan, turn: plan.lost.append(worker)


async def test_files_of_the_dead_are_swept_at_opening_and_with_their_row(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        known = replace(store.me(), id="known")
        await hand.turn(lambda plan, turn: plan.workers.update({known.id: known, store.worker: store.me()}))
        unknown, left = leave_files(path, "unknown"), leave_files(path, "known")
        async with hand_on(path) as (_, other):
            assert not any(one.exists() for one in unknown)
            assert all(one.exists() for one in left)
            await hand.turn(lose("known"))
            assert not any(one.exists() for one in left)
            assert is_alive(side_directory(path), other.worker)
            assert is_alive(side_directory(path), store.worker)


async def test_a_worker_that_was_struck_off_by_mistake_is_told_so(path: Path) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await one.join()
        await other.join()
        assert (await store.exchange(None)).is_known
        await other.turn(lose(store.worker))
        assert not (await store.exchange(None)).is_known
        await one.join()
        assert (await store.exchange(None)).is_known


async def test_a_worker_whose_lock_was_removed_is_not_told_so_again_and_again(path: Path) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await one.join()
        await other.join()
        (side_directory(path) / f"{store.worker}.lock").unlink()
        await other.turn(lose(store.worker))
        assert (await store.exchange(None)).is_known


# --- Pruning --------------------------------------------------------------------------------------


async def test_pruning_goes_on_while_there_is_more_in_small_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "SOME", 5)
    steps = []

    def noted(*given: Any) -> tuple[list[tuple[str, int]], bool]:
        steps.append(pruning.prune(*given))
        return steps[-1]

    monkeypatch.setattr(sql_store, "prune", noted)
    async with hand_on(path, retention=3600.0) as (hand, store):
        await hand.write(*[pending(number) for number in range(1, 24)])
        await hand.write(*[started(hand.kept[f"w{n}"], n, 1.0, "me", "running/me") for n in range(1, 24)])
        await hand.write(*[finished(hand.kept[f"w{n}"], n, 2.0) for n in range(1, 23)])
        await hand.turn(lambda plan, turn: plan.grants.extend([Grant("api", 1.0)] * 12))
        for number in range(1, 41):
            change(path, "INSERT INTO events VALUES (?1, 1, ?1, 1, x'5B5D')", number - 1000)
        store.listen(lambda is_urgent: None, lambda worker: None)
        store._turns.put(store._housekeeping.prune)

        def left() -> tuple[int, ...]:
            queries = ("work_units", "service_log", "events WHERE at < 1000")
            with open_file(str(path), read_only=True) as connection:
                rows: list[Any] = [
                    connection.execute(f"SELECT count(*) FROM {one}").fetchone() for one in queries
                ]
            return tuple(row[0] for row in rows)

        await until(lambda: left() == (1, 1, 0))
    assert len(steps) >= 8
    assert all(len(ids) <= 5 for ids, _ in steps)


DAY = 86400.0


def rated(per: float) -> Callable[[Plan, Turn], None]:
    limits = Limits("slow", rates=(Rate(1, per),))
    return lambda plan, turn: plan.services.update({"slow": ServiceState(limits)})


async def test_starts_are_known_and_kept_as_long_as_the_longest_window_needs(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        now = store.clock.now()
        wanted = [Grant("quick", now - 39 * DAY), Grant("slow", now - 35 * DAY)]
        await hand.turn(rated(40 * DAY))
        await hand.turn(lambda plan, turn: plan.grants.extend([Grant("slow", now - 45 * DAY), *wanted]))
        store.prune()
    async with hand_on(path) as (hand, _):
        since = now - 40 * DAY
        found = await hand.look(
            lambda turn: turn.reader and turn.reader.starts({"slow": since, "quick": since})
        )
        assert found == wanted
        await hand.turn(rated(60.0))
    async with hand_on(path) as (_, store):
        store.prune()
        assert store._tables.connection.execute("SELECT count(*) FROM service_log").fetchall() == [(1,)]


def test_starts_are_pruned_though_nobody_has_taken_a_turn_since(path: Path) -> None:
    async def main() -> None:
        cue = Cue(path, service_log_retention="10s")
        cue.service("api", rate="5/min")
        cue.task("call", uses="api")(no_op)
        async with cue:
            await cue.submit_many([{"task": "call"}] * 5)
            await cue.join()
            system: Any = cue._system
            connection = system.store._tables.connection
            system.store.prune()
            assert connection.execute("SELECT count(*) FROM service_log").fetchall() == [(5,)]
            await asyncio.sleep(100)
            system.store.prune()
            assert connection.execute("SELECT count(*) FROM service_log").fetchall() == [(1,)]
        await cue.close()

    run(main())


async def test_the_lease_of_what_runs_is_renewed_while_its_process_lives(path: Path) -> None:
    cue = Cue(path, lease=0.3)
    is_over = asyncio.Event()

    @cue.task
    async def wait(work: Any) -> None:
        await is_over.wait()

    def lease() -> float:
        connection = open_file(str(path), read_only=True)
        try:
            row: Any = connection.execute("SELECT lease_expires_at FROM work_units").fetchone()
            return float(row[0])
        finally:
            connection.close()

    def is_renewed_since(before: float) -> bool:
        return lease() > before

    async with cue:
        work_id = await cue.submit(wait)
        await anext(cue.events("started"))
        for _ in range(3):
            await until(partial(is_renewed_since, lease()))
        is_over.set()
        await cue.wait(work_id)
        system: Any = cue._system
        await until(
            lambda: not system.store._housekeeping.may_run
        )  # there is nothing to renew, which is found out once
    await cue.close()


def test_a_rate_longer_than_a_month_holds_after_a_restart(path: Path) -> None:
    async def main() -> list[float]:
        began: list[float] = []
        for _ in range(2):
            cue = Cue(path)
            cue.service("slow", rate="1/40d")

            @cue.task(uses="slow")
            async def call(work: Any) -> None:
                began.append(asyncio.get_running_loop().time())

            async with cue:
                await cue.submit(call)
                await cue.join()
            await cue.close()
            await asyncio.sleep(32 * DAY)
        return began

    first, second = run(main())
    assert second - first >= 40 * DAY


async def test_files_of_pruned_work_are_deleted_after_it(path: Path) -> None:
    forgotten: list[tuple[list[tuple[str, int]], str]] = []

    def forget(works: list[tuple[str, int]]) -> None:
        with Reader(path) as reader:
            assert all(reader.get(work_id) is None for work_id, _ in works)
        forgotten.append((works, threading.current_thread().name))
        raise PermissionError("not yours")

    async with hand_on(path, retention=3600.0, forget_files=forget) as (hand, store):
        await hand.write(*[pending(number) for number in (1, 2, 3)])
        await hand.write(*[started(hand.kept[f"w{n}"], n, 1.0, "me", "running/me") for n in (1, 2, 3)])
        await hand.write(*[finished(hand.kept[f"w{n}"], n, 2.0) for n in (1, 2)])
        store._turns.put(store._housekeeping.prune)
        await until(lambda: bool(forgotten))
        assert forgotten == [([("w1", 1), ("w2", 1)], "runcue-store")]
        assert store.prune() == 0
    assert len(forgotten) == 1, "nothing to forget, nobody called"


def ended(seq: int, state: WorkState, **fields: Any) -> Record:
    over: dict[str, Any] = {"completed_at": 2.0, "index_key": None, "sort_key": 0.0}
    return replace(pending(seq, **fields), state=state, **over)


async def test_of_pruned_work_only_what_others_may_depend_on_is_kept(path: Path) -> None:
    async with hand_on(path, retention=3600.0) as (hand, store):
        await hand.write(
            ended(1, WorkState.COMPLETED, is_named=True),
            ended(2, WorkState.COMPLETED),
            ended(3, WorkState.CANCELLED),
            ended(4, WorkState.FAILED),
        )
        assert store.prune() == 3
        found = await hand.look(lambda turn: turn.read(ReadRequest(ids={"w1", "w2", "w3", "w4", "w5"})))
        assert found.forgotten == {"w1": WorkState.COMPLETED, "w3": WorkState.CANCELLED}
        assert list(found.records) == ["w4"]
        change(path, "UPDATE forgotten SET state = 'parked'")
        with pytest.raises(StorageCorrupt, match="What is left of unit 'w1' is damaged"):
            await hand.look(lambda turn: turn.read(ReadRequest(ids={"w1"})))


def test_who_depends_on_pruned_work_fares_as_if_it_were_there(path: Path) -> None:
    async def main() -> None:
        cue = Cue(path, retention="1d")

        @cue.task
        async def note(work: Any) -> None: ...

        async with cue:
            await cue.submit(note, id="done")
            made = await cue.submit(note, delay=5)
            await cue.cancel(made)
            await cue.join()
            await asyncio.sleep(3 * DAY)
            system: Any = cue._system
            assert system.store.prune() == 2
            assert (await cue.wait(await cue.submit(note, depends_on=["done"]))).state is WorkState.COMPLETED
            lost = await cue.wait(await cue.submit(note, depends_on=["done", made]))
            assert (lost.state, lost.error) == (WorkState.FAILED, "prerequisite_cancelled")
            with pytest.raises(DuplicateWork):
                await cue.submit(note, id="done")
            with pytest.raises(WorkNotFound) as caught:
                await cue.wait(made)
            assert caught.value.forgotten
        await cue.close()

    run(main())


# --- Events that are gone -------------------------------------------------------------------------


async def told_and_pruned(path: Path, *, all_of_them: bool) -> None:
    async with hand_on(path, retention=3600.0) as (hand, store):
        for number in range(1, 6):
            words = [EventDraft("progress", NOW, data={"work_id": f"{number}{letter}"}) for letter in "ab"]
            await hand.write(pending(number), events=words)
        change(path, "UPDATE events SET at = 1.0 WHERE first_seq < ?", 99 if all_of_them else 5)
        store.prune()


async def test_for_events_that_are_gone_there_is_one_gap(path: Path) -> None:
    await told_and_pruned(path, all_of_them=False)
    async with hand_on(path) as (_, store):
        for since, missed in ((-5, 4), (0, 4), (3, 1)):
            gap, *rest = (await store.events(since, 100)).events
            assert (gap.type, gap.seq, gap.missed) == ("gap", 4, missed)
            assert [event.seq for event in rest] == [5, 6, 7, 8, 9, 10]
        assert [event.seq for event in (await store.events(4, 100)).events] == [5, 6, 7, 8, 9, 10]
    with Reader(path) as reader:
        assert [event.type for event in reader.events("queued")] == ["gap"]
        assert [event.seq for event in reader.events()] == [4, 5, 6, 7, 8, 9, 10]


async def test_when_all_events_are_gone_the_gap_says_so_once(path: Path) -> None:
    await told_and_pruned(path, all_of_them=True)
    with Reader(path) as reader:
        [gap] = reader.events(since=3)
        assert (gap.type, gap.seq, gap.missed) == ("gap", 10, 7)
        assert list(reader.events(since=10)) == []


@pytest.mark.parametrize("since", [10, 11, 2**63, 2**70])
async def test_after_the_last_event_there_is_none(path: Path, since: int) -> None:
    await told_and_pruned(path, all_of_them=False)
    async with hand_on(path) as (_, store):
        assert (await store.events(since, 100)).events == []
    with Reader(path) as reader:
        assert list(reader.events(since=since)) == []


async def test_damaged_events_are_called_damaged(path: Path) -> None:
    await told_and_pruned(path, all_of_them=False)
    for body in (b"\0\xff", b"[7]", b"[[9,1,2,3,4,5]]", b'["queued"]', b"{}x"):
        change(path, "UPDATE events SET body = ? WHERE first_seq = 7", body)
        with Reader(path) as reader:
            with pytest.raises(StorageCorrupt, match="from number 7 on are damaged"):
                list(reader.events())
            assert [event.seq for event in reader.events(since=8)] == [9, 10]


async def test_by_default_a_reader_of_events_begins_with_its_own_time(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1), events=[EventDraft("progress", NOW)])
        assert store.last_event_seq == 0
    async with hand_on(path) as (hand, store):
        assert store.last_event_seq == 1
        bus = Bus(None, store.events, store.last_event_seq)
        await hand.write(pending(2), events=[EventDraft("progress", NOW)])
        bus.end()
        assert [event.seq async for event in bus.read()] == [2]
        assert [event.seq async for event in bus.read(since=0)] == [1, 2]


# --- Finding --------------------------------------------------------------------------------------


async def test_works_of_a_state_are_found_where_there_are_many_others(path: Path) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(*[pending(number) for number in range(1, 8)])
        run = [started(hand.kept[f"w{n}"], n, NOW, "me", "running/me") for n in (2, 3)]
        ended: dict[str, Any] = {"completed_at": NOW, "index_key": None, "sort_key": 0.0}
        bad = [replace(hand.kept["w5"], state=WorkState.FAILED, **ended),
               replace(hand.kept["w6"], state=WorkState.CANCELLED, **ended)]  # fmt: skip
        await hand.write(*run, *bad)
        for state, ids in (
            ("pending", "w7 w4 w1"),
            ("running", "w3 w2"),
            ("failed", "w5"),
            ("cancelled", "w6"),
        ):
            found = await store.find(Query(WorkState(state), limit=10))
            assert " ".join(record.id for record in found) == ids


# --- Through the front door -----------------------------------------------------------------------


async def test_a_result_that_is_no_json_fails_the_work_and_says_where(path: Path) -> None:
    cue = Cue(path)

    @cue.task(retry=3)
    async def collect(work: Any) -> Any:
        return {"pages": {1, 2}}

    async with cue:
        work = await cue.wait(await cue.submit(collect), timeout=PATIENCE)
    await cue.close()
    assert (work.state, work.attempt) == (WorkState.FAILED, 1)
    assert "result.pages is of type set" in str(work.error)
