"""`cue.sync`: blocking calls from other threads, which run on the Cue's loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Never, Unpack, cast

from runcue.declare import arguments
from runcue.errors import ForkedConnection, WrongThread

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.group import Group
    from runcue.api.signature import Duration, SubmitOptions
    from runcue.core.model.group import GroupCounts
    from runcue.core.model.record import Work, WorkState
    from runcue.declare.unit import Unit


class SyncGroup:
    """`cue.sync.group(…)`: a group for code without an event loop, with the methods of Group."""

    def __init__(
        self, name: str, group: Callable[[str], Group], call: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.name = arguments.group_name(name)
        self._group = group
        self._call = call

    def progress(self) -> GroupCounts:
        """How far the group is."""
        counts: GroupCounts = self._ask("progress")
        return counts

    def counts(self) -> dict[WorkState, int]:
        """How many units are in each state."""
        return dict(self._ask("counts"))

    def wait(self, timeout: Duration | None = None) -> GroupCounts:
        """Block until all units have ended."""
        counts: GroupCounts = self._ask("wait", timeout)
        return counts

    def results(self) -> dict[str, Any]:
        """The results of the completed units, by id."""
        return dict(self._ask("results"))

    def list(
        self, state: WorkState | str | None = None, task: str | None = None, limit: int = 100
    ) -> builtins.list[Work]:
        """The latest units, newest first."""
        return list(self._ask("list", state, task, limit))

    def cancel(self, *, cascade: bool = False) -> int:
        """Cancel all units that have not ended, and return how many they were."""
        return int(self._ask("cancel", cascade=cascade))

    def retry(self, *, cascade: bool = False) -> int:
        """Retry all failed units, and return how many they were."""
        return int(self._ask("retry", cascade=cascade))

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        async def ask() -> Any:
            return await getattr(self._group(self.name), method)(*args, **options)

        return self._call(ask())


class Sync:
    """`cue.sync`: submit, get, edit, cancel, wait and result for code without an event loop."""

    def __init__(self, cue: Cue) -> None:
        self._cue = cue

    def submit(
        self,
        task: str | Callable[..., Any] | Unit[Any] | None = None,
        *misplaced: Never,
        **options: Unpack[SubmitOptions],
    ) -> str:
        """Submit a unit from another thread and return its id once it is accepted."""
        return str(self._call(self._cue.submit(cast("Any", task), *misplaced, **options)))

    def get(self, work_id: str) -> Work | None:
        """A unit as it stands, or None when the id is unknown."""
        work: Work | None = self._call(self._cue.get(arguments.work_id(work_id)))
        return work

    def cancel(self, work_id: str, *, cascade: bool = False) -> bool:
        """Cancel a unit from another thread."""
        return bool(self._call(self._cue.cancel(arguments.work_id(work_id), cascade=cascade)))

    def edit(
        self, work_id: str, *, params: Mapping[str, Any] | None = None, priority: float | None = None
    ) -> None:
        """Give a pending or failed unit other params or another priority, from another thread."""
        self._call(self._cue.edit(arguments.work_id(work_id), params=params, priority=priority))

    def group(self, name: str) -> SyncGroup:
        """The units that were submitted with this group, for code in another thread."""
        return SyncGroup(name, self._cue.group, self._call)

    def wait(self, work_id: str, timeout: Duration | None = None) -> Work:
        """Block until a unit has ended and return it."""
        work: Work = self._call(self._cue.wait(arguments.work_id(work_id), timeout))
        return work

    def result(self, work_id: str, timeout: Duration | None = None) -> Any:
        """Block until a unit has ended and return its result."""
        return self._call(self._cue.result(arguments.work_id(work_id), timeout))

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            self._cue._check_process()
        except ForkedConnection:
            coroutine.close()
            raise
        loop = self._cue.loop
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if loop is None:
            problem = (
                "it passes calls to the loop of the Cue, and no event loop runs it yet. Run the Cue first, with "
                "`async with cue` inside asyncio.run(…), and call cue.sync from other threads meanwhile. In a "
                "program without an event loop, submit with runcue.Client"
            )
        elif loop.is_closed():
            problem = "the event loop of the Cue is closed. Call it while `async with cue` is under way"
        elif running is loop:
            problem = "it would block the loop that has to answer it. Use await and the method of Cue instead"
        elif not loop.is_running():
            problem = "the event loop of the Cue is not running. Call it from another thread while it is"
        else:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        coroutine.close()
        raise WrongThread(f"Cannot call cue.sync here: {problem}.")
