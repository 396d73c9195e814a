"""Checks for stores that several processes may open: what the processes leave for each other (see contract.py).

These are posts for the deciding process and letters from it, the choice of the next deciding process, and reading
without deciding.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial

from msgspec.structs import replace

from runcue.core.model.events import EventDraft
from runcue.core.model.lifecycle import move, started
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import NO_HEAD
from runcue.core.schedule.plan import Cancel, Hello, Item, Pause, Plan, ReadRequest, Submit
from runcue.core.views.query import Query
from runcue.errors import WorkNotFound
from runcue.ports import Outgoing, Takeover, Turn
from runcue.testing.manual_turns import NOW, Broken, Hand, Open, expect, hands, heard, pending, reader_of


async def only_who_decided_last_goes_on(open_store: Open) -> None:
    """Another process takes over in place of one that is gone, or that has taken no turn since it was seen."""
    async with hands(open_store, 3) as [one, other, third]:
        plan = await one.try_turn()
        expect("nobody decides yet, and nobody takes over", plan, None)
        await one.turn()
        me = one.shared.me().id
        for takeover in (None, Takeover(), Takeover("nobody"), Takeover(me, 0)):
            expect(f"{takeover}", await other.try_turn(takeover=takeover), None)
            expect("who decides", other.received and other.received.head.decider, me)
        expect("goes on", await one.try_turn() is not None, True)
        assert other.received is not None
        seen = Takeover(me, other.received.head.revision)
        expect("by its last turn", await other.try_turn(takeover=seen) is not None, True)
        expect("all is read", other.changes is not None and other.changes.is_first, True)
        expect("no longer", await one.try_turn(), None)
        expect("whoever was seen before", await third.try_turn(takeover=seen), None)
        dead = Takeover(other.shared.me().id)
        expect("in place of the dead", await third.try_turn(takeover=dead) is not None, True)
        expect("goes on", await third.try_turn() is not None, True)


async def who_is_named_decides_next(open_store: Open) -> None:
    """A turn may name another process as the next decider, which then goes on as if it had decided last."""
    async with hands(open_store, 3) as [one, other, third]:
        await one.turn()
        successor = other.shared.me().id

        def name(turn: Turn) -> Plan:
            plan = Plan()
            plan.config["a"] = "1"
            plan.head = replace(turn.changes.head if turn.changes else NO_HEAD, decider=successor)
            return plan

        plan, _ = await one.store.turn(name)
        expect("decided", plan is not None, True)
        for hand in (one, third):
            received = await hand.shared.exchange(None)
            expect("who decides", received.head.decider, successor)
            expect("not this one", await hand.try_turn(), None)
        instead = Takeover(one.shared.me().id)
        expect("nor in place of the process that named it", await third.try_turn(takeover=instead), None)
        took = await other.try_turn(takeover=Takeover(successor))
        expect("takes its place", took is not None, True)
        expect("all is read", other.changes is not None and other.changes.is_first, True)
        expect("goes on", await other.try_turn() is not None, True)


async def posts_are_taken_once_and_in_order(open_store: Open) -> None:
    """The next turn takes the posts of others, in the order they came; no later turn finds them again."""
    async with hands(open_store, 2) as [one, other]:
        await one.turn()
        me = other.shared.me().id
        for number in range(1, 6):
            items: list[Item] = [Cancel(f"w{number}"), Pause("api", number % 2 == 0)]
            received = await other.shared.exchange(Outgoing(number, items))
            expect("not taken yet", received.unread, frozenset(range(1, number + 1)))
            expect("who decides", received.head.decider, one.shared.me().id)
        await one.turn()
        expect("posts", [(post.worker, post.number) for post in one.posts], [(me, n) for n in range(1, 6)])
        said = [
            [getattr(item, "id", None) or getattr(item, "paused", None) for item in post.items]
            for post in one.posts
        ]
        expect("items", said, [[f"w{n}", n % 2 == 0] for n in range(1, 6)])
        await one.turn()
        expect("once", list(one.posts), [])
        expect("taken", (await other.shared.exchange(None)).unread, frozenset())


async def a_turn_of_who_does_not_decide_leaves_its_post(open_store: Open) -> None:
    """The post of a process is there for the decider, and for the process itself if it takes over before that."""
    async with hands(open_store, 2) as [one, other]:
        await one.turn()

        def decide(turn: Turn) -> Plan:
            raise Broken("two processes decide")

        plan, received = await other.store.turn(decide, Outgoing(7, [Cancel("w1")]))
        expect("no plan", plan, None)
        expect("its post", received and received.unread, frozenset({7}))
        await other.turn()
        expect("found again", [post.number for post in other.posts], [7])


async def posts_of_a_turn_that_failed_are_taken_by_the_next(open_store: Open) -> None:
    """Posts whose decision raised are there for the next decision."""
    async with hands(open_store, 2) as [one, other]:
        await one.turn()
        await other.shared.exchange(Outgoing(1, [Cancel("w1")]))

        for _ in range(2):
            await one.fail(lambda plan, turn: expect("there", len(turn.posts), 1))
            expect("not taken", (await other.shared.exchange(None)).unread, frozenset({1}))
        await one.turn()
        expect("taken by the next", [post.number for post in one.posts], [1])


async def many_posts_are_taken_in_several_turns(open_store: Open) -> None:
    """A turn takes a limited number of posts and then asks for another turn at once; none is lost or out of order."""
    amount = 1100
    async with hands(open_store, 2) as [one, other]:
        await one.turn()
        for number in range(amount):
            await other.shared.exchange(Outgoing(number, [Cancel("w1")]))
        found: list[int] = []
        for _ in range(amount):
            plan = await one.turn()
            found += [post.number for post in one.posts]
            if plan.wake_at == math.inf:
                break
        expect("all of them, in order", found, list(range(amount)))


async def letters_are_read_once(open_store: Open) -> None:
    """A process receives all that was decided for it, once; no other process receives it."""
    async with hands(open_store, 3) as [one, other, third]:
        await one.write(pending(1), pending(2))
        me = other.shared.me().id
        running = started(one.kept["w1"], 41, NOW, me, f"running/{me}")

        def change(plan: Plan, turn: Turn) -> None:
            one.put(plan, running)
            part = plan.part(me)
            part.start, part.rated = [running], {41: NOW + 5}
            part.ask = [one.kept["w2"]]
            part.stop = [40]
            part.replies = [((1, 0), True), ((1, 1), WorkNotFound("w9"))]
            part.events = [running, EventDraft("progress", NOW, running, {"text": "ü"})]

        await one.turn(change)
        await one.turn(lambda plan, turn: plan.part(me).stop.append(42))
        received = await third.shared.exchange(None)
        expect("nothing of others", (received.plan.start, received.plan.stop), ([], []))
        plan = (await other.shared.exchange(None)).plan
        expect("starts", (plan.start, plan.rated), ([running], {41: NOW + 5}))
        expect("questions", plan.ask, [one.kept["w2"]])
        expect("stops, in order", plan.stop, [40, 42])
        expect("events", plan.events, [running, EventDraft("progress", NOW, running, {"text": "ü"})])
        (first, answer), (second, error) = plan.replies
        expect("replies", (first, answer, second, type(error)), ((1, 0), True, (1, 1), WorkNotFound))
        again = (await other.shared.exchange(None)).plan
        expect("once", [again.start, again.ask, again.stop, again.replies, again.events], [[]] * 5)


async def who_takes_over_reads_its_letters(open_store: Open) -> None:
    """Letters come with the turn that takes over, which knows the starts in them; a turn that fails takes none."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(pending(1))
        me = other.shared.me().id
        running = started(one.kept["w1"], 41, NOW, me, f"running/{me}")
        await one.give(me, running)
        takeover = Takeover(one.shared.me().id)
        await other.fail(takeover=takeover)
        given: list[object] = []
        await other.try_turn(lambda plan, turn: given.append(turn.given), takeover)
        expect("given", given, [frozenset({41})])
        expect("starts", other.received and other.received.plan.start, [running])
        await other.turn(takeover=Takeover(me))
        expect("once", other.received and other.received.plan.start, [])


