"""A queue that several processes share: taking over from whoever decided before, and going on for those that died.

One process decides for all of them (decision 0016). Who takes its place knows nothing and reads everything anew:
rules, services, who is there, what runs and where. From then on it knows all that happens, for nobody else decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from runcue.core.ledger.capacity import NOT_RATED
from runcue.core.ledger.fleet import Fleet, Member
from runcue.core.ledger.ledger import HELD, Ledger
from runcue.core.ledger.timers import BLOCKED
from runcue.core.limits.breaker import Breaker
from runcue.core.limits.service import Service
from runcue.core.model.record import Record, Spec
from runcue.core.model.settings import MOST_CRASHES, Rule
from runcue.core.model.state import Head, ServiceState, Worker
from runcue.core.schedule.gates import Verdict
from runcue.core.schedule.line import shelf_parts
from runcue.core.schedule.outcome import fail_for
from runcue.core.schedule.plan import Changes, Hello, Key

WORKER_LOST = "worker_lost"


def catch_up(ledger: Ledger, changes: Changes) -> None:
    """Stand where the store stands."""
    _count(ledger, changes.head)
    if not changes.is_first:
        for name, first in changes.shelves.items():
            _shelf_changed(ledger, name, first)
        return
    assert ledger.fleet is not None
    ledger.rules.update(changes.tasks)
    ledger.watch_at = changes.watch_at
    for state in changes.services:
        _load_service(ledger, state)
    for worker in changes.workers:
        ledger.fleet.join(worker)
    ledger.rearrange()
    for name in changes.paused:
        ledger.ready.pause_queue(name, paused=True)
    for name, first in changes.shelves.items():
        _shelf_changed(ledger, name, first, is_new=True)
    for member in list(ledger.fleet.members.values()):
        _take_up(ledger, member)
    if ledger.worker in ledger.fleet.members:  # else it tells of itself with this turn
        _take_up_orphans(ledger, ledger.fleet.members[ledger.worker])


def greet(ledger: Ledger, hello: Hello) -> None:
    """A process tells who it is and what it can run: its rules hold from now on."""
    assert ledger.fleet is not None
    known = ledger.fleet.members.get(hello.worker.id)
    rules = {name: rule for name, rule in hello.rules.items() if ledger.rules.get(name) != rule}
    tasks = set() if known is None else {*known.worker.tasks}
    if known is None or replace(known.worker, overdue=()) != replace(hello.worker, overdue=()):
        member = ledger.fleet.join(hello.worker)
        ledger.fleet.changed[member] = None
    ledger.fleet.heard_of(hello.worker.id, ledger.now)
    before = {name: ledger.rules.get(name) for name in rules}
    for name, rule in rules.items():
        _warn_of(ledger, name, before[name], rule)
    ledger.rules.update(rules)
    ledger.plan.tasks.update(rules)
    moved = {name for name, rule in rules.items() if _asks_of_needs(before.get(name)) != _asks_of_needs(rule)}
    if rules or tasks != {*hello.worker.tasks}:
        ledger.rearrange()
    if moved:
        _place_dependents(ledger, moved)
    if ledger.orphans and hello.worker.id == ledger.worker:  # it has passed for dead
        _take_up_orphans(ledger, ledger.fleet.members[ledger.worker])


def _warn_of(ledger: Ledger, name: str, before: Rule | None, now: Rule) -> None:
    """The last declaration of a task holds; where it differs from the one before, that is told."""
    if before is not None and before != now:
        ledger.tell("task_changed", task=name)


def _asks_of_needs(rule: Rule | None) -> bool:
    """True when a callback says whether the dependencies of its work are there."""
    return rule is not None and rule.questions is not None and rule.questions.dependencies


def _place_dependents(ledger: Ledger, tasks: set[str]) -> None:
    """Somebody else says from now on whether the dependencies of these tasks are there: such work waits elsewhere."""
    lanes = [name for name in ledger.heads if (parts := shelf_parts(name)) and parts[1] in tasks]
    for name in (BLOCKED, *lanes):
        for record in ledger.shelf(name):
            if record.missing and record.spec.task in tasks:
                ledger.place(record)


def find_lanes(ledger: Ledger) -> None:
    """Tasks or services came to be known: a shelf may be a lane by now."""
    registered = len(ledger.rules), ledger.ready.services.declared
    if ledger.registered != registered:
        ledger.registered = registered
        lanes = {lane.shelf for lane in ledger.ready.lanes.values()}
        for name, first in list(ledger.heads.items()):
            if name not in lanes:
                _shelf_changed(ledger, name, first, is_new=True)


def _take_up(ledger: Ledger, member: Member) -> None:
    """What that process runs goes on, and what it has not ended keeps its places.

    What this very process was to run and never began is put back, and what of that was given up has ended: the turn
    that started it was kept, and it never heard so.
    """
    begun = {record.token for record in ledger.orphans} | ledger.answered | ledger.begun
    for record in list(ledger.shelf(f"running/{member.id}")):
        ledger.guests.discard(record.id)
        lane = ledger.lane_run(record.spec, record.chosen)
        ledger.count_run(record.token, lane, member)
        ledger.recall(record, lane)
        epochs = [(one, breaker, breaker.epoch) for one in lane.services if (breaker := _counts(one, record))]
        if epochs:
            ledger.epochs[record.token] = epochs
        if member.id == ledger.worker and record.token not in begun:
            token = record.token
            ledger.release(token, record.id)
            ledger.judge_circuits(token, None)
            ledger.put_back(record, "return")
        elif member.id != ledger.worker and member.unread_since is None:
            member.unread_since = ledger.now  # it may not have read that it is to run this
    for one in member.overdue.values():
        spec = Spec(one.work_id, one.task, b"", one.services, one.queue)
        ledger.count_run(one.token, ledger.lane_run(spec, one.chosen), member)
        ledger.overdue[one.token] = one.work_id
    tokens = {one.work_id: one.token for one in member.overdue.values()}
    for record in list(ledger.shelf(f"{HELD}{member.id}")):
        if record.id in tokens:
            ledger.held[record.id] = tokens[record.id]
        else:
            ledger.place(replace(record, worker=None))
    if member.id == ledger.worker:
        for token in [token for token in member.overdue if token not in begun]:
            ledger.release(token, ledger.overdue[token])


def _take_up_orphans(ledger: Ledger, member: Member) -> None:
    """Code that runs in this process, and of which the store knows nothing: it was given up meanwhile."""
    for record in ledger.orphans:
        if record.token not in ledger.slots:
            ledger.count_run(record.token, ledger.lane_run(record.spec, record.chosen), member)
            ledger.give_up(record)
            current = ledger.live(record.id)
            if current is not None and not current.token and record.id not in ledger.held:
                ledger.held[record.id] = record.token
                ledger.leave_line(current)
                ledger.place(replace(current, worker=ledger.worker))
        if record.token in ledger.overdue:
            ledger.plan.stop.append(record.token)
    ledger.orphans = []


def _count(ledger: Ledger, head: Head) -> None:
    if (head.pending, head.running) != (ledger.pending, ledger.running) or head.seq != ledger.seq:
        ledger.has_moved = True
    ledger.count(head)


def _shelf_changed(ledger: Ledger, name: str, first: Key | None, is_new: bool = False) -> None:
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
        return  # a task that nobody knows: left alone
    if lane.shelf != name:  # since this was submitted, the task came to choose its services in another way
        if is_new:  # read anew; what this process did itself is in its place already
            for record in ledger.shelf(name):
                ledger.place(record)
        return
    line = lane.line
    if line.is_untouched:
        line.reset(first)
        ledger.ready.notice(lane)


def _load_service(ledger: Ledger, state: ServiceState) -> None:
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


def take_back_unread(ledger: Ledger, fleet: Fleet) -> None:
    """What processes were given and have not read for a while is pending again: they are stuck, or stopped."""
    for member in fleet.unread(ledger.now):
        member.unread_since = None
        if member.id == ledger.worker:
            continue
        asked = [work_id for work_id, worker in ledger.asked_of.items() if worker == member.id]
        if _take_back(ledger, member):
            member.is_stuck = True
        # What it has read it has left unanswered: whoever answers first is believed.
        ask_anew(ledger, asked)


def _take_back(ledger: Ledger, member: Member) -> bool:
    """Put back what that process was given and has not read: it is never begun, nor answered. True when there was
    something."""
    assert ledger.library is not None
    tokens, asked = ledger.library.take_back(member.id)
    running = {record.token: record for record in ledger.records.values() if record.token}
    for token in tokens:
        record = running.get(token)  # None when it was given up meanwhile
        ledger.release(token, ledger.overdue.get(token, "") if record is None else record.id)
        ledger.judge_circuits(token, None)
        if record is not None:
            ledger.put_back(record, "return")
    return bool(tokens or asked)


def lose(ledger: Ledger, worker: str) -> None:
    """That worker is dead: what it ran becomes pending again, or fails when that happened too often."""
    assert ledger.fleet is not None
    member = ledger.fleet.members.get(worker) or _find_left(ledger, ledger.fleet, worker)
    if member is None:  # somebody has seen to it
        return
    _take_back(ledger, member)
    tokens = [token for token, runner in ledger.runners.items() if runner is member]
    running = {record.token: record for record in ledger.records.values() if record.token}
    for token in tokens:
        _lose_attempt(ledger, token)
        record = running.get(token)
        if record is not None:
            ledger.plan.part(worker).stop.append(token)  # in case it only seemed dead
            _take_over(ledger, replace(record, worker=None))
    ask_again(ledger, worker)
    ledger.fleet.leave(worker)
    ledger.plan.lost.append(worker)


def _find_left(ledger: Ledger, fleet: Fleet, worker: str) -> Member | None:
    """A worker that nobody knows any more, if it has left work: it signed off while a turn gave it some."""
    if not any(True for shelf in (f"running/{worker}", f"{HELD}{worker}") for _ in ledger.shelf(shelf)):
        return None
    member = fleet.join(Worker(worker, "", "", 0, ledger.now))
    _take_up(ledger, member)
    return member


def _lose_attempt(ledger: Ledger, token: int) -> None:
    """Nobody will hear how that attempt ended, nor when it began: it counts as begun as late as it may have."""
    services, _, counted_at = ledger.unentered.pop(token, NOT_RATED)
    for service in services:
        service.entered(counted_at)
    if services and token in ledger.spending:
        ledger.spending[token].enter(counted_at)
    ledger.release(token, "")
    ledger.judge_circuits(token, None)


def ask_again(ledger: Ledger, worker: str) -> None:
    """That process may not know what it was asked."""
    ask_anew(ledger, [work_id for work_id, asked in ledger.asked_of.items() if asked == worker])


def ask_anew(ledger: Ledger, ids: Iterable[str]) -> None:
    """Nobody will answer what was asked about these: it is asked again, soon and perhaps of somebody else."""
    for work_id in ids:
        assert ledger.asking is not None
        ledger.asked_of.pop(work_id, None)
        ledger.asking.answered([Verdict(work_id, ledger.now, ready=False, why="not_ready")])


def _take_over(ledger: Ledger, record: Record) -> None:
    crashes = record.crashes + 1
    record = replace(record, crashes=crashes, spent=record.attempt)
    ledger.records[record.id] = record
    ledger.tell("lease_lost", record, crashes=crashes)
    if crashes >= MOST_CRASHES:
        fail_for(ledger, record, WORKER_LOST)
    else:
        ledger.put_back(record, "return", error=WORKER_LOST)


def _counts(service: Service, record: Record) -> Breaker | None:
    """The circuit that counts this call, if one does: none from before it last changed."""
    breaker = service.breaker
    if breaker is None or breaker.running <= 0 or (record.started_at or 0.0) < breaker.changed_at:
        return None
    if breaker.state != "closed" and record.started_at == breaker.changed_at:
        return None  # it was started in the moment before
    return breaker
