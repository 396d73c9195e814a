"""The store contract: what every store must do, as checks that anyone can run against a store.

    import pytest
    from runcue.testing import contract

    @pytest.mark.parametrize("check", [*contract.EVERY, *contract.SHARED], ids=lambda check: check.__name__)
    async def test_my_store(check, tmp_path):
        await check(lambda: MyStore(tmp_path / "queue"))

A check takes a function that opens the queue; to the store, each call of it looks like another process. The check
opens and closes what it needs, on the running loop. It raises `Broken` when the store breaks a promise.

`EVERY`   checks for any store: records, turns, what a decision may read.
`SHARED`  further checks for a store that several processes may open: paging, changes, events, wake-ups.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from msgspec.structs import replace

from runcue.core.model.events import EventDraft
from runcue.core.model.lifecycle import finished, move, started
from runcue.core.model.parse import Rate
from runcue.core.model.record import Record, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.model.state import BreakerState, Grant, Limits, Overdue, ServiceState
from runcue.core.schedule.plan import Key, Plan, ReadRequest, Spent
from runcue.core.views.query import Query
from runcue.ports import Turn
from runcue.testing import exchange, manual_turns, submitted
from runcue.testing.manual_turns import (
    NOW,
    Broken,
    Hand,
    Open,
    expect,
    failed,
    hands,
    heard,
    pending,
    reader_of,
    specimens,
)

__all__ = ["EVERY", "SHARED", "Broken", "Check", "Open"]

Check = Callable[[Open], Awaitable[None]]

GLANCE = 0.02
"""Seconds to wait for something that must not come."""


# --- What every store promises --------------------------------------------------------------------


async def records_come_back_as_they_were(open_store: Open) -> None:
    """A record that is read equals the record that was written, in every field."""
    async with hands(open_store) as [hand]:
        await hand.write(*specimens())
        await hand.compare()


async def every_move_is_kept(open_store: Open) -> None:
    """After any number of turns a store holds what a plain dict would hold."""
    async with hands(open_store) as [hand]:
        for number, change in enumerate(manual_turns.lives(hand, Random(1), 120)):
            await hand.turn(change)
            if number % 20 == 19:
                await hand.compare()


async def a_revived_work_is_the_newest(open_store: Open) -> None:
    """The number (seq) of a unit says how new it is; reviving the unit gives it a new number."""
    async with hands(open_store) as [hand]:
        first, second = pending(1), pending(2)
        await hand.write(first, second)
        over = move(first, "cancel", completed_at=NOW, index_key=None, sort_key=0.0)
        await hand.write(over)
        await hand.write(
            replace(move(over, "revive", completed_at=None), seq=3, index_key="ready/call", sort_key=NOW + 1)
        )
        found = await hand.store.find(Query(limit=10))
        expect("newest first", [record.id for record in found], ["w1", "w2"])


async def a_work_may_be_new_and_revived_in_one_turn(open_store: Open) -> None:
    """A unit that was accepted, failed and revived within one turn is stored like any other."""
    async with hands(open_store) as [hand]:
        fresh = replace(pending(2), spec=replace(pending(2).spec, depends_on=("failed",)), missing=1)

        def change(plan: Plan, turn: Turn) -> None:
            hand.put(plan, fresh)
            plan.revived.add(fresh.id)
            plan.rewritten.add(fresh.id)

        await hand.turn(change)
        await hand.compare()


async def a_decision_that_raises_leaves_nothing(open_store: Open) -> None:
    """A turn is committed as a whole or not at all; after a failed one the next turn finds the queue as it was."""
    async with hands(open_store) as [hand]:
        await hand.write(pending(1))

        def change(plan: Plan, turn: Turn) -> None:
            hand.put(plan, pending(2, idempotency_key="k", depends_on=("w1",)))
            hand.put(plan, started(hand.kept["w1"], 1, NOW, "me", "running/me"))

        for _ in range(3):
            await hand.fail(change)
            await hand.compare()
        found = await hand.look(lambda turn: turn.read(ReadRequest({"w2"}, {"k"}, {"w1"})))
        expect("nothing of it", (found.records, found.keys, found.dependents.get("w1", [])), ({}, {}, []))
        await hand.write(pending(2))
        await hand.compare()


async def a_decision_reads_what_it_names(open_store: Open) -> None:
    """A decision reads records by id and by key; ids and keys that do not exist give nothing."""
    async with hands(open_store) as [hand]:
        await hand.write(*[pending(seq, idempotency_key=f"k{seq}") for seq in range(1, 2001)])
        ids = {f"w{seq}" for seq in range(1, 2001, 2)} | {"nobody"}
        found = await hand.look(lambda turn: turn.read(ReadRequest(ids, {"k7", "k8", "none"})))
        expect("by id", found.records, {one: hand.kept[one] for one in ids if one in hand.kept})
        expect("by key", found.keys, {"k7": hand.kept["w7"], "k8": hand.kept["w8"]})
        expect("forgotten", found.forgotten, {})


async def a_key_leads_to_whoever_took_it_last(open_store: Open) -> None:
    """A unit that takes over a key owns it, in whatever state the first owner is."""
    async with hands(open_store) as [hand]:
        await hand.write(pending(1, idempotency_key="k"))
        await hand.write(
            move(hand.kept["w1"], "fail", completed_at=NOW, index_key=None, sort_key=0.0, error="x")
        )
        await hand.write(pending(2, idempotency_key="k"))
        found = await hand.look(lambda turn: turn.read(ReadRequest(keys={"k"})))
        expect("owner", found.keys, {"k": hand.kept["w2"]})


async def dependents_are_found_in_the_order_they_came(open_store: Open) -> None:
    """The dependents of a unit are found by its id, also when that unit was never submitted."""
    async with hands(open_store) as [hand]:
        await hand.write(pending(1), pending(2, depends_on=("w1", "never"), index_key="blocked"))
        await hand.write(pending(3, id="a", depends_on=("never",), index_key="blocked"))
        await hand.write(pending(4, depends_on=("w1", "a"), index_key="blocked"))
        found = await hand.look(lambda turn: turn.read(ReadRequest(dependents_of={"w1", "never", "a", "w4"})))
        ids = {need: [one.id for one in some] for need, some in found.dependents.items() if some}
        expect("dependents", ids, {"w1": ["w2", "w4"], "never": ["w2", "a"], "a": ["w4"]})
        expect("whole records", found.dependents["a"], [hand.kept["w4"]])


async def purged_work_leaves_no_trace(open_store: Open) -> None:
    """A purged unit is not found by its id, its key or its dependencies; other units stay.

    Of an id that runcue made the store keeps how the unit ended: an unknown id counts as one that ended well.
    """
    async with hands(open_store) as [hand]:
        named, *others = failed(1, 2, 3)
        await hand.write(replace(named, spec=replace(named.spec, is_named=True)), *others)
        await hand.turn(lambda plan, turn: plan.purged.extend(["w1", "w3"]))
        for work_id in ("w1", "w3"):
            del hand.kept[work_id]
        await hand.compare()
        found = await hand.look(
            lambda turn: turn.read(ReadRequest({"w1", "w2", "w3"}, {"k1", "k2"}, {"need"}))
        )
        expect("by id", found.records, {"w2": hand.kept["w2"]})
        expect("by key", found.keys, {"k2": hand.kept["w2"]})
        expect("dependents", found.dependents, {"need": [hand.kept["w2"]]})
        expect("forgotten", found.forgotten, {"w3": WorkState.FAILED})


async def a_purged_id_may_be_used_again_in_the_same_turn(open_store: Open) -> None:
    """A new unit with the id and the key of a purged one has nothing of the old unit."""
    async with hands(open_store) as [hand]:
        await hand.write(*failed(1, 2))
        fresh = pending(3, id="w1", is_named=True, idempotency_key="k1")

        def change(plan: Plan, turn: Turn) -> None:
            plan.purged.append("w1")
            del hand.kept["w1"]
            hand.put(plan, fresh)

        await hand.turn(change)
        await hand.compare()
        found = await hand.look(lambda turn: turn.read(ReadRequest({"w1"}, {"k1"}, {"need"})))
        expect("by id", found.records, {"w1": fresh})
        expect("by key", found.keys, {"k1": fresh})
        expect("dependents", found.dependents, {"need": [hand.kept["w2"]]})


async def texts_are_kept_and_deleted(open_store: Open) -> None:
    """A text that an application keeps with its queue is read as it was written; None deletes it."""
    text = "ü \u2028 \0 \n ' \" 🎈"
    async with hands(open_store) as [hand]:
        expect("nothing yet", await hand.store.config(), {})
        await hand.turn(lambda plan, turn: plan.config.update(a="1", b="", c=text))
        expect("all", await hand.store.config(), {"a": "1", "b": "", "c": text})
        await hand.turn(lambda plan, turn: plan.config.update(a="2", b=None, never=None))
        expect("changed", await hand.store.config(), {"a": "2", "c": text})
        await hand.fail(lambda plan, turn: plan.config.update(a="3"))
        expect("a turn that failed", await hand.store.config(), {"a": "2", "c": text})
        await hand.write(pending(1))
        expect("as it was", await hand.store.config(), {"a": "2", "c": text})


async def time_never_goes_back(open_store: Open) -> None:
    """Each turn begins no earlier than the one before."""
    async with hands(open_store) as [hand]:
        times = [await hand.look(lambda turn: turn.now) for _ in range(20)]
        expect("in order", times, sorted(times))


EVERY: tuple[Check, ...] = (
    records_come_back_as_they_were,
    every_move_is_kept,
    a_revived_work_is_the_newest,
    a_work_may_be_new_and_revived_in_one_turn,
    a_decision_that_raises_leaves_nothing,
    a_decision_reads_what_it_names,
    a_key_leads_to_whoever_took_it_last,
    *submitted.EVERY,
    dependents_are_found_in_the_order_they_came,
    purged_work_leaves_no_trace,
    a_purged_id_may_be_used_again_in_the_same_turn,
    texts_are_kept_and_deleted,
    time_never_goes_back,
)


# --- What a store promises that several processes may open ----------------------------------------


async def others_find_what_was_written(open_store: Open) -> None:
    """All processes read equal records, and so does one that opens the queue after all have closed it."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(*specimens())
        await other.compare()
        for number, change in enumerate(manual_turns.lives(one, Random(2), 60)):
            await one.turn(change)
            if number % 20 == 19:
                await other.compare()
    async with hands(open_store, kept=one.kept) as [late]:
        await late.compare()


