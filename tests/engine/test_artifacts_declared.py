"""Declared inputs and outputs: when work waits, when it is skipped, and who is asked because a file was made."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work, write_output
from runcue.engine.artifacts import Artifacts, Finding
from runcue.testing import settle
from tests.engine.seen import clock, epoch, story, told
from tests.handlers import no_op, taking

HOUR = 3600.0


def touch(path: Path, age: float = 0.0) -> Path:
    """A file last changed so many virtual seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (epoch() - age, epoch() - age))
    return path


def with_call(cue: Cue, **declared: Any) -> list[str]:
    """Register "call" with these declarations; the ids in the order they started."""
    started: list[str] = []

    @cue.task("call", **declared)
    async def call(work: Work) -> str:
        started.append(work.id)
        return "made"

    return started


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Every look at declared files: when, and of which work."""
    looks: list[tuple[float, str]] = []
    look = Artifacts.look

    def counted(declared: Artifacts, work: Work, wall: float) -> Finding:
        looks.append((clock(), work.id))
        return look(declared, work, wall)

    monkeypatch.setattr(Artifacts, "look", counted)
    return looks


# --- Waiting for inputs ---------------------------------------------------------------------------


async def test_work_waits_until_all_its_inputs_are_there(tmp_path: Path) -> None:
    cue = Cue()
    started = with_call(cue, inputs=[tmp_path / "{page}.png", tmp_path / "{page}.json"])
    async with cue:
        work_id = await cue.submit("call", params={"page": 1})
        await asyncio.sleep(10)
        touch(tmp_path / "1.png")
        await asyncio.sleep(10)
        assert started == []
        why = await cue.explain(work_id)
        assert (why.reason, why.details) == ("not_ready", f"its input {tmp_path / '1.json'} is not there")
        [blocked] = await cue.debug_blocked()
        assert blocked["reason"] == "not_ready"
        touch(tmp_path / "1.json")
        work = await cue.wait(work_id, timeout=1.1)  # nobody told of it: the clock finds it
    assert (work.state, work.attempt, work.skipped) == ("completed", 1, False)
    assert await story(cue, work_id) == ["queued", "started", "completed"]


async def test_a_consumer_starts_in_the_moment_its_producer_completes(tmp_path: Path) -> None:
    cue = Cue()
    times: dict[str, float] = {}

    @cue.task(outputs=tmp_path / "{n}")
    async def produce(work: Work) -> None:
        await asyncio.sleep(30.0123)
        touch(tmp_path / str(work.params["n"]))

    @cue.task(inputs=[tmp_path / "1", tmp_path / "2"], outputs=lambda work: tmp_path / "both")
    async def consume(work: Work) -> None:
        times[work.id] = clock()
        touch(tmp_path / "both")

    async with cue:
        await cue.submit("consume", id="consumer")
        await cue.submit("produce", params={"n": 2})
        await cue.submit("produce", params={"n": 1}, delay=5)
        await cue.join()
    assert times["consumer"] == pytest.approx(35.0123, abs=1e-6)


async def test_of_a_thousand_who_wait_exactly_the_consumers_of_what_was_made_are_asked(
    tmp_path: Path, looked: list[tuple[float, str]]
) -> None:
    cue = Cue()

    @cue.task(outputs=tmp_path / "{n}.in")
    async def produce(work: Work) -> None:
        await asyncio.sleep(10.012345)
        touch(tmp_path / f"{work.params['n']}.in")

    @cue.task(inputs=tmp_path / "{n}.in")
    async def consume(work: Work) -> float:
        return clock()

    async with cue:
        ids = await cue.submit_many({"task": "consume", "params": {"n": n}} for n in range(1000))
        twin = await cue.submit("consume", params={"n": 500})
        await cue.submit("produce", id="producer", params={"n": 500})
        await cue.wait("producer")
        made_at = clock()
        assert await cue.result(ids[500]) == await cue.result(twin) == made_at
        assert {work_id for _, work_id in looked} == {*ids, twin, "producer"}
        assert [work_id for at, work_id in looked if at == made_at] == [ids[500], twin]
        await asyncio.sleep(5)
    others = [work_id for at, work_id in looked if at > made_at]
    assert set(others) == {*ids} - {ids[500]}  # by the clock
    assert len(others) <= 999 * 6


async def test_a_completion_that_declares_nothing_asks_nobody_who_lacks_a_file(
    tmp_path: Path, looked: list[tuple[float, str]]
) -> None:
    cue = Cue()
    with_call(cue, inputs=tmp_path / "never")
    cue.task("other")(taking(20.012345))
    async with cue:
        await cue.submit("call", id="waits")
        await cue.wait(await cue.submit("other"))
        await settle()
        assert clock() not in [at for at, _ in looked]


async def test_who_failed_wakes_nobody_and_who_was_skipped_does(
    tmp_path: Path, looked: list[tuple[float, str]]
) -> None:
    cue = Cue()

    @cue.task(outputs=tmp_path / "out", retry=1)
    async def produce(work: Work) -> None:
        await asyncio.sleep(20.012345)
        raise OSError("no")

    with_call(cue, inputs=tmp_path / "out")
    async with cue:
        await cue.submit("call", id="consumer")
        await cue.wait(await cue.submit("produce"))
        await settle()
        assert clock() not in [at for at, _ in looked]
        await asyncio.sleep(0.01)
        touch(tmp_path / "out")
        skipped = await cue.wait(await cue.submit("produce"))
        assert skipped.skipped
        await cue.wait("consumer", timeout=0.001)


async def test_cancelled_work_that_lacked_a_file_is_not_asked_any_more(
    tmp_path: Path, looked: list[tuple[float, str]]
) -> None:
    cue = Cue()
    started = with_call(cue, inputs=tmp_path / "in")
    async with cue:
        await cue.submit("call", id="gone")
        await asyncio.sleep(5)
        await cue.cancel("gone")
        before = len(looked)
        touch(tmp_path / "in")
        await asyncio.sleep(60)
    assert (len(looked), started) == (before, [])


# --- Skipping -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "runs"),
    [
        ({"in": 10}, True),
        ({"in": 10, "out": 20}, True),
        ({"in": 10, "out": 10}, False),
        ({"in": 10, "out": 5}, False),
        ({"in": 30 * HOUR, "out": 25 * HOUR}, True),
        ({"in": 30 * HOUR, "out": 23 * HOUR}, False),
    ],
)
async def test_work_runs_when_its_output_is_missing_older_than_an_input_or_too_old(
    tmp_path: Path, ages: dict[str, float], runs: bool
) -> None:
    cue = Cue()
    started = with_call(cue, inputs=tmp_path / "in", outputs=tmp_path / "out", max_age="24h")
    skipped: list[str] = []
    cue.on_skip(lambda work: skipped.append(work.id))
    for name, age in ages.items():
        touch(tmp_path / name, age)
    async with cue:
        work = await cue.wait(await cue.submit("call", id="a"))
    assert (work.state, work.skipped) == ("completed", not runs)
    assert (started, skipped) == ((["a"], []) if runs else ([], ["a"]))


async def test_an_output_grows_old_by_the_time_of_day(tmp_path: Path) -> None:
    cue = Cue()
    started = with_call(cue, outputs=tmp_path / "out", max_age="1h")
    touch(tmp_path / "out")
    async with cue:
        for _ in range(2):
            await cue.wait(await cue.submit("call"))
            await asyncio.sleep(HOUR / 2 + 60)
        assert started == []
        await cue.wait(await cue.submit("call", id="late"))
    assert started == ["late"]


async def test_without_outputs_work_always_runs(tmp_path: Path) -> None:
    cue = Cue()
    started = with_call(cue, inputs=touch(tmp_path / "in"))
    async with cue:
        for _ in range(3):
            await cue.wait(await cue.submit("call"))
    assert len(started) == 3


async def test_skipping_takes_no_slot_and_needs_no_open_service(tmp_path: Path) -> None:
    cue = Cue()
    cue.service("api", rate="1/h")
    with_call(cue, outputs=tmp_path / "{n}", uses="api")
    for n in range(50):
        touch(tmp_path / str(n))
    async with cue:
        await cue.pause("api")
        await cue.submit_many({"task": "call", "params": {"n": n}} for n in range(50))
        await cue.join(timeout=5)
    assert len(await told(cue, "skipped")) == 50


async def test_output_that_came_before_a_retry_is_not_made_again(tmp_path: Path) -> None:
    cue = Cue()

    @cue.task(outputs=tmp_path / "out", retry=5)
    async def flaky(work: Work) -> None:
        touch(tmp_path / "out")
        raise OSError("after the output was written")

    async with cue:
        work = await cue.wait(await cue.submit("flaky"))
    assert (work.state, work.skipped, work.failures) == ("completed", True, 1)


async def test_work_of_tasks_that_declare_nothing_runs_beside(tmp_path: Path) -> None:
    cue = Cue()
    with_call(cue, inputs=tmp_path / "never")
    done: list[str] = []

    @cue.task
    async def plain(work: Work) -> None:
        done.append(work.id)

    async with cue:
        await cue.submit("call", priority=100)
        ids = await cue.submit_many({"task": "plain"} for _ in range(20))
        await cue.join(ids)
    assert done == ids
    assert clock() < 1


async def test_a_task_that_declares_files_after_the_start_has_them_looked_at(tmp_path: Path) -> None:
    cue = Cue()
    first: list[str] = []

    @cue.task
    async def plain(work: Work) -> None:
        first.append(work.id)

    async with cue:
        await cue.wait(await cue.submit("plain"))
        started = with_call(cue, inputs=tmp_path / "in")
        work_id = await cue.submit("call")
        await asyncio.sleep(5)
        assert started == []
        touch(tmp_path / "in")
        await cue.wait(work_id, timeout=1.1)


# --- Beside callbacks and dependencies ------------------------------------------------------------


async def test_files_and_is_ready_must_both_agree(tmp_path: Path) -> None:
    cue = Cue()
    started = with_call(cue, inputs=tmp_path / "{n}")
    asked: list[str] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(work.id)
        return clock() >= 20

    async with cue:
        await cue.submit("call", id="late file", params={"n": 1})
        await cue.submit("call", id="late callback", params={"n": 2})
        touch(tmp_path / "2")
        await asyncio.sleep(10)
        assert set(asked) == {"late callback"}  # of what lacks its files nobody asks more
        await asyncio.sleep(12)
        assert started == ["late callback"]
        touch(tmp_path / "1")
        await cue.join(timeout=2)
    assert started == ["late callback", "late file"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("has_output", "says_stale", "runs"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
async def test_work_is_skipped_only_when_files_and_is_stale_both_say_valid(
    tmp_path: Path, has_output: bool, says_stale: bool, runs: bool, is_async: bool
) -> None:
    cue = Cue()
    started = with_call(cue, outputs=tmp_path / "out")
    if has_output:
        touch(tmp_path / "out")

    async def later(work: Work) -> bool:
        return says_stale

    cue.is_stale(later if is_async else lambda work: says_stale)
    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert (work.skipped, bool(started)) == (not runs, runs)


async def test_without_outputs_is_stale_decides_alone(tmp_path: Path) -> None:
    cue = Cue()
    started = with_call(cue, inputs=touch(tmp_path / "in"))
    cue.is_stale(lambda work: work.id == "stale")
    async with cue:
        for work_id in ("stale", "valid"):
            await cue.wait(await cue.submit("call", id=work_id))
    assert started == ["stale"]


async def test_dependencies_come_before_files(tmp_path: Path, looked: list[tuple[float, str]]) -> None:
    cue = Cue()
    cue.task("first")(taking(20))
    started = with_call(cue, inputs=tmp_path / "in")
    async with cue:
        await cue.submit("first", id="first")
        await cue.submit("call", id="both", depends_on=["first"])
        await asyncio.sleep(10)
        assert looked == []
        await asyncio.sleep(20)
        assert (bool(looked), started) == (True, [])
        touch(tmp_path / "in")
        await cue.join(timeout=2)
    assert started == ["both"]


async def test_the_best_score_still_wins_among_those_whose_files_are_there(tmp_path: Path) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    started = with_call(cue, inputs=tmp_path / "{n}", uses="api")
    cue.priority(lambda ctx: ctx.work.params["n"] / 10)
    for n in (1, 2, 3):
        touch(tmp_path / str(n))
    async with cue:
        await cue.submit_many({"task": "call", "id": f"w{n}", "params": {"n": n}} for n in (1, 2, 3, 9))
        await cue.join(["w1", "w2", "w3"])
    assert started == ["w3", "w2", "w1"]


# --- What goes wrong ------------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, make: Callable[[str], OSError]) -> None:
    """Everything with "secret" in its name cannot be looked at."""
    look = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "secret" in str(path):
            raise make(str(path))
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)


async def test_what_may_not_be_looked_at_is_not_there_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, lambda path: PermissionError(13, "Permission denied", path))
    cue = Cue()
    started = with_call(cue, inputs=tmp_path / "secret{n}")
    cue.task("runs", outputs=tmp_path / "secret")(no_op)
    async with cue:
        ids = await cue.submit_many({"task": "call", "params": {"n": n}} for n in range(5))
        await cue.wait(await cue.submit("runs"))
        await asyncio.sleep(20)
        assert (await cue.explain(ids[0])).details == f"its input {tmp_path / 'secret0'} is not there"
    assert started == []
    [complaint] = await told(cue, "callback_failed")
    assert complaint.callback == "artifacts"
    assert str(tmp_path / "secret") in str(complaint.error)


async def test_work_whose_files_cannot_be_seen_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda path: OSError(5, "Input/output error", path))
    cue = Cue()
    started = with_call(cue, outputs=tmp_path / "secret")
    async with cue:
        work_id = await cue.submit("call")
        await asyncio.sleep(20)
        assert started == []
        assert (await cue.explain(work_id)).details == "its files cannot be looked at"
        monkeypatch.undo()
        await cue.wait(work_id, timeout=2)
    [complaint] = await told(cue, "callback_failed")
    assert "Input/output error" in str(complaint.error)


async def test_a_function_that_fails_later_holds_its_work_back_or_wakes_nobody(tmp_path: Path) -> None:
    cue = Cue()
    is_broken = False

    def paths(work: Work) -> Path:
        if is_broken:
            raise ZeroDivisionError
        return tmp_path / work.task

    @cue.task(outputs=paths)
    async def runs(work: Work) -> None:
        nonlocal is_broken
        is_broken = True

    started = with_call(cue, inputs=paths)
    async with cue:
        waits = await cue.submit("call")
        assert (await cue.wait(await cue.submit("runs"))).state == "completed"
        await asyncio.sleep(20)
        touch(tmp_path / "call")
        await asyncio.sleep(20)
        assert started == []
        is_broken = False
        await cue.wait(waits, timeout=2)
    assert {event.callback for event in await told(cue, "callback_failed")} == {"artifacts"}


# --- Pipelines ------------------------------------------------------------------------------------


def bakery(cue: Cue, folder: Path) -> list[str]:
    """Three stages: apples and flour become slices and dough, those become a pie, and that is served."""
    baked: list[str] = []

    def make(path: Path, text: str) -> None:
        baked.append(path.name)
        with write_output(path) as out:
            out.write(text)

    @cue.task(inputs=folder / "{thing}.raw", outputs=folder / "{thing}.ready")
    async def prepare(work: Work) -> None:
        await asyncio.sleep(60)
        make(folder / f"{work.params['thing']}.ready", work.params["thing"])

    @cue.task(inputs=[folder / "apples.ready", folder / "flour.ready"], outputs=folder / "pie")
    async def bake(work: Work) -> None:
        await asyncio.sleep(60)
        make(folder / "pie", (folder / "apples.ready").read_text() + (folder / "flour.ready").read_text())

    @cue.task(inputs=folder / "pie", outputs=folder / "receipt")
    async def serve(work: Work) -> None:
        make(folder / "receipt", (folder / "pie").read_text())

    return baked


STAGES: list[dict[str, Any]] = [
    {"task": "serve", "id": "serve"},
    {"task": "bake", "id": "bake"},
    {"task": "prepare", "id": "slice", "params": {"thing": "apples"}},
    {"task": "prepare", "id": "knead", "params": {"thing": "flour"}},
]
NEEDS = {"serve": ["bake"], "bake": ["slice", "knead"]}


async def test_a_pipeline_runs_in_the_order_of_its_files_and_not_again(tmp_path: Path) -> None:
    for thing in ("apples", "flour"):
        touch(tmp_path / f"{thing}.raw")
    cue = Cue()
    baked = bakery(cue, tmp_path)
    async with cue:
        await cue.submit_many(STAGES)
        await cue.join()
    assert baked == ["apples.ready", "flour.ready", "pie", "receipt"]
    assert clock() == pytest.approx(120, abs=0.001)
    assert (tmp_path / "receipt").read_text() == "applesflour"
    again = Cue()  # nothing is remembered but the files
    baked = bakery(again, tmp_path)
    async with again:
        await again.submit_many(STAGES)
        await again.join()
    assert baked == []
    assert not list(tmp_path.glob(".runcue*"))


async def test_after_a_change_what_comes_of_it_is_made_anew_and_nothing_else(tmp_path: Path) -> None:
    for name in ("apples.raw", "flour.raw", "apples.ready", "flour.ready", "pie", "receipt"):
        touch(tmp_path / name, age=60)
    touch(tmp_path / "flour.raw")
    cue = Cue()
    baked = bakery(cue, tmp_path)
    async with cue:  # an old input is an input: who must not start from it depends on who makes it anew
        await cue.submit_many({**stage, "depends_on": NEEDS.get(stage["id"], [])} for stage in STAGES)
        await cue.join()
    assert baked == ["flour.ready", "pie", "receipt"]


async def test_two_who_share_a_file_run_each_stage_once(tmp_path: Path) -> None:
    for thing in ("apples", "flour"):
        touch(tmp_path / f"{thing}.raw")
    one, two = Cue(tmp_path / "shared.db"), Cue(tmp_path / "shared.db")
    baked = [bakery(cue, tmp_path) for cue in (one, two)]
    one.start()
    two.start()
    await one.submit_many(STAGES[:2])
    await two.submit_many(STAGES[2:])
    await asyncio.gather(one.join(timeout=600), two.join(timeout=600))
    assert sorted(baked[0] + baked[1]) == ["apples.ready", "flour.ready", "pie", "receipt"]
    assert clock() <= 123
    await one.close()
    await two.close()


async def test_a_consumer_elsewhere_notices_what_was_made_within_a_second_or_so(tmp_path: Path) -> None:
    maker, user = Cue(tmp_path / "shared.db"), Cue(tmp_path / "shared.db")

    @maker.task(outputs=tmp_path / "out")
    async def produce(work: Work) -> None:
        await asyncio.sleep(30)
        touch(tmp_path / "out")

    @user.task(inputs=tmp_path / "out")
    async def consume(work: Work) -> float:
        return clock()

    maker.start()
    user.start()
    work_id = await user.submit("consume")
    await maker.submit("produce")
    assert 30 <= await user.result(work_id, timeout=60) <= 31.1
    await maker.close()
    await user.close()
