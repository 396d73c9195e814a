"""runcue decides when work may run: rates, concurrency, circuits, dependencies, artifacts, retries.

    cue = runcue.Cue()
    cue.service("openai", rate="500/min", concurrent=20)

    @cue.task(uses="openai", retry=3)
    async def extract(work): ...

    async with cue:
        work_id = await cue.submit("extract", params={"page": 1})
        print((await cue.wait(work_id)).result)

Names are loaded when they are first used: `import runcue` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know this name; to import typing would cost more than all the rest

__version__ = "0.1.0"

_HOMES = {
    "runcue.api.cue": ["Cue"],
    "runcue.api.batch": ["map"],
    "runcue.api.handle": ["Handle"],
    "runcue.api.functions": ["TaskFunction"],
    "runcue.declare.unit": ["Unit", "output"],
    "runcue.api.progress": ["progress"],
    "runcue.engine.artifacts": ["write_output"],
    "runcue.declare.service_options": ["adaptive"],
    "runcue.declare.unique": ["Unique"],
    "runcue.host.masking": ["mask"],
    "runcue.instrument.prometheus": ["Metrics"],
    "runcue.instrument.opentelemetry": ["trace"],
    "runcue.instrument.logging": ["JsonFormatter"],
    "runcue.api.group": ["Group"],
    "runcue.core.model.group": ["GroupCounts"],
    "runcue.core.model.schedule": ["ScheduleInfo"],
    "runcue.core.model.record": ["Attempt", "PriorityContext", "Work", "WorkState"],
    "runcue.models": ["WorkUnit"],
    "runcue.engine.running": ["RunningWork", "current"],
    "runcue.core.model.events": ["Event"],
    "runcue.core.views.explain": ["Explanation"],
    "runcue.core.views.forecast": ["Forecast"],
    "runcue.core.model.retry": ["Retry"],
    "runcue.api.client": ["Client"],
    "runcue.api.outbox": ["Outbox"],
    "runcue.api.reader": ["Reader"],
    "runcue.api.script": ["postgres_schema"],
    "runcue.ports": ["Command"],
    "runcue.stores.sqlite.recovery.recover": ["Rescue", "recover"],
    "runcue.declare.callbacks": [
        "dependency_check_db",
        "dependency_check_file",
        "priority_by_wait_time",
        "priority_constant",
    ],
}
"""The modules of public names; exceptions are in `runcue.errors`."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Attempt",
    "BadCommand",
    "Client",
    "Command",
    "CommandFailed",
    "ConfigError",
    "Cue",
    "CueClosed",
    "DependencyCycle",
    "DuplicateWork",
    "Event",
    "Explanation",
    "Forecast",
    "ForkedConnection",
    "Group",
    "GroupCounts",
    "GroupNotFound",
    "Handle",
    "InvalidOption",
    "InvalidParams",
    "InvalidRate",
    "JsonFormatter",
    "Metrics",
    "Outbox",
    "Permanent",
    "PriorityContext",
    "QueueFull",
    "RateLimited",
    "Reader",
    "Rescue",
    "ResourceFailed",
    "Retry",
    "RetryLater",
    "RuncueError",
    "RunningWork",
    "ScheduleConflict",
    "ScheduleInfo",
    "SchemaTooNew",
    "Snooze",
    "StorageBusy",
    "StorageCorrupt",
    "StorageFull",
    "StorageInsecure",
    "StorageReplaced",
    "StoreError",
    "SubmitError",
    "TaskFunction",
    "Unique",
    "Unit",
    "UnknownOption",
    "UnknownSchedule",
    "UnknownService",
    "UnknownTask",
    "Unreachable",
    "Work",
    "WorkCancelled",
    "WorkExpired",
    "WorkFailed",
    "WorkNotEditable",
    "WorkNotFound",
    "WorkState",
    "WorkTimedOut",
    "WorkUnit",
    "WorkerLost",
    "WrongResult",
    "WrongThread",
    "__version__",
    "adaptive",
    "current",
    "dependency_check_db",
    "dependency_check_file",
    "map",
    "mask",
    "output",
    "postgres_schema",
    "priority_by_wait_time",
    "priority_constant",
    "progress",
    "recover",
    "trace",
    "write_output",
]


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'runcue' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF.get(name, "runcue.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from runcue.api.batch import map  # noqa: A004 (runcue.map is meant to read like the built-in one)
    from runcue.api.client import Client
    from runcue.api.cue import Cue
    from runcue.api.functions import TaskFunction
    from runcue.api.group import Group
    from runcue.api.handle import Handle
    from runcue.api.outbox import Outbox
    from runcue.api.progress import progress
    from runcue.api.reader import Reader
    from runcue.api.script import postgres_schema
    from runcue.core.model.events import Event
    from runcue.core.model.group import GroupCounts
    from runcue.core.model.record import Attempt, PriorityContext, Work, WorkState
    from runcue.core.model.retry import Retry
    from runcue.core.model.schedule import ScheduleInfo
    from runcue.core.views.explain import Explanation
    from runcue.core.views.forecast import Forecast
    from runcue.declare.callbacks import (
        dependency_check_db,
        dependency_check_file,
        priority_by_wait_time,
        priority_constant,
    )
    from runcue.declare.service_options import adaptive
    from runcue.declare.unique import Unique
    from runcue.declare.unit import Unit, output
    from runcue.engine.artifacts import write_output
    from runcue.engine.running import RunningWork, current
    from runcue.errors import (
        BadCommand,
        CommandFailed,
        ConfigError,
        CueClosed,
        DependencyCycle,
        DuplicateWork,
        ForkedConnection,
        GroupNotFound,
        InvalidOption,
        InvalidParams,
        InvalidRate,
        Permanent,
        QueueFull,
        RateLimited,
        ResourceFailed,
        RetryLater,
        RuncueError,
        ScheduleConflict,
        SchemaTooNew,
        Snooze,
        StorageBusy,
        StorageCorrupt,
        StorageFull,
        StorageInsecure,
        StorageReplaced,
        StoreError,
        SubmitError,
        UnknownOption,
        UnknownSchedule,
        UnknownService,
        UnknownTask,
        Unreachable,
        WorkCancelled,
        WorkerLost,
        WorkExpired,
        WorkFailed,
        WorkNotEditable,
        WorkNotFound,
        WorkTimedOut,
        WrongResult,
        WrongThread,
    )
    from runcue.host.masking import mask
    from runcue.instrument.logging import JsonFormatter
    from runcue.instrument.opentelemetry import trace
    from runcue.instrument.prometheus import Metrics
    from runcue.models import WorkUnit
    from runcue.ports import Command
    from runcue.stores.sqlite.recovery.recover import Rescue, recover
