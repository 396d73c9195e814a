"""Turns of a store by hand, without a scheduler, for the checks in contract.py and exchange.py.

A plain dict holds the records that the store should hold; `compare` looks for differences.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from runcue.core.model.events import EventDraft
from runcue.core.model.lifecycle import finished, move, started
from runcue.core.model.record import Attempt, Extras, Progress, Record, Spec, Uniqueness, WorkState
from runcue.core.model.state import NO_HEAD, Head
from runcue.core.schedule.plan import Changes, Plan, Post, TurnReader
from runcue.core.views.query import Query, by_task, marks_of
from runcue.ports import Received, SharedStore, Store, Takeover, Turn

Open = Callable[[], Store]
Change = Callable[[Plan, Turn], None]

NOW = 1_700_000_000.0
PATIENCE = 30.0
"""Seconds to wait for something that has to come."""


class Broken(AssertionError):
    """A store broke a promise; the message says which."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise `Broken` unless `found` equals `wanted`."""
    if found != wanted:
        raise Broken(f"{what}: found {_short(found)}, wanted {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 2000 else f"{text[:2000]}…"


async def heard(event: asyncio.Event, what: str) -> None:
    """Wait for an event; `Broken` names what was not heard of in time."""
    try:
        async with asyncio.timeout(PATIENCE):
            await event.wait()
    except TimeoutError:
        raise Broken(f"{what} was not heard of in {PATIENCE:g} s") from None


def reader_of(turn: Turn) -> TurnReader:
    """The reader through which a decision may read more records."""
    if turn.reader is None:
        raise Broken("a turn of a store that several processes open has no reader")
    return turn.reader


class Hand:
    """One process that has the queue open, and takes its turns by hand instead of by a scheduler."""

    def __init__(self, store: Store, kept: dict[str, Record]) -> None:
        self.store = store
        self.kept = kept
        """The records that the queue should hold; one dict for all processes of a check."""
        self.changes: Changes | None = None
        """The changes of others that the last turn was given."""
        self.posts: Sequence[Post] = ()
        """The posts of others that the last turn took."""
        self.received: Received | None = None
        """What the last turn received from other deciding processes."""
        self._head = NO_HEAD

    @property
    def shared(self) -> SharedStore:
        """The store, where several processes may have it open."""
        assert isinstance(self.store, SharedStore)
        return self.store

    async def turn(self, change: Change | None = None, takeover: Takeover | None = None) -> Plan:
        """Take a turn and commit what `change` put into its plan; take over if another process decided last."""
        plan = await self.try_turn(change, takeover)
        while plan is None:
            assert self.received is not None
            head = self.received.head
            plan = await self.try_turn(change, Takeover(head.decider, head.revision))
        return plan

    async def try_turn(self, change: Change | None = None, takeover: Takeover | None = None) -> Plan | None:
        """Take a turn like `turn`; None when another process decides."""
        before = self._head

        def decide(turn: Turn) -> Plan:
            self.changes, self.posts = turn.changes, turn.posts
            if turn.changes is not None:
                self._head = turn.changes.head
            plan = Plan()
            if change is not None:
                change(plan, turn)
            plan.head = self._head = self._counted(plan)
            return plan

        try:
            plan, self.received = await self.store.turn(decide, None, takeover)
        except BaseException:
            self._head = before
            raise
        if plan is not None:
            self.kept.update(plan.records)
        return plan

    async def fail(self, change: Change | None = None, takeover: Takeover | None = None) -> None:
        """Take a turn whose decision raises after `change`; `Broken` unless the turn raises, too."""

        def raising(plan: Plan, turn: Turn) -> None:
            if change is not None:
                change(plan, turn)
            raise ZeroDivisionError

        try:
            await self.turn(raising, takeover)
        except ZeroDivisionError:
            return
        raise Broken("a decision raised, and its turn did not")

    async def join(self) -> Plan:
        """Take a turn that registers this process with the others."""
        me = self.shared.me()
        return await self.turn(lambda plan, turn: plan.workers.update({me.id: me}))

    async def write(self, *records: Record, events: Iterable[EventDraft] = ()) -> Plan:
        """Take a turn that writes these records and events."""

        def change(plan: Plan, turn: Turn) -> None:
            for record in records:
                self.put(plan, record)
            plan.events += events

        return await self.turn(change)

    async def give(self, worker: str, running: Record) -> Plan:
        """Take a turn that starts a unit in another process."""

        def change(plan: Plan, turn: Turn) -> None:
            self.put(plan, running)
            plan.part(worker).start = [running]

        return await self.turn(change)

    def put(self, plan: Plan, record: Record) -> None:
        """Put a record into a plan, with all that a scheduler would note with it."""
        before = self.kept.get(record.id)
        plan.records[record.id] = record
        is_newest = before is None or record.seq != before.seq
        if is_newest and (record.spec.idempotency_key is not None or record.spec.unique_key is not None):
            plan.keyed.append(record)
        if before is not None and record.spec != before.spec:
            plan.respecified.add(record.id)
        if before is None:
            if record.spec.depends_on:
                plan.dependent.append(record)
        elif record.seq != before.seq:
            plan.revived.add(record.id)
            plan.rewritten.add(record.id)
        elif not _is_everyday(before, record):
            plan.rewritten.add(record.id)
        is_moved = (
            before is None or before.seq != record.seq or before.state.is_final != record.state.is_final
        )
        if is_moved and marks_of(record.spec):
            plan.tagged.append(record.id)
        names = {record.index_key, before.index_key if before else None}
        plan.index_keys |= {name for name in names if name and not name.startswith("running/")}

    def _counted(self, plan: Plan) -> Head:
        head = self._head
        counts = {state.value: getattr(head, state.value) for state in WorkState}
        for record in plan.records.values():
            before = self.kept.get(record.id)
            if before is not None:
                counts[before.state.value] -= 1
            counts[record.state.value] += 1
        numbers = [record.seq for record in plan.records.values()]
        tokens = [record.token for record in plan.records.values()]
        counts |= {"seq": max([head.seq, *numbers]), "token": max([head.token, *tokens])}
        # No successor is named: the process that took the turn goes on.
        return replace(head, decider=None, **counts)

    async def look(self, question: Callable[[Turn], Any]) -> Any:
        """Read in a turn that writes nothing."""
        answers: list[Any] = []
        await self.turn(lambda plan, turn: answers.append(question(turn)))
        return answers[0]

    async def compare(self) -> None:
        """Expect every way of finding records to give what was written."""
        store, kept = self.store, self.kept
        for work_id, record in kept.items():
            expect(f"get({work_id!r})", await store.get(work_id), record)
        expect("get_many", await store.get_many([*kept, "nobody"]), kept)
        newest = sorted(kept.values(), key=lambda record: -record.seq)
        for state in (None, *WorkState):
            for task in (None, "call", "nothing"):
                wanted = [
                    one for one in newest if state in (None, one.state) and task in (None, one.spec.task)
                ]
                for limit in (3, len(kept) + 1):
                    found = await store.find(Query(state, task, limit))
                    expect(f"find({state}, {task}, {limit})", found, wanted[:limit])
        for query in _narrow(newest):
            wanted = [one for one in newest if query.finds(one)][: query.limit]
            expect(f"find({query})", await store.find(query), wanted)
            count = Counter(one.state for one in newest if query.finds(one))
            number = {state: number for state, number in (await store.count(query)).items() if number}
            expect(f"count({query})", number, dict(count))
        expect("tally", await store.tally(), by_task(_numbers(newest)))


def _narrow(newest: list[Record]) -> Iterator[Query]:
    """Queries that match some of these records, and three that match none."""
    yield from (Query(queue="nowhere"), Query(service="nothing"), Query(search="nowhere to be found"))
    tagged = [record for record in newest if marks_of(record.spec)]
    for record in (*newest[:2], *tagged[:3]):
        spec = record.spec
        yield Query(record.state, queue=spec.queue, before=record.seq)
        yield Query(search=spec.id.upper())
        yield Query(search=spec.params.decode()[1:-1] or "{}", before=record.seq + 1)
        yield from (Query(search=text[:40]) for text in (spec.target, record.error) if text)
        yield from (Query(search=text) for text in (spec.label, spec.idempotency_key) if text)
        yield from (
            Query(since=record.created_at),
            Query(until=record.created_at),
            Query(key=spec.idempotency_key),
        )
        for state in (None, record.state, *WorkState):
            yield from (
                Query(state, group=spec.group),
                Query(state, tags=spec.tags),
                Query(state, tags=spec.tags[:1]),
            )
        yield Query(group=spec.group, tags=spec.tags, queue=spec.queue, before=record.seq + 1)
        yield from (Query(service=name.partition("[")[0], task=spec.task) for name in spec.services)


def _numbers(records: list[Record]) -> list[tuple[str, str, int]]:
    return [(*key, number) for key, number in Counter((one.state, one.spec.task) for one in records).items()]


@asynccontextmanager
async def hands(
    open_store: Open, amount: int = 1, kept: dict[str, Record] | None = None
) -> AsyncIterator[list[Hand]]:
    """Open the queue, which holds the records `kept`, in so many processes; close it in all of them at the end."""
    kept = {} if kept is None else kept
    hands = [Hand(open_store(), kept) for _ in range(amount)]
    for hand in hands:
        if isinstance(hand.store, SharedStore):
            hand.store.listen(lambda is_urgent: None, lambda worker: None)
    try:
        yield hands
    finally:
        for hand in hands:
            await hand.store.close()


def _is_everyday(before: Record, record: Record) -> bool:
    """True for a start and for a completion: stores may write only the columns that these change."""
    if record.state is WorkState.RUNNING and before.state is WorkState.PENDING:
        return record == started(
            before, record.token, record.started_at or 0.0, record.worker or "", record.index_key or ""
        )
    if record.state is WorkState.COMPLETED and before.state is WorkState.RUNNING:
        return record == finished(before, record.result, record.completed_at or 0.0)
    return False


# --- Records to try -------------------------------------------------------------------------------


def pending(seq: int, **fields: Any) -> Record:
    """A new unit as a scheduler would accept it; keyword arguments are fields of its spec."""
    names = set(Spec.__struct_fields__)
    asked = {name: value for name, value in fields.items() if name in names}
    own = {name: value for name, value in fields.items() if name not in names}
    spec = Spec(**{"id": f"w{seq}", "task": "call", "params": b"{}", "services": ("api",), **asked})
    own = {
        "rank": NOW + seq,
        "created_at": NOW,
        "since": NOW,
        "index_key": "ready/call",
        "sort_key": NOW + seq,
        **own,
    }
    return Record(spec.id, spec, seq, **own)


def failed(*numbers: int) -> list[Record]:
    """New units that have failed already, with a key, a dependency and a history."""
    line = Attempt(1, NOW, 0.5, "ValueError: no", "me")
    return [
        replace(pending(seq, idempotency_key=f"k{seq}", depends_on=("need",)), state=WorkState.FAILED, error="x",
                completed_at=NOW, spent=1, failures=1, history=(line,), index_key=None, sort_key=0.0)
        for seq in numbers
    ]  # fmt: skip


EXTRAS = Extras((("run", "nightly"),), 60.0, ("w1",), Uniqueness(600.0, "extend", 3600.0))


def specimens() -> list[Record]:
    """Records of every kind, with values that are easily lost in encoding."""
    line = Attempt(1, NOW, 0.25, "ConnectionError: gone", "worker")
    numbers: list[Any] = [None, 0, -1, 2**53, 0.1, 1e308]
    results = [*numbers, "", "ü \u2028 🎈 \\ \" '", [], {}, [[None, True, {"a": [1.5]}]], False]
    records = [
        pending(1),
        pending(2, params='{"text":"ü \u2028 🎈","deep":[[[{"a":null}]]],"number":1e-9}'.encode()),
        pending(3, services=(), queue="other", target="a 'quoted' \n target", index_key=None, sort_key=0.0),
        pending(4, depends_on=("w1", "never"), missing=2, index_key="blocked", dependency_timeout=1.5,
                watch_at=NOW + 1),
        pending(5, priority=-2.5, run_at=NOW + 1e6, delay=None, timeout=0.001, index_key="wall", sort_key=NOW + 1e6),
        pending(6, delay=3.0, index_key="later", sort_key=NOW + 3, is_named=True, on_failed="return"),
        pending(7, idempotency_key="key 'one'", id="an id of \"mine\" ü"),
        pending(8, attempt=2, spent=1, failures=1, next_retry_at=NOW + 9, error="x: y", traceback="a\n  b\n",
                history=(line,), index_key="later", throttled_since=NOW - 1),
        pending(9, crashes=2, error="worker_lost", history=tuple(replace(line, number=n) for n in range(1, 101))),
        replace(pending(10), state=WorkState.RUNNING, token=7, worker="me", started_at=NOW + 1,
                index_key="running/me", progress=Progress(0.25, "ü \u2028 half"), expires_at=NOW + 60),
        replace(pending(11), state=WorkState.FAILED, error="permanent: ü", traceback="t", completed_at=NOW + 2,
                spent=1, failures=1, index_key=None, sort_key=0.0,
                history=(line, replace(line, at=None, duration=None))),
        replace(pending(12, unique_key="[1]", group="import", extras=EXTRAS), state=WorkState.CANCELLED,
                completed_at=NOW + 2, index_key=None, sort_key=0.0),
        replace(pending(13), state=WorkState.COMPLETED, skipped=True, completed_at=NOW + 2, index_key=None,
                sort_key=0.0),
        pending(14, group="import 'ü'", label="page 1 of \"Ü\"",
                extras=Extras((("run", "nightly"), ("ü 'a'", "x\n")))),
        pending(15, extras=Extras((("run", "nightly"),), expires=9.0)),
        replace(pending(16, group="import 'ü'", extras=Extras((("run", "nightly"),))), state=WorkState.FAILED,
                error="no", completed_at=NOW + 2, index_key=None, sort_key=0.0),
    ]  # fmt: skip
    for seq, result in enumerate(results, 17):
        done = started(pending(seq), seq, NOW + 1, "me", "running/me")
        records.append(finished(done, result, NOW + 2))
    return records


def lives(hand: Hand, random: Random, turns: int) -> Iterable[Change]:
    """Sets of records for successive turns, in each of which some units make a legal move."""
    kept = hand.kept
    numbers = count(max((record.seq for record in kept.values()), default=0) + 1)
    tokens = count(max((record.token for record in kept.values()), default=0) + 1)
    for number in range(turns):
        now = NOW + number

        def change(plan: Plan, turn: Turn, now: float = now) -> None:
            for record in random.sample(sorted(kept.values(), key=lambda one: one.id), min(len(kept), 4)):
                moved = _moved(record, random, now, next(numbers), next(tokens))
                if moved is not None:
                    hand.put(plan, moved)
            for _ in range(random.randrange(4)):
                seq = next(numbers)
                group = random.choice([None, "a", "b"])
                extras = random.choice([None, Extras((("run", "x"),)), Extras((("run", "x"), ("who", "me")))])
                task = random.choice(["call", "note"])
                hand.put(plan, pending(seq, task=task, rank=now, sort_key=now, group=group, extras=extras))

        yield change


def _moved(record: Record, random: Random, now: float, seq: int, token: int) -> Record | None:
    """The record of a unit after a random legal move."""
    ended: dict[str, Any] = {
        "token": 0,
        "worker": None,
        "completed_at": now,
        "index_key": None,
        "sort_key": 0.0,
    }
    match record.state, random.randrange(4):
        case WorkState.PENDING, 0:
            return move(record, "cancel", **ended, error="cancelled")
        case WorkState.PENDING, 1:
            at = now + 5
            return replace(record, index_key="later", sort_key=at, next_retry_at=at, missing=3, watch_at=now)
        case WorkState.PENDING, _:
            return started(record, token, now, "me", "running/me")
        case WorkState.RUNNING, 0:
            line = Attempt(record.attempt, record.started_at, 0.5, "ValueError: no", "me")
            return move(record, "retry", token=0, worker=None, index_key="later", sort_key=now + 1, since=now,
                        spent=record.attempt, failures=record.failures + 1, next_retry_at=now + 1,
                        error=line.error, history=(*record.history, line))  # fmt: skip
        case WorkState.RUNNING, 1:
            return move(record, "fail", **ended, spent=record.attempt, error="ValueError: no", traceback="t")
        case WorkState.RUNNING, _:
            return finished(record, {"n": token}, now)
        case ((WorkState.FAILED | WorkState.CANCELLED), 0):
            revived = move(record, "revive", completed_at=None, started_at=None, error=None, traceback=None,
                           failures=0, crashes=0, since=now)  # fmt: skip
            return replace(revived, seq=seq, index_key="ready/call", sort_key=revived.rank)
    return None
