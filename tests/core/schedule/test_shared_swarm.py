"""Several processes on one queue, with and without callbacks, doing whatever they may do, in any order; some die.

Each decides, or leaves what it has for whoever does; what was decided for it it reads soon, late or never. After
every turn what was committed has to make sense: the counters say how much there is, work runs in one place at a time,
nothing that runs is forgotten, what ended well stays as it is, and in the end everything has ended.
"""

import random
from collections import Counter

import pytest

from runcue.core.ledger import fleet
from runcue.core.ledger.fleet import HERE
from runcue.core.model.record import Record, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule import line, ready
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.outcome import STOPPED
from runcue.core.schedule.plan import Cancel, Ended, Item, Lost, Outcome, Revive, Verdicts
from tests.core.bench_of_core import limits
from tests.core.library import Process, Shared
from tests.sample import fewer

STEPS = 120
ASKED = (Questions(), Questions(ready=True), Questions(ready=True, stale=True), Questions(score=True),
         Questions(dependencies=True))  # fmt: skip


class Swarm:
    """Processes that come and go, and what must hold whatever they do."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shared = Shared()
        self.questions = self.chance.choice(ASKED)
        self.processes: list[Process] = []
        self.stuck: dict[Process, float] = {}
        """Those that do nothing before that moment."""
        self.code: dict[int, tuple[Process, str]] = {}
        """Attempts whose code runs, with the process it runs in and its work."""
        self.ghosts: dict[int, tuple[Process, str]] = {}
        """The same of processes that were thought dead."""
        self.done: dict[str, Record] = {}
        self.names = 0
        for _ in range(3):
            self.join()

    def join(self) -> None:
        self.names += 1
        rules = {
            "task": Rule(Retry.of({"max_attempts": 2, "base_delay": 1.0}), ("#running",)),
            "other": Rule(Retry()),
        }
        if self.chance.random() < 0.2:
            del rules["other"]
        services = (limits(concurrent=self.chance.choice((1, 3))), limits("rated", rate=(5, 10.0)))
        questions = self.questions if self.chance.random() < 0.8 else self.chance.choice(ASKED)
        room = {"#running": self.chance.choice((1, 2, 5))} if self.chance.random() < 0.7 else {}
        process = Process(
            self.shared, f"p{self.names}", *services, rules=rules, questions=questions, room=room
        )
        self.processes.append(process)
        self.say(process)

    # what a process may do ------------------------------------------------------------------------------

    def say(self, process: Process, *items: Item) -> None:
        """A process decides, or leaves what it has for others."""
        ended = {
            item.token
            for item in items
            if isinstance(item, Ended) or (isinstance(item, Outcome) and item.has_ended)
        }
        self.code = {token: one for token, one in self.code.items() if token not in ended}
        chance = self.chance.random()
        if chance < 0.5 and not process.is_unsure:
            process.post(*items)
            if self.chance.random() < 0.5:
                self.read(process)
        else:
            self.turn(process, *items)
        self.check()

    def turn(self, process: Process, *items: Item) -> None:
        chance = self.chance.random()
        if chance < 0.1:  # it is kept, and this process does not hear so
            process.turn(*items, is_heard=False)
            self.check()
            items = ()
        elif chance < 0.15:
            process.turn(*items, is_kept=False)
            items = tuple(item for item in items if not isinstance(item, (Ended, Outcome)))
        process.turn(*items)
        self.begin(process)

    def read(self, process: Process) -> None:
        if self.chance.random() < 0.1:  # it has read it, and does not hear so
            process.read(is_heard=False)
        else:
            process.read()
            self.begin(process)

    def begin(self, process: Process) -> None:
        for record in process.begun:
            assert record.id not in [work_id for _, work_id in self.code.values()], f"{record.id} runs twice"
            self.code[record.token] = process, record.id
        for record in process.questioned:
            self.answer(process, record.id)

    def answer(self, process: Process, work_id: str) -> None:
        said = {
            "ready": self.chance.random() < 0.7,
            "stale": self.chance.random() < 0.8,
            "score": self.chance.random(),
        }
        process._entered.append(Verdicts([process.verdict(work_id, **said)]))

    def step(self) -> None:
        self.shared.now += self.chance.choice((0.0, 0.0, 0.1, 2.0))
        self.shared.wall = self.shared.now
        able = [one for one in self.processes if self.stuck.get(one, 0.0) <= self.shared.now]
        if able:
            process = self.chance.choice(able)
            act = self.chance.choice(("submit", "submit", "end", "end", "end", "cancel", "revive", "turn", "time_out",
                                      "stop", "die", "seem_dead", "end_ghosts", "join", "get_stuck",
                                      "change"))  # fmt: skip
            getattr(self, f"do_{act}")(process)

    def do_submit(self, process: Process) -> None:
        known = list(self.shared.records)
        needs = self.chance.sample(known, min(len(known), self.chance.choice((0, 0, 0, 1, 2))))
        task = self.chance.choice(list(process.rules))
        service = self.chance.choice(("api", "rated"))
        items = [process.submission(None, needs=needs, task=task, services=(service,)) for _ in range(2)]
        self.say(process, *items)

    def own(self, process: Process) -> list[tuple[int, str]]:
        return [(token, work_id) for token, (owner, work_id) in self.code.items() if owner is process]

    def do_end(self, process: Process) -> None:
        for token, work_id in self.own(process)[:2]:
            if token in process.given_up:
                self.say(process, Ended(work_id, token))
            else:
                process.tokens[work_id] = token
                is_good = self.chance.random() < 0.7
                self.say(process, process.success(work_id, 1) if is_good else process.failure(work_id))

    def do_time_out(self, process: Process) -> None:
        for token, work_id in self.own(process)[:1]:
            if token not in process.given_up:
                process.tokens[work_id] = token
                process.given_up.add(token)
                self.say(process, process.failure(work_id, "timeout", message="timeout", has_ended=False))

    def do_cancel(self, process: Process) -> None:
        if self.shared.records:
            chosen = self.chance.choice(list(self.shared.records))
            self.say(process, Cancel(chosen, cascade=self.chance.random() < 0.3))

    def do_stop(self, process: Process) -> None:
        for _, work_id in self.own(process)[:1]:
            self.say(process, Cancel(work_id, reason=STOPPED))

    def do_revive(self, process: Process) -> None:
        over = [one.id for one in self.shared.records.values() if one.state.value in ("failed", "cancelled")]
        if over:
            self.say(process, Revive(self.chance.choice(over), cascade=self.chance.random() < 0.3))

    def do_turn(self, process: Process) -> None:
        self.turn(process)
        self.check()

    def do_join(self, process: Process) -> None:
        if len(self.processes) < 4:
            self.join()

    def do_get_stuck(self, process: Process) -> None:
        self.stuck[process] = self.shared.now + self.chance.choice((0.5, 2 * fleet.UNREAD, 8.0))

    def do_change(self, process: Process) -> None:
        """It tells something else of itself from now on."""
        process.may_start = self.chance.random() < 0.7
        process.queues = self.chance.choice((None, None, ("default",), ("elsewhere",)))
        self.say(process)

    def do_seem_dead(self, process: Process) -> None:
        """It is only thought dead: it goes on, what it runs may run elsewhere by now, and its answers are late."""
        others = [one for one in self.processes if one is not process]
        if others and not process.is_unsure and self.chance.random() < 0.3:
            lost = dict(self.own(process))
            self.ghosts.update((token, (process, work_id)) for token, work_id in lost.items())
            self.code = {token: one for token, one in self.code.items() if token not in lost}
            self.turn(self.chance.choice(others), Lost(process.tag))
            self.check()

    def do_end_ghosts(self, process: Process) -> None:
        """Code of a process that was thought dead comes to its end."""
        for token in [token for token, (owner, _) in self.ghosts.items() if owner is process]:
            _, work_id = self.ghosts.pop(token)
            process.tokens[work_id] = token
            self.say(
                process, process.success(work_id, 2) if self.chance.random() < 0.5 else Ended(work_id, token)
            )

    def do_die(self, process: Process) -> None:
        """It is dead, and somebody notices."""
        if len(self.processes) > 1 and self.chance.random() < 0.5:
            self.processes.remove(process)
            self.code = {token: one for token, one in self.code.items() if one[0] is not process}
            self.ghosts = {token: one for token, one in self.ghosts.items() if one[0] is not process}
            self.turn(self.chance.choice(self.processes), Lost(process.tag))
            self.check()

    # what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        records = self.shared.records
        states = Counter(record.state for record in records.values())
        head = self.shared.head
        assert (head.pending, head.running) == (states[WorkState.PENDING], states[WorkState.RUNNING])
        assert head.blocked == sum(bool(one.missing) for one in records.values() if not one.state.is_final)
        for record in records.values():
            if record.state is WorkState.RUNNING:
                assert self.is_cared_for(record), f"{record.id} runs nowhere"
            if record.state is WorkState.COMPLETED:
                known = self.done.setdefault(record.id, record)
                assert (known.result, known.completed_at, known.spent) == (
                    record.result,
                    record.completed_at,
                    record.spent,
                )
            else:
                assert record.id not in self.done, f"{record.id} was completed before"
        self.check_places()

    def is_cared_for(self, record: Record) -> bool:
        """True when it runs, is about to, has said how it ended, or its process will find that it never began."""
        owner = next((one for one in self.processes if one.tag == record.worker), None)
        letters = self.shared.letters.get(str(record.worker), [])
        posted = [item for post in self.shared.inbox for item in post.items]
        return (
            record.token in self.code
            or any(one.token == record.token for part in letters for one in part.start)
            or any(isinstance(item, Outcome) and item.token == record.token for item in posted)
            or (owner is not None and (owner.is_unsure or any(
                isinstance(item, Outcome) and item.token == record.token for item in owner._entered)))
        )  # fmt: skip

    def check_places(self) -> None:
        """Whoever decides counts what runs: no more, and nothing twice."""
        decider = next((one for one in self.processes if one.decides), None)
        if decider is not None:
            ledger = decider.scheduler.ledger
            used = Counter(lane.services[0].name for lane in ledger.capacity._slots.values())
            assert {name: count for name, count in decider.active.items() if count} == dict(used)
            assert ledger.fleet is not None
            mine = Counter(member.id for member in ledger.capacity._runners.values())
            assert {
                one.id: one.used.get(HERE, 0) for one in ledger.fleet.members.values() if one.used.get(HERE)
            } == mine
            assert all(
                member.room(("#running",)) >= 0 or member.worker.room
                for member in ledger.fleet.members.values()
            )

    def drain(self) -> None:
        """Everything is let come to its end."""
        self.stuck.clear()
        for process in self.processes:
            process.may_start, process.queues = True, None
        if not any("other" in process.rules for process in self.processes):
            self.processes[0].rules["other"] = Rule(Retry())
        for _ in range(400):
            self.shared.now += 1.0
            self.shared.wall = self.shared.now
            for process in self.processes:
                self.say(process)
                self.do_end_ghosts(process)
                for token, work_id in self.own(process):
                    over = Ended(work_id, token)
                    process.tokens[work_id] = token
                    self.say(process, over if token in process.given_up else process.success(work_id, 1))
            self.turn(self.chance.choice(self.processes))
            if not self.shared.head.pending + self.shared.head.running:
                return
        left = [one for one in self.shared.records.values() if not one.state.is_final]
        raise AssertionError(f"never ended: {left}")


@pytest.mark.parametrize("seed", range(fewer(60, 12)))
def test_whatever_processes_do_what_is_committed_makes_sense(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # little is in mind, and little is enough for a turn
        monkeypatch.setattr(line, "MOST", 4)
        monkeypatch.setattr(ready, "AT_ONCE", 2)
    swarm = Swarm(seed)
    for _ in range(STEPS):
        swarm.step()
    swarm.drain()