async def turns_never_overlap(open_store: Open) -> None:
    """While one process decides, no other does; each decision sees all decisions before it."""
    inside = 0
    meeting = threading.Event()
    async with hands(open_store, 3) as several:
        await several[0].write(pending(1))

        def change(plan: Plan, turn: Turn) -> None:
            nonlocal inside
            inside += 1
            if inside > 1:
                meeting.set()
            meeting.wait(GLANCE)
            [record] = turn.read(ReadRequest({"w1"})).records.values()
            plan.records["w1"] = replace(record, crashes=record.crashes + 1)
            plan.rewritten.add("w1")
            inside -= 1

        async def keep_turning(hand: Hand) -> None:
            for _ in range(10):
                await hand.turn(change)

        await asyncio.gather(*map(keep_turning, several))
        if meeting.is_set():
            raise Broken("two turns were under way at the same time")
        record = await several[0].store.get("w1")
        expect("turns that counted", record and record.crashes, 30)


async def an_index_key_is_paged_in_order(open_store: Open) -> None:
    """Records come by sort key, then by number; each page begins where the last one ended."""
    random = Random(3)
    sort_keys = [random.choice([1.0, 2.0, 2.5, random.random() * 3]) for _ in range(100)]
    async with hands(open_store, 2) as [one, other]:
        await one.write(*[pending(seq, sort_key=sort_key) for seq, sort_key in enumerate(sort_keys, 1)])
        await one.write(*[pending(seq, index_key="later") for seq in range(101, 110)])
        taken = random.sample([f"w{seq}" for seq in range(1, 101)], 30)
        await one.write(
            *[started(one.kept[name], n, NOW, "me", "running/me") for n, name in enumerate(taken, 1)]
        )
        under = [record for record in one.kept.values() if record.index_key == "ready/call"]
        wanted = sorted(under, key=lambda record: (record.sort_key, record.seq))
        for hand in (one, other):
            for size in (1, 7, 200):
                expect(f"pages of {size}", await hand.look(partial(_paged, size)), wanted)
        nothing = await one.look(lambda turn: reader_of(turn).page("ready/nobody", None, 10))
        expect("an index key that nothing is under", nothing, [])


