"""A queue that several processes share: catching up with the others, and going on for those that died.

A turn is exclusive, and it begins by taking in what changed since the last one of this process. So a decision
is as good as if there were one process alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from runcue.core.breaker import Breaker
from runcue.core.ledger import HELD, Ledger
from runcue.core.limits import Service
from runcue.core.line import shelf_parts
from runcue.core.model import Record, Spec, WorkState
from runcue.core.outcome import fail_for
from runcue.core.places import WANTS
from runcue.core.plan import Changes, Key
from runcue.core.settings import MOST_CRASHES
from runcue.core.state import Head, ServiceState, Worker

WORKER_LOST = "worker_lost"


def catch_up(ledger: Ledger, changes: Changes) -> None:
    """Stand where the store stands."""
    _count(ledger, changes.head)
    ledger.plan.has_news = changes.is_foreign
    if changes.is_foreign:
        _forget_pages(ledger, changes)
        ledger.watch_at = changes.watch_at
    for grant in changes.grants:  # a service that is not watched yet recalls them when it is
        service = ledger.ready.services.get(grant.service)
        if service is not None:
            service.started_elsewhere(grant.at, grant.amount, grant.quantity)
            ledger.ready.touch(service)
    for state in changes.services:
        _service_changed(ledger, state)
    for name, first in changes.shelves.items():
        _shelf_changed(ledger, name, first, changes.is_foreign)
    if changes.is_first:
        _take_up(ledger)
    if changes.workers is not None:
        _share_services(ledger, changes.workers)
    if changes.paused is not None:
        _pause_queues(ledger, changes.paused)
    for token in changes.mail:
        _ended_by_others(ledger, token)


def find_lanes(ledger: Ledger) -> None:
    """Tasks or services came to be known: a shelf may be a lane of this program by now."""
    registered = len(ledger.rules), ledger.ready.services.declared
    if ledger.registered != registered:
        ledger.registered = registered
        lanes = {lane.shelf for lane in ledger.ready.lanes.values()}
        for name, first in list(ledger.heads.items()):
            if name not in lanes:
                _shelf_changed(ledger, name, first, is_foreign=True)


def _take_up(ledger: Ledger) -> None:
    """This ledger is new, but its process may not be: what runs in it goes on.

    What it was to run and never began is put back: the turn that started it was kept, and it never heard so.
    """
    begun = {record.token for record in ledger.orphans} | ledger.answered
    for record in list(ledger.shelf(ledger.running_shelf)):
        if record.token not in begun:
            _uncount(ledger, record)
            ledger.put_back(record, "return")
            continue
        ledger.guests.discard(record.id)
        lane = ledger.slots[record.token] = ledger.lane_run(record)
        ledger.recall(record, lane)
        epochs = [(one, breaker, breaker.epoch) for one in lane.services if (breaker := _counts(one, record))]
        if epochs:
            ledger.epochs[record.token] = epochs
    for record in ledger.orphans:
        if record.token not in ledger.slots:  # it was given up, here or by others who could not tell us
            ledger.slots[record.token] = ledger.lane_run(record)
            ledger.give_up(record.token, record.id)
            ledger.held[record.id] = record.token
            ledger.plan.stop.append(record.token)
    held = {record.id for record in ledger.shelf(ledger.held_shelf)}
    ledger.held = {work_id: token for work_id, token in ledger.held.items() if work_id in held}
    ledger.orphans = []


def _count(ledger: Ledger, head: Head) -> None:
    if (head.pending, head.running) != (ledger.pending, ledger.running) or head.seq != ledger.seq:
        ledger.has_moved = True
    ledger.count(head)


def _forget_pages(ledger: Ledger, changes: Changes) -> None:
    """Others may have changed what is in line here: read it again when it is wanted."""
    ledger.doubtful = {one.id for one in ledger.records.values() if not one.token or one.missing}
    lanes = list(ledger.ready.lanes.values())
    if ledger.asking is None:
        kept = {work_id: record for work_id, record in ledger.records.items() if record.token}
        kept |= {work_id: ledger.records[work_id] for work_id in ledger.held if work_id in ledger.records}
        ledger.records.clear()
        ledger.records.update(kept)
        ledger.doubtful &= kept.keys()
        for lane in lanes:  # all of them first: to notice one may be to read what it begins with
            lane.line.reset(changes.shelves.get(lane.shelf, ledger.heads.get(lane.shelf)))
        for lane in lanes:
            ledger.ready.notice(lane)
        return
    for lane in lanes:
        if changes.shelves.get(lane.shelf) is not None:  # what callbacks said of the others is worth keeping
            lane.line.more, lane.line.end = True, None
            ledger.ready.notice(lane)


def _shelf_changed(ledger: Ledger, name: str, first: Key | None, is_foreign: bool) -> None:
    if first is None:
        ledger.heads.pop(name, None)
    else:
        ledger.heads[name] = first
    parts = shelf_parts(name)
    if parts is None:
        return
    queue, task, services = parts
    lane = ledger.find_lane(Spec("", task, b"", services, queue))
    if lane is None:
        return  # not a task of this program: left alone
    if lane.shelf != name:  # since this was submitted, the task came to choose its services in another way
        if is_foreign:  # what this process did itself is in its place already
            for record in ledger.shelf(name):
                ledger.place(record)
        return
    line = lane.line
    if line.is_untouched:
        line.reset(first)
        ledger.ready.notice(lane)


def _service_changed(ledger: Ledger, state: ServiceState) -> None:
    services = ledger.ready.services
    service = services.find(state.limits.name)
    if service is None or not services.is_key(service):
        services.apply(state.limits)
        service = services[state.limits.name]
    else:  # a key has the limits that its service has now
        state = replace(state, limits=service.limits)
    service.load(state)
    service.is_out = service.outage(ledger.now) is not None  # whoever changed it has told so
    ledger.ready.touch(service)
    if service.breaker is not None and service.breaker.probe_deadline is not None:
        ledger.ready.wake_service(service, service.breaker.probe_deadline)


def _share_services(ledger: Ledger, workers: list[Worker]) -> None:
    """Count what runs elsewhere."""
    ledger.workers = {worker.id: worker.active for worker in workers}
    for worker in workers:
        if worker.id == ledger.worker:
            ledger.told_places = worker.active
    _count_others(ledger)


def _count_others(ledger: Ledger) -> None:
    own = ledger.own_places()
    others: dict[str, int] = {}
    for worker, taken in ledger.workers.items():
        if worker != ledger.worker:
            for name, amount in taken.items():
                others[name] = others.get(name, 0) + amount
    services = ledger.ready.services
    for name in others:
        services.find(name)  # a key that only others use so far
    for name, service in list(services.items()):
        if name.startswith("#"):
            continue
        elsewhere = others.get(name, 0)
        active = own.get(name, 0) + elsewhere
        share = service.fair_share(others.get(WANTS + name, 0))
        if (active, elsewhere, share) != (service.active, service.others, service.share):
            service.active, service.others, service.share = active, elsewhere, share
            ledger.ready.touch(service)


def _pause_queues(ledger: Ledger, paused: frozenset[str]) -> None:
    ready = ledger.ready
    for name in ready.paused ^ paused:
        ready.pause_queue(name, name in paused)


def _ended_by_others(ledger: Ledger, token: int) -> None:
    """An attempt of ours was cancelled elsewhere: its code is told to stop and keeps its places until it has."""
    record = next((one for one in ledger.records.values() if one.token == token), None)
    if record is not None:
        del ledger.records[record.id]
        ledger.doubtful.discard(record.id)
        ledger.give_up(token, record.id)
        ledger.plan.stop.append(token)


def lose(ledger: Ledger, worker: str) -> None:
    """That worker is dead: what it ran becomes pending again, or fails when that happened too often."""
    if worker not in ledger.workers:  # somebody else has seen to it
        return
    for shelf in (f"running/{worker}", f"{HELD}{worker}"):
        # Those that this very turn changed.
        changed = [record for record in ledger.plan.records.values() if record.shelf == shelf]
        for record in [*ledger.shelf(shelf), *changed]:
            if record.token:
                ledger.plan.mail.append((worker, record.token))  # in case it only seemed dead
            _take_over(ledger, record)
    del ledger.workers[worker]
    _count_others(ledger)
    ledger.plan.lost.append(worker)


def _take_over(ledger: Ledger, record: Record) -> None:
    record = replace(record, worker=None)
    if record.state is not WorkState.RUNNING:  # its last attempt was given up, and its code is gone now
        ledger.place(record)
        return
    crashes = record.crashes + 1
    _uncount(ledger, record)
    record = replace(record, crashes=crashes, spent=record.attempt)
    ledger.tell("lease_lost", record, crashes=crashes)
    if crashes >= MOST_CRASHES:
        ledger.records[record.id] = record
        fail_for(ledger, record, WORKER_LOST)
    else:
        ledger.put_back(record, "return", error=WORKER_LOST)


def _uncount(ledger: Ledger, record: Record) -> None:
    """Nobody will hear how this call ended: circuits that wait for that wait no longer."""
    for name in record.services:
        service = ledger.ready.services.find(name)
        breaker = None if service is None else _counts(service, record)
        if service is not None and breaker is not None:
            ledger.changed[service] = None
            ledger.tell_circuit(service, breaker.ended(breaker.epoch, None, ledger.now))


def _counts(service: Service, record: Record) -> Breaker | None:
    """The circuit that counts this call, if one does: none from before it last changed."""
    breaker = service.breaker
    if breaker is None or breaker.running <= 0 or (record.started_at or 0.0) < breaker.changed_at:
        return None
    if breaker.state != "closed" and record.started_at == breaker.changed_at:
        return None  # it was started in the moment before
    return breaker


def is_lost(worker: Worker, host: str, is_alive: bool, silent_for: float, lease: float) -> bool:
    """True when what that worker ran may be taken over: on this host when it is dead, on another when it has been
    silent for longer than its lease."""
    return not is_alive if worker.host == host else silent_for >= lease
