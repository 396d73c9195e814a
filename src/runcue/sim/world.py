"""Runs the real engine against mock services: submits a workload, kills nodes, hands every event to listeners.

    outcome = simulate(config, 7, metrics)      # on virtual time; one seed, one run

Rules:
- In memory one Cue does everything. In a file one Cue submits and listens, as a web server would, and lives to the
  end; others, the nodes, do the work and may be killed.
- Listeners get every event of the queue, in order and once. If a listener has a method `begin`, it is called first,
  with the time at which the run began.
- The simulation adds to the data of some events: `queued` has `priority`, `needs`, `cost` and `keys` as they were
  submitted, `started` has `refused` when the service refused the call, an end has what was `charged`.
- On virtual time nothing reads the system's clock, and all random numbers come from the seed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec.structs import replace

import runcue
from runcue.sim.child import end, spawn
from runcue.sim.config import Config
from runcue.sim.mocks import RETURNED, MockService, clock_of, draw
from runcue.sim.promise import Call
from runcue.sim.workload import Arrival, Prices, Submission, arrivals, exact
from runcue.testing import VirtualLoop, kill, run, watch

Listener = Callable[[runcue.Event], None]

PAUSE = 0.25
"""Seconds after which paused submitting looks whether it may go on."""
ECHO = 1.0
"""Seconds that the last events of other nodes may take to arrive."""
CHUNK = 500
LONGEST_NAP = 5.0
"""The most seconds of events that are handed out together, unless there are days of them."""
EXTENDED = frozenset({"queued", "started", "completed", "failed"})
SAME = 0.1
"""Seconds within which a refusal follows the start that it belongs to."""
KEPT_DOCUMENTS = 2000
"""Groups whose artifacts are remembered for the checker."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a simulation."""

    config: Config
    events: int = 0
    missed: int = 0
    """Events that listeners could not be given."""
    submitted: int = 0
    rejected: dict[str, int] = {}
    counts: dict[str, int] = {}
    """Units by state when the run ended."""
    calls: list[Call] = []
    began_at: float = 0.0
    ended_at: float = 0.0
    kills: int = 0
    rebuilds: int = 0
    refused: dict[str, int] = {}
    """Calls that each service refused as too many."""
    is_whole: bool = True
    """False when the user left before the end."""


