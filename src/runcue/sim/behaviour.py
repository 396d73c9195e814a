"""Mock services: what is called instead of the world, with delays and failures drawn by lot.

Rules:
- What a call does follows from the seed, the service, the work and the attempt alone, never from the order of
  calls. Two runs that differ in one limit meet the same luck, so that their difference is that limit's.
- Raising one rate turns calls that went well into failures and leaves the others as they were.
- Knobs may be turned at any time and hold for calls that begin afterwards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from random import Random

import msgspec

import runcue
from runcue.sim.config import Behaviour, Latency

PERIOD = 120.0
FAILING = 40.0
"""A service under `circuit_test` fails the last seconds of every period."""

RETURNED = "ok"
ERROR = "error"
PERMANENT = "permanent"
HUNG = "hung"
CANCELLED = "cancelled"
KILLED = "killed"

Script = Sequence[tuple[float, str]]
"""What the attempts of one work do, if it is known: seconds, and one of the words above."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call as the service saw it."""

    service: str
    work_id: str
    attempt: int
    node: int
    entered_at: float
    left_at: float
    how: str
    services: tuple[str, ...] = ()
    """All services that its work runs on, as the handler was told."""
    charges: tuple[tuple[str, float], ...] = ()
    """What its handler said that it used."""
    is_kept: bool = True


class Knobs(msgspec.Struct):
    """What can be changed while it runs."""

    error_rate: float
    latency_factor: float = 1.0
    is_down: bool = False


class MockService:
    """Something outside with a behaviour. It knows no limits: to keep them is runcue's business."""

    def __init__(
        self,
        name: str,
        behaviour: Behaviour,
        random: Random,
        *,
        began_at: float | None = None,
        keep: bool = True,
    ) -> None:
        self.name = name
        self.behaviour = behaviour
        self.knobs = Knobs(behaviour.error_rate)
        self.calls: list[Call] = []
        self.amount = 0
        """Calls so far, whether or not they are kept."""
        self._keep = keep
        self._salt = random.getrandbits(64)
        self._began_at = began_at
        self._running: dict[int, asyncio.Future[None]] = {}

    @property
    def running(self) -> int:
        """How many calls are under way."""
        return len(self._running)

    async def call(
        self,
        work_id: str,
        attempt: int,
        node: int = 0,
        script: Script = (),
        services: tuple[str, ...] = (),
    ) -> None:
        """Take some time, and then return, raise, or hang until cancelled."""
        loop = asyncio.get_running_loop()
        now = clock_of(loop)
        entered_at = now()
        if self._began_at is None:
            self._began_at = entered_at
        seconds, how = self._fate(work_id, attempt, entered_at - self._began_at, script)
        number = self.amount = self.amount + 1
        future: asyncio.Future[None] = loop.create_future()
        timer = None if how == HUNG else loop.call_later(seconds, _end, future)
        self._running[number] = future
        try:
            await future
        except asyncio.CancelledError:
            how = HUNG if how == HUNG else CANCELLED
            raise
        except ConnectionAbortedError:
            how = KILLED
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del self._running[number]
            if self._keep:
                self.calls.append(Call(self.name, work_id, attempt, node, entered_at, now(), how, services))
        if how == ERROR:
            raise OSError(f"{self.name} is unavailable")
        if how == PERMANENT:
            raise runcue.Permanent(f"{self.name} refuses this for good")

    def break_one(self) -> bool:
        """Let the oldest call that is under way fail at once; False when there is none."""
        for future in self._running.values():
            if not future.done():
                future.set_exception(ConnectionAbortedError(f"a call of {self.name} was killed"))
                return True
        return False

    def is_failing(self, second: float) -> bool:
        """True when every call that begins in that second of the run fails."""
        behaviour = self.behaviour
        if self.knobs.is_down or (behaviour.circuit_test and second % PERIOD >= PERIOD - FAILING):
            return True
        return any(outage.at <= second < outage.at + outage.for_ for outage in behaviour.outages)

    def _fate(self, work_id: str, attempt: int, second: float, script: Script) -> tuple[float, str]:
        """How long a call that begins now takes, and how it ends."""
        if script:
            seconds, how = script[min(attempt, len(script)) - 1]
            how = ERROR if self.is_failing(second) else how
        else:
            random = Random(f"{self._salt}/{work_id}/{attempt}")
            lot = random.random()
            seconds, how = draw(self.behaviour.latency, random), self._ending(lot, second)
        return seconds * self.knobs.latency_factor, how

    def _ending(self, lot: float, second: float) -> str:
        behaviour = self.behaviour
        if self.is_failing(second):
            return ERROR
        for share, how in (
            (behaviour.permanent_error_rate, PERMANENT),
            (behaviour.timeout_rate, HUNG),
            (self.knobs.error_rate, ERROR),
        ):
            if lot < share:
                return how
            lot -= share
        return RETURNED


def draw(latency: Latency, random: Random) -> float:
    """One latency of that distribution, in seconds."""
    mean = latency.mean
    match latency.distribution:
        case "uniform":
            seconds = random.uniform(latency.min, latency.max)
        case "normal":
            seconds = random.gauss(mean, latency.stddev)
        case "exponential":
            seconds = random.expovariate(1 / mean)
        case "lognormal":
            spread = math.log1p((latency.stddev / mean) ** 2)
            seconds = random.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread))
        case _:
            seconds = mean
    return min(max(seconds, latency.min), latency.max)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock that runcue uses on that loop: its own on virtual time, else the system's."""
    now: Callable[[], float] = getattr(loop, "now", time.time)
    return now


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
