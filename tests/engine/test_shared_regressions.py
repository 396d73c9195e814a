"""What went wrong once when processes shared a file, each in the smallest world that shows it (on virtual time)."""

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import runcue
from runcue import Cue, Work
from runcue.engine.waiters import Waiters
from runcue.testing import fail_commit, settle
from tests.handlers import no_op, taking


async def test_work_that_others_depend_on_is_started_though_it_was_in_mind_for_them(tmp_path: Path) -> None:
    async def work(work: Work) -> None: ...

    one, two = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    for cue in (one, two):
        cue.task("work")(work)
    await one.submit("work", id="a")
    await one.close()
    two.start()
    await two.submit_many([{"task": "work", "id": "b"}, {"task": "work", "id": "c", "depends_on": ["a"]}])
    await two.join(timeout=60)
    assert (await two.count())[runcue.WorkState.COMPLETED] == 3
    await two.close()


async def test_work_is_not_held_for_ever_when_its_code_ends_in_a_turn_that_is_not_kept(
    tmp_path: Path,
) -> None:
    cue = Cue(tmp_path / "queue.db")

    @cue.task("work", retry=3, timeout=1)
    async def work(work: Work) -> str:
        if work.attempt > 1:
            return "done"
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # it takes a second to give up
        fail_commit(cue, took_place=False)  # and the disk says no just then
        return "too late"

    cue.start()
    await cue.submit("work", id="a")
    assert await cue.result("a", timeout=60) == "done"
    await cue.close()


async def test_the_first_of_a_lane_of_which_nothing_was_read_is_known(tmp_path: Path) -> None:
    order: list[str] = []

    def make() -> Cue:
        cue = runcue.Cue(tmp_path / "queue.db")
        cue.service("api", concurrent=1)

        async def work(work: Work) -> None:
            order.append(work.id)
            await asyncio.sleep(1)

        cue.task("x", uses="api")(work)
        cue.task("y", uses="api")(work)
        return cue

    one = make()
    await one.submit_many(
        [
            {"task": "x", "id": "busy", "priority": 2},
            {"task": "x", "id": "low x", "priority": 1},
            {"task": "y", "id": "low y"},
        ]
    )
    await one.close()
    two = make()
    two.start()
    await asyncio.sleep(0.5)
    await two.submit("y", id="high", priority=9)
    await two.join(timeout=60)
    assert order == ["busy", "high", "low x", "low y"]
    await two.close()


async def test_work_cancelled_by_others_while_nothing_could_be_kept_is_stopped_and_keeps_its_place(
    tmp_path: Path,
) -> None:
    log: list[str] = []

    def make() -> Cue:
        cue = Cue(tmp_path / "queue.db")
        cue.service("api", concurrent=1)

        @cue.task("work", uses="api")
        async def work(work: Work) -> None:
            log.append(f"{work.id} began")
            try:
                await asyncio.sleep(20 if work.id == "a" else 1)
            except asyncio.CancelledError:
                await asyncio.sleep(3)  # it takes its time
            log.append(f"{work.id} ended")

        return cue

    one, other = make(), make()
    one.start()
    await one.submit("work", id="a")
    await asyncio.sleep(1)
    await other.count()
    fail_commit(one, took_place=False)
    with pytest.raises(runcue.StoreError):
        await one.submit("work", id="never")
    assert await other.cancel("a")
    other.start()
    await other.submit("work", id="b")
    await other.wait("b", timeout=60)
    assert log == ["a began", "a ended", "b began", "b ended"]
    await one.close()
    await other.close()


