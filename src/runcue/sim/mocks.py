"""Mock services: calls with random delays and failures.

Rules:
- What a call does depends only on the seed, the service, the unit and the attempt, never on the order of calls. So
  two runs that differ in one limit differ by the effect of that limit alone.
- A higher error rate turns successful calls into failures and leaves all other calls as they were.
- Knobs may be changed at any time; calls that begin later follow them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

import msgspec

import runcue
from runcue.sim.behaviour import Behaviour, Latency
from runcue.sim.limits import Allows, Amount, windows
from runcue.sim.promise import Call

PERIOD = 120.0
FAILING = 40.0
"""A service under `circuit_test` fails the last seconds of every period."""

RETURNED = "ok"
ERROR = "error"
PERMANENT = "permanent"
HUNG = "hung"
CANCELLED = "cancelled"
KILLED = "killed"
REFUSED = "refused"
SOON = 0.001
"""The shortest wait that a refusal asks for, in seconds."""

Script = Sequence[tuple[float, str]]
"""What the attempts of one unit do, if it is known: seconds, and one of the words above."""


class Knobs(msgspec.Struct):
    """What can be changed while it runs."""

    error_rate: float
    latency_factor: float = 1.0
    is_down: bool = False


class MockService:
    """A service with a behaviour. It enforces only what it `allows`; runcue has to keep the other limits."""

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
        self._amount = 0
        self._keep = keep
        self.refused = 0
        """Calls that it refused as too many."""
        self._salt = random.getrandbits(64)
        self._began_at = began_at
        self._allows = None if behaviour.allows is None else FarSide(behaviour.allows)
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
        charges: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Take some time, then return, raise, or hang until cancelled. `charges` is what a success uses."""
        loop = asyncio.get_running_loop()
        now = clock_of(loop)
        entered_at = now()
        if self._began_at is None:
            self._began_at = entered_at
        call = Call(work_id, attempt, node, entered_at, services)
        wait = None if self._allows is None else self._allows.refuses(entered_at, charges, len(self._running))
        if wait is not None:
            self.refused += 1
            self._log(call, entered_at, REFUSED, tuple((quantity, 0.0) for quantity, _ in charges))
            raise runcue.RateLimited(retry_after=wait)
        seconds, how = self._fate(work_id, attempt, entered_at - self._began_at, script)
        number = self._amount = self._amount + 1
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
            self._log(call, now(), how, charges if how == RETURNED else ())
        if how == ERROR:
            raise OSError(f"{self.name} is unavailable")
        if how == PERMANENT:
            raise runcue.Permanent(f"{self.name} refuses this for good")

    def _log(self, call: Call, at: float, how: str, charges: tuple[tuple[str, float], ...]) -> None:
        """Keep a call that is over, if calls are kept."""
        call.left_at, call.how, call.charges = at, how, charges
        if self._keep:
            self.calls.append(call)

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


class FarSide:
    """What a service itself accepts: exact sliding windows over its accepted calls."""

    def __init__(self, allows: Allows) -> None:
        self._concurrent = allows.concurrent
        self._retry_after = allows.retry_after
        limits = [("", limit, per) for limit, per in windows(allows.rates)]
        limits += [
            (name, limit, per) for name, rates in allows.quantities.items() for limit, per in windows(rates)
        ]
        self._windows = [(name, limit, per, deque[tuple[float, float]]()) for name, limit, per in limits]

    def refuses(self, now: float, amounts: Sequence[tuple[str, float]], running: int) -> float | None:
        """Seconds after which a refused call may be tried again; None when the call is accepted."""
        wanted = {"": 1.0, **dict(amounts)}
        waits = [self._wait(name, limit, per, taken, wanted.get(name, 0.0), now)
                 for name, limit, per, taken in self._windows]  # fmt: skip
        if self._concurrent is not None and running >= self._concurrent:
            waits.append(1.0)
        if any(waits):
            return max(waits) if self._retry_after is None else self._retry_after
        for name, _, _, taken in self._windows:
            if wanted.get(name):
                taken.append((now, wanted[name]))
        return None

    @staticmethod
    def _wait(
        name: str, limit: int, per: float, taken: deque[tuple[float, float]], wanted: float, now: float
    ) -> float:
        while taken and now - taken[0][0] >= per:
            taken.popleft()
        over = sum(amount for _, amount in taken) + wanted - limit
        for at, amount in taken:
            if over <= 0:
                break
            over -= amount
            if over <= 0:
                return max(at + per - now, SOON)
        return 0.0  # a call that needs more than the whole window is accepted when the window is empty


def draw(latency: Latency | Amount, random: Random) -> float:
    """One latency of that distribution, in seconds, or one amount."""
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