def _paged(size: int, turn: Turn) -> list[Record]:
    found: list[Record] = []
    after: Key | None = None
    for _ in range(1000):
        page = reader_of(turn).page("ready/call", after, size)
        found += page
        if len(page) < size:
            return found
        after = (page[-1].sort_key, page[-1].seq)
    raise Broken("an index key has no end")


async def the_reader_finds_what_is_due_and_what_is_oldest(open_store: Open) -> None:
    """Watched units are found by time, pending ones by number, dependents by the unit they wait for."""
    times = [5.0, 3.0, None, 9.0, 1.0, 3.5]
    async with hands(open_store) as [hand]:
        for seq, at in enumerate(times, 1):
            await hand.write(pending(seq, watch_at=at, depends_on=("w1",) if seq > 3 else ()))
        await hand.write(started(hand.kept["w1"], 1, NOW, "me", "running/me"))

        def look(turn: Turn) -> None:
            reader = reader_of(turn)
            expect("watched by 3.5", _ids(reader.watched(3.5, 10)), ["w5", "w2", "w6"])
            expect("the first two watched", _ids(reader.watched(100.0, 2)), ["w5", "w2"])
            expect("watched too early", _ids(reader.watched(0.5, 10)), [])
            expect(
                "the next to watch", [reader.next_watch(at) for at in (0.0, 3.0, 9.0)], [1.0, 3.5, math.inf]
            )
            expect("the first three pending", _ids(reader.oldest(0, 3)), ["w2", "w3", "w4"])
            expect("pending after the fourth", _ids(reader.oldest(4, 10)), ["w5", "w6"])
            expect("dependents", reader.dependents("w1"), ["w4", "w5", "w6"])
            expect("by id", sorted(reader.by_id(["w2", "nobody", "w1"])), ["w1", "w2"])

        await hand.look(look)


