"""A real asyncio loop on which waiting takes no time.

1. Time moves only when nothing is ready, and then straight to the next timer.
2. Time stands still while the loop is held: work in threads takes no virtual time.
3. Timers fire in order of time, then of creation. One program has one order of events.
4. A wait that cannot end raises `Deadlock`; it never hangs.

asyncio computes how long it may sleep and asks a selector to sleep that long. The selector here moves the
clock instead. Everything else is asyncio's own: nothing private of it is touched.
"""

import asyncio
import itertools
import math
import selectors
import sys
import threading
import time
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack
from weakref import WeakMethod

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000.0
"""The default start of `VirtualLoop.now()`: 14 November 2023, 22:13:20 UTC."""

MAX_IDLE_REAL = 30.0
"""Real seconds that a held loop waits for the outside before it raises Deadlock."""

_PAUSE = 0.05  # real seconds between two looks at whether the loop is still held
_TOLERANCE = 1e-9  # timers fire early by less than this, however coarse the machine's own clock is
_TASKS_NAMED = 10


class Deadlock(RuntimeError):
    """Nothing more can happen on this loop, or not within its bounds.

    `reason` is "idle" (all tasks wait for each other), "held" (nothing came from outside in `max_idle_real`
    seconds) or "limit" (the virtual time allowed is used up). `at` is the virtual time, `tasks` the tasks that wait.
    """

    def __init__(self, reason: str, explanation: str, *, at: float, tasks: tuple[str, ...]) -> None:
        self.reason = reason
        self.at = at
        self.tasks = tasks
        named = ", ".join(tasks[:_TASKS_NAMED]) or "no task"
        more = f" and {len(tasks) - _TASKS_NAMED} more" if len(tasks) > _TASKS_NAMED else ""
        super().__init__(f"Stuck at virtual second {at:g}: {explanation} Waiting: {named}{more}.")


class _Wait(float):
    """Seconds until a timer is due, and the exact moment: adding seconds to the clock could miss it."""

    __slots__ = ("until",)
    until: float


