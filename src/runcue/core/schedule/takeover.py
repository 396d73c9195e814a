"""A queue that several processes share: taking over from whoever decided before, and going on for those that died.

One process decides for all of them (decision 0016). Who takes its place knows nothing and reads everything anew:
rules, services, who is there, what runs and where. From then on it knows all that happens, for nobody else decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from runcue.core.ledger.fleet import Fleet, Member
from runcue.core.ledger.ledger import HELD, Ledger
from runcue.core.ledger.timers import BLOCKED
from runcue.core.limits.breaker import Breaker
from runcue.core.limits.service import Service
from runcue.core.model.record import Record, Spec
from runcue.core.model.settings import MOST_CRASHES, Rule
from runcue.core.model.state import ServiceState, Worker
from runcue.core.schedule.gates import Verdict
from runcue.core.schedule.line import shelf_parts
from runcue.core.schedule.outcome import fail_for
from runcue.core.schedule.plan import Changes, Hello, Key

WORKER_LOST = "worker_lost"


def catch_up(ledger: Ledger, changes: Changes) -> None:
    """Stand where the store stands."""
    ledger.counters.load(changes.head)
    if not changes.is_first:
        for name, first in changes.shelves.items():
            _shelf_changed(ledger, name, first)
        return
    assert ledger.fleet is not None
    ledger.lanes.declare(changes.tasks)
    ledger.timers.load(changes.watch_at)
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
    if ledger.turn.worker in ledger.fleet.members:  # else it tells of itself with this turn
        _take_up_orphans(ledger, ledger.fleet.members[ledger.turn.worker])


def greet(ledger: Ledger, hello: Hello) -> None:
    """A process tells who it is and what it can run: its rules hold from now on."""
    assert ledger.fleet is not None
    known = ledger.fleet.members.get(hello.worker.id)
    rules = {name: rule for name, rule in hello.rules.items() if ledger.lanes.rules.get(name) != rule}
    tasks = set() if known is None else {*known.worker.tasks}
    if known is None or replace(known.worker, overdue=()) != replace(hello.worker, overdue=()):
        member = ledger.fleet.join(hello.worker)
        ledger.fleet.changed[member] = None
    ledger.fleet.heard_of(hello.worker.id, ledger.turn.now)
    before = {name: ledger.lanes.rules.get(name) for name in rules}
    for name, rule in rules.items():
        _warn_of(ledger, name, before[name], rule)
    ledger.lanes.declare(rules)
    ledger.turn.plan.tasks.update(rules)
    moved = {name for name, rule in rules.items() if _asks_of_needs(before.get(name)) != _asks_of_needs(rule)}
    if rules or tasks != {*hello.worker.tasks}:
        ledger.rearrange()
    if moved:
        _place_dependents(ledger, moved)
    if ledger.inherited.is_running and hello.worker.id == ledger.turn.worker:  # it has passed for dead
        _take_up_orphans(ledger, ledger.fleet.members[ledger.turn.worker])


def _warn_of(ledger: Ledger, name: str, before: Rule | None, now: Rule) -> None:
    """The last declaration of a task holds; where it differs from the one before, that is told."""
    if before is not None and before != now:
        ledger.turn.emit("task_changed", task=name)


def _asks_of_needs(rule: Rule | None) -> bool:
    """True when a callback says whether the dependencies of its work are there."""
    return rule is not None and rule.questions is not None and rule.questions.dependencies


def _place_dependents(ledger: Ledger, tasks: set[str]) -> None:
    """Somebody else says from now on whether the dependencies of these tasks are there: such work waits elsewhere."""
    lanes = [name for name in ledger.working.heads if (parts := shelf_parts(name)) and parts[1] in tasks]
    for name in (BLOCKED, *lanes):
        for record in ledger.working.shelf(name):
            if record.missing and record.spec.task in tasks:
                ledger.place(record)


def find_lanes(ledger: Ledger) -> None:
    """When tasks or services became known: an index key may be that of a lane by now."""
    if ledger.lanes.have_changed():
        lanes = {lane.shelf for lane in ledger.ready.lanes.values()}
        for name, first in list(ledger.working.heads.items()):
            if name not in lanes:
                _shelf_changed(ledger, name, first, is_new=True)


def _take_up(ledger: Ledger, member: Member) -> None:
    """What that process runs goes on, and what it has not ended keeps its places.

    What this very process was to run and never began is put back, and what of that was given up has ended: the turn
    that started it was kept, and it never heard so.
    """
    begun = ledger.inherited.begun()
    for record in list(ledger.working.shelf(f"running/{member.id}")):
        ledger.working.stays(record.id)
        lane = ledger.lanes.of_running(record.spec, record.chosen)
        ledger.capacity.take_up(record.token, lane, member)
        ledger.grants.recall(record, lane)
        counting = [(one, breaker) for one in lane.services if (breaker := _counts(one, record))]
        ledger.capacity.recall_calls(record.token, counting)
        if member.id == ledger.turn.worker and record.token not in begun:
            token = record.token
            ledger.release(token, record.id)
            ledger.capacity.judge(token, None)
            ledger.put_back(record, "return")
        elif member.id != ledger.turn.worker and member.unread_since is None:
            member.unread_since = ledger.turn.now  # it may not have read that it is to run this
    for one in member.overdue.values():
        spec = Spec(one.work_id, one.task, b"", one.services, one.queue)
        ledger.capacity.take_up(one.token, ledger.lanes.of_running(spec, one.chosen), member)
        ledger.capacity.was_given_up(one.token, one.work_id)
    tokens = {one.work_id: one.token for one in member.overdue.values()}
    for record in list(ledger.working.shelf(f"{HELD}{member.id}")):
        if record.id in tokens:
            ledger.hold(record.id, tokens[record.id])
        else:
            ledger.place(replace(record, worker=None))
    if member.id == ledger.turn.worker:
        for token in [token for token in member.overdue if token not in begun]:
            ledger.release(token, member.overdue[token].work_id)


def _take_up_orphans(ledger: Ledger, member: Member) -> None:
    """Code that runs in this process, and of which the store knows nothing: it was given up meanwhile."""
    for record in ledger.inherited.take():
        if ledger.capacity.lane_of(record.token) is None:
            ledger.capacity.take_up(record.token, ledger.lanes.of_running(record.spec, record.chosen), member)
            ledger.capacity.give_up(record)
            current = ledger.working.live(record.id)
            if current is not None and not current.token and record.id not in ledger.held:
                ledger.hold(record.id, record.token)
                ledger.leave_line(current)
                ledger.place(replace(current, worker=ledger.turn.worker))
        if ledger.capacity.overdue(record.token) is not None:
            ledger.turn.plan.stop.append(record.token)


def _shelf_changed(ledger: Ledger, name: str, first: Key | None, is_new: bool = False) -> None:
    ledger.working.set_head(name, first)
    parts = shelf_parts(name)
    if parts is None:
        return
    queue, task, services = parts
    lane = ledger.lanes.find(Spec("", task, b"", services, queue))
    if lane is None:
        return  # a task that nobody knows: left alone
    if lane.shelf != name:  # since this was submitted, the task came to choose its services in another way
        if is_new:  # read anew; what this process did itself is in its place already
            for record in ledger.working.shelf(name):
                ledger.place(record)
        return
    line = lane.line
    if line.is_untouched:
        line.reset(first)
        ledger.ready.found(lane)


def _load_service(ledger: Ledger, state: ServiceState) -> None:
    services = ledger.ready.services
    service = services.find(state.limits.name)
    if service is None or not services.is_key(service):
        services.apply(state.limits)
        service = services[state.limits.name]
    else:  # a key has the limits that its service has now
        state = replace(state, limits=service.limits)
    service.load(state)
    service.is_out = service.outage(ledger.turn.now) is not None  # whoever changed it has told so
    ledger.ready.touch(service)
    if service.breaker is not None and service.breaker.probe_deadline is not None:
        ledger.ready.wake_service(service, service.breaker.probe_deadline)


def take_back_unread(ledger: Ledger, fleet: Fleet) -> None:
    """What processes were given and have not read for a while is pending again: they are stuck, or stopped."""
    for member in fleet.unread(ledger.turn.now):
        member.unread_since = None
        if member.id == ledger.turn.worker:
            continue
        asked = [work_id for work_id, worker in ledger.asked_of.items() if worker == member.id]
        if _take_back(ledger, member):
            member.is_stuck = True
        # What it has read it has left unanswered: whoever answers first is believed.
        ask_anew(ledger, asked)


def _take_back(ledger: Ledger, member: Member) -> bool:
    """Put back what that process was given and has not read: it is never begun, nor answered. True when there was
    something."""
    assert ledger.turn.reader is not None
    tokens, asked = ledger.turn.reader.take_back(member.id)
    running = {record.token: record for record in ledger.working.records.values() if record.token}
    for token in tokens:
        record = running.get(token)  # None when it was given up meanwhile
        ledger.release(token, (ledger.capacity.overdue(token) or "") if record is None else record.id)
        ledger.capacity.judge(token, None)
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
    tokens = ledger.capacity.run_by(member)
    running = {record.token: record for record in ledger.working.records.values() if record.token}
    for token in tokens:
        _lose_attempt(ledger, token)
        record = running.get(token)
        if record is not None:
            ledger.turn.plan.part(worker).stop.append(token)  # in case it only seemed dead
            _take_over(ledger, replace(record, worker=None))
    ask_again(ledger, worker)
    ledger.fleet.leave(worker)
    ledger.turn.plan.lost.append(worker)


def _find_left(ledger: Ledger, fleet: Fleet, worker: str) -> Member | None:
    """A worker that nobody knows any more, if it has left work: it signed off while a turn gave it some."""
    if not any(
        True for shelf in (f"running/{worker}", f"{HELD}{worker}") for _ in ledger.working.shelf(shelf)
    ):
        return None
    member = fleet.join(Worker(worker, "", "", 0, ledger.turn.now))
    _take_up(ledger, member)
    return member


def _lose_attempt(ledger: Ledger, token: int) -> None:
    """Nobody will hear how that attempt ended, nor when it began: it counts as begun as late as it may have."""
    ledger.grants.lost(token)
    ledger.release(token, "")
    ledger.capacity.judge(token, None)


def ask_again(ledger: Ledger, worker: str) -> None:
    """That process may not know what it was asked."""
    ask_anew(ledger, [work_id for work_id, asked in ledger.asked_of.items() if asked == worker])


def ask_anew(ledger: Ledger, ids: Iterable[str]) -> None:
    """Nobody will answer what was asked about these: it is asked again, soon and perhaps of somebody else."""
    for work_id in ids:
        assert ledger.gates is not None
        ledger.asked_of.pop(work_id, None)
        ledger.gates.answered([Verdict(work_id, ledger.turn.now, ready=False, why="not_ready")])


def _take_over(ledger: Ledger, record: Record) -> None:
    crashes = record.crashes + 1
    record = replace(record, crashes=crashes, spent=record.attempt)
    ledger.working.amend(record)
    ledger.turn.emit("lease_lost", record, crashes=crashes)
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