def _ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]


async def who_takes_over_is_told_everything(open_store: Open) -> None:
    """A process that takes over reads all changes in its turn; one that goes on deciding reads none twice."""
    async with hands(open_store, 2) as [one, other]:
        await one.turn()
        expect("the first turn reads everything", one.changes is not None and one.changes.is_first, True)
        limits = Limits("api", 2, (Rate(5, 60.0),), 3, 10.0)
        breaker = BreakerState("open", 3, 2, 20.0, NOW, None, 0, 1, NOW + 5)
        service = ServiceState(limits, True, NOW + 3, 2, breaker)
        overdue = Overdue(3, "w0", "call", "default", ("api",), "api")
        worker = replace(one.shared.me(), queues=("a", "b"), is_serving=True, tasks=("call",), room={"": 3},
                         hears=True, overdue=(overdue,))  # fmt: skip
        rule = Rule(
            Retry(5, "fixed", 1.0), ("threads",), ("api",), Questions(ready=True), Settings(max_queued=7)
        )

        def change(plan: Plan, turn: Turn) -> None:
            one.put(plan, pending(2, watch_at=NOW + 9))
            one.put(plan, pending(1, watch_at=NOW + 8))
            plan.services["api"] = service
            plan.grants += [Grant("api", turn.now), Grant("api", turn.now + 0.25, work_id="w1")]
            plan.queues["slow"] = True
            plan.workers[worker.id] = worker
            plan.tasks["call"] = rule
            plan.wake_at = turn.now + 60

        await one.turn(change)
        await other.turn()
        told = other.changes
        if told is None:
            raise Broken("a process that takes over reads no changes")
        expect("is_first", told.is_first, True)
        expect("index heads", told.index_heads, {"ready/call": (NOW + 1, 1)})
        expect("services", told.services, [service])
        expect("paused queues", told.paused, frozenset({"slow"}))
        expect("the next to watch", told.watch_at, NOW + 8)
        expect("workers", told.workers, [worker])
        expect("tasks", told.tasks, {"call": rule})
        expect("counters", (told.head.pending, told.head.running, told.head.seq), (2, 0, 2))
        expect("who decided", (told.head.decider, told.head.wake_at is None), (worker.id, False))
        await other.turn()
        expect("nothing twice", other.changes is None or not other.changes.is_first, True)

        def answer(plan: Plan, turn: Turn) -> None:
            other.put(plan, started(other.kept["w1"], 9, NOW, "other", "running/other"))
            plan.queues["slow"] = False
            plan.services["api"] = ServiceState(limits)
            plan.lost.append(worker.id)

        await other.turn(answer)
        await one.turn()
        told = one.changes
        if told is None:
            raise Broken("changes by another process are not read")
        expect("is_first", told.is_first, True)
        expect("index heads", told.index_heads, {"ready/call": (NOW + 2, 2)})
        expect("services", told.services, [ServiceState(limits)])
        expect("paused queues", told.paused, frozenset())
        expect("workers", told.workers, [])
        expect("the next to watch", told.watch_at, NOW + 9)
        expect("counters", (told.head.pending, told.head.running, told.head.token), (1, 1, 9))
        expect("who decided", told.head.decider, other.shared.me().id)


