"""A queue that several processes share, in dicts: what a file is to real processes, without a file.

`Shared` keeps what was committed, what was left for whoever decides, what was decided for others, and the clocks. A
`Process` is a bench (bench_of_core.py) that decides when it takes a turn: if another one decided last, with a new
scheduler that reads everything anew. Without a turn it may leave a post, and read what was decided for it. What a
`Process` reads in a turn is what was committed before it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.service import Limits
from runcue.core.model.events import News, draft_of
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import NO_HEAD, Grant, ServiceState, Worker
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    Changes,
    Declare,
    Ended,
    Entered,
    Hello,
    Item,
    Key,
    Lost,
    Outcome,
    Plan,
    Post,
    ReadRequest,
    ReadResult,
    Ref,
    Spent,
    Submit,
)
from runcue.core.schedule.scheduler import Scheduler
from runcue.core.views.explain import Explanation, explain
from runcue.host.calendar import SystemCalendar
from tests.core.bench_of_core import START, Bench, FakeStore, limits

HAPPENED = (Outcome, Ended, Entered, Declare, Lost)
"""Items that some turn has to take in, whatever becomes of the one they were meant for."""
MOST_READS = 10_000


class Shared(FakeStore):
    """What was committed, and a clock that the test moves. Reads as a library does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.wall = START
        self.head = NO_HEAD
        self.index_heads: dict[str, Key] = {}
        self.services: dict[str, ServiceState] = {}
        self.grants: list[Grant] = []
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, Rule] = {}
        self.paused: set[str] = set()
        self.inbox: list[Post] = []
        """What processes left for whoever decides."""
        self.letters: dict[str, list[Plan]] = {}
        """What was decided for each process, and that it has not read yet."""
        self.taken_back: set[str] = set()
        """Whose unread starts the turn under way takes back."""
        self.reads = 0
        """How many pages were ever read."""
        self.most_reads = MOST_READS

    # the library ------------------------------------------------------------------------------------------

    def read(self, request: ReadRequest) -> ReadResult:
        return self.find(request)

    def page(self, index_key: str, after: Key | None, limit: int) -> list[Record]:
        self._count_read()
        return self._under(index_key, after or (-math.inf, 0))[:limit]

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

    def spent(self, work_id: str, service: str, since: float) -> dict[str, Spent]:
        sums: dict[tuple[str, float], float] = {}
        for grant in self.grants:
            if (grant.work_id, grant.service) == (work_id, service) and grant.at >= since:
                key = (grant.quantity, grant.at)
                sums[key] = sums.get(key, 0) + grant.amount
        return {quantity: Spent(amount, at) for (quantity, at), amount in sums.items()}

    def unstarted(self, worker: str) -> list[int]:
        return [record.token for part in self.letters.get(worker, ()) for record in part.start]

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        self.taken_back.add(worker)
        parts = self.letters.get(worker, ())
        asked = [record.id for part in parts for record in part.ask]
        return self.unstarted(worker), asked

    def groups(self, names: Sequence[str]) -> dict[str, GroupCounts]:
        return {name: self.groups_kept[name] for name in names if name in self.groups_kept}

    def accepted(self) -> list[Record]:
        specs = [
            spec
            for post in self.inbox
            for item in post.items
            if isinstance(item, Submit)
            for spec in item.specs
        ]
        return [
            Record(spec.id, spec, self.head.seq + number, self.now, self.now)
            for number, spec in enumerate(specs, 1)
        ]

    def _count_read(self) -> None:
        self.reads += 1
        assert self.reads < self.most_reads, "this reads the same for ever"

    def under(self, index_key: str) -> list[str]:
        """The ids of what is under an index key, in order."""
        return [record.id for record in self._under(index_key, (-math.inf, 0))]

    def _under(self, index_key: str, after: Key) -> list[Record]:
        here = [record for record in self.records.values() if record.index_key == index_key]
        here.sort(key=lambda record: (record.sort_key, record.seq))
        return [record for record in here if (record.sort_key, record.seq) > after]

    def _by_seq(self) -> list[Record]:
        return sorted(self.records.values(), key=lambda record: record.seq)

    # what a process finds and leaves ----------------------------------------------------------------------

    def everything(self) -> Changes:
        """What a process has to know to decide, if it knows nothing."""
        return Changes(
            self.head,
            is_first=True,
            index_heads=dict(self.index_heads),
            services=[*self.services.values()],
            workers=[*self.workers.values()],
            tasks=dict(self.tasks),
            paused=frozenset(self.paused),
            watch_at=self.next_watch(0.0),
            schedules=[*self.schedules.values()],
        )

    def keep(self, plan: Plan) -> dict[str, Key | None]:
        """Commit a plan. The index keys that may have another first record by that."""
        self.commit(plan)
        self.services.update(plan.services)
        self.grants += plan.grants
        for name, is_paused in plan.queues.items():
            (self.paused.add if is_paused else self.paused.discard)(name)
        self.workers.update(plan.workers)
        self.tasks.update(plan.tasks)
        for worker in self.taken_back:
            for part in self.letters.get(worker, ()):
                part.start, part.rated, part.ask = [], {}, []
        for name in plan.lost:
            self.workers.pop(name, None)
            self.letters.pop(name, None)
        for worker, part in plan.parts.items():
            self.letters.setdefault(worker, []).append(part)
        firsts = {name: self._first(name) for name in plan.index_keys}
        for name, first in firsts.items():
            self.index_heads.pop(name, None)
            if first is not None:
                self.index_heads[name] = first
        last_event_seq = self.head.last_event_seq + len(plan.events)
        self.head = replace(
            plan.head, revision=self.head.revision + 1, last_event_seq=last_event_seq, now=self.now
        )
        return firsts

    def _first(self, index_key: str) -> Key | None:
        here = self._under(index_key, (-math.inf, 0))
        return (here[0].sort_key, here[0].seq) if here else None


