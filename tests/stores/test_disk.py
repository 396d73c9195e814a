"""What was committed to a file is synced after the turn, before anybody hears of it; after trouble, written anew."""

import asyncio
import errno
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue import Cue
from runcue.errors import StorageReplaced, StoreError
from runcue.reader import Reader
from runcue.stores import disk
from runcue.stores.disk import Disk
from runcue.stores.presence import Turnstile, side_directory
from runcue.stores.sqlite import SqliteStore
from runcue.testing.hand import Hand, pending
from tests.stores.beside import PATIENCE, until


class Syncs:
    """Counts what is synced, instead of doing it, and has it fail or wait when told to."""

    def __init__(self) -> None:
        self.amount = 0
        self.broken = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.files: set[str] = set()
        self.while_syncing: list[Any] = []
        self.ask: Any = None

    def __call__(self, descriptor: int) -> None:
        self.amount += 1
        self.files.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        if self.ask is not None:
            self.while_syncing.append(self.ask())
        assert self.may_go_on.wait(PATIENCE)
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def since(self) -> int:
        """How many since this was last asked."""
        amount, self.amount = self.amount, 0
        return amount


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    counting = Syncs()
    monkeypatch.setattr(disk, "_sync", counting)
    return counting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@asynccontextmanager
async def hand_on(path: Path, durability: str = "full") -> AsyncIterator[tuple[Hand, SqliteStore]]:
    store = SqliteStore(str(path), durability=durability, lease=30.0)
    try:
        yield Hand(store, {}), store
    finally:
        await store.close()


# --- When -----------------------------------------------------------------------------------------


async def test_what_a_turn_wrote_is_synced_when_the_next_process_may_take_its_turn(
    path: Path, syncs: Syncs
) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        turnstile = Turnstile(side_directory(path))

        def is_free() -> bool:
            is_ours = turnstile.acquire(0)
            turnstile.release()
            return is_ours

        syncs.ask = is_free
        await hand.write(pending(2))
        assert syncs.while_syncing == [True]
        assert syncs.files == {"queue.db-wal"}
        turnstile.close()
        [(mode,)] = store._connection.execute("PRAGMA synchronous")
        assert mode == 1, "a commit itself only writes"
        syncs.ask = None


async def test_nobody_is_answered_before_the_sync(path: Path, syncs: Syncs) -> None:
    cue = Cue(path)
    cue.task("call")(print)
    first = await cue.submit("call")
    syncs.may_go_on.clear()
    second = asyncio.ensure_future(cue.submit("call"))
    amount = syncs.amount
    await until(lambda: syncs.amount > amount)
    await asyncio.sleep(0.01)
    assert not second.done()
    syncs.may_go_on.set()
    assert await second != first
    await cue.close()


