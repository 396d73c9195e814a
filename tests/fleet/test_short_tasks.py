"""Which tasks are so short that whoever decides runs their units itself, and when their ends are decided on."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from runcue import Cue, Work
from runcue.core.model.lifecycle import started
from runcue.core.model.record import Record, Spec
from runcue.core.schedule.plan import Plan
from runcue.engine.engine import Engine
from runcue.engine.short_tasks import LASTING, MANY, SHORT, ShortTasks


class Seen:
    """Units that begin together, on a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tasks = ShortTasks(lambda: self.now)

    def begin(self, amount: int, seconds: float, *, task: str = "task", left: int = 0) -> None:
        """So many began, their first steps took so long together, and `left` of them have not ended."""
        units = [self._unit(task, token) for token in range(1, amount + 1)]
        began_at, self.now = self.now, self.now + seconds
        self.tasks.observe(began_at, units, lambda token: token <= left)

    @staticmethod
    def _unit(task: str, token: int) -> Record:
        spec = Spec(f"{task}-{token}", task, b"", ())
        return started(Record(spec.id, spec, token, 0.0, 0.0, since=0.0), token, 0.0, None, None)


def test_a_task_is_short_when_many_units_end_in_their_first_step() -> None:
    seen = Seen()
    seen.begin(MANY, MANY * SHORT / 2)
    assert seen.tasks.names() == {"task"}


def test_few_units_say_nothing() -> None:
    seen = Seen()
    seen.begin(MANY - 1, 0.0)
    assert seen.tasks.names() == frozenset()


def test_a_task_whose_units_take_longer_is_not_short() -> None:
    seen = Seen()
    seen.begin(MANY, MANY * SHORT * 1.5)
    assert seen.tasks.names() == frozenset()


def test_one_unit_that_waits_for_something_is_enough_to_share_the_task_for_a_while() -> None:
    seen = Seen()
    seen.begin(MANY, 0.0)
    seen.begin(MANY, 0.0, left=1)
    assert seen.tasks.names() == frozenset()
    seen.begin(MANY, 0.0)
    assert seen.tasks.names() == frozenset()
    seen.now += LASTING
    seen.begin(MANY, 0.0)
    assert seen.tasks.names() == {"task"}


def test_one_task_that_waits_says_nothing_about_another() -> None:
    seen = Seen()
    seen.begin(MANY, 0.0, task="short")
    seen.begin(1, 0.0, task="long", left=1)
    assert seen.tasks.names() == {"short"}


def test_what_was_seen_is_forgotten() -> None:
    seen = Seen()
    seen.begin(MANY, 0.0)
    seen.now += LASTING
    assert seen.tasks.names() == frozenset()


async def test_callers_that_a_turn_answered_are_in_the_next_one_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    act = Engine.act

    def acted(engine: Engine, plan: Plan) -> None:
        act(engine, plan)
        plans.append(plan)

    monkeypatch.setattr(Engine, "act", acted)
    cue = Cue(tmp_path / "queue.db", durability="relaxed")

    @cue.task("work")
    async def no_op(work: Work) -> None: ...

    async with cue:
        rounds = [{*await asyncio.gather(*(cue.submit("work") for _ in range(10)))} for _ in range(4)]
        await cue.join()
    await cue.close()
    for ended, submitted in pairwise(rounds):
        assert any(ended | submitted <= plan.records.keys() for plan in plans)


async def test_a_turn_that_follows_at_once_takes_the_units_that_ended_in_their_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    act = Engine.act

    def acted(engine: Engine, plan: Plan) -> None:
        act(engine, plan)
        plans.append(plan)
        if plan.start:
            engine.wake()  # as if another process had left a post

    monkeypatch.setattr(Engine, "act", acted)
    cue = Cue(tmp_path / "queue.db", durability="relaxed", max_running=5)

    @cue.task("work")
    async def no_op(work: Work) -> None: ...

    await cue.submit_many([{"task": "work"}] * 20)
    async with cue:
        await cue.join()
    await cue.close()
    starting = [place for place, plan in enumerate(plans) if plan.start]
    assert len(starting) == 4
    for place in starting:
        assert {one.id for one in plans[place].start} <= plans[place + 1].records.keys()
