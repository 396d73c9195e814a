"""Plays a simulation step by step for a live screen, and changes its error rates, latencies and arrivals meanwhile.

Rules:
- Time is virtual: watching a run does not change it.
- `advance`, `do` and `close` are called one after the other, and all from one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import runcue
from runcue.sim import mocks
from runcue.sim.config import Config
from runcue.sim.scene import LOUD, MOST_RECENT, Knobs, Scene
from runcue.sim.workload import Arrival
from runcue.sim.world import Listener, Outcome, Simulation
from runcue.testing import VirtualLoop, settle

SLICES = 20
"""An advance that has to end in time looks at the clock this often."""

HIGHEST_ERROR_RATE = 0.5
SLOWEST, FASTEST = 0.1, 20.0


class Player:
    """A simulation that goes on only while `advance` is called."""

    def __init__(
        self, config: Config, *listeners: Listener, arrivals: Iterable[Arrival] | None = None
    ) -> None:
        self.simulation = Simulation(config, arrivals=arrivals, keep_calls=False)
        self.simulation.listeners += [self._hear, *listeners]
        self.outcome: Outcome | None = None
        """The outcome; the outcome so far, when it was closed before its end."""
        self.chosen: str | None = None
        self._loop = VirtualLoop()
        self._run: asyncio.Task[Outcome] | None = None
        self._recent: deque[runcue.Event] = deque(maxlen=MOST_RECENT)
        self._retrying: set[str] = set()
        self._is_full = False
        self._scene = Scene(now=0.0, duration=config.duration, counts={}, services=())

    # going on ---------------------------------------------------------------------------------------------

    def advance(self, seconds: float, at_most: float | None = None) -> Scene:
        """Let so many seconds pass, or as many as fit into `at_most` real ones, and return the scene."""
        if self.outcome is None:
            self._loop.run_until_complete(self._go(seconds, at_most))
        return self._scene

    def do(self, act: Callable[[Player], object]) -> Scene:
        """Do something to the simulation between two of its moments."""
        if self.outcome is None:
            self._loop.run_until_complete(self._act(act))
        return self._scene

    def close(self) -> None:
        """End it, wherever it is."""
        if self._loop.is_closed():
            return
        if self.outcome is None:
            self.simulation.hand_out()
            self.outcome = self.simulation.outcome_so_far()
        if self._run is not None and not self._run.done():
            self._run.cancel()
            self._loop.run_until_complete(asyncio.wait({self._run}))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _go(self, seconds: float, at_most: float | None) -> None:
        if self._run is None:
            self._run = asyncio.create_task(self.simulation.run(), name="simulation")
        until = None if at_most is None else time.monotonic() + at_most
        for _ in range(SLICES):
            await asyncio.wait({self._run}, timeout=seconds / SLICES)
            if self._run.done() or (until is not None and time.monotonic() >= until):
                break
        await self._look()
        if self._run.done():
            self.outcome = self._run.result()

    async def _act(self, act: Callable[[Player], object]) -> None:
        act(self)
        await self._look()

    # looking ----------------------------------------------------------------------------------------------

    def _hear(self, event: runcue.Event) -> None:
        if event.work_id is not None:
            if event.type == "retrying":
                self._retrying.add(event.work_id)
            elif event.type in {"started", "completed", "failed", "cancelled", "skipped"}:
                self._retrying.discard(event.work_id)
        if event.type == "backpressure_active":
            self._is_full = bool(event.data.get("active"))
        if event.type not in LOUD:
            self._recent.appendleft(event)

    async def _look(self) -> None:
        simulation, run = self.simulation, self._run
        if run is None:
            return
        await settle()  # so that nothing of this moment is still to be told
        if run.done():
            outcome = run.result()
            counts, services = outcome.counts, [{**one, "running": 0} for one in self._scene.services]
        else:
            counts = {state.value: amount for state, amount in (await simulation.cue.count()).items()}
            services = await simulation.cue.services()
        alive = sum(node is not None for node in simulation.nodes)
        self._scene = Scene(
            now=simulation.now,
            duration=simulation.config.duration,
            counts=counts,
            services=[one for one in services if one["name"] in simulation.services],
            recent=tuple(islice(self._recent, 100)),
            started_at=simulation.began_at,
            retrying=len(self._retrying),
            nodes=f"{alive}/{len(simulation.nodes)}" if simulation.config.store == "file" else "",
            backpressure=self._is_full,
            knobs=self._knobs(),
            has_ended=run.done(),
        )

    def _knobs(self) -> Knobs:
        services = self.simulation.services
        shown = services.get(self.chosen or "") or next(iter(services.values()))
        return Knobs(
            error_rate=shown.knobs.error_rate,
            latency=shown.knobs.latency_factor,
            arrivals=self.simulation.rate_factor,
            down=tuple(name for name, mock in services.items() if mock.knobs.is_down),
            chosen=self.chosen,
            is_paused=self.simulation.is_paused,
        )

    # knobs ------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return list(self.simulation.services) if self.chosen is None else [self.chosen]

    def _chosen_knobs(self) -> list[mocks.Knobs]:
        return [self.simulation.services[name].knobs for name in self._names()]

    def choose(self, step: int) -> None:
        """Let the keys be about the next service, or about all."""
        names = [None, *self.simulation.services]
        self.chosen = names[(names.index(self.chosen) + step) % len(names)]

    def turn_error_rate(self, step: float) -> None:
        """Let more or fewer calls fail; past the end it begins anew at 0."""
        for knobs in self._chosen_knobs():
            rate = round(knobs.error_rate + step, 4)
            if rate > HIGHEST_ERROR_RATE:
                rate = HIGHEST_ERROR_RATE if knobs.error_rate < HIGHEST_ERROR_RATE else 0.0
            knobs.error_rate = max(0.0, rate)

    def turn_latency(self, factor: float) -> None:
        """Let calls take longer or shorter."""
        for knobs in self._chosen_knobs():
            knobs.latency_factor = _within(knobs.latency_factor * factor)

    def turn_arrivals(self, factor: float) -> None:
        """Let units arrive faster or slower."""
        self.simulation.rate_factor = _within(self.simulation.rate_factor * factor)

    def break_services(self) -> None:
        """Let the chosen services fail every call, or no longer."""
        knobs = self._chosen_knobs()
        is_down = not all(one.is_down for one in knobs)
        for one in knobs:
            one.is_down = is_down

    def pause(self) -> None:
        """Let nothing more arrive, or go on."""
        self.simulation.is_paused = not self.simulation.is_paused

    def kill_task(self) -> str | None:
        """Let one running task die and return its service, if there was one."""
        return next((name for name in self._names() if self.simulation.services[name].break_one()), None)

    def kill_node(self) -> None:
        """Let a node die, or put another in the place of one that is dead."""
        dead = [number for number, node in enumerate(self.simulation.nodes) if node is None]
        if dead:
            self.simulation.restart(dead[0])
        else:
            self.simulation.kill(0)


def _within(factor: float) -> float:
    return float(f"{min(FASTEST, max(SLOWEST, factor)):.3g}")