@pytest.mark.file
async def test_a_lane_whose_best_is_cancelled_while_a_place_becomes_free_takes_its_turn(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    def program() -> Cue:
        cue = Cue(str(tmp_path / "queue.db"))
        cue.service("api", concurrent=1)

        async def call(work: Work) -> None:
            order.append(work.id)
            await asyncio.sleep(1)

        cue.task("one", uses="api")(call)
        cue.task("two", uses="api")(call)
        return cue

    cue, other = program(), program()
    cue.start()
    await cue.submit("two", id="running")
    await settle()
    await cue.submit_many([{"task": name, "priority": -2} for name in ("one", "two")])
    await settle()
    several: list[dict[str, Any]] = [
        {"task": "one", "id": "best", "priority": 4},
        {"task": "two", "id": "second", "priority": 2},
        {"task": "one", "id": "last", "priority": 0},
    ]
    submitted = asyncio.create_task(other.submit_many(several))
    freed = asyncio.create_task(cue.cancel("running"))
    for _ in range(2):  # so that the turn which frees the place is the one that hears of these first
        await asyncio.sleep(0)
    assert await cue.cancel("best")
    await asyncio.gather(freed, submitted)
    await cue.wait("second")
    assert order[:2] == ["running", "second"]
    await cue.close()
    await other.close()


async def test_a_limit_that_is_over_when_it_is_set_is_for_the_next_turn(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db")
    cue.task("work")(no_op)
    async with cue:
        await cue.submit("work", id="a", depends_on=["nobody"], dependency_timeout=0)
        assert (await cue.wait("a", timeout=60)).error == "dependency_timeout"
    await cue.close()


async def test_work_that_was_put_off_long_ago_is_given_back_by_a_process_that_stops(tmp_path: Path) -> None:
    cue, entered = Cue(tmp_path / "queue.db", throttle_timeout=10), asyncio.Event()
    starts: list[int] = []

    @cue.task("work")
    async def work(work: Work) -> None:
        starts.append(work.attempt)
        if len(starts) == 1:
            raise runcue.RateLimited(1)
        entered.set()
        await asyncio.sleep(3600)

    cue.start()
    await cue.submit("work", id="a")
    await entered.wait()
    await asyncio.sleep(60)  # longer than it may be put off
    await cue.stop(0)
    found = await cue.get("a")
    assert found is not None
    assert found.state == "pending"
    await cue.close()


class BusyOnce:
    """A store that refuses the first look, and says then that everything has ended."""

    def __init__(self, ended: Any) -> None:
        self.looks = 0
        self._ended = ended

    async def get_many(self, ids: list[str]) -> dict[str, Any]:
        self.looks += 1
        if self.looks == 1:
            raise runcue.StorageBusy("busy, once")
        return dict.fromkeys(ids, self._ended)


async def test_who_waits_is_told_though_the_store_refused_the_look_after_the_last_news() -> None:
    ended = SimpleNamespace(id="a", state=runcue.WorkState.COMPLETED)
    store: Any = BusyOnce(ended)
    waiters = Waiters(asyncio.get_running_loop(), store)
    future = waiters.final("a")
    waiters.recheck()  # the last that will ever be told
    async with asyncio.timeout(60):
        found: object = await future
    assert (found, store.looks) == (ended, 2)


class Away:
    """A store that cannot be read."""

    def __init__(self) -> None:
        self.looks = 0

    async def get_many(self, ids: list[str]) -> dict[str, Any]:
        self.looks += 1
        raise runcue.StoreError("away")


async def test_looks_at_a_store_that_is_away_do_not_multiply_with_the_news() -> None:
    store: Any = Away()
    waiters = Waiters(asyncio.get_running_loop(), store)
    waiters.final("a")
    for _ in range(40):  # ten seconds of news
        waiters.recheck()
        await asyncio.sleep(0.25)
    store.looks = 0
    await asyncio.sleep(10)
    assert store.looks <= 20


async def test_who_waits_is_told_by_a_turn_of_his_own_when_nobody_else_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process died between its commit and telling of it, or could not tell."""
    here, there = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    for cue in (here, there):
        cue.task("work")(taking(1))

    there.start()
    await here.submit("work", id="far")
    waiting = asyncio.create_task(here.wait("far"))

    async def first_end() -> str | None:
        return (await anext(aiter(here.events(types={"completed"})))).work_id

    reading = asyncio.create_task(first_end())
    await settle()
    system = there._system
    assert system is not None
    monkeypatch.setattr(system.store, "_wake_others", lambda plan: None)
    monkeypatch.setattr(
        "runcue.stores.presence.peer_monitor.LOOK_AROUND", 1e6
    )  # nor does anybody look by himself
    await there.wait("far")
    await here.submit("work", id="own", delay=3600)  # the next turn, whatever it is for
    async with asyncio.timeout(10):
        assert (await waiting).state == "completed"
        assert await reading == "far"
    await here.close()
    await there.close()


async def test_a_look_that_fails_or_is_cut_off_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    cue.task("work")(no_op)
    await cue.submit("work", id="a")
    system = cue._system
    assert system is not None

    async def get(work_id: str) -> Any:
        raise runcue.StorageBusy("busy")

    with monkeypatch.context() as patch:
        patch.setattr(system.store, "get", get)
        with pytest.raises(runcue.StorageBusy):
            await cue.wait("a")
    await settle()
    assert not system.engine.waiters
    await cue.close()


async def test_work_is_asked_about_again_when_the_store_could_not_say_what_a_dependency_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    cue.task("work")(no_op)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").touch()
    cue.dependency_satisfied(runcue.dependency_check_file("{task}/{id}", tmp_path))
    await cue.pause("later")
    await cue.submit("work", id="a", queue="later")
    await cue.submit("work", id="b", depends_on=["a"])
    system = cue._system
    assert system is not None
    real = system.store.get
    refused: list[str] = []

    async def get(work_id: str) -> Any:
        if not refused:
            refused.append(work_id)
            raise runcue.StorageBusy("busy, once")
        return await real(work_id)

    monkeypatch.setattr(system.store, "get", get)
    cue.start()
    for _ in range(100):
        await asyncio.sleep(1)
        if (await cue.count())[runcue.WorkState.COMPLETED]:
            break
    assert refused == ["a"]
    found = await real("b")
    assert found is not None
    assert found.state == "completed"
    await cue.close()


async def test_no_more_lines_of_a_history_are_kept_than_are_shown(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db")

    @cue.task("work", retry=runcue.Retry(max_attempts=250, base_delay=1, backoff="fixed"))
    async def work(work: Work) -> None:
        raise OSError("down")

    async with cue:
        found = await cue.wait(await cue.submit("work"))
        assert [line.number for line in found.history] == [*range(151, 251)]
    await cue.close()
    with closing(apsw.Connection(str(tmp_path / "queue.db"))) as connection:
        assert connection.execute("SELECT count(*) FROM attempts").fetchall() == [(100,)]


def noting(cue: Cue) -> None:
    @cue.task("work")
    async def work(work: Work) -> str:
        return "done"


def store_of(cue: Cue) -> Any:
    system = cue._system
    assert system is not None
    return system.store


async def test_a_start_that_was_kept_though_nobody_could_be_asked_is_begun_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    cue.service("one", concurrent=1)
    starts: list[int] = []

    @cue.task("work", uses="one")
    async def work(work: Work) -> None:
        starts.append(work.attempt)

    await cue.submit_many([{"task": "work", "id": name} for name in "ab"])
    monkeypatch.setattr(store_of(cue)._database.transaction, "_is_committed", lambda *asked: False)
    fail_commit(cue, took_place=True)
    cue.start()  # the turn that starts the first of them
    await cue.join(["a", "b"], timeout=60)
    assert starts == [1, 1]
    await cue.close()


async def test_an_answer_that_was_kept_though_nobody_could_be_asked_is_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")

    @cue.task("work")
    async def work(work: Work) -> str:
        monkeypatch.setattr(store_of(cue)._database.transaction, "_is_committed", lambda *asked: False)
        fail_commit(cue, took_place=True)  # the turn that takes this answer
        return "done"

    cue.start()
    await cue.submit("work", id="a")
    assert await cue.result("a", timeout=60) == "done"
    await cue.stop()
    assert "stale_completion" not in [event.type async for event in cue.events()]
    await cue.close()


async def test_who_waits_for_work_that_ends_and_is_purged_unseen_is_told_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    noting(here)

    @there.task("work")
    async def work(work: Work) -> None:
        raise OSError

    await there.count()  # it decides, and tells nobody
    await here.submit("work", id="a")
    waiting = [asyncio.create_task(wait) for wait in (here.wait("a"), here.result("a"), here.join(["a"]))]
    await settle()
    monkeypatch.setattr(store_of(there), "_wake_others", lambda plan: None)
    there.start()
    await there.wait("a")
    assert await there.purge("a")
    await here.submit("work", delay=60)  # the next turn sees that there is something to look at
    for one in waiting:
        with pytest.raises(runcue.WorkNotFound):
            await asyncio.wait_for(one, 10)
    await here.close()
    await there.close()


async def test_who_maps_over_work_that_ends_and_is_purged_unseen_is_told_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    noting(here)

    @there.task("work")
    async def work(work: Work) -> None:
        raise OSError

    async def mapped() -> None:
        async for _ in here.map("work", [{"id": 1}], key=lambda item: "only"):
            pass

    await there.count()  # it decides, and tells nobody
    mapping = asyncio.create_task(mapped())
    await settle()
    [found] = await here.list()
    monkeypatch.setattr(store_of(there), "_wake_others", lambda plan: None)
    there.start()
    await there.wait(found.id)
    assert await there.purge(found.id)
    await here.submit("work", delay=60)
    with pytest.raises(runcue.WorkNotFound):
        await asyncio.wait_for(mapping, 10)
    await here.close()
    await there.close()


async def test_the_time_to_wait_begins_before_the_first_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    noting(cue)
    await cue.submit("work", id="a")

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    for name in ("get", "get_many"):
        monkeypatch.setattr(store_of(cue), name, silent)
    for wait in (cue.wait("a", timeout=5), cue.result("a", timeout=5), cue.join(["a"], timeout=5)):
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await wait
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.1)
    await cue.close()


async def test_who_joins_works_outlives_a_store_that_is_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = Cue(tmp_path / "queue.db")
    noting(cue)
    await cue.submit_many([{"task": "work", "id": name} for name in "abc"])
    joining = asyncio.create_task(cue.join(list("abc")))
    await settle()

    async def away(*_: object) -> None:
        raise runcue.StoreError("away")

    with monkeypatch.context() as patch:
        for name in ("get", "get_many"):
            patch.setattr(store_of(cue), name, away)
        cue.start()
        await asyncio.sleep(60)
    async with asyncio.timeout(60):
        await joining
    await cue.close()


@pytest.mark.parametrize(("times", "is_told"), [(5, False), (7, True)])
async def test_a_turn_that_was_in_the_way_of_another_session_is_taken_again_and_nobody_knows(
    tmp_path: Path,
    times: int,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue(tmp_path / "queue.db")
    noting(cue)
    await cue.count()
    store = store_of(cue)
    turn, left = store.turn, times

    async def undone(*asked: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            problem = runcue.StorageBusy("undone, because of another session")
            problem.is_passing = True
            raise problem
        return await turn(*asked)

    monkeypatch.setattr(store, "turn", undone)
    if is_told:
        with pytest.raises(runcue.StorageBusy):
            await cue.submit("work", id="a")
    else:
        await cue.submit("work", id="a")
        assert (await cue.explain("a")).work_id == "a"
        assert not caplog.records
    await cue.close()


async def test_what_is_over_for_good_is_not_said_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cue = Cue(tmp_path / "queue.db")
    noting(cue)
    await cue.count()

    async def replaced(*asked: Any) -> Any:
        raise runcue.StorageReplaced("another file")

    monkeypatch.setattr(store_of(cue), "turn", replaced)
    with pytest.raises(runcue.StorageReplaced):
        await cue.submit("work")
    await settle()
    assert [record.message for record in caplog.records] == ["runcue takes no more turns: another file"]
    await cue.close()
