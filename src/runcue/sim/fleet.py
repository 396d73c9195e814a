"""Plays one world of the swarm: a simulated fleet of processes on one file, with everything that its trial drew.

`World` runs on a virtual loop. Its handlers log every call, and the checker judges events and calls. The answer that
a caller got is taken as true; a request without an answer may or may not have taken effect.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import runcue
from runcue.sim.check import Checker
from runcue.sim.config import ServiceConfig
from runcue.sim.promise import Asked, Call, Violation, limits_of
from runcue.sim.trial import COMMITS, COSTS, GRID, PER, QUANTITY, Act, Item, Trial
from runcue.testing import VirtualLoop, fail_commit, fill_disk, kill

PATIENCE: Final = 120.0
"""Virtual seconds that a world is given to come to rest."""
STORE_PAUSE: Final = 0.75
"""Seconds after which a turn whose commit failed has been tried again."""
BUSY: Final = (runcue.WorkState.RUNNING, runcue.WorkState.PENDING)
MANY: Final = 10_000


class Dead(Exception):
    """The node that should act is dead."""


class Node:
    """One process of the simulated fleet: a Cue, until it dies."""

    def __init__(self, name: str, place: int, cue: runcue.Cue) -> None:
        self.name = name
        self.place = place
        self.cue = cue
        self.is_alive = True
        self.is_well_at = 0.0
        """When its last failed commit has been repeated: if the node dies earlier, its outcomes are lost."""


class World:
    """The world of one seed. Await `run()` on a virtual loop, then read `mistakes`, `faults` and `calls`."""

    def __init__(self, plan: Trial, path: Path) -> None:
        self.plan = plan
        self.checker = Checker(plan.rules())
        self.faults: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.mistakes: list[Violation] = []
        self.works = 0
        self._path = path
        self._nodes: list[Node | None] = [None] * plan.nodes
        self._births = 0
        self._limits = dict(plan.services)
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = 0
        self._unanswered = 0
        self._paused: set[str] = set()
        self._refused: set[tuple[str, int]] = set()
        """Attempts that a service refused once: they begin again with the same number."""
        self._is_draining = False

    # nodes ------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._loop.now()

    def _open(self, place: int) -> Node:
        """Start a new process at that place."""
        self._births += 1
        cue = runcue.Cue(
            self._path, durability="relaxed", status_interval=60, age_step=self.plan.age_step, grace=1
        )
        node = Node(f"{'abcd'[place]}{self._births}", place, cue)
        for name, service in self._limits.items():
            cue.service(name, **service.options())
        for name, task in self.plan.tasks.items():
            cost = _cost if task.has_cost else None
            handler = self._handler(node)
            cue.task(name, uses=list(task.uses), retry=task.retry, timeout=task.timeout, cost=cost)(handler)
            for scheduled, schedule in self.plan.schedules.items():
                if schedule.task == name:
                    options = {**schedule.options(), "name": scheduled, "params": self._params(name)}
                    declare = cue.every if schedule.cron is None else cue.cron
                    declare(options.pop("every" if schedule.cron is None else "cron"), **options)(handler)
        return node

    def _params(self, task: str) -> dict[str, Any]:
        """The params of the units that a schedule submits."""
        kind = self.plan.tasks[task]
        return {PER: "k0" if kind.accounts else "", "cost": COSTS[1] if kind.has_cost else 0}

    def _birth(self, place: int) -> None:
        node = self._nodes[place] = self._open(place)
        node.cue.start()

    def _living(self, place: int) -> Node:
        """The node at that place, or the next one that lives."""
        for step in range(len(self._nodes)):
            node = self._nodes[(place + step) % len(self._nodes)]
            if node is not None and node.is_alive:
                return node
        raise Dead

    def _crash(self, node: Node) -> None:
        """Kill a node as by kill -9; another process takes its place a little later."""
        if not node.is_alive:
            return
        node.is_alive = False
        self.faults["crash"] += 1
        self.checker.died(node.name, self._now)
        kill(node.cue)
        for call in self.calls:
            if call.node == node.name and not call.how:
                call.left_at, call.how = self._now, "died"
        self._replace(node, self.plan.down[self._births % len(self.plan.down)])

    def _replace(self, node: Node, after: float) -> None:
        self._nodes[node.place] = None
        self._loop.call_later(after, self._birth, node.place)

    async def _leave(self, node: Node) -> None:
        """Stop a node as an operator would; what it runs goes on elsewhere."""
        self._nodes[node.place] = None
        await node.cue.stop(timeout=GRID / 2)
        while self._is_at_work(node):  # noqa: ASYNC110 (a process does not end before what it runs, however long)
            await asyncio.sleep(GRID)
        if node.is_alive:
            await node.cue.close()
            node.is_alive = False
            if self._now < node.is_well_at:
                self.checker.died(node.name, self._now)
            self._replace(node, GRID)

    def _is_at_work(self, node: Node) -> bool:
        return any(call.node == node.name and not call.how for call in self.calls)

    # handlers ---------------------------------------------------------------------------------------------

    def _handler(self, node: Node) -> Callable[[runcue.RunningWork], Any]:
        async def handle(work: runcue.RunningWork) -> str:
            call = Call(work.id, work.attempt, node.name, self._now, work.services)
            self.calls.append(call)
            try:
                error = await self._behave(node, work, call)
                if error is not None:
                    raise error  # from here: each frame of a traceback costs time
                how = "ok"
            except asyncio.CancelledError:
                how = "cancelled"
                raise
            except runcue.RateLimited:
                how = "refused"
                raise
            except Exception:
                how = "error"
                raise
            finally:
                if not call.how:
                    call.left_at, call.how = self._now, how
            return f"{call.work_id}/{call.attempt}"

        return handle

    async def _behave(self, node: Node, work: runcue.RunningWork, call: Call) -> Exception | None:
        """Carry out what the trial drew for this attempt, and return the error with which it ends, if any."""
        work_id, task, attempt = call.work_id, work.task, call.attempt
        does = self.plan.mood(work_id, task, attempt)
        kind = does.kind
        at_first = at_last = None
        has_cost = self.plan.tasks[task].has_cost
        if kind == "refused" and (work_id, attempt) not in self._refused:
            self._refused.add((work_id, attempt))
            self.faults[kind] += 1
            self._charge(work, call, 0.0 if has_cost else None)
            return runcue.RateLimited(retry_after=does.lasts)
        if has_cost:
            at_first, at_last = self.plan.charges(work_id, attempt, work.params["cost"])
        self._charge(work, call, at_first)
        if kind == "dies at once":
            await self._die(node)
        if kind in {"slow", "hang", "swallow"}:
            self.faults[kind] += 1
        if kind == "hang":
            await asyncio.Event().wait()
        try:
            await asyncio.sleep(does.lasts)
        except asyncio.CancelledError:
            if kind != "swallow" or not node.is_alive:
                raise
            await self._ignore(node, does.lasts)
        self._charge(work, call, at_last)
        if kind == "dies at last":
            await self._die(node)
        if kind in COMMITS:
            self._spawn(self._spoil(node, kind))
        elif kind == "error":
            return OSError("no answer")
        elif kind == "permanent":
            return runcue.Permanent("no such thing")
        return None

    def _charge(self, work: runcue.RunningWork, call: Call, amount: float | None) -> None:
        if amount is not None:
            call.charges = [*call.charges, (QUANTITY, amount)]
            work.charge(**{QUANTITY: amount})

    async def _die(self, node: Node) -> None:
        self._crash(node)
        await asyncio.sleep(0)  # here the cancellation arrives

    async def _ignore(self, node: Node, lasts: float) -> None:
        """Ignore a cancellation, unless the process is dead."""
        for _ in range(round(lasts / GRID)):
            try:
                await asyncio.sleep(GRID)
            except asyncio.CancelledError:
                if not node.is_alive:
                    raise

    # acts --------------------------------------------------------------------------------------------------

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(self._guarded(doing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, doing: Coroutine[Any, Any, None]) -> None:
        """Do something as a caller who accepts that it is refused."""
        try:
            await doing
        except (Dead, runcue.CueClosed, runcue.StoreError, runcue.SubmitError, runcue.WorkNotFound):
            return

    async def _submit(self, place: int, items: Sequence[Item]) -> None:
        """Submit units, and repeat that until there is an answer."""
        for item in items:
            has_time = item.delay is not None or item.run_in is not None
            cost = {QUANTITY: item.cost} if item.cost else {}
            self.checker.submitted(
                Asked(item.id, item.depends_on, item.priority, item.key, has_time, cost, {PER: item.account})
            )
        self._unanswered += 1
        try:
            for work_id in await self._answer(place, items):
                self.checker.accepted(work_id, self._now)
        finally:
            self._unanswered -= 1

    async def _answer(self, place: int, items: Sequence[Item]) -> list[str]:
        is_refused = True
        while True:
            try:
                async with asyncio.timeout(1.0):
                    options = [item.options(self._loop.wall()) for item in items]
                    return list(await self._living(place).cue.submit_many(options))
            except runcue.DuplicateWork as error:  # an earlier try was accepted, and its answer was lost
                if is_refused and not items[0].is_raced:
                    self.mistakes.append(Violation("lost", self._now, f"refused, and there: {error}"))
                return [item.id for item in items if item.key is None]
            except (Dead, TimeoutError, runcue.CueClosed, runcue.StoreError) as error:
                is_refused &= isinstance(error, Dead | runcue.StorageFull)
                await asyncio.sleep(GRID)

    async def _spoil(self, node: Node, kind: str) -> None:
        """Let the next commit of a node fail, and cause one."""
        if not node.is_alive:
            return
        self._commits += 1
        if kind == "disk_full":
            fill_disk(node.cue)
        else:
            fail_commit(node.cue, took_place=kind == "commit_unanswered")
        try:
            await node.cue.set_config({"commits": str(self._commits)})
        except runcue.StoreError:
            self.faults[kind] += kind != "commit_unanswered"
            node.is_well_at = self._now + STORE_PAUSE
            for call in self.calls:
                if call.node == node.name and call.left_at >= self._now:
                    call.is_kept = False
            raise
        self.faults[kind] += kind == "commit_unanswered"

    async def _do(self, act: Act) -> None:
        """Carry out one act of the trial."""
        place, items = act.node, act.items
        match act.kind:
            case "submit":
                self._spawn(self._submit(place, items))
            case "key_race" | "id_race":
                first, second = self._living(place), self._living(place + 1)
                if first is not second:
                    self.faults[act.kind] += 1
                for number, item in enumerate(items):
                    self._spawn(self._submit(place + number, [item]))
            case "submit_cut":
                node = self._living(place)
                task = self._spawn(self._submit(node.place, items))
                for _ in range(act.steps):
                    await asyncio.sleep(0)
                self.faults["submit_cut"] += node.is_alive and not task.done()
                self._crash(node)
            case "crash":
                self._crash(self._living(place))
            case "commit_failed" | "commit_unanswered" | "disk_full":
                self._spawn(self._spoil(self._living(place), act.kind))
            case "clock_forward" | "clock_back":
                self.faults[act.kind] += 1
                self._jump(act.seconds)
            case "cancel":
                self._spawn(self._cancel(self._living(place), act))
            case "retry":
                self._spawn(self._retry(self._living(place), act))
            case "pause":
                self._paused.add(act.target)
                self._spawn(self._living(place).cue.pause(act.target))
                self._loop.call_later(act.seconds, self._resume, place + 1, act.target)
            case "limits":
                self._spawn(self._change(self._living(place), act.target, act.service))
            case "leave":
                self._spawn(self._leave(self._living(place)))
            case _:
                raise AssertionError(act.kind)

    async def _cancel(self, node: Node, act: Act) -> None:
        if await node.cue.cancel(act.target, cascade=act.cascade):
            self.checker.cancelled(act.target, self._now)

    async def _retry(self, node: Node, act: Act) -> None:
        ended = [*await node.cue.dead(limit=50), *await node.cue.list("cancelled", limit=50)]
        if ended:
            work_id = sorted(work.id for work in ended)[act.steps % len(ended)]
            for one in self.plan.company(work_id) if act.cascade else [work_id]:
                self.checker.retried(one)
            await node.cue.retry(work_id, cascade=act.cascade)

    def _resume(self, place: int, name: str) -> None:
        async def resume() -> None:
            await self._living(place).cue.resume(name)

        if not self._is_draining:
            self._spawn(resume())

    async def _change(self, node: Node, name: str, service: ServiceConfig | None) -> None:
        assert service is not None
        self._limits[name] = service
        limits = limits_of(service)
        self.checker.changed(name, limits, self._now, is_sure=False)
        node.cue.service(name, **service.options())
        await node.cue.services()
        if self._limits[name] is service:
            self.checker.changed(name, limits, self._now)

    # from beginning to end --------------------------------------------------------------------------------

    async def run(self) -> list[runcue.Event]:
        """Play the whole trial and return the events, in order."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        loop.set_exception_handler(self._mistake)
        for place in range(self.plan.nodes):
            self._birth(place)
        for act in self.plan.acts:
            await asyncio.sleep(act.at - loop.time())
            try:
                await self._do(act)
            except Dead:
                continue
        await asyncio.sleep(STORE_PAUSE)  # until the last acts are over
        while self._unanswered:  # noqa: ASYNC110 (virtual time: looking costs nothing)
            await asyncio.sleep(GRID)
        return await self._drain()

    def _mistake(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.mistakes.append(Violation("mistake", self._now, f"{context.get('message')}: {error!r}"))

    async def _drain(self) -> list[runcue.Event]:
        """Cause no more faults, wait until all units have ended, and check everything."""
        self._is_draining = True
        self._jump(2 * 3600.0)
        for name in sorted(self._paused):
            await self._surely(_resuming(name))
        if self.plan.schedules:
            await asyncio.sleep(STORE_PAUSE + 1.0)  # until the clock has been looked at
        for name in self.plan.schedules:
            await self._surely(_pausing(name))
        with runcue.Reader(self._path) as reader:
            await self._rest(reader)
            counts = {str(state): amount for state, amount in reader.count().items()}
            works = reader.list(limit=MANY)
            events = list(reader.events())
        self.works = len(works)
        self._check_works(works)
        for event in events:
            if event.type == "schedule_fired":
                self.checker.submitted(self._asked_by(event))
            self.checker(event)
        self.mistakes += self.checker.finish(self.calls, counts, self._now)
        for node in self._nodes:
            if node is not None:
                node.is_alive = False
                kill(node.cue)
        return events

    def _jump(self, seconds: float) -> None:
        """Set the clock on the wall."""
        self._loop.jump_wall(seconds)
        self.checker.slots.clock_set(self._now, self._loop.wall() - self._now)

    def _asked_by(self, event: runcue.Event) -> Asked:
        """What a schedule submitted."""
        params = self._params(self.plan.schedules[event.data["schedule"]].task or "")
        cost = {QUANTITY: params["cost"]} if params["cost"] else {}
        return Asked(event.data["unit"], has_time=True, cost=cost, keys={PER: params[PER]})

    async def _surely(self, change: Callable[[runcue.Cue], Awaitable[None]]) -> None:
        """Change something, even if nodes die meanwhile."""
        while True:
            try:
                async with asyncio.timeout(1.0):
                    await change(self._living(0).cue)
                return
            except (Dead, TimeoutError, runcue.CueClosed, runcue.StoreError):
                await asyncio.sleep(GRID)

    async def _rest(self, reader: runcue.Reader) -> None:
        until = self._loop.time() + PATIENCE
        while True:
            counts = reader.count()
            busy = sum(counts[state] for state in BUSY)
            if not busy:
                return
            if self._loop.time() > until:
                text = f"{busy} are pending or running after {PATIENCE:g} s"
                left = [work.id for state in BUSY for work in reader.list(state, limit=MANY)]
                self.mistakes.append(Violation("rest", self._now, text, tuple(left)))
                return
            await asyncio.sleep(GRID)

    def _check_works(self, works: Sequence[runcue.Work]) -> None:
        self.checker.stands({work.id: str(work.state) for work in works})
        for work in works:
            if work.state == "completed" and work.result != f"{work.id}/{work.attempt}":
                text = f"unit {work.id} has the result {work.result!r} of another attempt than {work.attempt}"
                self.mistakes.append(Violation("result", work.completed_at or 0.0, text, (work.id,)))


def _resuming(name: str) -> Callable[[runcue.Cue], Awaitable[None]]:
    return lambda cue: cue.resume(name)


def _pausing(schedule: str) -> Callable[[runcue.Cue], Awaitable[None]]:
    return lambda cue: cue.schedules.pause(schedule)


def _cost(work: runcue.Work) -> dict[str, float]:
    """The expected use of a unit."""
    return {QUANTITY: work.params["cost"]}
