"""Taking over a shared queue from the process that decided before, and units from workers that died.

One process decides for all (decision 0016). A process that takes its place reads everything anew: rules, services,
workers, which units run and where. From then on it knows all that happens, because no other process decides.
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
from runcue.core.schedule import occurrences
from runcue.core.schedule.gates import Verdict
from runcue.core.schedule.line import index_key_parts
from runcue.core.schedule.outcome import fail_for
from runcue.core.schedule.plan import Changes, Hello, Key

WORKER_LOST = "worker_lost"


def catch_up(ledger: Ledger, changes: Changes) -> None:
    """Take in what the store has and this process does not know: everything, if another process decided before."""
    ledger.counters.load(changes.head)
    if not changes.is_first:
        for name, first in changes.index_heads.items():
            _index_head_changed(ledger, name, first)
        return
    assert ledger.fleet is not None
    ledger.lanes.declare(changes.tasks)
    ledger.timers.load(changes.watch_at)
    ledger.schedules.load(changes.schedules)
    occurrences.look_again(ledger)
    for state in changes.services:
        _load_service(ledger, state)
    for worker in changes.workers:
        ledger.fleet.join(worker)
    ledger.rearrange()
    for name in changes.paused:
        ledger.ready.pause_queue(name, paused=True)
    for name, first in changes.index_heads.items():
        _index_head_changed(ledger, name, first, is_new=True)
    for member in list(ledger.fleet.members.values()):
        _take_up(ledger, member)
    if ledger.turn.worker in ledger.fleet.members:  # else it introduces itself in this turn
        _take_up_orphans(ledger, ledger.fleet.members[ledger.turn.worker])


def greet(ledger: Ledger, hello: Hello) -> None:
    """Take in who a process is and what it can run. Its rules hold from now on."""
    assert ledger.fleet is not None
    known = ledger.fleet.members.get(hello.worker.id)
    rules = {name: rule for name, rule in hello.rules.items() if ledger.lanes.rules.get(name) != rule}
    tasks = set() if known is None else {*known.worker.tasks}
    if known is None or replace(known.worker, overdue=()) != replace(hello.worker, overdue=()):
        member = ledger.fleet.join(hello.worker)
        ledger.fleet.changed[member] = None
    ledger.fleet.heard_of(hello.worker.id, ledger.turn.now)
    moved = {name for name, rule in rules.items()
             if _asks_of_needs(ledger.lanes.rule_of(name)) != _asks_of_needs(rule)}  # fmt: skip
    for name in rules:
        if name in ledger.lanes.rules:  # the last declaration holds, and its difference is reported
            ledger.turn.emit("task_changed", task=name)
    ledger.lanes.declare(rules)
    ledger.turn.plan.tasks.update(rules)
    ledger.schedules.tasks_came(ledger.lanes.rules)
    if rules or tasks != {*hello.worker.tasks}:
        ledger.rearrange()
    if moved:
        _place_dependents(ledger, moved)
    if ledger.inherited.is_running and hello.worker.id == ledger.turn.worker:  # others took it for dead
        _take_up_orphans(ledger, ledger.fleet.members[ledger.turn.worker])


def _asks_of_needs(rule: Rule) -> bool:
    """True when a callback says whether the dependencies of a unit have completed."""
    return rule.questions is not None and rule.questions.dependencies


def _place_dependents(ledger: Ledger, tasks: set[str]) -> None:
    """Place units with dependencies of these tasks anew: a callback came or went that says whether those are met."""
    lanes = [name for name in ledger.working.heads if (parts := index_key_parts(name)) and parts[1] in tasks]
    for name in (BLOCKED, *lanes):
        for record in ledger.working.under(name):
            if record.missing and record.spec.task in tasks:
                ledger.place(record)


def find_lanes(ledger: Ledger) -> None:
    """When tasks or services became known, find the lanes of index keys that had none."""
    if ledger.lanes.have_changed():
        lanes = {lane.index_key for lane in ledger.ready.lanes.values()}
        for name, first in list(ledger.working.heads.items()):
            if name not in lanes:
                _index_head_changed(ledger, name, first, is_new=True)


def _take_up(ledger: Ledger, member: Member) -> None:
    """Count what a worker runs, overdue attempts included.

    Attempts that this process itself was to run and never began are put back, or over if they were given up: the turn
    that started them was committed, and this process never learned of that.
    """
    begun = ledger.inherited.begun()
    for record in list(ledger.working.under(f"running/{member.id}")):
        ledger.working.stays(record.id)
        lane = ledger.lanes.of_running(record.spec, record.chosen)
        ledger.capacity.take_up(record.token, lane, member)
        ledger.grants.recall(record, lane)
        counting = [(one, breaker) for one in lane.services if (breaker := _counts(one, record))]
        ledger.capacity.recall_calls(record.token, counting)
        if member.id == ledger.turn.worker and record.token not in begun:
            token = record.token
            ledger.grants.never_began(record, lane)
            ledger.release(token, record.id)
            ledger.capacity.judge(token, None)
            ledger.put_back(record, "return")
        elif member.id != ledger.turn.worker and member.unread_since is None:
            member.unread_since = ledger.turn.now  # it may not have read that start
    for one in member.overdue.values():
        spec = Spec(one.work_id, one.task, b"", one.services, one.queue)
        ledger.capacity.take_up(one.token, ledger.lanes.of_running(spec, one.chosen), member)
        ledger.capacity.was_given_up(one.token, one.work_id)
    tokens = {one.work_id: one.token for one in member.overdue.values()}
    for record in list(ledger.working.under(f"{HELD}{member.id}")):
        if record.id in tokens:
            ledger.hold(record.id, tokens[record.id])
        else:
            ledger.place(replace(record, worker=None))
    if member.id == ledger.turn.worker:
        for token in [token for token in member.overdue if token not in begun]:
            ledger.release(token, member.overdue[token].work_id)


def _take_up_orphans(ledger: Ledger, member: Member) -> None:
    """Count attempts whose code runs in this process although the store has given them up."""
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


def _index_head_changed(ledger: Ledger, name: str, first: Key | None, is_new: bool = False) -> None:
    ledger.working.set_head(name, first)
    parts = index_key_parts(name)
    if parts is None:
        return
    queue, task, services = parts
    lane = ledger.lanes.find(Spec("", task, b"", services, queue))
    if lane is None:
        return  # no process has declared that task
    # since those units were submitted, the services of the task were declared in another way
    if lane.index_key != name:
        if is_new:  # else this process has placed them itself
            for record in ledger.working.under(name):
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
    # the process that changed it has emitted that
    service.is_out = service.outage(ledger.turn.now) is not None
    ledger.ready.touch(service)
    if service.breaker is not None and service.breaker.probe_deadline is not None:
        ledger.ready.wake_service(service, service.breaker.probe_deadline)


def take_back_unread(ledger: Ledger, fleet: Fleet) -> None:
    """Take back what stuck or stopped workers have not read: units become pending again, or are asked about anew."""
    for member in fleet.unread(ledger.turn.now):
        member.unread_since = None
        if member.id == ledger.turn.worker:
            continue
        asked = [work_id for work_id, worker in ledger.asked_of.items() if worker == member.id]
        if _take_back(ledger, member):
            member.is_stuck = True
        ask_anew(ledger, asked)  # it may have read some of them and still answer: the first answer counts


def _take_back(ledger: Ledger, member: Member) -> bool:
    """Put back the starts that a worker has not read and never begins. True when there was something unread."""
    assert ledger.turn.reader is not None
    tokens, asked = ledger.turn.reader.take_back(member.id)
    running = {record.token: record for record in ledger.working.records.values() if record.token}
    for token in tokens:
        record = running.get(token)  # None when it was given up meanwhile
        lane = ledger.capacity.lane_of(token)
        if record is not None and lane is not None:
            ledger.grants.never_began(record, lane)
        ledger.release(token, (ledger.capacity.overdue(token) or "") if record is None else record.id)
        ledger.capacity.judge(token, None)
        if record is not None:
            ledger.put_back(record, "return")
    return bool(tokens or asked)


def lose(ledger: Ledger, worker: str) -> None:
    """A worker is dead: its units become pending again, or fail when they have lost too many workers."""
    assert ledger.fleet is not None
    member = ledger.fleet.members.get(worker) or _find_left(ledger, ledger.fleet, worker)
    if member is None:  # its units were taken over already
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
    """A worker that has signed off and still has units: a turn assigned some to it at the same moment."""
    names = (f"running/{worker}", f"{HELD}{worker}")
    if all(next(ledger.working.under(name), None) is None for name in names):
        return None
    member = fleet.join(Worker(worker, "", "", 0, ledger.turn.now))
    _take_up(ledger, member)
    return member


def _lose_attempt(ledger: Ledger, token: int) -> None:
    """Free the slots of an attempt of a dead worker. When it began is not known."""
    ledger.grants.lost(token)
    ledger.release(token, "")
    ledger.capacity.judge(token, None)


def ask_again(ledger: Ledger, worker: str) -> None:
    """Ask anew about all units that this process was to call callbacks about: it may not know of them."""
    ask_anew(ledger, [work_id for work_id, asked in ledger.asked_of.items() if asked == worker])


def ask_anew(ledger: Ledger, ids: Iterable[str]) -> None:
    """Have callbacks called again about these units, soon and perhaps in another process: no answer will come."""
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
    """The circuit of a service if it counts this attempt: not one that has changed since the attempt started."""
    breaker = service.breaker
    if breaker is None or breaker.running <= 0 or (record.started_at or 0.0) < breaker.changed_at:
        return None
    if breaker.state != "closed" and record.started_at == breaker.changed_at:
        return None  # it started just before the change, at the same moment
    return breaker
