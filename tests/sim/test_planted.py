"""Mistakes planted in the engine, one at a time: the swarm finds each, by a rule that fits it, within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from runcue.core.ledger import capacity, ledger
from runcue.core.ledger.schedules import Schedules
from runcue.core.limits import breaker
from runcue.core.limits import service as limits
from runcue.core.model.record import Record
from runcue.core.model.retry import delay_after
from runcue.core.model.schedule import Schedule
from runcue.core.model.state import Head
from runcue.core.schedule import admission, occurrences, outcome
from runcue.core.schedule import takeover as shared
from runcue.core.schedule.plan import Changes, Item, Outcome, Plan, Post, Submission, Submit
from runcue.core.schedule.scheduler import Scheduler
from runcue.declare import service_choice as using
from runcue.declare import service_options as limiting
from runcue.engine.attempts import Attempts
from runcue.engine.decision import Ask, Decider
from runcue.engine.outbox import Outbox
from runcue.engine.peer import Peer
from runcue.engine.replies import Replies
from runcue.errors import StoreError
from runcue.ports import Outgoing, Turn
from runcue.sim import swarm
from runcue.stores.sql import journal
from runcue.stores.sql.store import SqlStore
from runcue.stores.sql.tables import Tables
from tests.mistakes import given_to_two, letters_kept

SEEDS = 150
"""How many seeds may pass before a mistake is found."""

Plant = Callable[[pytest.MonkeyPatch], None]


def wide_window(patch: pytest.MonkeyPatch) -> None:
    """A window lets one more in than it may."""
    room = limits.Window.room
    patch.setattr(limits.Window, "room", lambda self, now: room(self, now) + 1)


def own_grants_only(patch: pytest.MonkeyPatch) -> None:
    """What was granted by whoever decided before is not counted."""
    patch.setattr(limits.Service, "recall", lambda self, starts: None)


def own_places_only(patch: pytest.MonkeyPatch) -> None:
    """What was started by whoever decided before takes up no places."""
    counted = capacity.Capacity.take_up

    def forgetful(self: capacity.Capacity, token: int, lane: Any, member: Any) -> None:
        counted(self, token, lane, member)
        for service in lane.services:
            service.active -= 1

    patch.setattr(capacity.Capacity, "take_up", forgetful)


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Work is tried again while the code of its last attempt still runs."""
    where = ledger.Ledger._where

    def impatient(self: ledger.Ledger, record: Record) -> Any:
        self.held.pop(record.id, None)
        return where(self, replace(record, worker=None))

    patch.setattr(ledger.Ledger, "_where", impatient)


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """The same, and an answer is taken whichever attempt it comes from."""
    impatient(patch)
    take, stop = outcome.take, Attempts.stop

    def careless(book: ledger.Ledger, item: Outcome) -> None:
        record = book.working.live(item.id)
        if record is not None and record.token and record.token != item.token:
            item = replace(item, token=record.token)
        take(book, item)

    def forgiving(self: Attempts, token: int) -> None:
        run = self.runs.get(token)
        stop(self, token)
        if run is not None:
            run.is_given_up = False

    patch.setattr(outcome, "take", careless)
    patch.setattr(Attempts, "stop", forgiving)


def ended_twice(patch: pytest.MonkeyPatch) -> None:
    """A completion is told twice."""
    complete = ledger.Ledger.complete

    def talkative(self: ledger.Ledger, outcomes: Iterable[Outcome]) -> Outcome | None:
        before = len(self.turn.plan.events)
        stale = complete(self, outcomes)
        self.turn.plan.events += self.turn.plan.events[before:]
        return stale

    patch.setattr(ledger.Ledger, "complete", talkative)


