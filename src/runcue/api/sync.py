"""`cue.sync`: blocking calls from other threads, which run on the Cue's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Never, Unpack, cast

from runcue.declare import arguments
from runcue.errors import ForkedConnection, WrongThread

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.signature import Duration, SubmitOptions
    from runcue.core.model.record import Work
    from runcue.declare.unit import Unit


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
                "`async with cue` inside asyncio.run(…), and call cue.sync from other threads meanwhile"
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