class _Moment(float):
    """When a timer is due. Of two timers due at the same time, the one created first comes first."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, when: float, number: int) -> Self:
        moment = super().__new__(cls, when)
        moment.number = number
        return moment

    def __lt__(self, other: float) -> bool:
        if isinstance(other, _Moment) and self == other:
            return self.number < other.number
        return float.__lt__(self, other)

    def __sub__(self, now: float) -> _Wait:
        # Never 0: asyncio says 0 when it has callbacks to run, and then nothing may move.
        wait = _Wait(float.__sub__(self, now) or math.ulp(0.0))
        wait.until = float(self)
        return wait


class _Selector(selectors.DefaultSelector):
    """The system's selector, except that it asks the loop what to do instead of sleeping."""

    def __init__(
        self, is_held: Callable[[], bool], must_wait: Callable[[float | None, bool, float], bool]
    ) -> None:
        super().__init__()
        self._is_held = is_held
        self._must_wait = must_wait
        self._order: dict[int, int] = {}
        """The number of each file among all that were ever registered."""
        self._numbers = itertools.count()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._order[key.fd] = next(self._numbers)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        pause = 0.0
        while True:
            # First the hold, then the poll: a thread delivers its answer before it releases the loop,
            # so that a look that finds no hold also finds the answer.
            held = self._is_held()
            events = super().select(pause)
            if events or timeout == 0:
                # Which file was ready first is chance, and so are the numbers of files: one seed has to be one trace.
                return sorted(events, key=lambda event: self._order[event[0].fd])
            if not self._must_wait(timeout, held, time.monotonic() - began):
                return []
            pause = _PAUSE


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop for tests and simulations: an hour of `asyncio.sleep` takes no real time.

    `start` is the first value of `time()`; `now()` is `epoch + time()`. A run ends with `Deadlock` after
    `limit` virtual seconds, or when it waits for the outside and nothing comes for `max_idle_real` real
    seconds.
    """

    def __init__(
        self,
        *,
        start: float = 0.0,
        epoch: float = EPOCH,
        limit: float | None = None,
        max_idle_real: float = MAX_IDLE_REAL,
    ) -> None:
        self._now = float(start)
        self._epoch = epoch
        self._wall_offset = 0.0
        self._jump_listeners: list[WeakMethod[Callable[[], None]]] = []
        self._limit = limit
        self._ends_at = math.inf if limit is None else self._now + limit
        self._max_idle_real = max_idle_real
        self._holds = 0
        self._holds_lock = threading.Lock()
        self._timers_made = 0
        self._furthest_timer = self._now
        self._settlers: list[Future[None]] = []
        self._files = _Selector(lambda: self._holds > 0, self._must_wait)
        super().__init__(self._files)
        self._clock_resolution = (
            _TOLERANCE  # asyncio takes that of the machine: 16 ms on Windows before Python 3.13
        )
        self._own_files = len(self._files.get_map())  # the loop's own wake-up pipe

    # Clocks

    def time(self) -> float:
        """Virtual seconds. They move only while nothing is ready to run."""
        return self._now

    def now(self) -> float:
        """Virtual epoch seconds: they start at `epoch` and never jump."""
        return self._epoch + self._now

    def wall(self) -> float:
        """The wall clock: `now()`, plus what `jump_wall` added."""
        return self.now() + self._wall_offset

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative. Timers and `now()` do not notice."""
        self._wall_offset += seconds
        for listener in [
            listener for reference in self._jump_listeners if (listener := reference()) is not None
        ]:
            listener()

    def on_jump(self, listener: Callable[[], None]) -> None:
        """Call a method after each `jump_wall`, as long as its object is there."""
        self._jump_listeners = [one for one in self._jump_listeners if one() is not None]
        self._jump_listeners.append(WeakMethod(listener))

    # What happens outside

    def hold(self) -> None:
        """Stop time until `release()`, because something runs outside the loop. Holds add up."""
        with self._holds_lock:
            self._holds += 1

    def release(self) -> None:
        """End one `hold()`, from any thread. Call it after the answer was posted to the loop."""
        with self._holds_lock:
            if self._holds == 0:
                raise RuntimeError("release() without hold(): this loop is not held.")
            self._holds -= 1
        try:
            self.call_soon_threadsafe(_nothing)
        except RuntimeError:
            if not self.is_closed():  # a thread may outlive its loop
                raise

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> Future[T]:
        """Like asyncio's; time stands still until the answer arrives or is cancelled."""
        self.hold()
        try:
            future = super().run_in_executor(executor, func, *args)
        except BaseException:
            self.release()
            raise
        future.add_done_callback(lambda _: self.release())
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Like asyncio's; time stands still meanwhile, so that `timeout` never ends it."""
        self.hold()
        try:
            if sys.version_info >= (3, 12):
                await super().shutdown_default_executor(timeout)
            else:
                await super().shutdown_default_executor()
        finally:
            self.release()

    # Timers

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        """Like asyncio's; timers for one moment fire in the order they were made."""
        self._timers_made += 1
        if self._furthest_timer < when < math.inf:
            self._furthest_timer = float(when)
        return super().call_at(_Moment(when, self._timers_made), callback, *args, context=context)

    def _must_wait(self, timeout: float | None, held: bool, waited: float) -> bool:
        """Decide what to do when nothing is ready: True to wait for the outside, False after moving the clock.

        timer due now                  → let asyncio fire it
        held                           → wait
        a task waits in `settle`        → wake it
        timer in the future            → go there
        only timers at infinity, none  → wait if a socket or pipe is watched, else it is a deadlock
        """
        if isinstance(timeout, _Wait) and timeout.until <= self._now:
            self._move(timeout)
            return False
        if held:
            if waited > self._max_idle_real:
                raise self._deadlock("held", f"held for {waited:.1f} real seconds and no release() came.")
            return True
        if self._wake_settlers():
            return False
        if timeout is not None and self._now < self._furthest_timer:
            self._move(timeout)
            return False
        if len(self._files.get_map()) == self._own_files:
            raise self._deadlock(
                "idle",
                "nothing is ready, scheduled or in flight. If a thread, process or signal is to come, "
                "hold() the loop meanwhile.",
            )
        if waited > self._max_idle_real:
            raise self._deadlock("held", f"no socket or pipe had news for {waited:.1f} real seconds.")
        return True

    def _move(self, timeout: float) -> None:
        target = timeout.until if isinstance(timeout, _Wait) else self._now + timeout
        if target + _TOLERANCE <= target:
            # After half a virtual year a float no longer holds asyncio's tolerance, and a timer fires only
            # once the clock is past it: take the next number there is, some nanoseconds later.
            target = math.nextafter(target, math.inf)
        if target > self._ends_at:
            assert self._limit is not None
            self._ends_at = self._now + self._limit  # tasks may take as long again to clean up
            raise self._deadlock("limit", f"the limit of {self._limit:g} virtual seconds is used up.")
        self._now = target

    def _wake_settlers(self) -> bool:
        settlers = [future for future in self._settlers if not future.done()]
        self._settlers.clear()
        for future in settlers:
            future.set_result(None)
        return bool(settlers)

    def _settled(self) -> Future[None]:
        future: Future[None] = self.create_future()
        self._settlers.append(future)
        return future

    def _deadlock(self, reason: str, explanation: str) -> Deadlock:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name()))
        return Deadlock(reason, explanation, at=self._now, tasks=tuple(map(_describe, tasks)))


def run(
    coroutine: Coroutine[Any, Any, T],
    *,
    start: float = 0.0,
    epoch: float = EPOCH,
    limit: float | None = None,
    max_idle_real: float = MAX_IDLE_REAL,
) -> T:
    """`asyncio.run` on a `VirtualLoop`: run the coroutine, cancel the tasks that are left, close the loop."""

    def make_loop() -> AbstractEventLoop:
        return VirtualLoop(start=start, epoch=epoch, limit=limit, max_idle_real=max_idle_real)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(coroutine)


async def settle() -> None:
    """Wait for the end of this instant: return when nothing else can run until time passes.

    Timers due now and threads in flight belong to the instant. A task that spins on `sleep(0)` never ends it.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(
            f"settle() works on a VirtualLoop, got {type(loop).__name__}: use runcue.testing.run()."
        )
    await loop._settled()


def _describe(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()!r} ({getattr(coroutine, '__qualname__', None) or repr(coroutine)})"


def _nothing() -> None:
    """Wakes a loop up: the call itself does nothing."""
