"""Inputs that are not there yet, and outputs that already are."""

import asyncio
from pathlib import Path
from typing import Any

import runcue
from runcue import Work, WorkState
from tests.patience import BOUND, happens, until


async def test_work_waits_for_its_input_and_a_flipped_flag_is_noticed() -> None:
    cue = runcue.Cue()
    cue.service("kiln", rate="100/min")
    is_hot = False
    asked = 0

    @cue.task("fire", uses="kiln")
    def fire(work: Work) -> dict[str, bool]:
        return {"glazed": True}

    @cue.is_ready
    def kiln_is_hot(work: Work) -> bool:
        nonlocal asked
        asked += 1
        return is_hot

    cue.start()
    work_id = await cue.submit("fire", params={"pot": 7})
    await until(lambda: asked >= 2)
    held = await cue.get(work_id)
    assert held is not None
    assert held.state is WorkState.PENDING
    [blocked] = await cue.debug_blocked()
    assert (blocked["work"].id, blocked["reason"]) == (work_id, "not_ready")

    is_hot = True
    assert (await cue.wait(work_id, BOUND)).result == {"glazed": True}
    await cue.stop()


async def test_each_work_is_asked_about_by_itself() -> None:
    cue = runcue.Cue()
    delivered = {"flour"}
    refused = asyncio.Event()

    @cue.task
    async def cook(work: Work) -> None: ...

    @cue.is_ready
    async def has_arrived(work: Work) -> bool:
        if work.params["with"] not in delivered:
            refused.set()
            return False
        return True

    async with cue:
        waits = await cue.submit("cook", params={"with": "saffron"})
        runs = await cue.submit("cook", params={"with": "flour"})
        assert (await cue.wait(runs, BOUND)).state is WorkState.COMPLETED
        await happens(refused)
        held = await cue.get(waits)
        assert held is not None
        assert held.state is WorkState.PENDING
        delivered.add("saffron")
        assert (await cue.wait(waits, BOUND)).state is WorkState.COMPLETED


async def test_a_readiness_callback_that_raises_holds_the_work_and_is_told_once() -> None:
    cue = runcue.Cue()
    asked = 0

    @cue.task
    def never(work: Work) -> None: ...

    @cue.is_ready
    def confused(work: Work) -> bool:
        nonlocal asked
        asked += 1
        raise LookupError("where did I put it")

    cue.start()
    work_id = await cue.submit("never")
    await until(lambda: asked >= 3)
    held = await cue.get(work_id)
    assert held is not None
    assert held.state is WorkState.PENDING
    await cue.stop()

    told = [event async for event in cue.events("callback_failed")]
    assert [(event.callback, event.data["error"]) for event in told] == [
        ("is_ready", "LookupError: where did I put it")
    ]


async def test_valid_output_is_skipped_without_a_call_or_a_slot() -> None:
    cue = runcue.Cue()
    cue.service("lab", concurrent=1, rate="1/hour")  # a second real start would not come today
    developed: list[str] = []
    skipped: list[str] = []
    completed: list[str] = []

    @cue.task("develop", uses="lab")
    def develop(work: Work) -> None:
        developed.append(work.params["film"])

    @cue.is_stale
    def is_undeveloped(work: Work) -> bool:
        return work.params["film"] not in developed

    @cue.on_skip
    def skip(work: Work) -> None:
        skipped.append(work.id)

    @cue.on_complete
    def complete(work: Work, result: Any, duration: float) -> None:
        completed.append(work.id)

    async with cue:
        first = await cue.submit("develop", params={"film": "a"})
        await cue.wait(first, BOUND)
        again = await cue.submit("develop", params={"film": "a"})
        work = await cue.wait(again, BOUND)

    assert (work.state, work.skipped, work.started_at, work.result) == (
        WorkState.COMPLETED, True, None, None,
    )  # fmt: skip
    assert work.completed_at is not None
    assert developed == ["a"]
    assert (skipped, completed) == ([again], [first])


async def test_a_staleness_callback_that_raises_lets_the_work_run() -> None:
    cue = runcue.Cue()

    @cue.task
    async def repaint(work: Work) -> str:
        return "blue"

    @cue.is_stale
    def unsure(work: Work) -> bool:
        raise RuntimeError("no idea")

    async with cue:
        assert await cue.result(await cue.submit("repaint"), BOUND) == "blue"


async def test_a_whole_pipeline_runs_by_its_artifacts_and_runs_only_once(tmp_path: Path) -> None:
    ran: list[str] = []

    def shell() -> tuple[runcue.Cue, list[str]]:
        cue = runcue.Cue()
        cue.service("mill", rate="500/min", concurrent=2)
        done: list[str] = []

        @cue.task("grind", uses="mill")
        def grind(work: Work) -> None:
            unfinished = tmp_path / f"{work.params['sack']}.part"
            unfinished.write_text("flour")
            ran.append(work.task)
            unfinished.rename(unfinished.with_suffix(".flour"))  # an output appears at once, whole

        @cue.task("bake", uses="mill")
        def bake(work: Work) -> dict[str, int]:
            ran.append(work.task)
            dough = [(tmp_path / f"{sack}.flour").read_text() for sack in work.params["sacks"]]
            (tmp_path / "bread").write_text("".join(dough))
            return {"loaves": dough.count("flour")}

        @cue.is_ready
        def has_flour(work: Work) -> bool:
            return all((tmp_path / f"{sack}.flour").exists() for sack in work.params.get("sacks", ()))

        @cue.is_stale
        def is_missing(work: Work) -> bool:
            output = f"{work.params['sack']}.flour" if work.task == "grind" else "bread"
            return not (tmp_path / output).exists()

        @cue.on_complete
        def note(work: Work, result: Any, duration: float) -> None:
            assert duration >= 0
            done.append(work.task)

        return cue, done

    cue, done = shell()
    cue.start()
    bread = await cue.submit("bake", params={"sacks": ["rye", "oats"]})  # before its flour: it has to wait
    await cue.submit("grind", params={"sack": "rye"})
    await cue.submit("grind", params={"sack": "oats"})
    assert await cue.result(bread, BOUND) == {"loaves": 2}
    await cue.stop()
    assert ran == ["grind", "grind", "bake"]
    assert sorted(done) == [
        "bake",
        "grind",
        "grind",
    ]  # a sack may be told of after the bread that was made of it

    cue, done = shell()  # the next day, in a new process: everything is submitted again
    async with cue:
        for sack in ("rye", "oats"):
            await cue.submit("grind", params={"sack": sack})
        bread = await cue.submit("bake", params={"sacks": ["rye", "oats"]})
        assert (await cue.wait(bread, BOUND)).skipped
        await cue.join(timeout=BOUND)
    assert (len(ran), done) == (3, [])
