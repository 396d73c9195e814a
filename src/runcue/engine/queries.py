"""Answers questions about units: how one ended, why it waits, which limit is full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.deadlines import EXPIRED
from runcue.core.ledger.ledger import Ledger
from runcue.core.model.events import Event, EventFilter
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, Work, WorkState
from runcue.core.schedule.duplicates import LOST
from runcue.core.schedule.plan import Cancel, ReadRequest, Revive
from runcue.core.schedule.scheduler import Scheduler
from runcue.core.views.explain import FULL, Explanation, explain, explain_alone, explain_pending, snapshot
from runcue.core.views.forecast import RECENT, Forecast, forecast, paces, tasks_of
from runcue.core.views.query import Query
from runcue.engine.bus import Bus
from runcue.engine.engine import Engine
from runcue.errors import (
    DuplicateWork,
    GroupNotFound,
    RuncueError,
    WorkCancelled,
    WorkExpired,
    WorkFailed,
    WorkNotFound,
    WorkTimedOut,
)
from runcue.host.loops import within
from runcue.ports import SharedStore, Store, Turn

logger = logging.getLogger("runcue")

MOST_NAMES = 1000
"""How many names of groups are read to find the one that was meant."""
HINT_AFTER = 2.0
"""Seconds that a caller waits for a unit of a Cue that was not started before a warning is logged."""
ENDINGS: dict[str, type[WorkFailed]] = {"timeout": WorkTimedOut, EXPIRED: WorkExpired}
"""What is raised for certain errors of a unit instead of WorkFailed."""
NOT_STARTED = "nothing runs: this Cue was not started (use `async with cue`, or cue.start())"
STOPPED = "nothing runs: this Cue was stopped (cue.start() continues)"


class Queries:
    """Answers from the store, and for live units from the scheduler."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        bus: Bus,
        view: Callable[[Record], Work],
        result: Callable[[Record], Any],
    ) -> None:
        """`view` makes what users see of a record; `result` decodes its result, or raises what is wrong with it."""
        self._engine = engine
        self._bus = bus
        self._store = store
        self._view = view
        self._result = result
        self._hinted = ""

    async def wait(self, work_id: str, timeout: float | None) -> Work:
        """Wait for the end of a unit and return it; TimeoutError when that takes too long."""
        return self._view(await self._final(work_id, timeout))

    async def _final(self, work_id: str, timeout: float | None) -> Record:
        advice = "cue.explain(id) says what it waits for."
        async with self._within(timeout, f"Unit {work_id!r} has not ended", advice):
            return await self._ended(work_id, may_be_own=timeout is not None)

    @asynccontextmanager
    async def _within(self, timeout: float | None, what: str, advice: str) -> AsyncIterator[None]:
        """Limit how long a caller waits; the TimeoutError says `what` has not happened, and why or where to look."""
        hint = self._later_hint()
        limit: asyncio.Timeout | None = None
        try:
            async with within(timeout) as limit:
                yield
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            why = self._standstill()
            late = f"{what} within {timeout:g} s"
            raise TimeoutError(f"{late}: {why}." if why else f"{late}. {advice}") from None
        finally:
            if hint is not None:
                hint.cancel()

    async def _ended(self, work_id: str, *, may_be_own: bool = False) -> Record:
        """Wait for the end of a unit and return its final record."""
        while True:
            future = self._engine.waiters.final(work_id)
            try:
                record = await self._store.get(work_id)
                if record is None:
                    raise await self.not_found(work_id)
                if record.state.is_final:
                    return record
                if not may_be_own:
                    self._check_own(record)
                final = await future
                if final is not None:
                    return final
                # its record is gone: look again for what is still known of it
            finally:
                future.cancel()

    def _check_own(self, record: Record) -> None:
        if self._engine.attempts.is_own(record):
            raise RuncueError(f"Unit {record.id!r} waits for itself: its own handler cannot await its end.")

    def _later_hint(self) -> asyncio.TimerHandle | None:
        """Schedule the warning that nothing runs; None when something does."""
        return asyncio.get_running_loop().call_later(HINT_AFTER, self._hint) if self._standstill() else None

    def _hint(self) -> None:
        why = self._standstill()
        if why and why != self._hinted:
            self._hinted = why
            logger.warning("%s", why)

    def _standstill(self) -> str:
        """Why nothing runs, where no other process could run it; empty while this Cue is started."""
        if self._engine.is_started or not self._store.is_inline:
            return ""
        return STOPPED if self._engine.was_started else NOT_STARTED

    async def result(self, work_id: str, timeout: float | None) -> Any:
        """Wait for the result of a unit; raise the error that tells why there is none."""
        return self._outcome(await self._final(work_id, timeout))

    async def results(self, ids: Iterable[str], timeout: float | None, *, should_raise: bool) -> list[Any]:
        """Wait for the results of units, in the order of their ids; an error is raised, or takes its place."""
        wanted = list(ids)
        await self.join(wanted, timeout)
        records = await self._store.get_many(list(dict.fromkeys(wanted)))
        found = []
        for work_id in wanted:
            try:
                if work_id not in records:
                    raise await self.not_found(work_id)
                found.append(self._outcome(records[work_id]))
            except RuncueError as error:
                if should_raise:
                    raise
                found.append(error)
        return found

    def _outcome(self, record: Record) -> Any:
        """The result of a unit that has ended, or the error that tells why there is none."""
        if record.state is WorkState.COMPLETED:
            return self._result(record)
        raise ending_of(self._view(record))

    async def join(self, ids: Iterable[str] | None, timeout: float | None) -> None:
        """Wait until nothing, or nothing of `ids`, is pending or running."""
        advice = "cue.debug_blocked() says what waits, and for what."
        async with self._within(timeout, "Not everything has ended", advice):
            await self._all(ids, timeout)

    async def _all(self, ids: Iterable[str] | None, timeout: float | None) -> None:
        if ids is None:
            if self._engine.attempts.current() is not None and timeout is None:
                raise RuncueError(
                    "join() inside a handler waits for that handler too. Give it the ids to wait for."
                )
            await self._engine.until_idle()
            return
        waiting = {work_id: self._engine.waiters.final(work_id) for work_id in dict.fromkeys(ids)}
        try:
            for record in (await self._store.get_many(list(waiting))).values():
                if record.state.is_final:
                    waiting.pop(record.id).cancel()
                else:
                    self._check_own(record)
                    if await waiting.pop(record.id) is None:
                        await self._ended_or_forgotten(record.id)
            for work_id in waiting:  # those without a record
                await self._ended_or_forgotten(work_id)
        finally:
            for future in waiting.values():
                future.cancel()

    async def _ended_or_forgotten(self, work_id: str) -> None:
        try:
            await self._ended(work_id)
        except WorkNotFound as error:
            if not error.forgotten:  # a forgotten unit has ended
                raise

    async def not_found(self, work_id: str) -> WorkNotFound:
        """The error for an id that has no record: never submitted, or no longer kept."""

        def is_forgotten(scheduler: Scheduler, turn: Turn) -> bool:
            request = ReadRequest(ids={work_id})
            scheduler.absorb(request, turn.read(request))
            return scheduler.ledger.working.state_of(work_id) is not None

        option = "keep_finished" if self._store.is_inline else "retention"
        return WorkNotFound(work_id, await self._engine.look(is_forgotten), option)

    async def group(self, name: str) -> GroupCounts:
        """How many units of a group are in each state; GroupNotFound when there is none."""
        found = (await self._store.groups([name])).get(name)
        if found is None:
            raise GroupNotFound(name, await self._store.group_names(MOST_NAMES))
        return found

    async def wait_for_group(self, name: str, timeout: float | None) -> GroupCounts:
        """Wait until all units of a group have ended; TimeoutError when that takes too long."""
        run = self._engine.attempts.current()
        if run is not None and run.record.spec.group == name and timeout is None:
            raise RuncueError(
                f"Unit {run.record.id!r} is in group {name!r}: its own handler cannot await the group's end."
            )
        advice = "cue.debug_blocked() says what waits, and for what."
        async with self._within(timeout, f"Group {name!r} is not done", advice):
            while True:
                calls = self._bus.calls
                counts = await self.group(name)
                if counts.is_done:
                    return counts
                await self._bus.changed(calls)

    async def cancel(self, query: Query, *, cascade: bool) -> int:
        """Cancel all pending and running units that a query finds; the number of units."""
        states = (WorkState.PENDING, WorkState.RUNNING) if query.state is None else (query.state,)

        async def cancel(found: list[Record]) -> int:
            return await self._request(Cancel(record.id, cascade) for record in found)

        return await self._change(query, states, cancel)

    async def retry(self, query: Query, *, cascade: bool) -> int:
        """Retry all units that a query finds, failed ones if it names no state; the number of units.

        A unit comes after those that it depends on, and stays as it is if one of them stays failed or cancelled.
        """
        states = (WorkState.FAILED,) if query.state is None else (query.state,)
        after: dict[str, tuple[str, ...]] = {}

        async def retry(found: list[Record]) -> int:
            after.update((record.id, record.spec.depends_on) for record in found if record.spec.depends_on)
            return await self._request(
                Revive(record.id, cascade) for record in found if record.id not in after
            )

        count = await self._change(query, states, retry)
        order = _in_order(after)
        for start in range(0, len(order), query.limit):
            some = order[start : start + query.limit]
            others = {need for work_id in some for need in after[work_id]}.difference(some)
            found = await self._store.get_many([*others])
            lost = {work_id for work_id, need in found.items() if need.state in LOST}
            hopeful = []
            for work_id in some:
                if lost.isdisjoint(after[work_id]):
                    hopeful.append(work_id)
                else:
                    lost.add(work_id)
            count += await self._request(Revive(work_id, cascade) for work_id in hopeful)
        return count

    async def _change(
        self, query: Query, states: Iterable[WorkState], change: Callable[[list[Record]], Awaitable[int]]
    ) -> int:
        """Have all units changed that a query finds in these states now, some at a time; the number that were.

        A unit may move from one of the states to another meanwhile: so this goes on until none is left.
        """
        newest = await self._store.find(Query(limit=1))
        if not newest:
            return 0
        count = 0
        while True:
            before = count
            for state in states:
                page = replace(query, state=state, before=newest[0].seq + 1)
                while found := await self._store.find(page):
                    count += await change(found)
                    page = replace(page, before=found[-1].seq)
            if count == before:
                return count

    async def _request(self, items: Iterable[Cancel | Revive]) -> int:
        """Have units changed; the number that were."""
        answers = await asyncio.gather(*map(self._engine.request, items), return_exceptions=True)
        _raise_others(answers)
        return sum(answer is True for answer in answers)

    async def events(self, wanted: EventFilter, since: int | None) -> AsyncIterator[Event]:
        """Yield the wanted events after `since`; None means from the first one of the unit or the group, if one is
        asked for, and else since this Cue opened the store."""
        if since is None and (wanted.work_id is not None or wanted.group is not None):
            since = await self._before_all_of(wanted)
        async for event in self._bus.read(wanted, since):
            yield event

    async def _before_all_of(self, wanted: EventFilter) -> int:
        """The number of an event before all of a unit or of a group."""
        at: float | None = None
        if wanted.work_id is not None:
            record = await self._store.get(wanted.work_id)
            if record is None:
                raise await self.not_found(wanted.work_id)
            at = record.created_at
        elif wanted.group is not None:
            at = (await self.group(wanted.group)).created_at
        return await self._store.events_before(at) if isinstance(self._store, SharedStore) and at else 0

    async def record(self, work_id: str) -> Record:
        """A unit as it stands; raises when there is none."""
        record = await self._store.get(work_id)
        if record is None:
            raise await self.not_found(work_id)
        return record

    async def explain(self, work_id: str) -> Explanation:
        """Explain why a unit is in its state."""
        record = await self.record(work_id)
        return await self._engine.look(
            lambda scheduler, turn: self._explained(scheduler.ledger, record, turn)
        )

    async def explain_many(self, ids: list[str]) -> dict[str, Explanation]:
        """Explain each of these units that exists, as if nothing else were queued."""
        records = await self._store.get_many(ids)

        def look(scheduler: Scheduler, turn: Turn) -> dict[str, Explanation]:
            ledger = scheduler.ledger
            latest = [_newest(ledger, record, turn) for record in records.values()]
            answers = explain_alone(ledger, latest, turn.now, turn.wall, self._engine.is_started)
            return {why.work_id: why for why in answers}

        return await self._engine.look(look)

    async def find(self, query: Query, before: str | None) -> list[Record]:
        """The records that a query asks for, newest first; those before that unit, if one is named."""
        if before is not None:
            query = replace(query, before=(await self.record(before)).seq)
        return await self._store.find(query)

    async def dependents(self, work_id: str, limit: int) -> list[Record]:
        """The units that depend on a unit, in the order of their submission."""

        def look(scheduler: Scheduler, turn: Turn) -> list[Record]:
            return turn.read(ReadRequest(dependents_of={work_id})).dependents.get(work_id, [])[:limit]

        return await self._engine.look(look)

    async def paused(self) -> list[str]:
        """The queues that are paused."""
        return await self._engine.look(lambda scheduler, turn: sorted(scheduler.ledger.ready.paused))

    async def now(self) -> float:
        """Queue time."""
        return await self._engine.look(lambda scheduler, turn: turn.now)

    async def debug_blocked(self) -> list[dict[str, Any]]:
        """Every pending unit that cannot start now, with the reason."""

        def look(scheduler: Scheduler, turn: Turn) -> list[dict[str, Any]]:
            pending = explain_pending(scheduler.ledger, turn.now, turn.wall, self._engine.is_started)
            return [self._blocked(why, record) for record, why in pending if why.reason != "ready"]

        return await self._engine.look(look)

    async def forecast(self) -> Forecast:
        """When the queue will be done, and which limit it waits for most."""
        tasks = await self._engine.look(lambda scheduler, turn: tasks_of(scheduler.ledger))
        recent = [
            record
            for task in tasks
            for state in (WorkState.COMPLETED, WorkState.FAILED)
            for record in await self._store.find(Query(state, task, RECENT))
        ]
        return await self._engine.look(
            lambda scheduler, turn: forecast(scheduler.ledger, paces(recent), turn.now, turn.wall)
        )

    async def services(self) -> list[dict[str, Any]]:
        """Every service: its limits, how much of them is used, and what blocks it."""
        return await self._engine.look(
            lambda scheduler, turn: [
                snapshot(service, turn.now)
                for service in scheduler.ledger.ready.services.values()
                if not service.name.startswith("#")
            ]
        )

    def _explained(self, ledger: Ledger, record: Record, turn: Turn) -> Explanation:
        return explain(ledger, _newest(ledger, record, turn), turn.now, turn.wall, self._engine.is_started)

    def _blocked(self, explanation: Explanation, record: Record) -> dict[str, Any]:
        reason = explanation.reason
        return {
            "work": self._view(record),
            "reason": "service_full" if reason in FULL else reason,
            "details": {
                "limit": reason,
                "service": explanation.service,
                "until": explanation.until,
                "text": explanation.details,
                "waits_for": list(explanation.waits_for),
            },
        }


def _in_order(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """The ids, each after those that it needs; ids that need each other in a ring are left out."""
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError:
        pass  # what is in no ring is sorted all the same
    order: list[str] = []
    while ready := sorter.get_ready():
        order += [work_id for work_id in ready if work_id in needs]
        sorter.done(*ready)
    return order


def _raise_others(answers: Iterable[object]) -> None:
    """Raise the first error that is not about one unit alone: another may have its key, or its record is gone."""
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, (DuplicateWork, WorkNotFound)):
            raise answer


def _newest(ledger: Ledger, record: Record, turn: Turn) -> Record:
    """A unit as it stands in this turn; a record read before may be older than what was decided since."""
    known = ledger.working.records.get(record.id)
    if known is None and record.state is WorkState.PENDING and record.index_key is None:
        known = ledger.working.latest(record.id)
        known = known or turn.read(ReadRequest(ids={record.id})).records.get(record.id)
    return known or record


def ending_of(work: Work) -> WorkFailed | WorkCancelled:
    """The error that tells why a unit that has ended has no result."""
    if work.state is WorkState.CANCELLED:
        return WorkCancelled(work)
    return ENDINGS.get(str(work.error), WorkFailed)(work)
