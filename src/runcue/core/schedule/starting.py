"""Granting starts: what each takes up, which worker runs it, what is written and emitted about it.

Every unit takes this path: whatever can be done once for a batch is not done for each unit.
"""

from __future__ import annotations

from msgspec.structs import replace

from runcue.core.ledger.grants import NOT_RATED
from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.service import Group, Service
from runcue.core.model.lifecycle import PENDING, RUNNING, started
from runcue.core.model.record import Record
from runcue.core.schedule.lane import Lane


def start(ledger: Ledger, lane: Lane, batch: list[Record]) -> None:
    """Grant the starts of these units of a lane: services, windows and circuits count them from now on."""
    if lane.group is not None:
        _start_on_members(ledger, lane, lane.group, batch)
        return
    if ledger.is_shared:
        batch = [record for record in batch if not record.crashes or ledger.risk.allows(record)]
    turn, records, token = ledger.turn, ledger.working.records, ledger.counters.token
    now, plan, here, take = turn.now, turn.plan, turn.worker, ledger.capacity.take
    written, begin, tell = plan.records, plan.start.append, plan.events.append
    rates, crew = plan.rated, lane.crew
    worker = index_key = None
    amount = len(batch)
    crewed = None if crew is None else iter(crew.assign(amount, now))
    plan.index_keys.add(lane.index_key)
    rated: list[Service] = []
    breakers = []
    is_metered = False
    for service in lane.services:
        service.active += amount
        if service.is_rated:
            service.granted(amount)
            rated.append(service)
        if service.breaker is not None:
            breakers.append(service)
        if service.is_metered:
            is_metered = True
            service.spend_budget("", amount)
    granted = ledger.grants.grant(rated, batch) if rated else NOT_RATED
    for record in batch:
        token += 1
        member = None
        if crewed is not None:
            member = next(crewed)
            if member.id != worker:
                worker = member.id
                index_key = f"running/{worker}"
                mine = plan
                if worker != here:
                    mine = plan.part(worker)
                    if member.unread_since is None:
                        member.unread_since = now
                begin, rates = mine.start.append, mine.rated
            if worker != here:
                plan.foreign[len(plan.events)] = worker
        running = started(record, token, now, worker, index_key)
        if lane.chosen is not None:
            running = replace(running, chosen=lane.chosen.name)
            plan.rewritten.add(record.id)
        if record.spec.group is not None:
            ledger.groups.moved(record.spec.group, PENDING, RUNNING)
        records[record.id] = written[record.id] = running
        begin(running)
        tell(running)
        take(token, lane, member)
        if rated:
            ledger.grants.add(token, granted)
            rates[token] = granted.counted_at
        if is_metered:
            ledger.grants.reserve(record, token, lane, granted)
        if breakers:
            ledger.capacity.count_calls(breakers, token)
    ledger.counters.started(amount)


def _start_on_members(ledger: Ledger, lane: Lane, group: Group, batch: list[Record]) -> None:
    """Start each unit on the least loaded service of a group."""
    for record in batch:
        member = group.pick(record.spec.cost, ledger.turn.now)
        if member is None:  # callbacks chose a unit that costs more than the first of the lane does
            ledger.place(record)
        else:
            start(ledger, lane.on(member), [record])