async def test_a_turn_that_saw_nothing_new_and_wrote_nothing_syncs_nothing(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        assert syncs.since() == 1
        await hand.look(lambda turn: None)
        await store.get("w1")
        assert syncs.since() == 0, "what this process wrote, it has synced"


async def test_who_sees_what_another_process_committed_syncs_it_once(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (one, _), hand_on(path) as (other, store):
        await other.write(pending(1))
        await one.write(pending(2))
        syncs.since()
        await other.look(lambda turn: None)
        assert syncs.since() == 1, "the other's own sync might still be under way"
        assert (await store.get("w2")) is not None
        assert syncs.since() == 0
        await one.write(pending(3))
        syncs.since()
        assert (await store.get("w3")) is not None
        assert syncs.since() == 1
        await other.look(lambda turn: None)
        assert syncs.since() == 0, "a look has made it last already"


async def test_a_duplicate_is_not_confirmed_before_the_work_that_it_duplicates_is_on_the_disk(
    path: Path, syncs: Syncs
) -> None:
    one, other = Cue(path), Cue(path)
    for cue in (one, other):
        cue.task("call")(print)
    await other.count()
    await one.count()
    syncs.may_go_on.clear()
    first = asyncio.ensure_future(one.submit("call", idempotency_key="once"))
    amount = syncs.amount
    await until(lambda: syncs.amount > amount)
    second = asyncio.ensure_future(other.submit("call", idempotency_key="once"))
    await until(lambda: syncs.amount > amount + 1)
    assert not first.done()
    assert not second.done()
    syncs.may_go_on.set()
    assert await first == await second
    for cue in (one, other):
        await cue.close()


async def test_what_is_pruned_is_synced_too(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        syncs.since()
        store.prune()
        assert syncs.since() == 1


async def test_relaxed_durability_syncs_nothing(path: Path, syncs: Syncs) -> None:
    async with hand_on(path, "relaxed") as (hand, store), hand_on(path, "relaxed") as (other, _):
        await hand.write(pending(1))
        await other.write(pending(2))
        assert await store.get("w2") is not None
    assert syncs.amount == 0


async def test_a_reader_tells_what_is_on_the_disk(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (hand, _):
        await hand.write(pending(1))
        with Reader(path) as reader:
            syncs.since()
            assert [work.id for work in reader.list()] == ["w1"]
            assert syncs.since() == 1
            reader.list()
            assert syncs.since() == 0
            await hand.write(pending(2))
            syncs.since()
            syncs.broken = True
            with pytest.raises(StoreError, match="Input/output error"):
                reader.list()
            syncs.broken = False
            assert len(reader.list()) == 2
    with Reader(path) as reader:  # nobody has it open: there is no log
        syncs.since()
        assert len(reader.list()) == 2
        assert syncs.since() == 0


# --- When it fails --------------------------------------------------------------------------------


async def test_a_commit_that_could_not_be_synced_is_unknown_and_the_log_is_written_anew(
    path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DK3."""
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def noted(descriptor: int, data: bytes, place: int) -> int:
        written.append((place, len(data)))
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", noted)
    monkeypatch.setattr(disk, "CHUNK", 1000)
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        connection = store._connection
        syncs.broken = True
        with pytest.raises(StoreError, match=r"unknown \(Input/output error\).*same idempotency_key"):
            await hand.write(pending(2))
        amount = syncs.amount
        with pytest.raises(StoreError, match="Input/output error"):
            await store.get("w1")
        assert syncs.amount == amount, "a sync that failed is not repeated"
        with pytest.raises(StoreError, match="Input/output error"):
            await hand.write(pending(3))
        syncs.broken = False
        log = Path(f"{path}-wal")
        written.clear()
        before = log.read_bytes()
        await hand.look(lambda turn: None)
        assert log.read_bytes() == before
        assert [place for place, _ in written] == list(range(0, len(before), 1000))
        assert sum(length for _, length in written) == len(before)
        assert store._connection is not connection
        assert await store.get("w2") == pending(2), "it was kept after all"
        assert await store.get("w3") is None, "nothing is built on what may not last"
        written.clear()
        await hand.write(pending(3))
        assert written == []


async def test_a_look_that_could_not_sync_has_a_turn_taken_that_mends_it(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (one, _), hand_on(path) as (other, store):
        heard: list[bool] = []
        store.listen(heard.append, lambda worker: None)
        await other.write(pending(1))
        await one.write(pending(2))
        syncs.broken = True
        with pytest.raises(StoreError, match="Input/output error"):
            await store.get("w2")
        syncs.broken = False
        assert True in heard
        await other.look(lambda turn: None)
        assert await store.get("w2") == pending(2)


async def test_a_cue_goes_on_by_itself_when_the_disk_is_well_again(path: Path, syncs: Syncs) -> None:
    """P7."""
    cue = Cue(path)
    done: list[str] = []
    cue.task("call")(lambda work: done.append(work.id))
    async with cue:
        await cue.submit("call", id="before")
        await cue.join()
        syncs.broken = True
        with pytest.raises(StoreError, match="unknown"):
            await cue.submit("call", id="unknown")
        syncs.broken = False
        await cue.submit("call", id="after")
        await cue.join(timeout=PATIENCE)
    await cue.close()
    assert sorted(done) == ["after", "before", "unknown"]


# --- The log itself ------------------------------------------------------------------------------


def test_a_log_is_opened_when_there_is_need_and_again_after_it_was_closed(tmp_path: Path) -> None:
    log = Path(f"{tmp_path / 'queue.db'}-wal")
    one = Disk(str(tmp_path / "queue.db"))
    for _ in range(2):  # that there is none is no trouble with the disk
        with pytest.raises(FileNotFoundError):
            one.sync(1)
    log.write_bytes(b"frames")
    one.sync(1)
    one.close()
    one.close()
    one.sync(1)  # nothing to do
    assert one._descriptor is None
    one.sync(2)
    assert one._descriptor is not None
    one.close()


def test_what_one_thread_committed_is_synced_whatever_another_has_synced_meanwhile(
    tmp_path: Path, syncs: Syncs
) -> None:
    Path(f"{tmp_path / 'queue.db'}-wal").touch()
    turns = Disk(str(tmp_path / "queue.db"))
    looks = turns.beside()
    turns.sync(5)
    turns.written()  # of no new revision, as when old work is deleted
    looks.sync(5)
    assert syncs.since() == 1
    turns.sync(5)
    assert syncs.since() == 1
    turns.sync(5)
    assert syncs.since() == 0
    for one in (turns, looks):
        one.close()


def test_the_log_of_another_queue_is_never_written(tmp_path: Path) -> None:
    """DK8."""
    log, other = Path(f"{tmp_path / 'queue.db'}-wal"), tmp_path / "other"
    log.write_bytes(b"ours")
    one = Disk(str(tmp_path / "queue.db"))
    one.open()
    other.write_bytes(b"theirs")
    other.rename(log)
    before = log.stat().st_mtime_ns
    with pytest.raises(StorageReplaced):
        one.write_anew()
    assert (log.read_bytes(), log.stat().st_mtime_ns) == (b"theirs", before)
    one.close()


async def test_no_descriptor_is_left_open(path: Path) -> None:
    def descriptors() -> list[str]:
        found = [
            os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()
        ]  # one of them is that folder
        return [name for name in found if str(path) in name]

    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        await store.get("w1")
        with Reader(path) as reader:
            assert reader.list()
        assert Reader(path).list()  # which nobody closes
        assert descriptors()
    gc.collect()
    assert descriptors() == []


async def test_damaged_counters_do_not_keep_a_reader_from_looking(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (hand, _):
        await hand.write(pending(1))
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE head SET revision = 'many', told = 'much'")
        connection.close()
        with Reader(path) as reader:
            syncs.since()
            for _ in range(2):
                assert reader.get("w1") is not None
                assert syncs.since() == 1, "which moment that was cannot be told"
            connection = apsw.Connection(str(path))
            connection.execute("UPDATE head SET revision = 1, told = 0")
            connection.close()
            await hand.write(pending(2))
            syncs.since()
            assert reader.get("w2") is not None
            assert syncs.since() == 1