def dead_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a dead process ran is never taken over."""
    patch.setattr(shared, "lose", lambda ledger, worker: None)


def counted_down_twice(patch: pytest.MonkeyPatch) -> None:
    """One dependency that is complete counts for two."""
    satisfied = outcome._satisfied

    def hasty(book: ledger.Ledger, record: Record) -> None:
        satisfied(book, replace(record, missing=max(1, record.missing - 1)))

    patch.setattr(outcome, "_satisfied", hasty)


def failures_stay_alone(patch: pytest.MonkeyPatch) -> None:
    """What depends on failed work is left as it is."""
    patch.setattr(outcome, "_lose", lambda ledger, work_id, error, cascade: None)


def many_probes(patch: pytest.MonkeyPatch) -> None:
    """A half-open circuit lets everybody through."""
    room = breaker.Breaker.room

    def generous(self: breaker.Breaker, now: float) -> int:
        return 3 if self.state == breaker.HALF_OPEN else room(self, now)

    patch.setattr(breaker.Breaker, "room", generous)


def impatient_circuit(patch: pytest.MonkeyPatch) -> None:
    """An open circuit does not wait."""
    room = breaker.Breaker.room
    patch.setattr(
        breaker.Breaker, "room", lambda self, now: 1 if self.state == breaker.OPEN else room(self, now)
    )


def event_lost(patch: pytest.MonkeyPatch) -> None:
    """Of many events at once the last is not written."""
    pack = journal.pack

    def forgetful(events: Iterable[Any]) -> bytes:
        told = list(events)
        return pack(told[:-1] if len(told) > 8 else told)

    patch.setattr(journal, "pack", forgetful)


def short_backoff(patch: pytest.MonkeyPatch) -> None:
    """A retry waits for less than its policy says."""
    patch.setattr(outcome, "delay_after", lambda *given: delay_after(*given) * 0.4)


def eager_retry(patch: pytest.MonkeyPatch) -> None:
    """A retry is due as soon as anything happens."""
    where = ledger.Ledger._where

    def eager(self: ledger.Ledger, record: Record) -> Any:
        return where(self, replace(record, next_retry_at=None) if record.next_retry_at else record)

    patch.setattr(ledger.Ledger, "_where", eager)


def many_crashes(patch: pytest.MonkeyPatch) -> None:
    """Work that kills its processes is given up too late."""
    patch.setattr(shared, "MOST_CRASHES", 6)


def no_priority(patch: pytest.MonkeyPatch) -> None:
    """First come, first served, whatever the priority."""
    patch.setattr(ledger, "rank_of", lambda spec, now, step: now + (spec.delay or 0))


def no_ageing(patch: pytest.MonkeyPatch) -> None:
    """However long something waits, the more important goes first."""
    patch.setattr(ledger, "rank_of", lambda spec, now, step: now - ledger.STRICT_STEP * spec.priority)


def keys_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """An idempotency key is kept and not looked at."""
    patch.setattr(admission, "_by_key", lambda ledger, spec, key: None)


def accepted_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A submission is confirmed though its commit failed."""
    answer = Replies.answer

    def hasty(self: Replies, item: Any, said: Any) -> None:
        if isinstance(item, Submit) and isinstance(said, StoreError):
            said = [spec.id for spec in item.specs]
        answer(self, item, said)

    patch.setattr(Replies, "answer", hasty)


def own_amounts_only(patch: pytest.MonkeyPatch) -> None:
    """What was used of a quantity under whoever decided before is not counted."""
    recall = limits.Service.recall

    def forgetful(self: limits.Service, starts: Any) -> None:
        recall(self, [start for start in starts if not start.quantity])

    patch.setattr(limits.Service, "recall", forgetful)


def estimates_only(patch: pytest.MonkeyPatch) -> None:
    """What a handler says that it used is not settled."""
    patch.setattr(ledger.Ledger, "charge", lambda self, token, amounts: None)


def no_total(patch: pytest.MonkeyPatch) -> None:
    """What all keys together may have is not looked at."""
    patch.setattr(limiting, "_total", lambda name, total, each: limits.Limits(name, each=each))


def one_for_all(patch: pytest.MonkeyPatch) -> None:
    """Some works count on another key than theirs."""
    patch.setattr(using, "key_name", lambda service, key: f"{service}[{key.replace('k1', 'k0')}]")