class Process(Bench):
    """One of those who share a queue: what it runs, what it was told, and its scheduler while it decides."""

    def __init__(
        self,
        shared: Shared,
        tag: str,
        *services: Limits,
        rules: dict[str, Rule] | None = None,
        questions: Questions | None = None,
        retry: Retry | int | None = None,
        queues: tuple[str, ...] | None = None,
        room: Mapping[str, int] | None = None,
        may_start: bool = True,
        hears: bool = False,
        **settings: Any,
    ) -> None:
        self.store: Shared = shared
        self.tag = tag
        self.may_start = may_start
        self.enters_at_once = True
        self.allowance = Allowance()
        self.rules = rules or {"task": Rule(Retry.of(retry))}
        self.questions = questions or Questions()
        self.settings = Settings(**settings)
        self.queues = queues
        self.room = dict(room or {})
        self.hears = hears
        self.plan = Plan()
        self.plans: list[Plan] = []
        self.tokens: dict[str, int] = {}
        self.runs: dict[int, Record] = {}
        self.given_up: set[int] = set()
        self.begun: list[Record] = []
        """What it began with its last turn, or when it last read what was decided for it."""
        self.questioned: list[Record] = []
        """What it was asked about at the same time."""
        self.answers: dict[Ref, Any] = {}
        """What its posts were answered with."""
        self.heard: list[News] = []
        """The events that it was told of, or decided and has to hear of itself."""
        self._made = 0
        self._number = 0
        self._posted: dict[int, list[Item]] = {}
        self._said: Hello | None = None
        self.is_unsure = False
        """True when something was kept of which it has not heard: it has to decide next."""
        self._entered: list[Item] = []
        self.declare_all(*services or (limits(),))
        self.forget()

    def declare_all(self, *services: Limits) -> None:
        """Have these declared with the next turn or post; what begins with # is what this process has room for."""
        for service in services:
            if service.name.startswith("#"):
                self.room[service.name] = service.concurrent or 0
            else:
                self._entered.append(Declare(service, is_quiet=True))

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

    def spec(self, id: str | None = None, /, **fields: Any) -> Spec:
        """What the edge makes of a submission; ids of the queue's own say which process made them."""
        made = super().spec(id, **fields)
        return made if id is not None else replace(made, id=f"{self._made:011}{self.tag:8}{self._made:08}")

    # who it is --------------------------------------------------------------------------------------------

    @property
    def me(self) -> Worker:
        """This process as it tells others of itself."""
        return Worker(self.tag, "host", "boot", 1, START, self.queues, self.may_start, tuple(self.rules),
                      dict(self.room), self.hears, self.questions.kinds)  # fmt: skip

    def _hello(self) -> list[Item]:
        """What there is to tell of itself that it has not told yet."""
        rules = {
            name: replace(
                rule,
                questions=self.questions if rule.questions is None else rule.questions,
                settings=rule.settings or self.settings,
            )
            for name, rule in self.rules.items()
        }
        hello, said = Hello(self.me, rules), self._said
        is_known = self.tag in self.store.workers or bool(self._posted)
        if said is not None and is_known and (said.worker, said.rules) == (hello.worker, rules):
            return []
        self._said = hello
        return [hello]

    # deciding ---------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The scheduler is thrown away; the process, and what runs in it, goes on."""
        self.scheduler = Scheduler(self.settings, {}, self.tag, is_shared=True, calendar=SystemCalendar())
        self.scheduler.adopt(self.runs.values(), self._entered)
        self._seen: int | None = None
        self._news: dict[str, Key | None] = {}

    @property
    def decides(self) -> bool:
        """True when this process took the last turn, and knows so."""
        head = self.store.head
        return self._seen is not None and (head.decider, head.revision) == (self.tag, self._seen)

    def turn(self, *items: Item, is_kept: bool = True, is_heard: bool = True) -> Plan:
        """Decide for all, at this moment; when it is not kept, nothing of it has happened.

        Of one that is kept and not heard of, the queue knows and this process does not.
        """
        shared = self.store
        self._settle_posts()
        is_first = not self.decides
        if is_first:
            self.forget()
        inbox = [*self._hello(), *self._entered, *items]
        self._entered = []
        letters, posts = shared.letters.get(self.tag, []), [*shared.inbox]
        given = [record.token for part in letters for record in part.start]
        plan = self._decide(is_first, given, inbox, posts)
        if is_kept and (is_first or plan.writes or posts or not is_heard):
            shared.inbox = shared.inbox[len(posts) :]
            shared.letters.pop(self.tag, None)
            self._news = shared.keep(plan)
        elif is_kept:
            shared.letters.pop(self.tag, None)
        if not is_kept or not is_heard:
            self.is_unsure = is_kept
            self._settle_posts()
            self._said = None
            self._entered = [item for item in inbox if isinstance(item, HAPPENED)]
            self.forget()
            return plan
        self.is_unsure = False
        self.plan = plan
        self.plans.append(plan)
        self._seen = shared.head.revision
        self._settle_posts()
        self._end_runs(inbox)
        self.begun, self.questioned = [], []
        self._open(*letters, plan)
        self.heard += plan.heard().events
        return plan

    def _decide(self, is_first: bool, given: list[int], inbox: list[Item], posts: Sequence[Post]) -> Plan:
        """The steps of a decision, as everywhere (engine/decision.py)."""
        shared, scheduler = self.store, self.scheduler
        shared.taken_back = set()
        shared.most_reads = shared.reads + MOST_READS
        scheduler.begin(shared.now, shared.wall, shared)
        scheduler.begins(given, posts)
        if is_first:
            scheduler.catch_up(shared.everything())
        elif self._news:
            scheduler.catch_up(Changes(shared.head, index_heads=self._news))
        self._news = {}
        scheduler.greet(inbox, posts)
        everything = [*inbox, *(item for post in posts for item in post.items)]
        while request := scheduler.needs(everything):
            scheduler.absorb(request, shared.read(request))
        scheduler.take_posts(posts)
        scheduler.take_in(inbox)
        scheduler.plan(self.may_start, self.allowance)
        return scheduler.finish()

    def serve(self, may_start: bool = True) -> Plan:
        """Run work from now on, or none: told with a turn."""
        self.may_start = may_start
        return self.turn()

    # leaving it to others ---------------------------------------------------------------------------------

    def post(self, *items: Item) -> list[Ref]:
        """Leave these for whoever decides. What their answers will be found by."""
        assert not self.is_unsure, "what became of its last turn is known when it has decided again"
        self._settle_posts()
        first = [*self._hello(), *self._entered]
        self._entered = []
        self._number += 1
        post = Post(self.tag, self._number, [*first, *items])
        self._posted[self._number] = post.items
        self.store.inbox.append(post)
        return [(post.number, len(first) + place) for place in range(len(items))]

    def read(self, is_heard: bool = True) -> None:
        """Find what others decided for this process. What it read and did not hear of is gone."""
        self._settle_posts()
        self.begun, self.questioned = [], []
        letters = self.store.letters.pop(self.tag, [])
        if is_heard:
            self._open(*letters)
        else:
            self.is_unsure = True

    def _settle_posts(self) -> None:
        """What was taken of its posts is over for this process."""
        left = {post.number for post in self.store.inbox if post.worker == self.tag}
        for number in [number for number in self._posted if number not in left]:
            self._end_runs(self._posted.pop(number))

    def _end_runs(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Ended) or (isinstance(item, Outcome) and item.has_ended):
                self.runs.pop(item.token, None)
                self.given_up.discard(item.token)

    def _open(self, *parts: Plan) -> None:
        """Do what was decided."""
        for part in parts:
            self.begun += part.start
            self.questioned += part.ask
            if part is not self.plan:
                self.heard += part.events
            for record in part.start:
                self.tokens[record.id] = record.token
                self.runs[record.token] = record
                if self.enters_at_once:
                    self._entered.append(Entered([(record.token, self.now, self.now)]))
            self.given_up.update(token for token in part.stop if token in self.runs)
            self.answers.update((ref, answer) for ref, answer in part.replies if isinstance(ref, tuple))

    # what came of it --------------------------------------------------------------------------------------

    @property
    def started(self) -> list[str]:
        """The ids of what this process began last, whoever decided that."""
        return [record.id for record in self.begun]

    @property
    def asked(self) -> list[str]:
        """The ids of what it was asked about last."""
        return [record.id for record in self.questioned]

    def told_of(self, type: str) -> list[str | None]:
        """The ids of everything of that type that this process heard of."""
        known = map(draft_of, self.heard)
        return [None if one.record is None else one.record.id for one in known if one.type == type]

    @property
    def ledger(self) -> Ledger:
        """How everything stands, as this process knows it, or would if it looked."""
        if self.decides:
            return self.scheduler.ledger
        looking = Scheduler(self.settings, {}, "looking", is_shared=True)
        looking.begin(self.now, self.wall, self.store)
        looking.catch_up(self.store.everything())
        return looking.ledger

    @property
    def active(self) -> dict[str, int]:
        """How many places of each service are taken, by whomever."""
        return {name: service.active for name, service in self.ledger.ready.services.items()}

    def why(self, work_id: str, *, is_started: bool = True) -> Explanation:
        """Why that work waits, right now."""
        return explain(self.ledger, self.record(work_id), self.now, self.wall, is_started)


def two(
    *services: Limits, serving: Sequence[str] = ("one", "two"), **options: Any
) -> tuple[Shared, Process, Process]:
    """A queue and two processes that have it open, of which these run work."""
    shared = Shared()
    one, other = (
        Process(shared, tag, *services, may_start=tag in serving, **options) for tag in ("one", "two")
    )
    one.turn()
    other.turn()
    return shared, one, other
