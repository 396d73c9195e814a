"""Records in a dict. Nothing survives the process; a turn costs what its decision costs.

Of a deleted unit only what `depends_on` still needs is kept: the state, if it did not complete or the user chose its
id. (A deleted unit that completed under an id made by runcue is recognized by the form of that id, see ledger.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, WorkState
from runcue.core.model.schedule import Schedule
from runcue.core.schedule.plan import Changes, Plan, Post, ReadRequest, ReadResult, TurnReader
from runcue.core.views.query import Query, Tag, by_task, marks_of
from runcue.ports import Clock, Decide, Outgoing, Received, Takeover

N = TypeVar("N")
MANY = 2000
"""How many records are searched before the loop gets its turn."""


class MemoryTurn:
    """One turn over the dict."""

    __slots__ = ("now", "read", "wall")
    changes: Changes | None = None
    reader: TurnReader | None = None
    posts: Sequence[Post] = ()
    has_more = False
    given: frozenset[int] = frozenset()

    def __init__(self, store: MemoryStore) -> None:
        self.read = store.read
        self.now = store.clock.now()
        self.wall = store.clock.wall()


class MemoryStore:
    """The store behind `Cue()`."""

    is_inline = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._records: dict[str, Record] = {}
        self._keys: dict[str, str] = {}
        self._unique_keys: dict[str, dict[str, None]] = {}  # key → ids, in the order they came
        self._dependents: dict[str, dict[str, None]] = {}  # need → ids, in the order they came
        self._forgotten: dict[str, WorkState] = {}
        self._config: dict[str, str] = {}
        self._tagged: dict[Tag, dict[str, None]] = {}  # ids, in the order they came
        self._groups: dict[str, GroupCounts] = {}
        self._schedules: dict[str, Schedule] = {}
        self._take_in: Callable[[], None] = lambda: None

    def read_after(self, take_in: Callable[[], None]) -> None:
        """Call `take_in` before every read: units may have been submitted that no turn has accepted yet."""
        self._take_in = take_in

    def take_turn(self, decide: Decide) -> Plan:
        """Decide, and store what was decided."""
        plan = decide(MemoryTurn(self))
        self._commit(plan)
        return plan

    async def turn(
        self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
    ) -> tuple[Plan | None, Received | None]:
        """Decide at once: nothing here ever waits, and no other process decides."""
        return self.take_turn(decide), None

    def read(self, request: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        found = ReadResult()
        for work_id in request.ids:
            if (record := self._records.get(work_id)) is not None:
                found.records[work_id] = record
            elif (state := self._forgotten.get(work_id)) is not None:
                found.forgotten[work_id] = state
        for key in request.keys:
            if (owner := self._keys.get(key)) is not None:
                found.keys[key] = self._records[owner]
        for key in request.unique_keys:
            if key in self._unique_keys:
                found.unique_keys[key] = self._records[next(reversed(self._unique_keys[key]))]
        for need in request.dependents_of:
            found.dependents[need] = [self._records[one] for one in self._dependents.get(need, ())]
        return found

    async def get(self, work_id: str) -> Record | None:
        """One record."""
        self._take_in()
        return self._records.get(work_id)

    async def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first."""
        self._take_in()
        newest, amount = self._newest(query)
        found = list(islice(filter(query.finds, islice(newest, MANY)), query.limit))
        if len(found) == query.limit or amount <= MANY:
            return found
        rest = iter(list(newest))
        while len(found) < query.limit and (some := list(islice(rest, MANY))):
            await asyncio.sleep(0)  # a long search must not hold up the loop
            found += islice(filter(query.finds, some), query.limit - len(found))
        return found

    def _newest(self, query: Query) -> tuple[Iterator[Record], int]:
        """The records among which a query finds its own, newest first, and how many they are."""
        if query.marks:
            some = [self._tagged.get(mark, {}) for mark in query.marks]
            fewest = min(some, key=len)
            return map(self._records.__getitem__, reversed(fewest)), len(fewest)
        return reversed(self._records.values()), len(self._records)

    async def count(self, query: Query) -> dict[WorkState, int]:
        """How many units a query finds in each state."""
        self._take_in()
        found: Counter[WorkState] = Counter()
        rest = iter(list(self._newest(query)[0]))
        while some := list(islice(rest, MANY)):
            found.update(record.state for record in filter(query.finds, some))
            await asyncio.sleep(0)
        return dict(found)

    async def groups(self, names: list[str]) -> dict[str, GroupCounts]:
        """The counts of these groups, but for those that are unknown."""
        self._take_in()
        return {name: self._groups[name] for name in names if name in self._groups}

    async def group_names(self, limit: int) -> list[str]:
        """Some of the names of groups."""
        self._take_in()
        return list(islice(self._groups, limit))

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are pending and running."""
        self._take_in()
        pending, running = WorkState.PENDING, WorkState.RUNNING
        live = [one for one in self._records.values() if one.state is pending or one.state is running]
        tasks = Counter((record.state, record.spec.task) for record in live)
        return by_task((state, task, number) for (state, task), number in tasks.items())

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """These units, but for those that are unknown."""
        self._take_in()
        return {work_id: self._records[work_id] for work_id in ids if work_id in self._records}

    async def config(self) -> dict[str, str]:
        """The application's own settings, stored with its queue."""
        return dict(self._config)

    async def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        self._take_in()
        return [self._schedules[name] for name in sorted(self._schedules)]

    def stored_result(self, result: Any) -> Any:
        """Anything can be kept as it is."""
        return result

    async def close(self, still_running: bool = False) -> None:
        """Forget everything."""
        self._records.clear()
        self._keys.clear()
        self._unique_keys.clear()
        self._dependents.clear()
        self._forgotten.clear()
        self._config.clear()
        self._tagged.clear()
        self._groups.clear()
        self._schedules.clear()

    def _commit(self, plan: Plan) -> None:
        records = self._records
        for work_id in plan.purged:  # their ids may belong to new work
            record = self._delete(work_id)
            if not record.spec.is_named:  # unknown, an id made by runcue would pass for a completed unit
                self._forgotten[work_id] = record.state
        for work_id in plan.revived:  # it is listed as the newest
            records.pop(work_id, None)
        records.update(plan.records)
        for record in plan.keyed:
            if record.spec.idempotency_key is not None:
                self._keys[record.spec.idempotency_key] = record.id
            if record.spec.unique_key is not None:
                ids = self._unique_keys.setdefault(record.spec.unique_key, {})
                ids.pop(record.id, None)  # revived, it is the newest
                ids[record.id] = None
        for record in plan.dependent:
            for need in record.spec.depends_on:
                self._dependents.setdefault(need, {})[record.id] = None
        for work_id, before in plan.retagged.items():
            for mark in marks_of(before.spec):
                if work_id in self._tagged.get(mark, ()):
                    _drop(self._tagged, mark, work_id)
        for work_id in plan.tagged:
            self._note_tags(records[work_id], is_newest=work_id in plan.revived)
        _update(self._groups, plan.groups)
        for work_id in plan.forget:
            record = self._delete(work_id)
            if record.state is not WorkState.COMPLETED or record.spec.is_named:
                self._forgotten[work_id] = record.state
        _update(self._config, plan.config)
        _update(self._schedules, plan.schedules)

    def _delete(self, work_id: str) -> Record:
        record = self._records.pop(work_id)
        key = record.spec.idempotency_key
        if key is not None and self._keys.get(key) == work_id:
            del self._keys[key]
        if record.spec.unique_key is not None:
            _drop(self._unique_keys, record.spec.unique_key, work_id)
        for need in set(record.spec.depends_on):
            _drop(self._dependents, need, work_id)
        for mark in marks_of(record.spec):
            _drop(self._tagged, mark, work_id)
        return record

    def _note_tags(self, record: Record, *, is_newest: bool) -> None:
        for mark in marks_of(record.spec):
            ids = self._tagged.setdefault(mark, {})
            if is_newest:
                ids.pop(record.id, None)
            ids[record.id] = None


def _update(kept: dict[str, N], changes: Mapping[str, N | None]) -> None:
    """Keep what has changed; None deletes."""
    for name, value in changes.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = value


def _drop(lists: dict[N, dict[str, None]], name: N, work_id: str) -> None:
    """Take an id out of the list of that name, and an empty list away."""
    ids = lists[name]
    del ids[work_id]
    if not ids:
        del lists[name]
