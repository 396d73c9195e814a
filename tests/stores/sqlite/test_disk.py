"""What was committed to a file is synced after the turn, before anybody hears of it; after trouble, written anew."""

import asyncio
import errno
import gc
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue import Cue
from runcue.api.reader import Reader
from runcue.core.model.record import Spec
from runcue.core.schedule.plan import Submit
from runcue.errors import StorageReplaced, StoreError
from runcue.host.system import files
from runcue.ports import Outgoing
from runcue.stores.presence.presence import Turnstile, side_directory
from runcue.stores.sqlite import wal_sync
from runcue.stores.sqlite.wal_sync import Disk
from runcue.testing.manual_turns import pending
from tests.patience import until
from tests.stores import hands
from tests.stores.beside import PATIENCE
from tests.stores.hands import change, inside

hand_on = partial(hands.hand_on, durability="full")


class Syncs:
    """Counts what is synced, instead of doing it, and has it fail or wait when told to."""

    def __init__(self) -> None:
        self.amount = 0
        self.broken = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._guard = threading.Lock()
        self.files: set[str] = set()
        self.while_syncing: list[Any] = []
        self.ask: Any = None

    def __call__(self, descriptor: int) -> None:
        with self._guard:
            self.amount += 1
            may_go_on = self.may_go_on.is_set()
        self.files.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        if self.ask is not None:
            self.while_syncing.append(self.ask())
        assert may_go_on or self.may_go_on.wait(PATIENCE)
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def hold(self) -> int:
        """Have all that begin from now on wait; how many began before, which do not."""
        with self._guard:
            self.may_go_on.clear()
            return self.amount

    def since(self) -> int:
        """How many since this was last asked."""
        amount, self.amount = self.amount, 0
        return amount


class Kernel:
    """Tells of a failure as Linux does: once for each descriptor, and to a new one only what nobody was told yet."""

    def __init__(self) -> None:
        self._failures = 0
        self._is_told = True
        self._known: dict[int, int] = {}
        self._open = os.open

    def fail(self) -> None:
        """What was written to the log last does not get onto the disk."""
        self._failures += 1
        self._is_told = False

    def open(self, path: Any, *given: Any, **options: Any) -> int:
        descriptor = self._open(path, *given, **options)
        if str(path).endswith("-wal"):
            self._known[descriptor] = self._failures - (not self._is_told)
        return descriptor

    def sync(self, descriptor: int) -> None:
        known, self._known[descriptor] = self._known[descriptor], self._failures
        if known < self._failures:
            self._is_told = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    telling = Kernel()
    monkeypatch.setattr(os, "open", telling.open)
    monkeypatch.setattr(files, "sync", telling.sync)
    return telling


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    counting = Syncs()
    monkeypatch.setattr(files, "sync", counting)
    return counting


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
        [(mode,)] = store._tables.connection.execute("PRAGMA synchronous")
        assert mode == 1, "a commit itself only writes"
        syncs.ask = None


async def test_nobody_is_answered_before_the_sync(path: Path, syncs: Syncs) -> None:
    cue = Cue(path)
    cue.task("call")(print)
    first = await cue.submit("call")
    amount = syncs.hold()
    second = asyncio.ensure_future(cue.submit("call"))
    await until(lambda: syncs.amount > amount)
    await asyncio.sleep(0.01)
    assert not second.done()
    syncs.may_go_on.set()
    assert await second != first
    await cue.close()


async def test_a_turn_that_saw_nothing_new_and_wrote_nothing_syncs_nothing(path: Path, syncs: Syncs) -> None:
    async with hand_on(path) as (hand, store):
        await hand.turn()
        syncs.since()
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
        assert await other.try_turn() is None, "another process decides"
        assert syncs.since() == 1, "the other's own sync might still be under way"
        assert await other.try_turn() is None
        assert syncs.since() == 0
        await other.look(lambda turn: None)
        assert syncs.since() == 1, "it decides from now on, which is written"
        assert (await store.get("w2")) is not None
        assert syncs.since() == 0
        await one.write(pending(3))
        syncs.since()
        assert (await store.get("w3")) is not None
        assert syncs.since() == 1
        await store.get("w2")
        assert syncs.since() == 0, "a look has made it last already"


async def test_a_post_of_another_process_is_not_told_of_before_it_is_on_the_disk(
    path: Path, syncs: Syncs
) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (_, other):
        await one.write(pending(1))
        with Reader(path) as reader:
            assert reader.get("w1") is not None
            assert (await store.get("w1")) is not None
            await other.exchange(Outgoing(1, [Submit([Spec("new", "call", b"{}", ())], is_plain=True)]))
            syncs.since()
            assert (await store.get("new")) is not None
            assert syncs.since() == 1, "no revision tells of it"
            assert reader.get("new") is not None
            assert syncs.since() == 1
            assert (await store.get("w1")) is not None
            assert reader.get("w1") is not None
            assert syncs.since() == 0


