"""What the torture is made of works: actors on the real engine, the zygote and its herd, the figures."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.torture import history
from tests.torture.__main__ import quantile, summary, told
from tests.torture.actors import LIMITS, Job, Submitting, opened, pause, row_of
from tests.torture.checker import EventDraft, Violation, check
from tests.torture.history import Line, Log, now
from tests.torture.soak import Stretch, growth, stretches
from tests.torture.swarm import BOUND, Herd, Result, sweep
from tests.torture.zygote import is_dying


def job(folder: Path, actor: str, role: Any = "worker", calls: int = 0) -> Job:
    """A job on a queue in memory."""
    return Job(role, actor, str(folder), ":memory:", seed=1, calls=calls, poison=False)


async def test_a_queue_in_memory_passes_the_same_checks(tmp_path: Path) -> None:
    log = Log(tmp_path, "both")
    mine = job(tmp_path, "both")
    cue = opened(mine, log)
    hands = Submitting(mine, cue, log)
    seen: list[EventDraft] = []

    async def listen() -> None:
        seen.extend(
            [
                EventDraft(e.seq, e.type, e.work_id, e.final)
                async for e in cue.events()
                if e.work_id is not None
            ]
        )

    async def strand(number: int) -> None:
        random = Random(number)
        for _ in range(60):
            await hands.call(random)
            await pause(0)

    log.write("info", "up")
    async with cue:
        listener = asyncio.create_task(listen())
        await asyncio.gather(*map(strand, range(3)))
        await cue.join(timeout=BOUND)
        rows = [row_of(work) for work in await cue.list(limit=100_000)]
    await asyncio.wait_for(listener, BOUND)
    await cue.close()
    log.close()
    lines = history.read(tmp_path)
    assert len(rows) > 100
    assert {row["state"] for row in rows} == {"completed", "failed", "cancelled"}
    assert check(lines, rows, LIMITS, events=seen) == []


def heard(herd: Herd, what: str, actor: str) -> dict[str, Any]:
    """The first such message about that actor."""
    bound = now() + BOUND
    while now() < bound:
        for message in herd.messages(now() + 0.05):
            if (message["is"], message["actor"]) == (what, actor):
                return message
    pytest.fail(f"{actor} was never {what}")


def came_up(folder: Path, actor: str) -> int:
    """The pid of a worker, once it runs."""
    bound = now() + BOUND
    while now() < bound:
        for line in history.read(folder):
            if (line.op, line.actor) == ("up", actor):
                return line.pid
    pytest.fail(f"{actor} never came up")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_actor_is_told_dead_with_the_time_of_the_kill(tmp_path: Path) -> None:
    with Herd() as herd:
        herd.fork(job(tmp_path, "one"))
        pid = came_up(tmp_path, "one")
        before = now()
        herd.signal("one", signal.SIGKILL)
        dead = heard(herd, "dead", "one")
        assert os.WTERMSIG(dead["status"]) == signal.SIGKILL
        assert before <= dead["after"] <= dead["t"] <= now()
        assert not is_alive(pid)


def test_an_actor_that_is_asked_to_ends_by_itself(tmp_path: Path) -> None:
    with Herd() as herd:
        herd.fork(job(tmp_path, "one"))
        came_up(tmp_path, "one")
        herd.signal("one", signal.SIGTERM)
        dead = heard(herd, "dead", "one")
    assert dead["status"] == 0
    assert dead["after"] is None
    assert [line.op for line in history.read(tmp_path)] == ["up", "down"]


def test_a_submitter_ends_after_its_calls_and_wrote_down_every_answer(tmp_path: Path) -> None:
    with Herd() as herd:
        herd.fork(job(tmp_path, "one", "submitter", calls=30))
        assert heard(herd, "dead", "one")["status"] == 0
    lines = [line for line in history.read(tmp_path) if line.op == "submit"]
    invoked = {line.call for line in lines if line.kind == "invoke"}
    assert invoked
    assert invoked == {line.call for line in lines if line.kind in {"ok", "fail"}}


def test_nobody_outlives_the_herd(tmp_path: Path) -> None:
    with Herd() as herd:
        herd.fork(job(tmp_path, "one"))
        herd.fork(job(tmp_path, "two"))
        herd.signal("two", signal.SIGSTOP)
        pid = came_up(tmp_path, "one")
    assert not is_alive(pid)


def test_whoever_is_on_its_way_out_is_not_killed_by_the_nemesis() -> None:
    """It died of something else, and earlier."""
    child = subprocess.Popen(["sleep", "60"])
    assert not is_dying(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dying(child.pid)
    child.wait()


def test_the_herd_says_how_much_of_the_machine_its_actors_get(tmp_path: Path) -> None:
    with Herd() as herd:
        herd.fork(job(tmp_path, "one"))
        first, second = heard(herd, "share", ""), heard(herd, "share", "")
    assert first["since"] < first["t"] == second["since"] < second["t"]
    assert 0.0 <= second["share"] <= 1.0


def test_the_sweep_passes_every_crash_point_in_both_roles() -> None:
    plans = list(sweep(seed=7, most=2))
    assert len({(plan.crash_role, plan.crash_at, plan.crash_times) for plan in plans}) == len(plans) == 27
    assert {plan.seed for plan in plans} == {7}


def test_the_report_names_what_broke_and_where_it_is_kept() -> None:
    clean = Result(1, kills=3, works=10, starts=12, recovered=[0.1, 0.2])
    broken = Result(2, [Violation("I6", "too many")], kills=4, works=5, starts=5, folder="kept/round-2")
    figures = summary([clean, broken], 12.0, 1)
    assert figures["kills"] == 7
    assert figures["violations"]["I6"] == 1
    assert figures["violations"]["I1"] == 0
    text = told(figures)
    assert "seed 2, kept in kept/round-2" in text
    assert "I6: too many" in text


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([], 0.99) == 0.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0] * 99 + [9.0], 0.99) == 9.0


async def test_the_witnesses_are_held_to_what_is_declared(tmp_path: Path) -> None:
    log = Log(tmp_path, "one")
    cue = opened(job(tmp_path, "one"), log)
    declared = await cue.services()
    assert LIMITS.services.keys() <= {service["name"] for service in declared}
    for service in declared:
        limits = LIMITS.services[service["name"]]
        assert service["concurrent"] == limits.concurrent
        assert [rate["limit"] for rate in service["rates"]] == [rate.most for rate in limits.rates]
    for name, policy in LIMITS.tasks.items():
        assert cue.get_task(name).retry.max_attempts == policy.attempts
        assert cue.get_task(name).retry.base_delay / 2 == policy.delay
    await cue.close()
    log.close()


def test_what_a_start_cost_is_told_for_each_part_of_a_soak() -> None:
    looks = [(10.0, 1.0), (12.0, 3.0), (14.0, 9.0), (16.0, 20.0)]
    lines = [Line(t, 1, "nemesis", "info", "share", data={"spent": spent}) for t, spent in looks]
    lines += [Line(t, 1, "worker-1", "info", "start") for t in (10.5, 11.0, 13.0, 15.0)]
    lines += [Line(t, 1, actor, "info", "up") for t, actor in ((10.1, "worker-1"), (14.0, "drain-2"))]
    parts = stretches(sorted(lines, key=lambda line: line.t), 2)
    assert parts == [Stretch(2.0, 2, 2.0), Stretch(2.0, 1, 6.0)]
    assert [part.cost for part in parts] == [1.0, 6.0]
    assert growth(parts) == 6.0