async def starts_are_read_as_far_back_as_they_are_asked_for(open_store: Open) -> None:
    """Starts are read for the named services, each from its own moment on, in order, without those given back."""
    async with hands(open_store, 1) as [one]:
        grants = [
            Grant("api", NOW - 9),
            Grant("api", NOW - 3, work_id="w1"),
            Grant("api", NOW - 3, work_id="w2"),
            Grant("api", NOW - 4, work_id="w3"),
            Grant("api", NOW - 4, -1, work_id="w3"),
            Grant("api", NOW - 3, 12.5, "tokens", "w1"),
            Grant("api", NOW - 3, -2.5, "tokens", "w1"),
            Grant("slow", NOW - 9),
            Grant("other", NOW - 1),
            Grant("twice", NOW + 6, 1000, "tokens", "w4"),
            Grant("twice", NOW + 3, 10, "tokens", "w4"),
        ]
        await one.turn(lambda plan, turn: plan.grants.extend(grants))
        found = await one.look(
            lambda turn: reader_of(turn).starts({"api": NOW - 5, "slow": NOW - 99, "none": 0.0})
        )
        expect(
            "the sums that are left",
            sorted((grant.service, grant.at, grant.quantity, grant.amount) for grant in found),
            [("api", NOW - 3, "", 2), ("api", NOW - 3, "tokens", 10), ("slow", NOW - 9, "", 1)],
        )
        spent = await one.look(
            lambda turn: [reader_of(turn).spent("w1", "api", since) for since in (NOW - 3, NOW)]
        )
        left = {"": Spent(1, NOW - 3), "tokens": Spent(10, NOW - 3)}
        expect("what is left of the quantities of one unit since a moment", spent, [left, {}])
        again = await one.look(lambda turn: reader_of(turn).spent("w4", "twice", NOW))
        expect("what the start that was granted last has left", again, {"tokens": Spent(10, NOW + 3)})


async def others_learn_that_an_index_key_is_empty(open_store: Open) -> None:
    """Others learn that nothing is left under an index key."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(pending(1))
        await other.turn()
        await one.write(started(one.kept["w1"], 1, NOW, "me", "running/me"))
        await other.turn()
        expect("index heads", other.changes and other.changes.index_heads, {"ready/call": None})


async def a_turn_that_failed_begins_anew(open_store: Open) -> None:
    """After a failed turn a process reads everything anew, even if it decided last."""
    async with hands(open_store) as [one]:
        await one.write(pending(1))
        await one.turn()
        expect("nothing new", one.changes is None or not one.changes.is_first, True)
        await one.fail()
        await one.turn()
        told = one.changes
        expect("is_first", told is not None and told.is_first, True)
        expect("index heads", told and told.index_heads, {"ready/call": (NOW + 1, 1)})


async def others_find_the_texts_and_miss_what_was_purged(open_store: Open) -> None:
    """Texts and purges are equal for all processes, and for one that opens the queue after all have closed it."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(*failed(1, 2))
        await other.turn()

        def change(plan: Plan, turn: Turn) -> None:
            plan.purged.append("w1")
            plan.config["a"] = "1"

        await one.turn(change)
        del one.kept["w1"]
        await other.compare()
        expect("texts", await other.store.config(), {"a": "1"})
    async with hands(open_store, kept=one.kept) as [late]:
        await late.compare()
        expect("texts", await late.store.config(), {"a": "1"})