async def test_a_duplicate_is_not_confirmed_before_the_work_that_it_duplicates_is_on_the_disk(
    path: Path, syncs: Syncs
) -> None:
    one, other = Cue(path), Cue(path)
    for cue in (one, other):
        cue.task("call")(print)
    await other.count()
    await one.count()
    amount = syncs.hold()
    first = asyncio.ensure_future(one.submit("call", idempotency_key="once"))
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
    async with hands.hand_on(path) as (hand, store), hands.hand_on(path) as (other, _):
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
    pwrite = files.write_at

    def noted(descriptor: int, data: bytes, place: int) -> int:
        written.append((place, len(data)))
        with pytest.raises(apsw.BusyError):
            another.execute("BEGIN IMMEDIATE")
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(files, "write_at", noted)
    monkeypatch.setattr(wal_sync, "CHUNK", 1000)
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        another, connection = apsw.Connection(str(path)), store._tables.connection
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
        assert store._tables.connection is not connection
        assert await store.get("w2") == pending(2), "it was kept after all"
        assert await store.get("w3") is None, "nothing is built on what may not last"
        written.clear()
        await hand.write(pending(3))
        assert written == []
        another.close()


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


async def test_what_could_not_be_synced_is_told_by_no_other_process_that_had_the_queue_open(
    path: Path, kernel: Kernel
) -> None:
    """Not even by one that looks for the first time: a descriptor that it opens now would know of nothing."""
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await other.write(pending(1))
        kernel.fail()
        with pytest.raises(StoreError, match="unknown"):
            await other.write(pending(2))
        for _ in range(2):
            with pytest.raises(StoreError, match="may not be on the disk"):
                await store.get("w2")
        await one.look(lambda turn: None)
        assert await store.get("w2") == pending(2)


async def test_what_was_mended_is_not_told_once_more(path: Path, kernel: Kernel) -> None:
    async with hand_on(path) as (one, store), hand_on(path) as (other, _):
        await other.write(pending(1))
        assert await store.get("w1") == pending(1)
        kernel.fail()
        with pytest.raises(StoreError, match="unknown"):
            await other.write(pending(2))
        with pytest.raises(StoreError, match="may not be on the disk"):
            await store.get("w2")
        await one.write(pending(3))  # written anew by its turn
        await other.write(pending(4))
        assert await store.get("w4") == pending(4)


async def test_a_look_is_refused_the_same_way_whatever_the_disk_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with hand_on(path) as (hand, _), hand_on(path) as (_, store):
        await hand.write(pending(1))
        monkeypatch.setattr(files, "sync", full)
        with pytest.raises(StoreError, match="No space left") as refused:
            await store.get("w1")
        assert type(refused.value) is StoreError, "who waits for events tries again"
        monkeypatch.undo()


async def test_nothing_is_copied_into_the_file_of_a_log_that_could_not_be_synced(
    path: Path, syncs: Syncs, caplog: pytest.LogCaptureFixture
) -> None:
    async with hand_on(path) as (hand, store):
        await hand.write(pending(1))
        syncs.broken = True
        before = path.read_bytes()
        inside(store)._log._copy()
        assert path.read_bytes() == before
        assert "the log cannot be copied beside the turns" in caplog.text
        syncs.broken = False
        await hand.look(lambda turn: None)
        inside(store)._log._copy()
        assert path.read_bytes() != before


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


def test_what_was_committed_of_no_new_revision_is_synced_all_the_same(tmp_path: Path, syncs: Syncs) -> None:
    Path(f"{tmp_path / 'queue.db'}-wal").touch()
    one = Disk(str(tmp_path / "queue.db"))
    one.sync(5)
    one.sync(5, has_more=True)  # as when old work is deleted
    assert syncs.since() == 2
    one.sync(None)
    one.sync(4)
    assert syncs.since() == 1
    one.close()


def test_threads_sync_one_after_the_other_so_that_each_hears_of_a_failure(
    tmp_path: Path, syncs: Syncs
) -> None:
    """The kernel tells one of them."""
    Path(f"{tmp_path / 'queue.db'}-wal").touch()
    one = Disk(str(tmp_path / "queue.db"))
    heard: list[str | None] = []

    def sync(revision: int) -> None:
        try:
            one.sync(revision)
        except OSError as error:
            heard.append(error.strerror)

    threads = [threading.Thread(target=sync, args=[number]) for number in range(3)]
    syncs.hold()
    syncs.broken = True
    for thread in threads:
        thread.start()
    syncs.may_go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert (syncs.amount, heard) == (1, ["Input/output error"] * 3)
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
        change(path, "UPDATE head SET revision = 'many', last_event_seq = 'much'")
        with Reader(path) as reader:
            syncs.since()
            for _ in range(2):
                assert reader.get("w1") is not None
                assert syncs.since() == 1, "which moment that was cannot be told"
            change(path, "UPDATE head SET revision = 1, last_event_seq = 0")
            await hand.write(pending(2))
            syncs.since()
            assert reader.get("w2") is not None
            assert syncs.since() == 1
