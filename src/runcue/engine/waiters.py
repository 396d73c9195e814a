"""Who waits for the end of a work: futures by id."""

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
"""Seconds before a look that the store refused is tried again."""


class Waiters:
    """Futures of how works end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._waiting: dict[str, list[asyncio.Future[Record | None]]] = {}
        self._rechecking: asyncio.Task[None] | None = None
        self._is_late = False
        """True when something was told since the look under way began."""
        self._again: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def all(self) -> list[asyncio.Future[Record | None]]:
        """Every future that somebody waits for."""
        return [future for futures in self._waiting.values() for future in futures]

    def final(self, work_id: str) -> asyncio.Future[Record | None]:
        """A future of how that work ends; None when it is gone before anybody saw that."""
        future: asyncio.Future[Record | None] = self._loop.create_future()
        self._waiting.setdefault(work_id, []).append(future)
        future.add_done_callback(partial(self._forget, work_id))
        return future

    def tell(self, plan: Plan) -> None:
        """These works have ended."""
        for news in plan.finals.values():
            record = draft_of(news).record
            assert record is not None
            self._answer(record.id, record)

    def recheck(self) -> None:
        """Another process did something: look whether it ended what somebody here waits for."""
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
        except StoreError as error:  # the engine finds out, too, and says what is to be done
            logger.debug("could not look who has ended: %s", error)
            # what was told may have been the last there is to tell
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
