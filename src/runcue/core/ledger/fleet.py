"""The processes that run work, as whoever decides sees them: who may run what, and whose room is used.

A worker has room for so many attempts in all, in threads and in its process pool. Work of a lane is run by its crew:
the workers that know its task, serve its queue and are started. A crew has room when one of them has, and is parked
at like any service (schedule/ready.py). Each start goes to the least loaded of those with room, and among equals to
the one that has waited longest. Units of short tasks stay with whoever decides (`Fleet.keep`): to hand one to another
worker would take longer than to run it.

What a worker was given and has not read after a while is taken back for others (`TurnReader.take_back`), which costs
no attempt: the worker is stuck or stopped, and is given nothing more until it says something. What it has begun stays
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace

from msgspec.structs import replace

from runcue.core.limits.meter import Cost
from runcue.core.limits.service import UNLIMITED, Blocked, Limits, Service
from runcue.core.model.state import Overdue, Worker

LATELY = 1.0
"""Seconds for which a worker that said something passes for awake."""
HERE = "#running"
"""Everything that runs in one process, where that is limited: each attempt takes up some of it."""
UNREAD = 1.0
"""Seconds after which what a worker was given and has not read is taken back."""


class Member:
    """One worker: what it takes up, and since when it may not have read what it was given."""

    __slots__ = ("crews", "given_at", "heard_at", "is_stuck", "overdue", "unread_since", "used", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.used: dict[str, int] = {}
        self.crews: list[Crew] = []
        self.given_at = 0.0
        """When it was last given something."""
        self.heard_at = -float("inf")
        """When it last left something for whoever decides."""
        self.unread_since: float | None = None
        """When it was given something, if nothing was heard of it since."""
        self.is_stuck = False
        """True when it left that unread, and nothing was heard of it since."""
        self.overdue: dict[int, Overdue] = {}
        """Attempts of it that were given up and whose code still runs, by token."""

    @property
    def id(self) -> str:
        """Its name."""
        return self.worker.id

    def room(self, needs: tuple[str, ...]) -> int:
        """How many more attempts that need this it can have."""
        room, used = self.worker.room, self.used
        return min((room[need] - used.get(need, 0) for need in needs if need in room), default=UNLIMITED)

    def most(self, needs: tuple[str, ...]) -> int:
        """How many attempts that need this it can have in all."""
        room = self.worker.room
        return min((room[need] for need in needs if need in room), default=UNLIMITED)

    def load(self, needs: tuple[str, ...]) -> float:
        """How much of its room is used, of what is used most; where there is no limit, how many attempts it has."""
        room, used = self.worker.room, self.used
        shares = [used.get(need, 0) / room[need] if room[need] else 1.0 for need in needs if need in room]
        return max(shares) if shares else float(used.get(HERE, 0))

    def take(self, needs: tuple[str, ...], amount: int) -> None:
        """So many attempts more, or fewer, that need this."""
        for need in needs:
            self.used[need] = self.used.get(need, 0) + amount

    def may_run(self, task: str, queue: str) -> bool:
        """True when it is started, serves that queue and knows that task."""
        worker = self.worker
        is_served = worker.queues is None or queue in worker.queues
        return worker.is_serving and is_served and task in worker.tasks


class Crew(Service):
    """Those who may run the work of some lanes. It has room when one of them has."""

    __slots__ = ("keeper", "members", "needs", "queue", "task")

    def __init__(self, task: str, queue: str, needs: tuple[str, ...]) -> None:
        super().__init__(Limits(f"#crew {task} {queue} {' '.join(needs)}"))
        self.task = task
        self.queue = queue
        self.needs = needs
        self.members: list[Member] = []
        self.keeper: Member | None = None
        """The one that gets all starts, while there is such a one."""

    def room(self, now: float) -> int:
        """How many starts all of them together can take now."""
        needs = self.needs
        if self.keeper is not None:
            return max(0, self.keeper.room(needs))
        total = 0
        for member in self.members:  # on the path of every turn, for each of them
            if member.is_stuck:
                continue
            room, used, left = member.worker.room, member.used, UNLIMITED
            for need in needs:
                if need in room:
                    left = min(left, room[need] - used.get(need, 0))
            if left > 0:
                total += left
        return min(total, UNLIMITED)

    def assign(self, amount: int, now: float) -> list[Member]:
        """Who gets each of so many starts; there is room for them."""
        needs, members = self.needs, self.members
        only = members[0] if len(members) == 1 else self.keeper
        if only is not None:
            chosen = [only] * amount
            only.take(needs, amount)
        else:
            chosen = []
            free = [one for one in members if not one.is_stuck and one.room(needs) > 0]
            line = [(one.load(needs), one.given_at, place, one) for place, one in enumerate(free)]
            heapify(line)
            for _ in range(amount):
                _, given_at, place, member = line[0]
                member.take(needs, 1)
                chosen.append(member)
                if member.room(needs) > 0:
                    heapreplace(line, (member.load(needs), given_at, place, member))
                else:
                    heappop(line)
        for member in chosen:
            member.given_at = now
        return chosen

    def scarce(self) -> tuple[str, int, int]:
        """What they have too little of (the name of a need), how much of it is used and how much there is in all."""
        members = self.members if self.keeper is None else [self.keeper]
        limited = [need for need in self.needs if any(need in one.worker.room for one in members)]

        def counted(need: str) -> tuple[int, int]:
            those = [one for one in members if need in one.worker.room]
            return sum(one.used.get(need, 0) for one in those), sum(one.worker.room[need] for one in those)

        full = [need for need in limited if counted(need)[0] >= counted(need)[1]] or limited or [""]
        return (full[0], *counted(full[0])) if limited else ("", 0, 0)

    def blocked(self, now: float, cost: Cost = ()) -> Blocked | None:
        """Why none of them can take a start; None when one can."""
        if self.room(now) > 0:
            return None
        if not self.members:
            return Blocked("unserved")
        _, used, total = self.scarce()
        return Blocked("concurrency", None, f"{used}/{total} running")


class Fleet:
    """All workers, and the crews they make up."""

    def __init__(self, touch: Callable[[Service], None]) -> None:
        self.members: dict[str, Member] = {}
        self._crews: dict[tuple[str, str, tuple[str, ...]], Crew] = {}
        self._touch = touch
        self._kept: tuple[frozenset[str], Member | None] = frozenset(), None
        """Short tasks, and who runs their units."""
        self.changed: dict[Member, None] = {}
        """Those of whom something is to be written."""

    def crew(self, task: str, queue: str, needs: tuple[str, ...]) -> Crew:
        """Those who may run work of that task and queue, which takes up this in its process."""
        key = task, queue, needs
        crew = self._crews.get(key)
        if crew is None:
            crew = self._crews[key] = Crew(task, queue, (*(need for need in needs if need != HERE), HERE))
            self._gather(crew)
        return crew

    def keep(self, tasks: frozenset[str], keeper: Member | None) -> None:
        """From now on that worker gets all units of these tasks that it may run, and of no others."""
        if (tasks, keeper) != self._kept:
            self._kept = tasks, keeper
            for crew in self._crews.values():
                self._appoint(crew)

    def _appoint(self, crew: Crew) -> None:
        tasks, keeper = self._kept
        crew.keeper = keeper if crew.task in tasks and keeper in crew.members else None
        self._touch(crew)

    def drop_crews(self, used: Iterable[Crew | None]) -> None:
        """Forget the crews that are none of these: they have no lane any more."""
        kept = set(used)
        for key, crew in list(self._crews.items()):
            if crew not in kept:
                del self._crews[key]
                for member in crew.members:
                    member.crews.remove(crew)

    def join(self, worker: Worker) -> Member:
        """That worker is here, or tells something else of itself than before."""
        member = self.members.get(worker.id)
        if member is None:
            member = self.members[worker.id] = Member(worker)
            member.overdue = {one.token: one for one in worker.overdue}
        else:
            member.worker = replace(worker, overdue=tuple(member.overdue.values()))
        for crew in self._crews.values():
            self._gather(crew)
        return member

    def leave(self, worker_id: str) -> None:
        """That worker is gone."""
        self.changed.pop(self.members.pop(worker_id), None)
        for crew in self._crews.values():
            self._gather(crew)

    def _gather(self, crew: Crew) -> None:
        for member in crew.members:
            member.crews.remove(crew)
        crew.members = [one for one in self.members.values() if one.may_run(crew.task, crew.queue)]
        for member in crew.members:
            member.crews.append(crew)
        crew.cap = min(sum(one.most(crew.needs) for one in crew.members), UNLIMITED)
        self._appoint(crew)

    def free(self, member: Member, needs: tuple[str, ...]) -> None:
        """An attempt of that worker has ended: there is room in its place."""
        member.take(needs, -1)
        for crew in member.crews:
            self._touch(crew)

    def heard_of(self, worker_id: str, now: float) -> None:
        """That worker said something: it is not stuck."""
        member = self.members.get(worker_id)
        if member is not None:
            member.heard_at = now
            member.unread_since = None
            if member.is_stuck:
                member.is_stuck = False
                for crew in member.crews:
                    self._touch(crew)

    def given(self, worker_id: str, now: float) -> None:
        """That worker was left something to read."""
        member = self.members[worker_id]
        member.given_at = now
        if member.unread_since is None:
            member.unread_since = now

    def judge(self, task: str, kinds: tuple[str, ...], first: str) -> str | None:
        """Who is asked about work of that task: `first`, if it can be, else who was given nothing for longest.

        Those who have the callbacks are asked; only if nobody who runs work has them, whoever knows the task.
        """
        known = [one for one in self.serving() if task in one.worker.tasks]
        able = [one for one in known if set(kinds) <= {*one.worker.callbacks}] or known
        able = [one for one in able if not one.is_stuck]
        if any(one.id == first for one in able):
            return first
        chosen = min(able, key=lambda one: one.given_at, default=None)
        return None if chosen is None else chosen.id

    def unread(self, now: float) -> list[Member]:
        """Those of whom nothing was heard for so long that what they have not read is to be taken back."""
        return [
            member for member in self.members.values()
            if member.unread_since is not None and now - member.unread_since >= UNREAD
        ]  # fmt: skip

    def wakes_at(self) -> float:
        """When that is next the case, if nothing is heard of anybody."""
        since = [one.unread_since for one in self.members.values() if one.unread_since is not None]
        return min(since, default=float("inf")) + UNREAD

    def give_up(self, member: Member, overdue: Overdue) -> None:
        """An attempt of that worker no longer counts, and its code still runs."""
        member.overdue[overdue.token] = overdue
        self._overdue_changed(member)

    def ended(self, member: Member, token: int) -> None:
        """It has ended."""
        if member.overdue.pop(token, None) is not None:
            self._overdue_changed(member)

    def _overdue_changed(self, member: Member) -> None:
        member.worker = replace(member.worker, overdue=tuple(member.overdue.values()))
        self.changed[member] = None

    def successor(self, decider: str, now: float) -> str | None:
        """Who had better decide than a process that runs nothing itself: one that runs work and was heard of lately.
        None when there is none, or when the process runs work."""
        member = self.members.get(decider)
        if member is None or member.worker.is_serving:
            return None
        able = [one for one in self.serving() if not one.is_stuck and now - one.heard_at <= LATELY]
        return max(able, key=lambda one: one.heard_at).id if able else None

    def serving(self) -> Iterable[Member]:
        """Those that run work."""
        return (member for member in self.members.values() if member.worker.is_serving)