class Simulation:
    """One run of a configuration."""

    def __init__(
        self,
        config: Config,
        folder: Path | None = None,
        *,
        arrivals: Iterable[Arrival] | None = None,
        keep_calls: bool = True,
        in_processes: bool = False,
    ) -> None:
        """`in_processes` makes its nodes processes of their own; that needs a file and a real loop."""
        self.config = config
        self.listeners: list[Listener] = []
        self.services: dict[str, MockService] = {}
        self.nodes: list[runcue.Cue | Popen[bytes] | None] = []
        self.deaths: list[Callable[[int, float], None]] = []
        """Called with the number of a node that died, and when."""
        self.rate_factor = 1.0
        """A factor on the rate of arrivals; may be changed at any time."""
        self.is_paused = False
        """While true, nothing is submitted."""
        self.outcome = Outcome(config=config)
        """What is counted while the run goes on."""
        self._pile: deque[runcue.Event] = deque()
        """Events of a queue in memory that the listeners have not heard yet."""
        self._folder = folder
        self._arrivals = arrivals
        self._keep_calls = keep_calls
        self._in_processes = in_processes
        self._client: runcue.Cue | None = None
        self._now: Callable[[], float] = float
        self._is_ending = False
        self._woken: asyncio.Future[None] | None = None
        self._announced: dict[str, Submission] = {}
        self._artifacts: set[str] = set()
        self._refusals: dict[str, list[float]] = {}
        """When calls of each unit were refused, until an event reports it."""
        self._charged: dict[str, dict[str, float]] = {}
        self._scheduled: dict[str, Submission] = {}
        """What each schedule submits, but for the id."""
        self.ahead = 0.0
        """By how many seconds the clock on the wall is ahead of queue time."""
        self._documents: list[list[Submission]] = []

    # what others may read and change ---------------------------------------------------------------------

    @property
    def began_at(self) -> float:
        """The time at which the run began."""
        return self.outcome.began_at

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return self._now() - self.began_at

    @property
    def cue(self) -> runcue.Cue:
        """The Cue that submits and listens."""
        assert self._client is not None, "a simulation has a Cue once it runs"
        return self._client

    def kill(self, node: int) -> bool:
        """Let a node die as by kill -9; False in memory, and when it is dead already."""
        victim = self.nodes[node] if 0 <= node < len(self.nodes) else None
        if victim is None or self.config.store == "memory":
            return False
        self.nodes[node] = None
        self.outcome.kills += 1
        if isinstance(victim, runcue.Cue):
            kill(victim)
        else:
            end(victim, at_once=True)
        for tell in self.deaths:
            tell(node, self._now())
        return True

    def restart(self, node: int) -> None:
        """Put a new node in the place of a dead one."""
        if self.nodes[node] is None:
            self.nodes[node] = self._born(node)

    # the run ----------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run from the first arrival until everything has ended, or `drain` is over."""
        if self._folder is not None or self.config.store == "memory":
            return await self._run()
        with TemporaryDirectory(prefix="runcue-sim-") as folder:
            self._folder = Path(folder)
            return await self._run()

    async def _run(self) -> Outcome:
        config = self.config
        self._begin()
        self._open()
        reader = asyncio.create_task(self._read(), name="sim reader")
        others = [asyncio.create_task(work, name="sim hand") for work in self._hands()]
        try:
            await self._plan_ahead()
            await self._feed(arrivals(config, math.inf) if self._arrivals is None else self._arrivals)
            if config.schedules and self.now < config.duration:
                await asyncio.sleep(config.duration - self.now)
            ended_at = await self._drain()
            counts = {state.value: amount for state, amount in (await self.cue.count()).items()}
        finally:
            for task in (*others, reader):
                task.cancel()
            answers = await asyncio.gather(*others, reader, return_exceptions=True)
            await self._close()
        for answer in answers:
            if isinstance(answer, Exception):  # a listener's own, or a mistake in here: nothing it saw counts
                raise answer
        found = self.outcome_so_far()
        return replace(found, counts=counts, calls=self._calls(), ended_at=ended_at, is_whole=True)

    def outcome_so_far(self) -> Outcome:
        """The outcome until now, without counts and calls."""
        refused = {name: service.refused for name, service in self.services.items() if service.refused}
        return replace(self.outcome, ended_at=self._now(), refused=refused, is_whole=False)

    def _begin(self) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self._now = clock_of(loop)
        if config.schedules and isinstance(loop, VirtualLoop):
            loop.jump_wall(config.begins_at - loop.wall())
            self.ahead = loop.wall() - loop.now()
        self.outcome.began_at = self._now()
        for listener in self.listeners:
            begin: Callable[[float], None] | None = getattr(listener, "begin", None)
            if begin is not None:
                begin(self.began_at)
        options: dict[str, Any] = {"began_at": self.began_at, "keep": self._keep_calls}
        for name, service in config.services.items():
            lot = Random(f"{config.seed}/service/{name}")
            self.services[name] = MockService(name, service.behaviour, lot, **options)

    def node(self, number: int) -> runcue.Cue:
        """One node of it alone, for a process of its own."""
        self._begin()
        return self._make_cue(self._path, number)

    def _open(self) -> None:
        if self.config.store == "memory":
            self._client = self._make_cue(None, 0)
            watch(self._client, self._pile.append)  # a reader of its own would miss what comes all at once
            self._client.start()
            self.nodes = [self._client]
        else:
            self._client = self._make_cue(self._path, -1)
            self.nodes = [self._born(node) for node in range(self.config.nodes)]

    def _born(self, number: int) -> runcue.Cue | Popen[bytes]:
        if self._in_processes:
            return spawn(self.config, number, self._path)
        cue = self._make_cue(self._path, number)
        cue.start()
        return cue

    def _calls(self) -> list[Call]:
        """One for each attempt, in order: work that uses several services calls one after the other."""
        found: list[Call] = []
        places: dict[tuple[str, int, object], tuple[int, str]] = {}
        every = [(call, name) for name, service in self.services.items() for call in service.calls]
        for call, name in sorted(every, key=lambda one: (one[0].entered_at, one[0].work_id, one[0].attempt)):
            key = call.work_id, call.attempt, call.node
            place, service_name = places.get(key, (-1, name))
            if name != service_name and found[place].how == RETURNED:
                found[place] = replace(found[place], left_at=call.left_at, how=call.how, charges=call.charges)
            else:  # the first call, or another one because that was refused or given back
                places[key] = len(found), name
                found.append(call)
        return found

    async def _close(self) -> None:
        for node in self.nodes:
            if isinstance(node, runcue.Cue):
                await node.stop(0)
                await node.close()
            elif node is not None:
                end(node)
        if self._client is not None and self._client not in self.nodes:
            await self._client.close()

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder / "queue.db"

    def _make_cue(self, path: Path | None, node: int) -> runcue.Cue:
        config = self.config
        cue = runcue.Cue(
            path,
            durability="relaxed",
            status_interval=max(1.0, config.duration / 1000),
            keep_finished=10_000,
            age_step=config.age_step,
            max_queued=config.max_queued,
            pending_timeout=config.pending_timeout,
        )
        for name, service in config.services.items():
            cue.service(name, **service.options())
        cost = (lambda work: work.params["cost"]) if config.workload.cost else None
        for task, uses in config.uses().items():
            handler = self._handler(uses, node)
            cue.task(task, uses=uses, retry=config.retry.policy(), timeout=config.timeout, cost=cost)(handler)
        if config.workload.linked_by == "is_ready":
            cue.is_ready(lambda work: all(need in self._artifacts for need in work.params.get("needs", ())))
            cue.is_stale(lambda work: work.params.get("makes") not in self._artifacts)
        return cue

    def _handler(self, uses: list[str], node: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
        services = [self.services[name] for name in uses]

        async def handle(work: runcue.RunningWork) -> None:
            params = work.params
            charges = self._used(work.id, work.attempt, params.get("cost", {}))
            entered_at = self._now()
            try:
                for service in services:
                    script = params.get("script", ())
                    await service.call(work.id, work.attempt, node, script, work.services, charges)
            except runcue.RateLimited:
                self._refusals.setdefault(work.id, []).append(entered_at)
                work.charge(**{name: 0.0 for name, _ in charges})
                raise
            if charges:
                work.charge(**dict(charges))
                self._charged[work.id] = dict(charges)
            if "makes" in params:
                self._artifacts.add(params["makes"])

        return handle

    def _used(self, work_id: str, attempt: int, cost: dict[str, float]) -> tuple[tuple[str, float], ...]:
        """What an attempt really uses of each quantity if it completes."""
        share = self.config.workload.used
        if share is None or not cost:
            return tuple(cost.items())
        lot = Random(f"{self.config.seed}/used/{work_id}/{attempt}")
        return tuple((name, exact(amount * draw(share, lot), amount)) for name, amount in cost.items())

    # tasks beside the submitting -------------------------------------------------------------------------------

    def _hands(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on beside the submitting: killing nodes, and invalidating artifacts."""
        hands = [self._strike(number) for number in range(len(self.config.kills))]
        if self.config.workload.check_every is not None:
            hands.append(self._check(self.config.workload.check_every))
        return hands

    async def _read(self) -> None:
        """Hand out the events, some at a time: to be woken for each one would cost more than the engine does."""
        nap = min(max(LONGEST_NAP, self.config.duration / 20_000), self.config.duration / 2000)
        while self.config.store == "memory":
            await self._nap(nap)
            self.hand_out(self._now() - nap)
        async for event in self.cue.events():
            if event.at >= self._now() - nap and not self._is_ending:
                await self._nap(nap)
            self._hear(event)

    def hand_out(self, until: float = math.inf) -> None:
        """Hand piled-up events to the listeners, except the latest, to which the mocks may add something."""
        while self._pile and self._pile[0].at < until:
            self._hear(self._pile.popleft())

    def _hear(self, event: runcue.Event) -> None:
        self.outcome.events += 1
        if event.type in EXTENDED:
            event = self._extended(event)
        elif event.type == "schedule_fired":
            self._fired(event)
        elif event.type == "gap":
            self.outcome.missed += event.missed
        for listener in self.listeners:
            listener(event)

    async def _nap(self, seconds: float) -> None:
        self._woken = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()

    def _wake(self) -> None:
        """Wake the reader: events have piled up, or it is time to look."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _extended(self, event: runcue.Event) -> runcue.Event:
        """The event with what the simulation adds to its data."""
        work_id = event.work_id or ""
        more: dict[str, Any] = {}
        if event.type == "queued":
            found = self._announced.pop(work_id, None)
            if found is None:
                return event
            more = {"priority": found.priority, "needs": list(found.needs)}
            more |= {"cost": found.cost, "keys": found.keys} if found.cost or found.keys else {}
        elif event.type == "started":
            times = self._refusals.get(work_id)
            if times and event.at - SAME <= times[0] <= event.at + SAME:
                more = {"refused": True}
                del times[0]
                if not times:
                    del self._refusals[work_id]
        elif work_id in self._charged:
            more = {"charged": self._charged.pop(work_id)}
        return replace(event, data={**event.data, **more}) if more else event

    async def _plan_ahead(self) -> None:
        """Add the schedules. They end with the arrivals."""
        until = self._now() + self.ahead + self.config.duration
        prices = Prices(self.config)
        for name, schedule in self.config.schedules.items():
            task = schedule.task or name
            work = prices(Submission(id=name, task=task, priority=schedule.priority))
            options = {key: value for key, value in self._options(work).items() if key not in {"id", "task"}}
            await self.cue.schedule(name, task, **schedule.options(), until=until, **options)
            self._scheduled[name] = work

    def _fired(self, event: runcue.Event) -> None:
        """Note what a schedule has submitted: the unit's own event comes next."""
        work_id = str(event.data["unit"])
        self._announced[work_id] = replace(self._scheduled[str(event.data["schedule"])], id=work_id)
        self.outcome.submitted += 1

    async def _feed(self, groups: Iterable[Arrival]) -> None:
        """Submit each group when its time has come; a pause or another rate moves all that follow."""
        at, before = 0.0, 0.0
        for group in groups:
            at += (group.at - before) / self.rate_factor
            before = group.at
            while self.is_paused:
                await asyncio.sleep(PAUSE)
                at = max(at, self.now)
            if at >= self.config.duration:
                return
            if at > self.now:
                await asyncio.sleep(at - self.now)
            await self._submit(group)

    async def _submit(self, group: Arrival) -> None:
        works = group.works
        if self.config.workload.check_every is not None:
            self._remember(works)
        for start in range(0, len(works), CHUNK):
            some = works[start : start + CHUNK]
            self._announced.update((work.id, work) for work in some)
            try:
                await self.cue.submit_many(map(self._options, some))
            except runcue.SubmitError as error:
                reason = "circular" if isinstance(error, runcue.DependencyCycle) else type(error).__name__
                rejected = self.outcome.rejected
                rejected[reason] = rejected.get(reason, 0) + len(some)
                for work in some:
                    self._announced.pop(work.id, None)
            else:
                self.outcome.submitted += len(some)
            if len(self._announced) > CHUNK:
                self._wake()

    def _options(self, work: Submission) -> dict[str, Any]:
        """The options of `cue.submit`."""
        params: dict[str, Any] = {"script": list(work.script)} if work.script else {}
        if self.config.workload.cost:
            params["cost"] = work.cost
        params.update(work.keys)
        found = {"task": work.task, "id": work.id, "priority": work.priority, "params": params}
        if work.makes:
            params.update(makes=work.makes, needs=list(work.needs))
        elif work.needs:
            found["depends_on"] = work.needs
        return found

    async def _drain(self) -> float:
        """Wait until everything has ended, or `drain` is over, and return that moment."""
        with suppress(TimeoutError):
            await self.cue.join(timeout=self.config.patience())
        ended_at = self._now()
        self._is_ending = True
        self._wake()
        await asyncio.sleep(ECHO if self.config.store == "file" else 0.001)
        self.hand_out()
        return ended_at

    async def _strike(self, number: int) -> None:
        """Kill a node when its time has come, and put another in its place."""
        plan = self.config.kills[number]
        await asyncio.sleep(plan.at)
        if self.kill(plan.node):
            await asyncio.sleep(plan.down)
            self.restart(plan.node)

    async def _check(self, every: float) -> None:
        """Find artifacts that are no longer valid, and have them made again: what is still valid is skipped."""
        lot = Random(f"{self.config.seed}/checker")
        number = 0
        while self.now + every < self.config.duration:
            await asyncio.sleep(every)
            made = [some for some in self._documents if all(work.makes in self._artifacts for work in some)]
            if not made:
                continue
            document = lot.choice(made)
            first = lot.randrange(len(document))
            number += 1
            for work in document[first:]:
                self._artifacts.discard(work.makes)
            again = [replace(work, id=f"r{number}.{place}") for place, work in enumerate(document)]
            self.outcome.rebuilds += 1
            self._documents.remove(document)
            await self._submit(Arrival(self.now, again, "rebuild"))

    def _remember(self, works: list[Submission]) -> None:
        self._documents.append([replace(work, needs=work.needs) for work in works])
        if len(self._documents) > KEPT_DOCUMENTS:
            for work in self._documents.pop(0):
                self._artifacts.discard(work.makes)


def simulate(
    config: Config, seed: int | None = None, *listeners: Listener, keep_calls: bool = True
) -> Outcome:
    """Run it on virtual time, as fast as the machine allows."""
    simulation = Simulation(config if seed is None else replace(config, seed=seed), keep_calls=keep_calls)
    simulation.listeners += listeners
    return run(simulation.run())