def boundless(patch: pytest.MonkeyPatch) -> None:
    """A concurrency that finds itself knows no end."""
    widen = limits.Service.widen

    def greedy(self: limits.Service) -> bool:
        if self.limits.adaptive is None or self.width is None:
            return widen(self)
        self._set_width(self.width + 1)
        return True

    patch.setattr(limits.Service, "widen", greedy)


def full_members(patch: pytest.MonkeyPatch) -> None:
    """A pattern chooses a service whether or not it has room."""
    patch.setattr(limits.Group, "pick", lambda self, cost, now: self.members[0])


# --- schedules -----------------------------------------------------------------------------------


def slot_twice(patch: pytest.MonkeyPatch) -> None:
    """That a schedule has moved on to its next slot is not stored."""
    put = Schedules.put

    def forgetful(self: Schedules, schedule: Schedule) -> None:
        put(self, schedule)
        if schedule.last_slot is not None:
            del self._turn.plan.schedules[schedule.name]

    patch.setattr(Schedules, "put", forgetful)


def _loaded(patch: pytest.MonkeyPatch, change: Callable[[Schedule, float], Schedule]) -> None:
    """Change what who takes over knows of the schedules that have slots."""
    load = Schedules.load

    def changed(self: Schedules, schedules: Iterable[Schedule]) -> None:
        load(self, [change(one, self._turn.now) if one.is_waiting else one for one in schedules])

    patch.setattr(Schedules, "load", changed)


def slot_lost(patch: pytest.MonkeyPatch) -> None:
    """Who takes over from a dead process believes that it has submitted what was due."""

    def moved(one: Schedule, now: float) -> Schedule:
        assert one.due is not None
        assert one.slot is not None
        every = one.timing.every
        is_due = every is not None and one.due <= now
        return replace(one, slot=one.slot + every, due=one.due + every) if every and is_due else one

    _loaded(patch, moved)


def counted_from_takeover(patch: pytest.MonkeyPatch) -> None:
    """Who takes over counts intervals from then on."""

    def moved(one: Schedule, now: float) -> Schedule:
        every = one.timing.every
        return replace(one, slot=now + every, due=now + every) if every else one

    _loaded(patch, moved)


def slot_without_unit(patch: pytest.MonkeyPatch) -> None:
    """A schedule moves on, and its unit is forgotten now and then."""
    take = admission.take_submission

    def careless(book: ledger.Ledger, item: Submission) -> None:
        if book.counters.seq % 3:
            take(book, item)

    patch.setattr(admission, "take_submission", careless)


def overlap_ignored(patch: pytest.MonkeyPatch) -> None:
    """A slot is submitted whether or not the unit before it has ended."""
    submit = occurrences._submit
    patch.setattr(
        occurrences, "_submit", lambda book, one, slot: submit(book, replace(one, overlap="queue"), slot)
    )


# --- one decides for all --------------------------------------------------------------------------


def answers_dropped(patch: pytest.MonkeyPatch) -> None:
    """A post is taken, and how an attempt in it ended is not."""
    take = Scheduler.take_posts

    def is_dropped(post: Post, item: Item) -> bool:
        return type(item) is Outcome and not post.number % 5

    def careless(self: Scheduler, posts: Iterable[Post]) -> None:
        take(
            self,
            [replace(one, items=[item for item in one.items if not is_dropped(one, item)]) for one in posts],
        )

    patch.setattr(Scheduler, "take_posts", careless)


def begun_before_commit(patch: pytest.MonkeyPatch) -> None:
    """What a turn starts is begun though its commit failed."""
    take_part, decide = Peer.take_part, Decider.__call__
    plans: list[Plan] = []

    def deciding(self: Decider, turn: Turn) -> Plan:
        plans.append(decide(self, turn))
        return plans[-1]

    async def hasty(self: Peer, question: Ask | None) -> tuple[bool, list[Item], StoreError | None]:
        plans.clear()
        done = await take_part(self, question)
        if done[2] is not None and plans and plans[-1].start:
            self._shell.attempts.start(plans[-1])
        return done

    patch.setattr(Decider, "__call__", deciding)
    patch.setattr(Peer, "take_part", hasty)