async def events_are_read_by_number(open_store: Open) -> None:
    """Events are numbered from 1 without a gap, in the order of turns; any process can read from any number on."""
    async with hands(open_store, 2) as [one, other]:
        expect("none yet", (await one.shared.events(0, 10)).events, [])
        for number in range(1, 31):
            hand = (one, other)[number % 2]
            news = [
                EventDraft("progress", NOW, None, {"work_id": f"w{number}", "text": f"{n}"})
                for n in range(number % 4)
            ]
            await hand.write(pending(number), events=news)
        wanted = [(f"w{number}", str(n)) for number in range(1, 31) for n in range(number % 4)]
        for hand in (one, other):
            events = (await hand.shared.events(0, 10**6)).events
            expect("numbers", [event.seq for event in events], list(range(1, len(wanted) + 1)))
            expect("events", [(event.work_id, event.data.get("text")) for event in events], wanted)
            for after in (1, 2, 7, len(wanted) - 1, len(wanted), len(wanted) + 5):
                expect(f"after {after}", (await hand.shared.events(after, 10**6)).events, events[after:])
            some = (await hand.shared.events(3, 2)).events
            expect("some", (some, len(some) >= 2), (events[3 : 3 + len(some)], True))


async def results_are_read_with_their_events(open_store: Open) -> None:
    """Events of starts and completions read later equal those that were emitted, results included."""
    async with hands(open_store, 2) as [one, other]:
        accepted = pending(1)
        running = started(accepted, 1, NOW + 1, "me", "running/me")
        done = finished(running, {"n": 1}, NOW + 3)
        for record in (accepted, running, done):

            def change(plan: Plan, turn: Turn, record: Record = record) -> None:
                one.put(plan, record)
                plan.events.append(record)

            await one.turn(change)
        events = (await other.shared.events(0, 10)).events
        said = [(one.type, one.work_id, one.task, one.attempt, one.service, one.final) for one in events]
        same = ("w1", "call", 1, "api")
        expect(
            "events", said, [("queued", *same, False), ("started", *same, False), ("completed", *same, True)]
        )
        expect("result", (events[-1].result, events[-1].duration), ({"n": 1}, 2.0))


async def a_commit_wakes_the_others(open_store: Open) -> None:
    """A commit of another process wakes a process that waits."""
    async with hands(open_store, 2) as [one, other]:
        await one.join()
        await other.join()
        woken = asyncio.Event()
        other.shared.listen(lambda is_urgent: woken.set(), lambda worker: None)
        await one.turn()
        await one.write(pending(3))
        await heard(woken, "a commit")


async def time_is_one_for_all(open_store: Open) -> None:
    """A turn begins no earlier than the last one, in whatever process that was."""
    times: list[float] = []
    async with hands(open_store, 2) as pair:
        for number in range(1, 21):

            def change(plan: Plan, turn: Turn, number: int = number) -> None:
                times.append(turn.now)
                pair[number % 2].put(plan, pending(number))

            await pair[number % 2].turn(change)
        expect("in order", times, sorted(times))


SHARED: tuple[Check, ...] = (
    others_find_what_was_written,
    turns_never_overlap,
    an_index_key_is_paged_in_order,
    the_reader_finds_what_is_due_and_what_is_oldest,
    who_takes_over_is_told_everything,
    starts_are_read_as_far_back_as_they_are_asked_for,
    others_learn_that_an_index_key_is_empty,
    a_turn_that_failed_begins_anew,
    others_find_the_texts_and_miss_what_was_purged,
    events_are_read_by_number,
    results_are_read_with_their_events,
    a_commit_wakes_the_others,
    time_is_one_for_all,
    *exchange.EVERY,
)
