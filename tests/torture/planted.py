"""A queue in miniature, with bugs to switch on: what the checker is tested with.

It decides by seed alone: no clock, no process. Workers, submitters and a nemesis take turns on a heap of moments;
a dead actor's moments never come, a stopped one's come when it is let go on. A turn is one function call, so it is
exclusive and atomic unless a bug takes that away. `BUGS` names the bugs and the invariant that gives each away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from tests.torture.checker import EventDraft, Grant
from tests.torture.history import Kind, Line
from tests.torture.seen import Circuit, Limits, Policy, Rate, Row, Service

BUGS: Final = {
    "acknowledges a submit before its commit": "I1",
    "commits a batch row by row": "I1",
    "listens only after the first scan": "I1",
    "takes cycles for granted": "I1",
    "looks a key up outside the transaction": "I2",
    "starts work before its submit is committed": "I2",
    "has no fencing": "I3",
    "tells a completion before its commit": "I3",
    "swallows cancellations": "I3",
    "never gives work up that kills its workers": "I4",
    "runs work again whose answer was accepted": "I4",
    "claims without an exclusive transaction": "I5",
    "recovers everything that says running": "I5",
    "keeps its leases by the wall clock": "I5",
    "loses a wake-up and never looks again": "I1",
    "takes an answer from the inbox and drops it": "I1",
    "reads what it is to start twice": "I4",
    "takes an answer twice": "I12",
    "gives one start to two workers": "I5",
    "tells a start before its commit": "I5",
    "counts a grant after the call": "I6",
    "has fixed windows": "I6",
    "refunds the grants of the dead": "I6",
    "counts slots for each process alone": "I7",
    "starts what depends on failed work": "I8",
    "believes that a pid is alive": "I10",
    "counts no attempt at the claim": "I11",
    "retries at once": "I11",
    "tells events after the commit, from memory": "I12",
    "keeps its circuits in memory": "LM11",
}

SEVERAL_HOSTS: Final = frozenset({"has no fencing"})
"""Bugs that show only where a stopped owner loses its work."""

RATE: Final = Rate(20, 0.1)
SLOTS: Final = 4
RETRY: Final = Policy(attempts=3, delay=0.02)
CRASHES: Final = 3
CIRCUIT: Final = Circuit(threshold=3, timeout=0.1)
LEASE: Final = 0.15
BUSY: Final = 1.0
"""Seconds of submitting and killing; then comes the drain."""
BOUND: Final = 6.0


class Work(msgspec.Struct):
    """One row of the pretended database."""

    id: str
    tag: str
    depends_on: tuple[str, ...] = ()
    key: str | None = None
    state: str = "pending"
    attempt: int = 1
    spent: int = 0
    failures: int = 0
    crashes: int = 0
    token: str | None = None
    owner: Actor | None = None
    due: float = 0.0
    lease: float = 0.0
    result: str | None = None
    is_leaving: bool = False
    """Cancelled, and its handler has not ended yet."""
    shown: tuple[str, str | None] | None = None


class Actor:
    """A pretended process."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.is_alive = True
        self.is_stopped = False
        self.waiting: list[Callable[[], None]] = []
        self.known: set[str] = set()
        self.is_listening = False
        self.circuit = Breaker()


class Breaker:
    """The circuit of the service "down", of which every call fails."""

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0


def is_down(work: Work) -> bool:
    """True for work on the service of which every call fails."""
    return work.tag.startswith("down")