def old_mind(patch: pytest.MonkeyPatch) -> None:
    """Who takes over goes on with what it knew when it decided last."""
    new, take_over = Peer._new_scheduler, Tables.take_over
    minds: dict[Peer, Scheduler] = {}
    known: set[Tables] = set()

    def remembered(self: Peer, items: list[Item]) -> Scheduler:
        return minds.setdefault(self, new(self, items))

    def blind(self: Tables, head: Head) -> Changes:
        if self in known:
            return Changes(head)
        known.add(self)
        return take_over(self, head)

    patch.setattr(Peer, "_new_scheduler", remembered)
    patch.setattr(Tables, "take_over", blind)


def two_deciders(patch: pytest.MonkeyPatch) -> None:
    """Who decided once goes on, whoever has decided since."""
    patch.setattr(SqlStore, "_may_decide", lambda self, head, takeover: True)


def accepted_before_it_is_left(patch: pytest.MonkeyPatch) -> None:
    """A submission is confirmed before it is in the inbox."""
    make = Outbox.post

    def hasty(self: Outbox, items: list[Item]) -> Outgoing | None:
        post = make(self, items)
        for item in items:
            if type(item) is Submit:
                self._replies.answer(item, [spec.id for spec in item.specs])
        return post

    patch.setattr(Outbox, "post", hasty)


def accepted_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    """A submission that can be refused is confirmed once it is in the inbox."""
    posted = Outbox.posted

    def hasty(self: Outbox, number: int, items: list[Item], decider: str | None) -> None:
        for item in items:
            if type(item) is Submit:
                item.is_answered = False
        posted(self, number, items, decider)

    patch.setattr(Outbox, "posted", hasty)


def begun_and_put_back(patch: pytest.MonkeyPatch) -> None:
    """Who takes over puts back what it was given, and begins it as well."""
    begins = Scheduler.begins
    patch.setattr(Scheduler, "begins", lambda self, given, posts: begins(self, (), posts))


def runs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who takes over does not know what runs in its own process."""
    patch.setattr(Scheduler, "adopt", lambda self, attempts, items: None)


PLANTED: dict[str, tuple[Plant, ...]] = {
    "rate": (wide_window, own_grants_only),
    "concurrency": (own_places_only, no_total, boundless, full_members),
    "amount": (own_amounts_only, estimates_only),
    "service": (one_for_all,),
    "overlap": (impatient, given_to_two, begun_before_commit, old_mind, two_deciders, begun_and_put_back,
                runs_forgotten),
    "result": (no_fencing, letters_kept),
    "life": (ended_twice,),
    "rest": (dead_forgotten, answers_dropped),
    "dependencies": (counted_down_twice, failures_stay_alone),
    "circuit": (many_probes, impatient_circuit),
    "order": (event_lost,),
    "retry": (short_backoff, eager_retry),
    "attempts": (many_crashes,),
    "priority": (no_priority,),
    "starvation": (no_ageing,),
    "keys": (keys_for_nothing,),
    "lost": (accepted_before_commit, accepted_before_it_is_left, accepted_before_it_is_decided),
    "slots": (slot_twice, slot_lost, counted_from_takeover, slot_without_unit, overlap_ignored),
}  # fmt: skip
CASES = [(rule, plant) for rule, plants in PLANTED.items() for plant in plants]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("rule", "plant"), CASES, ids=[plant.__name__ for _, plant in CASES])
def test_a_planted_mistake_is_found(rule: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        with monkeypatch.context() as planted:
            plant(planted)
            found = {violation.rule for violation in swarm.play(seed).violations}
        if rule in found:
            assert swarm.play(seed).violations == [], "without it nothing is wrong"
            return
    pytest.fail(f"no seed below {SEEDS} gave it away")
