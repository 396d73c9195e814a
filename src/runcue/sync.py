"""The same Cue from other threads: blocking calls that hand over to its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from runcue import given
from runcue.errors import ForkedConnection, WrongThread

if TYPE_CHECKING:
    from runcue.core.model import Work
    from runcue.cue import Cue
    from runcue.signature import Duration, SubmitOptions


class Sync:
    """`cue.sync`: submit, get, cancel, wait and result for code that has no event loop."""

    def __init__(self, cue: Cue) -> None:
        self._cue = cue

    def submit(self, task: str | Callable[..., Any] | None = None, **options: Unpack[SubmitOptions]) -> str:
        """Submit work from another thread; the id once it is accepted."""
        return str(self._call(self._cue.submit(task, **options)))

    def get(self, work_id: str) -> Work | None:
        """One work, or None."""
        work: Work | None = self._call(self._cue.get(given.work_id(work_id)))
        return work

    def cancel(self, work_id: str, *, cascade: bool = False) -> bool:
        """Cancel work from another thread."""
        return bool(self._call(self._cue.cancel(given.work_id(work_id), cascade=cascade)))

    def wait(self, work_id: str, timeout: Duration | None = None) -> Work:
        """Block until that work has ended."""
        work: Work = self._call(self._cue.wait(given.work_id(work_id), timeout))
        return work

    def result(self, work_id: str, timeout: Duration | None = None) -> Any:
        """Block until that work has ended; its result."""
        return self._call(self._cue.result(given.work_id(work_id), timeout))

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
        problem = None
        if loop is None:
            problem = "this Cue has no event loop yet: start() it, or await one of its methods first"
        elif loop.is_closed():
            problem = "the event loop of this Cue is closed"
        elif running is loop:
            problem = (
                "cue.sync would wait for the very thread it is called on: await the method of Cue instead"
            )
        if problem is not None or loop is None:
            coroutine.close()
            raise WrongThread(f"Cannot call cue.sync here: {problem}.")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
