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

TYPE_CHECKING = False  # type checkers know this name; importing typing would cost more than all the rest

__version__ = "0.1.0"

_HOMES = {
    "runcue.cue": ["Cue"],
    "runcue.batch": ["map"],
    "runcue.bar": ["progress"],
    "runcue.artifacts": ["write_output"],
    "runcue.limiting": ["adaptive"],
    "runcue.masking": ["mask"],
    "runcue.instrument.prometheus": ["Metrics"],
    "runcue.instrument.opentelemetry": ["trace"],
    "runcue.instrument.logging": ["JsonFormatter"],
    "runcue.core.model": ["Attempt", "PriorityContext", "Work", "WorkState"],
    "runcue.models": ["WorkUnit"],
    "runcue.running": ["RunningWork"],
    "runcue.core.events": ["Event"],
    "runcue.core.explain": ["Explanation"],
    "runcue.core.forecast": ["Forecast"],
    "runcue.core.retry": ["Retry"],
    "runcue.reader": ["Reader"],
    "runcue.ports": ["Command"],
    "runcue.stores.rescue": ["Rescue", "recover"],
    "runcue.callbacks": [
        "dependency_check_db",
        "dependency_check_file",
        "priority_by_wait_time",
        "priority_constant",
    ],
    "runcue.errors": [
        "BadCommand",
        "CommandFailed",
        "ConfigError",
        "CueClosed",
        "DependencyCycle",
        "DuplicateWork",
        "ForkedConnection",
        "InvalidOption",
        "InvalidParams",
        "InvalidRate",
        "Permanent",
        "QueueFull",
        "RateLimited",
        "RetryLater",
        "RuncueError",
        "SchemaTooNew",
        "Snooze",
        "StorageBusy",
        "StorageCorrupt",
        "StorageFull",
        "StorageInsecure",
        "StorageReplaced",
        "StoreError",
        "SubmitError",
        "UnknownOption",
        "UnknownService",
        "UnknownTask",
        "Unreachable",
        "WorkCancelled",
        "WorkFailed",
        "WorkNotFound",
        "WorkTimedOut",
        "WorkerLost",
        "WrongThread",
    ],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Attempt",
    "BadCommand",
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
    "InvalidOption",
    "InvalidParams",
    "InvalidRate",
    "JsonFormatter",
    "Metrics",
    "Permanent",
    "PriorityContext",
    "QueueFull",
    "RateLimited",
    "Reader",
    "Rescue",
    "Retry",
    "RetryLater",
    "RuncueError",
    "RunningWork",
    "SchemaTooNew",
    "Snooze",
    "StorageBusy",
    "StorageCorrupt",
    "StorageFull",
    "StorageInsecure",
    "StorageReplaced",
    "StoreError",
    "SubmitError",
    "UnknownOption",
    "UnknownService",
    "UnknownTask",
    "Unreachable",
    "Work",
    "WorkCancelled",
    "WorkFailed",
    "WorkNotFound",
    "WorkState",
    "WorkTimedOut",
    "WorkUnit",
    "WorkerLost",
    "WrongThread",
    "__version__",
    "adaptive",
    "dependency_check_db",
    "dependency_check_file",
    "map",
    "mask",
    "priority_by_wait_time",
    "priority_constant",
    "progress",
    "recover",
    "trace",
    "write_output",
]


if not TYPE_CHECKING:  # else type checkers would believe that there is a name for everything

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'runcue' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from runcue.artifacts import write_output
    from runcue.bar import progress
    from runcue.batch import map  # noqa: A004 (runcue.map is meant to read like the built-in one)
    from runcue.callbacks import (
        dependency_check_db,
        dependency_check_file,
        priority_by_wait_time,
        priority_constant,
    )
    from runcue.core.events import Event
    from runcue.core.explain import Explanation
    from runcue.core.forecast import Forecast
    from runcue.core.model import Attempt, PriorityContext, Work, WorkState
    from runcue.core.retry import Retry
    from runcue.cue import Cue
    from runcue.errors import (
        BadCommand,
        CommandFailed,
        ConfigError,
        CueClosed,
        DependencyCycle,
        DuplicateWork,
        ForkedConnection,
        InvalidOption,
        InvalidParams,
        InvalidRate,
        Permanent,
        QueueFull,
        RateLimited,
        RetryLater,
        RuncueError,
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
        UnknownService,
        UnknownTask,
        Unreachable,
        WorkCancelled,
        WorkerLost,
        WorkFailed,
        WorkNotFound,
        WorkTimedOut,
        WrongThread,
    )
    from runcue.instrument.logging import JsonFormatter
    from runcue.instrument.opentelemetry import trace
    from runcue.instrument.prometheus import Metrics
    from runcue.limiting import adaptive
    from runcue.masking import mask
    from runcue.models import WorkUnit
    from runcue.ports import Command
    from runcue.reader import Reader
    from runcue.running import RunningWork
    from runcue.stores.rescue import Rescue, recover