async def a_start_that_nobody_read_can_be_taken_back(open_store: Open) -> None:
    """A start can be taken back once, while its process has not read it; other messages stay."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(pending(1), pending(2), pending(3))
        me = other.shared.me().id
        first, second = (started(one.kept[f"w{n}"], n, NOW, me, f"running/{me}") for n in (1, 2))

        def give(record: Record, plan: Plan, turn: Turn) -> None:
            one.put(plan, record)
            part = plan.part(me)
            part.start, part.stop = [record], [record.token + 10]
            part.ask = [pending(3)]

        await one.turn(partial(give, first))
        expect("read", (await other.shared.exchange(None)).plan.start, [first])
        await one.turn(partial(give, second))
        expect("not read", await one.look(lambda turn: reader_of(turn).unstarted(me)), [2])
        taken: list[tuple[list[int], list[str]]] = []

        def take(plan: Plan, turn: Turn) -> None:
            taken.append(reader_of(turn).take_back(me))
            taken.append(reader_of(turn).take_back(me))

        await one.turn(take)
        expect("taken back", taken, [([2], ["w3"]), ([], [])])
        expect("none left", await one.look(lambda turn: reader_of(turn).unstarted(me)), [])
        plan = (await other.shared.exchange(None)).plan
        expect("only what was told is left", (plan.start, plan.ask, plan.stop), ([], [], [12]))


async def a_start_is_read_or_taken_back(open_store: Open) -> None:
    """A start is either read or taken back: never both, and never neither, in whatever order they come."""
    async with hands(open_store, 2) as [one, other]:
        me = other.shared.me().id
        for seq in range(1, 31):
            await one.give(me, started(pending(seq), seq, NOW, me, f"running/{me}"))
            taken: list[int] = []

            def take(plan: Plan, turn: Turn, taken: list[int] = taken) -> None:
                taken[:], _ = reader_of(turn).take_back(me)
                plan.config["a"] = "1"

            received, _ = await asyncio.gather(other.shared.exchange(None), one.turn(take))
            read = [record.token for record in received.plan.start]
            read += [record.token for record in (await other.shared.exchange(None)).plan.start]
            expect("read or taken back", sorted(read + taken), [seq])


async def a_start_that_ended_meanwhile_is_not_read(open_store: Open) -> None:
    """A process that reads a start finds the unit as it is now: an attempt that is over does not begin."""
    async with hands(open_store, 2) as [one, other]:
        me = other.shared.me().id
        running = started(pending(1), 1, NOW, me, f"running/{me}")
        await one.give(me, running)
        await one.write(
            move(running, "cancel", completed_at=NOW, token=0, worker=None, index_key=None, sort_key=0.0)
        )
        expect("nothing", (await other.shared.exchange(None)).plan.start, [])


async def what_was_submitted_is_found_at_once(open_store: Open) -> None:
    """A submitted unit reads as pending before a decision took it; decisions do not find it until then."""
    async with hands(open_store, 3) as [one, other, third]:
        await one.turn()
        spec = pending(1, id='an id of "mine" ü').spec
        await other.shared.exchange(Outgoing(1, [Submit([pending(2).spec, spec], is_plain=True)]))
        for hand in (one, other, third):
            record = await hand.store.get(spec.id)
            found = record and (record.spec, record.state, record.index_key)
            expect("pending", found, (spec, WorkState.PENDING, None))
            expect("among others", set(await hand.store.get_many([spec.id, "w2", "w3"])), {spec.id, "w2"})
        expect("nobody", await one.store.get("w3"), None)
        read = await one.look(lambda turn: turn.read(ReadRequest({spec.id})))
        expect("no record yet", read.records, {})


async def what_was_accepted_is_counted_at_once(open_store: Open) -> None:
    """A unit that no decision took reads as pending and newest, unless it can still be refused."""
    async with hands(open_store, 2) as [one, other]:
        await one.write(pending(1), pending(2))
        specs = [pending(number, id=f"w{number}").spec for number in (3, 4)]
        refusable = Submit([pending(5).spec], is_plain=False)
        await other.shared.exchange(
            Outgoing(1, [Submit([spec], is_plain=True, is_answered=False) for spec in specs])
        )
        await other.shared.exchange(Outgoing(2, [refusable]))
        for hand in (one, other):
            expect("counted", (await hand.shared.counts())[WorkState.PENDING], 4)
            expect("by task", (await hand.store.tally())["pending"], {"call": 4})
            for limit in (1, 3, 9):
                found = await hand.store.find(Query(WorkState.PENDING, limit=limit))
                expect("newest first", [record.id for record in found], ["w4", "w3", "w2", "w1"][:limit])
            last = await hand.store.get("w3")
            found = await hand.store.find(Query(before=None if last is None else last.seq))
            expect("before that", [record.id for record in found], ["w2", "w1"])
            expect("no other", await hand.store.find(Query(WorkState.RUNNING)), [])


async def a_glance_changes_nothing(open_store: Open) -> None:
    """A glance sees the queue as it is, whichever process decides, and takes no posts or letters."""
    async with hands(open_store, 2) as [one, other]:
        me = other.shared.me().id
        running = started(pending(2), 1, NOW, me, f"running/{me}")
        await one.write(pending(1))
        await one.give(me, running)
        seen: list[object] = []

        def decide(turn: Turn) -> Plan:
            assert turn.changes is not None
            seen.append((turn.changes.is_first, turn.changes.index_heads, list(turn.posts), turn.given))
            seen.append(reader_of(turn).take_back(me))
            plan = Plan()
            plan.config["a"] = "1"
            return plan

        for hand in (one, other):
            seen.clear()
            await hand.shared.glance(decide)
            expect("seen", seen, [(True, {"ready/call": (NOW + 1, 1)}, [], frozenset()), ([1], [])])
        expect("nothing is kept", await one.store.config(), {})
        expect("goes on", await one.try_turn() is not None, True)
        expect("its letter is there", (await other.shared.exchange(None)).plan.start, [running])


async def who_leaves_decides_no_more(open_store: Open) -> None:
    """When a process closes, the others are woken, and any of them may decide."""
    async with hands(open_store, 2) as [one, other]:
        leaving = Hand(open_store(), {})
        woken = asyncio.Event()
        await leaving.join()
        await other.join()
        await leaving.turn()
        await leaving.turn(lambda plan, turn: plan.config.update(a="1"))
        other.shared.listen(lambda is_urgent: woken.set() if is_urgent else None, lambda worker: None)
        await leaving.store.close()
        await heard(woken, "the end of a process")
        expect("nobody decides", (await other.shared.exchange(None)).head.decider, None)
        expect("anybody may", await one.try_turn(takeover=Takeover()) is not None, True)
        left = [worker.id for worker in one.changes.workers] if one.changes else []
        expect("who is there", left, [other.shared.me().id])


async def who_does_not_decide_knows_the_others(open_store: Open) -> None:
    """All processes know which processes live; one that closed is no longer among them."""
    async with hands(open_store, 2) as [one, other]:
        for hand in (one, other):
            await hand.join()
        expect("alive", one.shared.is_alive(other.shared.me().id), True)
        await one.turn()
        left = Hand(open_store(), {})
        await left.shared.exchange(Outgoing(1, [Hello(left.shared.me(), {})]))
        await one.turn()
        [post] = one.posts
        expect("who it is", [getattr(item, "worker", None) for item in post.items], [left.shared.me()])
        me = left.shared.me()
        await one.turn(lambda plan, turn: plan.workers.update({me.id: me}))
        await other.shared.exchange(None)
        expect("alive", other.shared.is_alive(me.id), True)
        await left.store.close()
        await other.shared.exchange(None)
        expect("gone", other.shared.is_alive(me.id), False)


EVERY = (
    only_who_decided_last_goes_on,
    who_is_named_decides_next,
    posts_are_taken_once_and_in_order,
    a_turn_of_who_does_not_decide_leaves_its_post,
    posts_of_a_turn_that_failed_are_taken_by_the_next,
    many_posts_are_taken_in_several_turns,
    letters_are_read_once,
    who_takes_over_reads_its_letters,
    a_start_that_nobody_read_can_be_taken_back,
    a_start_is_read_or_taken_back,
    a_start_that_ended_meanwhile_is_not_read,
    what_was_submitted_is_found_at_once,
    what_was_accepted_is_counted_at_once,
    a_glance_changes_nothing,
    who_leaves_decides_no_more,
    who_does_not_decide_knows_the_others,
)
