"""Tells callers when the unit that they wait for has ended."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from runcue.core.model.events import draft_of
from runcue.core.model.record import Record
from runcue.core.schedule.plan import Plan
from runcue.errors import StoreError
from runcue.ports import Store

logger = logging.getLogger("runcue")

PAUSE = 0.5
"""Seconds before a read that the store refused is tried again."""


class Waiters:
    """The futures of waiting callers, by the id of the unit."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._waiting: dict[str, list[asyncio.Future[Record | None]]] = {}
        self._rechecking: asyncio.Task[None] | None = None
        self._is_late = False
        """True when another process committed something since the read under way began."""
        self._again: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def all(self) -> list[asyncio.Future[Record | None]]:
        """The futures of all waiting callers."""
        return [future for futures in self._waiting.values() for future in futures]

    def final(self, work_id: str) -> asyncio.Future[Record | None]:
        """A future of the final record of a unit; None when the record is gone before it could be read."""
        future: asyncio.Future[Record | None] = self._loop.create_future()
        self._waiting.setdefault(work_id, []).append(future)
        future.add_done_callback(partial(self._forget, work_id))
        return future

    def resolve(self, plan: Plan) -> None:
        """Tell the callers that wait for units that ended in this plan."""
        for event in plan.finals.values():
            record = draft_of(event).record
            assert record is not None
            self._answer(record.id, record)

    def recheck(self) -> None:
        """Look whether another process has ended a unit that a caller waits for."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._is_late = self._rechecking is not None
        if self._waiting and not self._is_late:
            self._rechecking = self._loop.create_task(self._recheck(), name="runcue waiters")

    async def _recheck(self) -> None:
        asked = list(self._waiting)
        try:
            found = await self._store.get_many(asked)
        except StoreError as error:  # the engine meets it, too, and logs it
            logger.debug("cannot look which units have ended, trying again: %s", error)
            # no other notice may follow the one that led here
            self._again = self._loop.call_later(PAUSE, self.recheck)
            return
        finally:
            self._rechecking = None
        for work_id in asked:
            record = found.get(work_id)
            if record is None or record.state.is_final:
                self._answer(work_id, record)
        if self._is_late:
            self.recheck()

    def _answer(self, work_id: str, record: Record | None) -> None:
        for future in self._waiting.pop(work_id, ()):
            if not future.done():
                future.set_result(record)

    def _forget(self, work_id: str, future: asyncio.Future[Record | None]) -> None:
        waiting = self._waiting.get(work_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[work_id]
