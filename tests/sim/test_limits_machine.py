"""Random lives of works under quantities, keys, patterns and adaptive places, in memory and in a file.

A plain model, which looks at every call there ever was, says after each step whether what runs may run, and whether
what waits has to wait. It knows nothing of lanes, meters or gates.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import runcue
from runcue.testing import VirtualLoop, kill, settle
from tests.sample import fewer

KEYS = ("ann", "bob", "eve")
TOKENS, TOKENS_PER = 100, 8.0
EACH, EACH_PER, EACH_PLACES = 3, 5.0, 2
TOTAL, TOTAL_PER, TOTAL_PLACES = 5, 4.0, 3
MEMBERS = {"gpu_a": 1, "gpu_b": 2}
MEMBER, MEMBER_PER = 4, 6.0
"""Calls of gpu_b in so many seconds."""
FEWEST, FIRST, MOST = 1, 2, 4
SLACK = 0.05
"""Seconds for which a window in a file may count longer: a call may begin so long after its grant."""
USES = {"ask": "llm", "send": "mail", "draw": "gpu_*", "call": "api"}


@dataclass
class Call:
    """One call of a handler, as the handler saw it."""

    work: str
    task: str
    services: tuple[str, ...]
    at: float
    amount: float
    """What it counts of the quantity: what was expected, or what was charged."""
    running: runcue.RunningWork
    answer: asyncio.Future[Exception | None]
    is_over: bool = False


@dataclass
class Asked:
    """One work that was submitted."""

    id: str
    task: str
    key: str = ""
    cost: float = 0.0
    ended: bool = False


@dataclass
class Model:
    """Every call there ever was, and what the far side said."""

    calls: list[Call] = field(default_factory=list)
    works: dict[str, Asked] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    throttled: dict[str, float] = field(default_factory=dict)
    """Until when each service asked to be left alone."""
    tokens: int = TOKENS
    told_left: float | None = None
    """What the far side said is left of the tokens, and until when that holds."""
    told_until: float = 0.0
    width: float = FIRST
    """No more places than this has the adaptive service."""
    narrowed_at: float = -1.0

    def running(self, name: str) -> list[Call]:
        return [call for call in self.calls if name in call.services and not call.is_over]

    def within(self, name: str, seconds: float, now: float) -> list[Call]:
        return [call for call in self.calls if name in call.services and now - call.at < seconds]

    def is_shut(self, *names: str, now: float) -> bool:
        return any(name in self.paused or now < self.throttled.get(name, 0.0) for name in names)

    def waiting(self, task: str) -> list[Asked]:
        at_work = {call.work for call in self.calls if not call.is_over}
        return [
            one for one in self.works.values() if one.task == task and not one.ended and one.id not in at_work
        ]

    # what may be ------------------------------------------------------------------------------------------

    def check_start(self, call: Call, now: float) -> None:
        """That call has just begun: it had to fit beside all others."""
        assert not self.is_shut(*call.services, now=now), call
        if call.task == "ask":
            used = sum(one.amount for one in self.within("llm", TOKENS_PER, now) if one is not call)
            assert used + call.amount <= self.tokens + 1e-6, (used, call)
            if self.told_left is not None and now < self.told_until:
                self.told_left -= call.amount
                assert self.told_left >= 0, call
        elif call.task == "send":
            part = f"mail[{self.works[call.work].key}]"
            assert call.services == (part, "mail")
            assert len(self.within(part, EACH_PER, now)) <= EACH
            assert len(self.running(part)) <= EACH_PLACES
            assert len(self.within("mail", TOTAL_PER, now)) <= TOTAL
            assert len(self.running("mail")) <= TOTAL_PLACES
        elif call.task == "draw":
            (member,) = call.services
            assert len(self.running(member)) <= MEMBERS[member]
            assert member == "gpu_a" or len(self.within(member, MEMBER_PER, now)) <= MEMBER
        else:
            assert len(self.running("api")) <= int(self.width + 1e-9)

    def has_to_wait(self, one: Asked, now: float, places: int) -> bool:
        """True when something keeps that work from starting now, as far as windows count exactly."""
        if one.task == "ask":
            used = sum(call.amount for call in self.within("llm", TOKENS_PER + SLACK, now))
            is_told = self.told_left is not None and now < self.told_until
            return (
                self.is_shut("llm", now=now)
                or used + one.cost > self.tokens
                or (is_told and (self.told_left or 0.0) < one.cost)
            )
        if one.task == "send":
            part = f"mail[{one.key}]"
            return (
                self.is_shut("mail", part, now=now)
                or len(self.within(part, EACH_PER + SLACK, now)) >= EACH
                or len(self.running(part)) >= EACH_PLACES
                or len(self.within("mail", TOTAL_PER + SLACK, now)) >= TOTAL
                or len(self.running("mail")) >= TOTAL_PLACES
            )
        if one.task == "draw":
            return all(
                self.is_shut(name, now=now)
                or len(self.running(name)) >= most
                or (name == "gpu_b" and len(self.within(name, MEMBER_PER + SLACK, now)) >= MEMBER)
                for name, most in MEMBERS.items()
            )
        return self.is_shut("api", now=now) or len(self.running("api")) >= places


class Machine(RuleBasedStateMachine):
    """Does things to a Cue, lets that moment end, and asks the model."""

    @initialize(is_file=st.booleans())
    def begin(self, is_file: bool) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="runcue-machine-") if is_file else None
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.model = Model()
        self.made = 0
        self.wrong: list[AssertionError] = []
        self.run(self.open())

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await step
            await settle()
            await self.look()

        self.runner.run(whole())

    def loop(self) -> VirtualLoop:
        loop = self.runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    @property
    def now(self) -> float:
        return self.loop().now()

    async def open(self) -> None:
        path = None if self.folder is None else Path(self.folder.name) / "queue.db"
        cue = self.cue = runcue.Cue(path, durability="relaxed")
        self.declare_llm()
        cue.service("mail", per="key", rate=(EACH, EACH_PER), concurrent=EACH_PLACES,
                    total={"rate": (TOTAL, TOTAL_PER), "concurrent": TOTAL_PLACES})  # fmt: skip
        cue.service("gpu_a", concurrent=MEMBERS["gpu_a"])
        cue.service("gpu_b", concurrent=MEMBERS["gpu_b"], rate=(MEMBER, MEMBER_PER))
        cue.service("api", concurrent=runcue.adaptive(min=FEWEST, start=FIRST, max=MOST))
        for task, uses in USES.items():
            cost = (lambda work: {"tokens": work.params["cost"]}) if task == "ask" else None
            cue.task(task, uses=uses, cost=cost)(self.handle)
        cue.start()

    def declare_llm(self) -> None:
        self.cue.service("llm", tokens=(self.model.tokens, TOKENS_PER))

    async def handle(self, work: runcue.RunningWork) -> None:
        model, now = self.model, self.now
        answer: asyncio.Future[Exception | None] = self.loop().create_future()
        call = Call(work.id, work.task, work.services, now, work.params.get("cost", 0.0), work, answer)
        model.calls.append(call)
        try:
            model.check_start(call, now)
        except AssertionError as error:  # to a Cue this would be a failed attempt like any other
            self.wrong.append(error)
        try:
            failure = await answer
        finally:
            call.is_over = True
        if failure is not None:
            raise failure
        model.works[work.id].ended = True

    # what may happen --------------------------------------------------------------------------------------

    @rule(given=st.lists(st.tuples(st.sampled_from(sorted(USES)), st.sampled_from(KEYS),
                                   st.sampled_from([5, 20, 30.5, 60])), min_size=1, max_size=5))  # fmt: skip
    def submit(self, given: list[tuple[str, str, float]]) -> None:
        async def step() -> None:
            items = []
            for task, key, cost in given:
                self.made += 1
                one = Asked(
                    f"w{self.made}", task, key if task == "send" else "", cost if task == "ask" else 0.0
                )
                self.model.works[one.id] = one
                params = {"key": key} if task == "send" else {"cost": cost} if task == "ask" else {}
                items.append({"task": task, "id": one.id, "params": params})
            await self.cue.submit_many(items)

        self.run(step())

    @precondition(lambda self: any(not call.is_over for call in self.model.calls))
    @rule(pick=st.integers(0, 20), how=st.sampled_from(["ok", "ok", "ok", "error", "throttled"]),
          charges=st.lists(st.sampled_from([0, 10, 45.5, 120]), max_size=2))  # fmt: skip
    def answer(self, pick: int, how: str, charges: list[float]) -> None:
        going_on = [call for call in self.model.calls if not call.is_over]
        call = going_on[pick % len(going_on)]

        async def step() -> None:
            if call.task == "ask" and charges:
                for amount in charges:
                    call.running.charge(tokens=amount)
                call.amount = sum(charges)
            call.answer.set_result(self.ended(call, how))

        self.run(step())

    def ended(self, call: Call, how: str) -> Exception | None:
        """The error with which that call ends, and what the model has to know of it."""
        model = self.model
        if how == "error":
            model.works[call.work].ended = True
            return runcue.Permanent("no such thing")
        if how == "throttled":
            model.throttled[call.services[0]] = max(
                model.throttled.get(call.services[0], 0.0), self.now + 2.0
            )
            if call.task == "call" and call.at > model.narrowed_at:
                model.narrowed_at = self.now
                model.width = max(model.width / 2, FEWEST)
            return runcue.RateLimited(retry_after=2.0)
        if call.task == "call":
            model.width = min(model.width + 1 / model.width, MOST)
        return None

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.5]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(name=st.sampled_from(["llm", "mail", "mail[ann]", "gpu_a", "gpu_b", "api"]), paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        async def step() -> None:
            if paused:
                await self.cue.pause(name)
                self.model.paused.add(name)
            elif name in self.model.paused:
                self.model.paused.discard(name)
                await self.cue.resume(name)

        if name != "mail[ann]" or any("mail[ann]" in call.services for call in self.model.calls[-3:]):
            self.run(step())

    @rule(tokens=st.sampled_from([60, 100, 200]))
    def change_tokens(self, tokens: int) -> None:
        async def step() -> None:
            self.model.tokens = tokens
            self.declare_llm()
            await self.cue.services()

        self.run(step())

    @precondition(lambda self: self.model.running("llm"))
    @rule(left=st.sampled_from([0, 15, 70]))
    def observe(self, left: int) -> None:
        async def step() -> None:
            headers = {"x-ratelimit-remaining-tokens": str(left), "x-ratelimit-reset-tokens": "3s"}
            self.model.told_left, self.model.told_until = float(left), self.now + 3.0
            self.model.running("llm")[0].running.observe(headers)

        self.run(step())

    # what must be so --------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Nothing waits that could start."""
        for error in self.wrong:
            raise error
        now, model = self.now, self.model
        places = {one["name"]: one["concurrent"] for one in await self.cue.services()}["api"]
        assert FEWEST <= places <= int(model.width + 1e-9)
        asks = model.waiting("ask")[:1]  # nobody overtakes the first
        for one in (*asks, *model.waiting("send"), *model.waiting("draw"), *model.waiting("call")):
            assert model.has_to_wait(one, now, places), one

    def teardown(self) -> None:
        """When everything is let go and answers, all work comes to its end."""
        if not hasattr(self, "runner"):
            return
        try:
            self.run(self.rest())
        finally:
            kill(self.cue)
            self.runner.close()
            if self.folder is not None:
                self.folder.cleanup()

    async def rest(self) -> None:
        for name in sorted(self.model.paused):
            self.model.paused.discard(name)
            await self.cue.resume(name)
        for _ in range(300):
            going_on = [call for call in self.model.calls if not call.is_over]
            if not going_on and all(one.ended for one in self.model.works.values()):
                break
            for call in going_on:
                if not call.answer.done():
                    call.answer.set_result(self.ended(call, "ok"))
            await asyncio.sleep(1.0)
        assert [one for one in self.model.works.values() if not one.ended] == []
        counts = await self.cue.count()
        ended = counts[runcue.WorkState.COMPLETED] + counts[runcue.WorkState.FAILED]
        assert ended == len(self.model.works)


Machine.TestCase.settings = settings(max_examples=fewer(100, 30), stateful_step_count=30, deadline=None)
TestAnyLifeUnderLimits = pytest.mark.timeout(600)(Machine.TestCase)
