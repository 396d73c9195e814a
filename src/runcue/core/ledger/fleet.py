"""The worker processes, as the deciding process sees them: which units each may run, and how much room each has.

A worker has room for a number of attempts in all, in threads and in its process pool. The units of a lane are run by
its *crew*: the workers that registered the task, serve the queue and are started. A crew has room when one of its
members has, and lanes are parked at it like at any service (schedule/ready.py). Each start goes to the least loaded
member with room, and among equals to the one whose last start is the longest ago. Units of short tasks stay with the
deciding process (`Fleet.keep`): to hand one to another worker would take longer than to run it.

A start that its worker has not read after a while is taken back (`TurnReader.take_back`), which uses up no attempt.
Such a worker is *stuck* and gets no starts until it leaves a post. It goes on with what it has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace

from msgspec.structs import replace

from runcue.core.limits.meter import Cost
from runcue.core.limits.service import UNLIMITED, Blocked, Limits, Service
from runcue.core.model.state import Overdue, Worker

LATELY = 1.0
"""Seconds for which a worker counts as responsive after each post it leaves."""
HERE = "#running"
"""The implicit service that every attempt uses: how many attempts one process may have at once."""
UNREAD = 1.0
"""Seconds after which a start that its worker has not read is taken back."""


class Member:
    """One worker: what its attempts take up, and since when it may not have read its letters."""

    __slots__ = ("crews", "given_at", "heard_at", "is_stuck", "overdue", "unread_since", "used", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.used: dict[str, int] = {}
        self.crews: list[Crew] = []
        self.given_at = 0.0
        """When it was last left a letter."""
        self.heard_at = -float("inf")
        """When it last left a post."""
        self.unread_since: float | None = None
        """When it was left the first letter since its last post."""
        self.is_stuck = False
        """True when it did not read that letter in time, and has left no post since."""
        self.overdue: dict[int, Overdue] = {}
        """Its attempts that were given up and whose code still runs, by token."""

    @property
    def id(self) -> str:
        """The id of the worker."""
        return self.worker.id

    def room(self, needs: tuple[str, ...]) -> int:
        """How many more attempts with these needs it can have."""
        room, used = self.worker.room, self.used
        return min((room[need] - used.get(need, 0) for need in needs if need in room), default=UNLIMITED)

    def most(self, needs: tuple[str, ...]) -> int:
        """How many attempts with these needs it can have in all."""
        room = self.worker.room
        return min((room[need] for need in needs if need in room), default=UNLIMITED)

    def load(self, needs: tuple[str, ...]) -> float:
        """The share of its scarcest room that is used; without any limit, how many attempts it has."""
        room, used = self.worker.room, self.used
        shares = [used.get(need, 0) / room[need] if room[need] else 1.0 for need in needs if need in room]
        return max(shares) if shares else float(used.get(HERE, 0))

    def take(self, needs: tuple[str, ...], amount: int) -> None:
        """Count so many more (or fewer) attempts with these needs."""
        for need in needs:
            self.used[need] = self.used.get(need, 0) + amount

    def may_run(self, task: str, queue: str) -> bool:
        """True when it is started, serves that queue and has a handler for that task."""
        worker = self.worker
        is_served = worker.queues is None or queue in worker.queues
        return worker.is_serving and is_served and task in worker.tasks


class Crew(Service):
    """The workers that may run the units of some lanes: a service that has room when one of them has."""

    __slots__ = ("keeper", "members", "needs", "queue", "task")

    def __init__(self, task: str, queue: str, needs: tuple[str, ...]) -> None:
        super().__init__(Limits(f"#crew {task} {queue} {' '.join(needs)}"))
        self.task = task
        self.queue = queue
        self.needs = needs
        self.members: list[Member] = []
        self.keeper: Member | None = None
        """The member that gets all starts, if there is such a one."""

    def room(self, now: float) -> int:
        """How many starts all members together can take now."""
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
        """The member that gets each of so many starts. The crew has room for them."""
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
        """The need that the members lack room for, how much of that room is used, and how much there is."""
        members = self.members if self.keeper is None else [self.keeper]
        found = []
        for need in self.needs:
            limited = [one for one in members if need in one.worker.room]
            if limited:
                used = sum(one.used.get(need, 0) for one in limited)
                found.append((need, used, sum(one.worker.room[need] for one in limited)))
        return next((one for one in found if one[1] >= one[2]), found[0] if found else ("", 0, 0))

    def blocked(self, now: float, cost: Cost = ()) -> Blocked | None:
        """Why no member can take a start; None when one can."""
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
        """Short tasks, and the worker that runs their units."""
        self.changed: dict[Member, None] = {}
        """The members whose row has to be written with this turn."""

    def crew(self, task: str, queue: str, needs: tuple[str, ...]) -> Crew:
        """The crew for the units of that task and queue, whose attempts have these needs."""
        key = task, queue, needs
        crew = self._crews.get(key)
        if crew is None:
            crew = self._crews[key] = Crew(task, queue, (*(need for need in needs if need != HERE), HERE))
            self._gather(crew)
        return crew

    def keep(self, tasks: frozenset[str], keeper: Member | None) -> None:
        """Give that worker all units of these tasks that it may run, and of no others, from now on."""
        if (tasks, keeper) != self._kept:
            self._kept = tasks, keeper
            for crew in self._crews.values():
                self._appoint(crew)

    def _appoint(self, crew: Crew) -> None:
        tasks, keeper = self._kept
        crew.keeper = keeper if crew.task in tasks and keeper in crew.members else None
        self._touch(crew)

    def drop_crews(self, used: Iterable[Crew | None]) -> None:
        """Forget all crews but these: they have no lane any more."""
        kept = set(used)
        for key, crew in list(self._crews.items()):
            if crew not in kept:
                del self._crews[key]
                for member in crew.members:
                    member.crews.remove(crew)

    def join(self, worker: Worker) -> Member:
        """Add a worker, or take in what has changed about it."""
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
        """Remove a worker."""
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

    def free(self, member: Member, needs: tuple[str, ...], amount: int = 1) -> None:
        """So many attempts of that worker have ended: its crews have room again."""
        member.take(needs, -amount)
        for crew in member.crews:
            self._touch(crew)

    def heard_of(self, worker_id: str, now: float) -> None:
        """That worker left a post: it is not stuck."""
        member = self.members.get(worker_id)
        if member is not None:
            member.heard_at = now
            member.unread_since = None
            if member.is_stuck:
                member.is_stuck = False
                for crew in member.crews:
                    self._touch(crew)

    def given(self, worker_id: str, now: float) -> None:
        """That worker is left a letter with this turn."""
        member = self.members[worker_id]
        member.given_at = now
        if member.unread_since is None:
            member.unread_since = now

    def judge(self, task: str, kinds: tuple[str, ...], first: str) -> str | None:
        """The worker whose callbacks are called for units of that task: `first` if it can, else the least busy.

        Workers that have all these callbacks come first; if there are none, workers that have the task.
        """
        known = [one for one in self.serving() if task in one.worker.tasks]
        able = [one for one in known if set(kinds) <= {*one.worker.callbacks}] or known
        able = [one for one in able if not one.is_stuck]
        if any(one.id == first for one in able):
            return first
        chosen = min(able, key=lambda one: one.given_at, default=None)
        return None if chosen is None else chosen.id

    def unread(self, now: float) -> list[Member]:
        """The workers that have left their letters unread for so long that starts have to be taken back."""
        return [
            member for member in self.members.values()
            if member.unread_since is not None and now - member.unread_since >= UNREAD
        ]  # fmt: skip

    def wakes_at(self) -> float:
        """When starts have to be taken back next, if no worker leaves a post until then."""
        since = [one.unread_since for one in self.members.values() if one.unread_since is not None]
        return min(since, default=float("inf")) + UNREAD

    def give_up(self, member: Member, overdue: Overdue) -> None:
        """Note that an attempt of that worker is overdue."""
        member.overdue[overdue.token] = overdue
        self._overdue_changed(member)

    def ended(self, member: Member, token: int) -> None:
        """The code of an attempt of that worker has ended: if it was overdue, it no longer is."""
        if member.overdue.pop(token, None) is not None:
            self._overdue_changed(member)

    def _overdue_changed(self, member: Member) -> None:
        member.worker = replace(member.worker, overdue=tuple(member.overdue.values()))
        self.changed[member] = None

    def successor(self, decider: str, now: float) -> str | None:
        """The worker that should decide instead of a process that runs no units: the one that left the last post.

        None when the process runs units itself, or when no worker left a post lately.
        """
        member = self.members.get(decider)
        if member is None or member.worker.is_serving:
            return None
        able = [one for one in self.serving() if not one.is_stuck and now - one.heard_at <= LATELY]
        return max(able, key=lambda one: one.heard_at).id if able else None

    def serving(self) -> Iterable[Member]:
        """The workers that are started."""
        return (member for member in self.members.values() if member.worker.is_serving)
