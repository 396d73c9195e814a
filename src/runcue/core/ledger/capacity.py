"""The slots that attempts take up in services and in workers, and the calls that circuits count.

An attempt that was given up (it ran out of time, or was cancelled) is *overdue* while its code still runs: its answer
no longer counts, and it keeps its slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.fleet import Fleet, Member
from runcue.core.ledger.notices import Notices
from runcue.core.limits.breaker import Breaker
from runcue.core.limits.service import Service
from runcue.core.model.record import Record
from runcue.core.model.state import Overdue
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.ready import Ready


class CircuitCall(NamedTuple):
    """A call that a circuit counts; its answer counts while the circuit is in the same `epoch`."""

    service: Service
    breaker: Breaker
    epoch: int


class Capacity:
    """Which attempts have slots, in which services and workers."""

    __slots__ = ("_calls", "_fleet", "_notices", "_overdue", "_ready", "_runners", "_slots", "_turn")

    def __init__(self, turn: CurrentTurn, ready: Ready, fleet: Fleet | None, notices: Notices) -> None:
        self._turn = turn
        self._ready = ready
        self._fleet = fleet
        self._notices = notices
        self._slots: dict[int, Lane] = {}
        """The lane of each attempt, by token, as long as its code runs."""
        self._runners: dict[int, Member] = {}
        """The worker that runs an attempt, where several processes share the queue."""
        self._overdue: dict[int, str] = {}
        """The units of overdue attempts."""
        self._calls: dict[int, list[CircuitCall]] = {}

    # looking ------------------------------------------------------------------------------------------------

    def lane_of(self, token: int) -> Lane | None:
        """The lane in which that attempt is counted; None when its code has ended."""
        return self._slots.get(token)

    def lanes(self) -> Iterable[Lane]:
        """The lanes of all attempts."""
        return self._slots.values()

    def overdue(self, token: int) -> str | None:
        """The unit of that attempt, if the attempt is overdue."""
        return self._overdue.get(token)

    def overdue_attempt_of(self, work_id: str) -> int | None:
        """The last overdue attempt of that unit, if it has one."""
        return next((token for token, one in reversed(self._overdue.items()) if one == work_id), None)

    def run_by(self, member: Member) -> list[int]:
        """The attempts that this worker runs."""
        return [token for token, runner in self._runners.items() if runner is member]

    def are_calls_counted(self) -> bool:
        """True while a circuit counts one of the attempts."""
        return bool(self._calls)

    # taking -------------------------------------------------------------------------------------------------

    def take(self, token: int, lane: Lane, member: Member | None) -> None:
        """Count a starting attempt in its lane and its worker; the caller counts it in the services."""
        self._slots[token] = lane
        if member is not None:
            self._runners[token] = member

    def take_up(self, token: int, lane: Lane, member: Member) -> None:
        """Count an attempt that started before this process decided, in its services and its worker."""
        self.take(token, lane, member)
        for service in lane.services:
            service.active += 1
        assert lane.crew is not None
        member.take(lane.crew.needs, 1)

    def count_calls(self, services: Collection[Service], token: int) -> None:
        """Have the circuits of these services count that attempt."""
        calls = self._calls[token] = []
        for service in services:
            assert service.breaker is not None
            self._notices.changed(service)
            self._notices.circuit(service, service.breaker.started(self._turn.now))
            calls.append(CircuitCall(service, service.breaker, service.breaker.epoch))
            if service.breaker.probe_deadline is not None:
                self._ready.wake_service(service, service.breaker.probe_deadline)

    def recall_calls(self, token: int, breakers: Iterable[tuple[Service, Breaker]]) -> None:
        """Note that these circuits counted the attempt before this process decided."""
        calls = [CircuitCall(service, breaker, breaker.epoch) for service, breaker in breakers]
        if calls:
            self._calls[token] = calls

    # giving back --------------------------------------------------------------------------------------------

    def judge(self, token: int, verdict: bool | None) -> None:
        """Report to the circuits how an attempt ended: well, badly, or (None) without proving anything."""
        for service, breaker, epoch in self._calls.pop(token, ()):
            if service.breaker is breaker:
                self._notices.changed(service)
                self._notices.circuit(service, breaker.ended(epoch, verdict, self._turn.now))
                self._ready.touch(service)

    def release(self, token: int) -> Lane | None:
        """Free the slots of an attempt whose code has ended. Returns the lane it was counted in."""
        lane = self._slots.pop(token, None)
        if lane is None:
            return None
        for service in lane.services:
            service.active -= 1
            self._ready.touch(service)
        member = self._runners.pop(token, None)
        if self._fleet is not None and member is not None:
            assert lane.crew is not None
            self._fleet.free(member, lane.crew.needs)
            self._fleet.ended(member, token)
        return lane

    def release_good(self, ended: Sequence[Record]) -> None:
        """Free the slots of attempts that ended well: `release` for all of a turn, because every unit takes this
        path."""
        tokens = [record.token for record in ended]
        lanes = [*map(self._slots.pop, tokens)]
        for lane, amount in Counter(lanes).items():
            for service in lane.services:
                if service.width is None and not service.throttle_streak:
                    service.active -= amount
                else:
                    self._went_well(
                        service, (one for one, its in zip(ended, lanes, strict=True) if its is lane)
                    )
                self._ready.touch(service)
        if self._fleet is not None:
            members = map(self._runners.pop, tokens)
            for (member, lane), amount in Counter(zip(members, lanes, strict=True)).items():
                assert lane.crew is not None
                self._fleet.free(member, lane.crew.needs, amount)

    def _went_well(self, service: Service, records: Iterable[Record]) -> None:
        for record in records:
            service.active -= 1
            if service.went_well(record.started_at or 0.0):
                self._notices.changed(service)

    def code_ended(self, token: int) -> str | None:
        """The code of that attempt has ended: it is overdue no longer. Returns its unit if it was."""
        return self._overdue.pop(token, None)

    def stop(self, token: int) -> None:
        """Plan that the process which runs this attempt tells its code to stop."""
        plan, member = self._turn.plan, self._runners.get(token)
        if member is None or member.id == self._turn.worker:
            plan.stop.append(token)
        else:
            plan.part(member.id).stop.append(token)

    def give_up(self, record: Record) -> None:
        """Make the attempt of a running unit overdue: it no longer counts, but keeps its slots."""
        token = record.token
        self._overdue[token] = record.id
        member = self._runners.get(token)
        if self._fleet is not None and member is not None:
            spec = record.spec
            given_up = Overdue(token, record.id, spec.task, spec.queue, spec.services, record.chosen)
            self._fleet.give_up(member, given_up)

    def was_given_up(self, token: int, work_id: str) -> None:
        """Note an attempt that was overdue before this process decided."""
        self._overdue[token] = work_id
