"""A queue that several schedulers share, in dicts: what a file is to real processes, without a file.

`Shared` keeps what was committed and the clocks; a `Process` is a bench (bench_of_core.py) whose scheduler sees only
what it has in mind and reads the rest, as with a store of several processes. What a `Process` reads in a turn is
what was committed before it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from runcue.core.asking import Allowance, Questions
from runcue.core.limits import Limits
from runcue.core.model import Record, Spec, WorkState
from runcue.core.plan import Changes, Declare, Ended, Entered, Found, Item, Key, Lacks, Lost, Outcome, Plan
from runcue.core.retry import Retry
from runcue.core.scheduler import Scheduler
from runcue.core.settings import Rule, Settings
from runcue.core.state import NO_HEAD, Grant, ServiceState, Worker
from tests.core.bench_of_core import START, Bench, Shelf, limits

HAPPENED = (Outcome, Ended, Entered, Declare, Lost)
"""Items that some turn has to take in, whatever becomes of the one they were meant for."""
MOST_READS = 10_000


class Shared(Shelf):
    """What was committed, and a clock that the test moves. Reads as a library does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.wall = START
        self.head = NO_HEAD
        self.shelves: dict[str, tuple[Key | None, int]] = {}
        self.services: dict[str, tuple[ServiceState, int]] = {}
        self.grants: list[Grant] = []
        self.workers: dict[str, tuple[Worker, int]] = {}
        self.paused: set[str] = set()
        self.mail: list[tuple[str, int]] = []
        self.reads = 0
        """How many pages were ever read."""

    # the library ------------------------------------------------------------------------------------------

    def read(self, lacks: Lacks) -> Found:
        return self.find(lacks)

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        self._count_read()
        return self._on(shelf, after or (-math.inf, 0))[:limit]

    def dependents(self, work_id: str) -> list[str]:
        return [record.id for record in self._by_seq() if work_id in record.spec.depends_on]

    def by_id(self, ids: Iterable[str]) -> dict[str, Record]:
        return {work_id: self.records[work_id] for work_id in ids if work_id in self.records}

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        self._count_read()
        due = [(record.watch_at, record.seq, record) for record in self.records.values() if record.watch_at]
        due = [one for one in due if one[0] <= until and one[:2] > (after or (0.0, 0))]
        return [record for _, _, record in sorted(due, key=lambda one: one[:2])][:limit]

    def next_watch(self, after: float) -> float:
        times = [record.watch_at for record in self.records.values() if record.watch_at is not None]
        return min((at for at in times if at > after), default=math.inf)

    def oldest(self, after: int, limit: int) -> list[Record]:
        pending = [record for record in self._by_seq() if record.state is WorkState.PENDING]
        return [record for record in pending if record.seq > after][:limit]

    def starts(self, since: Mapping[str, float]) -> list[Grant]:
        sums: dict[tuple[str, float, str], float] = {}
        for grant in self.grants:
            if grant.at > since.get(grant.service, math.inf):
                key = grant.service, grant.at, grant.quantity
                sums[key] = sums.get(key, 0) + grant.amount
        found = [Grant(name, at, amount, what) for (name, at, what), amount in sums.items() if amount > 0]
        return sorted(found, key=lambda grant: grant.at)

    def _count_read(self) -> None:
        self.reads += 1
        assert self.reads < MOST_READS, "this reads the same for ever"

    def on(self, shelf: str) -> list[str]:
        """The ids of what is on a shelf, in order."""
        return [record.id for record in self._on(shelf, (-math.inf, 0))]

    def _on(self, shelf: str, after: Key) -> list[Record]:
        here = [record for record in self.records.values() if record.shelf == shelf]
        here.sort(key=lambda record: (record.place, record.seq))
        return [record for record in here if (record.place, record.seq) > after]

    def _by_seq(self) -> list[Record]:
        return sorted(self.records.values(), key=lambda record: record.seq)

    # what a process finds and leaves ----------------------------------------------------------------------

    def changes(self, worker: str, seen: int | None, grants_seen: int) -> Changes:
        """Everything that was written since that process last looked."""
        since = -1 if seen is None else seen
        news = Changes(self.head, is_first=seen is None)
        news.shelves = {name: first for name, (first, at) in self.shelves.items() if at > since}
        news.services = [state for state, at in self.services.values() if at > since]
        news.grants = [] if seen is None else self.grants[grants_seen:]
        if seen is None or any(at > since for _, at in self.workers.values()):
            news.workers = [one for one, _ in self.workers.values()]
        news.paused = frozenset(self.paused)
        news.mail = [token for to, token in self.mail if to == worker]
        news.watch_at = self.next_watch(0.0)
        return news

    def keep(self, plan: Plan, worker: str, has_read_mail: bool) -> dict[str, Key | None]:
        """Commit a plan of that worker. The shelves that have another first record by that."""
        revision = self.head.revision + 1
        self.commit(plan)
        self.services.update((name, (state, revision)) for name, state in plan.services.items())
        self.grants += plan.grants
        for name, is_paused in plan.queues.items():
            (self.paused.add if is_paused else self.paused.discard)(name)
        if has_read_mail:
            self.mail = [letter for letter in self.mail if letter[0] != worker]
        if worker not in self.workers:
            self.workers[worker] = Worker(worker, "host", "boot", 1, self.now), revision
        if plan.active is not None or plan.lost:
            me = self.workers[worker][0]
            active = me.active if plan.active is None else plan.active
            self.workers[worker] = replace(me, active=active), revision
        for name in plan.lost:
            del self.workers[name]
            self.mail = [letter for letter in self.mail if letter[0] != name]
        self.mail += plan.mail
        firsts = {name: self._first(name) for name in plan.shelves}
        self.shelves.update((name, (first, revision)) for name, first in firsts.items())
        told = self.head.told + len(plan.events)
        self.head = replace(plan.head, revision=revision, told=told, now=self.now)
        return firsts

    def _first(self, shelf: str) -> Key | None:
        here = self._on(shelf, (-math.inf, 0))
        return (here[0].place, here[0].seq) if here else None


