"""What a Cue submits at moments: decorators for what code declares, and what is added, paused and run by hand."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from runcue.api.submission import outside_id
from runcue.core.model import parse
from runcue.core.model.schedule import ScheduleInfo, shown
from runcue.core.schedule.plan import DeclareSchedules, PauseSchedule, PutSchedule, RunSchedule, Unschedule
from runcue.declare.schedules import read_schedule
from runcue.errors import ConfigError

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.functions import Registering
    from runcue.api.wiring import System
    from runcue.declare.registry import Registry


class Schedules:
    """The schedules of a Cue: `await cue.schedules()` lists them."""

    def __init__(self, cue: Cue, registry: Registry) -> None:
        self._cue = cue
        self._registry = registry

    async def __call__(self) -> builtins.list[ScheduleInfo]:
        """All schedules of the queue, by name, with their next and last units."""
        system = self._open("list schedules")
        await system.queries.now()  # a turn has taken in what was declared
        return [shown(one) for one in await system.store.schedules()]

    async def pause(self, name: str) -> None:
        """Submit nothing more for a schedule. Slots that pass meanwhile are left out."""
        await self._open("pause a schedule").engine.request(PauseSchedule(parse.name(name, "schedule"), True))

    async def resume(self, name: str) -> None:
        """Let a paused schedule go on with its next slot."""
        await self._open("resume a schedule").engine.request(
            PauseSchedule(parse.name(name, "schedule"), False)
        )

    async def add(self, name: str, task: str | Callable[..., Any], options: Mapping[str, Any]) -> None:
        """Add a schedule, or change the one of that name."""
        system = self._open("schedule")
        await system.engine.request(
            PutSchedule(read_schedule(self._registry, name, task, system.clock.wall(), options))
        )

    async def remove(self, name: str) -> bool:
        """Delete a schedule; True when there was one."""
        return bool(await self._open("unschedule").engine.request(Unschedule(parse.name(name, "schedule"))))

    async def run_now(self, name: str) -> str:
        """Submit a unit of a schedule now, and return its id."""
        system = self._open("run a schedule")
        return str(await system.engine.request(RunSchedule(parse.name(name, "schedule"), outside_id())))

    def declared(self, options: Mapping[str, Any]) -> Registering:
        """What `@cue.every(…)` and `@cue.cron(…)` are: they register the function as a task, unless it is one, and
        declare its schedule."""
        settings = {option: value for option, value in options.items() if option != "name"}
        registry = self._registry

        def register(function: Callable[..., Any]) -> Any:
            names = [task.name for task in registry.tasks.values() if task.handler is function]
            if len(names) > 1:
                raise ConfigError(
                    f"The function is registered as {len(names)} tasks. Say which with cue.schedule(name, task, …)."
                )
            found = function if names else self._cue.task(function)
            task = registry.get_task(names[0] if names else function)
            name = options.get("name", task.name)
            registry.schedules.declare(name, task, settings, time.time())
            if self._cue.loop is not None:
                system = self._open("declare a schedule")
                said = registry.schedules.read(system.clock.wall(), name)
                system.engine.inbox.put_threadsafe(DeclareSchedules(said))
            return found

        return cast("Registering", register)

    def _open(self, action: str) -> System:
        return self._cue._open(action)