class Pretended:
    """One seed's world. `run()`, then read `history`, `dump()`, `grants`, `told` and `limits`."""

    def __init__(self, seed: int, bug: str | None = None, *, one_host: bool = True) -> None:
        assert bug is None or bug in BUGS
        self.random = Random(seed)
        self.bug = bug
        self.one_host = one_host
        self.t = 100.0
        self.wall = 0.0
        self.moments: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count(1)
        self.history: list[Line] = []
        self.grants: list[Grant] = []
        self.told: list[EventDraft] = []
        self.works: dict[str, Work] = {}
        self.accepted: list[str] = []
        self.workers: list[Actor] = []
        self.submitters: list[Actor] = []
        self.is_draining = False
        self.circuit = Breaker()
        self.fleet = 1 if bug == "listens only after the first scan" else self.random.randint(2, 4)
        slots = SLOTS if self.one_host else None
        self.limits = Limits(
            services={
                "api": Service(rates=(RATE,), concurrent=slots),
                "down": Service(concurrent=1 if one_host else None, circuit=CIRCUIT),
            },
            tasks={"work": RETRY},
            crashes=CRASHES,
            one_host=self.one_host,
        )

    def run(self) -> Pretended:
        """Let everything happen."""
        for _ in range(self.fleet):
            self._new_worker()
        for _ in range(2):
            self._new_submitter()
        self._after(self.random.uniform(0.02, 0.05), self._nemesis)
        self._after(BUSY, self._drain)
        while self.moments and self.t < 100.0 + BOUND:
            self.t, _, happen = heapq.heappop(self.moments)
            happen()
            if self.is_draining and all(self._is_over(work) for work in self.works.values()):
                break
        for worker in self.workers:
            self._line(worker, "info", "down")
        return self

    def dump(self) -> list[Row]:
        """The database as it stands."""
        names = ("id", "tag", "state", "attempt", "crashes", "result", "depends_on")
        return [{name: getattr(work, name) for name in names} for work in self.works.values()]

    # time and lines ---------------------------------------------------------------------------------------

    def _after(self, delay: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.moments, (self.t + delay, next(self.numbers), happen))

    def _by(self, actor: Actor, delay: float, happen: Callable[[], None]) -> None:
        """Something that an actor does later, if it still lives; if it is stopped, when it goes on."""

        def now() -> None:
            if actor.is_stopped:
                actor.waiting.append(now)
            elif actor.is_alive:
                happen()

        self._after(delay, now)

    def _line(self, actor: Actor, kind: Kind, op: str, **fields: Any) -> None:
        names = ("call", "work", "attempt", "token", "services")
        known = {name: fields.pop(name) for name in names if name in fields}
        self.history.append(Line(self.t, actor.pid, actor.name, kind, op, data=fields, **known))

    def _tell(self, type: str, work: Work, by: Actor | None = None) -> None:
        final = work.state in {"completed", "failed", "cancelled"}
        if by is not None and self.bug == "tells events after the commit, from memory":
            self._by(by, 0.002, lambda: self._told(type, work, final))
        else:
            self._told(type, work, final)

    def _told(self, type: str, work: Work, final: bool) -> None:
        self.told.append(EventDraft(len(self.told) + 1, type, work.id, final))

    def _is_over(self, work: Work) -> bool:
        return work.state not in {"pending", "running"} and not work.is_leaving

    # submitters -------------------------------------------------------------------------------------------

    def _new_submitter(self) -> None:
        actor = Actor(f"submitter-{next(self.numbers)}", next(self.numbers))
        self.submitters.append(actor)
        self._by(actor, 0.001, lambda: self._submit(actor))

    def _submit(self, actor: Actor) -> None:
        if self.is_draining:
            return
        self._by(actor, self.random.expovariate(80), lambda: self._submit(actor))
        what = self.random.random()
        call = next(self.numbers)
        if what < 0.1:
            self._cancel(actor, call)
        elif what < 0.2:
            self._look(actor)
        elif what < 0.3:
            key = f"key-{int((self.t - 100) * 20)}" if what < 0.28 else f"down-{int((self.t - 100) * 10)}"
            self._put(actor, call, [Work(self._id(), key, key=key)])
        elif what < 0.4:
            self._put(actor, call, [Work(self._id(), f"tag-{next(self.numbers)}") for _ in range(4)])
        elif what < 0.42:
            self._put_cycle(actor, call)
        else:
            tag = f"poison-{call}" if what < 0.44 else f"tag-{call}"
            parents = self.random.sample(
                self.accepted, min(len(self.accepted), self.random.choice((0, 0, 1, 2)))
            )
            self._put(actor, call, [Work(self._id(), tag, tuple(parents))])

    def _id(self) -> str:
        return f"w{next(self.numbers)}"

    def _put(self, actor: Actor, call: int, works: list[Work]) -> None:
        key = works[0].key
        self._line(actor, "invoke", "submit", call=call, tags=[work.tag for work in works], key=key)
        if self.bug == "starts work before its submit is committed" and not works[0].depends_on:
            self._start_early(works[0])
        if self.bug == "acknowledges a submit before its commit":
            self._accept(actor, call, [work.id for work in works])
            self._by(actor, 0.005, lambda: self._insert(works))
            return
        found = self._holder(key)
        if self.bug == "commits a batch row by row":
            for number, work in enumerate(works):
                self._by(actor, 0.002 * (number + 1), lambda work=work: self._insert([work]))  # type: ignore[misc]
            self._by(actor, 0.01, lambda: self._accept(actor, call, [work.id for work in works]))
            return

        def commit() -> None:
            holder = found if self.bug == "looks a key up outside the transaction" else self._holder(key)
            if holder is None:
                self._insert(works)
            ids = [work.id for work in works] if holder is None else [holder.id]
            self._by(actor, 0.0005, lambda: self._accept(actor, call, ids))

        self._by(actor, 0.004, commit)

    def _holder(self, key: str | None) -> Work | None:
        return next((work for work in self.works.values() if key is not None and work.key == key), None)

    def _put_cycle(self, actor: Actor, call: int) -> None:
        """Two works that wait for each other: the second one has to be refused."""
        first, second = f"ring-{call}-a", f"ring-{call}-b"
        for number, (mine, other) in enumerate(((first, second), (second, first))):
            self._line(actor, "invoke", "submit", call=call + number, tags=[mine], key=None)
            next(self.numbers)
            if number and self.bug != "takes cycles for granted":
                self._line(actor, "fail", "submit", call=call + number, error="DependencyCycle")
                self._end_of_cycle(first)
            else:
                self._insert([Work(mine, mine, (other,))])
                self._line(actor, "ok", "submit", call=call + number, ids=[mine])

    def _end_of_cycle(self, first: str) -> None:
        """What waits for a work that never came is failed, as a dependency timeout would."""
        self.works[first].state = "failed"
        self._tell("failed", self.works[first])

    def _insert(self, works: list[Work]) -> None:
        for work in works:
            if work.id in self.works:
                continue
            self.works[work.id] = work
            self._told("queued", work, False)
            self._news(work)
            if any(self._ended_badly(parent) for parent in work.depends_on):
                self._fail(work)

    def _ended_badly(self, work_id: str) -> bool:
        return (
            self.bug != "starts what depends on failed work"
            and work_id in self.works
            and self.works[work_id].state in {"failed", "cancelled"}
        )

    def _accept(self, actor: Actor, call: int, ids: list[str]) -> None:
        self.accepted += ids
        self._line(actor, "ok", "submit", call=call, ids=ids)

    def _look(self, actor: Actor) -> None:
        if self.accepted and (work := self.works.get(self.random.choice(self.accepted[-20:]))):
            state, result = work.shown or (work.state, work.result)
            self._line(actor, "ok", "look", work=work.id, state=state, result=result)

    def _cancel(self, actor: Actor, call: int) -> None:
        work = self.works.get(self.random.choice(self.accepted[-20:])) if self.accepted else None
        if work is None:
            return
        self._line(actor, "invoke", "cancel", call=call, work=work.id)
        is_cancelled = not self._is_over(work) and not work.is_leaving
        if is_cancelled and self.bug != "swallows cancellations":
            work.is_leaving = work.state == "running"
            work.state = "cancelled"
            self._tell("cancelled", work)
            self._fail_dependents(work)
        self._line(actor, "ok", "cancel", call=call, work=work.id, answer=is_cancelled)

    # workers ----------------------------------------------------------------------------------------------

    def _new_worker(self) -> None:
        used = {worker.pid for worker in self.workers if worker.is_alive}
        pid = next(pid for pid in count(1000) if pid not in used)
        worker = Actor(f"worker-{next(self.numbers)}", pid)
        self.workers.append(worker)
        self._line(worker, "info", "up")
        if self.bug == "recovers everything that says running":
            for work in self.works.values():
                if work.state == "running":
                    self._back(work)
        worker.known = {work.id for work in self.works.values() if work.state == "pending"}
        gap = 0.05 if self.bug == "listens only after the first scan" else 0.0
        self._by(worker, gap, lambda: setattr(worker, "is_listening", True))
        self._by(worker, 0.0, lambda: self._tick(worker))

    def _happens(self, bug: str, often: float = 0.1) -> bool:
        """Whether that is planted, and happens now."""
        return self.bug == bug and self.random.random() < often

    def _news(self, work: Work) -> None:
        if self._happens("loses a wake-up and never looks again"):
            return
        for worker in self.workers:
            if worker.is_listening or self.bug != "listens only after the first scan":
                worker.known.add(work.id)

    def _tick(self, worker: Actor) -> None:
        self._by(worker, self.random.uniform(0.002, 0.006), lambda: self._tick(worker))
        self._recover(worker)
        for work_id in sorted(worker.known, key=lambda name: int("".join(filter(str.isdigit, name)))):
            work = self.works[work_id]
            if work.state != "pending":
                worker.known.discard(work_id)
            elif self._may_start(worker, work):
                if self.bug == "claims without an exclusive transaction":
                    self._by(worker, 0.001, lambda work=work: self._claim(worker, work))  # type: ignore[misc]
                else:
                    self._claim(worker, work)

    def _may_start(self, worker: Actor, work: Work) -> bool:
        good = {"completed", "failed"} if self.bug == "starts what depends on failed work" else {"completed"}
        if work.due > self.t or any(self._state(parent) not in good for parent in work.depends_on):
            return False
        running = [x for x in self.works.values() if x.state == "running" or x.is_leaving]
        if is_down(work):
            return self.t >= self._circuit_of(worker).until and not any(map(is_down, running))
        running = [x for x in running if not is_down(x)]
        if self.bug == "counts slots for each process alone":
            running = [x for x in running if x.owner is worker]
        if len(running) >= SLOTS and self.one_host:
            return False
        if self.bug == "has fixed windows":
            recent = [g for g in self.grants if g.t // RATE.window == self.t // RATE.window]
        else:
            recent = [g for g in self.grants if g.t > self.t - RATE.window]
        return len(recent) < RATE.most

    def _circuit_of(self, worker: Actor) -> Breaker:
        return worker.circuit if self.bug == "keeps its circuits in memory" else self.circuit

    def _state(self, work_id: str) -> str | None:
        return self.works[work_id].state if work_id in self.works else None

    def _claim(self, worker: Actor, work: Work) -> None:
        work.state, work.owner, work.token = "running", worker, f"{work.id}.{next(self.numbers)}"
        work.attempt = work.spent + 1
        work.lease = self._lease_clock() + LEASE
        if self.bug != "counts a grant after the call" and not is_down(work):
            self.grants.append(Grant("api", self.t))
        self._told("started", work, False)
        token = work.token
        self._by(worker, 0.0002, lambda: self._begin(worker, work, token, work.attempt))
        if self._happens("gives one start to two workers"):
            other = self.random.choice(self.workers)
            self._by(other, 0.0003, lambda: self._begin(other, work, token, work.attempt))
        elif self._happens("reads what it is to start twice"):
            self._by(worker, 0.04, lambda: self._begin(worker, work, token, work.attempt))
        elif self._happens("tells a start before its commit"):
            self._back(work)

    def _begin(self, worker: Actor, work: Work, token: str, attempt: int) -> None:
        service = "down" if is_down(work) else "api"
        self._line(worker, "info", "start", work=work.id, attempt=attempt, token=token, services=(service,),
                   tag=work.tag, task="work")  # fmt: skip
        length = self.random.uniform(0.001, 0.03)
        if work.tag.startswith("poison"):
            self._by(worker, length, lambda: self._kill(worker))
        else:
            self._by(worker, length, lambda: self._end(worker, work, token))

    def _end(self, worker: Actor, work: Work, token: str) -> None:
        outcome = "ok" if self.random.random() < 0.85 and not is_down(work) else "fail"
        if work.is_leaving and work.token == token:
            outcome = "stopped"
        self._line(worker, "info", "end", work=work.id, token=token, outcome=outcome)
        if self.bug == "counts a grant after the call" and not is_down(work):
            self.grants.append(Grant("api", self.t))
        if outcome == "ok" and self.bug == "tells a completion before its commit":
            work.shown = ("completed", token)
        slow = self.bug in {"tells a completion before its commit", "has no fencing"}
        self._by(worker, 0.01 if slow else 0.0005, lambda: self._finish(worker, work, token, outcome))

    def _finish(self, worker: Actor, work: Work, token: str, outcome: str) -> None:
        work.shown = None
        if self._happens("takes an answer from the inbox and drops it"):
            return
        is_current = work.token == token or self.bug == "has no fencing"
        if work.is_leaving and work.token == token:
            work.is_leaving = False
        elif work.state != "running" or not is_current:
            return
        elif outcome == "ok":
            work.spent, work.result, work.state = work.attempt, token, "completed"
            for _ in range(1 + self._happens("takes an answer twice")):
                self._tell("completed", work, worker)
            if self.bug == "runs work again whose answer was accepted" and self.random.random() < 0.05:
                work.state, work.result = "pending", None
            for other in self.works.values():
                if work.id in other.depends_on or other is work:
                    self._news(other)
        else:
            work.spent, work.failures = work.attempt, work.failures + 1
            if is_down(work):
                circuit = self._circuit_of(worker)
                circuit.failures += 1
                circuit.until = self.t + CIRCUIT.timeout if circuit.failures >= CIRCUIT.threshold else 0.0
            if work.failures >= RETRY.attempts:
                self._fail(work)
            else:
                self._told("failed", work, False)
                self._told("retrying", work, False)
                self._back(work, 0.0 if self.bug == "retries at once" else RETRY.delay)

    def _back(self, work: Work, delay: float = 0.0) -> None:
        work.state, work.owner, work.token, work.due = "pending", None, None, self.t + delay
        self._news(work)

    def _fail(self, work: Work) -> None:
        work.state = "failed"
        self._tell("failed", work)
        self._fail_dependents(work)

    def _fail_dependents(self, work: Work) -> None:
        if self.bug == "starts what depends on failed work":
            return
        for other in list(self.works.values()):
            if work.id in other.depends_on and other.state == "pending":
                self._fail(other)

    # death and recovery -----------------------------------------------------------------------------------

    def _lease_clock(self) -> float:
        return self.t + (self.wall if self.bug == "keeps its leases by the wall clock" else 0.0)

    def _recover(self, worker: Actor) -> None:
        for work in self.works.values():
            if work.owner is worker:
                work.lease = self._lease_clock() + LEASE
            elif work.owner is not None and self._is_lost(work, work.owner):
                if work.is_leaving:
                    work.is_leaving = False
                elif work.state == "running":
                    self._lose(work)

    def _is_lost(self, work: Work, owner: Actor) -> bool:
        if not self.one_host or self.bug == "keeps its leases by the wall clock":
            return work.lease < self._lease_clock()
        if self.bug == "believes that a pid is alive":
            return owner.pid not in {other.pid for other in self.workers if other.is_alive}
        return not owner.is_alive

    def _lose(self, work: Work) -> None:
        work.crashes += self.bug != "never gives work up that kills its workers"
        work.shown = None
        if self.bug != "counts no attempt at the claim":
            work.spent = work.attempt
        if self.bug == "refunds the grants of the dead" and self.grants:
            self.grants.pop()
        if work.crashes >= CRASHES:
            self._fail(work)
        else:
            self._told("retrying", work, False)
            self._back(work)

    def _nemesis(self) -> None:
        if self.is_draining:
            return
        self._after(self.random.uniform(0.02, 0.08), self._nemesis)
        target = self.random.choice([*self.workers, *self.submitters])
        what = self.random.random()
        if not target.is_alive or target.is_stopped:
            return
        if what < 0.5:
            self._kill(target)
        elif what < 0.7:
            self._stop(target)
        elif what < 0.75:
            self.wall += self.random.choice((-3600.0, 3600.0))

    def _kill(self, actor: Actor) -> None:
        if not actor.is_alive:
            return
        actor.is_alive = False
        self._line(Actor("nemesis", 1), "info", "death", target=actor.name, after=self.t)
        respawn = self._new_worker if actor in self.workers else self._new_submitter
        (self.workers if actor in self.workers else self.submitters).remove(actor)
        self._after(self.random.uniform(0.005, 0.03), respawn)

    def _stop(self, actor: Actor) -> None:
        actor.is_stopped = True
        self._line(Actor("nemesis", 1), "info", "stop", target=actor.name)
        self._after(self.random.uniform(0.02, 3 * LEASE), lambda: self._go(actor))

    def _go(self, actor: Actor) -> None:
        if not actor.is_stopped:
            return
        actor.is_stopped = False
        self._line(Actor("nemesis", 1), "info", "go", target=actor.name)
        waiting, actor.waiting = actor.waiting, []
        for happen in waiting:
            happen()

    def _drain(self) -> None:
        self.is_draining = True
        for actor in [*self.workers, *self.submitters]:
            self._go(actor)

    def _start_early(self, work: Work) -> None:
        """Somebody runs the work from memory; its row comes with its result, if it comes."""
        worker = self.random.choice(self.workers) if self.workers else None
        if worker is None or self.random.random() < 0.7:
            return
        token = f"{work.id}.early"
        self.grants.append(Grant("api", self.t))
        self._line(worker, "info", "start", work=work.id, attempt=1, token=token, tag=work.tag, task="work")
        self._line(worker, "info", "end", work=work.id, token=token, outcome="ok")
        work.state, work.result = "completed", token