class Process(Bench):
    """One of those who share a queue: its scheduler, and what it has seen of the others."""

    def __init__(
        self,
        shared: Shared,
        tag: str,
        *services: Limits,
        rules: dict[str, Rule] | None = None,
        questions: Questions | None = None,
        retry: Retry | int | None = None,
        **settings: Any,
    ) -> None:
        self.store: Shared = shared
        self.tag = tag
        self.may_start = True
        self.enters_at_once = True
        self.allowance = Allowance()
        self.rules = rules or {"task": Rule(Retry.of(retry))}
        self.questions = questions or Questions()
        self.settings = Settings(**settings)
        self.plan = Plan()
        self.plans: list[Plan] = []
        self.tokens: dict[str, int] = {}
        self.runs: dict[int, Record] = {}
        self.given_up: set[int] = set()
        self._made = 0
        self._entered: list[Item] = [Declare(service, is_quiet=True) for service in services or (limits(),)]
        self.forget()

    @property
    def now(self) -> float:
        """The time of the queue, the same for everybody."""
        return self.store.now

    @now.setter
    def now(self, value: float) -> None:
        self.store.now = value

    @property
    def wall(self) -> float:
        """The time of the wall clock."""
        return self.store.wall

    @wall.setter
    def wall(self, value: float) -> None:
        self.store.wall = value

    def forget(self) -> None:
        """The scheduler is thrown away; the process, and what runs in it, goes on."""
        self.scheduler = Scheduler(self.settings, self.rules, self.tag, is_whole=False)
        self.scheduler.adopt(self.runs.values(), self._entered)
        self._seen: int | None = None
        self._grants_seen = 0
        self._news: dict[str, Key | None] = {}

    def spec(self, id: str | None = None, /, **fields: Any) -> Spec:
        """What the edge makes of a submission; ids of the queue's own say which process made them."""
        made = super().spec(id, **fields)
        return made if id is not None else replace(made, id=f"{self._made:011}{self.tag:8}{self._made:08}")

    def turn(self, *items: Item, is_kept: bool = True, is_heard: bool = True) -> Plan:
        """One whole turn at this moment; when it is not kept, nothing of it has happened.

        Of one that is kept and not heard of, the queue knows and this process does not.
        """
        shared, scheduler = self.store, self.scheduler
        inbox = [*self._entered, *items]
        self._entered = []
        is_foreign = self._seen != shared.head.revision
        scheduler.begin(shared.now, shared.wall, shared)
        has_mail = False
        if is_foreign:
            changes = shared.changes(self.tag, self._seen, self._grants_seen)
            changes.shelves = self._news | changes.shelves
            has_mail = bool(changes.mail)
            scheduler.catch_up(changes)
        elif self._news:
            scheduler.catch_up(Changes(shared.head, is_foreign=False, shelves=self._news))
        self._news = {}
        scheduler.ask_with(self.questions)
        while lacks := scheduler.lacks(inbox):
            scheduler.learn(lacks, shared.read(lacks))
        scheduler.take_in(inbox)
        scheduler.plan(self.may_start, self.allowance)
        plan = scheduler.finish()
        if is_kept and not is_heard:
            shared.keep(plan, self.tag, has_mail)
        if not is_kept or not is_heard:
            self._entered = [item for item in inbox if isinstance(item, HAPPENED)]
            self.forget()
            return plan
        self.plan = plan
        self.plans.append(plan)
        if plan.writes or has_mail or self.tag not in shared.workers:
            self._news = shared.keep(plan, self.tag, has_mail)
        self._seen = shared.head.revision
        self._grants_seen = len(shared.grants)
        self._run(plan, inbox)
        return plan

    def _run(self, plan: Plan, inbox: list[Item]) -> None:
        for item in inbox:
            if isinstance(item, Ended) or (isinstance(item, Outcome) and item.has_ended):
                self.runs.pop(item.token, None)
                self.given_up.discard(item.token)
        self.given_up.update(plan.stop)
        for record in plan.start:
            self.tokens[record.id] = record.token
            self.runs[record.token] = record
            if self.enters_at_once:
                self._entered.append(Entered([(record.token, self.now, self.now)]))

    @property
    def active(self) -> dict[str, int]:
        """How many places of each service this scheduler counts as taken, by whomever."""
        return {name: service.active for name, service in self.scheduler.ledger.ready.services.items()}


def two(*services: Limits, **options: Any) -> tuple[Shared, Process, Process]:
    """A queue and two processes that have it open."""
    shared = Shared()
    one, other = Process(shared, "one", *services, **options), Process(shared, "two", *services, **options)
    one.turn()
    other.turn()
    return shared, one, other
